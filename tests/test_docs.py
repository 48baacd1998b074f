"""README and SKILL.md say what the program does: what they name exists, each example runs."""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import timeline
import timeline_cli
import timeline_mcp
from kit.program import Inside

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
DOCUMENTS = pytest.mark.parametrize("document", [README, SKILL], ids=["README", "SKILL"])


def shell_lines(document: str) -> list[str]:
    """The lines of a document's shell examples, without the command for the tests."""
    without_tests = re.sub(r"<!-- tests -->.*?<!-- /tests -->", "", document, flags=re.S)
    blocks = re.findall(r"```sh\n(.*?)```", without_tests, flags=re.S)
    return [line for block in blocks for line in block.splitlines() if line]


@DOCUMENTS
def test_every_example_runs_in_order(
    document: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name in ("TIMELINE_DB", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    if document is SKILL:  # which begins a second timeline
        assert timeline_cli.main(["create", "--title", "an earlier talk"]) == 0
    ran = 0
    for line in shell_lines(document):
        words = shlex.split(line)
        if words[0] == "export":
            name, value = words[1].split("=", 1)
            monkeypatch.setenv(name, value)
            continue
        if words[0] == "unset":
            monkeypatch.delenv(words[1])
            continue
        if words[0] == "ls":
            continue
        if words[:2] == ["python3", "scripts/tl.py"]:
            words = words[1:]
        assert words[0] in ("tl", "scripts/tl.py"), line
        if words[1] == "import":  # the reader's own sessions stand for a sample
            words[2] = str(ROOT / "tests" / "samples" / "claude-code")
        capsys.readouterr()
        assert timeline_cli.main(words[1:]) == 0, (line, capsys.readouterr().err)
        # A file for trials gets into no client's configuration and no import.
        assert words[1] not in ("mcp-config", "import") or "TIMELINE_DB" not in os.environ
        assert words[1] != "create" or document is README or "tl1" in capsys.readouterr().out
        ran += 1
    assert ran > 10


def test_the_picture_in_readme_is_of_what_it_says(tmp_path: Path) -> None:
    tl = Inside(tmp_path / "db.json")
    for command in (
        "create",
        "append --role user --text 'Only local data, please'",
        "append --role assistant --text 'Plan A'",
        "append --role assistant --text 'It works' --intent-tag decision",
        "fork --node n1 --name alternative",
        "append --branch alternative --role assistant --text 'Plan B'",
        "summarize --from n1 --to n3 --summary 'Plan A: local files, checked'",
        "pin --node n1",
    ):
        assert tl(*shlex.split(command)).code == 0
    picture = tl("tree").out.decode()
    assert f"```\n{picture}```\n" in README
    numbers = {int(number) for number in re.findall(r"\[n(\d+)", picture)}
    assert numbers == set(range(1, 6))


def test_tl_is_explained_before_it_is_used() -> None:
    install, behind = README.split("## Install\n", 1)
    assert not re.search(r"^tl |`tl [a-z]", install, flags=re.M)
    section = behind.split("\n## ", 1)[0]
    assert "python3 -m pip install ." in section
    if sys.platform == "win32":
        return
    (alias,) = re.findall(r"`(alias .*?)`", section)
    done = subprocess.run(
        ["sh"], input=f"{alias}\ncd /\ntl --version\n".encode(), capture_output=True, cwd=ROOT,
        check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith(b"tl ")


def test_the_files_of_the_examples_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    made = re.findall(r"(?:TIMELINE_DB=\./|--output )(\S+)", "\n".join(shell_lines(README)))
    sides = re.findall(r"^\| `<db>(\.\w+)/?`", README, flags=re.M)
    assert len(sides) == 4
    for name in list(made):
        made += [name + side for side in sides if name.endswith(".json")]
    assert len(made) > 10
    for name in made:
        assert any(fnmatch.fnmatch(f"/{name}", each) for each in ignored), name


def test_the_entries_side_by_side_in_readme_are_as_mcp_config_prints_them(tmp_path: Path) -> None:
    (block,) = re.findall(r"```json\n(.*?)```", README, flags=re.S)
    shown = json.loads(block)
    tl = Inside(tmp_path / "db.json")
    printed = json.loads(tl("mcp-config", "--client", "cursor", env={"TIMELINE_DB": ""}).out)
    assert list(shown) == list(printed)
    ours, real = (each["mcpServers"]["timeline"] for each in (shown, printed))
    assert len(shown["mcpServers"]) == 2
    assert list(ours) == list(real)
    assert [Path(each).name for each in ours["args"]] == [Path(each).name for each in real["args"]]


def test_what_readme_says_of_a_server_that_works_is_so() -> None:
    section = README.split("**Did it work?**", 1)[1].split("\n## ", 1)[0]
    assert f"`timeline` with {len(timeline_mcp.chosen_tools(None))} tools" in section
    assert f"`timeline` 和 {len(timeline_mcp.chosen_tools(None))} 个工具" in README
    question, answer = re.findall(r'`(\{"jsonrpc".*?\})`', section)
    written: list[bytes] = []
    source = io.BytesIO(f"{question}\n".encode())
    timeline_mcp.serve(timeline_mcp.Server("unused.json"), source, written.append)
    assert b"".join(written) == f"{answer}\n".encode()


def test_keys_count_as_the_documents_say(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "db.json"))

    def run(operation: str, **given: object) -> object:
        return database.run(operation, {**given, "idempotency_key": "k"})

    for title in ("one", "two"):
        assert run("create", title=title) == {"timeline_id": "tl0"}
    database.run("create", {})
    said = {"role": "user", "text": "first"}
    assert run("append", timeline_id="tl0", **said) == {"node": "n1"}
    assert run("append", timeline_id="tl1", **said) == {"node": "n2"}
    assert run("append", timeline_id="tl0", role="user", text="other") == {"node": "n1"}
    with pytest.raises(timeline.Refused, match="belongs to append"):
        run("fork", node="n1", name="b")


@pytest.mark.skipif(sys.platform == "win32", reason="readers take no lock there")
def test_a_reader_waits_for_a_writer_and_then_gives_up(tmp_path: Path) -> None:
    path = str(tmp_path / "db.json")
    timeline.Database(path).run("create", {})
    writer = timeline.Lock(f"{path}.lock", 0)
    writer.take(True)
    with pytest.raises(timeline.Busy, match="try again") as caught:
        timeline.Database(path, wait_s=0.05).run("context", {})
    writer.close()
    assert caught.value.exit_code == 4
    assert timeline.Database(path, wait_s=0.05).run("context", {}) == []
    assert timeline.Database(path).store.lock.wait_s == 10
    assert "waited 10 s gets exit code 4" in README


@pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
def test_files_have_the_modes_that_readme_names(tmp_path: Path) -> None:
    tl = Inside(tmp_path / "db.json")
    mask = os.umask(0o027)
    try:
        tl("create")
        assert tl("export", "--format", "html", "--output", str(tmp_path / "page.html")).code == 0
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes.pop("page.html") == 0o640
    assert set(modes.values()) == {0o600}
    assert all(each in README for each in ("mode 0600", "0666 less the umask"))


def test_a_purge_without_a_terminal_does_not_ask(tmp_path: Path) -> None:
    tl = Inside(tmp_path / "db.json")
    tl("create")
    tl("append", "--role", "user", "--text", "secret")
    assert tl("compact", "--purge", "n1").value["purged"] == ["n1"]
    assert b"secret" not in tl.db.read_bytes()


def test_the_skill_gives_the_timeline_wherever_it_is_needed() -> None:
    for line in shell_lines(SKILL):
        words = shlex.split(line)
        operation = timeline.OPERATIONS[words[1].replace("-", "_")]
        free = operation.name == "search" or operation.scope != "timeline"
        free = free or bool({"--node", "--from"} & set(words))
        assert ("--timeline" in words) != free, line


@pytest.mark.skipif(sys.platform == "win32", reason="another shell")
def test_the_recovery_line_puts_a_repaired_file_in_place(tmp_path: Path) -> None:
    path = tmp_path / "conversation.json"
    tl = Inside(path)
    tl("create")
    for text in ("first", "second"):
        tl("append", "--role", "user", "--text", text)
    path.write_bytes(path.read_bytes().replace(b"first", b"worst"))
    (line,) = re.findall(r"^\| bash, zsh \| `(.*)` \|", README, flags=re.M)
    alias = f"alias tl={shlex.quote(shlex.join([sys.executable, str(ROOT / 'scripts/tl.py')]))}"
    subprocess.run(["sh"], input=f"{alias}\n{line}\n".encode(), check=True, cwd=tmp_path)
    assert [each["text"] for each in tl("context").value][1:] == ["second"]
    assert b"worst" in (tmp_path / "damaged.json").read_bytes()


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


# ---- the names in both documents ----------------------------------------------------------------


def offered() -> dict[str, set[str]]:
    """The server's own list: the arguments of each tool, the quiet ones too."""
    server = timeline_mcp.Server("unused.json", list(timeline_mcp.TOOLS))
    server.handle(
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "x"}}
    )
    answer = server.handle({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert isinstance(answer, dict)
    return {
        each["name"]: set(each["inputSchema"]["properties"])
        | set(timeline_mcp.TOOLS[each["name"]].by_name)
        for each in answer["result"]["tools"]
    }


@DOCUMENTS
def test_every_tool_in_a_document_is_offered(document: str) -> None:
    # timeline_cli.py and the like are files.
    named = set(re.findall(r"\btimeline_[a-z_]+\b(?!\.py)", document)) - {"timeline_"}
    named -= {"timeline_id"}
    assert named <= set(offered())
    assert named


def test_the_skill_names_every_tool() -> None:
    assert set(timeline_mcp.chosen_tools(None)) <= set(re.findall(r"timeline_[a-z_]+", SKILL))


@DOCUMENTS
def test_every_word_in_quotes_that_looks_like_an_argument_is_one(document: str) -> None:
    arguments = {name for names in offered().values() for name in names}
    answers = {"added_tokens", "required_tokens", "timeline_id", "text_json", "created_at"}
    for word in re.findall(r"`([a-z]+_[a-z_]+)`", document):
        assert word in arguments | answers | set(offered()) | {"timeline_"}, word


@DOCUMENTS
def test_every_option_in_a_document_is_known_to_a_parser(document: str) -> None:
    known = {"--help", "--version"} | set(timeline_mcp.build_parser()._option_string_actions)
    commands = timeline_cli.build_parser()._subparsers
    assert commands is not None
    for parser in commands._group_actions[0].choices.values():  # type: ignore[union-attr]
        known |= set(parser._option_string_actions)
    foreign = {"--quiet", "--check", "--platform"}  # of pip, ruff and mypy
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub(r"<!--|-->", "", document)))
    assert found - foreign <= known


# ---- README, section MCP ------------------------------------------------------------------------

MCP = README.split("## MCP", 1)[1].split("\n## ", 1)[0]


def test_tools_are_named_as_readme_says() -> None:
    without = MCP.split("No tools:")[1].split(".", 1)[0]
    for operation in timeline.OPERATIONS.values():
        command = f"`{timeline_cli.command_name(operation)}`"
        wanted = None if command in without else f"timeline_{operation.name}"
        if operation.name == "budget":
            wanted = "timeline_context_budget"
        elif operation.name == "include":
            wanted = None
        assert operation.tool == wanted, operation.name


def test_arguments_of_tools_are_named_as_readme_says() -> None:
    other = {"timeline": "timeline_id", "max": "max_tokens", "as": "format"}
    for operation in timeline_mcp.TOOLS.values():
        for argument in operation.arguments:
            if argument.flag == "-" or argument.kind == "intent":
                continue
            flag = argument.flag
            wanted = other.get(flag, flag.replace("-", "_"))
            if operation.name.startswith("archive") and flag == "name":
                wanted = "branch"
            assert argument.name == wanted, operation.name


def test_options_sizes_and_revisions_of_the_server_stand_in_readme() -> None:
    options = {
        option
        for option in timeline_mcp.build_parser()._option_string_actions
        if option.startswith("--")
    }
    assert set(re.findall(r"^\| `(--[a-z-]+)`", MCP, flags=re.M)) == options - {
        "--help",
        "--version",
    }
    revisions = (*timeline_mcp.HANDSHAKE_REVISIONS, timeline_mcp.ENVELOPE_REVISION)
    assert tuple(re.findall(r"\b20\d\d-\d\d-\d\d\b", MCP)) == revisions
    for number in (
        timeline_mcp.OUTPUT_CHARS,
        timeline_mcp.OUTPUT_CHARS_MIN,
        timeline_mcp.TEXT_CHARS_MAX,
    ):
        assert f"{number:,}" in MCP
    assert f"at most {timeline_mcp.FRAME_BYTES_MAX >> 20} MiB" in MCP
    assert f"{timeline_mcp.ROWS_DEFAULT} rows" in MCP
    assert f"(default {timeline_mcp.LOCK_WAIT_S:g})" in MCP
    assert all(f"`{group}`" in MCP for group in timeline_mcp.GROUPS)


def test_readme_shows_every_client_of_the_set_up_commands() -> None:
    section = README.split("## Set up agents", 1)[1].split("\n## ", 1)[0]
    for name in ("skill", "mcp_config"):
        for client in timeline.OPERATIONS[name].by_name["client"].choices:
            assert f"`{client}`" in section or f"--client {client}" in section


# ---- SKILL.md -----------------------------------------------------------------------------------


def front_matter() -> dict[str, str]:
    """The keys of SKILL.md's first lines: plain values, and `>-` blocks whose lines are joined."""
    assert SKILL.startswith("---\n")
    found: dict[str, str] = {}
    key = ""
    for line in SKILL.split("---\n", 2)[1].splitlines():
        if line.startswith("  "):
            found[key] = f"{found[key]} {line.strip()}".strip()
            continue
        key, colon, value = line.partition(": ")
        assert colon, line
        assert key not in found
        assert value == ">-" or ": " not in value
        found[key] = "" if value == ">-" else value
    return found


def test_the_front_matter_is_what_skill_readers_take() -> None:
    found = front_matter()
    allowed = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert set(found) <= allowed
    assert found["name"] == "timeline"
    assert 1 <= len(found["description"]) <= 1024
    assert 1 <= len(found["compatibility"]) <= 500
    words = (
        "branch, fork, what if, go back, compact, summarize, out of context, archive, 分支, 分叉, "
        "世界线, 回到, 压缩上下文, 摘要, 归档, 接着上次"
    )
    assert all(word in found["description"] for word in words.split(", "))


def test_the_skill_is_short_and_needs_no_other_file() -> None:
    assert SKILL.count("\n") < 300
    wide = sum(ord(char) >= 0x2E80 for char in SKILL)
    assert wide + (len(SKILL) - wide) / 4 < 4000
    assert not re.findall(r"\]\((?!https://)", SKILL)
    assert "README" not in SKILL


EXAMPLE = re.compile(r"^(timeline_\w+) (\{.*\})\n→ (.*)$", re.M)


def test_every_answer_in_the_skill_is_the_servers(tmp_path: Path) -> None:
    server = timeline_mcp.Server(str(tmp_path / "db.json"))
    server.revision = timeline_mcp.HANDSHAKE_REVISIONS[-1]
    examples = EXAMPLE.findall(SKILL)
    blocks = re.findall(r"```\n(.*?)```", SKILL, flags=re.S)
    # What looks like a call and is in no example with an answer would not be tried.
    assert sum(len(re.findall(r"^timeline_", block, flags=re.M)) for block in blocks) == len(
        examples
    )
    for name, arguments, wanted in examples:
        answer = server.handle(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": name, "arguments": json.loads(arguments)},
            }
        )
        assert isinstance(answer, dict)
        shown = answer["result"]["content"][0]["text"]
        pattern = re.escape(wanted).replace("…", ".*")
        assert re.fullmatch(pattern, shown, flags=re.S), (name, arguments, shown)
    server.close()


def test_each_rule_of_the_skill_has_one_example() -> None:
    rules = re.split(r"^## \d\. ", SKILL.split("## More tools")[0], flags=re.M)[1:]
    assert len(rules) == 8
    for rule in rules:
        assert EXAMPLE.search(rule) or rule.startswith("Never")


def test_errors_quoted_in_the_skill_are_the_programs(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "db.json"))
    told = []
    calls = (
        ("create", {}),
        ("node", {"node": "n99"}),
        ("append", {"role": "user", "text": "x"}),
        ("append", {"role": "user", "text": "x", "expect_head": "n0"}),
        ("budget", {"max_tokens": 0}),
    )
    for name, arguments in calls:
        try:
            database.run(name, arguments)
        except timeline.TimelineError as error:
            told.append(str(error))
    quoted = ("unknown node n99", "head moved", "budget infeasible")
    assert [text[: len(each)] for text, each in zip(told, quoted, strict=True)] == list(quoted)
    assert all(f"`{each}`" in SKILL for each in quoted)
