"""Bits that turn over in the log: refused by line and byte, never skipped, never written over."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import timeline
from kit import stories
from kit.stories import Story

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """One story of every kind of line, and one that ends in a transaction of several lines."""
    folder = tmp_path_factory.mktemp("told")
    whole = Story(folder, stories.EVERYTHING, "one.db")
    steps = stories.EVERYTHING
    until_budget = steps[: [name for name, _ in steps].index("budget") + 1]
    return [whole, Story(folder, until_budget, "several.db")]


def line_at(story: Story, place: int) -> int:
    """Index of the line that holds the byte at `place`; the header is 0."""
    return next(i for i, (_, end) in enumerate(story.lines()) if place < end)


def may_be_torn(story: Story, log: bytes) -> bool:
    """Whether the last transaction now looks like a write that was cut short: it does not end in
    a newline, or one of its lines is no JSON object."""
    tail = log[story.ends[-2] :]
    if not tail.endswith(b"\n"):
        return True
    for line in tail[:-1].split(b"\n"):
        try:
            json.loads(line.decode())
        except ValueError:
            return True
    return False


def write_is_refused(path: Path) -> timeline.Corrupt:
    """The error with which writing is refused, the file being left as it was."""
    before = path.read_bytes()
    found = []
    for name, args in (
        ("append", {"role": "user", "text": "x"}),
        ("fork", {"node": "n0", "name": "no"}),
        ("create", {}),
    ):
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, name, **args)
        found.append(caught.value)
    assert path.read_bytes() == before
    assert not Path(f"{path}.torn").exists()
    assert caught.value.exit_code == 3
    assert len({str(each) for each in found}) == 1
    return caught.value


def check_flip(story: Story, path: Path, place: int, bit: int) -> None:
    damaged = stories.flipped(story.log, place, 1 << bit)
    stories.place(path, damaged)
    number = line_at(story, place)
    if number == 0:
        error = write_is_refused(path)
        assert (error.data["line"], error.data["byte"]) == (1, 0)
        with pytest.raises(timeline.Corrupt):
            stories.run(path, "list")
        return
    seq = story.seq_at(place)
    assert stories.read_state(path) == story.states[seq], "what is before it must stay readable"
    if seq == story.seq - 1 and may_be_torn(story, damaged) and stories.doctor(path)["ok"]:
        assert stories.next_append_works(path) == story.nodes(seq) + 1
        torn = Path(f"{path}.torn").read_bytes()
        assert torn.endswith(b":\n" + damaged[story.ends[seq] :] + b"\n")
        return
    error = write_is_refused(path)
    start = story.lines()[number][0]
    assert (error.data["line"], error.data["byte"]) == (number + 1, start)
    assert f"line {number + 1}, byte {start}" in str(error)
    check_report(story, path, number, seq)


def check_report(story: Story, path: Path, number: int, seq: int) -> None:
    """The doctor names the line and the byte it begins at, and counts what is before it."""
    report = stories.doctor(path)
    assert not report["ok"]
    assert report["transactions"] == seq
    assert report["nodes"] == story.nodes(seq)
    assert report["problems"][0]["line"] == number + 1
    assert report["problems"][0]["byte"] == story.lines()[number][0]


def chosen(story: Story, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    return rng.randrange(len(story.log)), rng.randrange(8)


@pytest.mark.parametrize("seed", range(80))
def test_flipped_bit_is_refused_by_name_or_is_a_torn_tail(
    told: list[Story], tmp_path: Path, seed: int
) -> None:
    story = told[seed % 2]
    check_flip(story, tmp_path / "t.db", *chosen(story, seed))


@SLOW
@pytest.mark.parametrize("first", range(80, 3080, 200))
def test_flipped_bit_is_refused_by_name_or_is_a_torn_tail_in_many_places(
    told: list[Story], tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 200):
        story = told[seed % 2]
        check_flip(story, tmp_path / "t.db", *chosen(story, seed))


@pytest.mark.parametrize("story_number", [0, 1])
@pytest.mark.parametrize("line_from_end", [1, 2, 3, 4])
def test_flip_near_the_end_of_a_line_is_refused_by_name_or_is_a_torn_tail(
    told: list[Story], tmp_path: Path, story_number: int, line_from_end: int
) -> None:
    story = told[story_number]
    _, end = story.lines()[-line_from_end]
    for place in range(end - 20, end):
        check_flip(story, tmp_path / "t.db", place, place % 5)


def test_last_line_with_a_wrong_text_is_damage(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    place = story.log.rindex(b'"last"') + 1
    stories.place(path, stories.flipped(story.log, place, 4))
    error = write_is_refused(path)
    assert "checksum" in str(error)
    assert stories.read_everything(path) == story.readings[-2]


def test_first_line_of_the_last_transaction_with_a_wrong_text_is_damage(
    told: list[Story], tmp_path: Path
) -> None:
    story, path = told[1], tmp_path / "t.db"
    place = story.log.rindex(b"messages left out")
    stories.place(path, stories.flipped(story.log, place, 4))
    write_is_refused(path)


def test_everything_before_the_damage_is_readable(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    for start, _ in story.lines()[1:-1]:
        seq = story.seq_at(start)
        stories.place(path, stories.flipped(story.log, start + 9, 1))
        if seq:
            assert stories.read_everything(path) == story.readings[seq], start
            continue
        for name in ("list", "branches", "context", "audit"):
            with pytest.raises(timeline.Corrupt) as caught:  # nothing is left to read
                stories.run(path, name)
            assert caught.value.data == {"line": 2, "byte": start}


def test_node_behind_the_damage_is_refused_by_line_not_unknown(
    told: list[Story], tmp_path: Path
) -> None:
    story, path = told[0], tmp_path / "t.db"
    start, _ = story.lines()[4]
    stories.place(path, stories.flipped(story.log, start + 30, 1))
    for node in ("n5", "n13"):
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, "node", node=node)
        assert caught.value.data["line"] == 5
    assert stories.run(path, "node", node="n1")["text"] == "Hello"


@pytest.mark.parametrize("remove", [True, False], ids=["removed", "doubled"])
def test_line_removed_or_doubled_by_hand_is_damage(
    told: list[Story], tmp_path: Path, remove: bool
) -> None:
    story, path = told[0], tmp_path / "t.db"
    lines = story.lines()
    for start, end in lines[1:-1]:
        if remove:
            stories.place(path, story.log[:start] + story.log[end:])
        else:
            stories.place(path, story.log[:end] + story.log[start:])
        seq = story.seq_at(start if remove else end)
        assert stories.read_state(path) == story.states[seq]
        write_is_refused(path)
        assert not stories.doctor(path)["ok"]


def test_last_line_doubled_by_hand_is_damage(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    start, _ = story.lines()[-1]
    stories.place(path, story.log + story.log[start:])
    assert stories.read_state(path) == story.states[-1]
    write_is_refused(path)


def test_rotten_line_below_a_checkpoint_is_found_when_it_is_read(
    told: list[Story], tmp_path: Path
) -> None:
    story, path = told[0], tmp_path / "t.db"
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    place = story.log.index(b"Hello")
    path.write_bytes(stories.flipped(story.log, place))
    rotten = stories.index_files(path)
    assert stories.run(path, "node", node="n7")["text"] == "end"
    for name, args in (("node", {"node": "n1"}), ("context", {"branch": "main"})):
        stories.place_index(path, rotten)
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, name, **args)
        assert caught.value.data == {"line": 3, "byte": story.ends[1]}
    assert path.read_bytes() == stories.flipped(story.log, place)
    error = write_is_refused(path)
    assert error.data == {"line": 3, "byte": story.ends[1]}
    assert stories.read_state(path) == story.states[-1], "the others stay readable"
    assert stories.run(path, "context", last=1)[0]["text"] == "last"
    assert stories.run(path, "search", text="last")
    path.write_bytes(story.log)  # the byte is put back
    assert stories.next_append_works(path) == story.nodes(story.seq) + 1


def test_wrong_checksum_costs_nothing_but_its_own_line(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    nodes = range(1, story.nodes(story.seq) + 1)
    for line, (start, end) in enumerate(story.lines()[1:-1], 2):
        stories.clear(path)
        stories.place(path, story.log)
        stories.checkpoint_now(path)
        path.write_bytes(stories.flipped(story.log, end - 5, 1))
        for node in nodes:
            own = b'"id":%d,' % node in story.log[start:end]
            try:
                shown = stories.run(path, "context", node=f"n{node}", last=1)
                assert not own or f"n{node}" not in [each["node"] for each in shown]
            except timeline.Corrupt as error:
                # A summary's marks need the others, a tool result its unit.
                assert own or node in (3, 9, 10, 11)
                assert error.data == {"line": line, "byte": start}


def test_doctor_stops_writing_and_blames_no_index(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    path.write_bytes(stories.flipped(story.log, story.log.index(b"Hello")))
    problems = stories.doctor(path)["problems"]
    assert [each["line"] for each in problems] == [3]
    error = write_is_refused(path)
    assert error.data == {"line": 3, "byte": story.ends[1]}
    assert stories.run(path, "node", node="n7")["text"] == "end"


def test_damage_in_an_import_names_the_line_and_never_says_create(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = stories.open_database(path)
    with database.importing() as tx:
        tl = tx.create("talk", "scalar4", {})
        parent = 0
        for number in range(50):
            parent = tx.append(tl, parent, "user", f"text {number}", 1, {})
        tx.move(tl, "main", parent)
    database.close()
    log = path.read_bytes()
    start = log.rindex(b"\n", 0, log.index(b"text 30")) + 1
    line = log[:start].count(b"\n") + 1
    stories.place(path, stories.flipped(log, log.index(b"text 30")))
    for name, args in (
        ("node", {"node": "n2"}),
        ("context", {}),
        ("search", {"text": "text"}),
        ("append", {"role": "user", "text": "x"}),
    ):
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, name, **args)
        assert caught.value.data == {"line": line, "byte": start}


def test_resident_process_never_answers_with_a_rotten_text(
    told: list[Story], tmp_path: Path
) -> None:
    story, path = told[0], tmp_path / "t.db"
    stories.place(path, story.log)
    database = stories.open_database(path)
    assert database.run("node", {"node": "n1"})["text"] == "Hello"
    place = story.log.index(b"Hello")
    path.write_bytes(stories.flipped(story.log, place))
    with pytest.raises(timeline.Corrupt) as caught:
        database.run("node", {"node": "n1"})
    assert caught.value.data == {"line": 3, "byte": story.ends[1]}
    with pytest.raises(timeline.Corrupt):
        database.run("append", {"role": "user", "text": "x"})
    assert path.read_bytes() == stories.flipped(story.log, place)
    database.close()


def test_search_and_audit_never_show_a_rotten_line(told: list[Story], tmp_path: Path) -> None:
    story, path = told[0], tmp_path / "t.db"
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    path.write_bytes(stories.flipped(story.log, story.log.index(b"Hello"), 1))
    with pytest.raises(timeline.Corrupt) as caught:
        stories.run(path, "audit")
    assert caught.value.data["line"] == 3
    stories.clear(path)
    stories.place(path, story.log)
    stories.checkpoint_now(path)
    path.write_bytes(stories.flipped(story.log, story.log.index(b"Hello"), 1))
    told_of: list[str] = []
    database = timeline.Database(str(path), notice=told_of.append)
    assert database.run("search", {"text": "Iello"}) == []
    assert ["line 3, byte" in each for each in told_of] == [True]
    assert database.run("search", {"text": "end"})
    assert len(told_of) == 1, "once is enough"
    database.close()
