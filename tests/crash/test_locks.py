"""Locks: waiting, giving up, a lock file that is deleted, no locks at all."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
from kit import stories
from kit.disks import CountingDisk
from kit.stories import Story

if sys.platform == "win32":
    pytest.skip("POSIX locks; those of Windows are in test_windows.py", allow_module_level=True)

import fcntl


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


@pytest.fixture
def path(story: Story, tmp_path: Path) -> Path:
    stories.place(tmp_path / "t.db", story.log)
    return tmp_path / "t.db"


@pytest.fixture
def held(path: Path) -> Iterator[str]:
    """The path of the lock, which somebody else holds."""
    lock = f"{path}.lock"
    file = timeline.lock(lock, True, 1)
    yield lock
    timeline.unlock(file)


def test_busy_lock_is_told_with_how_long_was_waited(path: Path, held: str) -> None:
    database = timeline.Database(str(path), wait_s=0.02)
    for name, args in (
        ("append", {"role": "user", "text": "x"}),
        ("create", {}),
        ("list", {}),
        ("pin", {"node": "n7"}),
    ):
        with pytest.raises(timeline.Busy) as caught:
            database.run(name, args)
        assert caught.value.exit_code == 4
        assert caught.value.data == {"waited_s": 0.02, "retry": True}
        assert held in str(caught.value)
    database.close()


def test_terminal_program_exits_4_if_the_lock_is_busy(
    path: Path, held: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = functools.partial(timeline.Database, wait_s=0.02)
    monkeypatch.setattr(timeline_cli, "Database", quick)
    assert timeline_cli.main([f"--db={path}", "append", "--role=user", "--text=x"]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["data"] == {"waited_s": 0.02, "retry": True}
    assert timeline_cli.main([f"--db={path}", "where"]) == 0


def test_waiting_writer_gets_the_lock_when_it_is_let_go(
    path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = timeline.lock(f"{path}.lock", True, 1)
    blocked = threading.Event()
    flock = fcntl.flock

    def watched(file: int, kind: int) -> None:
        if not kind & fcntl.LOCK_NB:
            blocked.set()
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", watched)
    answers: list[Any] = []
    database = timeline.Database(str(path), wait_s=60, clock=stories.Clock())
    thread = threading.Thread(
        target=lambda: answers.append(database.run("append", {"role": "user", "text": "waited"}))
    )
    thread.start()
    assert blocked.wait(60)
    timeline.unlock(first)
    thread.join(60)
    database.close()
    assert answers == [{"node": f"n{story.nodes(story.seq) + 1}"}]


def test_lock_that_comes_after_giving_up_is_let_go(path: Path) -> None:
    """The thread that waits on must not keep the lock it gets too late."""
    lock = f"{path}.lock"
    holder = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = set(threading.enumerate())
    with pytest.raises(timeline.Busy):
        timeline.lock(lock, True, 0.01)
    late = set(threading.enumerate()) - before
    assert len(late) == 1
    fcntl.flock(holder, fcntl.LOCK_UN)
    for thread in late:
        thread.join(60)
    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(holder)


def test_readers_share_the_lock_and_keep_writers_out(path: Path, story: Story) -> None:
    shared = timeline.lock(f"{path}.lock", False, 1)
    assert stories.read_state(path) == story.states[-1]
    database = timeline.Database(str(path), wait_s=0.01)
    with pytest.raises(timeline.Busy):
        database.run("append", {"role": "user", "text": "x"})
    timeline.unlock(shared)
    database.run("append", {"role": "user", "text": "x"})
    database.close()


def test_no_lock_is_held_between_operations(path: Path) -> None:
    database = stories.open_database(path)
    database.run("append", {"role": "user", "text": "x"})
    database.run("list")
    with pytest.raises(timeline.TimelineError):
        database.run("node", {"node": "n999"})
    with pytest.raises(timeline.TimelineError):
        database.run("fork", {"node": "n999", "name": "b"})
    timeline.unlock(timeline.lock(f"{path}.lock", True, 0))
    database.close()


def test_lock_file_deleted_while_it_is_waited_for_is_locked_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = f"{path}.lock"
    flock = fcntl.flock
    deleted = []

    def deleting(file: int, kind: int) -> None:
        flock(file, kind)
        if not deleted:
            deleted.append(os.fstat(file).st_ino)
            os.unlink(lock)

    monkeypatch.setattr(fcntl, "flock", deleting)
    file = timeline.lock(lock, True, 1)
    assert os.fstat(file).st_ino == os.stat(lock).st_ino
    with pytest.raises(timeline.Busy):
        timeline.lock(lock, True, 0.01)
    timeline.unlock(file)


def test_lock_file_replaced_while_it_is_waited_for_is_locked_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waits for B's lock, somebody deletes the file, C locks a new one: A must wait for C."""
    lock = f"{path}.lock"
    first = timeline.lock(lock, True, 1)
    flock = fcntl.flock
    second: list[int] = []

    def replacing(file: int, kind: int) -> None:
        if not kind & fcntl.LOCK_NB and not second:
            os.unlink(lock)
            second.append(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600))
            flock(second[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            flock(first, fcntl.LOCK_UN)
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", replacing)
    with pytest.raises(timeline.Busy):
        timeline.lock(lock, True, 0.05)
    os.close(second[0])
    timeline.unlock(timeline.lock(lock, True, 1))
    timeline.unlock(first)


def test_lock_file_deleted_between_operations_comes_back(path: Path, story: Story) -> None:
    database = stories.open_database(path)
    other = stories.open_database(path)
    for number in range(1, 7):
        os.unlink(f"{path}.lock") if number > 1 else None
        writer = (database, other)[number % 2]
        answer = writer.run("append", {"role": "user", "text": "x"})
        assert answer == {"node": f"n{story.nodes(story.seq) + number}"}
    assert stories.state_of(database) == stories.state_of(other)
    database.close()
    other.close()
    assert os.stat(f"{path}.lock").st_mode & 0o777 == 0o600


def test_both_names_of_a_linked_database_share_one_lock(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "folder" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    file = timeline.lock(f"{path}.lock", True, 1)
    database = timeline.Database(str(link), wait_s=0.01)
    with pytest.raises(timeline.Busy):
        database.run("append", {"role": "user", "text": "x"})
    timeline.unlock(file)
    database.run("append", {"role": "user", "text": "x"})
    database.close()
    assert [each.name for each in link.parent.iterdir()] == ["link.db"]
    assert link.is_symlink()


# --- no locks -----------------------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that takes no locks."""

    def refuse(file: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_reading_goes_on_and_writing_is_refused(path: Path, story: Story) -> None:
    database = stories.open_database(path)
    before = path.read_bytes()
    found = stories.outcome(lambda: database.run("list"))
    assert found == story.readings[-1]["list"]
    assert database.run("node", {"node": "n1"})["text"] == "Hello"
    for name, args in (("append", {"role": "user", "text": "x"}), ("create", {})):
        with pytest.raises((OSError, timeline.WriteFailed)):
            database.run(name, args)
    with path.open("ab") as file:
        file.write(b"torn")
    assert len(database.run("context")) == len(story.readings[-1]["timelines"][0]["contexts"][0])
    database.close()
    assert path.read_bytes() == before + b"torn"


@pytest.mark.usefixtures("no_locks")
def test_without_locks_what_looks_like_damage_is_read_once_more(
    path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without a lock may look while a writer is in the middle of something."""
    database = stories.open_database(path, CountingDisk())
    disk = database.store.disk
    assert isinstance(disk, CountingDisk)
    database.run("list")
    stored = path.read_bytes()
    start = story.ends[-1]
    crc = int(stored[-11:-3], 16)
    record = {"seq": 31, "ts": stories.START + 99, "op": "pin", "tl": 0, "node": 2}
    line, _ = timeline.encode_line(record, crc)
    path.write_bytes(stored + stories.flipped(line, 12))
    read_at = timeline.Disk.read_at
    seen = []

    def read_once_wrong(self: timeline.Disk, file: int, size: int, offset: int) -> bytes:
        data = read_at(self, file, size, offset)
        if offset == start and not seen:
            seen.append(data)
            path.write_bytes(stored + line)
        return data

    monkeypatch.setattr(timeline.Disk, "read_at", read_once_wrong)
    assert database.run("node", {"node": "n2"})["pinned"]
    assert seen == [stories.flipped(line, 12)]
    database.close()


def write_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Two writers who both believe to be alone each add `count` messages."""
    monkeypatch.setattr(timeline, "lock", lambda path, exclusive, wait_s: -1)
    one, two = stories.open_database(path), stories.open_database(path)

    def record(store: timeline.Store, text: str) -> dict[str, Any]:
        node = len(store.rows) + 1
        return {
            "op": "append",
            "tl": 0,
            "id": node,
            "parent": store.state.timelines[0].branches["main"].head,
            "branch": "main",
            "role": "user",
            "tokens": 1,
            "via": "cli",
            "text": text,
        }

    with one.writing() as first, two.writing() as second:
        for number in range(count):
            first.commit([record(first, f"one {number}")], stories.START)
            second.commit([record(second, f"two {number}")], stories.START)
    one.close()
    two.close()
    monkeypatch.undo()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_two_writers_without_locks_are_damage_and_nothing_is_lost(
    path: Path, story: Story, monkeypatch: pytest.MonkeyPatch, count: int, tmp_path: Path
) -> None:
    write_without_locks(path, monkeypatch, count)
    log = path.read_bytes()
    lines = stories.lines_of(log)
    assert len(lines) == len(story.lines()) + 2 * count
    with pytest.raises(timeline.Corrupt) as caught:
        stories.run(path, "append", role="user", text="x")
    second = len(story.lines()) + 1
    assert caught.value.data == {"line": second + 1, "byte": lines[second][0]}
    assert path.read_bytes() == log
    assert not Path(f"{path}.torn").exists()
    assert stories.run(path, "context", last=1)[0]["text"] == "one 0"
    report = stories.doctor(path)
    assert not report["ok"]
    assert report["problems"][0]["line"] == second + 1
    stories.repair(path, tmp_path / "new.db")
    assert stories.doctor(tmp_path / "new.db")["ok"]
    assert stories.run(tmp_path / "new.db", "search", text="one 0", limit=9)


@pytest.mark.parametrize("count", [1, 3])
def test_writer_notices_another_one_without_locks(
    path: Path, story: Story, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    database = stories.open_database(path)
    database.run("list")
    write_without_locks(path, monkeypatch, count)
    log = path.read_bytes()
    with pytest.raises(timeline.Corrupt):
        database.run("append", {"role": "user", "text": "x"})
    database.close()
    assert path.read_bytes() == log


# --- forks --------------------------------------------------------------------------------------

WAITING = """
import fcntl, os, sys, threading
sys.path[:0] = {paths!r}
import timeline
lock = {path!r} + ".lock"
holder = timeline.lock(lock, True, 5)
blocked = threading.Event()
flock = fcntl.flock
def watched(file, kind):
    if not kind & fcntl.LOCK_NB:
        blocked.set()
    flock(file, kind)
fcntl.flock = watched
waiter = threading.Thread(target=lambda: timeline.unlock(timeline.lock(lock, True, 60)))
waiter.start()
blocked.wait(60)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)  # until the parent is through
    os._exit(0)
timeline.unlock(holder)
waiter.join(60)
fcntl.flock = flock
timeline.unlock(timeline.lock(lock, True, 5))
os.close(write)
os.waitpid(child, 0)
print("done")
"""


def test_child_forked_while_a_thread_waits_does_not_keep_that_lock(path: Path) -> None:
    paths = [str(Path(timeline.__file__).parent)]
    command = [sys.executable, "-W", "ignore", "-c", WAITING.format(paths=paths, path=str(path))]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"done\n", 0), done.stderr.decode()


FORK = """
import os, sys
sys.path[:0] = {paths!r}
import timeline
path = {path!r}
database = timeline.Database(path, wait_s=5)
database.run("list")
with database.writing() as store:
    child = os.fork()
    if child == 0:
        # The parent holds the lock; the child must neither hold nor let go of it.
        try:
            timeline.Database(path, wait_s=0.05).run("append", {{"role": "user", "text": "no"}})
            os._exit(1)
        except timeline.Busy:
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    try:
        timeline.lock(path + ".lock", True, 0.05)
        raise SystemExit("the child let go of the lock")
    except timeline.Busy:
        pass
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)  # until the parent has written
    node = database.run("append", {{"role": "user", "text": "child"}})["node"]
    os._exit(0 if database.run("node", {{"node": node}})["text"] == "child" else 1)
os.close(read)
database.run("append", {{"role": "user", "text": "parent"}})
os.close(write)
assert os.waitpid(child, 0)[1] == 0
assert [row["text"] for row in database.run("context", {{"last": 2}})] == ["parent", "child"]
print("done")
"""


def test_forked_child_holds_no_lock_of_its_parent_and_opens_its_own_files(path: Path) -> None:
    paths = [str(Path(timeline.__file__).parent)]
    script = FORK.format(paths=paths, path=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"done\n", 0), done.stderr.decode()
    assert stories.doctor(path)["ok"]
