"""Damaged exports, sessions of OpenCode and arrays: an import ends well and counts every record."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.seeds import shard, shards
from kit.transcripts import SAMPLES, Tree, total

FILES = [
    SAMPLES / "chatgpt" / "conversations.json",
    SAMPLES / "chatgpt" / "split" / "conversations-000.json",
    SAMPLES / "claude-ai" / "conversations.json",
    SAMPLES / "claude-ai" / "legacy-flat.json",
    SAMPLES / "opencode" / "export-ses_demo0001.json",
    SAMPLES / "messages" / "openai-tools.json",
    SAMPLES / "messages" / "anthropic-blocks.json",
]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off here, and waiting for the disk is much of the time."""
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda _: None)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def data(request: pytest.FixtureRequest) -> bytes:
    content: bytes = request.param.read_bytes()
    return content


class Bench:
    """Imports bytes into databases of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def store(self) -> timeline.Database:
        self.count += 1
        path = self.folder / f"{self.count}.json"
        return timeline.Database(str(path), clock=lambda: 1_780_000_000)

    def bring(self, db: timeline.Database, data: bytes, format: str = "auto") -> list[Any]:
        """Import; nothing at all may be recognized, but nothing else may go wrong."""
        path = self.folder / "damaged.json"
        path.write_bytes(data)
        try:
            result = ti.import_paths(db, [str(path)], format=format)
        except timeline.InvalidArgument as error:
            assert error.data["unrecognized"]
            return []
        for row in result["timelines"]:
            assert total(row) == row["records"], row
        rows: list[Any] = result["timelines"]
        return rows

    def texts(self, data: bytes, format: str = "auto") -> set[str]:
        """What messages an import of `data` makes; a second one must add nothing."""
        db = self.store()
        rows = self.bring(db, data, format)
        if not Path(db.path).exists() or not any(row["added"] for row in rows):
            db.close()
            return set()
        before = Path(db.path).read_bytes()
        again = self.bring(db, data, format)
        # One id on two messages is a change each time.
        assert [(row["added"], row["changed"]) for row in again] == [
            (0, row["changed"]) for row in rows
        ]
        assert Path(db.path).read_bytes() == before
        found = set()
        for tl in range(len(db.run("list", {}))):
            tree = Tree(db, tl)
            assert tree.leaves <= set(tree.branches.values()), "a leaf without a branch"
            found |= {str(node["text"]) for node in tree.nodes.values()}
        db.close()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def check_cuts(bench: Bench, data: bytes, seed: int, count: int) -> None:
    """Cut off, then whole: no message is missing in the end, and none is there twice."""
    chance = random.Random(seed)
    whole = bench.texts(data)
    assert whole
    for _ in range(count):
        place = chance.randrange(len(data))
        db = bench.store()
        first = sum(row["added"] for row in bench.bring(db, data[:place]))
        then = bench.bring(db, data)
        added = first + sum(row["added"] for row in then)
        same = len({row["timeline_id"] for row in then if row["timeline_id"]})
        found = {str(node["text"]) for tl in range(same) for node in Tree(db, tl).nodes.values()}
        assert whole <= found, f"cut at byte {place}"
        if not data.lstrip().startswith(b'[\n{"role"'):  # a head without an answer is another talk
            assert added == sum(row["added"] for row in bench.bring(bench.store(), data)), place
        db.close()


@pytest.mark.parametrize("seed", range(4))
def test_cut_anywhere(bench: Bench, data: bytes, seed: int) -> None:
    check_cuts(bench, data, seed, 5)


@pytest.mark.slow
@shards(4, 44)
def test_cut_anywhere_at_length(bench: Bench, data: bytes, first: int) -> None:
    for seed in shard(first):
        check_cuts(bench, data, seed, 5)


@pytest.mark.parametrize("step", [310, pytest.param(31, marks=pytest.mark.slow)])
def test_conversations_beside_a_broken_one_come_in(bench: Bench, step: int) -> None:
    for folder, second in (("chatgpt", "Hello, world"), ("claude-ai", "旧格式的问题")):
        data = (SAMPLES / folder / "conversations.json").read_bytes()
        if folder == "claude-ai":
            more = (SAMPLES / folder / "legacy-flat.json").read_bytes()
            data = data.rstrip().removesuffix(b"]") + b"," + more.lstrip().removeprefix(b"[")
        end = data.index(b"moderation_results" if folder == "chatgpt" else b'"name":""')
        for place in range(3, end - 40, step):
            for spoilt in (b"", b'"', b"}", b"]", b"{", b"\xff\xfe", b"\\", b"\0\0\0"):
                spoilt_data = data[:place] + spoilt + data[place + max(1, len(spoilt)) :]
                db = bench.store()
                rows = bench.bring(db, spoilt_data)
                found = {
                    str(node["text"])
                    for tl in range(sum(row["timeline_id"] is not None for row in rows))
                    for node in Tree(db, tl).nodes.values()
                }
                assert second in found, (place, spoilt)
                db.close()


def test_harmless_changes_change_nothing(bench: Bench, data: bytes) -> None:
    whole = bench.texts(data)
    changed = {
        "BOM": b"\xef\xbb\xbf" + data,
        "CRLF": data.replace(b"\n", b"\r\n"),
        "blank lines": data.replace(b"\n", b"\n \n\n"),
        "NULs between": data.replace(b"\n", b"\0\n\0\0"),
        "one line": data.replace(b"\n", b""),
        "pretty": json.dumps(json.loads(data), indent=2, ensure_ascii=False).encode(),
        "escaped": json.dumps(json.loads(data)).encode(),
    }
    for name, content in changed.items():
        assert bench.texts(content) == whole, name


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """`data` with one to four bytes or stretches of it changed."""
    raw = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(raw))
        size = chance.choice((1, 1, 2, 40))
        kind = chance.randrange(5)
        if kind == 0:
            raw[place : place + size] = b"\0" * size
        elif kind == 1:
            raw[place : place + size] = chance.randbytes(size)
        elif kind == 2:
            del raw[place : place + size]
        elif kind == 3:
            raw[place:place] = chance.choice(
                (b"\n", b"{", b'"', b"\xff", b"\\ud800", b"}\n{", b"]")
            )
        else:
            raw[place:place] = raw[place // 2 : place // 2 + 300]
    return bytes(raw)


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_bytes(bench: Bench, data: bytes, seed: int) -> None:
    bench.texts(spoiled(data, random.Random(seed)))


@pytest.mark.slow
@shards(12, 412)
def test_spoiled_bytes_at_length(bench: Bench, data: bytes, first: int) -> None:
    for seed in shard(first):
        bench.texts(spoiled(data, random.Random(seed)))


ODD: tuple[Any, ...] = (None, True, 0, -1, 1e300, "", "x", "\ud800", [], {}, [None], {"type": 1})


def twisted(value: Any, chance: random.Random, ids: list[str], often: float) -> Any:
    """A JSON value with now and then a member gone or of another kind, or another id."""
    if chance.random() < often:
        return chance.choice((*ODD, *ids))
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if chance.random() > often / 2}
        return {k: twisted(v, chance, ids, often) for k, v in kept.items()}
    if isinstance(value, list):
        return [twisted(each, chance, ids, often) for each in value]
    return value


def ids_in(value: Any) -> list[str]:
    found, left = [], [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            found += [v for k, v in each.items() if k in ("id", "uuid") and isinstance(v, str)]
            left += each.values()
        elif isinstance(each, list):
            left += each
    return found


def twist(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    value = json.loads(data)
    often = chance.choice((0.005, 0.02, 0.1))
    ids = ids_in(value)
    if isinstance(value, dict):
        value = {k: twisted(v, chance, ids, often) for k, v in value.items()}
    else:
        value = [twisted(each, chance, ids, often) for each in value]
    return json.dumps(value).encode()


def check_twisted(bench: Bench, data: bytes, seed: int) -> None:
    format, _ = ti.recognize(io.BytesIO(data))
    assert format is not None
    bench.texts(twist(data, seed))
    bench.texts(twist(data, seed), format.name)


@pytest.mark.parametrize("seed", range(5))
def test_twisted_values(bench: Bench, data: bytes, seed: int) -> None:
    check_twisted(bench, data, seed)


@pytest.mark.slow
@shards(15, 515)
def test_twisted_values_at_length(bench: Bench, data: bytes, first: int) -> None:
    for seed in shard(first):
        check_twisted(bench, data, seed)


@pytest.mark.parametrize("seed", range(4))
def test_file_rewritten_under_the_reader(data: bytes, seed: int) -> None:
    format, _ = ti.recognize(io.BytesIO(data))
    assert format is not None
    stream = io.BytesIO(data)
    talks = [draft(lambda _: None) for draft in format.read(stream)]
    stream.seek(0)
    stream.write(spoiled(twist(data, seed), random.Random(seed)))
    for talk in talks:
        for entry in talk.entries:
            try:
                talk.read(entry).text.encode()
            except timeline.Refused as error:
                assert "changed while it was read" in str(error)


@pytest.mark.parametrize("name", [format.name for format in ti.FORMATS if format.whole])
@pytest.mark.parametrize("content", [b"", b"\0\0", b"hello", b"[", b"[]", b"{}", b"[1]", b"]{,"])
def test_named_format_of_anything(bench: Bench, name: str, content: bytes) -> None:
    assert not any(row["added"] for row in bench.bring(bench.store(), content, name))


@pytest.mark.parametrize("seed", range(8))
def test_spoiled_storage(bench: Bench, tmp_path: Path, seed: int) -> None:
    import shutil

    chance = random.Random(seed)
    folder = tmp_path / "storage"
    shutil.copytree(SAMPLES / "opencode" / "storage-legacy", folder)
    for path in sorted(folder.rglob("*.json")):
        if chance.random() < 0.4:
            path.chmod(0o644)
            path.write_bytes(spoiled(path.read_bytes(), chance))
    db = bench.store()
    for _ in range(2):
        try:
            for row in ti.import_paths(db, [str(folder)])["timelines"]:
                assert total(row) == row["records"]
        except timeline.InvalidArgument as error:
            assert error.data["unrecognized"]
    db.close()
