"""Runs the terminal program: as a real process, the way a user starts it, or within this one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import timeline_cli

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Outcome:
    """What a process did: exit code, bytes of stdout and stderr."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def value(self) -> Any:
        """stdout as JSON; the process must have succeeded."""
        assert self.code == 0, self.err.decode()
        return json.loads(self.out.decode())

    @property
    def error(self) -> Any:
        """The failure on stderr; stdout must be empty."""
        assert self.out == b"", self.out
        return json.loads(self.err.decode())


class Program:
    """`tl` on one database, each command a process of its own."""

    def __init__(self, db: Path, script: str = "tl.py") -> None:
        self.db = db
        self.script = SCRIPTS / script

    def __call__(
        self, *arguments: str | bytes, stdin: bytes | None = b"", env: dict[str, str] | None = None
    ) -> Outcome:
        where = {**os.environ, "TIMELINE_DB": str(self.db), **(env or {})}
        done = subprocess.run(
            [sys.executable, str(self.script), *arguments],
            input=stdin, capture_output=True, env=where, check=False, timeout=120,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr)


class Inside(Program):
    """The same without the process: for what a command says and does, not how it is started."""

    def __call__(
        self, *arguments: str | bytes, stdin: bytes | None = b"", env: dict[str, str] | None = None
    ) -> Outcome:
        out, err = io.BytesIO(), io.BytesIO()
        streams = {
            "stdin": io.TextIOWrapper(io.BytesIO(stdin or b""), encoding="utf-8"),
            "stdout": io.TextIOWrapper(out, encoding="utf-8"),
            "stderr": io.TextIOWrapper(err, encoding="utf-8"),
        }
        where = {"TIMELINE_DB": str(self.db), **(env or {})}
        with mock.patch.dict(os.environ, where), mock.patch.multiple(sys, **streams):
            code = timeline_cli.main([os.fsdecode(each) for each in arguments])
        return Outcome(code, out.getvalue(), err.getvalue())
