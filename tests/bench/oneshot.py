"""What a whole process costs, from start to exit, against `python -c pass`.

    python tests/bench/oneshot.py [--dir FOLDER] [--runs 25] [--tail 64] [--big 1000000]

Both sides run as `python -S -E`, with the interpreter's own path (no shim), their output thrown
away, in turns. Databases of 1,000, 100,000 and 1,000,000 messages, whose logs have `--tail`
messages behind the last checkpoint, half of what an opening process may have to replay.
    append        tl.py append --role user --text (300 bytes)
    last 200      tl.py context --last 200
    node          tl.py node --node n5: its children are looked for in the whole database
    timeline.py   append through scripts/timeline.py, which Python compiles at each start
    key           tl.py append with an idempotency key
Medians in milliseconds; `cpu` is user and system time as the kernel counted it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import kit
from kit import timeline

BARE = [kit.INTERPRETER, "-S", "-E", "-c", "pass"]
TEXTS = kit.pool(seed=3)
NULL = os.open(os.devnull, os.O_RDWR)


def spawn(command: list[str]) -> tuple[float, float]:
    """(wall, cpu) milliseconds of a process from start to exit."""
    start = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, NULL, 0), (os.POSIX_SPAWN_DUP2, NULL, 1)],
    )
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"exit status {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
    return wall * 1000, (used.ru_utime + used.ru_stime) * 1000


def commands(path: str) -> dict[str, Callable[[], list[str]]]:
    """What to run on the database at `path`; each call gives the next command line."""
    number = 0

    def tl(script: str, *words: str) -> list[str]:
        script = os.path.join(kit.SCRIPTS, script)
        return [kit.INTERPRETER, "-S", "-E", script, *words, "--db", path]

    def append(script: str, *more: str) -> list[str]:
        nonlocal number
        number += 1
        text = kit.text_of(TEXTS, number)
        return tl(script, "append", "--role", "user", "--text", text, *more)

    return {
        "append": lambda: append("tl.py"),
        "last 200": lambda: tl("tl.py", "context", "--last", "200"),
        "node": lambda: tl("tl.py", "node", "--node", "n5"),
        "timeline.py": lambda: append("timeline.py"),
        "key": lambda: append("tl.py", "--idempotency-key", f"key-{number}"),
    }


def with_tail(path: str, tail: int) -> str:
    """A copy of the database with `tail` messages behind its checkpoint."""
    path = kit.copy(path, "oneshot")
    base = timeline.Database(path)
    for number in range(tail):
        base.run("append", {"role": "user", "text": kit.text_of(TEXTS, number)})
    base.close()
    return path


def main() -> None:
    options = kit.arguments(__doc__, runs=25, tail=timeline.CHECKPOINT_COMMITS // 2, big=1_000_000)
    kit.machine()
    verdicts: list[tuple[str, float, float]] = []
    for count in sorted({1_000, 100_000, options.big}):
        path = with_tail(kit.database(options.dir, count), options.tail)
        try:
            kit.flush_disk()
            measure(count, path, options.runs, verdicts)
        finally:
            kit.remove(path)
    print()
    for name, value, limit in verdicts:
        kit.bar(name, value, limit, " ms")


def measure(count: int, path: str, runs: int, verdicts: list[tuple[str, float, float]]) -> None:
    size = kit.size_name(count)
    cpu: dict[str, list[float]] = {}

    def turn(name: str, command: Callable[[], list[str]]) -> float:
        wall, used = spawn(command())
        cpu.setdefault(name, []).append(used)
        return wall

    actions = {"bare": lambda: turn("bare", lambda: BARE)}
    for name, command in commands(path).items():
        actions[name] = lambda name=name, command=command: turn(name, command)  # type: ignore[misc]
    # Two rounds to warm up, so that the .pyc files are there.
    times = kit.interleaved(actions, runs, warm=2)
    bare = kit.median(times["bare"])
    kit.table(
        f"whole processes at {size} messages, {runs} runs, ms",
        ("", "min", "median", "max", "x bare", "- bare", "min x bare", "cpu", "cpu x bare"),
        [
            (
                name,
                min(part),
                kit.median(part),
                max(part),
                kit.median(part) / bare,
                kit.median(part) - bare,
                min(part) / min(times["bare"]),
                kit.median(cpu[name][2:]),
                kit.median(cpu[name][2:]) / kit.median(cpu["bare"][2:]),
            )
            for name, part in times.items()
        ],
    )
    value = {name: kit.median(part) for name, part in times.items()}
    verdicts.append((f"{size}: append", value["append"], 2 * bare))
    verdicts.append((f"{size}: context --last 200", value["last 200"], 2 * bare))
    verdicts.append((f"{size}: node", value["node"], 2 * bare if count <= 100_000 else bare + 20))
    verdicts.append((f"{size}: timeline.py append", value["timeline.py"], 2 * bare + 25))


if __name__ == "__main__":
    main()
