"""One recorded session for each revision, and both kinds of client on one pipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.wire import ENVELOPE, LEGACY, MODERN, Json, P, Wire, modern, request, tool_call

ANNOTATIONS = {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with Wire(tmp_path / "db.json") as running:
        yield running


def hello(version: object, id: object = 0) -> Json:
    client = {"name": "t", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return request("initialize", params, id)


@pytest.mark.parametrize("revision", LEGACY)
def test_a_session_with_a_handshake(wire: Wire, revision: str) -> None:
    later = revision >= "2025-06-18"
    hello_answer, pong, listed, created, appended, shown, failed, unknown, off = wire.ask(
        hello(revision),
        request("ping", id=1),
        request("tools/list", {}, 2),
        tool_call("timeline_create", {}, 3),
        tool_call("timeline_append", {"timeline_id": "tl0", "role": "user", "text": "é中"}, "four"),
        tool_call("timeline_context", {"timeline_id": "tl0"}, 5),
        tool_call("timeline_node", {"node": "n9"}, 6),
        tool_call("timeline_nothing", {}, 7),
        request("server/thing", {}, 8),
    )
    info = {"name": "timeline", "version": timeline.version()}
    assert hello_answer["result"] == {
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {**info, "title": "Timeline"} if later else info,
        "instructions": hello_answer["result"]["instructions"],
    }
    assert len(hello_answer["result"]["instructions"]) < 1_500
    assert pong == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert set(listed["result"]) == {"tools"}
    for tool in listed["result"]["tools"]:
        fields = {"name", "description", "inputSchema"}
        assert set(tool) == (fields if revision == "2024-11-05" else fields | {"annotations"})
        assert set(tool.get("annotations", ANNOTATIONS)) == ANNOTATIONS

    def expect(text: str, structured: Json) -> Json:
        content = [{"type": "text", "text": text}]
        return {"content": content, **({"structuredContent": structured} if later else {})}

    assert created["result"] == expect('{"timeline_id":"tl0"}', {"timeline_id": "tl0"})
    assert appended["id"] == "four"
    assert appended["result"] == expect('{"node":"n1"}', {"node": "n1"})
    row = {"node": "n1", "role": "user", "text": "é中", "tokens": 1}
    text = '[{"node":"n1","role":"user","text":"é中","tokens":1}]'
    assert shown["result"] == expect(text, {"result": [row]})
    assert failed["result"] == {
        "content": [{"type": "text", "text": '{"error":"unknown node n9","data":{"node":"n9"}}'}],
        "isError": True,
    }
    assert unknown["error"]["code"] == -32602
    assert "timeline_nothing" in unknown["error"]["message"]
    assert off["error"]["code"] == -32601


@pytest.mark.parametrize("revision", LEGACY)
def test_batches_are_for_the_first_two_revisions(wire: Wire, revision: str) -> None:
    wire.open(revision)
    batch = [
        tool_call("timeline_create", {}, 1),
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "timeline_create"}},
        tool_call("timeline_append", {"timeline_id": "tl0", "role": "user", "text": "x"}, "2"),
        7,
        {"jsonrpc": "2.0", "id": 5, "result": {}},
        request("initialize", {"protocolVersion": revision}, 3),
        modern("tools/list", id=4),
        [],
    ]
    (answers,) = wire.ask(batch)
    if revision >= "2025-06-18":
        assert answers["id"] is None
        assert answers["error"]["code"] == -32600
        assert wire.value("timeline_list") == [] if wire.db.exists() else True
        assert not wire.db.exists()
        return
    outcome = [(each["id"], each.get("error", {}).get("code")) for each in answers]
    wanted = [(1, None), ("2", None), (None, -32600), (3, -32600), (4, None), (None, -32600)]
    assert outcome == wanted
    assert answers[4]["result"]["resultType"] == "complete"
    (empty,) = wire.ask([])
    assert (empty["id"], empty["error"]["code"]) == (None, -32600)
    notice: Json = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
    assert wire.until_pong([notice, notice]) == []
    (bad,) = wire.ask([1, 2])
    assert [each["error"]["code"] for each in bad] == [-32600, -32600]


def test_no_batch_before_a_handshake(wire: Wire) -> None:
    (answer,) = wire.ask([modern("server/discover")])
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


def check_modern(result: Json, *more: str) -> Json:
    assert set(result) == {"resultType", "_meta", *more}
    assert result["resultType"] == "complete"
    info = {"name": "timeline", "version": timeline.version(), "title": "Timeline"}
    assert result["_meta"] == {P + "serverInfo": info}
    if "ttlMs" in more:
        assert type(result["ttlMs"]) is int
        assert result["ttlMs"] >= 0
        assert result["cacheScope"] in ("public", "private")
    return result


def test_a_session_without_a_handshake(wire: Wire) -> None:
    found, listed, created, failed, removed, unknown, wrong = wire.ask(
        modern("server/discover", id="probe"),
        modern("tools/list", {"inputResponses": {}, "requestState": "x"}, 2),
        modern("tools/call", {"name": "timeline_create"}, 3),
        modern("tools/call", {"name": "timeline_node", "arguments": {"node": "n9"}}, 4),
        modern("ping", id=5),
        modern("tools/call", {"name": "x"}, 6),
        modern("tools/list", {"cursor": "2"}, 7),
    )
    cached = ("ttlMs", "cacheScope")
    result = check_modern(
        found["result"], "supportedVersions", "capabilities", "instructions", *cached
    )
    assert result["supportedVersions"] == [MODERN]
    assert result["capabilities"] == {"tools": {}}
    result = check_modern(listed["result"], "tools", *cached)
    assert set(result["tools"][0]) == {"name", "description", "inputSchema", "annotations"}
    result = check_modern(created["result"], "content", "structuredContent")
    assert result["structuredContent"] == {"timeline_id": "tl0"}
    result = check_modern(failed["result"], "content", "isError")
    assert result["isError"] is True
    codes = [each["error"]["code"] for each in (removed, unknown, wrong)]
    assert codes == [-32601, -32602, -32602]


METHODS_GONE = (
    "ping", "logging/setLevel", "subscriptions/listen", "prompts/list", "resources/list",
    "resources/templates/list", "resources/subscribe", "completion/complete", "tasks/list",
    "notifications/initialized", "rpc.x", "",
)  # fmt: skip


@pytest.mark.parametrize("handshake", [False, True])
def test_the_envelope_is_looked_at_step_by_step(wire: Wire, handshake: bool) -> None:
    if handshake:
        wire.open()
    version, capabilities = P + "protocolVersion", P + "clientCapabilities"

    def code(method: str, params: object) -> Any:
        return wire.request(method, params).get("error", {}).get("code")

    for params in (None, {}, {"_meta": None}, {"_meta": 5}, {"_meta": []}, {"_meta": {}}):
        assert code("server/discover", params) == -32602
    for method in ("server/discover", "tools/list", "tools/call", "unknown"):
        for wrong in (5, None, {}, [MODERN]):
            meta = {version: wrong, capabilities: {}}
            assert code(method, {"_meta": meta}) == -32602
        for wrong in (5, None, [], "x"):
            meta = {version: MODERN, capabilities: wrong}
            assert code(method, {"_meta": meta}) == -32602
        assert code(method, {"_meta": {version: MODERN}}) == -32602
        for asked in ("2025-11-25", "2099-01-01", "", "x" * 10_000, "\ud800"):
            answer = wire.request(method, {"_meta": {version: asked, capabilities: {}}})
            assert answer["error"]["code"] == -32022
            data = answer["error"]["data"]
            assert data["supported"] == [MODERN]
            assert type(data["requested"]) is str
            assert len(data["requested"]) <= 200
    for method in METHODS_GONE:
        assert code(method, {"_meta": ENVELOPE}) == -32601
    for meta in (ENVELOPE, {**ENVELOPE, P + "clientInfo": 5, P + "logLevel": "debug", "x": 1}):
        assert code("server/discover", {"_meta": meta}) is None


def test_a_handshake_with_an_unknown_version_is_offered_the_newest(wire: Wire) -> None:
    for asked in (MODERN, "2024-10-07", "2099-01-01", "", "junk", "x" * 10_000):
        (answer,) = wire.ask(hello(asked))
        assert answer["result"]["protocolVersion"] == "2025-11-25"
    for wrong in (None, 5, {}):
        (answer,) = wire.ask(hello(wrong))
        assert answer["error"]["code"] == -32602
    (answer,) = wire.ask(request("initialize"))
    assert answer["error"]["code"] == -32602
    (answer,) = wire.ask(modern("initialize"))
    assert answer["error"]["code"] == -32601
    # Stamped with an envelope, but a handshake.
    (answer,) = wire.ask(modern("initialize", {"protocolVersion": "2025-03-26"}))
    assert answer["result"]["protocolVersion"] == "2025-03-26"
    assert set(answer["result"]["serverInfo"]) == {"name", "version"}


def test_the_last_handshake_counts(wire: Wire) -> None:
    for revision in (*LEGACY, *reversed(LEGACY)):
        wire.open(revision)
        assert wire.revision == revision
        tools = wire.request("tools/list")["result"]["tools"]
        assert ("annotations" in tools[0]) == (revision != "2024-11-05")


def test_an_old_and_a_new_client_share_a_pipe(wire: Wire) -> None:
    """Claude Code probes with an envelope and opens with a handshake afterwards."""
    early, found, opened, listed, old, new, again, last = wire.ask(
        request("tools/list", {}, 1),
        modern("server/discover", id=2),
        hello("2024-11-05", 3),
        modern("tools/list", id=4),
        tool_call("timeline_create", {}, 5),
        modern("tools/call", {"name": "timeline_list"}, 6),
        hello("2025-11-25", 7),
        tool_call("timeline_list", {}, 8),
    )
    assert early["error"]["code"] == -32602
    assert "initialize" in early["error"]["message"]
    assert P + "protocolVersion" in early["error"]["message"]
    assert found["result"]["resultType"] == "complete"
    assert opened["result"]["protocolVersion"] == "2024-11-05"
    assert "annotations" in listed["result"]["tools"][0]
    assert set(old["result"]) == {"content"}
    check_modern(new["result"], "content", "structuredContent")
    assert "resultType" not in again["result"]
    assert set(last["result"]) == {"content", "structuredContent"}


def test_before_a_handshake_only_tools_are_refused(wire: Wire) -> None:
    early = wire.ask(
        request("ping"),
        request("resources/list"),
        request("resources/templates/list"),
        request("prompts/list"),
        request("tools/call", {"name": "timeline_create"}),
        request("unknown"),
        request("logging/setLevel", {"level": "debug"}),
    )
    assert [each.get("result") for each in early[:4]] == [
        {},
        {"resources": []},
        {"resourceTemplates": []},
        {"prompts": []},
    ]
    assert [each["error"]["code"] for each in early[4:]] == [-32602, -32601, -32601]
    assert not wire.db.exists()
