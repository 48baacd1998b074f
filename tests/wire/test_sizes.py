"""Results that are too large: nothing is cut in silence, and the narrower call fits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import
from kit.disks import QuickDisk
from kit.wire import Json, Wire

TL = {"timeline_id": "tl0"}
LIMIT = 10_000
TEXTS = {
    "plain": "word " * 60,
    "control": "\0\x1b" * 900,
    "quotes": '"\\' * 900,
    "wide": "功能🚀" * 700,
    "long": "x" * 30_000,
    "long wide": "功" * 30_000,
}


def filled(folder: Path) -> timeline.Database:
    base = timeline.Database(str(folder / "t.db"), disk=QuickDisk())
    base.run("create")
    return base


def size(value: object) -> int:
    return len(timeline.dumps(value))


def narrowed(wire: Wire, name: str, arguments: Json, limit: int = LIMIT) -> tuple[Any, Json]:
    """The answer of the narrower call that the failure names; it must fit."""
    said = wire.error(f"timeline_{name}", arguments)
    data = said["data"]
    assert said["error"] == f"result of {data['chars']:,} characters is above {limit:,}"
    assert data["chars"] > data["max"] == limit
    value = wire.value(f"timeline_{name}", {**arguments, **data["try"]})
    assert size(value) <= limit
    return value, data["try"]


# Three kinds of text are enough for a day's run.
KINDS = [
    pytest.param(kind, marks=[] if kind in ("plain", "control", "long wide") else pytest.mark.slow)
    for kind in TEXTS
]


@pytest.fixture(params=[LIMIT, pytest.param(40_000, marks=pytest.mark.slow)])
def limit(request: pytest.FixtureRequest) -> int:
    chosen: int = request.param
    return chosen


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_too_large_names_the_messages_that_fit(
    tmp_path: Path, kind: str, limit: int
) -> None:
    base = filled(tmp_path)
    for number in range(160):
        base.run("append", {"role": "user", "text": f"{number} {TEXTS[kind]}"})
    with Wire(tmp_path / "t.db", "--max-output-chars", str(limit)) as wire:
        wire.open()
        value, change = narrowed(wire, "context", TL, limit)
        assert list(change) == ["last"]
        assert [each["node"] for each in value] == [
            f"n{number}" for number in range(161 - change["last"], 161)
        ]
        more = wire.error("timeline_context", {**TL, "last": change["last"] + 1})
        assert more["data"]["try"] == change, "one more would have fitted"


def test_going_back_page_by_page_gives_each_message_once(tmp_path: Path) -> None:
    base = filled(tmp_path)
    rng = random.Random(1)
    for _ in range(120):
        text = rng.choice([*TEXTS.values()])[: rng.choice([5, 500, 40_000])]
        base.run("append", {"role": "user", "text": text})
    found: list[str] = []
    with Wire(tmp_path / "t.db", "--max-output-chars", str(LIMIT)) as wire:
        wire.open()
        arguments: Json = {**TL, "last": 30}
        while True:
            result = wire.call("timeline_context", arguments)
            value = json.loads(result["content"][0]["text"])
            if result.get("isError"):
                value = wire.value("timeline_context", {**arguments, **value["data"]["try"]})
            if not value:
                break
            found[:0] = [each["node"] for each in value]
            arguments = {**TL, "last": 30, "before": value[0]["node"]}
    assert found == [f"n{number}" for number in range(1, 121)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["turns", pytest.param("tiers", marks=pytest.mark.slow)])
def test_a_budget_too_large_names_the_tokens_that_fit_and_writes_nothing(
    tmp_path: Path, kind: str, order: str
) -> None:
    base = filled(tmp_path)
    for number in range(80):
        base.run("append", {"role": "user", "text": f"{number} {TEXTS[kind]}"})
    base.run("summarize", {"from": "n5", "to": "n40", "summary": TEXTS[kind][:900]})
    log = tmp_path / "t.db"
    with Wire(log, "--max-output-chars", str(LIMIT)) as wire:
        wire.open()
        for explain in (False, True):
            before = log.read_bytes()
            asked = {**TL, "max_tokens": 2_000_000, "order": order, "explain": explain}
            for dry in ({"dry_run": True}, {"idempotency_key": f"k {explain}"}):
                said = wire.error("timeline_context_budget", {**asked, **dry})
                assert log.read_bytes() == before
                assert "idempotency_key" not in said["data"]["try"]
            value, change = narrowed(wire, "context_budget", asked)
            assert value["total_tokens"] <= change["max_tokens"]
            assert set(change) <= {"max_tokens", "explain"}


def test_a_budget_is_repeated_by_its_key_whatever_came_since(tmp_path: Path) -> None:
    base = filled(tmp_path)
    base.run("append", {"role": "user", "text": "short"})
    keyed = {**TL, "max_tokens": 2_000_000, "idempotency_key": "k"}
    with Wire(tmp_path / "t.db", "--max-output-chars", str(LIMIT)) as wire:
        first = wire.open().value("timeline_context_budget", keyed)
        for _ in range(40):
            base.run("append", {"role": "user", "text": TEXTS["plain"] * 4})
        assert wire.value("timeline_context_budget", keyed) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_shows_a_long_text_by_its_ends_and_the_rest_on_request(
    tmp_path: Path, kind: str
) -> None:
    base = filled(tmp_path)
    text = "".join(f"{number}:{TEXTS[kind]}" for number in range(40))[:200_000]
    note = {"tag": "t" * 200, "note": "n" * 900}
    base.run("append", {"role": "user", "text": text, "intent": note})
    for limit in (LIMIT, 40_000):
        with Wire(tmp_path / "t.db", "--max-output-chars", str(limit)) as wire:
            shown = wire.open().value("timeline_node", {"node": "n1"})
            if "cut" in shown:
                assert shown["cut"] == {"chars": len(text)}
                assert len(shown["text"]) <= 17_000
                cut = range(len(shown["text"]))
                assert any(
                    text.startswith(shown["text"][:n]) and text.endswith(shown["text"][n:])
                    for n in cut
                )
            else:
                assert (shown["text"], limit) == (text, 40_000)
            got = ""
            while len(got) < len(text):
                arguments: Json = {"node": "n1", "offset": len(got), "chars": 50_000}
                result = wire.call("timeline_node", arguments)
                part = json.loads(result["content"][0]["text"])
                if result.get("isError"):
                    part = wire.value("timeline_node", {**arguments, **part["data"]["try"]})
                assert part["cut"] == {"chars": len(text), "offset": len(got)}
                assert part["text"]
                got += part["text"]
            assert got == text


@pytest.mark.slow
def test_a_node_with_many_children_and_branches_counts_them(tmp_path: Path) -> None:
    base = filled(tmp_path)
    base.run("append", {"role": "user", "text": "top"})
    for number in range(1_500):
        base.run("fork", {"node": "n1", "name": f"branch {number}"})
        said = {"role": "user", "text": "x", "branch": f"branch {number}"}
        base.run("append", said)
    with Wire(tmp_path / "t.db", "--max-output-chars", str(LIMIT)) as wire:
        shown = wire.open().value("timeline_node", {"node": "n1"})
        shown_ids = len(shown["children"])
        assert 50 < shown_ids <= 200
        assert shown["children"] == [f"n{number}" for number in range(2, 2 + shown_ids)]
        assert shown["children_count"] == 1_500
        assert shown["branches_count"] == 1_501
        assert 0 < len(shown["branches"]) <= 200
        found: list[str] = []
        arguments: Json = dict(TL)
        while True:
            result = wire.call("timeline_branches", arguments)
            rows = json.loads(result["content"][0]["text"])
            if result.get("isError"):
                rows = wire.value("timeline_branches", {**arguments, **rows["data"]["try"]})
            more = rows[-1] if "more" in rows[-1] else None
            found += [row["name"] for row in rows if "more" not in row]
            if more is None:
                break
            arguments = {**TL, "after": more["after"]}
        assert found == ["main", *(f"branch {number}" for number in range(1_500))]
        _, change = narrowed(wire, "branches", {**TL, "limit": 1_500})
        assert change["limit"] > 40
        assert wire.value("timeline_search", {"text": "top"})[0]["branches_count"] == 1_501


@pytest.mark.slow
def test_lists_come_page_by_page(tmp_path: Path) -> None:
    base = filled(tmp_path)
    for number in range(130):
        node = base.run("append", {"role": "user", "text": f"find me {number}"})["node"]
        base.run("summarize", {"from": node, "to": node, "summary": "find me"})
    for number in range(120):
        base.run("create", {"title": f"{number} " + "title" * 38})

    def pages(wire: Wire, name: str, key: str, arguments: Json) -> list[str]:
        found: list[str] = []
        while True:
            result = wire.call(name, arguments)
            rows = json.loads(result["content"][0]["text"])
            if result.get("isError"):
                rows = wire.value(name, {**arguments, **rows["data"]["try"]})
            found += [row[key] for row in rows if "more" not in row]
            if not rows or "more" not in rows[-1]:
                return found
            assert rows[-1] == {"more": True, "after": found[-1]}
            arguments = {**arguments, "after": rows[-1]["after"]}

    for limit in (LIMIT, 40_000):
        with Wire(tmp_path / "t.db", "--max-output-chars", str(limit)) as wire:
            wire.open()
            for name, key, arguments in (
                ("list", "timeline_id", {}),
                ("summaries", "node", TL),
                ("search", "node", {"text": "find me"}),
            ):
                want = [row[key] for row in base.run(name, {**arguments, **_all_of(name)})]
                assert len(want) > 100
                for more in ({}, {"limit": 7}, {"limit": 1_000_000}):
                    got = pages(wire, f"timeline_{name}", key, {**arguments, **more})
                    assert got == want, (name, more)


def _all_of(name: str) -> Json:
    return {"limit": 10_000} if name == "search" else {}


def test_branches_of_one_name_are_not_passed_over(tmp_path: Path) -> None:
    base = filled(tmp_path)
    base.run("append", {"role": "user", "text": "x"})
    for number in range(9):
        base.run("fork", {"node": "n1", "name": "again"})
        base.run("drop_branch", {"name": "again"})
        base.run("fork", {"node": "n1", "name": f"other {number}"})
    want = [row["name"] for row in base.run("branches", {"all": True})]
    with Wire(tmp_path / "t.db") as wire:
        wire.open()
        found: list[str] = []
        arguments: Json = {**TL, "all": True, "limit": 3}
        while True:
            rows = wire.value("timeline_branches", arguments)
            found += [row["name"] for row in rows if "more" not in row]
            if "more" not in rows[-1]:
                break
            arguments = {**arguments, "after": rows[-1]["after"]}
    assert found == want


def test_blocks_too_large_are_left_out_on_request(tmp_path: Path) -> None:
    record = {
        "type": "user", "uuid": "u1", "parentUuid": None, "sessionId": "s", "version": "1",
        "timestamp": "2026-01-01T00:00:00Z", "cwd": "/x",
        "message": {"role": "user", "content": [
            {"type": "text", "text": '"' * 60_000}, {"type": "text", "text": "and"},
        ]},
    }  # fmt: skip
    session = tmp_path / "session.jsonl"
    session.write_bytes(json.dumps(record).encode() + b"\n")
    base = timeline.Database(str(tmp_path / "t.db"), disk=QuickDisk())
    timeline_import.import_paths(base, [str(session)])
    with Wire(tmp_path / "t.db", "--max-output-chars", str(LIMIT)) as wire:
        wire.open()
        shown, change = narrowed(wire, "node", {"node": "n1", "blocks": True})
        assert change == {"blocks": False}
        assert shown["cut"]["chars"] > 60_000
        part = {"node": "n1", "blocks": True, "chars": 60_000}
        shown, change = narrowed(wire, "node", part)
        assert change["blocks"] is False
        assert shown["text"] == '"' * change["chars"]


def test_changing_tools_never_fail_for_size(tmp_path: Path) -> None:
    base = filled(tmp_path)
    base.run("append", {"role": "user", "text": "start"})
    base.run("fork", {"node": "n1", "name": "side"})
    for number in range(1_000):
        said = {"role": "tool", "text": f"{number}", "branch": "side"}
        base.run("append", said)
    with Wire(tmp_path / "t.db", "--max-output-chars", str(LIMIT)) as wire:
        wire.open()
        left_out = wire.value("timeline_exclude", {"node": "n1001"})
        assert left_out == {"excluded": [f"n{n}" for n in range(1, 201)], "count": 1001}
        back = wire.value("timeline_exclude", {"node": "n1001", "include": True})
        assert (len(back["included"]), back["count"]) == (200, 1001)
        wire.value("timeline_summarize", {"from": "n1", "to": "n1001", "summary": "all"})
        moved = wire.value("timeline_archive_branch", {**TL, "branch": "side", "scope": "own"})
        assert moved == {"archived": [f"n{n}" for n in range(2, 202)], "count": 1000}
        back = wire.value("timeline_thaw", {**TL, "name": "side"})
        assert (len(back["thawed"]), back["count"]) == (200, 1000)
        text = '\0"' * 300_000
        said = {**TL, "role": "user", "text": text[: 1 << 20]}
        wire.value("timeline_append", said)
        reasons = wire.value("timeline_archive_check", {**TL, "branch": "side"})["reasons"]
        assert all(len(each["nodes"]) <= 100 for each in reasons)
