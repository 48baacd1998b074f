"""Child processes of the tests: writers that say what was acknowledged; some kill themselves.

    worker.py append DB NAME COUNT COMMITS   append COUNT keyed messages, printing "i node" for each
    worker.py oneshot DB NAME COUNT COMMITS  the same, each by a `tl` process of its own
    worker.py die DB NAME COUNT COMMITS AT   as append, but killed by SIGKILL at system call AT
    worker.py rebuild DB NAME COUNT COMMITS  delete the index and open anew, COUNT times, printing
                                             "i nodes" for each

COMMITS is how many transactions lie between two checkpoints. The text of message i is "NAME i", its
key "NAME-i".
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import timeline

TESTS = Path(__file__).resolve().parents[1]
SCRIPTS = Path(timeline.__file__).resolve().parent


def environment() -> dict[str, str]:
    """For a child that shall find engine and kit where this process found them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(SCRIPTS), str(TESTS)))}


class Worker:
    """A running child process; `acknowledged` holds the nodes it reported, by number of message."""

    def __init__(
        self, mode: str, path: Path, name: str, count: int, commits: int = 256, *more: int
    ) -> None:
        self.name = name
        self.acknowledged: dict[int, int] = {}
        self.rest = b""
        arguments = [mode, str(path), name, str(count), str(commits), *map(str, more)]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *arguments],
            stdout=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # so that a kill takes its children along
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.finish()

    def reports(self) -> Iterator[int]:
        """The numbers of messages as they are acknowledged, until the process ends."""
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            yield from self.take(data)

    def take(self, data: bytes) -> list[int]:
        """Note what the process wrote; the last line may be cut short by a kill."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        found = [(int(number), int(node)) for number, node in map(bytes.split, lines)]
        self.acknowledged.update(found)
        return [number for number, _ in found]

    def kill(self) -> None:
        """Kill -9, whatever it is doing."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> int:
        """Read what it still reports and wait for its end; the exit code."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            for _ in self.reports():
                pass
            self.process.stdout.close()
        return self.process.wait()


def kill_each(workers: Mapping[Worker, int]) -> None:
    """Kill every worker once it has acknowledged so many messages, and wait for the ends."""
    with selectors.DefaultSelector() as selector:
        for worker, reports in workers.items():
            if reports == 0:
                worker.kill()
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                worker.take(data)
                if len(worker.acknowledged) >= workers[worker]:
                    worker.kill()
    for worker in workers:
        worker.finish()


def text_of(name: str, number: int) -> str:
    return f"{name} {number}"


def main(mode: str, path: str, name: str, count: int, commits: int, at: int = 0) -> None:
    disk = None
    if mode == "die":
        from kit.disks import DyingDisk

        class Killing(DyingDisk):
            def at_death(self) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

        disk = Killing(at, part=at % 3 / 2)
    timeline.CHECKPOINT_COMMITS = commits
    if mode == "rebuild":
        rebuild(path, count)
        return
    database = timeline.Database(path, wait_s=60, disk=disk)
    for number in range(count):
        text, key = text_of(name, number), f"{name}-{number}"
        if mode == "oneshot":
            command = [sys.executable, str(SCRIPTS / "tl.py"), f"--db={path}", "append"]
            command += ["--role=user", f"--text={text}", f"--idempotency-key={key}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            node = json.loads(done.stdout)["node"]
        else:
            args = {"role": "user", "text": text, "idempotency_key": key}
            node = database.run("append", args)["node"]
        sys.stdout.write(f"{number} {node[1:]}\n")
        sys.stdout.flush()


def rebuild(path: str, count: int) -> None:
    timeline.CHECKPOINT_BYTES = 1 << 10
    for number in range(count):
        shutil.rmtree(f"{path}.index", ignore_errors=True)
        database = timeline.Database(path, wait_s=60)
        nodes = database.run("list")[0]["messages"]
        assert len(database.run("context")) == nodes
        database.close()
        sys.stdout.write(f"{number} {nodes}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))  # type: ignore[misc, arg-type]
