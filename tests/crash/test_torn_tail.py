"""What a write that was cut short leaves behind: readers pass over it, the next writer sets it
aside."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import timeline
from kit import stories
from kit.stories import Story

SLOW = pytest.mark.slow
SECTOR = 512


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"), stories.EVERYTHING)


def check_cut(story: Story, path: Path, cut: int) -> None:
    """A log of `cut` bytes is the state after its last whole transaction, and goes on."""
    stories.place(path, story.log[:cut])
    seq = story.seq_at(cut)
    if seq < 0:
        check_refused(path)
        return
    torn = story.log[story.ends[seq] : cut]
    assert stories.read_state(path) == story.states[seq], cut
    report = stories.doctor(path)
    assert (report["ok"], report["transactions"]) == (True, seq), report
    assert report.get("unfinished") == (
        {"byte": story.ends[seq], "bytes": len(torn)} if torn else None
    )
    assert path.read_bytes() == story.log[:cut], "a reader has written"
    assert not Path(f"{path}.torn").exists()
    if cut + 1 in story.ends:  # whole but for its newline: it counts as stored
        seq, torn = seq + 1, b""
    if seq > 0:
        assert stories.next_append_works(path) == story.nodes(seq) + 1
    else:
        stories.run(path, "create")
    log = path.read_bytes()
    assert log.startswith(story.log[: story.ends[seq]])
    assert log[story.ends[seq] :].count(b"\n") == 1
    check_set_aside(path, story.ends[seq], torn)


def check_set_aside(path: Path, offset: int, torn: bytes) -> None:
    aside = Path(f"{path}.torn")
    if torn:
        said, _, rest = aside.read_bytes().partition(b"\n")
        assert said == b"%d bytes cut from byte %d:" % (len(torn), offset)
        assert rest == torn + b"\n"
    else:
        assert not aside.exists()


def check_refused(path: Path) -> None:
    """Every door is closed with exit code 3, and the file stays as it is."""
    before = path.read_bytes()
    for name, args in (
        ("list", {}),
        ("node", {"node": "n1"}),
        ("append", {"role": "user", "text": "x"}),
        ("create", {}),
    ):
        with pytest.raises(timeline.Corrupt) as caught:
            stories.run(path, name, **args)
        assert (caught.value.exit_code, caught.value.data["line"]) == (3, 1)
        assert caught.value.data["byte"] == 0
    assert path.read_bytes() == before
    assert not Path(f"{path}.torn").exists()


def places(story: Story, step: int) -> list[int]:
    """Every `step`-th byte, and the bytes around every line's end."""
    near = {end + off for _, end in story.lines() for off in (-19, -2, -1, 0, 1)}
    near |= set(range(0, len(story.log), step))
    return sorted(cut for cut in near if 0 <= cut <= len(story.log))


def test_log_cut_anywhere_is_the_state_after_its_last_whole_transaction(
    story: Story, tmp_path: Path
) -> None:
    for cut in places(story, 97):
        check_cut(story, tmp_path / "t.db", cut)


@SLOW
@pytest.mark.parametrize("part", range(8))
def test_log_cut_at_every_byte_is_the_state_after_its_last_whole_transaction(
    story: Story, tmp_path: Path, part: int
) -> None:
    for cut in range(part, len(story.log) + 1, 8):
        check_cut(story, tmp_path / "t.db", cut)


def test_every_answer_is_the_same_after_a_cut(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    for seq in range(len(story.ends)):
        stories.place(path, story.log[: story.ends[seq]] + b'{"seq":')
        assert stories.read_everything(path) == story.readings[seq], seq


def test_torn_tail_behind_a_checkpoint_is_dropped(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.db"
    for seq in range(2, story.seq):
        stories.place(path, story.log[: story.ends[seq]])
        stories.checkpoint_now(path)
        with path.open("ab") as file:
            file.write(story.log[story.ends[seq] : story.ends[seq + 1] - 2])
        assert stories.read_everything(path) == story.readings[seq], seq
        assert stories.next_append_works(path) == story.nodes(seq) + 1


def test_last_newline_that_an_editor_took_is_put_back(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log[:-1])
    assert stories.doctor(path)["unfinished"]["bytes"] == story.ends[-1] - story.ends[-2] - 1
    assert path.read_bytes() == story.log[:-1], "a reader has written"
    said: list[str] = []
    database = timeline.Database(str(path), clock=stories.Clock(), notice=said.append)
    database.run("append", {"role": "user", "text": "x"})
    database.close()
    assert path.read_bytes().startswith(story.log)
    assert not Path(f"{path}.torn").exists()
    assert len(said) == 1
    assert "newline" in said[0]


def test_doctor_names_what_was_set_aside(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log + b"half a line")
    assert "set_aside" not in stories.doctor(path)
    stories.next_append_works(path)
    assert stories.doctor(path)["set_aside"] == f"{path}.torn"


def test_torn_bytes_of_several_crashes_are_all_kept(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    offsets = []
    for piece in (b"first", b"second\nand more"):
        offsets.append(path.stat().st_size)
        with path.open("ab") as file:
            file.write(piece)
        stories.next_append_works(path)
    assert Path(f"{path}.torn").read_bytes() == (
        b"5 bytes cut from byte %d:\nfirst\n15 bytes cut from byte %d:\nsecond\nand more\n"
        % tuple(offsets)
    )


def test_writer_says_what_it_set_aside(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log + b"half a line")
    said: list[str] = []
    database = timeline.Database(str(path), clock=stories.Clock(), notice=said.append)
    database.run("list")
    assert said == []
    database.run("append", {"role": "user", "text": "x"})
    database.close()
    assert len(said) == 1
    assert "11 bytes" in said[0]
    assert f"byte {len(story.log)}" in said[0]


def test_resident_reader_passes_over_a_tail_and_sees_what_follows(
    story: Story, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log)
    reader = stories.open_database(path)
    assert stories.reading(reader) == story.readings[-1]
    for tail in (b"{", b'{"seq":31,"ts":17', bytes(300), b"\n\n\n"):
        with path.open("ab") as file:
            file.write(tail)
        assert stories.reading(reader) == story.readings[-1], tail
        number = stories.next_append_works(path, f"after {tail!r}")
        assert reader.run("node", {"node": f"n{number}"})["text"] == f"after {tail!r}"
        stories.place(path, story.log)
    reader.close()


@pytest.mark.parametrize("tail", [bytes(1), bytes(700), b"\xff" * 90, b"\n", b"}\n", b"null\n"])
def test_zeros_and_garbage_behind_the_log_are_a_torn_tail(
    story: Story, tmp_path: Path, tail: bytes
) -> None:
    path = tmp_path / "t.db"
    stories.place(path, story.log + tail)
    assert stories.read_everything(path) == story.readings[-1]
    assert path.read_bytes() == story.log + tail
    assert stories.next_append_works(path) == story.nodes(story.seq) + 1
    check_set_aside(path, len(story.log), tail)


# --- lost sectors -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """Stories whose last transaction takes many sectors: one line, and several lines."""
    long_text = "".join(f"{i} words and more words; " for i in range(300))
    one = (*stories.messages(4), stories.append(long_text))
    # Every second message does not fit, so that the budget makes many placeholders at once.
    steps: list[stories.Step] = [("create", {})]
    for i in range(41):
        steps.append(stories.append(f"{i}", tokens=500 if i % 2 else 1))
        steps.append(("pin", {"node": f"n{i + 1}"}))
        if i % 2:
            steps.pop()
    several = (*steps, ("budget", {"max_tokens": 700, "idempotency_key": "k" * 200}))
    folder = tmp_path_factory.mktemp("wide")
    return [Story(folder, one, "one.db"), Story(folder, several, "several.db")]


def lose_sectors(story: Story, rng: random.Random) -> bytes:
    """The log with some sectors of its last transaction never written."""
    start = story.ends[-2]
    log = bytearray(story.log)
    first = start // SECTOR
    sectors = range(first, (len(log) - 1) // SECTOR + 1)
    lost = [s for s in sectors if rng.random() < rng.choice((0.1, 0.5, 0.9))]
    lost = lost or [rng.choice(sectors)]
    for sector in lost:
        low = max(start, sector * SECTOR)
        high = min(len(log), (sector + 1) * SECTOR)
        log[low:high] = bytes(high - low)
    return bytes(log)


def check_lost_sectors(wide: list[Story], path: Path, seed: int) -> None:
    rng = random.Random(seed)
    story = wide[seed % 2]
    damaged = lose_sectors(story, rng)
    stories.place(path, damaged)
    assert stories.read_state(path) == story.states[-2]
    assert path.read_bytes() == damaged
    assert stories.next_append_works(path) == story.nodes(story.seq - 1) + 1
    check_set_aside(path, story.ends[-2], damaged[story.ends[-2] :])


def test_stories_are_wide_enough(wide: list[Story]) -> None:
    for story in wide:
        assert story.ends[-1] - story.ends[-2] > 10 * SECTOR
    assert wide[1].log[wide[1].ends[-2] :].count(b"\n") > 10


@pytest.mark.parametrize("seed", range(24))
def test_lost_sectors_of_the_last_write_are_a_torn_tail(
    wide: list[Story], tmp_path: Path, seed: int
) -> None:
    check_lost_sectors(wide, tmp_path / "t.db", seed)


@SLOW
@pytest.mark.parametrize("first", range(24, 524, 50))
def test_lost_sectors_of_the_last_write_are_a_torn_tail_in_many_ways(
    wide: list[Story], tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 50):
        check_lost_sectors(wide, tmp_path / "t.db", seed)


def test_lines_of_an_unfinished_transaction_are_dropped_whole(
    wide: list[Story], tmp_path: Path
) -> None:
    story, path = wide[1], tmp_path / "t.db"
    start = story.ends[-2]
    for low, high in story.lines():
        if low <= start or high == len(story.log):
            continue
        for cut in (low, high - 1):
            stories.place(path, story.log[:cut])
            assert stories.read_state(path) == story.states[-2], cut
            stories.next_append_works(path)
            check_set_aside(path, start, story.log[start:cut])
