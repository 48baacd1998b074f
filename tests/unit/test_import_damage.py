"""Damaged transcripts: whatever happens to a file, an import ends well and counts every record."""

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
from kit.transcripts import CLAUDE, SAMPLES, Tree, total

AGENTS = [path for name in ("codex", "pi", "gemini") for path in (SAMPLES / name).rglob("*.jsonl")]
FILES = sorted([*CLAUDE.rglob("*.jsonl"), *(SAMPLES / "messages").glob("*.jsonl"), *AGENTS])


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off here, and waiting for the disk is much of the time."""
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda _: None)


def name_of(path: Path) -> str:
    name = path.stem if len(path.stem) < 30 else path.stem.replace("-", "")[-20:]
    return f"{path.parent.name}-{name}"


# One file of each format is enough for a day's run.
DAILY = {path.parent.name if path.parent.name != "fork" else "": path for path in FILES}


@pytest.fixture(
    params=[
        path if path in DAILY.values() else pytest.param(path, marks=pytest.mark.slow)
        for path in FILES
    ],
    ids=name_of,
)
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

    def bring(self, db: timeline.Database, data: bytes) -> list[dict[str, Any]]:
        """Import; nothing at all may be recognized, but nothing else may go wrong."""
        path = self.folder / "damaged.jsonl"
        path.write_bytes(data)
        try:
            result = ti.import_paths(db, [str(path)])
        except timeline.InvalidArgument as error:
            assert error.data["unrecognized"]
            return []
        for row in result["timelines"]:
            assert total(row) == row["records"], row
        rows: list[dict[str, Any]] = result["timelines"]
        return rows

    def tree(self, data: bytes) -> Tree | None:
        """What an import of `data` makes; a second one must add nothing."""
        db = self.store()
        rows = self.bring(db, data)
        if not Path(db.path).exists() or not any(row["added"] for row in rows):
            return None
        before = Path(db.path).read_bytes()
        assert all(row["added"] == 0 for row in self.bring(db, data))
        assert Path(db.path).read_bytes() == before
        tree = Tree(db)
        assert tree.leaves <= set(tree.branches.values()), "a leaf without a branch"
        db.close()
        return tree


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def same(one: Tree | None, other: Tree | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.parents == other.parents and one.branches == other.branches


@pytest.fixture
def whole(bench: Bench, data: bytes) -> Tree | None:
    """What an import of the undamaged file makes."""
    if data not in WHOLE:
        WHOLE[data] = bench.tree(data)
    return WHOLE[data]


WHOLE: dict[bytes, Tree | None] = {}  # nothing changes them


def check_cut(bench: Bench, data: bytes, whole: Tree | None, place: int) -> None:
    """Cut off, then whole: no message is missing in the end."""
    db = bench.store()
    bench.bring(db, data[:place])
    bench.bring(db, data)
    if whole is not None:
        # A torn piece of an answer comes as a node of its own later.
        assert set(whole.nodes) <= set(Tree(db).nodes), f"cut at byte {place}"
    db.close()


def check_cuts(bench: Bench, data: bytes, whole: Tree | None, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        check_cut(bench, data, whole, chance.randrange(len(data)))


def test_cut_at_every_line(bench: Bench, data: bytes, whole: Tree | None) -> None:
    place = data.find(b"\n") + 1
    while 0 < place < len(data):
        check_cut(bench, data, whole, place)
        place = data.find(b"\n", place) + 1 or len(data)


@pytest.mark.parametrize("seed", range(2))
def test_cut_anywhere(bench: Bench, data: bytes, whole: Tree | None, seed: int) -> None:
    check_cuts(bench, data, whole, seed)


@pytest.mark.slow
@shards(5, 305)
def test_cut_anywhere_at_length(bench: Bench, data: bytes, whole: Tree | None, first: int) -> None:
    for seed in shard(first):
        check_cuts(bench, data, whole, seed)


def test_harmless_changes_change_nothing(bench: Bench, data: bytes, whole: Tree | None) -> None:
    bare = data.replace(b"\r", b"").removeprefix(b"\xef\xbb\xbf")
    changed = {
        "BOM": b"\xef\xbb\xbf" + bare,
        "CRLF": bare.replace(b"\n", b"\r\n"),
        "blank lines": bare.replace(b"\n", b"\n \n\n"),
        "NULs around": bare.replace(b"\n", b"\0\n\0\0"),
        "no last newline": bare.rstrip(b"\n"),
    }
    if b'"id":' in data or b'"uuid":' in data:  # without ids a repetition goes on
        changed["twice"] = bare + (b"" if data.endswith(b"\n") else b"\n") + bare
    for name, content in changed.items():
        assert same(bench.tree(content), whole), name


def test_glued_lines_are_taken_apart(bench: Bench, data: bytes) -> None:
    lines = [line for line in data.replace(b"\r", b"").split(b"\n") if line.endswith(b"}")]
    whole = bench.tree(b"\n".join(lines))
    assert same(bench.tree(b"".join(lines)), whole)
    assert same(bench.tree(b" ".join(lines) + b"\n"), whole)


def shuffled(data: bytes, seed: int) -> bytes:
    lines = data.split(b"\n")
    random.Random(seed).shuffle(lines)
    return b"\n".join(lines)


def check_shuffled(bench: Bench, data: bytes, whole: Tree | None, seed: int) -> None:
    tree = bench.tree(shuffled(data, seed))
    if whole is not None:
        assert tree is not None
        if b"$rewindTo" in data:  # a message that is written again: the last record counts
            assert set(whole.nodes) == set(tree.nodes)
            return
        texts = sorted(str(node["text"]) for node in tree.nodes.values())
        assert all(any(line in text for text in texts) for line in lines_of(whole))


@pytest.mark.parametrize("seed", range(2))
def test_shuffled_lines(bench: Bench, data: bytes, whole: Tree | None, seed: int) -> None:
    check_shuffled(bench, data, whole, seed)


def lines_of(tree: Tree) -> set[str]:
    return {line for node in tree.nodes.values() for line in str(node["text"]).split("\n")}


@pytest.mark.slow
@shards(5, 65)
def test_shuffled_lines_at_length(
    bench: Bench, data: bytes, whole: Tree | None, first: int
) -> None:
    for seed in shard(first):
        check_shuffled(bench, data, whole, seed)


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
            raw[place:place] = chance.choice((b"\n", b"{", b'"', b"\xff", b"\\ud800", b"}\n{"))
        else:
            raw[place:place] = raw[place // 2 : place // 2 + 300]
    return bytes(raw)


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_bytes(bench: Bench, data: bytes, seed: int) -> None:
    bench.tree(spoiled(data, random.Random(seed)))


@pytest.mark.slow
@shards(10, 610)
def test_spoiled_bytes_at_length(bench: Bench, data: bytes, first: int) -> None:
    for seed in shard(first):
        bench.tree(spoiled(data, random.Random(seed)))


ODD: tuple[Any, ...] = (None, True, 0, -1, 1e300, "", "x", "\ud800", [], {}, [None], {"type": 1})


def twisted(value: Any, chance: random.Random, ids: list[str]) -> Any:
    """A JSON value with now and then a member gone or of another kind, or another id."""
    if chance.random() < 0.02:
        return chance.choice((*ODD, *ids))
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if chance.random() > 0.01}
        return {k: twisted(v, chance, ids) for k, v in kept.items()}
    if isinstance(value, list):
        return [twisted(each, chance, ids) for each in value]
    return value


def twist(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    records = []
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            pass
    ids = [str(r[name]) for r in records for name in ("uuid", "id", "timestamp") if name in r]
    return b"".join(json.dumps(twisted(r, chance, ids)).encode() + b"\n" for r in records)


@pytest.mark.parametrize("seed", range(4))
def test_twisted_records(bench: Bench, data: bytes, seed: int) -> None:
    bench.tree(twist(data, seed))


@pytest.mark.slow
@shards(12, 1012)
def test_twisted_records_at_length(bench: Bench, data: bytes, first: int) -> None:
    for seed in shard(first):
        bench.tree(twist(data, seed))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_names_a_call_may_be_anything(bench: Bench, odd: Any) -> None:
    call = {"type": "tool_use", "id": odd, "name": "Read", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": odd, "content": "x"}
    told = {"functionResponse?": {"response": {"output": "x"}}, "thought": odd, "text": odd}
    user = {"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s"}
    claude = [
        {**user, "message": {"role": "user", "content": [answer, call, odd, {"type": odd}]}},
        {
            **user, "type": "assistant", "uuid": "a", "parentUuid": "u",
            "message": {"role": "assistant", "content": [call, answer, {"type": "text"}]},
        },
    ]  # fmt: skip
    gemini = [
        {"sessionId": "g", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z"},
        {
            "id": "1", "type": "gemini", "content": "",
            "toolCalls": [
                {"id": odd, "name": "x", "result": result} for result in ([told], told, [odd], odd)
            ],
        },
    ]  # fmt: skip
    for records in (claude, gemini):
        bench.tree(b"".join(json.dumps(each).encode() + b"\n" for each in records))


@pytest.mark.parametrize("seed", range(3))
def test_file_rewritten_under_the_reader(data: bytes, seed: int) -> None:
    format, _ = ti.recognize(io.BytesIO(data))
    assert format is not None
    stream = io.BytesIO(data)
    draft, *_ = format.read(stream)
    transcript = draft(lambda _: None)
    stream.seek(0)
    stream.write(shuffled(spoiled(data, random.Random(seed)), seed))
    for entry in transcript.entries:
        try:
            transcript.read(entry).text.encode()
        except timeline.Refused as error:
            assert "changed while it was read" in str(error)


# -- one JSON value --------------------------------------------------------------------------------

DOCUMENTS = sorted(
    path
    for kind in ("checkpoint-", "session-2")
    for path in (SAMPLES / "gemini").glob(kind + "*.json")
)


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.stem[:7])
def document(request: pytest.FixtureRequest) -> bytes:
    content: bytes = request.param.read_bytes()
    return content


def nodes_of(tree: Tree | None) -> int:
    return 0 if tree is None else len(tree.nodes)


def test_cut_document_keeps_what_stands_before(bench: Bench, document: bytes) -> None:
    places = range(0, len(document), 23)
    found = [nodes_of(bench.tree(document[:place])) for place in places]
    assert found == sorted(found)
    line = document.rfind(b"}", 0, document.rfind(b"}")) + 1  # all messages, and nothing behind
    assert nodes_of(bench.tree(document[:line])) == nodes_of(bench.tree(document)) > 0


def test_harmless_changes_of_a_document(bench: Bench, document: bytes) -> None:
    whole = bench.tree(document)
    value = json.loads(document)
    changed = {
        "BOM": b"\xef\xbb\xbf" + document,
        "CRLF": document.replace(b"\n", b"\r\n"),
        "blank lines": b"\n\n" + document + b" \n\n",
        "NULs": b"\0\0" + document + b"\0\0",
        "one line": json.dumps(value).encode(),
        "indented": json.dumps(value, indent=2, ensure_ascii=False).encode(),
    }
    for name, content in changed.items():
        assert same(bench.tree(content), whole), name


@pytest.mark.parametrize("seed", range(8))
def test_spoiled_document(bench: Bench, document: bytes, seed: int) -> None:
    chance = random.Random(seed)
    bench.tree(spoiled(document, chance))
    value = twisted(json.loads(document), chance, ["l-1", "list_directory"])
    bench.tree(json.dumps(value).encode())
