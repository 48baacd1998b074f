"""A damaged, old, foreign or missing index: the answers stay those of the log."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.disks import FullDisk

SLOW = pytest.mark.slow
PAGE = 4096
KEYED = 140  # messages with keys: their rows take several pages


def keyed(first: int, last: int) -> tuple[stories.Step, ...]:
    return tuple(
        stories.append(f"message {i}", "user", idempotency_key=f"key {i}")
        for i in range(first, last + 1)
    )


class Indexed:
    """A log with two checkpoints of one build: what the index was at each, where the log was."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.db"
        self.path.write_bytes(stories.header())
        database = stories.open_database(self.path)
        for name, args in (*stories.EVERYTHING, *keyed(1, KEYED // 2)):
            database.run(name, args)
        with database.writing() as store:
            store.checkpoint()
        self.old = stories.index_files(self.path)
        self.old_size = self.path.stat().st_size
        for name, args in keyed(KEYED // 2 + 1, KEYED):
            database.run(name, args)
        with database.writing() as store:
            store.checkpoint()
        self.new = stories.index_files(self.path)
        self.new_size = self.path.stat().st_size
        for name, args in keyed(KEYED + 1, KEYED + 3):  # lies behind the index
            database.run(name, args)
        database.close()
        self.log = self.path.read_bytes()
        stories.clear(self.path)
        self.path.write_bytes(self.log)
        self.state = stories.read_state(self.path)
        self.reading = stories.read_everything(self.path)
        self.nodes = len(self.reading["nodes"])
        self.number = {  # key -> node
            f"key {i}": f"n{self.nodes - KEYED - 3 + i}" for i in range(1, KEYED + 4)
        }

    def place(self, path: Path, files: dict[str, bytes]) -> None:
        stories.place(path, self.log)
        stories.place_index(path, files)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    return Indexed(tmp_path_factory.mktemp("indexed"))


def check_answers(indexed: Indexed, path: Path, rng: random.Random) -> None:
    """State, texts, keys and the next append are those of the log, whatever the index was."""
    database = stories.open_database(path)
    keys = rng.sample(sorted(indexed.number), 12)
    for key in keys:
        node = database.run("node", {"node": indexed.number[key]})
        assert node["text"] == f"message {key[4:]}"
        again = database.run("append", {"role": "user", "text": "again", "idempotency_key": key})
        assert again == {"node": indexed.number[key]}, key
    assert stories.state_of(database) == indexed.state
    assert path.read_bytes() == indexed.log
    assert [row["text"] for row in database.run("context", {"last": 30})] == [
        node["text"] for node in indexed.reading["nodes"][-30:]
    ]
    added = database.run("append", {"role": "user", "text": "more", "idempotency_key": "more"})
    assert added == {"node": f"n{indexed.nodes + 1}"}
    database.close()
    again = stories.run(path, "append", role="user", text="more", idempotency_key="more")
    assert again == added
    assert stories.run(path, "node", node=added["node"])["text"] == "more"


def test_old_index_is_caught_up(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for files in (indexed.old, indexed.new):
        indexed.place(path, files)
        assert stories.run_where(path) == "behind"
        assert stories.read_everything(path) == indexed.reading
        assert stories.doctor(path)["ok"]
        check_answers(indexed, path, random.Random(1))


# --- flips --------------------------------------------------------------------------------------


def flip_of(indexed: Indexed, name: str, limit: int, seed: int) -> dict[str, bytes]:
    """The index with one bit turned over in the first `limit` bytes of a file."""
    rng = random.Random(f"{name} {seed}")
    place = rng.randrange(min(limit, len(indexed.new[name])))
    return {**indexed.new, name: stories.flipped(indexed.new[name], place, 1 << rng.randrange(8))}


WHERE = [("state", 1 << 30), ("rows", 64), ("lookup", 64)]


def check_header_flip(indexed: Indexed, path: Path, name: str, limit: int, seed: int) -> None:
    indexed.place(path, flip_of(indexed, name, limit, seed))
    check_answers(indexed, path, random.Random(seed))


@pytest.mark.parametrize(("name", "limit"), WHERE)
@pytest.mark.parametrize("seed", range(6))
def test_flip_in_state_or_a_header_changes_no_answer(
    indexed: Indexed, tmp_path: Path, name: str, limit: int, seed: int
) -> None:
    check_header_flip(indexed, tmp_path / "t.db", name, limit, seed)


@SLOW
@pytest.mark.parametrize(("name", "limit"), WHERE)
def test_flip_in_state_or_a_header_changes_no_answer_in_many_places(
    indexed: Indexed, tmp_path: Path, name: str, limit: int
) -> None:
    for seed in range(6, 106):
        check_header_flip(indexed, tmp_path / "t.db", name, limit, seed)


def test_flip_in_state_or_a_header_is_no_worse_than_no_index(
    indexed: Indexed, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    for name, limit in WHERE:
        indexed.place(path, flip_of(indexed, name, limit, 1))
        assert stories.read_everything(path) == indexed.reading, name


def check_row_flip(indexed: Indexed, path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = indexed.new["rows"]
    place = rng.randrange(64, len(rows))
    node = place // 64
    indexed.place(
        path, {**indexed.new, "rows": stories.flipped(rows, place, 1 << rng.randrange(8))}
    )
    report = stories.doctor(path)
    if report["ok"]:  # it met the row while opening the file, and has dropped or mended the index
        mended = stories.index_files(path)["rows"][64:].startswith(rows[64:])
        assert mended or stories.run_where(path) == "unfit"
    else:
        assert "rows" in report["problems"][0]["what"]
    shown = stories.run(path, "node", node=f"n{node}", blocks=True)
    assert shown == indexed.reading["nodes"][node - 1]
    assert stories.read_everything(path) == indexed.reading
    check_answers(indexed, path, rng)


@pytest.mark.parametrize("seed", range(5))
def test_flip_in_a_row_changes_no_answer_about_its_node(
    indexed: Indexed, tmp_path: Path, seed: int
) -> None:
    check_row_flip(indexed, tmp_path / "t.db", seed)


@SLOW
def test_flip_in_a_row_changes_no_answer_about_its_node_in_many_places(
    indexed: Indexed, tmp_path: Path
) -> None:
    for seed in range(5, 305):
        check_row_flip(indexed, tmp_path / "t.db", seed)


@pytest.mark.parametrize("name", ["context", "budget", "search", "append", "fork", "summarize"])
def test_rotten_row_is_passed_over_by_every_command(
    indexed: Indexed, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "t.db"
    nodes = indexed.nodes
    args: dict[str, Any] = {
        "context": {},
        "budget": {"max_tokens": 500},
        "search": {"text": "message", "limit": 1000},
        "append": {"role": "user", "text": "x"},
        "fork": {"node": f"n{nodes - 4}", "name": "new"},
        "summarize": {"from": f"n{nodes - 9}", "to": f"n{nodes - 4}", "summary": "s"},
    }[name]
    stories.place(path, indexed.log)
    expected = stories.run(path, name, **args)
    lines = path.read_bytes().count(b"\n")
    for node in (1, 2, nodes - 10, nodes - 4, nodes - 3):
        rows = stories.flipped(indexed.new["rows"], node * 64 + 3, 1)
        indexed.place(path, {**indexed.new, "rows": rows})
        assert stories.run(path, name, **args) == expected, node
        assert path.read_bytes().count(b"\n") == lines, "it ran twice"


def test_node_never_lists_a_child_that_is_none(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    child = indexed.nodes - 20
    parent = int(indexed.reading["nodes"][child - 1]["parent"][1:])
    for bit in range(5):
        other = parent ^ 1 << bit
        if not 0 < other < child:
            continue
        rows = stories.flipped(indexed.new["rows"], child * 64 + 16, 1 << bit)
        indexed.place(path, {**indexed.new, "rows": rows})
        shown = stories.run(path, "node", node=f"n{other}")
        assert shown["children"] == indexed.reading["nodes"][other - 1]["children"]


def used_slots(indexed: Indexed) -> list[int]:
    lookup = indexed.new["lookup"]
    return [at for at in range(64, len(lookup), 16) if any(lookup[at : at + 16])]


def check_slot_flip(indexed: Indexed, path: Path, seed: int) -> None:
    """A bit of a slot, used or not: every key still finds its message."""
    rng = random.Random(seed)
    size = len(indexed.new["lookup"])
    slot = rng.choice((rng.choice(used_slots(indexed)), rng.randrange(64, size, 16)))
    place = slot + rng.randrange(16)
    lookup = stories.flipped(indexed.new["lookup"], place, 1 << rng.randrange(8))
    indexed.place(path, {**indexed.new, "lookup": lookup})
    database = stories.open_database(path)
    for key, node in indexed.number.items():
        again = database.run("append", {"role": "user", "text": "again", "idempotency_key": key})
        assert again == {"node": node}, key
    database.close()
    assert path.read_bytes() == indexed.log


@pytest.mark.parametrize("seed", range(6))
def test_flip_in_a_lookup_slot_makes_no_second_message(
    indexed: Indexed, tmp_path: Path, seed: int
) -> None:
    check_slot_flip(indexed, tmp_path / "t.db", seed)


@SLOW
def test_flip_in_a_lookup_slot_makes_no_second_message_in_many_places(
    indexed: Indexed, tmp_path: Path
) -> None:
    for seed in range(6, 206):
        check_slot_flip(indexed, tmp_path / "t.db", seed)


def test_flip_in_a_used_lookup_slot_is_reported_by_the_doctor(
    indexed: Indexed, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    for number, slot in enumerate(used_slots(indexed)[::10]):
        lookup = stories.flipped(indexed.new["lookup"], slot + number % 16, 4)
        indexed.place(path, {**indexed.new, "lookup": lookup})
        assert not stories.doctor(path)["ok"], slot


def test_lookup_full_of_garbage_stops_no_writer(
    indexed: Indexed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an intact header, and no slot left empty."""
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    lookup = indexed.new["lookup"]
    garbage = lookup[:64] + random.Random(1).randbytes(len(lookup) - 64)
    indexed.place(path, {**indexed.new, "lookup": garbage})
    database = stories.open_database(path)
    for number in range(12):
        answer = database.run("append", {"role": "user", "text": f"{number}"})
        assert answer == {"node": f"n{indexed.nodes + number + 1}"}
    for key, node in list(indexed.number.items())[::9]:
        again = database.run("append", {"role": "user", "text": "again", "idempotency_key": key})
        assert again == {"node": node}
    database.close()
    assert stories.doctor(path)["ok"]


# --- mixes of old and new -----------------------------------------------------------------------


def mixed_pages(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """A file some of whose pages were written before the power went, some not."""
    size = rng.choice((len(old), len(new)))
    pages = [
        rng.choice((old, new))[at : at + PAGE].ljust(min(PAGE, size - at), b"\0")[: size - at]
        for at in range(0, size, PAGE)
    ]
    return b"".join(pages)


def check_mix(indexed: Indexed, path: Path, seed: int) -> None:
    """The state file is replaced after rows and lookup are on disk, so it is never newer."""
    rng = random.Random(seed)
    files = {
        "state": indexed.old["state"],
        "rows": mixed_pages(indexed.old["rows"], indexed.new["rows"], rng),
        "lookup": mixed_pages(indexed.old["lookup"], indexed.new["lookup"], rng),
    }
    indexed.place(path, files)
    if seed % 3 == 0:  # the log may have lost what no state file speaks of
        check_shorter_log(indexed, path, rng)
        return
    check_answers(indexed, path, rng)


def check_shorter_log(indexed: Indexed, path: Path, rng: random.Random) -> None:
    """A backup of the log that lies between the two checkpoints."""
    ends = [end for _, end in stories.lines_of(indexed.log) if end >= indexed.old_size]
    cut = rng.choice(ends[:-1])
    path.write_bytes(indexed.log[:cut])
    lines = indexed.log[:cut].count(b"\n")
    database = stories.open_database(path)
    known = 0
    for key, node in sorted(indexed.number.items()):
        if int(node[1:]) > lines:
            continue
        args = {"role": "user", "text": f"message {key[4:]}", "idempotency_key": key}
        known += database.run("append", args) == {"node": node}
    there = indexed.log[:cut].count(b'"key":"key ')
    assert known >= there
    assert path.read_bytes().startswith(indexed.log[:cut])
    texts = [row["text"] for row in database.run("context", {"branch": "main"})]
    assert len(texts) == len(set(texts)), "a message is stored twice"
    database.close()
    assert stories.doctor(path)["ok"]


def test_indexes_differ_in_several_pages(indexed: Indexed) -> None:
    assert len(indexed.new["rows"]) > len(indexed.old["rows"]) + PAGE
    assert indexed.old["lookup"] != indexed.new["lookup"]
    assert indexed.old["rows"] == indexed.new["rows"][: len(indexed.old["rows"])]


@pytest.mark.parametrize("seed", range(9))
def test_any_mix_of_old_and_new_index_pages_gives_the_same_answers(
    indexed: Indexed, tmp_path: Path, seed: int
) -> None:
    check_mix(indexed, tmp_path / "t.db", seed)


@SLOW
@pytest.mark.parametrize("first", range(9, 1509, 150))
def test_any_mix_of_old_and_new_index_pages_gives_the_same_answers_in_many_ways(
    indexed: Indexed, tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 150):
        check_mix(indexed, tmp_path / "t.db", seed)


def test_files_of_two_builds_never_mix(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    indexed.place(path, {})
    shutil.rmtree(f"{path}.index")
    stories.checkpoint_now(path)
    rebuilt = stories.index_files(path)
    assert rebuilt.keys() == indexed.new.keys()
    for choice in range(1, 7):
        files = {
            name: (rebuilt if choice >> bit & 1 else indexed.new)[name]
            for bit, name in enumerate(sorted(rebuilt))
        }
        indexed.place(path, files)
        check_answers(indexed, path, random.Random(choice))


@pytest.mark.parametrize("missing", ["state", "rows", "lookup"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
def test_missing_or_short_index_file_changes_no_answer(
    indexed: Indexed, tmp_path: Path, missing: str, how: str
) -> None:
    files = dict(indexed.new)
    data = files.pop(missing)
    if how != "gone":
        files[missing] = b"" if how == "empty" else data[: len(data) // 2]
    indexed.place(tmp_path / "t.db", files)
    check_answers(indexed, tmp_path / "t.db", random.Random(3))


def test_garbage_in_the_index_folder_changes_no_answer(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    rng = random.Random(5)
    for size in (1, 64, 5000):
        files = {name: rng.randbytes(size) for name in indexed.new}
        indexed.place(path, files)
        check_answers(indexed, path, rng)
    stories.place(path, indexed.log)
    Path(f"{path}.index").write_text("a file where a folder should be", encoding="utf-8")
    check_answers(indexed, path, rng)
    os.remove(f"{path}.index")


# --- indexes of another log, logs of another time -----------------------------------------------


def test_index_of_another_database_is_rejected(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    other = tmp_path / "other.db"
    # As long, and alike but for the log_id.
    log = indexed.log.replace(stories.LOG_ID.encode(), b"07he" * 8)
    other.write_bytes(stories.header("0dd5" * 8))
    database = stories.open_database(other)
    for name, args in (*stories.EVERYTHING, *keyed(1, KEYED)):
        database.run(name, args)
    database.close()
    stories.checkpoint_now(other)
    assert len(log) == len(indexed.log)
    indexed.place(path, stories.index_files(other))
    assert stories.run_where(path) == "unfit"
    check_answers(indexed, path, random.Random(1))


def test_copied_database_keeps_its_index_and_its_own_way(indexed: Indexed, tmp_path: Path) -> None:
    path, other = tmp_path / "t.db", tmp_path / "copy.db"
    indexed.place(path, indexed.new)
    indexed.place(other, indexed.new)
    for number in range(3):
        stories.run(path, "append", role="user", text=f"here {number}")
        stories.run(other, "append", role="user", text=f"there, longer {number}")
    stories.checkpoint_now(path)
    # The index of the one beside the log of the other: same log_id, another history.
    stories.place_index(other, stories.index_files(path))
    assert stories.run(other, "context", last=1)[0]["text"] == "there, longer 2"
    assert stories.doctor(other)["ok"]
    assert stories.next_append_works(other) == indexed.nodes + 4


def test_log_restored_from_a_backup_is_read_and_the_index_rejected(
    indexed: Indexed, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    for cut in (indexed.old_size, stories.lines_of(indexed.log)[40][1]):
        indexed.place(path, indexed.new)
        path.write_bytes(indexed.log[:cut])
        said: list[str] = []
        database = timeline.Database(str(path), clock=stories.Clock(), notice=said.append)
        nodes = len(database.run("context", {"branch": "main"}))
        database.close()
        assert nodes > 0
        assert len(said) == 1
        assert "backup" in said[0]
        stories.clear(tmp_path / "plain.db")
        (tmp_path / "plain.db").write_bytes(indexed.log[:cut])
        assert stories.read_state(path) == stories.read_state(tmp_path / "plain.db")
        assert path.read_bytes() == indexed.log[:cut]
        stories.next_append_works(path)
        stories.next_append_works(path)


def test_backup_restored_under_a_resident_process_is_noticed(
    indexed: Indexed, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    ends = [end for _, end in stories.lines_of(indexed.log)]
    for grown in (False, True):
        indexed.place(path, indexed.new)
        database = stories.open_database(path)
        assert stories.state_of(database) == indexed.state
        with path.open("r+b") as file:  # as `cp` does it: the same inode
            file.truncate(ends[-20])
        if grown:  # and another process goes on with it, beyond where this one has read to
            other = stories.open_database(path)
            while path.stat().st_size <= len(indexed.log):
                other.run("append", {"role": "user", "text": "another history " * 9})
            other.close()
        restored = path.read_bytes()
        assert stories.state_of(database) == stories.read_state(path)
        database.run("append", {"role": "user", "text": "goes on"})
        assert path.read_bytes().startswith(restored)
        assert not Path(f"{path}.torn").exists()
        database.close()
        assert stories.doctor(path)["ok"]


def test_backup_grown_to_the_same_size_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    for name, args in stories.messages(5):
        stories.run(path, name, **args)
    backup = path.read_bytes()
    stories.run(path, "append", role="user", text="one way")
    database = stories.open_database(path)
    assert database.run("context", {"last": 1})[0]["text"] == "one way"
    path.write_bytes(backup)
    stories.run(path, "append", role="user", text="another")
    assert len(path.read_bytes()) == database.store.end
    database.run("append", {"role": "user", "text": "goes on"})
    database.close()
    assert stories.doctor(path)["ok"]
    texts = [row["text"] for row in stories.run(path, "context", last=2)]
    assert texts == ["another", "goes on"]


def test_log_cut_below_its_index_is_damage_and_not_a_torn_tail(
    indexed: Indexed, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    for files, size in ((indexed.old, indexed.old_size), (indexed.new, indexed.new_size)):
        start, end = next(
            (low, high) for low, high in stories.lines_of(indexed.log) if high == size
        )
        indexed.place(path, files)
        path.write_bytes(indexed.log[: end - 5])
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, "append", role="user", text="x")
        assert caught.value.data["byte"] == start
        assert path.read_bytes() == indexed.log[: end - 5]
        report = stories.doctor(path)
        assert not report["ok"]
        assert report["problems"][0]["byte"] == start


def test_log_cut_in_the_middle_of_its_index_lines_stays_damage_when_rows_are_rotten(
    indexed: Indexed, tmp_path: Path
) -> None:
    """Dropping an index must not forget what it knew of the log's length."""
    path = tmp_path / "t.db"
    rows = stories.flipped(indexed.new["rows"], 64 * 3)
    indexed.place(path, {**indexed.new, "rows": rows})
    assert stories.run(path, "node", node="n3") == indexed.reading["nodes"][2]
    path.write_bytes(indexed.log[: indexed.new_size - 5])
    with pytest.raises(timeline.Corrupt):
        stories.run(path, "append", role="user", text="x")


# --- an index that cannot be written ------------------------------------------------------------


def in_index(path: str) -> bool:
    return ".index" in path


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("room", [0, 64, 3000])
def test_index_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, room: int
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    disk = FullDisk(room, in_index, error)
    database = stories.open_database(path, disk)
    for number, (name, args) in enumerate((("create", {}), *keyed(1, 40))):
        database.run(name, args)
        if number == 30:
            disk.room = 1 << 30
    database.close()
    assert disk.refused
    assert stories.doctor(path)["ok"]
    database = stories.open_database(path, FullDisk(0, in_index, error))
    assert len(database.run("context")) == 40
    for number in range(1, 41):
        args = {"role": "user", "text": "x", "idempotency_key": f"key {number}"}
        assert database.run("append", args) == {"node": f"n{number}"}
    database.close()


def test_checkpoint_works_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    disk = FullDisk(0, in_index)
    database = stories.open_database(path, disk)
    for name, args in (("create", {}), *keyed(1, 20)):
        database.run(name, args)
    assert stories.run_where(path) == "absent"
    disk.room = 1 << 30
    for name, args in keyed(21, 100):
        database.run(name, args)
    database.close()
    assert stories.run_where(path) in ("fresh", "behind")
    assert stories.doctor(path)["ok"]


def test_rotten_row_on_a_full_disk_changes_no_answer(indexed: Indexed, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    rows = stories.flipped(indexed.new["rows"], 64 * 3)
    indexed.place(path, {**indexed.new, "rows": rows})
    database = stories.open_database(path, FullDisk(0, in_index))
    assert database.run("node", {"node": "n3"}) == indexed.reading["nodes"][2]
    assert stories.reading(database) == indexed.reading
    database.close()


@pytest.mark.parametrize("what", ["folder", "state", "rows", "lookup"])
def test_index_deleted_under_a_resident_process_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    database = stories.open_database(path)
    for name, args in (("create", {}), *keyed(1, 20)):
        database.run(name, args)
    if what == "folder":
        shutil.rmtree(f"{path}.index")
    else:
        os.remove(f"{path}.index/{what}")
    for name, args in keyed(21, 60):
        database.run(name, args)
    assert stories.run_where(path) in ("fresh", "behind")
    assert len(database.run("context")) == 60
    database.close()
    assert stories.doctor(path)["ok"]
    for number in range(1, 61):
        key = f"key {number}"
        again = stories.run(path, "append", role="user", text="x", idempotency_key=key)
        assert again == {"node": f"n{number}"}


def test_two_resident_processes_share_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories.small_checkpoints(monkeypatch)
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    stories.run(path, "create")
    databases = [stories.open_database(path) for _ in range(3)]
    for number, (name, args) in enumerate(keyed(1, 120)):
        assert databases[number % 7 % 3].run(name, args) == {"node": f"n{number + 1}"}
        if number % 25 == 24:
            assert stories.doctor(path)["ok"], number
    states = {stories.state_of(database) for database in databases}
    assert len(states) == 1
    for database in databases:
        database.close()
    shutil.rmtree(f"{path}.index")
    assert stories.read_state(path) in states
