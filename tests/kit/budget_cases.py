"""Worked cases of the budget: from nodes with roles, pins and marks to units, and back.

The JSON form is told in `cases/budget.json` itself; `cases/budget_tiers.json` adds `"order"` and
`cases/budget_excluded.json` adds `"excluded"`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timeline

CASES = Path(__file__).parent.parent / "cases"
Range = tuple[int, int]


def load_cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((CASES / name).read_bytes())["cases"]
    return cases


class Units:
    """The units of a case's path, excluded ones taken off; nodes are numbered from 1."""

    def __init__(self, case: dict[str, Any]) -> None:
        nodes = case["nodes"]
        units: list[list[int]] = []
        for number, node in enumerate(nodes, 1):
            if node["role"] == "tool" and units:
                units[-1].append(number)
            else:
                units.append([number])

        def has(unit: list[int], mark: str) -> bool:
            return any(nodes[n - 1].get(mark, False) for n in unit)

        self.units = [u for u in units if not has(u, "excluded")]
        self.weights = [sum(nodes[n - 1]["tokens"] for n in u) for u in self.units]
        self.mandatory = {k for k, u in enumerate(self.units) if has(u, "pinned")}
        if self.units:
            self.mandatory.add(len(self.units) - 1)
        self.excluded = {n for u in units if has(u, "excluded") for n in u}
        self.summaries = [
            (number, *offer)
            for number, summary in enumerate(case["summaries"], 1)
            if (offer := self.covered_by(summary))
        ]

    def covered_by(self, summary: dict[str, Any]) -> Range | None:
        first, last = summary["from"], summary["to"]
        whole = [k for k, u in enumerate(self.units) if first <= u[0] and u[-1] <= last]
        return (whole[0], whole[-1]) if whole else None

    def nodes_of(self, first: int, last: int) -> list[int]:
        """First and last node of the units `first..last`, whatever is excluded between them."""
        return [self.units[first][0], self.units[last][-1]]

    def kept_ranges(self, first: int, last: int) -> list[list[int]]:
        """As `nodes_of`, but cut where a node is excluded."""
        ranges: list[list[int]] = []
        for unit in self.units[first : last + 1]:
            if ranges and ranges[-1][1] == unit[0] - 1:
                ranges[-1][1] = unit[-1]
            else:
                ranges.append([unit[0], unit[-1]])
        return ranges


def candidates_of(case: dict[str, Any], path: Units) -> list[timeline.Candidate]:
    candidates = []
    for number, first, last in path.summaries:
        row = case["summaries"][number - 1]
        width = row["to"] - row["from"] + 1
        candidates.append(
            timeline.Candidate(first, last, row["tokens"], row["stale"], width, number)
        )
    return candidates


def select_case(case: dict[str, Any], *, explain: bool = False) -> timeline.Selection:
    path = Units(case)
    return timeline.select(
        path.weights,
        path.mandatory,
        candidates_of(case, path),
        case["max_tokens"],
        case.get("order", "turns"),
        explain=explain,
    )


def items_of(selection: timeline.Selection) -> list[tuple[Any, ...]]:
    """The answer in units, in the form of `naive_select`."""
    ranges = dict(selection.shown)
    items: list[tuple[Any, ...]] = []
    for first, last, what in timeline.in_path_order(selection):
        if what == timeline.ITEM_KEPT:
            items.append(("keep", first, last))
        elif what == timeline.ITEM_GAP:
            items.append(("gap", first, last))
        else:
            items.append(("summary", what, ranges[what]))
    return items


def answer_of(case: dict[str, Any]) -> dict[str, Any]:
    """What the engine says, in the form of the case's `expect`."""
    try:
        selection = select_case(case)
    except timeline.BudgetInfeasible as error:
        return {"ok": False, "error": str(error), **error.data}
    path = Units(case)
    items: list[dict[str, Any]] = []
    for kind, *rest in items_of(selection):
        if kind == "keep":
            items += [{"keep": nodes} for nodes in path.kept_ranges(*rest)]
        elif kind == "gap":
            items.append({"gap": path.nodes_of(*rest)})
        else:
            number = path.summaries[rest[0]][0]
            items.append({"summary": number, "for": [path.nodes_of(*r) for r in rest[1]]})
    return {
        "ok": True,
        "required_tokens": selection.required,
        "total_tokens": selection.total,
        "items": items,
    }
