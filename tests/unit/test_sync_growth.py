"""A transcript that is synced while it grows ends as one import of it does, and only what was
added to it is read."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.growing import Session, Source, check_sum, once, shape
from kit.seeds import shard, shards

Json = dict[str, Any]
SAMPLES = Path(__file__).resolve().parents[1] / "samples"
CLIENTS = ("claude-code", "codex", "pi", "gemini")
FILES = [
    str(path.relative_to(SAMPLES))
    for client in CLIENTS
    for path in sorted((SAMPLES / client).rglob("*.jsonl"))
]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 1)
    made = Source(tmp_path)
    yield made
    made.database.close()


@pytest.mark.parametrize("window", [None, 1, 3, 400], ids=lambda size: f"window {size}")
@pytest.mark.parametrize("name", FILES)
def test_after_each_half_and_whole_line(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, window: int | None
) -> None:
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", window or 400)
    records = 0
    for each in (SAMPLES / name).read_bytes().splitlines(keepends=True):
        source.add(each[: len(each) // 2])
        source.sync()
        source.add(each[len(each) // 2 :])
        records += len(source.sync())
        for bookmark in source.bookmarks() if window is None else ():
            bookmark.unlink()
    assert records
    source.end()
    assert shape(source.database) == once(source, tmp_path)


def grow_at_random(source: Source, seed: int) -> None:
    """Add a session piece by piece, and sync now and then."""
    chance = random.Random(seed)
    data = b"".join(Session(seed).lines)
    while data:
        size = chance.choice((1, 40, 200, 200, 1_000, 4_000))
        source.add(data[:size])
        data = data[size:]
        if chance.random() < 0.8:
            source.sync()


def check_random_session(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 1)
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", 1 + seed % 12)
    folder.mkdir()
    source = Source(folder)
    grow_at_random(source, seed)
    source.end()
    assert shape(source.database) == once(source, folder), f"seed {seed}"
    source.database.close()


@pytest.mark.parametrize("seed", [*range(40), 735])
def test_random_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    check_random_session(tmp_path / "s", monkeypatch, seed)


@pytest.mark.slow
@shards(40, 2_040)
def test_random_sessions_at_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    for seed in shard(first):
        check_random_session(tmp_path / f"s{seed}", monkeypatch, seed)


def chain(count: int, text: str = "words ", first: int = 0) -> bytes:
    """Lines of a talk of one user with one agent."""
    lines = []
    for number in range(first, first + count):
        role = "user" if number % 2 == 0 else "assistant"
        record = {
            "type": role, "uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": "s", "message": {"role": role, "id": f"m{number}", "content": [
                {"type": "text", "text": f"{number} {text * 40}"}]},
        }  # fmt: skip
        lines.append(ti.compact_json(record) + "\n")
    return "".join(lines).encode()


def overwrite(path: Path, begin: int, end: int) -> None:
    """Put other bytes there, as long, in the same file."""
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"?" * (end - begin))


@pytest.mark.parametrize("window", [10, 400])
def test_what_was_read_is_not_read_again(
    source: Source, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", window)
    source.add(chain(100))
    assert source.sync()[0]["added"] == 99
    size = source.file.stat().st_size
    overwrite(source.file, ti.BLANK_BYTES, size - ti.BLANK_BYTES)
    source.add(chain(2, first=100))
    (row,) = source.sync()
    assert (row["records"], row["added"], row["pending"], row["bad"]) == (3, 2, 1, 0)
    assert row["warnings"] == []
    kept = source.bookmarks()[0].stat().st_size
    for first in range(102, 140, 2):
        source.add(chain(2, first=first))
        (row,) = source.sync()
        assert (row["records"], row["added"], row["pending"], row["bad"]) == (3, 2, 1, 0)
    if window == 10:
        assert source.bookmarks()[0].stat().st_size < 1.1 * kept


def test_codex_goes_on_where_it_stopped(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", 10)

    def turns(first: int, count: int) -> bytes:
        lines = []
        for number in range(first, first + count):
            lines.append(("turn_context", {"turn_id": f"t{number}"}))
            for role, kind in (("user", "input_text"), ("assistant", "output_text")):
                content = [{"type": kind, "text": f"{role} {number} " + "words " * 40}]
                lines.append(
                    ("response_item", {"type": "message", "role": role, "content": content})
                )
        records = [ti.compact_json({"type": kind, "payload": said}) for kind, said in lines]
        return "\n".join(records).encode() + b"\n"

    source.add(b'{"type":"session_meta","payload":{"id":"s"}}\n' + turns(0, 50))
    assert source.sync()[0]["added"] == 100
    size = source.file.stat().st_size
    overwrite(source.file, ti.BLANK_BYTES, size - ti.BLANK_BYTES)
    for number in range(50, 60):
        source.add(turns(number, 1))
        (row,) = source.sync()
        assert (row["records"], row["added"], row["bad"]) == (3, 2, 0)
    texts = [each["text"].split(" ")[1] for each in source.database.run("context")]
    assert texts == [str(number // 2) for number in range(120)]
    rolled = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 2}}
    source.add(ti.compact_json(rolled).encode() + b"\n" + turns(70, 1))
    assert source.sync()[0]["bad"] == 0, "within what it keeps in mind"
    texts = [each["text"].split(" ")[1] for each in source.database.run("context")]
    assert texts == [str(number // 2) for number in range(116)] + ["70", "70"]
    rolled["payload"]["num_turns"] = 30  # type: ignore[index]
    source.add(ti.compact_json(rolled).encode() + b"\n" + turns(80, 1))
    assert source.sync()[0]["bad"] > 0, "it was read whole"


@pytest.mark.parametrize("where", ["begin", "end"])
def test_another_file_is_read_whole(source: Source, where: str) -> None:
    source.add(chain(100))
    source.sync()
    size = source.file.stat().st_size
    overwrite(source.file, *((0, 100) if where == "begin" else (size - 100, size)))
    source.add(b"\n" + chain(2, first=100))
    (row,) = source.sync()
    assert row["bad"] > 0
    assert row["records"] > 90


def test_a_file_that_shrank_or_was_replaced_is_read_whole(source: Source) -> None:
    source.add(chain(100))
    source.sync()
    data = source.file.read_bytes()
    source.file.write_bytes(data[: len(data) // 2])
    assert source.sync()[0]["known"] > 40
    copy = source.file.with_name("copy")
    copy.write_bytes(data + chain(1, first=100))
    copy.replace(source.file)
    (row,) = source.sync()
    assert (row["known"], row["added"]) == (99, 2)


@pytest.mark.parametrize("how", ["older", "other", "purged", "moved index"])
def test_a_bookmark_is_for_one_database(source: Source, tmp_path: Path, how: str) -> None:
    path = source.database.path
    source.add(chain(100))
    empty = timeline.Database(path)
    empty.run("create")
    before = Path(path).read_bytes()
    source.sync()
    if how == "purged":
        source.database.run("compact", {"purge": ["n5"]})
    elif how == "moved index":
        shutil.rmtree(f"{path}.index")
    else:
        source.database.close()
        Path(path).write_bytes(before)
        if how == "other":
            Path(path).unlink()
        source.database = timeline.Database(path, via="import")
    empty.close()
    source.add(chain(2, first=100))
    source.sync()
    source.end()
    texts = [row["text"] for row in source.database.run("context", {
        "timeline_id": source.database.run("list")[0]["timeline_id"]})]  # fmt: skip
    assert len(texts) == 102
    assert [text.split(" ")[0] for text in texts if text] == [
        str(number) for number in range(102) if how != "purged" or number != 4
    ]


def test_a_damaged_or_foreign_bookmark_is_not_used(source: Source, tmp_path: Path) -> None:
    import pickle

    source.add(chain(30))
    source.sync()
    (mark,) = source.bookmarks()
    good = mark.read_bytes()
    state = good.partition(b"\n")[2]

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/hostile",)

    hostile = pickle.dumps(Hostile())
    told = good.partition(b"\n")[0].replace(ti.sha256(state).encode(), ti.sha256(hostile).encode())
    bad = [b"", b"\n", b"{}\n", good[:-1], good[: len(good) // 2], told + b"\n" + hostile]
    bad += [
        good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        for at in range(0, len(good), len(good) // 40)
    ]
    for number, each in enumerate(bad):
        mark.write_bytes(each)
        source.add(chain(2, first=30 + 2 * number))
        (row,) = source.sync()
        assert row["added"] == 2, (number, row)
        assert row["records"] == 32 + 2 * number, "it was read whole"
    assert not (tmp_path / "hostile").exists()


def test_a_small_or_old_file_has_no_bookmark(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.add(chain(10))
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 1 << 20)
    source.sync()
    assert source.bookmarks() == []
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 1)
    source.add(chain(2, first=10))
    os.utime(source.file, (1_000_000, 1_000_000))
    source.sync()
    assert source.bookmarks() == []
    source.add(chain(2, first=12))
    source.sync()
    (mark,) = source.bookmarks()
    os.utime(mark, (1_000_000, 1_000_000))
    other = source.file.with_name("other.jsonl")
    other.write_bytes(chain(2))
    source.sync()
    assert mark not in source.bookmarks(), "kept for as long as it is of use"


def test_a_purge_forgets_bookmarks(source: Source) -> None:
    source.add(chain(10))
    source.sync()
    assert source.bookmarks()
    source.database.run("compact", {"purge": ["n9"]})
    assert source.bookmarks() == [], "a reader keeps what was said last"


def test_messages_wait_for_parents_that_are_not_written_yet(source: Source) -> None:
    lines = chain(8).splitlines(keepends=True)
    source.add(b"".join(lines[:3] + lines[5:]))
    (row,) = source.sync()
    assert (row["added"], row["pending"]) == (3, 3)
    assert row["warnings"] == []
    source.add(lines[3])
    (row,) = source.sync()
    assert (row["added"], row["pending"]) == (0, 4), "nothing follows this answer in the file"
    source.add(lines[4])
    (row,) = source.sync()
    assert (row["added"], row["pending"]) == (5, 0)
    source.end()
    texts = [row["text"].split(" ")[0] for row in source.database.run("context")]
    assert texts == list("01234567")


def test_a_gap_is_declared_at_the_end_alone(source: Source) -> None:
    lines = chain(6).splitlines(keepends=True)
    source.add(b"".join(lines[:2] + lines[3:]))
    assert source.sync()[0]["pending"] == 3
    source.end()
    texts = [row["text"].split(" ")[0] for row in source.database.run("context")]
    assert texts == list("01345")


@pytest.mark.parametrize("seconds", [0.0, 100.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_hurried_import_goes_on_where_it_stopped(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, seconds: float
) -> None:
    monkeypatch.setattr(ti, "SLICE_BYTES", 700)
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", 3)
    source.add(b"".join(Session(seed).lines))
    calls, more = 0, True
    while more:
        result = ti.import_session(source.database, str(source.file), hold=False, seconds=seconds)
        more = result["more"]
        for row in result["timelines"]:
            check_sum(row)
        calls += 1
        assert calls < 200
    assert (calls > 3) == (seconds == 0)
    assert shape(source.database) == once(source, tmp_path)


def test_a_hurried_import_of_an_old_file_ends(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy keeps the time of what it was made from, and clocks differ."""
    monkeypatch.setattr(ti, "SLICE_BYTES", 20_000)
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 256 << 10)
    source.add(chain(400))
    os.utime(source.file, (1_000_000, 1_000_000))
    added, calls, more = 0, 0, True
    while more:
        result = ti.import_session(source.database, str(source.file), hold=False, seconds=0)
        (row,) = result["timelines"]
        added, calls, more = added + row["added"], calls + 1, result["more"]
        assert row["added"] > 0
        assert row["records"] < 200, "no call begins anew"
    assert added == 400
    assert calls > 3


def test_what_cannot_be_settled_in_a_hurry_is_left_to_sync(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ti, "WHOLE_BYTES_MAX", 1_000)
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", 10)
    source.add(chain(100))
    ti.import_session(source.database, str(source.file), hold=True, seconds=9)
    back = chain(1, first=200).replace(b'"u199"', b'"u3"')
    source.add(back)
    with pytest.raises(ti.Unreadable, match="run `tl sync`"):
        ti.import_session(source.database, str(source.file), hold=True, seconds=9)
    (row,) = source.sync()
    assert (row["added"], row["known"]) == (2, 99)
