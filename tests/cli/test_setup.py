"""`tl skill`, `tl mcp-config` and `tl demo`: what is installed, entries that really start the
server, a story whose commands can be copied."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
from kit.program import Inside, Program

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
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
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
    elif client == "opencode":
        entry = json.loads(text)["mcp"]["timeline"]
        assert set(entry) == {"type", "command"}
        assert entry["type"] == "local"
        return [*entry["command"]]
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
    words = shlex.split(line.split("\n")[0])
    assert words[:7] == ["claude", "mcp", "add", "--scope", "user", "timeline", "--"]
    assert words[7:] == command_of("claude-code", outcome.out.decode())


@pytest.mark.parametrize(
    ("options", "variable", "told"),
    [
        ([], "", None),
        ([], "named.json", "of TIMELINE_DB"),
        (["--db", "other.json"], "named.json", "of --db"),
    ],
)
def test_the_database_in_the_entry_is_told(
    tl: Inside, options: list[str], variable: str, told: str | None
) -> None:
    outcome = tl("mcp-config", *options, env={"TIMELINE_DB": variable})
    database = command_of("generic", outcome.out.decode())[3:]
    told_lines = [line for line in outcome.err.decode().splitlines() if "database" in line]
    assert len(database) == len(told_lines) == (told is not None)
    if told is not None:
        assert f"{told}: {timeline.quoted(database[0])}" in told_lines[0]


def test_a_virtual_environments_python_is_told(tl: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/home/me/project/.venv")
    assert b'virtual environment "/home/me/project/.venv": keep' in tl("mcp-config").err
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert b"virtual environment" not in tl("mcp-config").err


@pytest.mark.parametrize("variable", [None, "elsewhere"])
def test_opencodes_own_variable_moves_its_file(
    tl: Inside, tmp_path: Path, variable: str | None
) -> None:
    folder = tmp_path / "home" / ".config" if variable is None else tmp_path / variable
    env = {} if variable is None else {"XDG_CONFIG_HOME": str(folder)}
    outcome = tl("mcp-config", "--client", "opencode", env=env)
    assert str(folder / "opencode" / "opencode.json") in outcome.err.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="another variable")
@pytest.mark.parametrize("client", CLIENTS)
def test_an_unknown_home_folder_does_not_stop_the_entry(tl: Inside, client: str) -> None:
    outcome = tl("mcp-config", "--client", client, env={"HOME": ""})
    assert outcome.code == 0
    assert b" /." not in outcome.err


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_a_path_that_is_no_utf8_is_refused(tl: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/\udcff/python")
    outcome = tl("mcp-config")
    assert outcome.code == 1
    assert "is no UTF-8" in outcome.error["error"]


# ---- skill --------------------------------------------------------------------------------------


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


def in_the_way(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))  # a whole path may be too long for one
    else:
        path.write_text("mine", encoding="utf-8")


KINDS = ["folder"] if sys.platform == "win32" else ["folder", "fifo", "socket"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_before_anything_is_written(
    tl: Inside, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "home" / ".agents" / "skills" / "timeline" / "SKILL.md"
    target.parent.mkdir(parents=True)
    in_the_way(target, kind)
    outcome = tl("skill", "install", "--client", "all")
    assert outcome.code == 1
    what = "a folder" if kind == "folder" else "no regular file"
    assert outcome.error["error"] == f"{target} is {what}: move it away and install again"
    assert os.listdir(tmp_path / "home") == [".agents"]
    assert os.listdir(target.parent) == ["SKILL.md"]


@pytest.mark.parametrize("kind", ["file", *KINDS[1:]])
def test_what_is_no_folder_is_refused(tl: Inside, tmp_path: Path, kind: str) -> None:
    (tmp_path / "skills").mkdir()
    in_the_way(tmp_path / "skills" / "timeline", kind)
    outcome = tl("skill", "install", "--to", str(tmp_path / "skills"))
    assert outcome.code == 1
    assert "timeline is no folder: move it away" in outcome.error["error"]


@links
@pytest.mark.parametrize("kind", KINDS)
def test_a_link_to_what_is_no_file_is_kept(tl: Inside, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "skills" / "timeline" / "SKILL.md"
    target.parent.mkdir(parents=True)
    in_the_way(tmp_path / "odd", kind)
    target.symlink_to(tmp_path / "odd")
    (row,) = tl("skill", "install", "--to", str(tmp_path / "skills")).value["installed"]
    assert os.readlink(row["kept"]) == str(tmp_path / "odd")
    assert target.read_bytes() == SKILL


@pytest.mark.parametrize("home", ["", "relative"])
def test_an_unknown_home_folder_is_told(
    tl: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    written = []
    monkeypatch.setattr(timeline_cli, "install_skill", lambda folder, data: written.append(folder))
    variables = {"HOME": home, "USERPROFILE": home}
    outcome = tl("skill", "install", env=variables)
    assert (outcome.code, written) == (1, [])
    assert "home folder is unknown: set " in outcome.error["error"]
    assert "--to" in outcome.error["error"]
    # Nothing that needs no home folder asks for one.
    moved = {**variables, "CLAUDE_CONFIG_DIR": str(tmp_path / "moved")}
    assert tl("skill", "install", "--client", "claude-code", env=moved).code == 0
    assert tl("skill", "install", "--project", env=variables).code == 0
    assert len(written) == 3


@pytest.mark.parametrize("there", [[], ["a"], ["a", "skills", "timeline"]])
@pytest.mark.parametrize("failing", ["replace", "fsync", "mkdir"])
def test_a_failed_install_leaves_no_new_folder(
    tl: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], failing: str
) -> None:
    base = tmp_path / "base"
    base.joinpath(*there).mkdir(parents=True)
    before = sorted(base.rglob("*"))
    real = getattr(os, failing)

    def refuse(*given: Any, **more: Any) -> Any:
        if failing == "mkdir" and not str(given[0]).endswith("timeline"):
            return real(*given, **more)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, failing, refuse)
    outcome = tl("skill", "install", "--to", str(base / "a" / "skills"))
    monkeypatch.undo()
    assert outcome.code == (0 if failing == "mkdir" and len(there) == 3 else 5)
    assert outcome.code == 0 or sorted(base.rglob("*")) == before


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
        (["mcp-config", "--project"], "--project; see `tl mcp-config --help`"),
        (["mcp-config", "--client", "cursor", "--to", "x"], "x; see `tl mcp-config --help`"),
        (["--db", "x", "mcp-config", "--to=-"], "--to=-; see `tl mcp-config --help`"),
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
    assert b"the virtual environment" in shown.stderr
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=60)


# ---- demo ---------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with a name that a shell must see in quotes."""
    folder = tmp_path / "it's temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
def test_the_commands_of_the_demo_can_be_copied(tmp_path: Path, temporary: Path) -> None:
    program = Program(tmp_path / "other.json")
    told = program("demo", env={"TMPDIR": str(temporary)}).out.decode()
    lines = re.findall(r"^  \$ (.*)$", told, flags=re.M)
    assert [line.split("=")[0] for line in lines[:2]] == ["export TIMELINE_DB", "alias tl"]
    script = "\n".join(["set -e", *lines])  # an sh expands aliases in scripts
    (database,) = temporary.glob("*/demo.json")
    before = database.read_bytes()
    database.unlink()
    done = subprocess.run(
        ["sh"], input=script.encode(), capture_output=True, check=False, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert database.read_bytes().count(b"\n") == before.count(b"\n")
    picture = told.split("  $ tl tree\n")[1].split("\n\n")[0]
    assert done.stdout.decode().count("\n".join(row[2:] for row in picture.split("\n"))) == 2
    assert not (tmp_path / "other.json").exists()


def test_the_demo_uses_the_database_of_its_option_alone(
    tl: Inside, tmp_path: Path, temporary: Path
) -> None:
    named = tmp_path / "named.json"
    told = tl("demo", "--db", str(named)).out.decode()
    assert named.exists()
    assert not tl.db.exists()
    assert not list(temporary.glob("*/demo.json"))
    (folder,) = temporary.iterdir()
    assert f"{folder} may be deleted" in told
    assert told.endswith(f"tree --db {named}\n")
    refused = tl("demo", "--db", str(named))
    assert refused.code == 1
    assert refused.error["error"] == f"{named} exists: the demo wants a new file"
    assert list(temporary.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("demo", "default: one in a temporary folder"),
        ("mcp-config", "default: TIMELINE_DB, else none"),
        ("list", "default: TIMELINE_DB, else ~/.timeline.json"),
    ],
)
def test_help_names_the_database_that_is_used(tl: Inside, command: str, told: str) -> None:
    shown = tl(command, "--help").out.decode()
    assert told in " ".join(shown.split())
