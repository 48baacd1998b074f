"""Small databases that hold every kind of line, with what they say after each transaction."""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.disks import QuickDisk

START = 1_767_225_600
LOG_ID = "5eed" * 8
Args = dict[str, Any]
Step = tuple[str, Args]


class Clock:
    """One second later at every look."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1
        return self.now


def open_database(path: str | Path, disk: timeline.Disk | None = None) -> timeline.Database:
    """A database whose clock runs on from 2026, and which waits for neither lock nor disk."""
    clock = Clock(START + 10_000)
    return timeline.Database(str(path), clock=clock, disk=disk or QuickDisk(), wait_s=0.5)


def header(log_id: str = LOG_ID, **more: Any) -> bytes:
    """The first line of a log, always the same, so that a seed always damages the same bytes."""
    record = {
        "timeline": "log",
        "format_version": 1,
        "log_id": log_id,
        "generation": 1,
        "prev_log_id": None,
        "created": START,
        **more,
    }
    return timeline.encode_line(record, 0)[0]


def append(text: str, role: str = "user", **more: Any) -> Step:
    return "append", {"role": role, "text": text, **more}


# Every kind of line, texts that look like the log's own syntax, two transactions of several lines.
EVERYTHING: tuple[Step, ...] = (
    ("create", {"title": "Übung", "idempotency_key": "made"}),
    append("Hello", idempotency_key="first"),
    append('quotes " and \\ and a newline\n, "text":"x","crc":"00000000"}\n', "assistant"),
    append("你好，世界 👩‍👧", intent={"tag": "why", "note": "because"}),
    ("fork", {"node": "n2", "name": "try"}),
    ("switch", {"name": "try"}),
    append("on the other branch", "assistant", tokens=300),
    append("result", "tool"),
    ("switch", {"name": "main"}),
    ("pin", {"node": "n1"}),
    append("long " * 40, tokens=400, idempotency_key="long"),
    append("end", tokens=10),
    ("budget", {"max_tokens": 100, "idempotency_key": "fits"}),
    ("exclude", {"node": "n5"}),
    ("include", {"node": "n5"}),
    ("exclude", {"node": "n3"}),
    ("summarize", {"from": "n1", "to": "n2", "summary": "They met."}),
    ("unpin", {"node": "n1"}),
    (
        "summarize",
        {
            "from": "n1",
            "to": "n2",
            "summary": "They met, and said hello.",
            "supersede": "n9",
            "intent": {"tag": "better"},
            "idempotency_key": "sum",
        },
    ),
    ("summarize", {"from": "n4", "to": "n5", "summary": "It did not work."}),
    ("archive_branch", {"branch": "try"}),
    ("thaw", {"name": "try", "as_name": "again"}),
    ("fork", {"node": "n4", "name": "passing"}),
    ("rename", {"branch": "passing", "to": "passed"}),
    ("drop_branch", {"name": "passed"}),
    ("create", {"title": None, "estimator": "wide"}),
    append("in the second timeline 预算", timeline_id="tl1"),
    ("pin", {"node": "n7", "idempotency_key": "again"}),
    ("pin", {"node": "n7", "idempotency_key": "nothing new"}),
    append("last", "assistant"),
)


def messages(count: int) -> tuple[Step, ...]:
    """A timeline and `count` messages on one path."""
    texts = (append(f"message {i}: " + "abc " * (i % 5), "user") for i in range(1, count + 1))
    return (("create", {}), *texts)


# Stories are the same at every telling, so each is told once.
_TOLD: dict[str, Story] = {}


class Story:
    """A log told step by step: its bytes, where each transaction ends, what a reader sees there."""

    def __init__(self, folder: Path, steps: tuple[Step, ...], name: str = "t.db") -> None:
        self.steps = steps
        self.path = folder / name
        told = json.dumps(steps)
        if told in _TOLD:
            earlier = _TOLD[told]
            self.ends, self.states = earlier.ends, earlier.states
            self.readings, self.results, self.log = earlier.readings, earlier.results, earlier.log
            self.path.write_bytes(self.log)
            return
        self.path.write_bytes(header())
        self.ends: list[int] = []  # ends[seq]
        self.states: list[str] = []  # states[seq], the engine's own state
        self.readings: list[dict[str, Any]] = []  # readings[seq]
        self.results: list[Any] = []
        database = timeline.Database(str(self.path), clock=Clock(), disk=QuickDisk())
        reader = open_database(self.path)
        self._note(reader)
        for step, args in steps:
            self.results.append(database.run(step, args))
            self._note(reader)
        database.close()
        reader.close()
        assert self.seq == len(steps), "every step shall be one transaction"
        self.log = self.path.read_bytes()
        _TOLD[told] = self

    def _note(self, reader: timeline.Database) -> None:
        self.ends.append(os.path.getsize(self.path))
        self.readings.append(reading(reader))
        self.states.append(state_of(reader))

    @property
    def seq(self) -> int:
        """The number of the last transaction."""
        return len(self.ends) - 1

    def seq_at(self, cut: int) -> int:
        """The last transaction that is whole in the first `cut` bytes; -1 in the header."""
        return bisect_right(self.ends, cut) - 1

    def lines(self) -> list[tuple[int, int]]:
        """[start, end) of each line, the header first, newlines included."""
        return lines_of(self.log)

    def nodes(self, seq: int) -> int:
        return len(self.readings[seq]["nodes"])


def lines_of(log: bytes) -> list[tuple[int, int]]:
    """[start, end) of each line with its newline, and of what follows the last one."""
    found = []
    start = 0
    while start < len(log):
        end = log.find(b"\n", start) + 1 or len(log)
        found.append((start, end))
        start = end
    return found


def reading(database: timeline.Database) -> dict[str, Any]:
    """Everything the reading commands say."""
    timelines = database.run("list")
    names = sorted(row["timeline_id"] for row in timelines)
    count = len(database.store.rows)
    found: dict[str, Any] = {
        "list": timelines,
        "nodes": [
            database.run("node", {"node": f"n{node}", "blocks": True})
            for node in range(1, count + 1)
        ],
        "search": database.run("search", {"text": "e", "limit": 1000}),
        "audit": database.run("audit", {"limit": 100_000}),
        "timelines": [],
    }
    for name in names:
        here = {"timeline_id": name}
        branches = database.run("branches", {**here, "all": True})
        live = [row["name"] for row in branches if row["status"] == "live"]
        found["timelines"].append(
            {
                "branches": branches,
                "root": database.run("node", {**here, "node": "n0"}),
                "contexts": [database.run("context", {**here, "branch": each}) for each in live],
                "summaries": [database.run("summaries", {**here, "branch": each}) for each in live],
                "budget": outcome(
                    lambda here=here: database.run(
                        "budget", {**here, "max_tokens": 150, "dry_run": True}
                    )
                ),
            }
        )
    return json.loads(json.dumps(found))


def outcome(ask: Callable[[], Any]) -> Any:
    """What `ask` returns, or the class of the error and its text."""
    try:
        return ask()
    except timeline.TimelineError as error:
        return [type(error).__name__, str(error), error.data]


def state_of(database: timeline.Database) -> str:
    """State and rows as the engine holds them, caught up."""
    store = database._catch_up()
    rows = b"".join(raw for _, raw in store.rows.chunks(1, len(store.rows)))
    return json.dumps([store.state.to_json(), rows.hex()], sort_keys=True)


def read_state(path: str | Path) -> str:
    """State and rows as a fresh reader finds them."""
    database = open_database(path)
    try:
        return state_of(database)
    finally:
        database.close()


def read_everything(path: str | Path) -> dict[str, Any]:
    """As `reading`, by a fresh reader."""
    database = open_database(path)
    try:
        return reading(database)
    finally:
        database.close()


def doctor(path: str | Path) -> dict[str, Any]:
    database = open_database(path)
    try:
        report: dict[str, Any] = database.doctor()
        return report
    finally:
        database.close()


def repair(path: str | Path, target: str | Path, until: int | None = None) -> dict[str, Any]:
    database = open_database(path)
    try:
        result: dict[str, Any] = database.repair(str(target), until)
        return result
    finally:
        database.close()


def run(path: str | Path, name: str, /, disk: timeline.Disk | None = None, **args: Any) -> Any:
    """One operation by a database opened for it."""
    database = open_database(path, disk)
    try:
        return database.run(name, args)
    finally:
        database.close()


def next_append_works(path: str | Path, text: str = "and on") -> int:
    """Append with a fresh writer, read it back, let the doctor look; the new node's number."""
    answer = run(path, "append", role="user", text=text)
    shown = run(path, "node", node=answer["node"])
    assert shown["text"] == text
    report = doctor(path)
    assert report["ok"], report
    assert "unfinished" not in report
    return int(answer["node"][1:])


def clear(path: Path) -> None:
    """Delete a database and what lies beside it."""
    shutil.rmtree(f"{path}.index", ignore_errors=True)
    for suffix in ("", ".lock", ".torn", ".tmp"):
        if os.path.lexists(f"{path}{suffix}"):
            os.remove(f"{path}{suffix}")


def place(path: Path, log: bytes, index: Path | None = None) -> None:
    """Put a log, and perhaps a copy of an index, where nothing is left of an earlier one."""
    clear(path)
    path.write_bytes(log)
    if index is not None:
        shutil.copytree(index, f"{path}.index")


def index_files(path: Path) -> dict[str, bytes]:
    """The files of the index by name."""
    folder = Path(f"{path}.index")
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir())}


def place_index(path: Path, files: dict[str, bytes]) -> None:
    folder = Path(f"{path}.index")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def checkpoint_now(path: Path) -> None:
    """Write the index of a database whatever its size is."""
    database = open_database(path)
    with database.writing() as store:
        store.checkpoint()
    database.close()
    assert run_where(path) == "fresh"


def run_where(path: Path) -> str:
    database = open_database(path)
    try:
        return str(database.describe()["index"])
    finally:
        database.close()


def small_checkpoints(monkeypatch: pytest.MonkeyPatch, commits: int = 4) -> None:
    """Checkpoints so often that a few steps make several."""
    monkeypatch.setattr(timeline, "CHECKPOINT_COMMITS", commits)
    monkeypatch.setattr(timeline, "CHECKPOINT_BYTES", 1 << 12)


def flipped(data: bytes, place: int, mask: int = 1) -> bytes:
    """`data` with the bits of `mask` turned over in the byte at `place`."""
    changed = bytearray(data)
    changed[place] ^= mask
    return bytes(changed)
