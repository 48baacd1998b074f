"""`tl skill` and `tl mcp-config`: what is installed, and entries that really start the server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
from kit.program import Inside

ROOT = Path(__file__).resolve().parents[2]
SKILL = (ROOT / "SKILL.md").read_bytes()
CLIENTS = timeline.OPERATIONS["mcp_config"].by_name["client"].choices
NASTY = 'a "quoted" folder\\with 中文 and \' #'
links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


@pytest.fixture
def tl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The program with an empty home folder, in an empty current folder."""
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return Inside(tmp_path / "db.json")


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ---- mcp-config ---------------------------------------------------------------------------------


def command_of(client: str, text: str) -> list[str]:
    """The command that a client reads from an entry."""
    entry: dict[str, Any]
    if client == "codex":
        tomllib = pytest.importorskip("tomllib")
        entry = tomllib.loads(text)["mcp_servers"]["timeline"]
    else:
        entry = json.loads(text)["servers" if client == "vscode" else "mcpServers"]["timeline"]
        assert entry.get("type", "stdio") == "stdio"
        assert client != "vscode" or "type" in entry
    return [entry["command"], *entry["args"]]


@pytest.mark.parametrize("client", CLIENTS)
def test_an_entry_starts_the_server(tl: Inside, tmp_path: Path, client: str) -> None:
    tl("create", "--title", "mine")
    outcome = tl("mcp-config", "--client", client)
    assert outcome.code == 0
    assert outcome.err.startswith(b"tl: this goes into ")
    command = command_of(client, outcome.out.decode())
    assert all(os.path.isabs(each) for each in command if not each.startswith("--"))
    assert command[-2:] == ["--db", str(tl.db)]
    asked = [
        {"method": "initialize", "id": 1, "params": {"protocolVersion": "2025-11-25"}},
        {"method": "tools/call", "id": 2, "params": {"name": "timeline_list"}},
    ]
    frames = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in asked)
    environment = {name: value for name, value in os.environ.items() if name != "TIMELINE_DB"}
    done = subprocess.run(
        command, input=frames.encode(), capture_output=True, check=True, env=environment, timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == "timeline"
    assert json.loads(answers[1]["result"]["content"][0]["text"])[0]["title"] == "mine"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("path", [NASTY, "C:\\Users\\x y\\t.json", "tab\tand\x7f"])
def test_any_path_survives_the_entry(tl: Inside, client: str, path: str) -> None:
    outcome = tl("mcp-config", "--client", client, "--db", path)
    assert command_of(client, outcome.out.decode())[-1] == os.path.abspath(path)


def test_the_default_database_is_left_to_the_server(tl: Inside) -> None:
    outcome = tl("mcp-config", env={"TIMELINE_DB": ""})
    assert len(command_of("generic", outcome.out.decode())) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
def test_the_line_for_claude_code_is_read_by_the_shell_as_the_entry_is(tl: Inside) -> None:
    outcome = tl("mcp-config", "--client", "claude-code", "--db", NASTY)
    line = outcome.err.decode().split("for all projects: ")[1]
    words = shlex.split(line)
    assert words[:7] == ["claude", "mcp", "add", "--scope", "user", "timeline", "--"]
    assert words[7:] == command_of("claude-code", outcome.out.decode())


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_a_path_that_is_no_utf8_is_refused(tl: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/\udcff/python")
    outcome = tl("mcp-config")
    assert outcome.code == 1
    assert "is no UTF-8" in outcome.error["error"]


# ---- skill --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes with names there")
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_never_replaced_nor_read(tl: Inside, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "skills" / "timeline" / "SKILL.md"
    place.parent.mkdir(parents=True)
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    outcome = tl("skill", "install", "--to", str(tmp_path / "skills"))
    assert outcome.code == 1
    assert "no regular file" in outcome.error["error"]


def test_without_a_home_folder_nothing_is_installed(tl: Inside) -> None:
    for home in ("", "relative"):
        outcome = tl("skill", "install", env={"HOME": home, "USERPROFILE": home})
        assert outcome.code == 1
        assert "--to" in outcome.error["error"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are others there")
def test_an_install_that_fails_leaves_no_folder(
    tl: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    outcome = tl("skill", "install", "--to", str(tmp_path / "a" / "b"))
    assert outcome.code == 5
    assert "make room" in outcome.error["error"]
    assert not (tmp_path / "a").exists()


def test_an_unknown_option_names_the_help_of_its_command(tl: Inside) -> None:
    outcome = tl("mcp-config", "--project")
    assert outcome.code == 2
    assert outcome.error["error"].endswith("--project; see `tl mcp-config --help`")


def test_path_and_print_show_the_file(tl: Inside) -> None:
    assert Path(tl("skill", "path").out.decode().rstrip("\n")).read_bytes() == SKILL
    assert tl("skill", "print").out == SKILL
    assert not tl.db.exists()


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ([], {".claude", ".agents"}),
        (["--client", "all"], {".claude", ".agents"}),
        (["--client", "claude-code"], {".claude"}),
        (["--client", "agents"], {".agents"}),
    ],
)
@pytest.mark.parametrize("where", ["home", "project"])
def test_install_writes_where_the_clients_look(
    tl: Inside, tmp_path: Path, options: list[str], made: set[str], where: str
) -> None:
    options = [*options, "--project"] if where == "project" else options
    rows = tl("skill", "install", *options).value["installed"]
    assert [row["status"] for row in rows] == ["written"] * len(made)
    wanted = {f"{where}/{name}/skills/timeline/SKILL.md" for name in made}
    assert files_below(tmp_path) == wanted
    assert {Path(row["path"]) for row in rows} == {tmp_path / each for each in wanted}
    assert all((tmp_path / each).read_bytes() == SKILL for each in wanted)
    rows = tl("skill", "install", *options).value["installed"]
    assert [row["status"] for row in rows] == ["unchanged"] * len(made)
    assert files_below(tmp_path) == wanted


def test_claude_codes_own_variable_moves_its_folder(tl: Inside, tmp_path: Path) -> None:
    moved = {"CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    tl("skill", "install", "--client", "claude-code", env=moved)
    assert files_below(tmp_path) == {"moved/skills/timeline/SKILL.md"}


def test_every_different_file_is_kept(tl: Inside, tmp_path: Path) -> None:
    target = tmp_path / "skills" / "timeline" / "SKILL.md"
    target.parent.mkdir(parents=True)
    kept = []
    for number in range(3):
        target.write_text(f"mine {number}", encoding="utf-8")
        (row,) = tl("skill", "install", "--to", str(tmp_path / "skills")).value["installed"]
        assert row["status"] == "replaced"
        kept.append(Path(row["kept"]))
    assert [path.read_text(encoding="utf-8") for path in kept] == ["mine 0", "mine 1", "mine 2"]
    assert all(path.name.startswith("SKILL.md.bak-") for path in kept)
    assert target.read_bytes() == SKILL
    assert len(files_below(target.parent)) == 4


@links
@pytest.mark.parametrize("dangling", [False, True])
def test_what_a_link_leads_to_is_never_written(tl: Inside, tmp_path: Path, dangling: bool) -> None:
    target = tmp_path / "skills" / "timeline" / "SKILL.md"
    target.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.md"
    target.symlink_to(elsewhere)
    if not dangling:
        elsewhere.write_text("mine", encoding="utf-8")
    (row,) = tl("skill", "install", "--to", str(tmp_path / "skills")).value["installed"]
    assert not target.is_symlink()
    assert target.read_bytes() == SKILL
    assert os.readlink(row["kept"]) == str(elsewhere)
    assert elsewhere.exists() is not dangling
    assert dangling or elsewhere.read_text(encoding="utf-8") == "mine"


@links
def test_a_folder_that_is_a_link_is_refused_unless_it_holds_the_same(
    tl: Inside, tmp_path: Path
) -> None:
    skills, checkout = tmp_path / "skills", tmp_path / "checkout"
    skills.mkdir()
    checkout.mkdir()
    (skills / "timeline").symlink_to(checkout)
    (checkout / "SKILL.md").write_text("older", encoding="utf-8")
    outcome = tl("skill", "install", "--to", str(skills))
    assert outcome.code == 1
    assert str(checkout) in outcome.error["error"]
    assert files_below(checkout) == {"SKILL.md"}
    (checkout / "SKILL.md").write_bytes(SKILL)
    assert tl("skill", "install", "--to", str(skills)).value["installed"][0]["status"] == (
        "unchanged"
    )


def test_a_folder_that_cannot_be_made_is_the_systems_failure(tl: Inside, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    outcome = tl("skill", "install", "--to", str(tmp_path / "file"))
    assert outcome.code == 5
    assert str(tmp_path / "file") in outcome.error["error"]


def test_a_failed_replace_leaves_what_was_there(
    tl: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "skills" / "timeline" / "SKILL.md"
    target.parent.mkdir(parents=True)
    target.write_text("mine", encoding="utf-8")

    def refuse(source: str, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "replace", refuse)
    outcome = tl("skill", "install", "--to", str(tmp_path / "skills"))
    assert outcome.code == 5
    assert "Permission denied" in outcome.error["error"]
    assert target.read_text(encoding="utf-8") == "mine"
    assert files_below(target.parent) == {"SKILL.md"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["skill"], "path|print|install"),
        (["skill", "remove"], 'action must be one of path, print, install, not "remove"'),
        (["skill", "path", "--to", "x"], "--to goes with install, not path"),
        (["skill", "print", "--project"], "--project goes with install, not print"),
        (["skill", "install", "--to", "x", "--project"], "--to and --project were both given"),
        (["skill", "install", "--client", "emacs"], "emacs"),
        (["mcp-config", "--client", "emacs"], "emacs"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(
    tl: Inside, tmp_path: Path, arguments: list[str], told: str
) -> None:
    outcome = tl(*arguments)
    assert outcome.code == 2
    assert told in outcome.error["error"]
    assert files_below(tmp_path) == set()


def test_a_missing_file_is_told(
    tl: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_cli, "__file__", str(tmp_path / "lib" / "timeline_cli.py"))
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    outcome = tl("skill", "path")
    assert outcome.code == 1
    assert "install Timeline again" in outcome.error["error"]


@pytest.mark.slow
def test_an_installed_package_has_the_file_and_starts_the_server(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "SKILL.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "scripts", source / "scripts")
    subprocess.run([binaries / "pip", "install", "-q", str(source)], check=True, timeout=300)
    shown = subprocess.run(
        [binaries / "tl", "skill", "print"], capture_output=True, check=True, cwd=tmp_path
    )
    assert shown.stdout == SKILL
    shown = subprocess.run(
        [binaries / "tl", "mcp-config"], capture_output=True, check=True, cwd=tmp_path
    )
    command = command_of("generic", shown.stdout.decode())
    assert command[0].startswith(str(tmp_path / "venv"))
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=60)
