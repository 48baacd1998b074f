"""Results above the limit name the narrower call, and that call fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.wire import Json, Wire

TEXTS = {
    "control": "\x01" * 9_000,
    "quotes": '"\\' * 9_000,
    "cjk": "中" * 19_000,
    "plain": "x" * 19_000,
    "huge": "y" * 900_000,
    "mixed": '\x02"中x' * 4_500,
}
LIMITS = (10_000, 40_000)


def build(path: Path) -> None:
    """tl0: all texts many times over, names of 200 characters, 3,000 children, summaries."""
    database = timeline.Database(str(path))

    def run(operation: str, **arguments: Any) -> Any:
        return database.run(operation, arguments)

    run("create", title="\x01" * 200)
    for number in range(6):
        for text in TEXTS.values():
            run("append", role="user", text=text, intent={"tag": '"' * 200, "note": "\x01" * 4_000})
        run("fork", node=f"n{6 * number + 1}", name=f"b{number}" + '"' * 198)
    for number in range(1, 6):
        for last in (number, number + 1, number + 6):
            derived = [f"n{each}" for each in range(20, 37)]
            given = {"from": f"n{number}", "to": f"n{last}", "summary": TEXTS["quotes"]}
            database.run("summarize", {**given, "derived_from": derived})
    for number in range(150):
        run("fork", node="n36", name=f"c{number}" + "\\" * 190)
        run("create", title="\x01" * 200)
        run("append", role="user", text="find me " + "\x01" * 200, branch=f"c{number}" + "\\" * 190)
    database.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "db.json"
    build(path)
    return path


@pytest.fixture(scope="module", params=[LIMITS[0], pytest.param(LIMITS[1], marks=pytest.mark.slow)])
def wire(request: pytest.FixtureRequest, filled: Path) -> Iterator[Wire]:
    with Wire(filled, "--max-output-chars", str(request.param)) as running:
        running.limit = request.param  # type: ignore[attr-defined]
        yield running.open()


def fitting(wire: Wire, name: str, given: Json) -> tuple[Json, Any]:
    """The call that fits and its value; the first answer says how to make it."""
    limit = wire.limit  # type: ignore[attr-defined]
    result = wire.call(name, given)
    if result.get("isError"):
        error = wire.error(name, given)
        assert f"above {limit:,}" in error["error"], error["error"]
        assert error["data"]["max"] == limit
        assert error["data"]["chars"] > limit
        given = {**given, **error["data"]["try"]}
        result = wire.call(name, given)
    assert "isError" not in result, (name, given, result)
    assert len(result["content"][0]["text"]) <= limit
    return given, wire.value(name, given)


BUDGETS = (100, 3_000, 20_000, 100_000, 10**9)


def test_the_call_that_is_named_fits(wire: Wire) -> None:
    fitting(wire, "timeline_context", {"timeline_id": "tl0"})
    fitting(wire, "timeline_context", {"node": "n30", "last": 9})
    infeasible = {"timeline_id": "tl0", "max_tokens": 0, "dry_run": True}
    required = wire.error("timeline_context_budget", infeasible)["data"]["required_tokens"]
    for tokens in (required, required + 5_000, *BUDGETS):
        for more in ({}, {"explain": True}, {"order": "tiers"}):
            given = {"timeline_id": "tl0", "max_tokens": tokens, "dry_run": True, **more}
            if tokens >= required:
                fitting(wire, "timeline_context_budget", given)
    fitting(wire, "timeline_list", {"limit": 1_000})
    fitting(wire, "timeline_branches", {"timeline_id": "tl0", "limit": 1_000, "all": True})
    fitting(wire, "timeline_summaries", {"timeline_id": "tl0", "limit": 1_000})
    fitting(wire, "timeline_search", {"text": "find", "limit": 1_000})
    for node in [*range(1, 13), 37, 38, 39]:
        for more in ({}, {"blocks": True}, {"offset": 0}, {"chars": 10**6}):
            fitting(wire, "timeline_node", {"node": f"n{node}", **more})


@pytest.mark.slow
def test_pages_give_every_row_once(wire: Wire) -> None:
    for name, given, key, count in (
        ("timeline_list", {}, "timeline_id", 151),
        ("timeline_branches", {"timeline_id": "tl0"}, "name", 157),
        ("timeline_summaries", {"timeline_id": "tl0"}, "node", 15),
        ("timeline_search", {"text": "find"}, "node", 150),
    ):
        seen: list[str] = []
        more: Json = {}
        while True:
            _, rows = fitting(wire, name, {**given, **more})
            mark = rows.pop() if rows and rows[-1].get("more") else None
            seen += [row[key] for row in rows]
            if mark is None:
                break
            assert mark == {"more": True, "after": rows[-1][key]}
            more = {"after": mark["after"]}
        assert len(seen) == len(set(seen)) == count, name


@pytest.mark.slow
def test_ended_branches_of_one_name_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    database = timeline.Database(str(tmp_path / "db.json"))
    database.run("create", {})
    for _ in range(300):
        database.run("fork", {"node": "n0", "name": "again"})
        database.run("drop_branch", {"name": "again"})
    database.close()
    with Wire(tmp_path / "db.json") as wire:
        wire.open().limit = 40_000  # type: ignore[attr-defined]
        given = {"timeline_id": "tl0", "all": True, "limit": 400}
        asked, rows = fitting(wire, "timeline_branches", given)
        assert asked["all"] is False
        assert [row["name"] for row in rows] == ["main"]


@pytest.mark.slow
def test_going_back_through_a_context_gives_every_message_once(wire: Wire) -> None:
    seen: list[str] = []
    given: Json = {"timeline_id": "tl0", "node": "n36"}
    while rows := fitting(wire, "timeline_context", given)[1]:
        seen = [row["node"] for row in rows] + seen
        given = {**given, "before": rows[0]["node"]}
        given.pop("last", None)
    assert seen == [f"n{number}" for number in range(1, 37)]


def test_a_cut_text_is_read_in_parts(wire: Wire) -> None:
    for number, text in enumerate(TEXTS.values(), 1):
        value = fitting(wire, "timeline_node", {"node": f"n{number}"})[1]
        if "cut" not in value:
            assert value["text"] == text
            continue
        assert value["cut"]["chars"] == len(text)
        if len(text) > 100_000:
            text, start = text[-50_000:], len(text) - 50_000
        else:
            start = 0
        parts = ""
        while len(parts) < len(text):
            asked = {"node": f"n{number}", "offset": start + len(parts), "chars": 30_000}
            part = fitting(wire, "timeline_node", asked)[1]["text"]
            assert part
            parts += part
        assert parts == text


@pytest.mark.slow
def test_a_changing_tool_never_fails_for_its_size(tmp_path: Path) -> None:
    path = tmp_path / "db.json"
    database = timeline.Database(str(path))
    database.run("create", {})
    database.run("append", {"role": "user", "text": "goal"})
    database.run("fork", {"node": "n1", "name": "side"})
    for _ in range(1_000):
        database.run("append", {"role": "tool", "text": "x", "branch": "side"})
    given = {"from": "n2", "to": "n1001", "summary": "s"}
    database.run("summarize", given)
    database.run("append", {"role": "assistant", "text": "call"})
    for _ in range(1_000):
        database.run("append", {"role": "tool", "text": "x"})
    database.close()
    with Wire(path) as wire:
        wire.open()
        given = {"timeline_id": "tl0", "branch": "side", "scope": "own"}
        value = wire.value("timeline_archive_branch", given)
        assert len(value["archived"]) == 200
        assert value["count"] >= 1_000
        value = wire.value("timeline_exclude", {"node": "n2003"})
        assert (len(value["excluded"]), value["count"]) == (200, 1_001)
        value = wire.value("timeline_thaw", {"timeline_id": "tl0", "name": "side"})
        assert len(value["thawed"]) == 200
        for number in range(300):
            given = {"node": "n1", "name": f"f{number}", "timeline_id": "tl0"}
            wire.value("timeline_fork", given)
        shown = wire.value("timeline_node", {"node": "n1"})
        assert len(shown["branches"]) == 200
        assert shown["branches_count"] == 302
