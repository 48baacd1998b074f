"""The engine and the model side by side: one step, one comparison of everything that can be read.

`python -m kit.compare STEPS.json` (with `scripts` and `tests` on PYTHONPATH) replays a printed run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kit.model import Model, ModelError, is_node_id, wire
from kit.random_ops import Args, Step
from kit.random_ops import steps as random_steps

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
START = 4_102_444_800  # the year 2100: a process of its own has the real clock, always behind
UNKNOWN = ("unknown node ", "unknown branch ", "unknown timeline ")
EXACT_ERRORS = ("budget infeasible", "head moved", "token overflow", "not eligible", *UNKNOWN)
NODES = ("node", "from", "to", "supersede", "before", "expect_head", "derived_from")
FLAGS = {
    "max_tokens": "max",
    "timeline_id": "timeline",
    "dry_run": "dry-run",
    "ignore_case": "ignore-case",
    "derived_from": "derived-from",
    "idempotency_key": "idempotency-key",
    "expect_head": "expect-head",
    "as_name": "as-name",
}


class Difference(AssertionError):
    """Engine and model disagree. `at` is the request it showed at, its operation first."""

    def __init__(self, at: str, engine: Any, model: Any) -> None:
        super().__init__(
            f"{at}\n  first at {first_difference(engine, model)}"
            f"\n  engine: {shorten(engine)}\n  model:  {shorten(model)}"
        )
        self.op = at.split(" ")[0]


def first_difference(a: Any, b: Any, where: str = "$") -> str:
    """Where two JSON values part, and with what."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(f"{where}.{k}", a[k], b[k]) for k in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        pairs = []
    for path, x, y in pairs:
        if x != y:
            return first_difference(x, y, path)
    return f"{where}: {shorten(a)[:200]} | {shorten(b)[:200]}"


def shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 3000 else text[:3000] + " ..."


class Outcome:
    """What a request led to: a result, or an exit code with the error's text and data."""

    def __init__(self, result: Any = None, error: tuple[int, str, Any] | None = None) -> None:
        self.result = result
        self.error = error

    def described(self) -> Any:
        return self.result if self.error is None else ["error", *self.error]


def ask_model(model: Model, op: str, args: Args) -> Outcome:
    try:
        return Outcome(model.run(op, args))
    except ModelError as error:
        return Outcome(error=(error.exit_code, error.message, error.data))


def ask_engine(database: Any, op: str, args: Args) -> Outcome:
    import timeline

    try:
        # Through JSON and back, as every caller of the programs sees it.
        return Outcome(json.loads(json.dumps(database.run(op, args))))
    except timeline.TimelineError as error:
        data = json.loads(json.dumps(error.data)) if error.data else None
        return Outcome(error=(error.exit_code, str(error), data))
    except Exception as defect:  # a step list is worth more here than a bare traceback
        at = f"{op} {json.dumps(args)}"
        raise Difference(at, traceback.format_exc(), "no defect") from defect


def command_line(op: str, args: Args) -> tuple[list[str], bytes]:
    """Arguments of `tl` for the request, and what it gets on standard input."""
    words = [op.replace("_", "-")]
    stdin = b""
    needle = None
    for name, value in args.items():
        if op == "search" and name == "text":
            needle = value
        elif name in ("text", "summary"):
            words += [f"--{name}", "-"]
            stdin = value.encode("utf-8")
        elif name == "intent":
            words += [f"--intent-{part}={text}" for part, text in value.items()]
        elif name == "derived_from":
            if value:
                words.append(f"--derived-from={','.join(value)}")
        elif isinstance(value, bool):
            words += [f"--{FLAGS.get(name, name)}"] if value else []
        elif name == "branch" and op.startswith("archive"):
            words.append(f"--name={value}")
        else:
            words.append(f"--{FLAGS.get(name, name)}={value}")
    return words + ([] if needle is None else ["--", needle]), stdin


def ask_process(path: str, op: str, args: Args) -> Outcome:
    words, stdin = command_line(op, args)
    command = [sys.executable, str(SCRIPTS / "tl.py"), f"--db={path}", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    if done.returncode == 0:
        return Outcome(json.loads(done.stdout))
    try:
        said = json.loads(done.stderr)
    except ValueError as error:
        at = f"{op} by {command}, exit {done.returncode}"
        raise Difference(at, done.stderr.decode("utf-8", "replace"), "a JSON error") from error
    return Outcome(error=(done.returncode, said["error"], said.get("data")))


def comparable(op: str, outcome: Outcome) -> Any:
    """What must be equal: results less texts for people, of an error its code and known data."""
    if outcome.error is not None:
        code, message, data = outcome.error
        if not message.startswith(EXACT_ERRORS):
            return ["error", code]
        if message == "token overflow" or message.startswith(UNKNOWN):
            data = None
        if message == "not eligible":
            data = {"reasons": without_messages(data["reasons"])}
        return ["error", code, message, data]
    result = outcome.result
    if op == "search":
        return [{k: v for k, v in row.items() if k != "snippet"} for row in result]
    if op == "archive_check":
        return {**result, "reasons": without_messages(result["reasons"])}
    return result


def without_messages(reasons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "message"} for r in reasons]


class Pair:
    """A database file, two open objects of it, and the model of what it must hold."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "t.json")
        self.model = Model(START, via="cli")
        self.model.now = START
        self.databases = [self.open(), self.open()]
        self.seen: dict[str, Any] = {}
        self.rng = random.Random(0)

    def open(self) -> Any:
        import timeline

        return timeline.Database(self.path, clock=lambda: self.model.now)

    def close(self) -> None:
        for database in self.databases:
            close = getattr(database, "close", None)
            if close is not None:
                close()

    def step(self, step: Step) -> None:
        """Both do the step; `Difference` if they do not answer alike."""
        if "op" not in step:
            self.arrange(step)
            return
        op, args = step["op"], step["args"]
        if step.get("process") and self.model.trees:
            now, self.model.now = self.model.now, 0
            expected = ask_model(self.model, op, args)
            self.model.now = now
            got = ask_process(self.path, op, args)
        else:
            expected = ask_model(self.model, op, args)
            got = ask_engine(self.databases[0], op, args)
        self.compare(op, args, got, expected)

    def arrange(self, step: Step) -> None:
        if step["do"] == "clock":
            self.model.now = max(0, self.model.now + step["seconds"])
        elif step["do"] == "other":
            self.databases.reverse()
        else:
            self.close()
            if step["do"] == "reindex":
                shutil.rmtree(self.path + ".index", ignore_errors=True)
            self.databases = [self.open(), self.open()]

    def compare(self, op: str, args: Args, got: Outcome, expected: Outcome) -> None:
        if comparable(op, got) != comparable(op, expected):
            at = f"{op} {json.dumps(args)}"
            raise Difference(at, got.described(), expected.described())
        if op == "search" and got.error is None:
            self.compare_snippets(args, got.result)

    def compare_snippets(self, args: Args, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            snippet, needle = row["snippet"], args["text"]
            inside = snippet in self.model.nodes[int(row["node"][1:])].text
            if args.get("ignore_case"):
                snippet, needle = snippet.casefold(), needle.casefold()
            holds = needle in snippet or len(needle) > 120
            if not inside or not holds or len(row["snippet"]) > 160:
                raise Difference(f"search {json.dumps(args)}", row, f"a snippet with {needle!r}")

    def compare_everything(self, *, thorough: bool) -> None:
        """Every question there is. Unless `thorough`, the engine is asked only those whose answer
        should have changed since they were last asked, and a few more."""
        if not self.model.trees:
            return
        for op, args in self.questions():
            expected = ask_model(self.model, op, args)
            question = op + json.dumps(args)
            changed = self.seen.get(question) != expected.result
            if thorough or changed or self.rng.random() < 0.05:
                self.compare(op, args, ask_engine(self.databases[0], op, args), expected)
            self.seen[question] = expected.result

    def questions(self) -> Iterator[tuple[str, Args]]:
        yield "list", {}
        yield "search", {"text": "a", "ignore_case": True, "limit": 1000}
        for number, tree in self.model.trees.items():
            here: Args = {"timeline_id": f"tl{number}"}
            yield "branches", here
            yield "branches", {**here, "all": True}
            yield "node", {**here, "node": "n0"}
            for branch in tree.live():
                named = {**here, "branch": branch.name}
                yield "context", named
                yield "summaries", named
                yield "archive_check", named
                yield "archive_check", {**named, "scope": "own"}
        for number in self.model.nodes:
            yield "node", {"node": f"n{number}"}

    def compare_end(self) -> None:
        """All of it again, then without the index, and what the engine says of itself."""
        if not self.model.trees:
            return
        self.compare_everything(thorough=True)
        self.arrange({"do": "reindex"})
        self.compare_everything(thorough=True)
        report = self.databases[0].run("doctor", {})
        if not report["ok"]:
            raise Difference("doctor", report, "ok")


def run_steps(draw: Callable[[Model], Iterable[Step]]) -> tuple[list[Step], Difference | None]:
    """Run the steps of `draw` in a database of their own, up to the first difference.

    `draw` is given the model, so that it may look at it before every step.
    """
    done: list[Step] = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder)
        try:
            for step in draw(pair.model):
                done.append(step)
                pair.step(step)
                pair.compare_everything(thorough=len(done) % 10 == 0)
            pair.compare_end()
        except Difference as difference:
            return done, difference
        finally:
            pair.close()
    return done, None


def replay(steps: list[Step]) -> Difference | None:
    return run_steps(lambda _: steps)[1]


Numbered = tuple[Step, list[str]]  # a step, and the nodes it made when it was first run


def numbered(steps: list[Step]) -> list[Numbered]:
    model = Model(START)
    done = []
    for step in steps:
        before = len(model.nodes)
        if "op" in step:
            ask_model(model, step["op"], step["args"])
        elif step["do"] == "clock":
            model.now = max(0, model.now + step["seconds"])
        done.append((step, [wire(n) for n in list(model.nodes)[before:]]))
    return done


def renumbering(kept: list[Numbered]) -> Callable[[Model], Iterator[Step]]:
    """Draws the kept steps, speaking of the nodes they spoke of, whatever their numbers are now."""

    def draw(model: Model) -> Iterator[Step]:
        now = {"n0": "n0"}

        def renamed(value: Any) -> Any:
            if isinstance(value, list):
                return [renamed(v) for v in value]
            return now.get(value, "n9999") if is_node_id(value) else value

        for step, made in kept:
            before = len(model.nodes)
            if "op" in step:
                args = {k: renamed(v) if k in NODES else v for k, v in step["args"].items()}
                step = {**step, "args": args}
            yield step
            new = [wire(n) for n in list(model.nodes)[before:]]
            now.update(zip(made, new, strict=False))  # a step may fail now, or succeed

    return draw


def shrink(steps: list[Step], op: str, *, attempts: int = 120) -> list[Step]:
    """Fewer steps that still end in a difference at `op`: leave out ever smaller pieces."""
    kept = numbered(steps)
    size = max(1, len(kept) // 2)
    while size:
        start = 0
        while start < len(kept) and attempts:
            fewer = kept[:start] + kept[start + size :]
            attempts -= 1
            difference = run_steps(renumbering(fewer))[1]
            if difference is not None and difference.op == op:
                kept = fewer
            else:
                start += size
        size //= 2
    return run_steps(renumbering(kept))[0]


def printed(steps: list[Step]) -> str:
    return "[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]"


def check_seed(seed: int, count: int) -> None:
    """Run `count` steps of a seed; a difference is raised with the fewest steps found for it."""
    done, difference = run_steps(lambda model: random_steps(seed, model, count))
    if difference is None:
        return
    fewer = shrink(done, difference.op)
    raise AssertionError(
        f"seed {seed}: {difference}\n\nwith fewer steps: {replay(fewer)}\n\n"
        f"Steps, to be replayed with `python -m kit.compare FILE`:\n{printed(fewer)}"
    )


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        steps = json.load(file)
    difference = replay(steps)
    sys.stdout.write(f"{difference or f'{len(steps)} steps, no difference'}\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
