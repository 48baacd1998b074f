"""What holds for every answer of the budget, on random conversations and against a naive solver.

A conversation is a path of units with pins and summaries. Tokens are drawn around the numbers
the rule knows: 0, the placeholder's 32, and 255/256. Numbered as in the README, section Budget.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import timeline
from kit.budget_cases import items_of
from kit.naive_budget import (
    PLACEHOLDER_TOKENS,
    Greedy,
    Minimum,
    Summary,
    minimum_by_brute_force,
    minimum_unit_by_unit,
    naive_refusals,
    naive_select,
)
from kit.seeds import shard, shards

TOKENS = [0, 0, 1, 2, 10, 15, 16, 17, 31, 32, 33, 40, 64, 65, 100, 254, 255, 256, 257, 300, 900]
CHEAP = [0, 1, 5, 10, 20, 31, 32, 33]
# Light messages among heavy ones under wide summaries, some never worth it: wishes that fit only
# with summaries whose turn is yet to come.
SPARSE = [1, 5, 20, 20, 300, 300, 900]
WIDE = [33, 40, 60, 90, 9999, 9999]

Answer = tuple[int, list[tuple[Any, ...]]]  # total, items in units


class Conversation:
    """Random units, pins and summaries, asked in one of the two orders."""

    def __init__(self, seed: int, units_max: int, summaries_max: int) -> None:
        random = Random(seed)
        units = random.randint(0, units_max)
        pins = random.choice([0, 0.1, 0.4])
        self.random = random
        self.order = random.choice(["turns", "tiers"])
        self.is_sparse = random.random() < 0.3
        weights = SPARSE if self.is_sparse else TOKENS
        self.weights = [random.choice(weights) for _ in range(units)]
        self.mandatory = {u for u in range(units) if random.random() < pins}
        self.mandatory |= {units - 1} if units else set()
        tokens = WIDE if self.is_sparse else random.choice([TOKENS, TOKENS, CHEAP])
        count = random.randint(0, summaries_max) if units else 0
        self.summaries = [self.summary(k, tokens) for k in range(count)]

    def summary(self, number: int, tokens: list[int]) -> Summary:
        random, last = self.random, len(self.weights) - 1
        left = random.randint(0, last // 3 if self.is_sparse else last)
        reaches = [random.randint(last // 2, last)] if self.is_sparse else [0, 1, last // 2, last]
        right = min(last, left + random.choice(reaches))
        width = right - left + 1 + random.choice([0, 0, 1, 3])
        return (left, right, random.choice(tokens), random.random() < 0.3, width, number)

    def some_limit(self) -> int:
        """A limit that succeeds, often a tight one."""
        required, everything = self.required(), sum(self.weights)
        wide = self.random.randint(0, max(0, everything - required))
        return required + self.random.choice([0, self.random.randint(0, 100), wide])

    def required(self) -> int:
        return required_of(self.weights, self.mandatory, self.summaries)

    def select(self, max_tokens: int, *, explain: bool = False) -> timeline.Selection:
        candidates = [timeline.Candidate(*s) for s in self.summaries]
        return timeline.select(
            self.weights, self.mandatory, candidates, max_tokens, self.order, explain=explain
        )

    def answer(self, max_tokens: int) -> Answer:
        selection = self.select(max_tokens)
        return selection.total, items_of(selection)

    def weigh(self, first: int, last: int) -> int:
        return sum(self.weights[first : last + 1])


def required_of(weights: list[int], mandatory: set[int], summaries: list[Summary]) -> int:
    candidates = [timeline.Candidate(*s) for s in summaries]
    with pytest.raises(timeline.BudgetInfeasible) as caught:
        timeline.select(weights, mandatory, candidates, -1)
    required: int = caught.value.data["required_tokens"]
    return required


def ranges_of(item: tuple[Any, ...]) -> list[tuple[int, int]]:
    return list(item[2]) if item[0] == "summary" else [item[1:]]


# -- the invariants, 1 to 10 -----------------------------------------------------------------------


def check_every_unit_is_listed_once_in_order(talk: Conversation, limit: int) -> None:
    _, items = talk.answer(limit)
    listed = sorted(r for item in items for r in ranges_of(item))
    flat = [u for first, last in listed for u in range(first, last + 1)]
    assert flat == list(range(len(talk.weights)))
    starts = [ranges_of(item)[0][0] for item in items]
    assert starts == sorted(starts)
    kept = {u for item in items if item[0] == "keep" for u in range(item[1], item[2] + 1)}
    assert talk.mandatory <= kept


def check_total_is_what_is_shown(talk: Conversation, limit: int) -> None:
    total, items = talk.answer(limit)
    cost = 0
    for item in items:
        if item[0] == "keep":
            cost += talk.weigh(item[1], item[2])
        else:
            cost += PLACEHOLDER_TOKENS if item[0] == "gap" else talk.summaries[item[1]][2]
    assert total == cost
    assert talk.required() <= total <= limit


def check_error_exactly_below_required(talk: Conversation, limit: int) -> None:
    required = talk.required()
    assert talk.answer(required)[0] == required
    with pytest.raises(timeline.BudgetInfeasible) as caught:
        talk.select(required - 1)
    assert caught.value.data == {"required_tokens": required, "max_tokens": required - 1}
    assert talk.select(limit).required == required


def check_summaries_and_gaps_are_earned(talk: Conversation, limit: int) -> None:
    _, items = talk.answer(limit)
    shown = [item for item in items if item[0] == "summary"]
    gaps = [item[1:] for item in items if item[0] == "gap"]
    for _, s, ranges in shown:
        left, right, tokens = talk.summaries[s][:3]
        assert left <= ranges[0][0] and ranges[-1][1] <= right
        assert sum(talk.weigh(*r) for r in ranges) > tokens
        assert all(last < left or right < first for first, last in gaps)
    for first, last in gaps:
        assert talk.weigh(first, last) > PLACEHOLDER_TOKENS
        assert all(other[0] != last + 1 for other in gaps)


def check_everything_is_shown_when_it_fits(talk: Conversation, limit: int) -> None:
    everything = sum(talk.weights)
    whole = [("keep", 0, len(talk.weights) - 1)] if talk.weights else []
    for enough in (everything, everything + limit, everything + 1):
        assert talk.answer(enough) == (everything, whole)


def check_answer_holds_down_to_its_price(talk: Conversation, limit: int) -> None:
    answer = talk.answer(limit)
    total = answer[0]
    assert talk.answer(total) == answer
    assert talk.answer(talk.random.randint(total, limit)) == answer
    if total > talk.required():
        assert talk.answer(total - 1) != answer


def check_more_room_is_used(talk: Conversation, limit: int) -> None:
    low, high = sorted((limit, talk.some_limit()))
    lower, higher = talk.answer(low), talk.answer(high)
    assert lower == higher or higher[0] > low >= lower[0]


def check_required_falls_with_summaries_and_rises_with_pins(talk: Conversation) -> None:
    if not talk.weights:
        return
    required = talk.required()
    more = [*talk.summaries, talk.summary(len(talk.summaries), TOKENS)]
    assert required_of(talk.weights, talk.mandatory, more) <= required
    target = len(talk.weights) - 1
    for pin in talk.mandatory - {target}:
        assert required_of(talk.weights, talk.mandatory - {pin}, talk.summaries) <= required


def check_little_is_unused(talk: Conversation, limit: int) -> None:
    total, items = talk.answer(limit)
    left_out = [
        talk.weights[u]
        for item in items
        if item[0] != "keep"
        for first, last in ranges_of(item)
        for u in range(first, last + 1)
    ]
    if left_out:
        assert limit - total <= 31 + max(255, min(left_out))


def check_naive_solver_agrees(talk: Conversation, limit: int, minimum: Minimum) -> None:
    for some in (limit, talk.required(), talk.required() - 1):
        said = naive_select(talk.weights, talk.mandatory, talk.summaries, some, talk.order, minimum)
        if said["ok"]:
            selection = talk.select(some)
            assert said["required"] == selection.required
            assert (said["total"], said["items"]) == (selection.total, items_of(selection))
        else:
            assert said == {"ok": False, "required": talk.required()}


# -- beyond the ten --------------------------------------------------------------------------------


def check_asking_again_says_the_same(talk: Conversation, limit: int) -> None:
    assert talk.answer(limit) == talk.answer(limit)
    explained = talk.select(limit, explain=True)
    assert talk.answer(limit) == (explained.total, items_of(explained))


def check_reasons_are_exact(talk: Conversation, limit: int) -> None:
    """How far each refused wish is above the limit, and one row for every unit and summary."""
    selection = talk.select(limit, explain=True)
    candidates = [timeline.Candidate(*s) for s in talk.summaries]
    rows = timeline.explain_rows(selection, candidates, str, str)
    units = [u for r in rows if r.candidate < 0 for u in range(r.first, r.last + 1)]
    assert units == list(range(len(talk.weights)))
    assert sorted(r.candidate for r in rows if r.candidate >= 0) == list(range(len(candidates)))
    if sum(talk.weights) <= limit:
        return  # everything fits, nothing was asked
    refusals = naive_refusals(talk.weights, talk.mandatory, talk.summaries, limit, talk.order)
    said = {("message", u): over for u, over in selection.refused.items()}
    for row in rows:
        if row.candidate >= 0 and row.why.startswith("did not fit: "):
            said["summary", row.candidate] = int(row.why.split()[3])
    assert said == refusals


def check_all(talk: Conversation) -> None:
    limit = talk.some_limit()
    check_every_unit_is_listed_once_in_order(talk, limit)
    check_total_is_what_is_shown(talk, limit)
    check_error_exactly_below_required(talk, limit)
    check_summaries_and_gaps_are_earned(talk, limit)
    check_everything_is_shown_when_it_fits(talk, limit)
    check_answer_holds_down_to_its_price(talk, limit)
    check_more_room_is_used(talk, limit)
    check_required_falls_with_summaries_and_rises_with_pins(talk)
    check_little_is_unused(talk, limit)
    check_naive_solver_agrees(talk, limit, minimum_unit_by_unit)
    check_asking_again_says_the_same(talk, limit)
    check_reasons_are_exact(talk, limit)


def seeds(first: int, count: int) -> Any:
    every = range(first, first + count)
    return pytest.mark.parametrize("seed", every, ids=[f"seed{s}" for s in every])


@seeds(0, 200)
def test_random_conversation_keeps_all_invariants(seed: int) -> None:
    check_all(Conversation(seed, units_max=12 if seed % 2 else 30, summaries_max=seed % 9))


@seeds(0, 60)
def test_small_conversation_equals_brute_force(seed: int) -> None:
    talk = Conversation(seed, units_max=5, summaries_max=3)
    check_naive_solver_agrees(talk, talk.some_limit(), minimum_by_brute_force)


@seeds(0, 200)
def test_naive_minimum_equals_brute_force(seed: int) -> None:
    """The slow minimum that judges the engine is itself held to the definition."""
    talk = Conversation(seed, units_max=7, summaries_max=3)
    state = Greedy(talk.weights, talk.mandatory, talk.summaries)
    assert minimum_unit_by_unit(state) == minimum_by_brute_force(state)


@pytest.mark.slow
@shards(200, 3200)
def test_random_conversation_keeps_all_invariants_slow(first: int) -> None:
    for seed in shard(first):
        check_all(Conversation(seed, units_max=12 if seed % 2 else 60, summaries_max=seed % 15))


@pytest.mark.slow
@shards(60, 360)
def test_small_conversation_equals_brute_force_slow(first: int) -> None:
    for seed in shard(first):
        talk = Conversation(seed, units_max=8, summaries_max=4)
        check_naive_solver_agrees(talk, talk.some_limit(), minimum_by_brute_force)
