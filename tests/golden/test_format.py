"""A log of every format version, kept for ever: it opens, passes the doctor and reads as it did.

`TIMELINE_GOLDEN=write` makes a missing log and what it reads as; an existing log is never replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import timeline

HERE = Path(__file__).parent
WRITE = os.environ.get("TIMELINE_GOLDEN") == "write"
VERSIONS = range(1, timeline.FORMAT_VERSION + 1)


def reading(path: Path) -> Any:
    """Everything a log says, as JSON."""
    database = timeline.Database(str(path))
    timelines = {}
    for row in database.run("list"):
        tl = {"timeline_id": row["timeline_id"]}
        branches = database.run("branches", {**tl, "all": True})
        timelines[row["timeline_id"]] = {
            "list": row,
            "branches": branches,
            "contexts": {
                each["name"]: database.run("context", {**tl, "branch": each["name"]})
                for each in branches
                if each["status"] == "live"
            },
            "summaries": {
                each["name"]: database.run("summaries", {**tl, "branch": each["name"]})
                for each in branches
                if each["status"] == "live"
            },
        }
    count = database.describe()["nodes"]
    nodes = [database.run("node", {"node": f"n{n}", "blocks": True}) for n in range(1, count + 1)]
    return {"timelines": timelines, "nodes": nodes, "audit": database.run("audit")}


def write_version_1(path: Path) -> None:
    """A log that holds every operation of format version 1."""
    times = iter(range(1767225600, 1767225600 + 10_000, 7))
    database = timeline.Database(str(path), clock=lambda: next(times))
    run = database.run
    run("create", {"title": "金色", "idempotency_key": "create"})
    run(
        "append",
        {"role": "user", "text": "one\r\n\u2028 \0 \x1b[1m 功能🚀", "idempotency_key": "k1"},
    )
    run("append", {"role": "assistant", "text": "call", "intent": {"tag": "t", "note": "n"}})
    run("append", {"role": "tool", "text": "result", "tokens": 300})
    run("append", {"role": "system", "text": ""})
    run("fork", {"node": "n2", "name": "side"})
    run("switch", {"name": "side"})
    run("append", {"role": "user", "text": "aside"})
    run("pin", {"node": "n5"})
    run("pin", {"node": "n5", "idempotency_key": "again"})
    run("exclude", {"node": "n3"})
    run("include", {"node": "n2"})
    run("budget", {"branch": "main", "max_tokens": 40, "idempotency_key": "budget"})
    older = run("summarize", {"from": "n1", "to": "n4", "summary": "first", "derived_from": ["n5"]})
    newer = run(
        "summarize", {"from": "n1", "to": "n4", "summary": "second", "supersede": older["node"]}
    )
    run("summarize", {"from": "n1", "to": "n5", "summary": "of the side", "tokens": 9})
    run("unpin", {"node": "n5"})
    run("fork", {"node": newer["node"], "name": "short"})
    run("append", {"branch": "short", "role": "user", "text": "on"})
    run("switch", {"name": "main"})
    run("archive_branch", {"branch": "side"})
    run("fork", {"node": "n1", "name": "gone"})
    run("drop_branch", {"name": "gone"})
    run("thaw", {"name": "side", "as_name": "side again"})
    run("switch", {"name": "short"})
    run("archive_branch", {"branch": "side again"})
    run("rename", {"title": "golden"})
    run("rename", {"branch": "short", "to": "kurz"})
    with database.importing("import") as tx:
        tl = tx.create("imported", "wide", {"format": "claude-code", "session": "s", "cwd": "/srv"})
        source = {"format": "claude-code", "session": "s", "id": "u1"}
        first = tx.append(tl, 0, "user", "从", 1, source, identities=["claude-code:u1"])
        blocks = [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]
        second = tx.append(tl, first, "user", "到", 1, {**source, "id": "u2"}, blocks)
        summary = tx.summary(tl, first, second, "摘要", 2, {**source, "id": "u3"})
        copy = tx.append(tl, summary, "user", "到", 1, {**source, "copy_of": f"n{second}"})
        tx.branch(tl, "before compaction 1", second)
        tx.move(tl, "main", copy)
        tx.branch(tl, "extra", first)
        tx.drop(tl, "extra")
        tx.session(tl, "s", "main", copy)
        tx.rename(tl, "imported talk")
        tx.remember({"timelines": []})
    database.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_of_every_version_reads_as_it_did(version: int, tmp_path: Path) -> None:
    kept, expected = HERE / f"format_{version}.jsonl", HERE / f"format_{version}.reading.json"
    if WRITE and not kept.exists():
        write_version_1(tmp_path / "made.json")
        shutil.copy(tmp_path / "made.json", kept)
    path = tmp_path / "db.json"
    shutil.copy(kept, path)
    found = reading(path)
    if WRITE:
        text = json.dumps(found, ensure_ascii=False, indent=1)
        expected.write_text(text + "\n", encoding="utf-8", newline="\n")
    assert found == json.loads(expected.read_text(encoding="utf-8"))
    assert timeline.Database(str(path)).run("doctor")["ok"]
    assert path.read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_of_every_version_can_be_gone_on_with(version: int, tmp_path: Path) -> None:
    path = tmp_path / "db.json"
    shutil.copy(HERE / f"format_{version}.jsonl", path)
    database = timeline.Database(str(path), clock=lambda: 1767300000)
    assert database.run("append", {"role": "user", "text": "x", "idempotency_key": "k1"}) == {
        "node": "n1"
    }
    node = database.run(
        "append", {"timeline_id": "tl0", "branch": "main", "role": "user", "text": "new"}
    )
    assert database.run("node", {"node": node["node"]})["parent"] == "n4"
    assert database.run("doctor")["ok"]


def test_the_newest_log_holds_every_operation() -> None:
    lines = (HERE / f"format_{timeline.FORMAT_VERSION}.jsonl").read_bytes().splitlines()
    held = {json.loads(line).get("op") for line in lines}
    assert set(timeline._APPLY) <= held
