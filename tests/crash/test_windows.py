"""The Windows half of locks and disk, as far as it runs elsewhere: fake msvcrt, files that cannot
be replaced or deleted while somebody has them open."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories

if sys.platform == "win32":
    pytest.skip("there the real thing is tested by all other tests", allow_module_level=True)

import fcntl

ABSENT = ("pread", "pwrite", "fchmod", "fdatasync", "register_at_fork", "O_CLOEXEC")


class FakeClock:
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.at_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.at_sleep()


class Windows:
    """The engine loaded as Windows would load it, over an `os` that behaves like the one there."""

    def __init__(self) -> None:
        self.open_files: dict[int, str] = {}
        self.locked: set[int] = set()
        self.clock = FakeClock()
        self.refused = 0
        self.replaces: list[str] = []
        self.opened_unlocked: list[str] = []
        self.engine = self._load()

    def _load(self) -> Any:
        name = "timeline_on_windows"
        spec = importlib.util.spec_from_file_location(name, timeline.__file__)
        assert spec is not None
        assert spec.loader is not None
        engine = importlib.util.module_from_spec(spec)
        platform, sys.platform = sys.platform, "win32"
        sys.modules["msvcrt"] = self._msvcrt()
        register = os.register_at_fork
        del os.register_at_fork
        try:
            spec.loader.exec_module(engine)
        finally:
            sys.platform = platform
            os.register_at_fork = register
            del sys.modules["msvcrt"]
        engine.os = self._os()  # type: ignore[attr-defined]
        engine.sys = types.SimpleNamespace(platform="win32", stderr=sys.stderr)  # type: ignore[attr-defined]
        engine.time = self.clock  # type: ignore[attr-defined]
        return engine

    def _msvcrt(self) -> types.ModuleType:
        module = types.ModuleType("msvcrt")
        module.LK_NBLCK, module.LK_UNLCK = 2, 0  # type: ignore[attr-defined]
        module.locking = self.locking  # type: ignore[attr-defined]
        return module

    def locking(self, file: int, mode: int, size: int) -> None:
        """One byte from the current position on, as flock between descriptors."""
        assert (os.lseek(file, 0, os.SEEK_CUR), size) == (0, 1)
        try:
            fcntl.flock(file, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EACCES, "Permission denied") from None
        if mode == 0:
            self.locked.remove(file)
        else:
            self.locked.add(file)

    def _os(self) -> Any:
        fake = types.ModuleType("os")
        for name in dir(os):
            if not name.startswith("__") and name not in ABSENT:
                setattr(fake, name, getattr(os, name))
        fake.O_BINARY, fake.O_NOINHERIT = 0, 0  # type: ignore[attr-defined]
        fake.open, fake.close = self.open, self.close  # type: ignore[attr-defined]
        fake.replace, fake.unlink = self.replace, self.unlink  # type: ignore[attr-defined]
        fake.rename = self.replace  # type: ignore[attr-defined]
        fake.fsync = lambda file: None  # type: ignore[attr-defined]
        return fake

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        assert not os.path.isdir(path), "Windows opens no folders"
        file = os.open(path, flags, mode)
        self.open_files[file] = os.path.realpath(path)
        return file

    def close(self, file: int) -> None:
        del self.open_files[file]
        self.locked.discard(file)
        os.close(file)

    def _refuse_open(self, *paths: str) -> None:
        if {os.path.realpath(path) for path in paths} & set(self.open_files.values()):
            self.refused += 1
            raise PermissionError(errno.EACCES, "Access is denied")

    def replace(self, source: str, target: str) -> None:
        self.replaces.append(target)
        self._refuse_open(source, target)
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        self._refuse_open(path)
        os.unlink(path)

    def database(self, path: Path, **more: Any) -> Any:
        return self.engine.Database(str(path), **more)


@pytest.fixture
def windows() -> Iterator[Windows]:
    found = Windows()
    yield found
    for file in list(found.open_files):
        found.close(file)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    return path


def test_whole_story_gives_the_same_log_and_answers(
    windows: Windows, tmp_path: Path, path: Path
) -> None:
    story = stories.Story(tmp_path, stories.EVERYTHING, "plain.db")
    windows.engine.CHECKPOINT_COMMITS = 4
    database = windows.database(path, clock=stories.Clock())
    reader = windows.database(path, clock=stories.Clock())
    for (name, args), result in zip(story.steps, story.results, strict=True):
        assert database.run(name, args) == result
        reader.run("list")
    assert path.read_bytes() == story.log
    assert stories.reading(windows.database(path)) == story.readings[-1]
    database.close()
    reader.close()
    assert stories.read_everything(path) == story.readings[-1]
    assert stories.doctor(path)["ok"]


def test_create_makes_a_database(windows: Windows, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = windows.database(path)
    assert database.run("create") == {"timeline_id": "tl0"}
    assert database.run("append", {"role": "user", "text": "x"}) == {"node": "n1"}
    assert stories.doctor(path)["ok"]


def test_no_file_stays_open_after_an_operation(windows: Windows, path: Path) -> None:
    windows.engine.CHECKPOINT_COMMITS = 2
    database = windows.database(path)
    steps: tuple[stories.Step, ...] = (
        *stories.messages(5),
        ("list", {}),
        ("node", {"node": "n1"}),
        ("context", {}),
        ("search", {"text": "message"}),
        ("audit", {}),
        ("budget", {"max_tokens": 100}),
        ("pin", {"node": "n1"}),
    )
    for name, args in steps:
        database.run(name, args)
        assert windows.open_files == {}, name
    for name, args in (("node", {"node": "n99"}), ("fork", {"node": "n99", "name": "b"})):
        with pytest.raises(windows.engine.TimelineError):
            database.run(name, args)
        assert windows.open_files == {}, name
    database.doctor()
    database.close()
    assert windows.open_files == {}


def test_purge_works_while_other_processes_are_resident(windows: Windows, path: Path) -> None:
    reader, writer = windows.database(path), windows.database(path)
    for name, args in stories.messages(3):
        writer.run(name, args)
    assert reader.run("node", {"node": "n2"})["text"].startswith("message 2")
    assert writer.purge([2])["purged"] == ["n2"]
    assert windows.refused == 0
    assert reader.run("node", {"node": "n2"})["text"] == ""
    assert b"message 2" not in path.read_bytes()


def test_lock_is_polled_with_short_irregular_pauses(windows: Windows, path: Path) -> None:
    lock = f"{path}.lock"
    holder = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    database = windows.database(path, wait_s=4)
    with pytest.raises(windows.engine.Busy) as caught:
        database.run("create")
    assert caught.value.data == {"waited_s": 4, "retry": True}
    slept = windows.clock.slept
    assert all(0.001 <= pause <= 0.005 for pause in slept)
    assert len(set(slept)) > 10
    assert sum(slept) == pytest.approx(4, abs=0.01)
    assert windows.open_files == {}
    assert windows.locked == set()

    windows.clock.slept = []
    windows.clock.at_sleep = lambda: (
        os.close(holder) if len(windows.clock.slept) == 3 else None  # type: ignore[func-returns-value]
    )
    assert database.run("create") == {"timeline_id": "tl0"}
    assert len(windows.clock.slept) == 3
    assert windows.locked == set()


def test_lock_is_one_byte_of_the_lock_file_and_readers_take_none(
    windows: Windows, path: Path
) -> None:
    database = windows.database(path, wait_s=0.01)
    database.run("create")
    assert Path(f"{path}.lock").read_bytes() == b""
    with database.writing():
        assert len(windows.locked) == 1
        other = windows.database(path, wait_s=0.01)
        assert other.run("list")[0]["timeline_id"] == "tl0"
        with pytest.raises(windows.engine.Busy):
            other.run("append", {"role": "user", "text": "x"})
    assert windows.locked == set()
    other.run("append", {"role": "user", "text": "x"})


def test_replace_that_fails_is_tried_ten_times_then_nothing_changed(
    windows: Windows, path: Path
) -> None:
    database = windows.database(path)
    for name, args in stories.messages(3):
        database.run(name, args)
    before = path.read_bytes()
    scanner = windows.open(str(path), os.O_RDONLY)  # a virus scanner that does not let go
    windows.clock.slept = []
    with pytest.raises((windows.engine.TimelineError, OSError)) as caught:
        database.purge([2])
    assert "nothing changed" in str(caught.value)
    assert windows.replaces.count(str(path)) == 10
    slept = windows.clock.slept
    assert slept == sorted(slept)
    assert slept[:4] == [0.01, 0.02, 0.04, 0.08]
    assert len(slept) == 9
    assert path.read_bytes() == before
    assert windows.locked == set()

    windows.replaces, windows.clock.slept = [], []
    windows.clock.at_sleep = lambda: (
        windows.close(scanner) if len(windows.clock.slept) == 3 else None
    )
    assert database.purge([2])["purged"] == ["n2"]
    assert len(windows.replaces) == 4
    assert stories.doctor(path)["ok"]
    assert not Path(f"{path}.tmp").exists()


def test_state_file_that_cannot_be_replaced_is_done_without(windows: Windows, path: Path) -> None:
    windows.engine.CHECKPOINT_COMMITS = 4
    database = windows.database(path)
    for name, args in stories.messages(10):
        database.run(name, args)
    scanner = windows.open(f"{path}.index/state", os.O_RDONLY)
    for number in range(20):
        database.run("append", {"role": "user", "text": f"{number}"})
    windows.close(scanner)
    assert len(database.run("context")) == 30
    assert windows.refused > 0
    for number in range(80):
        database.run("append", {"role": "user", "text": f"{number}"})
    assert stories.doctor(path)["ok"]
    assert stories.run_where(path) in ("fresh", "behind")


def test_readers_beside_writers_see_a_whole_prefix(windows: Windows, path: Path) -> None:
    """Readers take no lock: they may look at any moment of a write."""
    windows.engine.CHECKPOINT_COMMITS = 3
    writer = windows.database(path, clock=stories.Clock())
    reader = windows.database(path, clock=stories.Clock())
    rng = random.Random(1)
    seen: list[int] = []

    class Peeping(windows.engine.Disk):  # type: ignore[name-defined, misc]
        def append(self, file: int, data: bytes) -> None:
            middle = rng.randrange(len(data))
            super().append(file, data[:middle])
            look()
            super().append(file, data[middle:])
            look()

        def replace(self, source: str, target: str) -> None:
            look()
            super().replace(source, target)
            look()

    def look() -> None:
        rows = reader.run("context", {"branch": "main"}) if reader.run("list") else []
        assert [row["node"] for row in rows] == [f"n{i}" for i in range(1, len(rows) + 1)]
        assert all(row["text"].startswith(f"message {row['node'][1:]}:") for row in rows)
        seen.append(len(rows))

    writer.store.disk = writer.store.index.disk = Peeping()
    for name, args in stories.messages(30):
        writer.run(name, args)
    assert seen == sorted(seen)
    assert seen[-1] >= 29
