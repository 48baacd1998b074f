"""A path of 100,001 nodes: refused where it must be, and everything else works in linear time."""

from __future__ import annotations

from pathlib import Path

import pytest

import timeline
from kit.program import Program
from kit.wire import Wire

NODES = 100_001


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "db.json"
    database = timeline.Database(str(path))
    with database.importing() as tx:
        tl = tx.create("big", "scalar4", {"format": "test", "session": "s"})
        node = 0
        for number in range(NODES):
            node = tx.append(tl, node, "user" if number % 2 else "assistant", f"m{number}", 10, {})
        tx.move(tl, "main", node)
    database.run("fork", {"node": f"n{NODES}", "name": "copy"})
    database.close()
    return path


def test_context_refuses_above_its_limit_and_says_how_to_narrow_it(path: Path) -> None:
    database = timeline.Database(str(path))
    with pytest.raises(timeline.Refused, match=r"result too long.*`last`") as caught:
        database.run("context")
    assert caught.value.exit_code == 1
    assert [each["node"] for each in database.run("context", {"last": 2})] == [
        f"n{NODES - 1}",
        f"n{NODES}",
    ]
    before = database.run("context", {"before": f"n{NODES - 1}", "last": 1})
    assert [each["node"] for each in before] == [f"n{NODES - 2}"]
    with pytest.raises(timeline.Refused, match="result too long"):
        database.run("budget", {"max_tokens": NODES * 10})


def test_budget_summarize_archive_and_thaw_work(path: Path) -> None:
    database = timeline.Database(str(path))
    answer = database.run("budget", {"max_tokens": 1000, "dry_run": True})
    assert answer["total_tokens"] <= 1000
    assert answer["messages"][-1]["node"] == f"n{NODES}"
    summary = database.run("summarize", {"from": "n1", "to": f"n{NODES}", "summary": "all"})["node"]
    answer = database.run("budget", {"max_tokens": 11})
    assert [each["node"] for each in answer["messages"]] == [summary, f"n{NODES}"]
    assert database.run("archive_check", {"branch": "copy"}) == {"eligible": True, "reasons": []}
    database.run("fork", {"node": "n1", "name": "short"})
    database.run("switch", {"name": "short"})
    database.run("drop_branch", {"name": "main"})
    moved = database.run("archive_branch", {"branch": "copy"})["archived"]
    assert (len(moved), moved[0]) == (NODES - 1, "n2")
    assert database.run("node", {"node": f"n{NODES}"})["zone"] == "archive"
    assert len(database.run("thaw", {"name": "copy"})["thawed"]) == NODES - 1


@pytest.mark.slow
def test_doctor_and_tree_work(path: Path) -> None:
    tl = Program(path)
    report = tl("doctor").value
    assert report["ok"], report
    lines = tl("tree", "--timeline", "tl0").out.decode().splitlines()
    assert sum(f"[n{number} " in line for line in lines for number in (1, NODES)) == 2


def test_tools_name_the_call_that_fits_above_the_limit_too(path: Path) -> None:
    with Wire(path) as wire:
        wire.open()
        here = {"node": f"n{NODES}"}
        for name, given in (
            ("timeline_context", here),
            ("timeline_context_budget", {**here, "max_tokens": 10**9, "explain": True}),
        ):
            error = wire.error(name, given)
            assert error["error"].startswith("result too long: 100001 messages")
            assert "--" not in error["error"]
            found = wire.value(name, {**given, **error["data"]["try"]})
            shown = found["messages"] if isinstance(found, dict) else found
            assert len(shown) > 100
            assert shown[-1]["node"] == f"n{NODES}"
