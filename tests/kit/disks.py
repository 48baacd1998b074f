"""Disks that are full, that fail, that die at a chosen system call, and that count.

All are subclasses of `timeline.Disk`, so a `timeline.Database` takes them as `disk`. Files are
told apart by the last part of their path: the log's own name, "rows", "lookup", "state.tmp".
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable

import timeline

Which = Callable[[str], bool]


class Death(BaseException):
    """The process ends here. No Exception, so that no handler can take it for a failure."""


def every_file(path: str) -> bool:
    return True


class QuickDisk(timeline.Disk):
    """Does not wait for the disk. Whether it was told to is no question without a power cut."""

    def fsync(self, file: int) -> None:
        pass

    def sync_data(self, file: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


class WatchedDisk(timeline.Disk):
    """Tells `meet` of every system call right before it is made; as quick as QuickDisk."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}  # of the open descriptors

    def meet(self, call: str, path: str, data: bytes = b"", file: int = -1) -> None:
        """`data` is what is about to be written."""

    def open(self, path: str, flags: int) -> int:
        self.meet("open", path)
        file = super().open(path, flags)
        self.paths[file] = path
        return file

    def close(self, file: int) -> None:
        self.meet("close", self.paths[file])
        super().close(file)
        del self.paths[file]

    def size(self, file: int) -> int:
        self.meet("size", self.paths[file])
        return super().size(file)

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        self.meet("read", self.paths[file])
        return super().read_at(file, size, offset)

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        self.meet("write", self.paths[file], data, file)
        super().write_at(file, data, offset)

    def append(self, file: int, data: bytes) -> None:
        self.meet("write", self.paths[file], data, file)
        super().append(file, data)

    def fsync(self, file: int) -> None:
        self.meet("fsync", self.paths[file], file=file)

    def sync_data(self, file: int) -> None:
        self.meet("fdatasync", self.paths[file], file=file)

    def truncate(self, file: int, size: int) -> None:
        self.meet("truncate", self.paths[file], file=file)
        super().truncate(file, size)

    def replace(self, source: str, target: str) -> None:
        self.meet("replace", target)
        super().replace(source, target)

    def place_new(self, source: str, target: str) -> None:
        # The two system calls of the real one, so that something can happen between them.
        self.meet("link", target)
        os.link(source, target)
        self.meet("unlink", source)
        os.unlink(source)

    def remove(self, path: str) -> None:
        self.meet("unlink", path)
        super().remove(path)

    def make_folder(self, path: str) -> None:
        self.meet("mkdir", path)
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        self.meet("fsync", path or ".")


class CountingDisk(WatchedDisk):
    """Counts calls and read or written bytes by (call, name of the file)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def meet(self, call: str, path: str, data: bytes = b"", file: int = -1) -> None:
        key = (call, os.path.basename(path))
        self.calls[key] += 1
        self.bytes[key] += len(data)

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        data = super().read_at(file, size, offset)
        self.bytes["read", os.path.basename(self.paths[file])] += len(data)
        return data

    def forget(self) -> None:
        """Count from zero again."""
        self.calls.clear()
        self.bytes.clear()

    def count(self, *calls: str, name: str | None = None) -> int:
        """Number of these calls, on one file or on all."""
        return sum(n for (c, f), n in self.calls.items() if c in calls and name in (None, f))

    def written(self) -> dict[str, int]:
        """Files written to, with the number of writes."""
        return {f: n for (call, f), n in self.calls.items() if call == "write"}


class FullDisk(WatchedDisk):
    """Has room for `room` more bytes; a write beyond is cut short and fails with ENOSPC.

    Only files for which `which` holds take room; truncating gives it back.
    """

    def __init__(self, room: int, which: Which = every_file, error: int = errno.ENOSPC) -> None:
        super().__init__()
        self.room = room
        self.which = which
        self.error = error
        self.refused = 0

    def open(self, path: str, flags: int) -> int:
        size = os.path.getsize(path) if flags & os.O_TRUNC and os.path.exists(path) else 0
        file = super().open(path, flags)
        if self.which(path):
            self.room += size
        return file

    def truncate(self, file: int, size: int) -> None:
        before = os.fstat(file).st_size
        super().truncate(file, size)
        if self.which(self.paths[file]) and size < before:
            self.room += before - size

    def append(self, file: int, data: bytes) -> None:
        self._write(file, data, None)

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        self._write(file, data, offset)

    def _write(self, file: int, data: bytes, offset: int | None) -> None:
        fits = len(data)
        if self.which(self.paths[file]):
            fits = min(fits, self.room)
            self.room -= fits
        if offset is None:
            super().append(file, bytes(data[:fits]))
        else:
            super().write_at(file, bytes(data[:fits]), offset)
        if fits < len(data):
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))


class FailingSync(WatchedDisk):
    """Call number `at` (from 1) to fsync of a file for which `which` holds fails with EIO.

    With `truncates` False every truncation fails after it too.
    """

    def __init__(self, at: int, which: Which = every_file, *, truncates: bool = True) -> None:
        super().__init__()
        self.left = at
        self.which = which
        self.truncates = truncates
        self.failed = 0
        self.synced_after: list[int] = []  # descriptors synced again after the failure

    def meet(self, call: str, path: str, data: bytes = b"", file: int = -1) -> None:
        if call in ("fsync", "fdatasync") and self.which(path):
            if self.failed:
                self.synced_after.append(file)
            self.left -= 1
            if self.left == 0:
                self.failed += 1
                self.failed_on = file
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        if call == "truncate" and self.failed and not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class DyingDisk(WatchedDisk):
    """The process dies at system call number `at` (from 1): the call raises Death, and so does
    every later one.

    A write does the first `part` (0..1) of its work before; in the middle of a file no 16 aligned
    bytes are halved, since a sector is not. `count` is the number of calls so far.
    """

    def __init__(self, at: int, part: float = 0.0) -> None:
        super().__init__()
        self.at = at
        self.part = part
        self.count = 0
        self.died_at = ""
        self._offset: int | None = None

    @property
    def is_dead(self) -> bool:
        return bool(self.died_at)

    def meet(self, call: str, path: str, data: bytes = b"", file: int = -1) -> None:
        if self.is_dead:
            raise Death("a dead process makes no system call")
        self.count += 1
        if self.count == self.at:
            self.died_at = f"{call} {os.path.basename(path)}"
            size = int(len(data) * self.part)
            done = bytes(data[: size if self._offset is None else size & ~15])
            if done and self._offset is None:
                os.write(file, done)
            elif done and self._offset is not None:
                os.pwrite(file, done, self._offset)
            self.at_death()
            raise Death(self.died_at)

    def at_death(self) -> None:
        """What else happens to the disk then."""

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        self._offset = offset
        super().write_at(file, data, offset)

    def append(self, file: int, data: bytes) -> None:
        self._offset = None
        super().append(file, data)

    def bury(self) -> None:
        """Close what the dead process had open, as the system does."""
        for file in self.paths:
            os.close(file)
        self.paths.clear()


class PowerCutDisk(DyingDisk):
    """Dies like DyingDisk, and what was not synced before is lost in part, by chance of `seed`.

    Of every file each sector written since its last sync may be new or old, its size too. Of the
    names given, replaced or deleted in folders not synced since, the newest may be as they were.
    """

    SECTOR = 512

    def __init__(self, at: int, seed: int, part: float = 0.0) -> None:
        super().__init__(at, part)
        self.rng = random.Random(seed)
        self.safe: dict[int, bytes] = {}  # inode -> content known to be on disk
        self.undo: list[tuple[str, Callable[[], None]]] = []  # (folder, its last change taken back)

    def open(self, path: str, flags: int) -> int:
        is_new = not os.path.exists(path)
        before = b"" if is_new else read(path)
        file = super().open(path, flags)
        self.safe.setdefault(os.fstat(file).st_ino, before)
        if is_new:
            self.undo.append((os.path.dirname(path), lambda: remove(path)))
        return file

    def fsync(self, file: int) -> None:
        super().fsync(file)
        self._note(file)

    def sync_data(self, file: int) -> None:
        super().sync_data(file)
        self._note(file)

    def _note(self, file: int) -> None:
        self.safe[os.fstat(file).st_ino] = read(self.paths[file])

    def replace(self, source: str, target: str) -> None:
        before = read(target) if os.path.exists(target) else None
        super().replace(source, target)

        def back() -> None:
            if os.path.exists(target):
                os.replace(target, source)
            if before is not None:
                write(target, before)

        self.undo.append((os.path.dirname(target), back))

    def place_new(self, source: str, target: str) -> None:
        self.undo.append((os.path.dirname(target), lambda: remove(target)))
        super().place_new(source, target)

    def remove(self, path: str) -> None:
        before = read(path) if os.path.exists(path) else None
        super().remove(path)
        if before is not None:
            content = before
            self.undo.append((os.path.dirname(path), lambda: write(path, content)))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.undo = [(folder, back) for folder, back in self.undo if folder != path]

    def at_death(self) -> None:
        for path in {*self.paths.values()}:
            if os.path.exists(path):
                self._lose_sectors(path)
        # File systems keep the order of such changes: the newest ones are lost, if any.
        for _, back in reversed(self.undo[self.rng.randint(0, len(self.undo)) :]):
            back()

    def _lose_sectors(self, path: str) -> None:
        safe = self.safe.get(os.stat(path).st_ino)
        now = read(path)
        if safe is None or safe == now:
            return
        size = self.rng.choice((len(safe), len(now)))
        kept = bytearray()
        for start in range(0, size, self.SECTOR):
            stop = min(start + self.SECTOR, size)
            # A sector is written whole or not at all; behind the old end it then holds zeros.
            fate = self.rng.choice((now, safe))[start:stop]
            kept += fate.ljust(stop - start, b"\0")
        write(path, bytes(kept))


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
