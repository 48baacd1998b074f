"""What an import keeps from others: the lock while it reads, memory and disk for hostile files."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.transcripts import CLAUDE, SAMPLES

FILES = [CLAUDE / "compact-twice.jsonl", CLAUDE / "damaged.jsonl"]
FILES += sorted((SAMPLES / "messages").glob("*.jsonl"))[:1]


@pytest.fixture
def db(tmp_path: Path) -> timeline.Database:
    database = timeline.Database(str(tmp_path / "t.json"))
    database.run("create")
    return database


class Neighbour:
    """Another process, which must get its turn whenever `writes` is called."""

    def __init__(self, path: str) -> None:
        self.database = timeline.Database(path, wait_s=0)
        self.turns = 0

    def writes(self) -> None:
        self.database.run("append", {"role": "user", "text": "me too", "timeline_id": "tl0"})
        self.turns += 1


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Neighbour], None]:
    """Lets a neighbour write before each call of a method of `Lines`."""

    def watch(method: str, neighbour: Neighbour) -> None:
        whole: Any = getattr(ti.Lines, method)

        def call(lines: ti.Lines, *arguments: Any) -> Any:
            neighbour.writes()
            return whole(lines, *arguments)

        monkeypatch.setattr(ti.Lines, method, call)

    return watch


EXPORT = SAMPLES / "chatgpt" / "conversations.json"


@pytest.mark.parametrize("key", [None, "k"])
def test_nobody_waits_while_an_export_is_read_or_compared(
    db: timeline.Database, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    neighbour = Neighbour(db.path)
    decode = ti._ChatgptTalk._take

    def take(*arguments: Any) -> Any:
        neighbour.writes()
        return decode(*arguments)

    monkeypatch.setattr(ti._ChatgptTalk, "_take", take)
    rows = ti.import_paths(db, [str(EXPORT)], key=key)["timelines"]
    assert neighbour.turns == sum(row["records"] for row in rows) == 17
    content = ti._ChatgptTalk.content

    def compare(*arguments: Any) -> Any:
        neighbour.writes()
        return content(*arguments)

    monkeypatch.setattr(ti._ChatgptTalk, "content", compare)
    rows = ti.import_paths(db, [str(EXPORT)], key=key and "other")["timelines"]
    assert sum(row["known"] for row in rows) == 12 and db.run("doctor")["ok"]
    assert neighbour.turns > 17 + 17


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nobody_waits_while_lines_are_read(
    db: timeline.Database, watched: Any, path: Path, key: str | None
) -> None:
    neighbour = Neighbour(db.path)
    watched("_read_line", neighbour)
    (row,) = ti.import_paths(db, [str(path)], key=key)["timelines"]
    assert row["added"] > 0
    assert neighbour.turns > row["records"]
    assert db.run("doctor")["ok"]


def test_nobody_waits_while_known_messages_are_compared(
    db: timeline.Database, watched: Any
) -> None:
    path = str(CLAUDE / "compact-twice.jsonl")
    ti.import_paths(db, [path])
    neighbour = Neighbour(db.path)
    watched("at", neighbour)
    (row,) = ti.import_paths(db, [path])["timelines"]
    assert (row["added"], row["changed"]) == (0, 0)
    assert neighbour.turns >= row["known"] > 0


def test_what_others_write_meanwhile_is_no_part_of_the_import(
    db: timeline.Database, watched: Any, tmp_path: Path
) -> None:
    quiet = timeline.Database(str(tmp_path / "quiet.json"))
    path = str(CLAUDE / "compact-twice.jsonl")
    expected = ti.import_paths(quiet, [path])["timelines"][0]
    watched("_read_line", Neighbour(db.path))
    row = ti.import_paths(db, [path])["timelines"][0]
    assert {**row, "timeline_id": "tl0"} == expected

    def talk(database: timeline.Database, tl: str) -> list[str]:
        return [each["text"] for each in database.run("context", {"timeline_id": tl})]

    assert talk(db, row["timeline_id"]) == talk(quiet, "tl0")


def test_a_file_of_blank_lines_holds_nothing_and_is_listed(
    db: timeline.Database, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "talk.jsonl").write_bytes(b'{"role":"user","text":"hi"}\n' + b"\r\n\n" * 9)
    with zipfile.ZipFile(tmp_path / "in" / "x.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("blank.jsonl", b"\n" * 1_000_000)
    result = ti.import_paths(db, [str(tmp_path / "in")])
    assert [(row["records"], row["added"]) for row in result["timelines"]] == [(1, 1)]
    assert [each["why"] for each in result["unrecognized"]] == ["no JSON"]


@pytest.mark.parametrize("gap", [0, 1, 2, 4_094, 4_095, 4_096, 4_097, 8_192, 8_193, 9_999])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_count_as_lines_and_move_nothing(gap: int, end: bytes) -> None:
    data = b'{"a":1}' + end + gap * end + b'{"b":2}\n \n' + gap * end + b"\r{"
    lines = ti.Lines(io.BytesIO(data), lambda _: True)
    found = list(lines)
    assert [each.line for each in found] == [1, gap + 2, 2 * gap + 4]
    assert [each.value for each in found] == [{"a": 1}, {"b": 2}, None]
    for each in found[:2]:
        assert lines.at(each.offset, each.index) == each.value
    assert data[found[2].offset :] == b"\r{"


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_is_taken_only_once_everything_is_in(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind the first file: the same request again brings in the rest."""
    paths = [str(each) for each in FILES]
    bring_in = ti._bring_in

    def dying(*arguments: Any) -> Any:
        if arguments[3].path == paths[1]:
            raise KeyboardInterrupt
        return bring_in(*arguments)

    monkeypatch.setattr(ti, "_bring_in", dying)
    with pytest.raises(KeyboardInterrupt):
        ti.import_paths(db, paths, key="k")
    monkeypatch.undo()
    first = ti.import_paths(db, paths, key="k")
    assert [row["added"] > 0 for row in first["timelines"]] == [False, True, True]
    before = Path(db.path).read_bytes()
    assert ti.import_paths(db, paths, key="k") == first
    assert Path(db.path).read_bytes() == before


def test_a_key_of_another_operation_is_refused_before_anything_is_read(
    db: timeline.Database, tmp_path: Path
) -> None:
    db.run("create", {"idempotency_key": "k"})
    before = Path(db.path).read_bytes()
    with pytest.raises(timeline.Refused, match="belongs to create"):
        ti.import_paths(db, [str(tmp_path / "gone")], key="k")
    assert Path(db.path).read_bytes() == before


def test_a_keyed_import_of_what_is_not_there_makes_no_database(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "new.json"))
    with pytest.raises(timeline.NotFound, match="no such file"):
        ti.import_paths(database, [str(tmp_path / "gone")], key="k")
    assert list(tmp_path.iterdir()) == []
    ti.import_paths(database, [str(FILES[0])], key="k")
    assert database.run("doctor")["ok"]


# -- limits ----------------------------------------------------------------------------------------

LINE = b'{"role":"user","text":"%s"}\n'


def test_a_line_above_the_limit_is_refused_with_both_numbers(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ti, "LINE_BYTES_MAX", 100)
    before = Path(db.path).read_bytes()
    for at in (1, 3):
        lines = [LINE % b"hi"] * 4
        lines[at - 1] = LINE % (b"x" * 74)  # 100 bytes with its newline, then one more
        path = tmp_path / f"{at}.jsonl"
        path.write_bytes(b"".join(lines))
        assert ti.import_paths(db, [str(path)], dry_run=True)["timelines"][0]["bad"] == 0
        lines[at - 1] = LINE % (b"x" * 75)
        path.write_bytes(b"".join(lines))
        for key in (None, "k"):
            with pytest.raises(timeline.InvalidArgument) as caught:
                ti.import_paths(db, [str(path)], key=key)
            words = str(caught.value)
            assert f"line {at} has 101 bytes or more, above the limit of 100" in words
            assert str(path) in words
            assert "import again" in words
        assert Path(db.path).read_bytes() == before


def test_in_a_folder_a_line_above_the_limit_costs_only_its_file(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ti, "LINE_BYTES_MAX", 100)
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(LINE % b"hi" * 2_000 + LINE % (b"x" * 900))
    (folder / "b.jsonl").write_bytes(LINE % b"good")
    result = ti.import_paths(db, [str(folder)])
    assert [row["added"] for row in result["timelines"]] == [1]
    assert [Path(each["path"]).name for each in result["unrecognized"]] == ["a.jsonl"]
    assert "line 2001 has 101 bytes or more" in result["unrecognized"][0]["why"]


METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]


def packed(path: Path, method: int, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr("a.jsonl", data)
        out.writestr("b.jsonl", LINE % b"good")
    return path


@pytest.mark.parametrize("method", METHODS)
def test_a_member_above_the_limit_is_refused_with_both_numbers(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    path = packed(tmp_path / "x.zip", method, LINE % b"hi" + b"\n" * 5_000)
    monkeypatch.setattr(ti, "MEMBER_BYTES_MAX", 5_028)
    assert len(ti.import_paths(db, [str(path)], dry_run=True)["timelines"]) == 2
    monkeypatch.setattr(ti, "MEMBER_BYTES_MAX", 5_027)
    result = ti.import_paths(db, [str(path)])
    assert [row["added"] for row in result["timelines"]] == [1]
    (left,) = result["unrecognized"]
    assert left["why"].startswith("5028 bytes when unpacked, above the limit of 5027")
    assert "unpack it" in left["why"]


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_is_larger_than_its_header_says_is_not_unpacked_further(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    size = 3_000_000
    path = packed(tmp_path / "x.zip", method, LINE % b"hi" + b"\n" * size)
    data = path.read_bytes()
    told = struct.pack("<L", size + len(LINE % b"hi"))
    assert data.count(told) >= 2
    path.write_bytes(data.replace(told, struct.pack("<L", 50)))
    written: list[int] = []

    class Counted(io.BytesIO):
        def write(self, data: Any) -> int:
            written.append(len(data))
            return super().write(data)

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda _: Counted())
    result = ti.import_paths(db, [str(path)])
    assert [row["added"] for row in result["timelines"]] == [1]
    assert "damaged" in result["unrecognized"][0]["why"] or method == zipfile.ZIP_STORED
    assert sum(written) <= 200


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_packed_in_a_way_that_has_no_bound_is_not_unpacked(
    db: timeline.Database, tmp_path: Path, method: int
) -> None:
    import tracemalloc

    path = packed(tmp_path / "x.zip", method, b"\n" * 20_000_000)
    tracemalloc.start()
    with pytest.raises(timeline.InvalidArgument, match=f"ZIP method {method}.*unpack it"):
        ti.import_paths(db, [str(path)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_zip_without_transcripts_says_why(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("notes.md", json.dumps("hello"))
    with pytest.raises(timeline.InvalidArgument, match=r"x\.zip/notes\.md: no JSON"):
        ti.import_paths(db, [str(path)])
