"""The engine's operations on plain dicts and lists, obviously right rather than fast.

`Model.run(op, args)` answers what `timeline.Database.run` must answer, or raises `ModelError`.
Nothing here is shared with the engine, and no derived fact is stored: coverage, staleness, seals
and eligibility are found by walking the tree whenever somebody asks. The only things kept are what
was said (nodes, branches, pins, marks, keys) and which nodes are cold.

Inside, a node is its number and the root is 0; on the wire they are "n7" and "n0".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

from kit.naive_budget import naive_select

TOKENS_MAX = 2**53 - 1
TEXT_BYTES_MAX = 1024 * 1024
RESERVE_TOKENS = 32
KEY_SECONDS = 604_800
ROLES = ("user", "assistant", "system", "tool", "summary")
WIDE = (
    (0x1100, 0x115F),
    (0x2E80, 0x303E),
    (0x3041, 0x33FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFF60),
    (0xFFE0, 0xFFE6),
    (0x1F300, 0x1FAFF),
    (0x20000, 0x3FFFD),
)


class ModelError(Exception):
    """What the engine must refuse, with the exit code it must refuse it with."""

    def __init__(self, exit_code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.data = data


def refuse(message: str, **data: Any) -> ModelError:
    return ModelError(1, message, data or None)


def misuse(message: str) -> ModelError:
    return ModelError(2, message)


class Node:
    """A message, a real summary or a placeholder. Never changes once it is made."""

    def __init__(self, number: int, tree: int, parent: int, kind: str) -> None:
        self.number = number
        self.tree = tree
        self.parent = parent
        self.kind = kind  # "message", "real" or "placeholder"
        self.role = "summary"
        self.text = ""
        self.tokens = 0
        self.created_at = 0
        self.via = ""
        self.intent: dict[str, str] | None = None
        self.first = 0  # the interval of a summary or placeholder
        self.last = 0
        self.supersedes: int | None = None
        self.derived_from: list[int] = []


class Branch:
    """A pointer, kept also when it was dropped or archived."""

    def __init__(self, number: int, name: str, head: int, created_at: int) -> None:
        self.number = number
        self.name = name
        self.head = head
        self.created_at = created_at
        self.fork_node: int | None = None
        self.parent: Branch | None = None
        self.status = "live"
        self.archived_seq = 0


class Tree:
    """One timeline."""

    def __init__(self, number: int, title: str | None, estimator: str, created_at: int) -> None:
        self.number = number
        self.title = title
        self.estimator = estimator
        self.created_at = created_at
        self.updated_at = created_at
        self.changed_seq = 0
        self.branches: list[Branch] = []
        self.current: Branch

    def live(self) -> list[Branch]:
        """Branches one can name, oldest first."""
        return [b for b in self.branches if b.status == "live"]


# --- shapes: what is wrong in any state ---------------------------------------------------------


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= TOKENS_MAX


def is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        return False
    return len(value.encode("utf-8")) <= TEXT_BYTES_MAX


def is_node_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("n(0|[1-9][0-9]*)", value) is not None


def is_node_not_root(value: Any) -> bool:
    return is_node_id(value) and value != "n0"


def is_timeline_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("tl(0|[1-9][0-9]*)", value) is not None


def is_branch_name(value: Any) -> bool:
    return (
        isinstance(value, str)
        and 1 <= len(value) <= 200
        and "/" not in value
        and value == value.strip()
        and not any(unicodedata.category(c) in ("Cc", "Cs") for c in value)
    )


def is_title(value: Any) -> bool:
    return is_text(value) and len(value) <= 200


def is_intent(value: Any) -> bool:
    if not isinstance(value, dict) or not set(value) <= {"tag", "note"} or "tag" not in value:
        return False
    tag, note = value["tag"], value.get("note", "")
    return is_text(tag) and 1 <= len(tag) <= 200 and is_text(note) and len(note) <= 4000


def is_key(value: Any) -> bool:
    return is_text(value) and 1 <= len(value) <= 256


def is_sources(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 1000
        and all(isinstance(v, str) and is_node_not_root(v) for v in value)
    )


def one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in values


def is_bool(value: Any) -> bool:
    return type(value) is bool


def is_needle(value: Any) -> bool:
    return is_text(value) and value != ""


Shape = dict[str, Callable[[Any], bool]]
# A name that is not allowed is misuse only where a branch is to get it; else it is unknown.
TARGET: Shape = {"node": is_node_id, "branch": is_text}
SHAPES: dict[str, tuple[Shape, Shape]] = {  # operation: (required, optional)
    "create": ({}, {"title": is_title, "estimator": one_of("scalar4", "wide")}),
    "append": (
        {"role": one_of(*ROLES), "text": is_text},
        {"tokens": is_count, "intent": is_intent, "branch": is_text, "expect_head": is_node_id},
    ),
    "fork": ({"node": is_node_id, "name": is_branch_name}, {}),
    "switch": ({"name": is_text}, {}),
    "drop_branch": ({"name": is_text}, {}),
    "context": ({}, {**TARGET, "last": is_count, "before": is_node_not_root}),
    "budget": (
        {"max_tokens": is_count},
        {**TARGET, "order": one_of("turns", "tiers"), "dry_run": is_bool},
    ),
    "pin": ({"node": is_node_not_root}, {}),
    "unpin": ({"node": is_node_not_root}, {}),
    "exclude": ({"node": is_node_not_root}, {}),
    "include": ({"node": is_node_not_root}, {}),
    "summarize": (
        {"from": is_node_not_root, "to": is_node_not_root, "summary": is_text},
        {
            "tokens": is_count,
            "derived_from": is_sources,
            "supersede": is_node_not_root,
            "intent": is_intent,
        },
    ),
    "branches": ({}, {"all": is_bool}),
    "node": ({"node": is_node_id}, {}),
    "archive_check": ({"branch": is_text}, {"scope": one_of("own")}),
    "archive_branch": ({"branch": is_text}, {"scope": one_of("own")}),
    "thaw": ({}, {"node": is_node_id, "name": is_text, "as_name": is_branch_name}),
    "list": ({}, {"limit": is_count}),
    "summaries": ({}, {"branch": is_text}),
    "search": (
        {"text": is_needle},
        {"ignore_case": is_bool, "role": one_of(*ROLES), "branch": is_text, "limit": is_count},
    ),
}
NAMING = ("node", "from", "to", "supersede", "before", "expect_head")
CHANGING = {
    "create",
    "append",
    "fork",
    "switch",
    "drop_branch",
    "budget",
    "pin",
    "unpin",
    "exclude",
    "include",
    "summarize",
    "archive_branch",
    "thaw",
}


def check_shape(op: str, args: dict[str, Any]) -> None:
    required, optional = SHAPES[op]
    known = {**required, **optional}
    if op not in ("create", "list"):
        known["timeline_id"] = is_timeline_id
    if op in CHANGING and not args.get("dry_run"):
        known["idempotency_key"] = is_key
    for name in required:
        if name not in args:
            raise misuse(f"{op} needs {name}")
    for name, value in args.items():
        if name not in known:
            raise misuse(f"{op} takes no {name}")
        if not known[name](value):
            raise misuse(f"not a value for {name}: {value!r:.100}")
    if "node" in args and ("branch" in args or "name" in args) and op != "fork":
        raise misuse("a node or a name, not both")
    if op == "thaw" and "node" not in args and "name" not in args:
        raise misuse("thaw needs a node or a name")
    if "as_name" in args and "name" not in args:
        raise misuse("as_name needs a name")


def estimate(text: str, estimator: str) -> int:
    """Tokens of `text` by the timeline's rule."""
    wide = 0
    if estimator == "wide":
        wide = sum(any(low <= ord(c) <= high for low, high in WIDE) for c in text)
    return max(1, wide + -(-(len(text) - wide) // 4))


def wire(node: int) -> str:
    return f"n{node}"


def unwire(text: str) -> int:
    return int(text[1:])


class Model:
    """A whole database. `now` is the clock, `via` how its nodes come in."""

    def __init__(self, now: int = 0, via: str = "cli") -> None:
        self.now = now
        self.via = via
        self.seq = 0
        self.last_ts = 0
        self.trees: dict[int, Tree] = {}
        self.nodes: dict[int, Node] = {}
        self.cold: set[int] = set()
        self.pins: dict[int, bool] = {}  # pinned node -> is the pin held
        self.marks: set[int] = set()  # first nodes of excluded units
        # (timeline or None, key) -> (operation, result, ts of the first success)
        self.keys: dict[tuple[int | None, str], tuple[str, Any, int]] = {}
        self._paths: dict[int, tuple[int, ...]] = {0: ()}

    # --- one request ----------------------------------------------------------------------------

    def run(self, op: str, args: dict[str, Any]) -> Any:
        check_shape(op, args)
        if not self.trees and op != "create":
            raise refuse("no database")
        scope = None if op == "create" else self.scope_of(args)
        key = args.get("idempotency_key")
        if key is not None and (scope, key) in self.keys:
            first_op, result, ts = self.keys[scope, key]
            if max(self.now, self.last_ts) - ts <= KEY_SECONDS:
                if first_op != op:
                    raise refuse(f'idempotency key "{key}" belongs to {first_op}')
                return self.remembered(op, result)
        if scope is not None:
            self.check_named(args, scope)
        before = self.seq
        tree = None if scope is None else self.trees[scope]
        result = getattr(self, "do_" + op)(tree, args)
        if key is not None:
            if self.seq == before:
                assert tree is not None  # create always writes
                self.write_line(tree)
            self.keys[scope, key] = (op, self.to_remember(op, result), self.last_ts)
        return result

    def named(self, args: dict[str, Any]) -> list[int]:
        """Nodes the request names, but the root, which every timeline has."""
        names = [args[k] for k in NAMING if k in args]
        return [unwire(n) for n in names + args.get("derived_from", []) if n != "n0"]

    def scope_of(self, args: dict[str, Any]) -> int:
        asked = args.get("timeline_id")
        if asked is not None and int(asked[2:]) not in self.trees:
            raise refuse(f"unknown timeline {asked}")
        for node in self.named(args):
            if node in self.nodes:
                return self.nodes[node].tree
        return min(self.trees) if asked is None else int(asked[2:])

    def check_named(self, args: dict[str, Any], scope: int) -> None:
        for node in self.named(args):
            if node not in self.nodes:
                raise refuse(f"unknown node {wire(node)}")
            if self.nodes[node].tree != scope:
                raise refuse("two timelines in one request")
        if args.get("timeline_id", f"tl{scope}") != f"tl{scope}":
            raise refuse("two timelines in one request")

    def to_remember(self, op: str, result: Any) -> Any:
        if op != "budget":
            return result
        return {**result, "messages": [m["node"] for m in result["messages"]]}

    def remembered(self, op: str, result: Any) -> Any:
        if op != "budget":
            return result
        return {**result, "messages": [self.message(unwire(n)) for n in result["messages"]]}

    def write_line(self, tree: Tree) -> int:
        """One more line of the log, about `tree`; its ts."""
        self.seq += 1
        self.last_ts = max(self.now, self.last_ts)
        tree.changed_seq = self.seq
        tree.updated_at = self.last_ts
        return self.last_ts

    # --- facts about the tree, by walking -------------------------------------------------------

    def path(self, node: int) -> tuple[int, ...]:
        """root..node without the root. A path never changes, so it is walked once."""
        if node not in self._paths:
            walk = []
            at = node
            while at:
                walk.append(at)
                at = self.nodes[at].parent
            self._paths[node] = tuple(reversed(walk))
        return self._paths[node]

    def on_path(self, node: int, head: int) -> bool:
        return node == 0 or node in self.path(head)

    def between(self, first: int, last: int) -> tuple[int, ...]:
        """[first..last], empty where `first` is no ancestor of `last`."""
        path = self.path(last)
        return path[path.index(first) :] if first in path else ()

    def interval(self, summary: Node) -> tuple[int, ...]:
        return self.between(summary.first, summary.last)

    def prefix(self, node: int) -> int:
        return sum(self.nodes[n].tokens for n in self.path(node))

    def of_kind(self, tree: Tree, *kinds: str) -> list[Node]:
        return [n for n in self.nodes.values() if n.tree == tree.number and n.kind in kinds]

    def branches_over(self, tree: Tree, node: int) -> list[Branch]:
        return [b for b in tree.live() if self.on_path(node, b.head)]

    def covering(self, node: int) -> list[int]:
        """Real summaries with the node in their interval, ascending."""
        tree = self.trees[self.nodes[node].tree]
        real = self.of_kind(tree, "real")
        return sorted(s.number for s in real if node in self.interval(s))

    def is_covered(self, node: int) -> bool:
        if self.nodes[node].kind == "real":
            return True
        tree = self.trees[self.nodes[node].tree]
        return any(node in self.interval(s) for s in self.of_kind(tree, "real", "placeholder"))

    def is_sealed(self, node: int) -> bool:
        return all(self.is_covered(n) or self.pins.get(n, False) for n in self.path(node))

    def watermark(self, branch: Branch) -> int:
        """The deepest sealed node of the branch's path."""
        deepest = 0
        for node in self.path(branch.head):
            if self.is_sealed(node):
                deepest = node
        return deepest

    def unit_first(self, node: int) -> int:
        """The node that carries the mark of this node's tool unit."""
        path = self.path(node)
        for n in reversed(path):
            if self.nodes[n].role != "tool":
                return n
        return path[0]  # tool results with nothing before them

    def is_excluded(self, node: int) -> bool:
        return self.unit_first(node) in self.marks

    def superseded_by(self, node: int) -> int | None:
        for n in self.nodes.values():
            if n.supersedes == node:
                return n.number
        return None

    def chain(self, node: int) -> set[int]:
        """Every version of the summary, itself included."""
        versions = {node}
        older = self.nodes[node].supersedes
        while older is not None:
            versions.add(older)
            older = self.nodes[older].supersedes
        newer = self.superseded_by(node)
        while newer is not None:
            versions.add(newer)
            newer = self.superseded_by(newer)
        return versions

    def version(self, node: int) -> int:
        older = self.nodes[node].supersedes
        return 1 if older is None else 1 + self.version(older)

    def is_stale(self, node: int) -> bool:
        summary = self.nodes[node]
        if summary.kind != "real":
            return False
        sources = {*summary.derived_from, *self.interval(summary)} - self.chain(node)
        for s in sources:
            if self.nodes[s].kind == "real" and (
                self.superseded_by(s) is not None or self.is_stale(s)
            ):
                return True
        return False

    def parent_branch(self, tree: Tree, node: int) -> Branch | None:
        """The branch a fork at `node` comes from."""
        if self.on_path(node, tree.current.head):
            return tree.current
        over = self.branches_over(tree, node)
        if over:
            return over[0]
        if self.nodes[node].kind == "real":
            return self.parent_branch(tree, self.nodes[node].last)
        return None

    # --- names ----------------------------------------------------------------------------------

    def live_branch(self, tree: Tree, name: str) -> Branch:
        for b in tree.live():
            if b.name == name:
                return b
        raise refuse(f'unknown branch "{name}"')

    def check_name_free(self, tree: Tree, name: str) -> None:
        if any(b.name == name for b in tree.live()):
            raise refuse(f'branch "{name}" exists')

    def target(self, tree: Tree, args: dict[str, Any]) -> int:
        if "node" in args:
            return unwire(args["node"])
        if "branch" in args:
            return self.live_branch(tree, args["branch"]).head
        return tree.current.head

    def refuse_placeholder(self, node: int) -> None:
        if node and self.nodes[node].kind == "placeholder":
            raise refuse(f"{wire(node)} is a placeholder")

    # --- what comes back ------------------------------------------------------------------------

    def message(self, node: int) -> dict[str, Any]:
        n = self.nodes[node]
        shown: dict[str, Any] = {
            "node": wire(node),
            "role": n.role,
            "text": n.text,
            "tokens": n.tokens,
        }
        if n.intent is not None:
            shown["intent_tag"] = n.intent["tag"]
        if n.kind != "message":
            shown["from"] = wire(n.first)
            shown["to"] = wire(n.last)
        if n.kind == "placeholder":
            shown["placeholder"] = True
        elif self.is_stale(node):
            shown["stale"] = True
        return shown

    def optional_id(self, node: int | None) -> str | None:
        return None if node is None else wire(node)

    def do_node(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        number = unwire(args["node"])
        children = [
            n.number for n in self.nodes.values() if n.tree == tree.number and n.parent == number
        ]
        shown: dict[str, Any] = {
            "node": wire(number),
            "parent": None,
            "children": [wire(c) for c in sorted(children)],
            "role": None,
            "text": "",
            "tokens": 0,
            "prefix_tokens": self.prefix(number),
            "created_at": tree.created_at,
            "via": None,
            "zone": "archive" if number in self.cold else "hot",
            "pinned": number in self.pins,
            "excluded": False,
            "branches": [b.name for b in self.branches_over(tree, number)],
            "covered_by": [],
        }
        if number == 0:
            return shown
        n = self.nodes[number]
        shown["parent"] = wire(n.parent)
        shown["role"] = n.role
        shown["text"] = n.text
        shown["tokens"] = n.tokens
        shown["created_at"] = n.created_at
        shown["via"] = n.via
        shown["excluded"] = self.is_excluded(number)
        shown["covered_by"] = [wire(s) for s in self.covering(number)]
        if n.intent is not None:
            shown["intent"] = n.intent
        if n.kind != "message":
            shown["summary"] = {
                "from": wire(n.first),
                "to": wire(n.last),
                "kind": n.kind,
                "version": self.version(number),
                "supersedes": self.optional_id(n.supersedes),
                "superseded_by": self.optional_id(self.superseded_by(number)),
                "derived_from": [wire(d) for d in n.derived_from],
                "stale": self.is_stale(number),
            }
        return shown

    def do_branches(self, tree: Tree, args: dict[str, Any]) -> list[dict[str, Any]]:
        everything = args.get("all", False)
        rows = []
        for b in tree.branches if everything else tree.live():
            parent = b.parent if b.parent is not None and b.parent.status == "live" else None
            row = {
                "name": b.name,
                "head": wire(b.head),
                "current": b is tree.current,
                "parent": None if parent is None else parent.name,
                "fork_node": self.optional_id(b.fork_node),
                "created_at": b.created_at,
                "messages": len(self.path(b.head)),
                "tokens": self.prefix(b.head),
            }
            if everything:
                row["status"] = b.status
            rows.append(row)
        return rows

    def do_list(self, tree: Tree, args: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for t in sorted(self.trees.values(), key=lambda t: -t.changed_seq):
            messages = self.of_kind(t, "message")
            rows.append(
                {
                    "timeline_id": f"tl{t.number}",
                    "title": t.title,
                    "branches": len(t.live()),
                    "current_branch": t.current.name,
                    "head": wire(t.current.head),
                    "messages": len(messages),
                    "tokens": sum(m.tokens for m in messages),
                    "project": None,
                    "created_at": t.created_at,
                    "updated_at": t.updated_at,
                }
            )
        return rows[: args.get("limit", len(rows))]

    def do_context(self, tree: Tree, args: dict[str, Any]) -> list[dict[str, Any]]:
        path = list(self.path(self.target(tree, args)))
        if "before" in args:
            before = unwire(args["before"])
            if "node" not in args and "branch" not in args:  # then it says which path, too
                path = list(self.path(before))
            if before not in path:
                raise refuse(f"{args['before']} is not on the path")
            path = path[: path.index(before)]
        shown = [n for n in path if not self.is_excluded(n)]
        last = args.get("last", len(shown))
        return [self.message(n) for n in shown[len(shown) - min(last, len(shown)) :]]

    def do_summaries(self, tree: Tree, args: dict[str, Any]) -> list[dict[str, Any]]:
        path = self.path(self.target(tree, args))
        rows = []
        for s in self.of_kind(tree, "real", "placeholder"):
            inline = s.number in path
            if s.first not in path and not inline:
                continue
            interval = self.interval(s)
            row = {
                "node": wire(s.number),
                "from": wire(s.first),
                "to": wire(s.last),
                "kind": s.kind,
                "version": self.version(s.number),
                "tokens": s.tokens,
                "stale": self.is_stale(s.number),
                "supersedes": self.optional_id(s.supersedes),
                "superseded_by": self.optional_id(self.superseded_by(s.number)),
            }
            if inline:
                row["inline"] = True
            if s.last not in path and not inline:
                common = [n for n in interval if n in path]
                row["status"] = "hidden"
                row["on_path"] = {"from": wire(common[0]), "to": wire(common[-1])}
            elif s.kind == "placeholder":
                row["status"] = "placeholder"
                row["backfilled_by"] = self.optional_id(self.backfill(tree, interval))
            elif row["superseded_by"] is not None:
                row["status"] = "superseded"
            else:
                row["status"] = "stale" if row["stale"] else "active"
            rows.append(row)
        return sorted(rows, key=lambda row: unwire(row["node"]))

    def backfill(self, tree: Tree, interval: tuple[int, ...]) -> int | None:
        """The newest real summary whose interval holds the whole of this one."""
        holds = [
            s.number for s in self.of_kind(tree, "real") if set(interval) <= set(self.interval(s))
        ]
        return max(holds, default=None)

    def do_search(self, tree: Tree, args: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows without `snippet`."""
        needle = args["text"].casefold() if args.get("ignore_case") else args["text"]
        inside = None
        if "branch" in args:
            inside = self.path(self.live_branch(tree, args["branch"]).head)
        rows = []
        for n in sorted(self.nodes.values(), key=lambda n: -n.number):
            text = n.text.casefold() if args.get("ignore_case") else n.text
            if n.kind == "placeholder" or needle not in text:
                continue
            if "timeline_id" in args and n.tree != tree.number:
                continue
            if n.role != args.get("role", n.role):
                continue
            if inside is not None and n.number not in inside:
                continue
            over = self.branches_over(self.trees[n.tree], n.number)
            rows.append(
                {
                    "timeline_id": f"tl{n.tree}",
                    "node": wire(n.number),
                    "role": n.role,
                    "branches": [b.name for b in over],
                    "created_at": n.created_at,
                }
            )
        return rows[: args.get("limit", 20)]

    # --- changes --------------------------------------------------------------------------------

    def new_node(self, tree: Tree, parent: int, kind: str, ts: int) -> Node:
        node = Node(max(self.nodes, default=0) + 1, tree.number, parent, kind)
        node.created_at = ts
        node.via = self.via
        self.nodes[node.number] = node
        if kind != "message":  # pins that stand now are held from here on
            for pinned in self.pins:
                if self.nodes[pinned].tree == tree.number:
                    self.pins[pinned] = True
        return node

    def new_branch(self, tree: Tree, name: str, head: int, ts: int) -> Branch:
        branch = Branch(len(tree.branches), name, head, ts)
        tree.branches.append(branch)
        return branch

    def do_create(self, _: None, args: dict[str, Any]) -> dict[str, Any]:
        number = max(self.trees, default=-1) + 1
        tree = Tree(number, args.get("title"), args.get("estimator", "scalar4"), 0)
        self.trees[number] = tree
        tree.created_at = self.write_line(tree)
        tree.current = self.new_branch(tree, "main", 0, tree.created_at)
        return {"timeline_id": f"tl{number}"}

    def tokens_for(self, tree: Tree, args: dict[str, Any], text: str, parent: int) -> int:
        tokens: int = args.get("tokens", estimate(text, tree.estimator))
        if self.prefix(parent) + tokens > TOKENS_MAX:
            raise refuse("token overflow")
        return tokens

    def do_append(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        branch = tree.current
        if "branch" in args:
            branch = self.live_branch(tree, args["branch"])
        expected = args.get("expect_head", wire(branch.head))
        if expected != wire(branch.head):
            raise refuse("head moved", expected=expected, actual=wire(branch.head))
        tokens = self.tokens_for(tree, args, args["text"], branch.head)
        node = self.new_node(tree, branch.head, "message", self.write_line(tree))
        node.role = args["role"]
        node.text = args["text"]
        node.tokens = tokens
        node.intent = args.get("intent")
        branch.head = node.number
        return {"node": wire(node.number)}

    def do_fork(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        node = unwire(args["node"])
        self.refuse_placeholder(node)
        self.check_name_free(tree, args["name"])
        if node in self.cold:
            raise refuse(f"{args['node']} is archived: thaw it first")
        parent = self.parent_branch(tree, node)
        branch = self.new_branch(tree, args["name"], node, self.write_line(tree))
        branch.parent = parent
        branch.fork_node = node
        return {"branch": args["name"], "head": args["node"]}

    def do_switch(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        branch = self.live_branch(tree, args["name"])
        if branch is not tree.current:
            self.write_line(tree)
            tree.current = branch
        return {"current_branch": args["name"]}

    def do_drop_branch(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        branch = self.live_branch(tree, args["name"])
        if branch is tree.current:
            raise refuse(f'"{args["name"]}" is the current branch')
        self.write_line(tree)
        branch.status = "dropped"
        return {"dropped": args["name"]}

    def do_pin(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        node = unwire(args["node"])
        self.refuse_placeholder(node)
        if self.is_excluded(node):
            raise refuse(f"{args['node']} is excluded")
        if node not in self.pins:
            self.write_line(tree)
            self.pins[node] = False
        return {"pinned": args["node"]}

    def do_unpin(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        node = unwire(args["node"])
        self.refuse_placeholder(node)
        if node in self.pins:
            if self.is_sealed(node) and not self.is_covered(node):
                raise refuse(f"{args['node']} would be bare above the watermark")
            self.write_line(tree)
            del self.pins[node]
        return {"unpinned": args["node"]}

    def do_exclude(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        node = unwire(args["node"])
        self.refuse_placeholder(node)
        first = self.unit_first(node)
        if any(self.unit_first(p) == first for p in self.pins):
            raise refuse(f"the unit of {args['node']} is pinned")
        if first not in self.marks:
            self.write_line(tree)
            self.marks.add(first)
        return {"excluded": [wire(n) for n in self.between(first, node)]}

    def do_include(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        node = unwire(args["node"])
        self.refuse_placeholder(node)
        first = self.unit_first(node)
        if first in self.marks:
            self.write_line(tree)
            self.marks.remove(first)
        return {"included": [wire(n) for n in self.between(first, node)]}

    def do_summarize(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        first, last = unwire(args["from"]), unwire(args["to"])
        sources = list(dict.fromkeys(unwire(d) for d in args.get("derived_from", [])))
        supersede = unwire(args["supersede"]) if "supersede" in args else None
        for node in (first, last, *sources):
            self.refuse_placeholder(node)
        if not self.between(first, last):
            raise refuse(f"{args['from']} is not on the path of {args['to']}")
        parent = self.nodes[first].parent
        tokens = self.tokens_for(tree, args, args["summary"], parent)
        said = (first, last, args["summary"], tokens, sources, supersede, args.get("intent"))
        for s in self.of_kind(tree, "real"):
            if said == (s.first, s.last, s.text, s.tokens, s.derived_from, s.supersedes, s.intent):
                return {"node": wire(s.number)}
        if supersede is not None:
            self.check_supersede(supersede, first, last)
        node_made = self.new_node(tree, parent, "real", self.write_line(tree))
        node_made.text = args["summary"]
        node_made.tokens = tokens
        node_made.intent = args.get("intent")
        node_made.first = first
        node_made.last = last
        node_made.derived_from = sources
        node_made.supersedes = supersede
        return {"node": wire(node_made.number)}

    def check_supersede(self, old: int, first: int, last: int) -> None:
        if self.nodes[old].kind != "real":
            raise refuse(f"{wire(old)} is no summary")
        if (self.nodes[old].first, self.nodes[old].last) != (first, last):
            raise refuse(f"{wire(old)} has another interval")
        if self.superseded_by(old) is not None:
            raise refuse(f"{wire(max(self.chain(old)))} is the newest")

    # --- budget ---------------------------------------------------------------------------------

    def do_budget(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        target = self.target(tree, args)
        self.refuse_placeholder(target)
        path = self.path(target)
        shown = [n for n in path if not self.is_excluded(n)]
        if not shown:
            return {"messages": [], "total_tokens": 0, "summaries_created": []}
        units: list[list[int]] = []
        for n in shown:
            if units and self.nodes[n].role == "tool":
                units[-1].append(n)
            else:
                units.append([n])
        weights = [sum(self.nodes[n].tokens for n in unit) for unit in units]
        mandatory = {u for u, unit in enumerate(units) if any(n in self.pins for n in unit)}
        mandatory.add(len(units) - 1)
        ranges = self.candidates(tree, path[: path.index(shown[-1]) + 1], units)
        offers = [
            (left, right, s.tokens, self.is_stale(s.number), len(self.interval(s)), s.number)
            for s, left, right in ranges
        ]
        order = args.get("order", "turns")
        limit = args["max_tokens"]
        answer = naive_select(weights, mandatory, offers, limit, order)
        if not answer["ok"]:
            required = answer["required"]
            raise refuse("budget infeasible", required_tokens=required, max_tokens=limit)
        gaps = [
            (units[item[1]][0], units[item[2]][-1]) for item in answer["items"] if item[0] == "gap"
        ]
        made = self.placeholders(tree, gaps, dry_run=args.get("dry_run", False))
        messages: list[dict[str, Any]] = []
        for item in answer["items"]:
            if item[0] == "keep":
                for unit in units[item[1] : item[2] + 1]:
                    messages.extend(self.message(n) for n in unit)
            elif item[0] == "summary":
                messages.append(self.message(ranges[item[1]][0].number))
            else:
                gap = (units[item[1]][0], units[item[2]][-1])
                known = made[gap]
                messages.append(
                    self.unwritten_placeholder(gap) if known is None else self.message(known)
                )
        return {
            "messages": messages,
            "total_tokens": answer["total"],
            "summaries_created": [wire(p) for gap in gaps if (p := made[gap]) is not None],
        }

    def candidates(
        self, tree: Tree, path: tuple[int, ...], units: list[list[int]]
    ) -> list[tuple[Node, int, int]]:
        """Summaries the budget may show on this path, each with the units it covers."""
        found = []
        for s in self.of_kind(tree, "real"):
            if s.last not in path or self.superseded_by(s.number) is not None:
                continue
            if self.is_excluded(s.number):
                continue
            interval = set(self.interval(s))
            covered = [u for u, unit in enumerate(units) if set(unit) <= interval]
            if covered:
                found.append((s, covered[0], covered[-1]))
        return found

    def placeholder_text(self, gap: tuple[int, int]) -> str:
        first, last = wire(gap[0]), wire(gap[1])
        return (
            f"[{len(self.between(*gap))} messages left out: {first}..{last}. "
            f"Read the originals as the context of {last}, from {first} on.]"
        )

    def unwritten_placeholder(self, gap: tuple[int, int]) -> dict[str, Any]:
        return {
            "node": None,
            "role": "summary",
            "text": self.placeholder_text(gap),
            "tokens": RESERVE_TOKENS,
            "from": wire(gap[0]),
            "to": wire(gap[1]),
            "placeholder": True,
        }

    def placeholders(
        self, tree: Tree, gaps: list[tuple[int, int]], *, dry_run: bool
    ) -> dict[tuple[int, int], int | None]:
        """The placeholder of each gap, old or made now; None where a dry run makes none."""
        known: dict[tuple[int, int], int | None] = dict.fromkeys(gaps)
        for p in self.of_kind(tree, "placeholder"):
            if (p.first, p.last) in known:
                known[p.first, p.last] = p.number
        missing = [gap for gap in gaps if known[gap] is None]
        if missing and not dry_run:
            ts = self.write_line(tree)
            for gap in missing:
                node = self.new_node(tree, self.nodes[gap[0]].parent, "placeholder", ts)
                node.text = self.placeholder_text(gap)
                node.tokens = RESERVE_TOKENS
                node.first, node.last = gap
                known[gap] = node.number
        return known

    # --- archive --------------------------------------------------------------------------------

    def own_nodes(self, tree: Tree, branch: Branch) -> list[int]:
        """Nodes of the branch's path that are on no other branch's path, oldest first."""
        return [n for n in self.path(branch.head) if self.branches_over(tree, n) == [branch]]

    def reasons(self, tree: Tree, branch: Branch, args: dict[str, Any]) -> list[dict[str, Any]]:
        """What stands in the way, each without its `message`."""
        looked_at = list(self.path(branch.head))
        if "scope" in args:
            looked_at = self.own_nodes(tree, branch)
        pinned = [n for n in looked_at if n in self.pins]
        uncovered = [
            n for n in looked_at if self.nodes[n].kind == "message" and not self.covering(n)
        ]
        reasons = []
        if branch is tree.current:
            reasons.append({"reason": "current", "nodes": [], "count": 0})
        for reason, nodes in (("pinned", pinned), ("uncovered", uncovered)):
            if nodes:
                first = [wire(n) for n in nodes[:100]]
                reasons.append({"reason": reason, "nodes": first, "count": len(nodes)})
        return reasons

    def do_archive_check(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        branch = self.live_branch(tree, args["branch"])
        reasons = self.reasons(tree, branch, args)
        return {"eligible": not reasons, "reasons": reasons}

    def do_archive_branch(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        branch = self.live_branch(tree, args["branch"])
        reasons = self.reasons(tree, branch, args)
        if reasons:
            raise refuse("not eligible", reasons=reasons)
        moved = [
            n
            for n in self.own_nodes(tree, branch)
            if self.nodes[n].kind == "message" and n not in self.cold
        ]
        self.write_line(tree)
        self.cold.update(moved)
        branch.status = "archived"
        branch.archived_seq = self.seq
        return {"archived": [wire(n) for n in moved]}

    def do_thaw(self, tree: Tree, args: dict[str, Any]) -> dict[str, Any]:
        if "node" in args:
            node = unwire(args["node"])
            self.refuse_placeholder(node)
            moved = [n for n in self.path(node) if n in self.cold]
            if moved:
                self.write_line(tree)
        else:
            archived = [
                b for b in tree.branches if b.status == "archived" and b.name == args["name"]
            ]
            if not archived:
                self.live_branch(tree, args["name"])
                raise refuse(f'branch "{args["name"]}" is not archived')
            branch = max(archived, key=lambda b: b.archived_seq)
            name = args.get("as_name", args["name"])
            self.check_name_free(tree, name)
            moved = [n for n in self.path(branch.head) if n in self.cold]
            self.write_line(tree)
            branch.name = name
            branch.status = "live"
        self.cold.difference_update(moved)
        return {"thawed": [wire(n) for n in moved]}
