"""Builds Claude Code session files record by record, and reads back what an import made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timeline
import timeline_import

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
CLAUDE = SAMPLES / "claude-code"
Json = dict[str, Any]


def load(path: Path) -> Any:
    """The JSON value in a file."""
    return json.loads(path.read_bytes())


class Session:
    """A session file in the making. Each method appends one record and returns its uuid.

    Without `on` a record hangs on the last one; names of records are their uuids.
    """

    def __init__(self, session: str = "s1") -> None:
        self.session = session
        self.records: list[Json] = []
        self.last: str | None = None
        self.answers = 0

    def copy(self, session: str, upto: str) -> Session:
        """A fork: all records up to `upto` again, under another session id."""
        fork = Session(session)
        for record in self.records:
            origin = {"sessionId": self.session, "messageUuid": record.get("uuid")}
            fork.records.append({**record, "sessionId": session, "forkedFrom": origin})
            if record.get("uuid") == upto:
                break
        fork.last = upto
        fork.answers = 1000
        return fork

    def add(self, kind: str, name: str, on: str | None = "", **fields: Any) -> str:
        parent = self.last if on == "" else on
        self.records.append(
            {
                "parentUuid": parent,
                "isSidechain": False,
                "sessionId": self.session,
                "cwd": "/srv/x",
                "uuid": name,
                "timestamp": "2026-03-02T09:00:00.000Z",
                "type": kind,
                **fields,
            }
        )
        self.last = name
        return name

    def user(self, name: str, on: str | None = "", text: str | None = None, **fields: Any) -> str:
        message = {"role": "user", "content": name if text is None else text}
        return self.add("user", name, on, message=message, **fields)

    def answer(
        self,
        name: str,
        on: str | None = "",
        message: str | None = None,
        calls: str = "",
        **fields: Any,
    ) -> str:
        """An answer that says its name and calls the tools whose ids are the words of `calls`."""
        self.answers += 1
        content: list[Json] = [{"type": "text", "text": name}]
        content += [
            {"type": "tool_use", "id": call, "name": "Read", "input": {}} for call in calls.split()
        ]
        body = {"id": message or f"msg{self.answers}", "role": "assistant", "content": content}
        return self.add("assistant", name, on, message=body, **fields)

    def result(self, name: str, call: str, on: str | None = "", **fields: Any) -> str:
        content = [{"type": "tool_result", "tool_use_id": call, "content": name}]
        return self.add("user", name, on, message={"role": "user", "content": content}, **fields)

    def compact(
        self, name: str, end: str | None = "", text: str | None = None, **metadata: Any
    ) -> str:
        """A compaction whose old end is `end`: boundary and summary."""
        end = self.last if end == "" else end
        self.add(
            "system",
            f"boundary of {name}",
            None,
            subtype="compact_boundary",
            logicalParentUuid=end,
            compactMetadata={"trigger": "manual", **metadata},
        )
        return self.user(name, text=text, isCompactSummary=True)

    def state(self, kind: str, **fields: Any) -> None:
        self.records.append({"type": kind, "sessionId": self.session, **fields})

    def lines(self) -> list[bytes]:
        return [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in self.records]

    def save(self, path: Path, count: int | None = None) -> str:
        """Write the first `count` records (all) to `path` and return it as a string."""
        path.write_bytes(b"".join(self.lines()[:count]))
        return str(path)


class Tree:
    """What a timeline holds, named by native ids (copies as `id'`, one more ' for each)."""

    def __init__(self, database: timeline.Database, tl: int = 0) -> None:
        self.nodes: dict[str, Json] = {}
        self.names: dict[str, str] = {"n0": "root"}
        with database.importing(dry_run=True) as tx:
            self.state = tx.timelines()[tl]
            count = len(database.store.rows)
            for node in range(1, count + 1):
                row = tx.row(node)
                if row.timeline == tl:
                    self._take(node, row, tx.record(node))
        self.branches = {
            branch.name: self.names[f"n{branch.head}"] for branch in self.state.branches.values()
        }
        self.current = self.state.current

    def _take(self, node: int, row: Any, record: Json) -> None:
        name = record.get("source", {}).get("id") or record.get("text") or f"n{node}"
        while name in self.nodes:
            name += "'"
        self.names[f"n{node}"] = name
        self.nodes[name] = {
            "number": node,
            "parent": self.names[f"n{row.parent}"],
            "role": row.role,
            "text": record.get("text"),
            "tokens": row.tokens,
            "source": record.get("source", {}),
            "blocks": record.get("blocks"),
        }
        if "from" in record:
            span = tuple(self.names[f"n{record[end]}"] for end in ("from", "to"))
            self.nodes[name]["span"] = span

    @property
    def parents(self) -> dict[str, str]:
        return {name: node["parent"] for name, node in self.nodes.items()}

    @property
    def spans(self) -> dict[str, tuple[str, str]]:
        return {name: node["span"] for name, node in self.nodes.items() if "span" in node}

    @property
    def leaves(self) -> set[str]:
        return set(self.nodes) - {node["parent"] for node in self.nodes.values()}

    def path(self, name: str) -> list[str]:
        """Names from below the root to `name`."""
        way = []
        while name != "root":
            way.append(name)
            name = self.nodes[name]["parent"]
        return way[::-1]

    def main(self) -> list[str]:
        return self.path(self.branches["main"])


def total(row: Json) -> int:
    """The sum that must equal `records`."""
    names = (
        "added",
        "folded",
        "known",
        "changed",
        "hidden",
        "skipped",
        "sidechain",
        "bad",
        "pending",
    )
    return sum(row[name] for name in names)


def read(data: bytes, format: str = "claude-code") -> timeline_import.Transcript:
    """The one transcript in `data`, its gaps noted."""
    import io

    reader = next(each for each in timeline_import.FORMATS if each.name == format)
    draft, *_ = reader.read(io.BytesIO(data))
    transcript = draft(lambda _: None)
    transcript.note_gaps()
    return transcript
