"""The worked cases of the budget, and the reasons it gives."""

from __future__ import annotations

from typing import Any

import pytest

import timeline
from kit.budget_cases import Units, answer_of, candidates_of, load_cases, select_case


def cases(*names: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{name}: {case['name']}")
        for name in names
        for case in load_cases(f"{name}.json")
    ]


@pytest.mark.parametrize("case", cases("budget", "budget_more", "budget_tiers", "budget_excluded"))
def test_worked_case_gives_the_worked_answer(case: dict[str, Any]) -> None:
    assert answer_of(case) == case["expect"]


def test_case_files_are_whole() -> None:
    counts = [
        len(load_cases(f"budget{part}.json")) for part in ("", "_more", "_tiers", "_excluded")
    ]
    assert counts == [77, 2, 17, 15]


def test_orders_agree_on_what_is_required() -> None:
    for case in load_cases("budget.json"):
        expect = answer_of({**case, "order": "tiers"})
        assert expect["required_tokens"] == case["expect"]["required_tokens"], case["name"]
        assert expect["ok"] == case["expect"]["ok"], case["name"]


def test_inputs_are_left_as_they_were() -> None:
    weights, mandatory = [300, 20, 300, 10], {3}
    candidates = [timeline.Candidate(0, 2, 40, False, 3, 1)]
    for _ in range(2):
        selection = timeline.select(weights, mandatory, candidates, 100)
        assert (selection.total, selection.shown) == (70, [(0, [(0, 0), (2, 2)])])
    assert (weights, mandatory) == ([300, 20, 300, 10], {3})


def test_infeasible_says_what_would_do() -> None:
    with pytest.raises(timeline.BudgetInfeasible, match=r"^budget infeasible$") as caught:
        timeline.select([1000, 1, 1000, 0], {1, 3}, [], 1)
    assert caught.value.data == {"required_tokens": 65, "max_tokens": 1}
    assert timeline.select([1000, 1, 1000, 0], {1, 3}, [], 65).total == 65


# -- reasons ---------------------------------------------------------------------------------------


def explained(name: str, file: str = "budget.json") -> list[tuple[int, int, str, str]]:
    """Rows of a case's explanation: first and last unit from 1, verdict, why.

    A summary is called s1, s2 ... in the order of creation, a unit n and its number.
    """
    case = next(c for c in load_cases(file) if c["name"] == name)
    units = Units(case)
    rows = timeline.explain_rows(
        select_case(case, explain=True),
        candidates_of(case, units),
        lambda u: f"n{u + 1}",
        lambda s: f"s{units.summaries[s][0]}",
    )
    return [(row.first + 1, row.last + 1, row.verdict, row.why) for row in rows]


def test_list_end_is_named_and_the_message_that_ended_it_says_by_how_much() -> None:
    assert explained("255 ends the message list") == [
        (1, 1, "gap", "list ended at n2"),
        (2, 2, "gap", "did not fit: 75 over"),
        (3, 3, "kept", "fits"),
        (4, 4, "mandatory", "target"),
    ]


def test_pins_and_light_runs_are_told_apart() -> None:
    # Message 4: 100 + 200 + 0 and 32 for the run of 1-2 = 332, 168 above 164.
    assert explained("run of exactly 32 is kept") == [
        (1, 2, "kept", "costs no more than a placeholder"),
        (3, 3, "mandatory", "pinned"),
        (4, 4, "gap", "did not fit: 168 over"),
        (5, 5, "mandatory", "target"),
    ]


def test_units_of_two_summaries_name_them_and_a_summary_left_out_names_the_owner() -> None:
    assert explained("overlapping summaries share") == [
        (1, 3, "summary", "stands in s1"),
        (1, 3, "shown", "cheaper than what it stands for"),
        (3, 4, "shown", "cheaper than what it stands for"),
        (4, 4, "summary", "stands in s2"),
        (5, 5, "mandatory", "target"),
    ]
    assert explained("widest summary first") == [
        (1, 3, "summary", "stands in s2"),
        (1, 1, "unused", "owned by s2"),
        (1, 3, "shown", "cheaper than what it stands for"),
        (4, 4, "mandatory", "target"),
    ]


def test_summary_that_does_not_fit_says_by_how_much() -> None:
    # Summary 1: 10 + 60 + 100 = 170, 20 above 150. Messages 2 and 1: 10 + 100 + 400 + 32 = 542.
    assert explained("summary does not fit") == [
        (1, 2, "gap", "did not fit: 392 over"),
        (1, 2, "unused", "did not fit: 20 over"),
        (3, 3, "kept", "fits"),
        (4, 4, "mandatory", "target"),
    ]


def test_summary_too_heavy_says_for_what() -> None:
    assert (3, 4, "unused", "costs 50, what is left for it 40") in explained(
        "only what it newly stands for counts"
    )
    assert (1, 1, "unused", "costs 60, what is left for it 60") in explained(
        "summary as heavy as its messages is skipped"
    )


def test_summary_whose_rest_is_kept_says_so() -> None:
    assert explained("rest of a summary as heavy as it, list ended") == [
        (1, 1, "kept", "costs no more than s2"),
        (1, 3, "unused", "keeping what it stands for costs no more"),
        (2, 2, "summary", "stands in s1"),
        (2, 2, "shown", "cheaper than what it stands for"),
        (3, 5, "kept", "fits"),
        (6, 6, "mandatory", "target"),
    ]


def test_summary_of_kept_messages_says_so() -> None:
    assert (1, 1, "unused", "all it covers is kept") in explained(
        "summary of mandatory messages only"
    )
    assert (1, 1, "unused", "nothing is left out") in explained("whole path leaves no summary")


def test_tiers_explains_the_message_that_came_too_late() -> None:
    # Summary 1 owns 1: 10 + 50 and 100 for message 2 = 160, 18 above 142.
    assert explained("summary before the newest message", "budget_tiers.json") == [
        (1, 1, "summary", "stands in s1"),
        (1, 1, "shown", "cheaper than what it stands for"),
        (2, 2, "gap", "did not fit: 18 over"),
        (3, 3, "mandatory", "target"),
    ]


def test_distance_counts_on_summaries_still_to_come() -> None:
    # Message 2 at 59: with placeholders 20+32+32 = 84, with summary 2 still to come 20+40 = 60.
    case = next(c for c in load_cases("budget.json") if c["name"].startswith("a wish may count"))
    selection = select_case({**case, "max_tokens": 59}, explain=True)
    assert selection.refused[1] == 1
