"""What a budget of a long path costs, texts read from the file, nothing printed.

    python tests/bench/budget.py [--dir FOLDER] [--rounds 5] [--messages 100000]
                                 [--summaries 1000]

A path of 100,000 messages with 1,000 summaries: `chapters`, which cover the path side by side,
and `mixed`, of random width anywhere, some superseded. `max` is what is required at least, and
2 %, 30 % and 100 % of the way from there to everything. In milliseconds, in turns:
    first   the first call, which writes the placeholders
    fresh   a new Database: opening, path, choice, texts
    again   in an open one
    choice  the part of `again` that needs no texts (the selection's inputs and the selection)
The bars look at `fresh`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kit
from kit import timeline

SHARES = (0, 2, 30, 100)
NAMES = ("", "max", "shown", "gaps", "first")


def required_tokens(base: timeline.Database) -> int:
    try:
        base.run("budget", {"max_tokens": 0, "dry_run": True})
    except timeline.BudgetInfeasible as error:
        return int(str(error.data["required_tokens"]))
    return 0


def choice(base: timeline.Database, maximum: int) -> None:
    """What `Database.run("budget")` does before it reads texts."""
    store = base.refresh()
    given: dict[str, Any] = {"max_tokens": maximum, "order": "turns", "explain": False}
    timeline.Answer(base, store, 0, store.state.timelines[0].branches["main"].head, given)


def measure(path: str, shape: str, rounds: int) -> list[tuple[str, float, float]]:
    base = timeline.Database(path)
    whole = base.run("branches")[0]["tokens"]
    least = required_tokens(base)
    rows: list[tuple[object, ...]] = []
    verdicts = []
    for share in SHARES:
        maximum = least + (whole - least) * share // 100

        def fresh(maximum: int = maximum) -> float:
            other = timeline.Database(path)
            took = kit.timed(lambda: other.run("budget", {"max_tokens": maximum}))
            other.close()
            return took

        def again(maximum: int = maximum) -> float:
            return kit.timed(lambda: base.run("budget", {"max_tokens": maximum}))

        first = again()
        actions: dict[str, Callable[[], float]] = {
            "fresh": fresh,
            "again": again,
            "choice": lambda maximum=maximum: kit.timed(lambda: choice(base, maximum)),  # type: ignore[misc]
        }
        times = kit.interleaved(actions, rounds)
        answer = base.run("budget", {"max_tokens": maximum})
        assert answer["total_tokens"] <= maximum
        name = f"{shape}, {share} %"
        rows.append(
            (
                name,
                maximum,
                len(answer["messages"]),
                len(answer["summaries_created"]),
                first,
                *(each for part in times.values() for each in (min(part), kit.median(part))),
            )
        )
        verdicts.append((name, kit.median(times["fresh"]), 600.0 if share == 100 else 400.0))
    base.close()
    kit.table(
        f"budget, {shape}, ms",
        (*NAMES, "fresh min", "median", "again min", "median", "choice min", "median"),
        rows,
    )
    return verdicts


def main() -> None:
    options = kit.arguments(__doc__, rounds=5, messages=100_000, summaries=1_000)
    kit.machine()
    verdicts = []
    for shape in ("chapters", "mixed"):
        source = kit.summarized_database(options.dir, options.messages, options.summaries, shape)
        path = kit.copy(source, "budget")
        try:
            verdicts += measure(path, shape, options.rounds)
        finally:
            kit.remove(path)
    print()
    for name, value, limit in verdicts:
        kit.bar(name, value, limit, " ms")


if __name__ == "__main__":
    main()
