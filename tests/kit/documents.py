"""Documents of `export --format json`: made, read in, and compared when they were numbered anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timeline
import timeline_export
import timeline_import

Json = dict[str, Any]


def exported(base: timeline.Database, tl: int = 0, **part: Any) -> str:
    return "".join(timeline_export.picture(base, tl, "json", **part).pieces)


def save(text: str, path: Path) -> str:
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def brought(base: timeline.Database, path: str, **options: Any) -> tuple[Json, dict[str, str]]:
    """The row of the import of one document, and what became of its nodes."""
    ids: dict[str, str] = {}
    result = timeline_import.import_paths(base, [path], ids=ids, **options)
    (row,) = result["timelines"]
    assert row["records"] == row["added"] + row["known"] + row["changed"]
    return row, ids


def plain(document: str, names: dict[str, str] | None = None) -> Json:
    """What two exports of one tree have in common, ids given by `names` (a node there -> here).

    Left out is when and by whom something was written, where it came from, and texts of
    placeholders, which are checked.
    """
    whole = json.loads(document)
    given = names or {}

    def named(node: str | None) -> str | None:
        return node if node is None or node == "n0" else given.get(node, node)

    nodes = []
    for node in whole["nodes"]:
        kept = {k: v for k, v in node.items() if k not in ("created_at", "via", "source", "ids")}
        kept["node"], kept["parent"] = named(node["node"]), named(node["parent"])
        if "summary" in node:
            summary = dict(node["summary"])
            for name in ("from", "to", "supersedes", "superseded_by"):
                if name in summary:
                    summary[name] = named(summary[name])
            summary["derived_from"] = [named(each) for each in summary.get("derived_from", ())]
            kept["summary"] = summary
            if summary["kind"] == "placeholder":
                ends = f"{node['summary']['from']}..{node['summary']['to']}."
                assert ends in kept.pop("text")
        nodes.append(kept)
    branches = [
        {k: named(v) if k in ("head", "fork_node", "archived_from") else v for k, v in each.items()}
        for each in whole["branches"]
    ]
    for branch in branches:
        del branch["created_at"]
    about = {k: whole["timeline"][k] for k in ("title", "estimator", "current_branch")}
    return {"timeline": about, "nodes": nodes, "branches": branches}


def inverted(ids: dict[str, str]) -> dict[str, str]:
    assert len(set(ids.values())) == len(ids)
    return {there: here for here, there in ids.items()}


def budgets(base: timeline.Database, tl: int, names: dict[str, str] | None = None) -> list[Any]:
    """The answers to budgets of all sizes on each branch, ids given by `names`."""
    given = names or {}
    answers: list[Any] = []
    here = {"timeline_id": f"tl{tl}"}
    for branch in base.run("branches", here):
        for size in (33, 90, 200, 500, 2000, 100_000):
            asked = {**here, "branch": branch["name"], "max_tokens": size, "dry_run": True}
            try:
                answer = base.run("budget", asked)
            except timeline.BudgetInfeasible as error:
                answers.append([branch["name"], size, error.data["required_tokens"]])
                continue
            for message in answer["messages"]:
                for name in ("node", "from", "to"):
                    if message.get(name) is not None:
                        message[name] = given.get(message[name], message[name])
                if message.get("placeholder"):
                    del message["text"]
            made = [given.get(node, node) for node in answer["summaries_created"]]
            answers.append([branch["name"], size, {**answer, "summaries_created": made}])
    return answers
