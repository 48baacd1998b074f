"""Pictures of a timeline: a database in, lines of text out. Opens no file and changes nothing.

MAP (sections are marked by banners)
   1 one line      texts and names as one harmless line
   2 view          the nodes of a picture in columns, how they hang together, their marks
   3 ascii         the tree for people at a terminal

HOW A TREE IS DRAWN
  * A view is a whole timeline, or a part of one path: a branch's path or an interval.
  * Placeholders are in no view: they stand for nothing that is not drawn.
  * A summary that conversations go on from is drawn where it hangs, beside what it stands for.
    One that nothing hangs on is an aside under the last node of its interval. In a part of a path
    every summary off the path is such an aside, and those whose interval ends elsewhere are not
    drawn: they do not apply there.
  * `(in nX)` names the newest of the summaries with a node in their interval. A version has a
    larger number than what it supersedes, so it is never a superseded one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left

from timeline import (
    DEPTH,
    FLAGS,
    HAS_INTENT,
    JOINS,
    KIND_PLACEHOLDER,
    KIND_REAL,
    KIND_SUMMARY,
    LENGTH,
    OFFSET,
    PARENT,
    ROLE_MASK,
    ROLES,
    ROW_BYTES,
    TL,
    Busy,
    InvalidArgument,
    NotFound,
    Refused,
    checked_row,
    climb,
    common_ancestor,
    decode_head,
    is_ancestor,
    is_purged,
    line_text,
    quoted,
    unit_first,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from timeline import Database, Row, Rows, Store, Summaries, TimelineState

    T = TypeVar("T")

__all__ = ["ascii_tree", "one_line"]

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

    def __init__(self, database: Database, tl: int, interval: tuple[int, int] | None) -> None:
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
            self._add_timeline(store.rows, tl)
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

    def _add_timeline(self, rows: Rows, tl: int) -> None:
        for start, raw in rows.chunks(1, len(rows)):
            for byte in range(0, len(raw), ROW_BYTES):
                row = checked_row(raw, byte)
                if row[TL] == tl and not row[FLAGS] & KIND_PLACEHOLDER:
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
        """For each place the newest summary whose interval holds it, 0 if none does.

        Newest first, each paints what it holds and no other has painted. Painted nodes are passed
        over in jumps that get longer, so long and overlapping intervals cost next to nothing.
        """
        newest = _zeros(len(self.ids))
        bare = array("I", range(self.tree_end))  # where to look on: itself while it is not painted
        for node in reversed(known.order):
            summary = known.by_node[node]
            place = self.place_of(summary.last)
            while True:
                while bare[place] != place:
                    bare[place] = bare[bare[place]]
                    place = bare[place]
                # Of two nodes on one path the upper one has the smaller number.
                if self.ids[place] < summary.first:
                    break
                newest[place] = node
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
_BAR = -1  # in the place of a place: a line that only leads on
_NEEDS_QUOTES = re.compile(r'[\s"()\[\]]')


def ascii_tree(
    database: Database,
    tl: int,
    *,
    branch: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Iterator[str]:
    """The lines of the tree of timeline `tl`, or of one branch's path, or of one interval.

    They come without newlines. What is asked for is checked and laid out at once, the texts are
    read as the lines are taken. Time and memory grow with the nodes in view (for a whole timeline
    the rows of the database are passed over) and with the timeline's summaries.

    Raises:
        InvalidArgument: a branch and an interval, or half an interval.
        NotFound: no such timeline, branch or node. Refused: no interval of this timeline.
        Corrupt: also while lines are taken: a text no longer matches its checksum.
    """

    def laid_out() -> View:
        store = database.refresh()
        return View(database, tl, _interval(store, tl, branch, first, last))

    view: View = database.again_if_unfit(laid_out)
    return _ascii_lines(view)


def _ascii_lines(view: View) -> Iterator[str]:
    waiting: list[tuple[str, int]] = []
    nodes: list[int] = []
    size = 0
    for lead, place in _layout(view):
        waiting.append((lead, place))
        size += len(lead)
        if place > 0:
            nodes.append(place)
        if len(nodes) == NODES_READ or size > LEADS_CHARS_MAX:
            yield from _with_nodes(view, waiting, nodes)
            waiting, nodes, size = [], [], 0
    yield from _with_nodes(view, waiting, nodes)


def _with_nodes(view: View, waiting: list[tuple[str, int]], nodes: list[int]) -> Iterator[str]:
    shown = view.read(nodes, lambda place, line: _node(view, place, line))
    shown[0] = "[n0]" + _heads(view, 0)
    shown[_BAR] = ""
    for lead, place in waiting:
        yield lead + shown[place]


def _layout(view: View) -> Iterator[tuple[str, int]]:
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
        child = first[place]
        if child:
            yield margin + "|", _BAR
            if not following[child]:
                lead, place = margin, child
                continue
            forks.append((child, len(margin)))
        if not forks:
            return
        place, width = forks.pop()
        # What stands left of a fork is the same for all its children.
        margin = margin[:width]
        if following[place]:
            forks.append((following[place], width))
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


def _node(view: View, place: int, line: bytes) -> str:
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
    return f'[{" ".join(words)}] "{one_line(text)}"{_heads(view, node)}'


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
