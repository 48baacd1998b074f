"""Imports into a real database: the trees, branches and counts that come out."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.transcripts import CLAUDE, SAMPLES, Session, Tree, load, total

Json = dict[str, Any]
Open = Callable[[], timeline.Database]
NOW = 1_780_000_000


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


def content_of(db: timeline.Database) -> bytes:
    return Path(db.path).read_bytes()


# -- samples ---------------------------------------------------------------------------------------

TREES = load(CLAUDE / "our-tree.json")["samples"]


def files_of(case: Json) -> list[Path]:
    return [SAMPLES / name for name in case.get("files") or [case["file"]]]


@pytest.mark.parametrize("case", TREES, ids=lambda case: case.get("file", "fork"))
def test_sample_becomes_the_tree_it_should(db: timeline.Database, case: Json) -> None:
    rows = bring(db, *files_of(case))
    for wanted in case["nodes"]:
        node = db.run("node", {"node": wanted["n"]})
        found = {"n": node["node"], "native": node["source"]["id"], "role": node["role"]}
        found["parent"] = node["parent"]
        if "summary" in wanted:
            found["summary"] = {end: node["summary"][end] for end in ("from", "to")}
        assert found == wanted
        assert ("kind" in node["source"], "copy_of" in node["source"]) == (False, False)
    branches = db.run("branches", {})
    assert {row["name"]: row["head"] for row in branches} == case["branches"]
    assert [row["name"] for row in branches if row["current"]] == [case["current"]]
    assert sum(row["added"] for row in rows) == len(case["nodes"])
    assert sum(row["branches"] for row in rows) == len(case["branches"])


@pytest.mark.parametrize("path", sorted(CLAUDE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_counts_of_a_row(db: timeline.Database, path: Path) -> None:
    expected = load(path.with_suffix(".expected.json"))
    (row,) = bring(db, path)
    assert row["records"] == expected["records"]
    assert row["added"] == expected["messages"]
    assert row["folded"] == len(expected.get("aliases", {}))
    assert row["session"] == expected["session_id"] and row["title"] == expected.get("title")
    for name in ("hidden", "skipped", "known"):
        assert row[name] == sum(expected.get(name, {}).values()), name
    for name in ("bad", "sidechain"):
        assert row[name] == expected.get(name, 0)
    assert row["summaries"] == len(expected.get("summaries", []))
    assert len(row["warnings"]) == sum(expected.get("warnings", {}).values())
    (listed,) = db.run("list", {})
    assert listed["title"] == row["title"]


@pytest.mark.parametrize("path", sorted(CLAUDE.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_second_time_adds_and_writes_nothing(db: timeline.Database, path: Path) -> None:
    bring(db, path)
    before = content_of(db)
    for row in bring(db, path):
        assert row["added"] == row["folded"] == row["changed"] == row["copied"] == 0
        assert row["branches"] == row["summaries"] == 0
    assert content_of(db) == before


@pytest.mark.parametrize("order", [("parent", "child"), ("child", "parent")])
def test_fork_adds_only_its_own(db: timeline.Database, order: tuple[str, str]) -> None:
    expected = load(CLAUDE / "fork" / "expected.json")
    first, second = (bring(db, CLAUDE / "fork" / f"{name}.jsonl")[0] for name in order)
    assert (first["added"], second["added"]) == (6, expected["new_from_second_file"])
    assert first["timeline_id"] == second["timeline_id"] == "tl0"
    tree = Tree(db)
    native = {name: parent or "root" for name, parent in expected["parents"].items()}
    assert tree.parents == native
    assert tree.leaves == set(expected["leaves"]) == set(tree.branches.values())
    assert len(tree.branches) == 2 and tree.current == "main"
    assert tree.branches["main"] == expected["leaves"][order.index("parent")]
    names = {"parent": "try-sqlite", "child": "好，就 Redis"}
    assert names[order[0]] in tree.branches
    before = content_of(db)
    for name in (*order, *order[::-1]):
        assert bring(db, CLAUDE / "fork" / f"{name}.jsonl")[0]["added"] == 0
    assert content_of(db) == before


def test_parents_are_read_before_forks(db: timeline.Database) -> None:
    rows = bring(db, CLAUDE / "fork")  # child.jsonl sorts first
    assert [row["added"] for row in rows] == [6, 2]
    assert set(Tree(db).branches) == {"main", "try-sqlite"}


def test_child_alone_works(db: timeline.Database) -> None:
    (row,) = bring(db, CLAUDE / "fork" / "child.jsonl")
    assert (row["added"], row["known"], row["title"]) == (6, 0, "try-sqlite")
    assert list(Tree(db).branches) == ["main"]


def test_usage_counts_once_and_tokens_leave_thinking_out(db: timeline.Database) -> None:
    bring(db, CLAUDE / "basic-tools-cjk.jsonl")
    answer = db.run("node", {"node": "n2", "blocks": True})
    assert answer["source"]["usage"]["output_tokens"] == 57
    sent = '我先读一下导出代码。Read{"file_path":"/srv/demo/shop/export.py"}'
    assert answer["tokens"] == timeline.estimate(sent, "wide")
    assert [block["type"] for block in answer["blocks"]] == ["thinking", "text", "tool_use"]
    assert answer["via"] == "import"
    assert db.run("list", {})[0]["project"] == "/srv/demo/shop"


def test_session_ids_do_not_cut_a_file(db: timeline.Database, tmp_path: Path) -> None:
    lines = (CLAUDE / "compact-twice.jsonl").read_bytes().split(b"\n")
    half = len(lines) // 2
    lines[half:] = [line.replace(b"33333333", b"99999999") for line in lines[half:]]
    path = tmp_path / "other.jsonl"
    path.write_bytes(b"\n".join(lines))
    (row,) = bring(db, path)
    case = next(c for c in TREES if c.get("file") == "claude-code/compact-twice.jsonl")
    assert row["added"] == 10
    assert {k: f"n{Tree(db).nodes[v]['number']}" for k, v in Tree(db).branches.items()} == case[
        "branches"
    ]


# -- shapes of the tree ----------------------------------------------------------------------------


@pytest.fixture
def put(db: timeline.Database, tmp_path: Path) -> Callable[..., Tree]:
    """Imports what a session has so far and returns the tree."""

    def bring_in(session: Session, count: int | None = None) -> Tree:
        bring(db, session.save(tmp_path / f"{session.session}.jsonl", count))
        return Tree(db)

    return bring_in


Put = Callable[..., Tree]


def test_parallel_results_form_one_chain(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a1", message="m", calls="t1")
    s.result("r1", "t1")
    s.answer("a2", on="a1", message="m", calls="t2 t3")
    s.result("r2", "t2")
    s.result("r3", "t3", on="a2")
    s.answer("next", on="r1")
    tree = put(s)
    assert tree.main() == ["u", "a1", "r1", "r2", "r3", "next"]
    assert (
        tree.nodes["a1"]["text"] == "a1\n\n[call Read] {}\n\na2\n\n[call Read] {}\n\n[call Read] {}"
    )
    assert len(tree.branches) == 1


def test_state_inside_the_chain_is_passed_through(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a", calls="t1")
    s.add("progress", "p1")
    s.result("r", "t1", on="a")
    s.add("attachment", "p2", on="p1")
    s.user("meta", isMeta=True)
    s.answer("b")
    assert put(s).main() == ["u", "a", "r", "b"]


def test_equal_message_id_elsewhere_is_another_message(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a", message="same")
    s.user("v")
    s.answer("b", message="same")
    s.answer("c", on="u", message="same")
    tree = put(s)
    assert tree.parents == {"u": "root", "a": "u", "v": "a", "b": "v"}
    assert tree.nodes["a"]["text"] == "a\n\nc"  # beside it under one parent: a piece of it


def test_late_result_is_a_leaf_of_its_own(db: timeline.Database, tmp_path: Path) -> None:
    s = Session()
    s.user("u")
    s.answer("a", calls="t1 t2")
    s.result("r1", "t1")
    s.user("go on")
    s.result("r2", "t2", on="a")
    s.answer("b", on="go on")
    (row,) = bring(db, s.save(tmp_path / "s.jsonl"))
    tree = Tree(db)
    assert tree.main() == ["u", "a", "r1", "go on", "b"]
    assert tree.nodes["r2"]["parent"] == "r1"
    assert tree.nodes["r2"]["source"]["kind"] == "late"
    assert len(row["warnings"]) == 1 and row["warnings"][0].startswith("line 5:")
    assert tree.branches == {"main": "b", "r2": "r2"}


def test_failed_request_is_not_where_the_talk_goes_on(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("good")
    s.answer("dead", on="u", isApiErrorMessage=True)
    tree = put(s)
    assert tree.branches == {"main": "good", "dead": "dead"}
    assert tree.nodes["dead"]["source"]["error"] is True
    alone = Session("s2")
    alone.user("u2")
    alone.answer("dead2", isApiErrorMessage=True)
    put(alone)


def test_last_prompt_tells_where_the_client_was(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.user("v")
    s.answer("b")
    s.user("w", on="a")
    s.answer("c")
    s.state("last-prompt", leafUuid="b")
    assert put(s).branches == {"main": "b", "w": "c"}


def test_last_prompt_on_the_same_line_changes_nothing(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.compact("S")
    s.user("v")
    s.state("last-prompt", leafUuid="a")
    assert put(s).branches["main"] == "v"


def test_result_behind_a_compaction_stays_there(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a", calls="t1")
    s.compact("S")
    s.result("r", "t1")
    s.answer("b")
    tree = put(s)
    assert tree.main() == ["S", "r", "b"]
    assert tree.spans == {"S": ("u", "a")}
    assert tree.branches["before compaction 1"] == "a"


def test_segment_at_the_end_is_kept_behind_the_summary(db: timeline.Database, put: Put) -> None:
    s = Session()
    for name in ("u1", "a1", "u2", "a2", "u3", "a3"):
        (s.user if name[0] == "u" else s.answer)(name)
    segment = {"headUuid": "u3", "anchorUuid": "S", "tailUuid": "a3"}
    s.compact("S", preservedSegment=segment)
    s.user("u4", on="a3")
    s.answer("a4")
    tree = put(s)
    assert tree.main() == ["S", "u3'", "a3'", "u4", "a4"]
    assert tree.spans == {"S": ("u1", "a2")}
    assert tree.branches == {"main": "a4", "before compaction 1": "a3"}
    copy = db.run("node", {"node": f"n{tree.nodes[chr(117) + '3' + chr(39)]['number']}"})
    assert copy["source"]["copy_of"] == f"n{tree.nodes['u3']['number']}"
    assert copy["tokens"] == tree.nodes["u3"]["tokens"] and copy["text"] == "u3"
    assert db.run("list", {})[0]["messages"] == 8  # neither the copies nor the summary
    assert len(db.run("search", {"text": "u3"})) == 1


@pytest.mark.parametrize("next_names", ["S", "a1"])
def test_segment_at_the_head_stays_before_the_summary(put: Put, next_names: str) -> None:
    s = Session()
    for name in ("u1", "a1", "u2", "a2", "u3", "a3"):
        (s.user if name[0] == "u" else s.answer)(name)
    s.compact("S", preservedSegment={"headUuid": "u1", "anchorUuid": "a1", "tailUuid": "a1"})
    s.user("u4", on=next_names)
    tree = put(s)
    assert tree.main() == ["u1", "a1", "S", "u4"]
    s.user("u5", on="a1")  # later it is a rewind
    assert put(s).main() == ["u1", "a1", "u5"]
    assert tree.spans == {"S": ("u2", "a3")}
    assert tree.branches == {"main": "u4", "before compaction 1": "a3"}


def test_kept_messages_may_be_named_one_by_one(put: Put) -> None:
    s = Session()
    for name in ("u1", "a1", "u2", "a2", "u3", "a3"):
        (s.user if name[0] == "u" else s.answer)(name)
    s.compact("S", preservedMessages={"anchorUuid": "S", "uuids": ["u1", "u2", "a3", "nobody", 4]})
    s.user("u4", on="a3")
    s.compact("S2", preservedMessages={"uuids": ["a3", "u4"]})
    s.user("u5")
    tree = put(s)
    assert tree.spans == {"S": ("a1", "u3"), "S2": ("u1", "u2'")}
    assert tree.main() == ["S2", "a3''", "u4'", "u5"]
    assert tree.nodes["u4"]["parent"] == "a3'" and tree.nodes["a3'"]["parent"] == "u2'"


def test_compaction_right_behind_a_compaction(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.compact("S1", preservedSegment={"headUuid": "a", "tailUuid": "a"})
    s.compact("S2")
    s.user("v")
    tree = put(s)
    assert tree.spans == {"S1": ("u", "u"), "S2": ("S1", "a'")}
    assert tree.main() == ["S2", "v"]
    assert set(tree.branches) == {"main", "before compaction 1", "before compaction 2"}


def test_nothing_to_sum_up_is_a_plain_message(put: Put) -> None:
    s = Session()
    s.compact("S1", end="in no file")
    s.user("u")
    tree = put(s)
    assert tree.main() == ["S1", "u"] and tree.spans == {}
    assert tree.nodes["S1"]["role"] == "summary"
    t = Session("t")
    t.user("tu")
    t.answer("ta")
    t.compact("T", preservedSegment={"headUuid": "tu", "tailUuid": "ta"})
    bring_back = put(t)
    assert bring_back.spans == {}


def test_boundary_without_logical_parent_speaks_of_the_record_before(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.add("system", "b", None, subtype="compact_boundary")
    s.user("S", isCompactSummary=True)
    assert put(s).spans == {"S": ("u", "a")}


def test_rewind_before_a_compaction_sees_the_originals(put: Put) -> None:
    s = Session()
    for name in ("u1", "a1", "u2", "a2"):
        (s.user if name[0] == "u" else s.answer)(name)
    s.compact("S")
    s.user("u3")
    s.user("again", on="a1")
    tree = put(s)
    assert tree.main() == ["u1", "a1", "again"]
    assert tree.branches == {"main": "again", "before compaction 1": "a2", "u3": "u3"}


# -- growing files ---------------------------------------------------------------------------------


def story() -> Session:
    """Tools, a rewind, compactions of all kinds; every record is a whole message."""
    s = Session("story")
    s.user("u1")
    s.answer("a1", calls="t1 t2")
    s.result("r1", "t1")
    s.result("r2", "t2", on="a1")
    s.answer("a2")
    s.user("u2")
    s.answer("a3")
    s.user("u2b", on="a2")
    s.answer("a4")
    s.compact("S1")
    s.user("u3")
    s.answer("a5")
    s.user("u4")
    s.answer("a6")
    s.compact("S2", preservedSegment={"headUuid": "u4", "tailUuid": "a6"})
    s.user("u5", on="a6")
    s.answer("a7")
    s.user("u6", on="a5")
    s.answer("a8")
    s.user("u7")
    s.compact("S3", preservedSegment={"headUuid": "S1", "tailUuid": "a5"})
    s.user("u8", on="a5")  # names what was kept before the summary, and means the summary
    s.state("custom-title", customTitle="Story")
    return s


def test_growing_file_gives_the_tree_of_one_import(fresh: Open, tmp_path: Path) -> None:
    whole, steps = fresh(), fresh()
    s = story()
    path = tmp_path / "story.jsonl"
    for count in range(1, len(s.records) + 1):
        bring(steps, s.save(path, count))
    bring(whole, path)
    one, many = Tree(whole), Tree(steps)
    assert one.parents == many.parents
    assert one.spans == many.spans
    assert one.leaves == many.leaves == set(one.branches.values()) == set(many.branches.values())
    assert one.branches["main"] == many.branches["main"] == "u8"
    assert one.state.title == many.state.title == "Story"


def test_answer_that_goes_on_later_is_kept_as_late(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a1", message="m", calls="t1")
    put(s)
    s.answer("a2", message="m", calls="t2")
    s.answer("a3", message="m", calls="t3")
    s.result("r2", "t2", on="a2")
    tree = put(s)
    assert tree.main() == ["u", "a1", "a2", "r2"]
    assert tree.nodes["a2"]["source"]["kind"] == "late"
    assert put(s).parents == tree.parents


def test_new_records_go_behind_what_the_user_wrote(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    put(s)
    db.run("append", {"role": "user", "text": "mine"})
    s.user("v")
    s.answer("b")
    tree = put(s)
    assert tree.main() == ["u", "a", "mine", "v", "b"]
    db.run("append", {"role": "user", "text": "mine too"})
    s.compact("S")
    tree = put(s)
    assert tree.spans == {"S": ("u", "mine too")}
    assert tree.branches == {"main": "S", "before compaction 1": "mine too"}


def test_rewind_leaves_a_branch_behind(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.user("v")
    s.answer("b")
    put(s)
    db.run("append", {"role": "user", "text": "mine"})
    s.user("w", on="a")
    tree = put(s)
    assert tree.branches == {"main": "w", "v": "mine"}


def test_branch_made_by_import_follows_its_line(put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.user("v")
    s.user("w", on="a")
    assert put(s).branches == {"main": "w", "v": "v"}
    s.answer("on v", on="v")
    s.answer("on w", on="w")
    assert put(s).branches == {"main": "on w", "v": "on v"}
    s.user("back", on="on v")
    assert put(s).branches == {"main": "back", "w": "on w"}


def test_users_branch_is_not_touched(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    put(s)
    db.run("fork", {"node": "n2", "name": "mine"})
    s.user("v")
    s.user("w", on="a")
    tree = put(s)
    assert tree.branches == {"main": "w", "mine": "a", "v": "v"}


def test_dropped_branch_is_not_revived(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.user("v")
    s.user("w", on="a")
    put(s)
    db.run("drop_branch", {"name": "v"})
    assert set(put(s).branches) == {"main"}
    db.run("fork", {"node": "n1", "name": "other"})
    db.run("switch", {"name": "other"})
    db.run("drop_branch", {"name": "main"})
    assert put(s).branches == {"other": "u"}
    s.answer("x")
    tree = put(s)
    assert tree.branches == {"other": "u", "w": "x"} and tree.current == "other"
    s.user("y")
    assert put(s).branches == {"other": "u", "w": "y"}


def test_title_is_followed_until_the_user_gives_one(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.state("summary", summary="of another file", leafUuid="elsewhere")
    s.user("u")
    assert put(s).state.title == "of another file"
    s.state("agent-name", agentName="agent")
    s.state("ai-title", aiTitle="ai")
    assert put(s).state.title == "agent"
    s.state("custom-title", customTitle="custom")
    assert put(s).state.title == "custom"
    db.run("rename", {"title": "mine"})
    s.state("custom-title", customTitle="newer")
    assert put(s).state.title == "mine"


# -- several files ---------------------------------------------------------------------------------


def test_fork_with_a_compaction_gets_a_branch_of_its_own(db: timeline.Database, put: Put) -> None:
    s = Session("s1")
    for name in ("u1", "a1", "u2", "a2"):
        (s.user if name[0] == "u" else s.answer)(name)
    put(s)
    fork = s.copy("s2", "a1")
    fork.user("f1")
    fork.compact("F")
    fork.user("f2")
    tree = put(fork)
    assert tree.branches == {"main": "a2", "f2": "f2", "before compaction 1": "f1"}
    assert tree.spans == {"F": ("u1", "f1")}
    s.user("u3")
    assert put(s).branches["main"] == "u3"
    fork.user("f3")
    assert put(fork).branches == {"main": "u3", "f2": "f3", "before compaction 1": "f1"}


def test_fork_that_only_points_at_its_parent(fresh: Open, tmp_path: Path) -> None:
    first = Session("zz")
    first.user("u")
    first.answer("a")
    first.save(tmp_path / "z.jsonl")
    second = Session("aa")
    second.user("v", on="a")
    second.answer("b")
    second.save(tmp_path / "a.jsonl")
    for paths in (["a.jsonl", "z.jsonl"], ["z.jsonl", "a.jsonl"], ["."]):
        db = fresh()
        rows = bring(db, *(tmp_path / path for path in paths))
        assert [row["warnings"] for row in rows if row["session"] in ("aa", "zz")] == [[], []]
        assert Tree(db).parents == {"u": "root", "a": "u", "v": "a", "b": "v"}
    alone = fresh()
    (row,) = bring(alone, tmp_path / "a.jsonl")
    assert len(row["warnings"]) == 1 and Tree(alone).parents == {"v": "root", "b": "v"}
    assert Tree(alone).nodes["v"]["source"]["gap"] == "parent not in file"


def test_session_that_meets_two_timelines_stays_in_one(db: timeline.Database, put: Put) -> None:
    one = Session("one")
    one.user("u")
    one.answer("a")
    put(one)
    two = Session("two")
    two.user("x")
    two.answer("y")
    two.user("z")
    put(two)
    both = Session("both")
    both.records = [{**each, "sessionId": "both"} for each in (*one.records, *two.records)]
    both.user("new", on="z")
    tree = put(both)
    assert "new" not in tree.nodes
    other = Tree(db, 1)
    assert other.nodes["new"]["parent"] == "z"
    (row,) = bring(db, both.save(Path(db.path).with_name("again.jsonl")))
    assert row["added"] == 0 and "timelines are never joined" in row["warnings"][0]


def test_into_a_timeline(db: timeline.Database, tmp_path: Path) -> None:
    db.run("create", {"title": "mine"})
    db.run("append", {"role": "user", "text": "my own"})
    s = Session()
    s.user("u")
    s.answer("a")
    path = s.save(tmp_path / "s.jsonl")
    (row,) = bring(db, path, into=0)
    assert row["timeline_id"] == "tl0"
    tree = Tree(db)
    assert tree.branches == {"main": "my own", "u": "a"} and tree.state.title == "mine"
    db.run("create", {})
    with pytest.raises(timeline.Refused, match=r"^session s1 is in tl0$"):
        bring(db, path, into=1)
    with pytest.raises(timeline.NotFound, match="unknown timeline tl7"):
        bring(db, path, into=7)
    assert bring(db, path, into=0)[0]["added"] == 0


def test_changed_message_is_reported_and_stays(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    put(s)
    s.records[0]["message"]["content"] = "rewritten"
    s.user("u", text="once more")
    (row,) = bring(db, s.save(Path(db.path).with_name("s.jsonl")))
    assert (row["changed"], row["known"], row["added"]) == (2, 1, 0)
    assert len(row["warnings"]) == 2
    assert Tree(db).nodes["u"]["text"] == "u"


def test_purged_message_does_not_come_back(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u", text="my password")
    s.answer("a")
    put(s)
    db.purge([1])
    tree = put(s)
    assert len(tree.nodes) == 2
    assert b"my password" not in content_of(db)


def test_broken_off_copy_of_an_answer_is_no_change(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a1", message="m")
    s.answer("a2", message="m")
    put(s)
    (row,) = bring(db, s.save(Path(db.path).with_name("torn.jsonl"), 2))
    assert (row["changed"], row["known"]) == (0, 2)


# -- what is asked for -----------------------------------------------------------------------------


def test_dry_run_writes_nothing(fresh: Open) -> None:
    db, real = fresh(), fresh()
    paths = [CLAUDE / "fork", CLAUDE / "compact-twice.jsonl"]
    dry = ti.import_paths(db, [str(path) for path in paths], dry_run=True)
    assert not Path(db.path).exists()
    done = ti.import_paths(real, [str(path) for path in paths])
    assert [row["known"] for row in dry["timelines"]] == [0, 4, 4]
    for row in done["timelines"]:
        row["timeline_id"] = None
    assert dry == done
    before = content_of(real)
    assert ti.import_paths(real, [str(paths[1])], dry_run=True)["timelines"][0]["added"] == 0
    assert content_of(real) == before


def test_key_gives_the_first_result_again(db: timeline.Database, tmp_path: Path) -> None:
    paths = [str(CLAUDE / "fork"), str(CLAUDE / "damaged.jsonl")]
    first = ti.import_paths(db, paths, key="k")
    before = content_of(db)
    assert ti.import_paths(db, [str(CLAUDE / "compact-twice.jsonl")], key="k") == first
    assert content_of(db) == before
    assert ti.import_paths(db, [str(tmp_path / "gone")], key="k") == first
    with pytest.raises(timeline.Refused, match="belongs to"):
        db.run("create", {"idempotency_key": "k"})


@pytest.mark.parametrize("place", range(1, 22))
def test_interrupted_import_is_completed(
    fresh: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    path = story().save(tmp_path / "story.jsonl")
    whole, broken = fresh(), fresh()
    bring(whole, path)
    monkeypatch.setattr(ti, "CHUNK_NODES", 3)
    append, count = timeline.Importing.append, 0

    def stop(self: Any, *arguments: Any) -> int:
        nonlocal count
        count += 1
        if count == place:
            raise KeyboardInterrupt
        return append(self, *arguments)

    monkeypatch.setattr(timeline.Importing, "append", stop)
    with pytest.raises(KeyboardInterrupt):
        bring(broken, path)
    monkeypatch.setattr(timeline.Importing, "append", append)
    if place > 5:
        assert Tree(broken).nodes  # a prefix is there
    bring(broken, path)
    one, two = Tree(whole), Tree(broken)
    assert one.nodes == two.nodes
    assert one.branches == two.branches
    assert bring(broken, path)[0]["added"] == 0


def test_long_text_goes_to_a_file(db: timeline.Database, put: Put) -> None:
    text = "长" * 400_000
    s = Session()
    s.user("u", text=text)
    s.user("v", text="x" * timeline.TEXT_BYTES_MAX)
    tree = put(s)
    stored = tree.nodes["u"]["text"]
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert len(stored.encode()) <= timeline.TEXT_BYTES_MAX
    more = int(stored.rpartition("[… ")[2].split()[0])
    assert stored.endswith(f"[… {more} bytes more, sha256 {digest}]")
    assert len(stored.partition("[…")[0].encode()) + more == len(text.encode())
    assert Path(db.path + ".files", digest).read_bytes() == text.encode()
    assert tree.nodes["v"]["text"] == "x" * timeline.TEXT_BYTES_MAX
    assert tree.nodes["v"]["source"].get("kind") is None
    (row,) = bring(db, s.save(Path(db.path).with_name("again.jsonl")))
    assert (row["changed"], row["oversize"], row["known"]) == (0, 0, 2)


def test_huge_blocks_go_to_a_file(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a")
    s.records[-1]["message"]["content"] = [{"type": "thinking", "thinking": "x" * (9 << 20)}]
    tree = put(s)
    (block,) = tree.nodes["a"]["blocks"]
    assert block["type"] == "oversize" and Path(db.path + ".files", block["sha256"]).exists()


def test_attachments_are_kept_only_if_asked(fresh: Open) -> None:
    bare, full = fresh(), fresh()
    bring(bare, CLAUDE / "basic-tools-cjk.jsonl")
    bring(full, CLAUDE / "basic-tools-cjk.jsonl", attachments=True)
    assert not Path(bare.path + ".files").exists()
    (kept,) = Path(full.path + ".files").iterdir()
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == kept.name
    assert content_of(bare).count(kept.name.encode()) == 2


def test_mixed_user_message_joins_the_unit(db: timeline.Database, put: Put) -> None:
    s = Session()
    s.user("u")
    s.answer("a", calls="t1")
    content = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "done"},
        {"type": "text", "text": "and now?"},
    ]
    s.add("user", "r", message={"content": content})
    s.answer("b")
    tree = put(s)
    assert tree.nodes["r"]["role"] == "user" and tree.nodes["r"]["source"]["kind"] == "mixed"
    db.run("exclude", {"node": "n3"})
    assert [each["node"] for each in db.run("context", {})] == ["n1", "n4"]


# -- files -----------------------------------------------------------------------------------------


def test_zip_and_folder(fresh: Open, tmp_path: Path) -> None:
    plain, packed = fresh(), fresh()
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "s.jsonl").write_bytes((CLAUDE / "compact-twice.jsonl").read_bytes())
    (folder / "a.txt").write_bytes((CLAUDE / "damaged.jsonl").read_bytes())
    (folder / "notes.md").write_text("# hello", encoding="utf-8")
    (folder / "empty").write_bytes(b"")
    archive = tmp_path / "in.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, path.relative_to(folder).as_posix())
    results = [ti.import_paths(d, [str(p)]) for d, p in ((plain, folder), (packed, archive))]
    for result in results:
        assert [row["added"] for row in result["timelines"]] == [8, 10]
        why = {Path(each["path"]).name: each["why"] for each in result["unrecognized"]}
        assert why == {"notes.md": "no JSON", "empty": "empty"}
    assert Tree(plain).parents == Tree(packed).parents


def test_damaged_zip_members_are_listed(db: timeline.Database, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        out.writestr("good.jsonl", b'{"role":"user","text":"hi"}\n')
        out.writestr("spoiled.jsonl", b'{"role":"user","text":"spoiled one"}\n')
    data = buffer.getvalue().replace(b"spoiled one", b"spoiled two", 1)
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    result = ti.import_paths(db, [str(path)])
    assert [row["added"] for row in result["timelines"]] == [1]
    assert "damaged" in result["unrecognized"][0]["why"]


def test_named_file_must_be_recognized(db: timeline.Database, tmp_path: Path) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_bytes(b"hello\n")
    for paths in ([odd], [CLAUDE / "damaged.jsonl", odd], [tmp_path]):
        with pytest.raises(timeline.InvalidArgument) as caught:
            bring(db, *paths)
        unrecognized = caught.value.data["unrecognized"]
        assert unrecognized == [{"path": str(odd), "why": "no JSON"}]
    with pytest.raises(timeline.NotFound, match="no such file or folder"):
        bring(db, tmp_path / "nothing")
    with pytest.raises(timeline.InvalidArgument, match="format 'codex9' is not known"):
        bring(db, odd, format="codex9")
    assert not Path(db.path).exists()


def test_own_database_is_no_transcript(db: timeline.Database) -> None:
    bring(db, CLAUDE / "damaged.jsonl")
    with pytest.raises(timeline.InvalidArgument, match="a Timeline database"):
        bring(db, db.path)


def test_same_file_twice_in_one_call_is_read_once(db: timeline.Database) -> None:
    path = CLAUDE / "damaged.jsonl"
    assert len(bring(db, path, path, CLAUDE / "fork" / ".." / "damaged.jsonl")) == 1


def test_file_without_messages_makes_no_timeline(db: timeline.Database, tmp_path: Path) -> None:
    s = Session()
    s.state("queue-operation")
    (row,) = bring(db, s.save(tmp_path / "s.jsonl"))
    assert row["timeline_id"] is None and row["skipped"] == 1
    s.user("u")
    (row,) = bring(db, s.save(tmp_path / "s.jsonl"))
    assert (row["timeline_id"], row["added"]) == ("tl0", 1)


def test_progress_is_told(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ti, "PROGRESS_EVERY", 4)
    told: list[str] = []
    bring(db, story().save(tmp_path / "s.jsonl"), progress=told.append)
    assert len(told) == 5 and told[0].endswith("s.jsonl: 4 of 24 messages")


# -- the simple form -------------------------------------------------------------------------------


def simple(path: Path, *rows: Json) -> Path:
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return path


def line(role: str, text: str, **more: Any) -> Json:
    return {"role": role, "text": text, **more}


TALK = (
    line("user", "Hi"),
    line("assistant", "Hello"),
    line("user", "More"),
    line("assistant", "Sure"),
)


@pytest.mark.parametrize("name", ["plain", "tree"])
def test_messages_twice(db: timeline.Database, name: str) -> None:
    path = SAMPLES / "messages" / f"{name}.jsonl"
    (row,) = bring(db, path)
    assert (row["format"], row["session"], row["title"]) == ("messages", None, None)
    before = content_of(db)
    (again,) = bring(db, path)
    assert again["added"] == 0 and again["known"] == again["records"]
    assert content_of(db) == before


def test_messages_tree(db: timeline.Database) -> None:
    bring(db, SAMPLES / "messages" / "tree.jsonl")
    tree = Tree(db)
    assert tree.branches == {
        "main": "late", "In Asia, please.": "a2", "In Africa, please.": "7",
    }  # fmt: skip
    assert tree.nodes["7"]["source"]["kind"] == "shell"
    assert tree.nodes["a1"]["tokens"] == 9
    assert tree.nodes["q1"]["source"]["time"] == 1772442000


def test_longer_copy_at_its_path_is_an_extension(db: timeline.Database, tmp_path: Path) -> None:
    path = simple(tmp_path / "talk", *TALK[:2])
    bring(db, path)
    simple(path, *TALK)
    (row,) = bring(db, path)
    assert (row["added"], row["known"], row["timeline_id"]) == (2, 2, "tl0")
    tree = Tree(db)
    assert list(tree.branches) == ["main"] and len(tree.main()) == 4


def test_diverging_copy_is_a_branch(db: timeline.Database, tmp_path: Path) -> None:
    path = simple(tmp_path / "talk", *TALK)
    bring(db, path)
    simple(path, *TALK[:2], line("user", "Else"))
    (row,) = bring(db, path)
    assert (row["added"], row["known"]) == (1, 2)
    tree = Tree(db)
    assert {name: len(tree.path(head)) for name, head in tree.branches.items()} == {
        "main": 3,
        "More": 4,
    }


def test_other_path_joins_only_with_a_common_answer(db: timeline.Database, tmp_path: Path) -> None:
    bring(db, simple(tmp_path / "one", *TALK))
    (row,) = bring(db, simple(tmp_path / "two", *TALK[:2], line("user", "Else")))
    assert (row["timeline_id"], row["added"]) == ("tl0", 1)
    assert set(Tree(db).branches) == {"main", "Else"}
    (row,) = bring(db, simple(tmp_path / "three", TALK[0], line("assistant", "Hey")))
    assert (row["timeline_id"], row["added"]) == ("tl1", 2)
    (row,) = bring(db, simple(tmp_path / "four", TALK[0]))
    assert (row["timeline_id"], row["added"]) == ("tl2", 1)
    (row,) = bring(db, tmp_path / "four")
    assert (row["timeline_id"], row["added"]) == ("tl2", 0)
    (row,) = bring(db, simple(tmp_path / "five", TALK[0]), into=1)
    assert (row["timeline_id"], row["added"]) == ("tl1", 0)


def test_equal_ids_of_another_talk_are_another_talk(db: timeline.Database, tmp_path: Path) -> None:
    system = line("system", "Be kind.", id="1")
    one = simple(
        tmp_path / "one", system, line("user", "A", id="2"), line("assistant", "B", id="3")
    )
    two = simple(
        tmp_path / "two", system, line("user", "C", id="2"), line("assistant", "D", id="3")
    )
    rows = bring(db, one, two)
    assert [(row["timeline_id"], row["added"]) for row in rows] == [("tl0", 3), ("tl1", 3)]
    simple(
        two,
        system,
        line("user", "C", id="2"),
        line("assistant", "D", id="3"),
        line("user", "E", id="4"),
    )
    (row,) = bring(db, two)
    assert (row["timeline_id"], row["added"], row["changed"]) == ("tl1", 1, 0)
    simple(two, system, line("user", "c", id="2"), line("assistant", "D", id="3"))
    (row,) = bring(db, two)
    assert (row["timeline_id"], row["added"], row["changed"]) == ("tl1", 0, 1)
    assert len(row["warnings"]) == 1


def test_own_tokens_are_taken_and_others_estimated(db: timeline.Database, tmp_path: Path) -> None:
    bring(db, simple(tmp_path / "t", line("user", "数一数", tokens=0), line("user", "数一数")))
    assert [db.run("node", {"node": n})["tokens"] for n in ("n1", "n2")] == [0, 3]


@pytest.mark.slow
def test_many_branches_and_compactions_take_their_time(db: timeline.Database, put: Put) -> None:
    import time

    s = Session()
    s.user("root")
    for number in range(1500):
        s.user(f"u{number}", on="root", text="again")
    for number in range(300):
        s.compact(f"S{number}")
        s.user(f"v{number}")
    begun = time.process_time()
    tree = put(s)
    assert time.process_time() - begun < 20
    assert len(tree.branches) == 1800 and tree.branches["again (1499)"] == "u1498"


def test_vanished_file_of_a_folder_is_listed(
    db: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    paths = [simple(folder / name, line("user", name)) for name in "ab"]
    order = ti._in_order

    def vanish(items: Any) -> Any:
        paths[0].unlink()
        return order(items)

    monkeypatch.setattr(ti, "_in_order", vanish)
    result = ti.import_paths(db, [str(folder)])
    assert [row["added"] for row in result["timelines"]] == [1]
    assert result["unrecognized"][0]["why"].startswith(
        "cannot be read: No such file or directory ("
    )
