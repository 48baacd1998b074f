"""Values that no sane caller sends: an error of ours each, and nothing is changed."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import

DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]

VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, float("nan"), float("inf"), 2**53, 10**5000, "", "n1", "n0",
    "n-1", "n01", "n99999999999999999999", "tl0", "tl9", "main", "x" * 300, "a/b", " a", "\0",
    "\ud800", "\x1b[2J", "\u202e", [], ["n1"], ["n1", 5], [["n1"]], {}, {"tag": "t"}, {"tag": ""},
    {"tag": 5}, {"tag": "t", "note": []}, {"x": 1}, DEEP, "(", "turns", "own", "user", b"bytes",
    object(),
]  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> timeline.Database:
    database = timeline.Database(str(tmp_path / "db.json"), clock=lambda: 1767225600)
    database.run("create")
    for number in range(4):
        database.run("append", {"role": "user", "text": str(number)})
    return database


@pytest.mark.parametrize("name", sorted(timeline.Database._METHODS))
def test_any_value_for_any_argument_gives_a_result_or_an_error_of_ours(
    database: timeline.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    operation = timeline.OPERATIONS[name]
    rng = random.Random(name)
    sane: dict[str, Any] = {
        "role": "user", "text": "x", "node": "n1", "from": "n1", "to": "n2", "summary": "s",
        "max_tokens": 100, "branch": "main", "name": "b", "purge": ["n1"],
    }  # fmt: skip
    for argument in [*operation.arguments, timeline.Argument("nonsense", "string", "")]:
        for value in VALUES:
            given = {each.name: sane[each.name] for each in operation.arguments if each.required}
            given[argument.name] = value
            try:
                database.run(name, given)
            except (timeline.TimelineError, OSError):
                pass
    for _ in range(100):
        given = {
            each.name: rng.choice(VALUES) for each in operation.arguments if rng.random() < 0.7
        }
        try:
            database.run(name, given)
        except (timeline.TimelineError, OSError):
            pass
    assert database.run("doctor")["ok"]


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_a_path_the_system_cannot_write_is_refused(path: str) -> None:
    with pytest.raises(timeline.InvalidArgument):
        timeline.Database(path).run("list")


def test_a_regex_that_warns_is_quiet(database: timeline.Database) -> None:
    assert database.run("search", {"text": "[[a]", "regex": True}) == []


def test_a_retried_budget_explains_as_the_first_did(database: timeline.Database) -> None:
    asked = {"max_tokens": 50, "explain": True, "idempotency_key": "e"}
    first = database.run("budget", asked)
    assert "explain" in first
    assert database.run("budget", asked) == first


def test_a_purged_message_does_not_come_back_from_a_copy_of_its_file(
    database: timeline.Database, tmp_path: Path
) -> None:
    lines = b'{"role":"user","text":"SECRET one"}\n{"role":"assistant","text":"SECRET two"}\n'
    for name in ("m.jsonl", "copy.jsonl"):
        (tmp_path / name).write_bytes(lines)
    timeline_import.import_paths(database, [str(tmp_path / "m.jsonl")])
    database.run("compact", {"purge": ["n5", "n6"]})
    (row,) = timeline_import.import_paths(database, [str(tmp_path / "copy.jsonl")])["timelines"]
    assert (row["added"], row["known"]) == (0, 2)
    assert b"SECRET" not in Path(database.path).read_bytes()


def test_purge_removes_the_kept_file_of_a_long_text(
    database: timeline.Database, tmp_path: Path
) -> None:
    text = "SECRET " * 200_000
    (tmp_path / "m.jsonl").write_text(f'{{"role":"user","text":"{text}"}}\n', encoding="utf-8")
    timeline_import.import_paths(database, [str(tmp_path / "m.jsonl")])
    (kept,) = Path(database.path + ".files").iterdir()
    answer = database.run("compact", {"purge": ["n5"]})
    assert answer["files_removed"] == [kept.name]
    assert not kept.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders there")
def test_a_pipe_or_device_is_no_transcript(database: timeline.Database, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), os.devnull):
        with pytest.raises(timeline.InvalidArgument, match="neither a file nor a folder"):
            timeline_import.import_paths(database, [path])
