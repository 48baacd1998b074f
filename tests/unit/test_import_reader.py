"""Readers and layout, without a database: samples against what a right reading finds."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.transcripts import CLAUDE, SAMPLES, Session, load, read

Json = dict[str, Any]
SINGLE = ("basic-tools-cjk", "rewind-branches", "compact-twice", "damaged", "sidechain")


def sample(name: str) -> tuple[ti.Transcript, Json]:
    if name == "sidechain":
        expected = load(CLAUDE / "sidechain" / "expected.json")
        return read((CLAUDE / "sidechain" / expected["file"]).read_bytes()), expected
    return read((CLAUDE / f"{name}.jsonl").read_bytes()), load(CLAUDE / f"{name}.expected.json")


def chain(transcript: ti.Transcript) -> tuple[ti.Plan, dict[str, str | None]]:
    """The layout, and the client's own chain in it: a summary hangs on the end it stands for."""
    plan = ti.lay_out(transcript, ti.Ground())
    names: dict[int, str | None] = {0: None}
    parents = {}
    for number, step in enumerate(plan.steps, 1):
        name = transcript.entries[step.entry].id
        names[-number] = name
        above = step.last if step.kind == ti.SUMMARY else step.parent
        parents[name] = names[above]
    return plan, parents


def name_at(transcript: ti.Transcript, plan: ti.Plan, place: int | None) -> str:
    assert place is not None
    return transcript.entries[plan.step(place).entry].id


@pytest.fixture(params=SINGLE)
def case(request: pytest.FixtureRequest) -> tuple[ti.Transcript, Json]:
    return sample(request.param)


def test_format_is_told_by_content(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    assert f"{transcript.format}-jsonl" == expected["format"]
    assert transcript.session == expected["session_id"]
    assert transcript.title == expected.get("title")
    data = (CLAUDE / "sidechain" / "..").resolve()
    for path in data.rglob("*.jsonl"):
        format, why = ti.recognize(io.BytesIO(path.read_bytes()))
        assert (format and format.name, why) == ("claude-code", ""), path


def test_roles_and_parents(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    plan, parents = chain(transcript)
    assert parents == expected["parents"]
    assert len(plan.steps) == expected["messages"]
    roles: dict[str, int] = {}
    for step in plan.steps:
        role = transcript.entries[step.entry].role
        roles[role] = roles.get(role, 0) + 1
    assert roles == expected["roles"]
    roots = [name for name, parent in expected["parents"].items() if parent is None]
    assert len(roots) == expected.get("roots", 1)


def test_aliases_are_the_other_records_of_a_message(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    aliases = {piece.id: entry.id for entry in transcript.entries for piece in entry.pieces[1:]}
    assert aliases == expected.get("aliases", {})


def test_leaves_and_active_leaf(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    plan, parents = chain(transcript)
    leaves = set(parents) - set(parents.values())
    assert len(leaves) == expected["branches"]
    assert leaves == set(expected.get("leaves", leaves))
    assert name_at(transcript, plan, plan.active) == expected["active_leaf"]


def test_summaries_know_their_range(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    plan = ti.lay_out(transcript, ti.Ground())
    found = []
    for step in plan.steps:
        if step.kind == ti.SUMMARY:
            told = transcript.entries[step.entry].compaction
            assert told is not None
            found.append(
                {
                    "node": transcript.entries[step.entry].id,
                    "from": name_at(transcript, plan, step.first),
                    "to": name_at(transcript, plan, step.last),
                    "trigger": told.trigger,
                }
            )
    wanted = expected.get("summaries", [])
    # A range that lies behind an earlier compaction begins at that compaction's summary.
    for earlier, later in pairwise(wanted):
        later["from"] = earlier["node"]
    assert found == wanted


def test_records_are_all_counted(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    counts = transcript.counts
    assert counts.records == expected["records"]
    assert counts.hidden == expected.get("hidden", {})
    assert counts.skipped == expected.get("skipped", {})
    assert counts.known == expected.get("known", {})
    assert counts.bad == expected.get("bad", 0)
    assert counts.sidechain == expected.get("sidechain", 0)
    pieces = sum(len(entry.pieces) for entry in transcript.entries)
    others = sum(sum(t.values()) for t in (counts.hidden, counts.skipped, counts.known))
    assert counts.records == pieces + others + counts.bad + counts.sidechain + counts.changed


def test_gaps_and_warnings(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    gaps = [entry.id for entry in transcript.entries if entry.gap is not None]
    assert gaps == expected.get("gaps", [])
    assert transcript.notes.kinds == expected.get("warnings", {})


def test_calls_and_results_pair(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    pairs: dict[str, list[str]] = {}
    for entry in transcript.entries:
        for block in transcript.read(entry).blocks or []:
            if block["type"] == "tool_use":
                pairs[block["id"]] = [entry.id]
            elif block["type"] == "tool_result":
                pairs[block["tool_use_id"]].append(entry.id)
    assert pairs == expected.get("tool_pairs", pairs)


def test_failed_requests_are_marked(case: tuple[ti.Transcript, Json]) -> None:
    transcript, expected = case
    assert [e.id for e in transcript.entries if e.error] == expected.get("errors", [])


def test_pair_of_forks_is_counted_file_by_file() -> None:
    expected = load(CLAUDE / "fork" / "expected.json")
    found = [read((CLAUDE / "fork" / name).read_bytes()) for name in expected["files"]]
    assert [each.counts.records for each in found] == expected["records"]
    assert [sum(each.counts.skipped.values()) for each in found] == expected["skipped"]
    assert {found[1].session: found[1].title} == expected["branch_names"]
    assert len({e.id for each in found for e in each.entries}) == expected["messages"]
    plan, _ = chain(found[1])
    assert len(plan.steps) == 6 and len(plan.leaves()) == 1


def test_content_of_the_first_sample() -> None:
    transcript, _ = sample("basic-tools-cjk")
    contents = [transcript.read(entry) for entry in transcript.entries]
    assert (
        contents[1].text
        == '我先读一下导出代码。\n\n[call Read] {"file_path":"/srv/demo/shop/export.py"}'
    )
    assert contents[1].sent == '我先读一下导出代码。Read{"file_path":"/srv/demo/shop/export.py"}'
    assert contents[1].blocks is not None
    assert [block["type"] for block in contents[1].blocks] == ["thinking", "text", "tool_use"]
    assert contents[1].blocks[0]["signature"] == "c2lnLXN5bnRoZXRpYw=="
    assert contents[1].usage is not None and contents[1].usage["output_tokens"] == 57
    assert contents[0].blocks is None and contents[0].cwd == "/srv/demo/shop"
    assert contents[0].time == 1772442001
    assert "\u2028" in contents[3].text
    assert contents[4].text.startswith("[error] \x1b[31mFAILED")
    image = contents[5]
    assert image.blocks is not None and len(image.files) == 1
    assert image.blocks[1]["source"]["width"] == 1
    assert image.image_tokens == 1
    assert f"[image image/png, {len(image.files[0])} bytes, sha256 " in image.text
    assert len(json.dumps(image.blocks)) < 400


# -- lines -----------------------------------------------------------------------------------------


def values(data: bytes) -> list[Any]:
    return [found.value for found in ti.Lines(io.BytesIO(data), ti.is_claude_record)]


NESTED = b"[" * 100 + b"]" * 100
WHOLE = b'{"type":"user","uuid":"u","sessionId":"s"}'


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b"\n \r\n\t\n", []),
        (b'\xef\xbb\xbf{"a":1}\r\n{"b":2}', [{"a": 1}, {"b": 2}]),
        (b'{"a":1}{"b":2} {"c":3}\n', [{"a": 1}, {"b": 2}, {"c": 3}]),
        (b'{"a":1}{"b":\n', [{"a": 1}, None]),
        (b"\0\0\0\n", [None]),
        (b'\0\0{"a":1}\0\n', [{"a": 1}]),
        ('{"a":"x\u2028\x85y"}\n'.encode(), [{"a": "x\u2028\x85y"}]),
        (b'{"a":"\\ud83d\\ude00"}\n{"a":"\\ud83d!"}\n', [{"a": "\U0001f600"}, {"a": "\ufffd!"}]),
        (b'{"a":"\xed\xa0\xbd\xed\xb8\x80\xed\xa0\xbd"}\n', [{"a": "\U0001f600\ufffd"}]),
        (b'{"a":"\xe4\xb8"}\n', [{"a": "\ufffd"}]),
        (b"[1,2]\nnull\n17\n", [None, None, None]),
        (b'{"a":NaN}\n{"a":1e999}\n{"a":-Infinity}\n', [None, None, None]),
        (b'{"a":' + b"9" * 5000 + b"}\n", [None]),
        (b'{"a":' + b"[" * 100_000 + b"\n", [None]),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}\n", [None]),
        (b'{"a":' + NESTED + b"}\n", [{"a": json.loads(NESTED)}]),
        (b'{"type":"us' + WHOLE + b"\n", [None, json.loads(WHOLE)]),
        (b'{"type":"user","message":{"type":"message"}\n', [None]),
    ],
)  # fmt: skip
def test_lines(data: bytes, found: list[Any]) -> None:
    if b"9" * 5000 in data and not hasattr(__import__("sys"), "set_int_max_str_digits"):
        pytest.skip("this Python reads long numbers")
    assert values(data) == found


def test_each_object_can_be_read_again() -> None:
    lines = ti.Lines(io.BytesIO(b'{"a":1}{"b":2}\n{"c":3}\n'), ti.is_claude_record)
    for found in lines:
        assert lines.at(found.offset, found.index) == found.value
    with pytest.raises(timeline.Refused, match="changed while it was read"):
        lines.at(0, 5)


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("<command-name>/compact</command-name>\n<command-message>x</command-message>", True),
        ("  <local-command-stdout></local-command-stdout> \n", True),
        ("<bash-input>ls</bash-input>", True),
        ("<timeline-handoff>n1 was here</timeline-handoff>", True),
        ("<command-name>/x</command-name> and more", False),
        ("why does it print <command-name>?", False),
        ("<command-name>never closed", False),
        ("", False),
        ("  ", False),
    ],
)
def test_markup_only(text: str, only: bool) -> None:
    assert ti.is_markup(text) is only


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-03-02T09:00:01.137Z", 1772442001),
        ("2026-03-02 09:00:01", 1772442001),
        ("2026-03-02T10:00:01+01:00", 1772442001),
        ("2026-03-02T04:30:01.5-0430", 1772442001),
        ("2026-02-30T09:00:01Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("soon", None),
        (1772442001, 1772442001),
        (1772442001.9, 1772442001),
        (10**300, None),
        (True, None),
        (None, None),
        ([], None),
    ],
)
def test_times(value: object, seconds: int | None) -> None:
    assert ti.parse_time(value) == seconds


# -- images ----------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (800).to_bytes(4, "big") + (600).to_bytes(4, "big")
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08"
    + (600).to_bytes(2, "big")
    + (800).to_bytes(2, "big")
    + b"\x03"
)
SIDES = (800).to_bytes(2, "little") + (600).to_bytes(2, "little")
GIF = b"GIF89a" + SIDES
RIFF = b"RIFF\0\0\0\0WEBP"
WEBP = (
    RIFF + b"VP8X\x0a\0\0\0\0\0\0\0" + (799).to_bytes(3, "little") + (599).to_bytes(3, "little"),
    RIFF + b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + SIDES,
    RIFF + b"VP8L\0\0\0\0\x2f" + (799 | 599 << 14).to_bytes(4, "little") + b"\0" * 8,
)  # fmt: skip


@pytest.mark.parametrize("raw", [PNG, JPEG, GIF, *WEBP])
def test_image_header_tells_the_size(raw: bytes) -> None:
    assert ti.image_size(raw) == (800, 600)
    for cut in range(len(raw)):
        ti.image_size(raw[:cut])  # damage is no size, and no error


def rendered(*blocks: object) -> ti.Content:
    renderer = ti.Renderer()
    renderer.add(list(blocks))
    return renderer.finish()


def test_image_counts_by_pixels_else_by_rule() -> None:
    import base64

    def image(raw: bytes) -> Json:
        data = base64.b64encode(raw).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"type": "image", "source": source}

    assert rendered(image(PNG)).image_tokens == 640
    assert rendered(image(b"no header")).image_tokens == 1600
    huge = PNG[:16] + b"\xff" * 8
    assert rendered(image(huge)).image_tokens == 1600
    inner = [image(PNG), {"type": "text", "text": "seen"}]
    content = rendered({"type": "tool_result", "tool_use_id": "t", "content": inner})
    assert content.image_tokens == 640 and content.files == [PNG]
    assert content.text.endswith("seen") and content.text.startswith("[image image/png, 24 bytes")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
        {"type": "image", "source": {"type": "base64", "data": "?"}},
        {"type": "image", "source": []},
        {"type": "document", "source": {"type": "text", "data": "plain"}},
        {"type": "tool_use"},
        {"type": "tool_use", "name": 3, "input": [None]},
        {"type": "tool_result", "content": None},
        {"type": "tool_result", "content": [1, None, "text", {"type": {}}]},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": ["unhashable"]},
        {},
        None,
        7,
    ],
)
def test_odd_blocks_do_no_harm(block: object) -> None:
    content = rendered(block)
    content.text.encode()
    timeline.dumps(content.blocks)
    assert content.count("wide") >= 1


def test_only_one_plain_text_needs_no_blocks() -> None:
    assert rendered({"type": "text", "text": "a"}).blocks is None
    assert rendered({"type": "text", "text": "a", "cache_control": 1}).blocks is not None
    assert rendered({"type": "text", "text": "a"}, {"type": "text", "text": "b"}).blocks is not None
    assert rendered({"type": "thinking", "thinking": "x", "signature": "y"}).text == ""


# -- links -----------------------------------------------------------------------------------------


def test_gap_goes_to_the_nearest_before_that_is_not_below() -> None:
    parents = [ti.ROOT, 2, ti.LOST, ti.LOST]
    assert ti.settle(parents) == {2: "", 3: ""}
    assert parents == [ti.ROOT, 2, 0, 2]


def test_cycle_breaks_at_its_first_member() -> None:
    parents = [ti.ROOT, 3, 1, 2, 4]
    assert ti.settle(parents) == {1: "parent cycle", 4: "parent cycle"}
    assert parents == [ti.ROOT, 0, 1, 2, 3]
    alone = [1, 0]
    assert ti.settle(alone) == {0: "parent cycle"}
    assert alone == [ti.ROOT, 0]


def test_order_puts_early_children_right_behind_their_parent() -> None:
    assert ti.creation_order([ti.ROOT, 4, 1, 0, 0, 4]) == [0, 3, 4, 1, 2, 5]


def naive_settle(parents: list[int]) -> list[int]:
    """The same by the words of the rule, slowly."""
    parents = list(parents)

    def above(index: int) -> list[int]:
        way = []
        while index >= 0 and index not in way:
            way.append(index)
            index = parents[index]
        return way

    gaps = {index for index, parent in enumerate(parents) if parent == ti.LOST}
    for index in range(len(parents)):
        way = above(index)
        back = parents[way[-1]]
        if back >= 0:
            first = min(way[way.index(back) :])
            gaps.add(first)
            parents[first] = ti.LOST
    for index in sorted(gaps):
        near = [each for each in range(index) if index not in above(each)]
        parents[index] = near[-1] if near else ti.ROOT
    return parents


@pytest.mark.parametrize("seed", range(60))
def test_settle_agrees_with_the_words_of_the_rule(seed: int) -> None:
    import random

    chance = random.Random(seed)
    size = chance.randint(1, 12)
    choice = [ti.ROOT, ti.LOST, ti.LOST, *range(size)]
    parents = [chance.choice(choice) for _ in range(size)]
    wanted = naive_settle(parents)
    ti.settle(parents)
    assert parents == wanted
    order = ti.creation_order(parents)
    assert sorted(order) == list(range(size))
    place = {index: number for number, index in enumerate(order)}
    assert all(p < 0 or place[p] < place[index] for index, p in enumerate(parents))


SIZE = 50_000


@pytest.mark.parametrize(
    "shape",
    [
        list(range(-1, SIZE - 1)),
        [*range(1, SIZE), 0],
        [*range(1, SIZE), ti.ROOT],
        [ti.LOST] * SIZE,
        [SIZE // 2 + n if n < SIZE // 2 else ti.LOST for n in range(SIZE)],
        # Each gap finds the entry before it below itself, and a long run of those before that.
        [*range(SIZE - 1, SIZE - 200, -1), *([SIZE - 200] * (SIZE - 400)), *([ti.LOST] * 201)],
    ],
    ids=["chain", "cycle", "backwards", "lost", "crossed", "below"],
)
def test_long_links_take_linear_time(shape: list[int]) -> None:
    import time

    begun = time.process_time()
    ti.settle(shape)
    order = ti.creation_order(shape)
    assert len(order) == len(shape)
    assert time.process_time() - begun < 5  # quadratic would be minutes


@pytest.mark.slow
def test_deep_session_lays_out() -> None:
    session = Session()
    for number in range(0, 20_000, 2):
        session.user(f"u{number}")
        session.answer(f"a{number}")
    transcript = read(b"".join(session.lines()))
    plan = ti.lay_out(transcript, ti.Ground())
    assert len(plan.steps) == 20_000 and len(plan.leaves()) == 1


# -- the simple form -------------------------------------------------------------------------------


def test_messages_without_ids_hang_on_the_line_before() -> None:
    transcript = read((SAMPLES / "messages" / "plain.jsonl").read_bytes(), "messages")
    assert [entry.parent for entry in transcript.entries] == [ti.ROOT, 0, 1, 2, 3]
    assert [entry.role for entry in transcript.entries][:2] == ["system", "user"]
    assert transcript.read(transcript.entries[2]).count("wide") == 12
    assert len({entry.id for entry in transcript.entries}) == 5
    assert transcript.active == 4 and transcript.notes.kinds == {}


def test_messages_with_ids_are_a_tree() -> None:
    transcript = read((SAMPLES / "messages" / "tree.jsonl").read_bytes(), "messages")
    entries = transcript.entries
    parents = {e.id: entries[e.parent].id if e.parent >= 0 else None for e in entries}
    assert parents == {
        "q1": None, "a1": "q1", "q2": "a1", "a2": "q2", "q3": "a1", "a3": "q3", "7": "a3",
        "r2": None, "late": "below", "below": "r2",
    }  # fmt: skip
    assert (entries[6].role, entries[6].kind) == ("user", "shell")
    assert transcript.counts.known == {"duplicate id": 1}
    assert transcript.read(entries[1]).time == 1772442005
    order = [entries[step.entry].id for step in ti.lay_out(transcript, ti.Ground()).steps]
    assert order[-2:] == ["below", "late"]


def test_messages_that_are_none_are_counted() -> None:
    data = b"\n".join(
        [
            b'{"role":"user","text":"a","id":"1","tokens":-4}',
            b'{"role":"boss","text":"b"}',
            b'{"role":"user","text":["c"]}',
            b'{"role":"user"}',
            b'{"role":"user","text":"changed","id":"1"}',
            b'{"role":"user","text":"lost","id":"2","parent":"nowhere"}',
            b'{"role":"user","text":"own","id":"3","parent":"3"}',
            b'{"role":"user","te',
        ]
    )
    transcript = read(data, "messages")
    assert transcript.counts.records == 8
    assert transcript.counts.bad == 4 and transcript.counts.changed == 1
    assert [entry.gap for entry in transcript.entries] == [
        None,
        "parent not in file",
        "self parent",
    ]
    assert transcript.notes.kinds == {
        "tokens": 1, "unparseable line": 4, "changed": 1, "parent not in file": 1, "self parent": 1,
    }  # fmt: skip
    assert all(words.startswith("line ") for words in transcript.notes.to_list())


def test_many_warnings_of_one_kind_are_counted() -> None:
    transcript = read(b"x\n" * 100 + b'{"role":"user","text":"a"}', "messages")
    words = transcript.notes.to_list()
    assert len(words) == ti.WARNINGS_SHOWN_MAX + 1
    assert words[-1] == "80 more like this: unparseable line"


@pytest.mark.parametrize(
    ("data", "format", "why"),
    [
        (b"", None, "empty"),
        (b"hello\n", None, "no JSON"),
        (b"[]", None, "no JSON"),
        (b"\x89PNG\r\n\x1a\n", None, "no JSON"),
        (b'{"a":1}\n', None, "JSON of no known format"),
        (b'{"role":"user","content":"x"}\n', None, "JSON of no known format"),
        (timeline.new_header(1), None, "a Timeline database"),
        (b'torn\n{"role":"user","text":"x"}\n', "messages", ""),
        (b'{"type":"ai-title","aiTitle":"x","sessionId":"s"}', "claude-code", ""),
        (b"\x28\xb5\x2f\xfd\x00", None, "compressed with zstd: unpack it first (zstd -d)"),
        (b'{"record_type":"state"}\n', "codex", ""),
        (b'{"type":"event_msg","payload":{"type":"x"}}\n', "codex", ""),
        (b'{"type":"message","role":"user","content":[]}\n', None, "JSON of no known format"),
        (b'{"type":"session","id":"x","cwd":"/"}\n', "pi", ""),
        (b'{"sessionId":"x","startTime":"y"}\n', "gemini", ""),
        (b'{\n"history":[\n{"role":"user","parts":[]}]\n}\n', "gemini", ""),
        (b'[{"role":"user","parts":[]}]', "gemini", ""),
        (b'{"history":[1]}', None, "JSON of no known format"),
    ],
)
def test_recognize(data: bytes, format: str | None, why: str) -> None:
    found, reason = ti.recognize(io.BytesIO(data))
    assert (found.name if found else None, reason) == (format, why)


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("用方案 A", "用方案 A"),
        ("  two \t words \r\nsecond line", "two words"),
        ("a/b\x01c", "a-b-c"),
        ("x" * 60, "x" * 40),
        ("x" * 39 + " y", "x" * 39),
        ("\nsecond", ""),
        (" \u3000 ", ""),
        ("", ""),
    ],
)
def test_branch_names(text: str, name: str) -> None:
    assert ti.branch_base(text) == name
    if name:
        timeline.check_name(name)


def test_taken_names_are_numbered() -> None:
    assert ti.free_name({"a", "a (2)"}, "a") == "a (3)"
    assert ti.free_name({"b"}, "a") == "a"


# -- demo ------------------------------------------------------------------------------------------


def test_demo_shows_what_it_promises() -> None:
    data = ti.demo_transcript()
    assert data == ti.demo_transcript()
    transcript = read(data)
    assert 30 <= transcript.counts.records <= 40
    assert transcript.title == "Order export for Excel" and transcript.notes.kinds == {}
    plan = ti.lay_out(transcript, ti.Ground())
    assert sum(step.kind == ti.SUMMARY for step in plan.steps) == 1
    assert len(plan.leaves()) == 3
    assert any(len(entry.pieces) > 1 for entry in transcript.entries)
    texts = [transcript.read(entry).text for entry in transcript.entries]
    assert sum(any("\u4e00" <= char <= "\u9fff" for char in text) for text in texts) >= 3
