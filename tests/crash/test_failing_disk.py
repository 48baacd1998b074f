"""A disk that is full or fails: the error says so, nothing half done stays, work goes on later."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.disks import FailingSync, FullDisk
from kit.stories import Story


def is_log(path: str) -> bool:
    return path.endswith("t.db")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


NEW = {"role": "user", "text": "new " * 100, "idempotency_key": "new"}
WIDE_BUDGET = {"max_tokens": 43, "idempotency_key": "wide"}  # one placeholder: two lines


def fails(database: timeline.Database, name: str, args: dict[str, Any]) -> timeline.WriteFailed:
    with pytest.raises(timeline.WriteFailed) as caught:
        database.run(name, args)
    assert caught.value.exit_code == 5
    return caught.value


# --- full ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "args"), [("append", NEW), ("budget", WIDE_BUDGET)])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_takes_nothing_and_reading_goes_on(
    story: Story, tmp_path: Path, name: str, args: dict[str, Any], error: int
) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    expected = stories.run(path, name, **args)
    whole = path.read_bytes()
    stories.place(path, story.log)
    disk = FullDisk(0, is_log, error)
    database = stories.open_database(path, disk)
    for room in range(0, len(whole) - len(story.log), 37):
        disk.room = room
        said = fails(database, name, args)
        assert "not stored" in str(said)
        assert said.data["errno"] == error
        assert path.read_bytes() == story.log, room
        assert stories.state_of(database) == story.states[-1]
    assert stories.reading(database) == story.readings[-1]
    disk.room = len(whole)
    assert database.run(name, args) == expected
    assert database.run("node", {"node": "n1"})["text"] == "Hello"
    database.close()
    assert path.stat().st_size == len(whole)
    assert stories.doctor(path)["ok"]


def test_full_disk_while_a_torn_tail_is_set_aside_loses_nothing(
    story: Story, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    torn = b"half a line " * 5
    stories.place(path, story.log + torn)
    for room in range(0, 100, 9):
        database = stories.open_database(path, FullDisk(room))
        fails(database, "append", NEW)
        database.close()
        assert path.read_bytes() in (story.log + torn, story.log)
        assert stories.read_state(path) == story.states[-1]
    stories.place(path, story.log + torn)
    assert stories.next_append_works(path) == story.nodes(story.seq) + 1
    assert Path(f"{path}.torn").read_bytes().endswith(b":\n" + torn + b"\n")


def test_create_on_a_full_disk_leaves_no_database(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for room in (0, 1, 100):
        database = stories.open_database(path, FullDisk(room))
        fails(database, "create", {})
        database.close()
        assert not path.exists()
        with pytest.raises(timeline.NotFound):
            stories.run(path, "list")
    assert stories.run(path, "create") == {"timeline_id": "tl0"}
    assert not Path(f"{path}.tmp").exists()


def test_purge_on_a_full_disk_changes_nothing(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for room in (0, 500, len(story.log) - 200):
        stories.place(path, story.log)
        database = stories.open_database(path, FullDisk(room))
        with pytest.raises((timeline.WriteFailed, OSError)):
            database.purge([1])
        database.close()
        assert path.read_bytes() == story.log
        assert stories.read_everything(path) == story.readings[-1]
        stories.next_append_works(path)
        assert not Path(f"{path}.tmp").exists()


def test_repair_on_a_full_disk_leaves_no_file(story: Story, tmp_path: Path) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    stories.place(path, story.log)
    for room in (0, 500, len(story.log) - 200):
        database = stories.open_database(path, FullDisk(room))
        with pytest.raises((timeline.WriteFailed, OSError)):
            database.repair(str(target))
        database.close()
        assert sorted(each.name for each in tmp_path.iterdir() if "new" in each.name) == []
    assert stories.repair(path, target)["left_out"] == []


def test_writes_cut_short_by_the_system_are_gone_on_with(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    write, pwrite, pread = os.write, os.pwrite, os.pread
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:7])))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, bytes(data[:11]), at))
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 13), at))
    path.write_bytes(stories.header())
    database = timeline.Database(str(path), clock=stories.Clock())
    for step, args in story.steps:
        database.run(step, args)
    assert stories.reading(database)["nodes"][:-1] == story.readings[-1]["nodes"][:-1]
    database.close()
    monkeypatch.undo()
    assert stories.doctor(path)["ok"]
    assert path.read_bytes().count(b"\n") == story.log.count(b"\n")


# --- fsync that fails ---------------------------------------------------------------------------


def test_failed_fsync_is_not_stored_and_not_tried_again(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for name, args in (("append", NEW), ("budget", WIDE_BUDGET), ("pin", {"node": "n2"})):
        stories.place(path, story.log)
        disk = FailingSync(1, is_log)
        database = stories.open_database(path, disk)
        said = fails(database, name, args)
        assert "not stored" in str(said)
        assert said.data["errno"] == errno.EIO
        assert disk.failed == 1
        assert disk.failed_on not in disk.paths, "the handle is dropped"
        assert disk.synced_after == [], "nobody knows what a second fsync would mean"
        assert path.read_bytes() == story.log
        assert stories.reading(database) == story.readings[-1]
        database.run(name, args)
        assert path.stat().st_size > len(story.log)
        database.close()
        assert stories.doctor(path)["ok"]


def test_failed_fsync_and_truncation_ask_for_the_same_key_again(
    story: Story, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    disk = FailingSync(1, is_log, truncates=False)
    database = stories.open_database(path, disk)
    said = fails(database, "append", NEW)
    assert "state unknown, repeat with the idempotency key" in str(said)
    assert path.stat().st_size > len(story.log), "the line could not be taken back"
    again = database.run("append", NEW)
    assert again == {"node": f"n{story.nodes(story.seq) + 1}"}
    database.close()
    assert path.read_bytes().count(b'"key":"new"') == 1
    assert stories.doctor(path)["ok"]


def test_retry_rests_on_a_line_only_after_it_is_on_disk(story: Story, tmp_path: Path) -> None:
    """The process that wrote the line may have died before its fsync."""
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    stories.run(path, "append", **NEW)
    for name, args in (("append", NEW), ("pin", {"node": "n7"})):
        database = stories.open_database(path, FailingSync(1, is_log))
        said = fails(database, name, args)
        assert "state unknown" in str(said)
        assert database.run(name, args)
        database.close()


def test_failed_fsync_of_a_new_database_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = stories.open_database(path, FailingSync(1))
    fails(database, "create", {})
    database.close()
    assert not path.exists()
    assert stories.run(path, "create") == {"timeline_id": "tl0"}


def test_failed_fsync_of_the_index_is_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    for at in range(1, 7):
        stories.clear(path)
        path.write_bytes(stories.header())
        disk = FailingSync(at, lambda path: ".index" in path)
        database = stories.open_database(path, disk)
        for name, args in stories.messages(30):
            database.run(name, args)
        assert disk.failed == 1
        assert len(database.run("context")) == 30
        database.close()
        assert stories.doctor(path)["ok"]


class UnreadableIndex(timeline.Disk):
    """Reading the index fails from the moment `fails` is set on."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.fails = False

    def open(self, path: str, flags: int) -> int:
        file = super().open(path, flags)
        self.paths[file] = path
        return file

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        if self.fails and self.paths[file].endswith(("rows", "lookup")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read_at(file, size, offset)


def test_unreadable_index_changes_no_answer(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    disk = UnreadableIndex()
    database = stories.open_database(path, disk)
    database.run("list")
    disk.fails = True
    assert stories.reading(database) == story.readings[-1]
    database.close()


def test_append_is_stored_once_though_the_index_becomes_unreadable_behind_it(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    disk = UnreadableIndex()
    database = stories.open_database(path, disk)
    database.run("list")
    write = disk.append

    def append(file: int, data: bytes) -> None:
        write(file, data)
        disk.fails = True

    monkeypatch.setattr(disk, "append", append)
    answer = database.run("append", {"role": "user", "text": "new"})
    assert answer == {"node": f"n{story.nodes(story.seq) + 1}"}
    database.close()
    assert path.read_bytes().count(b"\n") == story.log.count(b"\n") + 1


# --- a file system that is really full -----------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root on Linux")
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all the room there is, to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_really_full_disk_loses_nothing_and_works_again_with_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch, 16)
    path, ballast = small_disk / "t.db", small_disk / "ballast"
    database = timeline.Database(str(path), clock=stories.Clock())
    database.run("create")
    told: list[str] = []

    def append_until_full() -> None:
        with pytest.raises(timeline.WriteFailed) as caught:
            while True:
                text = f"{len(told)} " + "words " * 60
                database.run("append", {"role": "user", "text": text})
                told.append(text)
        assert caught.value.exit_code == 5
        assert "not stored" in str(caught.value)

    def texts(ask: Callable[..., Any]) -> list[str]:
        return [row["text"] for row in ask("context", {"branch": "main"})]

    for _ in range(3):
        fill(ballast)
        append_until_full()
        assert texts(database.run) == told
        assert stories.doctor(path)["ok"]
        ballast.unlink()
        text = f"{len(told)} after"
        database.run("append", {"role": "user", "text": text})
        told.append(text)
    append_until_full()  # until the whole file system is full of log and index
    assert len(told) > 100
    assert texts(database.run) == told
    database.close()
    assert texts(lambda name, args: stories.run(path, name, **args)) == told
    assert stories.doctor(path)["ok"]


def test_one_shot_process_on_a_full_disk_exits_5(small_disk: Path) -> None:
    path = small_disk / "t.db"
    stories.run(path, "create")
    before = path.read_bytes()
    fill(small_disk / "ballast")
    command = [sys.executable, str(Path(timeline.__file__).with_name("tl.py")), f"--db={path}"]
    done = subprocess.run(
        [*command, "append", "--role=user", "--text", "x" * 5000], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (5, b"")
    assert b"not stored" in done.stderr
    assert path.read_bytes() == before
    done = subprocess.run([*command, "list"], capture_output=True, check=False)
    assert done.returncode == 0
