"""The budget's rule taken literally, as slow as it likes: what the engine's answers are held to.

Nothing here is shared with the engine. Units are numbered 0..n-1, oldest first; ranges include
both ends; a summary is `(l, r, tokens, stale, width, number)` and covers the units l..r. Every
wish is decided by computing the least cost of a consistent layout anew. Rules: README, section
Budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from itertools import chain, combinations
from typing import Any

Summary = tuple[int, int, int, bool, int, int]
Minimum = Callable[["Greedy"], int]

PLACEHOLDER_TOKENS = 32
LIGHT_TOKENS = 256


class Greedy:
    """Where the greedy stands: what is kept, who owns what, whose turn has not come."""

    def __init__(self, weights: list[int], kept: Set[int], summaries: list[Summary]) -> None:
        self.weights = weights
        self.summaries = summaries
        self.kept: frozenset[int] = frozenset(kept)
        self.owned: dict[int, frozenset[int]] = {}  # granted summary -> its units, D in the README
        self.pending: frozenset[int] = frozenset(range(len(summaries)))
        self.refused: dict[tuple[str, int], int] = {}  # wish -> tokens above the limit

    def with_message(self, unit: int) -> Greedy:
        after = self.copy()
        after.kept |= {unit}
        return after

    def with_summary(self, summary: int, units: frozenset[int]) -> Greedy:
        after = self.copy()
        after.owned[summary] = units
        return after

    def copy(self) -> Greedy:
        twin = Greedy(self.weights, self.kept, self.summaries)
        twin.owned = dict(self.owned)
        twin.pending = self.pending
        twin.refused = self.refused
        return twin

    def weight(self, units: Set[int]) -> int:
        return sum(self.weights[u] for u in units)

    def covers(self, summary: int) -> frozenset[int]:
        left, right = self.summaries[summary][:2]
        return frozenset(range(left, right + 1))

    def taken(self) -> frozenset[int]:
        return self.kept.union(*self.owned.values())


def subsets(items: Set[int]) -> Iterator[frozenset[int]]:
    ordered = sorted(items)
    sizes = range(len(ordered) + 1)
    return (frozenset(c) for c in chain.from_iterable(combinations(ordered, k) for k in sizes))


def runs_of(units: Set[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive numbers, as (first, last)."""
    runs: list[tuple[int, int]] = []
    for u in sorted(units):
        if runs and runs[-1][1] == u - 1:
            runs[-1] = (runs[-1][0], u)
        else:
            runs.append((u, u))
    return runs


def layout_cost(state: Greedy, kept: Set[int], included: Set[int]) -> int:
    """Cost of the layout (V, C) by its definition."""
    covered = frozenset().union(*(state.covers(s) for s in included))
    bare = frozenset(range(len(state.weights))) - kept - covered
    shown = sum(state.summaries[s][2] for s in included)
    return state.weight(kept) + shown + PLACEHOLDER_TOKENS * len(runs_of(bare))


def is_consistent(state: Greedy, kept: Set[int], included: Set[int]) -> bool:
    forced = {s for s, units in state.owned.items() if units - kept}
    return state.kept <= kept and forced <= included and included - forced <= state.pending


def minimum_by_brute_force(state: Greedy) -> int:
    """m(K, D): the cheapest of all layouts (V, C) that are consistent. 2^(units + summaries)."""
    omittable = frozenset(range(len(state.weights))) - state.kept
    usable = state.pending | frozenset(state.owned)
    return min(
        layout_cost(state, state.kept | more, included)
        for more in subsets(omittable)
        for included in subsets(usable)
        if is_consistent(state, state.kept | more, included)
    )


def minimum_unit_by_unit(state: Greedy) -> int:
    """m(K, D), walking over the units with every state worth telling apart.

    What a granted summary owns is either shown by it or kept whole, and never touches a gap, so
    it is counted apart. For the rest a state is (is a gap open, up to where bought summaries
    cover), and its value the least cost of getting there.
    """
    apart = state.weight(state.kept) + sum(
        min(state.summaries[s][2], state.weight(units - state.kept))
        for s, units in state.owned.items()
    )
    taken = state.taken()
    costs: dict[tuple[bool, int], int] = {(False, -1): 0}
    for u, weight in enumerate(state.weights):
        for s in state.pending:  # buy any of those that start here
            left, right, tokens = state.summaries[s][:3]
            if left == u:
                for (in_gap, end), cost in list(costs.items()):
                    keep_least(costs, (in_gap, max(end, right)), cost + tokens)
        after: dict[tuple[bool, int], int] = {}
        for (in_gap, end), cost in costs.items():
            if u in taken or u <= end:  # counted apart, or left out under a bought summary
                keep_least(after, (False, end), cost)
            else:
                keep_least(after, (False, end), cost + weight)
                keep_least(after, (True, end), cost + (0 if in_gap else PLACEHOLDER_TOKENS))
        costs = after
    return apart + min(costs.values())


def keep_least(costs: dict[tuple[bool, int], int], key: tuple[bool, int], cost: int) -> None:
    costs[key] = min(cost, costs.get(key, cost))


def naive_select(
    weights: list[int],
    mandatory: Set[int],
    summaries: list[Summary],
    max_tokens: int,
    order: str,
    minimum: Minimum = minimum_unit_by_unit,
) -> dict[str, Any]:
    """The answer as `{"ok": True, "required", "total", "items"}`, or `{"ok": False, "required"}`.

    `mandatory` names every unit that must stay, the target's included. Items, in path order, are
    `("keep", l, r)`, `("gap", l, r)` and `("summary", index, [(l, r), ...])`.
    """
    state = Greedy(weights, mandatory, summaries)
    required = minimum(state)
    if required > max_tokens:
        return {"ok": False, "required": required}
    state = greedy_turns(state, max_tokens, order, minimum)
    return {"ok": True, "required": required, **final_layout(state)}


def greedy_turns(state: Greedy, max_tokens: int, order: str, minimum: Minimum) -> Greedy:
    """`state` after every message and summary had its turn."""

    def rank(s: int) -> tuple[bool, int, int]:
        _, _, _, stale, width, number = state.summaries[s]
        return (stale, -width, -number)

    messages = [u for u in reversed(range(len(state.weights))) if u not in state.kept]
    summaries = sorted(range(len(state.summaries)), key=rank)
    while messages or summaries:
        if messages and (order == "turns" or not summaries):
            u = messages.pop(0)
            wish = state.with_message(u)
            over = minimum(wish) - max_tokens
            if over <= 0:
                state = wish
            else:
                state.refused["message", u] = over
                if state.weights[u] < LIGHT_TOKENS:
                    messages = []
        if summaries:
            s = summaries.pop(0)
            state.pending -= {s}
            units = state.covers(s) - state.taken()
            if state.summaries[s][2] < state.weight(units):
                wish = state.with_summary(s, units)
                over = minimum(wish) - max_tokens
                if over <= 0:
                    state = wish
                else:
                    state.refused["summary", s] = over
    return state


def naive_refusals(
    weights: list[int], mandatory: Set[int], summaries: list[Summary], max_tokens: int, order: str
) -> dict[tuple[str, int], int]:
    """By how many tokens each refused wish missed: ("message", unit) or ("summary", index)."""
    state = Greedy(weights, mandatory, summaries)
    return greedy_turns(state, max_tokens, order, minimum_unit_by_unit).refused


def final_layout(state: Greedy) -> dict[str, Any]:
    """Total and items of the cheapest layout that the last state allows."""
    kept = set(state.kept)
    total = 0
    entries: list[tuple[int, tuple[Any, ...]]] = []
    for s, units in state.owned.items():
        rest = units - state.kept
        if state.weight(rest) <= state.summaries[s][2]:
            kept |= rest
        else:
            total += state.summaries[s][2]
            entries.append((min(rest), ("summary", s, runs_of(rest))))
    free = frozenset(range(len(state.weights))) - state.taken()
    for left, right in runs_of(free):
        run = frozenset(range(left, right + 1))
        if state.weight(run) <= PLACEHOLDER_TOKENS:
            kept |= run
        else:
            total += PLACEHOLDER_TOKENS
            entries.append((left, ("gap", left, right)))
    entries += [(left, ("keep", left, right)) for left, right in runs_of(kept)]
    return {"total": total + state.weight(kept), "items": [item for _, item in sorted(entries)]}
