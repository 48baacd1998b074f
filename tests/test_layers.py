"""Who imports whom: the engine nobody, helpers the engine, adapters all; standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
OURS = {path.stem for path in SCRIPTS.glob("*.py")}
ALLOWED = {
    "timeline": {"timeline_cli"},  # only when it is started as a program
    "timeline_export": {"timeline"},
    "timeline_import": {"timeline"},
    "timeline_cli": {"timeline", "timeline_export", "timeline_import"},
    "timeline_mcp": {"timeline", "timeline_export", "timeline_import"},
    "tl": {"timeline_cli"},
}
SLOW_MODULES = {
    "json", "re", "argparse", "typing", "dataclasses", "enum", "pathlib", "threading",
    "collections", "contextlib", "hashlib", "timeline_import", "timeline_export",
}  # fmt: skip


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_module_imports_only_what_its_layer_may(name: str) -> None:
    found = imports_of(SCRIPTS / f"{name}.py")
    assert found & OURS <= ALLOWED[name]
    assert found - OURS <= set(sys.stdlib_module_names)


def test_the_engine_prints_nothing_and_reads_no_environment() -> None:
    tree = ast.parse((SCRIPTS / "timeline.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "input")
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "getenv", "expanduser")


@pytest.mark.parametrize(
    "arguments",
    [["context"], ["node", "--node", "n1"], ["append", "--role", "user", "--text", "x"]],
)
def test_usual_commands_load_no_slow_module(tmp_path: Path, arguments: list[str]) -> None:
    db = str(tmp_path / "db.json")
    start = [sys.executable, "-S", "-E"]
    for each in (["create"], ["append", "--role", "user", "--text", "x"]):
        subprocess.run(
            [*start, str(SCRIPTS / "tl.py"), *each, "--db", db], check=True, capture_output=True
        )
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import timeline_cli; "
        f"timeline_cli.main({[*arguments, '--db', db]!r}); "
        f"print(sorted({SLOW_MODULES!r} & set(sys.modules)))"
    )
    done = subprocess.run([*start, "-c", code], check=True, capture_output=True)
    assert done.stdout.splitlines()[-1] == b"[]"
