"""The MCP server as a real process, spoken to over pipes in plain JSON.

Every line that comes back is looked at: JSON-RPC and nothing else. `Wire.end` wants a silent
stderr unless told otherwise.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import timeline_mcp
from kit.program import SCRIPTS

Json = dict[str, Any]
ANSWER_S = 60.0  # an answer that takes longer will not come
LEGACY = timeline_mcp.HANDSHAKE_REVISIONS
MODERN = timeline_mcp.ENVELOPE_REVISION
P = "io.modelcontextprotocol/"
ENVELOPE: Json = {P + "protocolVersion": MODERN, P + "clientCapabilities": {}}
REQUEST_KEYS = {"jsonrpc", "id", "result"}
ERROR_KEYS = {"jsonrpc", "id", "error"}


def frame(message: object) -> bytes:
    """A line to send; bytes are sent as they are, with a newline."""
    if isinstance(message, bytes):
        return message + b"\n"
    return json.dumps(message).encode() + b"\n"


def request(method: str, params: object = None, id: object = 1) -> Json:
    message: Json = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        message["params"] = params
    return message


def tool_call(name: str, arguments: object, id: object = 1, **beside: object) -> Json:
    return request("tools/call", {"name": name, "arguments": arguments, **beside}, id)


def modern(method: str, params: Json | None = None, id: object = 1) -> Json:
    return request(method, {**(params or {}), "_meta": ENVELOPE}, id)


def check_answer(line: bytes) -> Any:
    """The answer on a line, after a look at everything JSON-RPC says of it."""
    assert line.endswith(b"\n")
    assert line.isascii(), line[:200]
    assert not line.startswith(b" ")
    answer = json.loads(line, parse_constant=lambda name: 1 / 0)
    json.dumps(answer, ensure_ascii=False).encode()  # no half of a surrogate pair
    for each in answer if isinstance(answer, list) else [answer]:
        assert each["jsonrpc"] == "2.0"
        assert type(each["id"]) in (int, str, type(None))
        if "error" in each:
            assert set(each) == ERROR_KEYS
            assert set(each["error"]) in ({"code", "message"}, {"code", "message", "data"})
            assert type(each["error"]["code"]) is int
            assert each["error"]["message"]
            assert len(each["error"]["message"]) < 1_000, "echoes too much"
        else:
            assert set(each) == REQUEST_KEYS
            assert type(each["result"]) is dict
    return answer


class Wire:
    """A running server. Use it in a `with` statement."""

    def __init__(
        self, db: Path, *options: str, program: list[str] | None = None, **env: str
    ) -> None:
        self.db = db
        self.log = db.with_name(f"{db.name}.stderr.{time.monotonic_ns()}")
        command = program or [sys.executable, str(SCRIPTS / "timeline_mcp.py")]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--db", str(db), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **env},
                cwd=db.parent,
            )
        self.buffer = b""
        self.ids = 0
        self.revision = ""

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None and kind is None:
                self.end()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                if not pipe.closed:
                    pipe.close()

    # ---- frames ----------------------------------------------------------------------------

    @property
    def stderr(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def exchange(self, data: bytes, answers: int) -> list[Any]:
        """Send `data` and return the next `answers` lines, reading while the pipe is full."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout.fileno(), process.stdin.fileno()
        until = time.monotonic() + ANSWER_S
        lines: list[bytes] = []
        left = memoryview(data)
        os.set_blocking(sink, False)
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            if data:
                selector.register(sink, selectors.EVENT_WRITE)
            while True:
                while len(lines) < answers and b"\n" in self.buffer:
                    line, _, self.buffer = self.buffer.partition(b"\n")
                    lines.append(line + b"\n")
                if len(lines) == answers and not left:
                    return [check_answer(line) for line in lines]
                ready = selector.select(max(0.0, until - time.monotonic()))
                assert ready, f"{len(lines)} of {answers} answers came: {self.stderr}"
                for key, _ in ready:
                    if key.fd == sink:
                        left = left[os.write(sink, left[: 1 << 16]) :]
                        if not left:
                            selector.unregister(sink)
                    else:
                        more = os.read(source, 1 << 20)
                        assert more, f"the server has gone: {self.stderr}"
                        self.buffer += more

    def tell(self, *messages: object) -> None:
        """Send what has no answer."""
        self.exchange(b"".join(map(frame, messages)), 0)

    def ask(self, *messages: object, answers: int | None = None) -> list[Any]:
        """The answers to messages that were sent in one go, one each unless said otherwise."""
        count = len(messages) if answers is None else answers
        return self.exchange(b"".join(map(frame, messages)), count)

    def until_pong(self, *messages: object) -> list[Any]:
        """All that comes back until the server has dealt with these messages."""
        self.tell(*messages, request("ping", id="pong"))
        found: list[Any] = []
        while True:
            (answer,) = self.exchange(b"", 1)
            if isinstance(answer, dict) and answer["id"] == "pong":
                return found
            found.append(answer)

    # ---- requests --------------------------------------------------------------------------

    def request(self, method: str, params: object = None) -> Any:
        """The answer to one request, its id being looked at."""
        self.ids += 1
        (answer,) = self.ask(request(method, params, self.ids))
        assert answer["id"] == self.ids
        return answer

    def open(self, revision: str = LEGACY[-1]) -> Wire:
        """Shake hands."""
        params = {
            "protocolVersion": revision,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        answer = self.request("initialize", params)
        self.revision = answer["result"]["protocolVersion"]
        self.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def call(self, name: str, arguments: Json | None = None, **beside: object) -> Json:
        """The result of a tool, its shape being looked at."""
        answer = self.request("tools/call", {"name": name, "arguments": arguments or {}, **beside})
        assert "result" in answer, answer
        result: Json = answer["result"]
        (block,) = result["content"]
        assert set(block) == {"type", "text"}
        assert block["type"] == "text"
        value = json.loads(block["text"])
        if result.get("isError"):
            assert set(result) == {"content", "isError"}
            assert set(value) in ({"error"}, {"error", "data"})
        elif self.revision >= "2025-06-18":
            assert set(result) == {"content", "structuredContent"}
            structured = value if isinstance(value, dict) else {"result": value}
            assert result["structuredContent"] == structured
        else:
            assert set(result) == {"content"}
        return result

    def value(self, name: str, arguments: Json | None = None, **beside: object) -> Any:
        """What a tool answers; it must not fail."""
        result = self.call(name, arguments, **beside)
        assert "isError" not in result, result
        return json.loads(result["content"][0]["text"])

    def error(self, name: str, arguments: Json | None = None, **beside: object) -> Json:
        """What a tool says when it fails; it must."""
        result = self.call(name, arguments, **beside)
        assert result.get("isError") is True, result
        found: Json = json.loads(result["content"][0]["text"])
        return found

    def create(self, texts: int = 0) -> str:
        """A new timeline with so many short messages."""
        tl: str = self.value("timeline_create")["timeline_id"]
        for number in range(texts):
            arguments = {"timeline_id": tl, "role": "user", "text": f"text {number}"}
            self.value("timeline_append", arguments)
        return tl

    # ---- the end ---------------------------------------------------------------------------

    def rest(self) -> list[Any]:
        """Close stdin, wait for the end; the answers that still came."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        data = self.buffer + self.process.stdout.read()
        self.process.wait(ANSWER_S)
        return [check_answer(line) for line in data.splitlines(keepends=True)]

    def end(self, *, code: int = 0, silent: bool = True) -> str:
        """Close stdin and wait: no further answer, this exit code. Returns stderr."""
        assert self.rest() == []
        assert self.process.returncode == code, self.stderr
        if silent:
            assert self.stderr == ""
        return self.stderr

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
