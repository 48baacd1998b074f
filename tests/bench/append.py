"""What a durable append costs in a process that stays.

    python tests/bench/append.py [--dir FOLDER] [--rounds 3] [--messages 1000] [--big 1000000]

Side by side, on one disk and in turns of 10 messages, at 1,000 and at 1,000,000 messages:
    raw      os.write + os.fsync of exactly the bytes of the engine's lines
    engine   Database.run("append")
    key      the same with an idempotency key, a new one for each message
    sqlite3  WAL, synchronous=FULL, one INSERT and commit of the same fields
A message has about 300 bytes of text. Times are those of single messages, in microseconds;
`mean` includes the checkpoint after every 128 messages. The bars look at medians. On a disk
whose fsync varies more than they allow, `own` tells more: the median of what an append takes
outside of write and fsync of the log. With --dir on a disk in memory (/dev/shm) fsync is free,
so engine - raw is all that the engine adds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable

import kit
from kit import timeline

TURN = 10
TEXTS = kit.pool(seed=2)
Append = Callable[[int, str], None]


class Raw:
    """Bytes of lines as the engine would write them, made before the clock starts."""

    def __init__(self, path: str, first: int) -> None:
        self.path = path
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.crc = 0
        self.first = first

    def line(self, number: int, text: str) -> bytes:
        node = self.first + number
        record = {
            "seq": node,
            "ts": kit.CREATED + node,
            **kit.message(node, node - 1, "user", text),
        }
        line, self.crc = timeline.encode_line(record, self.crc)
        return line

    def turn(self, numbers: range, times: list[float]) -> None:
        lines = [self.line(number, kit.text_of(TEXTS, number)) for number in numbers]
        for line in lines:
            start = time.perf_counter()
            os.write(self.file, line)
            os.fsync(self.file)
            times.append(time.perf_counter() - start)

    def close(self) -> None:
        os.close(self.file)


class WatchedDisk(timeline.Disk):
    """Adds up the seconds spent in write and fsync of the log."""

    spent = 0.0

    def append(self, file: int, data: bytes) -> None:
        start = time.perf_counter()
        super().append(file, data)
        self.spent += time.perf_counter() - start

    def fsync(self, file: int) -> None:
        start = time.perf_counter()
        super().fsync(file)
        self.spent += time.perf_counter() - start


class Engine:
    def __init__(self, path: str, keyed: bool) -> None:
        self.path = path
        self.keyed = keyed
        self.disk = WatchedDisk()
        self.own: list[float] = []
        self.base = timeline.Database(path, disk=self.disk)
        self.base.run("branches")

    def turn(self, numbers: range, times: list[float]) -> None:
        run = self.base.run
        for number in numbers:
            given = {"role": "user", "text": kit.text_of(TEXTS, number)}
            if self.keyed:
                given["idempotency_key"] = f"session-{number}-{self.path[-12:]}"
            self.disk.spent = 0.0
            start = time.perf_counter()
            run("append", given)
            took = time.perf_counter() - start
            times.append(took)
            self.own.append(took - self.disk.spent)

    def close(self) -> None:
        self.base.close()


class Sqlite:
    def __init__(self, path: str, count: int) -> None:
        self.path = path
        self.base = sqlite3.connect(path, isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.execute(
            "CREATE TABLE message(id INTEGER PRIMARY KEY, ts INTEGER, op TEXT, tl INTEGER, "
            "parent INTEGER, branch TEXT, role TEXT, tokens INTEGER, via TEXT, text TEXT)"
        )
        texts = kit.pool()
        self.base.execute("BEGIN")
        self.base.executemany(
            self.INSERT, (self.row(node, kit.text_of(texts, node)) for node in range(1, count + 1))
        )
        self.base.execute("COMMIT")
        self.base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.first = count

    INSERT = "INSERT INTO message VALUES(?,?,?,?,?,?,?,?,?,?)"

    def row(self, node: int, text: str) -> tuple[object, ...]:
        tokens = timeline.estimate(text, "scalar4")
        return (
            node,
            kit.CREATED + node,
            "append",
            0,
            node - 1,
            "main",
            "user",
            tokens,
            "cli",
            text,
        )

    def turn(self, numbers: range, times: list[float]) -> None:
        for number in numbers:
            row = self.row(self.first + number, kit.text_of(TEXTS, number))
            start = time.perf_counter()
            self.base.execute(self.INSERT, row)  # no transaction is open, so it commits
            times.append(time.perf_counter() - start)

    def close(self) -> None:
        self.base.close()


Contenders = dict[str, "Raw | Engine | Sqlite"]


def contenders(folder: str, count: int) -> Contenders:
    path = kit.database(folder, count)
    size = kit.size_name(count)
    sqlite_path = os.path.join(folder, f"work-{os.getpid()}-sqlite-{size}.jsonl")
    kit.remove(sqlite_path)
    return {
        "raw": Raw(kit.copy(path, f"raw-{size}", index=False), count + 1),
        "engine": Engine(kit.copy(path, f"engine-{size}"), keyed=False),
        "key": Engine(kit.copy(path, f"key-{size}"), keyed=True),
        "sqlite3": Sqlite(sqlite_path, count),
    }


def main() -> None:
    options = kit.arguments(__doc__, rounds=3, messages=1_000, big=1_000_000)
    kit.machine()
    sizes = (1_000, options.big)
    results: dict[tuple[int, str], Result] = {}
    number = 1
    big: Contenders = {}
    small: Contenders = {}
    try:
        big = contenders(options.dir, options.big)
        for _ in range(options.rounds):
            # The small databases start anew each round, or they would not stay small.
            small = contenders(options.dir, 1_000)
            kit.flush_disk()
            found: dict[tuple[int, str], list[float]] = {}
            for start in range(0, options.messages, TURN):
                for count, group in ((1_000, small), (options.big, big)):
                    for name, contender in group.items():
                        part = found.setdefault((count, name), [])
                        contender.turn(range(number + start, number + start + TURN), part)
            number += options.messages
            for place, part in found.items():
                result = results.setdefault(place, Result())
                result.times += part
                result.medians.append(kit.median(part) * 1e6)
            for count, group in ((1_000, small), (options.big, big)):
                for name, contender in group.items():
                    if isinstance(contender, Engine):
                        results[count, name].own += contender.own
                        contender.own = []
            close(small)
    finally:
        close(small)
        close(big)
    report(sizes, results)


class Result:
    """Seconds of each message, microseconds of each round's median."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.own: list[float] = []
        self.medians: list[float] = []

    def part(self, share: float) -> float:
        """Microseconds that `share` of the messages stayed below."""
        return sorted(self.times)[int(len(self.times) * share)] * 1e6


def close(group: Contenders) -> None:
    while group:
        _, contender = group.popitem()
        contender.close()
        kit.remove(contender.path)


def report(sizes: tuple[int, ...], results: dict[tuple[int, str], Result]) -> None:
    rows = []
    for count in sizes:
        raw = results[count, "raw"].part(0.5)
        for name in ("raw", "engine", "key", "sqlite3"):
            result = results[count, name]
            rows.append(
                (
                    f"{kit.size_name(count)} {name}",
                    result.part(0.05),
                    result.part(0.25),
                    result.part(0.5),
                    sum(result.times) / len(result.times) * 1e6,
                    result.part(0.99),
                    result.part(0.5) / raw,
                    result.part(0.5) - raw,
                    kit.median(result.own) * 1e6 if result.own else "",
                    " ".join(f"{each:.0f}" for each in result.medians),
                )
            )
    kit.table(
        "durable append, microseconds a message",
        ("", "5 %", "25 %", "median", "mean", "99 %", "x raw", "- raw", "own", "rounds"),
        rows,
    )
    print()
    value = {place: result.part(0.5) for place, result in results.items()}
    for count in sizes:
        size, raw, engine = kit.size_name(count), value[count, "raw"], value[count, "engine"]
        limit = 1.6 * raw if raw >= 100 else raw + 60
        kit.bar(f"{size}: engine against raw", engine, limit, " us")
        kit.bar(f"{size}: engine against sqlite3", engine, value[count, "sqlite3"], " us")
        kit.bar(f"{size}: what a key adds", value[count, "key"] - engine, 40, " us")
    low, high = sorted(value[count, "engine"] for count in sizes)
    kit.bar(
        f"{' and '.join(map(kit.size_name, sizes))} differ by", (high / low - 1) * 100, 10, " %"
    )


if __name__ == "__main__":
    main()
