"""The tree as text: its shape, its marks, what it makes of hostile texts, and what it costs."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timeline
from kit.disks import QuickDisk
from kit.model import Model, ModelError
from kit.random_ops import steps
from timeline_export import NODES_READ, ascii_tree, one_line

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ascii_tree.txt"


class CountingDisk(QuickDisk):
    """Counts what is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        self.reads += 1
        self.bytes += size
        return super().read_at(file, size, offset)


class Story:
    """A database with one timeline (with none, if not `begun`), told in short calls."""

    def __init__(self, folder: Path, *, begun: bool = True) -> None:
        self.disk = CountingDisk()
        self.database = timeline.Database(str(folder / "db"), disk=self.disk, clock=lambda: 1000)
        self.run = self.database.run
        if begun:
            self.run("create")

    def say(self, text: str = "x", role: str = "user", **args: Any) -> str:
        node: str = self.run("append", {"role": role, "text": text, **args})["node"]
        return node

    def fork(self, node: str, name: str) -> None:
        self.run("fork", {"node": node, "name": name})

    def sum_up(self, first: str, last: str, text: str = "in short", **args: Any) -> str:
        said = {"from": first, "to": last, "summary": text, **args}
        node: str = self.run("summarize", said)["node"]
        return node

    def lines(self, **view: Any) -> list[str]:
        return list(ascii_tree(self.database, 0, **view))

    def drawn(self, **view: Any) -> str:
        return "\n".join(self.lines(**view))

    def label(self, node: str) -> str:
        """The line of a node without what stands before it."""
        found = [line for line in self.lines() if re.search(rf"\[{node}[ \]]", line)]
        (line,) = (each for each in found if each.lstrip("| +-`*").startswith(f"[{node}"))
        return line.lstrip("| +-`*")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    told = Story(tmp_path)
    yield told
    store = told.database.refresh()
    assert timeline.check(store.state, store.rows) == []
    told.database.close()


# --- shape --------------------------------------------------------------------------------------

EXAMPLE = """\
[n1 user PIN (in n6)] "只使用本地数据"
|
+-- [n2 assistant (in n6)] "方案 A"
|   |
|   [n3 assistant #decision (in n6)] "验证结果" [HEAD* "main"]
|   * [n5 summary n1..n3 SUPERSEDED by n6] "…"
|   * [n6 summary v2 n1..n3] "…"
`-- [n4 assistant] "方案 B" [HEAD "alternative"]"""


def tell_example(story: Story) -> None:
    story.say("只使用本地数据")
    story.run("pin", {"node": "n1"})
    story.say("方案 A", "assistant")
    story.say("验证结果", "assistant", intent={"tag": "decision"})
    story.fork("n1", "alternative")
    story.say("方案 B", "assistant", branch="alternative")
    story.sum_up("n1", "n3", "…")
    story.sum_up("n1", "n3", "…", supersede="n5")


def test_a_fork_with_two_versions_of_a_summary(story: Story) -> None:
    tell_example(story)
    assert story.drawn() == EXAMPLE


def test_reading_leaves_the_log_as_it_is(story: Story) -> None:
    tell_example(story)
    before = Path(story.database.path).read_bytes()
    story.drawn()
    assert Path(story.database.path).read_bytes() == before


def test_a_run_of_single_children_stays_in_its_column(story: Story) -> None:
    for text in "abc":
        story.say(text)
    assert story.lines() == [
        '[n1 user] "a"', "|", '[n2 user] "b"', "|", '[n3 user] "c" [HEAD* "main"]',
    ]  # fmt: skip


def test_forks_in_forks(story: Story) -> None:
    top = story.say("top")
    for name in ("b", "c"):
        story.fork(top, name)
    inner = story.say("inner", branch="b")
    story.fork(inner, "b2")
    story.say("deep", branch="b")
    story.say("deeper", branch="b")
    story.say("other", branch="b2")
    story.say("first", branch="main")
    last = story.say("last", branch="c")
    story.fork(last, "c2")
    story.say("one", branch="c")
    story.say("two", branch="c2")
    assert (
        story.drawn()
        == """\
[n1 user] "top"
|
+-- [n2 user] "inner"
|   |
|   +-- [n3 user] "deep"
|   |   |
|   |   [n4 user] "deeper" [HEAD "b"]
|   `-- [n5 user] "other" [HEAD "b2"]
+-- [n6 user] "first" [HEAD* "main"]
`-- [n7 user] "last"
    |
    +-- [n8 user] "one" [HEAD "c"]
    `-- [n9 user] "two" [HEAD "c2"]"""
    )


def test_several_heads_on_one_node_are_all_shown(story: Story) -> None:
    story.say("x")
    story.fork("n1", "b")
    story.fork("n1", 'say "hi"')
    story.run("switch", {"name": "b"})
    assert story.lines() == ['[n1 user] "x" [HEAD "main"] [HEAD* "b"] [HEAD "say \\"hi\\""]']


def test_ended_branches_have_no_head_in_the_picture(story: Story) -> None:
    story.say("x")
    story.fork("n1", "b")
    story.say("y", branch="b")
    story.run("drop_branch", {"name": "b"})
    assert story.lines() == ['[n1 user] "x" [HEAD* "main"]', "|", '[n2 user] "y"']


# --- the root -----------------------------------------------------------------------------------


def test_an_empty_timeline_is_its_root(story: Story) -> None:
    assert story.lines() == ['[n0] [HEAD* "main"]']


def test_the_root_shows_a_head(story: Story) -> None:
    story.fork("n0", "fresh")
    story.say("x")
    assert story.lines() == ['[n0] [HEAD "fresh"]', "|", '[n1 user] "x" [HEAD* "main"]']


def test_the_root_shows_a_fork(story: Story) -> None:
    story.fork("n0", "b")
    story.say("x")
    story.say("y", branch="b")
    assert (
        story.drawn()
        == """\
[n0]
|
+-- [n1 user] "x" [HEAD* "main"]
`-- [n2 user] "y" [HEAD "b"]"""
    )


def test_summaries_under_a_node_are_no_children_of_the_root(story: Story) -> None:
    story.say("x")
    story.sum_up("n1", "n1")
    assert story.lines() == [
        '[n1 user (in n2)] "x" [HEAD* "main"]',
        '* [n2 summary n1..n1] "in short"',
    ]


# --- summaries ----------------------------------------------------------------------------------


def test_a_summary_with_children_stands_in_its_place(story: Story) -> None:
    for text in "abc":
        story.say(text)
    story.sum_up("n2", "n3")
    story.fork("n4", "after")
    story.say("on", branch="after")
    assert (
        story.drawn()
        == """\
[n1 user] "a"
|
+-- [n2 user (in n4)] "b"
|   |
|   [n3 user (in n4)] "c" [HEAD* "main"]
`-- [n4 summary n2..n3] "in short"
    |
    [n5 user] "on" [HEAD "after"]"""
    )


def test_a_summary_with_children_of_the_first_message_makes_the_root_a_fork(story: Story) -> None:
    story.say("a")
    story.sum_up("n1", "n1")
    story.fork("n2", "after")
    story.say("on", branch="after")
    assert (
        story.drawn()
        == """\
[n0]
|
+-- [n1 user (in n2)] "a" [HEAD* "main"]
`-- [n2 summary n1..n1] "in short"
    |
    [n3 user] "on" [HEAD "after"]"""
    )


def test_a_summary_with_a_head_but_no_children_stays_under_its_interval(story: Story) -> None:
    story.say("a")
    story.say("b")
    story.sum_up("n1", "n1")
    story.fork("n3", "after")
    assert story.lines() == [
        '[n1 user (in n3)] "a"',
        '* [n3 summary n1..n1] "in short" [HEAD "after"]',
        "|",
        '[n2 user] "b" [HEAD* "main"]',
    ]


def test_a_summary_under_a_fork_stands_before_the_children(story: Story) -> None:
    story.say("a")
    story.say("b")
    story.fork("n2", "other")
    story.say("c")
    story.say("d", branch="other")
    story.sum_up("n1", "n2")
    story.sum_up("n1", "n4", "wide")
    assert (
        story.drawn()
        == """\
[n1 user (in n6)] "a"
|
[n2 user (in n6)] "b"
* [n5 summary n1..n2] "in short"
|
+-- [n3 user] "c" [HEAD* "main"]
`-- [n4 user (in n6)] "d" [HEAD "other"]
    * [n6 summary n1..n4] "wide\""""
    )


def test_a_summary_of_a_summary(story: Story) -> None:
    """Both under what they stand for: one without children has nothing else to stand by."""
    story.say("a")
    story.sum_up("n1", "n1", "first")
    story.sum_up("n2", "n2", "of the first")
    story.sum_up("n1", "n1", "second")
    story.sum_up("n3", "n3", "of that")
    assert story.lines() == [
        '[n1 user (in n4)] "a" [HEAD* "main"]',
        '* [n2 summary n1..n1 (in n3)] "first"',
        '* [n3 summary n2..n2 (in n5)] "of the first"',
        '* [n5 summary n3..n3] "of that"',
        '* [n4 summary n1..n1] "second"',
    ]


def test_placeholders_are_not_drawn(story: Story) -> None:
    for _ in range(4):
        story.say("x" * 400, tokens=100)
    story.run("budget", {"max_tokens": 150})
    assert story.run("node", {"node": "n5"})["summary"]["kind"] == "placeholder"
    assert [line for line in story.lines() if line != "|"] == [
        f'[n{number} user] "{"x" * 64}..."' + (' [HEAD* "main"]' if number == 4 else "")
        for number in range(1, 5)
    ]


def test_in_names_the_newest_summary_even_if_another_is_wider(story: Story) -> None:
    for text in "abcd":
        story.say(text)
    story.sum_up("n1", "n4", "wide")
    story.sum_up("n2", "n3", "narrow")
    assert story.label("n1").startswith("[n1 user (in n5)]")
    assert story.label("n2").startswith("[n2 user (in n6)]")
    assert story.label("n3").startswith("[n3 user (in n6)]")
    assert story.label("n4").startswith("[n4 user (in n5)]")
    story.sum_up("n1", "n4", "wide again", supersede="n5")
    assert story.label("n2").startswith("[n2 user (in n7)]")


# --- marks --------------------------------------------------------------------------------------


def test_marks_stand_in_one_order(story: Story) -> None:
    """Number, role, pin, archive, intent, then what summary stands for the node."""
    story.fork("n0", "old")
    story.say("old", branch="old", intent={"tag": "idea", "note": "why"})
    story.sum_up("n1", "n1")
    story.run("archive_branch", {"branch": "old"})
    story.run("pin", {"node": "n1"})
    assert story.label("n1") == '[n1 user PIN ARCHIVED #idea (in n2)] "old"'


def test_excluded_marks_the_whole_unit(story: Story) -> None:
    story.say("call", "assistant")
    story.say("result", "tool")
    story.say("more", "tool")
    story.say("after", "assistant")
    story.run("exclude", {"node": "n2"})
    assert [line for line in story.lines() if line != "|"] == [
        '[n1 assistant EXCLUDED] "call"',
        '[n2 tool EXCLUDED] "result"',
        '[n3 tool EXCLUDED] "more"',
        '[n4 assistant] "after" [HEAD* "main"]',
    ]
    assert story.lines(first=2, last=3) == [
        '[n2 tool EXCLUDED] "result"', "|", '[n3 tool EXCLUDED] "more"',
    ]  # fmt: skip


def test_a_summary_has_its_marks_too(story: Story) -> None:
    story.say("a")
    story.say("b")
    story.sum_up("n1", "n1", "s")
    story.sum_up("n1", "n2", "t", derived_from=["n3"], intent={"tag": "recap"})
    story.run("pin", {"node": "n4"})
    story.sum_up("n1", "n1", "s2", supersede="n3")
    assert story.label("n3") == '[n3 summary n1..n1 SUPERSEDED by n5] "s"'
    assert story.label("n4") == '[n4 PIN #recap summary n1..n2 STALE] "t"'
    assert story.label("n5") == '[n5 summary v2 n1..n1] "s2"'
    story.sum_up("n1", "n2", "t2", supersede="n4")
    assert story.label("n4") == '[n4 PIN #recap summary n1..n2 STALE SUPERSEDED by n6] "t"'
    story.run("unpin", {"node": "n4"})
    story.run("exclude", {"node": "n4"})
    assert story.label("n4").startswith("[n4 EXCLUDED #recap summary")
    story.sum_up("n1", "n2", "t3", supersede="n6")
    assert story.label("n4").startswith(
        "[n4 EXCLUDED #recap summary n1..n2 STALE SUPERSEDED by n6]"
    )
    assert story.label("n7") == '[n7 summary v3 n1..n2] "t3"'


def test_every_role_is_named(story: Story) -> None:
    for role in timeline.ROLES:
        story.say(role, role)
    marks = [line.split('"')[0] for line in story.lines() if line != "|"]
    assert marks == [f"[n{i} {role}] " for i, role in enumerate(timeline.ROLES, 1)]


def test_archived_parts_that_lie_on_each_other(story: Story) -> None:
    """A branch from a summary inside a cold part goes cold too; then the part is thawed."""
    for _ in range(3):
        story.fork("n0", f"b{_}")
    story.say("keeps the root's head away")
    story.say("a", branch="b0")
    story.say("b", branch="b0")
    story.sum_up("n3", "n3")
    story.run("fork", {"node": "n4", "name": "c"})
    story.say("c", branch="c")
    story.run("fork", {"node": "n5", "name": "d"})
    story.say("d", branch="d")
    story.sum_up("n2", "n3")
    story.sum_up("n2", "n5")
    story.sum_up("n2", "n6")
    for name in ("b0", "c", "d"):
        story.run("archive_branch", {"branch": name})

    def cold() -> list[str]:
        return re.findall(r"\[(n\d+) [^\]]*ARCHIVED", story.drawn())

    assert cold() == ["n2", "n3", "n5", "n6"]
    assert cold() == [
        node for node in ("n2", "n3", "n4", "n5", "n6")
        if story.run("node", {"node": node})["zone"] == "archive"
    ]  # fmt: skip
    story.run("thaw", {"node": "n5"})
    assert cold() == ["n3", "n6"]


# --- texts and names ----------------------------------------------------------------------------

ONE_LINE = {
    "plain": ("plain text", "plain text"),
    "empty": ("", ""),
    "newlines": ("one\ntwo\r\n\r\nthree\n", "one two three "),
    "white space": (" a\t\tb  c\x0b\x0cd\u00a0e\u3000f\u2003\u202fg", " a b c d e f g"),
    "quotes": ('say "hi" \\n', 'say \\"hi\\" \\\\n'),
    "ANSI": ("\x1b[2J\x1b]0;x\x07 real", "\\x1b[2J\\x1b]0;x\\x07 real"),
    "C1": ("a\x9b31mb\x85c\x7f", "a\\x9b31mb\\x85c\\x7f"),
    "NUL": ("a\0b", "a\\x00b"),
    "control white space": ("a\x1c\x1d\x1e\x1fb", "a\\x1c\\x1d\\x1e\\x1fb"),
    "right-to-left override": ("abc\u202edcba", "abc\\u202edcba"),
    "isolates": ("\u2066x\u2069\u206f", "\\u2066x\\u2069\\u206f"),
    "marks of direction": ("\u061ca\u200eb\u200f", "\\u061ca\\u200eb\\u200f"),
    "separators": ("para\u2028graph\u2029end", "para\\u2028graph\\u2029end"),
    "zero width": ("a\u200bb\u2060c\ufeffd", "a\\u200bb\\u2060c\\ufeffd"),
    "tags": ("\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4\\U000e0067\\U000e007f"),
    "family": ("👩‍👩‍👧 ❤️", "👩‍👩‍👧 ❤️"),
    "Persian": ("می\u200cخواهم", "می\u200cخواهم"),
    "scripts": ("你好 مرحبا שלום é e\u0301 𠮷", "你好 مرحبا שלום é e\u0301 𠮷"),
    "64": ("字" * 64, "字" * 64),
    "65": ("字" * 65, "字" * 64 + "..."),
    "65 with escapes": ("\x1b" * 65, "\\x1b" * 64 + "..."),
    "cut in a family": ("x" * 63 + "👩‍👩‍👧", "x" * 63 + "👩..."),
    "64 once white space is one space": ("a\n\n" * 32, "a " * 32),
    "long white space": ("a" + "\n" * 1_000_000 + "b", "a b"),
    "long white space, then more": ("a" + " " * 5000 + "b" * 64, "a " + "b" * 62 + "..."),
    "ends in white space": ("a" * 64 + "\n", "a" * 64 + "..."),
}


@pytest.mark.parametrize(("text", "shown"), ONE_LINE.values(), ids=ONE_LINE.keys())
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_no_unsafe_character_is_shown() -> None:
    unsafe = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200B, 0x200E, 0x200F, 0xFEFF]
    unsafe += [*range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xE0000, 0xE0080)]
    for code in unsafe:
        shown = one_line(f"<{chr(code)}>")
        if 9 <= code <= 13:
            assert shown == "< >"
        else:
            escape = re.fullmatch(r"<\\[xuU]([0-9a-f]+)>", shown)
            assert escape is not None and int(escape[1], 16) == code


def test_texts_names_and_tags_are_made_harmless(story: Story) -> None:
    story.say("\x1b[2J\u202e", intent={"tag": "\x1b]0;\u2028"})
    story.fork("n1", "a\u202eb\u3000c")
    assert story.lines() == [
        '[n1 user #"\\x1b]0;\\u2028"] "\\x1b[2J\\u202e" [HEAD* "main"] [HEAD "a\\u202eb c"]'
    ]


def test_a_tag_that_could_be_taken_for_marks_stands_in_quotes(story: Story) -> None:
    story.say(intent={"tag": 'x PIN] "forged" [HEAD* "main"'})
    story.say(intent={"tag": "needs review"})
    story.say(intent={"tag": "决定-2"})
    assert story.label("n1").startswith('[n1 user #"x PIN] \\"forged\\" [HEAD* \\"main\\""] "x"')
    assert story.label("n2").startswith('[n2 user #"needs review"] "x"')
    assert story.label("n3").startswith('[n3 user #决定-2] "x"')


def test_long_names_are_cut_like_texts(story: Story) -> None:
    story.fork("n0", "n" * 200)
    assert story.lines() == [f'[n0] [HEAD* "main"] [HEAD "{"n" * 64}..."]']


# --- parts of a path ----------------------------------------------------------------------------


def tell_compaction(story: Story) -> None:
    """n1..n3 and their summary n4, on which `after` goes on; `side` leaves at n2."""
    for text in "abc":
        story.say(text)
    story.sum_up("n1", "n3")
    story.fork("n4", "after")
    story.say("on", branch="after")
    story.fork("n2", "side")
    story.say("else", branch="side")
    story.sum_up("n2", "n3", "shorter")
    story.sum_up("n1", "n2", "begin")


def test_a_branch_is_its_path_and_the_summaries_that_apply_to_it(story: Story) -> None:
    tell_compaction(story)
    assert (
        story.drawn(branch="main")
        == """\
[n1 user (in n8)] "a"
|
[n2 user (in n8)] "b"
* [n8 summary n1..n2] "begin"
|
[n3 user (in n7)] "c" [HEAD* "main"]
* [n4 summary n1..n3] "in short"
* [n7 summary n2..n3] "shorter\""""
    )
    assert (
        story.drawn(branch="side")
        == """\
[n1 user (in n8)] "a"
|
[n2 user (in n8)] "b"
* [n8 summary n1..n2] "begin"
|
[n6 user] "else" [HEAD "side"]"""
    )


def test_a_branch_through_a_summary_shows_it_in_its_place(story: Story) -> None:
    tell_compaction(story)
    assert (
        story.drawn(branch="after")
        == """\
[n4 summary n1..n3] "in short"
|
[n5 user] "on" [HEAD "after"]"""
    )
    story.fork("n7", "at a summary")
    assert (
        story.drawn(branch="at a summary")
        == """\
[n1 user] "a"
|
[n7 summary n2..n3] "shorter" [HEAD "at a summary"]"""
    )


def test_an_interval_is_drawn_without_what_is_above_and_below(story: Story) -> None:
    tell_compaction(story)
    assert story.lines(first=2, last=2) == [
        '[n2 user (in n8)] "b"', '* [n8 summary n1..n2] "begin"',
    ]  # fmt: skip
    assert story.lines(first=0, last=3) == story.lines(branch="main")
    assert story.lines(first=4, last=5) == story.lines(branch="after")


def test_a_branch_at_the_root_is_the_root(story: Story) -> None:
    story.fork("n0", "fresh")
    story.say("x")
    assert story.lines(branch="fresh") == ['[n0] [HEAD "fresh"]']
    assert story.lines(first=0, last=0) == ['[n0] [HEAD "fresh"]']


def test_an_interval_of_an_archived_branch_is_marked_as_far_as_it_is_cold(story: Story) -> None:
    story.say("a")
    story.fork("n1", "old")
    for text in "bcd":
        story.say(text, branch="old")
    story.sum_up("n1", "n4")
    story.run("archive_branch", {"branch": "old"})
    assert [line for line in story.lines(first=1, last=3) if line != "|"] == [
        '[n1 user] "a" [HEAD* "main"]',
        '[n2 user ARCHIVED] "b"',
        '[n3 user ARCHIVED] "c"',
    ]


@pytest.mark.parametrize(
    ("view", "error", "message"),
    [
        ({"branch": "no"}, timeline.NotFound, 'unknown branch "no"'),
        ({"first": 1, "last": 99}, timeline.NotFound, "unknown node n99"),
        ({"first": 1}, timeline.InvalidArgument, "from and to go together"),
        ({"last": 1}, timeline.InvalidArgument, "from and to go together"),
        ({"branch": "main", "first": 1, "last": 1}, timeline.InvalidArgument, "name one of them"),
        ({"first": 2, "last": 1}, timeline.Refused, "n2 is not on the path of n1"),
        ({"first": 1, "last": 3}, timeline.Refused, "n3 is in tl1, not in tl0"),
        ({"first": 4, "last": 4}, timeline.Refused, "n4 is a placeholder"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_first_line(
    story: Story, view: dict[str, Any], error: type[timeline.TimelineError], message: str
) -> None:
    story.say("a", tokens=100)
    story.say("b")
    story.run("create")
    story.say("elsewhere", timeline_id="tl1")
    story.run("budget", {"max_tokens": 40, "timeline_id": "tl0"})
    with pytest.raises(error, match=re.escape(message)):
        ascii_tree(story.database, 0, **view)
    with pytest.raises(timeline.NotFound, match="unknown timeline tl2"):
        ascii_tree(story.database, 2)


def test_each_timeline_has_a_picture_of_its_own(story: Story) -> None:
    story.say("a")
    story.run("create")
    story.say("b", timeline_id="tl1")
    story.say("c")
    assert story.lines() == ['[n1 user] "a"', "|", '[n3 user] "c" [HEAD* "main"]']
    assert list(ascii_tree(story.database, 1)) == ['[n2 user] "b" [HEAD* "main"]']


def test_changes_made_while_lines_are_taken_do_not_tear_the_picture(story: Story) -> None:
    tell_example(story)
    lines = ascii_tree(story.database, 0)
    taken = [next(lines)]
    story.run("unpin", {"node": "n1"})
    story.say("late")
    story.sum_up("n1", "n3", "v3", supersede="n6")
    assert "\n".join(taken + list(lines)) == EXAMPLE


def test_texts_purged_while_lines_are_taken_are_not_looked_for(story: Story) -> None:
    for _ in range(NODES_READ + 1):
        story.say("secret")
    lines = ascii_tree(story.database, 0)
    next(lines)
    story.run("compact", {"purge": ["n1"], "yes": True})
    with pytest.raises(timeline.Busy, match="was replaced while it was read: try again"):
        list(lines)
    assert story.lines()[0] == '[n1 user PURGED] ""'


def test_a_picture_goes_on_after_its_database_closed_its_files(story: Story) -> None:
    for number in range(NODES_READ + 1):
        story.say(str(number))
    lines = ascii_tree(story.database, 0)
    taken = [next(lines)]
    story.database.close()
    assert taken + list(lines) == story.lines()


# --- a picture to look at -----------------------------------------------------------------------


def tell_golden(story: Story) -> None:
    story.say("Which database should the app use?\nIt must work offline.")
    story.run("pin", {"node": "n1"})
    story.say("Let me look at the code.", "assistant", intent={"tag": "research"})
    story.say("\x1b[32m3 files\x1b[0m found", "tool")
    story.run("exclude", {"node": "n3"})
    story.say("SQLite or a log of JSON lines.", "assistant")
    story.fork("n4", "sqlite")
    story.fork("n4", "json lines 试验")
    story.say("Try SQLite.", branch="sqlite")
    story.say("It needs a server for " + "many writers at once " * 5, "assistant", branch="sqlite")
    story.sum_up("n1", "n6", "SQLite was tried and given up.")
    story.say("Try the log.", branch="json lines 试验")
    story.say("Good: one line, one fsync.", "assistant", branch="json lines 试验")
    story.run("switch", {"name": "json lines 试验"})
    story.fork("n9", "review")
    story.sum_up("n5", "n6", "SQLite: given up.")
    story.run("archive_branch", {"branch": "sqlite", "scope": "own"})
    story.sum_up("n8", "n9", "The log works.")
    story.sum_up("n8", "n9", "The log works; one fsync an operation.", supersede="n11")
    story.sum_up("n4", "n9", "Both were tried.", derived_from=["n11"], intent={"tag": "recap"})
    story.fork("n12", "behind the summary")
    story.say("Go on from the summary.", branch="behind the summary")
    story.say("م\u200cی \u202e👩‍👩‍👧", "assistant", branch="behind the summary")


def test_golden_picture(story: Story) -> None:
    tell_golden(story)
    drawn = "".join(line + "\n" for line in story.lines()).encode()
    if os.environ.get("TIMELINE_GOLDEN") == "write":
        GOLDEN.write_bytes(drawn)
    assert drawn == GOLDEN.read_bytes()


# --- any timeline -------------------------------------------------------------------------------

LINE = re.compile(r"(?P<margin>(?:[|] {3}| {4})*)(?P<lead>\+-- |`-- |\* )?(?P<label>\[n(\d+).*)")


class Drawn:
    """A picture read back: label and column of each node, and what it hangs on or stands under."""

    def __init__(self, lines: list[str]) -> None:
        self.labels: dict[str, str] = {}
        self.parent: dict[str, str | None] = {}
        self.under: dict[str, list[str]] = {}  # an aside -> the node of its column, asides before
        column: dict[int, list[str]] = {}  # the nodes drawn last in each column, asides behind
        after_bar = True
        for line in lines:
            match = LINE.fullmatch(line)
            if match is None:
                assert re.fullmatch(r"(?:[|] {3}| {4})*[|]", line), line
                after_bar = True
                continue
            node, lead, place = "n" + match[4], match["lead"], len(match["margin"])
            assert node not in self.labels
            self.labels[node] = match["label"]
            if lead == "* ":
                self.under[node] = column[place][:]
                column[place].append(node)
                continue
            if lead is None:
                assert after_bar, line
                self.parent[node] = column[place][0] if place in column else None
            else:
                self.parent[node] = column[place][0]
                place += 4
            column = {at: nodes for at, nodes in column.items() if at < place}
            column[place] = [node]
            after_bar = False


def random_story(seed: int, folder: Path) -> Story:
    """What a random run leaves behind."""
    story, model = Story(folder, begun=False), Model()
    for step in steps(seed, model, 90):
        op = step.get("op", "clock")
        if op not in timeline.OPERATIONS or not timeline.OPERATIONS[op].changes:
            continue
        # The model is needed for the next step only; what is drawn is what the engine holds.
        with contextlib.suppress(ModelError):
            model.run(op, step["args"])
        with contextlib.suppress(timeline.TimelineError):
            story.run(op, step["args"])
    return story


def expected_label(story: Story, tl: str, number: int, path: set[str] | None) -> str:
    """A node's label as the other operations describe it; `path` restricts what applies."""
    node = f"n{number}"
    heads = "".join(
        f' [HEAD{"*" if row["current"] else ""} "{one_line(row["name"])}"]'
        for row in story.run("branches", {"timeline_id": tl})
        if row["head"] == node
    )
    if not number:
        return "[n0]" + heads
    facts = story.run("node", {"node": node})
    words = [node]
    said = facts.get("summary")
    words += [facts["role"]] if said is None else []
    words += ["PIN"] if facts["pinned"] else []
    words += ["EXCLUDED"] if facts["excluded"] else []
    words += ["ARCHIVED"] if facts["zone"] == "archive" else []
    words += ["#" + facts["intent"]["tag"]] if "intent" in facts else []
    if said is not None:
        words += ["summary"] + ([f"v{said['version']}"] if said["version"] > 1 else [])
        words += [f"{said['from']}..{said['to']}"] + (["STALE"] if said["stale"] else [])
        words += [f"SUPERSEDED by {said['superseded_by']}"] if said["superseded_by"] else []
    covering = [
        each
        for each in facts["covered_by"]
        if path is None or (node in path and interval_of(story, each)[1] in path)
    ]
    words += [f"(in {covering[-1]})"] if covering else []
    return f'[{" ".join(words)}] "{one_line(facts["text"])}"{heads}'


def interval_of(story: Story, node: str) -> tuple[str, str]:
    said = story.run("node", {"node": node})["summary"]
    return said["from"], said["to"]


def is_drawn(story: Story, node: int, tl: int) -> bool:
    row = story.database.store.rows[node]
    return row[timeline.TL] == tl and not row[timeline.FLAGS] & timeline.KIND_PLACEHOLDER


def without_quotes(label: str) -> str:
    return re.sub(r'#"((?:[^"\\]|\\.)*)"', r"#\1", label)


def check_whole(story: Story, tl: int) -> None:
    store = story.database.refresh()
    drawn = Drawn(list(ascii_tree(story.database, tl)))
    nodes = [f"n{i}" for i in range(1, len(store.rows) + 1) if is_drawn(story, i, tl)]
    assert sorted(drawn.labels.keys() - {"n0"}) == sorted(nodes)
    for node, label in drawn.labels.items():
        expected = expected_label(story, f"tl{tl}", int(node[1:]), None)
        assert without_quotes(label) == without_quotes(expected)
        if node in drawn.under:
            assert story.run("node", {"node": node})["children"] == []
            assert interval_of(story, node)[1] in drawn.under[node]
        elif node != "n0":
            facts = story.run("node", {"node": node})
            assert drawn.parent[node] in (facts["parent"], None)
            if drawn.parent[node] is None:
                assert facts["parent"] == "n0" and "n0" not in drawn.labels
            assert facts["children"] or "summary" not in facts
    heads = {row["head"] for row in story.run("branches", {"timeline_id": f"tl{tl}"})}
    assert heads <= drawn.labels.keys()
    tops = [node for node, parent in drawn.parent.items() if parent in (None, "n0")]
    assert ("n0" in drawn.labels) == ("n0" in heads or len(tops) > 1)
    siblings: dict[str | None, int] = {}
    for node, parent in drawn.parent.items():
        assert siblings.get(parent, -1) < int(node[1:])
        siblings[parent] = int(node[1:])


def check_part(story: Story, tl: int, path: list[int], lines: Iterator[str]) -> None:
    """`path` is what is to be drawn of a path, oldest first."""
    drawn = Drawn(list(lines))
    wanted = {f"n{node}" for node in path}
    asides = {
        f"n{node}"
        for node in range(1, len(story.database.store.rows) + 1)
        if is_drawn(story, node, tl)
        and story.database.store.rows[node][timeline.FLAGS] & timeline.KIND_REAL
        and f"n{node}" not in wanted
        and f"n{story.database.store.rows[node][timeline.TO]}" in wanted
    }
    assert drawn.labels.keys() - {"n0"} == wanted | asides
    assert drawn.under.keys() == asides
    for node, label in drawn.labels.items():
        expected = expected_label(story, f"tl{tl}", int(node[1:]), wanted)
        assert without_quotes(label) == without_quotes(expected)
    chain = [node for node in drawn.labels if node in wanted]
    assert chain == [f"n{node}" for node in path]


@pytest.mark.parametrize("seed", range(10))
def test_random_timelines_are_drawn_as_the_other_operations_describe_them(
    seed: int, tmp_path: Path
) -> None:
    story = random_story(seed, tmp_path)
    store = story.database.refresh()
    for tl, state in enumerate(store.state.timelines):
        check_whole(story, tl)
        for name, branch in list(state.branches.items())[:2]:
            path = [node for node, _ in timeline.walk_between(store.rows, 1, branch.head)]
            check_part(story, tl, path, ascii_tree(story.database, tl, branch=name))
            if len(path) > 2:
                lines = ascii_tree(story.database, tl, first=path[1], last=path[-2])
                check_part(story, tl, path[1:-1], lines)
    story.database.close()


# --- size ---------------------------------------------------------------------------------------


def write_log(folder: Path, bodies: Callable[[], Iterator[str]]) -> Story:
    """A database of lines written straight into the log, which is fast. tl0 has branch main."""
    story = Story(folder)
    story.database.close()
    path = Path(story.database.path)
    log = path.read_bytes()
    parts, crc = [log], int(log[-11:-3], 16)
    for seq, body in enumerate(bodies(), 2):
        raw = f'{{"seq":{seq},"ts":1000,"tl":0,{body}'.encode()
        crc = zlib.crc32(raw, crc)
        parts.append(raw + b',"crc":"%08x"}\n' % crc)
    path.write_bytes(b"".join(parts))
    story.database.refresh()
    story.disk.reads = story.disk.bytes = 0
    return story


def message(node: int, parent: int, branch: str = "main") -> str:
    return (
        f'"op":"append","id":{node},"parent":{parent},"branch":"{branch}","role":"user",'
        f'"tokens":1,"via":"cli","text":"{node}"'
    )


def fork(node: int, name: str) -> str:
    return f'"op":"fork","node":{node},"name":"{name}","of":"main"'


def summary(node: int, first: int, last: int) -> str:
    return (
        f'"op":"summary","id":{node},"parent":{first - 1},"from":{first},"to":{last},"tokens":1,'
        f'"via":"cli","text":"{node}"'
    )


@pytest.mark.parametrize("size", [12_000, pytest.param(100_000, marks=pytest.mark.slow)], ids=str)
def test_a_long_path_is_read_once(size: int, tmp_path: Path) -> None:
    story = write_log(tmp_path, lambda: (message(i, i - 1) for i in range(1, size + 1)))
    lines = 0
    for number, line in enumerate(ascii_tree(story.database, 0)):
        lines += 1
        assert line == "|" if number % 2 else line.startswith(f"[n{number // 2 + 1} user] ")
    assert lines == 2 * size - 1
    length = os.path.getsize(story.database.path) + size * timeline.ROW_BYTES
    assert story.disk.bytes < length + 100_000
    # Rows come 4,096 at a time, texts by groups of at most 256 KiB or NODES_READ nodes.
    assert story.disk.reads < 10 + size / 4096 + size / NODES_READ + length / (128 << 10)


def test_a_long_branch_is_read_once_too(tmp_path: Path) -> None:
    size = 6_000
    story = write_log(tmp_path, lambda: (message(i, i - 1) for i in range(1, size + 1)))
    assert sum(1 for _ in ascii_tree(story.database, 0, branch="main")) == 2 * size - 1
    length = os.path.getsize(story.database.path) + size * timeline.ROW_BYTES
    assert story.disk.bytes < length + 100_000 + 4096 * timeline.ROW_BYTES
    assert story.disk.reads < 40


def test_a_fork_of_2000_children_and_500_branches(tmp_path: Path) -> None:
    def bodies() -> Iterator[str]:
        yield message(1, 0)
        for child in range(2, 2002):
            if child % 4 == 0:
                yield fork(1, f"b{child}")
                yield message(child, 1, f"b{child}")
            else:
                yield message(child, 1).replace('"branch":"main",', "")

    story = write_log(tmp_path, bodies)
    lines = story.lines()
    assert len(lines) == 2002
    assert lines[:3] == ['[n1 user] "1" [HEAD* "main"]', "|", '+-- [n2 user] "2"']
    assert lines[-1] == '`-- [n2001 user] "2001"'
    assert sum('[HEAD "b' in line for line in lines) == 500
    assert story.disk.reads < 2 * 500 + 50


def test_forks_one_inside_the_other_end_where_they_began(tmp_path: Path) -> None:
    depth = 1_500

    def bodies() -> Iterator[str]:
        yield message(1, 0)
        for level in range(depth):
            for node in (2 * level + 2, 2 * level + 3):
                yield message(node, max(1, 2 * level)).replace('"branch":"main",', "")

    story = write_log(tmp_path, bodies)
    lines = story.lines()
    assert len(lines) == 3 * depth + 1
    assert lines[-1] == '`-- [n3 user] "3"'
    assert lines[3 * depth // 2].startswith("|   |   ")


def test_many_wide_summaries_cost_no_pass_each(tmp_path: Path) -> None:
    """Painting is counted by looking: each node is painted once, whatever overlaps."""
    size, count = 3_000, 600

    def bodies() -> Iterator[str]:
        for node in range(1, size + 1):
            yield message(node, node - 1)
        for k in range(count):
            yield summary(size + 1 + k, 1 + k, size - k)

    story = write_log(tmp_path, bodies)
    inside = [int(found) for found in re.findall(r"\(in n(\d+)\)", story.drawn())]
    depths = range(1, size + 1)
    assert inside == [size + min(depth, size + 1 - depth, count) for depth in depths]


def test_an_index_that_leads_to_other_lines_is_rebuilt_on_the_way(story: Story) -> None:
    for text in ("abc", "def", "ghi"):
        story.say(text)
    expected = story.lines()
    rows = story.database.store.rows
    lines = ascii_tree(story.database, 0)
    raw = bytes(rows.tail) or rows.stored_chunk(1, 3)
    assert len(raw) == 3 * timeline.ROW_BYTES
    lines.close()  # type: ignore[attr-defined]
    # Rows 1 and 2 change places in the log, with right checksums.
    first, second = rows[1], rows[2]
    swapped = [list(first), list(second)]
    swapped[0][timeline.OFFSET], swapped[1][timeline.OFFSET] = second[0], first[0]
    for place, row in enumerate(swapped):
        packed = timeline.ROW.pack(*row)[:60]
        rows.tail[place * 64 : place * 64 + 60] = packed
        rows.tail[place * 64 + 60 : place * 64 + 64] = zlib.crc32(packed).to_bytes(4, "little")
    assert story.lines() == expected
