"""Files that are no log, or not one this program knows: refused by name and left byte for byte."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
from kit import stories
from kit.stories import Story

COMMANDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("list", {}),
    ("context", {}),
    ("node", {"node": "n1"}),
    ("search", {"text": "x"}),
    ("audit", {}),
    ("budget", {"max_tokens": 100}),
    ("create", {}),
    ("append", {"role": "user", "text": "x"}),
    ("fork", {"node": "n0", "name": "b"}),
    ("pin", {"node": "n1", "idempotency_key": "k"}),
)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


def check_refused(path: Path, kind: type[timeline.Corrupt] = timeline.Corrupt) -> str:
    """Every command, maintenance too, exits with 3, and nothing changes or appears."""
    before = path.read_bytes()
    beside = sorted(each.name for each in path.parent.iterdir())
    messages = set()
    for name, args in COMMANDS:
        with pytest.raises(kind) as caught:
            stories.run(path, name, **args)
        assert caught.value.exit_code == 3
        messages.add(str(caught.value))
    assert sorted(each.name for each in path.parent.iterdir()) == beside
    actions: list[Callable[[timeline.Database], Any]] = [
        lambda database: database.purge([1]),
        lambda database: database.doctor(),
        lambda database: database.importing().__enter__(),
    ]
    if before.removeprefix(b"\xef\xbb\xbf").startswith(b'{"timeline":"log"'):
        beside.append(f"{path.name}.lock")  # the doctor locks what may be ours
    for action in actions:
        database = stories.open_database(path)
        with pytest.raises(timeline.Corrupt) as caught:
            action(database)
        database.close()
        assert caught.value.exit_code == 3
    assert path.read_bytes() == before
    assert {each.name for each in path.parent.iterdir()} <= {*beside}
    assert len(messages) == 1, messages
    found = stories.open_database(path)
    said = found.describe()
    found.close()
    assert said["exists"]
    assert said["size"] == len(before)
    assert said["nodes"] is None
    return messages.pop()


FOREIGN = {
    "text": b"Dear diary,\ntoday nothing.\n",
    "one byte": b"x",
    "newline": b"\n",
    "zeros": bytes(5000),
    "JSON object": b'{"name":"other","timeline":"work"}',
    "JSON lines": b'{"a":1}\n{"a":2}\n',
    "JSON list": b"[1,2,3]\n",
    "JSON number": b"17",
    "deep JSON": b"[" * 100_000,
    "sqlite": b"SQLite format 3\0" + bytes(4080),
    "zip": b"PK\x03\x04" + bytes(100),
    "half a header": stories.header()[:-30],
    "header without newline": stories.header()[:-1],
    "header of something else": b'{"timeline":"log book","format_version":1}\n',
    "not UTF-8": b'{"timeline":"log","x":"\xff"}\n',
    "huge number": b'{"timeline":"log","format_version":' + b"9" * 5000 + b"}\n",
    "version in words": b'{"timeline":"log","format_version":"1"}\n',
    "version false": b'{"timeline":"log","format_version":false}\n',
    "header without log_id": timeline.encode_line({"timeline": "log", "format_version": 1}, 0)[0],
    "header with an odd log_id": stories.header("x"),
    "header with a number for log_id": stories.header(5),  # type: ignore[arg-type]
    "header of version 0": stories.header(format_version=0),
    "header of version -1": stories.header(format_version=-1),
    "header with a number in words": stories.header(generation="one"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_file_that_is_no_log_is_refused_and_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(FOREIGN[name])
    assert str(path) in check_refused(path)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_refused_and_left(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "t.db"
    path.write_bytes(rng.randbytes(rng.choice((1, 10, 100, 5000))))
    check_refused(path)


def test_empty_file_is_refused_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(b"")
    said = check_refused(path)
    assert "empty" in said
    assert "line 1, byte 0" in said


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 5000])
def test_snapshot_of_the_earlier_program_is_told_apart(
    tmp_path: Path, indent: int | None, size: int
) -> None:
    path = tmp_path / "t.db"
    nodes = [{"id": f"n{i}", "text": "x"} for i in range(size)]
    text = json.dumps({"nodes": nodes, "format_version": 3}, indent=indent)
    path.write_text(text, encoding="utf-8")
    assert "a snapshot of the earlier Timeline; choose another --db" in check_refused(path)


@pytest.mark.parametrize("version", [2, 17, 10**30])
def test_newer_format_is_refused_by_its_version(story: Story, tmp_path: Path, version: int) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(stories.header(format_version=version) + story.log[story.ends[0] :])
    said = check_refused(path, timeline.UnknownVersion)
    assert str(version) in said
    assert "upgrade" in said


def later_line(op: str, seq: int, crc: int, **more: Any) -> bytes:
    return timeline.encode_line({"seq": seq, "ts": stories.START, "op": op, "tl": 0, **more}, crc)[
        0
    ]


@pytest.mark.parametrize("behind", ["nothing", "a known line", "a torn tail", "a second line"])
def test_unknown_operation_is_never_written_over(story: Story, tmp_path: Path, behind: str) -> None:
    path = tmp_path / "t.db"
    crc = int(story.log[-11:-3], 16)
    line = later_line("telepathy", story.seq + 1, crc, to="n1")
    crc = int(line[-11:-3], 16)
    if behind == "a known line":
        line += later_line("pin", story.seq + 2, crc, node=1)
    elif behind == "a torn tail":
        line += b'{"seq":33,"ts":1767'
    elif behind == "a second line":
        line = later_line("telepathy", story.seq + 1, int(story.log[-11:-3], 16), more=1)
        line += later_line("pin", story.seq + 1, int(line[-11:-3], 16), node=1)
    stories.place(path, story.log + line)
    for name, args in COMMANDS[6:]:
        with pytest.raises(timeline.UnknownVersion) as caught:
            stories.run(path, name, **args)
        assert caught.value.exit_code == 3
        assert "telepathy" in str(caught.value)
        assert "upgrade" in str(caught.value)
        assert caught.value.data["byte"] == len(story.log)
    assert path.read_bytes() == story.log + line
    assert stories.read_everything(path) == story.readings[-1]
    assert not stories.doctor(path)["ok"]


def test_unknown_fields_are_kept(story: Story, tmp_path: Path) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    more = {"id": 14, "parent": 13, "branch": "main", "role": "user", "tokens": 1, "via": "cli"}
    crc = int(story.log[-11:-3], 16)
    line = later_line("append", story.seq + 1, crc, **more, mood={"good": True}, text="odd")
    stories.place(path, story.log + line)
    assert stories.run(path, "node", node="n14")["text"] == "odd"
    stories.next_append_works(path)
    stories.repair(path, target)
    assert b'"mood":{"good":true}' in target.read_bytes()
    database = stories.open_database(path)
    database.purge([1])
    database.close()
    assert b'"mood":{"good":true}' in path.read_bytes()


def test_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, args in COMMANDS:
        with pytest.raises(timeline.TimelineError) as caught:
            stories.run(folder, name, **args)
        assert caught.value.exit_code in (1, 3)
        assert str(folder) in str(caught.value)
    assert list(folder.iterdir()) == []
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    database = stories.open_database(folder)
    assert database.describe()["exists"]


def test_missing_database_is_made_by_create_only(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    for name, args in COMMANDS:
        if name == "create":
            continue
        with pytest.raises(timeline.NotFound) as caught:
            stories.run(path, name, **args)
        assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(timeline.NotFound, match="folder"):
        stories.run(tmp_path / "no folder" / "t.db", "create")
    assert list(tmp_path.iterdir()) == []
    assert stories.run(path, "create") == {"timeline_id": "tl0"}


def test_terminal_program_exits_3_and_prints_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, content) in enumerate(FOREIGN.items()):
        path = tmp_path / f"{number}.db"
        path.write_bytes(content)
        for arguments in (["list"], ["append", "--role=user", "--text=x"], ["doctor"]):
            assert timeline_cli.main([f"--db={path}", *arguments]) == 3, (name, arguments)
            said = capsys.readouterr()
            assert said.out == ""
            assert "error" in json.loads(said.err)
        assert timeline_cli.main([f"--db={path}", "where"]) == 0
        assert json.loads(capsys.readouterr().out)["nodes"] is None
        assert path.read_bytes() == content


# --- editors ------------------------------------------------------------------------------------


def edited(log: bytes, how: str) -> bytes:
    if "CRLF" in how:
        log = log.replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf" + log if "BOM" in how else log


@pytest.mark.parametrize("how", ["BOM", "CRLF", "BOM and CRLF"])
def test_file_saved_by_an_editor_is_damage_at_the_header(
    story: Story, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(edited(story.log, how))
    said = check_refused(path)
    assert "line 1, byte 0" in said
    assert "repair-to" in said


@pytest.mark.parametrize("how", ["BOM", "CRLF", "BOM and CRLF"])
def test_file_saved_by_an_editor_is_repaired_completely(
    story: Story, tmp_path: Path, how: str
) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    path.write_bytes(edited(story.log, how))
    result = stories.repair(path, target)
    assert result == {
        "path": str(target),
        "transactions": story.seq,
        "nodes": story.nodes(story.seq),
        "lost": [],
        "left_out": [],
    }
    assert path.read_bytes() == edited(story.log, how)
    assert stories.read_everything(target) == story.readings[-1]
    assert stories.doctor(target)["ok"]
    stories.next_append_works(target)


def test_newline_at_the_end_added_by_an_editor_is_a_torn_tail(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log + b"\n")
    assert stories.read_everything(path) == story.readings[-1]
    stories.next_append_works(path)


def test_line_changed_by_hand_is_refused_by_name(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for old, new in ((b"Hello", b"Hullo"), (b'"tokens":400', b'"tokens":4'), (b"last", b"least")):
        changed = story.log.replace(old, new)
        stories.place(path, changed)
        start = story.lines()[story.log[: story.log.index(old)].count(b"\n")][0]
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, "append", role="user", text="x")
        assert caught.value.data["byte"] == start
        assert path.read_bytes() == changed
