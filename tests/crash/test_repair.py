"""`doctor --repair-to`: what is valid by itself is written to a new database, the old one stays."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import timeline
import timeline_cli
from kit import stories
from kit.compare import START, ask_model
from kit.model import Model
from kit.random_ops import steps as random_steps
from kit.stories import Story

SLOW = pytest.mark.slow
MESSAGES = 20


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A header, the line of `create` and twenty messages."""
    return Story(tmp_path_factory.mktemp("twenty"), stories.messages(MESSAGES))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


def repaired(path: Path, target: Path, damaged: bytes, until: int | None = None) -> dict[str, Any]:
    """Repair a log; the doctor must find nothing, and the old file must be as it was."""
    stories.place(path, damaged)
    stories.clear(target)
    result = stories.repair(path, target, until)
    assert path.read_bytes() == damaged
    assert not target.with_name(target.name + ".tmp").exists()
    report = stories.doctor(target)
    assert report == {
        "ok": True,
        "transactions": result["transactions"],
        "nodes": result["nodes"],
        "problems": [],
    }
    return result


# --- one line of twenty messages ----------------------------------------------------------------


def check_lost_line(twenty: Story, path: Path, place: int, mask: int) -> None:
    """One byte changed in a line: its node is a stub, everything else is as it was."""
    number = next(i for i, (_, end) in enumerate(twenty.lines()) if place < end)
    start, end = twenty.lines()[number]
    target = path.with_name("new.db")
    result = repaired(path, target, stories.flipped(twenty.log, place, mask))
    nodes = stories.read_everything(target)["nodes"]
    before = twenty.readings[-1]["nodes"]
    assert [node["node"] for node in nodes] == [f"n{i}" for i in range(1, MESSAGES + 1)]
    lost = number - 2 if number > 1 else None
    if place == end - 1:  # the newline: the lines beside it are whole, and found to be
        lost = None
    assert result["transactions"] == twenty.seq
    assert result["left_out"] == []
    for index, (node, old) in enumerate(zip(nodes, before, strict=True)):
        if index != lost:
            assert {**node, "prefix_tokens": 0} == {**old, "prefix_tokens": 0}
    if lost is None:
        assert [entry["nodes"] for entry in result["lost"]] in ([], [[]])
        return
    stub = nodes[lost]
    assert (stub["role"], stub["tokens"]) == ("system", 0)
    assert stub["text"] == f"[lost: line {number + 1}, bytes {start}..{end}]"
    assert stub["parent"] == f"n{lost}"
    assert stub["branches"] == ["main"]
    assert result["lost"] == [{"line": number + 1, "byte": start, "nodes": [f"n{lost + 1}"]}]


def places(twenty: Story) -> range:
    """All bytes of all lines but the header and the last."""
    return range(twenty.lines()[1][0], twenty.lines()[-1][0])


@pytest.mark.parametrize("line", range(1, MESSAGES + 1))
def test_one_byte_of_a_line_costs_no_more_than_its_text(
    twenty: Story, tmp_path: Path, line: int
) -> None:
    start, end = twenty.lines()[line]
    assert start in places(twenty)
    rng = random.Random(line)
    chosen = {*rng.sample(range(start, end), 2), end - 1, end - 5}
    for place in sorted(chosen):
        check_lost_line(twenty, tmp_path / "t.db", place, 1 << rng.randrange(8))


@SLOW
@pytest.mark.parametrize("part", range(8))
def test_one_byte_at_every_place_of_a_line_costs_no_more_than_its_text(
    twenty: Story, tmp_path: Path, part: int
) -> None:
    for place in places(twenty)[part::8]:
        for mask in (1, 0x20, 0xFF):
            check_lost_line(twenty, tmp_path / "t.db", place, mask)


def test_last_line_is_left_out_if_it_is_damaged(twenty: Story, tmp_path: Path) -> None:
    start, end = twenty.lines()[-1]
    for place in (start + 3, end - 8, end - 30):
        result = repaired(
            tmp_path / "t.db", tmp_path / "new.db", stories.flipped(twenty.log, place)
        )
        assert result["nodes"] == MESSAGES - 1
        assert result["lost"] == [{"line": len(twenty.lines()), "byte": start, "nodes": []}]
        assert stories.next_append_works(tmp_path / "new.db") == MESSAGES


def test_several_lost_lines_in_a_row_are_as_many_stubs(twenty: Story, tmp_path: Path) -> None:
    lines = twenty.lines()
    damaged = twenty.log[: lines[5][0]] + b"garbage\n\n" + twenty.log[lines[9][0] :]
    result = repaired(tmp_path / "t.db", tmp_path / "new.db", damaged)
    assert (result["nodes"], result["transactions"]) == (MESSAGES, twenty.seq)
    # Nobody knows that line 9 (its predecessor being gone) is right, so it is lost with the others.
    lost = [node for entry in result["lost"] for node in entry["nodes"]]
    assert lost == ["n4", "n5", "n6", "n7", "n8"]
    nodes = stories.read_everything(tmp_path / "new.db")["nodes"]
    before = twenty.readings[-1]["nodes"]
    assert [node["text"] for node in nodes if node["node"] not in lost] == [
        node["text"] for node in before if node["node"] not in lost
    ]


def test_whole_log_is_copied_with_all_its_numbers(story: Story, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    result = repaired(tmp_path / "t.db", target, story.log)
    assert result == {
        "path": str(target),
        "transactions": story.seq,
        "nodes": story.nodes(story.seq),
        "lost": [],
        "left_out": [],
    }
    assert stories.read_everything(target) == story.readings[-1]
    header = json.loads(target.read_bytes().split(b"\n")[0])
    assert header["prev_log_id"] == stories.LOG_ID
    assert header["log_id"] != stories.LOG_ID
    assert target.stat().st_mode & 0o777 == 0o600


def test_any_state_comes_back_with_until(story: Story, tmp_path: Path) -> None:
    for seq in range(story.seq + 1):
        target = tmp_path / f"{seq}.db"
        result = repaired(tmp_path / "t.db", target, story.log, until=seq)
        assert (result["transactions"], result["left_out"]) == (seq, [])
        assert stories.read_everything(target) == story.readings[seq], seq
    result = repaired(tmp_path / "t.db", tmp_path / "far.db", story.log, until=10**9)
    assert result["transactions"] == story.seq


def test_keys_answer_as_before_in_the_repaired_file(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    target = tmp_path / "new.db"
    damaged = stories.flipped(story.log, story.log.index(b"on the other branch"))
    repaired(path, target, damaged)
    before = target.read_bytes()
    for (name, args), result in zip(story.steps, story.results, strict=True):
        if "idempotency_key" in args:
            again = stories.run(target, name, **args)
            if name == "budget":
                assert [m["node"] for m in again["messages"]] == [
                    m["node"] for m in result["messages"]
                ]
            else:
                assert again == result
    assert target.read_bytes() == before


# --- every kind of line -------------------------------------------------------------------------


def valid_nodes(damaged: bytes) -> list[dict[str, Any]]:
    """Records of nodes in lines whose checksum follows from the one printed in the line before."""
    lines = [damaged[low:high] for low, high in stories.lines_of(damaged)]
    found = []
    for before, line in pairwise(lines):
        try:
            if timeline.line_crc(line, int(before[-11:-3], 16)) is not None:
                found.append(json.loads(line))
        except ValueError:
            continue
    return [record for record in found if "id" in record]


def check_any_damage(path: Path, damaged: bytes) -> dict[str, Any]:
    """However much is damaged: the copy is sound, and holds the text of every line that is valid by
    itself, or says that the line was left out."""
    target = path.with_name("new.db")
    result = repaired(path, target, damaged)
    there = stories.open_database(target)
    for record in valid_nodes(damaged):
        if record["id"] > result["nodes"]:
            assert record["seq"] in result["left_out"]
            continue
        shown = there.run("node", {"node": f"n{record['id']}"})
        if shown["text"].startswith("[lost: "):
            assert record["seq"] in result["left_out"], record
            assert re.fullmatch(r"\[lost: line \d+, bytes \d+\.\.\d+\]", shown["text"])
        else:
            assert shown["text"] == record["text"]
            assert shown["role"] == record.get("role", "summary")
    there.close()
    stories.next_append_works(target)
    return result


def test_any_lost_line_of_any_kind_leaves_a_sound_copy(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for start, end in story.lines()[1:]:
        result = check_any_damage(path, stories.flipped(story.log, start + 12))
        if end == len(story.log):
            continue
        assert result["nodes"] == story.nodes(story.seq), start
        assert result["transactions"] == story.seq
        texts = [
            node["text"] for node in stories.read_everything(path.with_name("new.db"))["nodes"]
        ]
        stubs = [text for text in texts if text.startswith("[lost: ")]
        record = json.loads(story.log[start:end])
        number = story.lines().index((start, end)) + 1
        assert stubs == ([f"[lost: line {number}, bytes {start}..{end}]"] if "id" in record else [])
        nodes = [f"n{record['id']}"] if "id" in record else []
        assert result["lost"] == [{"line": number, "byte": start, "nodes": nodes}]


def damage(log: bytes, rng: random.Random) -> bytes:
    """A log with one to six places hurt: bits, bytes, whole lines, stretches of zeros."""
    lines = [log[low:high] for low, high in stories.lines_of(log)]
    for _ in range(rng.randint(1, 6)):
        number = rng.randrange(1, len(lines))
        line = lines[number]
        how = rng.randrange(6)
        if how == 0 and line:
            line = stories.flipped(line, rng.randrange(len(line)), rng.randint(1, 255))
        elif how == 1:
            line = b""
        elif how == 2:
            at = rng.randrange(len(line) + 1)
            line = line[:at] + bytes(rng.randint(1, 40)) + line[at + 20 :]
        elif how == 3:
            line = line + line
        elif how == 4:
            other = rng.randrange(1, len(lines))
            lines[other], line = line, lines[other]
        else:
            line = line[: rng.randrange(len(line) + 1)]
        lines[number] = line
    return b"".join(lines)


def random_log(folder: Path, seed: int) -> bytes:
    """A log of random operations, their failures and retries among them."""
    model = Model(START, via="cli")
    path = folder / "random.db"
    stories.clear(path)
    path.write_bytes(stories.header())
    database = timeline.Database(str(path), clock=lambda: model.now, disk=stories.QuickDisk())
    for step in random_steps(seed, model, 60):
        if "op" not in step:
            if step["do"] == "clock":
                model.now = max(0, model.now + step["seconds"])
            continue
        ask_model(model, step["op"], step["args"])
        stories.outcome(lambda step=step: database.run(step["op"], step["args"]))
    database.close()
    return path.read_bytes()


def check_random_damage(folder: Path, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    log = random_log(folder, seed)
    for _ in range(rounds):
        check_any_damage(folder / "t.db", damage(log, rng))


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_of_a_random_log_leaves_a_sound_copy(tmp_path: Path, seed: int) -> None:
    check_random_damage(tmp_path, seed, 4)


@SLOW
@pytest.mark.parametrize("first", range(8, 208, 20))
def test_random_damage_of_a_random_log_leaves_a_sound_copy_in_many_runs(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 20):
        check_random_damage(tmp_path, seed, 10)


def test_lost_create_leaves_a_timeline_without_title(story: Story, tmp_path: Path) -> None:
    place = story.log.index(b'"op":"create"') + 3
    repaired(tmp_path / "t.db", tmp_path / "new.db", stories.flipped(story.log, place))
    row = stories.run(tmp_path / "new.db", "list")
    assert {each["timeline_id"]: each["title"] for each in row} == {"tl0": None, "tl1": None}
    texts = [node["text"] for node in stories.read_everything(tmp_path / "new.db")["nodes"]]
    assert texts == [node["text"] for node in story.readings[-1]["nodes"]]


def test_lost_fork_is_made_where_the_branch_is_first_met(story: Story, tmp_path: Path) -> None:
    place = story.log.index(b'"op":"fork"') + 3
    repaired(tmp_path / "t.db", tmp_path / "new.db", stories.flipped(story.log, place))
    nodes = stories.read_everything(tmp_path / "new.db")["nodes"]
    assert nodes[3]["text"] == "on the other branch"
    assert nodes[3]["parent"] == "n2"
    branches = stories.run(tmp_path / "new.db", "branches", all=True)
    again = next(row for row in branches if row["name"] == "again")
    assert (again["head"], again["fork_node"]) == ("n5", "n2")


def test_stub_hangs_on_the_branch_of_what_hangs_on_it(tmp_path: Path) -> None:
    """The lost node was on a branch that is not the current one."""
    steps = (
        *stories.messages(2),
        ("fork", {"node": "n1", "name": "side"}),
        stories.append("lost one", branch="side"),
        stories.append("on main"),
        stories.append("behind the lost one", branch="side"),
    )
    story = Story(tmp_path, steps, "made.db")
    damaged = stories.flipped(story.log, story.log.index(b"lost one"))
    repaired(tmp_path / "t.db", tmp_path / "new.db", damaged)
    nodes = stories.read_everything(tmp_path / "new.db")["nodes"]
    assert re.fullmatch(r"\[lost: line 6, bytes \d+\.\.\d+\]", nodes[2]["text"])
    assert [node["parent"] for node in nodes] == ["n0", "n1", "n1", "n2", "n3"]
    assert nodes[2]["branches"] == ["side"]
    assert nodes[3]["branches"] == ["main"]


# --- refusals -----------------------------------------------------------------------------------


def test_existing_path_is_refused_and_left(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in (other, link, folder, path):
        with pytest.raises(timeline.Refused) as caught:
            stories.repair(path, target)
        assert str(target) in str(caught.value)
        assert caught.value.exit_code == 1
    assert other.read_bytes() == b"precious"
    assert link.is_symlink()
    assert path.read_bytes() == story.log
    with pytest.raises(timeline.NotFound):
        stories.repair(path, tmp_path / "no folder" / "new.db")


def test_unreadable_header_exits_3_and_makes_no_file(story: Story, tmp_path: Path) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    foreign = b'{"a":1}\n{"seq":1}\n'
    for content in (b"", b"garbage\n", foreign, story.log[:100], story.log[: story.ends[0]]):
        if content == story.log[: story.ends[0]]:
            content = stories.flipped(content, 20)
        path.write_bytes(content)
        for act in (lambda: stories.repair(path, target), lambda: stories.doctor(path)):
            with pytest.raises(timeline.Corrupt) as caught:
                act()
            assert caught.value.exit_code == 3
        assert path.read_bytes() == content
        assert not target.exists()


@pytest.mark.parametrize("how", ["bracket", "log_id", "mark", "garbage", "newline", "BOM"])
def test_lines_behind_an_unreadable_header_are_repaired(
    story: Story, tmp_path: Path, how: str
) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    header, rest = story.log[: story.ends[0]], story.log[story.ends[0] :]
    content = {
        "bracket": b"[" + header[1:] + rest,
        "log_id": header.replace(b'"log_id":"5eed', b'"log_id":"XXXX') + rest,
        "mark": header.replace(b"timeline", b"tymeline") + rest,
        "garbage": b"garbage\n" + story.log,
        "newline": header[:-1] + b"x" + rest,
        "BOM": b"\xef\xbb\xbf" + story.log,
    }[how]
    path.write_bytes(content)
    for act in (lambda: stories.doctor(path), lambda: stories.run(path, "list")):
        with pytest.raises(timeline.Corrupt) as caught:
            act()
        assert caught.value.data == {"line": 1, "byte": 0}
        assert "doctor --repair-to" in str(caught.value)
    result = stories.repair(path, target)
    assert path.read_bytes() == content
    assert result["nodes"] == story.nodes(story.seq)
    assert stories.read_everything(target) == story.readings[-1]
    assert stories.doctor(target)["ok"]


def test_damaged_header_that_still_reads_is_repaired(story: Story, tmp_path: Path) -> None:
    place = story.log.index(b'"created":') + 12
    result = repaired(tmp_path / "t.db", tmp_path / "new.db", stories.flipped(story.log, place))
    assert (result["lost"], result["nodes"]) == ([], story.nodes(story.seq))
    assert stories.read_everything(tmp_path / "new.db") == story.readings[-1]


def test_terminal_program_reports_and_repairs(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = tmp_path / "t.db", tmp_path / "new.db"
    stories.place(path, story.log)
    assert timeline_cli.main([f"--db={path}", "doctor"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "transactions": story.seq,
        "nodes": story.nodes(story.seq),
        "problems": [],
    }
    path.write_bytes(stories.flipped(story.log, story.log.index(b"Hello")))
    assert timeline_cli.main([f"--db={path}", "doctor"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert (report["problems"][0]["line"], report["problems"][0]["byte"]) == (3, story.ends[1])
    assert set(report["problems"][0]) == {"line", "byte", "what"}
    assert timeline_cli.main([f"--db={path}", "doctor", "--repair-to", str(target)]) == 0
    assert json.loads(capsys.readouterr().out)["lost"][0]["nodes"] == ["n1"]
    assert timeline_cli.main([f"--db={path}", "doctor", "--repair-to", str(target)]) == 1
