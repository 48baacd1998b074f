"""README says what the program does: each command in it exists, each example runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import timeline
import timeline_cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shell_lines() -> list[str]:
    """The lines of README's shell examples, without the command for the tests."""
    without_tests = re.sub(r"<!-- tests -->.*?<!-- /tests -->", "", README, flags=re.S)
    blocks = re.findall(r"```sh\n(.*?)```", without_tests, flags=re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def test_every_example_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("TIMELINE_DB", raising=False)
    ran = 0
    for line in shell_lines():
        words = shlex.split(line)
        if words[0] == "export":
            name, value = words[1].split("=", 1)
            monkeypatch.setenv(name, value)
            continue
        if words[:2] == ["python3", "scripts/tl.py"]:
            words = words[1:]
        assert words[0] in ("tl", "scripts/tl.py"), line
        if words[1] == "import":  # the reader's own sessions stand for a sample
            words[2] = str(ROOT / "tests" / "samples" / "claude-code")
        assert timeline_cli.main(words[1:]) == 0, (line, capsys.readouterr().err)
        ran += 1
    assert ran > 15


def test_readme_names_every_command_and_no_other() -> None:
    table = README.split("## Commands", 1)[1].split("## ", 1)[0]
    named = {
        word
        for row in re.findall(r"^\|(.*?)\|", table, flags=re.M)
        for word in re.findall(r"`([a-z-]+)`", row)
    }
    assert named == {timeline_cli.command_name(each) for each in timeline.OPERATIONS.values()}


def test_examples_of_the_help_are_read_by_the_parser() -> None:
    for operation in timeline.OPERATIONS.values():
        words = shlex.split(operation.example)
        assert words[0] == "tl"
        call = timeline_cli._read_usual(words[1:])
        assert call.operation is operation
        timeline.check_arguments(operation, call.values)


def test_limits_in_readme_are_those_of_the_engine() -> None:
    assert timeline.TEXT_BYTES_MAX == 1 << 20
    assert "at most 1 MiB of UTF-8" in README
    assert f"{timeline.MESSAGES_MAX:,} messages" in README
    assert f"up to {timeline.NAME_CHARS_MAX} characters, keys {timeline.KEY_CHARS_MAX}" in README
    assert timeline.KEY_LIFE_S == 7 * 24 * 3600
    assert "within 7 days" in README


def test_product_text_names_nothing_outside_the_project() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("scripts/*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"TODO|FIXME|\.\./shared", text), path
