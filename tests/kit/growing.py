"""Transcripts that grow: a file that a client adds to, and random sessions to grow it with."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import timeline
import timeline_import as ti

Json = dict[str, Any]
_PARTS = (
    "added", "folded", "known", "changed", "hidden", "skipped", "sidechain", "bad", "pending",
)  # fmt: skip


class Source:
    """A file that a client writes to, and the database it is synced into."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "sessions" / "rollout.jsonl"
        self.file.parent.mkdir()
        self.database = timeline.Database(str(folder / "t.db"), via="import")

    def add(self, data: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(data)

    def sync(self) -> list[Json]:
        """The rows of what changed."""
        result = ti.sync(self.database, {"claude-code": [str(self.file.parent)]})
        for row in result["timelines"]:
            check_sum(row)
        return list(result["timelines"])

    def end(self) -> None:
        """What the last import at the end of a session brings in."""
        ti.import_paths(self.database, [str(self.file)])

    def bookmarks(self) -> list[Path]:
        return sorted(Path(f"{self.database.path}.index").glob("read-*"))


def check_sum(row: Json) -> None:
    """Each record is counted once."""
    assert row["records"] == sum(row[part] for part in _PARTS), row


def shape(base: timeline.Database) -> Json:
    """Everything that hangs together, whatever order it was made in and whatever branches are
    called."""
    signs: dict[str | None, Any] = {"n0": ()}
    inner, summaries = set(), []
    for row in reversed(base.run("list")):
        where = {"timeline_id": row["timeline_id"]}
        summaries += [(e["node"], e["from"], e["to"]) for e in base.run("summaries", where)]
    for number in range(1, len(base.refresh().rows) + 1):
        node = base.run("node", {"node": f"n{number}"})
        source = node["source"] or {}
        sign = (
            hash(signs[node["parent"]]), node["role"], node["text"], source.get("id"),
            source.get("kind"), source.get("gap"), "copy_of" in source,
        )  # fmt: skip
        signs[node["node"]] = sign
        inner.add(node["parent"])
    heads = [
        (row["title"], signs[each["head"]])
        for row in base.run("list")
        for each in base.run("branches", {"timeline_id": row["timeline_id"]})
        if each["name"] == "main"
    ]
    return {
        "nodes": sorted(map(repr, signs.values())),
        "leaves": sorted(repr(signs[node]) for node in signs if node != "n0" and node not in inner),
        "summaries": sorted(repr([signs[end] for end in each]) for each in summaries),
        "main": sorted(map(repr, heads)),
    }


def once(source: Source, folder: Path) -> Json:
    """The shape that one import of the whole file has."""
    base = timeline.Database(str(folder / "once.db"), via="import")
    ti.import_paths(base, [str(source.file)])
    found = shape(base)
    base.close()
    return found


class Session:
    """A random session of Claude Code: `lines`, one record each."""

    def __init__(self, seed: int, turns: int | None = None) -> None:
        self.chance = random.Random(seed)
        self.has_runs = seed % 3 == 0
        self.lines: list[bytes] = []
        self.count = 0
        self.head: str | None = None
        self.users: list[str] = []
        self.said: list[str] = []  # uuids of messages, in order
        for _ in range(turns or self.chance.randrange(4, 14)):
            self.turn()

    def put(self, kind: str, content: Any = None, **fields: Any) -> str:
        self.count += 1
        uuid = f"u{self.count}"
        record: Json = {
            "type": kind, "uuid": uuid, "parentUuid": self.head, "sessionId": "s", **fields,
        }  # fmt: skip
        if content is not None:
            record["message"] = {"role": kind, "content": content, **fields.get("message", {})}
            self.said.append(uuid)
        self.lines.append(json.dumps(record).encode() + b"\n")
        self.head = uuid
        return uuid

    def turn(self) -> None:
        chance, what = self.chance, self.chance.random()
        if what < 0.12 and self.users:
            self.head = chance.choice([*self.users, *self.said])  # a rewind
        elif what < 0.2 and self.said:
            self.compact()
        elif what < 0.25 and self.lines:
            self.lines.append(chance.choice(self.lines))  # the client writes a record again
        elif what < 0.3:
            self.lines.append(b'{"type":"custom-title","customTitle":"T%d"}\n' % self.count)
        elif what < 0.35 and self.said:
            leaf = chance.choice(self.said)
            self.lines.append(
                json.dumps({"type": "last-prompt", "leafUuid": leaf}).encode() + b"\n"
            )
        if chance.random() < 0.3:
            self.put("progress")
        self.users.append(self.put("user", f"question {self.count}"))
        for _ in range(chance.randrange(3)):
            self.work()
        if chance.random() < 0.8:
            text = [{"type": "text", "text": f"answer {self.count}"}]
            self.put("assistant", text, message={"id": f"m{self.count}"})
        if chance.random() < 0.1:
            self.put("assistant", "overloaded", isApiErrorMessage=True)

    def work(self) -> None:
        """An answer in pieces that calls tools, and what they return, in any order."""
        chance, message = self.chance, {"id": f"m{self.count}"}
        calls = []
        for _ in range(chance.randrange(1, 4)):
            name = f"c{self.count}"
            block = {"type": "tool_use", "id": name, "name": "Bash", "input": {}}
            calls.append((name, self.put("assistant", [block], message=message)))
        if self.has_runs and chance.random() < 0.3:
            self.run()
        chance.shuffle(calls)
        for name, uuid in calls:
            if chance.random() < 0.1:
                continue  # interrupted
            self.head = uuid
            self.put("user", [{"type": "tool_result", "tool_use_id": name, "content": name}])

    def run(self) -> None:
        """A subagent at work, within the file."""
        back, self.head = self.head, None
        kept = list(self.said)
        self.put("user", f"task {self.count}", isSidechain=True)
        for _ in range(self.chance.randrange(3)):
            text = [{"type": "text", "text": f"step {self.count}"}]
            self.put("assistant", text, message={"id": f"m{self.count}"}, isSidechain=True)
        self.head, self.said = back, kept

    def compact(self) -> None:
        chance, before = self.chance, self.head
        self.head = None
        fields: Json = {"subtype": "compact_boundary", "logicalParentUuid": before}
        if chance.random() < 0.4:
            kept = self.said[-chance.randrange(1, 4) :]
            if chance.random() < 0.5:
                fields["compactMetadata"] = {"preservedMessages": {"uuids": kept}}
            else:
                segment = {"headUuid": kept[0], "tailUuid": kept[-1]}
                fields["compactMetadata"] = {"preservedSegment": segment}
        self.put("system", **fields)
        self.put("user", f"summary {self.count}", isCompactSummary=True)
