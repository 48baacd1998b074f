"""README says what the program does: each command in it exists, each example runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import timeline
import timeline_cli
import timeline_mcp

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")


def shell_lines(text: str) -> list[str]:
    """The lines of a document's shell examples, without the command for the tests."""
    without_tests = re.sub(r"<!-- tests -->.*?<!-- /tests -->", "", text, flags=re.S)
    blocks = re.findall(r"```sh\n(.*?)```", without_tests, flags=re.S)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.mark.parametrize(("text", "least"), [(README, 15), (SKILL, 2)], ids=["README", "SKILL"])
def test_every_example_runs_in_order(
    text: str,
    least: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("TIMELINE_DB", raising=False)
    ran = 0
    for line in shell_lines(text):
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
    assert ran >= least


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


# ---- tools in the documents ---------------------------------------------------------------------


def test_documents_name_every_tool_and_no_other() -> None:
    for text in (SKILL, README):
        assert set(re.findall(r"\btimeline_[a-z_]+\b", text)) <= {
            *timeline_mcp.TOOLS,
            "timeline_id",
            "timeline_cli",
            "timeline_export",
            "timeline_import",
            "timeline_mcp",
        }
    assert set(timeline_mcp.TOOLS) <= set(re.findall(r"\btimeline_[a-z_]+\b", SKILL))


def calls_of_skill() -> list[tuple[str, str]]:
    """(tool, JSON arguments) of each call that SKILL.md shows, quotations joined."""
    joined = re.sub(r"`\n> `", "", SKILL)
    return re.findall(r"(timeline_[a-z_]+) (\{.*?\})`", joined, flags=re.S)


def test_calls_in_the_skill_have_arguments_that_the_tools_take() -> None:
    calls = calls_of_skill()
    assert len(calls) > 12
    for tool, shown in calls:
        operation = timeline_mcp.TOOLS[tool]
        given = json.loads(shown)
        timeline.check_arguments(operation, given)
        assert timeline_mcp.call_arguments(operation, {"arguments": given}) == given


def test_backticked_arguments_in_the_skill_exist() -> None:
    known = {
        argument.name
        for operation in timeline_mcp.TOOLS.values()
        for argument in operation.arguments
    }
    answers = {
        "messages",
        "placeholder",
        "reasons",
        "uncovered",
        "pinned",
        "current",
        "required_tokens",
    }
    for word in re.findall(r"`([a-z_]+)`", SKILL):
        assert word in known | answers | {"timeline_id", "tl"} or word in timeline_mcp.TOOLS, word


def test_errors_and_answers_quoted_in_the_skill_are_the_engine_s(tmp_path: Path) -> None:
    base = timeline.Database(str(tmp_path / "db"))
    base.run("create")
    for number in range(20):
        base.run("append", {"role": "user", "text": f"message {number} " * 20})
    base.run("pin", {"node": "n1"})
    with pytest.raises(timeline.BudgetInfeasible, match="budget infeasible") as caught:
        base.run("budget", {"max_tokens": 1})
    assert "required_tokens" in caught.value.data
    shown = base.run("budget", {"max_tokens": 400})["messages"]
    gap = next(each for each in shown if each.get("placeholder"))
    count = int(gap["to"][1:]) - int(gap["from"][1:]) + 1
    assert gap["text"].startswith(f"[{count} messages left out: {gap['from']}..{gap['to']}. ")
    assert re.search(r'"\[\d+ messages left out: n\d+\.\.n\d+\. …\]"', SKILL)
    base.run("fork", {"node": "n20", "name": "b"})
    reasons = base.run("archive_check", {"branch": "main"})["reasons"]
    assert {each["reason"] for each in reasons} == {"current", "pinned", "uncovered"}


def test_skill_keeps_to_the_format_of_agent_skills() -> None:
    assert SKILL.startswith("---\nname: timeline\n")
    front, body = SKILL.split("---\n", 2)[1:]
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert list(fields) == ["name", "description", "license", "compatibility"]
    for name, most in (("description", 1024), ("compatibility", 500)):
        value = json.loads(fields[name])  # in double quotes, as YAML and JSON both read it
        assert 0 < len(value) <= most
    for word in (
        "branch", "fork", "what if", "go back", "compact", "summarize", "out of context", "archive",
        "分支", "分叉", "世界线", "回到", "压缩上下文", "摘要", "归档", "接着上次",
    ):  # fmt: skip
        assert word in fields["description"], word
    assert SKILL.count("\n") < 300
    assert timeline.estimate(SKILL, "wide") < 4_000
    assert not re.search(r"\]\((?!https?:)", body), "it must work without anything beside it"


def test_options_of_the_server_in_readme_are_those_it_has() -> None:
    shown = timeline_mcp.build_parser().format_help()
    table = README.split("| option | what it does |", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`(--[a-z-]+)", table))
    assert named == set(re.findall(r"--[a-z-]+", shown)) - {"--help", "--version"}
    assert f"({timeline_mcp.OUTPUT_CHARS:,}; at least {timeline_mcp.OUTPUT_CHARS_MIN:,})" in table
    assert f"above {timeline_mcp.TEXT_CHARS_MAX:,} characters" in README
    assert f"Lists come {timeline_mcp.ROWS_DEFAULT} rows" in README
    assert f"ids above {timeline_mcp.IDS_MAX} are" in README
    for revision in (*timeline_mcp.HANDSHAKE_REVISIONS, timeline_mcp.ENVELOPE_REVISION):
        assert revision in README
