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
        title = database.store.state.timelines[tl].title
        return Picture(view, _html(view, title or f"tl{tl}"))
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
    heading = f"## {_plain(marks[1:-1])} · {utc(decode_head(line)['ts'])}{_plain(heads)}"
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
# out here; the page draws those that are on the screen. Source: https://www.w3.org/TR/CSP3/.
# ================================================================================================

_NO_SCRIPT = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def _html(view: View, title: str) -> Iterator[str]:
    spots = Spots(view)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src '{_source_hash(_STYLE)}'; script-src '{_source_hash(_SCRIPT)}'"
    )
    name = html_escape(one_line(title))
    head, tail = _PAGE.split("DATA")
    yield head.replace("STYLE", _STYLE).replace("POLICY", policy).replace("TITLE", name)
    facts = {
        "title": title,
        "heads": {f"n{node}": each for node, each in view.heads.items()},
        "root": view.holds_root,
        "order": [view.ids[place] for place in spots.order],
        "asides": [view.ids[place] for under in view.asides.values() for place in under],
        "summaries": {
            str(node): [
                each.first, each.last, each.version, each.supersedes or 0,
                view.successor.get(node, 0), int(node in view.stale), list(each.derived_from),
            ]
            for node, each in view.summaries.items()
        },
    }  # fmt: skip
    yield _for_script(facts)[:-1] + ',"nodes":['
    for start in range(1, len(view.ids), NODES_READ):
        places = range(start, min(start + NODES_READ, len(view.ids)))
        rows = view.read(places, lambda place, line: _html_row(view, place, line, spots))
        for place in places:
            yield ("" if place == 1 else ",") + rows[place]
    yield "]}" + tail.replace("SCRIPT", _SCRIPT)


def _html_row(view: View, place: int, line: bytes, spots: Spots) -> str:
    """A node as a list: id, parent, role, tokens, time, marks, lane, run, newest summary, intent,
    where it came from, text."""
    record = decode_head(line)
    source = record.get("source") or {}
    origin = [
        record["via"],
        *(source.get(name, "") for name in ("format", "session", "id", "time")),
    ]
    marks = view.marks[place] | (8 if view.flags[place] & KIND_REAL else 0)
    intent = record.get("intent") or {}
    return _for_script(
        [
            view.ids[place],
            view.parents[place]
            if place < view.tree_end or view.place_of(view.parents[place])
            else 0,
            ROLES[view.flags[place] & ROLE_MASK],
            record["tokens"],
            record["ts"],
            marks | (16 if record.get("purged") else 0),
            spots.lanes[place],
            spots.runs[place],
            view.inside[place],
            [intent.get("tag", ""), intent.get("note", "")] if intent else 0,
            origin,
            line_text(line),
        ]
    )


def _for_script(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_NO_SCRIPT)


def _source_hash(text: str) -> str:
    from base64 import b64encode
    from hashlib import sha256

    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


class Spots:
    """Where each place of a view goes: places in the `order` of rows, and each place's lane and run.

    A run is a line of single nodes in one colour: the current branch's path is run 0, in lane 0.
    Elsewhere a run goes on with the oldest child. At a fork the other children come first, each
    with all that hangs on it and one lane further out, then the run goes on: so no two branches
    interleave, and lanes are as many as forks are nested. Summaries that nothing hangs on stand
    right under the end of their interval.
    """

    __slots__ = ("lanes", "order", "runs")

    def __init__(self, view: View) -> None:
        size = len(view.ids)
        self.order: list[int] = []
        self.lanes = [0] * size
        self.runs = [0] * size
        goes_on = _main_line(view)
        runs = 0
        waiting = [0]
        while waiting:
            place = waiting.pop()
            if place:
                self.order.append(place)
            for aside in view.asides.get(place, ()):
                self.lanes[aside], self.runs[aside] = self.lanes[place], self.runs[place]
                self.order.append(aside)
            children = _children(view, place)
            if not children:
                continue
            line = goes_on.get(place, children[0])
            self.lanes[line], self.runs[line] = self.lanes[place], self.runs[place]
            waiting.append(line)
            sides = [child for child in children if child != line]
            for number, side in enumerate(sides):
                self.lanes[side], self.runs[side] = self.lanes[place] + 1, runs + 1 + number
            runs += len(sides)
            waiting += reversed(sides)


def _main_line(view: View) -> dict[int, int]:
    """For each place on the current branch's path the next one."""
    current = [name for heads in view.heads.values() for name, is_current in heads if is_current]
    place = next((end for name, end in view.ends if name in current), 0)
    found = {}
    while place:
        found[view.above[place]] = place
        place = view.above[place]
    return found


def _children(view: View, place: int) -> list[int]:
    """Places of the children that are no asides, oldest first."""
    found = []
    child = view.first_child[place]
    while child:
        found.append(child)
        child = view.next_child[child]
    return found


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
<div id="what">
<h1 id="title" dir="auto"></h1>
<p id="facts"></p>
</div>
<form id="find" role="search">
<input id="query" type="search" placeholder="Search messages  ( / )" aria-label="Search messages"
 autocomplete="off" spellcheck="false">
<output id="hits" for="query" aria-live="polite"></output>
<button type="button" id="before" title="Previous hit (Shift+Enter)">&#8593;<span> Previous hit</span></button>
<button type="button" id="next" title="Next hit (Enter)">&#8595;<span> Next hit</span></button>
</form>
<nav>
<select id="jump" aria-label="Go to a branch or a fork"></select>
<button type="button" id="compare" aria-pressed="false">Compare</button>
<button type="button" id="theme" title="Light or dark">Theme</button>
</nav>
</header>
<main>
<section id="list" tabindex="0" role="listbox" aria-label="Messages, oldest first">
<div id="space"><canvas id="graph" aria-hidden="true"></canvas><div id="rows"></div></div>
</section>
<aside id="detail" aria-label="The message chosen" tabindex="-1"></aside>
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
  --page: #f6f5f2; --panel: #ffffff; --line: #dcd8d0; --text: #1f1e1b; --soft: #5d5850;
  --accent: #1d4fb8; --chosen: #e4ecfb; --mark: #ffe28a; --mark-text: #332600;
  --c0: #1d4fb8; --c1: #a8420c; --c2: #17693f; --c3: #7a35a8; --c4: #a3195b; --c5: #0b6473;
  --c6: #705500; --c7: #4d49b5;
}
:root[data-theme="dark"] {
  color-scheme: dark;
  --page: #14161a; --panel: #1c1f25; --line: #343943; --text: #e9e7e2; --soft: #aab0ba;
  --accent: #8db5ff; --chosen: #263450; --mark: #6b5410; --mark-text: #fff3cc;
  --c0: #8db5ff; --c1: #ffae80; --c2: #7ed8a8; --c3: #d3abf7; --c4: #ff9fc9; --c5: #7fdce8;
  --c6: #e8cd72; --c7: #b8bbff;
}
* { box-sizing: border-box; }
html, body { height: 100%; margin: 0; }
body {
  display: flex; flex-direction: column; overflow: hidden; background: var(--page);
  color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC",
    "Microsoft YaHei", sans-serif;
}
header {
  display: grid; grid-template-columns: minmax(0, 1fr) minmax(260px, 380px) auto; gap: 8px 20px;
  align-items: center; padding: 10px 18px; background: var(--panel);
  border-bottom: 1px solid var(--line);
}
h1, #facts { margin: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
h1 { font-size: 16px; line-height: 1.35; font-weight: 650; }
#facts { color: var(--soft); font-size: 12.5px; line-height: 1.4; }
#find, nav { display: flex; gap: 6px; align-items: center; min-width: 0; }
#query { flex: 1 1 auto; min-width: 0; }
#hits { color: var(--soft); font-size: 12.5px; white-space: nowrap; }
#hits:empty { display: none; }
input, select, button {
  font: inherit; font-size: 14px; color: inherit; background: var(--page);
  border: 1px solid var(--line); border-radius: 8px; padding: 5px 10px; height: 34px;
}
select { max-width: 220px; }
button { cursor: pointer; }
button:hover, select:hover { border-color: var(--accent); }
button[aria-pressed="true"] { background: var(--chosen); border-color: var(--accent); }
#before span, #next span { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
main { flex: 1; min-height: 0; display: flex; }
#list { flex: 1 1 58%; overflow-y: auto; overflow-x: hidden; position: relative; contain: strict; }
#list:focus-visible { outline-offset: -2px; }
#space { position: relative; }
#graph { position: sticky; top: 0; left: 0; display: block; pointer-events: none; z-index: 1; }
#rows { position: absolute; inset: 0; }
.row {
  position: absolute; left: 0; right: 0; height: 34px; display: flex; align-items: center;
  gap: 8px; padding-right: 12px; cursor: pointer; white-space: nowrap; overflow: hidden;
}
.row:hover { background: color-mix(in srgb, var(--chosen) 55%, transparent); }
.row.chosen { background: var(--chosen); }
.row .id { font: 12px/1 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; color: var(--soft); min-width: 5ch; }
.row .role { font-size: 12px; color: var(--soft); min-width: 9ch; }
.row .said { flex: 1 1 auto; overflow: hidden; text-overflow: ellipsis; unicode-bidi: plaintext; }
.row.summary .said { font-style: italic; }
.row.aside { color: var(--soft); }
.row.excluded .said, .row.purged .said { text-decoration: line-through; color: var(--soft); }
.row.fold { color: var(--soft); font-size: 13px; }
.row.hit .said { background: color-mix(in srgb, var(--mark) 45%, transparent); border-radius: 4px; }
.chip {
  font-size: 12px; line-height: 1.5; padding: 1px 8px; border-radius: 999px; flex: none;
  border: 1px solid currentColor; max-width: 22ch; overflow: hidden; text-overflow: ellipsis;
}
.chip.now { font-weight: 700; background: var(--chosen); }
.chip.plain { border-color: var(--line); color: var(--soft); border-radius: 6px; padding: 1px 6px; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
#detail {
  flex: 0 0 42%; min-width: 320px; max-width: 760px; overflow-y: auto; background: var(--panel);
  border-left: 1px solid var(--line); padding: 16px 20px 40px; overflow-wrap: anywhere;
}
#detail h2 { font-size: 16px; margin: 0 0 4px; display: flex; flex-wrap: wrap; gap: 6px; align-items: center; }
#detail h3 { font-size: 13px; color: var(--soft); margin: 22px 0 6px; font-weight: 600; }
#detail .meta { color: var(--soft); font-size: 13px; margin: 0 0 12px; }
#detail .empty { color: var(--soft); margin-top: 20vh; text-align: center; }
.text {
  white-space: pre-wrap; unicode-bidi: plaintext; background: var(--page);
  border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; margin: 0;
  font: inherit; tab-size: 4;
}
.text.tool, .code {
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Noto Sans Mono CJK SC", monospace;
}
.code {
  display: block; margin: 6px 0; padding: 8px 10px; border-radius: 8px; unicode-bidi: plaintext;
  background: var(--panel); border: 1px solid var(--line);
}
dl { display: grid; grid-template-columns: auto 1fr; gap: 2px 14px; margin: 0 0 14px; font-size: 13px; }
dt { color: var(--soft); }
dd { margin: 0; }
.link { display: block; width: 100%; text-align: start; height: auto; min-height: 34px; margin: 4px 0; unicode-bidi: plaintext; }
.tools { display: flex; flex-wrap: wrap; gap: 6px; margin: 12px 0; }
#close { display: none; }
mark { background: var(--mark); color: var(--mark-text); border-radius: 3px; }
.turn { margin: 0 0 12px; }
.turn .who { font-size: 12px; color: var(--soft); margin: 0 0 3px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
.sides select { width: 100%; max-width: none; margin-bottom: 10px; }
body.comparing #detail { flex-basis: 62%; max-width: none; }
#paper { display: none; }
@media (max-width: 960px) {
  header { grid-template-columns: minmax(0, 1fr) auto; }
  #find { grid-column: 1 / -1; order: 1; }
  nav select { max-width: 150px; }
}
@media (max-width: 760px) {
  nav select { max-width: none; }
  #find { order: 0; }
  header { padding: 8px 12px; gap: 8px; grid-template-columns: minmax(0, 1fr); }
  nav select { flex: 1; min-width: 0; }
  .row .role { display: none; }
  #detail {
    position: fixed; inset: auto 0 0 0; max-height: 76vh; min-width: 0; max-width: none;
    border: 0; border-top: 1px solid var(--line); border-radius: 16px 16px 0 0;
    box-shadow: 0 -8px 30px rgb(0 0 0 / 25%); display: none; z-index: 3;
  }
  body.open #detail { display: block; }
  #close { display: inline-block; margin-inline-start: auto; }
  .sides { gap: 8px; }
}
@media print {
  html, body { height: auto; overflow: visible; display: block; background: #fff; color: #000; }
  header, main { display: none; }
  #paper { display: block; }
  #paper .text, #paper .code { background: none; border-color: #999; color: #000; }
  #paper .turn { break-inside: avoid-page; }
  #paper .who { color: #333; }
}
"""

_SCRIPT = r"""
"use strict";
(() => {
const ROW = 34, PAD = 16, COLORS = 8, LANES_WIDE = 200;
const PIN = 1, EXCLUDED = 2, ARCHIVED = 4, SUMMARY = 8, PURGED = 16;
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const node = new Map(), place = new Map(), children = new Map();
const asides = new Set(data.asides);
for (const [id, parent, role, tokens, time, marks, lane, run, inside, tag, origin, text] of data.nodes) {
  const above = node.get(parent) || {depth: 0, sum: 0};
  node.set(id, {id, parent, role, tokens, time, marks, lane, run, inside, tag, text,
    aside: asides.has(id), depth: above.depth + 1, sum: above.sum + tokens,
    via: origin[0], format: origin[1], session: origin[2], native: origin[3], said: origin[4]});
  if (!children.has(parent)) children.set(parent, []);
  children.get(parent).push(id);
}
const nodes = data.order.map((id) => node.get(id));
nodes.forEach((n, at) => { n.at = at; });
const heads = [];  // {name, current, id}
for (const [key, list] of Object.entries(data.heads))
  for (const [name, current] of list) heads.push({name, current, id: +key.slice(1)});
const summaries = new Map(Object.entries(data.summaries).map(([id, s]) => [+id, {
  id: +id, from: s[0], to: s[1], version: s[2], supersedes: s[3], by: s[4], stale: s[5], rests: s[6],
}]));
const state = {chosen: 0, open: new Set(), rows: [], query: "", hits: [], hitSet: new Set(), hit: -1,
  comparing: false, left: "", right: ""};

const make = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};
const shown = (n) => n.marks & PURGED ? "(purged)" : n.text || "(empty)";
const oneLine = (text) => text.slice(0, 400).replace(/\s+/g, " ");
const short = (text, size) => {
  const line = oneLine(text);
  return line.length > size ? line.slice(0, size - 1) + "…" : line;
};
const when = (time) => new Date(time * 1000).toISOString().replace("T", " ").slice(0, 16) + " UTC";
const local = (time) => new Date(time * 1000).toLocaleString([], {dateStyle: "medium", timeStyle: "short"});
const count = (value) => value.toLocaleString("en");
const color = (run) => "c" + run % COLORS;
const forks = (id) => (children.get(id) || []).filter((each) => !node.get(each).aside);
const pathTo = (id) => {
  const path = [];
  for (let n = node.get(id); n; n = node.get(n.parent)) path.push(n);
  return path.reverse();
};

// ---- rows: archived stretches are folded until they are opened ---------------------------------

function layOut() {
  const rows = [];
  place.clear();
  for (let at = 0; at < nodes.length; at++) {
    const n = nodes[at];
    if (n.marks & ARCHIVED && !state.open.has(n.id)) {
      let end = at;
      while (end + 1 < nodes.length && nodes[end + 1].marks & ARCHIVED && nodes[end + 1].run === n.run
        && !state.open.has(nodes[end + 1].id)) end++;
      for (let k = at; k <= end; k++) place.set(nodes[k].id, rows.length);
      rows.push({fold: nodes.slice(at, end + 1)});
      at = end;
    } else {
      place.set(n.id, rows.length);
      rows.push({n});
    }
  }
  state.rows = rows;
  // Lines: from a parent down its lane, then over into the child's, just above the child.
  state.edges = nodes.map((n) => {
    const to = place.get(n.id), from = n.parent && !n.aside ? place.get(n.parent) : undefined;
    return from === undefined || from === to ? null
      : [from, to, node.get(n.parent), n];
  }).filter(Boolean).sort((a, b) => a[0] - b[0]);
  state.brackets = brackets();
  $("space").style.height = rows.length * ROW + 2 * PAD + "px";
}

function brackets() {
  const found = [];
  for (const s of summaries.values()) {
    if (s.by || !place.has(s.from) || !place.has(s.to)) continue;
    found.push({top: place.get(s.from), end: place.get(s.to), id: s.id, column: 0, parts: rowsOf(s)});
  }
  found.sort((a, b) => a.top - b.top || b.end - a.end);
  const busy = [];
  for (const each of found) {
    let column = busy.findIndex((end) => end < each.top);
    if (column < 0) column = Math.min(busy.length, 3);
    busy[column] = each.end + 1;  // its own row stands right under it
    each.column = column;
  }
  return found;
}
// What a summary covers, as [first row, last row]: the rows of branches that lie between are not.
function rowsOf(s) {
  const first = node.get(s.from), last = node.get(s.to), top = place.get(s.from), end = place.get(s.to);
  if (end - top === last.depth - first.depth) return [[top, end]];
  const parts = [];
  for (let n = last; n && n.depth >= first.depth; n = node.get(n.parent)) {
    const row = place.get(n.id), part = parts.at(-1);
    if (part && part[0] - row <= 1) part[0] = row; else parts.push([row, row]);
  }
  return parts;
}

// Lanes get narrower where there are many, so that they never take the place of the texts.
const lanesDeep = nodes.reduce((most, n) => Math.max(most, n.lane), 0);
const lane = Math.max(3, Math.min(16, LANES_WIDE / Math.max(1, lanesDeep)));
const laneX = (at) => 20 + Math.min(at * lane, LANES_WIDE);
let textStart = 0, bracketStart = 0;
const columnOf = new Map();  // summary -> column of its bracket
const asideX = (n) => {
  const s = summaries.get(n.id);
  return bracketStart + (columnOf.get(s && s.by ? s.by : n.id) || 0) * 9;
};

function measure() {
  const columns = Math.min(4, state.brackets.reduce((most, b) => Math.max(most, b.column + 1), 0));
  columnOf.clear();
  for (const b of state.brackets) columnOf.set(b.id, b.column);
  bracketStart = laneX(lanesDeep) + 18;
  textStart = bracketStart + Math.max(columns, asides.size ? 1 : 0) * 9 + 10;
}

const canvas = $("graph"), pen = canvas.getContext("2d");
let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = {line: style.getPropertyValue("--line"), soft: style.getPropertyValue("--soft"),
    page: style.getPropertyValue("--page"), text: style.getPropertyValue("--text")};
  for (let k = 0; k < COLORS; k++) palette["c" + k] = style.getPropertyValue("--c" + k);
}

function drawGraph(top, height, first, last) {
  const width = textStart, scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  canvas.style.marginBottom = -height + "px";
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const y = (row) => row * ROW + ROW / 2 + PAD - top;
  pen.lineWidth = 2;
  for (const [from, to, above, below] of state.edges) {
    if (from > last) break;
    if (to < first) continue;
    const x1 = laneX(above.lane), x2 = laneX(below.lane), y2 = y(to), forks = above.run !== below.run;
    const turn = forks ? y2 - ROW : y2;
    pen.strokeStyle = palette[color(above.run)];
    pen.beginPath();
    pen.moveTo(x1, Math.max(y(from), -ROW));
    pen.lineTo(x1, Math.min(turn, height + ROW));
    pen.stroke();
    if (!forks || turn > height + ROW) continue;
    pen.strokeStyle = palette[color(below.run)];
    pen.beginPath();
    pen.moveTo(x1, turn);
    pen.bezierCurveTo(x1, y2 - ROW / 3, x2, y2 - ROW / 1.5, x2, y2);
    pen.stroke();
  }
  for (const b of state.brackets) {
    if (b.end < first || b.top > last) continue;
    const x = bracketStart + b.column * 9, lit = b.id === state.chosen
      || (node.get(state.chosen) || {}).inside === b.id;
    pen.strokeStyle = lit ? palette.text : palette.soft;
    pen.lineWidth = lit ? 2 : 1;
    pen.beginPath();
    pen.moveTo(x + 5, y(b.top) - 10);
    pen.lineTo(x, y(b.top) - 10);
    for (const [top, end] of b.parts) {
      pen.moveTo(x, Math.max(y(top) - 10, -ROW));
      pen.lineTo(x, Math.min(y(end) + 10, height + ROW));
    }
    pen.moveTo(x, y(b.end) + 10);
    pen.lineTo(x + 5, y(b.end) + 10);
    pen.stroke();
    if (b.parts.length > 1) {
      pen.setLineDash([2, 4]);
      pen.beginPath();
      for (let k = 1; k < b.parts.length; k++) {  // the last part comes first
        pen.moveTo(x, Math.max(y(b.parts[k][1]) + 10, -ROW));
        pen.lineTo(x, Math.min(y(b.parts[k - 1][0]) - 10, height + ROW));
      }
      pen.stroke();
      pen.setLineDash([]);
    }
  }
  for (let at = first; at <= last; at++) {
    const {n, fold} = state.rows[at], one = n || fold[0], x = one.aside ? asideX(one) : laneX(one.lane);
    pen.fillStyle = one.aside ? palette.soft : palette[color(one.run)];
    pen.strokeStyle = palette.page;
    pen.lineWidth = 2;
    pen.beginPath();
    if (one.marks & SUMMARY && n) {
      const size = one.aside ? 5 : 7;
      pen.moveTo(x, y(at) - size); pen.lineTo(x + size, y(at)); pen.lineTo(x, y(at) + size);
      pen.lineTo(x - size, y(at)); pen.closePath();
    } else pen.arc(x, y(at), one.marks & PIN ? 6.5 : 5, 0, 7);
    pen.fill();
    pen.stroke();
    if (n && n.marks & PIN) {
      pen.fillStyle = palette.page;
      pen.beginPath(); pen.arc(x, y(at), 2.5, 0, 7); pen.fill();
    }
  }
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
  if (fold) {
    element.classList.add("fold");
    element.id = "row" + fold[0].id;
    element.textContent = `▸ ${count(fold.length)} archived, n${fold[0].id} to n${fold.at(-1).id}`;
    element.onclick = () => unfold(fold);
    return element;
  }
  element.id = "row" + n.id;
  if (n.id === state.chosen) { element.classList.add("chosen"); element.setAttribute("aria-selected", "true"); }
  if (n.marks & SUMMARY) element.classList.add("summary");
  if (n.aside) element.classList.add("aside");
  if (n.marks & EXCLUDED) element.classList.add("excluded");
  if (n.marks & PURGED) element.classList.add("purged");
  if (state.hitSet.has(n.id)) element.classList.add("hit");
  element.append(make("span", "id", "n" + n.id), make("span", "role", n.role));
  if (n.tag) element.append(make("span", "chip plain", "#" + n.tag[0]));
  if (n.marks & PIN) element.append(make("span", "chip plain", "pin"));
  if (n.marks & ARCHIVED) element.append(make("span", "chip plain", "archived"));
  const s = summaries.get(n.id);
  if (s) element.append(make("span", "chip plain",
    `n${s.from}..n${s.to}${s.version > 1 ? " v" + s.version : ""}${s.by ? " superseded" : s.stale ? " stale" : ""}`));
  const said = make("span", "said", oneLine(shown(n)));
  said.dir = "auto";
  element.append(said);
  for (const head of heads) if (head.id === n.id) element.append(chip(head));
  element.onclick = () => choose(n.id, false);
  return element;
}
function chip(head) {
  const made = make("span", `chip ${color((node.get(head.id) || {run: 0}).run)}${head.current ? " now" : ""}`,
    head.name + (head.current ? " ●" : ""));
  made.dir = "auto";
  made.title = head.current ? "head of the current branch" : "head of a branch";
  return made;
}
function unfold(fold) {
  for (const n of fold) state.open.add(n.id);
  layOut(); measure(); redraw(); choose(fold[0].id, true);
}

// ---- choosing ----------------------------------------------------------------------------------

function choose(id, scroll = true) {
  const n = node.get(id);
  if (!n) return;
  if (n.marks & ARCHIVED && !state.open.has(id)) {
    const {fold} = state.rows[place.get(id)];
    for (const each of fold) state.open.add(each.id);
    layOut(); measure();
  }
  state.chosen = id;
  state.comparing = false;
  const list = $("list"), y = place.get(id) * ROW + PAD;
  if (scroll && (y < list.scrollTop + ROW || y > list.scrollTop + list.clientHeight - 2 * ROW))
    list.scrollTop = y - list.clientHeight / 2;
  list.setAttribute("aria-activedescendant", "row" + id);
  document.body.classList.add("open");
  redraw();
  showMessage();
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
const FENCED = /^(```|~~~)[^\n]*\n[\s\S]*?^\1[`~]*[ \t]*(?:\n|$(?![\s\S]))/gm;
function textOf(n) {
  const made = make("pre", n.role === "tool" ? "text tool" : "text"), text = shown(n);
  made.dir = "auto";
  let from = 0;
  for (const found of text.matchAll(FENCED)) {
    const code = make("span", "code");
    code.append(marked(found[0], state.query));
    made.append(marked(text.slice(from, found.index), state.query), code);
    from = found.index + found[0].length;
  }
  made.append(marked(text.slice(from), state.query));
  return made;
}
function factsOf(n) {
  const list = make("dl"), add = (name, value, title) => {
    const word = make("dd", "", value);
    word.dir = "auto";
    if (title) word.title = title;
    list.append(make("dt", "", name), word);
  };
  if (n.said) add("Said", local(n.said), when(n.said));
  add(n.said ? "Recorded" : "Time", local(n.time), when(n.time));
  add("Tokens", count(n.tokens) + (data.root && !n.aside ? `, ${count(n.sum)} up to here` : ""));
  const held = heads.filter((head) => head.id >= n.id && pathTo(head.id).includes(n));
  if (held.length) add(held.length > 1 ? "Branches" : "Branch",
    held.slice(0, 12).map((head) => head.name).join(", ") + (held.length > 12 ? `, and ${count(held.length - 12)} more` : ""));
  add("Came by", {cli: "tl", mcp: "an agent's tools", import: "import"}[n.via] || n.via);
  if (n.format) add("From", [n.format, n.session, n.native].filter(Boolean).join(" · "));
  return list;
}
function link(id, words) {
  const made = make("button", "link", words);
  made.type = "button";
  made.dir = "auto";
  made.onclick = () => choose(id);
  return made;
}
function closer() {
  const made = make("button", "", "Close");
  made.type = "button";
  made.id = "close";
  made.onclick = close;
  return made;
}
function close() {
  document.body.classList.remove("open", "comparing");
  $("compare").setAttribute("aria-pressed", "false");
  if (state.comparing) { state.comparing = false; showMessage(); }
  $("list").focus();
}

function showMessage() {
  const detail = $("detail"), n = node.get(state.chosen);
  document.body.classList.remove("comparing");
  $("compare").setAttribute("aria-pressed", "false");
  detail.replaceChildren();
  detail.scrollTop = 0;
  if (!n) { detail.append(make("p", "empty", "Choose a message to read it.")); return; }
  const title = make("h2", "", `n${n.id} · ${n.role}`);
  if (n.tag) title.append(make("span", "chip plain", "#" + n.tag[0]));
  for (const [bit, word] of [[PIN, "pin"], [EXCLUDED, "excluded"], [ARCHIVED, "archived"], [PURGED, "purged"]])
    if (n.marks & bit) title.append(make("span", "chip plain", word));
  for (const head of heads) if (head.id === n.id) title.append(chip(head));
  title.append(closer());
  detail.append(title, textOf(n), make("h3", "", "About it"), factsOf(n));
  if (n.tag && n.tag[1]) { const note = make("pre", "text", n.tag[1]); note.dir = "auto"; detail.append(make("h3", "", "Note"), note); }
  const tools = make("div", "tools"), context = make("button", "", "Context up to here");
  context.type = "button";
  context.onclick = showContext;
  tools.append(context);
  detail.append(tools);
  const own = summaries.get(n.id);
  if (own) {
    detail.append(make("h3", "", "Stands for"), link(own.from, `n${own.from} to n${own.to}`));
    if (own.supersedes) detail.append(link(own.supersedes, `version ${own.version - 1}: n${own.supersedes}`));
    if (own.by) detail.append(link(own.by, `superseded by n${own.by}`));
    if (own.stale) detail.append(make("p", "meta", "stale: what it rests on was superseded"));
    for (const id of own.rests) detail.append(link(id, `derived from n${id}`));
  }
  const over = [];
  const path = new Set(pathTo(n.id).map((each) => each.id));
  for (const s of summaries.values())
    if (s.from <= n.id && n.id <= s.to && path.has(s.from) && pathTo(s.to).includes(n)) over.push(s);
  if (over.length) {
    detail.append(make("h3", "", "Summaries over it"));
    for (const s of over.reverse())
      detail.append(link(s.id, `n${s.id} v${s.version}, n${s.from}..n${s.to}${s.by ? `, superseded by n${s.by}` : s.stale ? ", stale" : ""}: ${short((node.get(s.id) || {text: ""}).text, 90)}`));
  }
  if (node.has(n.parent)) detail.append(make("h3", "", "Before"), link(n.parent, `n${n.parent} ${short(shown(node.get(n.parent)), 90)}`));
  const below = forks(n.id);
  if (below.length) {
    detail.append(make("h3", "", below.length > 1 ? `A fork of ${count(below.length)}` : "Next"));
    for (const id of below.slice(0, 40)) detail.append(link(id, `n${id} ${short(shown(node.get(id)), 90)}`));
    if (below.length > 40) detail.append(make("p", "meta", `and ${count(below.length - 40)} more`));
  }
}

function turns(list, into) {
  let at = 0;
  const more = make("button", "", "More");
  more.type = "button";
  const add = () => {
    for (const n of list.slice(at, at + 200)) {
      const turn = make("div", "turn");
      turn.append(make("p", "who", `n${n.id} · ${n.role} · ${count(n.tokens)} tokens`), textOf(n));
      more.before(turn);
    }
    at += 200;
    if (at >= list.length) more.remove();
  };
  into.append(more);
  more.onclick = add;
  add();
}

function showContext() {
  const detail = $("detail"), path = pathTo(state.chosen).filter((n) => !(n.marks & EXCLUDED));
  const title = make("h2", "", `Context up to n${state.chosen}`), back = make("button", "", "Back");
  back.type = "button";
  back.onclick = showMessage;
  title.append(back, closer());
  detail.replaceChildren(title, make("p", "meta",
    `${count(path.length)} messages, ${count(path.reduce((sum, n) => sum + n.tokens, 0))} tokens, as they would be sent; excluded ones are left out`));
  turns(path, detail);
  detail.scrollTop = 0;
  back.focus();
}

function showComparison() {
  state.comparing = true;
  document.body.classList.add("open", "comparing");
  $("compare").setAttribute("aria-pressed", "true");
  const detail = $("detail"), title = make("h2", "", "Two branches"), sides = make("div", "sides");
  const current = heads.find((head) => head.current) || heads[0];
  const byName = (name, other) => heads.find((head) => head.name === name) || other;
  const left = byName(state.left, current), right = byName(state.right, heads.find((head) => head !== left) || left);
  title.append(closer());
  detail.replaceChildren(title);
  if (!left) { detail.append(make("p", "empty", "There is no branch with a message.")); return; }
  const paths = [left, right].map((head) => pathTo(head.id));
  let shared = 0;
  while (shared < Math.min(paths[0].length, paths[1].length) && paths[0][shared] === paths[1][shared]) shared++;
  const fork = shared ? paths[0][shared - 1].id : 0;
  detail.append(fork ? link(fork, `They part at n${fork}, after ${count(shared)} messages`) : make("p", "meta", "They share no message."), sides);
  [["left", left], ["right", right]].forEach(([side, head], at) => {
    const column = make("div"), pick = make("select");
    pick.setAttribute("aria-label", side === "left" ? "Left branch" : "Right branch");
    for (const each of heads) { const option = make("option", "", each.name); option.selected = each === head; pick.append(option); }
    pick.onchange = () => { state.left = left.name; state.right = right.name; state[side] = heads[pick.selectedIndex].name; showComparison(); };
    column.append(pick);
    const rest = paths[at].slice(shared);
    if (rest.length) turns(rest, column); else column.append(make("p", "meta", "ends where they part"));
    sides.append(column);
  });
  detail.scrollTop = 0;
}

// ---- search ------------------------------------------------------------------------------------

function search() {
  state.query = $("query").value.toLowerCase();
  state.hits = state.query ? nodes.filter((n) => n.text.toLowerCase().includes(state.query)).map((n) => n.id) : [];
  state.hitSet = new Set(state.hits);
  state.hit = -1;
  $("hits").textContent = state.query ? (state.hits.length ? `${count(state.hits.length)} hits` : "no hits") : "";
  redraw();
  if (!state.comparing && state.chosen) showMessage();
}
function step(by) {
  if (!state.hits.length) return;
  if (state.hit < 0 && state.chosen) {
    const at = node.get(state.chosen).at;
    state.hit = state.hits.findIndex((id) => node.get(id).at >= at);
    if (by < 0 || state.hits[state.hit] === state.chosen) state.hit += by;
  } else state.hit += by;
  state.hit = (state.hit + state.hits.length) % state.hits.length;
  $("hits").textContent = `${count(state.hit + 1)} of ${count(state.hits.length)}`;
  choose(state.hits[state.hit]);
}

// ---- controls ----------------------------------------------------------------------------------

function fillJump() {
  const jump = $("jump"), say = make("option", "", "Go to…");
  say.value = "";
  jump.append(say);
  const add = (label, list) => {
    if (!list.length) return;
    const group = make("optgroup");
    group.label = label;
    for (const [id, words] of list) { const option = make("option", "", words); option.value = id; group.append(option); }
    jump.append(group);
  };
  add("Branches", heads.filter((head) => node.has(head.id)).map((head) => [head.id, head.name + (head.current ? " ●" : "")]));
  add("Forks", nodes.filter((n) => forks(n.id).length > 1).slice(0, 500)
    .map((n) => [n.id, `n${n.id} ${short(shown(n), 40)}`]));
  jump.onchange = () => { if (jump.value) choose(+jump.value); jump.value = ""; };
}
function move(by) {
  const at = state.chosen ? place.get(state.chosen) + by : by > 0 ? 0 : state.rows.length - 1;
  const row = state.rows[Math.max(0, Math.min(state.rows.length - 1, at))];
  if (row) choose((row.n || row.fold[0]).id);
}
// The next message of the same line: a summary beside it is none.
function following(n) {
  return (children.get(n.id) || []).find((id) => node.get(id).run === n.run && !node.get(id).aside);
}
// The same place on the line before or behind, at the nearest fork above.
function sibling(by) {
  for (let n = node.get(state.chosen); n; n = node.get(n.parent)) {
    const all = (children.get(n.parent) || []).filter((id) => !node.get(id).aside);
    if (all.length < 2) continue;
    choose(all[(all.indexOf(n.id) + by + all.length) % all.length]);
    return;
  }
}
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") { if (typing && $("query").value) { $("query").value = ""; search(); } close(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("query") && event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); return; }
  if (typing) return;
  if (event.key === "/") { event.preventDefault(); $("query").focus(); $("query").select(); return; }
  if (event.target !== $("list") && event.target !== document.body) return;
  const n = node.get(state.chosen), keys = {
    ArrowDown: () => n ? choose(following(n)) : move(1), ArrowUp: () => n && choose(n.parent),
    ArrowRight: () => move(1), ArrowLeft: () => move(-1), PageDown: () => move(12), PageUp: () => move(-12),
    Home: () => move(-Infinity), End: () => move(Infinity),
    "[": () => sibling(-1), "]": () => sibling(1), c: showComparison,
    Enter: () => $("detail").focus(),
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
$("find").onsubmit = (event) => { event.preventDefault(); step(1); };
let typingTimer;
$("query").oninput = () => { clearTimeout(typingTimer); typingTimer = setTimeout(search, 120); };
$("next").onclick = () => step(1);
$("before").onclick = () => step(-1);
$("compare").onclick = () => state.comparing ? close() : showComparison();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function theme(name) { document.documentElement.dataset.theme = name; readPalette(); draw(); }
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.onchange = () => theme(dark.matches ? "dark" : "light");
$("list").addEventListener("scroll", later, {passive: true});
window.addEventListener("resize", later);
window.addEventListener("beforeprint", () => {
  const current = heads.find((head) => head.current), chosen = state.chosen || (current && current.id) || 0;
  const paper = $("paper");
  paper.replaceChildren(make("h1", "", data.title));
  for (const n of pathTo(chosen)) {
    const turn = make("div", "turn");
    turn.append(make("p", "who", `n${n.id} · ${n.role} · ${when(n.said || n.time)}`), textOf(n));
    paper.append(turn);
  }
});
window.addEventListener("afterprint", () => $("paper").replaceChildren());

$("title").textContent = data.title;
$("facts").textContent = `${count(nodes.length)} messages · ${count(heads.length)} branches · ${count(summaries.size)} summaries`;
layOut();
measure();
fillJump();
document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
readPalette();
const now = heads.find((head) => head.current);
if (now && node.has(now.id)) {
  state.chosen = now.id;
  $("list").scrollTop = place.get(now.id) * ROW;
}
draw();
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
            found[message["node"]] = decode_head(line)["blocks"]
    return found


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
            data = self.database.kept_bytes(str(source.get("sha256", "")))
            media = source.get("media_type")
            if data is not None and isinstance(media, str):
                from base64 import b64encode

                encoded = b64encode(data).decode("ascii")
                return {
                    "type": kind,
                    "source": {"type": "base64", "media_type": media, "data": encoded},
                }
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
