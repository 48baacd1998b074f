"""The process dies, or the power goes, at every system call of every kind of write."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.disks import Death, DyingDisk, PowerCutDisk, WatchedDisk

SLOW = pytest.mark.slow
PARTS = (0.0, 0.5, 1.0)  # of a write that the power goes in
SECRET = "hunter2 is the password"
Database = timeline.Database


class Scene:
    """What is done at the moment of death, on a copy of a prepared database.

    `keyed`: doing it again is a retry, and never does it twice. `torn`: a step whose write was
    cut short before.
    """

    def __init__(
        self,
        prepare: tuple[stories.Step, ...],
        act: Callable[[Database], Any],
        *,
        indexed: bool = True,
        keyed: bool = True,
        torn: stories.Step | None = None,
    ) -> None:
        self.prepare = prepare
        self.act = act
        self.indexed = indexed
        self.keyed = keyed
        self.torn = torn


def ask(name: str, **args: Any) -> Callable[[Database], Any]:
    return lambda database: database.run(name, args)


def purge(database: Database) -> Any:
    if not database.run("node", {"node": "n3"}).get("purged"):
        database.purge([3])


def rebuild(database: Database) -> Any:
    return database.run("list")


def one_long() -> tuple[stories.Step, ...]:
    return (*stories.messages(9), stories.append("long " * 900))


HEAVY = tuple(stories.append(f"{i}", tokens=1000 if i % 2 else 1) for i in range(9))
PINS = tuple(("pin", {"node": f"n{i}"}) for i in (1, 3, 5, 7))

SCENES = {
    "append": Scene(
        stories.messages(5), ask("append", role="user", text="new " * 300, idempotency_key="new")
    ),
    "append behind a torn tail": Scene(
        stories.messages(5),
        ask("append", role="user", text="new " * 800, idempotency_key="new"),
        torn=stories.append("old " * 800, idempotency_key="old"),
    ),
    "budget of several lines": Scene(
        (("create", {}), *HEAVY, *PINS, stories.append("end")),
        ask("budget", max_tokens=200, idempotency_key="fits"),
    ),
    "append with a checkpoint": Scene(
        stories.messages(6), ask("append", role="user", text="new", idempotency_key="new")
    ),
    "append with a first checkpoint": Scene(
        stories.messages(6),
        ask("append", role="user", text="new", idempotency_key="new"),
        indexed=False,
    ),
    "create": Scene((), ask("create", idempotency_key="made")),
    "second create": Scene(stories.messages(2), ask("create", idempotency_key="made")),
    "purge": Scene(
        (*stories.messages(2), stories.append(SECRET), stories.append("long " * 500)), purge
    ),
    "rebuild": Scene(one_long(), rebuild, indexed=False, keyed=False),
}


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    stories.small_checkpoints(monkeypatch)


class Stage:
    """A scene's database, ready to be copied again and again."""

    def __init__(self, folder: Path, name: str) -> None:
        self.scene = SCENES[name]
        self.folder = folder / "prepared"
        self.folder.mkdir()
        self.path = self.folder / "t.db"
        self.copy = folder / "copy"
        self.writes: list[int] = []  # the calls among the deaths that were writes
        if self.scene.prepare:
            self.path.write_bytes(stories.header())
            database = stories.open_database(self.path)
            for step, args in self.scene.prepare:
                database.run(step, args)
            database.close()
        self.before = self.read(self.path)
        if not self.scene.indexed:  # after reading, which may make one
            shutil.rmtree(f"{self.path}.index", ignore_errors=True)
        if self.scene.torn is not None:
            name, args = self.scene.torn
            log = self.path.read_bytes()
            stories.run(self.path, name, **args)
            self.path.write_bytes(self.path.read_bytes()[:-700])
            assert self.path.stat().st_size > len(log) + 2000
        after = self.fresh_copy()
        self.result = self.act(after)
        self.after = self.read(after)
        # `create` makes a database first, then a timeline in it.
        self.allowed = [self.before, self.after]
        if not self.scene.prepare:
            self.copy_of(stories.header())
            self.allowed.append(self.read(self.copy / "t.db"))

    def copy_of(self, log: bytes) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.mkdir()
        (self.copy / "t.db").write_bytes(log)

    def fresh_copy(self) -> Path:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder, self.copy)
        return self.copy / "t.db"

    def act(self, path: Path, disk: timeline.Disk | None = None) -> Any:
        database = stories.open_database(path, disk)
        try:
            return self.scene.act(database)
        finally:
            if not isinstance(disk, DyingDisk):
                database.close()

    def read(self, path: Path) -> Any:
        """State, rows and texts as a fresh reader finds them; None if there is no database."""
        if not path.exists():
            return None
        database = stories.open_database(path)
        state = stories.state_of(database)
        texts = database.run("context") if database.run("list") else []
        database.close()
        return state, texts

    def deaths(
        self, make: Callable[[int], DyingDisk], calls: Iterable[int] | None = None
    ) -> Iterator[tuple[Path, DyingDisk]]:
        """The database after a death at each of `calls`, or until the act comes through alive. A
        dead process leaves nothing but its files, so what was seen before is passed over."""
        seen = set()
        self.writes = []
        for at in count(1) if calls is None else calls:
            path = self.fresh_copy()
            disk = make(at)
            try:
                self.act(path, disk)
            except Death:
                pass
            disk.bury()
            if not disk.is_dead:
                assert at > 3
                return
            if disk.died_at.startswith("write "):
                self.writes.append(at)
            files = sorted(each for each in path.parent.rglob("*") if each.is_file())
            left = tuple((str(each), each.read_bytes()) for each in files)
            if left not in seen:
                seen.add(left)
                yield path, disk

    def check(self, path: Path, disk: DyingDisk) -> None:
        """All of the act or nothing is there; doing it again makes all as it should be."""
        where = f"{disk.died_at}, call {disk.at}"
        seen = self.read(path)
        assert seen in self.allowed, where
        if seen is not None:
            assert stories.doctor(path)["ok"], where
        result = self.act(path)
        if self.scene.keyed:
            assert outline(result) == outline(self.result), where
        assert self.read(path) == self.after, where
        number = len(json.loads(self.after[0])[1]) // 128 + 1
        assert stories.next_append_works(path) == number, where
        assert not [name for name in os.listdir(path.parent) if name.endswith(".tmp")], where
        state = self.read(path)
        shutil.rmtree(f"{path}.index", ignore_errors=True)
        assert self.read(path) == state, where


def outline(result: Any) -> Any:
    """A result without what a new log_id and a repeated budget change."""
    if isinstance(result, dict) and "messages" in result:
        return [message["node"] for message in result["messages"]]
    return result


@pytest.mark.parametrize("name", SCENES)
def test_death_at_any_system_call_leaves_all_or_nothing(tmp_path: Path, name: str) -> None:
    stage = Stage(tmp_path, name)
    for path, disk in stage.deaths(DyingDisk):
        stage.check(path, disk)
    assert stage.writes
    for path, disk in stage.deaths(lambda at: DyingDisk(at, part=0.5), [*stage.writes]):
        stage.check(path, disk)


QUICK = ["append behind a torn tail", "append with a checkpoint", "create", "purge"]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("seed", range(1))
def test_power_cut_at_any_system_call_leaves_all_or_nothing(
    tmp_path: Path, name: str, seed: int
) -> None:
    check_power_cuts(tmp_path, name, seed)


@SLOW
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_power_cut_at_any_system_call_leaves_all_or_nothing_in_many_ways(
    tmp_path: Path, name: str, first: int
) -> None:
    for seed in range(first, first + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_power_cuts(folder, name, seed)


def check_power_cuts(folder: Path, name: str, seed: int) -> None:
    stage = Stage(folder, name)

    def make(at: int) -> DyingDisk:
        return PowerCutDisk(at, seed * 1000 + at, part=PARTS[at % 3])

    for path, disk in stage.deaths(make):
        stage.check(path, disk)


class Order(WatchedDisk):
    """Remembers the calls in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def meet(self, call: str, path: str, data: bytes = b"", file: int = -1) -> None:
        self.calls.append(f"{call} {os.path.basename(path)}")


def test_log_is_on_disk_before_the_index_speaks_of_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "append with a checkpoint")
    disk = Order()
    stage.act(stage.fresh_copy(), disk)
    steps = [
        "write t.db",
        "fsync t.db",
        "write rows",
        "fdatasync rows",
        "fdatasync lookup",
        "write state.tmp",
        "fdatasync state.tmp",
        "replace state",
    ]
    places = [disk.calls.index(step) for step in steps]
    assert places == sorted(places)


def test_folder_is_synced_after_create_and_purge(tmp_path: Path) -> None:
    for name, placed in (("create", "link t.db"), ("purge", "replace t.db")):
        folder = tmp_path / name
        folder.mkdir()
        stage = Stage(folder, name)
        disk = Order()
        stage.act(stage.fresh_copy(), disk)
        synced = [i for i, call in enumerate(disk.calls) if call == "fsync copy"]
        assert disk.calls.index("fsync t.db.tmp") < disk.calls.index(placed) < synced[-1]


@pytest.mark.parametrize("name", ["append", "create", "budget of several lines"])
def test_success_is_answered_only_after_the_log_is_on_disk(tmp_path: Path, name: str) -> None:
    """After the last fsync the power may go: nothing is lost."""
    stage = Stage(tmp_path, name)
    for seed in range(20):
        path = stage.fresh_copy()
        disk = PowerCutDisk(1 << 30, seed)
        stage.act(path, disk)
        disk.at_death()
        disk.bury()
        assert stage.read(path) == stage.after


def test_purged_content_is_in_no_file_after_any_death_that_left_it_purged(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "purge")
    for path, disk in stage.deaths(DyingDisk):
        stories.next_append_works(path)
        if SECRET.encode() not in path.read_bytes():
            for each in path.parent.rglob("*"):
                if each.is_file():
                    assert SECRET.encode() not in each.read_bytes(), (disk.died_at, each)
