"""A message whose content was emptied is told from one that never had any."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.program import Program


@pytest.fixture
def tl(tmp_path: Path) -> Program:
    return Program(tmp_path / "db.json")


def test_a_purged_message_shows_as_purged(tl: Program) -> None:
    tl("create")
    for text in ("a secret", "", '"purged":true', "more"):
        tl("append", "--role", "user", f"--text={text}")
    tl("append", "--role", "user", "--text=x", "--intent-tag", "why", "--intent-note", "secret")
    tl("summarize", "--from", "n3", "--to", "n4", "--summary", "both")
    tl("compact", "--purge", "n1,n5,n6", "--yes")
    gone = {"n1": True, "n2": None, "n3": None, "n4": None, "n5": True}
    messages = tl("context").value
    assert {each["node"]: each.get("purged") for each in messages} == gone
    assert messages[0] == {"node": "n1", "role": "user", "text": "", "tokens": 2, "purged": True}
    shown = tl("budget", "--max", "1000", "--dry-run").value["messages"]
    assert {each["node"]: each.get("purged") for each in shown} == gone
    assert tl("node", "--node", "n1").value["purged"] is True
    tree = tl("tree").out.decode()
    assert '[n1 user PURGED] ""' in tree
    assert '[n2 user] ""' in tree
    assert '[n5 user PURGED #why] ""' in tree
    assert '[n6 PURGED summary n3..n4] ""' in tree
    assert tree.count("PURGED") == 3
