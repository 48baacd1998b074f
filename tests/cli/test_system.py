"""What the system refuses: said with the file and with what to do, never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import timeline
from kit.program import SCRIPTS, Inside, Program

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="no pipes with names there")


@pytest.fixture
def tl(tmp_path: Path) -> Program:
    return Inside(tmp_path / "db.json")


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_no_database(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "db.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/null")
    tl = Inside(path)
    for words in (["create"], ["append", "--role", "user", "--text", "x"], ["doctor"]):
        done = tl(*words)
        assert done.code == 1, done.err
        assert str(path) in done.error["error"]
        assert "choose another" in done.error["error"]
    assert sorted(os.listdir(tmp_path)) in ([], ["db.json"])


def test_a_name_that_is_too_long_says_so(tmp_path: Path) -> None:
    done = Inside(tmp_path / ("x" * 300))("create")
    assert done.code == 5
    assert "shorter name" in done.error["error"]


@POSIX
def test_a_working_folder_that_has_vanished_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && "{sys.executable}" "{SCRIPTS / "tl.py"}"'
    done = subprocess.run(
        ["sh", "-c", f"{script} list --db x.json"], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "does not exist any more" in json.loads(done.stderr)["error"]
    whole = tmp_path / "db.json"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f'{script} create --db "{whole}"'], capture_output=True, check=False
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"timeline_id": "tl0"})


@pytest.mark.parametrize("ending", [*timeline.SIDE_ENDINGS, ".index/new.json", ".files/new.json"])
def test_repair_never_writes_among_the_databases_own_files(
    tl: Program, tmp_path: Path, ending: str
) -> None:
    tl("create")
    (tmp_path / "db.json.files").mkdir()
    (tmp_path / "db.json.index").mkdir(exist_ok=True)
    before = everything(tmp_path)
    done = tl("doctor", "--repair-to", str(tmp_path / f"db.json{ending}"))
    assert done.code == 1, done.out
    assert everything(tmp_path) == before


def test_an_import_without_a_line_that_can_be_read_fails(tl: Program, tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    bad.write_text("{broken\n[1]\n{}\n", encoding="utf-8")
    good.write_text('{"role":"user","text":"x"}\n', encoding="utf-8")
    for more in ([], ["--dry-run"]):
        done = tl("import", "--format", "messages", str(bad), *more)
        assert done.code == 2, done.out
        assert "none of its 3 lines can be read: line 1" in done.error["error"]
    done = tl("import", "--format", "messages", str(good), str(bad))
    assert done.code == 2
    data = done.error["data"]
    assert [row["added"] for row in data["timelines"]] == [1], "the other is in, and said to be"
    assert [row["path"] for row in data["unrecognized"]] == [str(bad)]
    assert [each["text"] for each in tl("context").value] == ["x"]
    folder = tmp_path / "both"
    folder.mkdir()
    for each in (bad, good):
        each.rename(folder / each.name)
    done = tl("import", "--format", "messages", str(folder))
    assert [row["records"] for row in done.value["timelines"]] == [1]
    assert len(done.value["unrecognized"]) == 1


@POSIX
def test_an_import_needs_no_stderr(tl: Program, tmp_path: Path) -> None:
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"role":"user","text":"x"}\n', encoding="utf-8")
    for words in (f'import "{talk}" --format messages', "sync --since 0"):
        command = f'"{sys.executable}" "{SCRIPTS / "tl.py"}" {words} --db "{tl.db}" 2>&-'
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout


@POSIX
def test_an_empty_home_names_no_database(tl: Program) -> None:
    done = tl("list", env={"HOME": "", "TIMELINE_DB": ""})
    assert done.code == 2
    assert "--db" in done.error["error"]


@POSIX
def test_a_path_of_any_script_is_taken_in_any_locale(tl: Program, tmp_path: Path) -> None:
    talk = tmp_path / "出.jsonl"
    talk.write_text('{"role":"user","text":"x"}\n', encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = Program(tl.db)("import", "--format", "messages", os.fsencode(talk), env=ascii_only)
    assert [row["added"] for row in done.value["timelines"]] == [1]


def test_ids_that_cannot_be_written_lose_nothing(tl: Program, tmp_path: Path) -> None:
    tl("create")
    tl("append", "--role", "user", "--text", "x")
    (tmp_path / "doc.json").write_bytes(tl("export", "--format", "json").out)
    other = Inside(tmp_path / "other.json")
    done = other("import", str(tmp_path / "doc.json"), "--ids", str(tmp_path / ("n" * 300)))
    data = done.error["data"]
    assert (done.code, data["stored"], data["ids"]) == (5, True, {"n1": "n1"})
    assert data["answer"]["timelines"][0]["added"] == 1
    (tmp_path / "ids.json").write_text("mine", encoding="utf-8")
    done = other("import", str(tmp_path / "doc.json"), "--ids", str(tmp_path / "ids.json"))
    assert "--force" not in done.error["error"]


def test_archived_and_dropped_branches_are_told_from_unknown_ones(tl: Program) -> None:
    tl("create")
    tl("append", "--role", "user", "--text", "x")
    tl("fork", "--node", "n1", "--name", "side")
    tl("append", "--branch", "side", "--role", "user", "--text", "y")
    tl("summarize", "--from", "n2", "--to", "n2", "--summary", "s")
    tl("archive-branch", "--name", "side", "--scope", "own")
    error = tl("switch", "--name", "side").error
    assert error["error"] == 'unknown branch "side"'
    assert error["data"]["status"] == "archived"
    tl("fork", "--node", "n1", "--name", "side")
    error = tl("thaw", "--name", "side").error
    assert "`--as-name`" in error["error"]
