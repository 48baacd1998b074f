"""`tl sync`: what the agents on this machine wrote comes in by itself, once, and as it grows."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_import as ti
from kit.wire import Wire

Json = dict[str, Any]
SAMPLES = Path(__file__).resolve().parents[1] / "samples"


class Home:
    """A home folder with Claude Code's sessions in it, and a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.projects = folder / ".claude" / "projects" / "-srv-demo"
        self.projects.mkdir(parents=True)
        self.path = folder / "db.json"

    def put(self, name: str) -> Path:
        target = self.projects / f"{name}.jsonl"
        shutil.copy(SAMPLES / "claude-code" / f"{name}.jsonl", target)
        return target

    def sync(self, **given: Any) -> Json:
        database = timeline.Database(str(self.path), via="import")
        try:
            places = ti.client_places({}, str(self.folder))
            result: Json = ti.sync(database, places, **given)
            return result
        finally:
            database.close()

    def tree(self) -> list[Any]:
        """All nodes as they hang together, and the branches of each timeline."""
        database = timeline.Database(str(self.path))
        found: list[Any] = []
        for row in reversed(database.run("list")):
            here = {"timeline_id": row["timeline_id"]}
            found.append([[each["name"], each["head"]] for each in database.run("branches", here)])
        count = len(database.refresh().rows)
        for number in range(1, count + 1):
            node = database.run("node", {"node": f"n{number}"})
            found.append([node["parent"], node["role"], node["text"], node["source"].get("id")])
        database.close()
        return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def line(uuid: str, parent: str | None, role: str, text: str, message: str = "") -> bytes:
    record = {
        "type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "cwd": "/srv/demo",
        "timestamp": "2026-01-01T00:00:00Z", "message": {"role": role, "content": text},
    }  # fmt: skip
    if role == "assistant":
        record["message"] = {
            "role": role, "id": message or uuid, "content": [{"type": "text", "text": text}],
        }  # fmt: skip
    return json.dumps(record).encode() + b"\n"


def test_sync_finds_sessions_and_reads_nothing_twice(home: Home) -> None:
    for name in ("basic-tools-cjk", "compact-twice"):
        home.put(name)
    first = home.sync()
    assert [row["added"] > 0 for row in first["timelines"]] == [True, True]
    assert first["unchanged"] == 0
    before = home.path.read_bytes()
    again = home.sync()
    assert again["timelines"] == []
    assert again["unchanged"] == 2
    assert home.path.read_bytes() == before
    shutil.rmtree(f"{home.path}.index")
    whole = home.sync()
    assert [row["added"] for row in whole["timelines"]] == [0, 0]
    assert home.path.read_bytes() == before


def test_a_last_answer_waits_until_something_follows(home: Home) -> None:
    path = home.projects / "s.jsonl"
    path.write_bytes(line("u1", None, "user", "Hi"))
    assert home.sync()["timelines"][0]["added"] == 1
    with path.open("ab") as file:
        file.write(line("a1", "u1", "assistant", "Hel", "m1"))
    row = home.sync()["timelines"][0]
    assert (row["added"], row["pending"], row["records"]) == (0, 1, 2)
    with path.open("ab") as file:
        file.write(line("a2", "a1", "assistant", "lo", "m1"))
    row = home.sync()["timelines"][0]
    assert (row["added"], row["pending"]) == (0, 2)
    with path.open("ab") as file:
        file.write(line("u2", "a2", "user", "Go on"))
    row = home.sync()["timelines"][0]
    assert (row["added"], row["folded"], row["pending"]) == (2, 1, 0)
    database = timeline.Database(str(home.path))
    assert [each["text"] for each in database.run("context")] == ["Hi", "Hel\n\nlo", "Go on"]
    database.close()


@pytest.mark.parametrize("name", ["basic-tools-cjk", "compact-twice", "rewind-branches"])
def test_a_growing_file_ends_as_one_import_does(home: Home, tmp_path: Path, name: str) -> None:
    source = home.put(name)
    lines = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"")
    for number, each in enumerate(lines):
        with source.open("ab") as file:
            file.write(each[: len(each) // 2])
        if number % 3 == 0:
            home.sync()
        with source.open("ab") as file:
            file.write(each[len(each) // 2 :])
        if number % 2 == 0:
            home.sync()
    database = timeline.Database(str(home.path), via="import")
    ti.import_paths(database, [str(source)])  # which waits for nothing
    once = timeline.Database(str(tmp_path / "once.json"), via="import")
    ti.import_paths(once, [str(source)])

    def shape(base: timeline.Database) -> Any:
        heads = [each["head"] for each in base.run("branches") if each["name"] == "main"]
        nodes = [
            base.run("node", {"node": f"n{number}"})
            for number in range(1, len(base.refresh().rows) + 1)
        ]
        ids = {node["node"]: node["source"].get("id") for node in nodes}
        return (
            [ids[head] for head in heads],
            sorted(
                (ids.get(node["parent"]) or "", ids[node["node"]], node["text"]) for node in nodes
            ),
        )

    assert shape(database) == shape(once)
    for each in (database, once):
        each.close()


def test_only_the_project_that_is_asked_for(home: Home) -> None:
    home.put("basic-tools-cjk")
    other = home.projects / "s.jsonl"
    other.write_bytes(line("u1", None, "user", "Hi").replace(b"/srv/demo", b"/srv/demonstration"))
    result = home.sync(project="/srv/demo")
    assert [row["session"] == "s" for row in result["timelines"]] == [False]
    assert len(home.sync()["timelines"]) == 2, "what was passed over is read when it is asked for"
    assert home.sync(project="/nowhere")["timelines"] == []


def test_old_files_and_missing_clients_are_left_alone(home: Home) -> None:
    path = home.put("basic-tools-cjk")
    os.utime(path, (1_000, 1_000))
    assert home.sync(changed_after=time.time() - 86_400) == {
        "timelines": [], "unrecognized": [], "unchanged": 0,
    }  # fmt: skip
    assert not home.path.exists(), "nothing found, nothing made"
    assert home.sync()["timelines"][0]["added"] > 0
    path.unlink()
    before = home.path.read_bytes()
    assert home.sync()["timelines"] == []
    assert home.path.read_bytes() == before, "a deleted source takes nothing away"


@pytest.mark.parametrize("how", ["older copy", "other database", "purged"])
def test_another_database_at_the_same_place_is_filled_too(home: Home, how: str) -> None:
    home.put("basic-tools-cjk")
    home.sync()
    old = home.path.read_bytes()
    home.put("compact-twice")
    home.sync()
    if how == "older copy":
        home.path.write_bytes(old)
    elif how == "other database":
        home.path.unlink()
    else:
        database = timeline.Database(str(home.path))
        database.run("compact", {"purge": ["n1"]})
        database.close()
    result = home.sync()
    added = [row["added"] > 0 for row in result["timelines"]]
    assert (
        added
        == {"older copy": [False, True], "other database": [True, True], "purged": [False, False]}[
            how
        ]
    )


def test_what_cannot_be_read_is_named_each_time(home: Home) -> None:
    home.put("basic-tools-cjk")
    (home.projects / "odd.jsonl").write_bytes(b'{"a":1}\n')
    (home.projects / "notes.txt").write_bytes(b"not looked at")
    for _ in range(2):
        unrecognized = home.sync()["unrecognized"]
        assert [Path(each["path"]).name for each in unrecognized] == ["odd.jsonl"]


def test_opencode_is_found_in_its_database_and_its_folder(home: Home) -> None:
    place = home.folder / ".local" / "share" / "opencode"
    place.mkdir(parents=True)
    with sqlite3.connect(place / "opencode.db") as base:
        base.executescript((SAMPLES / "opencode" / "opencode-db.sql").read_text(encoding="utf-8"))
    base.close()
    assert home.sync()["timelines"][0]["format"] == "opencode"
    assert home.sync()["unchanged"] == 1
    shutil.copytree(SAMPLES / "opencode" / "storage-legacy", place / "storage")
    assert [row["format"] for row in home.sync()["timelines"]] == ["opencode"]


def test_places_are_those_that_the_environment_names(tmp_path: Path) -> None:
    told = {
        "CLAUDE_CONFIG_DIR": "/c", "CODEX_HOME": "/x", "PI_CODING_AGENT_SESSION_DIR": "/p",
        "OPENCODE_DB": "/o.db", "XDG_DATA_HOME": "/d",
    }  # fmt: skip
    join: Callable[..., str] = os.path.join
    assert ti.client_places(told, "/h") == {
        "claude-code": [join("/c", "projects")],
        "codex": [join("/x", "sessions"), join("/x", "archived_sessions")],
        "pi": ["/p"],
        "gemini": [join("/h", ".gemini", "tmp")],
        "opencode": ["/o.db", join("/d", "opencode", "storage")],
    }
    assert list(ti.client_places({}, "/h")) == list(timeline.SYNC_CLIENTS)


def test_agents_sync_their_own_project_alone(home: Home) -> None:
    home.put("basic-tools-cjk")
    environment = {"HOME": str(home.folder), "USERPROFILE": str(home.folder)}
    with Wire(home.path, "--tools", "+sync", **environment) as wire:
        wire.open()
        assert "project" in wire.error("timeline_sync", {})["error"]
        assert wire.value("timeline_sync", {"project": "/nowhere"})["timelines"] == []
        row = wire.value("timeline_sync", {"project": "/srv", "idempotency_key": "k"})["timelines"][
            0
        ]
        assert row["added"] > 0
        again = wire.value("timeline_sync", {"project": "/srv", "idempotency_key": "k"})
        assert again["timelines"] == [row], "the key's own answer"
        assert wire.value("timeline_sync", {"project": "/srv"})["timelines"][0]["added"] == 0
    with Wire(home.path) as wire:
        wire.open()
        refused = wire.request("tools/call", {"name": "timeline_sync", "arguments": {}})
        assert "--tools +sync" in refused["error"]["message"]


def test_a_tool_of_opencode_that_runs_is_waited_for(home: Home) -> None:
    place = home.folder / ".local" / "share" / "opencode"
    place.mkdir(parents=True)
    base = sqlite3.connect(place / "opencode.db")
    base.executescript((SAMPLES / "opencode" / "opencode-db.sql").read_text(encoding="utf-8"))
    change = "UPDATE part SET data = replace(data, ?, ?)"
    base.execute(change, ('"completed"', '"running"'))
    base.commit()
    first = home.sync()["timelines"]
    assert sum(row["pending"] for row in first) > 0
    base.execute(change, ('"running"', '"completed"'))
    base.commit()
    base.close()
    after = home.sync()["timelines"]
    assert not any(row["pending"] or row["changed"] for row in after)
    for one, other in zip(first, after, strict=True):
        assert other["added"] == one["pending"]
        assert other["known"] >= one["added"]
