"""System calls counted instead of seconds: what a commit costs, and that nothing grows with n."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.disks import CountingDisk

SMALL, LARGE = 1_000, 20_000
Args = dict[str, Any]


def database_of(path: Path, count: int) -> None:
    """A database of `count` messages on one path, written line by line, and its index."""
    line = stories.header()
    crc = int(line[-11:-3], 16)
    lines = [line]
    record: Args = {"op": "create", "tl": 0, "title": None, "estimator": "scalar4"}
    for seq in range(1, count + 2):
        line, crc = timeline.encode_line({"seq": seq, "ts": stories.START + seq, **record}, crc)
        lines.append(line)
        record = {
            "op": "append",
            "tl": 0,
            "id": seq,
            "parent": seq - 1,
            "branch": "main",
            "role": ("user", "assistant", "tool")[seq % 3],
            "tokens": 20,
            "via": "cli",
            "key": f"key {seq}",
            "text": f"message {seq} of so many",
        }
    path.write_bytes(b"".join(lines))
    stories.checkpoint_now(path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Databases of both sizes, to be copied."""
    found = {}
    for count in (SMALL, LARGE):
        found[count] = tmp_path_factory.mktemp(f"{count}") / "t.db"
        database_of(found[count], count)
    return found


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[timeline.Database, CountingDisk]]:
    """A resident database with a few messages, and the counts of what it does from now on."""
    disk = CountingDisk()
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    database = stories.open_database(path, disk)
    for name, args in stories.EVERYTHING:
        database.run(name, args)
    disk.forget()
    yield database, disk
    database.close()


def copy(prepared: Path, folder: Path) -> Path:
    folder.mkdir()
    stories.place(folder / "t.db", prepared.read_bytes(), Path(f"{prepared}.index"))
    return folder / "t.db"


# --- what a commit costs --------------------------------------------------------------------------

COMMITS: tuple[stories.Step, ...] = (
    ("budget", {"max_tokens": 43}),
    ("budget", {"max_tokens": 60, "idempotency_key": "keyed"}),
    stories.append("one"),
    stories.append("two", idempotency_key="two"),
    stories.append("three", branch="again"),
    ("fork", {"node": "n1", "name": "new"}),
    ("switch", {"name": "new"}),
    ("switch", {"name": "main"}),
    ("drop_branch", {"name": "new"}),
    ("pin", {"node": "n13"}),
    ("exclude", {"node": "n12"}),
    ("summarize", {"from": "n1", "to": "n2", "summary": "other words"}),
    ("rename", {"title": "new"}),
    ("create", {}),
    ("pin", {"node": "n13", "idempotency_key": "remembers that it changed nothing"}),
)


@pytest.mark.parametrize(("name", "args"), COMMITS, ids=[f"{n} {a}" for n, a in COMMITS])
def test_commit_takes_one_write_and_one_fsync_of_the_log(
    counted: tuple[timeline.Database, CountingDisk], name: str, args: Args
) -> None:
    database, disk = counted
    for step, before in COMMITS[: COMMITS.index((name, args))]:
        database.run(step, before)
    lines = Path(database.path).read_bytes().count(b"\n")
    disk.forget()
    database.run(name, args)
    assert Path(database.path).read_bytes().count(b"\n") > lines
    assert disk.count("fsync", name="t.db") == 1
    assert disk.count("fsync", "fdatasync") == 1
    assert disk.written() == {"t.db": 1}
    assert disk.count("truncate", "replace", "link", "unlink", "mkdir") == 0


def test_transaction_of_many_lines_takes_one_write_and_one_fsync(tmp_path: Path) -> None:
    disk = CountingDisk()
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    database = stories.open_database(path, disk)
    database.run("create")
    for i in range(1, 22):
        database.run("append", {"role": "user", "text": "x", "tokens": 900 if i % 2 == 0 else 1})
        if i % 2:
            database.run("pin", {"node": f"n{i}"})
    disk.forget()
    answer = database.run("budget", {"max_tokens": 500})
    assert len(answer["summaries_created"]) == 10
    assert (disk.count("fsync", "fdatasync"), disk.written()) == (1, {"t.db": 1})
    disk.forget()
    with database.importing() as importing:
        for i in range(100):
            importing.append(0, 1, "user", f"{i}", 1, {}, identities=[f"import:{i}"])
    assert (disk.count("fsync", "fdatasync"), disk.written()) == (1, {"t.db": 1})
    assert path.read_bytes().count(b'"more":1') == 9 + 100
    database.close()


def test_append_takes_few_calls_of_the_system_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted below the engine's own disk section, so that nothing passes it by."""
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    database = timeline.Database(str(path))
    for name, args in stories.messages(5):
        database.run(name, args)
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def counting(*args: Any, **more: Any) -> Any:
            calls[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(os, name, counting)

    names = ("fsync", "fdatasync", "write", "pwrite", "writev", "ftruncate", "pread", "read")
    for name in (*names, "open", "replace", "rename", "link", "unlink", "mkdir"):
        if hasattr(os, name):
            count(name)
    database.run("append", {"role": "user", "text": "counted"})
    monkeypatch.undo()
    database.close()
    assert calls["fsync"] == 1 or sys.platform == "darwin"
    assert calls["write"] == 1
    assert calls["open"] <= 2
    assert calls["pread"] + calls["read"] <= 2
    assert not set(calls) & {"fdatasync", "pwrite", "replace", "rename", "link", "ftruncate"}


def test_index_is_written_once_in_many_commits(tmp_path: Path) -> None:
    disk = CountingDisk()
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    database = stories.open_database(path, disk)
    database.run("create")
    due = timeline.CHECKPOINT_COMMITS
    for number in range(due - 2):
        database.run(
            "append", {"role": "user", "text": f"{number}", "idempotency_key": f"{number}"}
        )
    assert set(disk.written()) == {"t.db"}
    assert not Path(f"{path}.index").exists()
    disk.forget()
    database.run("append", {"role": "user", "text": "the first that is due"})
    assert set(disk.written()) == {"t.db", "rows.tmp", "lookup.tmp", "state.tmp"}
    disk.forget()
    for number in range(due - 1):
        database.run("append", {"role": "user", "text": "x", "idempotency_key": f"more {number}"})
    assert set(disk.written()) == {"t.db"}
    database.run("append", {"role": "user", "text": "the second that is due"})
    assert set(disk.written()) == {"t.db", "rows", "lookup", "state.tmp"}
    assert disk.count("fdatasync", name="rows") == 1
    assert disk.count("fdatasync", name="lookup") == 1
    assert disk.count("fsync", name="t.db") == due
    assert disk.count("write", name="rows") == 1
    database.close()


def test_create_syncs_file_and_folder(tmp_path: Path) -> None:
    disk = CountingDisk()
    database = stories.open_database(tmp_path / "t.db", disk)
    database.run("create")
    assert disk.count("fsync", name="t.db.tmp") == 1
    assert disk.count("fsync", name=tmp_path.name) == 1
    assert disk.count("fsync", name="t.db") == 1
    database.close()


# --- what changes nothing -------------------------------------------------------------------------

READS: tuple[stories.Step, ...] = (
    ("context", {}),
    ("context", {"last": 3, "branch": "again"}),
    ("node", {"node": "n1"}),
    ("node", {"node": "n0"}),
    ("branches", {"all": True}),
    ("list", {}),
    ("search", {"text": "e"}),
    ("summaries", {}),
    ("audit", {}),
    ("archive_check", {"branch": "main"}),
    ("budget", {"max_tokens": 100, "dry_run": True}),
)

NOTHING_NEW: tuple[stories.Step, ...] = (
    ("pin", {"node": "n7"}),
    ("unpin", {"node": "n2"}),
    ("exclude", {"node": "n3"}),
    ("include", {"node": "n5"}),
    ("thaw", {"node": "n5"}),
    ("summarize", {"from": "n1", "to": "n2", "summary": "They met."}),
    ("append", {"role": "user", "text": "other", "idempotency_key": "first"}),
    ("create", {"title": "other", "idempotency_key": "made"}),
    ("budget", {"max_tokens": 100, "idempotency_key": "fits"}),
    ("budget", {"max_tokens": 60}),
)


@pytest.mark.parametrize(("name", "args"), READS, ids=[f"{n} {a}" for n, a in READS])
def test_reading_writes_nothing(
    counted: tuple[timeline.Database, CountingDisk], name: str, args: Args
) -> None:
    database, disk = counted
    before = Path(database.path).read_bytes()
    database.run(name, args)
    assert disk.written() == {}
    assert disk.count("fsync", "fdatasync", "truncate", "replace", "unlink", "mkdir") == 0
    assert Path(database.path).read_bytes() == before


@pytest.mark.parametrize(("name", "args"), NOTHING_NEW, ids=[f"{n} {a}" for n, a in NOTHING_NEW])
def test_what_changes_nothing_writes_nothing_and_syncs_only_behind_another_process(
    counted: tuple[timeline.Database, CountingDisk], name: str, args: Args
) -> None:
    database, disk = counted
    before = Path(database.path).read_bytes()
    first = database.run(name, args)
    assert disk.written() == {}
    assert disk.count("fsync", "fdatasync") == 0, "all lines are its own, and on disk"

    stories.run(database.path, "append", role="user", text="by another process")
    grown = Path(database.path).read_bytes()
    for fsyncs in (1, 0):
        disk.forget()
        database.run(name, args)
        assert disk.written() == {}
        assert disk.count("fsync", name="t.db") == fsyncs
        assert disk.count("fsync", "fdatasync") == fsyncs
    assert Path(database.path).read_bytes() == grown
    assert grown.startswith(before)

    fresh = CountingDisk()
    again = stories.run(database.path, name, fresh, **args)
    assert (fresh.written(), fresh.count("fsync", "fdatasync")) == ({}, 1)
    if name != "budget":
        assert again == first


def test_budget_asked_twice_writes_once(counted: tuple[timeline.Database, CountingDisk]) -> None:
    database, disk = counted
    first = database.run("budget", {"max_tokens": 43})
    assert disk.written() == {"t.db": 1}
    disk.forget()
    assert database.run("budget", {"max_tokens": 43}) == first
    assert disk.written() == {}
    assert disk.count("fsync", "fdatasync") == 0


def test_refused_requests_write_nothing(counted: tuple[timeline.Database, CountingDisk]) -> None:
    database, disk = counted
    for name, args in (
        ("append", {"role": "user", "text": "x", "branch": "none"}),
        ("append", {"role": "user", "text": "x", "expect_head": "n1"}),
        ("fork", {"node": "n999", "name": "b"}),
        ("fork", {"node": "n1", "name": "main"}),
        ("budget", {"max_tokens": 1}),
        ("archive_branch", {"branch": "main"}),
        ("drop_branch", {"name": "main"}),
        ("append", {"role": "nobody", "text": "x"}),
        ("pin", {"node": "n7", "idempotency_key": "first"}),
    ):
        with pytest.raises(timeline.TimelineError):
            database.run(name, args)
    assert disk.written() == {}
    assert disk.count("fsync", "fdatasync") == 0


# --- what must not grow ---------------------------------------------------------------------------


def flat_steps(count: int) -> tuple[stories.Step, ...]:
    head = f"n{count}"
    return (
        ("append", {"role": "user", "text": "new"}),
        ("append", {"role": "user", "text": "new", "idempotency_key": "new"}),
        ("append", {"role": "user", "text": "x", "idempotency_key": f"key {count // 2}"}),
        ("fork", {"node": head, "name": "b"}),
        ("pin", {"node": head}),
        ("pin", {"node": f"n{count // 2}"}),
        ("context", {"last": 200}),
        ("context", {"last": 200, "node": f"n{count // 2}"}),
        ("context", {"last": 1}),
        ("list", {}),
        ("branches", {}),
    )


def reads(disk: CountingDisk) -> dict[str, int]:
    """Reading calls by file, the size of the log being one."""
    return {f: disk.count("read", name=f) for f in ("t.db", "rows", "lookup", "state")}


@pytest.mark.parametrize("number", range(len(flat_steps(1))), ids=[
    f"{name} {args}" for name, args in flat_steps(1)
])  # fmt: skip
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "fresh"])
def test_reads_do_not_grow_with_the_database(
    prepared: dict[int, Path], tmp_path: Path, number: int, resident: bool
) -> None:
    calls, sizes = {}, {}
    for count in (SMALL, LARGE):
        path = copy(prepared[count], tmp_path / f"{count}")
        disk = CountingDisk()
        database = stories.open_database(path, disk)
        if resident:
            database.run("list")
            disk.forget()
        name, args = flat_steps(count)[number]
        database.run(name, args)
        calls[count] = reads(disk)
        sizes[count] = sum(n for (call, _), n in disk.bytes.items() if call == "read")
        database.close()
    for name in ("t.db", "rows", "state"):
        assert calls[LARGE][name] <= calls[SMALL][name], name
    # The lookup is several tables, each twice as large as the one before it.
    assert calls[LARGE]["lookup"] <= calls[SMALL]["lookup"] + 3
    # Of a long path rows are read in stretches of 4,096.
    assert sizes[LARGE] <= sizes[SMALL] + 4096 * timeline.ROW_BYTES


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "fresh"])
def test_reads_of_a_walk_by_jumps_grow_with_the_logarithm_only(
    prepared: dict[int, Path], tmp_path: Path, resident: bool
) -> None:
    """A fork far up asks whether the head lies below it."""
    found = {}
    for count in (SMALL, LARGE):
        path = copy(prepared[count], tmp_path / f"{count}")
        disk = CountingDisk()
        database = stories.open_database(path, disk)
        database.run("list")
        rows = []
        for node in range(7, count, count // 15):
            disk.forget()
            database.run("fork", {"node": f"n{node}", "name": f"b{node}"})
            rows.append(disk.count("read"))
        found[count] = max(rows)
        database.close()
    assert found[LARGE] <= found[SMALL] + 25


def test_key_that_is_not_known_costs_few_reads(prepared: dict[int, Path], tmp_path: Path) -> None:
    found = {}
    for count in (SMALL, LARGE):
        path = copy(prepared[count], tmp_path / f"{count}")
        disk = CountingDisk()
        database = stories.open_database(path, disk)
        database.run("list")
        disk.forget()
        for number in range(20):
            args = {"role": "user", "text": "x", "idempotency_key": f"unknown {number}"}
            database.run("append", args)
        # One read or two in each table; the number of tables doubles their size each.
        found[count] = disk.count("read", name="lookup") / 20
        database.close()
    assert found[SMALL] <= 2
    assert found[LARGE] <= 2 * 4
