"""The naive model itself, on examples small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kit.compare import command_line
from kit.model import Model, ModelError
from kit.random_ops import steps

WEEK = 604_800


def started(tokens: Sequence[int] = (), **create: Any) -> Model:
    """A database whose branch main holds one user message a number."""
    model = Model(now=1000)
    model.run("create", create)
    for t in tokens:
        model.run("append", {"role": "user", "text": f"weighs {t}", "tokens": t})
    return model


def append(model: Model, role: str = "user", **args: Any) -> str:
    node: str = model.run("append", {"role": role, "text": "x", "tokens": 10, **args})["node"]
    return node


def summarize(model: Model, first: str, last: str, text: str = "in short", **args: Any) -> str:
    said = {"from": first, "to": last, "summary": text, "tokens": 5, **args}
    node: str = model.run("summarize", said)["node"]
    return node


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [m["node"] for m in messages]


def refused(model: Model, op: str, **args: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        model.run(op, args)
    return caught.value


def rows(model: Model, branch: str = "main") -> dict[str, dict[str, Any]]:
    return {row["node"]: row for row in model.run("summaries", {"branch": branch})}


# --- budget -------------------------------------------------------------------------------------


def test_infeasible_budget_names_what_the_cheapest_layout_costs() -> None:
    model = started([1000, 1, 1000, 0])
    model.run("pin", {"node": "n2"})
    error = refused(model, "budget", max_tokens=1)
    assert (error.exit_code, error.message) == (1, "budget infeasible")
    assert error.data == {"required_tokens": 65, "max_tokens": 1}
    assert max(model.nodes) == 4


def test_budget_at_its_required_tokens_leaves_two_placeholders() -> None:
    model = started([1000, 1, 1000, 0])
    model.run("pin", {"node": "n2"})
    answer = model.run("budget", {"max_tokens": 65})
    assert ids(answer["messages"]) == ["n5", "n2", "n6", "n4"]
    assert answer["total_tokens"] == 65
    assert answer["summaries_created"] == ["n5", "n6"]
    assert answer["messages"][0] == {
        "node": "n5",
        "role": "summary",
        "text": "[1 messages left out: n1..n1. Read the originals as the context of n1, "
        "from n1 on.]",
        "tokens": 32,
        "from": "n1",
        "to": "n1",
        "placeholder": True,
    }


def test_budget_asked_again_writes_nothing() -> None:
    model = started([1000, 0])
    first = model.run("budget", {"max_tokens": 40})
    seq = model.seq
    assert model.run("budget", {"max_tokens": 40}) == first
    assert model.seq == seq


def test_dry_run_writes_nothing_and_numbers_only_what_exists() -> None:
    model = started([1000, 1, 1000, 0])
    model.run("pin", {"node": "n2"})
    model.run("budget", {"node": "n2", "max_tokens": 33})  # a placeholder for n1
    seq = model.seq
    answer = model.run("budget", {"max_tokens": 65, "dry_run": True})
    assert ids(answer["messages"]) == ["n5", "n2", None, "n4"]
    assert answer["summaries_created"] == ["n5"]
    assert model.seq == seq


def test_budget_shows_the_newest_version_and_never_an_excluded_summary() -> None:
    model = started([500, 500, 10])
    old = summarize(model, "n1", "n2")
    new = summarize(model, "n1", "n2", "better", supersede=old)
    assert ids(model.run("budget", {"max_tokens": 15})["messages"]) == [new, "n3"]
    model.run("exclude", {"node": new})
    answer = model.run("budget", {"max_tokens": 42})
    assert answer["messages"][0].get("placeholder")


def test_gap_around_an_excluded_unit_is_one_and_counts_it() -> None:
    model = started([100, 100, 100, 0])
    model.run("exclude", {"node": "n2"})
    answer = model.run("budget", {"max_tokens": 32})
    gap = answer["messages"][0]
    assert (gap["from"], gap["to"]) == ("n1", "n3")
    assert gap["text"].startswith("[3 messages left out: n1..n3.")


def test_excluded_target_gives_way_to_the_last_node_before_it() -> None:
    model = started([10, 10])
    model.run("exclude", {"node": "n2"})
    assert ids(model.run("budget", {"max_tokens": 100})["messages"]) == ["n1"]
    model.run("exclude", {"node": "n1"})
    empty = {"messages": [], "total_tokens": 0, "summaries_created": []}
    assert model.run("budget", {"max_tokens": 0}) == empty


# --- lineage and versions -----------------------------------------------------------------------


def test_fork_inside_a_summarized_interval_sees_the_originals() -> None:
    model = started([100] * 10)
    s = summarize(model, "n2", "n9")
    model.run("fork", {"node": "n5", "name": "other"})
    answer = model.run("budget", {"branch": "other", "max_tokens": 500})
    assert ids(answer["messages"]) == ["n1", "n2", "n3", "n4", "n5"]
    row = rows(model, "other")[s]
    assert row["status"] == "hidden"
    assert row["on_path"] == {"from": "n2", "to": "n5"}
    assert rows(model)[s]["status"] == "active"
    tight = model.run("budget", {"branch": "other", "max_tokens": 132})
    assert tight["messages"][0].get("placeholder")


def test_fork_from_a_summary_continues_in_place_of_the_originals() -> None:
    model = started([10, 10, 10])
    s = summarize(model, "n2", "n3")
    model.run("fork", {"node": s, "name": "short"})
    last = append(model, branch="short")
    assert ids(model.run("context", {"branch": "short"})) == ["n1", s, last]
    row = next(r for r in model.run("branches", {}) if r["name"] == "short")
    assert (row["parent"], row["fork_node"], row["messages"]) == ("main", s, 3)
    assert rows(model, "short")[s]["inline"] is True
    error = refused(model, "summarize", **{"from": "n3", "to": last, "summary": "x"})
    assert error.exit_code == 1


def test_staleness_cascades_through_derived_summaries() -> None:
    model = started([10, 10])
    a = summarize(model, "n1", "n1", "a")
    b = summarize(model, "n2", "n2", "b", derived_from=[a])
    c = summarize(model, "n1", "n2", "c", derived_from=[b])
    assert not rows(model)[c]["stale"]
    better = summarize(model, "n1", "n1", "a, better", supersede=a)
    states = {node: row["status"] for node, row in rows(model).items()}
    assert states == {a: "superseded", b: "stale", c: "stale", better: "active"}


def test_version_derived_from_its_predecessor_is_not_stale() -> None:
    model = started([10])
    a = summarize(model, "n1", "n1", "a")
    b = summarize(model, "n1", "n1", "b", supersede=a, derived_from=[a])
    assert rows(model)[b] == {
        "node": b,
        "from": "n1",
        "to": "n1",
        "kind": "real",
        "version": 2,
        "status": "active",
        "tokens": 5,
        "stale": False,
        "supersedes": a,
        "superseded_by": None,
    }
    assert refused(model, "summarize", **{
        "from": "n1", "to": "n1", "summary": "c", "supersede": a,
    }).exit_code == 1  # fmt: skip


def test_same_summary_again_is_the_first_even_when_superseded() -> None:
    model = started([10])
    a = summarize(model, "n1", "n1", "a")
    summarize(model, "n1", "n1", "b", supersede=a)
    seq = model.seq
    assert summarize(model, "n1", "n1", "a") == a
    assert model.seq == seq
    assert summarize(model, "n1", "n1", "a", intent={"tag": "why"}) != a


def test_placeholder_is_backfilled_by_the_newest_summary_around_it() -> None:
    model = started([100, 100, 0])
    (p,) = model.run("budget", {"max_tokens": 32})["summaries_created"]
    assert rows(model)[p]["backfilled_by"] is None
    summarize(model, "n1", "n2")
    wide = summarize(model, "n1", "n3")
    summarize(model, "n2", "n2")
    assert rows(model)[p]["status"] == "placeholder"
    assert rows(model)[p]["backfilled_by"] == wide
    more: dict[str, dict[str, Any]] = {"fork": {"name": "b"}, "budget": {"max_tokens": 9}}
    for op, args in {**more, "pin": {}, "exclude": {}}.items():
        assert refused(model, op, node=p, **args).exit_code == 1


# --- marks, pins, seal --------------------------------------------------------------------------


def test_exclusion_takes_a_tool_unit_whole() -> None:
    model = started([10])
    call = append(model, "assistant")
    first, second = append(model, "tool"), append(model, "tool")
    after = append(model)
    assert model.run("exclude", {"node": first}) == {"excluded": [call, first]}
    assert model.run("node", {"node": second})["excluded"] is True
    assert ids(model.run("context", {})) == ["n1", after]
    assert refused(model, "pin", node=second).exit_code == 1
    assert model.run("include", {"node": second}) == {"included": [call, first, second]}
    model.run("pin", {"node": second})
    assert refused(model, "exclude", node=call).exit_code == 1


def test_pin_once_held_cannot_leave_a_bare_message_above_the_watermark() -> None:
    model = started([10, 10])
    model.run("pin", {"node": "n1"})
    model.run("unpin", {"node": "n1"})  # nothing was summarized while it stood
    model.run("pin", {"node": "n1"})
    summarize(model, "n2", "n2")
    assert refused(model, "unpin", node="n1").exit_code == 1
    assert model.watermark(model.trees[0].current) == 2
    summarize(model, "n1", "n1")
    assert model.run("unpin", {"node": "n1"}) == {"unpinned": "n1"}


# --- branches and archive -----------------------------------------------------------------------


def test_archive_moves_only_what_no_other_branch_shows_and_thaw_brings_it_back() -> None:
    model = started([10, 10])
    model.run("fork", {"node": "n1", "name": "side"})
    own = append(model, branch="side")
    check = model.run("archive_check", {"branch": "side"})
    uncovered = {"reason": "uncovered", "nodes": ["n1", own], "count": 2}
    assert check == {"eligible": False, "reasons": [uncovered]}
    s = summarize(model, own, own)
    assert not model.run("archive_check", {"branch": "side"})["eligible"]
    done = model.run("archive_branch", {"branch": "side", "scope": "own"})
    assert done == {"archived": [own]}
    assert model.run("node", {"node": own})["zone"] == "archive"
    assert model.run("node", {"node": s})["zone"] == "hot"
    assert refused(model, "fork", node=own, name="again").exit_code == 1
    assert ids(model.run("context", {"node": own})) == ["n1", own]
    model.run("fork", {"node": "n1", "name": "side"})
    assert refused(model, "thaw", name="side").exit_code == 1
    assert model.run("thaw", {"name": "side", "as_name": "back"}) == {"thawed": [own]}
    names = [(r["name"], r["parent"]) for r in model.run("branches", {})]
    assert names == [("main", None), ("back", "main"), ("side", "main")]


def test_parent_branch_is_kept_by_identity() -> None:
    model = started([10])
    model.run("fork", {"node": "n1", "name": "a"})
    append(model, branch="a")
    model.run("switch", {"name": "a"})
    model.run("fork", {"node": "n2", "name": "b"})
    model.run("switch", {"name": "main"})
    summarize(model, "n1", "n2")
    model.run("archive_branch", {"branch": "a"})
    everything = model.run("branches", {"all": True})
    assert [(r["name"], r["parent"], r["status"]) for r in everything] == [
        ("main", None, "live"),
        ("a", "main", "archived"),
        ("b", None, "live"),
    ]
    model.run("thaw", {"name": "a", "as_name": "a2"})
    assert [r["parent"] for r in model.run("branches", {})] == [None, "main", "a2"]


# --- keys, time, shapes -------------------------------------------------------------------------


def test_key_answers_for_a_week_and_belongs_to_one_operation() -> None:
    model = started()
    args = {"role": "user", "text": "once", "idempotency_key": "k"}
    assert model.run("append", args) == {"node": "n1"}
    model.now += WEEK
    assert model.run("append", {**args, "text": "twice", "expect_head": "n0"}) == {"node": "n1"}
    assert refused(model, "pin", node="n1", idempotency_key="k").exit_code == 1
    model.now += 1
    assert model.run("append", args) == {"node": "n2"}


def test_keyed_request_that_changes_nothing_is_remembered_by_a_line() -> None:
    model = started([10])
    model.run("pin", {"node": "n1"})
    seq = model.seq
    model.run("pin", {"node": "n1"})
    assert model.seq == seq
    model.run("pin", {"node": "n1", "idempotency_key": "k"})
    assert model.seq == seq + 1
    model.run("pin", {"node": "n1", "idempotency_key": "k"})
    assert model.seq == seq + 1


def test_keyed_budget_is_remembered_by_ids_and_read_as_they_are_now() -> None:
    model = started([100, 100, 10])
    a = summarize(model, "n1", "n1", "a")
    s = summarize(model, "n1", "n2", "b", derived_from=[a])
    args = {"max_tokens": 20, "idempotency_key": "k"}
    first = model.run("budget", args)
    assert ids(first["messages"]) == [s, "n3"]
    summarize(model, "n1", "n1", "a2", supersede=a)
    shown, target = first["messages"]
    again = model.run("budget", args)
    assert again == {**first, "messages": [{**shown, "stale": True}, target]}


def test_time_never_runs_backwards() -> None:
    model = started([1])
    model.now -= 500
    node = append(model)
    assert model.run("node", {"node": node})["created_at"] == 1000


def test_wide_estimator_counts_each_wide_character() -> None:
    model = started(estimator="wide")
    node = append(model, text="世界abcde")
    assert model.run("node", {"node": node})["tokens"] == 10
    node = model.run("append", {"role": "user", "text": "世界abcde"})["node"]
    assert model.run("node", {"node": node})["tokens"] == 4


def test_wrong_shapes_are_misuse_and_unknown_names_are_not() -> None:
    model = started([1])
    assert refused(model, "append", role="robot", text="x").exit_code == 2
    assert refused(model, "append", role="user", text="x", tokens=True).exit_code == 2
    assert refused(model, "fork", node="n1", name="a/b").exit_code == 2
    assert refused(model, "context", node="n1", branch="main").exit_code == 2
    assert refused(model, "pin", node="n0").exit_code == 2
    assert refused(model, "context", idempotency_key="k").exit_code == 2
    assert refused(model, "pin", node="n9").exit_code == 1
    assert refused(Model(), "list").exit_code == 1


def test_path_sum_beyond_what_readers_can_hold_is_refused() -> None:
    model = started([2**53 - 1])
    assert refused(model, "append", role="user", text="x", tokens=1).message == "token overflow"
    append(model, tokens=0)


# --- the generator ------------------------------------------------------------------------------


def test_same_seed_draws_the_same_steps() -> None:
    def drawn(seed: int) -> list[dict[str, Any]]:
        model = Model(now=1000)
        done = []
        for step in steps(seed, model, 60):
            done.append(step)
            if "op" in step:
                try:
                    model.run(step["op"], step["args"])
                except ModelError:
                    pass
        return done

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_request_becomes_the_command_line_a_person_would_type() -> None:
    said = {"from": "n1", "to": "n2", "summary": "s", "derived_from": ["n1", "n2"]}
    words, stdin = command_line("summarize", {**said, "intent": {"tag": "why"}})
    assert words == [
        "summarize", "--from=n1", "--to=n2", "--summary", "-",
        "--derived-from=n1,n2", "--intent-tag=why",
    ]  # fmt: skip
    assert stdin == b"s"
    words, _ = command_line("archive_branch", {"branch": "b", "scope": "own"})
    assert words == ["archive-branch", "--name=b", "--scope=own"]
    words, _ = command_line("search", {"text": "-x", "ignore_case": True, "timeline_id": "tl1"})
    assert words == ["search", "--ignore-case", "--timeline=tl1", "--", "-x"]
