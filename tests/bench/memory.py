"""How much memory the engine takes of its own. Linux only.

    python tests/bench/memory.py [--dir FOLDER] [--big 1000000]

Each line is a process of its own. `private` is Private_Clean + Private_Dirty of
/proc/self/smaps_rollup at the end of the step, `peak` the highest resident size up to then (VmHWM,
which counts shared pages of the interpreter too); both in MB, and above a bare interpreter's.
"""

from __future__ import annotations

import os
import subprocess

import kit

PRELUDE = """
import sys
sys.path.insert(0, {scripts!r})
path = {path!r}
def show(step):
    private = sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup", "rb")
                  if line.startswith(b"Private_"))
    peak = next(int(line.split()[1]) for line in open("/proc/self/status", "rb")
                if line.startswith(b"VmHWM"))
    print(step, private, peak, sep="\\t")
"""

BARE = 'show("bare")'

DAILY = """
import timeline
base = timeline.Database(path)
base.refresh()
show("open")
for number in range(1000):
    base.run("append", {"role": "user", "text": f"{number} " + "text " * 60})
show("+ 1,000 appends")
base.run("context", {"last": 200})
show("+ context --last 200")
base.run("node", {"node": "n5"})
show("+ node")
base.run("search", {"text": "quagga"})
show("+ search")
"""

REBUILD = """
import shutil, timeline
shutil.rmtree(path + ".index")
base = timeline.Database(path)
base.refresh()
show("rebuild")
"""

DOCTOR = """
import timeline
base = timeline.Database(path)
if "doctor" in base._METHODS:
    base.run("doctor")
    show("doctor")
"""

BUDGET = """
import timeline
base = timeline.Database(path)
maximum = 2**53 - 1 if {share} == 100 else base.run("branches")[0]["tokens"] * {share} // 100
try:
    answer = base.run("budget", {{"max_tokens": maximum, "dry_run": True}})
    result = f"{{len(answer['messages'])}} messages"
except timeline.TimelineError as error:
    result = str(error)[:40]
show("budget {share} %: " + result)
"""


def child(code: str, path: str) -> list[tuple[str, float, float]]:
    """(step, private MB, peak MB) of each step that `code` shows."""
    source = PRELUDE.format(scripts=kit.SCRIPTS, path=path) + code
    done = subprocess.run(
        [kit.INTERPRETER, "-S", "-E", "-c", source], stdout=subprocess.PIPE, check=True
    )
    found = []
    for line in done.stdout.decode().splitlines():
        step, private, peak = line.split("\t")
        found.append((step, int(private) / 1024, int(peak) / 1024))
    return found


def main() -> None:
    options = kit.arguments(__doc__, big=1_000_000)
    kit.machine()
    _, bare, bare_peak = child(BARE, "")[0]
    rows: list[tuple[str, float, float, float, float]] = []
    verdicts: list[tuple[str, float, float]] = []

    def add(name: str, code: str, path: str, limit: float, of_peak: bool) -> None:
        for step, private, peak in child(code, path):
            rows.append((f"{name}: {step}", private, private - bare, peak, peak - bare_peak))
            value = peak - bare_peak if of_peak else private - bare
            verdicts.append((rows[-1][0], value, limit))

    for count in sorted({100_000, options.big}):
        size = kit.size_name(count)
        path = kit.database(options.dir, count)
        work = kit.copy(path, "memory")
        try:
            add(size, DAILY, work, 30, of_peak=False)
            add(size, REBUILD, work, 200, of_peak=True)
            add(size, DOCTOR, work, 200, of_peak=True)
            for share in (1, 5, 100):
                add(size, BUDGET.format(share=share), work, 200, of_peak=True)
        finally:
            kit.remove(work)
        path = kit.summarized_database(options.dir, count, 1_000, "chapters")
        add(f"{size}, 1,000 summaries", BUDGET.format(share=5), path, 200, of_peak=True)
        if count > 100_000:
            kit.remove(path)
    kit.table(
        "memory in MB",
        ("", "private", "above bare", "peak", "above bare"),
        [("bare", bare, 0.0, bare_peak, 0.0), *rows],
    )
    print()
    for name, value, limit in verdicts:
        kit.bar(name, value, limit, " MB")


if __name__ == "__main__":
    if not os.path.exists("/proc/self/smaps_rollup"):
        raise SystemExit("this system has no /proc/self/smaps_rollup")
    main()
