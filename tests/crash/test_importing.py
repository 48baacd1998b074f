"""Imports: many lines in one transaction, which fail, die or lose the disk as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.disks import Death, DyingDisk, FailingSync, FullDisk
from kit.stories import Story


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


@pytest.fixture
def path(story: Story, tmp_path: Path) -> Path:
    stories.place(tmp_path / "t.db", story.log)
    return tmp_path / "t.db"


def import_chain(database: timeline.Database, key: str = "imported") -> Any:
    """A new timeline of twelve messages, made as the programs make it."""
    return database.again_if_unfit(lambda: import_once(database, key))


def import_once(database: timeline.Database, key: str) -> Any:
    with database.importing(key) as importing:
        if importing.earlier is not None:
            return importing.earlier
        tl = importing.create("imported", "scalar4", {"format": "test"})
        node = 0
        for number in range(12):
            text = f"imported {number} " * 9
            identities = [f"test:{number}"]
            if importing.find(identities[0]):
                node = importing.find(identities[0])[0]
                continue
            node = importing.append(tl, node, "user", text, 1, {}, identities=identities)
            importing.move(tl, "main", node)
        result = {"timelines": [f"tl{tl}"]}
        importing.remember(result)
        return result


def texts(path: Path, tl: str) -> list[str]:
    return [row["text"] for row in stories.run(path, "context", timeline_id=tl)]


def test_death_at_any_system_call_of_an_import_leaves_all_or_nothing(
    path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch)
    stories.checkpoint_now(path)
    folder = path.parent
    whole: list[str] = []
    writes: list[int] = []
    for part in (0.0, 0.6):
        for at in list(writes) if part else range(1, 1000):
            copy = folder / "copy" / "t.db"
            shutil.rmtree(copy.parent, ignore_errors=True)
            copy.parent.mkdir()
            stories.place(copy, story.log, Path(f"{path}.index"))
            disk = DyingDisk(at, part)
            try:
                import_chain(stories.open_database(copy, disk))
            except Death:
                pass
            disk.bury()
            if stories.read_state(copy) != story.states[-1]:
                assert len(texts(copy, "tl2")) == 12
            database = stories.open_database(copy)
            assert import_chain(database) == {"timelines": ["tl2"]}
            assert import_chain(database) == {"timelines": ["tl2"]}
            database.close()
            whole = whole or texts(copy, "tl2")
            assert texts(copy, "tl2") == whole
            assert stories.doctor(copy)["transactions"] == story.seq + 1
            if not disk.is_dead:
                break
            if disk.died_at.startswith("write "):
                writes.append(at)
        assert at > 10
    assert writes


def test_import_refused_for_its_key_lets_go_of_the_lock(path: Path, story: Story) -> None:
    database = stories.open_database(path)
    with pytest.raises(timeline.Refused, match="belongs to create"):
        import_chain(database, "made")
    answer = database.run("append", {"role": "user", "text": "goes on"})
    assert answer == {"node": f"n{story.nodes(story.seq) + 1}"}
    stories.next_append_works(path)
    database.close()


class Interrupted(Exception):
    """Something goes wrong in the reader of the transcript."""


@pytest.mark.parametrize("recorded", [0, 1, 5])
@pytest.mark.parametrize("how", ["reader fails", "record does not fit"])
def test_import_left_by_an_exception_leaves_nothing(
    path: Path, story: Story, recorded: int, how: str
) -> None:
    database = stories.open_database(path)
    for _ in range(2):
        with pytest.raises((Interrupted, KeyError)), database.importing() as importing:
            node = 0
            for number in range(recorded):
                node = importing.append(1, node, "user", f"{number}", 1, {})
            if how == "reader fails":
                raise Interrupted
            importing.move(0, "no such branch", 1)
        assert path.read_bytes() == story.log
        assert stories.state_of(database) == story.states[-1]
    answer = database.run("append", {"role": "user", "text": "goes on"})
    assert answer == {"node": f"n{story.nodes(story.seq) + 1}"}
    database.close()
    assert stories.doctor(path)["ok"]
    stories.next_append_works(path)


@pytest.mark.parametrize("fault", ["full", "fsync", "fsync and truncate"])
def test_import_on_a_failing_disk_stores_nothing_and_works_later(
    path: Path, story: Story, fault: str
) -> None:
    def is_log(path: str) -> bool:
        return path.endswith("t.db")

    disk: FullDisk | FailingSync
    if fault == "full":
        disk = FullDisk(700, is_log)
    else:
        disk = FailingSync(1, is_log, truncates=fault == "fsync")
    database = stories.open_database(path, disk)
    with pytest.raises(timeline.WriteFailed) as caught:
        import_chain(database)
    assert ("state unknown" in str(caught.value)) == (fault == "fsync and truncate")
    if fault != "fsync and truncate":
        assert path.read_bytes() == story.log
        assert stories.reading(database) == story.readings[-1]
    if isinstance(disk, FullDisk):
        disk.room = 1 << 20
    assert import_chain(database) == {"timelines": ["tl2"]}
    assert len(texts(path, "tl2")) == 12
    database.close()
    assert path.read_bytes().count(b'"key":"imported"') == 1
    assert stories.doctor(path)["ok"]


def test_dry_run_writes_nothing_and_leaves_the_state_as_it_was(path: Path, story: Story) -> None:
    database = stories.open_database(path)
    with database.importing(dry_run=True) as importing:
        tl = importing.create("not really", "scalar4", {})
        node = importing.append(tl, 0, "user", "x", 1, {}, identities=["test:1"])
        assert importing.find("test:1") == [node]
    assert path.read_bytes() == story.log
    assert stories.reading(database) == story.readings[-1]
    database.close()


def test_transactions_between_commits_are_stored_one_by_one(path: Path, story: Story) -> None:
    database = stories.open_database(path)
    with pytest.raises(Interrupted), database.importing() as importing:
        node = 0
        for number in range(4):
            node = importing.append(1, node, "user", f"{number}", 1, {})
            if number == 1:
                importing.commit()
        raise Interrupted
    assert stories.doctor(path)["nodes"] == story.nodes(story.seq) + 2
    assert stories.doctor(path)["transactions"] == story.seq + 1
    database.run("append", {"role": "user", "text": "goes on"})
    database.close()
    assert stories.doctor(path)["ok"]
