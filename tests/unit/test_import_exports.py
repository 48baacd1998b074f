"""Readers of exports, of OpenCode and of plain arrays; each sample as a right reading has it."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.transcripts import SAMPLES, Tree, load, total

Json = dict[str, Any]
NAMES = {
    "chatgpt/conversations.json": "chatgpt/conversations.expected.json",
    "claude-ai/conversations.json": "claude-ai/conversations.expected.json",
    "claude-ai/legacy-flat.json": "claude-ai/legacy-flat.expected.json",
    "opencode/export-ses_demo0001.json": "opencode/export.expected.json",
    "messages/openai-tools.json": "messages/openai-tools.expected.json",
    "messages/anthropic-blocks.json": "messages/anthropic-blocks.expected.json",
}


def drafts(data: bytes, format: str | None = None) -> list[ti.Transcript]:
    """All conversations in `data`, gaps noted."""
    stream = io.BytesIO(data)
    found, _ = ti.recognize(stream)
    if format is not None:
        found = next(each for each in ti.FORMATS if each.name == format)
    assert found is not None
    talks = [draft(lambda _: None) for draft in found.read(stream)]
    for talk in talks:
        talk.note_gaps()
    return talks


def names_of(talk: ti.Transcript) -> list[str]:
    """Native ids; of arrays, `#0`, `#1`... and `system`."""
    if talk.space != "array":
        return [entry.id for entry in talk.entries]
    names = []
    for entry in talk.entries:
        index = entry.pieces[0].index
        names.append("system" if index == -2 else f"#{index if index >= 0 else entry.line - 1}")
    return names


def chain(talk: ti.Transcript) -> dict[str, str | None]:
    names = names_of(talk)
    return {
        name: None if entry.parent < 0 else names[entry.parent]
        for name, entry in zip(names, talk.entries, strict=True)
    }


def merged(tables: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for table in tables for key, value in table.items()}


def roles_of(talk: ti.Transcript) -> dict[str, int]:
    roles: dict[str, int] = {}
    for entry in talk.entries:
        roles[entry.role] = roles.get(entry.role, 0) + 1
    return roles


def leaves_of(talk: ti.Transcript) -> list[str]:
    inner = {entry.parent for entry in talk.entries}
    return [name for n, name in enumerate(names_of(talk)) if n not in inner]


def pairs_of(talk: ti.Transcript) -> dict[str, list[str | None]]:
    pairs: dict[str, list[str | None]] = {}
    for name, entry in zip(names_of(talk), talk.entries, strict=True):
        for block in talk.read(entry).blocks or []:
            if block["type"] == "tool_use":
                pairs[block["id"]] = [name, None]
            elif block["type"] == "tool_result":
                pairs[block["tool_use_id"]][1] = name
    return pairs


def active_of(talk: ti.Transcript) -> str:
    plan = ti.lay_out(talk, ti.Ground())
    assert plan.active is not None
    return names_of(talk)[plan.step(plan.active).entry]


def check_counts(talk: ti.Transcript) -> None:
    counts = talk.counts
    pieces = sum(len(entry.pieces) for entry in talk.entries)
    others = sum(sum(t.values()) for t in (counts.hidden, counts.skipped, counts.known))
    assert counts.records == pieces + others + counts.bad + counts.changed


def check(expected: Json, talks: list[ti.Transcript]) -> None:
    """Everything that an expected.json says of conversations."""
    for talk in talks:
        check_counts(talk)
    full = [talk for talk in talks if talk.entries]
    assert len(full) == expected.get("conversations", 1)
    assert sum(talk.counts.records for talk in talks) == expected["records"]
    assert sum(len(talk.entries) for talk in talks) == expected["messages"]
    assert merged([chain(talk) for talk in full]) == expected["parents"]
    hidden = expected.get("hidden", [])
    assert sum(sum(talk.counts.hidden.values()) for talk in talks) == len(hidden)
    skipped = expected.get("skipped", {})
    assert merged([talk.counts.skipped for talk in talks]) == skipped
    folded = {p.id: e.id for talk in full for e in talk.entries for p in e.pieces[1:]}
    assert folded == expected.get("folded", {})
    warnings = merged([talk.notes.kinds for talk in talks])
    assert warnings == expected.get("warnings", {})
    pairs = merged([pairs_of(talk) for talk in full])
    assert pairs == expected.get("tool_pairs", {})
    if len(full) == 1:
        (talk,) = full
        assert roles_of(talk) == expected.get("roles", roles_of(talk))
        assert len(leaves_of(talk)) == expected["branches"]
        assert leaves_of(talk) == expected.get("leaves", leaves_of(talk))
        assert active_of(talk) == expected["active_leaf"]
        assert talk.session == expected.get("session_id", talk.session)
        assert talk.title == expected.get("title", talk.title)
        errors = [entry.id for entry in talk.entries if entry.error]
        assert errors == expected.get("errors", [])
        check_attachments(talk, expected.get("attachments", {}))
    for talk, wanted in zip(full, expected.get("per_conversation", []), strict=False):
        assert (talk.session, talk.title) == (wanted["id"], wanted["title"])
        assert (len(talk.entries), roles_of(talk)) == (wanted["messages"], wanted["roles"])
        assert leaves_of(talk) == wanted["leaves"] and len(wanted["leaves"]) == wanted["branches"]
        assert active_of(talk) == wanted["active_leaf"]


def check_attachments(talk: ti.Transcript, wanted: dict[str, list[str]] | int) -> None:
    if isinstance(wanted, int):
        assert sum(len(talk.read(entry).files) for entry in talk.entries) == wanted
        return
    for entry in talk.entries:
        text = talk.read(entry).text
        assert all(name in text for name in wanted.get(entry.id, [])), entry.id


@pytest.mark.parametrize(("file", "expected"), NAMES.items(), ids=NAMES)
def test_sample_is_read_as_it_should(file: str, expected: str) -> None:
    talks = drafts((SAMPLES / file).read_bytes())
    wanted = load(SAMPLES / expected)
    check(wanted, talks)
    assert sum(not talk.entries for talk in talks) == wanted.get("empty_conversations", 0)


def test_split_export() -> None:
    expected = load(SAMPLES / "chatgpt" / "split" / "expected.json")
    talks = [
        talk
        for name in expected["files"]
        for talk in drafts((SAMPLES / "chatgpt" / "split" / name).read_bytes())
    ]
    check(expected, talks)
    full = {talk.session: talk for talk in talks if talk.entries}
    for session, wanted in expected["branches_by_conversation"].items():
        assert len(leaves_of(full[session])) == wanted
        assert active_of(full[session]) == expected["active_leaf"][session]
    for session, roots in expected["roots"].items():
        assert [name for name, parent in chain(full[session]).items() if parent is None] == roots
    (broken,) = [talk for talk in talks if not talk.entries]
    assert broken.title == "Broken entry" and broken.counts.records == 0


def test_summary_of_opencode_knows_its_range() -> None:
    expected = load(SAMPLES / "opencode" / "export.expected.json")
    (talk,) = drafts((SAMPLES / "opencode" / "export-ses_demo0001.json").read_bytes())
    plan = ti.lay_out(talk, ti.Ground())
    found = [
        {
            "node": talk.entries[step.entry].id,
            "from": talk.entries[plan.step(step.first).entry].id,
            "to": talk.entries[plan.step(step.last).entry].id,
            "auto": (c := talk.entries[step.entry].compaction) is not None and c.trigger == "auto",
        }
        for step in plan.steps
        if step.kind == ti.SUMMARY
    ]
    assert found == expected["summaries"]


def test_content_of_samples() -> None:
    talk = drafts((SAMPLES / "chatgpt" / "conversations.json").read_bytes())[0]
    by_id = {entry.id: talk.read(entry) for entry in talk.entries}
    blocks = by_id["a2"].blocks
    assert blocks is not None and [block["type"] for block in blocks] == ["thinking", "text"]
    assert by_id["a2"].text == "改成红色了。" and by_id["u1"].blocks is None
    assert by_id["u3"].image_tokens == 1 and "[image 风格.png]" in by_id["u3"].text
    assert by_id["c1"].text == '[call python] {"code":"print(1)"}' and by_id["x1"].text == "1"
    assert by_id["u1"].time == 1772800000
    (talk, _) = drafts((SAMPLES / "claude-ai" / "conversations.json").read_bytes())
    first, answer = (talk.read(entry) for entry in talk.entries[:2])
    assert "三月计划：发布 1.0" in first.text and first.sent.count("总结附件") == 1
    assert answer.text.count("三月要发布 1.0。") == 1 and "读附件" not in answer.text
    (talk,) = drafts((SAMPLES / "opencode" / "export-ses_demo0001.json").read_bytes())
    first = talk.read(talk.entries[0])
    assert "Called the Read tool" not in first.text and len(first.files) == 1
    assert first.cwd == "/srv/demo/shop" and first.time == 1772600000
    (talk,) = drafts((SAMPLES / "messages" / "anthropic-blocks.json").read_bytes())
    mixed = talk.entries[3]
    assert (mixed.role, mixed.kind) == ("user", "mixed")
    thinking = talk.read(talk.entries[2]).blocks
    assert thinking is not None and thinking[0]["signature"] == "c2ln"


# -- in a database ---------------------------------------------------------------------------------

Open = Callable[[], timeline.Database]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Open]:
    """Makes a new database at each call; every one is whole at the end."""
    made: list[timeline.Database] = []

    def new() -> timeline.Database:
        folder = tmp_path / f"db{len(made)}"
        folder.mkdir()
        made.append(timeline.Database(str(folder / "t.json"), clock=lambda: 1_780_000_000))
        return made[-1]

    yield new
    for database in made:
        if Path(database.path).exists():
            assert database.run("doctor")["ok"] is True
        database.close()


@pytest.fixture
def db(fresh: Open) -> timeline.Database:
    return fresh()


def bring(db: timeline.Database, *paths: object, **options: Any) -> list[Json]:
    """Import and return the rows, each of which adds up."""
    result = ti.import_paths(db, [str(path) for path in paths], **options)
    for row in result["timelines"]:
        assert total(row) == row["records"], row
    rows: list[Json] = result["timelines"]
    return rows


@pytest.fixture
def opencode_db(tmp_path: Path) -> Path:
    path = tmp_path / "opencode.db"
    with sqlite3.connect(path) as base:
        base.executescript((SAMPLES / "opencode" / "opencode-db.sql").read_text(encoding="utf-8"))
    base.close()
    return path


GROUPS: dict[str, list[Json]] = {}
for _folder in ("chatgpt", "claude-ai", "opencode"):
    for _case in load(SAMPLES / _folder / "our-tree.json")["samples"]:
        GROUPS.setdefault(_case.get("file") or "split", []).append(_case)


@pytest.mark.parametrize("group", GROUPS)
def test_sample_becomes_the_tree_it_should(
    db: timeline.Database, group: str, opencode_db: Path
) -> None:
    cases = GROUPS[group]
    if "same_as" in cases[0]:
        rows = bring(db, opencode_db)
        cases = GROUPS[cases[0]["same_as"]]
    else:
        rows = bring(db, *(SAMPLES / name for name in cases[0].get("files", [group])))
    for tl, case in enumerate(cases):
        for wanted in case["nodes"]:
            node = db.run("node", {"node": wanted["n"]})
            found = {"n": node["node"], "native": node["source"]["id"], "role": node["role"]}
            found["parent"] = node["parent"]
            if "summary" in wanted:
                found["summary"] = {end: node["summary"][end] for end in ("from", "to")}
            assert found == wanted
            assert ("kind" in node["source"], "copy_of" in node["source"]) == (False, False)
        branches = db.run("branches", {"timeline_id": f"tl{tl}"})
        assert {row["name"]: row["head"] for row in branches} == case["branches"]
        assert [row["name"] for row in branches if row["current"]] == [case["current"]]
        assert Tree(db, tl).state.title == case.get("title")
    assert len(db.run("list", {})) == len(cases)
    assert sum(row["added"] for row in rows) == sum(len(case["nodes"]) for case in cases)


def sources(opencode_db: Path) -> dict[str, list[Path]]:
    split = SAMPLES / "chatgpt" / "split"
    named = {file: [SAMPLES / file] for file in NAMES}
    return {
        **named,
        "split": [split / "conversations-000.json", split / "conversations-001.json"],
        "chatgpt": [SAMPLES / "chatgpt"],
        "claude-ai": [SAMPLES / "claude-ai"],
        "messages": [SAMPLES / "messages"],
        "db": [opencode_db],
        "storage": [SAMPLES / "opencode" / "storage-legacy"],
        "export and db": [SAMPLES / "opencode" / "export-ses_demo0001.json", opencode_db],
    }


@pytest.mark.parametrize("turned", [False, True])
def test_second_time_adds_and_writes_nothing(fresh: Open, opencode_db: Path, turned: bool) -> None:
    for name, paths in sources(opencode_db).items():
        db = fresh()
        bring(db, *(paths[::-1] if turned else paths))
        before = Path(db.path).read_bytes()
        for again in (paths, paths[::-1]):
            for row in bring(db, *again):
                assert row["added"] == row["folded"] == row["changed"] == row["copied"] == 0, name
                assert row["branches"] == row["summaries"] == 0, name
        assert Path(db.path).read_bytes() == before, name


def test_dry_run_says_the_same(fresh: Open, opencode_db: Path) -> None:
    for paths in sources(opencode_db).values():
        tried = bring(fresh(), *paths, dry_run=True)
        done = bring(fresh(), *paths)
        for row in (*tried, *done):
            row.pop("timeline_id")
        assert tried == done


def test_storage_of_opencode(db: timeline.Database, tmp_path: Path) -> None:
    expected = load(SAMPLES / "opencode" / "storage-legacy.expected.json")
    (row,) = bring(db, SAMPLES / "opencode" / "storage-legacy")
    assert (row["records"], row["added"]) == (expected["records"], expected["messages"])
    assert row["session"] == expected["session_id"] and row["title"] == "健康检查"
    tree = Tree(db)
    assert tree.parents == {k: v or "root" for k, v in expected["parents"].items()}
    assert tree.branches == {"main": expected["active_leaf"]}
    assert len(tree.leaves) == expected["branches"]
    texts = {name: node["text"] for name, node in tree.nodes.items()}
    assert texts["msg_03"] == "已加 /healthz ✅" and "图.png" in texts["msg_01"]
    with pytest.raises(timeline.InvalidArgument, match="JSON of no known format"):
        bring(db, SAMPLES / "opencode" / "storage-legacy" / "part" / "msg_01" / "prt_01.json")
    part = tmp_path / "storage" / "part.json"
    part.parent.mkdir()
    part.write_text(
        '{"id":"p","messageID":"m","sessionID":"s","type":"text","text":"x"}', encoding="utf-8"
    )
    with pytest.raises(timeline.InvalidArgument, match="which is not here"):
        bring(db, part.parent)


def test_database_of_opencode(db: timeline.Database, opencode_db: Path) -> None:
    expected = load(SAMPLES / "opencode" / "opencode-db.expected.json")
    rows = bring(db, opencode_db)
    assert {row["session"] for row in rows} == set(expected["sessions"])
    assert sum(row["records"] for row in rows) == expected["records"]
    assert sum(row["added"] for row in rows) == expected["messages"]
    assert len(db.run("list", {})) == 1


def test_zip_as_downloaded(db: timeline.Database, tmp_path: Path) -> None:
    import zipfile

    split = SAMPLES / "chatgpt" / "split"
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("conversations-001.json", "conversations-000.json"):
            archive.write(split / name, name)
        archive.writestr("user.json", '{"id":"user-1","email":"x@example.org"}')
        archive.writestr("chat.html", "<html></html>")
    result = ti.import_paths(db, [str(path)])
    sessions = [row["session"] for row in result["timelines"] if row["timeline_id"]]
    assert [session[-1] for session in sessions] == ["3", "2"]
    assert {each["path"].rpartition("/")[2] for each in result["unrecognized"]} == {
        "user.json",
        "chat.html",
    }
    other = tmp_path / "claude.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.write(SAMPLES / "claude-ai" / "conversations.json", "conversations.json")
        archive.writestr("users.json", '[{"uuid":"u","full_name":"x"}]')
        archive.writestr("projects.json", '[{"uuid":"p","name":"x","docs":[]}]')
    result = ti.import_paths(db, [str(other)])
    assert [row["added"] for row in result["timelines"]] == [6, 0]
    assert len(result["unrecognized"]) == 2


# -- ChatGPT ---------------------------------------------------------------------------------------


def node(id: str, parent: object, role: str = "user", text: str = "", **message: Any) -> Json:
    content = {"content_type": "text", "parts": [text or id]}
    body = {"id": id, "author": {"role": role}, "content": content, **message}
    return {"id": id, "message": body, "parent": parent, "children": []}


def chatgpt(*nodes: Json, **fields: Any) -> bytes:
    mapping = {each["id"]: each for each in nodes}
    return json.dumps([{"mapping": mapping, "conversation_id": "c", **fields}]).encode()


def talk_of(data: bytes) -> ti.Transcript:
    (talk,) = drafts(data)
    return talk


def test_parent_is_who_lists_the_node_where_it_names_none() -> None:
    nodes = [node("a", None), node("b", None), node("c", "gone"), node("d", 7), node("e", "gone")]
    nodes[0]["children"] = ["b", "c"]
    nodes[1]["children"] = ["c", "d"]
    talk = talk_of(chatgpt(*nodes, current_node="d"))
    assert chain(talk) == {"a": None, "b": "a", "c": "a", "d": "b", "e": "d"}
    assert [entry.gap for entry in talk.entries] == [None] * 4 + ["parent not in file"]


def test_circles_and_own_parents_lose_no_message() -> None:
    talk = talk_of(chatgpt(node("a", "a"), node("b", "d"), node("c", "b"), node("d", "c")))
    assert chain(talk) == {"a": None, "b": "a", "c": "b", "d": "c"}
    assert talk.notes.kinds["self parent"] == talk.notes.kinds["parent cycle"] == 1
    hidden = {"id": "h", "message": None, "parent": "i", "children": []}
    other = {"id": "i", "message": None, "parent": "h", "children": []}
    talk = talk_of(chatgpt(node("a", None), hidden, other, node("b", "i")))
    assert chain(talk) == {"a": None, "b": "a"}


def test_hidden_current_node_is_the_message_above() -> None:
    hidden = node("h", "b", weight=0)
    nodes = [node("a", None), node("b", "a", "assistant"), node("c", "a", "assistant"), hidden]
    talk = talk_of(chatgpt(*nodes, current_node="h"))
    assert active_of(talk) == "b" and talk.notes.kinds == {}


def thoughts(id: str, parent: str, kind: str = "thoughts") -> Json:
    each = node(id, parent, "assistant")
    inner: object = [{"summary": id, "content": "x"}] if kind == "thoughts" else "for 5 s"
    each["message"]["content"] = {"content_type": kind, kind: inner, "content": inner}
    return each


def test_thoughts_fold_into_the_next_answer_only() -> None:
    nodes = [
        node("u", None),
        thoughts("t1", "u"),
        thoughts("t2", "t1", "reasoning_recap"),
        node("a", "t2", "assistant"),
        node("b", "t2", "assistant"),
        thoughts("t3", "b"),
        node("v", "t3"),
    ]
    data = chatgpt(*nodes, current_node="t3")
    talk = talk_of(data)
    assert chain(talk) == {"u": None, "a": "u", "b": "u", "t3": "b", "v": "t3"}
    assert [piece.id for piece in talk.entries[1].pieces] == ["a", "t1", "t2"]
    check_counts(talk)
    loop = [node("u", None), thoughts("t1", "t2"), thoughts("t2", "t1"), node("v", "t2")]
    assert set(chain(talk_of(chatgpt(*loop)))) == {"u", "t1", "t2", "v"}


def test_thoughts_that_came_alone_stay_alone(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    begin = [node("u", None), thoughts("t", "u")]
    path.write_bytes(chatgpt(*begin, current_node="t"))
    bring(db, path)
    path.write_bytes(chatgpt(*begin, node("a", "t", "assistant"), current_node="a"))
    assert [(row["added"], row["known"]) for row in bring(db, path)] == [(1, 2)]
    assert Tree(db).main() == ["u", "t", "a"]


def test_regenerated_later_is_a_branch(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    begin = [node("u", None), node("a", "u", "assistant")]
    path.write_bytes(chatgpt(*begin, current_node="a", title="one"))
    bring(db, path)
    path.write_bytes(chatgpt(*begin, node("b", "u", "assistant"), current_node="b", title="two"))
    bring(db, path)
    tree = Tree(db)
    assert tree.branches == {"main": "b", "a": "a"} and tree.state.title == "two"


@pytest.mark.parametrize(
    "shape", ["chain", "children first", "circle", "roots", "lost", "thoughts"]
)
@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_deep_and_wide_exports_take_linear_time(
    db: timeline.Database, tmp_path: Path, shape: str, count: int
) -> None:
    names = [f"m{n}" for n in range(count)]
    order = range(count)
    parents: list[object] = [None, *names[:-1]]
    if shape == "children first":
        order = range(count - 1, -1, -1)
    elif shape == "circle":
        parents[0] = names[-1]
    elif shape == "roots":
        parents = [None] * count
    elif shape == "lost":
        parents = ["nowhere"] * count
    nodes = [node(names[n], parents[n], "assistant" if n % 2 else "user", "x") for n in order]
    if shape == "thoughts":
        nodes[1:-1] = [thoughts(names[n], names[n - 1]) for n in range(1, count - 1)]
    data = chatgpt(*nodes, current_node=names[-1])
    talk = talk_of(data)
    check_counts(talk)
    if shape == "thoughts":
        assert len(talk.entries) == 2
        return
    assert len(talk.entries) == count
    plan = ti.lay_out(talk, ti.Ground())
    assert len(plan.steps) == count
    if shape == "chain":  # the others take the same way
        path = tmp_path / "deep.json"
        path.write_bytes(data)
        (row,) = bring(db, path)
        assert row["added"] == count


# -- Claude.ai -------------------------------------------------------------------------------------


def claude_ai(*messages: Json, **fields: Any) -> bytes:
    return json.dumps([{"uuid": "c", "name": "", "chat_messages": messages, **fields}]).encode()


def said(id: str, parent: str | None = None, sender: str = "human", **fields: Any) -> Json:
    message = {"uuid": id, "sender": sender, "text": id, "content": [], **fields}
    return message if parent is None else {**message, "parent_message_uuid": parent}


def test_missing_parents_and_the_leaf_of_claude_ai() -> None:
    root = "00000000-0000-4000-8000-000000000000"
    messages = [said("a", root), said("b", "a"), said("c", "gone"), said("d", "d"), said("e", "a")]
    talk = talk_of(claude_ai(*messages, current_leaf_message_uuid="d"))
    assert chain(talk) == {"a": None, "b": "a", "c": "b", "d": "c", "e": "a"}
    assert active_of(talk) == "d"
    talk = talk_of(claude_ai(*messages, current_leaf_message_uuid="x"))
    assert active_of(talk) == "e" and "current_leaf_message_uuid not in file" in talk.notes.kinds


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"text": "whole", "content": []}, "whole"),
        ({"text": "twice", "content": [{"type": "text", "text": "twice"}]}, "twice"),
        (
            {
                "text": "```\nThis block is not supported on your current device yet.\n```",
                "content": [{"type": "tool_use", "name": "x", "input": {}}],
            },
            "[call x] {}",
        ),
        ({"text": "", "content": [{"type": "token_budget"}]}, ""),
        ({"text": None, "content": None}, ""),
    ],
)
def test_text_of_claude_ai_is_taken_once(fields: Json, text: str) -> None:
    talk = talk_of(claude_ai(said("a", **fields)))
    assert talk.read(talk.entries[0]).text == text


def test_calls_without_ids_of_claude_ai_pair() -> None:
    blocks = [
        {"type": "tool_use", "name": "a", "input": {}},
        {"type": "tool_result", "content": "x"},
    ]
    talk = talk_of(claude_ai(said("m", sender="assistant", content=blocks)))
    assert pairs_of(talk) == {"m#0": ["m", "m"]}


# -- OpenCode --------------------------------------------------------------------------------------


def message(id: str, role: str = "user", at: int = 0, *parts: Json, **info: Any) -> Json:
    told = {"id": id, "sessionID": "s", "role": role, "time": {"created": at}, **info}
    return {"info": told, "parts": list(parts) or [{"type": "text", "text": id}]}


def opencode(*messages: Json, **info: Any) -> bytes:
    return json.dumps({"info": {"id": "s", **info}, "messages": messages}).encode()


def test_time_is_the_order_of_opencode() -> None:
    data = opencode(message("b", at=5), message("z", at=1), message("a", at=5), message("c", at=9))
    assert chain(talk_of(data)) == {"z": None, "a": "z", "b": "a", "c": "b"}


def test_tail_is_kept_behind_the_summary(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    trigger = {"type": "compaction", "auto": False, "tail_start_id": "u2"}
    talks = [
        message("u1", "user", 1),
        message("a1", "assistant", 2),
        message("u2", "user", 3),
        message("a2", "assistant", 4),
        message("t", "user", 5, trigger),
        message("S", "assistant", 6, summary=True),
        message("u3", "user", 7, summary={"title": "no summary"}),
    ]
    path.write_bytes(opencode(*talks))
    (row,) = bring(db, path)
    assert (row["added"], row["skipped"], row["copied"], row["summaries"]) == (6, 1, 2, 1)
    tree = Tree(db)
    assert tree.main() == ["S", "u2'", "a2'", "u3"] and tree.spans == {"S": ("u1", "a1")}
    assert tree.branches == {"main": "u3", "before compaction 1": "a2"}
    before = Path(db.path).read_bytes()
    assert [row["added"] for row in bring(db, path)] == [0]
    assert Path(db.path).read_bytes() == before


def test_undone_tail_is_a_branch(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    begin = [message("u1", "user", 1), message("a1", "assistant", 2)]
    tail = [message("u2", "user", 3), message("a2", "assistant", 4)]
    path.write_bytes(opencode(*begin, *tail, revert={"messageID": "u2"}))
    bring(db, path)
    assert Tree(db).branches == {"main": "a1", "u2": "a2"}
    path.write_bytes(opencode(*begin, message("u3", "user", 9)))
    bring(db, path)
    tree = Tree(db)
    assert tree.branches == {"main": "u3", "u2": "a2"} and tree.main() == ["u1", "a1", "u3"]
    path.write_bytes(opencode(*begin, revert={"messageID": "u1"}))
    assert [row["added"] for row in bring(db, path)] == [0]


def test_all_undone(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(opencode(message("u1"), message("a1", "assistant", 2), revert="x"))
    bring(db, path)
    other = tmp_path / "other.json"
    other.write_bytes(
        json.dumps(
            {
                "info": {"id": "t", "revert": {"messageID": "v"}},
                "messages": [message("v", "user", 1), message("w", "assistant", 2)],
            }
        ).encode()
    )
    assert [row["added"] for row in bring(db, other)] == [2]
    assert Tree(db, 1).branches == {"main": "root", "v": "w"}


def test_failed_summary_sums_up_nothing() -> None:
    trigger = message("t", "user", 2, {"type": "compaction"})
    failed = message("S", "assistant", 3, {"type": "text", "text": ""}, summary=True, error={})
    talk = talk_of(opencode(message("u"), trigger, failed))
    assert [entry.role for entry in talk.entries] == ["user", "assistant"]


def test_tools_of_opencode() -> None:
    def tool(id: str, **state: Any) -> Json:
        return {"type": "tool", "tool": "t", "callID": id, "state": {"input": {"x": 1}, **state}}

    picture = {"mime": "image/png", "filename": "p.png", "url": "data:image/png;base64,AAAA"}
    parts = [
        tool("a", status="completed", output="fine", attachments=[picture]),
        tool("b", status="error", error="broke"),
        tool("c", status="pending"),
    ]
    talk = talk_of(opencode(message("m", "assistant", 1, *parts)))
    assert pairs_of(talk) == {"a": ["m", "m"], "b": ["m", "m"], "c": ["m", None]}
    content = talk.read(talk.entries[0])
    assert "fine" in content.text and "[error] broke" in content.text
    assert content.files == [b"\0\0\0"]


def test_messages_cut_out_of_a_session_are_found(db: timeline.Database, tmp_path: Path) -> None:
    data = (SAMPLES / "opencode" / "export-ses_demo0001.json").read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(data[:-40])
    row, broken = bring(db, path)
    assert (row["added"], row["skipped"], row["session"]) == (5, 1, "ses_demo0001")
    assert broken["bad"] == broken["records"] == len(broken["warnings"]) == 2
    path.write_bytes(data)
    (row,) = bring(db, path)
    assert (row["added"], row["known"], row["timeline_id"]) == (1, 5, "tl0")
    assert Tree(db).state.title == "健康检查"


def tables(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.parent.glob(path.name + "*")}


def test_database_with_a_log_is_read_and_left_alone(
    fresh: Open, tmp_path: Path, opencode_db: Path
) -> None:
    base = sqlite3.connect(opencode_db)
    assert base.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    base.execute("PRAGMA wal_autocheckpoint=0")
    data = '{"role":"user","time":{"created":1772600009000}}'
    base.execute("INSERT INTO message VALUES('msg_09','ses_demo0001',1,1,?)", (data,))
    data = '{"type":"text","text":"only in the log"}'
    base.execute("INSERT INTO part VALUES('prt_99','msg_09','ses_demo0001',1,1,?)", (data,))
    base.commit()
    before = tables(opencode_db)
    assert len(before) == 3  # the log and the shared memory beside it
    db = fresh()
    assert sum(row["added"] for row in bring(db, opencode_db)) == 7
    assert Tree(db).nodes["msg_09"]["text"] == "only in the log"
    after = tables(opencode_db)
    assert after.keys() == before.keys()
    assert after["opencode.db"] == before["opencode.db"]
    assert after["opencode.db-wal"] == before["opencode.db-wal"]
    # The program died: only the log is left beside it.
    dead = tmp_path / "dead"
    dead.mkdir()
    for name in ("opencode.db", "opencode.db-wal"):
        (dead / name).write_bytes(before[name])
    assert sum(row["added"] for row in bring(fresh(), dead / "opencode.db")) == 7
    assert {each.name for each in dead.iterdir()} == {"opencode.db", "opencode.db-wal"}
    base.close()
    # Closed well: the header still says that there may be a log.
    assert [each.name for each in tmp_path.glob("opencode.db*")] == ["opencode.db"]
    before = tables(opencode_db)
    assert sum(row["added"] for row in bring(fresh(), opencode_db)) == 7
    assert tables(opencode_db) == before


def test_locked_database_is_reported(
    db: timeline.Database, opencode_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ti, "SQLITE_WAIT_S", 0.05)
    base = sqlite3.connect(opencode_db, isolation_level=None)
    base.execute("BEGIN EXCLUSIVE")
    with pytest.raises(timeline.InvalidArgument, match="locked: close the program"):
        bring(db, opencode_db)
    base.execute("ROLLBACK")
    base.close()
    assert sum(row["added"] for row in bring(db, opencode_db)) == 6


def test_foreign_and_damaged_databases_are_reported(
    db: timeline.Database, tmp_path: Path, opencode_db: Path
) -> None:
    foreign = tmp_path / "foreign.db"
    base = sqlite3.connect(foreign)
    base.execute("CREATE TABLE session (id)")
    base.commit()
    base.close()
    with pytest.raises(timeline.InvalidArgument, match="not one of OpenCode"):
        bring(db, foreign)
    with pytest.raises(timeline.InvalidArgument, match="not read as chatgpt"):
        bring(db, opencode_db, format="chatgpt")
    strange = tmp_path / "strange.db"
    base = sqlite3.connect(strange)
    for table in ("session", "message", "part"):
        base.execute(f"CREATE TABLE {table} (x)")
    base.commit()
    base.close()
    with pytest.raises(timeline.InvalidArgument, match="cannot be read"):
        bring(db, strange)
    data = opencode_db.read_bytes()
    damaged = tmp_path / "damaged.db"
    for cut in (16, 20, 100, 1000, 4096, 5000, 9000, len(data) // 2, len(data) - 1):
        damaged.write_bytes(data[:cut])
        check_database(db, damaged)


def check_database(db: timeline.Database, path: Path) -> None:
    """Reported or read, never anything else, and never written."""
    before = path.read_bytes()
    try:
        bring(db, path)
    except timeline.InvalidArgument as error:
        assert str(path) in str(error)
    assert path.read_bytes() == before
    assert not list(path.parent.glob(path.name + "-*"))


@pytest.mark.parametrize("seed", range(20))
def test_spoiled_database(db: timeline.Database, opencode_db: Path, seed: int) -> None:
    import random

    chance = random.Random(seed)
    raw = bytearray(opencode_db.read_bytes())
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(raw))
        raw[place : place + 30] = chance.randbytes(min(30, len(raw) - place))
    opencode_db.write_bytes(bytes(raw))
    check_database(db, opencode_db)


def test_odd_values_in_a_database(db: timeline.Database, opencode_db: Path) -> None:
    base = sqlite3.connect(opencode_db)
    base.execute("UPDATE message SET data = 'no JSON' WHERE id = 'msg_02'")
    base.execute("UPDATE message SET data = NULL WHERE id = 'msg_03'")
    base.execute("UPDATE message SET data = x'ff7b7d' WHERE id = 'msg_06'")
    base.execute("UPDATE part SET data = x'00' WHERE message_id = 'msg_07'")
    base.execute("UPDATE session SET title = 5, directory = x'ff', revert = '[' ")
    base.commit()
    base.close()
    row = next(row for row in bring(db, opencode_db) if row["records"])
    assert (row["added"], row["bad"], row["skipped"], row["title"]) == (3, 3, 1, "5")


# -- plain arrays ----------------------------------------------------------------------------------


def array(*pairs: tuple[str, object]) -> bytes:
    return json.dumps([{"role": role, "content": content} for role, content in pairs]).encode()


TALK = (("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))


def test_longer_copy_extends_and_a_diverging_one_branches(
    db: timeline.Database, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("short", "long", "other", "foreign")]
    paths[0].write_bytes(array(*TALK[:2]))
    paths[1].write_bytes(array(*TALK))
    paths[2].write_bytes(array(*TALK[:2], ("user", "q3")))
    paths[3].write_bytes(array(TALK[0]))
    rows = [bring(db, path)[0] for path in paths]
    assert [row["added"] for row in rows] == [2, 2, 1, 1]
    assert [row["timeline_id"] for row in rows] == ["tl0", "tl0", "tl0", "tl1"]
    texts = sorted(
        str(db.run("node", {"node": row["head"]})["text"])
        for row in db.run("branches", {"timeline_id": "tl0"})
    )
    assert texts[-2:] == ["a2", "q3"]


def test_talk_is_known_once_it_shows_its_dialect(db: timeline.Database, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(array(*TALK[:2]))
    assert [row["format"] for row in bring(db, path)] == ["openai"]
    mark = [{"type": "text", "text": "a1", "cache_control": {"type": "ephemeral"}}]
    call = [{"type": "tool_use", "id": "t", "name": "x", "input": {}}]
    path.write_bytes(array(TALK[0], ("assistant", mark), TALK[2], ("assistant", call)))
    (row,) = bring(db, path)
    assert (row["format"], row["added"], row["known"]) == ("anthropic", 2, 2)
    assert row["timeline_id"] == "tl0" and len(Tree(db).branches) == 1


def test_old_function_calls_pair() -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]
    talk = talk_of(json.dumps(messages).encode())
    assert pairs_of(talk) == {"#2.0": ["#1", "#2"]}
    assert [entry.role for entry in talk.entries] == ["user", "assistant", "tool", "assistant"]


PDF = "data:application/pdf;base64,AAAA"


def test_parts_of_openai() -> None:
    parts = [
        "bare",
        {"type": "text", "text": "t"},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "new thing"},
    ]  # fmt: skip
    talk = talk_of(array(("user", parts), ("assistant", "x")))
    content = talk.read(talk.entries[0])
    assert "[image https://example.org/x.png]" in content.text
    assert "[audio audio/wav, 3 bytes" in content.text and "[document a.pdf " in content.text
    assert "[document f1]" in content.text and "[new thing]" in content.text


def test_several_requests_in_a_file_are_several_talks(
    db: timeline.Database, tmp_path: Path
) -> None:
    path = tmp_path / "set.jsonl"
    lines = [{"messages": json.loads(array(("user", f"q{n}"), ("assistant", "a")))} for n in (1, 2)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for added in (2, 0):
        rows = bring(db, path)
        assert [(row["timeline_id"], row["added"]) for row in rows] == [
            ("tl0", added),
            ("tl1", added),
        ]


# -- documents -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "format", "why"),
    [
        (b"[]", None, "no JSON"),
        (b'[{"role":"user","content":"x"}]', "openai", ""),
        (b'{"messages":[{"role":"user","content":"x"}]}', "openai", ""),
        (b'{"system":"s","messages":[{"role":"user","content":"x"}]}', "anthropic", ""),
        (b'[{"role":"user","content":[{"type":"tool_result"}]}]', "anthropic", ""),
        (b'\xef\xbb\xbf [ {"mapping":{}} ]', "chatgpt", ""),
        (b'[1,null,"x",{"chat_messages":[]}]', "claude-ai", ""),
        (b'{"info":{},"messages":[]}', "opencode", ""),
        (b'[{"a":', None, "no JSON"),
        (b'[\n{"type":"user","uuid":"u","sessionId":"s"}\n]', "claude-code", ""),
        (b'{\n"a": 1\n}\n', None, "JSON of no known format"),
        (b"[" * 5000, None, "no JSON"),
    ],
)
def test_recognize(data: bytes, format: str | None, why: str) -> None:
    found, reason = ti.recognize(io.BytesIO(data))
    assert (found.name if found else None, reason) == (format, why)


def values(data: bytes) -> list[Any]:
    return [found.value for found in ti.Documents(io.BytesIO(data), lambda r: "ok" in r)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'[{"ok":1},{"ok":2}]', [{"ok": 1}, {"ok": 2}]),
        (b'[][,]]],[{"ok":1}],[ ]{"ok":2}', [{"ok": 1}, {"ok": 2}]),
        (b'{"ok":1}\n{"ok":2}', [{"ok": 1}, {"ok": 2}]),
        (b'[{"ok":1}][{"ok":2}]', [{"ok": 1}, {"ok": 2}]),
        (b'[12,"x",[1],{"ok":1}]', [None, None, None, {"ok": 1}]),
        (b'[{"a":{"b"}},{"ok":2}]', [None, {"ok": 2}]),
        (b'[{"a":[{"b":1},{"c":2},{"ok":2},{"ok":3}', [None, {"ok": 2}, {"ok": 3}]),
        (b'[{"ok":1},{"ok":', [{"ok": 1}, None]),
        (b'[{"ok":NaN,"b":1e999,"c":"a\nb"}]', [{"ok": None, "b": None, "c": "a\nb"}]),
        ('[{"ok":"\u2028ü"}]'.encode(), [{"ok": "\u2028ü"}]),
        (b'[{"ok":"\\ud83d\\ude00\\ud83d"}]', [{"ok": "\U0001f600\ufffd"}]),
        (b'[{"ok":"\xe4\xb8"}]', [{"ok": "\ufffd"}]),
        (b'[\0\0{"ok":1}\0]\0', [{"ok": 1}]),
        (b'[{"ok":' + b"9" * 5000 + b'},{"ok":2}]', [None, {"ok": 2}]),
        (b'[{"ok":' + b"[" * 100_000 + b',{"ok":2}', [None, {"ok": 2}]),
    ],
)  # fmt: skip
def test_documents(data: bytes, found: list[Any]) -> None:
    if b"9" * 5000 in data and not hasattr(__import__("sys"), "set_int_max_str_digits"):
        pytest.skip("this Python reads long numbers")
    assert values(data) == found


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_window_may_end_anywhere(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(ti, "WINDOW_BYTES", size)
    monkeypatch.setattr(ti, "_NEAR_END", 12)
    data = json.dumps([{"ok": 1.5e300, "a": ["\U0001f600", None, True, -12]}, 1234567, {"ok": "ü"}])
    documents = ti.Documents(io.BytesIO(data.encode()), lambda r: "ok" in r)
    found = list(documents)
    assert [each.value for each in found] == [json.loads(data)[0], None, {"ok": "ü"}]
    assert [documents.at(each.offset) for each in found[::2]] == json.loads(data)[::2]
    with pytest.raises(timeline.Refused, match="changed while it was read"):
        documents.at(3)


def test_value_above_the_limit_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ti, "WINDOW_BYTES", 64)
    monkeypatch.setattr(ti, "CONVERSATION_BYTES_MAX", 1000)
    data = b'[{"ok":"' + b"x" * 5000 + b'"},{"ok":2}]'
    assert values(data) == [None, {"ok": 2}]


@pytest.mark.slow
def test_many_conversations_take_little_memory(db: timeline.Database, tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "conversations.json"
    with path.open("wb") as file:
        for number in range(300):
            nodes = [node("r", None), node("s", "r", "assistant", "long " * 10_000)]
            for each in nodes:
                each["id"] = each["message"]["id"] = f"{each['id']}{number}"
            nodes[1]["parent"] = nodes[0]["id"]
            talk = chatgpt(*nodes, conversation_id=f"c{number}")[1:-1]
            file.write((b"," if number else b"[") + talk)
        file.write(b"]")
    tracemalloc.start()
    rows = bring(db, path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["added"] for row in rows] == [2] * 300
    assert peak < path.stat().st_size < 20 << 20
    assert len(db.run("list", {})) == 300
