"""What the benchmark scripts share: databases of any size, a clock, tables.

The databases are made once and kept in a folder (`--dir`), since a million messages take a
minute. Their lines are written directly with `timeline.encode_line`; the engine then makes the
index. Scripts that write work on copies, which they delete.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.environ.get("TIMELINE_BENCH_SCRIPTS") or os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)

import timeline  # noqa: E402

GENERATOR = 1  # raised when the content of generated databases changes, so that old ones are left
CHUNK_LINES = 20_000
CREATED = 1_767_225_600
RARE = "quagga"  # in one message of 20,000
FREQUENT = "the"  # in six of seven messages
ABSENT = "xylophonist"
VOCABULARY = (
    "file test value error branch commit reads writes parser buffer index record number "
    "change field table message server client thread module return object string option "
    "folder output result source target update version window should because instead while "
    "between after before every other first second please check would could there which"
)
INTERPRETER = os.path.realpath(sys.executable)  # a pyenv shim or a venv link costs extra time


# ---- databases ---------------------------------------------------------------------------------


def pool(size: int = 4_096, seed: int = 1) -> list[str]:
    """Texts of 260 to 320 characters; some hold newlines and quotes, as messages do."""
    rng = random.Random(seed)
    vocabulary = VOCABULARY.split()
    texts = []
    for number in range(size):
        words = rng.choices(vocabulary, k=60)
        if number % 7:
            words[3:3] = [FREQUENT]
        text = " ".join(words)[: rng.randrange(260, 321)]
        if number % 3 == 0:
            text = text.replace(" return ", '\n\treturn "', 1).replace(" after ", "\n", 2)
        texts.append(text)
    return texts


def text_of(texts: Sequence[str], node: int) -> str:
    """The text of node `node`: no two are equal."""
    rare = f" {RARE}" if node % 20_000 == 777 else ""
    return f"{node}: {texts[node * 2_654_435_761 % len(texts)]}{rare}"


def messages(count: int) -> Iterator[dict[str, Any]]:
    """Records of one timeline with `count` messages on one path, 10 pins and 10 branches."""
    texts = pool()
    roles = ("user", "assistant", "tool", "assistant", "tool", "assistant")
    yield {"op": "create", "tl": 0, "title": "bench", "estimator": "scalar4"}
    for node in range(1, count + 1):
        yield message(node, node - 1, roles[node % 6], text_of(texts, node))
    for number in range(1, 11):
        node = max(1, count * number // 11)
        yield {"op": "fork", "tl": 0, "node": node, "name": f"plan-{number}", "of": "main"}
        yield {"op": "pin", "tl": 0, "node": node}


def message(node: int, parent: int, role: str, text: str) -> dict[str, Any]:
    return {
        "op": "append",
        "tl": 0,
        "id": node,
        "parent": parent,
        "branch": "main",
        "role": role,
        "tokens": timeline.estimate(text, "scalar4"),
        "via": "cli",
        "text": text,
    }


def summarized(count: int, summaries: int, shape: str) -> Iterator[dict[str, Any]]:
    """As `messages`, with summaries beside them, each written right after its interval's end.

    `chapters`: neighbouring intervals of one width that cover the whole path. `mixed`: intervals
    of random width (5 to 2,000 messages) anywhere, so they overlap; one in ten supersedes one.
    """
    rng = random.Random(f"{count} {summaries} {shape}")
    texts = pool()
    due: dict[int, list[int]] = {}  # place of the last message -> places of the first ones
    for number in range(summaries):
        if shape == "chapters":
            first, last = count * number // summaries, count * (number + 1) // summaries - 1
        else:
            width = min(count, int(5 * 400 ** rng.random()))
            first = rng.randrange(count - width + 1)
            last = first + width - 1
        due.setdefault(last, []).append(first)
    yield {"op": "create", "tl": 0, "title": "bench", "estimator": "scalar4"}
    ids = [0]  # ids[i + 1]: the node of message i
    node = 0
    for place in range(count):
        node += 1
        role = ("user", "assistant", "assistant", "user", "tool")[place % 5]
        yield message(node, ids[-1], role, text_of(texts, node))
        ids.append(node)
        for first in due.get(place, ()):
            versions = 2 if shape == "mixed" and rng.random() < 0.1 else 1
            for version in range(versions):
                node += 1
                record = {
                    "op": "summary",
                    "tl": 0,
                    "id": node,
                    "parent": ids[first],
                    "from": ids[first + 1],
                    "to": ids[place + 1],
                    "tokens": rng.randrange(20, 400),
                    "via": "cli",
                }
                if version:
                    record["supersedes"] = node - 1
                record["text"] = f"Summary {node}: {texts[node % len(texts)]}"
                yield record
    for number in range(1, 11):
        yield {"op": "pin", "tl": 0, "node": ids[max(1, count * number // 11)]}


def write_log(path: str, records: Iterable[Mapping[str, Any]]) -> None:
    """A new log of `records`, a transaction each, written in chunks."""
    temporary = path + ".making"
    header = timeline.new_header(CREATED)
    crc = timeline.line_crc(header, 0)
    assert crc is not None
    encode_line = timeline.encode_line
    with open(temporary, "wb") as file:
        lines = [header]
        for seq, record in enumerate(records, 1):
            whole = {"seq": seq, "ts": CREATED + seq, "op": record["op"], **record}
            line, crc = encode_line(whole, crc)
            lines.append(line)
            if len(lines) == CHUNK_LINES:
                file.write(b"".join(lines))
                lines = []
        file.write(b"".join(lines))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def database(folder: str, count: int) -> str:
    """Path of the kept database with `count` messages, made if it is missing. Only to be read."""
    return _kept(folder, f"plain-{count}", lambda: messages(count))


def summarized_database(folder: str, count: int, summaries: int, shape: str) -> str:
    """Path of the kept database with summaries, made if it is missing. Only to be read."""
    return _kept(
        folder, f"{shape}-{count}-{summaries}", lambda: summarized(count, summaries, shape)
    )


def _kept(folder: str, name: str, make: Callable[[], Iterable[Mapping[str, Any]]]) -> str:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}-v{GENERATOR}.jsonl")
    if not os.path.exists(path):
        print(f"making {path} ...", file=sys.stderr, flush=True)
        write_log(path, make())
    base = timeline.Database(path)
    base.run("branches")  # makes the index, also where it is of an older format
    base.close()
    return path


def copy(path: str, name: str, *, index: bool = True) -> str:
    """A copy of a database beside it, for writing."""
    target = os.path.join(os.path.dirname(path), f"work-{os.getpid()}-{name}.jsonl")
    remove(target)
    shutil.copyfile(path, target)
    if index and os.path.isdir(path + ".index"):
        shutil.copytree(path + ".index", target + ".index")
    return target


def remove(path: str) -> None:
    """Delete a database and what lies beside it."""
    shutil.rmtree(path + ".index", ignore_errors=True)
    for suffix in ("", ".lock", ".torn", ".tmp", "-wal", "-shm"):
        if os.path.exists(path + suffix):
            os.remove(path + suffix)


def flush_disk() -> None:
    """Wait until copies are on disk, or their writing would slow the first measured fsyncs."""
    if hasattr(os, "sync"):
        os.sync()


# ---- measuring ---------------------------------------------------------------------------------


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that `action` takes."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def interleaved(
    actions: Mapping[str, Callable[[], float]], rounds: int, warm: int = 1
) -> dict[str, list[float]]:
    """What each action returns, over `rounds` rounds in which all take turns.

    Turns, since the speed of a machine drifts: neighbours can be compared, distant runs cannot.
    The first `warm` rounds do not count.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warm + rounds):
        for name, action in actions.items():
            value = action()
            if number >= warm:
                found[name].append(value)
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


# ---- printing ----------------------------------------------------------------------------------


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their heads, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        line = "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + line.rstrip())
        if number == 0:
            print("  " + "-" * len(line))
    sys.stdout.flush()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def bar(name: str, value: float, limit: float, unit: str = "") -> bool:
    """Print whether `value` keeps within `limit`."""
    ok = value <= limit
    print(f"  {'PASS' if ok else 'FAIL'}  {name}: {value:.4g}{unit} (bar {limit:.4g}{unit})")
    return ok


def size_name(count: int) -> str:
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{name}"
    return str(count)


def arguments(doc: str | None, **defaults: int) -> argparse.Namespace:
    """The command line: `--dir`, and a whole number for each of `defaults`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir",
        default=os.path.join(tempfile.gettempdir(), "timeline-bench"),
        help="where the generated databases are kept (default: %(default)s)",
    )
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    return parser.parse_args()


def machine() -> None:
    """Print what the figures belong to.

    `loop` is the processor time of two million additions, a yardstick: where it is far longer
    than the 120 ms of an ordinary machine, compare ratios and not times.
    """
    start, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    loop = (time.process_time() - start) * 1000
    version = sys.version.split()[0]
    print(f"Python {version}, {sys.platform}, {os.cpu_count()} processors, loop {loop:.0f} ms")
    print(SCRIPTS, flush=True)
