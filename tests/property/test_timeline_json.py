"""Random timelines written as json and read in again: the same tree, whatever was there before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.compare import Pair
from kit.documents import brought, budgets, exported, inverted, plain, save
from kit.random_ops import steps as random_steps
from kit.seeds import shard, shards

SEEDS = 10
SLOW_SEEDS = 1000
STEPS = 70
NOW = 4_200_000_000


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off here, and waiting for the disk is most of the time."""
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda _: None)


def opened(folder: Path, name: str) -> timeline.Database:
    return timeline.Database(str(folder / name), clock=lambda: NOW)


def grown(pair: Pair, seed: int, count: int) -> None:
    for step in random_steps(seed, pair.model, count):
        if not step.get("process"):
            pair.step(step)


def check_whole(base: timeline.Database) -> None:
    """The doctor finds nothing, and a repair has nothing to leave out."""
    assert base.run("doctor")["ok"] is True
    repaired = base.path + ".repaired"
    report = base.run("doctor", {"repair_to": repaired})
    assert (report["lost"], report["left_out"]) == ([], [])
    os.remove(repaired)


def check_import(source: timeline.Database, tl: int, target: timeline.Database, path: str) -> None:
    """The document at `path`, of timeline `tl`, becomes the same tree in the target."""
    before = exported(source, tl)
    row, ids = brought(target, path)
    assert row["added"] == row["records"] == len(ids)
    assert list(ids.values()) == sorted(ids.values(), key=lambda node: int(node[1:]))
    there = int(row["timeline_id"][2:])
    assert plain(exported(target, there), inverted(ids)) == plain(before)
    assert budgets(target, there, inverted(ids)) == budgets(source, tl)
    check_parts(source, tl, before)
    check_whole(target)
    data = Path(target.path).read_bytes()
    again, same = brought(target, path)
    assert (again["added"], same, again["warnings"]) == (0, ids, [])
    assert Path(target.path).read_bytes() == data
    back, own = brought(source, path)
    assert (back["added"], back["changed"]) == (0, 0)
    assert all(here == there for here, there in own.items())


def check_parts(source: timeline.Database, tl: int, document: str) -> None:
    """A part of a path says of each node what the whole says."""
    whole = {row["node"]: row for row in json.loads(document)["nodes"]}
    for branch in source.run("branches", {"timeline_id": f"tl{tl}"}):
        part = json.loads(exported(source, tl, branch=branch["name"]))["nodes"]
        assert part == [whole[row["node"]] for row in part]


def check_seed(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    pair = Pair(str(folder))
    fresh, used = opened(folder, "fresh"), opened(folder, "used")
    try:
        grown(pair, seed, STEPS)
        source = pair.databases[0]
        used.run("create", {"title": "another"})
        used.run("append", {"role": "user", "text": "was here before"})
        for tl in range(len(source.run("list"))):
            path = save(exported(source, tl), folder / f"tl{tl}.json")
            check_import(source, tl, fresh, path)
            check_import(source, tl, used, path)
            used.run("append", {"role": "user", "text": "between", "timeline_id": "tl0"})
    finally:
        for base in (fresh, used):
            base.close()
        pair.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_timeline_comes_back_as_it_was(tmp_path: Path, seed: int) -> None:
    check_seed(tmp_path / "run", seed)


@pytest.mark.slow
@shards(SEEDS, SEEDS + SLOW_SEEDS)
def test_many_timelines_come_back_as_they_were(tmp_path: Path, first: int) -> None:
    for seed in shard(first):
        check_seed(tmp_path / str(seed), seed)


def check_growth(folder: Path, seed: int) -> None:
    """A newer export adds the new nodes, and branches nobody touched here follow."""
    folder.mkdir(exist_ok=True)
    pair = Pair(str(folder))
    target = opened(folder, "target")
    try:
        steps = random_steps(seed, pair.model, STEPS)
        seen: dict[str, str] = {}
        for count, step in enumerate(steps, 1):
            if not step.get("process"):
                pair.step(step)
            if count % 23 or not pair.model.trees:
                continue
            document = exported(pair.databases[0])
            row, ids = brought(target, save(document, folder / f"{count}.json"))
            assert row["added"] == len(ids) - len(seen)
            assert {node: ids[node] for node in seen} == seen
            seen = ids
            found = plain(exported(target), inverted(ids))
            compare_grown(plain(document), found, numbers_of(target), bool(row["warnings"]))
            check_whole(target)
            data = Path(target.path).read_bytes()
            assert brought(target, str(folder / f"{count}.json"))[0]["added"] == 0
            assert Path(target.path).read_bytes() == data
    finally:
        target.close()
        pair.close()


def numbers_of(target: timeline.Database) -> dict[int, int]:
    """Which branch of the target is which of the document, as it remembers them."""
    sessions = target.store.state.timelines[0].sessions
    words = {key: key.split("\0") for key in sessions}
    return {int(words[key][2]): sessions[key][0] for key in sessions if len(words[key]) == 3}


def compare_grown(wanted: Any, found: Any, numbers: dict[int, int], warned: bool) -> None:
    def nodes(document: Any) -> list[Any]:
        marks = ("pinned", "held", "excluded", "sealed", "zone")  # added, never taken away
        return [{k: v for k, v in n.items() if k not in marks} for n in document["nodes"]]

    assert nodes(found) == nodes(wanted)
    if not warned:  # of a pin here that stands against an exclusion there, or of such a branch
        for here, there in zip(found["nodes"], wanted["nodes"], strict=True):
            assert here["pinned"] >= there["pinned"] and here["excluded"] >= there["excluded"]
    # Names stay as they were given, and what ended here is not revived unless it grew.
    heads = {b["number"]: b["head"] for b in found["branches"] if b["status"] == "live"}
    ended = {b["number"] for b in found["branches"] if b["status"] != "live"}
    for branch in wanted["branches"]:
        number = numbers[branch["number"]]
        if branch["status"] == "live" and number not in ended:
            assert heads[number] == branch["head"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_newer_export_adds_what_is_new(tmp_path: Path, seed: int) -> None:
    check_growth(tmp_path / "run", seed)


@pytest.mark.slow
@shards(SEEDS, SEEDS + SLOW_SEEDS)
def test_newer_exports_add_what_is_new_in_many_runs(tmp_path: Path, first: int) -> None:
    for seed in shard(first):
        check_growth(tmp_path / str(seed), seed)
