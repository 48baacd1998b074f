"""Several processes on one database, some of them killed: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import timeline
from kit import stories
from kit.worker import Worker, kill_each, text_of

SLOW = pytest.mark.slow
WORKERS = 4

if sys.platform == "win32":
    pytest.skip("there is no SIGKILL", allow_module_level=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stories.run(tmp_path / "t.db", "create")
    return tmp_path / "t.db"


def start(path: Path, mode: str, count: int, commits: int) -> list[Worker]:
    return [Worker(mode, path, f"worker {i}", count, commits) for i in range(WORKERS)]


def check_everything_once(path: Path, count: int, acknowledged: list[dict[int, int]]) -> None:
    """Every text of every worker is there once, under the number that was acknowledged, and each
    worker's messages are in the order it sent them."""
    context = stories.run(path, "context")
    assert len(context) == WORKERS * count
    assert [row["node"] for row in context] == [f"n{i}" for i in range(1, WORKERS * count + 1)]
    texts = Counter(row["text"] for row in context)
    names = [f"worker {i}" for i in range(WORKERS)]
    assert texts == Counter(text_of(name, i) for name in names for i in range(count))
    for name, nodes in zip(names, acknowledged, strict=True):
        for number, node in nodes.items():
            assert context[node - 1]["text"] == text_of(name, number)
    for name in names:
        order = [row["text"] for row in context if row["text"].startswith(name + " ")]
        assert order == [text_of(name, i) for i in range(count)]
    report = stories.doctor(path)
    assert report == {
        "ok": True,
        "transactions": WORKERS * count + 1,
        "nodes": WORKERS * count,
        "problems": [],
    }


def killed_and_sent_again(path: Path, mode: str, count: int, commits: int, seed: int) -> None:
    """Every worker is killed at a moment of its own, then all send their whole list again."""
    rng = random.Random(seed)
    first = start(path, mode, count, commits)
    kill_each({worker: rng.randrange(count) for worker in first})
    second = start(path, mode, count, commits)
    for worker in second:
        assert worker.finish() == 0
        assert set(worker.acknowledged) == set(range(count))
    check_everything_once(path, count, [worker.acknowledged for worker in second])
    for before, after in zip(first, second, strict=True):
        assert before.acknowledged.items() <= after.acknowledged.items()


def test_resident_processes_killed_and_sent_again_store_each_message_once(path: Path) -> None:
    killed_and_sent_again(path, "append", 40, 8, 0)


@SLOW
@pytest.mark.parametrize("seed", range(1, 21))
def test_resident_processes_killed_and_sent_again_store_each_of_1000_messages_once(
    path: Path, seed: int
) -> None:
    killed_and_sent_again(path, "append", 250, 16 if seed % 2 else 256, seed)


def test_one_shot_processes_killed_and_sent_again_store_each_message_once(path: Path) -> None:
    killed_and_sent_again(path, "oneshot", 2, 256, 0)


@SLOW
@pytest.mark.parametrize("seed", range(1, 4))
def test_one_shot_processes_killed_and_sent_again_store_each_of_1000_messages_once(
    path: Path, seed: int
) -> None:
    killed_and_sent_again(path, "oneshot", 250, 256, seed)


def test_four_writers_at_once_store_everything_in_order(path: Path) -> None:
    workers = start(path, "append", 50, 256)
    for worker in workers:
        assert worker.finish() == 0
    check_everything_once(path, 50, [worker.acknowledged for worker in workers])


def test_readers_beside_writers_see_a_whole_prefix(path: Path) -> None:
    """Whatever is written meanwhile, a reader sees the state after some transaction, and never an
    older one than before."""
    count = 20
    readers = [timeline.Database(str(path)) for _ in range(2)]
    workers = start(path, "append", count, 16)
    seen = looks = 0
    for _ in workers[0].reports():
        for reader in (*readers, timeline.Database(str(path))):
            context = reader.run("context")
            assert [row["node"] for row in context] == [f"n{i + 1}" for i in range(len(context))]
            row = reader.run("list")[0]
            assert row["messages"] >= len(context) >= seen
            seen = len(context)
            per_worker = Counter(row["text"].rsplit(" ", 1)[0] for row in context)
            texts = {row["text"] for row in context}
            assert texts == {text_of(name, i) for name, n in per_worker.items() for i in range(n)}
            if reader not in readers:
                reader.close()
            looks += 1
    for worker in workers:
        assert worker.finish() == 0
    assert looks == 3 * count
    for reader in readers:
        assert len(reader.run("context")) == WORKERS * count
        reader.close()
    check_everything_once(path, count, [worker.acknowledged for worker in workers])


def test_index_made_by_several_processes_at_once_is_sound(path: Path) -> None:
    """They all find none and make one."""
    with Worker("append", path, "worker 0", 20, 1 << 30) as worker:
        assert worker.finish() == 0
    assert stories.run_where(path) == "absent"
    workers = [Worker("append", path, f"worker {i}", 20, 4) for i in range(WORKERS)]
    for worker in workers:
        assert worker.finish() == 0
    check_everything_once(path, 20, [worker.acknowledged for worker in workers])
    assert stories.run_where(path) in ("fresh", "behind")


def test_index_deleted_and_made_by_several_readers_at_once_is_sound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers hold a shared lock only, so they may make the same index at the same time."""
    with Worker("append", path, "worker 0", 60, 1 << 30) as worker:
        assert worker.finish() == 0
    workers = [Worker("rebuild", path, f"reader {i}", 6) for i in range(WORKERS)]
    for worker in workers:
        assert worker.finish() == 0
        assert worker.acknowledged == dict.fromkeys(range(6), 60)
    assert not [name for name in os.listdir(f"{path}.index") if name.endswith(".tmp")]
    stories.small_checkpoints(monkeypatch)
    assert stories.run(path, "append", role="user", text="x", idempotency_key="worker 0-7") == {
        "node": "n8"
    }
    stories.next_append_works(path)


def test_purge_beside_writers_loses_nothing_else(path: Path) -> None:
    workers = start(path, "append", 15, 8)
    database = timeline.Database(str(path), wait_s=60)
    purged = set()
    for number in workers[0].reports():
        if number % 3 == 0:
            node = workers[0].acknowledged[number]
            database.purge([node])
            purged.add(node)
    for worker in workers:
        assert worker.finish() == 0
        for number, node in worker.acknowledged.items():
            text = "" if node in purged else text_of(worker.name, number)
            assert database.run("node", {"node": f"n{node}"})["text"] == text
    database.close()
    assert len(purged) == 5
    assert stories.doctor(path)["nodes"] == WORKERS * 15
    assert stories.doctor(path)["ok"]
