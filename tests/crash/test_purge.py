"""`compact --purge`: the content of nodes is gone from the file, everything else stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit import stories
from kit.stories import Story

SECRETS = {
    "text": 'the "secret" text \n 秘密',
    "note": "the hidden note",
    "folder": "/home/somebody/private",
    "identity": "4f3c2b1a-session",
    "block": "exact bytes of a block",
    "summary": "a telling summary",
    "idea": "another note",
}
STEPS = (
    ("create", {}),
    stories.append("before"),
    stories.append(
        SECRETS["text"], intent={"tag": "kept", "note": SECRETS["note"]}, idempotency_key="key"
    ),
    stories.append("after", "assistant"),
    (
        "summarize",
        {
            "from": "n1",
            "to": "n2",
            "summary": SECRETS["summary"],
            "intent": {"tag": "so", "note": SECRETS["idea"]},
        },
    ),
    ("fork", {"node": "n2", "name": "side"}),
    ("pin", {"node": "n2"}),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.db"
    path.write_bytes(stories.header())
    for name, args in STEPS:
        stories.run(path, name, **args)
    import_one(path)
    stories.run(path, "append", role="user", text="end")
    stories.checkpoint_now(path)
    return path


def import_one(path: Path) -> int:
    """An imported message with all that an import keeps of it; its number."""
    database = stories.open_database(path)
    with database.importing() as importing:
        node: int = importing.append(
            0,
            parent=3,
            role="assistant",
            text="imported " + SECRETS["text"],
            tokens=7,
            source={"cwd": SECRETS["folder"], "uuid": SECRETS["identity"]},
            blocks=[{"type": "text", "text": SECRETS["block"]}],
            identities=["import:1"],
        )
        importing.move(0, "main", node)
    database.close()
    return node


def purge(path: Path, *nodes: int) -> dict[str, Any]:
    database = stories.open_database(path)
    try:
        result: dict[str, Any] = database.purge(list(nodes))
        return result
    finally:
        database.close()


def all_bytes(path: Path) -> bytes:
    """What lies on disk under the folder, as texts are written there."""
    return b"".join(each.read_bytes() for each in path.parent.rglob("*") if each.is_file())


def as_written(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


def emptied(node: dict[str, Any]) -> dict[str, Any]:
    """What `node` says of a node after it was purged."""
    kept = {k: v for k, v in node.items() if k not in ("source", "blocks")}
    if "intent" in kept:
        kept["intent"] = {"tag": kept["intent"]["tag"]}
    return {**kept, "text": "", "purged": True}


def test_content_is_gone_from_all_files_and_everything_else_is_equal(path: Path) -> None:
    before = stories.read_everything(path)
    for secret in SECRETS.values():
        assert as_written(secret) in all_bytes(path)
    assert purge(path, 2, 4, 5) == {"purged": ["n2", "n4", "n5"], "generation": 2}
    for secret in SECRETS.values():
        assert as_written(secret) not in all_bytes(path), secret
    after = stories.read_everything(path)
    for old, new in zip(before["nodes"], after["nodes"], strict=True):
        if old["node"] in ("n2", "n4", "n5"):
            new.pop("source", None)
            assert new == emptied(old)
        else:
            assert new == old
    strip = ("purged", "source", "intent")
    rows = [[{k: v for k, v in r.items() if k not in strip} for r in x["audit"]] for x in
            (before, after)]  # fmt: skip
    assert rows[0] == rows[1]
    assert before["list"] == after["list"]
    for old, new in zip(before["timelines"], after["timelines"], strict=True):
        assert old["branches"] == new["branches"]
        assert old["summaries"] == new["summaries"]
    assert stories.doctor(path)["ok"]


def test_header_names_the_log_it_came_from(path: Path) -> None:
    os.chmod(path, 0o640)
    first = json.loads(path.read_bytes().split(b"\n")[0])
    purge(path, 2)
    second = json.loads(path.read_bytes().split(b"\n")[0])
    assert second["generation"] == first["generation"] + 1
    assert second["prev_log_id"] == first["log_id"]
    assert second["log_id"] != first["log_id"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert purge(path, 1)["generation"] == 3


def test_other_resident_processes_notice(path: Path) -> None:
    databases = [stories.open_database(path) for _ in range(2)]
    before = [stories.reading(database) for database in databases]
    assert before[0] == before[1]
    purge(path, 2)
    for number, database in enumerate(databases):
        assert database.run("node", {"node": "n2"})["text"] == ""
        assert database.run("search", {"text": "secret", "role": "user"}) == []
        answer = database.run("append", {"role": "user", "text": f"goes on {number}"})
        assert answer == {"node": f"n{len(before[0]['nodes']) + 1 + number}"}
        database.close()
    assert stories.doctor(path)["ok"]


def test_keys_dedupe_and_marks_outlive_a_purge(path: Path) -> None:
    before = path.read_bytes().count(b"\n")
    purge(path, 2, 4)
    again = stories.run(path, "append", role="user", text="other", idempotency_key="key")
    assert again == {"node": "n2"}
    assert stories.run(path, "pin", node="n2") == {"pinned": "n2"}
    assert path.read_bytes().count(b"\n") == before
    assert stories.run(path, "node", node="n2")["intent"] == {"tag": "kept"}


def test_purge_sets_a_torn_tail_aside_first(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"seq":')
    purge(path, 2)
    assert path.read_bytes().endswith(b'"}\n')
    assert stories.doctor(path)["ok"]


def test_purging_again_or_an_empty_text_changes_nothing_else(path: Path) -> None:
    purge(path, 2)
    before = stories.read_everything(path)
    purge(path, 2, 2)
    assert stories.read_everything(path) == before


def test_unknown_node_or_damage_stops_a_purge(path: Path) -> None:
    before = path.read_bytes()
    for nodes, error in (
        ([99], timeline.NotFound),
        ([2, 99], timeline.NotFound),
        ([0], timeline.InvalidArgument),
        ([], timeline.InvalidArgument),
    ):
        with pytest.raises(error):
            purge(path, *nodes)
        assert path.read_bytes() == before
    path.write_bytes(stories.flipped(before, before.index(b"before")))
    with pytest.raises(timeline.Corrupt) as caught:
        purge(path, 2)
    assert caught.value.data["line"] == 3
    assert path.read_bytes() == stories.flipped(before, before.index(b"before"))
    assert not Path(f"{path}.tmp").exists()


def test_every_kind_of_line_survives_the_purge_of_any_node(tmp_path: Path) -> None:
    story = Story(tmp_path, stories.EVERYTHING)
    path = tmp_path / "copy.db"
    for node in range(1, story.nodes(story.seq) + 1):
        stories.place(path, story.log)
        purge(path, node)
        nodes = stories.read_everything(path)["nodes"]
        assert nodes[node - 1]["text"] == ""
        expected = [
            emptied(n) if n["node"] == f"n{node}" else n for n in story.readings[-1]["nodes"]
        ]
        assert nodes == expected
        assert stories.doctor(path)["ok"]
        assert stories.next_append_works(path) == len(nodes) + 1
