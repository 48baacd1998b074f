"""Seeded random steps over the state a `Model` is in.

A step is a JSON object, so that a run can be printed and replayed:

    {"op": "append", "args": {...}}            one request
    {"op": ..., "args": ..., "process": true}  the same, sent by a `tl` process of its own
    {"do": "clock", "seconds": N}              time passes (or the clock is set back)
    {"do": "other"}                            from now on the other open database object asks
    {"do": "reopen"} / {"do": "reindex"}       close and open again / without the index
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kit.model import TOKENS_MAX, Branch, Model, ModelError, Node, Tree, check_shape

Step = dict[str, Any]
Args = dict[str, Any]
Maker = Callable[[], Step | None]

DAY = 86_400
TEXTS = (
    "",
    " ",
    "apple",
    "An apple a day keeps the doctor away, they say.",
    "Straße, STRASSE, strasse: ß and ẞ fold alike. İstanbul ΣΑΣ σας.",
    "GROSSE STRASSE",
    "große straße",
    "你好，世界。今天我们讨论预算。",
    "日本語のテキストと한국어 텍스트",
    "مرحبا שלום",
    "👩‍👩‍👧 é e\u0301 𠮷 \U0001f9ea",
    "line one\nline two\r\nline three\n",
    "\ufeffbyte order mark first",
    "para\u2028graph\u2029separators\x85and\x0bmore\x0cbreaks",
    "\x1b[2J\x1b]0;title\x07 escape codes",
    "NUL \x00 in the middle",
    '{"text":"looks like a log line","crc":"00000000"}\n',
    'quotes " and \\ backslashes \\n \\u0041',
    "tab\tand trailing space ",
    "abc" * 700,
    "漢字" * 300,
    "x" * 121,
)
TOKENS = (None, None, None, 0, 1, 5, 20, 31, 32, 33, 40, 64, 100, 254, 255, 256, 257, 1000)
NAMES = ("dev", "try", "试验", "a b", "étage", "--flag", "-x", "Dev", "long" * 50, "👩‍👧", "n5")
BAD_NAMES = ("", "a/b", " lead", "trail ", "new\nline", "nul\x00", "y" * 201)
KEYS = ("k", "retry-1", "键", " ", "K" * 256)


class RandomSteps:
    """Draws the next step from a model that has run all steps drawn before."""

    def __init__(self, seed: int, model: Model) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.queue: list[Maker] = []
        self.sent: list[Step] = []  # requests that carried a key
        self.count = 0
        self.second_timeline = self.rng.random() < 0.35
        self.process_at = self.rng.randrange(5, 55) if seed % 50 == 7 else -1
        lean = self.rng.choice(("even", "archive", "budget", "tools", "versions"))
        self.weights = {
            self.append: 30,
            self.fork: 8,
            self.switch: 4,
            self.drop: 2,
            self.pin: 5,
            self.unpin: 5,
            self.exclude: 4,
            self.include: 2,
            self.summarize: 9,
            self.new_version: 5,
            self.backfill: 3,
            self.same_again: 2,
            self.broken_interval: 2,
            self.budget: 8,
            self.archive: 3,
            self.plan_archive: 4,
            self.thaw: 4,
            self.context: 3,
            self.search: 3,
            self.small_reads: 2,
            self.plan_held: 2,
            self.plan_tool_unit: 1,
            self.plan_stale_retry: 1,
            self.plan_expiry: 2,
            self.plan_marked_budget: 3,
            self.below_cold: 3,
            self.retry: 4,
            self.key_of_another: 2,
            self.clock: 2,
            self.reopen: 3,
            self.malformed: 2,
            self.unknown: 2,
            self.create: 1 if self.second_timeline else 0,
        }
        for maker in {
            "even": [],
            "archive": [self.plan_archive, self.thaw, self.archive],
            "budget": [self.budget, self.backfill],
            "tools": [self.exclude, self.pin],
            "versions": [self.new_version, self.summarize],
        }[lean]:
            self.weights[maker] *= 3
        self.tool_share = 0.5 if lean == "tools" else 0.2

    # --- the stream -----------------------------------------------------------------------------

    def next_step(self) -> Step:
        self.count += 1
        if self.count == self.process_at and self.model.trees:
            step = self.for_process()
        else:
            step = self.draw()
        if "idempotency_key" in step.get("args", {}):
            self.sent.append(step)
        return step

    def draw(self) -> Step:
        if not self.model.trees:
            return self.first_steps()
        if self.second_timeline and len(self.model.trees) == 1 and self.count > 12:
            return self.create() or {"do": "other"}
        while True:
            if self.queue:
                step = self.queue.pop(0)()
            else:
                makers = list(self.weights)
                step = self.rng.choices(makers, [self.weights[m] for m in makers])[0]()
            if step is not None:
                return step

    def first_steps(self) -> Step:
        if self.rng.random() < 0.1:
            return self.rng.choice(
                [
                    {"op": "list", "args": {}},
                    {"op": "append", "args": {"role": "user", "text": "too early"}},
                    {"op": "branches", "args": {"timeline_id": "tl0"}},
                ]
            )
        for _ in range(self.rng.randrange(3, 9)):
            self.queue.append(self.append)
        step = self.create()
        assert step is not None
        return step

    def for_process(self) -> Step:
        while True:
            step = self.draw()
            if "op" in step and is_sendable(step["op"], step["args"]):
                return {**step, "process": True}

    # --- picking --------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def tree(self) -> Tree:
        trees = list(self.model.trees.values())
        return self.rng.choice(trees[:1] * 2 + trees)

    def live(self, tree: Tree) -> Branch:
        """A branch, the current one more often than the others."""
        return self.rng.choice([*tree.live(), tree.current])

    def others(self, tree: Tree) -> list[Branch]:
        return [b for b in tree.live() if b is not tree.current]

    def nodes(self, tree: Tree, *kinds: str) -> list[Node]:
        return self.model.of_kind(tree, *(kinds or ("message", "real")))

    def node(self, tree: Tree) -> str | None:
        """A message or real summary, the young ones more often than the old."""
        nodes = self.nodes(tree)
        if not nodes:
            return None
        if self.chance(0.5):
            nodes = nodes[-8:]
        return f"n{self.rng.choice(nodes).number}"

    def any_node(self, tree: Tree) -> str:
        """Mostly a usable node; at times the root, a placeholder, a cold one."""
        roll = self.rng.random()
        chosen: list[Node] = []
        if roll < 0.03:
            return "n0"
        if roll < 0.06:
            chosen = self.nodes(tree, "placeholder")
        elif roll < 0.25:
            chosen = self.nodes(tree, "real")
        elif roll < 0.32:
            chosen = [n for n in self.nodes(tree) if n.number in self.model.cold]
        if chosen:
            return f"n{self.rng.choice(chosen).number}"
        return self.node(tree) or "n0"

    def name(self) -> str:
        return self.rng.choice(NAMES)

    def text(self) -> str:
        text = self.rng.choice(TEXTS)
        return text if self.chance(0.6) else f"{text} {self.rng.randrange(1000)}"

    def tokens(self, args: Args) -> None:
        tokens = self.rng.choice(TOKENS)
        if tokens is not None:
            args["tokens"] = tokens

    def intent(self, args: Args) -> None:
        if self.chance(0.15):
            args["intent"] = {"tag": self.rng.choice(("plan", "事実", "fix it"))}
            if self.chance(0.5):
                args["intent"]["note"] = self.text()

    def key(self, args: Args) -> None:
        if self.chance(0.15):
            fresh = f"key-{self.count}"
            args["idempotency_key"] = self.rng.choice((fresh, fresh, fresh, *KEYS))

    def by_name(self, tree: Tree, args: Args) -> Args:
        """`args` for a request that names no node: say which timeline, unless it is the first."""
        if tree.number or self.chance(0.3):
            args["timeline_id"] = f"tl{tree.number}"
        return args

    def named_in(self, tree: Tree, args: Args) -> Args:
        return {**args, "timeline_id": f"tl{tree.number}"}

    def by_node(self, tree: Tree, args: Args) -> Args:
        if "n0" in (args.get("node"), args.get("before")) or self.chance(0.3):
            return self.by_name(tree, args)
        if self.chance(0.02) and "idempotency_key" not in args:
            args["timeline_id"] = f"tl{self.rng.choice(list(self.model.trees))}"
        return args

    def target(self, tree: Tree, args: Args) -> Args:
        roll = self.rng.random()
        if roll < 0.35:
            args["node"] = self.any_node(tree)
            return self.by_node(tree, args)
        if roll < 0.65:
            args["branch"] = self.live(tree).name
        return self.by_name(tree, args)

    # --- changes --------------------------------------------------------------------------------

    def create(self) -> Step | None:
        if len(self.model.trees) >= 2 and self.chance(0.7):
            return None
        args: Args = {}
        if self.chance(0.4):
            args["title"] = self.rng.choice(("Notes", "标题", ""))
        if self.chance(0.3):
            args["estimator"] = self.rng.choice(("scalar4", "wide"))
        self.key(args)
        return {"op": "create", "args": args}

    def append(self) -> Step | None:
        tree = self.tree()
        role = "tool"
        if not self.chance(self.tool_share):
            role = self.rng.choice(("user", "user", "assistant", "assistant", "system", "summary"))
        args: Args = {"role": role, "text": self.text()}
        self.tokens(args)
        if self.chance(0.004):
            args["tokens"] = TOKENS_MAX
        self.intent(args)
        branch = tree.current
        if self.chance(0.4):
            branch = self.live(tree)
            args["branch"] = branch.name
        if self.chance(0.15):
            args["expect_head"] = f"n{branch.head}"
            if self.chance(0.3):
                args["expect_head"] = self.any_node(self.tree())
        self.key(args)
        return {"op": "append", "args": self.by_name(tree, args)}

    def fork(self) -> Step | None:
        tree = self.tree()
        if len(tree.live()) > 6 and self.chance(0.7):
            return None
        args: Args = {"node": self.any_node(tree), "name": self.name()}
        if self.chance(0.15):
            args["node"] = self.one_of(tree, sorted(self.model.cold)) or args["node"]
        self.key(args)
        if self.chance(0.6):
            self.queue.append(self.append_to(tree, args["name"]))
        if self.chance(0.3):
            self.queue.append(self.append_to(tree, args["name"]))
        return {"op": "fork", "args": self.by_node(tree, args)}

    def append_to(self, tree: Tree, name: str) -> Maker:
        def make() -> Step | None:
            if not any(b.name == name for b in tree.live()):
                return None
            args: Args = {"role": "user", "text": self.text(), "branch": name}
            self.tokens(args)
            return {"op": "append", "args": self.by_name(tree, args)}

        return make

    def switch(self) -> Step | None:
        tree = self.tree()
        args: Args = {"name": self.live(tree).name if self.chance(0.9) else self.name()}
        self.key(args)
        return {"op": "switch", "args": self.by_name(tree, args)}

    def drop(self) -> Step | None:
        tree = self.tree()
        branch = self.rng.choice(self.others(tree) or [tree.current])
        args: Args = {"name": branch.name if self.chance(0.8) else self.name()}
        self.key(args)
        return {"op": "drop_branch", "args": self.by_name(tree, args)}

    def on_node(self, op: str, node: str, tree: Tree) -> Step:
        args: Args = {"node": node}
        self.key(args)
        return {"op": op, "args": self.by_node(tree, args)}

    def one_of(self, tree: Tree, numbers: list[int]) -> str | None:
        """One of those of `numbers` that are nodes of the tree."""
        chosen = [n for n in numbers if self.model.nodes[n].tree == tree.number]
        return f"n{self.rng.choice(chosen)}" if chosen else None

    def pin(self) -> Step | None:
        tree = self.tree()
        node = self.any_node(tree)
        if self.model.marks and self.chance(0.15):
            node = self.one_of(tree, sorted(self.model.marks)) or node
        elif self.chance(0.4):  # just under the watermark: once held, it must not come off
            path = self.model.path(self.live(tree).head)
            bare = [n for n in path if not self.model.is_covered(n)]
            node = f"n{bare[0]}" if bare else node
        return None if node == "n0" else self.on_node("pin", node, tree)

    def unpin(self) -> Step | None:
        tree = self.tree()
        node = self.any_node(tree)
        if self.chance(0.9):
            node = self.one_of(tree, sorted(self.model.pins)) or "n0"
        return None if node == "n0" else self.on_node("unpin", node, tree)

    def exclude(self) -> Step | None:
        tree = self.tree()
        node = self.any_node(tree)
        if self.chance(0.5):
            tools = [n.number for n in self.nodes(tree) if n.role == "tool"]
            node = self.one_of(tree, tools) or node
        return None if node == "n0" else self.on_node("exclude", node, tree)

    def include(self) -> Step | None:
        tree = self.tree()
        node = self.any_node(tree)
        if self.chance(0.8):
            left_out = [n for n in self.model.nodes if self.model.is_excluded(n)]
            node = self.one_of(tree, left_out) or "n0"
        return None if node == "n0" else self.on_node("include", node, tree)

    def plan_held(self) -> Step | None:
        """Pin just under the watermark, summarize something, take the pin off."""
        tree = self.tree()
        through = [
            b
            for b in tree.live()
            if any(self.model.nodes[n].kind == "real" for n in self.model.path(b.head))
        ]
        branch = self.rng.choice(through) if through and self.chance(0.6) else self.live(tree)

        def pin() -> Step | None:
            path = self.model.path(branch.head)
            bare = [n for n in path if not self.model.is_covered(n)]
            return self.on_node("pin", f"n{bare[0]}", tree) if bare else None

        def unpin() -> Step | None:
            pinned = [n for n in self.model.path(branch.head) if n in self.model.pins]
            return self.on_node("unpin", f"n{self.rng.choice(pinned)}", tree) if pinned else None

        self.queue += [pin, self.rng.choice((self.summarize, self.budget)), unpin]
        return self.append_to(tree, branch.name)()

    def plan_tool_unit(self) -> Step | None:
        """One call with results on two branches; one result pinned, another to be excluded."""
        tree = self.tree()
        branch = self.live(tree)
        if branch.head == 0 or branch.head in self.model.cold:
            return None
        first = self.model.unit_first(branch.head)
        name = f"unit {self.count}"

        def result(on: str) -> Maker:
            said = {"role": "tool", "text": "a result", "branch": on}
            return lambda: {"op": "append", "args": self.named_in(tree, said)}

        def mark(op: str) -> Maker:
            def make() -> Step | None:
                numbers = [n.number for n in self.nodes(tree)]
                unit = [n for n in numbers if self.model.unit_first(n) == first]
                return self.on_node(op, f"n{self.rng.choice(unit)}", tree)

            return make

        ops = self.rng.choice((("pin", "exclude"), ("exclude", "pin"), ("exclude", "include")))
        self.queue += [result(branch.name), result(name), mark(ops[0]), mark(ops[1])]
        return {"op": "fork", "args": {"node": f"n{first}", "name": name}}

    # --- summaries ------------------------------------------------------------------------------

    def summary(self, tree: Tree, first: int, last: int, **more: Any) -> Step:
        args: Args = {"from": f"n{first}", "to": f"n{last}", "summary": self.text(), **more}
        if self.chance(0.6):
            args["tokens"] = self.rng.choice((0, 1, 5, 20, 31, 32, 33, 40, 70, 100, 300))
        if self.chance(0.45):
            pool = self.nodes(tree, "real") * 5 + self.nodes(tree)[-6:]
            chosen = self.rng.sample(pool, min(len(pool), self.rng.randrange(4)))
            args["derived_from"] = [f"n{n.number}" for n in chosen]
            if self.chance(0.05):
                args["derived_from"] += [f"n{n.number}" for n in self.model.nodes.values()][-3:]
        self.intent(args)
        self.key(args)
        return {"op": "summarize", "args": self.by_node(tree, args)}

    def summarize(self) -> Step | None:
        tree = self.tree()
        heads = [b.head for b in tree.live()]
        if self.chance(0.2):  # off every branch too
            heads += [n.number for n in self.nodes(tree)]
        path = self.model.path(self.rng.choice(heads))
        if not path:
            return None
        first, last = sorted(self.rng.randrange(len(path)) for _ in range(2))
        roll = self.rng.random()
        if roll < 0.25:
            first, last = 0, len(path) - 1
        elif roll < 0.45:
            first = 0
        elif roll < 0.6:
            last = min(last, first + 2)
        return self.summary(tree, path[first], path[last])

    def new_version(self) -> Step | None:
        tree = self.tree()
        real = self.nodes(tree, "real")
        if not real:
            return None
        if self.chance(0.8):
            real = [s for s in real if self.model.superseded_by(s.number) is None]
        old = self.rng.choice(real)
        first, last = old.first, old.last
        if self.chance(0.1):
            last = first
        old_id = f"n{old.number}"
        if self.chance(0.03):
            old_id = self.node(tree) or old_id
        return self.summary(tree, first, last, supersede=old_id)

    def backfill(self) -> Step | None:
        tree = self.tree()
        gaps = self.nodes(tree, "placeholder")
        if not gaps:
            return None
        gap = self.rng.choice(gaps)
        first = gap.first
        if self.chance(0.4):
            first = self.rng.choice(self.model.path(first))
        return self.summary(tree, first, gap.last)

    def same_again(self) -> Step | None:
        """An existing summary's parameters, at times with a small difference."""
        tree = self.tree()
        real = self.nodes(tree, "real")
        if not real:
            return None
        s = self.rng.choice(real)
        args: Args = {
            "from": f"n{s.first}",
            "to": f"n{s.last}",
            "summary": s.text,
            "tokens": s.tokens,
        }
        if s.derived_from:
            args["derived_from"] = [f"n{d}" for d in s.derived_from + s.derived_from[:1]]
        if s.supersedes is not None:
            args["supersede"] = f"n{s.supersedes}"
        if s.intent is not None:
            args["intent"] = s.intent
        if self.chance(0.2):
            args["tokens"] += 1
        elif self.chance(0.2):
            args["intent"] = {"tag": "again"}
        elif self.chance(0.2):
            args["supersede"] = f"n{max(self.model.chain(s.number))}"
        elif len(args.get("derived_from", [])) > 2 and self.chance(0.2):
            args["derived_from"] = args["derived_from"][:-1][::-1]
        self.key(args)
        return {"op": "summarize", "args": self.by_node(tree, args)}

    def broken_interval(self) -> Step | None:
        tree = self.tree()
        real = self.nodes(tree, "real")
        below = [
            (s.first, n.number)
            for s in real
            for n in self.nodes(tree)
            if s.number in self.model.path(n.number)
        ]
        if below and self.chance(0.5):  # through a summary
            return self.summary(tree, *self.rng.choice(below))
        a, b = self.any_node(tree), self.any_node(tree)
        return None if "n0" in (a, b) else self.summary(tree, int(a[1:]), int(b[1:]))

    # --- budget ---------------------------------------------------------------------------------

    def budget(self) -> Step | None:
        tree = self.tree()
        return self.budget_on(self.target(tree, {}))

    def budget_on(self, args: Args) -> Step:
        if self.chance(0.35):
            args["order"] = self.rng.choice(("turns", "tiers"))
        required = self.required(args)
        everything = required + 100
        with suppress(ModelError):
            whole = {**args, "max_tokens": TOKENS_MAX, "dry_run": True}
            everything = self.model.run("budget", whole)["total_tokens"]
        between = required + int((everything - required) * self.rng.random() ** 2)
        near = (required, required, required - 1, required + 1, everything - 1, everything)
        args["max_tokens"] = max(0, self.rng.choice((*near, between, between, between)))
        if self.chance(0.25):
            args["dry_run"] = True
        else:
            self.key(args)
        return {"op": "budget", "args": args}

    def required(self, args: Args) -> int:
        """Tokens of the cheapest layout for this target."""
        try:
            self.model.run("budget", {**args, "max_tokens": 0, "dry_run": True})
        except ModelError as error:
            return int((error.data or {}).get("required_tokens", 0))
        return 0

    def plan_marked_budget(self) -> Step | None:
        """Overlapping summaries, one in two versions, marks here and there, and tight budgets."""
        tree = self.tree()
        branch = self.live(tree)
        path = self.model.path(branch.head)
        if len(path) < 4:
            return None

        def some(*, wide: bool) -> Maker:
            a, b = sorted(self.rng.sample(path[:-1], 2))
            if wide:
                a = path[0]
            said: Args = {"from": f"n{a}", "to": f"n{b}", "summary": self.text()}
            said["tokens"] = self.rng.choice((1, 20, 33, 70))
            return lambda: {"op": "summarize", "args": said}

        def exclude() -> Step | None:
            real = [s.number for s in self.nodes(tree, "real") if s.last in path]
            fit = real[-2:] if self.chance(0.5) else list(path)
            return self.on_node("exclude", f"n{self.rng.choice(fit or path)}", tree)

        def ask() -> Step:
            return self.budget_on(self.named_in(tree, {"branch": branch.name}))

        plan = [some(wide=True), some(wide=False), self.new_version, exclude, exclude]
        self.queue += [m for m in plan if self.chance(0.75)] + [ask, ask]
        return self.queue.pop(0)()

    def plan_stale_retry(self) -> Step | None:
        """A keyed budget that shows a summary, asked again when that summary has become stale."""
        tree = self.tree()
        branch = self.live(tree)
        path = self.model.path(branch.head)
        if len(path) < 3:
            return None
        first, last = f"n{path[0]}", f"n{path[-2]}"
        key = f"stale-{self.count}"
        mine: list[Node] = []  # the summary the other is made of

        def whole() -> Step | None:
            mine.extend(self.nodes(tree, "real")[-1:])
            if not mine:
                return None
            sources = [f"n{mine[0].number}"]
            said = {"from": first, "to": last, "summary": "of a summary", "tokens": 1}
            return {"op": "summarize", "args": {**said, "derived_from": sources}}

        def ask() -> Step | None:
            said = self.named_in(tree, {"branch": branch.name})
            more = {"max_tokens": self.required(said), "idempotency_key": key}
            return {"op": "budget", "args": {**said, **more}}

        def better() -> Step | None:
            if not mine:
                return None
            old = mine[0]
            return self.summary(tree, old.first, old.last, supersede=f"n{old.number}")

        self.queue += [whole, ask, better, ask]
        return {"op": "summarize", "args": {"from": first, "to": first, "summary": self.text()}}

    # --- archive --------------------------------------------------------------------------------

    def archive(self, branch: Branch | None = None, tree: Tree | None = None) -> Step | None:
        tree = tree or self.tree()
        others = self.others(tree)
        if branch is None:
            branch = self.rng.choice(others) if others and self.chance(0.9) else tree.current
        args: Args = {"branch": branch.name if self.chance(0.97) else self.name()}
        if self.chance(0.5):
            args["scope"] = "own"
        self.key(args)
        return {"op": "archive_branch", "args": self.by_name(tree, args)}

    def plan_archive(self) -> Step | None:
        """Cover a branch, unpin it, archive it, and look what its summary is good for."""
        tree = self.tree()
        others = self.others(tree)
        if not others:
            return self.fork()
        branch = self.rng.choice(others)
        plan = [self.stray_child(tree, branch)] * 3 if self.chance(0.3) else []
        plan.append(self.cover(tree, branch))
        plan += [self.unpin_all(tree, branch)] * 3
        plan.append(lambda: self.archive(branch, tree) if branch.status == "live" else None)
        if self.chance(0.4):
            plan.append(self.fork_last_summary(tree))
        if self.chance(0.3):
            plan += self.archived_twice(tree, branch.name)
        if self.chance(0.4):
            plan.append(self.thaw)
        self.queue += plan
        return self.draw()

    def cover(self, tree: Tree, branch: Branch) -> Maker:
        def make() -> Step | None:
            path = self.model.path(branch.head)
            bare = [
                n
                for n in path
                if self.model.nodes[n].kind == "message" and not self.model.covering(n)
            ]
            if not bare:
                return None
            first = bare[0] if self.chance(0.6) else path[0]
            last = branch.head if self.chance(0.5) else bare[-1]
            return self.summary(tree, first, last)

        return make

    def stray_child(self, tree: Tree, branch: Branch) -> Maker:
        """In three goes a message below the branch that no branch shows: it stays hot."""
        name = f"stray {self.count}"

        def make() -> Step | None:
            stray = [b for b in tree.live() if b.name == name]
            if not stray:
                own = self.model.own_nodes(tree, branch)
                fit = [n for n in own if n not in self.model.cold]
                if not fit or any(b.name == name for b in tree.branches):
                    return None
                return {"op": "fork", "args": {"node": f"n{self.rng.choice(fit)}", "name": name}}
            if stray[0].head == stray[0].fork_node:
                return self.append_to(tree, name)()
            return {"op": "drop_branch", "args": self.named_in(tree, {"name": name})}

        return make

    def archived_twice(self, tree: Tree, name: str) -> list[Maker]:
        """Another branch of the name goes the same way, then one of the two comes back."""

        def fork() -> Step | None:
            node = self.node(tree)
            if node is None or any(b.name == name for b in tree.live()):
                return None
            return {"op": "fork", "args": {"node": node, "name": name}}

        def named() -> Branch | None:
            return next((b for b in self.others(tree) if b.name == name), None)

        def cover() -> Step | None:
            branch = named()
            return self.cover(tree, branch)() if branch else None

        def archive() -> Step | None:
            branch = named()
            return self.archive(branch, tree) if branch else None

        def thaw() -> Step:
            return {"op": "thaw", "args": self.named_in(tree, {"name": name})}

        return [fork, self.append_to(tree, name), cover, archive, thaw, thaw]

    def below_cold(self) -> Step | None:
        """Something with a hot node below cold ones."""
        tree = self.tree()
        cold = self.model.cold
        fit = [
            n.number
            for n in self.nodes(tree)
            if n.number not in cold and any(p in cold for p in self.model.path(n.number))
        ]
        if not fit:
            return None
        node = f"n{self.rng.choice(fit)}"
        op = self.rng.choice(("fork", "fork", "thaw", "pin", "exclude"))
        if op != "fork":
            return self.on_node(op, node, tree)
        name = f"below {self.count}"
        self.queue.append(self.append_to(tree, name))
        self.queue.append(self.plan_archive_of(tree, name))
        return {"op": "fork", "args": {"node": node, "name": name}}

    def plan_archive_of(self, tree: Tree, name: str) -> Maker:
        def make() -> Step | None:
            branch = next((b for b in self.others(tree) if b.name == name), None)
            if branch is None:
                return None
            self.queue.append(lambda: self.archive(branch, tree))
            return self.cover(tree, branch)()

        return make

    def unpin_all(self, tree: Tree, branch: Branch) -> Maker:
        def make() -> Step | None:
            pinned = [n for n in self.model.path(branch.head) if n in self.model.pins]
            return self.on_node("unpin", f"n{pinned[0]}", tree) if pinned else None

        return make

    def fork_last_summary(self, tree: Tree) -> Maker:
        def make() -> Step | None:
            real = self.nodes(tree, "real")
            if not real:
                return None
            return {"op": "fork", "args": {"node": f"n{real[-1].number}", "name": self.name()}}

        return make

    def thaw(self) -> Step | None:
        tree = self.tree()
        archived = [b for b in tree.branches if b.status == "archived"]
        if self.chance(0.5):
            cold = [n for n in self.nodes(tree) if n.number in self.model.cold]
            args: Args = {"node": f"n{self.rng.choice(cold).number}"} if cold else {}
            if not cold or self.chance(0.2):
                args["node"] = self.any_node(tree)
            if args["node"] == "n0":
                return None
            self.key(args)
            return {"op": "thaw", "args": self.by_node(tree, args)}
        if not archived and self.chance(0.9):
            return None
        args = {"name": self.rng.choice(archived).name if archived else self.name()}
        if self.chance(0.4):
            args["as_name"] = self.name()
        self.key(args)
        return {"op": "thaw", "args": self.by_name(tree, args)}

    # --- reading --------------------------------------------------------------------------------

    def context(self) -> Step | None:
        tree = self.tree()
        args = self.target(tree, {})
        if self.chance(0.4):
            args["last"] = self.rng.choice((0, 1, 2, 3, 1000))
        if self.chance(0.4):
            node = self.node(tree)
            if node is not None:
                args["before"] = node
                args["timeline_id"] = f"tl{tree.number}"
        return {"op": "context", "args": args}

    def search(self) -> Step | None:
        tree = self.tree()
        texts = [n.text for n in self.model.nodes.values() if n.text]
        if not texts:
            return None
        text = self.rng.choice(texts)
        start = self.rng.randrange(len(text))
        needle = text[start : start + self.rng.choice((1, 2, 4, 9, 40))]
        if self.chance(0.15):
            needle = self.rng.choice(("STRASSE", "strasse", "große", "ΣΑΣ", "σασ", "İstan"))
        args: Args = {"text": needle if self.chance(0.9) else "nowhere to be found"}
        if self.chance(0.4):
            args["ignore_case"] = True
            args["text"] = self.rng.choice((needle, needle.upper(), needle.lower()))
        if self.chance(0.3):
            args["role"] = self.rng.choice(("user", "assistant", "system", "tool", "summary"))
        if self.chance(0.3):
            args["limit"] = self.rng.choice((1, 3, 100))
        if self.chance(0.3):
            args["branch"] = self.live(tree).name
            args["timeline_id"] = f"tl{tree.number}"
        elif self.chance(0.3):
            args["timeline_id"] = f"tl{tree.number}"
        return {"op": "search", "args": args}

    def small_reads(self) -> Step | None:
        tree = self.tree()
        branch = self.live(tree).name
        return self.rng.choice(
            (
                {"op": "list", "args": {"limit": 1}},
                {"op": "summaries", "args": self.by_name(tree, {"branch": branch})},
                {"op": "branches", "args": self.by_name(tree, {"all": False})},
                {"op": "node", "args": self.by_node(tree, {"node": self.any_node(tree)})},
            )
        )

    # --- keys, time, processes ------------------------------------------------------------------

    def retry(self) -> Step | None:
        if not self.sent:
            return None
        step = self.rng.choice(self.sent[-10:])
        args = dict(step["args"])
        if "text" in args and self.chance(0.3):
            args["text"] = self.text()  # another argument, the same request
        return {"op": step["op"], "args": args}

    def key_of_another(self) -> Step | None:
        if not self.sent:
            return None
        key = self.rng.choice(self.sent)["args"]["idempotency_key"]
        maker = self.rng.choice((self.append, self.pin, self.exclude, self.switch, self.budget))
        step = maker()
        if step is None or step["args"].get("dry_run"):
            return None
        step["args"]["idempotency_key"] = key
        return step

    def plan_expiry(self) -> Step | None:
        """A remembered request again, just before or after its key is forgotten."""
        known = [s for s in self.sent if self.first_success(s) is not None]
        if not known:
            return None
        step = self.rng.choice(known)

        def to_the_second() -> Step | None:
            ts = self.first_success(step)
            assert ts is not None
            to = ts + 7 * DAY + self.rng.choice((0, 1))
            return {"do": "clock", "seconds": to - self.model.now}

        plan: list[Maker] = [to_the_second]
        if self.chance(0.4):  # what was written last counts, not a clock set back
            plan += [self.append, lambda: {"do": "clock", "seconds": -3 * DAY}]
        self.queue += [*plan, lambda: {"op": step["op"], "args": dict(step["args"])}]
        return self.queue.pop(0)()

    def first_success(self, step: Step) -> int | None:
        """When the step's key was taken, by whatever request."""
        key = step["args"]["idempotency_key"]
        times = [ts for (_, k), (_, _, ts) in self.model.keys.items() if k == key]
        return max(times, default=None)

    def clock(self) -> Step | None:
        seconds = self.rng.choice((1, 3600, 8 * DAY, 8 * DAY, 7 * DAY, 7 * DAY + 1, -3600, -DAY))
        return {"do": "clock", "seconds": seconds}

    def reopen(self) -> Step | None:
        return {"do": self.rng.choice(("reopen", "other", "other", "reindex"))}

    # --- what must be refused -------------------------------------------------------------------

    def malformed(self) -> Step | None:
        """A request that is wrong in any state, and wrong in one way only."""
        node = self.node(self.tree()) or "n0"
        message: Args = {"role": "user", "text": "x"}
        cases: list[tuple[str, Args]] = [
            ("append", {**message, "role": "robot"}),
            ("append", {"role": "user"}),
            ("append", {**message, "text": "\ud83d"}),
            ("append", {**message, "text": 7}),
            ("append", {**message, "tokens": -1}),
            ("append", {**message, "tokens": True}),
            ("append", {**message, "tokens": 1.5}),
            ("append", {**message, "tokens": TOKENS_MAX + 1}),
            ("append", {**message, "intent": {"note": "no tag"}}),
            ("append", {**message, "intent": {"tag": ""}}),
            ("append", {**message, "intent": {"tag": "t" * 201}}),
            ("append", {**message, "intent": {"tag": "t", "note": "n" * 4001}}),
            ("append", {**message, "expect_head": "head"}),
            ("append", {**message, "idempotency_key": ""}),
            ("append", {**message, "idempotency_key": "k" * 257}),
            ("append", {**message, "timeline_id": "timeline"}),
            ("fork", {"node": node, "name": self.rng.choice(BAD_NAMES)}),
            ("fork", {"node": "x1", "name": "fine"}),
            ("fork", {"node": 1, "name": "fine"}),
            ("context", {"node": node, "branch": "main"}),
            ("context", {"last": -1}),
            ("context", {"before": "n0"}),
            ("context", {"idempotency_key": "reading"}),
            ("budget", {"max_tokens": -1}),
            ("budget", {"max_tokens": "10"}),
            ("budget", {"max_tokens": 10, "order": "random"}),
            ("budget", {"max_tokens": 10, "node": node, "branch": "main"}),
            ("budget", {"max_tokens": 10, "dry_run": True, "idempotency_key": "dry"}),
            ("pin", {"node": "n0"}),
            ("exclude", {"node": "n0"}),
            ("pin", {}),
            ("unpin", {"node": "7"}),
            ("archive_check", {"branch": "main", "scope": "all"}),
            ("thaw", {}),
            ("thaw", {"node": node, "name": "main"}),
            ("search", {"text": ""}),
            ("search", {"text": "a", "role": "robot"}),
            ("create", {"estimator": "exact"}),
            ("create", {"title": "t" * 201}),
            ("list", {"timeline_id": "tl0"}),
            ("append", {**message, "unheard_of": 1}),
        ]
        if node != "n0":
            cases += [
                ("summarize", {"from": "n0", "to": node, "summary": "x"}),
                ("summarize", {"from": node, "to": node, "summary": "x", "derived_from": ["n0"]}),
                ("summarize", {"from": node, "to": node}),
                ("summarize", {"from": node, "to": node, "summary": "x", "supersede": "n0"}),
            ]
        op, args = self.rng.choice(cases)
        return {"op": op, "args": args}

    def unknown(self) -> Step | None:
        tree = self.tree()
        known = self.node(tree) or "n9999"
        cases: list[tuple[str, Args]] = [
            ("node", {"node": "n9999"}),
            ("fork", {"node": "n9999", "name": "new"}),
            ("pin", {"node": "n9999"}),
            ("unpin", {"node": "n9999"}),
            ("include", {"node": "n9999"}),
            ("context", {"node": "n9999"}),
            ("context", {"branch": "no such branch"}),
            ("budget", {"branch": "no such branch", "max_tokens": 5}),
            ("append", {"role": "user", "text": "x", "branch": "no such branch"}),
            ("append", {"role": "user", "text": "x", "timeline_id": "tl99"}),
            ("append", {"role": "user", "text": "x", "expect_head": "n9999"}),
            ("switch", {"name": "no such branch"}),
            ("switch", {"name": "not/allowed"}),
            ("archive_check", {"branch": " "}),
            ("drop_branch", {"name": "no such branch"}),
            ("archive_check", {"branch": "no such branch"}),
            ("archive_branch", {"branch": "no such branch"}),
            ("thaw", {"name": "no such branch"}),
            ("thaw", {"node": "n9999"}),
            ("summaries", {"branch": "no such branch"}),
            ("summarize", {"from": known, "to": "n9999", "summary": "x"}),
            ("summarize", {"from": known, "to": known, "summary": "x", "derived_from": ["n9999"]}),
            ("summarize", {"from": known, "to": known, "summary": "x", "supersede": "n9999"}),
            ("branches", {"timeline_id": "tl99"}),
        ]
        op, args = self.rng.choice(cases)
        return {"op": op, "args": args}


def is_sendable(op: str, args: Args) -> bool:
    """Can a process be asked this: well formed, and every argument one a shell would take?"""
    try:
        check_shape(op, args)
    except ModelError:
        return False
    by_stdin = {"append": "text", "summarize": "summary"}.get(op)
    said = [v for k, v in args.items() if k != by_stdin and isinstance(v, str)]
    said += args.get("intent", {}).values()
    return all(v.isprintable() and v for v in said)


def steps(seed: int, model: Model, count: int) -> Iterator[Step]:
    """`count` steps; run each on `model` before asking for the next."""
    source = RandomSteps(seed, model)
    for _ in range(count):
        yield source.next_step()
