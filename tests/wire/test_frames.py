"""What comes in on a line, however nasty, and what goes out."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline_mcp
from kit.wire import ENVELOPE, LEGACY, Json, P, Wire, frame, modern, request, tool_call

MAX = timeline_mcp.FRAME_BYTES_MAX
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """One server for all that needs no empty database."""
    with Wire(tmp_path_factory.mktemp("wire") / "db.json") as running:
        yield running.open()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Wire]:
    with Wire(tmp_path / "db.json") as running:
        yield running.open()


def codes(answers: list[Any]) -> list[tuple[Any, Any]]:
    return [(each["id"], each.get("error", {}).get("code")) for each in answers]


def test_blank_lines_carriage_returns_and_marks_are_passed_over(wire: Wire) -> None:
    assert wire.until_pong(b"", b" ", b"\t \r", b"\r", b"\xef\xbb\xbf", b"\xef\xbb\xbf \r") == []
    pongs = wire.ask(PING + b"\r", b"\xef\xbb\xbf" + PING, b" \t" + PING + b" ")
    assert [each["result"] for each in pongs] == [{}, {}, {}]


NOT_JSON = {
    "words": b"hello",
    "half": PING[:-1],
    "two values": PING + PING,
    "two values, spaced": PING + b" " + PING,
    "no utf-8": PING.replace(b"ping", b"p\xff"),
    "overlong utf-8": PING.replace(b"ping", b"\xc0\xaf"),
    "surrogate in utf-8": PING.replace(b"ping", b"\xed\xa0\x80"),
    "utf-16": PING.decode().encode("utf-16-le").replace(b"\n", b""),
    "nul": PING + b"\0",
    "nul before": b"\0" + PING,
    "nul in a string": PING.replace(b"ping", b"p\0"),
    "tab in a string": PING.replace(b"ping", b"p\t"),
    "mark inside": PING + b"\xef\xbb\xbf",
    "two marks": b"\xef\xbb\xbf\xef\xbb\xbf" + PING,
    "NaN": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}',
    "NaN as id": b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    "1e400": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":1e400}}',
    "long number": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + b"9" * 5000 + b"}}",
    "long id": b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
    "deep": b"[" * 100_000,
    "deep, closed": b'{"id":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "single quotes": b"{'jsonrpc':'2.0'}",
    "comment": PING + b"//",
    "trailing comma": b'{"jsonrpc":"2.0","id":1,"method":"ping",}',
    "hex": b"0x10",
    "half a pair as id": b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
}


def test_what_is_not_json_is_answered_once_without_an_id(wire: Wire) -> None:
    for what, line in NOT_JSON.items():
        assert codes(wire.until_pong(line)) == [(None, -32700)], what


NO_REQUEST: dict[str, tuple[Any, Any]] = {
    "number": (5, None),
    "string": ("ping", None),
    "null": (None, None),
    "true": (True, None),
    "empty": ({}, None),
    "no version": ({"id": 7, "method": "ping"}, 7),
    "wrong version": ({"jsonrpc": "1.0", "id": "7", "method": "ping"}, "7"),
    "version as number": ({"jsonrpc": 2.0, "id": 7, "method": "ping"}, 7),
    "no method": ({"jsonrpc": "2.0", "id": 7}, 7),
    "method null": ({"jsonrpc": "2.0", "id": 7, "method": None}, 7),
    "method list": ({"jsonrpc": "2.0", "id": 7, "method": ["ping"]}, 7),
    "method and result": ({"jsonrpc": "2.0", "id": 7, "method": 1, "result": 1}, 7),
    "no version, bad id": ({"id": 1.5, "method": "ping"}, None),
    "no version, notification": ({"method": "notifications/cancelled"}, None),
    "id null": (request("ping", id=None), None),
    "id float": (request("ping", id=1.0), None),
    "id bool": (request("ping", id=True), None),
    "id object": (request("ping", id={}), None),
    "id array": (request("ping", id=[1]), None),
    "batch": ([request("ping")], None),
    "empty batch": ([], None),
}


def test_json_that_is_no_request(wire: Wire) -> None:
    for what, (message, known) in NO_REQUEST.items():
        assert codes(wire.until_pong(message)) == [(known, -32600)], what


def test_a_request_without_a_good_id_is_not_run(fresh: Wire) -> None:
    for bad in (None, 1.0, True, {}, []):
        found = fresh.until_pong(tool_call("timeline_create", {}, bad))
        assert codes(found) == [(None, -32600)]
    assert not fresh.db.exists()


def test_an_id_comes_back_as_it_was(wire: Wire) -> None:
    ids = ["", 0, -1, 2**70, -(2**70), 1, "1", "x" * 5000, 'é中\u2028\0"\\', "🚀", 1, "null"]
    answers = wire.ask(*(request("ping", id=each) for each in ids))
    assert [each["id"] for each in answers] == ids
    assert [type(each["id"]) for each in answers] == [type(each) for each in ids]


def test_a_notification_is_never_answered_and_never_carried_out(fresh: Wire) -> None:
    methods = ("tools/call", "initialize", "ping", "tools/list", "notifications/cancelled", "x")
    paramses: tuple[Any, ...] = (
        {"name": "timeline_create", "arguments": {}},
        {"protocolVersion": "2024-11-05"},
        {"requestId": "pong", "_meta": ENVELOPE},
        [1],
        5,
        None,
    )
    notices = [
        {"jsonrpc": "2.0", "method": method, "params": params}
        for method in methods
        for params in paramses
    ]
    assert fresh.until_pong(*notices) == []
    assert not fresh.db.exists()
    tools = fresh.request("tools/list")["result"]["tools"]
    assert "annotations" in tools[0], "a notification shook hands"


def test_a_response_is_passed_over_in_silence(wire: Wire) -> None:
    responses: tuple[Json, ...] = (
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}},
        {"id": 1, "result": 5},
        {"error": {}},
    )
    assert wire.until_pong(*responses) == []


def test_params_are_an_object_or_absent(wire: Wire) -> None:
    for wrong in ([], [1], "x", 5, 1.5, True, False, 0, ""):
        for method in ("ping", "tools/list", "initialize", "unknown"):
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": wrong}
            assert codes(wire.ask(message)) == [(1, -32602)]
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}
    assert codes(wire.ask(message)) == [(1, None)]


def test_members_that_are_unknown_or_doubled(wire: Wire) -> None:
    strange = {**request("ping"), "extra": [1], "resultType": "complete", "meta": None}
    assert codes(wire.ask(strange)) == [(1, None)]
    doubled = b'{"jsonrpc":"2.0","id":1,"id":"2","method":"unknown","method":"ping"}'
    assert codes(wire.ask(doubled)) == [("2", None)]


def test_a_malformed_call_is_a_protocol_error(wire: Wire) -> None:
    name = "timeline_list"
    for wrong in (
        {}, {"name": None}, {"name": 5}, {"name": [name]}, {"name": name, "arguments": []},
        {"name": name, "arguments": "{}"}, {"name": name, "arguments": 0}, {"name": ""},
        {"name": "timeline_list "}, {"name": "Timeline_list"}, {"name": "x" * 100_000},
        {"name": "\ud800"}, {"name": "list"}, {"arguments": {}},
    ):  # fmt: skip
        assert codes(wire.ask(request("tools/call", wrong))) == [(1, -32602)], wrong
        assert codes(wire.ask(modern("tools/call", wrong))) == [(1, -32602)], wrong
    for cursor in ("", "x", 0, 5, False, [], {}):
        assert codes(wire.ask(request("tools/list", {"cursor": cursor}))) == [(1, -32602)]
    good: tuple[Json, ...] = (
        request("tools/list", {"cursor": None}),
        request("tools/call", {"name": "timeline_create", "arguments": None}),
        request("tools/call", {"name": "timeline_list", "task": {"ttl": 5}, "extra": 1}),
        request("tools/call", {"name": name, "_meta": {"progressToken": 1}}),
        request("tools/call", {"name": name, "_meta": 5}),
    )
    assert codes(wire.ask(*good)) == [(1, None)] * len(good)


def padded(size: int, head: bytes, tail: bytes) -> bytes:
    return head + b"x" * (size - len(head) - len(tail)) + tail


def test_a_frame_has_at_most_8_mib(wire: Wire) -> None:
    open_, close = b'{"jsonrpc":"2.0","id":"long","method":"ping","params":{"x":"', b'"}}'
    assert codes(wire.ask(padded(MAX, open_, close))) == [("long", None)]
    for size in (MAX + 1, MAX + 2, MAX + 256, 2 * MAX + 17):
        assert codes(wire.until_pong(padded(size, open_, close))) == [("long", -32600)]


def test_the_id_of_a_long_frame_is_found_at_either_end(wire: Wire) -> None:
    inner = b'"params":{"name":"x","arguments":{"id":5,"list":[{"id":6},{"id":'
    cases: list[tuple[bytes, bytes, Any]] = [
        (b'{"method":"ping","params":{"x":"', b'"},"jsonrpc":"2.0","id":17}', 17),
        (b'{"method":"ping","params":{"x":"', b'"},"jsonrpc" : "2.0" , "id" : "a\\"b" }\r', 'a"b'),
        (b'{"id":-3,"method":"ping","params":{"x":"', b'"}}', -3),
        (b'{ "id" : 0 ,"params":{"x":"', b'"}}', 0),
        (b"{" + inner + b'7}],"x":"', b'"}},"id":18}', 18),
        (b"{" + inner + b'7}],"x":"', b'","id":9}},"method":"ping"}', None),
        (b"{" + inner + b'7}],"x":"', b'"},"_meta":{"id":3}},"id":"t","method":"ping"}', "t"),
        (b'{"a":"},\\"id\\":4,{","params":{"x":"', b'"},"id":19}', 19),
        (b'{"method":"notifications/x","params":{"x":"', b'"}}', None),
        (b'{"id":1.5,"params":{"x":"', b'"}}', None),
        (b'{"id":null,"params":{"x":"', b'"}}', None),
        (b'{"id":true,"params":{"x":"', b'"}}', None),
        (b'{"id":"\\ud800","params":{"x":"', b'"}}', None),
        (b"xxx", b"xxx", None),
    ]
    for head, tail, known in cases:
        found = codes(wire.until_pong(padded(MAX + 1000, head, tail)))
        assert found == [(known, -32600)], (head, tail)


# ---- strings -----------------------------------------------------------------------------------


def test_half_a_surrogate_pair_never_comes_back(wire: Wire) -> None:
    tl, half = wire.create(1), "a\ud800"
    for name, arguments in (
        ("timeline_append", {"timeline_id": tl, "role": "user", "text": half}),
        ("timeline_append", {"timeline_id": tl, "role": half, "text": "x"}),
        ("timeline_append", {"timeline_id": tl, "role": "user", "text": "x", half: 1}),
        ("timeline_node", {"node": half}),
        ("timeline_switch", {"timeline_id": tl, "name": half}),
        ("timeline_search", {"text": half}),
        ("timeline_search", {"text": half, "regex": True}),
        ("timeline_create", {"title": half}),
        ("timeline_create", {"idempotency_key": half}),
        ("timeline_list", {"project": half}),
    ):
        result = wire.call(name, arguments)
        assert result.get("isError") or name == "timeline_list", name
    for line in (request(half, id=3), modern(half, id=3), tool_call(half, {}, 3)):
        assert wire.ask(line)[0]["id"] == 3
    assert len(wire.value("timeline_context", {"timeline_id": tl})) == 1


def test_texts_come_back_as_they_were(wire: Wire) -> None:
    tl = wire.create()
    texts = ["", "\u2028\u2029\x85", "\x00\x1b[31m", "é中🚀", '"\\/', "\r\n\n\r", "\ufeffx", "{}"]
    for text in texts:
        arguments = {"timeline_id": tl, "role": "user", "text": text}
        wire.value("timeline_append", arguments)
    rows = wire.value("timeline_context", {"timeline_id": tl})
    assert [row["text"] for row in rows] == texts


def test_an_echoed_value_is_cut_short(wire: Wire) -> None:
    tl, long = wire.create(1), "x" * 100_000
    for name, arguments in (
        ("timeline_append", {"timeline_id": tl, "role": long, "text": "x"}),
        ("timeline_append", {"timeline_id": tl, "role": "user", "text": "x", "branch": long}),
        ("timeline_append", {"timeline_id": tl, "role": "user", "text": "x", long: 1}),
        ("timeline_append", {"timeline_id": long, "role": "user", "text": "x"}),
        ("timeline_context", {"timeline_id": tl, "last": long}),
        ("timeline_context", {"timeline_id": tl, "last": [[long]]}),
        ("timeline_fork", {"node": "n1", "name": long}),
        ("timeline_node", {"node": long}),
        ("timeline_branches", {"timeline_id": tl, "after": long}),
        ("timeline_search", {"text": "(" + long, "regex": True}),
        ("timeline_create", {"title": long}),
        ("timeline_create", {"idempotency_key": long}),
        ("timeline_create", {"estimator": {"a": long}}),
        ("timeline_summarize", {"from": "n1", "to": "n1", "summary": "x", "intent": {long: 1}}),
        ("timeline_summarize", {"from": "n1", "to": "n1", "summary": "x", "derived_from": [long]}),
    ):
        assert len(json.dumps(wire.error(name, arguments))) < 1_000, name
    for line in (request(long), modern(long), tool_call(long, {})):
        (answer,) = wire.ask(line)
        assert answer["error"]["code"] in (-32601, -32602)


# ---- whatever comes ----------------------------------------------------------------------------


class Fuzzer:
    """Frames of every sort; each good request has an id that was not used before."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.sent: list[int] = []

    def new_id(self) -> int:
        self.count += 1
        self.sent.append(self.random.getrandbits(52))  # no changed frame hits upon another's
        return self.sent[-1]

    def value(self, depth: int = 0) -> Any:
        pick = self.random.choice
        kind = self.random.randrange(9 if depth < 3 else 7)
        if kind < 3:
            return pick([None, True, False, 0, -1, 5, 2**63, 1.5, 1e300])
        if kind < 7:
            return pick(
                [
                    "",
                    "x",
                    "n1",
                    "n0",
                    "n999",
                    "tl0",
                    "main",
                    "user",
                    "\ud800",
                    "\0",
                    "中" * 5,
                    "[1]",
                ]
            )
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        return {str(self.value(3)): self.value(depth + 1) for _ in range(self.random.randrange(3))}

    def call(self) -> Json:
        operation = timeline_mcp.TOOLS[self.random.choice(list(timeline_mcp.TOOLS))]
        given: Json = {}
        for argument in operation.arguments:
            if argument.required or self.random.random() < 0.3:
                given[argument.name] = self.good(argument.kind, argument.choices)
            if self.random.random() < 0.1:
                given[argument.name] = self.value()
        if self.random.random() < 0.7 and "timeline_id" in operation.by_name:
            given["timeline_id"] = "tl0"
        return tool_call(operation.tool or "", given, self.new_id())

    def good(self, kind: str, choices: tuple[str, ...]) -> Any:
        if choices:
            return self.random.choice(choices)
        number = self.random.randrange(1, 12)
        return {
            "node": f"n{number}", "branch": "main", "timeline": "tl0", "count": number,
            "tokens": number, "flag": True, "nodes": [f"n{number}"], "key": f"k{number}",
            "intent": {"tag": "t"}, "name": f"b{number}",
        }.get(kind, "text")  # fmt: skip

    def message(self) -> Any:
        kind = self.random.randrange(10)
        if kind < 4:
            message = self.call()
        elif kind < 6:
            method = self.random.choice(["ping", "tools/list", "server/discover", "x", ""])
            message = request(method, self.random.choice([None, {}]), self.new_id())
        elif kind < 7:
            params = {"protocolVersion": self.random.choice([*LEGACY, "x"])}
            message = request("initialize", params, self.new_id())
        elif kind < 8:
            message = self.call()
            del message["id"]
            self.sent.pop()
        else:
            return self.value()
        if self.random.random() < 0.3 and isinstance(message.get("params"), dict):
            message["params"]["_meta"] = {**ENVELOPE, P + "x": self.value()}
        if self.random.random() < 0.1:
            member = self.random.choice(["params", "method", "jsonrpc", "extra"])
            message[member] = self.value()
        return message

    def frame(self) -> tuple[bytes, list[int]]:
        """A line, and the ids that must be answered; none are known once bytes were changed."""
        before = len(self.sent)
        line = frame(self.message())[:-1]
        if self.random.random() < 0.7:
            return line, self.sent[before:]
        if self.random.random() < 0.3:
            line = b"[" + line + b"," + frame(self.value())[:-1] + b"]"
        data = bytearray(line)
        for _ in range(self.random.randrange(1, 4)):
            place = self.random.randrange(len(data) + 1)
            if self.random.random() < 0.5:
                del data[place : place + self.random.randrange(5)]
            else:
                data[place:place] = self.random.randbytes(self.random.randrange(1, 4))
        return bytes(data).replace(b"\n", b""), []


def resident_pages(pid: int) -> int:
    path = Path(f"/proc/{pid}/statm")
    return int(path.read_text("ascii").split()[1]) if path.exists() else 0


def run_fuzz(tmp_path: Path, seed: int, count: int) -> None:
    fuzzer = Fuzzer(seed)
    with Wire(tmp_path / "db.json") as wire:
        wire.open().create(3)
        pages = 0
        for block in range(0, count, 500):
            frames = [fuzzer.frame() for _ in range(500)]
            answers = wire.until_pong(*(line for line, _ in frames))
            single = [each for each in answers if isinstance(each, dict)]
            single += [each for many in answers if isinstance(many, list) for each in many]
            found = Counter(each["id"] for each in single)
            for line, ids in frames:
                for known in ids:
                    assert found[known] == 1, line
            assert not [each for each in single if each.get("error", {}).get("code") == -32603]
            if block == count // 500 // 4 * 500:
                pages = resident_pages(wire.process.pid)
        grown = resident_pages(wire.process.pid) - pages
        sys.stdout.write(f"{count} frames, {fuzzer.count} requests, {grown} pages more\n")
        assert grown * 4096 < 24 << 20
        assert wire.open().value("timeline_create")
        assert "internal error" not in wire.stderr
        wire.end(silent=False)


def test_random_frames_leave_the_server_alive(tmp_path: Path) -> None:
    run_fuzz(tmp_path, 1, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_random_frames_leave_the_server_alive(tmp_path: Path, seed: int) -> None:
    run_fuzz(tmp_path, seed, 10_000)
