"""Processes killed by kill -9 at random moments and at chosen system calls: what was acknowledged
is stored, and at most one message more."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from kit import stories
from kit.worker import Worker, kill_each, text_of

SLOW = pytest.mark.slow
COUNT = 60
COMMITS = 5  # so that every few messages there is a checkpoint

if sys.platform == "win32":
    pytest.skip("there is no SIGKILL", allow_module_level=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stories.run(tmp_path / "t.db", "create")
    return tmp_path / "t.db"


def check_after_kill(path: Path, worker: Worker) -> None:
    """All that was acknowledged is there under its number, at most one message more, in order, and
    the file can be gone on with, with its index and without."""
    context = stories.run(path, "context")
    assert [row["text"] for row in context] == [
        text_of(worker.name, number) for number in range(len(context))
    ]
    done = len(worker.acknowledged)
    assert len(context) in (done, done + 1)
    for number, node in worker.acknowledged.items():
        assert context[number]["node"] == f"n{node}"
    state = stories.read_state(path)
    report = stories.doctor(path)
    assert report["ok"], report
    assert report["nodes"] == len(context)
    for number in range(max(0, done - 3), min(done + 1, COUNT)):
        args = {"role": "user", "text": "x", "idempotency_key": f"{worker.name}-{number}"}
        if number < len(context):
            assert stories.run(path, "append", **args) == {"node": f"n{number + 1}"}
    assert stories.read_state(path) == state
    stories.next_append_works(path)
    state = stories.read_state(path)
    shutil.rmtree(f"{path}.index", ignore_errors=True)
    assert stories.read_state(path) == state


def check_random_kill(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Worker("append", path, f"seed {seed}", COUNT, COMMITS) as worker:
        kill_each({worker: rng.randrange(COUNT)})
        assert worker.finish() != 0 or len(worker.acknowledged) == COUNT
        check_after_kill(path, worker)


def check_kill_at_call(path: Path, seed: int) -> None:
    at = random.Random(f"call {seed}").randrange(1, 500)
    with Worker("die", path, f"seed {seed}", COUNT, COMMITS, at) as worker:
        assert worker.finish() == -9
        check_after_kill(path, worker)


@pytest.mark.parametrize("seed", range(3))
def test_process_killed_after_some_messages_loses_none(path: Path, seed: int) -> None:
    check_random_kill(path, seed)


@pytest.mark.parametrize("seed", range(3))
def test_process_killed_in_a_system_call_loses_nothing_acknowledged(path: Path, seed: int) -> None:
    check_kill_at_call(path, seed)


@SLOW
@pytest.mark.parametrize("first", range(3, 63, 10))
def test_process_killed_after_some_messages_loses_none_in_many_runs(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 10):
        path = tmp_path / f"{seed}.db"
        stories.run(path, "create")
        check_random_kill(path, seed)


@SLOW
@pytest.mark.parametrize("first", range(3, 63, 10))
def test_process_killed_in_a_system_call_loses_nothing_acknowledged_in_many_runs(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 10):
        path = tmp_path / f"{seed}.db"
        stories.run(path, "create")
        check_kill_at_call(path, seed)


def test_process_killed_again_and_again_keeps_one_history(path: Path) -> None:
    """The same list is sent by one process after the other; each is killed a little later."""
    seen: dict[int, int] = {}
    for stop in range(5, COUNT, 25):
        with Worker("append", path, "again", COUNT, COMMITS) as worker:
            kill_each({worker: stop})
            for number, node in worker.acknowledged.items():
                assert seen.setdefault(number, node) == node
    with Worker("append", path, "again", COUNT, COMMITS) as worker:
        assert worker.finish() == 0
        assert {**worker.acknowledged, **seen} == worker.acknowledged
        assert worker.acknowledged == {number: number + 1 for number in range(COUNT)}
    assert stories.doctor(path)["ok"]
