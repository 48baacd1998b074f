"""The process: what is on its streams, how it begins and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.program import SCRIPTS
from kit.wire import LEGACY, Json, Wire, check_answer, frame, request, tool_call

TL = {"timeline_id": "tl0"}
SERVER = str(SCRIPTS / "timeline_mcp.py")
HELLO = request("initialize", {"protocolVersion": LEGACY[-1], "capabilities": {}}, 0)


def spoken(data: bytes, *options: str, code: int = 0, **env: str) -> tuple[list[Json], bytes]:
    """(answers, stderr) of a server that is sent `data` and then the end of input."""
    done = subprocess.run(
        [sys.executable, SERVER, *options],
        input=data,
        capture_output=True,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return [check_answer(line) for line in done.stdout.splitlines(keepends=True)], done.stderr


# What a tool could do to the frames: print, warn, write to descriptor 1, fail.
MISCHIEF = """
import os, sys, warnings
sys.path.insert(0, {scripts!r})
import timeline, timeline_mcp

real = timeline.Database.run

def run(self, name, arguments=None):
    print("printed")
    sys.stdout.write("written")
    sys.stdout.flush()
    os.write(1, b"raw\\n")
    os.system("echo from a child")
    warnings.warn("careful")
    if name == "list":
        raise RuntimeError("a defect \\ud800")
    return real(self, name, arguments)

timeline.Database.run = run
sys.exit(timeline_mcp.main(sys.argv[1:]))
"""


def test_nothing_but_frames_is_on_stdout_whatever_happens(tmp_path: Path) -> None:
    program = tmp_path / "mischief.py"
    program.write_text(MISCHIEF.format(scripts=str(SCRIPTS)), encoding="utf-8")
    with Wire(tmp_path / "t.db", program=[sys.executable, str(program)]) as wire:
        wire.open().create(2)
        assert "needs" in wire.error("timeline_append", TL)["error"]
        assert "internal error" in wire.error("timeline_list")["error"]
        assert len(wire.value("timeline_context", TL)) == 2
        said = wire.end(silent=False)
    for words in ("printed", "written", "raw", "from a child", "careful", "a defect"):
        assert words in said
    assert "Traceback" not in said


def test_what_was_read_is_answered_at_the_end_of_input(tmp_path: Path) -> None:
    calls = [
        tool_call("timeline_append", {**TL, "role": "user", "text": f"{n}"}, id=n)
        for n in range(2, 30)
    ]
    data = b"".join(map(frame, [HELLO, tool_call("timeline_create", {}, id=1), *calls]))
    answers, said = spoken(data, "--db", str(tmp_path / "t.db"))
    assert [answer["id"] for answer in answers] == list(range(30))
    assert said == b""


def test_half_a_frame_is_not_run(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    data = frame(HELLO) + frame(tool_call("timeline_create", {}, id=1))
    last = frame(tool_call("timeline_append", {**TL, "role": "user", "text": "half"}, id=2))
    for cut in (1, 20, len(last) // 2, len(last) - 2):
        answers, _ = spoken(data + last[:cut], "--db", str(db))
        assert [answer["id"] for answer in answers] in ([0, 1], [0, 1, None])
        assert b"half" not in db.read_bytes()
        db.unlink()


def test_a_database_path_comes_from_option_or_variable(tmp_path: Path) -> None:
    data = frame(HELLO) + frame(tool_call("timeline_create", {}, id=1))
    for options, env, path in (
        (["--db", str(tmp_path / "a")], {"TIMELINE_DB": str(tmp_path / "x")}, tmp_path / "a"),
        ([], {"TIMELINE_DB": str(tmp_path / "b")}, tmp_path / "b"),
        ([], {"TIMELINE_DB": "", "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)},
         tmp_path / ".timeline.json"),
    ):  # fmt: skip
        answers, _ = spoken(data, *options, **env)
        assert answers[1]["result"]["structuredContent"] == {"timeline_id": "tl0"}
        assert path.exists()


@pytest.mark.parametrize(
    "options",
    [["--max-output-chars", "9999"], ["--max-output-chars", "x"], ["--lock-wait", "-1"],
     ["--lock-wait", "nan"], ["--errors", "loud"], ["--what"], ["--db", ""], ["word"]],
)  # fmt: skip
def test_wrong_usage_is_told_on_stderr(options: list[str]) -> None:
    answers, said = spoken(b"", *options, code=2)
    assert answers == []
    assert b"usage:" in said
    assert b"Traceback" not in said


def test_module_and_script_are_the_same_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "timeline_mcp", "--db", str(tmp_path / "t.db")],
        input=frame(HELLO),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "timeline"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_without_a_traceback(tmp_path: Path, number: int) -> None:
    with Wire(tmp_path / "t.db") as wire:
        wire.open().create(1)
        wire.process.send_signal(number)
        wire.process.wait(60)
        assert wire.process.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
        assert wire.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="the shell is another one there")
@pytest.mark.parametrize(
    ("streams", "code"), [("0<&-", 0), ("2>&-", 0), ("0<&- 1>&- 2>&-", 5), (">&-", 5)]
)
def test_streams_that_are_closed(tmp_path: Path, streams: str, code: int) -> None:
    script = f'exec "$0" "$1" --db "$2" {streams}'
    data = frame(HELLO) + frame(tool_call("timeline_create", {}, id=1))
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, SERVER, str(tmp_path / "t.db")],
        input=None if "0<&-" in streams else data,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    if streams == "2>&-":
        assert len(done.stdout.splitlines()) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close otherwise there")
def test_a_client_that_has_gone_ends_it_quietly(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db") as wire:
        wire.open().create(1)
        assert wire.process.stdout is not None
        assert wire.process.stdin is not None
        wire.process.stdout.close()
        wire.process.stdin.write(frame(request("ping")) * 3)
        wire.process.stdin.flush()
        wire.process.wait(60)
        assert wire.process.returncode == 0
        assert wire.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no full device")
def test_a_stdout_that_is_full_ends_it_with_a_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, SERVER, "--db", str(tmp_path / "t.db")],
            input=frame(HELLO),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 5
    assert done.stderr.count(b"\n") == 1
    assert b"room on the disk" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
@pytest.mark.parametrize("db", ["t.db", "whole path"])
def test_a_working_folder_that_has_vanished(tmp_path: Path, db: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    path = str(tmp_path / "t.db") if db == "whole path" else db
    script = 'cd "$3" && rmdir "$3" && exec "$0" "$1" --db "$2"'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, SERVER, path, str(gone)],
        input=frame(HELLO) + frame(tool_call("timeline_create", {}, id=1)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    if db == "whole path":
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) == 2
    else:
        assert done.returncode == 1
        assert b"does not exist any more" in done.stderr


def test_an_answer_from_a_damaged_database_says_so(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Wire(db) as wire:
        wire.open().create(5)
    log = db.read_bytes()
    db.write_bytes(log.replace(b'"text":"', b'"text":"x', 4).replace(b'"text":"x', b'"text":"', 3))
    with Wire(db) as wire:
        wire.open()
        for name, arguments in (("list", {}), ("search", {"text": "e"}), ("branches", TL)):
            given = {"name": f"timeline_{name}", "arguments": arguments}
            result = wire.request("tools/call", given)["result"]
            assert "isError" not in result
            warning = result["content"][1]["text"]
            assert "line 6, byte" in warning
            assert result["structuredContent"]["warning"] == warning
        assert "line 6, byte" in wire.error("timeline_node", {"node": "n4"})["error"]
        assert "line 6, byte" in wire.error("timeline_switch", {"name": "main", **TL})["error"]
        wire.end(silent=False)


def test_a_damaged_database_is_named_and_the_server_goes_on(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    db.write_bytes(b"something else\n")
    with Wire(db) as wire:
        wire.open()
        for _ in range(2):
            said = wire.error("timeline_context", TL)
            assert (said["data"]["line"], said["data"]["byte"]) == (1, 0)
        assert "error" in wire.error("timeline_create")
        assert db.read_bytes() == b"something else\n"
        db.unlink()
        wire.create(1)
