"""How the process starts, waits and ends; that nothing but frames is on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import timeline
from kit.program import SCRIPTS
from kit.wire import Wire, frame, modern, request, tool_call

SERVER = str(SCRIPTS / "timeline_mcp.py")
posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirections")


def test_nothing_is_made_before_the_first_call(tmp_path: Path) -> None:
    with Wire(tmp_path / "db.json") as wire:
        wire.open()
        wire.ask(request("tools/list"), modern("server/discover"))
        assert [each.name for each in tmp_path.iterdir()] == [wire.log.name]
        assert str(wire.db) in wire.error("timeline_list")["error"]
        assert [each.name for each in tmp_path.iterdir()] == [wire.log.name]
        assert wire.create() == "tl0"


def test_a_held_lock_is_waited_for_and_named(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "db.json"))
    database.run("create", {})
    with Wire(tmp_path / "db.json", "--lock-wait", "0.2") as wire:
        wire.open()
        given = {"timeline_id": "tl0", "role": "user", "text": "x"}
        with database.writing():
            error = wire.error("timeline_append", given)
        assert error["data"]["retry"] is True
        assert 0.1 < error["data"]["waited_s"] < 5
        assert wire.value("timeline_append", given) == {"node": "n1"}
        assert database.run("append", {"role": "user", "text": "y"}) == {"node": "n2"}
    database.close()


def test_at_the_end_of_input_everything_read_is_answered(tmp_path: Path) -> None:
    with Wire(tmp_path / "db.json") as wire:
        wire.open()
        calls = [tool_call("timeline_create", {}, number) for number in range(5)]
        half = frame(tool_call("timeline_create", {}, 9))[:-10]
        wire.tell(*calls)
        assert wire.process.stdin is not None
        wire.process.stdin.write(half)
        answers = wire.rest()
        assert [each["id"] for each in answers] == [0, 1, 2, 3, 4, None]
        assert answers[-1]["error"]["code"] == -32700
        assert wire.process.returncode == 0
    assert len(timeline.Database(str(tmp_path / "db.json")).run("list")) == 5


@posix
def test_an_interrupt_leaves_without_a_traceback(tmp_path: Path) -> None:
    with Wire(tmp_path / "db.json") as wire:
        wire.open()
        wire.interrupt()
        assert wire.process.wait(30) == 130
        assert wire.stderr == ""


@posix
@pytest.mark.parametrize(
    ("closed", "code", "answered"), [("<&-", 0, False), (">&-", 5, False), ("2>&-", 0, True)]
)
def test_a_stream_that_is_closed_from_the_start(
    tmp_path: Path, closed: str, code: int, answered: bool
) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$1" --db db.json {closed}', sys.executable, SERVER],
        input=frame(request("ping")),
        capture_output=True,
        cwd=tmp_path,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == answered
    assert b"Traceback" not in done.stderr


@posix
def test_a_client_that_has_gone(tmp_path: Path) -> None:
    with Wire(tmp_path / "db.json") as wire:
        wire.open()
        assert wire.process.stdout is not None
        wire.process.stdout.close()
        assert wire.process.stdin is not None
        wire.process.stdin.write(frame(request("ping")))
        wire.process.stdin.flush()
        assert wire.process.wait(30) == 0
        assert wire.stderr == ""


NOISY = """
import os, sys, warnings
sys.path.insert(0, sys.argv.pop(1))
import timeline, timeline_mcp
real = timeline.Database.run
def noisy(self, name, given=None):
    print("printed"); sys.stdout.flush(); os.write(1, b"written\\n"); warnings.warn("warned")
    if name == "search":
        raise RuntimeError("broken")
    return real(self, name, given)
timeline.Database.run = noisy
sys.exit(timeline_mcp.main())
"""


@pytest.mark.parametrize("debug", ["", "1"])
def test_only_frames_are_on_stdout_whatever_prints_or_fails(tmp_path: Path, debug: str) -> None:
    program = [sys.executable, "-c", NOISY, str(SCRIPTS)]
    with Wire(tmp_path / "db.json", program=program, TIMELINE_DEBUG=debug) as wire:
        tl = wire.open().create(1)
        assert "internal error" in wire.error("timeline_search", {"text": "x"})["error"]
        assert len(wire.value("timeline_context", {"timeline_id": tl})) == 1
        stderr = wire.end(silent=False)
        assert all(word in stderr for word in ("printed", "written", "warned", "broken"))
        assert ("Traceback" in stderr) == bool(debug)


def test_a_damaged_and_a_foreign_file_are_tool_errors(tmp_path: Path) -> None:
    (tmp_path / "db.json").write_bytes(b'{"mine":1}\n')
    with Wire(tmp_path / "db.json") as wire:
        wire.open()
        for name in ("timeline_list", "timeline_create"):
            assert json.dumps(wire.error(name))
        assert wire.db.read_bytes() == b'{"mine":1}\n'
