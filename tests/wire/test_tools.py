"""The list of tools, and each of them called over the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.program import Program
from kit.wire import Json, Wire, tool_call

READING = {
    "timeline_context", "timeline_branches", "timeline_node", "timeline_archive_check",
    "timeline_list", "timeline_summaries", "timeline_search",
}  # fmt: skip
NOT_REPEATABLE = {"timeline_create", "timeline_append", "timeline_fork"}
CORE = [
    "timeline_create", "timeline_append", "timeline_fork", "timeline_switch",
    "timeline_drop_branch", "timeline_context", "timeline_context_budget", "timeline_pin",
    "timeline_unpin", "timeline_summarize", "timeline_branches", "timeline_node",
    "timeline_archive_check", "timeline_archive_branch",
]  # fmt: skip


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with Wire(tmp_path / "db.json") as running:
        yield running.open()


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def names(wire: Wire) -> list[str]:
    return [tool["name"] for tool in wire.request("tools/list")["result"]["tools"]]


def check_schema(schema: Json) -> None:
    """The dialect that every host understands."""
    words = {"type", "description", "enum", "default", "items", "properties", "required"}
    assert set(schema) <= words | {"additionalProperties"}
    assert schema["type"] in ("string", "integer", "boolean", "array", "object")
    assert all(type(each) is str for each in schema.get("enum", []))
    if schema["type"] == "array":
        assert schema["items"]["type"] == "string"
    if schema["type"] == "object":
        assert set(schema.get("required", [])) <= set(schema["properties"])
        for key, inner in schema["properties"].items():
            assert re.fullmatch("[a-z][a-z0-9_]*", key)
            check_schema(inner)


def test_the_list_is_small_and_in_the_dialect_of_all_hosts(wire: Wire, tmp_path: Path) -> None:
    first = wire.request("tools/list")["result"]
    assert len(compact(first)) <= 12_000
    for tool in first["tools"]:
        assert re.fullmatch("[a-z][a-z0-9_]{0,23}", tool["name"])
        assert 60 <= len(tool["description"]) <= 400, tool["name"]
        assert tool["inputSchema"]["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False
        check_schema(tool["inputSchema"])
        assert tool["annotations"] == {
            "readOnlyHint": tool["name"] in READING,
            "destructiveHint": tool["name"] == "timeline_drop_branch",
            "idempotentHint": tool["name"] not in NOT_REPEATABLE,
            "openWorldHint": False,
        }
    with Wire(tmp_path / "other.json", "--tools", "core") as core:
        listed = core.open().request("tools/list")["result"]
        assert len(compact(listed)) <= 7_500
        assert sorted(names(core)) == sorted(CORE)
    wire.create(1)
    again = [compact(wire.request("tools/list")["result"]) for _ in range(3)]
    assert set(again) == {compact(first)}


def test_the_tools_to_offer_are_chosen_by_group_and_name(tmp_path: Path) -> None:
    for wanted, off in (
        ("timeline_list", "timeline_create"),
        ("core,timeline_search", "timeline_list"),
    ):
        with Wire(tmp_path / "db.json", "--tools", wanted) as wire:
            wire.open()
            assert "timeline_list" in names(wire) or "timeline_search" in names(wire)
            error = wire.request("tools/call", {"name": off, "arguments": {}})["error"]
            assert error["code"] == -32602
            assert f"{off} is off: start with --tools +" in error["message"]
    server = Program(tmp_path / "db.json", "timeline_mcp.py")
    outcome = server("--tools", "core,nothing")
    assert outcome.code == 2
    assert outcome.out == b""
    assert all(name in outcome.err for name in (b"nothing", b"core", b"more", b"timeline_thaw"))
    for wrong in (["--max-output-chars", "9999"], ["--lock-wait", "-1"], ["--errors", "x"], ["x"]):
        assert server(*wrong).code == 2


VALID: tuple[tuple[str, Json], ...] = (
    ("timeline_append", {"timeline_id": "tl0", "role": "user", "text": "x"}),
    ("timeline_fork", {"node": "n1", "name": "b"}),
    ("timeline_switch", {"timeline_id": "tl0", "name": "b"}),
    ("timeline_switch", {"timeline_id": "tl0", "name": "main"}),
    ("timeline_drop_branch", {"timeline_id": "tl0", "name": "b"}),
    ("timeline_context", {"timeline_id": "tl0", "last": 1}),
    ("timeline_context_budget", {"timeline_id": "tl0", "max_tokens": 100}),
    ("timeline_pin", {"node": "n1"}),
    ("timeline_unpin", {"node": "n1"}),
    ("timeline_exclude", {"node": "n2"}),
    ("timeline_exclude", {"node": "n2", "include": True}),
    ("timeline_fork", {"node": "n2", "name": "old"}),
    ("timeline_append", {"timeline_id": "tl0", "role": "user", "text": "x", "branch": "old"}),
    ("timeline_summarize", {"from": "n1", "to": "n5", "summary": "s"}),
    ("timeline_branches", {"timeline_id": "tl0"}),
    ("timeline_node", {"node": "n1"}),
    ("timeline_archive_check", {"timeline_id": "tl0", "branch": "old"}),
    ("timeline_archive_branch", {"timeline_id": "tl0", "branch": "old"}),
    ("timeline_thaw", {"timeline_id": "tl0", "name": "old"}),
    ("timeline_list", {}),
    ("timeline_summaries", {"timeline_id": "tl0"}),
    ("timeline_search", {"text": "text"}),
)


def test_every_tool_takes_a_good_call_and_refuses_a_bad_one(wire: Wire) -> None:
    wire.create(3)
    assert {name for name, _ in VALID} | {"timeline_create"} == set(names(wire))
    for name, arguments in VALID:
        wire.value(name, arguments)
    before = wire.db.read_bytes()
    for name in names(wire):
        good = next((given for each, given in VALID if each == name), {})
        assert "takes" in wire.error(name, {**good, "surprise": 1})["error"]
        for argument in good:
            assert argument in wire.error(name, {**good, argument: [{}]})["error"]
        if good and name not in ("timeline_list", "timeline_search"):
            assert wire.error(name, {})
    assert wire.db.read_bytes() == before


def test_a_list_takes_null_and_huge_limits(wire: Wire) -> None:
    tl = wire.create(3)
    for limit in (None, 1, 2**53 - 1, "2"):
        for name in ("timeline_list", "timeline_branches", "timeline_summaries", "timeline_search"):
            given: Json = {"timeline_id": tl, "text": "text"}
            wanted = {"timeline_list": (), "timeline_search": ("timeline_id", "text")}
            given = {key: given[key] for key in wanted.get(name, ("timeline_id",))}
            wire.value(name, {**given, "limit": limit})
    assert wire.value("timeline_list", {"limit": 0}) == []
    assert "limit" in wire.error("timeline_list", {"limit": 2**53})["error"]


def test_json_in_a_string_is_taken_out_where_something_else_is_declared(wire: Wire) -> None:
    tl = wire.create(3)
    assert len(wire.value("timeline_context", {"timeline_id": tl, "last": "2"})) == 2
    intent = '{"tag":"goal","note":"n"}'
    given: Json = {"from": "n1", "to": "n2", "summary": "[1]", "derived_from": '["n3"]'}
    node = wire.value("timeline_summarize", {**given, "intent": intent})["node"]
    shown = wire.value("timeline_node", {"node": node, "blocks": "true"})
    assert shown["text"] == "[1]"
    assert shown["intent"] == {"tag": "goal", "note": "n"}
    assert shown["summary"]["derived_from"] == ["n3"]
    for wrong in ("x", "1.5", "true", "[1]", "9" * 5000, ""):
        assert "last" in wire.error("timeline_context", {"timeline_id": tl, "last": wrong})["error"]


def test_a_call_names_its_timeline(wire: Wire) -> None:
    wire.create(1)
    wire.create(1)
    for name, given in (
        ("timeline_append", {"role": "user", "text": "x"}),
        ("timeline_context", {}),
        ("timeline_branches", {}),
        ("timeline_context_budget", {"max_tokens": 9}),
        ("timeline_fork", {"node": "n0", "name": "b"}),
        ("timeline_node", {"node": "n0"}),
        ("timeline_thaw", {"name": "b"}),
    ):
        assert "timeline_id" in wire.error(name, given)["error"], name
    assert wire.value("timeline_context", {"node": "n2"})[0]["node"] == "n2"
    assert wire.value("timeline_fork", {"node": "n0", "name": "b", "timeline_id": "tl1"})


def test_arguments_nested_too_deep_are_a_tool_error(wire: Wire) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    tl = wire.create()
    error = wire.error("timeline_context", {"timeline_id": tl, "last": deep})
    assert "64" in error["error"]
    assert "last" in wire.error("timeline_context", {"timeline_id": tl, "last": deep[0]})["error"]


def test_a_key_gives_the_first_result_also_after_a_restart(wire: Wire) -> None:
    tl = wire.create()
    given: Json = {"timeline_id": tl, "role": "user", "text": "x"}
    first = wire.value("timeline_append", {**given, "idempotency_key": "k"})
    assert wire.value("timeline_append", given, idempotency_key="k") == first
    both = {**given, "idempotency_key": "k"}
    assert wire.value("timeline_append", both, idempotency_key="k") == first
    assert "idempotency_key" in wire.error("timeline_append", both, idempotency_key="j")["error"]
    with Wire(wire.db) as other:
        assert other.open().value("timeline_append", given, idempotency_key="k") == first
    assert len(wire.value("timeline_context", {"timeline_id": tl})) == 1
    assert "key" in wire.error("timeline_list", idempotency_key="k")["error"]
    assert "key" in wire.error("timeline_node", {"node": "n1", "idempotency_key": "k"})["error"]
    budget = {"timeline_id": tl, "max_tokens": 9, "idempotency_key": "b"}
    assert "key" in wire.error("timeline_context_budget", {**budget, "dry_run": True})["error"]
    shown = wire.value("timeline_context_budget", budget)
    assert wire.value("timeline_context_budget", {**budget, "max_tokens": 1}) == shown


def test_failures_as_errors_of_the_protocol(tmp_path: Path) -> None:
    with Wire(tmp_path / "db.json", "--errors", "jsonrpc") as wire:
        tl = wire.open().create(1)
        for tokens in (1000, 1000):
            arguments = {"timeline_id": tl, "role": "user", "text": "x", "tokens": tokens}
            wire.value("timeline_append", arguments)
        wire.value("timeline_pin", {"node": "n2"})
        given: Json = {"name": "timeline_context_budget"}
        given["arguments"] = {"timeline_id": tl, "max_tokens": 1}
        error = wire.request("tools/call", given)["error"]
        assert error["code"] == -32000
        assert error["message"] == "budget infeasible"
        assert set(error["data"]) == {"required_tokens", "max_tokens"}
        given["arguments"] = {"timeline_id": tl, "max_tokens": "x"}
        assert wire.request("tools/call", given)["error"]["code"] == -32602


def test_twenty_calls_without_waiting(wire: Wire) -> None:
    tl = wire.create()
    arguments = {"timeline_id": tl, "role": "user", "text": "x"}
    answers = wire.ask(*(tool_call("timeline_append", arguments, f"r{n}") for n in range(20)))
    assert [each["id"] for each in answers] == [f"r{n}" for n in range(20)]
    nodes = [each["result"]["structuredContent"]["node"] for each in answers]
    assert nodes == [f"n{n}" for n in range(1, 21)]
    assert len(wire.value("timeline_context", {"timeline_id": tl})) == 20


def run_servers(tmp_path: Path, count: int) -> None:
    wires = [Wire(tmp_path / "db.json", "--lock-wait", "60").open() for _ in range(4)]
    try:
        tl = wires[0].create()
        for number in range(4):
            given = {"timeline_id": tl, "node": "n0", "name": f"b{number}"}
            wires[number].value("timeline_fork", given)
        for number, wire in enumerate(wires):
            arguments = {"timeline_id": tl, "role": "user", "text": "x", "branch": f"b{number}"}
            wire.tell(*(tool_call("timeline_append", arguments, n) for n in range(count)))
        nodes: set[str] = set()
        for number, wire in enumerate(wires):
            answers = wire.exchange(b"", count)
            mine = [each["result"]["structuredContent"]["node"] for each in answers]
            given = {"timeline_id": tl, "branch": f"b{number}"}
            assert [row["node"] for row in wires[0].value("timeline_context", given)] == mine
            nodes.update(mine)
        assert nodes == {f"n{n}" for n in range(1, 4 * count + 1)}
    finally:
        for wire in wires:
            wire.__exit__(None, None, None)
    assert Program(tmp_path / "db.json")("doctor").value["ok"] is True


def test_four_servers_on_one_database(tmp_path: Path) -> None:
    run_servers(tmp_path, 40)


@pytest.mark.slow
def test_four_servers_with_many_appends(tmp_path: Path) -> None:
    run_servers(tmp_path, 250)


def test_what_the_command_line_writes_is_seen_at_once(wire: Wire) -> None:
    tl = wire.create()
    tl_program = Program(wire.db)
    node = tl_program("append", "--role", "user", "--text", "by hand").value["node"]
    assert wire.value("timeline_context", {"timeline_id": tl})[0]["node"] == node
    wire.value("timeline_append", {"timeline_id": tl, "role": "user", "text": "x"})
    assert len(tl_program("context").value) == 2
