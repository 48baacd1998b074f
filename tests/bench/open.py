"""What opening, catching up and reading cost, inside one process.

    python tests/bench/open.py [--dir FOLDER] [--rounds 15] [--big 1000000]

At 1,000, 100,000 and 1,000,000 messages, in milliseconds, operations in turns:
    open            a new Database, its index at the log's end, caught up
    open, tail 127  the same with 127 messages behind the checkpoint
    rebuild         the same without an index (fewer rounds)
    context, node,  in an open database; `cold` opens it first
    search ...      for an absent, a rare (1 in 20,000) and a frequent word; `last` looks behind
                    everything, `ic` ignores case
    doctor          the whole check (fewer rounds)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import kit
from kit import timeline


def opened(path: str) -> timeline.Database:
    base = timeline.Database(path)
    base.refresh()
    return base


def measure(path: str, tailed: str, rounds: int) -> dict[str, list[float]]:
    base = opened(path)

    def fresh(action: Callable[[timeline.Database], object], where: str = path) -> float:
        other = timeline.Database(where)
        took = kit.timed(lambda: action(other))
        other.close()
        return took

    def run(name: str, **arguments: object) -> Callable[[], float]:
        return lambda: kit.timed(lambda: base.run(name, arguments))

    actions: dict[str, Callable[[], float]] = {
        "open": lambda: fresh(lambda other: other.refresh()),
        "open, tail 127": lambda: fresh(lambda other: other.refresh(), tailed),
        "last 200, cold": lambda: fresh(lambda other: other.run("context", {"last": 200})),
        "last 200": run("context", last=200),
        "node n5, cold": lambda: fresh(lambda other: other.run("node", {"node": "n5"})),
        "node n5": run("node", node="n5"),
        "node at head": run("node", node=f"n{len(base.store.rows)}"),
        "branches": run("branches"),
        "search absent": run("search", text=kit.ABSENT),
        "search absent, ic": run("search", text=kit.ABSENT, ignore_case=True),
        "search rare": run("search", text=kit.RARE),
        "search frequent": run("search", text=kit.FREQUENT),
    }
    found = kit.interleaved(actions, rounds)
    base.close()
    return found


def rebuild(path: str) -> float:
    shutil.rmtree(path + ".index", ignore_errors=True)
    base = timeline.Database(path)
    took = kit.timed(base.refresh)
    base.close()
    return took


def doctor(path: str) -> float:
    base = timeline.Database(path)
    took = kit.timed(lambda: base.run("doctor"))
    base.close()
    return took


def main() -> None:
    options = kit.arguments(__doc__, rounds=15, big=1_000_000)
    kit.machine()
    found: dict[int, dict[str, list[float]]] = {}
    for count in (1_000, 100_000, options.big):
        path = kit.database(options.dir, count)
        work = kit.copy(path, "open")
        tailed = kit.copy(path, "tail")
        try:
            base = timeline.Database(tailed)
            for number in range(127):
                base.run("append", {"role": "user", "text": f"{number} " + "text " * 60})
            base.close()
            times = measure(path, tailed, options.rounds)
            few = 2 if count >= 1_000_000 else 5
            slow: dict[str, Callable[[], float]] = {"rebuild": lambda: rebuild(work)}  # noqa: B023
            if "doctor" in timeline.Database._METHODS:
                slow["doctor"] = lambda: doctor(path)  # noqa: B023
            times.update(kit.interleaved(slow, few, warm=0))
            found[count] = times
        finally:
            kit.remove(work)
            kit.remove(tailed)
        report(count, os.path.getsize(path), times)
    print()
    for count, times in found.items():
        size = kit.size_name(count)
        kit.bar(f"{size}: open", kit.median(times["open"]), 0.3, " ms")
        limit = 1_000 * count / 100_000
        if count >= 100_000:
            kit.bar(f"{size}: rebuild", kit.median(times["rebuild"]), limit, " ms")


def report(count: int, log_bytes: int, times: dict[str, list[float]]) -> None:
    kit.table(
        f"{kit.size_name(count)} messages, log of {log_bytes / 1e6:.1f} MB, ms",
        ("", "min", "median", "max", "runs"),
        [(name, min(part), kit.median(part), max(part), len(part)) for name, part in times.items()],
    )


if __name__ == "__main__":
    main()
