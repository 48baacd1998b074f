"""Codex, pi and Gemini: samples against what a right reading finds, and what each format does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.transcripts import SAMPLES, Tree, load, total

Json = dict[str, Any]
Open = Callable[[], timeline.Database]
NOW = 1_780_000_000
FORMATS = ("codex", "pi", "gemini")
TREES = [case for f in FORMATS for case in load(SAMPLES / f / "our-tree.json")["samples"]]


def expected_files() -> list[Path]:
    found = [path for f in FORMATS for path in (SAMPLES / f).glob("*.expected.json")]
    return sorted(found)


def draft_of(data: bytes) -> ti.Transcript:
    format, why = ti.recognize(io.BytesIO(data))
    assert format is not None, why
    (draft,) = format.read(io.BytesIO(data))
    transcript = draft(lambda _: None)
    transcript.note_gaps()
    return transcript


def name_of(transcript: ti.Transcript, entry: ti.Entry) -> str:
    """How expected.json names an entry: its own id, else line or index."""
    piece = entry.pieces[0]
    if not transcript.unique:
        return f"#{piece.part}"
    return entry.native or f"L{entry.line}"


@pytest.fixture(params=expected_files(), ids=lambda path: f"{path.parent.name}-{path.stem[:20]}")
def case(request: pytest.FixtureRequest) -> tuple[ti.Transcript, Json, Path]:
    expected = load(request.param)
    path = request.param.parent / expected["file"]
    return draft_of(path.read_bytes()), expected, path


Case = tuple[ti.Transcript, Json, Path]


def chain(transcript: ti.Transcript) -> tuple[ti.Plan, dict[str, str | None], dict[int, str]]:
    """The layout and the client's own chain in it: a summary hangs on the end it stands for, and
    what hangs on a copy hangs on its summary."""
    plan = ti.lay_out(transcript, ti.Ground())
    names: dict[int, str] = {}
    parents: dict[str, str | None] = {}
    summary_of: dict[int, int] = {}
    for number, step in enumerate(plan.steps, 1):
        names[-number] = name_of(transcript, transcript.entries[step.entry])
        above = step.parent
        if step.kind == ti.COPY:
            summary_of[-number] = step.first
            continue
        if step.kind == ti.SUMMARY:
            own = transcript.entries[step.entry].parent
            parents[names[-number]] = name_of(transcript, transcript.entries[own])
            continue
        above = summary_of.get(above, above)
        parents[names[-number]] = names[above] if above else None
    return plan, parents, names


def test_what_a_file_is(case: Case) -> None:
    transcript, expected, path = case
    assert transcript.format == path.parent.name == expected["format"].split("-")[0]
    if "session_id" in expected:
        assert transcript.session == expected["session_id"]
    assert transcript.title == expected.get("title")


def test_parents_roles_leaves(case: Case) -> None:
    transcript, expected, _ = case
    plan, parents, names = chain(transcript)
    assert parents == expected["parents"]
    roles: dict[str, int] = {}
    for entry in transcript.entries:
        role = entry.kind if entry.kind in ("shell", "custom") else entry.role
        roles[role] = roles.get(role, 0) + 1
    assert roles == expected["roles"]
    assert len(transcript.entries) == expected["messages"]
    leaves = set(parents) - set(parents.values())
    assert len(leaves) == expected["branches"]
    assert leaves == set(expected.get("leaves", leaves))
    assert plan.active is not None
    assert names[plan.active] == expected["active_leaf"]


def test_summaries_know_their_range(case: Case) -> None:
    transcript, expected, _ = case
    plan, _, names = chain(transcript)
    found = []
    for number, step in enumerate(plan.steps, 1):
        if step.kind == ti.SUMMARY:
            row = {"node": names[-number], "from": names[step.first], "to": names[step.last]}
            copies = [names[-n] for n, each in enumerate(plan.steps, 1) if each.first == -number
                      and each.kind == ti.COPY]  # fmt: skip
            if copies:
                row["first_kept"] = copies[0]
            found.append(row)
    wanted = [dict(each) for each in expected.get("summaries", [])]
    branch = [each for each in wanted if each.pop("kind", "") == "branch"]
    assert found == [each for each in wanted if each not in branch]
    kinds = [name_of(transcript, e) for e in transcript.entries if e.kind == "branch_summary"]
    assert kinds == [each["node"] for each in branch]


def test_records_are_all_counted(case: Case) -> None:
    transcript, expected, _ = case
    counts = transcript.counts
    assert counts.records == expected["records"]
    hidden = expected.get("hidden", {})
    if isinstance(hidden, list):
        assert sum(counts.hidden.values()) == len(hidden)
    else:
        assert counts.hidden == hidden
    assert counts.skipped == expected.get("skipped", {})
    assert counts.known == expected.get("known", {})
    assert counts.bad == counts.changed == counts.sidechain == 0
    assert transcript.notes.kinds == expected.get("warnings", {})
    folded = {
        f"L{piece.line}": name_of(transcript, entry)
        for entry in transcript.entries
        for piece in entry.pieces[1:]
    }
    assert folded == expected.get("folded", {})
    assert [entry for entry in transcript.entries if entry.gap] == []


def test_calls_results_thinking_pictures(case: Case) -> None:
    transcript, expected, path = case
    pairs: dict[str, list[str]] = {}
    thinking: dict[str, str] = {}
    files = 0
    for entry in transcript.entries:
        name, content = name_of(transcript, entry), transcript.read(entry)
        files += len(content.files)
        for block in content.blocks or []:
            if block["type"] == "tool_use":
                pairs[block["id"]] = [name]
            elif block["type"] == "tool_result":
                pairs[block["tool_use_id"]].append(name)
            elif block["type"] == "thinking" and path.parent.name == "codex":
                thinking[name] = block["thinking"]
    assert pairs == expected.get("tool_pairs", {})
    assert thinking == expected.get("thinking", {})
    assert files == expected.get("attachments", 0)


# -- in a database ---------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Open]:
    """Makes a new database at each call; every one is whole at the end."""
    made: list[timeline.Database] = []

    def new() -> timeline.Database:
        folder = tmp_path / f"db{len(made)}"
        folder.mkdir()
        made.append(timeline.Database(str(folder / "t.json"), clock=lambda: NOW))
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


def files_of(case: Json) -> list[Path]:
    return [SAMPLES / name for name in case.get("files") or [case["file"]]]


def native_names(path: Path, prefix: str = "") -> dict[str, str]:
    """source.id -> the name in expected.json."""
    transcript = draft_of(path.read_bytes())
    return {e.native or e.id: prefix + name_of(transcript, e) for e in transcript.entries}


@pytest.mark.parametrize("case", TREES, ids=lambda c: c.get("file", "fork").split("/")[-1][:40])
def test_sample_becomes_the_tree_it_should(db: timeline.Database, case: Json) -> None:
    rows = bring(db, *files_of(case))
    names: dict[str, str] = {}
    for path, prefix in zip(files_of(case), ("parent:", "child:"), strict=False):
        for id, name in native_names(path, prefix if "files" in case else "").items():
            names.setdefault(id, name)
    for wanted in case["nodes"]:
        node = db.run("node", {"node": wanted["n"]})
        source = node["source"]
        found = {"n": node["node"], "native": names[source["id"]], "role": node["role"]}
        found["parent"] = node["parent"]
        if "summary" in wanted:
            found["summary"] = {end: node["summary"][end] for end in ("from", "to")}
        for name in ("kind", "copy_of"):
            if name in source:
                found[name] = source[name]
        assert found == wanted
    branches = db.run("branches", {})
    assert {row["name"]: row["head"] for row in branches} == case["branches"]
    assert [row["name"] for row in branches if row["current"]] == [case["current"]]
    assert rows[0]["title"] == case.get("title")
    assert len(Tree(db).nodes) == len(case["nodes"])
    assert sum(row["added"] + row["copied"] for row in rows) == len(case["nodes"])


def test_counts_of_a_row_and_second_time_adds_nothing(db: timeline.Database, case: Case) -> None:
    _, expected, path = case
    (row,) = bring(db, path)
    assert row["records"] == expected["records"]
    assert row["added"] == expected["messages"]
    assert row["folded"] == len(expected.get("folded", {}))
    for name in ("hidden", "skipped", "known"):
        told = expected.get(name, {})
        assert row[name] == (len(told) if isinstance(told, list) else sum(told.values())), name
    assert row["bad"] == row["changed"] == row["pending"] == row["sidechain"] == 0
    before = Path(db.path).read_bytes()
    (row,) = bring(db, path)
    assert row["added"] == row["folded"] == row["changed"] == row["copied"] == 0
    assert row["branches"] == row["summaries"] == 0
    assert Path(db.path).read_bytes() == before


FORK = sorted((SAMPLES / "codex" / "fork").glob("*.jsonl"))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_codex_fork_adds_only_its_own(db: timeline.Database, order: tuple[int, int]) -> None:
    expected = load(SAMPLES / "codex" / "fork" / "expected.json")
    first, second = (bring(db, FORK[each])[0] for each in order)
    assert (first["added"], second["added"]) == (4, expected["new_from_second_file"])
    rows = [first, second] if order == (0, 1) else [second, first]
    assert [row["records"] for row in rows] == expected["records"]
    assert [row["skipped"] for row in rows] == expected["skipped"]
    if order == (0, 1):
        assert [row["known"] for row in rows] == expected["known"]
    assert [row["session"] for row in rows] == expected["session_ids"]
    assert first["timeline_id"] == second["timeline_id"] == "tl0"
    names: dict[str, str] = {}
    for path, prefix in zip(FORK, ("parent:", "child:"), strict=True):
        for id, name in native_names(path, prefix).items():
            names.setdefault(id, name)
    tree = Tree(db)
    parents = {names[k]: names.get(v) for k, v in tree.parents.items()}
    assert parents == expected["parents"]
    assert {names[each] for each in tree.leaves} == set(expected["leaves"])
    assert set(tree.branches.values()) == tree.leaves
    before = Path(db.path).read_bytes()
    for path in (*FORK, *FORK[::-1]):
        assert bring(db, path)[0]["added"] == 0
    assert Path(db.path).read_bytes() == before


def test_codex_parents_are_read_before_forks(db: timeline.Database, tmp_path: Path) -> None:
    for name, path in zip(("b", "a"), FORK, strict=True):
        (tmp_path / f"{name}.jsonl").write_bytes(path.read_bytes())
    rows = bring(db, tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert [row["added"] for row in rows] == [4, 2]
    assert set(Tree(db).branches) == {"main", "把暗号改成玫瑰"}


def test_codex_child_alone_works(db: timeline.Database) -> None:
    (row,) = bring(db, FORK[1])
    assert row["added"] == 4 and list(Tree(db).branches) == ["main"]
    assert db.run("list", {})[0]["project"] == "/srv/demo/shop-b"


@pytest.mark.parametrize("place", range(1, 13))
def test_interrupted_import_is_completed(
    fresh: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, place: int
) -> None:
    path = case[2]
    if "rollback" in path.name or "09-00-00" in path.name:  # one that ends with a step back too
        path = tmp_path / "rolled.jsonl"
        path.write_bytes(case[2].read_bytes() + rolled().lines[-1])
    whole, broken = fresh(), fresh()
    bring(whole, path)
    monkeypatch.setattr(ti, "CHUNK_NODES", 2)
    append, count = timeline.Importing.append, 0

    def stop(self: Any, *arguments: Any) -> int:
        nonlocal count
        count += 1
        if count == place:
            raise KeyboardInterrupt
        return append(self, *arguments)

    monkeypatch.setattr(timeline.Importing, "append", stop)
    try:
        bring(broken, path)
    except KeyboardInterrupt:
        pass
    monkeypatch.setattr(timeline.Importing, "append", append)
    bring(broken, path)
    one, two = Tree(whole), Tree(broken)
    assert one.nodes == two.nodes
    assert one.branches == two.branches
    assert bring(broken, path)[0]["added"] == 0


# -- Codex -----------------------------------------------------------------------------------------


class Rollout:
    """A rollout in the making; each method appends one line."""

    def __init__(self, session: str = "s1") -> None:
        self.lines: list[bytes] = []
        self.add("session_meta", id=session, cwd="/srv/x")

    def add(self, kind: str, **payload: Any) -> Rollout:
        self.lines.append(json.dumps({"timestamp": "2026-03-05T08:00:00Z", "type": kind,
                                      "payload": payload}).encode() + b"\n")  # fmt: skip
        return self

    def turn(self, name: str) -> Rollout:
        return self.add("turn_context", turn_id=name, cwd="/srv/x")

    def say(self, text: str, role: str = "user") -> Rollout:
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": text}]
        return self.add("response_item", type="message", role=role, content=content)

    def answer(self, text: str) -> Rollout:
        return self.say(text, "assistant")

    def think(self, text: str) -> Rollout:
        summary = [{"type": "summary_text", "text": text}]
        return self.add("response_item", type="reasoning", summary=summary)

    def event(self, kind: str, **fields: Any) -> Rollout:
        return self.add("event_msg", type=kind, **fields)

    def data(self, count: int | None = None) -> bytes:
        return b"".join(self.lines[:count])


def texts(transcript: ti.Transcript) -> list[tuple[str, str, str | None]]:
    """(role, text, text of the parent) of each entry."""
    said = [transcript.read(entry).text for entry in transcript.entries]
    return [
        (entry.role, said[index], said[entry.parent] if entry.parent >= 0 else None)
        for index, entry in enumerate(transcript.entries)
    ]


class Shop:
    """A database and one file that is imported again and again."""

    def __init__(self, db: timeline.Database, path: Path) -> None:
        self.db = db
        self.path = path

    def put(self, data: bytes) -> Json:
        self.path.write_bytes(data)
        return bring(self.db, self.path)[0]

    def texts(self) -> dict[str, str]:
        """Branch -> text at its head."""
        tree = Tree(self.db)
        return {
            name: str(tree.nodes[head]["text"]) if head != "root" else ""
            for name, head in tree.branches.items()
        }


@pytest.fixture
def shop(db: timeline.Database, tmp_path: Path) -> Shop:
    return Shop(db, tmp_path / "file.jsonl")


def rolled(count: int = 1) -> Rollout:
    talk = Rollout().turn("t1").say("one").answer("1").turn("t2").say("two").answer("2")
    return talk.event("thread_rolled_back", num_turns=count)


def test_codex_rollback_at_the_end_moves_main(shop: Shop) -> None:
    shop.put(rolled().data())
    assert shop.texts() == {"main": "1", "two": "2"}
    row = shop.put(rolled().turn("t3").say("three").answer("3").data())
    assert (row["added"], row["branches"]) == (2, 0)
    assert shop.texts() == {"main": "3", "two": "2"}


def test_codex_rollback_is_followed_when_it_comes_later(shop: Shop) -> None:
    shop.put(rolled().data(-1))
    shop.put(rolled().data())
    assert shop.texts() == {"main": "1", "two": "2"}
    before = Path(shop.db.path).read_bytes()
    shop.put(rolled().data())
    assert Path(shop.db.path).read_bytes() == before
    shop.put(rolled().turn("t3").say("three").answer("3").data())
    shop.put(rolled().data())  # an older copy of the file
    assert shop.texts() == {"main": "3", "two": "2"}


@pytest.mark.parametrize("count", [1, 2])
def test_codex_file_read_line_by_line_ends_like_one_read_at_once(shop: Shop, count: int) -> None:
    talk = rolled().turn("t3").say("three").answer("3")
    talk.event("thread_rolled_back", num_turns=count)
    for number in range(1, len(talk.lines) + 1):
        shop.put(talk.data(number))
    main = {1: "1", 2: ""}[count]
    assert shop.texts() == {"main": main, "two": "2", "three": "3"}


def test_gemini_step_back_behind_a_compression_is_followed(shop: Shop) -> None:
    begun = g_file(U1, A1, U2, A2, g_set(g_line("s1", "sum"), U2, A2), g_line("u3", "three"))
    shop.put(begun)
    shop.put(begun + json.dumps(g_set(U1, A1)).encode() + b"\n")
    assert shop.texts() == {"main": "1", "before compaction 1": "2", "three": "three"}


def test_codex_rollback_does_not_undo_what_users_wrote(shop: Shop) -> None:
    shop.put(rolled().data(-1))
    shop.db.run("append", {"role": "user", "text": "mine"})
    shop.put(rolled().data())
    assert shop.texts() == {"main": "mine"}


def test_codex_rollback_of_all_turns_leaves_the_root(shop: Shop) -> None:
    shop.put(rolled(9).data())
    assert shop.texts() == {"main": "", "one": "2"}
    talk = rolled(9).turn("t3").say("new")
    assert texts(draft_of(talk.data()))[-1] == ("user", "new", None)
    shop.put(talk.data())
    assert shop.texts() == {"main": "new", "one": "2"}


@pytest.mark.parametrize("count", [0, -1, None, "1", 1.5, True, 10**30])
def test_codex_rollback_of_no_number_is_warned_about(count: object) -> None:
    talk = Rollout().turn("t").say("one").event("thread_rolled_back", num_turns=count).say("two")
    transcript = draft_of(talk.data())
    big = count == 10**30
    assert transcript.notes.kinds == ({} if big else {"rollback": 1})
    assert texts(transcript)[1] == ("user", "two", None if big else "one")


def test_codex_item_of_other_content_is_a_new_node(shop: Shop) -> None:
    shop.put(Rollout().turn("t1").say("one").answer("1").data())
    row = shop.put(Rollout().turn("t1").say("one").answer("other").data())
    assert (row["added"], row["known"], row["changed"]) == (1, 1, 0)


def test_codex_items_before_the_first_turn_are_known_by_the_session(
    db: timeline.Database, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(Rollout(name).say("hi").answer("yes").data())
    assert [row["added"] for row in bring(db, tmp_path)] == [2, 2]
    assert len(db.run("list", {})) == 2


def test_codex_events_count_only_where_no_item_repeats_them() -> None:
    talk = Rollout().turn("t1").event("user_message", message="before").say("before").answer("1")
    talk.say("after").event("user_message", message="after").answer("2")
    talk.say("# Context\n## My request:\nwrapped").event("user_message", message="wrapped").answer(
        "3"
    )
    talk.event("user_message", message="alone").answer("4").event("user_message", message="last")
    transcript = draft_of(talk.data())
    said = [text for role, text, _ in texts(transcript) if role == "user"]
    assert said == ["before", "after", "# Context\n## My request:\nwrapped", "alone", "last"]
    assert transcript.counts.skipped["event_msg"] == 3


def test_codex_event_whose_item_comes_later_is_known(shop: Shop) -> None:
    talk = Rollout().turn("t1").event("user_message", message="hello")
    shop.put(talk.data())
    row = shop.put(talk.say("hello").answer("1").data())
    assert (row["added"], row["known"]) == (1, 1)


def test_codex_thoughts_without_answer_are_a_message(shop: Shop) -> None:
    talk = Rollout().turn("t1").say("one").think("hm")
    shop.put(talk.data())
    row = shop.put(talk.answer("1").data())
    assert (row["added"], row["known"], row["folded"]) == (1, 2, 0)
    assert shop.texts() == {"main": "1"}
    transcript = draft_of(Rollout().say("one").think("hm").say("stop").data())
    assert [entry.role for entry in transcript.entries] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("<environment_context>\n<cwd>/x</cwd></environment_context>", "environment_context"),
        ("<user_instructions>x</user_instructions>", "user_instructions"),
        ("<permissions instructions>x</permissions instructions>", "permissions"),
        ("<turn_aborted>\nx\n</turn_aborted>", "turn_aborted"),
        ("# AGENTS.md instructions for /srv/x\n\n<INSTRUCTIONS>y</INSTRUCTIONS>", "AGENTS.md"),
        ("<timeline-handoff>x</timeline-handoff>", "timeline-handoff"),
        ("What does <environment_context> mean?", None),
        ("<environment_context>x</environment_context> and this?", None),
        ("# AGENTS.md instructions are wrong", None),
    ],
)
def test_codex_scaffolding_is_hidden(text: str, hidden: str | None) -> None:
    transcript = draft_of(Rollout().say(text).data())
    assert transcript.counts.hidden == ({hidden: 1} if hidden else {})
    assert len(transcript.entries) == (0 if hidden else 1)


def history(*said: str) -> list[Json]:
    return [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        for text in said
    ]


def test_codex_summary_may_stand_in_the_history_only() -> None:
    talk = Rollout().say("one").answer("1")
    talk.add("compacted", message="", replacement_history=history("one", "the summary"))
    assert texts(draft_of(talk.data()))[-1] == ("summary", "the summary", "1")
    opaque = [*history("one"), {"type": "compaction", "encrypted_content": "x"}]
    talk = Rollout().say("one").add("compacted", message="", replacement_history=opaque)
    entry = draft_of(talk.data()).entries[-1]
    assert (entry.role, entry.kind) == ("summary", "opaque")


def test_codex_history_is_read_where_the_lines_are_gone(shop: Shop) -> None:
    talk = Rollout().turn("t9")
    talk.add("compacted", message="sum", replacement_history=history("first", "second", "sum"))
    row = shop.put(talk.say("next").data())
    assert (row["records"], row["added"], row["summaries"]) == (6, 4, 1)
    assert shop.texts() == {"main": "next", "before compaction 1": "second"}
    assert shop.put(talk.data())["added"] == 0


def test_codex_fork_of_a_fork_is_known(db: timeline.Database, tmp_path: Path) -> None:
    grand = Rollout("g").turn("g1").say("one").answer("1")
    child = Rollout("c")
    child.lines += [*grand.lines, *Rollout("c").turn("c1").say("two").answer("2").lines[1:]]
    last = Rollout("l")
    last.lines += [*child.lines, *Rollout("l").turn("l1").say("three").answer("3").lines[1:]]
    for name, talk in (("1", last), ("2", grand), ("3", child)):
        (tmp_path / f"{name}.jsonl").write_bytes(talk.data())
    added = [bring(db, tmp_path / f"{name}.jsonl")[0]["added"] for name in "123"]
    assert added == [6, 0, 0]


def test_codex_usage_is_kept_and_cwd_follows_the_turn(shop: Shop) -> None:
    talk = Rollout().turn("t1").say("one").answer("1")
    talk.event("token_count", info={"last_token_usage": {"output_tokens": 7}})
    talk.add("turn_context", turn_id="t2", cwd="/srv/y").say("two")
    shop.put(talk.data())
    nodes = list(Tree(shop.db).nodes.values())
    assert nodes[1]["source"]["usage"] == {"output_tokens": 7}
    assert [node["source"]["cwd"] for node in nodes] == ["/srv/x", "/srv/x", "/srv/y"]


def test_codex_results_show_what_the_tool_said() -> None:
    outputs: list[Any] = [
        "plain", '{"output":"inner","metadata":{"exit_code":0}}',
        {"content": "said", "success": False},
        [{"type": "input_text", "text": "part"}], '{"other":1}', '{"output":"\\ud800"}',
    ]  # fmt: skip
    talk = Rollout()
    for output in outputs:
        talk.add("response_item", type="function_call_output", call_id="c", output=output)
    said = [text for _, text, _ in texts(draft_of(talk.data()))]
    assert said == ["plain", "inner", "[error] said", "part", '{"other":1}', "\ufffd"]


# -- pi --------------------------------------------------------------------------------------------


def pi_line(kind: str, id: str | None, parent: str | None = None, **fields: Any) -> bytes:
    record: Json = {"type": kind, "timestamp": f"2026-03-05T08:00:00.{id or '0'}Z", **fields}
    if id is not None:
        record.update(id=id, parentId=parent)
    return json.dumps(record).encode() + b"\n"


def pi_user(id: str | None, parent: str | None, text: str) -> bytes:
    return pi_line("message", id, parent, message={"role": "user", "content": text})


def pi_file(*lines: bytes, session: str = "p1", version: int = 3) -> bytes:
    head = {"type": "session", "version": version, "id": session, "cwd": "/srv/x",
            "timestamp": "2026-03-05T08:00:00Z"}  # fmt: skip
    return json.dumps(head).encode() + b"\n" + b"".join(lines)


def test_pi_fork_is_known_by_id_and_time(db: timeline.Database, tmp_path: Path) -> None:
    shared = [pi_user("a1", None, "one"), pi_user("a2", "a1", "two")]
    (tmp_path / "a.jsonl").write_bytes(pi_file(*shared))
    (tmp_path / "b.jsonl").write_bytes(pi_file(*shared, pi_user("b3", "a2", "own"), session="p2"))
    (tmp_path / "c.jsonl").write_bytes(
        pi_file(pi_user("a1", None, "x").replace(b"08:00", b"09:00"), session="p3")
    )
    assert [row["added"] for row in bring(db, tmp_path)] == [2, 1, 1]
    assert len(db.run("list", {})) == 2


def test_pi_file_of_version_1_written_again_with_ids_is_known(shop: Shop) -> None:
    said = ["one", "two", "two"]
    shop.put(pi_file(*(pi_user(None, None, text) for text in said), version=1))
    ids = ["x1", "x2", "x3"]
    lines = [
        pi_user(id, above, text) for id, above, text in zip(ids, [None, *ids], said, strict=False)
    ]
    row = shop.put(pi_file(*lines, pi_user("x4", "x3", "new")))
    assert (row["added"], row["known"], row["changed"]) == (1, 3, 0)
    assert shop.texts() == {"main": "new"}


def test_pi_version_1_of_other_content_is_changed(shop: Shop) -> None:
    shop.put(pi_file(pi_user(None, None, "one"), version=1))
    row = shop.put(pi_file(pi_user(None, None, "other"), version=1))
    assert (row["added"], row["changed"]) == (0, 1)


@pytest.mark.parametrize(
    ("first", "kept"), [("m", ["two"]), ("a2", ["two"]), ("gone", []), ("a1", ["one", "two"])]
)
def test_pi_first_kept_entry(first: str, kept: list[str]) -> None:
    data = pi_file(
        pi_user("a1", None, "one"),
        pi_line("model_change", "m", "a1"),
        pi_user("a2", "m", "two"),
        pi_line("compaction", "c", "a2", summary="s", firstKeptEntryId=first),
    )
    transcript = draft_of(data)
    told = transcript.entries[2].compaction
    assert told is not None
    assert [transcript.read(transcript.entries[each]).text for each in told.kept] == kept


def test_pi_message_on_a_kept_one_hangs_on_the_original(shop: Shop) -> None:
    lines = [
        pi_user("a1", None, "one"),
        pi_user("a2", "a1", "two"),
        pi_line("compaction", "c1", "a2", summary="sum", firstKeptEntryId="a2"),
        pi_user("a3", "c1", "three"),
        pi_user("a4", "a2", "beside"),
    ]
    shop.put(pi_file(*lines))
    tree = Tree(shop.db)
    assert tree.parents["a4"] == "a2" and tree.parents["a3"] == "a2'"
    lines.append(pi_user("a5", "a2", "later"))
    lines.append(pi_line("compaction", "c2", "a3", summary="again", firstKeptEntryId="a2"))
    shop.put(pi_file(*lines))
    tree = Tree(shop.db)
    assert tree.parents["a5"] == "a2"
    assert tree.spans["c2"] == ("c1", "c1")
    assert tree.main() == ["c2", "a2''", "a3'"]


def test_pi_last_line_behind_the_newest_message_is_not_stale() -> None:
    data = pi_file(
        pi_user("a1", None, "one"), pi_user("a2", "a1", "two"), pi_line("label", "l", "a2")
    )
    assert draft_of(data).notes.kinds == {}


def test_pi_missing_parents_and_cycles_are_gaps() -> None:
    data = pi_file(
        pi_user("a1", None, "one"),
        pi_user("a2", "nowhere", "two"),
        pi_user("a3", "a3", "three"),
        pi_user("a4", "a5", "four"),
        pi_user("a5", "a4", "five"),
        pi_line("label", "s1", "s2"),
        pi_line("label", "s2", "s1"),
        pi_user("a6", "s1", "six"),
    )
    transcript = draft_of(data)
    assert [each[2] for each in texts(transcript)] == [None, "one", "two", "three", "four", "five"]
    assert transcript.notes.kinds.pop("parent cycle") == 1
    assert sum(n for k, n in transcript.notes.kinds.items() if k != "stale last line") == 3


# -- Gemini ----------------------------------------------------------------------------------------


def g_line(id: str, text: str, kind: str = "user") -> Json:
    return {"id": id, "timestamp": "2026-03-03T10:00:01Z", "type": kind, "content": text}


def g_file(*records: Json, session: str = "g1") -> bytes:
    head = {"sessionId": session, "projectHash": "x", "startTime": "2026-03-03T10:00:00Z"}
    return b"".join(json.dumps(each).encode() + b"\n" for each in (head, *records))


U1, A1, U2, A2 = (g_line("u1", "one"), g_line("a1", "1", "gemini"), g_line("u2", "two"),
                  g_line("a2", "2", "gemini"))  # fmt: skip


def g_set(*messages: Json) -> Json:
    return {"$set": {"messages": list(messages)}}


def test_gemini_step_back_at_the_end_moves_main(shop: Shop) -> None:
    shop.put(g_file(U1, A1, U2, A2))
    shop.put(g_file(U1, A1, U2, A2, {"$rewindTo": "u2"}))
    assert shop.texts() == {"main": "1", "two": "2"}


def test_gemini_step_back_to_an_unknown_message_drops_all() -> None:
    data = g_file(U1, A1, {"$rewindTo": "nowhere"}, U2)
    assert texts(draft_of(data))[-1] == ("user", "two", None)


def test_gemini_shorter_list_is_a_step_back(shop: Shop) -> None:
    shop.put(g_file(U1, A1, U2, A2, g_set(U1, A1)))
    assert shop.texts() == {"main": "1", "two": "2"}
    row = shop.put(g_file(U1, A1, U2, A2, g_set(U1, A1), g_line("u3", "three")))
    assert row["added"] == 1 and shop.texts() == {"main": "three", "two": "2"}


def test_gemini_masked_list_changes_nothing(shop: Shop) -> None:
    row = shop.put(g_file(U1, A1, U2, A2, g_set(U1, {**A1, "content": "masked"}, U2, A2)))
    assert (row["added"], row["known"], row["changed"]) == (4, 4, 0)
    assert shop.texts() == {"main": "2"}


def test_gemini_compression_with_new_ids_keeps_by_content(shop: Shop) -> None:
    new = [{**U2, "id": "n2"}, {**A2, "id": "n3"}]
    got = g_line("s2", "Got it. Thanks for the additional context!", "gemini")
    data = g_file(U1, A1, U2, A2, g_set(g_line("s1", "snapshot"), got, *new), g_line("u3", "three"))
    row = shop.put(data)
    assert (row["records"], row["added"], row["folded"], row["known"]) == (11, 6, 1, 2)
    assert (row["copied"], row["summaries"]) == (2, 1)
    tree = Tree(shop.db)
    assert tree.spans == {"s1": ("u1", "a1")} and tree.main() == ["s1", "u2'", "a2'", "u3"]
    assert shop.put(data)["added"] == 0
    back = [{"$rewindTo": "n3"}, g_line("u4", "four")]
    shop.put(data + g_file(*back).split(b"\n", 1)[1])
    assert Tree(shop.db).main() == ["s1", "u2'", "u4"]


def test_gemini_list_before_any_message_is_plain() -> None:
    setup = g_line("x", "<session_context>\nhello\n</session_context>")
    transcript = draft_of(g_file(g_set(setup, U1, A1), U2))
    assert [each[:2] for each in texts(transcript)] == [
        ("user", "one"), ("assistant", "1"), ("user", "two"),
    ]  # fmt: skip
    assert transcript.counts.hidden == {"set-up": 1}


def test_gemini_unknown_message_at_the_end_of_a_list_is_plain() -> None:
    transcript = draft_of(g_file(U1, A1, U2, g_set(U1, A1, g_line("x", "other"))))
    assert texts(transcript)[-1] == ("user", "other", "1")
    assert transcript.active == 3 and not transcript.undone


def test_gemini_session_in_both_forms_is_one(db: timeline.Database, tmp_path: Path) -> None:
    head = {"sessionId": "g1", "projectHash": "x", "startTime": "2026-03-03T10:00:00Z"}
    (tmp_path / "a.json").write_text(
        json.dumps({**head, "messages": [U1, A1]}, indent=2), encoding="utf-8"
    )
    (tmp_path / "b.jsonl").write_bytes(g_file(U1, A1, U2))
    assert [row["added"] for row in bring(db, tmp_path)] == [2, 1]


def test_gemini_same_id_in_another_session_is_another(
    db: timeline.Database, tmp_path: Path
) -> None:
    for name in ("g1", "g2"):
        (tmp_path / f"{name}.jsonl").write_bytes(g_file(U1, A1, session=name))
    assert [row["added"] for row in bring(db, tmp_path)] == [2, 2]


def test_gemini_message_that_grows_is_changed_and_stays(shop: Shop) -> None:
    shop.put(g_file(U1, {**A1, "content": ""}))
    row = shop.put(g_file(U1, {**A1, "content": ""}, A1))
    assert (row["added"], row["changed"]) == (0, 1)


def test_gemini_call_with_its_result_joins_nothing(db: timeline.Database) -> None:
    bring(db, SAMPLES / "gemini" / "session-2026-03-03T10-00-9e000000.jsonl")
    with db.importing(dry_run=True) as tx:
        assert "joins" not in tx.record(2)


def test_gemini_chat_is_found_again_when_it_grows(shop: Shop) -> None:
    turns = [{"role": role, "parts": [{"text": text}]}
             for role, text in (("user", "q"), ("model", "a"), ("user", "r"))]  # fmt: skip
    assert shop.put(json.dumps({"history": turns[:2]}).encode())["added"] == 2
    assert shop.put(json.dumps(turns).encode())["added"] == 1
    assert len(shop.db.run("list", {})) == 1


def test_gemini_state_for_restore_is_a_chat() -> None:
    turns = [{"role": "user", "parts": [{"text": "q"}]}]
    kept = {"history": [{"type": "user", "text": "q"}], "clientHistory": turns, "toolCall": {}}
    assert [each[1] for each in texts(draft_of(json.dumps(kept, indent=1).encode()))] == ["q"]


# -- size ------------------------------------------------------------------------------------------


@pytest.fixture(params=[2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def deep(request: pytest.FixtureRequest) -> int:
    """How many records; all of them in the slow tests only."""
    chosen: int = request.param
    return chosen


def deep_codex(deep: int) -> bytes:
    one = Rollout().turn("t").say("0").data()
    line = Rollout().say("{}").lines[1]
    return one + b"".join(line.replace(b"{}", b"%d" % n) for n in range(1, deep))


def deep_pi(deep: int) -> bytes:
    return pi_file(*(pi_user(f"a{n}", f"a{n - 1}" if n else None, str(n)) for n in range(deep)))


def deep_gemini(deep: int) -> bytes:
    return g_file(*(g_line(f"m{n}", str(n)) for n in range(deep)))


@pytest.mark.parametrize("make", [deep_codex, deep_pi, deep_gemini])
def test_deep_talks(make: Callable[[int], bytes], deep: int) -> None:
    transcript = draft_of(make(deep))
    plan = ti.lay_out(transcript, ti.Ground())
    assert len(plan.steps) == deep and len(plan.leaves()) == 1
    assert [step.parent for step in plan.steps] == [0, *range(-1, -deep, -1)]


def test_pi_cycles_and_missing_parents_in_linear_time(deep: int) -> None:
    lines = [pi_user(f"a{n}", f"a{n + 1 if n + 1 < deep else 0}", str(n)) for n in range(deep)]
    lines += [pi_user(f"b{n}", f"gone{n}", str(n)) for n in range(deep)]
    lines += [pi_line("label", f"c{n}", f"c{n + 1 if n + 1 < deep else 0}") for n in range(deep)]
    lines += [pi_user(f"d{n}", f"c{n}", str(n)) for n in range(deep)]
    transcript = draft_of(pi_file(*lines))
    kinds = transcript.notes.kinds
    assert (kinds["parent cycle"], kinds["parent not in file"]) == (1, 2 * deep)
    assert len(ti.lay_out(transcript, ti.Ground()).steps) == 3 * deep


def test_gemini_lists_and_steps_back_in_linear_time(deep: int) -> None:
    records = [g_line(f"m{n}", str(n)) for n in range(deep)]
    steps = [each for n in range(deep) for each in (g_line(f"x{n}", "x"), {"$rewindTo": f"x{n}"})]
    kept = [{**record, "id": f"k{n}"} for n, record in enumerate(records[1:])]
    transcript = draft_of(g_file(*records, *steps, g_set(g_line("s", "sum"), *kept)))
    assert len(transcript.entries) == 2 * deep + 1
    told = transcript.entries[-1].compaction
    assert told is not None and len(told.kept) == deep - 1


def test_codex_rollbacks_in_linear_time(deep: int) -> None:
    talk = Rollout().turn("t")
    data = bytearray(talk.data())
    user, back = Rollout().say("{}").lines[1], Rollout().event("thread_rolled_back", num_turns=1)
    for n in range(deep):
        data += user.replace(b"{}", b"%d" % n) + (back.lines[1] if n % 2 else b"")
    transcript = draft_of(bytes(data))
    assert len(transcript.entries) == deep
    assert transcript.entries[-1].parent == deep - 2


MARKED = "<timeline-handoff>a</timeline-handoff>"


@pytest.mark.parametrize(
    ("text", "is_said"),
    [(MARKED, False), (f" {MARKED}\n{MARKED} ", False), (f"{MARKED} And now? {MARKED}", True)],
)
@pytest.mark.parametrize("client", ["claude-code", "codex", "pi", "gemini"])
def test_what_is_said_between_two_handoffs_is_a_message(
    client: str, text: str, is_said: bool
) -> None:
    if client == "codex" and text.count(MARKED) == 2 and not is_said:
        text = MARKED  # its texts are told apart one by one
    records: dict[str, list[Any]] = {
        "claude-code": [
            {
                "type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s",
                "message": {"role": "user", "content": text},
            }
        ],
        "codex": [
            {"type": "session_meta", "payload": {"id": "s"}},
            {
                "type": "response_item",
                "payload": {
                    "type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": text}],
                },
            },
        ],
        "pi": [
            {"type": "session", "version": 3, "id": "s", "cwd": "/"},
            {
                "type": "message", "id": "a", "parentId": None,
                "timestamp": "2026-01-01T00:00:00Z", "message": {"role": "user", "content": text},
            },
        ],
        "gemini": [
            {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z"},
            {"id": "1", "type": "user", "content": text},
        ],
    }  # fmt: skip
    data = b"".join(json.dumps(each).encode() + b"\n" for each in records[client])
    format, why = ti.recognize(io.BytesIO(data))
    assert format is not None, why
    assert format.name == client
    (draft,) = format.read(io.BytesIO(data))
    transcript = draft(lambda _: None)
    assert len(transcript.entries) == is_said
    assert sum(transcript.counts.hidden.values()) == (not is_said)
