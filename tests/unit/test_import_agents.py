"""Codex, pi and Gemini: samples against what a right reading finds, and what each format does."""

from __future__ import annotations

import io
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
