"""A compression made on one line never leaks into another; the originals come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import timeline


@pytest.fixture
def db(tmp_path: Path) -> timeline.Database:
    """Nine messages n1..n9 of 100 tokens, a summary n10 over n2..n9, a branch forked at n5."""
    database = timeline.Database(str(tmp_path / "db.json"))
    database.run("create")
    for number in range(1, 10):
        database.run("append", {"role": "user", "text": f"m{number}", "tokens": 100})
    database.run("summarize", {"from": "n2", "to": "n9", "summary": "all of it", "tokens": 10})
    database.run("fork", {"node": "n5", "name": "side"})
    database.run("append", {"branch": "side", "role": "user", "text": "other", "tokens": 100})
    return database


def nodes(messages: list[dict[str, Any]]) -> list[str]:
    return [message["node"] for message in messages]


def test_context_of_the_fork_holds_the_originals(db: timeline.Database) -> None:
    assert nodes(db.run("context", {"branch": "side"})) == ["n1", "n2", "n3", "n4", "n5", "n11"]


@pytest.mark.parametrize("limit", [10_000, 600, 599, 500, 300, 200, 132])
def test_budget_of_the_fork_never_uses_the_summary(db: timeline.Database, limit: int) -> None:
    answer = db.run("budget", {"branch": "side", "max_tokens": limit})
    assert answer["total_tokens"] <= limit
    assert "n10" not in nodes(answer["messages"])
    if limit >= 600:
        assert nodes(answer["messages"]) == ["n1", "n2", "n3", "n4", "n5", "n11"]
    assert (
        "n10" in nodes(db.run("budget", {"branch": "main", "max_tokens": limit})["messages"])
        or not 142 <= limit <= 900
    )


def test_summaries_lists_it_as_hidden_with_what_to_summarize_anew(db: timeline.Database) -> None:
    (row,) = db.run("summaries", {"branch": "side"})
    assert (row["node"], row["status"]) == ("n10", "hidden")
    assert row["on_path"] == {"from": "n2", "to": "n5"}
    (row,) = db.run("summaries", {"branch": "main"})
    assert row["status"] == "active"


def test_a_branch_from_the_summary_goes_on_in_its_place(db: timeline.Database) -> None:
    db.run("fork", {"node": "n10", "name": "short"})
    db.run("append", {"branch": "short", "role": "user", "text": "go on"})
    assert nodes(db.run("context", {"branch": "short"})) == ["n1", "n10", "n12"]
    (row,) = db.run("summaries", {"branch": "short"})
    assert row["inline"] is True


def test_an_original_behind_its_summary_is_named_by_it(db: timeline.Database) -> None:
    db.run("fork", {"node": "n10", "name": "short"})
    db.run("append", {"branch": "short", "role": "user", "text": "go on"})
    with pytest.raises(
        timeline.Refused, match="n2 is not on the path of n12; there n10 stands for it"
    ):
        db.run("summarize", {"from": "n2", "to": "n12", "summary": "x"})
