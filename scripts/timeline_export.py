"""Pictures of a timeline: a database in, lines of text out. Opens no file and changes nothing.

MAP (sections are marked by banners)
   1 one line      texts and names as one harmless line
   2 view          the nodes of a picture in columns, how they hang together, their marks
   3 ascii         the tree for people at a terminal
   4 drawio        a diagram to edit in draw.io
   5 mermaid       a flow chart that GitHub and others render
   6 markdown      one path as a transcript to read
   7 html          one page to look, click and search in
   8 requests      messages in the shape that an API takes
   9 json          all there is, for `import` and for other programs
  10 claude-code   a path as a session that Claude Code resumes

HOW A TREE IS DRAWN
  * A view is a whole timeline, or a part of one path: a branch's path or an interval.
  * Placeholders stand for nothing that is not drawn: only the diagram for draw.io and json show
    them, and only of a whole timeline.
  * A summary that conversations go on from is drawn where it hangs, beside what it stands for.
    One that nothing hangs on is an aside under the last node of its interval. In a part of a path
    every summary off the path is such an aside, and those whose interval ends elsewhere are not
    drawn: they do not apply there.
  * `(in nX)` names the newest of the summaries with a node in their interval. A version has a
    larger number than what it supersedes, so it is never a superseded one.
"""

from __future__ import annotations

import json
import re
import time
from array import array
from bisect import bisect_left
from html import escape as html_escape
from itertools import pairwise
from xml.sax.saxutils import quoteattr

from timeline import (
    DEPTH,
    FLAGS,
    FROM,
    HAS_INTENT,
    JOINS,
    KIND_PLACEHOLDER,
    KIND_REAL,
    KIND_SUMMARY,
    LENGTH,
    LIVE,
    OFFSET,
    PARENT,
    PREFIX,
    ROLE_MASK,
    ROLES,
    ROW_BYTES,
    STATUS_NAMES,
    TL,
    TO,
    Busy,
    InvalidArgument,
    NotFound,
    Refused,
    checked_row,
    climb,
    common_ancestor,
    covered_depths,
    decode_head,
    dumps,
    estimate,
    is_ancestor,
    is_purged,
    line_text,
    node_uuid,
    quoted,
    summary_chain,
    unit_first,
    watermark,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from timeline import Branch, Database, Row, Rows, Store, Summaries, TimelineState

    Json = dict[str, Any]
    T = TypeVar("T")

__all__ = ["Picture", "as_request", "ascii_tree", "one_line", "picture"]

# ================================================================================================
# 1. One line
#
# Knows characters; must not know where they come from.
# ================================================================================================

LINE_CHARS_MAX = 64  # Unicode scalar values of a text or name in a line

# White space that becomes one space. Line and paragraph separators and the control characters
# that some call white space are not in it: they are made visible.
_SPACES = re.compile("[\t-\r \xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
# Control characters, and what reorders, hides or breaks text. U+200C, U+200D and variation
# selectors are left alone: Persian and families of emoji are spelled with them.
_UNSAFE = re.compile(
    '["\\\\\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff'
    "\U000e0000-\U000e007f]"
)


def one_line(text: str) -> str:
    """`text` as one line for a place between quotes: at most 64 characters of it, then `...`.

    White space runs become one space; what could drive a terminal becomes an escape (which
    counts as the one character it stands for). Costs no more for a text of a megabyte.
    """
    start = text[: LINE_CHARS_MAX + 1]
    # Most texts are plain. What is printable holds no white space but U+0020, and nothing unsafe
    # but quotes and backslashes.
    if start.isprintable() and not ("  " in start or '"' in start or "\\" in start):
        return text if len(start) <= LINE_CHARS_MAX else start[:LINE_CHARS_MAX] + "..."
    size = 4 * LINE_CHARS_MAX
    line = _SPACES.sub(" ", text[:size])
    # A run that the cut divides is one space either way, so `line` is how the whole one begins.
    while len(line) <= LINE_CHARS_MAX and size < len(text):
        size *= 8
        line = _SPACES.sub(" ", text[:size])
    end = "" if len(line) <= LINE_CHARS_MAX else "..."
    return _UNSAFE.sub(_escape, line[:LINE_CHARS_MAX]) + end


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char in '"\\':
        return "\\" + char
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes: two for a wide character, none for a mark that
    joins the one before it. Source: Unicode Standard Annex 11."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    import unicodedata

    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def shortened(line: str, width: int) -> str:
    """The result of `one_line` in at most `width` columns, at least `...` where it is cut."""
    if columns(line) <= width:
        return line
    line = line.removesuffix("...")
    room, end = width - 3, 0
    for char in line:
        room -= _columns_of(char)
        if room < 0:
            break
        end += 1
    return _HALF_ESCAPE.sub(r"\1", line[:end]) + "..."


_HALF_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(x.?|u.{0,3}|U.{0,7})?$")


# ================================================================================================
# 2. View
#
# Knows rows, state and summaries; must not know how a picture looks.
# ================================================================================================

PINNED, EXCLUDED, ARCHIVED = 1, 2, 4  # bits of View.marks
NODES_READ = 1_000  # nodes whose lines are fetched together


class View:
    """The nodes of a picture: a column for each thing, a place for each node.

    Place 0 is n0, or what lies above a part of a path. Places below `tree_end` ascend with the
    node's number; the asides of a part of a path come after them. All but the texts is taken from
    the state of one moment, so that changes made while a picture is drawn do not tear it.
    """

    __slots__ = (
        "above",
        "asides",
        "database",
        "ends",
        "first_child",
        "flags",
        "heads",
        "holds_root",
        "ids",
        "inside",
        "lengths",
        "log_id",
        "marks",
        "next_child",
        "offsets",
        "parents",
        "stale",
        "successor",
        "summaries",
        "tree_end",
    )

    def __init__(
        self,
        database: Database,
        tl: int,
        interval: tuple[int, int] | None,
        placeholders: bool = False,
    ) -> None:
        """Timeline `tl`, or what of it lies in `interval` (first and last node, 0 for n0)."""
        store = database.store
        timeline = store.state.timelines[tl]
        known = database.summaries_of(tl)
        self.database = database
        self.log_id = store.header.log_id
        self.holds_root = interval is None or interval[0] == 0
        self.ids = array("I", [0])
        self.parents = array("I", [0])  # numbers, in view or not
        self.flags = array("I", [0])
        self.offsets = array("Q", [0])
        self.lengths = array("I", [0])
        if interval is None:
            self._add_timeline(store.rows, tl, 0 if placeholders else KIND_PLACEHOLDER)
        else:
            self._add_interval(store.rows, *interval)
        self.tree_end = len(self.ids)
        # Places of the parents; 0 also where that is not in view.
        self.above = array("I", map(self.place_of, self.parents))
        self.summaries = known.by_node
        self.successor = dict(known.successor)
        self.stale = known.stale(store.rows)
        self.heads: dict[int, list[tuple[str, bool]]] = {}  # node -> (name, is it current)
        for branch in timeline.in_order():
            found = self.heads.setdefault(branch.head, [])
            found.append((branch.name, branch.name == timeline.current))
        # Where each branch leaves the view, oldest first: its name and the place.
        self.ends = [
            (branch.name, self._end_of(store.rows, branch.head, interval))
            for branch in timeline.in_order()
        ]
        self.asides: dict[int, list[int]] = {}  # place -> summaries that stand under it
        self.first_child = _zeros(self.tree_end)
        self.next_child = _zeros(self.tree_end)
        self._link(whole=interval is None)
        if interval is not None:
            self._add_asides(store.rows, known)
        self.inside = self._newest_summaries(known)
        self.marks = bytearray(len(self.ids))
        self._mark_pins_and_exclusions(store.rows, timeline)
        self._mark_archived(store.rows, timeline.segments, interval)

    def place_of(self, node: int) -> int:
        """The place of a node of the tree; 0 if it is not in view."""
        place = bisect_left(self.ids, node, 1, self.tree_end)
        return place if place < self.tree_end and self.ids[place] == node else 0

    def _add(self, node: int, row: Row) -> None:
        self.ids.append(node)
        self.parents.append(row[PARENT])
        self.flags.append(row[FLAGS])
        self.offsets.append(row[OFFSET])
        self.lengths.append(row[LENGTH])

    def _end_of(self, rows: Rows, head: int, interval: tuple[int, int] | None) -> int:
        """The last place on the path to `head`, 0 if that shares nothing with the view."""
        return self.place_of(head if interval is None else common_ancestor(rows, head, interval[1]))

    def _add_timeline(self, rows: Rows, tl: int, left_out: int) -> None:
        for start, raw in rows.chunks(1, len(rows)):
            for byte in range(0, len(raw), ROW_BYTES):
                row = checked_row(raw, byte)
                if row[TL] == tl and not row[FLAGS] & left_out:
                    self._add(start + byte // ROW_BYTES, row)

    def _add_interval(self, rows: Rows, first: int, last: int) -> None:
        top = rows[first][DEPTH]
        for node, row in climb(rows, last):
            if row[DEPTH] < top:
                break
            self._add(node, row)
        for column in (self.ids, self.parents, self.flags, self.lengths):
            column[1:] = column[:0:-1]
        self.offsets[1:] = self.offsets[:0:-1]

    def _link(self, whole: bool) -> None:
        """Hang every node on its parent, or as an aside under another one.

        A part of a path has no asides in its tree: a summary at its end is the path's own end.
        """
        first, following = self.first_child, self.next_child
        # Children have larger numbers than their parent, so theirs are known before it is placed.
        for place in range(self.tree_end - 1, 0, -1):
            if whole and self.flags[place] & KIND_REAL and not first[place]:
                under = self.place_of(self.summaries[self.ids[place]].last)
                self.asides.setdefault(under, []).append(place)
            else:
                parent = self.above[place]
                following[place] = first[parent]
                first[parent] = place
        for asides in self.asides.values():
            asides.reverse()

    def _add_asides(self, rows: Rows, known: Summaries) -> None:
        """Add the summaries off the path that apply to its end and whose interval ends in view."""
        for node in known.order:
            under = self.place_of(known.by_node[node].last)
            if under and not self.place_of(node):
                self.asides.setdefault(under, []).append(len(self.ids))
                self._add(node, rows[node])
                self.above.append(0)

    def _newest_summaries(self, known: Summaries) -> Sequence[int]:
        """For each place the newest summary whose interval holds it, 0 if none does."""
        summaries = (known.by_node[node] for node in reversed(known.order))
        return self.painted((each.node, each.first, each.last) for each in summaries)

    def painted(self, intervals: Iterable[tuple[int, int, int]]) -> Sequence[int]:
        """For each place the number of the first of the (number, first, last) that holds it.

        Each paints what it holds and no other has painted. Painted nodes are passed over in jumps
        that get longer, so long and overlapping intervals cost next to nothing.
        """
        newest = _zeros(len(self.ids))
        bare = array("I", range(self.tree_end))  # where to look on: itself while it is not painted
        for number, first, last in intervals:
            place = self.place_of(last)
            while True:
                while bare[place] != place:
                    bare[place] = bare[bare[place]]
                    place = bare[place]
                # Of two nodes on one path the upper one has the smaller number.
                if self.ids[place] < first:
                    break
                newest[place] = number
                bare[place] = self.above[place]
        return newest

    def _mark_pins_and_exclusions(self, rows: Rows, timeline: TimelineState) -> None:
        pins, excluded, marks = timeline.pins, timeline.excluded, self.marks
        if not pins and not excluded:
            return
        for place in range(1, len(self.ids)):
            node = self.ids[place]
            if node in pins:
                marks[place] |= PINNED
            if not excluded:
                continue
            if not self.flags[place] & JOINS or not self.parents[place]:
                left_out = node in excluded
            elif self.above[place]:
                left_out = bool(marks[self.above[place]] & EXCLUDED)
            else:
                left_out = unit_first(rows, node) in excluded
            if left_out:
                marks[place] |= EXCLUDED

    def _mark_archived(
        self, rows: Rows, segments: Iterable[list[int]], interval: tuple[int, int] | None
    ) -> None:
        seen = bytearray(len(self.ids))
        # From the upper tops to the lower ones, so that a walk may end where another one went.
        for top, head in sorted(segments):
            lowest = head if interval is None else common_ancestor(rows, head, interval[1])
            place = self.place_of(lowest)
            while self.ids[place] >= top and not seen[place]:
                seen[place] = 1
                if not self.flags[place] & KIND_SUMMARY:
                    self.marks[place] |= ARCHIVED
                place = self.above[place]

    def read(self, places: Iterable[int], show: Callable[[int, bytes], T]) -> dict[int, T]:
        """`show(place, line)` of each place, the lines being read in the order of the file.

        Raises:
            Busy: the file was replaced since the view was made (by `compact`).
            Corrupt: a line no longer matches its checksum.
        """
        in_order = sorted(places, key=self.offsets.__getitem__)
        attempts = 0

        def attempt() -> dict[int, T]:
            nonlocal attempts
            attempts += 1
            store = self.database.store
            if attempts > 1 or store.header.log_id != self.log_id:
                self._find_lines_again()
            lines = store.node_lines(
                (self.ids[place], self.parents[place], self.offsets[place], self.lengths[place])
                for place in in_order
            )
            return {place: show(place, line) for place, line in zip(in_order, lines, strict=True)}

        try:
            found: dict[int, T] = self.database.again_if_unfit(attempt)
        except OSError:
            if attempts > 1:
                raise
            # A change through the same database may have closed its files.
            found = self.database.again_if_unfit(attempt)
        return found

    def _find_lines_again(self) -> None:
        """Open the files anew and look up where the lines are; the index may have been rebuilt."""
        store = self.database.refresh()
        if store.header.log_id != self.log_id:
            raise Busy(f"{store.path} was replaced while it was read: try again")
        for place in range(1, len(self.ids)):
            row = store.rows[self.ids[place]]
            self.offsets[place] = row[OFFSET]
            self.lengths[place] = row[LENGTH]


def view_of(
    database: Database,
    tl: int,
    branch: str | None = None,
    first: int | None = None,
    last: int | None = None,
    placeholders: bool = False,
) -> View:
    """The view of timeline `tl`, of one branch's path, or of one interval, as it is now.

    Raises:
        InvalidArgument: a branch and an interval, or half an interval.
        NotFound: no such timeline, branch or node. Refused: no interval of this timeline.
    """

    def laid_out() -> View:
        store = database.refresh()
        return View(database, tl, _interval(store, tl, branch, first, last), placeholders)

    view: View = database.again_if_unfit(laid_out)
    return view


class Picture:
    """What an export writes, in pieces, and how many nodes and parent links it shows."""

    __slots__ = ("edges", "nodes", "pieces")

    def __init__(self, view: View, pieces: Iterator[str]) -> None:
        self.nodes = len(view.ids) - 1
        self.edges = sum(
            view.holds_root or bool(view.above[place]) for place in range(1, view.tree_end)
        )
        self.pieces = pieces


def picture(
    database: Database,
    tl: int,
    format: str,
    *,
    branch: str | None = None,
    first: int | None = None,
    last: int | None = None,
    width: int | None = None,
    fold: bool = False,
) -> Picture:
    """A picture in one of timeline.EXPORT_FORMATS. `width` and `fold` concern ascii alone.

    markdown is of one path: without a branch or an interval, of the current branch's.

    Raises:
        InvalidArgument: a branch and an interval, or half an interval.
        NotFound: no such timeline, branch or node.
        Refused: no interval of this timeline; too many nodes for mermaid.
        Corrupt: also while pieces are taken: a text no longer matches its checksum.
    """
    if format == "markdown" and branch is None and first is None:
        branch = _current_branch(database, tl)
    if format == "json":
        return _json_picture(database, tl, branch, first, last)
    view = view_of(database, tl, branch, first, last, placeholders=format == "drawio")
    if format == "drawio":
        return Picture(view, _drawio(view, f"tl{tl}"))
    if format == "html":
        timeline = database.store.state.timelines[tl]
        is_whole = branch is None and first is None
        ended = [(each.name, each.head, STATUS_NAMES[each.status]) for each in timeline.ended]
        return Picture(view, _html(view, timeline.title or f"tl{tl}", ended if is_whole else None))
    if format == "mermaid":
        lines = _mermaid(view)
    elif format == "markdown":
        lines = _markdown(view, branch)
    else:
        lines = _ascii_tree(view, width, fold)
    return Picture(view, (line + "\n" for line in lines))


def _current_branch(database: Database, tl: int) -> str | None:
    def current() -> str | None:
        timelines = database.refresh().state.timelines
        return timelines[tl].current if tl < len(timelines) else None

    found: str | None = database.again_if_unfit(current)
    return found


def _zeros(size: int) -> array[int]:
    return array("I", bytes(4 * size))


def _interval(
    store: Store, tl: int, branch: str | None, first: int | None, last: int | None
) -> tuple[int, int] | None:
    """The ends of what is asked for, None for the whole timeline."""
    if tl >= len(store.state.timelines):
        raise NotFound(f"unknown timeline tl{tl}", timeline=f"tl{tl}")
    if branch is not None:
        if first is not None or last is not None:
            raise InvalidArgument("a branch and an interval were both given: name one of them")
        held = store.state.timelines[tl].branches.get(branch)
        if held is None:
            raise NotFound(f"unknown branch {quoted(branch)}", branch=branch)
        return 0, held.head
    if first is None and last is None:
        return None
    if first is None or last is None:
        raise InvalidArgument("from and to go together: name both ends of the interval")
    for node in (first, last):
        _check_drawn(store, tl, node)
    if not is_ancestor(store.rows, first, last):
        raise Refused(f"n{first} is not on the path of n{last}")
    return first, last


def _check_drawn(store: Store, tl: int, node: int) -> None:
    """Raise unless `node` is n0 or a node of the timeline that can be drawn."""
    if node > len(store.rows):
        if store.damage is not None:
            raise store.damage  # it may lie in what cannot be read
        raise NotFound(f"unknown node n{node}", node=f"n{node}")
    row = store.rows[node]
    if node and row[TL] != tl:
        raise Refused(f"n{node} is in tl{row[TL]}, not in tl{tl}")
    if row[FLAGS] & KIND_PLACEHOLDER:
        raise Refused(f"n{node} is a placeholder, which lies on no path: name another node")


# ================================================================================================
# 3. ascii
#
#   [n1 user PIN (in n5)] "text"
#   |
#   +-- [n2 assistant (in n5)] "text" [HEAD* "main"]
#   |   * [n5 summary n1..n2] "text"
#   `-- [n3 assistant] "text"
#   |   |
#   a column for each run of single children; a fork opens new ones four columns to the right
# ================================================================================================

LEADS_CHARS_MAX = 1 << 20  # of lines that wait for texts: deep forks have wide margins
FOLD_LINES = 2_000  # a longer picture is folded where that is asked for
RUN_NODES_MAX = 12  # of a folded picture: nodes in a row that have nothing to them
CHILDREN_MAX, CHILDREN_ENDS = 40, 20  # children of one node, and how many of more at either end
_BAR = -1  # in the place of a place: the line is nothing but its lead
_NEEDS_QUOTES = re.compile(r'[\s"()\[\]]')


def ascii_tree(
    database: Database,
    tl: int,
    *,
    branch: str | None = None,
    first: int | None = None,
    last: int | None = None,
    width: int | None = None,
    fold: bool = False,
) -> Iterator[str]:
    """The lines of the tree of timeline `tl`, or of one branch's path, or of one interval.

    They come without newlines. With `width` the texts are shortened to keep lines within so many
    columns; ids and marks stay whole. With `fold` a picture of over FOLD_LINES lines shows long
    runs and many children by their ends. What is asked for is checked and laid out at once, the
    texts are read as the lines are taken. Time and memory grow with the nodes in view (for a whole
    timeline the rows of the database are passed over) and with the timeline's summaries.

    Raises:
        InvalidArgument: a branch and an interval, or half an interval.
        NotFound: no such timeline, branch or node. Refused: no interval of this timeline.
        Corrupt: also while lines are taken: a text no longer matches its checksum.
    """
    return _ascii_tree(view_of(database, tl, branch, first, last), width, fold)


def _ascii_tree(view: View, width: int | None, fold: bool) -> Iterator[str]:
    # A node takes a line, and what leads on to it another.
    return _ascii_lines(view, width, fold and 2 * len(view.ids) > FOLD_LINES)


def _ascii_lines(view: View, width: int | None, fold: bool) -> Iterator[str]:
    waiting: list[tuple[str, int]] = []
    nodes: list[int] = []
    size = 0
    for lead, place in _layout(view, Folds(view) if fold else None):
        waiting.append((lead, place))
        size += len(lead)
        if place > 0:
            nodes.append(place)
        if len(nodes) == NODES_READ or size > LEADS_CHARS_MAX:
            yield from _with_nodes(view, waiting, nodes, width)
            waiting, nodes, size = [], [], 0
    yield from _with_nodes(view, waiting, nodes, width)


def _with_nodes(
    view: View, waiting: list[tuple[str, int]], nodes: list[int], width: int | None
) -> Iterator[str]:
    shown = view.read(nodes, lambda place, line: _node(view, place, line))
    for lead, place in waiting:
        if place == _BAR:
            yield lead
        elif place == 0:
            yield lead + "[n0]" + _heads(view, 0)
        else:
            marks, text, heads = shown[place]
            if width is not None:
                text = shortened(text, width - columns(lead + marks + heads) - 3)
            yield f'{lead}{marks} "{text}"{heads}'


class Folds:
    """What a folded picture leaves out."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.hidden: dict[int, int] = {}  # child -> how many of its siblings before it
        self._next: dict[int, int] = {}  # child -> its next sibling that is shown
        self._leads: bytearray | None = None

    def run(self, place: int) -> list[int]:
        """The nodes from `place` down that have nothing to them and are alike."""
        view = self.view
        run: list[int] = []
        while self._is_plain(place) and (not run or self._is_alike(run[0], place)):
            run.append(place)
            place = view.first_child[place]
        return run

    def _is_plain(self, place: int) -> bool:
        view = self.view
        child = view.first_child[place]
        return (
            bool(child)
            and not view.next_child[child]
            and not view.flags[place] & (KIND_REAL | HAS_INTENT)
            and not view.marks[place] & (PINNED | EXCLUDED)
            and place not in view.asides
            and view.ids[place] not in view.heads
        )

    def _is_alike(self, one: int, other: int) -> bool:
        view = self.view
        return (
            view.inside[one] == view.inside[other]
            and (view.marks[one] ^ view.marks[other]) & ARCHIVED == 0
        )

    def children(self, first: int) -> None:
        """Choose what is shown of the siblings that begin with `first`."""
        siblings = [first]
        while following := self.view.next_child[siblings[-1]]:
            siblings.append(following)
        if len(siblings) <= CHILDREN_MAX:
            return
        leads = self._leading_to_heads()
        kept = [
            number
            for number, place in enumerate(siblings)
            if leads[place] or not CHILDREN_ENDS <= number < len(siblings) - CHILDREN_ENDS
        ]
        for one, other in pairwise(kept):
            self._next[siblings[one]] = siblings[other]
            if other > one + 1:
                self.hidden[siblings[other]] = other - one - 1

    def next_sibling(self, place: int) -> int:
        return self._next.get(place, self.view.next_child[place])

    def _leading_to_heads(self) -> bytearray:
        """For each place whether a branch ends at it or below it."""
        if self._leads is None:
            view = self.view
            self._leads = bytearray(len(view.ids))
            for place in range(view.tree_end - 1, 0, -1):
                if view.ids[place] in view.heads:
                    self._leads[place] = 1
                if self._leads[place]:
                    self._leads[view.above[place]] = 1
        return self._leads


def _layout(view: View, folds: Folds | None) -> Iterator[tuple[str, int]]:
    """(what stands before it, place) of each line, from the top."""
    first, following = view.first_child, view.next_child
    place = first[0]
    if view.holds_root and (0 in view.heads or following[place]):
        place = 0
    elif not place:
        return
    lead = margin = ""
    forks: list[tuple[int, int]] = []  # child to draw next, how wide the margin of its fork is
    while True:
        yield lead, place
        for aside in _asides(view, place):
            yield margin + "* ", aside
        if folds is not None and len(run := folds.run(place)) > RUN_NODES_MAX:
            yield margin + "|", _BAR
            ends = f"n{view.ids[run[1]]}..n{view.ids[run[-2]]}"
            yield f"{margin}: {len(run) - 2:,} messages {ends}", _BAR
            yield margin + "|", _BAR
            place = run[-1]
            yield margin, place
        child = first[place]
        if child:
            yield margin + "|", _BAR
            if not following[child]:
                lead, place = margin, child
                continue
            if folds is not None:
                folds.children(child)
            forks.append((child, len(margin)))
        if not forks:
            return
        place, width = forks.pop()
        # What stands left of a fork is the same for all its children.
        margin = margin[:width]
        if folds is not None and place in folds.hidden:
            yield f"{margin}: {folds.hidden[place]:,} more", _BAR
        sibling = following[place] if folds is None else folds.next_sibling(place)
        if sibling:
            forks.append((sibling, width))
            lead, margin = margin + "+-- ", margin + "|   "
        else:
            lead, margin = margin + "`-- ", margin + "    "


def _asides(view: View, place: int) -> Iterator[int]:
    """The asides under a node, and those under them."""
    waiting = view.asides.get(place, [])[::-1]
    while waiting:
        aside = waiting.pop()
        yield aside
        waiting += reversed(view.asides.get(aside, []))


def _node(view: View, place: int, line: bytes) -> tuple[str, str, str]:
    """A node as it is drawn: number and marks, text, heads."""
    node, flags, marks = view.ids[place], view.flags[place], view.marks[place]
    words = [f"n{node}"]
    if not flags & KIND_REAL:
        words.append(ROLES[flags & ROLE_MASK])
    if marks & PINNED:
        words.append("PIN")
    if marks & EXCLUDED:
        words.append("EXCLUDED")
    if marks & ARCHIVED:
        words.append("ARCHIVED")
    text = line_text(line)
    if not text and is_purged(line):
        words.append("PURGED")
    if flags & HAS_INTENT:
        words.append(_tag(line))
    if flags & KIND_REAL:
        words += _summary(view, node)
    if view.inside[place]:
        words.append(f"(in n{view.inside[place]})")
    return f"[{' '.join(words)}]", one_line(text), _heads(view, node)


def _tag(line: bytes) -> str:
    """The intent tag, in quotes where it could be taken for something else."""
    tag = one_line(decode_head(line)["intent"]["tag"])
    return f'#"{tag}"' if _NEEDS_QUOTES.search(tag) else f"#{tag}"


def _summary(view: View, node: int) -> Iterator[str]:
    summary = view.summaries[node]
    yield "summary"
    if summary.version > 1:
        yield f"v{summary.version}"
    yield f"n{summary.first}..n{summary.last}"
    if node in view.stale:
        yield "STALE"
    if node in view.successor:
        yield f"SUPERSEDED by n{view.successor[node]}"


def _heads(view: View, node: int) -> str:
    return "".join(
        f' [HEAD{"*" if is_current else ""} "{one_line(name)}"]'
        for name, is_current in view.heads.get(node, ())
    )


# ================================================================================================
# 4. drawio
#
# An uncompressed mxGraph file with one page. Each node is an `object` with its facts as attributes;
# `text_json` is the whole text as a JSON string in ASCII, so that any character survives XML.
# Layers: `tree`, shown, and three that are hidden: `coverage` (a summary to the first and the last
# node of its interval), `versions` (a summary to the one it supersedes), `dependencies` (a summary
# to what it was derived from).
# ================================================================================================

BOX_WIDTH, BOX_HEIGHT = 200, 56
COLUMN_WIDTH, LANE_HEIGHT = 248, 76  # of the grid the boxes stand on
BRANCHES_MAX = 50  # names listed at one box

_BOX = "rounded=1;whiteSpace=wrap;html=0;overflow=hidden;align=left;spacing=6;fontSize=11;"
# The first that fits is taken; the keys are explained in the README, section Pictures.
BOX_STYLES = {
    "head": "fillColor=#d5e8d4;strokeColor=#82b366;strokeWidth=2;",
    "placeholder": "fillColor=#f5f5f5;strokeColor=#999999;dashed=1;fontColor=#666666;",
    "summary": "fillColor=#fff2cc;strokeColor=#d6b656;",
    "archived": "fillColor=#eeeeee;strokeColor=#b0b0b0;fontColor=#555555;",
    "pinned": "fillColor=#f8cecc;strokeColor=#b85450;strokeWidth=2;",
    "message": "fillColor=#dae8fc;strokeColor=#6c8ebf;",
}
LAYERS = {
    # From the right of a box to the left of the next, in right angles.
    "tree": "edgeStyle=orthogonalEdgeStyle;exitX=1;exitY=0.5;entryX=0;entryY=0.5;endArrow=none;"
    "strokeColor=#888888;",
    "coverage": "dashed=1;endArrow=open;strokeColor=#d6b656;",
    "versions": "endArrow=block;strokeColor=#9673a6;",
    "dependencies": "dashed=1;endArrow=classic;strokeColor=#b85450;",
}
# Noncharacters and lone halves, which XML does not have; one_line leaves them alone.
_NO_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def _drawio(view: View, title: str) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<mxfile host="Timeline">\n'
    yield f'<diagram id="{title}" name="{title}">\n<mxGraphModel grid="1" page="0"><root>\n'
    yield '<mxCell id="0"/>\n'
    for name in LAYERS:
        hidden = "" if name == "tree" else ' visible="0"'
        yield f'<mxCell id="{name}" value="{name}" parent="0"{hidden}/>\n'
    spots = _grid(view)
    names = branches_at(view)
    if view.holds_root:
        yield _box("n0", "n0", "root", _style(view, 0), spots[0])
    for start in range(1, len(view.ids), NODES_READ):
        places = range(start, min(start + NODES_READ, len(view.ids)))
        boxes = view.read(
            places, lambda place, line: _node_box(view, place, line, spots[place], names[place])
        )
        for place in places:
            yield boxes[place]
    yield from _edges(view)
    yield "</root></mxGraphModel>\n</diagram>\n</mxfile>\n"


def _grid(view: View) -> list[tuple[int, int]]:
    """(column, lane) of each place: a first child goes on in its parent's lane, the others open
    lanes below all that stands there, so that no two nodes share a spot."""
    children: dict[int, list[int]] = {}
    for place in range(1, len(view.ids)):
        parent = view.above[place] if place < view.tree_end else view.place_of(view.parents[place])
        children.setdefault(parent, []).append(place)
    spots = [(0, 0)] * len(view.ids)
    lanes = 0
    waiting = [(0, 0, 0)]
    while waiting:
        place, column, lane = waiting.pop()
        if lane < 0:
            lanes += 1
            lane = lanes
        spots[place] = (column, lane)
        below = children.get(place, ())
        waiting += [(child, column + 1, -1) for child in reversed(below[1:])]
        waiting += [(child, column + 1, lane) for child in below[:1]]
    return spots


def branches_at(view: View) -> list[tuple[str, ...]]:
    """For each place the names of the branches whose path holds it, oldest first.

    Beyond BRANCHES_MAX only their number, as the last entry.
    """
    held: list[tuple[int, ...]] = [()] * len(view.ids)  # numbers in view.ends, and -how many more
    for number, (_, place) in enumerate(view.ends):
        held[place] = (*held[place], number)
    for place in range(view.tree_end - 1, 0, -1):
        above = view.above[place]
        if held[place] and held[above] != held[place]:
            held[above] = (
                tuple(sorted({*held[above], *held[place]})) if held[above] else held[place]
            )
    texts: dict[tuple[int, ...], tuple[str, ...]] = {}
    for each in set(held):
        shown = tuple(view.ends[number][0] for number in each[:BRANCHES_MAX])
        texts[each] = (
            (*shown, f"+{len(each) - BRANCHES_MAX}") if len(each) > BRANCHES_MAX else shown
        )
    return [texts[each] for each in held]


def _style(view: View, place: int) -> str:
    node, flags, marks = view.ids[place], view.flags[place], view.marks[place]
    if any(is_current for _, is_current in view.heads.get(node, ())):
        name = "head"
    elif flags & KIND_PLACEHOLDER:
        name = "placeholder"
    elif flags & KIND_REAL:
        name = "summary"
    elif marks & ARCHIVED:
        name = "archived"
    elif marks & PINNED:
        name = "pinned"
    else:
        name = "message"
    return _BOX + BOX_STYLES[name]


def _node_box(
    view: View, place: int, line: bytes, spot: tuple[int, int], names: tuple[str, ...]
) -> str:
    record = decode_head(line)
    text = line_text(line)
    marks, shown, heads = _node(view, place, line)
    facts = {
        "role": ROLES[view.flags[place] & ROLE_MASK],
        "tokens": str(record["tokens"]),
        "created_at": utc(record["ts"]),
        "zone": "archive" if view.marks[place] & ARCHIVED else "hot",
        "branches": ", ".join(map(one_line, names)),
        "text_json": json.dumps(text),
    }
    if _said_at(record) != record["ts"]:
        facts["said_at"] = utc(_said_at(record))
    label = f"{marks}{heads} {shown}"
    return _box(f"n{view.ids[place]}", label, "node", _style(view, place), spot, facts)


def _box(
    node: str,
    label: str,
    kind: str,
    style: str,
    spot: tuple[int, int],
    facts: dict[str, str] | None = None,
) -> str:
    shown = {"label": label, "kind": kind, **(facts or {})}
    attributes = "".join(
        f" {name}={quoteattr(_NO_XML.sub(_escape, value))}" for name, value in shown.items()
    )
    x, y = spot[0] * COLUMN_WIDTH, spot[1] * LANE_HEIGHT
    return (
        f'<object id="{node}"{attributes}><mxCell style="{style}" vertex="1" parent="tree">'
        f'<mxGeometry x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" as="geometry"/>'
        "</mxCell></object>\n"
    )


def _edges(view: View) -> Iterator[str]:
    """Lines between nodes that are both in view."""
    places = {node: place for place, node in enumerate(view.ids)}
    if not view.holds_root:
        del places[0]
    for place in range(1, len(view.ids)):
        node = view.ids[place]
        found = [("tree", view.parents[place], node)]
        summary = view.summaries.get(node)
        if summary is not None:
            found += [("coverage", node, each) for each in {summary.first, summary.last}]
            if summary.supersedes:
                found.append(("versions", node, summary.supersedes))
            found += [("dependencies", node, each) for each in summary.derived_from]
        for layer, source, target in found:
            if source in places and target in places:
                yield (
                    f'<mxCell id="{layer}-n{source}-n{target}" style="{LAYERS[layer]}" edge="1" '
                    f'parent="{layer}" source="n{source}" target="n{target}">'
                    '<mxGeometry relative="1" as="geometry"/></mxCell>\n'
                )


def _said_at(record: Json) -> int:
    """When it was said, as its transcript tells, else when it was written here."""
    time = record.get("source", {}).get("time")
    return time if type(time) is int else int(record["ts"])


def utc(seconds: int) -> str:
    """A time as 2026-01-31T23:59:59Z; the number itself where no calendar reaches."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return str(seconds)


# ================================================================================================
# 5. mermaid
#
# A `flowchart LR`. Every character of a label that the language could take for its own is written
# as an entity code. Source: https://mermaid.js.org/syntax/flowchart.html.
# ================================================================================================

MERMAID_NODES_MAX = 500  # what GitHub renders
_NO_LABEL = re.compile(r"[^\w \-.,:!?/()\[\]+=*'~]")
MERMAID_CLASSES = {
    "head": "fill:#d5e8d4,stroke:#82b366,color:#000",
    "summary": "fill:#fff2cc,stroke:#d6b656,color:#000",
    "archived": "fill:#eeeeee,stroke:#b0b0b0,color:#000",
    "pinned": "fill:#f8cecc,stroke:#b85450,color:#000",
    "message": "fill:#dae8fc,stroke:#6c8ebf,color:#000",
}


def _mermaid(view: View) -> Iterator[str]:
    """The lines of a flow chart. A dotted arrow leads from a summary that nothing hangs on to the
    last node of its interval.

    Raises:
        Refused: there are over MERMAID_NODES_MAX nodes.
    """
    count = len(view.ids) - 1
    if count > MERMAID_NODES_MAX:
        raise Refused(
            f"{count:,} nodes are more than the {MERMAID_NODES_MAX} that GitHub renders as "
            "mermaid: narrow it with --branch or with --from and --to",
            nodes=count,
            max=MERMAID_NODES_MAX,
        )
    return _mermaid_lines(view)


def _mermaid_lines(view: View) -> Iterator[str]:
    yield "flowchart LR"
    places = range(1, len(view.ids))
    shown = view.read(places, lambda place, line: _node(view, place, line))
    if view.holds_root:
        yield f'  n0["n0{_entities(_heads(view, 0))}"]'
    for place in places:
        marks, text, heads = shown[place]
        label = f"{_entities(marks[1:-1] + heads)}<br/>{_entities(text)}"
        yield f'  n{view.ids[place]}["{label}"]:::{_class(view, place)}'
    asides = {each for under in view.asides.values() for each in under}
    for place in places:
        node = view.ids[place]
        if place in asides:
            last = view.summaries[node].last
            if view.place_of(last):
                yield f"  n{node} -.-> n{last}"
        elif view.above[place] or view.holds_root:
            yield f"  n{view.parents[place]} --> n{node}"
    for name, style in MERMAID_CLASSES.items():
        yield f"  classDef {name} {style}"


def _class(view: View, place: int) -> str:
    if any(is_current for _, is_current in view.heads.get(view.ids[place], ())):
        return "head"
    if view.flags[place] & KIND_REAL:
        return "summary"
    if view.marks[place] & ARCHIVED:
        return "archived"
    return "pinned" if view.marks[place] & PINNED else "message"


def _entities(text: str) -> str:
    return _NO_LABEL.sub(lambda match: f"#{ord(match[0])};", text)


# ================================================================================================
# 6. markdown
#
# One path as a transcript: a heading for each message, its text in a fence, summaries quoted.
# ================================================================================================

_BACKTICKS = re.compile("`+")
# Control characters but tab and newline: a transcript may be read at a terminal.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _markdown(view: View, branch: str | None) -> Iterator[str]:
    ends = f"n{view.ids[1]} to n{view.ids[view.tree_end - 1]}" if view.tree_end > 1 else "empty"
    yield f"# {_plain('Branch ' + branch if branch is not None else 'Interval')} ({ends})"
    for start in range(1, view.tree_end, NODES_READ):
        places = range(start, min(start + NODES_READ, view.tree_end))
        asides = [aside for place in places for aside in _asides(view, place)]
        shown = view.read([*places, *asides], lambda place, line: _passage(view, place, line))
        for place in places:
            yield from shown[place]
            for aside in _asides(view, place):
                yield from shown[aside]


def _passage(view: View, place: int, line: bytes) -> list[str]:
    """A message with its heading, or a summary as a quotation."""
    marks, _, heads = _node(view, place, line)
    heading = f"## {_plain(marks[1:-1])} · {utc(_said_at(decode_head(line)))}{_plain(heads)}"
    text = line_text(line).replace("\r\n", "\n")
    lines = _CONTROLS.sub(_escape, text).split("\n")
    if view.flags[place] & KIND_REAL:
        return ["", heading, "", *(f"> {_plain(each)}" for each in lines)]
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return ["", heading, "", f"{fence}text", *lines, fence]


def _plain(text: str) -> str:
    """`text` with what markdown or HTML could take for its own written as an escape."""
    return re.sub(r"([\\`*_\[\]<>#&|~])", r"\\\1", text)


# ================================================================================================
# 7. html
#
# One file that asks the network for nothing: a strict Content-Security-Policy lets in its own
# style and script by their hashes. The data are JSON in a script element of another type, with
# everything escaped that could end it, and reach the page as text only. Rows and lanes are laid
# out here (Board); the page folds and draws those on the screen. Source: https://www.w3.org/TR/CSP3/.
# ================================================================================================

_NO_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
EARLY, ASIDE = 64, 128  # bits of a row's marks beside those of View: see _html_row


def _html(view: View, title: str, ended: list[tuple[str, int, str]] | None) -> Iterator[str]:
    """`ended`: name, head and status of the branches that are no more; None for a part of a path."""
    board = Board(view, ended)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_source_hash(_STYLE)}'; script-src '{_source_hash(_SCRIPT)}'"
    )
    name = html_escape(one_line(title))
    head, tail = _PAGE.split("DATA")
    yield head.replace("STYLE", _STYLE).replace("POLICY", policy).replace("TITLE", name)
    current = {name for found in view.heads.values() for name, is_current in found if is_current}
    facts = {
        "title": title,
        "whole": view.holds_root,
        # Name, the last node in view, whether current, status.
        "branches": [
            *(
                [name, view.ids[end], int(name in current), "live" if is_head else "goes on"]
                for name, end in view.ends
                for is_head in [name in (each for each, _ in view.heads.get(view.ids[end], ()))]
            ),
            *([name, head, 0, status] for name, head, status in board.ended),
        ],
        "summaries": {
            str(node): [
                each.first, each.last, each.version, each.supersedes or 0,
                view.successor.get(node, 0), int(node in view.stale), list(each.derived_from),
            ]
            for node, each in view.summaries.items()
        },
    }  # fmt: skip
    yield _for_script(facts)[:-1] + ',"nodes":['
    between = ""
    for start in range(0, len(board.rows), NODES_READ):
        places = board.rows[start : start + NODES_READ]
        shown = view.read(filter(None, places), lambda place, line: _html_row(board, place, line))
        for place in places:
            yield between + (shown[place] if place else _for_script(_ROOT_SHOWN))
            between = ","
    yield "]}" + tail.replace("SCRIPT", _SCRIPT)


_ROOT_SHOWN = [0, 0, "root", 0, 0, 0, 0, 0, 0, 0, 0, "", 0, ""]


def _html_row(board: Board, place: int, line: bytes) -> str:
    """A node as a list: id, parent, role, tokens, time, marks, lane, run, newest summary, intent,
    tokens up to it, via, source, text. Marks: 8 a summary, 16 purged, EARLY and ASIDE."""
    view, record = board.view, decode_head(line)
    lane, run, marks = board.spots[place]
    marks |= view.marks[place] | (8 if view.flags[place] & KIND_REAL else 0)
    intent = record.get("intent") or {}
    source = {key: value for key, value in record.get("source", {}).items() if key != "usage"}
    return _for_script(
        [
            view.ids[place],
            view.parents[place],
            ROLES[view.flags[place] & ROLE_MASK],
            record["tokens"],
            _said_at(record),
            marks | (16 if record.get("purged") else 0),
            lane,
            run,
            view.inside[place],
            [intent.get("tag", ""), intent.get("note", "")] if intent else 0,
            view.database.store.rows[view.ids[place]][PREFIX],
            record["via"],
            source or 0,
            line_text(line),
        ]
    )


def _for_script(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_NO_SCRIPT)


def _source_hash(text: str) -> str:
    from base64 import b64encode
    from hashlib import sha256

    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


class Board:
    """Where everything stands on the page: rows from top to bottom, lanes from the left.

    A run is what one branch has of its own: from the node after its fork to its head, in one lane
    and one colour. Run 0 belongs to the current branch, from n0 on, and lane 0 to it alone. What
    several branches share belongs to the current one, else to the oldest. Rows go through a whole
    subtree before its next sibling, so a run is left only for branches that begin in it, which
    stand between its nodes. A node's largest subtree stands last (in run 0 its own rest does):
    what waits below is then at most half of it, and lanes grow with the logarithm of the nodes.
    A summary that no branch goes on from is a row under the end of its interval, in no lane.
    """

    __slots__ = (
        "asides",
        "children",
        "continues",
        "ended",
        "listed",
        "ranks",
        "rows",
        "sizes",
        "spots",
        "view",
    )

    def __init__(self, view: View, ended: Iterable[tuple[str, int, str]] | None) -> None:
        """`ended` as in `_html`."""
        self.view = view
        self.ended = [each for each in ended or () if each[1] and view.place_of(each[1])]
        self.asides: dict[int, list[int]] = {}
        self.listed: set[int] = set()  # all of `asides`
        self.children: list[list[int]] = [[] for _ in range(view.tree_end)]
        self._link()
        self.sizes = [1] * view.tree_end
        # A part of a path is one run, whoever goes on from it.
        self.ranks = [0] * view.tree_end if ended is None else self._ranked()
        for place in range(view.tree_end - 1, 0, -1):
            if place not in self.listed:
                above = view.above[place]
                self.sizes[above] += self.sizes[place]
                self.ranks[above] = min(self.ranks[above], self.ranks[place])
        self.continues = [self._continuing(place) for place in range(view.tree_end)]
        self.rows: list[int] = []  # places; 0 is n0, shown where it is a fork or a head
        self.spots: list[tuple[int, int, int]] = [(0, 0, 0)] * len(view.ids)  # lane, run, marks
        self._order()
        self._place_runs()

    def _link(self) -> None:
        """Children of each place, and what is listed under it. A summary at which a branch stands
        is no aside here."""
        view = self.view
        for under, found in view.asides.items():
            self.asides[under] = [
                each for each in found if each >= view.tree_end or view.ids[each] not in view.heads
            ]
            self.listed.update(self.asides[under])
        for place in range(1, view.tree_end):
            if place not in self.listed:
                self.children[view.above[place]].append(place)

    def _ranked(self) -> list[int]:
        """For each place the rank of the branch that ends there: current, old, new, ended, none."""
        view = self.view
        ranks = [len(view.ends) + len(self.ended) + 1] * view.tree_end
        current = {name for found in view.heads.values() for name, is_now in found if is_now}
        ends = [*view.ends, *((name, view.place_of(head)) for name, head, _ in self.ended)]
        for number, (name, place) in enumerate(ends):
            is_current = name in current and number < len(view.ends)
            ranks[place] = min(ranks[place], 0 if is_current else number + 1)
        return ranks

    def _continuing(self, place: int) -> int:
        """The child with which the run of `place` goes on, 0 if it ends there."""
        children = self.children[place]
        rank = self.ranks[place]
        same = [each for each in children if self.ranks[each] == rank]
        # Only nodes that no branch holds can have several.
        return max(same, key=self.sizes.__getitem__) if same else 0

    def _order(self) -> None:
        shown = self.view.holds_root and (len(self.children[0]) > 1 or 0 in self.view.heads)
        waiting = [0]
        on_main = 0  # the next node of run 0, which is met before anything that follows it
        while waiting:
            place = waiting.pop()
            if place or shown:
                self.rows.append(place)
            self.rows += self.asides.get(place, ())
            then = self.continues[place]
            below = [each for each in self.children[place] if each != then]
            largest = max(below, key=self.sizes.__getitem__, default=0)
            is_main, on_main = place == on_main, then if place == on_main else on_main
            if largest and not (then and (is_main or self.sizes[largest] <= self.sizes[then])):
                below.remove(largest)
                below += [then, largest] if then else [largest]
                if then:
                    self.spots[largest] = (0, 0, EARLY)
            elif then:
                below.append(then)
            waiting += reversed(below)

    def _place_runs(self) -> None:
        view, spots = self.view, self.spots
        row_of = {place: row for row, place in enumerate(self.rows)}
        runs, starts = [0] * view.tree_end, [0]  # the run of each place, the first place of each
        for place in self.rows:
            if not place or place in self.listed:
                continue
            above = view.above[place]
            if self.continues[above] == place:
                runs[place] = runs[above]
            else:
                runs[place] = len(starts)
                starts.append(place)
        until = [0] * len(starts)  # the last row at which each run needs its lane
        for place in range(1, view.tree_end):
            if place not in self.listed:
                row, above = row_of[place], view.above[place]
                until[runs[place]] = max(until[runs[place]], row)
                if not spots[place][2] & EARLY:
                    until[runs[above]] = max(until[runs[above]], row)
        busy = [len(self.rows)]  # for each lane the last row that needs it; lane 0 is never free
        lanes: list[int | None] = [None] * len(starts)
        lanes[0] = 0

        def take(run: int, row: int) -> None:
            lane = next((each for each, end in enumerate(busy) if end < row), len(busy))
            busy[lane : lane + 1] = [until[run]]
            lanes[run] = lane

        for row, place in enumerate(self.rows):
            if place in self.listed:
                spots[place] = (-1, 0, ASIDE)
                continue
            run = runs[place]
            if lanes[run] is None:
                take(run, row)
            spots[place] = (lanes[run] or 0, run, spots[place][2])
            # A subtree that stands after the rest of this run has its line from here on.
            for below in self.children[place]:
                if spots[below][2] & EARLY:
                    take(runs[below], row + 1)


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="POLICY">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>TITLE</title>
<style>STYLE</style>
</head>
<body>
<header>
<div id="name"><h1 id="title" dir="auto"></h1><p id="facts"></p></div>
<form id="find" role="search">
<input id="query" type="search" placeholder="Search, or n12  ( / )" aria-label="Search messages"
 autocomplete="off" spellcheck="false">
<output id="hits" for="query" aria-live="polite"></output>
<button type="button" id="before" aria-label="Previous hit" title="Previous hit (Shift+Enter)">&#8593;</button>
<button type="button" id="next" aria-label="Next hit" title="Next hit (Enter)">&#8595;</button>
</form>
<nav aria-label="Views">
<button type="button" id="branches" aria-pressed="false" title="All branches and forks (b)">Branches</button>
<button type="button" id="compare" aria-pressed="false" title="Two branches side by side (c)">Compare</button>
<button type="button" id="theme" title="Light or dark">Theme</button>
</nav>
</header>
<main>
<section id="list" tabindex="0" role="listbox" aria-label="Messages, branch by branch">
<div id="space"><canvas id="graph" aria-hidden="true"></canvas><div id="rows" role="presentation"></div></div>
</section>
<aside id="detail" aria-label="Details" tabindex="-1"></aside>
</main>
<div id="paper"></div>
<script type="application/json" id="data">DATA</script>
<script>SCRIPT</script>
</body>
</html>
"""

_STYLE = r"""
:root {
  color-scheme: light;
  --page: #faf9f7; --panel: #ffffff; --line: #e3e0d9; --edge: #8b857a; --text: #1f1e1b; --soft: #615c54;
  --code: #f4f2ee; --accent: #1d4fb8; --chosen: #e6edfb; --mark: #ffe28a; --mark-text: #332600;
  --c0: #1d4fb8; --c1: #a8420c; --c2: #17693f; --c3: #7a35a8; --c4: #a3195b; --c5: #0b6473;
  --c6: #705500; --c7: #5d5a66;
}
:root[data-theme="dark"] {
  color-scheme: dark;
  --page: #15171b; --panel: #1b1e23; --line: #30353e; --edge: #7d8490; --text: #e8e6e1; --soft: #a9afb9;
  --code: #14161a; --accent: #8db5ff; --chosen: #243149; --mark: #6b5410; --mark-text: #fff3cc;
  --c0: #8db5ff; --c1: #ffae80; --c2: #7ed8a8; --c3: #d3abf7; --c4: #ff9fc9; --c5: #7fdce8;
  --c6: #e8cd72; --c7: #b3b8c2;
}
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body {
  display: flex; flex-direction: column; overflow: hidden; background: var(--page);
  color: var(--text);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC",
    "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
}
header {
  display: flex; gap: 20px; align-items: center; padding: 10px 20px;
  background: var(--panel); border-bottom: 1px solid var(--line);
}
#name { flex: 1 1 0; min-width: 0; }
h1, #facts { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; margin: 0; }
h1 { font-size: 16px; line-height: 1.35; font-weight: 650; }
#facts { color: var(--soft); font-size: 12px; line-height: 1.35; }
#find, nav { display: flex; gap: 6px; align-items: center; min-width: 0; }
#find { flex: 0 1 400px; position: relative; }
#query { flex: 1 1 auto; min-width: 0; }
#hits {
  position: absolute; right: 100px; color: var(--soft); font-size: 12px; white-space: nowrap;
  background: var(--page); padding: 0 4px; pointer-events: none;
}
input, select, button {
  font: inherit; font-size: 14px; line-height: 1.4; color: inherit; background: var(--page);
  border: 1px solid var(--line); border-radius: 8px; padding: 5px 12px; min-height: 34px;
}
#query { padding-right: 82px; }
#query::-webkit-search-cancel-button { display: none; }
::placeholder { color: var(--soft); opacity: 1; }
#before, #next { padding: 5px 0; width: 34px; flex: none; }
button { cursor: pointer; }
button:hover, select:hover { border-color: var(--accent); }
button[aria-pressed="true"] { background: var(--chosen); border-color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
main { flex: 1; min-height: 0; display: flex; }
#list { flex: 1 1 56%; overflow-y: auto; overflow-x: hidden; position: relative; contain: strict; }
#list:focus-visible, #detail:focus-visible { outline-offset: -2px; }
#space { position: relative; }
#graph { position: sticky; top: 0; left: 0; display: block; pointer-events: none; z-index: 1; }
#rows { position: absolute; inset: 0; }
.row {
  position: absolute; left: 0; right: 0; height: 34px; display: flex; align-items: center;
  gap: 10px; padding-right: 16px; cursor: pointer; white-space: nowrap; overflow: hidden;
  font-size: 14px;
}
.row:hover { background: color-mix(in srgb, var(--chosen) 55%, transparent); }
.row.chosen { background: var(--chosen); }
.row .id { font: 12px/1 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: var(--soft); flex: none; }
.row .role { font-size: 12px; color: var(--soft); flex: none; width: 66px; }
.row .role.user { color: var(--text); font-weight: 600; }
.row .said { flex: 1 1 0; min-width: 0; overflow: hidden; text-overflow: ellipsis; unicode-bidi: plaintext; text-align: left; }
.row.off .said, .row.off .role { color: var(--soft); }
.row.aside .said { font-style: italic; }
.row.over .said { color: var(--soft); }
.row.excluded .said, .row.purged .said { text-decoration: line-through; color: var(--soft); }
.row.fold { color: var(--soft); font-size: 13px; }
.row .chips { display: flex; gap: 6px; flex: 0 1 auto; max-width: 55%; overflow: hidden; }
.chip {
  font-size: 12px; line-height: 1.5; padding: 0 8px; border-radius: 999px; flex: 0 1 auto; min-width: 3ch;
  border: 1px solid currentColor; max-width: 24ch; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; font-weight: 500;
}
.chip.now { font-weight: 700; background: var(--chosen); }
.chip.begins { border-color: transparent; padding: 0 2px; }
.chip.plain { border-color: var(--line); color: var(--soft); border-radius: 6px; padding: 0 6px; font-weight: 400; flex: none; max-width: 30ch; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
#detail {
  flex: 0 0 44%; min-width: 320px; max-width: 780px; overflow-y: auto; background: var(--panel);
  border-left: 1px solid var(--line); padding: 20px 24px 48px; overflow-wrap: anywhere;
}
.title { display: flex; gap: 8px; align-items: flex-start; margin: 0 0 4px; }
.title h2 { flex: 1 1 auto; }
h2 { font-size: 17px; line-height: 1.5; margin: 0; display: flex; flex-wrap: wrap; gap: 6px 8px; align-items: center; font-weight: 650; }
h3 { font-size: 13px; color: var(--soft); margin: 28px 0 8px; font-weight: 600; }
.meta { color: var(--soft); font-size: 13px; margin: 0 0 14px; }
.empty { color: var(--soft); margin-top: 20vh; text-align: center; }
.text {
  white-space: pre-wrap; unicode-bidi: plaintext; background: var(--page);
  border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; margin: 0;
  font: inherit; tab-size: 4;
}
.text code, .code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Noto Sans Mono", monospace; font-size: 13px; }
.text code { background: var(--code); border-radius: 4px; padding: 1px 3px; }
.text code.block {
  display: block; line-height: 1.5; padding: 8px 12px; margin: 4px -4px; border: 1px solid var(--line); border-radius: 8px;
  white-space: pre; overflow-x: auto; direction: ltr; unicode-bidi: isolate; text-align: left;
}
dl { display: grid; grid-template-columns: 104px 1fr; gap: 6px 16px; margin: 0; font-size: 14px; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
.link {
  display: flex; gap: 10px; align-items: baseline; width: 100%; text-align: start; margin: 0 0 6px; background: none;
}
.link .id, .link .status { color: var(--soft); font-size: 12px; flex: none; }
.link .words { flex: 1 1 auto; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: plaintext; }
.link .dot { width: 10px; height: 10px; border-radius: 50%; background: currentColor; flex: none; align-self: center; }
.inline { display: inline; width: auto; min-height: 0; padding: 0 2px; border: 0; background: none; color: var(--accent); text-decoration: underline; text-underline-offset: 3px; }
.names { display: flex; flex-wrap: wrap; gap: 6px; }
button.chip { background: none; min-height: 0; }
.tools { display: flex; flex-wrap: wrap; gap: 8px; margin: 14px 0 0; }
.pair { display: flex; gap: 6px; }
.pair .link { align-items: center; }
.pair .link:first-child { flex: 1 1 auto; min-width: 0; }
.pair .link:last-child:not(:first-child) { flex: 0 0 auto; width: auto; color: var(--soft); font-size: 12px; }
.filter { width: 100%; margin: 10px 0 12px; }
mark { background: var(--mark); color: var(--mark-text); border-radius: 3px; }
.turn { margin: 0 0 16px; }
.turn .who { font-size: 12px; color: var(--soft); margin: 0 0 4px; }
.sides { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 20px; }
.sides select { width: 100%; margin-bottom: 12px; }
body.comparing #detail { flex-basis: 62%; max-width: none; }
#close { flex: none; }
body.message #close { display: none; }
#paper { display: none; }
@media (max-width: 1000px) and (min-width: 761px) { #facts { display: none; } #find { flex-basis: 280px; } header { gap: 12px; padding: 10px 12px; } }
@media (max-width: 760px) {
  header { flex-wrap: wrap; padding: 10px 14px; gap: 8px; }
  #name { flex: 1 0 100%; }
  #find { flex: 1 1 100%; order: 3; }
  nav { flex: 1 1 100%; }
  nav button { flex: 1; }
  .row { gap: 8px; padding-right: 12px; }
  .row .role, .row .begins { display: none; }
  .row .chips { max-width: 45%; }
  #detail {
    position: fixed; inset: auto 0 0 0; height: 62vh; min-width: 0; max-width: none;
    border: 0; border-top: 1px solid var(--line); border-radius: 16px 16px 0 0; padding: 16px 16px 32px;
    box-shadow: 0 -8px 30px rgb(0 0 0 / 25%); display: none; z-index: 3;
  }
  body.open #detail { display: block; }
  body.message #close { display: block; }
  dl { grid-template-columns: 84px 1fr; gap: 6px 12px; }
  .sides { gap: 10px; }
}
@media print {
  :root, :root[data-theme] {
    color-scheme: light; --page: #fff; --panel: #fff; --code: #fff; --line: #999; --text: #000; --soft: #333;
    --chosen: #fff; --mark: #fff; --mark-text: #000;
  }
  html, body { height: auto; overflow: visible; display: block; background: #fff; color: #000; }
  header, main { display: none; }
  #paper { display: block; }
  #paper h1 { white-space: normal; font-size: 18px; margin: 0 0 16px; }
  #paper .who { break-after: avoid; }
  #paper .text { overflow-wrap: anywhere; box-decoration-break: clone; }
  #paper .text code.block { white-space: pre-wrap; overflow: visible; }
}
"""

_SCRIPT = r"""
"use strict";
(() => {
const ROW = 34, PAD = 14, COLORS = 7, BRACKETS = 4, RUNS_OPEN = 24;
const PIN = 1, EXCLUDED = 2, ARCHIVED = 4, SUMMARY = 8, PURGED = 16, EARLY = 64, ASIDE = 128;
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const node = new Map(), place = new Map(), children = new Map();  // place: the row of an id
const runs = [];  // {nodes, lane, ...}: what one branch has of its own
let under = null;
data.nodes.forEach(([id, parent, role, tokens, time, marks, lane, run, inside, tag, prefix, via, source, text], at) => {
  const n = {id, parent, role, tokens, time, marks, lane, run, inside, tag, prefix, via, source, text, at, end: at,
    under: null, asides: []};
  node.set(id, n);
  if (marks & ASIDE) { n.under = under; if (under) under.asides.push(n); return; }
  under = n;
  (runs[run] = runs[run] || {run, lane, nodes: [], names: []}).nodes.push(n);
  if (!id) return;
  if (!children.has(parent)) children.set(parent, []);
  children.get(parent).push(n);
});
for (const list of children.values()) list.sort((a, b) => a.id - b.id);
const nodes = [...node.values()], summaries = new Map();
for (let at = nodes.length; at--;) {  // the rows of a subtree are at..end
  const n = nodes[at], above = n.marks & ASIDE ? n.under : n.id ? node.get(n.parent) : null;
  if (above) above.end = Math.max(above.end, n.end);
}
for (const [key, s] of Object.entries(data.summaries)) summaries.set(+key, {
  id: +key, from: s[0], to: s[1], version: s[2], supersedes: s[3], by: s[4], stale: s[5], rests: s[6],
});
const heads = data.branches.map(([name, id, current, status]) => ({name, id, current, status, n: node.get(id)}));
heads.sort((a, b) => b.current - a.current);
const headsAt = new Map();
for (const head of heads) {
  if (!head.n || head.status === "goes on") continue;
  if (!headsAt.has(head.id)) headsAt.set(head.id, []);
  headsAt.get(head.id).push(head);
  if (!(head.n.marks & ASIDE)) runs[head.n.run].names.push(head);
}
const live = heads.filter((head) => /live|goes on/.test(head.status));
const parentOf = (n) => n.id ? node.get(n.parent) : undefined;
const childrenOf = (n) => children.get(n.id) || [];
const isAbove = (a, b) => a === b || !(a.marks & ASIDE) && !(b.marks & ASIDE) && a.at <= b.at && b.at <= a.end;
const covers = (s, n) => {
  const from = node.get(s.from), to = node.get(s.to);
  return Boolean(from && to && isAbove(from, n) && isAbove(n, to));
};
const runEnd = (n) => runs[n.run].nodes.at(-1);
const state = {chosen: 0, line: null, path: [], step: new Map(), lit: [], open: new Set(), rows: [], query: "",
  hits: [], hitSet: new Set(), hit: -1, panel: "message", left: "", right: ""};

const make = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};
const button = (name, words, act) => {
  const made = make("button", name, words);
  made.type = "button";
  made.onclick = act;
  return made;
};
const shown = (n) => n.id ? n.marks & PURGED ? "(purged)" : n.text || "(empty)" : "(the root)";
const oneLine = (text, most = 160) => text.slice(0, most).replace(/\s+/g, " ") + (text.length > most ? "…" : "");
const numbers = new Intl.NumberFormat("en");
const count = (value) => numbers.format(value);
const many = (value, word, more = word + "s") => `${count(value)} ${value === 1 ? word : more}`;
const clock = new Intl.DateTimeFormat(undefined, {dateStyle: "medium", timeStyle: "medium"});
const zoned = new Intl.DateTimeFormat(undefined, {dateStyle: "full", timeStyle: "long"});
const when = (time, format = clock) => {
  const date = new Date(time * 1000);
  return isNaN(date) ? String(time) : format.format(date);
};
const color = (run) => {
  if (!run) return "c0";
  return runs[run].nodes[0].marks & ARCHIVED ? "c7" : "c" + (1 + (run - 1) % (COLORS - 1));
};
const pathTo = (id) => {
  const path = [];
  let n = node.get(id);
  if (n && n.under && !parentOf(n)) return [n];
  for (; n; n = parentOf(n)) path.push(n);
  return path.reverse();
};

// ---- rows: archived stretches, and branches where there are many, are folded until opened ------

const crowded = runs.length > RUNS_OPEN;
function foldOf(n) {
  const on = n.under || n;
  if (state.open.has(n.id) || state.open.has(on.id)) return 0;
  // A summary of what is archived is seen beside the fold.
  if (on.marks & ARCHIVED) return n.under ? 0 : ARCHIVED;
  return crowded && on.run ? ASIDE : 0;
}
function unfold(n) {  // what its branch has of its own, and the way to it
  for (let on = n.under || n; on; on = parentOf(on)) {
    if (foldOf(on)) for (const each of runs[on.run].nodes) state.open.add(each.id);
  }
  state.open.add(n.id);
  layOut();
}
function layOut() {
  const rows = [];
  place.clear();
  for (let at = 0; at < nodes.length; at++) {
    const n = nodes[at], kind = foldOf(n), from = at;
    if (kind) while (at < n.end && foldOf(nodes[at + 1]) === kind) at++;
    for (let k = from; k <= at; k++) place.set(nodes[k].id, rows.length);
    rows.push(kind ? {fold: nodes.slice(from, at + 1)} : {n});
  }
  state.rows = rows;
  for (const run of runs) {
    if (!run) continue;
    const first = run.nodes[0], above = parentOf(first);
    run.first = run.top = place.get(first.id);
    run.bottom = place.get(run.nodes.at(-1).id);
    run.fork = null;
    if (!run.run || !above || place.get(above.id) === run.first) continue;
    run.fork = {lane: above.lane, row: first.marks & EARLY ? place.get(above.id) : run.first - 1};
    if (first.marks & EARLY) run.top = run.fork.row + 1;
    else runs[above.run].bottom = Math.max(runs[above.run].bottom, run.fork.row);
  }
  state.brackets = brackets();
  light();
  $("space").style.height = rows.length * ROW + 2 * PAD + "px";
}

function brackets() {
  const found = [];
  for (const s of summaries.values()) {
    const own = node.get(s.id);
    if (s.by || !own || !place.has(s.from) || !place.has(s.to)) continue;
    const foot = own.marks & ASIDE ? place.get(s.id) : 0;
    found.push({id: s.id, s, top: place.get(s.from), end: Math.max(place.get(s.to), foot), foot, column: 0, parts: null});
  }
  found.sort((a, b) => a.top - b.top || b.end - a.end);
  const busy = [];
  for (const each of found) {
    const column = busy.findIndex((end) => end < each.top);
    each.column = column < 0 ? busy.length : column;  // from BRACKETS on drawn only when chosen
    busy[each.column] = each.end;
  }
  return found;
}
function covered(bracket) {  // its rows as stretches: other branches may stand between them
  if (bracket.parts) return bracket.parts;
  const parts = [];
  for (let n = node.get(bracket.s.to); n; n = parentOf(n)) {
    const row = place.get(n.id), last = parts.at(-1);
    if (last && last[0] - row <= 1) last[0] = row; else parts.push([row, row]);
    if (n.id === bracket.s.from) break;
  }
  return bracket.parts = parts;
}

let textStart = 0, bracketStart = 0, laneStep = 16, room = 160;  // room: characters that may fit in a row
const laneX = (lane) => 22 + lane * laneStep;
const mostLanes = runs.reduce((most, run) => Math.max(most, run.lane), 0);
function measure() {
  const columns = Math.min(BRACKETS, state.brackets.reduce((most, b) => Math.max(most, b.column + 1), 0));
  const lanesWidth = Math.min(240, $("list").clientWidth * 0.28);
  laneStep = Math.max(5, Math.min(16, lanesWidth / (mostLanes + 1)));
  bracketStart = laneX(mostLanes) + 16;
  room = Math.ceil(($("list").clientWidth - 180) / 5.5);
  textStart = bracketStart + (columns ? columns * 9 + 10 : 0);
}
const idWidth = String(nodes.reduce((most, n) => Math.max(most, n.id), 0)).length + 1 + "ch";

const canvas = $("graph"), pen = canvas.getContext("2d");
let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["edge", "page", "text", ...Array.from({length: COLORS + 1}, (_, k) => "c" + k)])
    palette[name] = style.getPropertyValue("--" + name);
}

// What the line through the chosen message takes of each run is drawn thicker.
function light() {
  state.lit = [];
  const {path} = state;
  for (let at = 0; at < path.length; at++) {
    const run = runs[path[at].run], from = at;
    while (at + 1 < path.length && path[at + 1].run === run.run) at++;
    const next = path[at + 1], bottom = next && !(next.marks & EARLY) ? place.get(next.id) - 1 : 0;
    state.lit.push({run, top: from ? run.top : place.get(path[0].id), bottom: Math.max(place.get(path[at].id), bottom)});
  }
}

function drawGraph(top, height, first, last) {
  const width = textStart, scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    canvas.style.marginBottom = -height + "px";
  }
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const y = (row) => row * ROW + ROW / 2 + PAD - top;
  const down = (run, from, to) => {
    if (to < first - 1 || from > last + 1) return;
    const x = laneX(run.lane);
    pen.strokeStyle = palette[color(run.run)];
    pen.beginPath();
    pen.moveTo(x, Math.max(y(from), -ROW));
    pen.lineTo(x, Math.min(y(to), height + ROW));
    pen.stroke();
  };
  const over = (run) => {
    if (!run.fork || run.fork.row < first - 2 || run.fork.row > last + 1) return;
    const x1 = laneX(run.fork.lane), x2 = laneX(run.lane), y1 = y(run.fork.row), y2 = y1 + ROW;
    pen.strokeStyle = palette[color(run.run)];
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1, y1 + ROW * 0.7, x2, y2 - ROW * 0.7, x2, y2);
    pen.stroke();
  };
  pen.lineCap = "round";
  pen.lineWidth = laneStep < 8 ? 1 : 1.5;
  for (const run of runs) if (run) { down(run, run.top, run.bottom); over(run); }
  pen.lineWidth = laneStep < 8 ? 2.5 : 3;
  for (const {run, top: from, bottom} of state.lit) { down(run, from, bottom); over(run); }
  for (const b of state.brackets) {
    if (b.end < first || b.top > last) continue;
    const lit = b.id === state.chosen || (node.get(state.chosen) || {}).inside === b.id;
    if (b.column >= BRACKETS && !lit) continue;
    const x = bracketStart + Math.min(b.column, BRACKETS - 1) * 9, parts = covered(b);
    pen.strokeStyle = lit ? palette.text : palette.edge;
    pen.lineWidth = lit ? 2 : 1.25;
    const side = (from, to) => { pen.moveTo(x, Math.max(from, -ROW)); pen.lineTo(x, Math.min(to, height + ROW)); };
    pen.beginPath();
    pen.moveTo(x + 5, y(b.top) - 8);
    pen.lineTo(x, y(b.top) - 8);
    for (const [from, to] of parts) if (to >= first && from <= last) side(y(from) - 8, y(to) + 8);
    if (!b.foot) { pen.moveTo(x, y(b.end) + 8); pen.lineTo(x + 5, y(b.end) + 8); }
    pen.stroke();
    pen.setLineDash([1, 5]);
    pen.beginPath();
    for (let k = 0; k + 1 < parts.length; k++)
      if (parts[k][0] >= first - 1 && parts[k + 1][1] <= last + 1) side(y(parts[k + 1][1]) + 8, y(parts[k][0]) - 8);
    pen.stroke();
    pen.setLineDash([]);
    if (!b.foot) continue;
    pen.beginPath();
    side(y(parts[0][1]) + 8, y(b.foot));
    pen.stroke();
    diamond(x, y(b.foot), 5, lit ? palette.text : palette.edge);
  }
  for (let at = first; at <= last; at++) {
    const {n, fold} = state.rows[at], one = n || fold[0];
    if (one.marks & ASIDE) {  // a superseded one has no bracket
      if ((summaries.get(one.id) || {}).by && textStart > bracketStart) {
        diamond(bracketStart, y(at), 5, palette.edge);
        diamond(bracketStart, y(at), 2, palette.page);
      }
      continue;
    }
    const x = laneX(one.lane), ink = palette[color(one.run)], size = laneStep < 8 ? 3 : 4.5;
    pen.strokeStyle = palette.page;
    pen.lineWidth = 2;
    if (n && n.marks & SUMMARY) { diamond(x, y(at), 6, ink); continue; }
    pen.fillStyle = ink;
    pen.beginPath();
    if (fold) pen.rect(x - size, y(at) - size, 2 * size, 2 * size);
    else pen.arc(x, y(at), n.id === state.chosen || n.marks & PIN ? size + 1.5 : size, 0, 7);
    pen.stroke();
    pen.fill();
    if (n && n.marks & PIN || fold) {
      pen.fillStyle = palette.page;
      pen.beginPath(); pen.arc(x, y(at), 2.2, 0, 7); pen.fill();
    }
  }
}
function diamond(x, y, size, ink) {
  pen.fillStyle = ink;
  pen.strokeStyle = palette.page;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(x, y - size); pen.lineTo(x + size, y); pen.lineTo(x, y + size); pen.lineTo(x - size, y);
  pen.closePath();
  pen.stroke();
  pen.fill();
}

const pool = new Map();  // row number -> element
function draw() {
  const list = $("list"), top = list.scrollTop, height = list.clientHeight;
  const first = Math.max(0, Math.floor((top - PAD) / ROW) - 2);
  const last = Math.min(state.rows.length - 1, Math.ceil((top + height) / ROW) + 2);
  for (const [at, element] of pool) if (at < first || at > last) { element.remove(); pool.delete(at); }
  const fresh = document.createDocumentFragment();
  for (let at = first; at <= last; at++) {
    if (pool.has(at)) continue;
    const element = rowOf(at);
    pool.set(at, element);
    fresh.append(element);
  }
  $("rows").append(fresh);
  drawGraph(top, height, first, last);
}
function redraw() { for (const element of pool.values()) element.remove(); pool.clear(); draw(); }
let waiting = false;
function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function rowOf(at) {
  const {n, fold} = state.rows[at], element = make("div", "row");
  element.style.top = at * ROW + PAD + "px";
  element.style.paddingLeft = textStart + "px";
  element.setAttribute("role", "option");
  element.setAttribute("aria-posinset", at + 1);
  element.setAttribute("aria-setsize", state.rows.length);
  element.setAttribute("aria-selected", "false");
  const one = n || fold[0], id = make("span", "id", "n" + one.id);
  id.style.width = idWidth;
  element.id = "row" + one.id;
  element.append(id);
  const chips = make("span", "chips");
  if (fold) {
    element.classList.add("fold");
    const own = fold.flatMap((each) => (!each.under && headsAt.get(each.id)) || []);
    const said = make("span", "said", one.marks & ARCHIVED
      ? `▸ ${count(fold.length)} archived, n${one.id} to n${fold.at(-1).id}${own.length ? " · " + own.slice(0, 3).map((head) => head.name).join(", ") : ""}`
      : `▸ ${many(fold.length, "message")}: ${oneLine(shown(one))}`);
    said.dir = "auto";
    const hits = fold.filter((each) => state.hitSet.has(each.id)).length;
    if (hits) chips.append(make("span", "chip plain", many(hits, "hit")));
    if (!(one.marks & ARCHIVED)) {
      for (const head of own.slice(0, 1)) chips.append(chip(head));
      if (own.length > 1) chips.append(make("span", "chip plain", `+${count(own.length - 1)}`));
    }
    element.append(make("span", "role", one.marks & ARCHIVED ? "archive" : "branch"), said, chips);
    element.onclick = () => choose(one.id, false);
    return element;
  }
  if (n.id === state.chosen) { element.classList.add("chosen"); element.setAttribute("aria-selected", "true"); }
  const s = summaries.get(n.id), role = make("span", "role", n.role);
  if (!state.step.has(n.id) && !(n.marks & ASIDE && state.step.has(n.under.id))) element.classList.add("off");
  if (n.role === "user" && !s) role.classList.add("user");
  if (s) role.textContent = "summary";
  if (s) element.classList.add("aside");
  if (s && s.by) element.classList.add("over");
  if (n.marks & EXCLUDED) element.classList.add("excluded");
  if (n.marks & PURGED) element.classList.add("purged");
  if (state.hitSet.has(n.id)) element.classList.add("hit");
  let text = shown(n);
  if (state.query) {
    const hit = text.toLowerCase().indexOf(state.query);
    if (hit > 60) text = "…" + text.slice(hit - 30);
  }
  const said = make("span", "said");
  said.append(marked(oneLine(text, room), state.query));
  said.dir = "auto";
  element.append(role, said, chips);
  if (s) chips.append(make("span", "chip plain",
    `n${s.from}–n${s.to}${s.version > 1 ? " v" + s.version : ""}${s.by ? " superseded" : s.stale ? " stale" : ""}`));
  for (const word of marksOf(n)) chips.append(make("span", "chip plain", word));
  const own = headsAt.get(n.id) || [];
  if (!(n.marks & ASIDE) && n.run && runs[n.run].nodes[0] === n)
    for (const head of runs[n.run].names.slice(0, 1)) if (!own.includes(head)) {
      const begins = make("span", `chip begins ${color(n.run)}`, head.name + " ↓");
      begins.dir = "auto";
      begins.title = "here this branch begins";
      chips.append(begins);
    }
  for (const head of own.slice(0, 3)) chips.append(chip(head));
  if (own.length > 3) chips.append(make("span", "chip plain", `+${count(own.length - 3)}`));
  element.onclick = () => choose(n.id, false);
  return element;
}
function marksOf(n) {
  const found = n.tag ? ["#" + n.tag[0]] : [];
  for (const [bit, word] of [[PIN, "pin"], [EXCLUDED, "excluded"], [ARCHIVED, "archived"], [PURGED, "purged"]])
    if (n.marks & bit) found.push(word);
  return found;
}
function colorOf(head) { return head.n && !(head.n.marks & ASIDE) ? color(head.current ? 0 : head.n.run) : "c7"; }
function chip(head) {
  const made = make("span", `chip ${colorOf(head)}${head.current ? " now" : ""}`, head.name + (head.current ? " ●" : ""));
  made.dir = "auto";
  made.title = head.current ? "head of the current branch" : head.status === "live" ? "head of a branch" : `head of a branch, ${head.status}`;
  return made;
}

// ---- choosing ----------------------------------------------------------------------------------

// `line`: the message at whose end the line to walk along lies; without it the line is kept while
// it holds the message, else it is that of the branch the message belongs to.
function follow(n, line) {
  const on = n.marks & ASIDE ? n.under : n;
  if (line) state.line = line;
  else if (state.step.has(on.id)) return;
  else state.line = runEnd(on);
  state.path = pathTo(state.line.id);
  state.step = new Map(state.path.map((each, at) => [each.id, at]));
  light();
}
function choose(id, scroll = true, line = null) {
  const n = node.get(id);
  if (!n) return;
  if (foldOf(n)) unfold(n);
  state.chosen = id;
  follow(n, line);
  document.body.classList.add("open");
  $("list").setAttribute("aria-activedescendant", "row" + id);
  showMessage();
  const list = $("list"), y = place.get(id) * ROW + PAD, seen = seenHeight();
  if ((scroll || seen < list.clientHeight) && (y < list.scrollTop + ROW || y > list.scrollTop + seen - 2 * ROW)) {
    list.scrollTop = y - seen / 2;
    draw();
  }
}

function seenHeight() {  // of the list, above the sheet of a narrow screen
  const list = $("list").getBoundingClientRect(), detail = $("detail").getBoundingClientRect();
  return detail.height && detail.left < list.right - 1 ? Math.max(2 * ROW, detail.top - list.top) : list.height;
}

function marked(text, query) {
  const found = document.createDocumentFragment();
  if (!query) { found.append(text); return found; }
  const low = text.toLowerCase();
  let from = 0, at;
  // Where lower case is longer the places would not fit.
  while (low.length === text.length && (at = low.indexOf(query, from)) >= 0) {
    found.append(text.slice(from, at), make("mark", "", text.slice(at, at + query.length)));
    from = at + query.length;
  }
  found.append(text.slice(from));
  return found;
}
// A text as stretches [is code, text]: fences with their marks, and lines indented by four or a tab
// after an empty one, unless they go on in a list. Together they are the text, letter for letter.
function stretches(text) {
  const found = [];
  let start = 0, fence = "", indented = false, blank = true, list = false;
  const cut = (at, code) => { if (at > start) found.push([code, text.slice(start, at)]); start = at; };
  for (let at = 0; at < text.length;) {
    const eol = text.indexOf("\n", at), next = eol < 0 ? text.length : eol + 1;
    const line = text.slice(at, Math.min(next, at + 200)).trimEnd(), opens = /^ {0,3}(`{3,}|~{3,})([^`]*)$/.exec(line);
    if (fence) {
      if (opens && !opens[2].trim() && opens[1].startsWith(fence)) { cut(next, true); fence = ""; blank = true; }
    } else if (opens) {
      cut(at, indented);
      indented = false;
      fence = opens[1];
    } else if (!line) blank = true;
    else {
      const inside = /^(?: {4}|\t)/.test(line);
      if (indented && !inside) { cut(at, true); indented = false; }
      else if (!indented && inside && blank && !list) { cut(at, false); indented = true; }
      if (!inside) list = /^ *(?:[-*+]|\d+[.)]) /.test(line);
      blank = false;
    }
    at = next;
  }
  cut(text.length, Boolean(fence) || indented);
  return found;
}
function textOf(n) {
  const made = make("div", "text"), text = shown(n);
  made.dir = "auto";
  for (const [code, part] of n.role === "tool" ? [[true, text]] : stretches(text)) {
    if (code) {
      const block = make("code", "block");
      block.append(marked(part, state.query));
      made.append(block);
    } else for (const [at, piece] of part.split(/(`[^`\n]+`)/).entries()) {
      if (!(at % 2)) { made.append(marked(piece, state.query)); continue; }
      const code = make("code");
      code.append(marked(piece, state.query));
      made.append(code);
    }
  }
  return made;
}
function link(id, words, status = "", line = null) {
  const made = button("link", undefined, () => { choose(id, true, line); $("detail").focus({preventScroll: true}); });
  const said = make("span", "words", words);
  said.dir = "auto";
  made.append(make("span", "id code", "n" + id), said);
  if (status) made.append(make("span", "status", status));
  return made;
}
const linkTo = (n, status) => link(n.id, oneLine(shown(n)), status);
function opened(panel, words) {
  const detail = $("detail"), title = make("div", "title"), heading = make("h2", "", words), out = button("", "Close", close);
  out.id = "close";
  title.append(heading, out);
  state.panel = panel;
  document.body.classList.toggle("comparing", panel === "compare");
  document.body.classList.toggle("message", panel === "message");
  for (const name of ["branches", "compare"]) $(name).setAttribute("aria-pressed", String(panel === name));
  detail.replaceChildren(title);
  detail.scrollTop = 0;
  measure();
  redraw();
  return {detail, heading, title};
}
function close() {
  if (state.panel !== "message") showMessage();
  document.body.classList.remove("open");
  $("list").focus();
}

function showMessage() {
  const n = node.get(state.chosen);
  const {detail, heading} = opened("message", n ? `n${n.id} · ${summaries.has(n.id) ? "summary" : n.role}` : "");
  if (!n) { detail.replaceChildren(make("p", "empty", "Choose a message to read it.")); return; }
  for (const word of marksOf(n)) heading.append(make("span", "chip plain", word));
  for (const head of headsAt.get(n.id) || []) heading.append(chip(head));
  if (n.id) detail.append(make("p", "meta", `${when(n.time)} · ${many(n.tokens, "token")}`), textOf(n));
  if (n.tag && n.tag[1]) { const note = make("div", "text", n.tag[1]); note.dir = "auto"; detail.append(make("h3", "", "Note"), note); }
  const own = summaries.get(n.id);
  if (own) standsFor(own, detail);
  summariesOver(n, detail);
  about(n, detail);
  const tools = make("div", "tools");
  tools.append(button("", "Context up to here", showContext));
  detail.append(tools);
  if (n.under) detail.append(make("h3", "", "Listed under"), linkTo(n.under));
  else if (parentOf(n)) detail.append(make("h3", "", "Before"), linkTo(parentOf(n)));
  const below = childrenOf(n);
  if (below.length) {
    detail.append(make("h3", "", below.length > 1 ? `A fork of ${count(below.length)}` : "Next"));
    for (const each of below.slice(0, 40)) detail.append(linkTo(each, below.length > 1 ? runName(each.run) : ""));
    if (below.length > 40) detail.append(make("p", "meta", `and ${count(below.length - 40)} more`));
  }
}
const runName = (run) => runs[run].names.length ? runs[run].names[0].name : "no branch";
const statusOf = (s) => s.by ? `superseded by n${s.by}` : s.stale ? "stale" : "in use";
const chainOf = (s) => {  // all versions, newest first
  while (s.by && summaries.has(s.by)) s = summaries.get(s.by);
  const all = [s];
  while (s.supersedes && summaries.has(s.supersedes)) all.push(s = summaries.get(s.supersedes));
  return all;
};
function standsFor(own, detail) {
  const add = (id, words) => { if (node.has(id)) detail.append(link(id, words + oneLine(shown(node.get(id))))); };
  detail.append(make("h3", "", `Stands for n${own.from} to n${own.to} (${statusOf(own)})`));
  add(own.from, "from: ");
  if (own.to !== own.from) add(own.to, "to: ");
  if (own.stale) detail.append(make("p", "meta", "stale: what it rests on was superseded"));
  const versions = chainOf(own);
  if (versions.length > 1) {
    detail.append(make("h3", "", "Versions"));
    for (const s of versions) versionLine(s, detail, s === own ? "this one" : "");
  }
  if (own.rests.length) detail.append(make("h3", "", "Derived from"));
  for (const id of own.rests) add(id, "");
}
function versionLine(s, detail, said = "") {
  const n = node.get(s.id), words = n ? oneLine(shown(n)) : "";
  const made = link(s.id, words, said || statusOf(s));
  made.firstChild.after(make("span", "status", `v${s.version} · n${s.from}–n${s.to}`));
  detail.append(made);
}
function summariesOver(n, detail) {
  const newest = new Set();
  for (const s of summaries.values()) if (covers(s, n)) newest.add(chainOf(s)[0]);
  if (!newest.size) return;
  detail.append(make("h3", "", "Summaries over it"));
  for (const s of [...newest].sort((a, b) => b.id - a.id))
    for (const each of chainOf(s)) versionLine(each, detail, covers(each, n) ? "" : "does not hold it");
}
function about(n, detail) {
  const list = make("dl");
  const say = (name, value, title) => {
    const told = make("dd");
    told.append(value);
    told.dir = "auto";
    if (title) told.title = title;
    list.append(make("dt", "", name), told);
  };
  if (n.id) {
    const date = new Date(n.time * 1000);
    say("Time", when(n.time, zoned), isNaN(date) ? "" : date.toISOString());
    say("Tokens", `${count(n.tokens)}, ${count(n.prefix)} up to here`);
    if (n.via) say("Via", n.via);
    if (n.source) say("Source", sourceOf(n.source));
    say("Zone", n.marks & ARCHIVED ? "archive" : "hot");
    say("Pinned", n.marks & PIN ? "yes: word for word in every budget" : "no");
    say("Excluded", n.marks & EXCLUDED ? "yes: left out of context and budget" : "no");
  }
  const holding = heads.filter((head) => head.n && isAbove(n, head.n)), names = make("span", "names");
  for (const head of holding.slice(0, 20)) {
    const made = button(`chip ${colorOf(head)}${head.current ? " now" : ""}`, head.name + (live.includes(head) ? "" : ` (${head.status})`),
      () => { choose(head.id, true, head.status === "goes on" ? null : head.n); $("detail").focus({preventScroll: true}); });
    made.dir = "auto";
    made.title = head.status === "goes on" ? `goes on after n${head.id}` : `go to its head, n${head.id}`;
    names.append(made);
  }
  if (holding.length > 20) names.append(button("chip plain", `all ${count(holding.length)}`, () => showBranches(n)));
  say(holding.length > 1 ? "Branches" : "Branch", holding.length ? names : n.under ? "none: it stands beside them" : "none");
  detail.append(make("h3", "", "About it"), list);
}
function sourceOf(source) {
  const told = make("div"), known = ["format", "session", "id", "time"];
  const keys = [...known.filter((key) => key in source), ...Object.keys(source).filter((key) => !known.includes(key))];
  for (const key of keys) {
    const value = typeof source[key] === "object" ? JSON.stringify(source[key]) : String(source[key]);
    told.append(make("div", key === "format" ? "" : "code", key === "format" ? value : `${key}: ${value}`));
  }
  return told;
}

function pages(list, into, one, size = 200) {
  let at = 0;
  const add = () => {
    for (const each of list.slice(at, at + size)) more.before(one(each));
    at += size;
    if (at >= list.length) more.remove();
  };
  const more = button("", "More", add);
  into.append(more);
  add();
}
function turn(n) {
  const made = make("div", "turn");
  made.append(make("p", "who", n.id ? `n${n.id} · ${n.role} · ${many(n.tokens, "token")}` : "n0"), textOf(n));
  return made;
}

function showContext() {
  const path = pathTo(state.chosen).filter((n) => n.id && !(n.marks & EXCLUDED));
  const {detail, title} = opened("context", `Context up to n${state.chosen}`), back = button("", "Back", showMessage);
  title.lastChild.before(back);
  detail.append(make("p", "meta",
    `${many(path.length, "message")}, ${many(path.reduce((sum, n) => sum + n.tokens, 0), "token")}, as they would be sent; excluded ones are left out`));
  pages(path, detail, turn);
  back.focus();
}

function showBranches(only) {
  const held = only ? heads.filter((head) => head.n && isAbove(only, head.n)) : heads;
  const {detail} = opened("branches", only ? `Branches that hold n${only.id}` : many(held.length, "branch", "branches"));
  document.body.classList.add("open");
  const filter = make("input", "filter"), found = make("div");
  filter.type = "search";
  filter.id = "filter";
  filter.placeholder = "Filter by name";
  filter.setAttribute("aria-label", "Filter branches by name");
  const go = (id, line) => { choose(id, true, line); $("list").focus(); };
  const fill = () => {
    const name = filter.value.toLowerCase();
    found.replaceChildren();
    pages(held.filter((head) => head.name.toLowerCase().includes(name)), found, (head) => {
      const pair = make("div", "pair"), to = button("link", undefined, () => go(head.id, head.status === "goes on" ? null : head.n));
      const words = make("span", "words", head.name + (head.current ? " ●" : "")), dot = make("span", `dot ${colorOf(head)}`);
      words.dir = "auto";
      const status = !head.n ? "no message" : head.status === "live" ? `n${head.id}` : `n${head.id} · ${head.status}`;
      to.append(dot, words, make("span", "status", status));
      to.disabled = !head.n;
      pair.append(to);
      const first = head.n && !(head.n.marks & ASIDE) && runs[head.n.run].nodes[0];
      if (first && head.n.run && node.has(first.parent) && first.parent) {
        const from = button("link", `from n${first.parent}`, () => go(first.parent));
        from.setAttribute("aria-label", `${head.name}: go to the fork at n${first.parent}`);
        pair.append(from);
      }
      return pair;
    });
    if (!found.firstChild) found.append(make("p", "meta", "No branch has such a name."));
  };
  filter.oninput = fill;
  detail.append(filter, found);
  const forks = only ? [] : nodes.filter((n) => childrenOf(n).length > 1);
  if (forks.length) {
    detail.append(make("h3", "", many(forks.length, "fork")));
    pages(forks, detail, (n) => link(n.id, oneLine(shown(n)), many(childrenOf(n).length, "way")), 100);
  }
  fill();
  filter.focus();
}

function showComparison() {
  const {detail} = opened("compare", "Two branches"), sides = make("div", "sides"), all = heads.filter((head) => head.n);
  document.body.classList.add("open");
  const byName = (name, other) => all.find((head) => head.name === name) || other;
  const left = byName(state.left, all[0]), walked = all.find((head) => state.line && head.n.run === state.line.run);
  const right = byName(state.right, walked && walked !== left ? walked : all.find((head) => head !== left) || left);
  if (!left) { detail.append(make("p", "empty", "There is no branch with a message.")); $("close").focus(); return; }
  const paths = [left, right].map((head) => pathTo(head.id).filter((n) => n.id));
  let shared = 0;
  while (shared < Math.min(paths[0].length, paths[1].length) && paths[0][shared] === paths[1][shared]) shared++;
  const fork = shared ? paths[0][shared - 1].id : 0, told = make("p", "meta");
  if (fork) {
    told.append(`They part at `, button("inline", `n${fork}`, () => { choose(fork); $("list").focus(); }), `, after ${many(shared, "message")}.`);
  } else told.append("They share no message.");
  detail.append(told, sides);
  [["left", left], ["right", right]].forEach(([side, head], at) => {
    const column = make("div"), pick = make("select");
    pick.id = side;
    pick.setAttribute("aria-label", side === "left" ? "Left branch" : "Right branch");
    for (const each of all) { const option = make("option", "", each.name); option.selected = each === head; pick.append(option); }
    pick.onchange = () => {
      state.left = left.name; state.right = right.name; state[side] = all[pick.selectedIndex].name;
      showComparison();
      $(side).focus();
    };
    column.append(pick);
    const rest = paths[at].slice(shared);
    if (rest.length) pages(rest, column, turn); else column.append(make("p", "meta", "ends where they part"));
    sides.append(column);
  });
  $("left").focus();
}

// ---- search ------------------------------------------------------------------------------------

function search() {
  state.query = $("query").value.toLowerCase();
  state.hits = state.query ? nodes.filter((n) => "n" + n.id === state.query || n.text.toLowerCase().includes(state.query)).map((n) => n.id) : [];
  state.hits.sort((a, b) => ("n" + b === state.query) - ("n" + a === state.query));
  state.hitSet = new Set(state.hits);
  state.hit = -1;
  $("hits").textContent = state.query ? (state.hits.length ? many(state.hits.length, "hit") : "no hits") : "";
  redraw();
  if (state.panel === "message") showMessage();
}
function step(by) {
  clearTimeout(typingTimer);
  if (state.query !== $("query").value.toLowerCase()) search();
  if (!state.hits.length) return;
  const at = state.chosen && "n" + state.hits[0] !== state.query ? place.get(state.chosen) : -1;
  if (state.hit < 0 && at >= 0) {
    state.hit = state.hits.findIndex((id) => place.get(id) >= at);
    if (by < 0 || state.hits[state.hit] === state.chosen) state.hit += by;
  } else state.hit += by;
  state.hit = (state.hit + state.hits.length) % state.hits.length;
  $("hits").textContent = `${count(state.hit + 1)} of ${count(state.hits.length)}`;
  choose(state.hits[state.hit]);
}

// ---- controls ----------------------------------------------------------------------------------

function walk(by) {  // along the line of the chosen message
  const n = node.get(state.chosen), {path} = state;
  if (!n) { if (nodes.length) choose(nodes[0].id); return; }
  let at = state.step.get((n.under || n).id) + by;
  if (n.under && by < 0 && by > -Infinity) at++;
  if (at >= path.length && path.at(-1) === n) {
    const below = childrenOf(n);
    if (below.length) choose(below[0].id);
    return;
  }
  const to = path[Math.max(0, Math.min(path.length - 1, at))];
  if (to) choose(to.id);
}
function enter() {  // into a branch that begins here, else on
  const n = node.get(state.chosen), below = n && !n.under ? childrenOf(n).find((each) => each.run !== n.run) : null;
  if (below) choose(below.id, true, runEnd(below)); else walk(1);
}
function leave() {  // to what it hangs on, and onto its line
  const n = node.get(state.chosen), above = n && (n.under || parentOf(n));
  if (above) choose(above.id, true, above.run === n.run || n.under ? null : runEnd(above));
}
function neighbour(by) {  // the branch before or after at the nearest fork above
  let n = node.get(state.chosen);
  if (n && n.under) n = n.under;
  for (; n; n = parentOf(n)) {
    const all = n.id ? children.get(n.parent) : [n], other = all[all.indexOf(n) + by];
    if (other) { choose(other.id, true, runEnd(other)); return; }
    if (all.length > 1) return;
  }
}
function overIt() {  // to the summaries over the chosen message, one after the other
  const n = node.get(state.chosen);
  if (!n) return;
  const own = summaries.has(n.id) ? n.under || node.get(summaries.get(n.id).to) : n;
  const all = [...summaries.values()].filter((s) => node.has(s.id) && own && covers(s, own));
  const next = all[(all.findIndex((s) => s.id === n.id) + 1) % all.length];
  if (next) choose(next.id);
}
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") { if (event.target === $("query") && $("query").value) { $("query").value = ""; search(); } close(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("query") && event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); return; }
  if (typing) return;
  if (event.key === "/") { event.preventDefault(); $("query").focus(); $("query").select(); return; }
  if (event.target !== $("list") && event.target !== document.body) return;
  const read = () => { document.body.classList.add("open"); $("detail").focus(); }, keys = {
    ArrowDown: () => walk(1), ArrowUp: () => walk(-1), PageDown: () => walk(12), PageUp: () => walk(-12),
    Home: () => walk(-Infinity), End: () => walk(Infinity), ArrowLeft: leave, ArrowRight: enter,
    "[": () => neighbour(-1), "]": () => neighbour(1), b: () => showBranches(), c: showComparison, s: overIt,
    Enter: read, " ": read,
  };
  if (Object.hasOwn(keys, event.key)) { event.preventDefault(); keys[event.key](); }
});
$("find").onsubmit = (event) => { event.preventDefault(); step(1); };
let typingTimer;
$("query").oninput = () => { clearTimeout(typingTimer); typingTimer = setTimeout(search, 120); };
$("next").onclick = () => step(1);
$("before").onclick = () => step(-1);
$("branches").onclick = () => state.panel === "branches" ? close() : showBranches();
$("compare").onclick = () => state.panel === "compare" ? close() : showComparison();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function theme(name) { document.documentElement.dataset.theme = name; readPalette(); draw(); }
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.onchange = () => theme(dark.matches ? "dark" : "light");
$("list").addEventListener("scroll", later, {passive: true});
window.addEventListener("resize", () => { measure(); redraw(); });
function fillPaper() {
  const current = heads.find((head) => head.current), chosen = state.chosen || (current && current.id) || 0;
  const paper = $("paper");
  paper.replaceChildren(make("h1", "", data.title));
  for (const n of pathTo(chosen)) {
    if (!n.id) continue;
    const made = make("div", "turn");
    made.append(make("p", "who", `n${n.id} · ${n.role} · ${when(n.time)}`), textOf(n));
    paper.append(made);
  }
}
const printing = window.matchMedia("print");
printing.onchange = () => printing.matches ? fillPaper() : $("paper").replaceChildren();
window.addEventListener("beforeprint", fillPaper);
window.addEventListener("afterprint", () => $("paper").replaceChildren());

$("title").textContent = $("title").title = data.title;
$("facts").textContent = `${many(nodes.filter((n) => n.id && !(n.marks & SUMMARY)).length, "message")} · ${many(live.length, "branch", "branches")} · ${many(summaries.size, "summary", "summaries")}`;
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
readPalette();
const now = heads.find((head) => head.current && head.n && head.status === "live") || {n: nodes.findLast((n) => !(n.marks & ASIDE))};
if (now.n) { state.chosen = now.n.id; if (foldOf(now.n)) unfold(now.n); follow(now.n, runEnd(now.n)); }
layOut();
measure();
if (now.n) {
  $("list").scrollTop = place.get(now.n.id) * ROW;
  $("list").setAttribute("aria-activedescendant", "row" + now.n.id);
}
showMessage();
})();
"""


# ================================================================================================
# 8. Requests
#
# A context as the Messages API of Anthropic or the Chat Completions API of OpenAI takes it. Both
# refuse a call whose result is not in the very next message, a result without its call, an empty
# text, a conversation that an assistant begins. What no node says is written as text of its own and
# counted. Sources: https://docs.anthropic.com/en/api/messages,
# https://platform.openai.com/docs/api-reference/chat.
# ================================================================================================

EARLIER = "[earlier messages are not shown]"
NO_RESULT = "[no result recorded]"
EMPTY = "[empty message]"
_TOOL_ID = re.compile("[a-zA-Z0-9_-]{1,64}")
_NO_TOOL_NAME = re.compile("[^a-zA-Z0-9_-]")
_THINKING = ("redacted_thinking", "thinking")


def as_request(database: Database, messages: Sequence[Json], format: str) -> Json:
    """`messages` of a context or a budget as `openai` or `anthropic` takes them.

    {"messages": [...], "added_tokens": N}, for anthropic also "system", a text: the system messages
    before the first other one. `added_tokens` estimates the text that is in no node: the words
    around summaries, closed calls. Neighbours of one role are one message. Thinking is left out
    where its signature is missing, for openai always. A call without its result gets an error as
    its result; a result without its call becomes text.

    Raises:
        Corrupt: a message cannot be read.
    """
    parts = database.again_if_unfit(lambda: _parts_of_nodes(database, messages))
    request = _Request(database, messages, parts)
    return request.openai() if format == "openai" else request.anthropic()


def _parts_of_nodes(database: Database, messages: Sequence[Json]) -> dict[str, list[Json]]:
    """The blocks of those messages that have some."""
    store = database.refresh()
    found = {}
    for message in messages:
        if message["node"] is None or message.get("purged") or "from" in message:
            continue
        node = int(message["node"][1:])
        line = store.node_line(node, store.rows[node])
        if b',"blocks":[' in line:
            blocks = _exact_blocks(database, decode_head(line)["blocks"])
            if blocks:
                found[message["node"]] = blocks
    return found


def _exact_blocks(database: Database, blocks: list[Json]) -> list[Json]:
    """The blocks themselves, where import put them beside the database for their size."""
    if len(blocks) != 1 or blocks[0].get("type") != "oversize":
        return blocks
    data = database.kept_bytes(str(blocks[0].get("sha256", "")))
    whole = None if data is None else json.loads(data)
    return whole if isinstance(whole, list) else []  # gone: the text is what is left


def _with_bytes(database: Database, kind: str, source: Json) -> Json | None:
    """A picture or document with its bytes, where `import --attachments` kept them."""
    data, media = database.kept_bytes(str(source.get("sha256", ""))), source.get("media_type")
    if data is None or not isinstance(media, str):
        return None
    from base64 import b64encode

    encoded = b64encode(data).decode("ascii")
    return {"type": kind, "source": {"type": "base64", "media_type": media, "data": encoded}}


class _Request:
    """Turns, each (role, blocks in Anthropic's form), built message by message."""

    def __init__(
        self, database: Database, messages: Sequence[Json], parts: dict[str, list[Json]]
    ) -> None:
        self.database = database
        self.system: list[str] = []
        self.turns: list[tuple[str, list[Json]]] = []
        self.added: list[str] = []
        self.open: list[str] = []  # calls of the last turn that have no result yet
        self._used: set[str] = set()  # ids of calls
        node = next((each["node"] for each in messages if each["node"]), None)
        tl = 0 if node is None else database.store.rows[int(node[1:])][TL]
        timelines = database.store.state.timelines
        self.estimator = timelines[tl].estimator if tl < len(timelines) else "scalar4"
        for message in messages:
            self._take(message, parts.get(message["node"] or ""))
        self._close_calls()
        self._merge()

    def _merge(self) -> None:
        """Leave out answers of thoughts alone; neighbours of one role are one turn."""
        turns: list[tuple[str, list[Json]]] = []
        for role, blocks in self.turns:
            if all(block["type"] in _THINKING for block in blocks):
                continue
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, blocks))
        self.turns = turns

    def _take(self, message: Json, blocks: list[Json] | None) -> None:
        role, text = message["role"], message["text"]
        if role == "assistant":
            self._close_calls()
        if "from" in message:
            words = f"[Summary of {message['from']}..{message['to']}, earlier conversation] "
            self._say("user", text, words)
        elif role == "system" and not self.turns:
            self.system.append(text)
        elif blocks is not None:
            self._take_blocks(role, blocks, text)
        elif role == "tool":
            self._say("user", text, "[tool result] ")
        elif role == "assistant":
            if not _is_blank(text):
                self._add("assistant", {"type": "text", "text": text})
        else:
            words = {"system": "[system] ", "summary": "[Summary] "}.get(role, "")
            self._say("user", text, words)

    def _say(self, role: str, text: str, words: str = "") -> None:
        """A text, with words that no node says before it."""
        if _is_blank(text) and not words:
            text, words = "", EMPTY
        self._note(words)
        self._add(role, {"type": "text", "text": words + text})

    def _note(self, words: str) -> None:
        if words:
            self.added.append(words)

    def _add(self, role: str, block: Json) -> None:
        """One block at the end."""
        if role == "assistant" and self.turns and self.turns[-1][0] == "user":
            self._close_calls()  # what was not answered by now belongs to the turn that ends here
        if role == "assistant" and not self.turns:
            self._note(EARLIER)
            self.turns.append(("user", [{"type": "text", "text": EARLIER}]))
        if not self.turns or self.turns[-1][0] != role:
            self.turns.append((role, []))
        self.turns[-1][1].append(block)

    def _close_calls(self) -> None:
        for call in self.open:
            self._note(NO_RESULT)
            self._result({"tool_use_id": call, "content": NO_RESULT, "is_error": True})
        self.open = []

    def _result(self, block: Json) -> None:
        if self.turns[-1][0] != "user":
            self.turns.append(("user", []))
        self.turns[-1][1].append({"type": "tool_result", **block})

    def _take_blocks(self, role: str, blocks: list[Json], text: str) -> None:
        speaker = "assistant" if role == "assistant" else "user"
        words = "[system] " if role == "system" else ""
        said = len(self.turns), len(self.turns[-1][1]) if self.turns else 0
        for block in blocks:
            kind = block.get("type")
            if kind == "tool_result":
                self._take_result(block)
            elif kind == "tool_use":
                self._take_call(block)
            elif kind in _THINKING:
                whole = ("thinking", "signature") if kind == "thinking" else ("data",)
                texts = [block.get(name) for name in whole]
                if role == "assistant" and all(text and isinstance(text, str) for text in texts):
                    self._add("assistant", block)
            elif kind == "text":
                if not _is_blank(block.get("text")):
                    self._note(words)
                    self._add(speaker, {"type": "text", "text": words + str(block["text"])})
                    words = ""
            else:
                self._add(speaker, self._other(block, pictures=speaker == "user"))
        if role != "assistant" and said == (
            len(self.turns),
            len(self.turns[-1][1]) if self.turns else 0,
        ):
            self._say("user", text, words)

    def _take_call(self, block: Json) -> None:
        call, name = self._tool_id(block.get("id")), block.get("name")
        if call in self._used or not isinstance(name, str) or not name:
            self._say("assistant", f"[call {name}]" if isinstance(name, str) else "[call]")
            return
        self._used.add(call)
        given = block.get("input")
        self._add(
            "assistant",
            {
                "type": "tool_use",
                "id": call,
                "name": _NO_TOOL_NAME.sub("_", name)[:64],
                "input": given if isinstance(given, dict) else {"value": given},
            },
        )
        self.open.append(call)

    def _take_result(self, block: Json) -> None:
        call = self._tool_id(block.get("tool_use_id"))
        if call not in self.open:
            self._note("[tool result] ")
            text = "[tool result] " + _text_of(block.get("content"))
            self._add("user", {"type": "text", "text": text})
            return
        self.open.remove(call)
        result: Json = {"tool_use_id": call}
        content = block.get("content")
        if isinstance(content, list):
            content = [
                each
                for each in map(self._inner, content)
                if each["type"] != "text" or not _is_blank(each["text"])
            ]
        if not _is_blank(content):
            result["content"] = content if isinstance(content, (str, list)) else _text_of(content)
        if block.get("is_error") is True:
            result["is_error"] = True
        self._result(result)

    def _inner(self, block: object) -> Json:
        """A block inside a result: a text or a picture."""
        if isinstance(block, dict) and block.get("type") == "text":
            return {"type": "text", "text": str(block.get("text", ""))}
        return self._other(block)

    def _other(self, block: object, pictures: bool = True) -> Json:
        """A picture or a document, if its bytes are there and it may be one; else what it is, as
        text."""
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and kind in ("image", "document") and pictures:
            source = block.get("source")
            source = source if isinstance(source, dict) else {}
            if _is_reference(str(kind), source):
                return {"type": kind, "source": source}
            whole = _with_bytes(self.database, str(kind), source)
            if whole is not None:
                return whole
            size = f", {source['bytes']} bytes" if "bytes" in source else ""
            words = f"[{kind} {source.get('media_type', 'unknown type')}{size}, not kept]"
        else:
            words = f"[{kind}]" if isinstance(kind, str) else "[unknown block]"
        self._note(words)
        return {"type": "text", "text": words}

    def _tool_id(self, value: object) -> str:
        """An id as both APIs take it."""
        text = value if isinstance(value, str) else repr(value)
        if _TOOL_ID.fullmatch(text):
            return text
        from hashlib import sha256

        return "call_" + sha256(text.encode("utf-8", "replace")).hexdigest()[:24]

    # ---- the two forms ---------------------------------------------------------------------

    def _added_tokens(self) -> int:
        return sum(estimate(words, self.estimator) for words in self.added)

    def anthropic(self) -> Json:
        messages = []
        for role, blocks in self.turns:
            # A turn that answers calls begins with its results.
            ordered = sorted(blocks, key=lambda block: block["type"] != "tool_result")
            plain = len(ordered) == 1 and ordered[0]["type"] == "text"
            messages.append({"role": role, "content": ordered[0]["text"] if plain else ordered})
        shown: Json = {"messages": messages, "added_tokens": self._added_tokens()}
        system = [text for text in self.system if not _is_blank(text)]
        if system:
            shown["system"] = "\n\n".join(system)
        return shown

    def openai(self) -> Json:
        self.turns = [
            (role, [block for block in blocks if block["type"] not in _THINKING])
            for role, blocks in self.turns
        ]
        self._merge()
        messages: list[Json] = [
            {"role": "system", "content": text} for text in self.system if not _is_blank(text)
        ]
        for role, blocks in self.turns:
            if role == "assistant":
                messages.append(_openai_answer(blocks))
                continue
            messages += [
                {
                    "role": "tool",
                    "tool_call_id": block["tool_use_id"],
                    "content": _text_of(block.get("content")),
                }
                for block in blocks
                if block["type"] == "tool_result"
            ]
            rest = [block for block in blocks if block["type"] != "tool_result"]
            if rest:
                messages.append({"role": "user", "content": _openai_content(rest)})
        return {"messages": messages, "added_tokens": self._added_tokens()}


def _is_reference(kind: str, source: Json) -> bool:
    """Whether the source of a picture or document says by itself where it is, or all of it."""
    field = {"url": "url", "file": "file_id", "text": "data"}.get(str(source.get("type")))
    if field is None or (field == "data" and kind == "image"):
        return False
    return isinstance(source.get(field), str) and bool(source[field])


def _is_blank(text: object) -> bool:
    """Whether an API would call the text empty."""
    return not text or (isinstance(text, str) and text.isspace())


def _text_of(content: object) -> str:
    """A result's content as one text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [] if content is None else [content]
    return "\n\n".join(
        str(each["text"])
        if isinstance(each, dict) and "text" in each
        else f"[{each['type']}]"
        if isinstance(each, dict) and isinstance(each.get("type"), str)
        else json.dumps(each, ensure_ascii=False)
        for each in parts
    )


def _openai_answer(blocks: list[Json]) -> Json:
    text = "\n\n".join(block["text"] for block in blocks if block["type"] == "text")
    message: Json = {"role": "assistant", "content": text or None}
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {
                "name": block["name"],
                "arguments": json.dumps(block["input"], ensure_ascii=False, separators=(",", ":")),
            },
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _openai_content(blocks: list[Json]) -> object:
    """A text, or parts where there is a picture."""
    if all(block["type"] == "text" for block in blocks):
        return "\n\n".join(block["text"] for block in blocks)
    parts: list[Json] = []
    for block in blocks:
        source = block.get("source", {})
        if block["type"] == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif block["type"] == "image" and source.get("type") in ("base64", "url"):
            url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            parts.append({"type": "text", "text": f"[{block['type']}]"})
    return parts


# ================================================================================================
# 9. json
#
# One document, a node a line, so that a line comparison shows what changed. `timeline_import`
# reads it back: whatever it needs to make the same tree is in here, and nothing else of the log
# (no idempotency keys, no audit).
# ================================================================================================


def _json_picture(
    database: Database, tl: int, branch: str | None, first: int | None, last: int | None
) -> Picture:
    def laid_out() -> _Document:
        store = database.refresh()
        interval = _interval(store, tl, branch, first, last)
        return _Document(database, store, tl, View(database, tl, interval, True), interval)

    document: _Document = database.again_if_unfit(laid_out)
    made = Picture(document.view, document.pieces())
    made.nodes = len(document.places)
    return made


class _Document:
    """What a document says beside the lines of the nodes, taken at one moment.

    `places` are those of the view, ascending by node. In a part of a path only summaries whose
    whole interval is in view come along.
    """

    __slots__ = ("branches", "head", "held", "part", "places", "sealed", "view")

    def __init__(
        self, database: Database, store: Store, tl: int, view: View, part: tuple[int, int] | None
    ) -> None:
        timeline = store.state.timelines[tl]
        self.view = view
        self.part = part
        whole = range(1, view.tree_end)
        asides = [
            place
            for place in range(view.tree_end, len(view.ids))
            if view.place_of(view.summaries[view.ids[place]].first)
        ]
        self.places = sorted([*whole, *asides], key=view.ids.__getitem__) if asides else whole
        self.held = {node for node, seq in timeline.pins.items() if seq < timeline.last_summary}
        self.sealed = self._sealed(store, timeline)
        shown = [*timeline.in_order(), *timeline.ended]
        if part is not None:
            shown = [each for each in timeline.in_order() if self._is_shown(each)]
        numbers = {each.number for each in shown}
        self.branches = self._branch_rows(timeline, shown)
        self.head = {
            "timeline_json": 1,
            "log_id": store.header.log_id,
            "timeline": {
                "timeline_id": f"tl{tl}",
                "title": timeline.title,
                "titled": bool(timeline.titled),
                "estimator": timeline.estimator,
                "current_branch": timeline.current,
                "created_at": timeline.created_at,
                "source": timeline.source,
                "sessions": self._sessions(timeline, numbers),
            },
        }
        if part is not None:
            self.head["part"] = self._part_row(store, *part)

    def _part_row(self, store: Store, first: int, last: int) -> Json:
        """The ends of the part, and what the node above it is known by."""
        above = store.rows[first][PARENT] if first else 0
        record = store.head(above, store.rows[above]) if above else {}
        ends = {"from": f"n{first}", "to": f"n{last}", "above": f"n{above}"}
        return {**ends, "above_ids": record.get("ids", [])}

    def _is_shown(self, branch: Branch) -> bool:
        assert self.part is not None
        return bool(self.view.place_of(branch.head)) or self.part[1] == branch.head == 0

    @staticmethod
    def _sessions(timeline: TimelineState, numbers: set[int]) -> list[Json]:
        # Those of other documents are only of use to the database that read them.
        return [
            {"session": session, "branch": number, "node": f"n{node}"}
            for session, (number, node) in timeline.sessions.items()
            if number in numbers and not session.startswith("timeline-json\0")
        ]

    def _sealed(self, store: Store, timeline: TimelineState) -> bytearray:
        """For each place whether all from the root to it is covered or a held pin."""
        view, rows = self.view, store.rows
        sealed = bytearray(len(view.ids))
        chains = [
            [(row[FROM], row[TO]) for _, row in summary_chain(rows, newest)]
            for newest in (timeline.real, timeline.placeholder)
        ]
        if self.part is not None:
            last = self.part[1]
            covered = covered_depths(rows, last, [*chains[0], *chains[1]])
            depth = rows[watermark(rows, timeline, last, covered)][DEPTH]
            for place in range(1, len(view.ids)):
                # A summary off the path is sealed where what it hangs on is.
                row = rows[view.ids[place]]
                sealed[place] = row[DEPTH] - (place >= view.tree_end) <= depth
            return sealed
        covering = view.painted((1, *each) for chain in chains for each in chain)
        sealed[0] = 1
        for place in range(1, view.tree_end):
            if sealed[view.above[place]]:
                sealed[place] = bool(
                    covering[place]
                    or view.flags[place] & KIND_SUMMARY
                    or view.ids[place] in self.held
                )
        return sealed

    def _branch_rows(self, timeline: TimelineState, shown: list[Branch]) -> list[Json]:
        """Living branches, oldest first, then the others in the order they ended."""
        tops: dict[int, list[int]] = {}
        for top, head in timeline.segments:
            tops.setdefault(head, []).append(top)
        rows = []
        for branch in reversed(shown):
            live = branch.status == LIVE
            parent = timeline.live_branch(branch.parent)
            row: Json = {
                "name": branch.name,
                "head": f"n{branch.head}",
                "fork_node": None if branch.fork_node is None else f"n{branch.fork_node}",
                "parent": None if parent is None else parent.name,
                "created_at": branch.created_at,
                "status": STATUS_NAMES[branch.status],
                "current": live and branch.name == timeline.current,
                "number": branch.number,
                "of": branch.parent,
            }
            if branch.imported:
                row["imported"] = True
            if STATUS_NAMES[branch.status] == "archived" and tops.get(branch.head):
                # Of several that ended there, the last one took the nodes with it: they were not
                # its own while another ended there.
                row["archived_from"] = f"n{tops[branch.head].pop()}"
            rows.append(row)
        rows.reverse()
        return rows

    def pieces(self) -> Iterator[str]:
        view, places = self.view, self.places
        yield dumps(self.head)[:-1] + ',\n"nodes":['
        for start in range(0, len(places), NODES_READ):
            part = places[start : start + NODES_READ]
            rows = view.read(part, self._node_row)
            for place in part:
                yield ("\n" if place == places[0] else ",\n") + rows[place]
        lines = ",\n".join(map(dumps, self.branches))
        yield f'\n],\n"branches":[\n{lines}\n]}}\n'

    def _node_row(self, place: int, line: bytes) -> str:
        view = self.view
        node, flags, marks = view.ids[place], view.flags[place], view.marks[place]
        record = decode_head(line)
        row: Json = {
            "node": f"n{node}",
            "parent": f"n{view.parents[place]}",
            "role": ROLES[flags & ROLE_MASK],
            "tokens": record["tokens"],
            "created_at": record["ts"],
            "via": record["via"],
            "zone": "archive" if marks & ARCHIVED else "hot",
            "pinned": bool(marks & PINNED),
            "excluded": bool(marks & EXCLUDED),
            "sealed": bool(self.sealed[place]),
        }
        if marks & PINNED and node in self.held:
            row["held"] = True
        if record.get("joins"):
            row["joins"] = True
        if flags & KIND_SUMMARY:
            row["summary"] = self._summary_row(node, flags, record)
        for name in ("intent", "source", "ids", "blocks"):
            if name in record:
                row[name] = record[name]
        if record.get("purged") or is_purged(line):
            row["purged"] = True
        row["text"] = line_text(line)
        return dumps(row)

    def _summary_row(self, node: int, flags: int, record: Json) -> Json:
        row: Json = {"from": f"n{record['from']}", "to": f"n{record['to']}"}
        if flags & KIND_PLACEHOLDER:
            return {**row, "kind": "placeholder"}
        view, summary = self.view, self.view.summaries[node]
        older, newer = summary.supersedes, view.successor.get(node)
        return {
            **row,
            "kind": "real",
            "version": summary.version,
            "supersedes": None if older is None else f"n{older}",
            "superseded_by": None if newer is None else f"n{newer}",
            "derived_from": [f"n{each}" for each in summary.derived_from],
            "stale": node in view.stale,
        }


# ================================================================================================
# 10. Claude Code
#
# A branch's context as a session file of Claude Code, which can go on from there. A message that
# came from Claude Code keeps its uuid, any other gets one made of the database's id and its number;
# `timeline` in a record says which node it is, so that an import here knows it. Where Claude's form
# has no place for what a message is, `timeline` says that too: `role`, and `words` that were put
# before the text. A summary that the path begins with is written as a compaction.
# ================================================================================================

CLAUDE_VERSION = "2.1.0"  # of the client whose form this is
_SPOKEN = {"tool": "[tool result] ", "system": "[system] ", "summary": "[Summary] "}
_REAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class ClaudeSession:
    """A session: `id`, `cwd` that it was in last (None: nothing tells), and its lines. `shown`
    gives the text that stands for a block."""

    def __init__(
        self, database: Database, tl: int, branch: str, shown: Callable[[Json], str]
    ) -> None:
        from uuid import uuid4

        self.id = str(uuid4())
        self.cwd: str | None = None
        self._database = database
        self._shown = shown
        self._messages = database.run("context", {"timeline_id": f"tl{tl}", "branch": branch})
        self._log_id = database.refresh().header.log_id
        self._calls: set[str] = set()
        for message in reversed(self._messages):
            source = database.run("node", {"node": message["node"]}).get("source") or {}
            if isinstance(source.get("cwd"), str):
                self.cwd = source["cwd"]
                break

    @property
    def nodes(self) -> int:
        """How many messages it has."""
        return len(self._messages)

    def lines(self, cwd: str) -> Iterator[str]:
        """The file, a record a line; `cwd` for messages that tell none."""
        above: str | None = None
        for message in self._messages:
            node = self._database.run("node", {"node": message["node"], "blocks": True})
            record = self._record(node, above, cwd)
            if record.get("isCompactSummary"):
                boundary = self._boundary(record, node)
                yield dumps(boundary) + "\n"
                record["parentUuid"] = boundary["uuid"]
            yield dumps(record) + "\n"
            above = record["uuid"]

    def _boundary(self, summary: Json, node: Json) -> Json:
        from uuid import UUID, uuid5

        common = {k: v for k, v in summary.items() if k not in ("message", "timeline", "type")}
        return {
            **common, "type": "system", "subtype": "compact_boundary",
            "content": "Conversation compacted", "level": "info",
            "uuid": str(uuid5(UUID(self._log_id), f"{node['node']} boundary")),
            "isCompactSummary": False, "compactMetadata": {"trigger": "auto"},
        }  # fmt: skip

    def _record(self, node: Json, above: str | None, cwd: str) -> Json:
        source, number = node.get("source") or {}, int(node["node"][1:])
        told: Json = {"node": node["node"]}
        role, text, blocks = node["role"], node["text"], node.get("blocks")
        native = str(source.get("id", ""))
        own = source.get("format") == "claude-code" and _REAL_UUID.fullmatch(native)
        record: Json = {
            "parentUuid": above,
            "isSidechain": False,
            "userType": "external",
            "cwd": source.get("cwd") or cwd,
            "sessionId": self.id,
            "version": CLAUDE_VERSION,
            "gitBranch": "",
            "type": "assistant" if role == "assistant" else "user",
            "uuid": native if own else node_uuid(self._log_id, number),
            "timestamp": _iso(source.get("time") or node["created_at"]),
            "timeline": told,
        }
        if own and source.get("session"):
            record["forkedFrom"] = {"sessionId": source["session"], "messageUuid": native}
        if role == "summary" and above is None:
            record["isCompactSummary"] = record["isVisibleInTranscriptOnly"] = True
            record["message"] = {"role": "user", "content": text}
            return record
        exact = _exact_blocks(self._database, blocks or [])
        content = self._blocks(role, exact) if exact else []
        if not content:
            words = _SPOKEN.get(role, "")
            words += EMPTY if _is_blank(text) and not words else ""
            if role not in ("user", "assistant"):
                told["role"] = role
            if words:
                told["words"] = words
            content = [{"type": "text", "text": words + text}]
        elif role == "tool" and any(block["type"] != "tool_result" for block in content):
            told["role"] = role
        if role != "assistant":
            plain = len(content) == 1 and content[0]["type"] == "text"
            record["message"] = {
                "role": "user", "content": content[0]["text"] if plain else content
            }  # fmt: skip
            return record
        calls = any(block["type"] == "tool_use" for block in content)
        record["message"] = {
            "id": f"msg_{record['uuid'].replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": "unknown",
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": source.get("usage") or {"input_tokens": 0, "output_tokens": node["tokens"]},
        }
        return record

    def _blocks(self, role: str, blocks: list[Json]) -> list[Json]:
        """The blocks that Claude takes from this role; of others what is shown of them, as text."""
        found: list[Json] = []
        for block in blocks:
            kept = self._kept(role, block)
            if kept is None:
                text = self._shown(block)
                kept = {"type": "text", "text": text} if not _is_blank(text) else None
            if kept is not None:
                found.append(kept)
        return found

    def _kept(self, role: str, block: Json) -> Json | None:
        kind = block.get("type")
        if kind == "text":
            return block if not _is_blank(block.get("text")) else None
        if role == "assistant":
            if kind == "thinking" and block.get("signature") and block.get("thinking"):
                return block
            if kind == "redacted_thinking" and block.get("data"):
                return block
            id, name = block.get("id"), block.get("name")
            if (
                kind == "tool_use"
                and isinstance(id, str)
                and _TOOL_ID.fullmatch(id)
                and isinstance(name, str)
                and name
                and isinstance(block.get("input"), dict)
            ):
                self._calls.add(id)
                return block
            return None
        if kind == "tool_result":
            # Claude refuses a result whose call it was not shown.
            return block if block.get("tool_use_id") in self._calls else None
        source = block.get("source")
        if kind in ("image", "document") and isinstance(source, dict):
            if source.get("type") == "base64" and isinstance(source.get("data"), str):
                return block
            if _is_reference(str(kind), source):
                return block
            return _with_bytes(self._database, str(kind), source)
        return None


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
