"""Tools over the wire: the list, each tool's calls, keys, several servers on one database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_mcp
from kit import stories
from kit.program import SCRIPTS
from kit.wire import ENVELOPE, LEGACY, MODERN, Json, Wire, modern, request, tool_call

CORE = {
    "timeline_create", "timeline_append", "timeline_fork", "timeline_switch",
    "timeline_drop_branch", "timeline_context", "timeline_context_budget", "timeline_pin",
    "timeline_unpin", "timeline_summarize", "timeline_branches", "timeline_node",
    "timeline_archive_check", "timeline_archive_branch",
}  # fmt: skip
MORE = {
    "timeline_list", "timeline_thaw", "timeline_summaries", "timeline_search", "timeline_exclude",
}  # fmt: skip


@pytest.fixture
def wire(tmp_path: Path) -> Any:
    with Wire(tmp_path / "t.db") as opened:
        yield opened.open()


def listed(wire: Wire) -> list[Json]:
    tools: list[Json] = wire.request("tools/list")["result"]["tools"]
    return tools


# ---- the list -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "most"), [((), 12_000), (("--tools", "core"), 7_500)])
def test_the_list_of_tools_is_short(tmp_path: Path, options: tuple[str, ...], most: int) -> None:
    with Wire(tmp_path / "t.db", *options) as wire:
        result = wire.open().request("tools/list")["result"]
    assert len(json.dumps(result, separators=(",", ":"), ensure_ascii=False)) <= most
    assert list(result) == ["tools"]


def check_schema(schema: Json, top: bool = True) -> None:
    """The narrow dialect that every client reads."""
    assert type(schema["type"]) is str
    assert set(schema) <= {
        "type", "description", "enum", "default", "properties", "required", "items",
        "additionalProperties",
    }  # fmt: skip
    assert all(type(each) is str for each in schema.get("enum", ()))
    if schema["type"] == "object":
        assert schema["properties"] or top
        assert set(schema.get("required", ())) <= set(schema["properties"])
        if not top:
            assert "additionalProperties" not in schema
        for name, each in schema["properties"].items():
            assert re.fullmatch("[a-z][a-z0-9_]{0,63}", name)
            check_schema(each, False)
    if schema["type"] == "array":
        check_schema(schema["items"], False)


def test_entries_are_such_that_clients_take_them(wire: Wire) -> None:
    tools = listed(wire)
    assert {tool["name"] for tool in tools} == CORE | MORE
    for tool in tools:
        assert set(tool) == {"name", "description", "inputSchema", "annotations"}
        assert re.fullmatch("[a-z][a-z0-9_]*", tool["name"])
        assert len(tool["name"]) <= 24
        assert 60 <= len(tool["description"]) <= 400
        assert "--" not in json.dumps(tool), "an option of the command line"
        check_schema(tool["inputSchema"])
        hints = tool["annotations"]
        assert set(hints) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
        name = tool["name"].removeprefix("timeline_")
        assert hints["readOnlyHint"] == (
            name in ("context", "branches", "node", "archive_check", "list", "summaries", "search")
        )
        assert hints["destructiveHint"] == (name == "drop_branch")
        assert hints["idempotentHint"] == (name not in ("create", "append", "fork"))
        assert hints["openWorldHint"] is False
        keyed = "idempotency_key" in tool["inputSchema"]["properties"]
        assert keyed == (name in ("create", "append", "summarize"))
        # A client that checks arguments against the schema can send all that the tool takes.
        takes = timeline_mcp.TOOLS[tool["name"]].by_name
        closed = tool["inputSchema"].get("additionalProperties") is False
        assert closed == (set(takes) == set(tool["inputSchema"]["properties"]))


def test_the_list_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with Wire(tmp_path / "t.db") as wire:
            wire.open()
            for _ in range(2):
                seen.add(json.dumps(listed(wire)))
                (answer,) = wire.ask(modern("tools/list"))
                assert answer["result"]["tools"] == listed(wire)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("core", CORE),
        ("more", MORE),
        ("core,more", CORE | MORE),
        ("timeline_node", {"timeline_node"}),
        ("more,timeline_node", MORE | {"timeline_node"}),
        ("+timeline_node", CORE | MORE),
        (" core , +more ", CORE | MORE),
        ("", CORE | MORE),
    ],
)
def test_tools_are_chosen_by_group_and_name(tmp_path: Path, choice: str, names: set[str]) -> None:
    with Wire(tmp_path / "t.db", "--tools", choice) as wire:
        assert {tool["name"] for tool in listed(wire.open())} == names


def test_an_unknown_tool_is_named_at_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "timeline_mcp.py"), "--tools", "core,nope"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"nope" in done.stderr
    assert b"core" in done.stderr
    assert b"timeline_context_budget" in done.stderr


def test_a_tool_that_is_off_says_how_to_turn_it_on(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db", "--tools", "core") as wire:
        answer = wire.open().request("tools/call", {"name": "timeline_list"})
        assert answer["error"] == {
            "code": -32602,
            "message": "timeline_list is off: start with --tools +more",
        }


# ---- calls --------------------------------------------------------------------------------------

# A valid and an invalid call of each tool, in an order in which the valid ones work.
TL = {"timeline_id": "tl0"}
CALLS: list[tuple[str, Json, Json]] = [
    ("create", {"title": "t", "estimator": "wide"}, {"estimator": "none"}),
    ("append", {**TL, "role": "user", "text": "one"}, {**TL, "role": "boss", "text": "x"}),
    (
        "append",
        {**TL, "role": "assistant", "text": "two", "intent": {"tag": "t"}, "expect_head": "n1"},
        {**TL, "role": "user"},
    ),
    ("fork", {"node": "n1", "name": "b"}, {"node": "1", "name": "c"}),
    ("append", {**TL, "branch": "b", "role": "tool", "text": "3"}, {**TL, "role": "user",
     "text": "x", "branch": "none"}),
    ("switch", {**TL, "name": "b"}, {**TL, "name": ""}),
    ("switch", {**TL, "name": "main"}, {**TL}),
    ("branches", {**TL, "all": True}, {**TL, "limit": -1}),
    ("context", {**TL, "last": 2}, {"node": "n1", "branch": "b"}),
    ("node", {"node": "n2"}, {"node": "n99"}),
    ("pin", {"node": "n1"}, {"node": ["n1"]}),
    ("context_budget", {**TL, "max_tokens": 100, "explain": True}, {**TL, "max_tokens": 0}),
    ("unpin", {"node": "n1"}, {"node": "n0"}),
    ("exclude", {"node": "n2"}, {"node": "n2", "include": "perhaps"}),
    ("exclude", {"node": "n2", "include": True}, {"include": True}),
    ("summarize", {"from": "n1", "to": "n3", "summary": "s"}, {"from": "n3", "to": "n1",
     "summary": "s"}),
    ("summaries", {**TL, "branch": "b"}, {**TL, "after": "n99"}),
    ("search", {"text": "ONE", "ignore_case": True}, {"text": "(", "regex": True}),
    ("archive_check", {**TL, "branch": "b"}, {**TL, "branch": "none"}),
    ("archive_branch", {**TL, "branch": "b", "scope": "own"}, {**TL, "branch": "main"}),
    ("thaw", {**TL, "name": "b"}, {**TL, "name": "main"}),
    ("drop_branch", {**TL, "name": "b"}, {**TL, "name": "main"}),
    ("list", {}, {"project": 7}),
]  # fmt: skip
SHAPES: dict[str, Any] = {
    "create": {"timeline_id"}, "append": {"node"}, "fork": {"branch", "head"},
    "switch": {"current_branch"}, "drop_branch": {"dropped"}, "pin": {"pinned"},
    "unpin": {"unpinned"}, "summarize": {"node"}, "archive_check": {"eligible", "reasons"},
    "archive_branch": {"archived"}, "thaw": {"thawed"},
    "context_budget": {"messages", "total_tokens", "summaries_created", "explain"},
}  # fmt: skip


@pytest.mark.parametrize(
    "revision",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in LEGACY[1:]), LEGACY[0], MODERN],
)
def test_each_tool_with_a_valid_and_an_invalid_argument(tmp_path: Path, revision: str) -> None:
    with Wire(tmp_path / "t.db") as wire:
        if revision != MODERN:
            wire.open(revision)
        for short, valid, invalid in CALLS:
            name = f"timeline_{short}"
            for arguments, works in ((invalid, False), (valid, True)):
                if revision == MODERN:
                    params = {"name": name, "arguments": arguments}
                    (answer,) = wire.ask(modern("tools/call", params))
                    result = answer["result"]
                    assert result.pop("resultType") == "complete"
                    assert set(result.pop("_meta")) == {"io.modelcontextprotocol/serverInfo"}
                else:
                    result = wire.call(name, arguments)
                assert result.get("isError", False) != works, (name, arguments, result)
                value = json.loads(result["content"][0]["text"])
                if works and short in SHAPES:
                    assert set(value) == SHAPES[short]
                if not works:
                    assert len(value["error"]) > 10
        assert {f"timeline_{short}" for short, _, _ in CALLS} == CORE | MORE
        assert len(wire.value("timeline_context", TL) if revision != MODERN else "nn") == 2
    assert stories.doctor(tmp_path / "t.db")["ok"]


def test_unknown_arguments_and_a_missing_timeline_are_named(wire: Wire) -> None:
    wire.create(2)
    assert "colour" in wire.error("timeline_pin", {"node": "n1", "colour": 1})["error"]
    for name, arguments in (
        ("append", {"role": "user", "text": "x"}),
        ("context", {}),
        ("context_budget", {"max_tokens": 5}),
        ("branches", {}),
        ("thaw", {"name": "b"}),
        ("fork", {"node": "n0", "name": "b"}),
        ("node", {"node": "n0"}),
    ):
        assert "needs timeline_id" in wire.error(f"timeline_{name}", arguments)["error"]
    assert len(wire.value("timeline_context", {"node": "n2"})) == 2
    assert wire.value("timeline_fork", {"node": "n0", "name": "b", **TL})["head"] == "n0"


def test_the_first_call_of_a_session_is_answered_where_nothing_is_yet(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Wire(db) as wire:
        wire.open()
        result = wire.request("tools/call", {"name": "timeline_list"})["result"]
        assert "isError" not in result
        assert json.loads(result["content"][0]["text"]) == []
        warning = result["content"][1]["text"]
        assert str(db) in warning
        assert "timeline_create" in warning
        assert result["structuredContent"] == {"result": [], "warning": warning}
        assert "limit" in wire.error("timeline_list", {"limit": -1})["error"]
        assert str(db) in wire.error("timeline_context", TL)["error"]
        assert os.listdir(tmp_path) == [wire.log.name]
        wire.create()
        assert len(wire.call("timeline_list")["content"]) == 1


def test_errors_speak_of_tools_not_of_the_command_line(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db") as wire:
        wire.open()
        said = [wire.error("timeline_context", TL)["error"]]
        assert "timeline_create" in said[0]
        wire.create(3)
        wire.value("timeline_fork", {"node": "n2", "name": "side", **TL})
        whole = {"node": "n2", "name": "gone", **TL}
        wire.value("timeline_fork", whole)
        wire.value("timeline_drop_branch", {"name": "gone", **TL})
        wire.value("timeline_append", {"role": "user", "text": "x", "branch": "side", **TL})
        wire.value("timeline_summarize", {"from": "n4", "to": "n4", "summary": "s"})
        wire.value("timeline_archive_branch", {"branch": "side", "scope": "own", **TL})
        archived = wire.error("timeline_switch", {"name": "side", **TL})
        assert archived["error"] == 'unknown branch "side"'
        assert archived["data"]["status"] == "archived"
        assert "timeline_thaw" in archived["data"]["next"]
        dropped = wire.error("timeline_switch", {"name": "gone", **TL})
        assert dropped["data"]["status"] == "dropped"
        never = wire.error("timeline_switch", {"name": "never", **TL})
        assert never["data"]["branches"] == ["main"]
        wire.value("timeline_fork", {"node": "n2", "name": "side", **TL})
        for name, arguments in (
            ("thaw", {"name": "side", **TL}),
            ("fork", {"node": "n4", "name": "other", **TL}),
            ("archive_check", {"branch": "side", "colour": 1, **TL}),
            ("context_budget", {"max_tokens": 5, "colour": 1, **TL}),
            ("append", {"role": "user", "text": "x", "intent": {}, **TL}),
        ):
            said.append(wire.error(f"timeline_{name}", arguments)["error"])
        for each in said[1:]:
            assert not re.search("--[a-z]", each), each
            for word in each.split("`")[1::2]:
                assert word in timeline_mcp.TOOLS or word == "as_name", each
            assert "None" not in each


def test_a_pattern_that_takes_for_ever_is_stopped_and_the_others_are_served(tmp_path: Path) -> None:
    quick = f"import sys; sys.path[:0] = [{str(SCRIPTS)!r}]; import timeline_mcp as server; "
    program = [sys.executable, "-c", quick + "server.REGEX_S = 1; server.main()"]
    with Wire(tmp_path / "t.db", program=program) as wire:
        wire.open().create()
        wire.value("timeline_append", {"role": "user", "text": "a" * 60 + "!", **TL})
        said = wire.error("timeline_search", {"text": "(a+)+b", "regex": True})
        assert "was stopped" in said["error"]
        found = wire.value("timeline_search", {"text": "a+!", "regex": True, "limit": 1})
        assert [each["node"] for each in found] == ["n1"]
        for text in ("(", "\0*(", "a{99999999999}"):
            assert (
                "regular expression"
                in wire.error("timeline_search", {"text": text, "regex": True})["error"]
            )
        unknown = {"text": "a", "regex": True, "branch": "no", **TL}
        assert wire.error("timeline_search", unknown)["error"] == 'unknown branch "no"'


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_search_ends_though_its_server_was_killed(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db") as wire:
        wire.open().create()
        wire.value("timeline_append", {"role": "user", "text": "a" * 60 + "!", **TL})
        wire.tell(tool_call("timeline_search", {"text": "(a+)+b", "regex": True}))
        children: list[str] = []
        tasks = Path(f"/proc/{wire.process.pid}/task/{wire.process.pid}/children")
        until = time.monotonic() + 20
        while not children and time.monotonic() < until:
            children = tasks.read_text().split()
        wire.process.kill()
        wire.process.wait()
        while any(Path(f"/proc/{each}").exists() for each in children):
            assert time.monotonic() < until, "it runs on"
            time.sleep(0.2)
        assert children


def test_json_within_strings_is_taken_for_what_it_says(wire: Wire) -> None:
    wire.create(2)
    arguments = {
        **TL, "role": "user", "text": '{"not": "unwrapped"}', "tokens": "7",
        "intent": '{"tag": "t", "note": "n"}',
    }  # fmt: skip
    node = wire.value("timeline_append", arguments)["node"]
    shown = wire.value("timeline_node", {"node": node, "blocks": "false"})
    assert (shown["tokens"], shown["text"]) == (7, '{"not": "unwrapped"}')
    assert shown["intent"] == {"tag": "t", "note": "n"}
    said = {"from": "n1", "to": "n2", "summary": "12", "derived_from": '["n3"]'}
    shown = wire.value("timeline_node", {"node": wire.value("timeline_summarize", said)["node"]})
    assert shown["summary"]["derived_from"] == ["n3"]
    assert shown["text"] == "12"
    for wrong in ("seven", "7.5", "[7]", "true"):
        assert "tokens" in wire.error("timeline_append", {**arguments, "tokens": wrong})["error"]


def test_arguments_that_are_very_deep_are_a_tool_error(wire: Wire) -> None:
    wire.create()
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    assert "64" in wire.error("timeline_append", {**TL, "role": "user", "text": deep})["error"]


def test_failures_as_json_rpc_errors(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db", "--errors", "jsonrpc") as wire:
        wire.open()

        def error(name: str, arguments: Json) -> Json:
            params = {"name": f"timeline_{name}", "arguments": arguments}
            found: Json = wire.request("tools/call", params)["error"]
            return found

        missing = error("context", TL)
        assert missing["code"] == -32000
        wire.create()
        for tokens in (1000, 1, 1000, 0):
            arguments = {**TL, "role": "user", "text": "x", "tokens": tokens}
            wire.value("timeline_append", arguments)
        wire.value("timeline_pin", {"node": "n2"})
        assert error("context_budget", {**TL, "max_tokens": 1}) == {
            "code": -32000,
            "message": "budget infeasible",
            "data": {"required_tokens": 65, "max_tokens": 1},
        }
        assert error("context_budget", {**TL, "max_tokens": "x"})["code"] == -32602
        assert error("node", {"node": "n77"})["message"] == "unknown node n77"


# ---- idempotency --------------------------------------------------------------------------------


def test_a_key_in_arguments_or_beside_them(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    said: Json = {**TL, "role": "user", "text": "once"}
    with Wire(db) as wire:
        wire.open().create()
        first = wire.value("timeline_append", {**said, "idempotency_key": "k"})
        assert wire.value("timeline_append", said, idempotency_key="k") == first
        both = {**said, "text": "other", "idempotency_key": "k"}
        assert wire.value("timeline_append", both, idempotency_key="k") == first
        before = db.read_bytes()
        wrong = wire.error("timeline_append", both, idempotency_key="l")
        assert "idempotency_key" in wrong["error"]
        for name, arguments in (("context", TL), ("list", {}), ("node", {"node": "n1"})):
            refused = wire.error(f"timeline_{name}", arguments, idempotency_key="k")
            assert "idempotency key" in refused["error"]
        dry = {**TL, "max_tokens": 9, "dry_run": True}
        assert "error" in wire.error("timeline_context_budget", dry, idempotency_key="q")
        assert db.read_bytes() == before
    with Wire(db) as wire:
        wire.open()
        assert wire.value("timeline_append", said, idempotency_key="k") == first
        assert db.read_bytes() == before
        made = wire.value("timeline_create", {}, idempotency_key="c")
        assert wire.value("timeline_create", {"idempotency_key": "c"}) == made
        budget = {**TL, "max_tokens": 50, "idempotency_key": "b"}
        shown = wire.value("timeline_context_budget", budget)
        wire.value("timeline_append", {**said, "text": "later"})
        assert wire.value("timeline_context_budget", budget) == shown


# ---- several at once ----------------------------------------------------------------------------


def test_calls_sent_without_waiting_are_each_answered(wire: Wire) -> None:
    wire.create()
    calls = [
        tool_call("timeline_append", {**TL, "role": "user", "text": f"{n}"}, id=f"call {n}")
        for n in range(20)
    ]
    answers = wire.ask(*calls)
    assert [answer["id"] for answer in answers] == [f"call {n}" for n in range(20)]
    texts = [each["text"] for each in wire.value("timeline_context", TL)]
    assert texts == [f"{n}" for n in range(20)]


def servers_at_work(db: Path, count: int) -> None:
    """Four servers on one database, each on a branch of its own, all sending at once."""
    with Wire(db) as first:
        first.open().create(1)
        for name in "abcd":
            first.value("timeline_fork", {"node": "n1", "name": name})
        wires = [Wire(db).__enter__().open() for _ in range(4)]
        try:
            for wire, name in zip(wires, "abcd", strict=True):
                for n in range(count):
                    said = {**TL, "role": "user", "text": f"{name} {n}", "branch": name}
                    wire.tell(tool_call("timeline_append", said, id=n))
            for wire in wires:
                answers = wire.exchange(b"", count)
                assert [answer["id"] for answer in answers] == list(range(count))
                assert not any("isError" in answer["result"] for answer in answers)
        finally:
            for wire in wires:
                wire.__exit__(None, None, None)
        for name in "abcd":
            ends = {"branch": name, **TL, "last": count}
            texts = [each["text"] for each in first.value("timeline_context", ends)]
            assert texts == [f"{name} {n}" for n in range(count)]
    report = stories.doctor(db)
    assert (report["ok"], report["nodes"]) == (True, 4 * count + 1)


def test_four_servers_write_one_chain_a_branch(tmp_path: Path) -> None:
    servers_at_work(tmp_path / "t.db", 40)


@pytest.mark.slow
def test_four_servers_write_a_thousand_messages(tmp_path: Path) -> None:
    servers_at_work(tmp_path / "t.db", 250)


def test_a_server_sees_at_once_what_the_command_line_wrote(wire: Wire) -> None:
    wire.create()
    for number in range(3):
        said = ["append", "--role", "user", "--text", f"{number}", "--db", str(wire.db)]
        subprocess.run(
            [sys.executable, str(SCRIPTS / "tl.py"), *said], check=True, capture_output=True
        )
        assert wire.value("timeline_context", {**TL, "last": 1})[0]["text"] == f"{number}"
        shown = wire.value("timeline_node", {"node": f"n{number + 1}"})
        assert shown["via"] == "cli"
    wire.value("timeline_append", {**TL, "role": "user", "text": "mine"})
    assert wire.value("timeline_node", {"node": "n4"})["via"] == "mcp"


def test_nothing_is_made_or_locked_before_the_first_call(tmp_path: Path) -> None:
    with Wire(tmp_path / "none.db") as wire:
        wire.open()
        listed(wire)
        wire.ask(modern("server/discover"), request("ping", id=2))
        assert [name for name in os.listdir(tmp_path) if "stderr" not in name] == []
        assert "create" in wire.error("timeline_context", TL)["error"]
        assert [name for name in os.listdir(tmp_path) if "stderr" not in name] == []
        wire.create()
        # Between calls anybody may write.
        timeline.Database(str(wire.db), wait_s=0).run("append", {"role": "user", "text": "x"})
        assert len(wire.value("timeline_context", TL)) == 1


def test_a_database_in_use_is_waited_for_and_then_named(tmp_path: Path) -> None:
    with Wire(tmp_path / "t.db", "--lock-wait", "0.1") as wire:
        wire.open().create()
        held = timeline.lock(f"{wire.db}.lock", True, 1)
        try:
            said = wire.error("timeline_append", {**TL, "role": "user", "text": "x"})
        finally:
            timeline.unlock(held)
        assert said["data"] == {"waited_s": 0.1, "retry": True}
        wire.value("timeline_append", {**TL, "role": "user", "text": "x"})


def test_envelope_and_handshake_see_one_database(wire: Wire) -> None:
    wire.create(1)
    call = {"name": "timeline_context", "arguments": TL, "_meta": ENVELOPE}
    (answer,) = wire.ask(request("tools/call", call))
    assert answer["result"]["structuredContent"] == {"result": wire.value("timeline_context", TL)}


def test_limits_are_those_that_the_documents_name() -> None:
    assert (timeline_mcp.OUTPUT_CHARS, timeline_mcp.LOCK_WAIT_S) == (40_000, 4.0)
