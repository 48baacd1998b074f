"""Runs of subagents: timelines of their own, known by the call that started them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_export
import timeline_import as ti
from kit.growing import check_sum

Json = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[1] / "samples" / "claude-code" / "sidechain"
SESSION = "66666666-6666-4666-8666-666666666666"
PARENT = FOLDER / f"{SESSION}.jsonl"
RUN = FOLDER / SESSION / "subagents" / "agent-a1b2c3d.jsonl"


@pytest.fixture
def base(tmp_path: Path) -> Any:
    database = timeline.Database(str(tmp_path / "t.db"), via="import")
    yield database
    database.close()


def rows(base: timeline.Database, *paths: Path) -> list[Json]:
    result: list[Json] = ti.import_paths(base, list(map(str, paths)))["timelines"]
    return result


def call_of(base: timeline.Database) -> Json:
    """The node that called, by what it lists."""
    for number in range(1, len(base.refresh().rows) + 1):
        node: Json = base.run("node", {"node": f"n{number}"})
        if "subagents" in node:
            return node
    raise AssertionError("no node names a run")


@pytest.mark.parametrize("order", ["folder", "parent first", "run first"])
def test_a_run_hangs_together_with_its_call(base: timeline.Database, order: str) -> None:
    if order == "folder":
        found = rows(base, FOLDER)
    elif order == "parent first":
        found = rows(base, PARENT) + rows(base, RUN)
    else:
        found = rows(base, RUN) + rows(base, PARENT)
    run = next(row for row in found if row["session"] == "a1b2c3d")
    assert (run["added"], run["records"], run["sidechain"]) == (4, 4, 0)
    if order == "run first":
        assert run["parent"] == {"session": SESSION}
    else:
        assert run["parent"] == {"timeline": "tl0", "node": "n2", "call": "toolu_s1"}
    node = call_of(base)
    assert run["timeline_id"] in node["subagents"]
    assert len(node["subagents"]) == 2, "one inside the session, one in a file"
    assert "[call Task]" in node["text"]
    before = base.refresh().end
    assert [row["added"] for row in rows(base, FOLDER)] == [0, 0, 0]
    assert base.refresh().end == before
    again = next(row for row in rows(base, RUN))
    assert again["parent"]["call"] == "toolu_s1"


def test_runs_are_shown_when_asked_for(base: timeline.Database) -> None:
    rows(base, FOLDER)
    assert [row["timeline_id"] for row in base.run("list")] == ["tl0"]
    listed = {row["timeline_id"]: row for row in base.run("list", {"subagents": True})}
    assert listed["tl2"]["title"] == "Explore: find callers"
    assert listed["tl2"]["parent"] == {"session": SESSION, "agent": "a1b2c3d"}
    assert "parent" not in listed["tl0"]

    def found(**given: Any) -> set[str]:
        return {row["timeline_id"] for row in base.run("search", {"text": "pay()", **given})}

    assert found() == {"tl0"}
    assert found(subagents=True) == {"tl0", "tl1", "tl2"}
    assert found(timeline_id="tl2") == {"tl2"}, "named itself"


def test_without_its_call_a_run_is_titled_by_how_it_begins(base: timeline.Database) -> None:
    rows(base, RUN)
    (row,) = base.run("list", {"subagents": True})
    assert row["title"] == "find callers of pay()"


def test_a_run_that_grows(base: timeline.Database, tmp_path: Path) -> None:
    folder = tmp_path / "projects"
    folder.mkdir()
    (folder / "s.jsonl").write_bytes(PARENT.read_bytes())
    run, lines = folder / "agent-a1b2c3d.jsonl", RUN.read_bytes().splitlines(keepends=True)
    for line in lines:
        with run.open("ab") as file:
            file.write(line)
        ti.sync(base, {"claude-code": [str(folder)]})
    (row,) = rows(base, run)
    assert row["timeline_id"] in call_of(base)["subagents"]
    assert len(base.run("context", {"timeline_id": row["timeline_id"]})) == 4


def test_a_run_inside_its_session(base: timeline.Database) -> None:
    row, run = rows(base, PARENT)
    assert (row["sidechain"], row["added"], row["records"]) == (2, 4, 6)
    assert "parent" not in row
    assert (run["records"], run["added"], run["sidechain"]) == (2, 2, 0)
    assert run["parent"] == {"timeline": "tl0", "node": "n2", "call": "toolu_s1"}
    assert call_of(base)["subagents"] == [run["timeline_id"]]
    before = base.refresh().end
    assert [row["added"] for row in rows(base, PARENT)] == [0, 0]
    assert base.refresh().end == before


@pytest.mark.parametrize("window", [1, 400])
def test_a_session_with_runs_inside_that_grows(
    base: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(ti, "BOOKMARK_BYTES_MIN", 1)
    monkeypatch.setattr(ti, "WINDOW_MESSAGES", window)
    folder = tmp_path / "projects"
    folder.mkdir()
    file = folder / "s.jsonl"
    for line in PARENT.read_bytes().splitlines(keepends=True):
        for part in (line[:50], line[50:]):
            with file.open("ab") as stream:
                stream.write(part)
            for row in ti.sync(base, {"claude-code": [str(folder)]})["timelines"]:
                check_sum(row)
    ti.import_paths(base, [str(file)])
    assert call_of(base)["subagents"] == ["tl1"]
    counts = [len(base.run("context", {"timeline_id": f"tl{number}"})) for number in range(2)]
    assert counts == [4, 2]


def test_a_run_goes_through_json(base: timeline.Database, tmp_path: Path) -> None:
    rows(base, FOLDER)
    for number in range(2):
        picture = timeline_export.picture(base, number, "json")
        path = tmp_path / f"{number}.json"
        path.write_text("".join(picture.pieces), encoding="utf-8")
    other = timeline.Database(str(tmp_path / "other.db"), via="import")
    rows(other, tmp_path / "0.json")
    rows(other, tmp_path / "1.json")
    assert call_of(other)["subagents"] == ["tl1"]
    assert len(other.run("list")) == 1
    other.close()


def lines(*records: Json) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


FOREIGN = {
    "codex": lines(
        {
            "type": "session_meta",
            "payload": {
                "id": "child", "source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}},
            },
        },
        {
            "type": "response_item",
            "payload": {
                "type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "Look"}],
            },
        },
    ),
    "codex review": lines(
        {"type": "session_meta", "payload": {"id": "child", "source": {"subagent": "review"}}},
        {
            "type": "response_item",
            "payload": {
                "type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "Look"}],
            },
        },
    ),
    "gemini": lines(
        {
            "sessionId": "child", "projectHash": "h", "kind": "subagent",
            "startTime": "2026-01-01T00:00:00Z",
        },
        {"id": "1", "type": "user", "content": "Look"},
    ),
    "opencode": json.dumps({
        "info": {"id": "child", "parentID": "p", "time": {"created": 1}, "directory": "/srv"},
        "messages": [
            {
                "info": {"id": "m1", "role": "user", "time": {"created": 1}},
                "parts": [{"type": "text", "text": "Look"}],
            }
        ],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_runs_of_other_clients(base: timeline.Database, tmp_path: Path, name: str) -> None:
    file = tmp_path / "child.json"
    file.write_text(FOREIGN[name], encoding="utf-8")
    (row,) = rows(base, file)
    assert row["added"] == 1
    assert row["parent"] == {"session": "" if name in ("codex review", "gemini") else "p"}
    assert base.run("list") == []
    assert len(base.run("list", {"subagents": True})) == 1


@pytest.mark.parametrize("odd", [None, 1, [], {}, "", {"agentId": []}, {"agentId": "x" * 999}])
def test_odd_names_of_agents(base: timeline.Database, tmp_path: Path, odd: Any) -> None:
    file = tmp_path / "odd.jsonl"
    for data in (PARENT, RUN):
        records = [json.loads(line) for line in data.read_bytes().splitlines()]
        for record in records:
            record["toolUseResult"] = odd
            record["agentId"] = odd
        file.write_text(lines(*records), encoding="utf-8")
        try:
            rows(base, file)
        except timeline.InvalidArgument as error:
            assert "subagent" in str(error) or "no transcript" in str(error)
