"""The commands as a terminal sees them: shapes, exit codes, texts, streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import timeline
import timeline_cli
from kit.program import SCRIPTS, Inside, Program


@pytest.fixture
def tl(tmp_path: Path) -> Program:
    return Inside(tmp_path / "db.json")


@pytest.fixture
def process(tmp_path: Path) -> Program:
    """The same database, by real processes: for what depends on how one is started."""
    return Program(tmp_path / "db.json")


def test_the_example_of_the_contract_gives_the_documented_shapes(process: Program) -> None:
    assert process("create").value == {"timeline_id": "tl0"}
    assert process("append", "--role", "user", "--text", "one").value == {"node": "n1"}
    assert process("append", "--role", "assistant", "--text", "two").value == {"node": "n2"}
    assert process("fork", "--node", "n1", "--name", "b").value == {"branch": "b", "head": "n1"}
    assert process("switch", "--name", "b").value == {"current_branch": "b"}
    assert process("append", "--role", "assistant", "--text", "three").value == {"node": "n3"}
    assert process("context").value == [
        {"node": "n1", "role": "user", "text": "one", "tokens": 1},
        {"node": "n3", "role": "assistant", "text": "three", "tokens": 2},
    ]
    rows = process("branches").value
    assert [(row["name"], row["head"], row["current"]) for row in rows] == [
        ("main", "n2", False),
        ("b", "n3", True),
    ]
    assert rows[1]["parent"] == "main"
    assert rows[1]["fork_node"] == "n1"


def test_an_infeasible_budget_names_its_cost_and_changes_no_byte(tl: Program) -> None:
    tl("create")
    for tokens in (1000, 1, 1000, 0):
        tl("append", "--role", "user", "--text", "x", "--tokens", str(tokens))
    tl("pin", "--node", "n2")
    before = tl.db.read_bytes()
    outcome = tl("budget", "--max", "1")
    assert outcome.code == 1
    assert outcome.error == {
        "error": "budget infeasible",
        "data": {"required_tokens": 65, "max_tokens": 1},
    }
    assert tl.db.read_bytes() == before
    assert tl("budget", "--max", "65").value["total_tokens"] == 65


TEXTS = [
    "",
    "中文与 emoji 👩‍👩‍👧‍👦 🚀",
    "שלום مرحبا",
    "a\0b",
    "line\r\nline\n",
    "\u2028\u2029\x85",
    "\x1b[31mred\x1b[0m",
    "\ufeffbom",
    '{"op":"append","text":"x","crc":"00000000"}',
    "x" * timeline.TEXT_BYTES_MAX,
    "🚀" * (timeline.TEXT_BYTES_MAX // 4),
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_comes_back_byte_for_byte(tl: Program, process: Program, text: str) -> None:
    tl("create")
    assert process("append", "--role", "user", "--text", "-", stdin=text.encode()).value == {
        "node": "n1"
    }
    assert tl("node", "--node", "n1").value["text"] == text
    if text.isprintable() and len(text) < 1000:
        assert process("append", "--role", "user", f"--text={text}").value == {"node": "n2"}
        assert tl("node", "--node", "n2").value["text"] == text


def test_a_text_above_the_limit_is_refused_with_both_numbers(tl: Program) -> None:
    tl("create")
    limit = timeline.TEXT_BYTES_MAX
    path = tl.db.with_name("long.txt")
    path.write_bytes(b"x" * (limit + 1))
    before = tl.db.read_bytes()
    for outcome in (
        tl("append", "--role", "user", "--text-file", str(path)),
        tl("append", "--role", "user", "--text", "-", stdin=path.read_bytes()),
    ):
        assert outcome.code == 2
        assert str(limit) in outcome.error["error"]
        assert str(limit + 1) in outcome.error["error"]
    assert tl.db.read_bytes() == before


def test_a_lone_surrogate_is_refused_with_its_position(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "db.json"))
    database.run("create")
    with pytest.raises(timeline.InvalidArgument, match="character 2") as caught:
        database.run("append", {"role": "user", "text": "ab\ud800c"})
    assert caught.value.data["position"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are no bytes there")
def test_an_argument_that_is_no_utf8_is_refused_with_its_position(process: Program) -> None:
    process("create")
    outcome = process("append", "--role", "user", "--text", b"ab\xff")
    assert outcome.code == 2
    assert "position 2" in outcome.error["error"]


CONSOLES = [
    {"PYTHONIOENCODING": "cp1252"},
    {"PYTHONIOENCODING": "gbk"},
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize(
    "env",
    [
        each if number > 1 else pytest.param(each, marks=pytest.mark.slow)
        for number, each in enumerate(CONSOLES)
    ],
    ids=lambda env: "-".join(env.values()),
)
def test_output_is_utf8_whatever_the_console_says(process: Program, env: dict[str, str]) -> None:
    assert process("create", "--title", "功能🚀", env=env).value == {"timeline_id": "tl0"}
    assert process("append", "--role", "user", "--text", "功能🚀", env=env).value == {"node": "n1"}
    assert process("context", env=env).value[0]["text"] == "功能🚀"
    assert "功能🚀" in process("tree", env=env).out.decode()
    failure = process("switch", "--name", "功能🚀", env=env)
    assert (failure.code, failure.error["error"]) == (1, 'unknown branch "功能🚀"')
    usage = process("switch", "--name", "main", "--功能🚀", "x", env=env)
    assert usage.code == 2
    assert "功能🚀" in usage.error["error"]


def test_tree_shows_control_characters_as_escapes(tl: Program) -> None:
    tl("create")
    tl("append", "--role", "user", "--text", "-", stdin=b"\x1b[2Jgone\x07")
    picture = tl("tree").out
    assert b"\x1b" not in picture
    assert b"\\x1b[2Jgone\\x07" in picture


EXIT_CODES = [
    (["fork", "--node", "n9", "--name", "x"], 1, "unknown node n9"),
    (["append", "--role", "user", "--text", "x", "--branch", "no"], 1, 'unknown branch "no"'),
    (["context", "--timeline", "tl7"], 1, "unknown timeline tl7"),
    (["append", "--role", "boss", "--text", "x"], 2, "role must be one of"),
    (["append", "--role", "user"], 2, "--text"),
    (["append", "--role", "user", "--text", "x", "--tokens", "-1"], 2, "tokens"),
    (["append", "--role", "user", "--text", "x", "--tokens", "1.5"], 2, "whole number"),
    (["append", "--role", "user", "--text", "x", "--tokens", "9007199254740992"], 2, "tokens"),
    (["append", "--role", "user", "--text", "-x"], 2, "--text=-x"),
    (["context", "--node", "1"], 2, "a node id"),
    (["context", "--node", "n1", "--branch", "main"], 2, "one of them"),
    (["context", "--idempotency-key", "k"], 2, "idempotency"),
    (["fork", "--node", "n1", "--name", "a/b"], 2, "/"),
    (["search", ""], 2, "empty"),
    (["search", "(", "--regex"], 2, "regular expression"),
    (["frobnicate"], 2, "frobnicate"),
    (["swich", "--name", "main"], 2, 'unknown command "swich": did you mean switch?'),
    (["drop_branch", "--name", "x"], 2, "did you mean drop-branch?"),
    (["frobnicate"], 2, "known are create, append, "),
    (["switch", "plan-b"], 2, '"plan-b" belongs to no option: did you mean --name plan-b?'),
    (["pin", "n1"], 2, "did you mean --node n1?"),
    (["context", "n1"], 2, "did you mean --node n1?"),
    (["context", "main"], 2, "did you mean --branch main?"),
    (["context", "--node", "n1", "5"], 2, "did you mean --last 5?"),
    (["context", "tl1"], 2, "did you mean --timeline tl1?"),
    (["append", "user", "--text", "x"], 2, "did you mean --role user?"),
    (["append", "hello there", "--role", "user"], 2, 'did you mean --text "hello there"?'),
    (["append", "--role", "user", "--text", "hello", "there"], 2, "put quotes around a --text"),
    (["fork", "b", "--node", "n1"], 2, "did you mean --name b?"),
    (["fork", "n1", "--name", "b"], 2, "did you mean --node n1?"),
    (["budget", "500"], 2, "did you mean --max 500?"),
    (["search", "two", "words"], 2, "put quotes around a text of several words"),
    (["search", "two", "--branch", "main", "words"], 2, "put quotes around a --branch"),
    (["where", "now"], 2, '"now" belongs to no option of where'),
    (["context", "--last", "-1"], 2, "--last must be a whole number from 0"),
    (["context", "--last=-1"], 2, "--last must be a whole number from 0"),
    (["budget", "--max=-1"], 2, "--max must be a whole number from 0"),
    (["context", "--timeline", "1"], 2, "--timeline must be a timeline id"),
    (["fork", "--node", "n1", "--name", ""], 2, "--name is empty"),
    (["compact", "--purge", "1"], 2, "--purge must be"),
    (["import", "x", "--into", "1"], 2, "--into must be"),
    (["append", "--role", "user", "--text", "a", "--text", "b", "--nonsense"], 2, "nonsense"),
    (["switch", "--name", "main", "extra"], 2, "extra"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), EXIT_CODES, ids=range(len(EXIT_CODES)))
def test_failures_have_an_exit_code_and_say_what_was_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    path = tmp_path / "db.json"
    database = timeline.Database(str(path))
    database.run("create")
    database.run("append", {"role": "user", "text": "x"})
    before = path.read_bytes()
    assert timeline_cli.main(["--db", str(path), *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in json.loads(shown.err)["error"]
    assert path.read_bytes() == before


def test_a_missing_database_is_made_by_create_only(tl: Program) -> None:
    for arguments in (
        ["context"],
        ["append", "--role", "user", "--text", "x"],
        ["doctor"],
        ["tree"],
    ):
        outcome = tl(*arguments)
        assert outcome.code == 1
        assert str(tl.db) in outcome.error["error"]
        assert not list(tl.db.parent.iterdir())
    assert tl("where").value["exists"] is False
    assert Inside(tl.db.parent / "no" / "db.json")("create").code == 1


def test_where_says_which_of_the_three_sources_names_the_file(tmp_path: Path) -> None:
    tl = Inside(tmp_path / "v.json")
    assert tl("where").value["source"] == "variable"
    found = tl("where", "--db", str(tmp_path / "o.json")).value
    assert (found["source"], found["path"]) == ("option", str((tmp_path / "o.json").resolve()))
    found = tl(
        "where", env={"TIMELINE_DB": "", "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    ).value
    assert (found["source"], found["path"]) == (
        "default",
        str((tmp_path / ".timeline.json").resolve()),
    )


def test_global_options_stand_before_or_after_the_command(tl: Program) -> None:
    db = ["--db", str(tl.db)]
    assert tl(*db, "create").value == {"timeline_id": "tl0"}
    assert tl(*db, "--timeline", "tl0", "append", "--role", "user", "--text", "a").value == {
        "node": "n1"
    }
    assert tl("append", "--role=user", "--text=b", *db, "--timeline=tl0").value == {"node": "n2"}
    key = ["--idempotency-key", "k"]
    assert tl(*key, "append", "--role", "user", "--text", "c").value == {"node": "n3"}
    assert tl("append", "--role", "user", "--text", "other", *key).value == {"node": "n3"}


def test_the_dash_and_files_give_texts(tl: Program) -> None:
    tl("create")
    path = tl.db.with_name("text.txt")
    path.write_bytes("\ufeffvon\r\nder Platte\n".encode())
    tl("append", "--role", "user", "--text-file", str(path))
    tl("append", "--role", "user", "--text=-")
    tl("append", "--role", "user", "--text", "-", stdin=b"piped\n")
    for words in (["--text-file", "-"], ["--text-file=-"]):
        tl("append", "--role", "user", *words, stdin=b"a file")
    assert [tl("node", "--node", each).value["text"] for each in ("n4", "n5")] == ["a file"] * 2
    tl("summarize", "--from", "n1", "--to", "n2", "--summary", "-", stdin=b"short")
    tl(
        "summarize",
        "--from",
        "n1",
        "--to",
        "n3",
        "--summary-file",
        str(path),
        "--derived-from",
        "n1,n6",
    )
    texts = [tl("node", "--node", f"n{number}").value["text"] for number in (1, 2, 3, 6, 7)]
    assert texts == [
        "\ufeffvon\r\nder Platte\n",
        "-",
        "piped\n",
        "short",
        "\ufeffvon\r\nder Platte\n",
    ]
    assert tl("node", "--node", "n7").value["summary"]["derived_from"] == ["n1", "n6"]


def test_help_shows_every_command_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline_cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    for operation in timeline.OPERATIONS.values():
        name = timeline_cli.command_name(operation)
        assert name in overview
        assert timeline_cli.main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert operation.example in shown
        for argument in operation.arguments:
            if argument.kind != "intent" and not argument.positional and argument.flag != "-":
                assert f"--{argument.flag}" in shown


def test_help_beside_a_stray_word_is_still_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline_cli.main(["switch", "plan-b", "--help"]) == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("script", ["tl.py", "timeline_cli.py"])
def test_an_answer_that_cannot_be_written_says_whether_it_is_stored(
    tl: Program, script: str
) -> None:
    tl("create")

    def to_full_disk(*arguments: str) -> tuple[int, str]:
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, str(SCRIPTS / script), *arguments, "--db", str(tl.db)],
                stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False,
            )  # fmt: skip
        return done.returncode, done.stderr.decode()

    code, shown = to_full_disk("append", "--role", "user", "--text", "x")
    failure = json.loads(shown)
    assert code == 5
    assert "stored, but its answer could not be written" in failure["error"]
    assert failure["data"]["stored"] is True
    assert failure["data"]["answer"] == {"node": "n1"}
    before = tl.db.read_bytes()
    for words in (["context"], ["tree"], ["budget", "--max", "9", "--dry-run"]):
        code, shown = to_full_disk(*words)
        assert code == 5
        assert "stored" not in shown
        assert "No space left" in json.loads(shown)["error"]
    code, shown = to_full_disk("append", "--role", "user", "--text", "x", "--branch", "no")
    assert (code, json.loads(shown)["error"]) == (1, 'unknown branch "no"')
    assert tl.db.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end differently there")
def test_a_closed_pipe_ends_quietly(tl: Program) -> None:
    tl("create")
    for number in range(50):
        timeline.Database(str(tl.db)).run("append", {"role": "user", "text": f"{number} " * 2000})
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "tl.py"), "context", "--db", str(tl.db)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in (0, 141)


def test_closed_streams_give_no_traceback(tl: Program) -> None:
    tl("create")
    if sys.platform == "win32":
        return
    for redirection in (">&-", ">&- 2>&- <&-"):
        for words, code in (
            ("context", 0),
            ("append --role user --text x", 0),
            ("append --role user --text -", 2 if "<" in redirection else 0),
            ("context --node n999", 1),
        ):
            command = (
                f'"{sys.executable}" "{SCRIPTS / "tl.py"}" {words} --db "{tl.db}" {redirection}'
            )
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, check=False, stdin=subprocess.DEVNULL
            )
            if ">&- " in f"{redirection} ".replace("2>&- ", "") and code == 0:
                code = 5  # the answer is lost
            assert done.returncode == code, (command, done.stderr)
            assert b"Traceback" not in done.stderr
            if redirection == ">&-" and words.startswith("append"):
                assert json.loads(done.stderr)["data"]["stored"] is True


def test_the_engine_file_started_as_a_program_does_the_same(tl: Program) -> None:
    engine = Program(tl.db, "timeline.py")
    assert engine("create").value == {"timeline_id": "tl0"}
    assert engine("append", "--role", "user", "--text", "x").value == {"node": "n1"}
    assert engine("context").out == tl("context").out
    assert engine("context", "--node", "n5").error["error"] == "unknown node n5"


def test_the_small_loop_and_argparse_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        [
            "append",
            "--role",
            "user",
            "--text",
            "x",
            "--tokens",
            "3",
            "--intent-tag",
            "t",
            "--intent-note",
            "n",
        ],
        ["append", "--role=user", "--text=-", "--branch", "b", "--expect-head", "n3"],
        ["--db", "p", "--timeline", "tl1", "budget", "--max", "5", "--order", "tiers", "--explain"],
        ["summarize", "--from", "n1", "--to", "n2", "--summary", "s", "--derived-from", "n1,n2"],
        ["search", "word", "--limit", "3", "--ignore-case"],
        ["import", "a", "b", "--format", "messages", "--db=p"],
        ["compact", "--purge", "n1,n2", "--yes"],
        ["audit", "--since", "0"],
    ]
    for arguments in lines:
        quick = timeline_cli._read_usual(arguments)
        slow = timeline_cli._read_with_argparse(arguments)
        assert (quick.operation.name, quick.values, quick.db) == (
            slow.operation.name,
            slow.values,
            slow.db,
        )


def test_an_internal_error_is_json_and_shows_more_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(timeline_cli, "run", broken)
    monkeypatch.delenv("TIMELINE_DEBUG", raising=False)
    assert timeline_cli.main(["branches"]) == 70
    assert "a defect" in json.loads(capsys.readouterr().err)["error"]
    monkeypatch.setenv("TIMELINE_DEBUG", "1")
    with pytest.raises(AssertionError):
        timeline_cli.main(["branches"])


def test_a_symlinked_path_is_the_same_database(tl: Program) -> None:
    if sys.platform == "win32":
        return
    tl("create")
    link = tl.db.with_name("link.json")
    link.symlink_to(tl.db)
    other = Inside(link)
    assert other("append", "--role", "user", "--text", "x").value == {"node": "n1"}
    assert tl("append", "--role", "user", "--text", "y").value == {"node": "n2"}
    assert other("where").value["path"] == os.path.realpath(tl.db)
    assert not link.with_name("link.json.lock").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are access lists there")
def test_new_files_are_private_and_old_modes_stay(tl: Program) -> None:
    old = os.umask(0)
    try:
        tl("create")
        for number in range(300):
            timeline.Database(str(tl.db)).run("append", {"role": "user", "text": str(number)})
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tl.db.parent.rglob("*")}
    assert modes == {
        "db.json": 0o600, "db.json.lock": 0o600, "db.json.index": 0o700,
        "rows": 0o600, "lookup": 0o600, "state": 0o600, "lock": 0o600,
    }  # fmt: skip
    tl.db.chmod(0o640)
    tl("append", "--role", "user", "--text", "x")
    assert tl.db.stat().st_mode & 0o777 == 0o640
    tl("compact", "--purge", "n1", "--yes")
    assert tl.db.stat().st_mode & 0o777 == 0o640
