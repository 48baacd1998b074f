"""`tl export --format claude-code`: a branch as a session that Claude Code resumes, and that an
import knows again."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_export as te
import timeline_import as ti
from kit.compare import Pair
from kit.program import Inside
from kit.random_ops import steps as random_steps

Json = dict[str, Any]
SAMPLES = Path(__file__).resolve().parents[1] / "samples"
FILES = sorted(
    path
    for path in SAMPLES.rglob("*")
    if path.suffix in (".json", ".jsonl")
    and "expected" not in path.name
    and path.name != "our-tree.json"
    and "storage" not in str(path)
    and not {"hooks", "subagents"} & set(path.parts)
)


def opened(folder: Path, name: str) -> timeline.Database:
    return timeline.Database(str(folder / name), via="import")


def write(base: timeline.Database, tl: int, branch: str, folder: Path) -> tuple[Path, list[Json]]:
    session = te.ClaudeSession(base, tl, branch, ti.block_text)
    path = folder / f"{session.id}.jsonl"
    path.write_text("".join(session.lines("/srv/here")), encoding="utf-8", newline="")
    return path, [json.loads(line) for line in path.read_bytes().splitlines()]


def check_form(records: list[Json]) -> None:
    """Each record is as Claude Code writes it, and what an API refuses is not among them."""
    ids: list[str] = []
    called: set[str] = set()
    for number, record in enumerate(records):
        assert str(uuid.UUID(record["uuid"])) == record["uuid"]
        assert record["uuid"] not in ids
        boundary = record.get("subtype") == "compact_boundary"
        assert record["parentUuid"] == (ids[-1] if ids and not boundary else None)
        ids.append(record["uuid"])
        assert record["isSidechain"] is False
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.000Z", record["timestamp"])
        assert {record["sessionId"]} == {records[0]["sessionId"]}
        assert record["cwd"]
        if boundary:
            assert number == 0
            assert records[1]["isCompactSummary"] is True
            continue
        message = record["message"]
        assert record["type"] == message["role"]
        if record["type"] == "assistant":
            assert {"id", "model", "type", "stop_reason", "usage"} <= set(message)
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert blocks
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip()
            elif block["type"] == "tool_use":
                called.add(block["id"])
            elif block["type"] == "tool_result":
                assert block["tool_use_id"] in called


def said(base: timeline.Database, tl: str, branch: str) -> list[tuple[str, str]]:
    rows = base.run("context", {"timeline_id": tl, "branch": branch})
    return [(row["role"], row["text"]) for row in rows]


def check_branch(base: timeline.Database, tl: str, branch: str, folder: Path) -> None:
    before = base.refresh().end
    path, records = write(base, int(tl[2:]), branch, folder)
    check_form(records)
    (row,) = ti.import_paths(base, [str(path)])["timelines"]
    assert (row["added"], row["changed"], row["bad"], row["timeline_id"]) == (0, 0, 0, tl), row
    assert base.refresh().end == before, "not a byte"
    fresh = opened(folder, f"fresh-{path.stem}.db")
    (row,) = ti.import_paths(fresh, [str(path)])["timelines"]
    assert (row["bad"], row["warnings"]) == (0, [])
    assert said(fresh, "tl0", "main") == said(base, tl, branch)
    fresh.close()


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_every_branch_of_every_sample(tmp_path: Path, file: Path) -> None:
    base = opened(tmp_path, "t.db")
    try:
        ti.import_paths(base, [str(file)])
    except timeline.InvalidArgument:
        pytest.skip("no transcript")
    count = 0
    for row in base.run("list"):
        where = row["timeline_id"]
        for branch in base.run("branches", {"timeline_id": where}):
            if said(base, where, branch["name"]):
                check_branch(base, where, branch["name"], tmp_path)
                count += 1
    assert count
    base.close()


def test_a_fork_before_a_compaction(tmp_path: Path) -> None:
    base = opened(tmp_path, "t.db")
    ti.import_paths(base, [str(SAMPLES / "claude-code" / "compact-twice.jsonl")])
    base.run("fork", {"node": "n3", "name": "try"})
    base.run("append", {"branch": "try", "role": "user", "text": "Another way?"})
    check_branch(base, "tl0", "try", tmp_path)
    _, records = write(base, 0, "try", tmp_path)
    assert len(records) == 4
    origin = json.loads(
        (SAMPLES / "claude-code" / "compact-twice.jsonl").read_bytes().splitlines()[0]
    )
    assert records[0]["uuid"] == origin["uuid"]
    assert records[0]["forkedFrom"] == {
        "sessionId": origin["sessionId"], "messageUuid": origin["uuid"],
    }  # fmt: skip
    assert "forkedFrom" not in records[-1]
    base.close()


@pytest.mark.parametrize("gone", [False, True])
def test_what_is_too_large_for_the_log_is_written_whole(tmp_path: Path, gone: bool) -> None:
    base = opened(tmp_path, "t.db")
    call = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "z" * 9_000_000}
    above = None
    lines = []
    for role, content in (("assistant", [call]), ("user", [result]), ("user", "x" * 1_500_000)):
        record = {
            "type": role, "uuid": str(uuid.uuid4()), "parentUuid": above, "sessionId": "s",
            "message": {"role": role, "id": "m", "content": content},
        }  # fmt: skip
        above = record["uuid"]
        lines.append(json.dumps(record) + "\n")
    file = tmp_path / "s.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    ti.import_paths(base, [str(file)])
    if gone:
        shutil.rmtree(tmp_path / "t.db.files")
        path, records = write(base, 0, "main", tmp_path)
        check_form(records)
        assert records[1]["message"]["content"].startswith("[tool result] zzz")
        fresh = opened(tmp_path, "fresh.db")
        ti.import_paths(fresh, [str(path)])
        roles = [role for role, _ in said(fresh, "tl0", "main")]
        assert roles == ["assistant", "tool", "user"]
        messages = base.run("context")
        request = te.as_request(base, messages, "anthropic")["messages"]
        assert any("[tool result] zzz" in str(turn["content"])[:200] for turn in request[1:])
        fresh.close()
    else:
        check_branch(base, "tl0", "main", tmp_path)
    base.close()


def test_going_on_in_the_session_goes_on_in_the_branch(tmp_path: Path) -> None:
    base = opened(tmp_path, "t.db")
    base.run("create")
    for role, text in (("user", "Hi"), ("assistant", "Hello"), ("tool", "raw"), ("user", "")):
        base.run("append", {"role": role, "text": text})
    path, records = write(base, 0, "main", tmp_path)
    more = {**records[0], "uuid": str(uuid.uuid4()), "parentUuid": records[-1]["uuid"]}
    del more["timeline"]
    more["message"] = {"role": "user", "content": "More"}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(more) + "\n")
    (row,) = ti.import_paths(base, [str(path)])["timelines"]
    assert (row["timeline_id"], row["added"], row["known"]) == ("tl0", 1, 4)
    node = base.run("node", {"node": "n5"})
    assert (node["parent"], node["text"]) == ("n4", "More")
    base.close()


@pytest.mark.parametrize("seed", range(8))
def test_random_timelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda _: None)
    pair = Pair(str(tmp_path))
    for step in random_steps(seed, pair.model, 60):
        if not step.get("process"):
            pair.step(step)
    pair.close()
    base = timeline.Database(pair.path, via="import")
    for row in base.run("list"):
        for branch in base.run("branches", {"timeline_id": row["timeline_id"]}):
            if said(base, row["timeline_id"], branch["name"]):
                check_branch(base, row["timeline_id"], branch["name"], tmp_path)
    base.close()


def test_marks_of_another_database_say_nothing(tmp_path: Path) -> None:
    base, other = opened(tmp_path, "t.db"), opened(tmp_path, "o.db")
    for each in (base, other):
        each.run("create")
        each.run("append", {"role": "user", "text": each.path[-4:]})
    path, records = write(base, 0, "main", tmp_path)
    (row,) = ti.import_paths(other, [str(path)])["timelines"]
    assert (row["added"], row["timeline_id"]) == (1, "tl1")
    for odd in ({"node": "n9"}, {"node": 1}, {"node": "n" * 99, "role": []}, [], "x", {"words": 1}):
        line = {**records[0], "uuid": str(uuid.uuid4()), "timeline": odd}
        path.write_text(json.dumps(line) + "\n", encoding="utf-8")
        (row,) = ti.import_paths(base, [str(path)])["timelines"]
        assert row["added"] == 1
    base.close()
    other.close()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tl = Inside(str(tmp_path / "t.db"))
    tl("create")
    tl("append", "--role", "user", "--text", "Hi")
    made = tl("export", "--format", "claude-code", "--output", "sessions").value
    assert Path(made["output"]).parent == tmp_path / "sessions"
    told = tl("export", "--format", "claude-code", "--output", str(tmp_path)).value
    assert told["run"] == f"claude --resume {told['session']}"
    assert told["output"] == str(tmp_path / f"{told['session']}.jsonl")
    assert told["cwd"] == os.getcwd()
    assert told["nodes"] == 1
    for arguments, words in (
        ((), "needs --output"),
        (("--output", str(tmp_path / "none" / "deeper")), "make it first"),
        (("--output", str(tmp_path), "--from", "n1", "--to", "n1"), "leave out --from"),
        (("--output", str(tmp_path), "--branch", "none"), "none"),
    ):
        assert words in tl("export", "--format", "claude-code", *arguments).error["error"]
    tl("create", "--title", "empty")
    refused = tl(
        "export", "--format", "claude-code", "--output", str(tmp_path), "--timeline", "tl1"
    )
    assert "nothing to resume" in refused.error["error"]
