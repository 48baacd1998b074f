"""`tl skill` and `tl mcp-config`: what they install and print is what agents' clients read."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import timeline_cli

ROOT = Path(__file__).resolve().parents[2]
SKILL = (ROOT / "SKILL.md").read_bytes()
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.delenv("TIMELINE_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


class Tl:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        assert timeline_cli.main(list(words)) == code
        shown = self.capsys.readouterr()
        self.said = shown.err
        return shown.err if code else shown.out

    def install(self, *words: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self("skill", "install", *words))["installed"]
        return found


@pytest.fixture
def tl(capsys: pytest.CaptureFixture[str]) -> Tl:
    return Tl(capsys)


# ---- skill --------------------------------------------------------------------------------------


def test_skill_is_found_and_printed(tl: Tl) -> None:
    assert tl("skill", "path") == f"{ROOT / 'SKILL.md'}\n"
    assert tl("skill", "print").encode() == SKILL
    assert "path, print or install" in tl("skill", code=2) or "ACTION" in tl("skill", code=2)
    assert "path, print, install" in tl("skill", "remove", code=2)


def test_skill_is_installed_for_each_client(tl: Tl, home: Path, tmp_path: Path) -> None:
    claude = home / ".claude" / "skills" / "timeline" / "SKILL.md"
    agents = home / ".agents" / "skills" / "timeline" / "SKILL.md"
    assert tl.install() == [
        {"path": str(claude), "status": "new"},
        {"path": str(agents), "status": "new"},
    ]
    assert claude.read_bytes() == agents.read_bytes() == SKILL
    assert [each["status"] for each in tl.install("--client", "all")] == ["unchanged"] * 2
    assert os.listdir(claude.parent) == ["SKILL.md"]
    project = tmp_path / ".agents" / "skills" / "timeline" / "SKILL.md"
    assert tl.install("--client", "agents", "--project")[0]["path"] == str(project)
    assert tl.install("--to", "elsewhere")[0]["path"] == str(
        tmp_path / "elsewhere" / "timeline" / "SKILL.md"
    )


def test_skill_that_differs_is_kept_beside(tl: Tl, home: Path) -> None:
    path = Path(tl.install("--client", "claude-code")[0]["path"])
    for number in range(3):
        path.write_bytes(b"mine %d" % number)
        row = tl.install("--client", "claude-code")[0]
        assert row["status"] == "replaced"
        assert Path(row["backup"]).name.startswith("SKILL.md.bak-")
        assert Path(row["backup"]).read_bytes() == b"mine %d" % number
        assert path.read_bytes() == SKILL
    assert len(os.listdir(path.parent)) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="links and modes are others there")
def test_skill_goes_neither_through_a_link_nor_into_a_closed_folder(tl: Tl, home: Path) -> None:
    folder = home / ".claude" / "skills" / "timeline"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").symlink_to(home / "target.md")
    assert str(home / "target.md") in tl("skill", "install", "--client", "claude-code", code=1)
    assert not (home / "target.md").exists()
    (home / "plain").write_bytes(b"a file")
    assert "plain" in tl("skill", "install", "--to", str(home / "plain"), code=5)


# ---- mcp-config ---------------------------------------------------------------------------------


def entry_of(client: str, text: str) -> dict[str, Any]:
    """The server's entry in the configuration of a client."""
    if client == "codex":
        if importlib.util.find_spec("tomllib") is None:
            pytest.skip("this Python reads no TOML")
        tomllib = importlib.import_module("tomllib")
        found: dict[str, Any] = tomllib.loads(text)["mcp_servers"]["timeline"]
        return found
    key = "servers" if client == "vscode" else "mcpServers"
    whole = json.loads(text)
    assert list(whole) == [key]
    assert list(whole[key]) == ["timeline"]
    found = whole[key]["timeline"]
    if client in ("claude-code", "vscode"):
        assert found.pop("type") == "stdio"
    return found


CLIENTS = ["claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini", "generic"]


@pytest.mark.parametrize("client", CLIENTS)
def test_printed_entry_starts_a_server_on_that_database(
    tl: Tl, tmp_path: Path, client: str
) -> None:
    name = "库 with spaces.json" if os.name == "nt" else '库 with "quotes" \\ and spaces.json'
    path = tmp_path / name
    entry = entry_of(client, tl("mcp-config", "--client", client, "--db", str(path)))
    assert "this goes into" in tl.said
    assert list(entry) == ["command", "args"]
    assert os.path.isabs(entry["command"])
    assert os.path.isabs(entry["args"][0])
    frames = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "timeline_create", "arguments": {}},
        },
    ]
    done = subprocess.run(
        [entry["command"], *entry["args"]],
        input="".join(json.dumps(frame) + "\n" for frame in frames).encode(),
        stdout=subprocess.PIPE,
        check=True,
        cwd="/" if os.name != "nt" else None,
        env={**os.environ, "TIMELINE_DB": ""},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[1]["result"]["structuredContent"] == {"timeline_id": "tl0"}
    assert path.exists()


def test_entry_names_the_database_unless_it_is_the_default(
    tl: Tl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(entry_of("generic", tl("mcp-config"))["args"]) == 1
    monkeypatch.setenv("TIMELINE_DB", "talk.json")
    args = entry_of("generic", tl("mcp-config"))["args"]
    assert args[1:] == ["--db", str(tmp_path.resolve() / "talk.json")]
    assert not (tmp_path / "talk.json").exists()
    assert "--client" in tl("mcp-config", "--client", "emacs", code=2)


# ---- installed ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_installed_package_has_both_programs_and_the_skill(tmp_path: Path) -> None:
    """Built from a copy, with the setuptools that are here: nothing is fetched."""
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    for name in listed.splitlines():
        if not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True, system_site_packages=True)
    binaries = folder / ("Scripts" if os.name == "nt" else "bin")
    python = str(binaries / "python")
    if subprocess.run(
        [python, "-c", "import setuptools, wheel"], stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("no setuptools and wheel to build with in this Python")
    install = [python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, str(source)], check=True, env=_clean())

    def output(*command: str) -> str:
        return subprocess.run(
            command, stdout=subprocess.PIPE, check=True, env=_clean(), cwd=tmp_path, input=b""
        ).stdout.decode()

    tl = str(binaries / "tl")
    assert output(tl, "skill", "print").encode() == SKILL
    assert str(folder) in output(tl, "skill", "path")
    assert output(tl, "--version").startswith("tl 0.")
    assert output(str(binaries / "tl-mcp"), "--version").startswith("tl-mcp 0.")
    assert output(python, "-m", "timeline_mcp", "--version").startswith("tl-mcp 0.")
    assert str(folder) in json.loads(output(tl, "mcp-config"))["mcpServers"]["timeline"]["args"][0]


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
