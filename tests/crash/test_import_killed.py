"""An import that is killed and run again ends with the nodes of one that was not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.growing import Session

SCRIPTS = Path(timeline.__file__).parent
# Small transactions, so that there are many moments at which only a part is there.
PROGRAM = """
import sys
import timeline_import
timeline_import.CHUNK_NODES = 20
import timeline_cli
sys.exit(timeline_cli.main(sys.argv[1:]))
"""


def start(db: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--db", str(db), *words], cwd=SCRIPTS,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def everything(db: Path) -> list[Any]:
    """All nodes by their numbers, the branches, the summaries."""
    base = timeline.Database(str(db))
    try:
        assert base.run("doctor")["ok"] is True
        if not base.run("list"):
            return []
        branches = [(each["name"], each["head"]) for each in base.run("branches")]
        found: list[Any] = [branches, base.run("summaries")]
        for number in range(1, len(base.refresh().rows) + 1):
            node = base.run("node", {"node": f"n{number}"})
            found.append([node[name] for name in ("parent", "role", "text", "source", "branches")])
        return found
    finally:
        base.close()


def check(tmp_path: Path, command: list[str], rounds: int, seed: int) -> None:
    whole = tmp_path / "whole.db"
    begin = time.monotonic()
    assert start(whole, *command).wait() == 0
    took = time.monotonic() - begin
    wanted = everything(whole)
    chance = random.Random(seed)
    parts = 0
    for number in range(rounds):
        db = tmp_path / f"{number}.db"
        # Most of it is the start of the interpreter, before which there is nothing to cut.
        delay = took * chance.uniform(0.2, 1)
        process = start(db, *command)
        time.sleep(delay)
        process.kill()
        process.wait()
        if db.exists():
            parts += 0 < len(everything(db)) < len(wanted)
        assert start(db, *command).wait() == 0
        assert everything(db) == wanted, f"killed after {delay:.3f} s of {took:.3f} s"
        assert start(db, *command).wait() == 0
        assert everything(db) == wanted, "and once more adds nothing"
    assert parts or rounds < 10


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=pytest.mark.slow)], ids=lambda count: f"{count} times"
)
def test_an_import_killed_at_any_moment(tmp_path: Path, rounds: int) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(b"".join(Session(7, 200).lines))
    check(tmp_path, ["import", str(file)], rounds, 1)
