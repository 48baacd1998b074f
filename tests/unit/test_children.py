"""Finding a node's children without reading all rows."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

import timeline
from kit import stories


@pytest.mark.parametrize("seed", range(8))
def test_node_lists_every_child_however_the_tree_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(timeline, "FORK_STRETCH", 4)
    stories.small_checkpoints(monkeypatch)
    rng = random.Random(seed)
    path = tmp_path / "t.db"
    children: dict[tuple[int, int], list[str]] = defaultdict(list)
    database = stories.open_database(path)
    for tl in range(2):
        database.run("create", {})
        children[tl, 0] = []
    nodes: list[list[int]] = [[], []]
    for number in range(1, 120):
        tl = rng.randrange(2)
        where = {"timeline_id": f"tl{tl}"}
        parent = 0
        if nodes[tl]:
            parent = nodes[tl][-1] if rng.random() < 0.6 else rng.choice(nodes[tl])
            where["branch"] = f"b{number}"
            database.run(
                "fork", {"node": f"n{parent}", "name": f"b{number}", "timeline_id": f"tl{tl}"}
            )
        node = database.run("append", {"role": "user", "text": "x", **where})["node"]
        children[tl, parent].append(node)
        nodes[tl].append(int(node[1:]))
        if rng.random() < 0.1:
            database.close()
            database = stories.open_database(path)
    for tl in range(2):
        for node in nodes[tl]:
            args = {"node": f"n{node}", "timeline_id": f"tl{tl}"}
            assert database.run("node", args)["children"] == children[tl, node]
    database.close()
    assert stories.doctor(path)["ok"]


def test_children_are_not_looked_for_where_there_are_none() -> None:
    """Of 100,000 nodes of one path with a fork at either end, two stretches are read."""
    state, rows = timeline.State(), timeline.Rows()
    records = [{"op": "create", "tl": 0, "title": None, "estimator": "scalar4"}]
    parents = [*range(100_000), 5, 99_990]
    records += [
        {"op": "append", "tl": 0, "id": node, "parent": parent, "role": "user", "tokens": 1}
        for node, parent in enumerate(parents, 1)
    ]
    for seq, record in enumerate(records, 1):
        timeline.apply(state, rows, {"seq": seq, "ts": 0, **record}, seq, 1)
    data, reads = bytes(64) + bytes(rows.tail), []

    def read(size: int, offset: int) -> bytes:
        reads.append(size)
        return data[offset : offset + size]

    stored = timeline.Rows(read, len(rows))
    assert timeline.children_of(stored, state.lowest, 5, 0) == [6, 100_001]
    assert sum(reads) < 200_000
    reads.clear()
    assert timeline.children_of(stored, state.lowest, 4, 0) == [5]
    assert sum(reads) == timeline.ROW_BYTES
    assert timeline.children_of(stored, state.lowest, 99_990, 0) == [99_991, 100_002]
    assert timeline.children_of(stored, state.lowest, 100_002, 0) == []
