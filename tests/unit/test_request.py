"""Contexts as an API takes them: what the APIs refuse never comes out."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_export
from kit.disks import QuickDisk
from kit.program import Inside
from kit.seeds import shard, shards
from kit.wire import Wire

Json = dict[str, Any]
FORMATS = timeline.REQUEST_FORMATS
SAMPLES = Path(__file__).resolve().parents[1] / "samples" / "claude-code"


# ---- the rules of the APIs, written apart from what obeys them -----------------------------------


def check_anthropic(request: Json) -> None:
    messages = request["messages"]
    assert set(request) <= {"messages", "added_tokens", "system", "total_tokens"} | {
        "summaries_created", "explain",
    }  # fmt: skip
    assert request.get("system", "x").strip()
    ids: set[str] = set()
    waiting: list[str] = []
    before = "assistant"
    for message in messages:
        assert set(message) == {"role", "content"}
        assert message["role"] in ("user", "assistant")
        assert message["role"] != before, "neighbours of one role are one message"
        before = message["role"]
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert blocks
        results = [block for block in blocks if block["type"] == "tool_result"]
        assert blocks[: len(results)] == results, "results come first"
        assert sorted(each["tool_use_id"] for each in results) == sorted(waiting)
        waiting = []
        for block in blocks:
            kind = block["type"]
            if kind == "text":
                assert block["text"].strip(), "no empty text"
            elif kind == "tool_use":
                assert message["role"] == "assistant"
                assert isinstance(block["input"], dict)
                assert block["id"] not in ids
                ids.add(block["id"])
                waiting.append(block["id"])
            elif kind == "tool_result":
                assert message["role"] == "user"
                inner = block.get("content", "x")
                assert inner
                for each in inner if isinstance(inner, list) else ():
                    assert each["type"] != "text" or each["text"].strip()
            elif kind == "thinking":
                assert block["signature"]
            else:
                assert kind in ("image", "document", "redacted_thinking"), kind
        if message["role"] == "assistant":
            assert any("thinking" not in block["type"] for block in blocks)
    assert not waiting
    assert not messages or messages[0]["role"] == "user"
    json.dumps(request).encode()


def check_openai(request: Json) -> None:
    waiting: list[str] = []
    before = ""
    started = False
    for message in request["messages"]:
        role = message["role"]
        if role == "system":
            assert not started
            assert message["content"].strip()
            continue
        if role == "tool":
            waiting.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            before = role
            continue
        assert not waiting, "each call is answered before anything else"
        assert role in ("user", "assistant")
        assert role != before
        assert started or role == "user"
        started, before = True, role
        assert message["content"] or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            json.loads(call["function"]["arguments"])
            waiting.append(call["id"])
    assert not waiting


CHECKS = {"anthropic": check_anthropic, "openai": check_openai}


# ---- conversations ------------------------------------------------------------------------------


class Talk:
    """A timeline whose messages have blocks, as an import makes them."""

    def __init__(self, folder: Path) -> None:
        self.base = timeline.Database(str(folder / "t.db"), disk=QuickDisk())
        self.parent = 0
        with self.base.importing() as tx:
            tx.create("talk", "scalar4", {})

    def add(self, role: str, text: str, blocks: list[Json] | None = None) -> int:
        with self.base.importing() as tx:
            tokens = 1 + len(text) // 8
            self.parent = tx.append(0, self.parent, role, text, tokens, {}, blocks)
            tx.move(0, "main", self.parent)
        return self.parent

    def call(self, *ids: str, text: str = "") -> int:
        said = [{"type": "text", "text": text}] if text else []
        return self.add(
            "assistant",
            text or "calls",
            [*said, *({"type": "tool_use", "id": i, "name": "f", "input": {"x": i}} for i in ids)],
        )

    def result(self, call: str, content: object = "done") -> int:
        return self.add(
            "tool", str(content), [{"type": "tool_result", "tool_use_id": call, "content": content}]
        )

    def shaped(self, format: str, **given: Any) -> Json:
        request = timeline_export.as_request(self.base, self.base.run("context", given), format)
        CHECKS[format](request)
        return request


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


def test_plain_messages_come_as_they_are(talk: Talk) -> None:
    for role, text in (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello")):
        talk.add(role, text)
    assert talk.shaped("anthropic") == {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        "added_tokens": 0,
    }
    assert talk.shaped("openai") == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
        ],
        "added_tokens": 0,
    }


def test_parallel_calls_are_answered_together_in_both_shapes(talk: Talk) -> None:
    talk.add("user", "Look")
    talk.call("a", "b", text="I look.")
    talk.result("a", "one")
    talk.result("b", [{"type": "text", "text": "two"}, {"type": "text", "text": ""}])
    talk.add("user", "And?")
    request = talk.shaped("anthropic")
    assert [each["role"] for each in request["messages"]] == ["user", "assistant", "user"]
    assert [each["type"] for each in request["messages"][2]["content"]] == [
        "tool_result", "tool_result", "text",
    ]  # fmt: skip
    assert request["added_tokens"] == 0
    roles = [each["role"] for each in talk.shaped("openai")["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]


def test_open_calls_are_closed_in_the_answer_alone(talk: Talk) -> None:
    talk.add("user", "Look")
    talk.call("a", "b")
    talk.result("b")
    talk.add("user", "Stop")
    talk.add("assistant", "Stopped")
    talk.call("c")
    before = len(talk.base.store.rows)
    for format in FORMATS:
        request = talk.shaped(format)
        assert json.dumps(request).count(timeline_export.NO_RESULT) == 2
        assert request["added_tokens"] == 2 * timeline.estimate(
            timeline_export.NO_RESULT, "scalar4"
        )
    assert len(talk.base.store.rows) == before


def test_results_without_their_call_and_late_ones_become_text(talk: Talk) -> None:
    talk.result("gone", "orphan")
    talk.call("a")
    talk.add("assistant", "Never mind")
    talk.result("a", "late")
    talk.add("tool", "a log without blocks")
    for format in FORMATS:
        shown = json.dumps(talk.shaped(format))
        for words in ("[tool result] orphan", "[tool result] late", "[tool result] a log"):
            assert words in shown


def test_a_message_with_call_and_result_is_split(talk: Talk) -> None:
    talk.add("user", "Look")
    use = {"type": "tool_use", "id": "x y", "name": "f", "input": 5}
    answer = {"type": "tool_result", "tool_use_id": "x y", "content": "r", "is_error": True}
    talk.add("assistant", "t", [use, answer, {"type": "text", "text": "so"}])
    messages = talk.shaped("anthropic")["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"][0]["input"] == {"value": 5}
    assert messages[2]["content"][0]["is_error"] is True
    talk.shaped("openai")


def test_thoughts_come_whole_or_not_at_all(talk: Talk) -> None:
    talk.add("user", "Why?")
    signed = {"type": "thinking", "thinking": "hm", "signature": "s"}
    bare = {"type": "thinking", "thinking": "hm"}
    talk.add("assistant", "", [signed])
    talk.add("assistant", "So", [signed, bare, {"type": "text", "text": "So"}])
    content = talk.shaped("anthropic")["messages"][1]["content"]
    assert content == [signed, signed, {"type": "text", "text": "So"}]
    assert "hm" not in json.dumps(talk.shaped("openai"))


def test_summaries_and_systems_speak_as_user_and_are_counted(talk: Talk) -> None:
    talk.add("assistant", "first")
    talk.add("system", "rule")
    talk.add("user", "")
    talk.add("assistant", "")
    talk.add("summary", "old")
    talk.base.run("summarize", {"from": "n1", "to": "n5", "summary": "all of it"})
    talk.base.run("fork", {"node": "n6", "name": "on"})
    talk.base.run("append", {"branch": "on", "role": "assistant", "text": "next"})
    request = talk.shaped("anthropic")
    text = json.dumps(request)
    for words in (timeline_export.EARLIER, "[system] rule", timeline_export.EMPTY, "[Summary] old"):
        assert words in text
    messages = talk.shaped("openai", branch="on")["messages"]
    assert messages[0]["content"] == "[Summary of n1..n5, earlier conversation] all of it"


def test_pictures_come_back_where_their_bytes_are_kept(talk: Talk) -> None:
    kept, lost = b"\x89PNG kept", b"lost"
    name = talk.base.keep_bytes(kept)
    place = {"type": "sha256", "media_type": "image/png", "bytes": len(kept), "sha256": name}
    gone = {**place, "sha256": "0" * 64, "bytes": len(lost)}
    url = {"type": "url", "url": "https://example.org/x.png"}
    blocks = [{"type": "image", "source": each} for each in (place, gone, url)]
    talk.add("user", "see", blocks)
    content = talk.shaped("anthropic")["messages"][0]["content"]
    assert base64.b64decode(content[0]["source"]["data"]) == kept
    assert content[1] == {"type": "text", "text": "[image image/png, 4 bytes, not kept]"}
    assert content[2]["source"] == url
    parts = talk.shaped("openai")["messages"][0]["content"]
    assert [each["type"] for each in parts] == ["image_url", "text", "image_url"]
    (Path(talk.base.path + ".files") / name).write_bytes(b"changed")
    assert talk.shaped("anthropic")["messages"][0]["content"][0]["type"] == "text"


def test_every_budget_of_thirty_tool_turns_obeys_the_rules(talk: Talk) -> None:
    total = 0
    for turn in range(30):
        talk.add("user", f"question {turn}")
        talk.call(f"a{turn}", f"b{turn}", text="hm" * (turn % 3))
        talk.result(f"a{turn}", "x" * turn)
        talk.result(f"b{turn}", "y" * 5)
        if turn % 7 == 6:
            talk.call(f"open{turn}")
    talk.base.run("summarize", {"from": "n5", "to": "n40", "summary": "early turns"})
    talk.base.run("pin", {"node": "n3"})
    total = talk.base.run("branches")[0]["tokens"]
    right = 0
    for most in range(1, total + 1):
        try:
            value = talk.base.run("budget", {"max_tokens": most, "dry_run": True})
        except timeline.BudgetInfeasible:
            continue
        for format in FORMATS:
            CHECKS[format](timeline_export.as_request(talk.base, value["messages"], format))
        right += 1
    assert right > total // 2


@pytest.mark.parametrize("seed", range(30))
def test_no_conversation_breaks_the_rules(tmp_path: Path, seed: int) -> None:
    check_random(tmp_path, seed)


@pytest.mark.slow
@shards(30, 1_030)
def test_no_conversation_breaks_the_rules_in_many_runs(tmp_path: Path, first: int) -> None:
    for seed in shard(first):
        (tmp_path / str(seed)).mkdir()
        check_random(tmp_path / str(seed), seed)


def check_random(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    talk = Talk(tmp_path)
    ids = [f"t{number}" for number in range(6)] + ["odd id", "", "功能"]
    for _ in range(rng.randrange(1, 30)):
        role = rng.choice(timeline.ROLES)
        if rng.random() < 0.3:
            talk.add(role, rng.choice(["", "words", "\n"]))
            continue
        kinds: list[Json] = [
            {"type": "text", "text": rng.choice(["", "words"])},
            {"type": "tool_use", "id": rng.choice(ids), "name": "f", "input": rng.choice([{}, 1])},
            {"type": "tool_result", "tool_use_id": rng.choice(ids), "content": rng.choice(
                ["", "r", None, [], [{"type": "text", "text": ""}], [{"type": "odd"}, "x"]])},
            {"type": "thinking", "thinking": "t", "signature": rng.choice(["s", ""])},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "image", "source": {"type": "url", "url": "u"}},
            {"type": "image", "source": None}, {"type": None}, {"value": 1},
            {"type": "server_tool_use", "name": "s", "input": {}},
        ]  # fmt: skip
        talk.add(role, rng.choice(["", "text"]), rng.choices(kinds, k=rng.randrange(1, 5)))
    count = len(talk.base.store.rows)
    for _ in range(4):
        last = rng.randrange(0, count + 1)
        for format in FORMATS:
            talk.shaped(format, last=last, node=f"n{rng.randrange(1, count + 1)}")


# ---- through the adapters ------------------------------------------------------------------------


def test_command_line_and_tools_give_both_shapes(tmp_path: Path) -> None:
    tl = Inside(tmp_path / "t.db")
    tl("import", str(SAMPLES / "basic-tools-cjk.jsonl"))
    with Wire(tmp_path / "t.db") as wire:
        wire.open()
        for format in FORMATS:
            request = tl("context", "--as", format).value
            CHECKS[format](request)
            here = {"timeline_id": "tl0", "format": format}
            assert wire.value("timeline_context", here) == request
            budget = tl("budget", "--max", "300", "--as", format).value
            CHECKS[format](budget)
            assert budget["total_tokens"] <= 300
            given = {**here, "max_tokens": 300}
            assert wire.value("timeline_context_budget", given) == budget
        assert "format" in wire.error("timeline_context", {**here, "format": "xml"})["error"]
        before = (tmp_path / "t.db").read_bytes()
        bad = {"timeline_id": "tl0", "max_tokens": 250, "format": "xml"}
        assert "format" in wire.error("timeline_context_budget", bad)["error"]
        assert (tmp_path / "t.db").read_bytes() == before
    assert tl("budget", "--max", "250", "--as", "xml").code == 2
    assert (tmp_path / "t.db").read_bytes() == before


def test_a_shape_that_is_too_large_names_one_that_fits(tmp_path: Path) -> None:
    base = timeline.Database(str(tmp_path / "t.db"), disk=QuickDisk())
    base.run("create")
    for number in range(60):
        base.run("append", {"role": "user" if number % 2 else "assistant", "text": "x" * 700})
    base.close()
    with Wire(tmp_path / "t.db", "--max-output-chars", "10000") as wire:
        wire.open()
        for name, more in (("context", {}), ("context_budget", {"max_tokens": 10**6})):
            given = {"timeline_id": "tl0", "format": "anthropic", **more}
            narrower = wire.error(f"timeline_{name}", given)["data"]["try"]
            check_anthropic(wire.value(f"timeline_{name}", {**given, **narrower}))
