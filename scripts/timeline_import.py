"""Transcripts of agents: read them, lay them out as trees, bring them into a database.

MAP (sections are marked by banners)
   1 limits        numbers with their units
   2 lines         bytes in, JSON objects out; damage is counted, never fatal
   3 shape         what every reader returns: Transcript, Entry, Compaction, Counts, Notes
   4 content       blocks of a message -> readable text, what an API would be sent, placeholders
   5 links         missing parents, cycles, the order in which nodes are made
   6 claude-code   session files of Claude Code
   7 messages      our own simple form, one JSON object a line
   8 lines         what readers by line share
   9 codex         rollouts of Codex
  10 pi            sessions of pi
  11 gemini        sessions and chats of Gemini
  12 documents     bytes in, JSON values out, where a file is one document
  13 chatgpt       export of ChatGPT
  14 claude-ai     export of Claude.ai
  15 opencode      sessions of OpenCode
  16 arrays        messages as the APIs of OpenAI and Anthropic take them
  17 timeline-json documents that `tl export` wrote
  18 formats       the one table of readers; a format is told by its content
  19 layout        the client's own chain -> our tree: results, compactions, copies, the active leaf
  20 names         names of branches
  21 database      which timeline, which branch, what is written
  22 planting      the same for those of section 17, which are trees already
  23 files         files, folders, ZIPs; `import_paths`, `sync`
  24 disk          OpenCode's database and its folder of small files, turned into its export
  25 hooks         what clients run at events of a session
  26 demo          a conversation to try things with

Sections 2 to 20 are pure: a reader gets a binary stream that somebody else opened, and a layout
gets the ground it stands on. Sections 21 and 22 write through the engine, sections 23 and 24 open
files, for reading only.

WHO WAITS FOR WHOM
  The database is locked only while a file's new messages are written. Unpacking, splitting into
  lines and decoding happen before (`Format.read`, all of a file), comparing the messages that are
  known already happens after. So a file that holds nothing new, however large, keeps other
  writers waiting only while its ids are looked up (in `messages` and plain arrays, where ids may
  clash, also while those that are found are compared). Of a file with many conversations, some are
  read, then written, then the next. What is kept in between is where each message stands, not
  what it says: that is read again, message by message, as it is written.

HOW A GROWING FILE IS READ ON
  `sync` and hooks keep a bookmark of each large file that changed lately: how far it was read, and
  what its reader knew there (section 23). Of Claude Code and Codex that is the newest messages, the
  window; the other readers keep all. Only what came behind the bookmark is read then. Where that
  has to do with what is out of the window (an older parent, a message written again, kept messages,
  a rollback), the file is read from the start, so that the outcome is always that of one import.
  A bookmark holds for one database, one program and one file, told by its place and by the bytes at
  its begin and before the bookmark. What a client may still add to, and what hangs on a message not
  written yet, is held back: it stays in the window, and no node is made of it.

HOW A CONVERSATION BECOMES A TREE
  * A message is one node. Records that are pieces of one message become one node; records that
    only carry state become none, and what follows them hangs on the message above.
  * Order is the order of the file. A message whose parent stands later in the file comes right
    after that parent; one whose parent is nowhere hangs on the message before it, with a warning.
  * All results of one assistant message form one chain below it, and what follows hangs on the
    last of them. A result that arrives when the chain already goes on is a leaf of its own.
  * A compaction becomes a summary node over what it stands for, beside it, not behind it. `main`
    goes on behind the summary; the old end keeps a branch `before compaction K`. What the client
    kept in view is written again behind the summary, as copies.
  * A message is known by its own id, in the whole database: reading a file twice, or a fork that
    repeats its parent's records, adds nothing.

COUNTS
  records = added + folded + known + changed + hidden + skipped + sidechain + bad + pending, where
  a record is a line that is not blank (or one of several objects glued on one line), a node of a
  `mapping`, or a message of an array.
"""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sys
import time
from collections import Counter

import timeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from typing import Any, BinaryIO

    from timeline import Branch, Database, Importing, TimelineState

    Json = dict[str, Any]
    Known = Callable[[str], int | None]
    Draft = Callable[[Known], "Transcript"]
    from typing import TypeAlias

    Reader: TypeAlias = "_ClaudeFile | _CodexFile | _PiFile | _GeminiFile | _MessagesFile"

__all__ = ["FORMATS", "demo_transcript", "import_paths", "lay_out", "recognize"]

# ================================================================================================
# 1. Limits
# ================================================================================================

NESTING_MAX = 200  # brackets inside brackets; json itself gives up somewhere near 1,000
ID_CHARS_MAX = 256  # a longer id is replaced by its hash
PATH_CHARS_MAX = 4_096  # a longer cwd is dropped
USAGE_CHARS_MAX = 16_384  # as JSON; a longer vendor usage is dropped
WARNINGS_SHOWN_MAX = 20  # of one kind in one conversation; the rest is counted
HEAD_LINES = 1_000  # looked at to tell a format
HEAD_BYTES = 32 << 20  # the line that reaches it is read to its end
BLANK_BYTES = 4_096  # stepped over at once
RESYNC_TRIES = 50  # places at which a torn line is searched for a whole record behind it
DAYS_KEPT = 1_000  # whose first second is remembered
SECONDS_MAX = 100_000_000_000  # of a time given as a number; a larger one is no time in seconds
IMAGE_TOKENS = 1_600  # of an image whose header tells no size
IMAGE_PIXELS_A_TOKEN = 750
IMAGE_SIDE_MAX = 100_000  # pixels; a larger number is damage
CHUNK_NODES = 20_000  # one transaction at most, so that memory and the log's tail stay small
CHUNK_CHARS = 8 << 20
BRANCH_CHARS = 40  # of a name made from a text or a title
# Of one line. An API takes requests of 32 MB at most, and a client may write what a tool returned
# twice; a longer line is no message, and decoding it would take gigabytes of memory.
LINE_BYTES_MAX = 64 << 20
# Of one conversation of an export; a larger one is damage, such as a bracket never closed.
CONVERSATION_BYTES_MAX = 256 << 20
WINDOW_BYTES = 1 << 20  # read at once of a file of JSON documents
RESYNC_FAILS = 50  # places behind damage from which nothing can be read, before giving up
CONVERSATIONS_AT_ONCE = 64  # read before any of them is written
# Unpacked, of one ZIP member: more than sessions have; without a limit a small file fills the disk.
MEMBER_BYTES_MAX = 1 << 30
MEMBER_BYTES_IN_MEMORY = 32 << 20  # a larger ZIP member goes through a temporary file
SLICE_BYTES = 2 << 20  # of a file, read and written before a look at the clock
WHOLE_BYTES_MAX = 64 << 20  # of a file that is read again from the start when there is no time
PROGRESS_EVERY = 5_000  # nodes
PROGRESS_BYTES = 16 << 20
# Where the reading of a file stopped is kept for large files to which something was added lately.
BOOKMARK_BYTES_MIN = 256 << 10
WINDOW_MESSAGES = 400  # of the newest, that a reader keeps in mind from one time to the next
BOOKMARK_DAYS = 7
PI_FIRST_MAX = 17  # in a pi session of version 1 the first message stands before this line
KEPT_MAX = 200_000  # messages that all compactions of a pi session keep: each is written again

# ================================================================================================
# 2. Lines
#
# Knows bytes and JSON; must not know what a record means.
# ================================================================================================

_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n\f\v]*")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if number - number != 0:
        raise ValueError(f"{literal} is no finite number")
    return number


_scan = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite).raw_decode


compact_json = timeline.dumps  # without spaces, without ASCII escapes


class Found:
    """One object of a line, or None for a stretch that cannot be read, and where it stands.

    `index` counts the objects glued on the line; `mended` says that lone surrogates were replaced.
    """

    __slots__ = ("ended", "index", "line", "mended", "offset", "torn", "value")

    def __init__(self, value: Json | None, line: int, offset: int, index: int) -> None:
        self.value = value
        self.line = line
        self.offset = offset
        self.index = index
        self.mended = False
        self.ended = True  # its line has its newline
        self.torn = False  # unreadable, and the last line of the file without its newline


class Lines:
    """The JSON objects of a binary stream of lines, in order; any of them can be read again.

    Only `\\n` ends a line: U+2028 and its like may stand inside strings. `accepts` tells a record
    of the format from another object; it is asked only where a whole record may follow a torn one.

    Raises:
        Unreadable: while it is read, for a line above LINE_BYTES_MAX.
    """

    __slots__ = ("_accepts", "_stream", "next", "reread_bytes")

    def __init__(self, stream: BinaryIO, accepts: Callable[[Json], bool]) -> None:
        self.reread_bytes = 0  # by `at`, in all
        # Offset and number of the line whose objects come now, or that comes next.
        self.next = 0, 1
        self._stream = stream
        self._accepts = accepts

    def __iter__(self) -> Iterator[Found]:
        return self.since(0, 1)

    def since(self, offset: int, number: int) -> Iterator[Found]:
        """The objects from the line on that begins at `offset` and has this number."""
        self._stream.seek(offset)
        self.next = offset, number
        while raw := self._read_line(number):
            if raw in (b"\n", b"\r\n"):
                raw += self._read_blank()
            else:
                ended = raw.endswith(b"\n")
                for found in self._objects(raw, number, offset):
                    found.ended = ended
                    found.torn = found.value is None and not ended
                    yield found
            offset += len(raw)
            number += raw.count(b"\n")
            self.next = offset, number

    def bytes_before(self, offset: int) -> bytes:
        """What stands right before `offset`, to tell whether a file is the one that was read."""
        place = self._stream.tell()
        start = max(0, offset - BLANK_BYTES)
        self._stream.seek(start)
        raw = self._stream.read(offset - start)
        self._stream.seek(place)
        return raw

    def size(self) -> int:
        """Bytes of the stream."""
        return self._stream.seek(0, os.SEEK_END)

    def head(self) -> Iterator[Json]:
        """The objects of the first lines, as many as it takes to tell a format."""
        self._stream.seek(0)
        left = HEAD_BYTES
        for number in range(1, HEAD_LINES + 1):
            raw = self._read_line(number)
            left -= len(raw)
            yield from (f.value for f in self._objects(raw, number, 0) if f.value is not None)
            if not raw or left <= 0:
                return

    def at(self, offset: int, index: int) -> Json:
        """The object that an iteration found at `offset` and `index`.

        Raises:
            Refused: the stream no longer holds it, so somebody rewrote the file meanwhile.
        """
        place = self._stream.tell()  # an iteration may be under way
        self._stream.seek(offset)
        raw = self._stream.readline(LINE_BYTES_MAX)
        self._stream.seek(place)
        self.reread_bytes += len(raw)
        for found in self._objects(raw, 0, offset):
            if found.index == index and found.value is not None:
                return found.value
        raise rewritten(offset)

    def _read_line(self, number: int) -> bytes:
        raw = self._stream.readline(LINE_BYTES_MAX + 1)
        if len(raw) > LINE_BYTES_MAX:
            raise Unreadable(
                f"line {number} has {len(raw)} bytes or more, above the limit of {LINE_BYTES_MAX}: "
                "split or remove it and import again",
                line=number,
                max_bytes=LINE_BYTES_MAX,
            )
        return raw

    def _read_blank(self) -> bytes:
        """Blank lines that come next, many at once: a small ZIP may hold a hundred million."""
        place = self._stream.tell()
        raw = self._stream.read(BLANK_BYTES)
        blank = raw[: len(raw) - len(raw.lstrip(b"\r\n"))]
        blank = blank[: blank.rfind(b"\n") + 1]
        self._stream.seek(place + len(blank))
        return blank

    def _objects(self, raw: bytes, number: int, offset: int) -> Iterator[Found]:
        text, odd = decode_line(raw)
        odd = odd or _SURROGATE_ESCAPE.search(text) is not None
        deep = text.count("{") + text.count("[") > NESTING_MAX
        place = _after_space(text, 0)
        if place == len(text) and b"\0" in raw:
            yield Found(None, number, offset, 0)
        index = 0
        while place < len(text):
            value, end = _object_at(text, place, deep)
            found = Found(value, number, offset, index)
            if value is not None and odd:
                found.value, found.mended = _mended(value)
            yield found
            place = end if value is not None else self._resync(text, place, deep)
            place = _after_space(text, place)
            index += 1

    def _resync(self, text: str, place: int, deep: bool) -> int:
        """Where a whole record stands behind the torn one at `place`; the end if there is none."""
        for _ in range(RESYNC_TRIES):
            place = text.find('{"', place + 1)
            if place < 0:
                break
            value, end = _object_at(text, place, deep)
            if value is not None and self._accepts(value) and _after_space(text, end) == len(text):
                return place
        return len(text)


class Unreadable(timeline.InvalidArgument):
    """A transcript that is above a limit; nothing of it is read in."""


def rewritten(offset: int) -> timeline.Refused:
    """The error for a record that is no longer where it was found."""
    return timeline.Refused(
        "the transcript changed while it was read: import it again", offset=offset
    )


def decode_line(raw: bytes) -> tuple[str, bool]:
    """The text of a line without newline, CR, BOM and NULs; and whether bytes had to be mended."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in raw:
        raw = raw.replace(b"\0", b"")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode(), False
    except UnicodeDecodeError:
        pass
    try:
        # Surrogates written as bytes: pairs are joined, lone ones replaced.
        wide = raw.decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        return wide.decode("utf-16-le", "replace"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), True


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _object_at(text: str, place: int, deep: bool) -> tuple[Json | None, int]:
    """The object that begins at `place` and where it ends; (None, place) if none does."""
    if text[place] != "{":
        return None, place
    try:
        value, end = _scan(text, place)
    except (ValueError, RecursionError):
        return None, place
    if deep and _is_too_deep(value):
        return None, place
    return value, end


def _is_too_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(NESTING_MAX):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _mended(value: Json) -> tuple[Json, bool]:
    """`value` with U+FFFD for each lone surrogate, and whether there was one."""
    text = json.dumps(value, ensure_ascii=False)
    mended, count = _SURROGATES.subn("\ufffd", text)
    if count:
        value = json.loads(mended)
    return value, count > 0 or "\ufffd" in text


# ================================================================================================
# 3. Shape
#
# What stands between readers and the rest. Structure is held in memory, content is not: an entry
# knows where its records stand, and `Transcript.content` reads them again.
# ================================================================================================

ROOT = -1  # instead of a parent's index: a message that begins a line
LOST = -2  # a parent that nobody knows


class Piece:
    """Where one record of a message stands: line, byte offset of the line, object on that line;
    `part`: which one it is of a list that the object holds."""

    __slots__ = ("id", "index", "line", "offset", "part")

    def __init__(self, id: str, found: Found, part: int | None = None) -> None:
        self.part = part
        self.id = id
        self.line = found.line
        self.offset = found.offset
        self.index = found.index


class Compaction:
    """What a client said about a summary: how it was started and which entries it kept in view.

    `copied_only`: what hangs on a kept entry means the original, not the copy behind the summary.
    """

    __slots__ = ("copied_only", "kept", "trigger")

    def __init__(self, trigger: str | None) -> None:
        self.trigger = trigger
        self.copied_only = False
        self.kept: list[int] = []  # indices of entries


class Entry:
    """One message: its native id, aliases (`pieces` beyond the first), parent, role and kind.

    `parent` is an index of the same transcript, ROOT or LOST, and after `settle` no longer LOST:
    then `gap` says what was wrong. `wanted` is the native id of a parent that is in no line of the
    file. `node` is the node that carries this message already, `outside` the node of `wanted`;
    `away`: it is known, but in another timeline; `held`: it waits for a later time. `native`: the
    id that the client wrote, where the one it is known by says more. `also`: what else it is to be
    known by. `cwd` and `usage` (where it stands) are set where its own records do not tell them.
    `exported`: the node, as n5, that a record written by `tl export` says it is.
    """

    __slots__ = (
        "also", "away", "calls", "compaction", "cwd", "error", "exported", "gap", "held", "kind",
        "native", "node", "outside", "parent", "pieces", "results", "role", "usage", "wanted",
    )  # fmt: skip

    def __init__(self, role: str, piece: Piece) -> None:
        self.role = role
        self.pieces = [piece]
        self.parent = ROOT
        self.kind: str | None = None
        self.calls = False  # an assistant message that calls tools
        self.results = False  # holds results of such calls
        self.error = False  # a failed request, not an answer
        self.compaction: Compaction | None = None
        self.gap: str | None = None
        self.wanted: str | None = None
        self.node: int | None = None
        self.outside: int | None = None
        self.away = False
        self.held = False
        self.exported: str | None = None
        self.native: str | None = None
        self.also: tuple[str, ...] = ()
        self.cwd: str | None = None
        self.usage: Piece | None = None

    @property
    def id(self) -> str:
        return self.pieces[0].id

    @property
    def line(self) -> int:
        return self.pieces[0].line


class Counts:
    """Where each record went; `hidden`, `skipped` and `known` by reason."""

    __slots__ = ("bad", "changed", "hidden", "known", "pending", "records", "sidechain", "skipped")

    def __init__(self) -> None:
        self.records = 0
        self.bad = 0
        self.changed = 0
        self.pending = 0
        self.sidechain = 0
        self.hidden: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.skipped: dict[str, int] = {}

    def since(self, earlier: Counts) -> Counts:
        """What was counted after `earlier`."""
        more = Counts()
        for name in self.__slots__:
            now, then = getattr(self, name), getattr(earlier, name)
            if isinstance(now, dict):
                then = {reason: now[reason] - count for reason, count in then.items()}
                setattr(more, name, {**now, **then})
            else:
                setattr(more, name, now - then)
        return more


def _count(table: dict[str, int], reason: str) -> None:
    table[reason] = table.get(reason, 0) + 1


class Notes:
    """Warnings: how many of each kind, and the first few of each in words."""

    __slots__ = ("kinds", "words")

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.words: list[str] = []

    def add(self, kind: str, words: str) -> None:
        _count(self.kinds, kind)
        if self.kinds[kind] <= WARNINGS_SHOWN_MAX:
            self.words.append(words)

    def to_list(self) -> list[str]:
        more = [
            f"{count - WARNINGS_SHOWN_MAX} more like this: {kind}"
            for kind, count in self.kinds.items()
            if count > WARNINGS_SHOWN_MAX
        ]
        return self.words + more


class Content:
    """What a message says.

    `text` is for reading; `sent` is what an API would be sent of it, for the estimator, with
    `image_tokens` beside it; `blocks` are the exact ones, None where `text` says it all. `files`
    holds the bytes whose place a placeholder took. `tokens` is a count given by the transcript.
    `size` is how many bytes its records are; its blocks as JSON are hardly more.
    """

    __slots__ = (
        "blocks", "cwd", "files", "image_tokens", "sent", "size", "text", "time", "tokens",
        "usage",
    )  # fmt: skip

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.sent = text
        self.image_tokens = 0
        self.blocks: list[Json] | None = None
        self.files: list[bytes] = []
        self.time: int | None = None
        self.cwd: str | None = None
        self.usage: Json | None = None
        self.tokens: int | None = None
        self.size = 0

    def count(self, estimator: str) -> int:
        """Tokens of the message."""
        if self.tokens is not None:
            return self.tokens
        tokens = timeline.estimate(self.sent, estimator) + self.image_tokens
        return min(tokens, timeline.TOKENS_MAX)


class Settled:
    """What an earlier reading of a file told of already: all records before byte `offset` but
    `pending` (offset and index of each), as counted in `counts`."""

    __slots__ = ("counts", "offset", "pending")

    def __init__(self, offset: int, pending: set[tuple[int, int]], counts: Counts) -> None:
        self.offset = offset
        self.pending = pending
        self.counts = counts

    def is_new(self, piece: Piece) -> bool:
        """Whether nobody was told of this piece yet."""
        return piece.offset >= self.offset or (piece.offset, piece.index) in self.pending


class Transcript:
    """One conversation as a reader found it: entries in file order, and what else is known.

    `unique`: its ids are different from those of every other conversation, so they alone tell
    where it belongs. `read` gives the content of an entry. `active` is the index of the entry at
    which the client would go on, None if there are none; `undone`: exactly there, since the client
    took back what hangs below. `space`: which formats share ids. `unit`: what `line` of an entry
    counts. `part` tells conversations of one file apart that have no session. `loose`: the first
    entry that its client may still add to or take back, as those behind it. `pending`: what was
    held back of it. `agent`: it is the run of a subagent, of this session and by this name. Where
    `entries` begin at byte `begin` and not at the first: `compactions` is
    how many there were before, and `lacks` tells that something speaks of what was before, so that
    all of the file must be read.
    """

    __slots__ = (
        "active", "agent", "begin", "compactions", "counts", "cwd", "entries", "format", "lacks",
        "loose", "notes", "part", "pending", "read", "session", "settled", "space", "time", "title",
        "undone", "unique", "unit",
    )  # fmt: skip

    def __init__(self, format: str, unique: bool, read: Callable[[Entry], Content]) -> None:
        self.format = format
        self.unique = unique
        self.read = read
        self.space = format
        self.unit = "line"
        self.part = 0
        self.undone = False
        self.session: str | None = None
        self.title: str | None = None
        self.cwd: str | None = None
        self.time: int | None = None
        self.entries: list[Entry] = []
        self.active: int | None = None
        self.counts = Counts()
        self.notes = Notes()
        self.loose: int | None = None
        self.pending: list[Piece] = []
        self.settled = Settled(0, set(), Counts())
        self.agent: tuple[str, str] | None = None
        self.begin = 0
        self.compactions = 0
        self.lacks = False

    def identity(self, native: str) -> str:
        """What the database knows the message with this native id by."""
        return f"{self.space}\0{native}"

    def at(self, entry: Entry) -> str:
        """Where the entry stands, for people."""
        return f"{self.unit} {entry.line}"

    def note_gaps(self) -> None:
        """Warn of each entry that was hung on the one before it."""
        for entry in self.entries:
            if entry.gap is None or entry.held:
                continue
            if self.settled.is_new(entry.pieces[0]):
                where = (
                    "it begins a line" if entry.parent == ROOT else "hung on the message before it"
                )
                self.notes.add(entry.gap, f"{self.at(entry)}: {entry.gap}; {where}")


# ================================================================================================
# 4. Content
#
# Blocks as the Messages API of Anthropic has them, which other formats can be turned into.
# ================================================================================================

_DAY_ONE = 719_163  # number of 1970-01-01, counting from 0001-01-01 as 1
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.\d+)?\s*"
    r"(?:[Zz]|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
_midnights: dict[str, int | None] = {}  # days seen lately, since a file has many records a day


def parse_time(value: object) -> int | None:
    """Whole Unix seconds of an ISO time (UTC where it names no zone) or of a number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value) if abs(value) < SECONDS_MAX else None
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    day, hour, minute, second, sign, hours, minutes = match.groups()
    midnight = _midnights[day] if day in _midnights else _midnight(day)
    if midnight is None:
        return None
    seconds = midnight + 3600 * int(hour) + 60 * int(minute) + int(second)
    shift = 60 * (60 * int(hours) + int(minutes)) if sign else 0
    return seconds + shift if sign == "-" else seconds - shift


def _midnight(day: str) -> int | None:
    """Unix seconds at which the UTC day `yyyy-mm-dd` begins; None if there is no such day."""
    from datetime import date

    if len(_midnights) > DAYS_KEPT:
        _midnights.clear()
    try:
        _midnights[day] = 86_400 * (date.fromisoformat(day).toordinal() - _DAY_ONE)
    except ValueError:
        _midnights[day] = None
    return _midnights[day]


def native_id(value: object) -> str | None:
    """`value` if it can be an id: a string that is not empty; a very long one as its hash."""
    if not isinstance(value, str) or not value:
        return None
    return value if len(value) <= ID_CHARS_MAX else f"sha256:{sha256(value.encode())}"


def sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


class Renderer:
    """Collects the blocks of one message into a Content."""

    __slots__ = ("blocks", "content", "plain", "sent", "shown")

    def __init__(self) -> None:
        self.content = Content()
        self.blocks: list[Json] = []
        self.shown: list[str] = []
        self.sent: list[str] = []
        self.plain = True  # nothing but one text

    def finish(self) -> Content:
        """The content of all blocks added."""
        self.content.text = "\n\n".join(self.shown)
        self.content.sent = "".join(self.sent)
        if not (self.plain and len(self.blocks) <= 1):
            self.content.blocks = self.blocks
        return self.content

    def add(self, content: object) -> None:
        """Take the `content` of one record: a string, or a list of blocks."""
        if isinstance(content, str):
            self._say(content)
            self.blocks.append({"type": "text", "text": content})
        for block in content if isinstance(content, list) else ():
            self.blocks.append(self._block(block))

    def _say(self, text: str) -> None:
        self.shown.append(text)
        self.sent.append(text)

    def _block(self, block: object) -> Json:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, dict):
            self.plain = False
            return {"type": "unknown", "value": block}
        kind = block.get("type")
        text = block.get("text")
        if kind == "text" and isinstance(text, str):
            self.plain = self.plain and len(block) == 2
            self._say(text)
            return block
        self.plain = False
        render = self._KINDS.get(kind) if isinstance(kind, str) else None
        if render is not None:
            return render(self, block)
        self.shown.append(f"[{kind}]" if isinstance(kind, str) else "[unknown block]")
        return block

    def _thinking(self, block: Json) -> Json:
        return block

    def _call(self, block: Json) -> Json:
        name = block.get("name")
        name = name if isinstance(name, str) else "tool"
        given = compact_json(block.get("input"))
        self.shown.append(f"[call {name}] {given}")
        self.sent.append(name + given)
        return block

    def _result(self, block: Json) -> Json:
        start = len(self.shown)
        inner = block.get("content")
        if isinstance(inner, str):
            self._say(inner)
        elif isinstance(inner, list):
            block = {**block, "content": [self._block(each) for each in inner]}
        text = "\n\n".join(self.shown[start:])
        self.shown[start:] = [f"[error] {text}" if block.get("is_error") is True else text]
        return block

    def _binary(self, block: Json) -> Json:
        """An image or document: bytes become a placeholder that names them."""
        kind, source = block["type"], block.get("source")
        source = source if isinstance(source, dict) else {}
        data = source.get("data")
        media = source.get("media_type")
        media = media if isinstance(media, str) else "unknown type"
        title = block.get("title")
        label = f"{kind} {title:.200}" if isinstance(title, str) and title else kind
        if source.get("type") == "text" and isinstance(data, str):
            if label != kind:
                self.shown.append(f"[{label}]")
            self._say(data)
            return block
        if source.get("type") == "sha256" and isinstance(source.get("sha256"), str):
            # A placeholder already.
            size, digest = source.get("bytes"), source["sha256"]
            self.shown.append(f"[{label} {media}, {size!s:.20} bytes, sha256 {digest:.64}]")
            self.content.image_tokens += _image_tokens((source.get("width"), source.get("height")))
            return block
        raw = _from_base64(data) if isinstance(data, str) else None
        if raw is None:
            where = source.get("url") or source.get("file_id") or "no content"
            self.shown.append(f"[{label}]" if label != kind else f"[{kind} {where!s:.500}]")
            self.content.image_tokens += _image_tokens((block.get("width"), block.get("height")))
            return (
                block if not isinstance(data, str) else {**block, "source": {"type": "unreadable"}}
            )
        return {**block, "source": self._place(label, media, raw)}

    def _place(self, label: str, media: str, raw: bytes) -> Json:
        digest = sha256(raw)
        place: Json = {"type": "sha256", "media_type": media, "bytes": len(raw), "sha256": digest}
        size = image_size(raw)
        if size is not None:
            place["width"], place["height"] = size
        self.content.image_tokens += _image_tokens(size)
        self.content.files.append(raw)
        self.shown.append(f"[{label} {media}, {len(raw)} bytes, sha256 {digest}]")
        return place

    _KINDS: dict[str, Callable[[Renderer, Json], Json]] = {  # noqa: RUF012
        "audio": _binary,
        "document": _binary,
        "image": _binary,
        "redacted_thinking": _thinking,
        "server_tool_use": _call,
        "thinking": _thinking,
        "tool_result": _result,
        "tool_use": _call,
    }


def block_text(block: Json) -> str:
    """What is shown of one block."""
    renderer = Renderer()
    renderer.add([block])
    return renderer.finish().text


def _from_base64(data: str) -> bytes | None:
    import binascii

    try:
        return binascii.a2b_base64(data)
    except (ValueError, binascii.Error):
        return None


def _image_tokens(size: tuple[object, object] | None) -> int:
    """Tokens of an image `size` pixels wide and high; of one that is no size, the rule's."""
    width, height = size or (None, None)
    for side in (width, height):
        if type(side) is not int or not 0 < side <= IMAGE_SIDE_MAX:
            return IMAGE_TOKENS
    assert isinstance(width, int) and isinstance(height, int)
    return -(-width * height // IMAGE_PIXELS_A_TOKEN)


def image_size(raw: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels that the header of a PNG, GIF, JPEG or WebP tells."""
    size = None
    if raw[:8] == b"\x89PNG\r\n\x1a\n" and len(raw) >= 24:
        size = int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
    elif raw[:4] == b"GIF8" and len(raw) >= 10:
        size = int.from_bytes(raw[6:8], "little"), int.from_bytes(raw[8:10], "little")
    elif raw[:2] == b"\xff\xd8":
        size = _jpeg_size(raw)
    elif raw[:4] == b"RIFF" and raw[8:12] == b"WEBP" and len(raw) >= 30:
        size = _webp_size(raw)
    if size is None or not (0 < size[0] <= IMAGE_SIDE_MAX and 0 < size[1] <= IMAGE_SIDE_MAX):
        return None
    return size


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(raw) and raw[place] == 0xFF:
        marker = raw[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            height = int.from_bytes(raw[place + 5 : place + 7], "big")
            return int.from_bytes(raw[place + 7 : place + 9], "big"), height
        bare = marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD8
        place += 1 if marker == 0xFF else 2
        if not bare:
            place += max(2, int.from_bytes(raw[place : place + 2], "big"))
    return None


def _webp_size(raw: bytes) -> tuple[int, int] | None:
    form = raw[12:16]
    if form == b"VP8X":
        width, height = raw[24:27], raw[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if form == b"VP8L":
        bits = int.from_bytes(raw[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        width, height = raw[26:28], raw[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


# ================================================================================================
# 5. Links
#
# Knows parents as numbers. All linear in the number of entries, none recursive.
# ================================================================================================


def settle(parents: list[int]) -> dict[int, str]:
    """Give each LOST parent, and the first member of each cycle, another parent, in place.

    That is the nearest entry before it that is not below it, else ROOT. Returns the entries so
    changed, a member of a cycle with its reason, others with "".
    """
    gaps = dict.fromkeys(_first_of_cycles(parents), "parent cycle")
    for index in gaps:
        parents[index] = LOST
    for index, parent in enumerate(parents):
        if parent == LOST:
            gaps.setdefault(index, "")
    # `tops` leads each entry to the top of its tree, `before` to an earlier entry such that all
    # between belong to one tree; both are shortened on the way.
    tops = [index if parent < 0 else parent for index, parent in enumerate(parents)]
    before = list(range(-1, len(parents) - 1))
    for index in sorted(gaps):
        place, passed = index - 1, []
        while place >= 0 and _top(tops, place) == index:
            passed.append(place)
            place = before[place]
        for each in passed:
            before[each] = place
        parents[index] = place if place >= 0 else ROOT
        tops[index] = place if place >= 0 else index
    return gaps


def _top(tops: list[int], index: int) -> int:
    top = index
    while tops[top] != top:
        top = tops[top]
    while tops[index] != top:
        tops[index], index = top, tops[index]
    return top


def _first_of_cycles(parents: list[int]) -> list[int]:
    """The smallest index of each cycle."""
    found = []
    round_of = [0] * len(parents)
    for start in range(len(parents)):
        index = start
        while index >= 0 and not round_of[index]:
            round_of[index] = start + 1
            index = parents[index]
        if index >= 0 and round_of[index] == start + 1:
            first, each = index, parents[index]
            while each != index:
                first = min(first, each)
                each = parents[each]
            found.append(first)
    return found


def creation_order(parents: Sequence[int]) -> list[int]:
    """All indices so that each comes after its parent: in order, but a child that stands before
    its parent comes right after it."""
    waiting: dict[int, list[int]] = {}
    made = bytearray(len(parents))
    order: list[int] = []
    for index, parent in enumerate(parents):
        if parent >= 0 and not made[parent]:
            waiting.setdefault(parent, []).append(index)
            continue
        stack = [index]
        while stack:
            index = stack.pop()
            made[index] = 1
            order.append(index)
            stack.extend(reversed(waiting.pop(index, ())))
    return order


# ================================================================================================
# 6. Claude Code
#
# One session file: records with `uuid` and `parentUuid`, appended as things happen. Several
# records with one `message.id` are one answer, written block by block.
# ================================================================================================

_MESSAGE_TYPES = ("user", "assistant")
_CHAIN_TYPES = ("user", "assistant", "system", "attachment", "progress")
_TITLES = {  # record type -> rank, field
    "custom-title": (4, "customTitle"),
    "agent-name": (3, "agentName"),
    "ai-title": (2, "aiTitle"),
    "summary": (1, "summary"),
}
_STATE_TYPES = frozenset(
    (
        "file-history-snapshot", "file-history-delta", "queue-operation", "mode", "permission-mode",
        "pr-link", "bridge-session", "started", "last-prompt", *_TITLES,
    )
)  # fmt: skip
_MARKUP = re.compile(
    r"\s*<(command-name|command-message|command-args|local-command-stdout|local-command-stderr"
    r"|local-command-caveat|bash-input|bash-stdout|bash-stderr|system-reminder|timeline-handoff)>"
)
_UNKNOWN_PARENT = ""  # no record has this id


def is_claude_record(record: Json) -> bool:
    """Whether this looks like a record of a Claude Code session file."""
    kind = record.get("type")
    if kind in _CHAIN_TYPES:
        return "uuid" in record and ("parentUuid" in record or "sessionId" in record)
    if not isinstance(kind, str) or kind not in _STATE_TYPES:
        return False
    return any(name in record for name in ("sessionId", "leafUuid", "messageId", "snapshot"))


def is_markup(text: str) -> bool:
    """Whether a user record's text is nothing but what the client itself writes there."""
    place = 0
    while match := _MARKUP.match(text, place):
        close = f"</{match[1]}>"
        end = text.find(close, match.end())
        if end < 0:
            return False
        place = end + len(close)
    return place > 0 and not text[place:].strip()


def _is_scaffolding(content: object) -> bool:
    if isinstance(content, str):
        return is_markup(content) or _HANDOFF.fullmatch(content) is not None
    if not isinstance(content, list) or not content:
        return False
    texts = [block.get("text") for block in content if isinstance(block, dict)]
    return len(texts) == len(content) and all(
        isinstance(t, str) and (is_markup(t) or _HANDOFF.fullmatch(t) is not None) for t in texts
    )


def _has_block(content: object, *kinds: str) -> bool:
    return any(
        isinstance(block, dict) and block.get("type") in kinds
        for block in (content if isinstance(content, list) else ())
    )


EXPORTED = "exported\0"
_EXPORTED_ROLES = ("system", "summary", "tool")  # written as user records by `tl export`


def exported_identity(uuid: str, node: str) -> str:
    """What to ask for a record that says it is this node of some database."""
    return f"{EXPORTED}{uuid}\0{node}"


class _Raw:
    """One record that is a message or a piece of one, before pieces are put together."""

    __slots__ = ("entry", "is_compaction", "message", "parent", "piece")

    def __init__(
        self, entry: Entry, parent: int | str | None, message: str | None, is_compaction: bool
    ) -> None:
        self.is_compaction = is_compaction
        self.entry = entry  # of this record alone, until it is folded into another one
        self.piece = entry.pieces[0]
        self.parent = parent  # index of an earlier raw, else the uuid; None: a root
        self.message = message  # the id of the message it is a piece of


class _Boundary:
    __slots__ = ("head", "kept", "tail", "trigger")

    def __init__(self, record: Json) -> None:
        told = record.get("compactMetadata")
        told = told if isinstance(told, dict) else {}
        self.trigger = told["trigger"] if isinstance(told.get("trigger"), str) else None
        segment, kept = told.get("preservedSegment"), told.get("preservedMessages")
        segment = segment if isinstance(segment, dict) else {}
        self.head = native_id(segment.get("headUuid"))
        self.tail = native_id(segment.get("tailUuid"))
        uuids = kept.get("uuids") if isinstance(kept, dict) else None
        self.kept = (
            [each for each in uuids if isinstance(each, str)] if isinstance(uuids, list) else []
        )


class _ClaudeFile:
    """All records of one file, taken one by one; `finish` puts the messages together."""

    __slots__ = (
        "agent", "asides", "boundaries", "hint", "is_window", "last", "lines", "links", "mended",
        "named", "out", "prompts", "raws", "run_of", "seen", "titles",
    )  # fmt: skip

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.out = Transcript("claude-code", True, self.content)
        self.raws: list[_Raw] = []
        self.seen: dict[str, int] = {}  # uuid of a message record -> index in raws
        self.links: dict[str, str | None] = {}  # uuid of any other record -> its parent
        self.boundaries: dict[str, _Boundary] = {}
        self.hint: str | None = None  # the leaf the client named after the last message
        self.last: str | None = None  # uuid of the newest message record
        self.titles: dict[tuple[int, str | None], str] = {}  # rank and leaf -> title
        # Of a subagent's file its name, None of another; unknown before the first record.
        self.agent: str | None = ""
        # Runs of subagents within the file: by name, and which one a record or a call is of.
        self.asides: dict[str, _ClaudeFile] = {}
        self.run_of: dict[str, str] = {}  # uuid of a record of a run, or id of a call -> name
        self.prompts: dict[str, str] = {}  # hash of a task -> id of the call that gave it
        self.named: set[str | None] = set()  # leaves of titles whose records are out of the window
        self.mended = False
        self.is_window = False  # it has forgotten what was before `raws`

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        return claude_content(self.lines, entry)

    # -- records -----------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Count one record and remember what it says."""
        counts, record = self.out.counts, found.value
        counts.records += 1
        if record is None:
            counts.bad += 1
            words = "is torn" if found.torn else "cannot be read"
            self.out.notes.add("unparseable line", f"line {found.line}: {words}")
            return
        if found.mended and not self.mended:
            self.mended = True
            self.out.notes.add("lone surrogate", f"line {found.line}: half a character, now U+FFFD")
        aside = record.get("isSidechain") is True
        if self.agent == "":
            self.agent = native_id(record.get("agentId")) if aside else None
        if aside and (self.agent is None or record.get("agentId") != self.agent):
            counts.sidechain += 1
            self._take_aside(found, record)
            # A record of the main run that hangs on one of these has lost its own parent.
            self._link(record, native_id(record.get("parentUuid")) or _UNKNOWN_PARENT)
        else:
            self._take_own(found, record)

    def _take_aside(self, found: Found, record: Json) -> None:
        """A record of a run within the file: a run is named by its agent, else by its first
        record."""
        uuid, parent = native_id(record.get("uuid")), native_id(record.get("parentUuid"))
        name = native_id(record.get("agentId")) or self.run_of.get(parent or "")
        if name is None:
            if uuid is None:
                return
            name = uuid
            said = _dict(record.get("message")).get("content")
            call = self.prompts.pop(_fingerprint(said), None)
            if call is not None:
                self.run_of[call] = name
        if uuid is not None:
            self.run_of[uuid] = name
        if name not in self.asides:
            self.asides[name] = _ClaudeFile(self.lines)
            self.asides[name].agent = name
        self.asides[name].out.counts.records += 1
        self.asides[name]._take_own(found, record)

    def _take_own(self, found: Found, record: Json) -> None:
        """A record of the very run that this is the reader of."""
        kind = record.get("type")
        if kind in _MESSAGE_TYPES:
            self._take_message(found, record)
        else:
            self._take_state(kind if isinstance(kind, str) else "unknown", record)

    def readers(self) -> list[_ClaudeFile]:
        """This one, and those of the runs within the file."""
        return [self, *self.asides.values()]

    def _link(self, record: Json, parent: str | None) -> None:
        uuid = native_id(record.get("uuid"))
        if uuid is not None:
            self.links.setdefault(uuid, parent)

    def _parent(self, record: Json) -> str | None:
        if "parentUuid" not in record and "logicalParentUuid" not in record:
            return _UNKNOWN_PARENT
        return native_id(record.get("parentUuid")) or native_id(record.get("logicalParentUuid"))

    def _take_state(self, kind: str, record: Json) -> None:
        parent = self._parent(record)
        if kind == "system" and record.get("subtype") == "compact_boundary":
            kind = "compact_boundary"
            uuid = native_id(record.get("uuid"))
            if uuid is not None and uuid not in self.boundaries:
                self.boundaries[uuid] = _Boundary(record)
            parent = native_id(record.get("logicalParentUuid")) or parent or self.last
        self._link(record, parent)
        if kind in _TITLES:
            self._take_title(kind, record)
        elif kind == "last-prompt":
            self.hint = native_id(record.get("leafUuid"))
        _count(self.out.counts.skipped, kind[:ID_CHARS_MAX])

    def _take_title(self, kind: str, record: Json) -> None:
        rank, field = _TITLES[kind]
        title = record.get(field)
        if isinstance(title, str) and title.strip():
            leaf = native_id(record.get("leafUuid")) if kind == "summary" else None
            self.titles.pop((rank, leaf), None)  # the newest stands last
            self.titles[rank, leaf] = " ".join(title.split())

    def _title(self) -> str | None:
        """The title of the highest rank. A summary line may speak of another file; one that names
        a record of this file is better."""
        best, found = (0, False), None
        for (rank, leaf), title in self.titles.items():
            order = rank, self._is_here(leaf)
            if order >= best:
                best, found = order, title[: timeline.NAME_CHARS_MAX].strip()
        return found

    def _is_here(self, uuid: str | None) -> bool:
        return uuid in self.seen or uuid in self.links or uuid in self.named

    def _take_message(self, found: Found, record: Json) -> None:
        out, message = self.out, record.get("message")
        if not isinstance(message, dict):
            out.counts.bad += 1
            out.notes.add(
                "no message", f"line {found.line}: a {record['type']} record without message"
            )
            self._link(record, self._parent(record))
            return
        content = message.get("content")
        summary = record["type"] == "user" and record.get("isCompactSummary") is True
        if record["type"] == "user" and not summary:
            meta = record.get("isMeta") is True and not _has_block(content, "tool_result")
            reason = "isMeta" if meta else None
            reason = reason or ("local-command" if _is_scaffolding(content) else None)
            if reason is not None:
                _count(out.counts.hidden, reason)
                self._link(record, self._parent(record))
                return
        uuid = native_id(record.get("uuid"))
        if uuid is None:
            uuid = f"{native_id(record.get('sessionId')) or ''}#{found.line}.{found.index}"
        if uuid in self.seen:
            self._repeat(uuid, found, content)
            return
        self._note_envelope(record)
        self._add(uuid, found, record, content, summary)

    def _repeat(self, uuid: str, found: Found, content: object) -> None:
        first = self.raws[self.seen[uuid]].piece
        message = self.lines.at(first.offset, first.index).get("message")
        if isinstance(message, dict) and message.get("content") == content:
            _count(self.out.counts.known, "duplicate uuid")
            return
        self.out.counts.changed += 1
        self.out.notes.add(
            "changed",
            f"line {found.line}: the message of line {first.line} again, changed; the first stays",
        )

    def _note_envelope(self, record: Json) -> None:
        out = self.out
        if out.session is None:
            out.session = native_id(record.get("sessionId"))
            if self.agent:
                out.agent = out.session or "", self.agent
                out.session = self.agent
        if out.cwd is None:
            out.cwd = _path_in(record)
        if out.time is None:
            out.time = parse_time(record.get("timestamp"))

    def _add(self, uuid: str, found: Found, record: Json, content: object, summary: bool) -> None:
        entry = Entry("summary" if summary else record["type"], Piece(uuid, found))
        message = None
        if entry.role == "assistant":
            message = native_id(record["message"].get("id"))
            entry.calls = _has_block(content, "tool_use")
            for block in content if entry.calls else ():  # type: ignore[attr-defined]
                task = _dict(_dict(block).get("input")).get("prompt")
                if isinstance(task, str) and task:
                    self.prompts[_fingerprint(task)] = str(block.get("id"))
            synthetic = record["message"].get("model") == "<synthetic>"
            entry.error = record.get("isApiErrorMessage") is True or synthetic
        elif entry.role == "user" and _has_block(content, "tool_result"):
            entry.results = True
            only = all(_has_block([block], "tool_result") for block in content)  # type: ignore[attr-defined]
            entry.role, entry.kind = ("tool", None) if only else ("user", "mixed")
            result = record.get("toolUseResult")
            runs = [native_id(result.get("agentId")) if isinstance(result, dict) else None]
            calls = [str(_dict(block).get("tool_use_id")) for block in _list(content)]
            runs += [self.run_of.get(call) for call in calls]
            entry.also = tuple(timeline.AGENT_MARK + each for each in runs if each is not None)
        told = record.get("timeline")  # written by `tl export`
        if isinstance(told, dict):
            entry.exported = told["node"] if isinstance(told.get("node"), str) else None
            if entry.role in ("user", "tool") and told.get("role") in _EXPORTED_ROLES:
                entry.role, entry.kind = told["role"], None
        parent = self._parent(record)
        # An index instead of a second copy of the uuid: there may be very many.
        above = None if parent is None else self.seen.get(parent, parent)
        self.seen[uuid] = len(self.raws)
        self.raws.append(_Raw(entry, above, message, summary))
        self.last = uuid
        self.hint = None

    # -- messages ----------------------------------------------------------------------------------

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        targets = self._targets()
        place = self._fold(targets, known)
        self._hang(targets, place)
        self._read_compactions(place)
        self._find_active(place)
        self.out.title = self._title()
        self.out.loose = _last_answer(self.out.entries)
        self.out.lacks = self.is_window and self._speaks_of_before(targets)
        return self.out

    # -- window ------------------------------------------------------------------------------------

    def window(self, size: int) -> _ClaudeFile:
        """A reader, before `finish`, that knows the newest messages alone: at least `size`."""
        cut = self._cut(len(self.raws) - size) if not self.asides else 0
        if cut <= 0:
            return self
        links = list(self.links.items())
        newest = max(0, len(links) - size)
        needed = self._links_above(self.raws[cut:])
        rest = _ClaudeFile(self.lines)
        rest.out = copy.copy(self.out)
        rest.out.begin = self.raws[cut].piece.offset
        rest.out.compactions += sum(raw.is_compaction for raw in self.raws[:cut])
        for raw in self.raws[cut:]:
            above: int | str | None = raw.parent
            if isinstance(above, int):
                above = above - cut if above >= cut else self.raws[above].piece.id
            rest.seen[raw.piece.id] = len(rest.raws)
            rest.raws.append(_Raw(raw.entry, above, raw.message, raw.is_compaction))
        rest.links = dict(
            each for at, each in enumerate(links) if at >= newest or each[0] in needed
        )
        rest.boundaries = {k: v for k, v in self.boundaries.items() if k in rest.links}
        rest.hint, rest.last, rest.mended = self.hint, self.last, self.mended
        rest.agent = self.agent
        rest.prompts = dict(list(self.prompts.items())[-size:])
        rest.titles = self.titles
        rest.named = {leaf for _, leaf in self.titles if self._is_here(leaf)}
        rest.is_window = True
        return rest

    def _links_above(self, raws: Sequence[_Raw]) -> set[str]:
        """Other records between messages and the messages that they hang on."""
        found: set[str] = set()
        for raw in raws:
            uuid = raw.parent if isinstance(raw.parent, str) else None
            while uuid is not None and uuid in self.links and uuid not in found:
                found.add(uuid)
                uuid = self.links[uuid]
        return found

    def _cut(self, cut: int) -> int:
        """Where, at or before `cut`, nothing behind goes together with something before: results
        with calls, summaries with what is kept behind them."""
        memo: dict[str, int | str] = {}
        above: dict[str, _Boundary | None] = {}
        while cut > 0:
            first = cut
            while first > 0 and (
                self.raws[first].entry.role != "user" or self.raws[first].entry.results
            ):
                first -= 1
            for raw in self.raws[cut:]:
                near: list[int | str | None] = []
                if raw.entry.results:
                    near = [raw.parent]
                elif raw.is_compaction:
                    told = self._boundary_above(raw.parent, above)
                    near = [*told.kept, told.head, told.tail] if told is not None else []
                for each in near:
                    place = self._resolve(each, memo) if isinstance(each, str) else each
                    if isinstance(place, int) and place >= 0:
                        first = min(first, place)
            if first == cut:
                break
            cut = first
        return cut

    def _speaks_of_before(self, targets: list[int | str]) -> bool:
        """Whether anything that is new has to do with what is out of the window: a parent, what is
        kept, a message that was there already."""
        settled = self.out.settled
        above: dict[str, _Boundary | None] = {}
        for raw, target in zip(self.raws, targets, strict=True):
            if not settled.is_new(raw.piece):
                continue
            if isinstance(target, str) or raw.entry.node is not None:
                return True
            if raw.is_compaction:
                told = self._boundary_above(raw.parent, above)
                kept = [*told.kept, told.head, told.tail] if told is not None else []
                if any(uuid is not None and uuid not in self.seen for uuid in kept):
                    return True
        return self.hint is not None and isinstance(self._resolve(self.hint, {}), str)

    def _hang(self, targets: list[int | str], place: list[int]) -> None:
        """Give each entry its parent."""
        entries = self.out.entries
        parents = []
        for index, entry in enumerate(entries):
            target = targets[self.seen[entry.id]]
            parent = place[target] if isinstance(target, int) and target >= 0 else target
            if isinstance(parent, str):
                entry.gap, entry.wanted = "parent not in file", parent or None
                parent = LOST
            elif parent == index:
                entry.gap = "self parent"
                parent = LOST
            parents.append(parent)
        for index, reason in settle(parents).items():
            entries[index].gap = reason or entries[index].gap
        for entry, parent in zip(entries, parents, strict=True):
            entry.parent = parent

    def _targets(self) -> list[int | str]:
        """For each raw the raw it hangs on, ROOT, or the uuid that is nowhere in the file."""
        memo: dict[str, int | str] = {}
        return [
            ROOT if raw.parent is None
            else raw.parent if isinstance(raw.parent, int)
            else self._resolve(raw.parent, memo)
            for raw in self.raws
        ]  # fmt: skip

    def _resolve(self, uuid: str, memo: dict[str, int | str]) -> int | str:
        """The raw that `uuid` is or, for a record of another kind, hangs on."""
        way = []
        above: str | None = uuid
        while above is not None and above not in self.seen and above not in memo:
            if above not in self.links:
                break
            way.append(above)
            memo[above] = _UNKNOWN_PARENT  # stands if the way comes back here: a cycle
            above = self.links[above]
        end: int | str = ROOT
        if above is not None:
            end = self.seen[above] if above in self.seen else memo.get(above, above)
        memo.update(dict.fromkeys(way, end))
        return end

    def _fold(self, targets: list[int | str], known: Known) -> list[int]:
        """Put the pieces of each message together; for each raw the index of its entry.

        Only along the chain: on a record or a result of the same message, or beside one under the
        same parent. An equal message id elsewhere is another message.
        """
        entries = self.out.entries
        place: list[int] = []
        owner: dict[int, int] = {}  # entry of a result -> entry of its call
        under: dict[tuple[str, int | str], int] = {}  # (message id, parent) -> entry
        names: list[str | None] = []
        for index, raw in enumerate(self.raws):
            node = known(raw.piece.id)
            if node is None and raw.entry.exported is not None:
                node = known(exported_identity(raw.piece.id, raw.entry.exported))
            raw.entry.node = node
            target = targets[index]
            above = place[target] if isinstance(target, int) and 0 <= target < index else None
            if raw.message is not None:
                spot = (raw.message, target)
                near = [above, owner.get(above, -1) if above is not None else None, under.get(spot)]
                same = [n for n in near if n is not None and n >= 0 and names[n] == raw.message]
                fold = next((n for n in same if entries[n].node == node), None)
                if fold is not None:
                    self._join(entries[fold], raw)
                    place.append(fold)
                    continue
                if any(entries[n].node is not None for n in same) and node is None:
                    raw.entry.kind = "late"
                if target != ROOT:
                    under.setdefault(spot, len(entries))
            if raw.entry.results and above is not None:
                owner[len(entries)] = owner.get(above, above)
            place.append(len(entries))
            entries.append(raw.entry)
            names.append(raw.message)
        return place

    @staticmethod
    def _join(entry: Entry, raw: _Raw) -> None:
        entry.pieces.append(raw.piece)
        entry.calls = entry.calls or raw.entry.calls
        entry.error = entry.error or raw.entry.error

    def _read_compactions(self, place: list[int]) -> None:
        memo: dict[str, _Boundary | None] = {}
        for raw in self.raws:
            if not raw.is_compaction:
                continue
            boundary = self._boundary_above(raw.parent, memo)
            told = raw.entry.compaction = Compaction(boundary.trigger if boundary else None)
            if boundary is not None:
                kept = [place[self.seen[uuid]] for uuid in boundary.kept if uuid in self.seen]
                told.kept = list(dict.fromkeys(kept + self._segment(boundary, place)))

    def _boundary_above(
        self, parent: int | str | None, memo: dict[str, _Boundary | None]
    ) -> _Boundary | None:
        """The nearest boundary on the way from `parent` up to the next message."""
        way = []
        uuid = parent if isinstance(parent, str) else None
        while uuid is not None and uuid in self.links and uuid not in memo:
            way.append(uuid)
            memo[uuid] = self.boundaries.get(uuid)
            if memo[uuid] is not None:
                break
            uuid = self.links[uuid]
        found = memo.get(uuid) if uuid is not None else None
        memo.update(dict.fromkeys(way, found))
        return found

    def _segment(self, boundary: _Boundary, place: list[int]) -> list[int]:
        """Entries of the kept segment from its head to its tail; none if it is no path."""
        if boundary.head not in self.seen or boundary.tail not in self.seen:
            return []
        head, index = (place[self.seen[uuid]] for uuid in (boundary.head, boundary.tail))
        way = [index]
        while index != head and index >= 0:
            index = self.out.entries[index].parent
            way.append(index)
        return way[::-1] if index == head else []

    def _find_active(self, place: list[int]) -> None:
        """The newest entry; a failed request only where nothing else stands beside it."""
        entries = self.out.entries
        if not entries:
            return
        active = place[-1]
        if entries[active].error:
            beside = entries[active].parent
            others = [
                index
                for index, entry in enumerate(entries)
                if entry.parent == beside and not entry.error and entry.role == "assistant"
            ]
            active = others[-1] if others else active
        self.out.active = active
        if self.hint is not None:
            self._follow_hint(place, active)

    def _follow_hint(self, place: list[int], active: int) -> None:
        """Go where the client said it was, unless that only is an older point of the same line."""
        uuid = self._resolve(self.hint, {}) if self.hint is not None else ROOT
        if isinstance(uuid, str) or uuid < 0:
            return
        hinted = place[uuid]
        above = active
        while above >= 0 and above != hinted:
            above = self.out.entries[above].parent
        if above < 0:
            self.out.active = hinted


def _last_answer(entries: Sequence[Entry]) -> int | None:
    """The index of an answer that nothing but its results follows."""
    first = len(entries) - 1
    while first >= 0 and entries[first].results:
        first -= 1
    return first if first >= 0 and entries[first].role == "assistant" else None


def claude_content(lines: Lines, entry: Entry) -> Content:
    """The content of all pieces of `entry`, read again."""
    renderer = Renderer()
    before = lines.reread_bytes
    usage: object = None
    first: Json | None = None
    for piece in entry.pieces:
        record = lines.at(piece.offset, piece.index)
        first = first or record
        message = record.get("message")
        if not isinstance(message, dict):
            raise rewritten(piece.offset)
        renderer.add(message.get("content"))
        usage = message.get("usage") or usage
    content = renderer.finish()
    assert first is not None
    told = first.get("timeline")
    words = told.get("words") if isinstance(told, dict) else None
    if isinstance(words, str) and words and content.text.startswith(words):
        content = Content(content.text[len(words) :])
    content.size = lines.reread_bytes - before
    content.time = parse_time(first.get("timestamp"))
    content.cwd = _path_in(first)
    if isinstance(usage, dict) and len(compact_json(usage)) <= USAGE_CHARS_MAX:
        content.usage = usage
    return content


def _path_in(record: Json) -> str | None:
    cwd = record.get("cwd")
    return cwd if isinstance(cwd, str) and 0 < len(cwd) <= PATH_CHARS_MAX else None


def claude_family(record: Json) -> tuple[str, str | None] | None:
    """The session of a record and the session it was forked from; None where it tells neither."""
    session, origin = native_id(record.get("sessionId")), record.get("forkedFrom")
    if session is None or "uuid" not in record:
        return None
    agent = native_id(record.get("agentId")) if record.get("isSidechain") is True else None
    if agent is not None:
        return agent, session
    return session, native_id(origin.get("sessionId")) if isinstance(origin, dict) else None


# ================================================================================================
# 7. Messages
#
# Our own form: {"role", "text", "tokens"?, "id"?, "parent"?, "time"?}, one object a line. Without
# `parent` a message hangs on the line before it; `null` begins a line of its own. Without `id` a
# message is known by what it says and what it hangs on.
# ================================================================================================

_ROLES = {
    **{role: (role, None) for role in ("user", "assistant", "system", "tool", "summary")},
    "shell": ("user", "shell"),
    "custom": ("user", "custom"),
}


def is_message_record(record: Json) -> bool:
    """Whether this looks like a line of the simple form (a line of our own log does not)."""
    texts = isinstance(record.get("role"), str) and isinstance(record.get("text"), str)
    return texts and "op" not in record


def _simple_id(value: object) -> str | None:
    return native_id(str(value) if type(value) is int else value)


class _MessagesFile:
    __slots__ = ("by_id", "lines", "newest", "out", "parents", "wanted")

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.out = Transcript("messages", False, self.content)
        self.by_id: dict[str, int] = {}
        self.wanted: list[str | None] = []  # of each entry, an explicit parent
        self.newest = ROOT  # the entry of the line before

    def take(self, found: Found) -> None:
        """Count one line and make an entry of it."""
        self.out.counts.records += 1
        record = found.value
        wrong = self._wrong(record)
        if record is None or wrong is not None:
            self.out.counts.bad += 1
            self.out.notes.add("unparseable line", f"line {found.line}: {wrong}")
            return
        if found.mended and "lone surrogate" not in self.out.notes.kinds:
            self.out.notes.add("lone surrogate", f"line {found.line}: half a character, now U+FFFD")
        if record.get("tokens") is not None and _tokens_of(record) is None:
            self.out.notes.add("tokens", f"line {found.line}: tokens is no whole number; estimated")
        wanted = _simple_id(record.get("parent"))
        id = _simple_id(record.get("id")) or self._hash(record, wanted)
        if id in self.by_id:
            self._repeat(self.by_id[id], found, record)
        else:
            self._add(id, found, record, wanted)

    @staticmethod
    def _wrong(record: Json | None) -> str | None:
        if record is None:
            return "cannot be read"
        if not is_message_record(record):
            return "role and text must be strings"
        return None if record["role"] in _ROLES else f"unknown role {record['role']!r:.80}"

    def _hash(self, record: Json, wanted: str | None) -> str:
        above = wanted
        if above is None and "parent" not in record and self.newest != ROOT:
            above = self.out.entries[self.newest].id
        return "#" + sha256(compact_json([above, record["role"], record["text"]]).encode())

    def _repeat(self, index: int, found: Found, record: Json) -> None:
        self.newest = index
        piece = self.out.entries[index].pieces[0]
        first = self.lines.at(piece.offset, piece.index)
        if (first.get("role"), first.get("text")) == (record["role"], record["text"]):
            _count(self.out.counts.known, "duplicate id")
            return
        self.out.counts.changed += 1
        self.out.notes.add(
            "changed",
            f"line {found.line}: the id of line {piece.line} with another text; the first stays",
        )

    def _add(self, id: str, found: Found, record: Json, wanted: str | None) -> None:
        role, kind = _ROLES[record["role"]]
        entry = Entry(role, Piece(id, found))
        entry.kind = kind
        entry.parent = ROOT if "parent" in record else self.newest
        self.newest = self.by_id[id] = len(self.out.entries)
        self.out.entries.append(entry)
        self.wanted.append(wanted)

    def readers(self) -> list[_MessagesFile]:
        """All readers of the file: this one."""
        return [self]

    def window(self, size: int) -> _MessagesFile:
        """All of it: without ids, a message is known by what was said before."""
        return self

    def finish(self, known: Known) -> Transcript:
        """The transcript, its parents looked up. Pieces are whole messages: `known` has no say."""
        entries = self.out.entries
        for index, wanted in enumerate(self.wanted):
            entry = entries[index]
            if wanted is not None:
                entry.parent = self.by_id.get(wanted, LOST)
                if entry.parent in (LOST, index):
                    entry.gap = "self parent" if entry.parent == index else "parent not in file"
                    entry.wanted = wanted if entry.parent == LOST else None
                    entry.parent = LOST
        parents = [entry.parent for entry in entries]
        for index, reason in settle(parents).items():
            entries[index].gap = reason or entries[index].gap
        for entry, parent in zip(entries, parents, strict=True):
            entry.parent = parent
        if entries:
            self.out.active = len(entries) - 1
            self.out.time = self.content(entries[0]).time
        return self.out

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        record = self.lines.at(entry.pieces[0].offset, entry.pieces[0].index)
        if not is_message_record(record):
            raise rewritten(entry.pieces[0].offset)
        content = Content(record["text"])
        content.time = parse_time(record.get("time"))
        content.tokens = _tokens_of(record)
        return content


def _tokens_of(record: Json) -> int | None:
    tokens = record.get("tokens")
    return tokens if type(tokens) is int and 0 <= tokens <= timeline.TOKENS_MAX else None


# ================================================================================================
# 8. Reading line by line
#
# What the readers below share: they take one record after the other.
# ================================================================================================

# Nothing but such stretches: what somebody said between two of them is a message.
_HANDOFF = re.compile(
    r"(?:\s*<timeline-handoff>(?:(?!</timeline-handoff>).)*</timeline-handoff>)+\s*", re.DOTALL
)
_DATA_URL = re.compile(r"data:([\w.+/-]+)(?:;[\w=.+-]+)*;base64,", re.ASCII)


class _Records:
    """A file of records in the making of its transcript."""

    __slots__ = ("_begin", "_kept", "_kept_at", "_kept_bytes", "lines", "out")

    def __init__(self, format: str, lines: Lines) -> None:
        self.lines = lines
        self.out = Transcript(format, True, self.content)
        self._begin = ""  # what the first record says, hashed
        self._kept: Json = {}
        self._kept_at: tuple[int, int] | None = None
        self._kept_bytes = 0

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        raise AssertionError("each format has its own")

    def readers(self) -> list[Any]:
        """All readers of the file: this one."""
        return [self]

    def window(self, size: int) -> Any:
        """A reader, before `finish`, that knows the newest messages alone: at least `size`. This
        one knows all."""
        return self

    def open(self, found: Found) -> Json | None:
        """Count one record and return it; None if it cannot be read."""
        counts, notes = self.out.counts, self.out.notes
        counts.records += 1
        if found.value is None:
            counts.bad += 1
            words = "is torn" if found.torn else "cannot be read"
            notes.add("unparseable line", f"line {found.line}: {words}")
        elif found.mended and "lone surrogate" not in notes.kinds:
            notes.add("lone surrogate", f"line {found.line}: half a character, now U+FFFD")
        if not self._begin and found.value is not None:
            self._begin = f"file {_fingerprint(found.value)}"
        return found.value

    @property
    def scope(self) -> str:
        """The session, or what stands for it where its name is lost."""
        return self.out.session or self._begin

    def skip(self, reason: str) -> None:
        """Count a record that only carries state."""
        _count(self.out.counts.skipped, reason[:ID_CHARS_MAX])

    def spoil(self, found: Found, words: str) -> None:
        """Count a record that should hold a message, and holds none."""
        self.out.counts.bad += 1
        self.out.notes.add("no message", f"line {found.line}: {words}")

    def note_changed(self, found: Found, first: Entry) -> None:
        """Count a message that is in the file already, with other content."""
        self.out.counts.changed += 1
        self.out.notes.add(
            "changed",
            f"line {found.line}: the message of line {first.line} again, changed; the first stays",
        )

    def at(self, piece: Piece) -> Json:
        """The record of `piece`, read again; many parts of one record are read once."""
        place = piece.offset, piece.index
        if place != self._kept_at:
            before = self.lines.reread_bytes
            self._kept, self._kept_at = self.lines.at(*place), place
            self._kept_bytes = self.lines.reread_bytes - before
        return self._kept

    def size(self, piece: Piece, said: Json) -> int:
        """Bytes of `piece`, just read; `said` is what it says."""
        return self._kept_bytes if piece.part is None else len(compact_json(said).encode())


def _inner_json(text: object) -> object:
    """The value that a string holds as JSON; None if it holds none."""
    if not isinstance(text, str) or text[:1] not in ("{", "["):
        return None
    try:
        value, end = _scan(text, 0)
    except (ValueError, RecursionError):
        return None
    if _after_space(text, end) != len(text) or _is_too_deep(value):
        return None
    return _mended({"": value})[0][""] if _SURROGATE_ESCAPE.search(text) else value


def image_block(url: object) -> Json:
    """A block for a picture that a URL names or, as `data:`, holds."""
    url = url.get("url") if isinstance(url, dict) else url
    match = _DATA_URL.match(url) if isinstance(url, str) else None
    source = {"type": "url", "url": url}
    if match is not None and isinstance(url, str):
        source = {"type": "base64", "media_type": match[1], "data": url[match.end() :]}
    return {"type": "image", "source": source}


def _keep_usage(content: Content, usage: object) -> None:
    if isinstance(usage, dict) and len(compact_json(usage)) <= USAGE_CHARS_MAX:
        content.usage = usage


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fingerprint(value: object) -> str:
    return sha256(compact_json(value).encode())[:16]


# ================================================================================================
# 9. Codex
#
# One rollout file: messages stand in order, so that each hangs on the one before it. Nothing has
# an id: a message is known by the turn it is of, its number there and its content, which a fork
# repeats. Going back is an event that drops user turns from the path.
# ================================================================================================

_CODEX_TYPES = frozenset(
    (
        "session_meta", "turn_context", "response_item", "event_msg", "compacted", "world_state",
        "token_usage_record", "inter_agent_communication", "inter_agent_communication_metadata",
        "retained_context", "security_risk_score", "realtime_item",
    )
)  # fmt: skip
_CODEX_CALLS = {  # type of an item -> its field with what the tool is given
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "tool_search_call": "arguments",
}
_CODEX_DONE = {  # calls that the server answers itself
    "web_search_call": ("web_search", "action"),
    "image_generation_call": ("image_generation", "revised_prompt"),
}
_CODEX_RESULTS = (
    "function_call_output", "custom_tool_call_output", "local_shell_call_output",
    "tool_search_output",
)  # fmt: skip
_CODEX_ITEMS = ("message", "reasoning", *_CODEX_CALLS, *_CODEX_DONE, *_CODEX_RESULTS)
_CODEX_PARTS = ("input_text", "input_image", "output_text")
_CODEX_UNSTEADY = ("id", "status", "phase", "metadata")  # may be gone in a fork
_CODEX_TAG = re.compile(
    r"\s*<(environment_context|user_instructions|permissions instructions|turn_aborted"
    r"|timeline-handoff)>(?:(?!</\1>).)*</\1>\s*",
    re.DOTALL,
)
_CODEX_AGENTS = re.compile(r"\s*# AGENTS\.md instructions( for [^\n]*)?\s*(\n.*)?", re.DOTALL)
_NEAR_MAX = 8  # messages between an item and the event that repeats it
_OPAQUE = "[the client keeps this summary encrypted]"


def is_codex_record(record: Json) -> bool:
    """Whether this looks like a line of a rollout, in its form of today or of 2025."""
    kind = record.get("type")
    if isinstance(record.get("payload"), dict):
        return isinstance(kind, str) and kind in _CODEX_TYPES
    return _codex_item(record)[0] in ("state", "header", "response_item")


def _codex_item(record: Json) -> tuple[str, Json]:
    """What a record is, and what it says."""
    kind, payload = record.get("type"), record.get("payload")
    if isinstance(kind, str) and ("payload" in record or kind in _CODEX_TYPES):
        return kind, payload if isinstance(payload, dict) else {}
    if record.get("record_type") == "state":
        return "state", record
    if kind == "message":
        parts = record.get("content") if isinstance(record.get("role"), str) else None
        kinds = (
            [part.get("type") for part in parts if isinstance(part, dict)]
            if isinstance(parts, list)
            else []
        )
        bare = any(isinstance(kind, str) and kind in _CODEX_PARTS for kind in kinds)
        return "response_item" if bare else "unknown", record
    if isinstance(kind, str) and (
        ((kind in _CODEX_CALLS or kind in _CODEX_RESULTS) and "call_id" in record)
        or kind in _CODEX_DONE
        or (kind == "reasoning" and isinstance(record.get("summary"), list))
    ):  # fmt: skip
        return "response_item", record
    if kind is None and "timestamp" in record and "instructions" in record and "id" in record:
        return "header", record
    return "unknown", record


def _codex_texts(content: object) -> list[str]:
    """The texts of a message's content; its pictures are left out."""
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def _codex_scaffolding(content: object) -> str | None:
    """What kind of scaffolding a user message is; None if somebody said something in it."""
    texts = _codex_texts(content)
    if not texts or texts[0].lstrip()[:1] not in ("<", "#"):
        return None
    if isinstance(content, list) and len(texts) != len(content):
        return None
    name = None
    for text in texts:
        match = _CODEX_TAG.fullmatch(text)
        if match is None and not _is_agents_file(text):
            return None
        name = name or (match[1].partition(" ")[0] if match else "AGENTS.md")
    return name


def _is_agents_file(text: str) -> bool:
    match = _CODEX_AGENTS.fullmatch(text)
    return match is not None and (match[1] is not None or "<INSTRUCTIONS>" in text)


class _Heard:
    """A user message that an event tells of, until an item repeats it."""

    __slots__ = ("cwd", "piece", "text")

    def __init__(self, piece: Piece, text: str, cwd: str | None) -> None:
        self.piece = piece
        self.text = text
        self.cwd = cwd


class _CodexFile(_Records):
    __slots__ = (
        "answer", "by_id", "cwd", "heard", "is_window", "ordinal", "spoken", "thoughts", "tip",
        "turn", "turns", "twins",
    )  # fmt: skip

    def __init__(self, lines: Lines) -> None:
        super().__init__("codex", lines)
        self.by_id: dict[str, int] = {}  # -> index of the entry
        self.turn = ""  # or the session, before its first turn
        self.ordinal = 0  # items of the turn so far
        self.tip = ROOT  # the entry that the next one hangs on
        self.turns: list[int] = []  # entries of users on the path, oldest first
        self.thoughts: list[Piece] = []  # until the answer they belong to
        self.heard: list[_Heard] = []
        self.spoken: list[str] = []  # by the user since the last answer
        self.twins: dict[int, str] = {}  # entry -> what the event before it would be known by
        self.answer = ROOT  # the newest entry that usage may be told of
        self.cwd: str | None = None
        self.is_window = False  # it has forgotten what was before `entries`

    # -- records -----------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Count one record and remember what it says."""
        record = self.open(found)
        if record is None:
            return
        if self.out.time is None:
            self.out.time = parse_time(record.get("timestamp"))
        self.turn = self.turn or self.scope
        kind, said = _codex_item(record)
        if kind == "response_item":
            self._take_item(found, said)
        elif kind == "compacted":
            self._take_compaction(found, said)
        elif kind == "event_msg":
            self._take_event(found, said)
        else:
            self._take_state(kind, said)
            self.skip(kind)

    def _take_state(self, kind: str, said: Json) -> None:
        if kind in ("session_meta", "header"):
            session, cwd = native_id(said.get("id")), _path_in(said)
            if session is not None:
                # A fork repeats the line of the session it comes from behind its own.
                if self.out.session is None:
                    self.out.session = session
                    parent = _codex_parent(said)
                    self.out.agent = None if parent is None else (parent, session)
                self.turn, self.ordinal = session, 0
            self.cwd = self.cwd or cwd
            self.out.cwd = self.out.cwd or cwd
        elif kind == "turn_context":
            turn = native_id(said.get("turn_id"))
            self.cwd = _path_in(said) or self.cwd
            if turn is not None and turn != self.turn:
                self.turn, self.ordinal = turn, 0

    def _native(self, said: Json, mark: str = "") -> str:
        kept = {k: v for k, v in said.items() if v is not None and k not in _CODEX_UNSTEADY}
        return f"{self.turn}/{self.ordinal}{mark}/{_fingerprint(kept)}"

    def _take_item(self, found: Found, said: Json) -> None:
        self.ordinal += 1
        kind, content = said.get("type"), said.get("content")
        if not isinstance(kind, str):
            self.spoil(found, "a response_item without a type")
        elif kind == "reasoning":
            self._take_thought(Piece(self._native(said), found))
        elif kind == "message":
            role = said.get("role")
            hidden = _codex_scaffolding(content) if role == "user" else None
            if role == "developer" or hidden:
                _count(self.out.counts.hidden, hidden or "developer")
            elif role in ("user", "assistant", "system") and isinstance(content, (list, str)):
                self._add(found, said, str(role))
            elif isinstance(role, str) and isinstance(content, (list, str)):
                self.skip(f"message of {role}")
            else:
                self.spoil(found, "a message without role or content")
        elif kind in _CODEX_ITEMS:
            self._add(found, said, "tool" if kind in _CODEX_RESULTS else "assistant")
        else:
            self.skip(kind)

    def _take_thought(self, piece: Piece) -> None:
        if piece.id in self.by_id:
            _count(self.out.counts.known, "repeated item")
            return
        self.by_id[piece.id] = self.tip
        self.thoughts.append(piece)

    def _add(self, found: Found, said: Json, role: str) -> None:
        piece = Piece(self._native(said), found)
        twin = None
        if role == "user":
            twin = self._match_heard(_codex_texts(said.get("content")))
        else:
            self._say_heard()
            self.spoken.clear()
        if piece.id in self.by_id:
            _count(self.out.counts.known, "repeated item")
            self._go_on(self.by_id[piece.id], role)
            return
        entry = Entry(role, piece)
        entry.calls = said.get("type") in _CODEX_CALLS
        entry.results = role == "tool"
        self._put(entry)
        if twin is not None:
            self.twins[self.tip] = twin

    def _put(self, entry: Entry) -> None:
        """Hang `entry` on the path, with the thoughts that led to it."""
        if entry.role == "assistant":
            entry.pieces += self.thoughts
            self.thoughts = []
        elif entry.role != "tool":
            self._end_thoughts()
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        index = len(self.out.entries)
        entry.parent, entry.cwd = self.tip, self.cwd
        for piece in entry.pieces:
            self.by_id[piece.id] = index
        self.out.entries.append(entry)
        self._go_on(index, entry.role)

    def _go_on(self, index: int, role: str) -> None:
        self.tip = index
        self.out.undone = False
        if role == "user":
            self.turns.append(index)
        elif role == "assistant":
            self.answer = index

    def _end_thoughts(self) -> None:
        """Thoughts that led to no answer are a message of their own."""
        if self.thoughts:
            entry = Entry("assistant", self.thoughts[0])
            entry.pieces, self.thoughts = self.thoughts, []
            self._append(entry)

    # -- compactions -------------------------------------------------------------------------------

    def _take_compaction(self, found: Found, said: Json) -> None:
        self.ordinal += 1
        self._say_heard()
        self.spoken.clear()
        summary, opaque = _codex_summary(said)
        piece = Piece(self._native(said), found)
        if piece.id in self.by_id:
            _count(self.out.counts.known, "repeated item")
            self._go_on(self.by_id[piece.id], "summary")
            return
        if not self.out.entries:
            self._recover(found, said, summary)
        entry = Entry("summary", piece)
        entry.compaction = Compaction(None)
        entry.kind = "opaque" if opaque else None
        self._put(entry)

    def _recover(self, found: Found, said: Json, summary: str) -> None:
        """Where a compaction begins the file, its history is all that is left of what was said."""
        history = said.get("replacement_history")
        for number, item in enumerate(history if isinstance(history, list) else ()):
            if not isinstance(item, dict) or item.get("type") != "message":
                continue
            role, content = item.get("role"), item.get("content")
            texts = _codex_texts(content)
            if role not in ("user", "assistant") or not texts or "\n".join(texts) == summary:
                continue
            if role == "user" and _codex_scaffolding(content):
                continue
            self.out.counts.records += 1
            self._put(Entry(str(role), Piece(self._native(item, f".{number}"), found, number)))

    # -- events ------------------------------------------------------------------------------------

    def _take_event(self, found: Found, said: Json) -> None:
        kind = said.get("type")
        if kind == "user_message" and self._hear(found, said):
            return
        if kind == "thread_rolled_back":
            self._roll_back(found, said.get("num_turns"))
        elif kind == "thread_name_updated":
            title = _string(said.get("thread_name"))
            self.out.title = " ".join(title.split())[: timeline.NAME_CHARS_MAX].strip() or None
        elif kind == "token_count" and self.answer >= 0 and isinstance(said.get("info"), dict):
            self.out.entries[self.answer].usage = Piece("", found)
            self.answer = ROOT
        self.skip("event_msg")

    def _roll_back(self, found: Found, count: object) -> None:
        if type(count) is not int or count < 1:
            self.out.notes.add("rollback", f"line {found.line}: a rollback of no number of turns")
            return
        self._say_heard()
        self._end_thoughts()
        self.spoken.clear()
        self.out.lacks = self.out.lacks or (self.is_window and count >= len(self.turns))
        for _ in range(min(count, len(self.turns))):
            self.tip = self.out.entries[self.turns.pop()].parent
        self.answer = ROOT
        self.out.undone = True

    def _hear(self, found: Found, said: Json) -> bool:
        """Keep a user message that no item near by repeats, and say whether it is kept."""
        text = _string(said.get("message")).strip()
        if not text or _codex_scaffolding(text) or any(text in each for each in self.spoken):
            return False
        piece = Piece(self._native({"message": text}, "e"), found)
        if piece.id in self.by_id:
            self._go_on(self.by_id[piece.id], "user")
            return False
        if any(piece.id == each.piece.id for each in self.heard):
            return False
        self.heard.append(_Heard(piece, text, self.cwd))
        if len(self.heard) > _NEAR_MAX:
            self._say(self.heard.pop(0))
        return True

    def _match_heard(self, texts: list[str]) -> str | None:
        """An item of the user came: the event it repeats is no message, what was heard before it
        is. Returns what the event would be known by, if it says the same."""
        whole = "\n".join(texts).strip()
        self.spoken = [*self.spoken[1 - _NEAR_MAX :], whole]
        heard, self.heard = self.heard, []
        for number, each in enumerate(heard):
            if each.text in whole:
                self.skip("event_msg")
                self.heard = heard[number + 1 :]
                return each.piece.id if each.text == whole else None
            self._say(each)
        return None

    def _say_heard(self) -> None:
        heard, self.heard = self.heard, []
        for each in heard:
            self._say(each)

    def _say(self, heard: _Heard) -> None:
        """What was only heard of is a message of its own."""
        cwd, self.cwd = self.cwd, heard.cwd
        self._put(Entry("user", heard.piece))
        self.cwd = cwd

    # -- messages ----------------------------------------------------------------------------------

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        said = len(self.out.entries)
        self._say_heard()
        self._end_thoughts()
        entries, self.out.entries = self.out.entries, []
        moved: list[int] = []  # old index -> new one
        self.by_id.clear()
        for index, entry in enumerate(entries):
            entry.parent = moved[entry.parent] if entry.parent >= 0 else ROOT
            entry.node = known(entry.id)
            if entry.node is None and index in self.twins:
                entry.node = known(self.twins[index])
            if self.is_window and entry.node is not None:
                # Said already, perhaps before the window.
                self.out.lacks = self.out.lacks or self.out.settled.is_new(entry.pieces[0])
            if len(entry.pieces) > 1:
                self._split(entry, known)
            moved.append(len(self.out.entries))
            self.out.entries.append(entry)
        if said < len(entries):
            self.out.loose = moved[said]  # only heard or thought of: what it leads to may follow
        if entries:
            self.out.active = moved[self.tip] if self.tip >= 0 else None
        return self.out

    def window(self, size: int) -> _CodexFile:
        """A reader, before `finish`, that knows the newest messages alone: at least `size`."""
        entries = self.out.entries
        cut = min(len(entries) - size, self.tip)
        while cut > 0 and entries[cut].role != "user":
            cut -= 1
        if cut <= 0:
            return self
        rest = copy.copy(self)
        rest.out = copy.copy(self.out)
        rest.out.begin = entries[cut].pieces[0].offset
        rest.out.compactions += sum(entry.compaction is not None for entry in entries[:cut])
        rest.out.entries = [copy.copy(entry) for entry in entries[cut:]]
        for entry in rest.out.entries:
            entry.parent = max(entry.parent - cut, ROOT)
        rest.by_id = {id: index - cut for id, index in self.by_id.items() if index >= cut}
        rest.twins = {index - cut: id for index, id in self.twins.items() if index >= cut}
        rest.turns = [index - cut for index in self.turns if index >= cut]
        rest.tip = self.tip - cut
        rest.answer = max(self.answer - cut, ROOT)
        rest.is_window = True
        return rest

    def _split(self, entry: Entry, known: Known) -> None:
        """Thoughts that were read before their answer was written are a node already: what comes
        later hangs on it."""
        apart = [piece for piece in entry.pieces[1:] if known(piece.id) not in (None, entry.node)]
        if not apart or entry.id == apart[0].id:
            return
        thought = Entry("assistant", apart[0])
        thought.pieces = apart
        thought.node = known(apart[0].id)
        thought.parent, thought.cwd = entry.parent, entry.cwd
        entry.parent = len(self.out.entries)
        entry.pieces = [piece for piece in entry.pieces if piece not in apart]
        self.out.entries.append(thought)

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again: its thoughts first, as they stand in the file."""
        renderer = Renderer()
        size, time = 0, None
        for piece in sorted(entry.pieces, key=lambda piece: (piece.offset, piece.index)):
            record = self.at(piece)
            kind, said = _codex_item(record)
            if piece.part is not None:
                said = _codex_part(said, piece)
            size += self.size(piece, said)
            renderer.add(_codex_blocks(kind if piece.part is None else "response_item", said))
            if piece is entry.pieces[0]:
                time = parse_time(record.get("timestamp"))
        content = renderer.finish()
        content.size, content.time, content.cwd = size, time, entry.cwd
        if entry.usage is not None:
            info = _codex_item(self.at(entry.usage))[1].get("info")
            _keep_usage(content, info.get("last_token_usage") if isinstance(info, dict) else None)
        return content


def _codex_part(said: Json, piece: Piece) -> Json:
    history = said.get("replacement_history")
    number = piece.part or 0
    if not isinstance(history, list) or number >= len(history):
        raise rewritten(piece.offset)
    item = history[number]
    if not isinstance(item, dict):
        raise rewritten(piece.offset)
    return item


def _codex_summary(said: Json) -> tuple[str, bool]:
    """The text of a compaction's summary, and whether the client keeps it to itself.

    Newer clients leave `message` empty: then it is the last message of the history that goes on,
    unless the history holds an encrypted one.
    """
    message, history = said.get("message"), said.get("replacement_history")
    if isinstance(message, str) and message.strip():
        return message, False
    items = (
        [item for item in history if isinstance(item, dict)] if isinstance(history, list) else []
    )
    if not any(item.get("encrypted_content") for item in items) and items:
        text = "\n".join(_codex_texts(items[-1].get("content")))
        if text.strip():
            return text, False
    return _OPAQUE, True


def _codex_blocks(kind: str, said: Json) -> list[Json]:
    """The blocks of one record."""
    if kind == "compacted":
        return [_text_block(_codex_summary(said)[0])]
    if kind == "event_msg":
        images = said.get("images")
        pictures = [image_block(url) for url in images] if isinstance(images, list) else []
        return [_text_block(_string(said.get("message"))), *pictures]
    item = said.get("type")
    call = native_id(said.get("call_id")) or native_id(said.get("id")) or ""
    if item == "message":
        return _codex_parts(said.get("content"))
    if item == "reasoning":
        return [_codex_thought(said)]
    if item in _CODEX_RESULTS:
        return [_codex_result(said, call)]
    if isinstance(item, str) and item in _CODEX_CALLS:
        given = said.get(_CODEX_CALLS[item])
        given = _inner_json(given) or given
        if not isinstance(given, dict):
            given = {"input": given}
        name = native_id(said.get("name")) or item.removesuffix("_call")
        return [{"type": "tool_use", "id": call, "name": name, "input": given}]
    if isinstance(item, str) and item in _CODEX_DONE:
        name, field = _CODEX_DONE[item]
        given = {field: said[field]} if field in said else {}
        blocks: list[Json] = [{"type": "server_tool_use", "id": call, "name": name, "input": given}]
        if isinstance(said.get("result"), str):
            blocks.append(image_block(f"data:image/png;base64,{said['result']}"))
        return blocks
    return []


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def _codex_parts(content: object) -> list[Json]:
    """Blocks for the content of a message or of a result."""
    if isinstance(content, str):
        return [_text_block(content)]
    blocks: list[Json] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            blocks.append({"type": "unknown", "value": part})
        elif isinstance(part.get("text"), str):
            blocks.append(_text_block(part["text"]))
        elif part.get("type") == "input_image":
            blocks.append(image_block(part.get("image_url")))
        else:
            blocks.append(part)
    return blocks


def _codex_thought(said: Json) -> Json:
    texts = _codex_texts(said.get("summary")) or _codex_texts(said.get("content"))
    block: Json = {"type": "thinking", "thinking": "\n\n".join(texts)}
    if isinstance(said.get("encrypted_content"), str):
        block["encrypted_content"] = said["encrypted_content"]
    return block


def _codex_result(said: Json, call: str) -> Json:
    output = said.get("output", said.get("tools"))
    block: Json = {"type": "tool_result", "tool_use_id": call}
    inner = _inner_json(output)
    if isinstance(inner, dict) and isinstance(inner.get("output"), str):
        output = inner["output"]
    elif isinstance(output, dict):
        if output.get("success") is False:
            block["is_error"] = True
        output = output.get("content", output)
    if isinstance(output, list):
        block["content"] = _codex_parts(output)
    else:
        block["content"] = output if isinstance(output, str) else compact_json(output)
    return block


def _codex_parent(said: Json) -> str | None:
    """The session that started this one as a subagent; "" if it is not told, None if none did."""
    source = said.get("source")
    if not isinstance(source, dict) or "subagent" not in source:
        return None
    spawn = _dict(_dict(source["subagent"]).get("thread_spawn"))
    return native_id(spawn.get("parent_thread_id")) or native_id(said.get("parent_thread_id")) or ""


def codex_family(record: Json) -> tuple[str, str | None] | None:
    """The session of a rollout's first line and the session it was forked from."""
    kind, said = _codex_item(record)
    session = native_id(said.get("id")) if kind in ("session_meta", "header") else None
    return None if session is None else (session, native_id(said.get("forked_from_id")))


# ================================================================================================
# 10. pi
#
# One session file: a header, then entries with `id` and `parentId`. In version 1 they have neither
# and form one line. Ids have 8 digits, so that a message is known by id and time together.
# ================================================================================================

_PI_ROLES = {
    "user": ("user", None),
    "assistant": ("assistant", None),
    "toolResult": ("tool", None),
    "bashExecution": ("user", "shell"),
    "custom": ("user", "custom"),
    "hookMessage": ("user", "custom"),
}
_PI_STATES = (
    "custom", "label", "model_change", "session", "session_info", "thinking_level_change",
)  # fmt: skip
_PI_MESSAGES = ("branch_summary", "compaction", "custom_message", "message")


def is_pi_record(record: Json) -> bool:
    """Whether this looks like a line of a pi session file."""
    kind = record.get("type")
    if kind == "session":
        return isinstance(record.get("id"), str) and "cwd" in record
    if kind == "message":
        return isinstance(record.get("message"), dict) and "timestamp" in record
    return (
        kind in (*_PI_MESSAGES, *_PI_STATES) and "timestamp" in record and "payload" not in record
    )


class _PiLink:
    """A record, which others may hang on: its parent, and its entry if it is a message.

    `above` is an earlier link, ROOT, LOST, or an id that did not stand before it.
    """

    __slots__ = ("above", "entry")

    def __init__(self, above: int | str, entry: int) -> None:
        self.above = above
        self.entry = entry  # ROOT: only state


class _PiFile(_Records):
    __slots__ = ("begin", "by_id", "by_key", "keeps", "links", "repeats", "resolved")

    def __init__(self, lines: Lines) -> None:
        super().__init__("pi", lines)
        self.links: list[_PiLink] = []
        self.begin = 0  # the link of the newest header, from which entries without id are counted
        self.by_id: dict[str, int] = {}  # id of a record -> its newest link so far
        self.by_key: dict[str, int] = {}  # what a message is known by -> entry
        self.keeps: dict[int, int | str] = {}  # link of a compaction -> the first link it keeps
        self.repeats: dict[str, int] = {}  # content -> how often it came
        self.resolved: list[int] = []  # of each link, the entry that it is or hangs on

    # -- records -----------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Count one record and remember what it says."""
        record = self.open(found)
        if record is None:
            return
        kind = record.get("type")
        id = native_id(record.get("id")) if kind != "session" else None
        entry = ROOT
        if kind == "session":
            self._take_header(record)
        elif kind in _PI_MESSAGES:
            made = self._message(found, record, str(kind))
            if made is not None:
                entry = self._add(found, record, made, id)
        elif kind == "session_info":
            title = " ".join(_string(record.get("name")).split())
            self.out.title = title[: timeline.NAME_CHARS_MAX].strip() or self.out.title
            self.skip("session_info")
        else:
            self.skip(kind if isinstance(kind, str) else "unknown")
        self._link(record, id, entry)

    def _take_header(self, record: Json) -> None:
        out = self.out
        out.session = out.session or native_id(record.get("id"))
        out.cwd = out.cwd or _path_in(record)
        out.time = parse_time(record.get("timestamp")) if out.time is None else out.time
        self.begin = len(self.links)
        self.repeats.clear()
        self.skip("session")

    def _link(self, record: Json, id: str | None, entry: int) -> None:
        """Remember where the record stands. One without id hangs on the record before it."""
        above: int | str = len(self.links) - 1
        if id is not None or "parentId" in record:
            parent = native_id(record.get("parentId"))
            above = ROOT if record.get("parentId", 0) is None else LOST
            if parent is not None:
                above = self.by_id.get(parent, parent) if parent != id else LOST
        if record.get("type") == "session":
            above = len(self.links) - 1  # nothing names it
        if record.get("type") == "compaction":
            first, index = record.get("firstKeptEntryId"), record.get("firstKeptEntryIndex")
            if isinstance(first, str):
                self.keeps[len(self.links)] = self.by_id.get(first, first)
            elif type(index) is int and 0 <= index < len(self.links) - self.begin:
                self.keeps[len(self.links)] = self.begin + index
        if id is not None:
            self.by_id[id] = len(self.links)
        self.links.append(_PiLink(above, entry))

    def _message(self, found: Found, record: Json, kind: str) -> Entry | None:
        """The entry of a record that should hold a message; None if it holds none."""
        piece = Piece("", found)
        if kind == "compaction" and isinstance(record.get("summary"), str):
            entry = Entry("summary", piece)
            entry.compaction = Compaction(None)
            entry.compaction.copied_only = True
            return entry
        if kind == "branch_summary" and isinstance(record.get("summary"), str):
            entry = Entry("summary", piece)
            entry.kind = "branch_summary"
            return entry
        said = record if kind == "custom_message" else record.get("message")
        role = "custom" if kind == "custom_message" else None
        if isinstance(said, dict) and role is None:
            role = said.get("role") if isinstance(said.get("role"), str) else None
        if kind in ("compaction", "branch_summary") or not isinstance(said, dict) or role is None:
            self.spoil(found, f"a {kind} record without message")
            return None
        if role not in _PI_ROLES:
            self.out.notes.add("unknown role", f"line {found.line}: role {role!r:.80} is not read")
            self.skip(f"message of {role}")
            return None
        content = said.get("content")
        if isinstance(content, str) and _HANDOFF.fullmatch(content):
            _count(self.out.counts.hidden, "timeline-handoff")
            return None
        entry = Entry(_PI_ROLES[role][0], piece)
        entry.kind = _PI_ROLES[role][1]
        entry.calls = role == "assistant" and _has_block(content, "toolCall")
        entry.results = role == "toolResult"
        return entry

    def _add(self, found: Found, record: Json, entry: Entry, id: str | None) -> int:
        """Take the entry in, unless the file has it already; returns its index."""
        if id is None:
            key = f"{self.scope}/{len(self.links) - self.begin}"
        else:
            # As it stands, for whoever writes it writes it so each time.
            key = f"{id}@{_string(record.get('timestamp'))[:40]}"
        if key in self.by_key:
            return self._repeat(self.by_key[key], found, record)
        entry.pieces[0].id, entry.native = key, id
        if id is None:
            entry.also = (self._print(entry, record),)
        self.by_key[key] = len(self.out.entries)
        self.out.entries.append(entry)
        return len(self.out.entries) - 1

    def _print(self, entry: Entry, record: Json) -> str:
        """What a message of version 1 is known by too, should pi write the file again, with ids."""
        content = _fingerprint([entry.role, _pi_blocks(record)])
        return f"{self.scope}/{content}/{_next(self.repeats, content)}"

    def _repeat(self, index: int, found: Found, record: Json) -> int:
        first = self.out.entries[index]
        if _pi_blocks(self.at(first.pieces[0])) == _pi_blocks(record):
            _count(self.out.counts.known, "repeated entry")
        else:
            self.note_changed(found, first)
        return index

    # -- messages ----------------------------------------------------------------------------------

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        entries = self.out.entries
        for entry in entries:
            entry.node = known(entry.id)
        if any(known(f"{self.scope}/{number}") is not None for number in range(1, PI_FIRST_MAX)):
            # It was read as version 1; has pi written it again, with ids?
            self.repeats.clear()
            for entry in entries:
                print = self._print(entry, self.at(entry.pieces[0]))
                if entry.native is not None and entry.node is None:
                    entry.node = known(print)
        self._resolve()
        self._hang()
        self._read_compactions()
        self._find_active()
        return self.out

    def _above(self, link: _PiLink) -> int:
        return self.by_id.get(link.above, LOST) if isinstance(link.above, str) else link.above

    def _resolve(self) -> None:
        """For each link the entry that it is or hangs on; LOST behind a parent that is missing."""
        self.resolved = resolved = [link.entry for link in self.links]
        done = [link.entry >= 0 for link in self.links]
        for start in range(len(self.links)):
            way, index = [], start
            while index >= 0 and not done[index]:
                done[index] = True
                resolved[index] = LOST  # stands if the way comes back here: a cycle
                way.append(index)
                index = self._above(self.links[index])
            end = resolved[index] if index >= 0 else index
            for each in way:
                resolved[each] = end

    def _hang(self) -> None:
        """Give each entry its parent."""
        entries = self.out.entries
        parents = [ROOT] * len(entries)
        done = [False] * len(entries)
        for link in self.links:
            if link.entry < 0 or done[link.entry]:
                continue
            done[link.entry] = True
            above = self._above(link)
            parent = self.resolved[above] if above >= 0 else above
            if parent == link.entry:
                parent = LOST
                entries[link.entry].gap = "self parent"
            elif parent == LOST:
                entries[link.entry].gap = "parent not in file"
            parents[link.entry] = parent
        for index, reason in settle(parents).items():
            entries[index].gap = reason or entries[index].gap
        for entry, parent in zip(entries, parents, strict=True):
            entry.parent = parent

    def _read_compactions(self) -> None:
        """What is kept: the messages on the way from the compaction up to the first one named."""
        entries, left = self.out.entries, KEPT_MAX
        for number, first in self.keeps.items():
            first = self.by_id.get(first, LOST) if isinstance(first, str) else first
            summary = self.links[number].entry
            told = entries[summary].compaction if summary >= 0 else None
            if first < 0 or told is None or told.kept:
                continue
            way, index = [], self._above(self.links[number])
            # Parents stand before their children, or else they would be searched for in vain.
            while index > first and left > 0:
                left -= 1
                way.append(index)
                above = self._above(self.links[index])
                index = above if above < index else LOST
            if index == first:
                kept = [self.links[each].entry for each in reversed([*way, first])]
                told.kept = [e for e in kept if e >= 0 and entries[e].compaction is None]
        if not left:
            self.out.notes.add("kept", f"compactions keep over {KEPT_MAX} messages; not all copied")

    def _find_active(self) -> None:
        """The newest message; with a warning where the last line, a state, hangs elsewhere."""
        entries = self.out.entries
        if not entries:
            return
        self.out.active = next(link.entry for link in reversed(self.links) if link.entry >= 0)
        if self.links[-1].entry < 0 and self.resolved[-1] != self.out.active:
            self.out.notes.add(
                "stale last line",
                "the last line hangs on an older message; the newest message is taken",
            )

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        record = self.at(entry.pieces[0])
        if record.get("type") not in _PI_MESSAGES:
            raise rewritten(entry.pieces[0].offset)
        renderer = Renderer()
        renderer.add(_pi_blocks(record))
        content = renderer.finish()
        content.size = self.size(entry.pieces[0], record)
        content.time = parse_time(record.get("timestamp"))
        said = record.get("message")
        _keep_usage(content, said.get("usage") if isinstance(said, dict) else None)
        return content


def _next(table: dict[str, int], name: str) -> int:
    table[name] = table.get(name, 0) + 1
    return table[name]


def _pi_blocks(record: Json) -> list[Json]:
    """The blocks of one record."""
    if record.get("type") in ("compaction", "branch_summary"):
        return [_text_block(_string(record.get("summary")))]
    said = record.get("message") if record.get("type") == "message" else record
    said = said if isinstance(said, dict) else {}
    content = said.get("content")
    if said.get("role") == "bashExecution":
        text = f"$ {_string(said.get('command'))}\n{_string(said.get('output'))}"
        code = said.get("exitCode")
        return [_text_block(text if code in (0, None) else f"{text}\n[exit code {code!s:.20}]")]
    blocks = [_text_block(content)] if isinstance(content, str) else []
    blocks += [_pi_block(each) for each in (content if isinstance(content, list) else ())]
    if said.get("role") != "toolResult":
        return blocks
    result: Json = {
        "type": "tool_result",
        "tool_use_id": native_id(said.get("toolCallId")) or "",
        "content": blocks,
    }
    if said.get("isError") is True:
        result["is_error"] = True
    return [result]


def _pi_block(block: object) -> Json:
    if not isinstance(block, dict):
        return {"type": "unknown", "value": block}
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return _text_block(block["text"])
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        thought: Json = {"type": "thinking", "thinking": block["thinking"]}
        if isinstance(block.get("thinkingSignature"), str):
            thought["signature"] = block["thinkingSignature"]
        return thought
    if kind == "toolCall":
        given = block.get("arguments")
        return {
            "type": "tool_use",
            "id": native_id(block.get("id")) or "",
            "name": native_id(block.get("name")) or "tool",
            "input": given if isinstance(given, dict) else {"arguments": given},
        }
    if kind == "image" and isinstance(block.get("data"), str):
        media = native_id(block.get("mimeType")) or "unknown type"
        source = {"type": "base64", "media_type": media, "data": block["data"]}
        return {"type": "image", "source": source}
    return block


# ================================================================================================
# 11. Gemini
#
# A session is a list that its lines change: a message, the same again with more in it, a list that
# takes the place of all (set-up, compression), a step back. Before 2026 it was one JSON object. A
# saved chat has neither ids nor times.
# ================================================================================================

_GEMINI_TYPES = {"user": "user", "gemini": "assistant"}
_GEMINI_NOTICES = ("error", "info", "warning")
_GEMINI_ROLES = {"user": "user", "model": "assistant"}
_SETUP = re.compile(
    r"\s*(This is the Gemini CLI\b.*|<session_context>.*</session_context>\s*)", re.DOTALL
)
_SETUP_ANSWER = "Got it"
_STATE = -3  # instead of an entry: a notice, or scaffolding


def is_gemini_record(record: Json) -> bool:
    """Whether this looks like a line of a session file."""
    if "$set" in record or "$rewindTo" in record:
        return len(record) == 1
    kind = record.get("type")
    if kind is None:
        return isinstance(record.get("sessionId"), str) and (
            "projectHash" in record or "startTime" in record
        )
    told = kind in (*_GEMINI_TYPES, *_GEMINI_NOTICES) and "uuid" not in record
    return told and "content" in record and "timestamp" in record and "id" in record


def is_gemini_document(value: object) -> bool:
    """Whether this looks like a session or a saved chat that is one JSON value."""
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        return is_gemini_record(value)
    history = _gemini_history(value)
    return history is not None and any(map(_is_turn, history))


def _gemini_history(value: object) -> list[Any] | None:
    """The turns of a saved chat, or of a state kept for `/restore`."""
    if isinstance(value, dict):
        client = value.get("clientHistory")
        value = client if isinstance(client, list) else value.get("history")
    return value if isinstance(value, list) else None


def _is_turn(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and value["role"] in _GEMINI_ROLES
        and isinstance(value.get("parts"), list)
    )


def _gemini_text(content: object) -> str:
    """All text of a content: a string, or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


class _GeminiFile(_Records):
    """A session. Its list holds (id, entry) with entry _STATE for what is no message."""

    __slots__ = ("begun", "by_id", "list", "places", "prints", "tip", "whole")

    def __init__(self, lines: Lines, whole: Json | None = None) -> None:
        super().__init__("gemini", lines)
        self.whole = whole  # a session that is one JSON object
        self.by_id: dict[str, int] = {}  # id, or another one of the same message -> entry
        self.list: list[tuple[str, int]] = []  # what the client shows now
        self.places: dict[str, int] = {}  # id -> where it stands in the list
        self.prints: list[str] = []  # of each entry, type and content as a hash
        self.tip = ROOT  # the entry that the next one hangs on
        self.begun = False  # set-up was just hidden, which the model answers

    # -- records -----------------------------------------------------------------------------------

    def take(self, found: Found) -> None:
        """Count one record and remember what it says."""
        record = self.open(found)
        if record is None:
            return
        if isinstance(record.get("messages"), list) and "sessionId" in record:
            self.out.counts.records -= 1  # only what it holds is counted
            self.take_session(found, record)
        elif "$set" in record:
            self._take_set(found, record["$set"])
        elif "$rewindTo" in record:
            self._rewind(native_id(record["$rewindTo"]))
            self.skip("$rewindTo")
        elif record.get("type") is None and "sessionId" in record:
            self._take_header(record)
            self.skip("header")
        else:
            self._take_message(found, record, None)

    def take_session(self, found: Found, record: Json) -> None:
        """A session that is one object."""
        self._take_header(record)
        for number, message in enumerate(record["messages"]):
            self.out.counts.records += 1
            self._take_message(found, message, number)

    def _take_header(self, record: Json) -> None:
        out = self.out
        out.session = out.session or native_id(record.get("sessionId"))
        if record.get("kind") == "subagent" and out.session is not None:
            out.agent = "", out.session  # its folder alone names the session it belongs to
        if out.time is None:
            out.time = parse_time(record.get("startTime"))
        self._take_title(record)

    def _take_title(self, record: Json) -> None:
        title = " ".join(_string(record.get("summary")).split())
        self.out.title = title[: timeline.NAME_CHARS_MAX].strip() or self.out.title

    def _take_message(self, found: Found, record: object, part: int | None) -> None:
        """A message, or one of a session's `messages`: at the end of the list, or in its place."""
        if not isinstance(record, dict):
            self.spoil(found, "a message that is no object")
            return
        kind, id = record.get("type"), native_id(record.get("id"))
        if not isinstance(kind, str) or kind not in (*_GEMINI_TYPES, *_GEMINI_NOTICES):
            self.skip(kind if isinstance(kind, str) else "unknown")
            return
        if id is None:
            id = f"#{found.line}.{found.index}.{part or 0}"
        index = self.by_id.get(id)
        if index is not None and index != _STATE:
            entry = self.out.entries[index]
            name = f"{entry.id}#{len(entry.pieces)}"
            entry.pieces.append(Piece(name, found, part))
            self.prints[index] = _gemini_print(record)
        else:
            index = self._new(found, record, id, part)
        if id not in self.places:
            self._push(id, index)

    def _new(self, found: Found, record: Json, id: str, part: int | None) -> int:
        """The index of a new entry; _STATE for what is counted as no message."""
        kind, text = record["type"], _gemini_text(record.get("content"))
        begun, self.begun = self.begun, False
        if kind in _GEMINI_NOTICES:
            self.skip(kind)
        elif kind == "user" and _SETUP.fullmatch(text):
            self.begun = True
            _count(self.out.counts.hidden, "set-up")
        elif kind == "gemini" and begun and text.startswith(_SETUP_ANSWER):
            _count(self.out.counts.hidden, "set-up")
        elif kind == "user" and _HANDOFF.fullmatch(text):
            _count(self.out.counts.hidden, "timeline-handoff")
        else:
            return self._add(found, record, id, part, _GEMINI_TYPES[kind])
        self.by_id[id] = _STATE
        return _STATE

    def _add(self, found: Found, record: Json, id: str, part: int | None, role: str) -> int:
        entry = Entry(role, Piece(f"{self.scope}/{id}", found, part))
        entry.native = id
        entry.parent = self.tip
        self.by_id[id] = len(self.out.entries)
        self.out.entries.append(entry)
        self.prints.append(_gemini_print(record))
        return self.by_id[id]

    def _push(self, id: str, index: int) -> None:
        self.places[id] = len(self.list)
        self.list.append((id, index))
        if index >= 0:
            self.tip = index
            self.out.undone = False

    # -- the list ----------------------------------------------------------------------------------

    def _rewind(self, id: str | None) -> None:
        """Drop the message and all behind it; all, if it is not in the list."""
        self._cut(self.places.get(id, 0) if id is not None else 0)
        self.tip = next((index for _, index in reversed(self.list) if index >= 0), ROOT)
        self.out.undone = True

    def _cut(self, length: int) -> None:
        while len(self.list) > length:
            self.places.pop(self.list.pop()[0], None)

    def _take_set(self, found: Found, fields: object) -> None:
        self.skip("$set")
        if not isinstance(fields, dict):
            return
        self._take_title(fields)
        if isinstance(fields.get("messages"), list):
            self._set_list(found, fields["messages"])

    def _set_list(self, found: Found, messages: list[Any]) -> None:
        """A list takes the place of the one so far.

        The message at its head that nobody knows is the summary of what was before; without any
        unknown one, a list that ends earlier is a step back.
        """
        self.out.counts.records += len(messages)
        end, before = self.tip, {index for _, index in self.list if index >= 0}
        last = self.list[-1][1] if self.list else ROOT
        known = self._match(messages)
        self._cut(0)
        summary, fresh, heads = ROOT, False, True
        kept: list[int] = []
        for number, message in enumerate(messages):
            index = known[number]
            if index is not None:
                self._keep(message, index)
                if index in before:
                    kept.append(index)
                heads = heads and index < 0
                continue
            if summary >= 0 and self.list[-1][1] == summary and _is_setup_answer(message):
                entry = self.out.entries[summary]
                entry.pieces.append(Piece(f"{entry.id}#1", found, number))
                self._alias(message, summary)
                continue
            count = len(self.out.entries)
            self.tip = end if heads else self.tip
            self._take_message(found, message, number)
            if len(self.out.entries) > count:
                if heads and end >= 0:
                    summary = count
                    self.out.entries[summary].role = "summary"
                    self.out.entries[summary].compaction = Compaction(None)
                fresh, heads = True, False
        if summary >= 0:
            told = self.out.entries[summary].compaction
            assert told is not None
            told.kept = list(dict.fromkeys(kept))
        self._end_list(summary, fresh, end, last)

    def _end_list(self, summary: int, fresh: bool, end: int, last: int) -> None:
        """Where the client goes on: behind the last of the list."""
        newest = next((index for _, index in reversed(self.list) if index >= 0), ROOT)
        told = self.out.entries[summary].compaction if summary >= 0 else None
        if told is not None and (newest in told.kept or newest == summary):
            newest = summary  # which stands for its last copy too
        if not fresh and newest != end:
            same = newest == last and newest >= 0
            self.out.undone = not same or self.out.undone
        self.tip = newest if newest != ROOT or not fresh else self.tip

    def _keep(self, message: object, index: int) -> None:
        """A message of a new list that the file has already."""
        _count(self.out.counts.known, "in $set.messages")
        self._alias(message, index)
        if index >= 0:
            self.tip = index

    def _alias(self, message: object, index: int) -> None:
        id = native_id(message.get("id")) if isinstance(message, dict) else None
        if id is None and index >= 0:
            id = self.out.entries[index].native
        if id is not None:
            self.by_id.setdefault(id, index)
            if id not in self.places:
                self.places[id] = len(self.list)
                self.list.append((id, index))

    def _match(self, messages: list[Any]) -> list[int | None]:
        """Which entry each message of a new list is: that of its id, else one of equal content in
        the same order as in the list so far; None for an unknown one."""
        from bisect import bisect_left

        spots: dict[str, list[int]] = {}
        for spot, (_, there) in enumerate(self.list):
            if there >= 0:
                spots.setdefault(self.prints[there], []).append(spot)
        found: list[int | None] = []
        start = 0
        for message in messages:
            id = (native_id(message.get("id")) if isinstance(message, dict) else None) or ""
            one, place = self.by_id.get(id), self.places.get(id)
            if one is None and isinstance(message, dict):
                equal = spots.get(_gemini_print(message), [])
                at = bisect_left(equal, start)
                if at < len(equal):
                    place, one = equal[at], self.list[equal[at]][1]
            if place is not None:
                start = max(start, place + 1)
            found.append(one)
        return found

    # -- messages ----------------------------------------------------------------------------------

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        for entry in self.out.entries:
            entry.node = known(entry.id)
        if self.out.entries:
            self.out.active = self.tip if self.tip >= 0 else None
            if self.out.entries[-1].compaction is None:
                self.out.loose = len(self.out.entries) - 1
        return self.out

    def content(self, entry: Entry) -> Content:
        """The content of `entry`: its newest record; of a summary the first, which an answer of
        the model may follow."""
        piece = entry.pieces[-1 if entry.compaction is None else 0]
        record = self._read(piece)
        renderer = Renderer()
        renderer.add(_gemini_blocks(record))
        content = renderer.finish()
        content.size = self.size(piece, record)
        content.time = parse_time(record.get("timestamp"))
        _keep_usage(content, record.get("tokens"))
        return content

    def _read(self, piece: Piece) -> Json:
        record: Any = self.at(piece) if self.whole is None else self.whole
        if piece.part is not None:
            fields = record.get("$set", record)
            messages = fields.get("messages") if isinstance(fields, dict) else None
            if not isinstance(messages, list) or piece.part >= len(messages):
                raise rewritten(piece.offset)
            record = messages[piece.part]
        if not isinstance(record, dict):
            raise rewritten(piece.offset)
        return record


def _is_setup_answer(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.get("type") == "gemini"
        and _gemini_text(message.get("content")).startswith(_SETUP_ANSWER)
    )


def _gemini_print(record: Json) -> str:
    return _fingerprint([record.get("type"), record.get("content")])


def _gemini_blocks(record: Json) -> list[Json]:
    """The blocks of a message of a session: thoughts, what was said, calls with their results."""
    blocks: list[Json] = []
    thoughts = record.get("thoughts")
    for thought in thoughts if isinstance(thoughts, list) else ():
        if isinstance(thought, dict):
            words = [_string(thought.get(name)) for name in ("subject", "description")]
            blocks.append({"type": "thinking", "thinking": ": ".join(w for w in words if w)})
    blocks += _gemini_parts(record.get("content"))
    calls = record.get("toolCalls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            blocks += _gemini_call(call)
    return blocks


def _gemini_call(call: Json) -> list[Json]:
    id, name = native_id(call.get("id")) or "", native_id(call.get("name")) or "tool"
    given = call.get("args")
    given = given if isinstance(given, dict) else {"args": given}
    blocks: list[Json] = [{"type": "tool_use", "id": id, "name": name, "input": given}]
    if call.get("result") is None:
        return blocks
    result: Json = {"type": "tool_result", "tool_use_id": id}
    result["content"] = _gemini_result(call["result"])
    if call.get("status") == "error":
        result["is_error"] = True
    return [*blocks, result]


def _gemini_result(result: object) -> object:
    """What a tool answered: its text where it is no more than that."""
    answers = []
    for part in result if isinstance(result, list) else [result]:
        said = part.get("functionResponse") if isinstance(part, dict) else None
        if isinstance(said, dict):
            answers.append(_text_block(_gemini_answer(said.get("response"))))
        else:
            answers += _gemini_parts(part)
    alone = answers[0] if len(answers) == 1 and answers[0].get("type") == "text" else {}
    return alone["text"] if isinstance(alone.get("text"), str) else answers


def _gemini_answer(response: object) -> str:
    if isinstance(response, dict) and len(response) == 1:
        (response,) = response.values()
    return response if isinstance(response, str) else compact_json(response)


def _gemini_parts(content: object) -> list[Json]:
    """Blocks for a string or for parts as the API of Gemini has them."""
    blocks: list[Json] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            if part or not isinstance(content, str):
                blocks.append(_text_block(part))
        elif isinstance(part, dict):
            blocks.append(_gemini_part(part))
        elif part is not None:
            blocks.append({"type": "unknown", "value": part})
    return blocks


def _gemini_part(part: Json) -> Json:
    data, call, said = (
        part.get(name) for name in ("inlineData", "functionCall", "functionResponse")
    )
    if isinstance(part.get("text"), str):
        if part.get("thought") is True:
            return {"type": "thinking", "thinking": part["text"]}
        return _text_block(part["text"])
    if isinstance(data, dict) and isinstance(data.get("data"), str):
        media = native_id(data.get("mimeType")) or "unknown type"
        kind = "image" if media.startswith("image/") else "document"
        source = {"type": "base64", "media_type": media, "data": data["data"]}
        return {"type": kind, "source": source}
    if isinstance(call, dict):
        return _gemini_call({**call, "result": None})[0]
    if isinstance(said, dict):
        answer = _gemini_answer(said.get("response"))
        return {"type": "tool_result", "tool_use_id": native_id(said.get("id")) or "",
                "content": answer}  # fmt: skip
    return part


class _GeminiChat:
    """A saved chat: turns without ids, known by what they say and what they hang on."""

    __slots__ = ("called", "calls", "history", "out")

    def __init__(self, history: list[Any]) -> None:
        self.history = history
        self.called: dict[str, int] = {}  # name of a tool -> how often it was called
        self.calls: dict[str, list[str]] = {}  # name of a tool -> calls without result
        self.out = Transcript("gemini", False, self.content)

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        counts, entries = self.out.counts, self.out.entries
        counts.records += len(self.history)
        begun, above = False, None
        for number, turn in enumerate(self.history):
            if not _is_turn(turn):
                counts.bad += 1
                self.out.notes.add("no message", f"turn {number}: no role or no parts")
                continue
            text, role = _gemini_text(turn["parts"]), _GEMINI_ROLES[turn["role"]]
            setup = not entries and role == "user" and _SETUP.fullmatch(text) is not None
            if setup or (begun and role == "assistant" and text.startswith(_SETUP_ANSWER)):
                begun = setup
                _count(counts.hidden, "set-up")
                continue
            begun = False
            above = "#" + sha256(compact_json([above, role, turn["parts"]]).encode())
            found = Found(turn, number + 1, 0, 0)
            entry = Entry(role, Piece(above, found, number))
            entry.parent = len(entries) - 1
            self._pair(turn["parts"])
            entry.calls = role == "assistant" and _has_part(turn["parts"], "functionCall")
            entry.results = role == "user" and _has_part(turn["parts"], "functionResponse")
            if entry.results:
                only = all("functionResponse" in p for p in turn["parts"] if isinstance(p, dict))
                entry.role, entry.kind = ("tool", None) if only else ("user", "mixed")
            entry.node = known(entry.id)
            entries.append(entry)
        self.out.active = len(entries) - 1 if entries else None
        return self.out

    def _pair(self, parts: list[Any]) -> None:
        """Give calls and results without id one: results answer the calls of a name in order."""
        for part in parts:
            for field in ("functionCall", "functionResponse"):
                value = part.get(field) if isinstance(part, dict) else None
                if not isinstance(value, dict) or native_id(value.get("id")) is not None:
                    continue
                name = native_id(value.get("name")) or "tool"
                waiting = self.calls.setdefault(name, [])
                if field == "functionCall":
                    number = _next(self.called, name)
                    value["id"] = name if number == 1 else f"{name} ({number})"
                    waiting.append(value["id"])
                elif waiting:
                    value["id"] = waiting.pop(0)

    def content(self, entry: Entry) -> Content:
        """The content of `entry`."""
        renderer = Renderer()
        renderer.add(_gemini_parts(self.history[entry.pieces[0].part or 0]["parts"]))
        content = renderer.finish()
        if content.blocks is not None:
            content.size = len(compact_json(content.blocks).encode())
        return content


def _has_part(parts: list[Any], name: str) -> bool:
    return any(isinstance(part, dict) and name in part for part in parts)


class _Whole:
    """A JSON value that a file is as a whole; `torn`: the end of it is lost."""

    __slots__ = ("mended", "torn", "value")

    def __init__(self, value: Any, mended: bool, torn: bool) -> None:
        self.value = value
        self.mended = mended
        self.torn = torn


_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)


def whole_json(stream: BinaryIO) -> _Whole | None:
    """The one object or array that a stream holds; None for anything else, and above a limit."""
    stream.seek(0)
    raw = stream.read(LINE_BYTES_MAX + 1)
    text, odd = decode_line(raw)
    place = _after_space(text, 0)
    if len(raw) > LINE_BYTES_MAX or text[place : place + 1] not in ("{", "["):
        return None
    torn = False
    try:
        value, end = _scan(text, place)
    except json.JSONDecodeError as error:
        line = text[place:].partition("\n")[0]
        if line.startswith("{") and _object_at(line, 0, False)[0] is not None:
            return None  # lines
        value, end, torn = _cut_short(text[place : error.pos]), len(text), True
    except (ValueError, RecursionError):
        return None
    if value is None or _after_space(text, end) != len(text) or _is_too_deep(value):
        return None
    mended = False
    if odd or _SURROGATE_ESCAPE.search(text):
        wrapped, mended = _mended({"": value})
        value = wrapped[""]
    return _Whole(value, mended, torn)


def _cut_short(text: str) -> Any:
    """What the beginning of a list, or of an object that holds one, says before it breaks off."""
    stack, end, closing = "", 0, ""
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token == '"' or len(stack) > NESTING_MAX:
            break
        if token in ("{", "["):
            stack += token
        elif token in ("}", "]"):
            stack = stack[:-1]
        if stack in ("[", "{[") and token in ("}", "]", ","):
            end = match.start() if token == "," else match.end()
            closing = "]" if stack == "[" else "]}"
    try:
        return json.loads(text[:end] + closing) if end else None
    except (ValueError, RecursionError):
        return None


def read_gemini(stream: BinaryIO) -> list[Draft] | None:
    """The one conversation of a session, or of a saved chat, that is one JSON value; None where the
    file is lines."""
    whole = whole_json(stream)
    if whole is None or not is_gemini_document(whole.value):
        return None
    draft = _whole_gemini(whole)
    if whole.mended:
        draft.out.notes.add("lone surrogate", "half a character, now U+FFFD")
    return [draft.finish]


def _whole_gemini(whole: _Whole) -> _GeminiFile | _GeminiChat:
    value = whole.value
    draft: _GeminiFile | _GeminiChat
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        draft = file = _GeminiFile(Lines(io.BytesIO(), is_gemini_record), value)
        file.take_session(Found(value, 1, 0, 0), value)
    else:
        draft = _GeminiChat(_gemini_history(value) or [])
    if whole.torn:
        draft.out.counts.records += 1
        draft.out.counts.bad += 1
        draft.out.notes.add("unparseable line", "the end of the file is torn")
    return draft


# ================================================================================================
# 12. Documents
#
# Bytes in, JSON values out, where a file is one JSON document instead of lines: the elements of
# the array at its top, one at a time, or else the values that stand there. Knows nothing of what
# they mean.
# ================================================================================================

# Bytes are looked at as characters, one each: so places are offsets, and what JSON is made of is
# ASCII. Control characters may stand in strings, NaN and the like are read as null.
_BLANK = " \t\r\n\f\v\xef\xbb\xbf,"  # a BOM and commas too
_INSIDE = re.compile(f"[{_BLANK}]*")
_OUTSIDE = re.compile(rf"(?:[{_BLANK}\]]+|\[[{_BLANK}]*\])*")  # what ended, and what is empty
_NEAR_END = 12  # characters that a literal or an escape has at most


def _finite_or_none(literal: str) -> float | None:
    number = float(literal)
    return number if number - number == 0 else None


_scan_document = json.JSONDecoder(
    parse_constant=lambda _: None, parse_float=_finite_or_none, strict=False
).raw_decode


class _Window:
    """The part of a stream around a place: `text[place]` is the byte at `offset`."""

    __slots__ = ("_next", "_start", "_stream", "place", "text")

    def __init__(self, stream: BinaryIO, offset: int) -> None:
        self._stream = stream
        self._start = self._next = offset
        self.text = ""
        self.place = 0

    @property
    def offset(self) -> int:
        return self._start + self.place

    def fill(self) -> bool:
        """Read more, as much again as lies before us; False at the end of the stream."""
        ahead = len(self.text) - self.place
        self._stream.seek(self._next)  # somebody else may have read from it meanwhile
        raw = self._stream.read(max(WINDOW_BYTES, ahead))
        self._next += len(raw)
        self._start += self.place
        self.text = self.text[self.place :] + raw.replace(b"\0", b" ").decode("latin-1")
        self.place = 0
        return len(raw) > 0

    def leave(self, end: int) -> None:
        """Go to `end`, and let go of what lies before if that is much."""
        self.place = end
        if end > WINDOW_BYTES:
            self.text, self._start, self.place = self.text[end:], self._start + end, 0

    def skip(self, blank: re.Pattern[str]) -> bool:
        """Go to the next character that is not `blank`; False if there is none."""
        while True:
            match = blank.match(self.text, self.place)
            self.place = match.end() if match else self.place
            if self.place < len(self.text):
                return True
            if not self.fill():
                return False

    def find(self, char: str) -> bool:
        """Go to the next `char`; False if there is none."""
        while True:
            found = self.text.find(char, self.place)
            self.place = len(self.text) if found < 0 else found
            if found >= 0:
                return True
            if not self.fill():
                return False

    def value(self) -> tuple[object, int]:
        """The value that begins here, and the place where it ends; this place if none does."""
        while True:
            try:
                value, end = _scan_document(self.text, self.place)
            except (ValueError, RecursionError) as error:
                if not self._may_go_on(error) or not self.fill():
                    return None, self.place
                continue
            # The rest of a number may not have been read yet.
            if end < len(self.text) or isinstance(value, (dict, list, str)) or not self.fill():
                return value, end

    def _may_go_on(self, error: Exception) -> bool:
        """Whether the value only is not read to its end yet."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        if len(self.text) - self.place > CONVERSATION_BYTES_MAX:
            return False
        return error.pos >= len(self.text) - _NEAR_END or error.msg.startswith("Unterminated")


class Documents:
    """The objects of a stream of JSON, in order; any of them can be read again.

    What is found is numbered from 1 in `line`; its value is None if it is damaged or no object.
    `accepts` tells a value of the format from another object; it is asked only behind damage,
    where a value may begin at any bracket. The value used last is kept.
    """

    __slots__ = ("_accepts", "_kept", "_stream")

    def __init__(self, stream: BinaryIO, accepts: Callable[[Json], bool]) -> None:
        self._stream = stream
        self._accepts = accepts
        self._kept: tuple[int, Json | None] = (-1, None)

    def __iter__(self) -> Iterator[Found]:
        window, inside, number = _Window(self._stream, 0), False, 0
        while window.skip(_INSIDE if inside else _OUTSIDE):
            if window.text[window.place] == ("]" if inside else "["):
                inside = not inside
                window.place += 1
                continue
            number += 1
            found = Found(None, number, window.offset, 0)
            if not self._decode(window, found):
                found.torn = not self._resync(window)
            yield found

    def head(self) -> Iterator[Json]:
        """The first objects, as many as it takes to tell a format."""
        for found in self:
            if found.value is not None:
                yield found.value
            if found.offset > HEAD_BYTES or found.line >= HEAD_LINES:
                return

    def at(self, offset: int) -> Json:
        """The object that an iteration found at `offset`.

        Raises:
            Refused: the stream no longer holds it, so somebody rewrote the file meanwhile.
        """
        if self._kept[0] != offset:
            window = _Window(self._stream, offset)
            window.fill()
            self._decode(window, Found(None, 0, offset, 0))
        value = self._kept[1]
        if self._kept[0] != offset or value is None:
            raise rewritten(offset)
        return value

    def _decode(self, window: _Window, found: Found) -> bool:
        """Put the object that begins in the window into `found` and go behind it; False, and
        nowhere, if no value begins there."""
        self._kept = (-1, None)  # of two large ones only one is in memory
        value, end = window.value()
        if end == window.place:
            return False
        if isinstance(value, dict):
            text = window.text[window.place : end]
            window.leave(end)
            if not text.isascii():
                value = None
                raw = text.encode("latin-1")
                text, found.mended = decode_line(raw)
                del raw
                try:
                    value, _ = _scan_document(text, 0)
                except (ValueError, RecursionError):
                    value = None
            if isinstance(value, dict) and (found.mended or _SURROGATE_ESCAPE.search(text)):
                value, found.mended = _mended(value)
        else:
            window.leave(end)
        found.value = value if isinstance(value, dict) else None
        self._kept = (found.offset, found.value)
        return True

    def _resync(self, window: _Window) -> bool:
        """Go to where the next object of the format stands; to the end, and False, if none does."""
        window.place += 1
        fails = 0
        while fails < RESYNC_FAILS and window.find("{"):
            value, end = window.value()
            if end == window.place:
                fails += 1
                window.place += 1
            elif isinstance(value, dict) and self._accepts(value):
                return True
            else:
                window.place = end
        while window.fill():
            window.place = len(window.text)
        window.place = len(window.text)
        return False


def lift(parents: Sequence[int], kept: Sequence[bool]) -> list[int]:
    """For each record the nearest kept one above it, ROOT or LOST. Linear.

    `parents` are indices, ROOT or LOST; a circle in which nothing is kept is LOST.
    """
    memo: dict[int, int] = {}
    above = []
    for parent in parents:
        way, place = [], parent
        while place >= 0 and not kept[place] and place not in memo:
            memo[place] = LOST  # stands if the way comes back here
            way.append(place)
            place = parents[place]
        if place >= 0 and not kept[place]:
            place = memo[place]
        memo.update(dict.fromkeys(way, place))
        above.append(place)
    return above


def hang(entries: Sequence[Entry], parents: list[int]) -> None:
    """Give each entry its parent: an index, ROOT, or LOST, which is a gap."""
    for index, parent in enumerate(parents):
        if parent in (index, LOST):
            entries[index].gap = "self parent" if parent == index else "parent not in file"
            parents[index] = LOST
    for index, reason in settle(parents).items():
        entries[index].gap = reason or entries[index].gap
    for entry, parent in zip(entries, parents, strict=True):
        entry.parent = parent


def last_leaf(entries: Sequence[Entry]) -> int | None:
    """The last entry in file order on which nothing hangs; None if there are no entries."""
    inner = {entry.parent for entry in entries}
    leaves = (n for n in range(len(entries) - 1, -1, -1) if n not in inner)
    return next(leaves, None)


def _begin_talk(format: str, read: Callable[[Entry], Content]) -> Transcript:
    """A conversation of an export: its ids are unique, and its messages are counted."""
    out = Transcript(format, True, read)
    out.unit = "message"
    return out


class _Broken:
    """Counts the values of a file that are damaged or no objects: one transcript, without
    messages, stands for all of them."""

    __slots__ = ("_out",)

    def __init__(self, format: str) -> None:
        self._out = _begin_talk(format, lambda _: Content())
        self._out.unit = "conversation"

    def take(self, found: Found) -> None:
        self._out.counts.records += 1
        self._out.counts.bad += 1
        words = "is torn" if found.torn else "cannot be read"
        self._out.notes.add("unparseable conversation", f"conversation {found.line}: {words}")

    def drafts(self) -> list[Draft]:
        """The draft that stands for what was taken, if that was anything."""
        return [lambda _: self._out] if self._out.counts.bad else []


def _read_talks(
    format: str, documents: Documents, take: Callable[[Documents, Found, Json], Draft]
) -> Iterator[Draft]:
    """A draft of each value, by `take`, and of those that are broken."""
    broken = _Broken(format)
    for found in documents:
        if found.value is None:
            broken.take(found)
        else:
            yield take(documents, found, found.value)
    yield from broken.drafts()


def _note_mended(out: Transcript, found: Found) -> None:
    if found.mended:
        out.notes.add("lone surrogate", f"conversation {found.line}: half a character, now U+FFFD")


def _no_record(out: Transcript, number: int, why: str) -> None:
    out.counts.bad += 1
    out.notes.add("unparseable message", f"message {number}: {why}")


def _title_of(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return " ".join(value.split())[: timeline.NAME_CHARS_MAX].strip() or None


def _strings(*values: object) -> list[str]:
    """Those of `values` that are strings and not empty."""
    return [value for value in values if isinstance(value, str) and value]


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _known_again(out: Transcript, number: int, same: bool) -> None:
    """Count a record whose id came before."""
    if same:
        _count(out.counts.known, "duplicate id")
    else:
        out.counts.changed += 1
        words = f"message {number}: the id of an earlier one with other content; the first stays"
        out.notes.add("changed", words)


def _render(blocks: list[Json]) -> Content:
    renderer = Renderer()
    renderer.add(blocks)
    content = renderer.finish()
    if content.blocks is not None:
        content.size = len(compact_json(content.blocks).encode())
    return content


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _file_block(title: object, media: object, source: Json | None = None) -> Json:
    """An image, sound or document, by its media type or else the end of its name."""
    name, media = (each if isinstance(each, str) else "" for each in (title, media))
    kind = media.partition("/")[0]
    if not media and name.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp")):
        kind = "image"
    block: Json = {"type": kind if kind in ("image", "audio") else "document"}
    if name:
        block["title"] = name
    block["source"] = source or {"type": "file"}
    return block


def _from_url(url: object, media: object) -> Json:
    """The source of a block whose content is at `url`, or in it."""
    if not isinstance(url, str) or not url:
        return {"type": "file"}
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return {"type": "url", "url": url}
    told, *more = head.removeprefix("data:").split(";")
    media = told or (media if isinstance(media, str) else "")
    if "base64" in more:
        return {"type": "base64", "media_type": media or "unknown type", "data": data}
    from urllib.parse import unquote

    return {"type": "text", "media_type": media or "text/plain", "data": unquote(data)}


def _given(text: object) -> Json:
    """The input of a call from its JSON text, or a text as it is."""
    if isinstance(text, dict):
        return text
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or _is_too_deep(value):
        return {} if text in (None, "") else {"text": text}
    return value


# ================================================================================================
# 13. ChatGPT
#
# An export: an array of conversations, each with its messages as the nodes of `mapping`.
# ================================================================================================

_CHATGPT_ROLES = ("system", "user", "assistant", "tool")
_CHATGPT_THOUGHTS = ("thoughts", "reasoning_recap")
_CHATGPT_CONTEXT = ("user_editable_context", "model_editable_context")


def is_chatgpt_talk(record: Json) -> bool:
    """Whether this looks like a conversation of a ChatGPT export."""
    return isinstance(record.get("mapping"), dict)


def _chatgpt_hidden(message: Json) -> str | None:
    """Why a message is scaffolding; None if it is not."""
    content, weight = _dict(message.get("content")), message.get("weight")
    if weight == 0 and not isinstance(weight, bool):
        return "weight 0"
    if _dict(message.get("metadata")).get("is_visually_hidden_from_conversation") is True:
        return "visually hidden"
    if content.get("content_type") in _CHATGPT_CONTEXT:
        return "context"
    system = _dict(message.get("author")).get("role") == "system"
    if system and not _strings(content.get("text"), *_list(content.get("parts"))):
        return "empty system text"
    return None


class _ChatgptTalk:
    __slots__ = (
        "answers", "call_names", "current", "documents", "index", "keys", "offset", "out", "owner",
        "parents", "raws",
    )  # fmt: skip

    def __init__(self, documents: Documents, found: Found, talk: Json) -> None:
        self.documents = documents
        self.offset = found.offset
        self.out = out = _begin_talk("chatgpt", self.content)
        out.session = native_id(talk.get("conversation_id")) or native_id(talk.get("id"))
        out.part = 0 if out.session else found.line
        out.title = _title_of(talk.get("title"))
        out.time = parse_time(talk.get("create_time"))
        _note_mended(out, found)
        self.answers: dict[str, str] = {}  # id of a result -> id of its call
        self.keys: dict[str, str] = {}  # id of a message -> its key, where they differ
        self.raws: list[Entry | None] = []  # of each node
        self.owner: dict[str, int] = {}  # id of a message -> its node
        mapping = talk.get("mapping")
        if not isinstance(mapping, dict):
            out.notes.add(
                "entry without mapping", f"conversation {found.line}: entry without mapping"
            )
            mapping = {}
        self.index = {key: number for number, key in enumerate(mapping)}
        self.parents = self._parents(mapping)
        self.current = talk.get("current_node")
        for number, (key, node) in enumerate(mapping.items(), 1):
            self.raws.append(self._take(number, key, node, mapping))

    def _parents(self, mapping: Json) -> list[int]:
        """The index of each node's parent: `parent` decides, then who lists it."""
        listed: dict[str, int] = {}
        for number, node in enumerate(mapping.values()):
            for child in _strings(*_list(_dict(node).get("children"))):
                listed.setdefault(child, number)
        parents = []
        for number, (key, node) in enumerate(mapping.items()):
            wanted = _dict(node).get("parent")
            parent = self.index.get(wanted) if isinstance(wanted, str) else None
            if parent is None:
                parent = listed.get(key)
            if parent is None:
                # Nothing names a parent: a root, if that is what the node says.
                begins = wanted is None and ("parent" in _dict(node) or number == 0)
                parent = ROOT if begins else LOST
            parents.append(parent)
        return parents

    def _take(self, number: int, key: str, node: object, mapping: Json) -> Entry | None:
        """Count one node; the entry if it is a message."""
        out = self.out
        out.counts.records += 1
        message = _dict(node).get("message")
        if not isinstance(node, dict) or not (message is None or isinstance(message, dict)):
            _no_record(out, number, "is no message")
            return None
        reason = "no message" if message is None else _chatgpt_hidden(message)
        if reason is not None or message is None:
            _count(out.counts.hidden, reason or "")
            return None
        role = _dict(message.get("author")).get("role")
        if role not in _CHATGPT_ROLES or _is_too_deep(message):
            _no_record(out, number, "its role is not known, or it is nested too deep")
            return None
        id = native_id(message.get("id")) or native_id(key) or f"{out.session}#{number}"
        if id in self.owner:
            first = _dict(_dict(mapping[self.keys.get(id, id)]).get("message"))
            same = first.get("content") == message.get("content")
            _known_again(out, number, same)
            return None
        self.owner[id] = number - 1
        if id != key:
            self.keys[id] = key
        entry = Entry(role, Piece(id, Found(None, number, self.offset, 0)))
        entry.results = role == "tool"
        kind = _dict(message.get("content")).get("content_type")
        if role == "assistant":
            if kind in _CHATGPT_THOUGHTS:
                entry.kind = "thoughts"
            entry.calls = entry.kind is None and _chatgpt_recipient(message) is not None
        return entry

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        out = self.out
        kept = [entry is not None for entry in self.raws]
        targets = self._fold(lift(self.parents, kept), known)
        for number, target in targets.items():
            kept[number] = False
            # Thoughts stand before what they are of: a file's order is that of their message.
            whole, part = self.raws[target], self.raws[number]
            assert whole is not None and part is not None
            whole.pieces.append(part.pieces[0])
        place: dict[int, int] = {}
        for number, entry in enumerate(self.raws):
            if entry is not None and kept[number]:
                place[number] = len(out.entries)
                entry.node = known(entry.id)
                out.entries.append(entry)
        above = lift(self.parents, kept)
        hang(out.entries, [place.get(above[number], above[number]) for number in place])
        self._pair()
        self._find_active(targets, kept, place)
        return out

    def _fold(self, above: list[int], known: Known) -> dict[int, int]:
        """Node of thoughts -> node of the message they belong to: the next one, if it is an
        answer and no other node of the database carries them."""
        following: dict[int, int] = {}
        for number, parent in enumerate(above):
            entry = self.raws[number]
            if entry is not None and entry.role == "assistant" and parent >= 0:
                following.setdefault(parent, number)
        memo: dict[int, int | None] = {}
        targets: dict[int, int] = {}
        for number, entry in enumerate(self.raws):
            way: list[int] = []
            target: int | None = number if entry is not None and entry.kind else None
            while target is not None and self._is_thought(target) and target not in memo:
                way.append(target)
                memo[target] = None  # stands if the way comes back here
                target = following.get(target)
            if target is not None and self._is_thought(target):
                target = memo[target]
            memo.update(dict.fromkeys(way, target))
            answer = self.raws[target] if target is not None else None
            node = known(answer.id) if answer is not None else None
            for each in way:
                thought = self.raws[each]
                if target is not None and thought and known(thought.id) in (None, node):
                    targets[each] = target
        return targets

    def _is_thought(self, number: int) -> bool:
        entry = self.raws[number]
        return entry is not None and entry.kind == "thoughts"

    def _pair(self) -> None:
        """Note which call each result answers: there are no call ids, only links."""
        entries = self.out.entries
        calls: dict[int, int] = {}
        for index in creation_order([entry.parent for entry in entries]):
            parent = entries[index].parent
            if entries[index].results and parent >= 0:
                call = parent if entries[parent].calls else calls.get(parent)
                if call is not None:
                    calls[index] = call
                    self.answers[entries[index].id] = entries[call].id

    def _find_active(
        self, targets: dict[int, int], kept: list[bool], place: dict[int, int]
    ) -> None:
        out = self.out
        number = self.index.get(self.current) if isinstance(self.current, str) else None
        if number is not None:
            number = targets.get(number, number)
            if not kept[number]:
                number = lift([*self.parents, number], [*kept, False])[-1]
            out.active = place.get(number)
        if out.active is None and out.entries:
            out.active = last_leaf(out.entries)
            words = "current_node not in mapping; the last leaf is taken instead"
            out.notes.add("current_node not in mapping", words)

    def content(self, entry: Entry) -> Content:
        """The content of `entry` with its thoughts, read again."""
        mapping = _dict(self.documents.at(self.offset).get("mapping"))
        messages = []
        for piece in entry.pieces:
            node = mapping.get(self.keys.get(piece.id, piece.id))
            message = _dict(node).get("message")
            if not isinstance(message, dict):
                raise rewritten(self.offset)
            messages.append(message)
        blocks = [block for message in messages[1:] for block in _chatgpt_blocks(message)]
        blocks += _chatgpt_blocks(messages[0])
        if entry.calls:
            blocks = _chatgpt_call(entry.id, messages[0], blocks)
        elif entry.id in self.answers:
            plain = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else None
            inner = blocks if plain is None else plain
            call = self.answers[entry.id]
            blocks = [{"type": "tool_result", "tool_use_id": call, "content": inner}]
        content = _render(blocks)
        content.time = parse_time(messages[0].get("create_time"))
        return content


def _chatgpt_recipient(message: Json) -> str | None:
    """The tool that a message is sent to; None if it is for people."""
    recipient = message.get("recipient")
    return recipient if isinstance(recipient, str) and recipient not in ("", "all") else None


def _chatgpt_call(id: str, message: Json, blocks: list[Json]) -> list[Json]:
    """The blocks of a message that calls a tool: what it says is what the tool is given."""
    said = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    given = _given(said)
    if given == {"text": said} and _dict(message.get("content")).get("content_type") == "code":
        given = {"code": said}
    name = _chatgpt_recipient(message) or "tool"
    call = {"type": "tool_use", "id": id, "name": name, "input": given}
    return [*(block for block in blocks if block["type"] != "text"), call]


def _chatgpt_blocks(message: Json) -> list[Json]:
    content = _dict(message.get("content"))
    kind = content.get("content_type")
    if kind == "thoughts":
        thoughts = map(_dict, _list(content.get("thoughts")))
        texts = ["\n".join(_strings(t.get("summary"), t.get("content"))) for t in thoughts]
        return [{"type": "thinking", "thinking": text} for text in texts if text]
    if kind == "reasoning_recap":
        return [{"type": "thinking", "thinking": t} for t in _strings(content.get("content"))]
    names = _chatgpt_files(message)
    blocks = [block for part in _list(content.get("parts")) for block in _chatgpt_part(part, names)]
    title, url = content.get("title"), content.get("url")
    about = " ".join(_strings(title, url)) if kind == "tether_quote" else ""
    texts = _strings(about, content.get("text"))
    if kind == "tether_browsing_display":
        texts = _strings(content.get("result"), content.get("summary"))[:1]
    elif kind == "system_error":
        texts = [f"[error] {' '.join(_strings(content.get('name'), content.get('text')))}"]
    blocks += map(_text, texts)
    if not blocks and isinstance(kind, str) and kind not in ("text", "multimodal_text", "code"):
        known = ("execution_output", "tether_quote", "tether_browsing_display")
        blocks = [] if kind in known else [{**content, "type": kind}]
    # What was attached without a part of its own.
    return [*blocks, *(_file_block(name, media) for name, media in names.values())]


def _chatgpt_files(message: Json) -> dict[str, tuple[str, object]]:
    """Id of an attached file -> its name and media type."""
    files = map(_dict, _list(_dict(message.get("metadata")).get("attachments")))
    return {
        str(file.get("id") or number): (file["name"], file.get("mimeType") or file.get("mime_type"))
        for number, file in enumerate(files)
        if isinstance(file.get("name"), str)
    }


def _chatgpt_part(part: object, names: dict[str, tuple[str, object]]) -> list[Json]:
    """The blocks of one part; takes the name of the file it points to out of `names`."""
    if isinstance(part, str):
        return [_text(part)] if part else []
    if not isinstance(part, dict):
        return []
    kind = part.get("content_type")
    kind = kind if isinstance(kind, str) else "unknown"
    if isinstance(part.get("text"), str):  # a transcription
        return [_text(part["text"])]
    pointer = part.get("asset_pointer")
    if not isinstance(pointer, str):
        return [{**part, "type": kind}]
    name, _ = names.pop(pointer.rpartition("/")[2], ("", None))
    media = kind.partition("_")[0] + "/"
    block = _file_block(name, media, {"type": "file", "file_id": pointer})
    for side in ("width", "height"):
        if side in part:
            block[side] = part[side]
    return [block]


def read_chatgpt(stream: BinaryIO) -> Iterator[Draft]:
    """The conversations of an export, one by one."""
    documents = Documents(stream, is_chatgpt_talk)
    return _read_talks("chatgpt", documents, lambda *talk: _ChatgptTalk(*talk).finish)


# ================================================================================================
# 14. Claude.ai
#
# An export: an array of conversations, each with `chat_messages`, which in newer exports name
# their parents.
# ================================================================================================

_CLAUDE_AI_ROLES = {"human": "user", "assistant": "assistant"}
_CLAUDE_AI_ROOT = "00000000-0000-4000-8000-000000000000"
_CLAUDE_AI_NOT_SHOWN = re.compile(r"\s*(```\s*)?This block is not supported on your current device")


def is_claude_ai_talk(record: Json) -> bool:
    """Whether this looks like a conversation of a Claude.ai export."""
    return isinstance(record.get("chat_messages"), list)


class _ClaudeAiTalk:
    __slots__ = ("documents", "leaf", "linked", "names", "offset", "out", "parents")

    def __init__(self, documents: Documents, found: Found, talk: Json) -> None:
        self.documents = documents
        self.offset = found.offset
        self.out = out = _begin_talk("claude-ai", self.content)
        out.session = native_id(talk.get("uuid"))
        out.part = 0 if out.session else found.line
        out.title = _title_of(talk.get("name"))
        out.time = parse_time(talk.get("created_at"))
        _note_mended(out, found)
        self.leaf = talk.get("current_leaf_message_uuid")
        self.names: dict[str, int] = {}  # uuid -> entry
        self.parents: list[object] = []  # of each entry, as it names it
        messages = talk.get("chat_messages")
        if not isinstance(messages, list):
            words = "entry without chat_messages"
            out.notes.add(words, f"conversation {found.line}: {words}")
            messages = []
        self.linked = any("parent_message_uuid" in _dict(each) for each in messages)
        for number, message in enumerate(messages):
            self._take(number, message, messages)

    def _take(self, number: int, message: object, messages: list[Any]) -> None:
        out = self.out
        out.counts.records += 1
        sender = _dict(message).get("sender")
        role = _CLAUDE_AI_ROLES.get(sender) if isinstance(sender, str) else None
        if not isinstance(message, dict) or role is None or _is_too_deep(message):
            _no_record(out, number + 1, "is no message")
            return
        id = native_id(message.get("uuid")) or f"{out.session}#{number}"
        if id in self.names:
            first = messages[out.entries[self.names[id]].pieces[0].index]
            same = all(first.get(name) == message.get(name) for name in ("text", "content"))
            _known_again(out, number + 1, same)
            return
        self.names[id] = len(out.entries)
        out.entries.append(Entry(role, Piece(id, Found(None, number + 1, self.offset, number))))
        self.parents.append(message.get("parent_message_uuid", ""))

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        out = self.out
        for entry in out.entries:
            entry.node = known(entry.id)
        hang(out.entries, [self._parent(n, wanted) for n, wanted in enumerate(self.parents)])
        out.active = last_leaf(out.entries)
        if self.leaf is not None and out.entries:
            named = self.names.get(self.leaf) if isinstance(self.leaf, str) else None
            out.active = out.active if named is None else named
            if named is None:
                words = "current_leaf_message_uuid is no message; the last leaf is taken instead"
                out.notes.add("current_leaf_message_uuid not in file", words)
        return out

    def _parent(self, index: int, wanted: object) -> int:
        if not self.linked:
            return index - 1 if index else ROOT
        if wanted is None or wanted == _CLAUDE_AI_ROOT:
            return ROOT
        if wanted == "" and index == 0:
            return ROOT
        return self.names.get(wanted, LOST) if isinstance(wanted, str) else LOST

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        messages = _list(self.documents.at(self.offset).get("chat_messages"))
        index = entry.pieces[0].index
        message = messages[index] if index < len(messages) else None
        if not isinstance(message, dict):
            raise rewritten(self.offset)
        content = _render(_claude_ai_blocks(message, entry.id))
        content.time = parse_time(message.get("created_at"))
        return content


def _claude_ai_blocks(message: Json, id: str) -> list[Json]:
    blocks: list[Json] = []
    call = None  # the id given to the last call that has none
    for number, block in enumerate(_list(message.get("content"))):
        if not isinstance(block, dict) or block.get("type") == "token_budget":
            continue
        block = {
            name: value
            for name, value in block.items()
            if name not in ("start_timestamp", "stop_timestamp") and value not in (None, [])
        }
        kind = block.get("type")
        if kind == "tool_use" and not isinstance(block.get("id"), str):
            call = block["id"] = f"{id}#{number}"
        elif kind == "tool_result" and not isinstance(block.get("tool_use_id"), str):
            block["tool_use_id"] = call or f"{id}#?"
        if kind != "text" or block.get("text"):
            blocks.append(block)
    text = message.get("text")
    # It repeats the content, or says only that something cannot be shown.
    said = any(block.get("type") == "text" for block in blocks)
    said = said or (len(blocks) > 0 and _CLAUDE_AI_NOT_SHOWN.match(str(text)) is not None)
    if not said:
        blocks += map(_text, _strings(text))
    for file in map(_dict, _list(message.get("attachments"))):
        inside = file.get("extracted_content")
        source: Json = {"type": "text", "media_type": "text/plain", "data": inside}
        source = source if isinstance(inside, str) else {"type": "file"}
        blocks.append(_file_block(file.get("file_name"), "text/plain", source))
    for file in map(_dict, _list(message.get("files"))):
        uuid = _strings(file.get("file_uuid"))
        source = {"type": "file", "file_id": uuid[0]} if uuid else {"type": "file"}
        blocks.append(_file_block(file.get("file_name"), None, source))
    return blocks


def read_claude_ai(stream: BinaryIO) -> Iterator[Draft]:
    """The conversations of an export, one by one."""
    documents = Documents(stream, is_claude_ai_talk)
    return _read_talks("claude-ai", documents, lambda *talk: _ClaudeAiTalk(*talk).finish)


# ================================================================================================
# 15. OpenCode
#
# What `opencode export` prints: {"info", "messages": [{"info", "parts"}]}. Section 12 makes the
# same of a database and of a storage folder. There are no links: time is the order.
# ================================================================================================


def is_opencode_talk(record: Json) -> bool:
    """Whether this looks like a session of OpenCode, or one of its messages cut out of it."""
    if not isinstance(record.get("info"), dict):
        return False
    if isinstance(record.get("messages"), list):
        return True
    return isinstance(record.get("parts"), list) and "sessionID" in record["info"]


class _OpencodeTalk:
    __slots__ = ("cwd", "documents", "out", "revert", "seen", "spots", "trigger")

    def __init__(self, documents: Documents, found: Found, info: Json) -> None:
        self.documents = documents
        self.out = out = _begin_talk("opencode", self.content)
        out.session = native_id(info.get("id"))
        out.part = 0 if out.session else found.line
        parent = native_id(info.get("parentID")) or native_id(info.get("parent_id"))
        if parent is not None and out.session is not None:
            out.agent = parent, out.session
        out.title = _title_of(info.get("title"))
        out.cwd = self.cwd = _path_in({"cwd": info.get("directory")})
        out.time = _milliseconds(_dict(info.get("time")).get("created"))
        _note_mended(out, found)
        revert = info.get("revert")
        if isinstance(revert, str):  # as a database has it
            revert = _given(revert)
        self.revert: Json = _dict(revert)
        self.trigger: Json | None = None  # the compaction that a summary must follow
        self.seen: dict[str, int] = {}  # id -> entry
        # Of each message: time, id, number, offset of its document, index there (-1: it alone).
        self.spots: list[tuple[int, str, int, int, int]] = []

    def add(self, message: object, offset: int, index: int) -> None:
        """Count one message."""
        out = self.out
        out.counts.records += 1
        number = len(self.spots) + 1
        info = _dict(_dict(message).get("info"))
        time = _dict(info.get("time")).get("created")
        last = self.spots[-1][0] if self.spots else 0
        time = time if type(time) is int else last
        id = native_id(info.get("id")) or f"{out.session}#{number}"
        self.spots.append((time, id, number, offset, index))

    def read_all(self) -> Draft:
        """Make entries of the messages, in order of time."""
        out = self.out
        undone = self.revert.get("messageID")
        stays: int | None = None  # how many entries an undo left
        for spot in sorted(self.spots):
            if spot[1] == undone and stays is None:
                stays = len(out.entries) + isinstance(self.revert.get("partID"), str)
            self._take(spot)
        for index, entry in enumerate(out.entries):
            entry.parent = index - 1 if index else ROOT
        if stays is not None and stays < len(out.entries):
            out.undone = True
            out.active = stays - 1 if stays else None
        elif out.entries:
            out.active = len(out.entries) - 1
        return self.finish

    def finish(self, known: Known) -> Transcript:
        """The transcript. `known` gives the node that carries a native id already."""
        for entry in self.out.entries:
            entry.node = known(entry.id)
        return self.out

    def _take(self, spot: tuple[int, str, int, int, int]) -> None:
        _, id, number, offset, index = spot
        out = self.out
        message = self._message(offset, index)
        info, parts = _dict(_dict(message).get("info")), _list(_dict(message).get("parts"))
        role = info.get("role")
        if role not in ("user", "assistant") or _is_too_deep(message):
            _no_record(out, number, "is no message")
            return
        if id in self.seen:
            first = out.entries[self.seen[id]].pieces[0]
            _known_again(out, number, self._message(first.offset, first.index) == message)
            return
        if role == "user":
            triggers = [part for part in map(_dict, parts) if part.get("type") == "compaction"]
            self.trigger = triggers[0] if triggers else None
            if triggers and not _opencode_blocks(parts):
                _count(out.counts.skipped, "compaction trigger")
                return
        self.seen[id] = len(out.entries)
        entry = Entry(role, Piece(id, Found(None, number, offset, index)))
        entry.error = isinstance(info.get("error"), dict)
        if role == "assistant" and info.get("summary") is True and not entry.error:
            entry.role = "summary"
            entry.compaction = self._compaction()
        if out.loose is None and any(map(_is_running, parts)):
            out.loose = len(out.entries)
        out.entries.append(entry)

    def _compaction(self) -> Compaction:
        trigger, self.trigger = self.trigger, None
        if trigger is None:
            return Compaction(None)
        told = Compaction("auto" if trigger.get("auto") is True else "manual")
        tail = trigger.get("tail_start_id")
        start = self.seen.get(tail) if isinstance(tail, str) else None
        if start is not None:
            told.kept = list(range(start, len(self.out.entries)))
        return told

    def _message(self, offset: int, index: int) -> object:
        document = self.documents.at(offset)
        if index < 0:
            return document
        messages = _list(document.get("messages"))
        if index >= len(messages):
            raise rewritten(offset)
        return messages[index]

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        piece = entry.pieces[0]
        message = self._message(piece.offset, piece.index)
        if not isinstance(message, dict) or not isinstance(message.get("info"), dict):
            raise rewritten(piece.offset)
        info = message["info"]
        blocks = _opencode_blocks(_list(message.get("parts")))
        error = _dict(info.get("error"))
        if error and not blocks:
            told = _strings(error.get("name"), _dict(error.get("data")).get("message"))
            blocks = [_text(f"[error] {': '.join(told)}")]
        content = _render(blocks)
        content.time = _milliseconds(_dict(info.get("time")).get("created"))
        content.cwd = _path_in(_dict(info.get("path"))) or self.cwd
        usage = info.get("tokens")
        if isinstance(usage, dict) and len(compact_json(usage)) <= USAGE_CHARS_MAX:
            content.usage = usage
        return content


def _is_running(part: object) -> bool:
    """Whether it is a call of a tool that has not returned yet."""
    state = _dict(_dict(part).get("state"))
    return _dict(part).get("type") == "tool" and state.get("status") in ("pending", "running")


def _milliseconds(value: object) -> int | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return parse_time(value / 1000 if abs(value) < 1000 * SECONDS_MAX else None)
    return None


def _opencode_blocks(parts: list[Any]) -> list[Json]:
    """What the parts of a message say. Injected text and state say nothing."""
    blocks: list[Json] = []
    for number, part in enumerate(map(_dict, parts)):
        kind, text = part.get("type"), part.get("text")
        if kind == "text" and isinstance(text, str) and part.get("synthetic") is not True:
            blocks.append(_text(text))
        elif kind == "reasoning" and isinstance(text, str):
            blocks.append({"type": "thinking", "thinking": text})
        elif kind == "file":
            blocks.append(_opencode_file(part))
        elif kind == "subtask":
            said = ": ".join(_strings(part.get("agent"), part.get("prompt")))
            blocks.append(_text(f"[subtask] {said}"))
        elif kind == "tool":
            blocks += _opencode_tool(part, number)
    return blocks


def _opencode_file(part: Json) -> Json:
    media = part.get("mime")
    return _file_block(part.get("filename"), media, _from_url(part.get("url"), media))


def _opencode_tool(part: Json, number: int) -> list[Json]:
    """The call and, if it ended, its result."""
    state = _dict(part.get("state"))
    id = native_id(part.get("callID")) or native_id(part.get("id")) or f"call {number}"
    name = native_id(part.get("tool")) or "tool"
    blocks: list[Json] = [
        {"type": "tool_use", "id": id, "name": name, "input": _dict(state.get("input"))}
    ]
    if state.get("status") == "completed":
        said = state.get("output")
        content: Any = said if isinstance(said, str) else ""
        files = [_opencode_file(file) for file in map(_dict, _list(state.get("attachments")))]
        if files:
            content = [_text(content), *files]
        blocks.append({"type": "tool_result", "tool_use_id": id, "content": content})
    elif state.get("status") == "error":
        said = state.get("error")
        content = said if isinstance(said, str) else ""
        result = {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": True}
        blocks.append(result)
    return blocks


def read_opencode(stream: BinaryIO) -> Iterator[Draft]:
    """The sessions in a stream, one by one. Messages cut out of a damaged one count as one."""
    documents = Documents(stream, is_opencode_talk)
    loose: _OpencodeTalk | None = None
    broken = _Broken("opencode")
    for found in documents:
        document = found.value
        if document is not None and "messages" not in document and is_opencode_talk(document):
            session = {"id": document["info"].get("sessionID")}
            if loose is not None and loose.out.session != native_id(session["id"]):
                yield loose.read_all()
                loose = None
            loose = loose or _OpencodeTalk(documents, found, session)
            loose.add(document, found.offset, -1)
            continue
        if loose is not None:
            yield loose.read_all()
            loose = None
        if document is None:
            broken.take(found)
            continue
        talk = _OpencodeTalk(documents, found, _dict(document.get("info")))
        messages = document.get("messages")
        if not isinstance(messages, list):
            why = _strings(document.get("why")) or ["it has no messages"]
            talk.out.notes.add("no messages", f"conversation {found.line}: {why[0]}")
            talk.out.counts.records = talk.out.counts.bad = 1
            messages = []
        for index, message in enumerate(messages):
            talk.add(message, found.offset, index)
        yield talk.read_all()
    if loose is not None:
        yield loose.read_all()
    yield from broken.drafts()


# ================================================================================================
# 16. Plain arrays
#
# Messages as the APIs of OpenAI and Anthropic take them: an array of them, or a request with
# `messages` and for Anthropic `system`. There are no ids: a message is known by what it says and
# what it hangs on. Both share these, since a talk without tools may be of either.
# ================================================================================================

_OPENAI_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_OPENAI_PARTS = ("image_url", "input_audio", "refusal", "file", "input_text", "output_text")
_ANTHROPIC_BLOCKS = (
    "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document",
    "server_tool_use",
)  # fmt: skip


def is_array_message(record: Json) -> bool:
    """Whether this looks like a message as an API takes it."""
    if not isinstance(record.get("role"), str) or record["role"] not in _OPENAI_ROLES:
        return False
    content = record.get("content")
    said = isinstance(content, (str, list)) or (content is None and "content" in record)
    return said or "tool_calls" in record or "function_call" in record


def is_array_request(record: Json) -> bool:
    """Whether this looks like a request, or another object around such messages."""
    messages = record.get("messages")
    return isinstance(messages, list) and any(
        isinstance(each, dict) and is_array_message(each) for each in messages
    )


def array_dialect(record: Json) -> str | None:
    """ "openai" or "anthropic" for a message or request that shows which; else None."""
    if is_array_request(record):
        if isinstance(record.get("system"), (str, list)):
            return "anthropic"
        found = [array_dialect(each) for each in record["messages"] if isinstance(each, dict)]
        return next((each for each in found if each is not None), None)
    if not is_array_message(record):
        return None
    if record["role"] not in ("user", "assistant"):
        return "openai"
    if any(name in record for name in ("tool_calls", "function_call", "tool_call_id")):
        return "openai"
    content = record.get("content")
    if _has_block(content, *_ANTHROPIC_BLOCKS):
        return "anthropic"
    return "openai" if _has_block(content, *_OPENAI_PARTS) else None


def is_array_value(record: Json) -> bool:
    """Whether this is a message or a request."""
    return is_array_message(record) or is_array_request(record)


class _ArrayTalk:
    __slots__ = ("answers", "call", "documents", "last", "mended", "number", "out")

    def __init__(self, format: str, documents: Documents, part: int) -> None:
        self.documents = documents
        self.out = out = Transcript(format, False, self.content)
        out.space, out.unit, out.part = "array", "message", part
        self.answers: dict[int, str] = {}  # number of a result without a call's id -> that id
        self.call: str | None = None  # id of the last call
        self.last = ""  # id of the message before
        self.number = 0
        self.mended = False

    def add_request(self, found: Found, request: Json) -> None:
        """Take the messages of a request, its system prompt first."""
        system = request.get("system")
        if _array_blocks("system", {"content": system}, 0, None):
            self._add({"role": "system", "content": system}, found, -2)
        for index, message in enumerate(_list(request.get("messages"))):
            self._add(message, found, index)
        self.out.title = _title_of(request.get("title"))

    def add(self, found: Found) -> None:
        """Take one message that stands alone."""
        self._add(found.value, found, -1)

    def _add(self, message: object, found: Found, index: int) -> None:
        out = self.out
        self.number += 1
        out.counts.records += 1
        if found.mended and not self.mended:
            self.mended = True
            out.notes.add("lone surrogate", f"message {self.number}: half a character, now U+FFFD")
        if not isinstance(message, dict) or not is_array_message(message):
            words = "is torn" if found.torn else "is no message"
            _no_record(out, self.number, words)
            return
        if _is_too_deep(message):
            _no_record(out, self.number, "is nested too deep")
            return
        role = _OPENAI_ROLES[message["role"]]
        if role == "tool":
            call = native_id(message.get("tool_call_id")) or self.call
            if call is not None:
                self.answers[self.number] = call
        blocks = _array_blocks(role, message, self.number, self.answers.get(self.number))
        said = [self.last, role, list(map(_without_marks, blocks))]
        exact = json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        id = self.last = "#" + sha256(exact.encode())
        piece = Piece(id, Found(None, self.number, found.offset, index))
        entry = Entry(role, piece)
        entry.calls = role == "assistant" and _has_block(blocks, "tool_use")
        for block in blocks if entry.calls else ():
            if block.get("type") == "tool_use":
                self.call = native_id(block.get("id"))
        if role == "tool":
            entry.results = True
        elif role == "user" and _has_block(blocks, "tool_result"):
            entry.results = True
            only = all(_has_block([block], "tool_result") for block in blocks)
            entry.role, entry.kind = ("tool", None) if only else ("user", "mixed")
        entry.parent = len(out.entries) - 1 if out.entries else ROOT
        out.entries.append(entry)

    def finish(self, known: Known) -> Transcript:
        """The transcript; there are no ids that `known` could have a say in."""
        if self.out.entries:
            self.out.active = len(self.out.entries) - 1
        return self.out

    def content(self, entry: Entry) -> Content:
        """The content of `entry`, read again."""
        piece = entry.pieces[0]
        document = self.documents.at(piece.offset)
        message: object = document
        if piece.index == -2:
            message = {"role": "system", "content": document.get("system")}
        elif piece.index >= 0:
            messages = _list(document.get("messages"))
            message = messages[piece.index] if piece.index < len(messages) else None
        if not isinstance(message, dict) or not is_array_message(message):
            raise rewritten(piece.offset)
        role = _OPENAI_ROLES[message["role"]]
        content = _render(_array_blocks(role, message, piece.line, self.answers.get(piece.line)))
        usage = message.get("usage")
        if isinstance(usage, dict) and len(compact_json(usage)) <= USAGE_CHARS_MAX:
            content.usage = usage
        return content


def _without_marks(block: Json) -> Json:
    """`block` without what moves from request to request."""
    block = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(block.get("content"), list):
        inner = block["content"]
        block["content"] = [_without_marks(b) if isinstance(b, dict) else b for b in inner]
    return block


def _array_blocks(role: str, message: Json, number: int, call: str | None) -> list[Json]:
    """The blocks of a message; `call` is what it answers, for the role tool."""
    content = message.get("content")
    blocks = [_text(content)] if isinstance(content, str) and content else []
    for part in _list(content):
        if isinstance(part, str):
            part = _text(part)
        if isinstance(part, dict):
            blocks.append(_openai_part(part))
    for name in ("reasoning_content", "refusal"):
        for text in _strings(message.get(name)):
            thinking = {"type": "thinking", "thinking": text}
            blocks.insert(0, thinking if name == "reasoning_content" else _text(text))
    if role == "tool":
        plain = blocks[0]["text"] if len(blocks) == 1 and set(blocks[0]) == {"type", "text"} else ""
        if call is not None:
            inner: Any = plain or blocks or ""
            return [{"type": "tool_result", "tool_use_id": call, "content": inner}]
    calls = [*map(_dict, _list(message.get("tool_calls")))]
    old = message.get("function_call")
    if isinstance(old, dict):
        calls.append({"function": old})
    for index, each in enumerate(calls):
        blocks.append(_openai_call(each, f"#{number}.{index}"))
    return blocks


def _openai_call(call: Json, id: str) -> Json:
    told = _dict(call.get("function")) or _dict(call.get("custom"))
    given = told.get("arguments", told.get("input"))
    name = native_id(told.get("name")) or "tool"
    id = native_id(call.get("id")) or id
    return {"type": "tool_use", "id": id, "name": name, "input": _given(given)}


def _openai_part(part: Json) -> Json:
    """A part of OpenAI as a block; others are blocks already."""
    kind = part.get("type")
    if kind in ("input_text", "output_text") and isinstance(part.get("text"), str):
        return _text(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return _text(part["refusal"])
    if kind == "image_url":
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
        return {"type": "image", "source": _from_url(url, None)}
    if kind == "input_audio":
        told = _dict(part.get("input_audio"))
        media = f"audio/{''.join(_strings(told.get('format'))) or 'unknown'}"
        source = {"type": "base64", "media_type": media, "data": told.get("data")}
        return {"type": "audio", "source": source}
    if kind == "file":
        told = _dict(part.get("file"))
        source = _from_url(told.get("file_data"), None)
        if source == {"type": "file"} and _strings(told.get("file_id")):
            source["file_id"] = told["file_id"]
        return _file_block(told.get("filename"), source.get("media_type"), source)
    return part


def _read_arrays(format: str, stream: BinaryIO) -> Iterator[Draft]:
    documents = Documents(stream, is_array_value)
    talk: _ArrayTalk | None = None  # of the messages that stand alone
    part = 0
    for found in documents:
        if found.value is not None and is_array_request(found.value):
            request = _ArrayTalk(format, documents, part)
            request.add_request(found, found.value)
            part += 1
            yield request.finish
        else:
            talk = talk or _ArrayTalk(format, documents, part)
            talk.add(found)
    if talk is not None:
        talk.out.part = part
        yield talk.finish


def read_openai(stream: BinaryIO) -> Iterator[Draft]:
    """The one conversation of an array, or of each request of a file."""
    return _read_arrays("openai", stream)


def read_anthropic(stream: BinaryIO) -> Iterator[Draft]:
    """The one conversation of an array, or of each request of a file."""
    return _read_arrays("anthropic", stream)


# ================================================================================================
# 17. timeline-json
#
# Documents that `tl export --format json` writes: a whole timeline, or a part of one path. What is
# wrong with one is an error that says where; nothing of it is read in then. A document is held as
# rows, like a database; what its nodes say is read again as it is written.
# ================================================================================================

DOCUMENT_MARK = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"timeline_json"\s*:')
DOCUMENT_VERSION = 1
IDENTITY_CHARS_MAX = 8_192  # a path of PATH_CHARS_MAX may be part of one
SOURCE_CHARS_MAX = 65_536  # as JSON
_MISSING = object()


class Unfit(Unreadable):
    """A document that is damaged, or that speaks of what cannot be."""


def _argument(name: str, kind: str, choices: tuple[str, ...] = ()) -> timeline.Argument:
    return timeline.Argument(name, kind, "", choices=choices)


# What a field must be, checked as the engine checks its own arguments.
_FIELDS = {
    each.name: each
    for each in (
        _argument("node", "node"),
        _argument("parent", "node"),
        _argument("role", "choice", timeline.ROLES),
        _argument("text", "text"),
        _argument("tokens", "tokens"),
        _argument("created_at", "count"),
        _argument("zone", "choice", ("hot", "archive")),
        _argument("pinned", "flag"),
        _argument("held", "flag"),
        _argument("excluded", "flag"),
        _argument("joins", "flag"),
        _argument("purged", "flag"),
        _argument("intent", "intent"),
        _argument("from", "node"),
        _argument("to", "node"),
        _argument("kind", "choice", ("real", "placeholder")),
        _argument("supersedes", "node"),
        _argument("derived_from", "nodes"),
        _argument("copy_of", "node"),
        _argument("log_id", "string"),
        _argument("timeline_id", "timeline"),
        _argument("title", "title"),
        _argument("titled", "flag"),
        _argument("estimator", "choice", timeline.ESTIMATORS),
        _argument("above", "node"),
        _argument("name", "string"),
        _argument("head", "node"),
        _argument("fork_node", "node"),
        _argument("status", "choice", timeline.STATUS_NAMES),
        _argument("current", "flag"),
        _argument("imported", "flag"),
        _argument("number", "count"),
        _argument("of", "count"),
        _argument("archived_from", "node"),
        _argument("session", "string"),
        _argument("branch", "count"),
    )
}


class _Object:
    """A JSON object of a document; `where` names it in errors."""

    __slots__ = ("value", "where")

    def __init__(self, value: object, where: str) -> None:
        if type(value) is not dict:
            raise Unfit(f"{where} is no JSON object")
        self.value: Json = value
        self.where = where

    def wrong(self, what: str) -> Unfit:
        return Unfit(f"{self.where}: {what}")

    def get(self, name: str, default: object = _MISSING) -> Any:
        """The checked value of a field; None counts as missing."""
        value = self.value.get(name)
        if value is None:
            if default is _MISSING:
                raise self.wrong(f"{name} is missing")
            return default
        try:
            return timeline.check_value(_FIELDS[name], value)
        except timeline.InvalidArgument as error:
            raise self.wrong(str(error)) from None

    def object(self, name: str) -> _Object | None:
        value = self.value.get(name)
        return None if value is None else _Object(value, f"{self.where}: {name}")

    def objects(self, name: str) -> list[_Object]:
        values = self._list(name)
        return [_Object(each, f"{self.where}: {name}[{at}]") for at, each in enumerate(values)]

    def strings(self, name: str) -> tuple[str, ...]:
        values = self._list(name)
        if not all(type(each) is str and len(each) <= IDENTITY_CHARS_MAX for each in values):
            raise self.wrong(f"{name} must be a list of short strings")
        return tuple(values)

    def source(self) -> Json | None:
        source = self.object("source")
        if source is None:
            return None
        if len(compact_json(source.value)) > SOURCE_CHARS_MAX:
            raise self.wrong(f"source has more than {SOURCE_CHARS_MAX} characters")
        for name in ("format", "session", "id", "cwd", "kind", "gap"):
            if type(source.value.get(name, "")) is not str:
                raise source.wrong(f"{name} must be a string")
        return source.value

    def _list(self, name: str) -> list[Any]:
        values = self.value.get(name)
        if values is None:
            return []
        if type(values) is not list:
            raise self.wrong(f"{name} must be a list")
        return values


class DocumentNode:
    """What a node of a document says; numbers are those of the document."""

    __slots__ = (
        "blocks", "cold", "copy_of", "created_at", "derived_from", "excluded", "held", "ids",
        "intent", "joins", "kind", "number", "parent", "pinned", "purged", "role", "source", "span",
        "supersedes", "text", "tokens",
    )  # fmt: skip

    def __init__(self, row: _Object) -> None:
        self.number: int = row.get("node")
        if self.number == 0:
            raise row.wrong("n0 is the root, which no document lists")
        row.where = f"{row.where} (n{self.number})"
        self.parent: int = row.get("parent")
        self.role: str = row.get("role")
        self.text: str = row.get("text")
        self.tokens: int = row.get("tokens")
        self.created_at: int | None = row.get("created_at", None)
        self.cold = row.get("zone", "hot") == "archive"
        self.pinned: bool = row.get("pinned", False)
        self.held: bool = row.get("held", False)
        self.excluded: bool = row.get("excluded", False)
        self.joins: bool = row.get("joins", False)
        self.purged: bool = row.get("purged", False)
        self.intent: Json | None = row.get("intent", None)
        self.ids = row.strings("ids")
        self.source = row.source()
        self.copy_of: int | None = None
        if self.source is not None:
            self.copy_of = _Object(self.source, f"{row.where}: source").get("copy_of", None)
        self.blocks = [each.value for each in row.objects("blocks")]
        self._check_content(row)
        self.kind: str | None = None
        self.span: tuple[int, int] | None = None
        self.supersedes: int | None = None
        self.derived_from: list[int] = []
        summary = row.object("summary")
        if summary is not None:
            self._take_summary(row, summary)

    def _check_content(self, row: _Object) -> None:
        if self.blocks and len(compact_json(self.blocks).encode()) > timeline.BLOCKS_BYTES_MAX:
            raise row.wrong(f"blocks are above the limit of {timeline.BLOCKS_BYTES_MAX} bytes")
        if self.purged and (self.text or self.blocks):
            raise row.wrong("purged, but it has a text or blocks")
        if self.pinned and self.excluded:
            raise row.wrong("pinned and excluded at once: a unit is one of them at most")

    def _take_summary(self, row: _Object, summary: _Object) -> None:
        self.kind = summary.get("kind", "real")
        self.span = summary.get("from"), summary.get("to")
        self.supersedes = summary.get("supersedes", None)
        self.derived_from = summary.get("derived_from", [])
        if self.role != "summary" or self.joins or self.blocks:
            raise row.wrong("a summary has the role summary, and neither blocks nor joins")
        if self.kind == "placeholder" and (
            self.pinned or self.excluded or self.cold or self.ids or self.source or self.intent
            or self.supersedes is not None or self.derived_from or self.copy_of is not None
            or self.tokens != timeline.RESERVE_TOKENS
        ):  # fmt: skip
            raise row.wrong(
                f"a placeholder has {timeline.RESERVE_TOKENS} tokens, and no marks or links of its "
                "own"
            )


class DocumentBranch:
    """A branch of a document. `head`, `fork_node` and `top` (of its archived part) are places."""

    __slots__ = (
        "current", "fork_node", "head", "imported", "name", "number", "of", "status", "top",
    )  # fmt: skip

    def __init__(self, row: _Object) -> None:
        name: str = row.get("name")
        try:
            self.name = timeline.check_name(name)
        except timeline.InvalidArgument as error:
            raise row.wrong(str(error)) from None
        row.where = f"branch {timeline.quoted(name)}"
        self.number: int = row.get("number")
        self.of: int | None = row.get("of", None)
        self.status = timeline.STATUS_NAMES.index(row.get("status"))
        self.current: bool = row.get("current", False)
        self.imported: bool = row.get("imported", False)
        self.head = self.top = 0
        self.fork_node: int | None = None
        if self.current and self.status != timeline.LIVE:
            raise row.wrong("it has ended, so it is not the current one")
        if self.of is not None and self.of >= self.number:
            raise row.wrong(f"it comes of branch number {self.of}, which is not older")


class Document:
    """A document, read and found whole. A node's place counts from 1; 0 is the root.

    `rows` has a row for each place; FROM and TO of it are places too. `outside`: places that hang
    on the node above the part, which is not in here. `plain`: summaries of what is not in here.
    `archived`: of each place, whether it is on the archived part of a branch.
    """

    __slots__ = (
        "_cold", "_lines", "_stream", "_superseded", "_units", "above", "above_ids", "archived",
        "branches",
        "current", "end", "estimator", "excluded", "ids", "key", "log_id", "number", "numbers",
        "outside", "part", "pins", "place", "plain", "rows", "sessions", "source", "spans", "title",
        "titled",
    )  # fmt: skip

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lines: list[object] | None = None  # the nodes, where they do not stand line by line
        self.rows = timeline.Rows()
        self.numbers = [0]  # of each place
        self.place = {0: 0}  # of each number
        self.ids: list[tuple[str, ...]] = [()]
        self.pins: list[tuple[int, bool]] = []  # place, is it held
        self.excluded: dict[int, int] = {}  # first places of units
        self.outside: set[int] = set()
        self.plain: set[int] = set()
        self.spans: set[tuple[int, int]] = set()  # of the placeholders
        self._units = [0]
        self._superseded: set[int] = set()
        self._cold = bytearray(1)
        self.branches: list[DocumentBranch] = []
        tail = self._read()
        self._take_branches(tail)
        self._take_sessions(tail)

    # -- lines -------------------------------------------------------------------------------------

    def _read(self) -> _Object:
        """Take in head and nodes; what follows them (whole: all of it)."""
        stream = self._stream
        stream.seek(0)
        head = stream.readline(LINE_BYTES_MAX + 1)
        start = stream.tell()
        opening = stream.readline(100)
        if opening.strip() != b'"nodes":[' or not head.rstrip().endswith(b","):
            return self._read_whole()
        top = _Object(_document_json(head.rstrip()[:-1] + b"}", "line 1"), "the document")
        self._take_head(top)
        offset, number, comma = start + len(opening), 3, True
        while True:
            raw = stream.readline(LINE_BYTES_MAX + 1)
            if len(raw) > LINE_BYTES_MAX:
                raise Unfit(f"line {number} is above the limit of {LINE_BYTES_MAX} bytes")
            line = raw.strip()
            if line.startswith(b"]"):
                break
            where = f"line {number}"
            if not line:
                behind = f"n{self.numbers[-1]}" if len(self.rows) else "its head"
                raise Unfit(f"{where}: it ends in the middle, behind {behind}")
            if not comma:
                raise Unfit(f"{where}: no comma before it")
            comma = line.endswith(b",")
            record = _document_json(line[:-1] if comma else line, where)
            self._take_node(_Object(record, where), offset, len(raw))
            offset += len(raw)
            number += 1
        if comma and len(self.rows):
            raise Unfit(f"line {number}: a comma and no node behind it")
        rest = stream.read(LINE_BYTES_MAX + 1)
        if len(rest) > LINE_BYTES_MAX:
            raise Unfit(f"what follows line {number} is above the limit of {LINE_BYTES_MAX} bytes")
        end = _document_json(b'{"nodes":[' + line + rest, f"what begins at line {number}")
        return _Object({**top.value, **_Object(end, "the end").value}, "the document")

    def _read_whole(self) -> _Object:
        self._stream.seek(0)
        raw = self._stream.read(LINE_BYTES_MAX + 1)
        if len(raw) > LINE_BYTES_MAX:
            raise Unfit(
                f"it is above {LINE_BYTES_MAX} bytes and has not a node a line, as `tl export "
                "--format json` writes it"
            )
        top = _Object(_document_json(raw, "the document"), "the document")
        self._take_head(top)
        nodes = top.value.get("nodes")
        if type(nodes) is not list:
            raise top.wrong("nodes must be a list")
        self._lines = nodes
        for index, record in enumerate(nodes):
            self._take_node(_Object(record, f"nodes[{index}]"), index, 0)
        return top

    def node(self, place: int) -> DocumentNode:
        """What the node at `place` says, read again.

        Raises:
            Refused: the file changed meanwhile.
        """
        row = self.row(place)
        try:
            return DocumentNode(row)
        except Unfit:
            raise rewritten(self.rows[place][timeline.OFFSET]) from None

    def row(self, place: int) -> _Object:
        """The same, unchecked but for its number."""
        offset, length = self.rows[place][timeline.OFFSET], self.rows[place][timeline.LENGTH]
        if self._lines is not None:
            return _Object(self._lines[offset], f"nodes[{offset}]")
        self._stream.seek(offset)
        line = self._stream.read(length).strip().removesuffix(b",")
        try:
            row = _Object(_document_json(line, "a line"), "a line")
        except Unfit:
            raise rewritten(offset) from None
        if row.value.get("node") != f"n{self.numbers[place]}":
            raise rewritten(offset)
        return row

    # -- head --------------------------------------------------------------------------------------

    def _take_head(self, top: _Object) -> None:
        version = top.value.get("timeline_json")
        if type(version) is not int or version < 1:
            raise top.wrong("timeline_json must be a number from 1 on")
        if version > DOCUMENT_VERSION:
            raise top.wrong(f"timeline_json {version!s:.20} is of a newer Timeline: upgrade")
        self.log_id: str = top.get("log_id")
        if len(self.log_id) != 32 or self.log_id.strip("0123456789abcdef"):
            raise top.wrong("log_id must be 32 hexadecimal digits")
        about = top.object("timeline")
        if about is None:
            raise top.wrong("timeline is missing")
        self.number: int = about.get("timeline_id")
        self.key = f"{self.log_id}/tl{self.number}"
        self.title: str | None = about.get("title", None)
        self.titled: bool = about.get("titled", False)
        self.estimator: str = about.get("estimator")
        self.source = about.source()
        part = top.object("part")
        self.part = part is not None
        self.above: int = 0 if part is None else part.get("above")
        self.above_ids = () if part is None else part.strings("above_ids")
        self.end: int = 0 if part is None else part.get("to")

    def identities(self, place: int) -> tuple[str, ...]:
        """What a database knows the node by; those of copies still speak of numbers in here."""
        return self.ids[place] or (self.identity(self.numbers[place]),)

    def identity(self, number: int) -> str:
        """What a database knows a node by that came from no transcript."""
        return f"timeline-json\0{self.key}\0n{number}"

    # -- nodes -------------------------------------------------------------------------------------

    def _take_node(self, row: _Object, offset: int, length: int) -> None:
        node = DocumentNode(row)
        if node.number <= self.numbers[-1]:
            known = node.number in self.place
            raise row.wrong("it is there twice" if known else "its number is below the one before")
        parent = self.place.get(node.parent)
        place = len(self.rows) + 1
        if parent is None and self.part and node.parent == self.above:
            parent = 0
            self.outside.add(place)
        if parent is None:
            raise row.wrong(f"its parent n{node.parent} does not come before it")
        above = self.rows[parent]
        if above[timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
            raise row.wrong(f"its parent n{node.parent} is a placeholder, on which nothing hangs")
        if above[timeline.PREFIX] + node.tokens > timeline.TOKENS_MAX:
            raise row.wrong(f"the tokens up to it are above the limit of {timeline.TOKENS_MAX}")
        flags = timeline.ROLES.index(node.role)
        if node.role == "tool" or node.joins:
            flags |= timeline.JOINS
        first, last = self._span(row, node, place, parent)
        if first:
            real = node.kind == "real"
            flags |= timeline.KIND_REAL if real else timeline.KIND_PLACEHOLDER
        self.rows.add(offset, length, node.tokens, parent, 0, flags, first, last)
        self.numbers.append(node.number)
        self.place[node.number] = place
        self.ids.append(node.ids)
        self._take_marks(row, node, place, parent, flags)

    def _span(self, row: _Object, node: DocumentNode, place: int, parent: int) -> tuple[int, int]:
        """The places that a summary stands for, (0, 0) where it is to be a message."""
        if node.span is None:
            return 0, 0
        first, last = (self.place.get(each) for each in node.span)
        named = "n{}..n{}".format(*node.span)
        if first is None or last is None:
            if self.part and node.kind == "real":
                self.plain.add(place)
                return 0, 0
            raise row.wrong(f"it stands for {named}, which does not come before it")
        rows = self.rows
        for end in (first, last):
            if not end or rows[end][timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
                raise row.wrong(f"it stands for {named}, but n{self.numbers[end]} is no message")
        if not timeline.is_ancestor(rows, first, last):
            raise row.wrong(f"{named} is no interval: the first is not on the path of the last")
        if rows[first][timeline.PARENT] != parent or (first in self.outside) != (
            place in self.outside
        ):
            raise row.wrong(f"its parent must be that of n{node.span[0]}, beside which it stands")
        if node.kind == "placeholder":
            if (first, last) in self.spans:
                raise row.wrong(f"a second placeholder of {named}")
            self.spans.add((first, last))
        self._check_rests(row, node, first, last)
        return first, last

    def _check_rests(self, row: _Object, node: DocumentNode, first: int, last: int) -> None:
        """What a summary supersedes and derives from is there, and may be so."""
        rows = self.rows
        for each in node.derived_from:
            place = self.place.get(each)
            if place is None and self.part:
                continue
            if not place or rows[place][timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
                raise row.wrong(f"it is derived from n{each}, which is no message before it")
        if node.supersedes is None:
            return
        older = self.place.get(node.supersedes)
        if older is None and self.part:
            return
        if not older or not rows[older][timeline.FLAGS] & timeline.KIND_REAL:
            raise row.wrong(f"it supersedes n{node.supersedes}, which is no summary before it")
        if (rows[older][timeline.FROM], rows[older][timeline.TO]) != (first, last):
            raise row.wrong(f"it supersedes n{node.supersedes}, which has another interval")
        if older in self._superseded:
            raise row.wrong(f"it supersedes n{node.supersedes}, as another summary does already")
        self._superseded.add(older)

    def _take_marks(
        self, row: _Object, node: DocumentNode, place: int, parent: int, flags: int
    ) -> None:
        joined = bool(flags & timeline.JOINS and parent)
        unit = self._units[parent] if joined else place
        self._units.append(unit)
        self._cold.append(node.cold)
        if node.pinned:
            self.pins.append((place, node.held))
        if not joined:
            if node.excluded:
                self.excluded[place] = 1
        elif node.excluded != (unit in self.excluded):
            raise row.wrong("a unit is excluded as a whole or not at all")

    # -- branches ----------------------------------------------------------------------------------

    def _take_branches(self, top: _Object) -> None:
        rows = top.objects("branches")
        if type(top.value.get("branches")) is not list:
            raise top.wrong("branches must be a list")
        numbers: set[int] = set()
        live: set[str] = set()
        for row in rows:
            branch = DocumentBranch(row)
            branch.head = self._head(row, branch)
            fork = row.get("fork_node", None)
            if fork is not None and fork not in self.place and not self.part:
                raise row.wrong(f"its fork_node n{fork} is not in the document")
            branch.fork_node = self.place.get(fork, 0) if fork is not None else None
            if branch.number in numbers:
                raise row.wrong(f"a second branch with the number {branch.number}")
            if branch.status == timeline.LIVE and branch.name in live:
                raise row.wrong("a second living branch of this name")
            numbers.add(branch.number)
            if branch.status == timeline.LIVE:
                live.add(branch.name)
            self.branches.append(branch)
        for branch in self.branches:
            if branch.of is not None and branch.of not in numbers:
                if not self.part:
                    raise top.wrong(f"no branch has the number {branch.of}")
                branch.of = None
        current = [branch for branch in self.branches if branch.current]
        if len(current) > 1 or (not current and not self.part):
            raise top.wrong(f"{len(current)} current branches: one of them must be")
        if self.end and self.end not in self.place:
            raise top.wrong(f"the part ends at n{self.end}, which is not in the document")
        self.archived = bytearray(len(self.rows) + 1)
        if not self.part:
            self._check_zones(top)

    def _head(self, row: _Object, branch: DocumentBranch) -> int:
        number = row.get("head")
        head = self.place.get(number)
        if head is None:
            raise row.wrong(f"its head n{number} is not in the document")
        if self.rows[head][timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
            raise row.wrong(f"its head n{number} is a placeholder")
        top = row.get("archived_from", 0)
        if top:
            place = self.place.get(top)
            archived = timeline.STATUS_NAMES[branch.status] == "archived"
            if not place or not archived or not timeline.is_ancestor(self.rows, place, head):
                raise row.wrong(f"archived_from n{top} is no node of an archived branch's path")
            branch.top = place
        return head

    def _check_zones(self, top: _Object) -> None:
        """What is archived is what archived branches say, and no living branch ends in it."""
        rows = self.rows
        cold, seen = bytearray(len(rows) + 1), self.archived
        for branch in sorted(self.branches, key=lambda each: each.top):
            place = branch.head
            while branch.top and place >= branch.top and not seen[place]:
                seen[place] = 1
                row = rows[place]
                cold[place] = not row[timeline.FLAGS] & timeline.KIND_SUMMARY
                place = row[timeline.PARENT]
        if cold != self._cold:
            place = next(at for at, each in enumerate(cold) if each != self._cold[at])
            said = "archive" if self._cold[place] else "hot"
            raise top.wrong(f"n{self.numbers[place]} has the zone {said}, its branches say another")
        for branch in self.branches:
            if branch.status == timeline.LIVE and cold[branch.head]:
                raise top.wrong(f"branch {timeline.quoted(branch.name)} ends at an archived node")

    def _take_sessions(self, top: _Object) -> None:
        about = top.object("timeline")
        assert about is not None
        numbers = {branch.number for branch in self.branches}
        self.sessions: list[tuple[str, int, int]] = []  # key, number of the branch, place
        for row in about.objects("sessions"):
            session, number, node = row.get("session"), row.get("branch"), row.get("node")
            if len(session) > IDENTITY_CHARS_MAX or number not in numbers:
                raise row.wrong(f"no branch has the number {number}")
            if session.startswith("timeline-json\0"):
                continue  # what a database notes about documents is not for others
            if node in self.place:
                self.sessions.append((session, number, self.place[node]))
            elif not self.part:
                raise row.wrong(f"n{node} is not in the document")


def _document_json(raw: bytes, where: str) -> object:
    """The JSON value of `raw`, which is one of Unicode scalar values and not too deep."""
    try:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode().strip(" \t\r\n")
        value, end = _scan(text, 0)
    except UnicodeDecodeError as error:
        raise Unfit(f"{where} is no UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise Unfit(f"{where} is no JSON ({error.msg} at character {error.pos})") from None
    except (ValueError, RecursionError, StopIteration) as error:
        raise Unfit(f"{where} is no JSON ({error!s:.80})") from None
    if end != len(text):
        raise Unfit(f"{where} is no JSON (more text at character {end})")
    if text.count("{") + text.count("[") > NESTING_MAX and _is_too_deep([value]):
        raise Unfit(f"{where} has more than {NESTING_MAX} brackets inside brackets")
    if _SURROGATE_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise Unfit(
                f"{where} holds a lone surrogate (U+{ord(error.object[error.start]):04X})"
            ) from None
    return value


# ================================================================================================
# 18. Formats
# ================================================================================================


class Format:
    """One reader. `accepts` tells its records from those of others, by content alone; `family`
    says of a record which session it is of, and of which that is a fork (None: nothing does).
    `whole`: its files are JSON documents, not lines. `value`: tells a file that is one JSON value.

    `reader` takes in the records of a file of lines, which hold one conversation; `talks` the
    conversations of a file of documents, one after the other (None: this one is lines). Neither
    asks a database: each gives drafts, which make the transcript, once, from `known`: the node that
    carries a native id already. `document` reads what is no transcript but a tree.
    """

    __slots__ = ("accepts", "document", "family", "name", "reader", "talks", "value", "whole")

    def __init__(
        self,
        name: str,
        accepts: Callable[[Json], bool],
        reader: Callable[[Lines], Reader] | None = None,
        family: Callable[[Json], tuple[str, str | None] | None] | None = None,
        talks: Callable[[BinaryIO], Iterable[Draft] | None] | None = None,
        document: Callable[[BinaryIO], Document] | None = None,
        value: Callable[[object], bool] | None = None,
    ) -> None:
        self.name = name
        self.accepts = accepts
        self.reader = reader
        self.family = family
        self.talks = talks
        self.whole = reader is None and document is None
        self.document = document
        self.value = value

    def read(self, stream: BinaryIO) -> Iterable[Draft]:
        """A draft of each conversation that `stream` holds."""
        drafts = self.talks(stream) if self.talks is not None else None
        if drafts is not None or self.reader is None:
            return drafts or ()
        reader = self.reader(Lines(stream, self.accepts))
        for found in reader.lines:
            reader.take(found)
        return [each.finish for each in reader.readers()]


TIMELINE_JSON = Format("timeline-json", lambda _: False, document=Document)
_OPENAI = Format("openai", lambda r: array_dialect(r) == "openai", talks=read_openai)
FORMATS = (
    Format("claude-code", is_claude_record, _ClaudeFile, claude_family),
    Format("codex", is_codex_record, _CodexFile, codex_family),
    Format("pi", is_pi_record, _PiFile),
    Format("gemini", is_gemini_record, _GeminiFile, talks=read_gemini, value=is_gemini_document),
    Format("messages", is_message_record, _MessagesFile),
    Format("chatgpt", is_chatgpt_talk, talks=read_chatgpt),
    Format("claude-ai", is_claude_ai_talk, talks=read_claude_ai),
    Format("opencode", is_opencode_talk, talks=read_opencode),
    _OPENAI,
    Format("anthropic", lambda r: array_dialect(r) == "anthropic", talks=read_anthropic),
    TIMELINE_JSON,
)


_ZSTD = b"\x28\xb5\x2f\xfd"  # Codex packs old rollouts; Python reads this from 3.14 on only


def recognize(stream: BinaryIO) -> tuple[Format | None, str]:
    """The format of what `stream` holds; else None and why not."""
    empty, why = not stream.seek(0, os.SEEK_END), "no JSON"
    stream.seek(0)
    if stream.read(len(_ZSTD)) == _ZSTD:
        return None, "compressed with zstd: unpack it first (zstd -d)"
    stream.seek(0)
    if DOCUMENT_MARK.match(stream.read(BLANK_BYTES)):
        return TIMELINE_JSON, ""
    window = _Window(stream, 0)
    array = window.skip(_INSIDE) and window.text[window.place] == "["
    # First, because all of an array may stand on one line.
    format = _recognize_documents(stream, array) if array else None
    if format is not None:
        return format, ""
    for record in Lines(stream, lambda _: False).head():
        why = "JSON of no known format"
        if record.get("timeline") == "log":
            return None, "a Timeline database"
        for format in FORMATS:
            if not format.whole and format.accepts(record):
                return format, ""
    format = None if array else _recognize_documents(stream, array)
    if format is not None:
        return format, ""
    whole = whole_json(stream)
    if whole is not None and whole.value:
        for each in FORMATS:
            if each.value is not None and each.value(whole.value):
                return each, ""
    if why == "no JSON" and any(True for _ in Documents(stream, lambda _: False).head()):
        why = "JSON of no known format"
    return None, "empty" if empty else why


def _recognize_documents(stream: BinaryIO, array: bool) -> Format | None:
    """The format of JSON documents; of messages that stand alone only in an array."""
    whole = [format for format in FORMATS if format.whole]
    plain = False
    documents = Documents(stream, lambda r: any(format.accepts(r) for format in whole))
    for record in documents.head():
        if is_array_message(record) and not array:
            continue
        plain = plain or is_array_value(record)
        for format in whole:
            if format.accepts(record):
                return format
    return _OPENAI if plain else None


# ================================================================================================
# 19. Layout
#
# From the client's own chain to our tree; pure. A place in the tree is a number: a node that is
# there already (0: the root), or -1, -2, ... for the steps of the plan.
# ================================================================================================

MESSAGE, SUMMARY, COPY = range(3)


class Step:
    """A node to be made: of `entry`, below `parent`. A summary stands for first..last; a copy is
    one of `original`, kept behind the summary `first`. `anchor` is the node, there already, that
    it hangs on directly or not."""

    __slots__ = ("anchor", "entry", "first", "kind", "last", "late", "original", "parent")

    def __init__(self, kind: int, entry: int, parent: int, anchor: int) -> None:
        self.kind = kind
        self.entry = entry
        self.parent = parent
        self.anchor = anchor
        self.first = self.last = self.original = 0
        self.late = False


class Plan:
    """Steps in the order in which nodes are made, and where each entry stands.

    `place` is None for an entry that another timeline holds. `active`: where the client goes on,
    None where nothing tells. `ends`: old end of a compaction -> its number. `children`: how many
    steps hang directly on a place.
    """

    __slots__ = ("active", "children", "ends", "place", "steps")

    def __init__(self, entries: int) -> None:
        self.steps: list[Step] = []
        self.place: list[int | None] = [None] * entries
        self.active: int | None = None
        self.ends: dict[int, int] = {}
        self.children: dict[int, int] = {}

    def leaves(self) -> list[int]:
        """New nodes without children, in the order of nodes."""
        return [-n for n in range(1, len(self.steps) + 1) if -n not in self.children]

    def step(self, place: int) -> Step:
        """The step that makes the new node `place`."""
        return self.steps[-place - 1]


class Ground:
    """The tree that a transcript is laid onto; this one is empty."""

    __slots__ = ()

    def parent(self, node: int) -> int:
        """The parent of `node`."""
        return 0

    def top(self, node: int) -> int:
        """The ancestor of `node` that hangs on the root."""
        return node

    def has_child(self, node: int) -> bool:
        """Whether anything hangs on `node`."""
        return False

    def is_late(self, node: int) -> bool:
        """Whether `node` was made as a late one."""
        return False

    def is_summary(self, node: int) -> bool:
        """Whether `node` stands for others."""
        return False

    def copy(self, summary: int, original: int) -> int | None:
        """The copy of `original` that stands behind `summary`."""
        return None

    def attach(self, node: int) -> int:
        """Where something that hangs on `node` is to go: on `node`, or on what has grown there."""
        return node

    def text(self, node: int) -> str:
        """The text of `node`."""
        return ""

    def top_alone(self, leaf: int, anchors: Iterable[int]) -> int | None:
        """The topmost message above or at `leaf`, a leaf, that lies on no other line.

        `anchors` are nodes that get children now.
        """
        return None


class _Span:
    """What a summary stands for, first..last (0: nothing), and the entries kept before it on its
    line and behind it."""

    __slots__ = ("ahead", "behind", "first", "last")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.ahead: list[int] = []
        self.behind: list[int] = []


class _Layout:
    __slots__ = (
        "chain_last", "chain_of", "compactions", "copies", "ended", "entries", "ground", "late",
        "newest", "newest_child", "plan", "relink", "spot", "tops", "transcript",
    )  # fmt: skip

    def __init__(self, transcript: Transcript, ground: Ground) -> None:
        self.transcript = transcript
        self.entries = transcript.entries
        self.ground = ground
        self.plan = Plan(len(self.entries))
        self.spot: dict[int, int] = {}  # entry -> where what hangs on it goes, if not its place
        self.copies: dict[int, int] = {}  # entry -> its last copy
        self.chain_of: dict[int, int] = {}  # entry of a result -> entry of its call
        self.chain_last: dict[int, int] = {}  # entry of a call -> entry of its last result
        self.late: set[int] = set()  # entries
        self.ended: set[int] = set()  # places whose line goes on behind a summary
        self.newest_child: dict[int, int] = {}
        # (last entry kept before a summary, entry of the summary): the record right behind the
        # summary may name the one and yet mean the other.
        self.relink: tuple[int, int] | None = None
        self.newest = 0  # the place made or found last
        self.tops: list[int] = []  # of each step, the place on its path that hangs on the root
        self.compactions = transcript.compactions

    def run(self) -> Plan:
        """The plan."""
        for index in creation_order([entry.parent for entry in self.entries]):
            self._put(index)
        self.plan.active = self._active()
        return self.plan

    def _put(self, index: int) -> None:
        entry = self.entries[index]
        if entry.away or entry.held:
            return
        above = entry.parent
        call = above if above >= 0 and self.entries[above].calls else self.chain_of.get(above)
        if entry.compaction is not None:
            self.compactions += 1
        if entry.node is not None:
            self._put_known(index, entry.node, call)
        elif entry.compaction is not None:
            self._put_summary(index, self._below(index, call))
        else:
            self._put_message(index, call)
        if entry.compaction is None:
            self.relink = None
        self.newest = self.spot.get(index, self.plan.place[index] or 0)

    def _below(self, index: int, call: int | None) -> int:
        """The place on which entry `index` is to hang."""
        entry = self.entries[index]
        above = entry.parent
        if self.relink is not None and above == self.relink[0]:
            above, call = self.relink[1], None
        if above < 0:
            return 0 if entry.outside is None else self.ground.attach(entry.outside)
        if call is not None:
            # What hangs on a call or one of its results goes behind the last of them, but on
            # this side of a compaction that kept only some.
            last = self.chain_last.get(call, call)
            above = last if last in self.spot or above not in self.spot else above
        place = self.spot.get(above, self.plan.place[above])
        if place is None:
            place = self.newest
        return self.ground.attach(place) if place > 0 else place

    def _put_known(self, index: int, node: int, call: int | None) -> None:
        self.plan.place[index] = node
        if self.entries[index].results and call is not None:
            if self.ground.is_late(node):
                self.late.add(index)
            else:
                self._chain(index, call)
        self.newest_child[self.ground.parent(node)] = node
        told = self.entries[index].compaction
        for kept in told.kept if told is not None else ():
            original = self.plan.place[kept]
            copy = self.ground.copy(node, original) if original is not None else None
            assert told is not None
            if copy is not None:
                self._note_copy(kept, copy, told)
                self.spot[index] = copy
            elif index in self.spot or told.copied_only:
                pass
            elif self.ground.is_summary(node):
                self.relink = kept, index

    def _note_copy(self, kept: int, copy: int, told: Compaction) -> None:
        self.copies[kept] = copy
        if not told.copied_only:
            self.spot[kept] = copy

    def _chain(self, index: int, call: int) -> None:
        self.chain_of[index] = call
        self.chain_last[call] = index

    def _put_message(self, index: int, call: int | None) -> None:
        entry = self.entries[index]
        below = self._below(index, call)
        late = entry.kind == "late"
        if entry.results and call is not None:
            if self._is_busy(below):
                late = True
                self.transcript.notes.add(
                    "late result",
                    f"{self.transcript.at(entry)}: a tool result after the talk went on; kept "
                    "beside it",
                )
            else:
                self._chain(index, call)
        place = self._make(MESSAGE, index, below, leads_on=not late)
        self.plan.place[index] = place
        if late:
            self.late.add(index)
            self.plan.step(place).late = True

    def _is_busy(self, place: int) -> bool:
        if place in self.plan.children or place in self.ended:
            return True
        return place > 0 and self.ground.has_child(place)

    def _make(self, kind: int, index: int, parent: int, *, leads_on: bool = True) -> int:
        plan = self.plan
        anchor = parent if parent >= 0 else plan.step(parent).anchor
        plan.steps.append(Step(kind, index, parent, anchor))
        place = -len(plan.steps)
        plan.children[parent] = plan.children.get(parent, 0) + 1
        self.tops.append(place if parent == 0 else self._top(parent))
        if leads_on:
            self.newest_child[parent] = place
        return place

    def _top(self, place: int) -> int:
        return self.tops[-place - 1] if place < 0 else self.ground.top(place)

    def _parent(self, place: int) -> int:
        return self.plan.step(place).parent if place < 0 else self.ground.parent(place)

    def _put_summary(self, index: int, end: int) -> None:
        told = self.entries[index].compaction
        assert told is not None
        kept = [each for each in told.kept if self.plan.place[each] is not None]
        span = self._span(end, kept)
        if span.first == 0:  # nothing to sum up: a plain message
            self.plan.place[index] = self._make(MESSAGE, index, end)
            return
        summary = place = self._make(SUMMARY, index, self._parent(span.first))
        self.plan.place[index] = place
        step = self.plan.step(place)
        step.first, step.last = span.first, span.last
        self.ended.add(end)
        self.plan.ends.setdefault(end, self.compactions)
        if span.ahead:
            self.relink = span.ahead[-1], index
        for each in span.behind:
            place = self._make(COPY, each, place)
            original = self.plan.place[each]
            assert original is not None
            self.plan.step(place).original = original
            self.plan.step(place).first = summary
            self._note_copy(each, place, told)
            self.spot[index] = place

    def _span(self, end: int, kept: list[int]) -> _Span:
        """What a summary stands for whose line ends at `end`.

        What is kept at the head of the line stays before the summary; whatever is kept from the
        first other node on goes behind it.
        """
        if end == 0 or not kept:
            return _Span(self._top(end) if end else 0, end)
        by_place = {self.spot.get(each, self.plan.place[each] or 0): each for each in kept}
        by_place.update({self.copies[each]: each for each in kept if each in self.copies})
        path = []
        while end:
            path.append(end)
            end = self._parent(end)
        path.reverse()
        bare = [number for number, place in enumerate(path) if place not in by_place]
        if not bare:
            return _Span(0, 0)
        span = _Span(path[bare[0]], path[bare[-1]])
        span.ahead = [by_place[place] for place in path[: bare[0]]]
        span.behind = [by_place[place] for place in path[bare[0] :] if place in by_place]
        return span

    def _active(self) -> int | None:
        """Where the client goes on: the newest place below the active entry."""
        index = -1 if self.transcript.active is None else self.transcript.active
        while index >= 0 and (self.plan.place[index] is None or index in self.late):
            index -= 1
        if index < 0:
            return None
        place = self.spot.get(index, self.plan.place[index])
        while place in self.newest_child and place is not None and not self.transcript.undone:
            place = self.newest_child[place]
        return place


def lay_out(transcript: Transcript, ground: Ground) -> Plan:
    """The nodes that `transcript` adds to `ground`."""
    return _Layout(transcript, ground).run()


# ================================================================================================
# 20. Names
# ================================================================================================


def branch_base(text: str) -> str:
    """A branch name from the first line of `text` (or from a title); "" if that leaves nothing."""
    line = " ".join(text.partition("\n")[0].split())
    line = "".join(
        "-" if char == "/" or _is_control(char) else char for char in line[:BRANCH_CHARS]
    )
    return line.strip()


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char < "\xa0"


def free_name(taken: Container[str], base: str) -> str:
    """`base`, or `base (2)`, `base (3)`... where it is taken."""
    name, number = base, 2
    while name in taken:
        name, number = f"{base} ({number})", number + 1
    return name


def topmost_alone(plan: Plan, ground: Ground, leaf: int) -> int | None:
    """The topmost message that only `leaf` has; summary nodes and copies do not count."""
    top, place = None, leaf
    while place < 0:
        step = plan.step(place)
        if step.kind == MESSAGE:
            top = place
        place = step.parent
        if place in (0, plan.active) or plan.children[place] > 1:
            return top
    if place != leaf and ground.has_child(place):
        return top
    anchors = [each for each in plan.children if each > 0 and each != place]
    return ground.top_alone(place, anchors) or top


# ================================================================================================
# 21. Database
#
# The only section that writes, and only through `tx`, an open import transaction of the engine.
# ================================================================================================

ESTIMATOR = "wide"  # of imported timelines


class _Settings:
    """What the caller asked for; `progress` gets a line for people now and then. `timelines`:
    how many there were before a dry run. `ids` takes which node of a document became which."""

    __slots__ = (
        "attachments", "dry_run", "hold", "ids", "into", "progress", "project", "reads_on",
        "slice", "timelines", "until",
    )  # fmt: skip

    def __init__(
        self,
        into: int | None = None,
        dry_run: bool = False,
        attachments: bool = False,
        progress: Callable[[str], None] | None = None,
        ids: dict[str, str] | None = None,
    ) -> None:
        self.ids = ids
        self.hold = False  # leave out what its client may still add to
        self.reads_on = False  # begin a file where it was read to last time
        # Bytes of a file of lines that are read at once, and until when (as time.monotonic tells
        # it) another such slice is begun.
        self.slice: int | None = None
        self.until = 0.0
        self.project: str | None = None  # only conversations in this folder or below
        self.into = into
        self.dry_run = dry_run
        self.attachments = attachments
        self.progress = progress
        self.timelines = 0


class _TreeGround(Ground):
    """A timeline of the database, as the layout sees it. `last`: the node the session reached."""

    __slots__ = ("grown", "last", "timeline", "tl", "tops", "tx")

    def __init__(self, tx: Importing, tl: int, last: int, head: int) -> None:
        self.tx = tx
        self.tl = tl
        self.timeline = tx.timelines()[tl]
        self.last = last
        self.grown = head if self._is_own_growth(last, head) else last
        self.tops: dict[int, int] = {}

    def _is_own_growth(self, last: int, head: int) -> bool:
        """Whether everything behind `last` up to `head` came from no transcript."""
        if last == 0 or head == 0 or not self.tx.is_ancestor(last, head):
            return False
        while head != last:
            row = self.tx.row(head)
            if row.source_known:
                return False
            head = row.parent
        return True

    def parent(self, node: int) -> int:
        return int(self.tx.row(node).parent)

    def top(self, node: int) -> int:
        way = []
        while node not in self.tops:
            above = self.parent(node)
            if above == 0:
                self.tops[node] = node
                break
            way.append(node)
            node = above
        self.tops.update(dict.fromkeys(way, self.tops[node]))
        return self.tops[node]

    def has_child(self, node: int) -> bool:
        return bool(self.tx.children_any(node))

    def is_late(self, node: int) -> bool:
        return bool((self.tx.record(node).get("source") or {}).get("kind") == "late")

    def is_summary(self, node: int) -> bool:
        return self.tx.row(node).is_summary

    def copy(self, summary: int, original: int) -> int | None:
        found = self.tx.find(_copy_identity(summary, original), self.tl)
        return found[0] if found else None

    def attach(self, node: int) -> int:
        return self.grown if node == self.last else node

    def text(self, node: int) -> str:
        return str(self.tx.text(node))

    def top_alone(self, leaf: int, anchors: Iterable[int]) -> int | None:
        # What once was a branch still is a line.
        branches = [*self.timeline.branches.values(), *self.timeline.ended]
        heads = {branch.head for branch in branches}
        shared = 0
        for other in heads.union(anchors):
            meet = self.tx.common(leaf, other)
            # What ends above the leaf on its own path is a name on the way, not another line.
            if meet != other or other in anchors:
                shared = max(shared, self.tx.row(meet).depth if meet else 0)
        top, node = None, leaf
        while node:
            row = self.tx.row(node)
            if row.depth <= shared:
                break
            if not row.is_summary and not row.is_copy:
                top = node
            node = row.parent
        return top


def _copy_identity(summary: int, original: int) -> str:
    return f"copy\0{summary}\0{original}"


def _find_home(tx: Importing, transcript: Transcript, key: str, into: int | None) -> int | None:
    """The timeline that this conversation belongs to; None: a new one.

    Raises:
        NotFound: `into` is no timeline.
        Refused: it is another one than `into`.
    """
    states = tx.timelines()
    if into is not None and not 0 <= into < len(states):
        raise timeline.NotFound(f"unknown timeline tl{into}", timeline_id=f"tl{into}")
    session = next((tl for tl, state in enumerate(states) if key in state.sessions), None)
    held = _held_by_ids(tx, transcript) if transcript.unique else _held_by_talk(tx, transcript)
    if transcript.unique and session is not None:
        held.setdefault(session, 1)
    if into is not None:
        if held and into not in held:
            elsewhere = max(held, key=lambda tl: (held[tl], -tl))
            raise timeline.Refused(
                f"session {transcript.session or 'of this file'} is in tl{elsewhere}",
                session=transcript.session, timeline_id=f"tl{elsewhere}",
            )  # fmt: skip
        return into
    if session is not None and (session in held or _may_follow(tx, transcript, session)):
        return session
    return max(held, key=lambda tl: (held[tl], -tl)) if held else None


def _held_by_ids(tx: Importing, transcript: Transcript) -> dict[int, int]:
    """Timeline -> how many messages of this conversation it holds, or else parents of such."""
    held: dict[int, int] = {}
    for entry in transcript.entries:
        if entry.node is not None:
            tl = tx.row(entry.node).timeline
            held[tl] = held.get(tl, 0) + 1
    for entry in transcript.entries if not held else ():
        found = tx.find(transcript.identity(entry.wanted)) if entry.wanted else []
        if found:
            return {tx.row(found[0]).timeline: 1}
    return held


def _held_by_talk(tx: Importing, transcript: Transcript) -> dict[int, int]:
    """The same where ids may clash: what is held must agree, and hold an answer or all of it."""
    equal: dict[int, int] = {}
    other: set[int] = set()
    answered: set[int] = set()
    for entry in transcript.entries:
        found = tx.find(transcript.identity(entry.id))
        text = transcript.read(entry).text if found else ""
        for node in found:
            row = tx.row(node)
            stored = tx.record(node)
            same = stored.get("purged") or _is_same_text(str(stored["text"]), text)
            if row.role != entry.role or not same:
                other.add(row.timeline)
                continue
            equal[row.timeline] = equal.get(row.timeline, 0) + 1
            if entry.role == "assistant":
                answered.add(row.timeline)
    named = not all(_is_made_up(entry.id) for entry in transcript.entries)
    return {
        tl: count for tl, count in equal.items() if tl in answered or (named and tl not in other)
    }


def _is_made_up(id: str) -> bool:
    return len(id) == 65 and id.startswith("#")


def _may_follow(tx: Importing, transcript: Transcript, tl: int) -> bool:
    """Whether a file at a known path may go on in `tl` though it shares no answer with it."""
    return not any(
        tx.find(transcript.identity(entry.id), tl)
        for entry in transcript.entries
        if not _is_made_up(entry.id)
    )


def _is_same_text(stored: str, text: str) -> bool:
    return stored == (text if len(text) * 4 <= timeline.TEXT_BYTES_MAX else cut_text(text)[0])


def cut_text(text: str) -> tuple[str, bytes | None]:
    """`text` as a node can hold it, and all its bytes if that is less than the whole."""
    whole = text.encode()
    if len(whole) <= timeline.TEXT_BYTES_MAX:
        return text, None
    digest = sha256(whole)
    room = timeline.TEXT_BYTES_MAX - len(_more(len(whole), digest).encode())
    begin = whole[:room].decode("utf-8", "ignore")
    return begin + _more(len(whole) - len(begin.encode()), digest), whole


def _more(count: int, digest: str) -> str:
    return f"[… {count} bytes more, sha256 {digest}]"


def _look_up(tx: Importing, transcript: Transcript, home: int | None) -> None:
    """Note on each entry which node of `home` carries it, and which its parent outside the file."""
    foreign: set[int] = set()
    for entry in transcript.entries:
        if entry.node is None and transcript.unique:
            pass
        elif home is None:
            entry.node = None
        elif entry.node is None or tx.row(entry.node).timeline != home:
            found = tx.find(transcript.identity(entry.id), home)
            if not found and entry.node is not None:
                entry.away = True
                foreign.add(tx.row(entry.node).timeline)
            entry.node = found[0] if found else None
        if entry.gap is not None and entry.wanted is not None and home is not None:
            found = tx.find(transcript.identity(entry.wanted), home)
            if found:
                entry.outside, entry.parent, entry.gap = found[0], ROOT, None
    for tl in sorted(foreign):
        transcript.notes.add(
            "elsewhere", f"messages of this session are in tl{tl} too; timelines are never joined"
        )


class _Line:
    """What a message node stores; `kept` and `files` are bytes for files beside the database, what
    was too long and what placeholders stand for."""

    __slots__ = ("blocks", "files", "kept", "role", "source", "text", "tokens")

    def __init__(self, role: str, blocks: list[Json] | None) -> None:
        self.role = role
        self.blocks = blocks
        self.text = ""
        self.tokens = 0
        self.source: Json = {}
        self.kept: list[bytes] = []
        self.files: list[bytes] = []


class _Landing:
    """Writes the plan of one transcript into timeline `tl`, and counts what it wrote."""

    __slots__ = (
        "bases", "branches", "copied", "created", "db", "ground", "leaves", "nodes",
        "oversize", "own", "own_base", "plan", "session", "settings", "summaries", "tl",
        "transcript", "tx", "waiting",
    )  # fmt: skip

    def __init__(
        self, db: Database, tx: Importing, transcript: Transcript, home: int | None, session: str,
        settings: _Settings,
    ) -> None:  # fmt: skip
        self.db = db
        self.tx = tx
        self.transcript = transcript
        self.settings = settings
        self.session = session
        self.tl = home
        self.created = False
        self.own: Branch | None = None  # the session's branch while it lives
        last = 0
        if home is not None:
            number, last = tx.timelines()[home].sessions.get(session, (None, 0))
            self.own = None if number is None else tx.branch_of(home, number)
        head = self.own.head if self.own is not None else 0
        self.ground = Ground() if home is None else _TreeGround(tx, home, last, head)
        self.plan = lay_out(transcript, self.ground)
        self.nodes: list[int] = []  # of each step made so far
        self.leaves: list[int] = []  # places that still need a branch, in the order of nodes
        self.bases: dict[int, str] = {}  # of leaves, what the branch is to be called
        self.own_base = ""
        self.waiting = 0  # characters not committed yet
        self.copied = self.oversize = self.summaries = self.branches = 0

    # -- nodes -------------------------------------------------------------------------------------

    def write(self, path: str) -> None:
        """Make all nodes and branches; large plans in several transactions."""
        steps = self.plan.steps
        if not steps:
            self._follow_rewind()
            self._update_title()
            return
        if self.tl is None:
            self._create()
        self.leaves = self._open_leaves()
        # Now, while nothing new hangs on the nodes that are there.
        self.bases = {leaf: self._base(leaf) for leaf in self.leaves}
        self.own_base = self._own_base()
        begun = 0
        for number, step in enumerate(steps):
            self._make(step)
            last = number + 1 == len(steps)
            if self.settings.progress is not None and number and number % PROGRESS_EVERY == 0:
                self.settings.progress(f"{path}: {number} of {len(steps)} messages")
            full = number - begun >= CHUNK_NODES or self.waiting >= CHUNK_CHARS
            # A summary and its copies belong together: a copy is never missing behind it.
            if full and not last and steps[number + 1].kind != COPY and not self.settings.dry_run:
                self._settle()
                self.tx.commit()
                begun, self.waiting = number, 0
        self._settle()
        self._follow_rewind()
        self._update_title()

    def _create(self) -> None:
        transcript = self.transcript
        source: Json = {"format": transcript.format}
        for name in ("session", "cwd", "time"):
            if getattr(transcript, name) is not None:
                source[name] = getattr(transcript, name)
        title = transcript.title
        if transcript.agent is not None:
            source["parent"] = dict(zip(("session", "agent"), transcript.agent, strict=True))
            title = title or self._task()
        self.tl = self.tx.create(title, ESTIMATOR, source)
        self.created = True
        self.branches = 1
        self.own = self._state().branches["main"]

    def _call(self, tx: Importing) -> tuple[int, Json] | None:
        """The message that started this run, and the block of the call; None if it is not here."""
        assert self.transcript.agent is not None
        found = tx.find(self.transcript.identity(timeline.AGENT_MARK + self.transcript.agent[1]))
        if not found:
            return None
        node = found[0]
        results = tx.record(node).get("blocks") or []
        calls = [each.get("tool_use_id") for each in results if each.get("type") == "tool_result"]
        while node and tx.row(node).role == "tool":
            node = tx.row(node).parent
        for block in (tx.record(node).get("blocks") or []) if node else ():
            if block.get("type") == "tool_use" and block.get("id") in calls:
                return node, block
        return None

    def _task(self) -> str | None:
        """A title for a run: the agent's type and its task, else how the run begins."""
        call = self._call(self.tx)
        given = call[1].get("input") if call is not None else None
        given = given if isinstance(given, dict) else {}
        words = [given.get(name) for name in ("subagent_type", "description")]
        title = ": ".join(word for word in words if isinstance(word, str) and word.strip())
        if not title and self.transcript.entries:
            title = self.transcript.read(self.transcript.entries[0]).text
        return " ".join(title.split())[: timeline.NAME_CHARS_MAX].strip() or None

    def _parent(self, tx: Importing) -> Json:
        """What a row says of the session that a run belongs to."""
        call = self._call(tx)
        if call is None:
            return {"session": self.transcript.agent[0] if self.transcript.agent else None}
        node, block = call
        return {"timeline": f"tl{tx.row(node).timeline}", "node": f"n{node}", "call": block["id"]}

    def _state(self) -> TimelineState:
        return self.tx.timelines()[self.home]

    @property
    def home(self) -> int:
        """The timeline, once there is one."""
        assert self.tl is not None
        return self.tl

    def _node(self, place: int) -> int:
        return self.nodes[-place - 1] if place < 0 else place

    def _make(self, step: Step) -> None:
        if step.kind == COPY:
            self._make_copy(step)
            return
        transcript = self.transcript
        entry = transcript.entries[step.entry]
        line = self._line(step)
        if not self.settings.dry_run:
            for data in line.kept + (line.files if self.settings.attachments else []):
                self.db.keep_bytes(data)
        self.oversize += len(line.kept) > 0
        natives = [piece.id for piece in entry.pieces] + list(entry.also)
        identities = [transcript.identity(native) for native in natives]
        if step.kind == SUMMARY:
            node = self.tx.summary(
                self.home, self._node(step.first), self._node(step.last), line.text, line.tokens,
                line.source, identities,
            )  # fmt: skip
            self.summaries += 1
            self.nodes.append(node)
        else:
            self._append(step.parent, line, identities)

    def _append(self, parent: int, line: _Line, identities: Sequence[str]) -> None:
        node = self.tx.append(
            self.home, self._node(parent), line.role, line.text, line.tokens, line.source,
            line.blocks, identities,
        )  # fmt: skip
        self.nodes.append(node)
        self.waiting += len(line.text)

    def _line(self, step: Step) -> _Line:
        """What is stored for a step that is no copy."""
        entry = self.transcript.entries[step.entry]
        content = self.transcript.read(entry)
        line = _Line(entry.role, content.blocks)
        line.text, whole = cut_text(content.text)
        if whole is not None:
            line.kept.append(whole)
        if content.blocks is None:
            content.sent = line.text
        else:
            self.waiting += content.size
            if content.size > timeline.BLOCKS_BYTES_MAX // 2:
                self._limit_blocks(line)
        line.tokens = content.count(self._state().estimator)
        line.source = self._source(entry, content, step)
        line.files = content.files
        return line

    @staticmethod
    def _limit_blocks(line: _Line) -> None:
        exact = compact_json(line.blocks).encode()
        if len(exact) > timeline.BLOCKS_BYTES_MAX:
            told = {"type": "oversize", "bytes": len(exact), "sha256": sha256(exact)}
            line.blocks = [told]
            line.kept.append(exact)

    def _source(self, entry: Entry, content: Content, step: Step) -> Json:
        source: Json = {"format": self.transcript.format}
        for name, value in (
            ("session", self.transcript.session),
            ("id", entry.native or entry.id),
            ("cwd", content.cwd),
            ("time", content.time),
            ("kind", "late" if step.late else entry.kind),
            ("error", entry.error or None),
            ("gap", entry.gap),
            ("usage", content.usage),
        ):
            if value is not None:
                source[name] = value
        return source

    def _make_copy(self, step: Step) -> None:
        """Write the original again behind its summary: same role, text, blocks and tokens."""
        original = self._node(step.original)
        if step.original < 0:
            line = self._line(self.plan.step(step.original))
        else:
            record = self.tx.record(original)
            # From the row: the log's line of a summary, which may be kept, too, tells no role.
            line = _Line(self.tx.row(original).role, record.get("blocks"))
            line.text, line.tokens = record["text"], record["tokens"]
            line.source = record.get("source", {})
        line.source = {**line.source, "copy_of": f"n{original}"}
        self._append(step.parent, line, [_copy_identity(self._node(step.first), original)])
        self.copied += 1

    # -- branches ----------------------------------------------------------------------------------

    def _open_leaves(self) -> list[int]:
        """Places that get a branch of their own: the end that the session's branch leaves behind,
        then new leaves, but for the one where the client goes on."""
        plan, leaves = self.plan, self.plan.leaves()
        active = plan.active
        if active is None or active >= 0:
            return leaves
        leaves = [leaf for leaf in leaves if leaf != active]
        head = 0 if self.own is None else self.own.head
        if not head or head in plan.children or self.tx.children_any(head):
            return leaves
        others = [b for b in self._state().branches.values() if b.head == head]
        if len(others) > 1 or self.tx.is_ancestor(head, plan.step(active).anchor):
            return leaves
        return [head, *leaves]

    def _settle(self) -> None:
        """Bring branches up to the nodes made so far."""
        reached = self._reached()
        if reached is not None:
            self._move_own(reached)
        elif self.created and self.session not in self._state().sessions:
            self.tx.session(self.home, self.session, "main", 0)
        self._end_inner(reached)
        made, later = -len(self.nodes), []
        for leaf in self.leaves:
            # An old end is left once the session's branch has moved.
            left = leaf > 0 and self.own is not None and self.own.head != leaf
            if left or made <= leaf < 0:
                self._name(leaf)
            else:
                later.append(leaf)
        self.leaves = later

    def _reached(self) -> int | None:
        """The deepest new place made so far on the way to where the client goes on."""
        place = self.plan.active
        if place is None or place >= 0:
            return None
        while place < -len(self.nodes):
            place = self.plan.step(place).parent
        return place if place < 0 else None

    def _move_own(self, place: int) -> None:
        node = self._node(place)
        if self.own is None:
            name = self._free(self.own_base, node)
            self.tx.branch(self.home, name, node)
            self.branches += 1
            self.own = self._state().branches[name]
        elif self.own.head != node:
            self.tx.move(self.home, self.own.name, node)
            self.own = self._state().branches[self.own.name]
        self.tx.session(self.home, self.session, self.own.name, node)

    def _own_base(self) -> str:
        """What the session's branch would be called, should it need one."""
        active = self.plan.active
        if active is None or active >= 0 or self.own is not None:
            return ""
        return branch_base(self.transcript.title or "") or self._base(active)

    def _follow_rewind(self) -> None:
        """Go back to a node that is there already, as the client did after what was read last."""
        node, own = self.plan.active or 0, self.own  # 0: before all that was said
        lost = self.plan.active is None and self.transcript.active is not None
        if not self.transcript.undone or lost or node < 0 or own is None:
            return
        last = self._state().sessions.get(self.session, (None, 0))[1]
        # Not where somebody else went on, and not for an older copy of the file.
        if last in (0, node) or own.head != last:
            return
        if all(entry.node != last for entry in self.transcript.entries):
            return
        heads = [branch.head for branch in self._state().branches.values()]
        if heads.count(last) == 1 and not self.tx.children_any(last):
            top = self.ground.top_alone(last, [node] if node else [])
            base = branch_base(self.ground.text(top)) if top is not None else ""
            self.tx.branch(self.home, self._free(base, last), last)
            self.branches += 1
        self.tx.move(self.home, own.name, node)
        self.own = self._state().branches[own.name]
        self.tx.session(self.home, self.session, own.name, node)

    def _end_inner(self, reached: int | None) -> None:
        """Branches made by import, on which nobody else wrote, follow their line; one that the
        session's own line, now at `reached`, took over ends."""
        state = self._state()
        anchor = 0 if reached is None else self.plan.step(reached).anchor
        # Those of documents only remember which branch is which.
        sessions = {
            number
            for key, (number, _) in state.sessions.items()
            if not key.startswith("timeline-json\0")
        }
        for branch in list(state.branches.values()):
            if not branch.imported or branch.number in sessions or branch.name == state.current:
                continue
            if branch.head not in self.plan.children or not self.tx.row(branch.head).source_known:
                continue
            made = [leaf for leaf in self.leaves if -len(self.nodes) <= leaf < 0]
            on = [leaf for leaf in made if self.plan.step(leaf).anchor == branch.head]
            if on:
                self.leaves.remove(on[0])
                self.tx.move(self.home, branch.name, self._node(on[0]))
            elif anchor == branch.head:
                self.tx.drop(self.home, branch.name)

    def _name(self, leaf: int) -> None:
        node = self._node(leaf)
        self.tx.branch(self.home, self._free(self.bases[leaf], node), node)
        self.branches += 1

    def _base(self, leaf: int) -> str:
        if leaf in self.plan.ends:
            return f"before compaction {self.plan.ends[leaf]}"
        top = topmost_alone(self.plan, self.ground, leaf)
        if top is None:
            return ""
        if top > 0:
            return branch_base(self.ground.text(top))
        entry = self.transcript.entries[self.plan.step(top).entry]
        return branch_base(self.transcript.read(entry).text)

    def _free(self, base: str, node: int) -> str:
        return free_name(self._state().branches, base or f"branch n{node}")

    def _update_title(self) -> None:
        """The timeline follows the title of the session that it was made from, until renamed."""
        title = self.transcript.title
        if self.tl is None or self.created or title is None or self.own is None:
            return
        state = self._state()
        made_from = state.source or {}
        if made_from.get("session") != self.transcript.session or self.transcript.session is None:
            return
        if not state.titled and state.title != title:
            self.tx.rename(self.home, title)

    # -- result ------------------------------------------------------------------------------------

    def row(self, tx: Importing) -> Json:
        """What became of each record of the transcript. `tx` only answers questions: comparing
        what is known with what is stored takes as long as the file is large."""
        transcript = self.transcript
        counts = transcript.counts.since(transcript.settled.counts)
        added = folded = known = changed = 0
        for entry in transcript.entries:
            new = sum(map(transcript.settled.is_new, entry.pieces))
            if entry.held or not new:
                continue
            if entry.node is None and not entry.away:
                added += 1
                folded += new - 1
            elif entry.node is not None and self._is_changed(tx, entry, entry.node):
                changed += 1
                known += new - 1
            else:
                known += new
        transcript.note_gaps()
        pending = counts.pending + len(transcript.pending)
        return {
            "timeline_id": self._shown_id(),
            "title": transcript.title,
            "format": transcript.format,
            "session": transcript.session,
            **({} if transcript.agent is None else {"parent": self._parent(tx)}),
            "records": counts.records + len(transcript.settled.pending),
            "added": added,
            "folded": folded,
            "known": known + sum(counts.known.values()),
            "changed": changed + counts.changed,
            "hidden": sum(counts.hidden.values()),
            "skipped": sum(counts.skipped.values()),
            "sidechain": counts.sidechain,
            "bad": counts.bad,
            "pending": pending,
            "copied": self.copied,
            "oversize": self.oversize,
            "branches": self.branches,
            "summaries": self.summaries,
            "warnings": transcript.notes.to_list(),
        }

    def _shown_id(self) -> str | None:
        imagined = self.settings.dry_run and (self.tl or 0) >= self.settings.timelines
        return None if self.tl is None or imagined else f"tl{self.tl}"

    def _is_changed(self, tx: Importing, entry: Entry, node: int) -> bool:
        """Whether the file now says something else than the stored message, which stays."""
        stored = tx.record(node)
        text = self.transcript.read(entry).text
        if stored.get("purged") or _is_same_text(stored["text"], text):
            return False
        # A file cut off within a message has its first pieces only.
        if len(entry.pieces) < len(stored.get("ids", ())) and stored["text"].startswith(text):
            return False
        self.transcript.notes.add(
            "changed",
            f"{self.transcript.at(entry)}: n{node} was read with another text, which stays",
        )
        return True


def shown(path: str) -> str:
    """`path` as text, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _bring_in(
    db: Database, tx: Importing, transcript: Transcript, item: _Item, settings: _Settings
) -> _Landing:  # fmt: skip
    """Write what `transcript` adds to the database. The result can say what became of it."""
    name = transcript.session or item.place() + "#" * (transcript.part > 0)
    session = f"{transcript.space}\0{name}{transcript.part or ''}"
    home = _find_home(tx, transcript, session, settings.into) if transcript.entries else None
    _look_up(tx, transcript, home)
    landing = _Landing(db, tx, transcript, home, session, settings)
    landing.write(item.path)
    return landing


# ================================================================================================
# 22. Planting
#
# A node is known if it carries one of the document's identities and hangs where it hangs there, so
# what a database holds of a document always has its shape. Marks are added, never taken away, and
# where somebody wrote on or ended a branch here, it is left as it is: a second import undoes no
# work. `sessions` of the timeline remember which branch was made of which, and its head then.
# ================================================================================================


class _Planting:
    """Brings one document into the database, and counts what it brought."""

    __slots__ = (
        "_above", "_branches", "_by_number", "_candidates", "copied", "created", "db", "document",
        "fresh", "made", "nodes", "notes", "path", "session", "settings", "summaries", "tl", "tx",
    )  # fmt: skip

    def __init__(
        self, db: Database, tx: Importing, document: Document, path: str, settings: _Settings
    ) -> None:
        self.db = db
        self.tx = tx
        self.document = document
        self.path = path
        self.settings = settings
        self.notes = Notes()
        self.session = f"timeline-json\0{document.key}"
        self._by_number: set[int] = set()  # nodes of this database that are named as such
        self._candidates = [self._find(place) for place in range(len(document.numbers))]
        self.created = False
        self.tl = self._home()
        self.fresh = self.tl is not None and self._is_untouched()
        self.nodes = self._known_nodes()  # of each place; 0: there is none yet
        self.made: list[int] = []  # places
        self._above = 0  # the node above a part
        self._branches = 0
        self.copied = self.summaries = 0

    # -- what is known -----------------------------------------------------------------------------

    def _find(self, place: int) -> list[int]:
        """The nodes, of any timeline, that carry an identity of the node at `place`."""
        if not place:
            return []
        identities = self.document.identities(place)
        return [node for each in identities for node in self._carriers(each)]

    def _carriers(self, identity: str) -> list[int]:
        """Nodes that carry an identity, or, of this very database, are what it speaks of."""
        found = self.tx.find(identity)
        own = f"timeline-json\0{self.tx.log_id}/tl"
        if identity.startswith(own):
            tl, _, node = identity.removeprefix(own).partition("\0n")
            number = int(node) if node.isdecimal() and len(node) < 18 else 0
            if 0 < number <= self.tx.node_count and str(self.tx.row(number).timeline) == tl:
                found.append(number)
                self._by_number.add(number)
        return found

    def _home(self) -> int | None:
        """The timeline that holds the document already, or that it is to go to; None: a new one.

        Raises:
            NotFound: `into` is no timeline. Refused: it is another one than `into`.
        """
        states, into = self.tx.timelines(), self.settings.into
        if into is not None and not 0 <= into < len(states):
            raise timeline.NotFound(f"unknown timeline tl{into}", timeline_id=f"tl{into}")
        held: dict[int, int] = {}
        for candidates in self._candidates:
            for tl in {self.tx.row(node).timeline for node in candidates}:
                held[tl] = held.get(tl, 0) + 1
        for tl, state in enumerate(states):
            if self.session in state.sessions:
                held[tl] = held.get(tl, 0) + len(self._candidates)
        if self._is_own() and self.document.number < len(states):
            held = {self.document.number: 1}
        home = max(held, key=lambda tl: (held[tl], -tl)) if held else None
        if into is not None and held and into not in held:
            raise timeline.Refused(
                f"timeline {self.document.key} is in tl{home}",
                session=self.document.key, timeline_id=f"tl{home}",
            )  # fmt: skip
        return home if into is None else into

    def _is_own(self) -> bool:
        return self.document.log_id == self.tx.log_id

    def _is_untouched(self) -> bool:
        """Whether the timeline has nothing but an empty `main`."""
        state = self._state()
        return (
            state.next_branch == 1
            and not state.ended
            and state.branches[state.current].head == 0
            and not state.sessions
        )

    def _state(self) -> TimelineState:
        return self.tx.timelines()[self.home]

    @property
    def home(self) -> int:
        """The timeline, once there is one."""
        assert self.tl is not None
        return self.tl

    def _known_nodes(self) -> list[int]:
        nodes = [0] * len(self._candidates)
        used: set[int] = set()
        for place in range(1, len(nodes) if self.tl is not None else 0):
            nodes[place] = self._known(place, nodes, used)
            used.add(nodes[place])
        self._candidates = []
        return nodes

    def _known(self, place: int, nodes: list[int], used: set[int]) -> int:
        """The node of the home timeline that is the one at `place`; 0 if none is."""
        document = self.document
        row = document.rows[place]
        parent = row[timeline.PARENT]
        span = nodes[row[timeline.FROM]], nodes[row[timeline.TO]]
        if parent and not nodes[parent]:
            return 0
        if row[timeline.FLAGS] & timeline.KIND_SUMMARY and 0 in span:
            return 0
        if row[timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
            return self.tx.find_placeholder(*span) or 0
        role = timeline.ROLES[row[timeline.FLAGS] & timeline.ROLE_MASK]
        copies = [each for each in document.ids[place] if each.startswith("copy\0")]
        found = [node for each in copies for node in self._copies(each, nodes)]
        for node in [*self._candidates[place], *found]:
            facts = self.tx.row(node)
            if (
                facts.timeline == self.tl
                and node not in used
                and facts.role == role
                and (place in document.outside or facts.parent == nodes[parent])
                and (place in document.plain or self.tx.interval_of(node) == span)
                # Of a copy of this file that went its own way the same number may be another node.
                and (node not in self._by_number or self._is_same(self.tx, place, node))
            ):
                return node
        return 0

    def _copies(self, identity: str, nodes: list[int]) -> list[int]:
        mapped = self._copy_identity(identity, nodes)
        return [] if mapped is None else self.tx.find(mapped, self.tl)

    def _copy_identity(self, identity: str, nodes: list[int]) -> str | None:
        """The identity of a copy, which speaks of numbers, in the numbers of this database."""
        ends = []
        for word in identity.split("\0")[1:]:
            number = int(word) if word.isdecimal() and len(word) < 18 else 0
            ends.append(nodes[self.document.place.get(number, 0)])
        return _copy_identity(*ends) if len(ends) == 2 and all(ends) else None

    # -- nodes -------------------------------------------------------------------------------------

    def write(self) -> None:
        """Make the nodes that are new, then bring branches and marks up to the document."""
        document = self.document
        if self.tl is None:
            source = document.source or {"format": "timeline-json", "session": document.key}
            self.tl = self.tx.create(document.title, document.estimator, source)
            self.created = self.fresh = True
            self._branches = 1
        self._above = self._node_above()
        new = [place for place in range(1, len(self.nodes)) if not self.nodes[place]]
        pins = self._state().pins
        held = [at for at, is_held in document.pins if is_held and self.nodes[at] not in pins]
        newest = self._newest_summary(new)
        for number, place in enumerate(new):
            if place == newest and any(each < place for each in held):
                # A pin is held if a summary came after it, by the numbers of transactions.
                self._pin([each for each in held if each < place])
                self.tx.next_seq()
            self._make(place)
            if self.settings.progress is not None and number and number % PROGRESS_EVERY == 0:
                self.settings.progress(f"{self.path}: {number} of {len(new)} messages")
        self.made = new
        own = self._is_own() and not new
        if not own:
            self._branches += _Limbs(self).bring()
            self._pin([place for place, _ in document.pins])
            self._exclude()
            self._update_title()

    def _newest_summary(self, new: list[int]) -> int:
        flags = timeline.FLAGS
        for place in reversed(new):
            if self.document.rows[place][flags] & timeline.KIND_SUMMARY:
                return place
        return 0

    def _node_above(self) -> int:
        """The node of the timeline that a part of a path hangs on; 0 if it is not here."""
        document = self.document
        if not document.above or not document.outside:
            return 0
        for each in (*document.above_ids, document.identity(document.above)):
            for node in self._carriers(each):
                if self.tx.row(node).timeline == self.tl and not self.tx.is_cold(self.home, node):
                    return node
        return 0

    def _make(self, place: int) -> None:
        document, row = self.document, self.document.rows[place]
        first, last = self.nodes[row[timeline.FROM]], self.nodes[row[timeline.TO]]
        try:
            if row[timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
                node = self.tx.placeholder(self.home, first, last)
            elif row[timeline.FLAGS] & timeline.KIND_REAL:
                node = self._make_summary(document.node(place), place, first, last)
            else:
                node = self._make_message(document.node(place), place)
        except timeline.Refused as error:
            raise timeline.Refused(
                f"{self.path}: n{document.numbers[place]}: {error}", **error.data
            ) from None
        self.nodes[place] = node

    def _make_message(self, node: DocumentNode, place: int) -> int:
        parent = self.nodes[self.document.rows[place][timeline.PARENT]]
        source, identities = self._origin(node, place)
        if place in self.document.outside:
            parent = self._above
            if not parent:
                source["gap"] = "parent not in file"
                self.notes.add(
                    "gap", f"n{node.number}: n{node.parent} is not in the file; it begins a line"
                )
        if place in self.document.plain:
            source["gap"] = "originals not in file"
            self.notes.add(
                "plain", f"n{node.number}: what it sums up is not in the file; now a message"
            )
        self.copied += "copy_of" in source
        return self.tx.append(
            self.home, parent, node.role, node.text, node.tokens, source, node.blocks, identities,
            joins=node.joins, intent=node.intent, purged=node.purged,
        )  # fmt: skip

    def _make_summary(self, node: DocumentNode, place: int, first: int, last: int) -> int:
        source, identities = self._origin(node, place)
        self.summaries += 1
        return self.tx.summary(
            self.home, first, last, node.text, node.tokens, source, identities,
            supersedes=self._node(node.supersedes) if node.supersedes is not None else None,
            derived_from=[each for each in map(self._node, node.derived_from) if each is not None],
            intent=node.intent, purged=node.purged,
        )  # fmt: skip

    def _node(self, number: int) -> int | None:
        """The node of the database for one of the document; None if that is not in it."""
        place = self.document.place.get(number)
        return None if place is None else self.nodes[place]

    def _origin(self, node: DocumentNode, place: int) -> tuple[Json, list[str]]:
        """The source and the identities that a node gets."""
        identities = []
        for each in node.ids:
            mapped = self._copy_identity(each, self.nodes) if each.startswith("copy\0") else each
            if mapped is not None:
                identities.append(mapped)
        source = dict(node.source or {})
        if "copy_of" in source:
            original = None if node.copy_of is None else self._node(node.copy_of)
            del source["copy_of"]
            if original:
                source["copy_of"] = f"n{original}"
        if identities:
            return source, identities
        if not source:
            source = {"format": "timeline-json", "session": self.document.key}
            source["id"] = f"n{node.number}"
            if node.created_at is not None:
                source["time"] = node.created_at
        return source, [self.document.identity(node.number)]

    # -- marks -------------------------------------------------------------------------------------

    def _pin(self, places: Iterable[int]) -> None:
        for place in places:
            node, state = self.nodes[place], self._state()
            if node in state.pins:
                continue
            if self.tx.unit_first(node) in state.excluded:
                self.notes.add("pin", f"n{node} is excluded here, so it is not pinned")
                continue
            self.tx.pin(self.home, node)

    def _exclude(self) -> None:
        state = self._state()
        pinned = {self.tx.unit_first(node) for node in state.pins} if self.document.excluded else ()
        for place in self.document.excluded:
            node = self.nodes[place]
            unit = self.tx.unit_first(node)
            if unit in state.excluded:
                continue
            if unit in pinned:
                self.notes.add("exclude", f"n{node} is pinned here, so it is not excluded")
                continue
            self.tx.exclude(self.home, node)

    def _update_title(self) -> None:
        """A new timeline has the title of the document; it follows until somebody renames it."""
        title, state = self.document.title, self._state()
        made_from = state.source or {}
        if title is None:
            return
        if self.created:
            if self.document.titled and self.document.source is not None:
                self.tx.rename(self.home, title, titled=1)
        elif (
            made_from.get("format") == "timeline-json"
            and made_from.get("session") == self.document.key
            and not state.titled
            and state.title != title
        ):
            self.tx.rename(self.home, title)

    # -- result ------------------------------------------------------------------------------------

    def row(self, tx: Importing) -> Json:
        """What became of the document. `tx` only answers questions."""
        document = self.document
        made = set(self.made)
        changed = sum(
            place not in made and self._is_changed(tx, place) for place in range(1, len(self.nodes))
        )
        imagined = self.settings.dry_run and (self.tl or 0) >= self.settings.timelines
        records = len(self.nodes) - 1
        if self.settings.ids is not None:
            self.settings.ids.update(
                (f"n{number}", f"n{node}")
                for number, node in zip(document.numbers[1:], self.nodes[1:], strict=True)
            )
        return {
            "timeline_id": None if imagined else f"tl{self.tl}",
            "title": document.title,
            "format": "timeline-json",
            "session": document.key,
            "records": records,
            "added": len(made),
            "folded": 0,
            "known": records - len(made) - changed,
            "changed": changed,
            "hidden": 0,
            "skipped": 0,
            "sidechain": 0,
            "bad": 0,
            "pending": 0,
            "copied": self.copied,
            "oversize": 0,
            "branches": self._branches,
            "summaries": self.summaries,
            "warnings": self.notes.to_list(),
        }

    def _is_same(self, tx: Importing, place: int, node: int) -> bool:
        """Whether the document says what is stored, as far as one of them was not purged."""
        said, stored = self.document.row(place).value, tx.record(node)
        purged = stored.get("purged") or said.get("purged")
        return bool(purged) or stored["text"] == said.get("text")

    def _is_changed(self, tx: Importing, place: int) -> bool:
        """Whether the document now says something else than the stored node, which stays."""
        if self.document.rows[place][timeline.FLAGS] & timeline.KIND_PLACEHOLDER:
            return False
        if self._is_same(tx, place, self.nodes[place]):
            return False
        self.notes.add(
            "changed",
            f"n{self.document.numbers[place]}: n{self.nodes[place]} was read with another text, "
            "which stays",
        )
        return True


class _Limbs:
    """Brings the branches of a timeline up to those of a document."""

    __slots__ = (
        "born", "by_name", "by_number", "count", "document", "images", "late", "planting", "shared",
        "taken", "targets", "tl", "tx", "working",
    )  # fmt: skip

    def __init__(self, planting: _Planting) -> None:
        self.planting = planting
        self.document = planting.document
        self.tx = planting.tx
        self.tl = planting.home
        # Those that were here before, whatever their status.
        self.by_number: dict[int, Branch] = {}
        self.by_name: dict[str, list[Branch]] = {}
        for here in (*self._state.branches.values(), *self._state.ended):
            self.by_number[here.number] = here
            self.by_name.setdefault(here.name, []).append(here)
        self.taken: set[int] = set()  # numbers of those that are branches of the document
        self.targets: dict[int, Branch] = {}  # number in the document -> branch here
        self.born: set[int] = set()  # numbers of those made now
        self.count = 0
        self.working: set[str] = set()
        self.images = set(planting.nodes)  # nodes here that are of the document, and the root
        # Numbers of those whose head is set last: it lies where an archived branch lay already.
        self.late: set[int] = set()
        names = [each.name for each in self.document.branches]
        self.shared = {name for name, count in Counter(names).items() if count > 1}

    def bring(self) -> int:
        """How many branches were made."""
        document, planting = self.document, self.planting
        in_order = sorted(document.branches, key=lambda each: each.number)
        for branch in in_order:
            self._place(branch, planting.fresh and branch is in_order[0])
        end = planting.nodes[document.place[document.end]] if document.part else 0
        if end and not self._is_held(end):
            self._hold_end(end)
        if planting.fresh:
            self._choose_current(end)
        self._remember_sessions()
        for branch in document.branches:
            if branch.status != timeline.LIVE:
                self._end(branch)
        for branch in document.branches:
            if branch.status == timeline.LIVE and branch.number in self.born:
                self._set_head(branch)
                self._name(branch)
        return self.count

    @property
    def _state(self) -> TimelineState:
        return self.tx.timelines()[self.tl]

    def _head(self, branch: DocumentBranch) -> int:
        return self.planting.nodes[branch.head]

    def _key(self, branch: DocumentBranch, ended: bool = False) -> str:
        return f"{self.planting.session}\0{branch.number}" + ("\0ended" if ended else "")

    def _place(self, branch: DocumentBranch, is_main: bool) -> None:
        """Find the branch, or make it, and bring its head to where it is to be."""
        ended = branch.status != timeline.LIVE
        if ended and self._key(branch, True) in self._state.sessions:
            return
        head = self._head(branch)
        if is_main:
            main = self._state.branches[self._state.current]
            self.born.add(branch.number)
            self._rename(main, self._working_name(branch, main.name))
            self.late.add(branch.number)
            if not self.document.archived[branch.head]:
                self._set_head(branch, main)
            self._remember(branch, main)
            return
        known, last = self._known(branch, head)
        if known is None:
            self._make(branch, head)
        elif known.status == timeline.LIVE:
            self._follow(branch, known, head, last)
        elif not ended and head != last and not self._is_held(head):
            self._make(branch, head)  # it ended here, and went on there

    def _known(self, branch: DocumentBranch, head: int) -> tuple[Branch | None, int | None]:
        """(the branch here, its head at the last import), as far as they are known."""
        sessions = self._state.sessions
        if self._key(branch) in sessions:
            number, last = sessions[self._key(branch)]
            return self.by_number.get(number), last
        if self.planting.fresh:
            return None, None
        for each in self.by_name.get(branch.name, ()):
            if each.number in self.taken:
                continue
            if each.status == branch.status and each.head == head:
                return each, head
            if each.status == timeline.LIVE and branch.status == timeline.LIVE and (
                self.tx.is_ancestor(each.head, head) or self.tx.is_ancestor(head, each.head)
            ):  # fmt: skip
                return each, None
        return None, None

    def _follow(self, branch: DocumentBranch, known: Branch, head: int, last: int | None) -> None:
        """Move a living branch to where it is in the document, unless somebody wrote on it."""
        if head not in (last, known.head):
            if self.tx.is_ancestor(known.head, head) or (
                # Moved back there. A document that does not know `last` is older than what was
                # read before.
                known.head == last and last in self.images
            ):
                self._thaw(head)
                self.tx.move(self.tl, known.name, head)
            elif known.head != last and not self.tx.is_ancestor(head, known.head):
                self.planting.notes.add(
                    "branch",
                    f"branch {timeline.quoted(known.name)} went another way here; the document's "
                    "gets one of its own",
                )
                self._make(branch, head)
                return
        self.targets[branch.number] = known
        self.taken.add(known.number)
        if known.head == head and (head != last or self._key(branch) not in self._state.sessions):
            self._remember(branch, known)

    def _make(self, branch: DocumentBranch, head: int) -> None:
        late = bool(self.document.archived[branch.head])
        if late:
            self.late.add(branch.number)
        else:
            self._thaw(head)
        name = self._working_name(branch)
        of = self.targets.get(branch.of) if branch.of is not None else None
        alive = of is not None and of.status == timeline.LIVE
        at = None if branch.fork_node is None else self.planting.nodes[branch.fork_node]
        parent = of.name if of is not None and alive else None
        self.tx.fork(self.tl, name, 0 if late else head, parent, at, branch.imported)
        self.count += 1
        self.born.add(branch.number)
        self._remember(branch, self._state.branches[name])

    def _remember(self, branch: DocumentBranch, here: Branch) -> None:
        self.targets[branch.number] = here
        self.tx.session(self.tl, self._key(branch), here.name, self._head(branch))

    def _set_head(self, branch: DocumentBranch, here: Branch | None = None) -> None:
        """Bring the head of a branch made now to where it belongs, if it is not there."""
        here = here or self.targets[branch.number]
        if branch.number in self.late and here.head != self._head(branch):
            self._thaw(self._head(branch))  # another branch may have taken it along here
            self.tx.move(self.tl, here.name, self._head(branch))
        self.late.discard(branch.number)

    def _thaw(self, head: int) -> None:
        if self.tx.is_cold(self.tl, head):
            self.tx.thaw(self.tl, head)

    def _working_name(self, branch: DocumentBranch, own: str = "") -> str:
        """Its name, or one like it while other branches of the document have that name too."""
        name, branches = branch.name, self._state.branches
        if name in self.shared or name in self.working or (name in branches and name != own):
            name = free_name({*branches, *self.working} - {own} | self.shared, name)
        self.working.add(name)
        return name

    def _rename(self, here: Branch, name: str) -> None:
        if here.name != name:
            self.tx.rename_branch(self.tl, here.name, name)

    def _name(self, branch: DocumentBranch) -> None:
        here = self.targets[branch.number]
        if branch.name not in self._state.branches:
            self._rename(here, branch.name)

    def _is_held(self, node: int) -> bool:
        """Whether a living branch's path holds the node."""
        heads = {each.head for each in self._state.branches.values()}
        return any(self.tx.is_ancestor(node, head) for head in heads)

    def _hold_end(self, end: int) -> None:
        """Give the end of a part of a path a branch."""
        state = self._state
        if self.planting.fresh and not self.document.branches:
            self.tx.move(self.tl, state.current, end)
            return
        self.tx.branch(self.tl, free_name(state.branches, f"branch n{end}"), end)
        self.count += 1

    def _choose_current(self, end: int) -> None:
        state = self._state
        wanted = [each for each in self.document.branches if each.current]
        name = self.targets[wanted[0].number].name if wanted else None
        if name is None and end:
            name = next(
                each.name for each in state.in_order() if self.tx.is_ancestor(end, each.head)
            )
        if name is not None and name != state.current:
            self.tx.switch(self.tl, name)

    def _remember_sessions(self) -> None:
        """Which branch a transcript's session goes on in, and that the document is here."""
        state, nodes = self._state, self.planting.nodes
        for key, number, place in self.document.sessions:
            here = self.targets.get(number)
            if here is None or here.status != timeline.LIVE:
                continue
            known = state.sessions.get(key)
            if known is None or (known[1] in self.images and known[1] < nodes[place]):
                self.tx.session(self.tl, key, here.name, nodes[place])
        if self.planting.session not in state.sessions:
            last = max(nodes) if nodes else 0
            self.tx.session(self.tl, self.planting.session, state.current, last)

    def _end(self, branch: DocumentBranch) -> None:
        """Drop or archive a branch that has ended in the document since it was read."""
        here, state, notes = self.targets.get(branch.number), self._state, self.planting.notes
        if here is None or here.status != timeline.LIVE:
            return
        self._set_head(branch)
        name = timeline.quoted(here.name)
        if here.head != self._head(branch):
            notes.add("branch", f"branch {name} ended there, but was written on here: it lives on")
            return
        if here.name == state.current:
            notes.add("branch", f"branch {name} ended there, but is the current one here")
            return
        if branch.name not in state.branches:
            self._rename(here, branch.name)
        self.tx.session(self.tl, self._key(branch, True), here.name, here.head)
        if timeline.STATUS_NAMES[branch.status] == "dropped":
            self.tx.drop(self.tl, here.name)
        elif not self.tx.archive(self.tl, here.name, self.planting.nodes[branch.top]):
            notes.add("branch", f"branch {name} cannot be archived: another one ends on it here")


# ================================================================================================
# 23. Files
# ================================================================================================


class _Item:
    """A file to read: `path` as it is shown, `member` its name where it lies in a ZIP."""

    __slots__ = ("family", "file", "format", "member", "named", "path", "trouble", "waited")

    def __init__(self, file: str, member: str | None, named: bool, trouble: str = "") -> None:
        self.file = file
        self.member = member
        self.path = shown(file if member is None else f"{file}/{member}")
        self.named = named
        self.format: Format | None = None
        self.family: tuple[str, str | None] | None = None
        self.waited = False
        self.trouble = trouble  # why it cannot be read, known before it is tried

    def place(self) -> str:
        """Where it is, links resolved, as text."""
        real = shown(os.path.realpath(self.file))
        return real if self.member is None else f"{real}/{self.member}"

    def find_format(self, forced: Format | None) -> str:
        """Find the format and the family; "" if it was found, else why it was not."""
        with self.open() as stream:
            self.format, why = (forced, "") if forced else recognize(stream)
            if self.format is not None and self.format.family is not None:
                head = Lines(stream, self.format.accepts).head()
                families = map(self.format.family, head)
                self.family = next((each for each in families if each is not None), None)
            return why

    def open(self) -> Any:
        """The content as a binary stream that can seek.

        Raises:
            Unreadable: a member is above MEMBER_BYTES_MAX, or damaged, or locked.
            OSError: the file cannot be read.
        """
        if self.member is None:
            return open(self.file, "rb")
        import zipfile
        import zlib

        try:
            return self._unpacked(self.member)
        except (
            zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError,
        ) as error:  # fmt: skip
            raise Unreadable(f"damaged or locked ZIP member: {error!s:.200}") from None

    def _unpacked(self, member: str) -> Any:
        import shutil
        import tempfile
        import zipfile

        with zipfile.ZipFile(self.file) as archive, archive.open(member) as packed:
            told = archive.getinfo(member)
            # zipfile unpacks all others without a bound: 100 bytes of bzip2 may be 100 MB.
            if told.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Unreadable(
                    f"packed with ZIP method {told.compress_type}, and only 0 (stored) and 8 "
                    "(deflate) are read: unpack it and import the file itself",
                    method=told.compress_type,
                )
            # A bound, whatever is packed: zipfile never returns more than the header tells.
            size = told.file_size
            if size > MEMBER_BYTES_MAX:
                raise Unreadable(
                    f"{size} bytes when unpacked, above the limit of {MEMBER_BYTES_MAX} for a ZIP "
                    "member: unpack it and import the file itself",
                    max_bytes=MEMBER_BYTES_MAX,
                )
            stream = tempfile.SpooledTemporaryFile(MEMBER_BYTES_IN_MEMORY)  # noqa: SIM115
            try:
                shutil.copyfileobj(packed, stream, 1 << 20)
            except BaseException:
                stream.close()
                raise
        return stream


def _items(paths: Sequence[str]) -> Iterator[_Item]:
    """The files that `paths` name, folders and ZIPs opened up, each once.

    Raises:
        NotFound: a path does not exist. InvalidArgument: it is a pipe or a device.
    """
    seen: set[str] = set()
    for path in paths:
        if not os.path.exists(path):
            raise timeline.NotFound(f"no such file or folder: {shown(path)}", path=shown(path))
        closed: list[OSError] = []
        named = not os.path.isdir(path)
        if named and not os.path.isfile(path):
            raise timeline.InvalidArgument(f"{shown(path)} is neither a file nor a folder")
        for file in (path,) if named else _files_below(path, closed):
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield from _members(file, named)
        for error in closed:
            yield _Item(error.filename, None, False, _system_words(error))


def _system_words(error: OSError) -> str:
    return f"cannot be read: {timeline.system_words(error)}"


def _files_below(folder: str, closed: list[OSError]) -> Iterator[str]:
    """All files in a folder and those in it, sorted; links to folders are not followed. Folders
    that cannot be read go to `closed`."""
    for place, folders, files in os.walk(folder, onerror=closed.append):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(place, name)
            if os.path.isfile(file):
                yield file


def _members(file: str, named: bool) -> list[_Item]:
    """The file itself, or what lies in it if it is a ZIP."""
    try:
        with open(file, "rb") as stream:
            begin = stream.read(len(_SQLITE_MAGIC))
    except OSError:
        begin = b""
    if begin == _SQLITE_MAGIC:
        return [_DatabaseItem(file, None, named)]
    if begin.startswith(b"PK"):
        import zipfile

        try:
            with zipfile.ZipFile(file) as archive:
                names = sorted(each.filename for each in archive.infolist() if not each.is_dir())
                return [_Item(file, name, False) for name in names]
        except (zipfile.BadZipFile, NotImplementedError, ValueError):
            pass
    return [_Item(file, None, named)]


def _why_not(item: _Item, forced: Format | None) -> str:
    """Find the format of `item`; "" if it was found, else why it was not."""
    if item.trouble:
        return item.trouble
    try:
        return item.find_format(forced)
    except Unreadable as error:
        return str(error)
    except OSError as error:
        if item.named:
            raise
        return _system_words(error)


def _in_order(items: list[_Item]) -> list[_Item]:
    """Sessions before their forks, otherwise as they came."""
    sessions: dict[str, list[_Item]] = {}
    for item in items:
        if item.family is not None:
            sessions.setdefault(item.family[0], []).append(item)
    order: list[_Item] = []
    done: set[int] = set()
    for item in items:
        way = [item]
        while way[-1].family is not None and way[-1].family[1] in sessions:
            origin = sessions[way[-1].family[1]][0]
            if origin in way or id(origin) in done:
                break
            way.append(origin)
        for each in reversed(way):
            if id(each) not in done:
                done.add(id(each))
                order.append(each)
    return order


def _format_named(name: str) -> Format | None:
    if name == "auto":
        return None
    for format in FORMATS:
        if format.name == name:
            return format
    known = ", ".join(format.name for format in FORMATS)
    raise timeline.InvalidArgument(f"format {name!r:.80} is not known: auto, {known}")


def _survey(paths: Sequence[str], format: str) -> tuple[list[_Item], list[Json]]:
    """Files to read, parents before forks, and those whose format is not known.

    Raises:
        InvalidArgument: such a file was named itself, or there is nothing else.
    """
    items, unrecognized = _sorted_out(_items(paths), _format_named(format))
    if not items:
        first = f" ({unrecognized[0]['path']}: {unrecognized[0]['why']})" if unrecognized else ""
        raise timeline.InvalidArgument(
            f"no transcript found in {', '.join(map(shown, paths))}{first}",
            unrecognized=unrecognized,
        )
    return items, unrecognized


def _sorted_out(found: Iterable[_Item], forced: Format | None) -> tuple[list[_Item], list[Json]]:
    """Files to read, parents before forks, and those whose format is not known.

    Raises:
        InvalidArgument: such a file was named itself.
    """
    items: list[_Item] = []
    unrecognized: list[Json] = []
    storage = _Storage()
    for item in found:
        # Only what is of no format by itself, unless the caller says what it is.
        if forced is not None and forced.name == "opencode" and storage.take(item):
            continue
        why = _why_not(item, forced)
        if not why:
            items.append(item)
            continue
        if forced is None and storage.take(item):
            continue
        unrecognized.append({"path": item.path, "why": why})
        if item.named:
            raise timeline.InvalidArgument(
                f"{item.path} is no transcript that can be read: {why}", unrecognized=unrecognized
            )
    unrecognized += storage.finish()
    items += storage.sessions.values()
    return _in_order(items), unrecognized


def import_paths(
    db: Database,
    paths: Sequence[str],
    *,
    format: str = "auto",
    into: int | None = None,
    dry_run: bool = False,
    attachments: bool = False,
    progress: Callable[[str], None] | None = None,
    key: str | None = None,
    ids: dict[str, str] | None = None,
) -> Json:
    """Bring transcripts into `db`: {"timelines": [one row each], "unrecognized": [...]}.

    Files, folders (all files below, sorted) and ZIPs. One file is one transaction, a huge one
    several; a `key` remembers the result once all are in. `branches` and `summaries` of a row
    count what this import made. Reading the same again adds and writes nothing. `ids` is filled
    with the nodes of the one document that is read: their ids there and here.

    Raises:
        InvalidArgument: nothing in a format that is known; a named file of none, or above a limit,
            or without a line that can be read (the others are in: `data` is the result);
            unknown `format`.
        NotFound: no such path, or no timeline `into`.
        Refused: the conversation is in another timeline than `into`.
        OSError: a named file cannot be read.
    """
    if ids is not None and (dry_run or key is not None):
        raise timeline.InvalidArgument(
            "ids goes with neither dry_run nor an idempotency key: to have the map again, import "
            "the document again"
        )
    settings = _Settings(into, dry_run, attachments, progress, ids)
    if dry_run:
        return _try_out(db, paths, format, settings)
    if key is not None:
        # A key that is known comes before everything: the files may be gone by now.
        with db.importing(key, dry_run=True) as tx:
            if tx.earlier is not None:
                return tx.earlier
    batch = _Batch(*_survey(paths, format))
    if ids is not None and [each.format for each in batch.queue] != [TIMELINE_JSON]:
        raise timeline.InvalidArgument("ids is for one document that `tl export` wrote as json")
    return batch.bring_in_all(db, settings, key)


def _try_out(db: Database, paths: Sequence[str], format: str, settings: _Settings) -> Json:
    """What an import would do: nothing is locked, and later files see what earlier ones add."""
    with db.importing(dry_run=True) as tx:
        settings.timelines = len(tx.timelines())
        batch = _Batch(*_survey(paths, format))
        while batch.queue:
            with batch.open_next(db, settings) as file:
                while batch.read_more(file):
                    file.bring_in(db, tx, settings)
                    batch.take_rows(file, tx)
    batch.check()
    return batch.result


class _Batch:
    """Files still to be read (the next one last), and the result so far."""

    __slots__ = ("has_more", "queue", "result", "unread")

    def __init__(self, items: list[_Item], unrecognized: list[Json]) -> None:
        self.queue = items[::-1]
        self.has_more = False  # in the file read last
        self.unread: list[str] = []  # files that were named and hold nothing that can be read
        self.result: Json = {"timelines": [], "unrecognized": unrecognized}

    def bring_in_all(self, db: Database, settings: _Settings, key: str | None) -> Json:
        """Read and write every file, each as a transaction of its own; the result."""
        while self.queue:
            with self.open_next(db, settings) as file:
                while self.read_more(file):
                    with db.importing(key) as tx:
                        if tx.earlier is not None:  # the same request, carried out meanwhile
                            return tx.earlier
                        file.bring_in(db, tx, settings)
                    file.keep_bookmark()
                    self.has_more = file.has_more
                    if file.landings:
                        with db.importing(dry_run=True) as questions:
                            self.take_rows(file, questions)
        self.check()
        if key is not None:
            with db.importing(key) as tx:
                if tx.earlier is not None:
                    return tx.earlier
                tx.remember(self.result)
        return self.result

    def open_next(self, db: Database, settings: _Settings) -> _File:
        """The next file; one that cannot be opened holds nothing."""
        item = self.queue.pop()
        file = _File(self, item, db, settings)
        self._try(item, file.open)
        return file

    def read_more(self, file: _File) -> bool:
        """Read the next conversations of a file; False if there are no more."""
        if self._try(file.item, file.read_more) and (file.drafts or file.document):
            return True
        self._close(file)
        return False

    def _try(self, item: _Item, step: Callable[[], None]) -> bool:
        try:
            step()
            return True
        except OSError as error:
            if item.named:
                raise
            self.leave_out(item, _system_words(error))
        except Unreadable as error:
            if item.named:
                raise type(error)(f"{item.path}: {error}", **error.data) from None
            self.leave_out(item, str(error))
        return False

    def take_rows(self, file: _File, tx: Importing) -> None:
        """Add what became of a file's records to the result."""
        for landing in file.landings:
            row = landing.row(tx)
            if isinstance(landing, _Landing) and landing.transcript.settled.offset:
                file.rows += 1  # only its end was read now
                self.result["timelines"].append(row)
            elif (
                len(file.landings) == 1
                and row["sidechain"]
                and row["sidechain"] + row["bad"] == row["records"]
            ):
                self.leave_out(file.item, "only records of a subagent, which belong to a session")
            elif row["bad"] and row["bad"] == row["records"]:
                assert isinstance(landing, _Landing)  # what is planted is whole
                file.poor.append((row, landing.transcript.unit))
            else:
                file.rows += 1
                self.result["timelines"].append(row)
        file.landings = []

    def _close(self, file: _File) -> None:
        """Report conversations of which nothing could be read: beside others of their file as
        rows, alone as a file that cannot be read."""
        if file.rows:
            self.result["timelines"] += [row for row, _ in file.poor]
            return
        for row, unit in file.poor:
            why = f"none of its {row['bad']} {unit}s can be read: {row['warnings'][0]}"
            self.leave_out(file.item, why)
            if file.item.named:
                self.unread.append(f"{file.item.path}: {why}")

    def check(self) -> None:
        """Raise InvalidArgument if a file that was named could not be read; the result is data."""
        if self.unread:
            raise timeline.InvalidArgument("; ".join(self.unread), **self.result)

    def leave_out(self, item: _Item, why: str) -> None:
        self.result["unrecognized"].append({"path": item.path, "why": why})


class _File:
    """One file: `read_more` reads conversations, `drafts`, and `bring_in` turns them into
    `landings`. Content is read again from its stream, so it stays open until the `with` block is
    left. `rows` counts the rows it has in the result, `poor` keeps those that hold nothing."""

    __slots__ = (
        "_batch", "_by_line", "_count", "_db", "_left", "_settings", "_slices",
        "_stream", "document",
        "drafts", "item", "landings", "poor", "rows",
    )  # fmt: skip

    def __init__(self, batch: _Batch, item: _Item, db: Database, settings: _Settings) -> None:
        self._batch = batch
        self._db = db
        self._settings = settings
        self.item = item
        self.drafts: list[Draft] = []
        self.document: Document | None = None  # until it was brought in
        self.landings: list[_Landing | _Planting] = []
        self.rows = 0
        self.poor: list[tuple[Json, str]] = []
        self._stream: BinaryIO | None = None
        self._by_line: _ByLine | None = None
        self._count = 0  # conversations
        self._left: Iterator[Draft] = iter(())
        self._slices: Iterator[list[Draft]] = iter(())

    def open(self) -> None:
        """Get ready to read."""
        format = self.item.format
        assert format is not None
        self._stream = self.item.open()
        assert self._stream is not None
        try:
            if format.document is not None:
                self.document = format.document(self._stream)
                return
            by_line = talks = None
            if format.reader is not None:
                kept = self._settings.reads_on and self.item.member is None
                hurried = self._settings.slice is not None
                bookmark = _Bookmark(self._db, self.item, hurried) if kept else None
                by_line = _ByLine(format, self._stream, bookmark)
            if format.talks is not None and not (by_line is not None and by_line.went_on):
                talks = format.talks(self._stream)
            if talks is None and by_line is not None:
                self._by_line = by_line
                self._slices = by_line.read(self.item.path, self._settings)
            self._left = iter(talks or ())
        except BaseException:
            self._stream.close()
            raise

    def read_more(self) -> None:
        """Read as many conversations as are written at once; none at the end."""
        self.drafts = []
        if self._by_line is not None:  # a slice is written before the next one is read
            self.drafts = next(self._slices, [])
        for draft in self._left:
            self.drafts.append(draft)
            if len(self.drafts) == CONVERSATIONS_AT_ONCE:
                break
        self._count += len(self.drafts)
        if self._settings.progress is not None and self._count > CONVERSATIONS_AT_ONCE:
            self._settings.progress(f"{self.item.path}: {self._count} conversations read")

    @property
    def has_more(self) -> bool:
        """Whether there was no time to read it to its end."""
        return self._by_line is not None and self._by_line.has_more

    def keep_bookmark(self) -> None:
        """Once all that was read is written, remember how far that was."""
        if self._by_line is not None and self.landings:
            self._by_line.keep()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        # The next file is opened while this one is still at hand, and each may hold 100 MB.
        self._by_line, self._slices, self._left, self.drafts = None, iter(()), iter(()), []

    def bring_in(self, db: Database, tx: Importing, settings: _Settings) -> None:
        """Write what the conversations add. A file that goes on from one not read yet goes to the
        end of the queue, once."""
        item, queue, waiting = self.item, self._batch.queue, 0
        assert item.format is not None
        format = item.format.name
        if self.document is not None:
            planting = _Planting(db, tx, self.document, item.path, settings)
            self.document = None
            self.landings.append(planting)
            planting.write()
            return

        def known(native: str) -> int | None:
            if native.startswith(EXPORTED):
                return tx.exported(*native.removeprefix(EXPORTED).split("\0"))
            found = tx.find(f"{format}\0{native}")
            return found[0] if found else None

        for draft in self.drafts:
            transcript = draft(known)
            if transcript.lacks and self._by_line is not None:
                self._slices = self._by_line.read_again(item.path, settings)
                return
            if queue and not item.waited and _goes_on_elsewhere(tx, transcript):
                item.waited = True
                queue.insert(0, item)
                self._left = iter(())
                return
            project = settings.project
            if project is not None and not timeline.is_below(transcript.cwd, project):
                continue
            if settings.hold or self.has_more:
                hold_back(transcript, known)
            landing = _bring_in(db, tx, transcript, item, settings)
            self.landings.append(landing)
            waiting += landing.waiting
            if waiting >= CHUNK_CHARS and not settings.dry_run:
                tx.commit()
                waiting = 0


class _ByLine:
    """The reading of a file of lines, from where `bookmark` stands, if there is one. `has_more`:
    the time was up before its end."""

    __slots__ = ("_bookmark", "_format", "_lines", "_reader", "has_more", "went_on")

    def __init__(self, format: Format, stream: BinaryIO, bookmark: _Bookmark | None) -> None:
        self._format = format
        self._bookmark = bookmark
        self._lines = Lines(stream, format.accepts)
        self.has_more = False
        reader = None if bookmark is None else bookmark.find(self._lines, format)
        self.went_on = reader is not None
        self._reader = reader or self._new_reader()

    def _new_reader(self) -> Reader:
        assert self._format.reader is not None
        self._lines.next = 0, 1
        return self._format.reader(self._lines)

    def read(self, path: str, settings: _Settings) -> Iterator[list[Draft]]:
        """The conversation and the runs within it: with all that is there, or slice by slice while
        there is time."""
        size = settings.slice
        yield self._read_on(path, settings, size)
        while self.has_more and size is not None and time.monotonic() < settings.until:
            # A slice that something is held back of cannot always be left behind: then it is read
            # again, with what follows.
            size *= 2
            assert self._bookmark is not None
            self._reader = self._bookmark.find(self._lines, self._format) or self._new_reader()
            if self._lines.next[0]:
                size = settings.slice
            yield self._read_on(path, settings, size)

    def read_again(self, path: str, settings: _Settings) -> Iterator[list[Draft]]:
        """All of it from the start.

        Raises:
            Unreadable: there is no time for that.
        """
        if settings.slice is not None and self._lines.size() > WHOLE_BYTES_MAX:
            raise Unreadable(
                f"what is new in it goes back far, and {self._lines.size()} bytes are too many to "
                "read all of it now: run `tl sync`"
            )
        self._reader = self._new_reader()
        yield self._read_on(path, settings, None)

    def _read_on(self, path: str, settings: _Settings, size: int | None) -> list[Draft]:
        begin = told = self._lines.next[0]
        self.has_more = is_noted = False
        for found in self._lines.since(*self._lines.next):
            place = self._lines.next[0]
            if found.index == 0:
                if size is not None and place - begin >= size:
                    self.has_more = True
                    break
                if settings.progress is not None and place - told >= PROGRESS_BYTES:
                    told = place
                    settings.progress(f"{path}: {place >> 20} MB read")
                if not found.ended:
                    self._note()
                    is_noted = True
            if found.torn and settings.hold:
                # The rest of it is being written.
                self._reader.out.counts.records += 1
                self._reader.out.counts.pending += 1
            else:
                self._reader.take(found)
        if not is_noted:
            self._note()
        return [each.finish for each in self._reader.readers()]

    def _note(self) -> None:
        if self._bookmark is not None:
            self._bookmark.note(self._lines, self._reader)

    def keep(self) -> None:
        """All that was read is written: next time, read what comes then."""
        if self._bookmark is not None:
            self._bookmark.keep([each.out.pending for each in self._reader.readers()])


def _program() -> str:
    """Which program this is: what one keeps, only the very same can use."""
    try:
        told = os.stat(__file__)
    except OSError:  # it lies in an archive
        return f"{sys.version_info[:2]} {timeline.version()}"
    return f"{sys.version_info[:2]} {told.st_mtime_ns} {told.st_size}"


# What makes up a reader; nothing else is made when one is thawed.
_OF_READERS: dict[str, type] = {
    each.__name__: each
    for each in (
        _Boundary, _ClaudeFile, _CodexFile, _GeminiFile, _Heard, _MessagesFile, _PiFile, _PiLink,
        _Raw, Compaction, Counts, Entry, Notes, Piece, Settled, Transcript, set,
    )
}  # fmt: skip


def _frozen(reader: Reader) -> bytes:
    """What the reader knows, but for the stream."""
    import pickle

    readers, lines = reader.readers(), reader.lines
    for each in readers:
        del each.lines, each.out.read
    try:
        return pickle.dumps(reader, 5)
    finally:
        for each in readers:
            each.lines, each.out.read = lines, each.content


def _thawed(state: bytes) -> Reader:
    """What `_frozen` made bytes of, without a stream.

    Raises:
        ValueError: it names something else.
    """
    import pickle

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> type:
            if name not in _OF_READERS or _OF_READERS[name].__module__ != module:
                raise ValueError(f"{module}.{name} is of no reader")
            return _OF_READERS[name]

    try:
        return Unpickler(io.BytesIO(state)).load()  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001  # by pickle's manual, any of them may come
        raise ValueError(f"no reader: {error!r:.200}") from None


class _Bookmark:
    """How far a file was read, and what its reader knew there: the file may be gigabytes, and a
    hook looks at it after each answer. Kept beside the index, and as easily lost: then the file is
    read from its beginning. So is one that shrank, or that is another one now."""

    __slots__ = ("_always", "_begin", "_db", "_item", "_name", "_state", "_told")

    def __init__(self, db: Database, item: _Item, always: bool) -> None:
        self._always = always  # also for a file that is small or was not written to lately
        self._db = db
        self._item = item
        self._name = f"{timeline.BOOKMARKS}{sha256(item.place().encode())[:32]}"
        self._told: Json = {}
        self._state = b""
        self._begin = 0

    def find(self, lines: Lines, format: Format) -> Reader | None:
        """The reader as it was, if all still is as it was then; `lines` goes on from there."""
        raw = self._db.read_note(self._name) or b""
        head, _, state = raw.partition(b"\n")
        try:
            told = json.loads(head)
            if (
                told["facts"] != self._describe(lines, *told["facts"]["next"])
                or told["format"] != format.name
                or told["state"] != sha256(state)
                or not self._db.holds(told["mark"])
            ):
                return None
            reader = _thawed(state)
            pending = [{(offset, index) for offset, index in each} for each in told["pending"]]
        except (ValueError, KeyError, TypeError, OSError):
            return None
        lines.next = told["facts"]["next"]
        for each, held in zip(reader.readers(), pending, strict=False):
            each.lines, each.out.read, each.out.notes = lines, each.content, Notes()
            each.out.settled = Settled(lines.next[0], held, each.out.counts.since(Counts()))
        return reader

    def _describe(self, lines: Lines, offset: int, line: int) -> Json:
        """What tells whether the file is the one that was read up to `offset`."""
        told = os.stat(self._item.file)
        return {
            "program": _program(),
            "place": self._item.place(),
            "file": [told.st_dev, told.st_ino],
            "next": [offset, line],
            "begin": sha256(lines.bytes_before(min(offset, BLANK_BYTES))),
            "end": sha256(lines.bytes_before(offset)),
        }

    def note(self, lines: Lines, reader: Reader) -> None:
        """Remember, until `keep`, that all before `lines.next` was read, and what came of it."""
        offset, line = lines.next
        recent = time.time() - os.stat(self._item.file).st_mtime < BOOKMARK_DAYS * 86_400
        if not self._always and (offset < BOOKMARK_BYTES_MIN or not recent):
            return
        self._told = {"facts": self._describe(lines, offset, line), "format": reader.out.format}
        window: Reader = reader.window(WINDOW_MESSAGES)
        self._state, self._begin = _frozen(window), window.out.begin

    def keep(self, pending: list[list[Piece]]) -> None:
        """Keep what was noted; `pending` is what of it was held back, of each reader."""
        lost = any(piece.offset < self._begin for pieces in pending for piece in pieces)
        if not self._state or lost:
            return
        end = self._told["facts"]["next"][0]
        told = {
            **self._told,
            "state": sha256(self._state),
            "mark": self._db.mark(),
            "pending": [
                [[each.offset, each.index] for each in pieces if each.offset < end]
                for pieces in pending
            ],
        }
        self._db.write_note(self._name, compact_json(told).encode() + b"\n" + self._state)
        self._state = b""


def hold_back(transcript: Transcript, known: Known) -> None:
    """Mark what is to wait: what its client may still add to, and messages whose parent may yet be
    written, with all that hangs on them. What a node carries already does not wait."""
    entries = transcript.entries
    loose = len(entries) if transcript.loose is None else transcript.loose
    for index in creation_order([entry.parent for entry in entries]):
        entry = entries[index]
        waits = index >= loose or (entry.parent >= 0 and entries[entry.parent].held)
        if entry.gap is not None and entry.wanted is not None:
            waits = waits or known(entry.wanted) is None
        entry.held = waits and entry.node is None
        if entry.held:
            transcript.pending += entry.pieces
    while transcript.active is not None and entries[transcript.active].held:
        above = entries[transcript.active].parent
        transcript.active = above if above >= 0 else None


# -- what the agents on this machine wrote ---------------------------------------------------------


def client_places(environment: Mapping[str, str], home: str) -> dict[str, list[str]]:
    """The files and folders in which each client keeps its transcripts. Source: their manuals."""

    def place(variable: str, *usual: str) -> str:
        return environment.get(variable) or os.path.join(home, *usual)

    codex = place("CODEX_HOME", ".codex")
    pi = os.path.join(place("PI_CODING_AGENT_DIR", ".pi", "agent"), "sessions")
    opencode = os.path.join(place("XDG_DATA_HOME", ".local", "share"), "opencode")
    return {
        "claude-code": [os.path.join(place("CLAUDE_CONFIG_DIR", ".claude"), "projects")],
        "codex": [os.path.join(codex, "sessions"), os.path.join(codex, "archived_sessions")],
        "pi": [environment.get("PI_CODING_AGENT_SESSION_DIR") or pi],
        "gemini": [os.path.join(home, ".gemini", "tmp")],
        "opencode": [
            environment.get("OPENCODE_DB") or os.path.join(opencode, "opencode.db"),
            os.path.join(opencode, "storage"),
        ],
    }


class _Sources:
    """Which files were read, and as what: one that did not change is not read again. Kept beside
    the index, for the database as it was then; without it everything is read, and known."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.unchanged = 0
        self.names: dict[str, str] = {}  # path as it is shown -> links resolved
        try:
            note = json.loads(db.read_note("sources") or b"null")
        except (ValueError, RecursionError):
            note = None
        known = isinstance(note, dict) and isinstance(note.get("mark"), str)
        files = note.get("files") if known and db.holds(note["mark"]) else None
        self.files: Json = files if isinstance(files, dict) else {}

    def is_read(self, path: str) -> bool:
        """Whether the file is as it was; if not, how it is now is noted."""
        try:
            told = os.stat(path)
            # The log of a SQLite database holds what the file does not show yet.
            log = os.stat(f"{path}-wal") if os.path.exists(f"{path}-wal") else None
        except OSError:
            return False
        facts = [told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns]
        facts += [] if log is None else [log.st_size, log.st_mtime_ns]
        name = self.names[shown(path)] = shown(os.path.realpath(path))
        if self.files.get(name) == facts:
            self.unchanged += 1
            return True
        self.files[name] = facts
        return False

    def save(self, unread: Sequence[Json]) -> None:
        for each in unread:
            self.files.pop(self.names.get(each["path"], ""), None)
        note = {"mark": self.db.mark(), "files": self.files}
        self.db.write_note("sources", compact_json(note).encode())
        self.db.forget_notes(timeline.BOOKMARKS, BOOKMARK_DAYS)


def sync(
    db: Database,
    places: Mapping[str, Sequence[str]],
    *,
    project: str | None = None,
    changed_after: float = 0.0,
    progress: Callable[[str], None] | None = None,
    key: str | None = None,
) -> Json:
    """Bring in what is new in the transcripts at `places`, see `client_places`: the result of
    `import_paths` with `unchanged`, how many files were as they had been read before.

    An answer that its client may still add to is `pending` and waits for the next time; a source
    that is deleted takes nothing away. `project`: only conversations in this folder or below.
    `changed_after`: Unix seconds; older files are left alone.
    """
    settings = _Settings(progress=progress)
    settings.hold = settings.reads_on = True
    settings.project = None if project is None else os.path.abspath(project)
    if key is not None:
        with db.importing(key, dry_run=True) as tx:
            if tx.earlier is not None:
                return tx.earlier
    sources = _Sources(db)
    found = [
        item
        for client, paths in places.items()
        for path in paths
        for item in _client_files(client, path, sources, changed_after, project is None)
    ]
    items, unrecognized = _sorted_out(found, None)
    batch = _Batch(items, unrecognized)
    batch.result["unchanged"] = sources.unchanged
    result = batch.bring_in_all(db, settings, key)
    # What was read for one project alone may hold others.
    if project is None and items and os.path.exists(db.path):
        sources.save(unrecognized)
    return result


def import_session(db: Database, path: str, *, hold: bool, seconds: float) -> Json:
    """Bring in what is new in one transcript, as `sync` does, for about `seconds` at most: the
    result of `import_paths`, with `more`, whether there is more to read. The next call goes on
    there. With `hold`, an answer that its client may still add to waits for it, too.

    Raises:
        NotFound: there is no such file.
        InvalidArgument: it is no transcript, or all of a large one would have to be read, for which
            there is no time: `sync` does it.
        OSError: it cannot be read.
    """
    settings = _Settings()
    settings.hold, settings.reads_on, settings.slice = hold, True, SLICE_BYTES
    settings.until = time.monotonic() + seconds
    batch = _Batch(*_survey([path], "auto"))
    result = batch.bring_in_all(db, settings, None)
    return {**result, "timelines": _added_up(result["timelines"]), "more": batch.has_more}


def _added_up(rows: Iterable[Json]) -> list[Json]:
    """The rows of several readings of the same transcript as one."""
    found: dict[tuple[str, str], Json] = {}
    for row in rows:
        before = found.get((row["format"], row["session"]))
        if before is not None:
            # What one reading held back is among the records of the next.
            row = {
                name: before[name] + value if isinstance(value, (int, list)) else value
                for name, value in row.items()
            } | {
                "pending": row["pending"],
                "records": row["records"] + before["records"] - before["pending"],
            }
        found[row["format"], row["session"]] = row
    return list(found.values())


_TRANSCRIPT_ENDINGS = (".db", ".json", ".jsonl")


def _client_files(
    client: str, path: str, sources: _Sources, changed_after: float, skip: bool
) -> Iterator[_Item]:
    """The files of one client that are new or changed."""
    closed: list[OSError] = []
    # A session of many small files is read whole if it is read at all.
    pieces = client == "opencode" and os.path.isdir(path)
    for file in (path,) if os.path.isfile(path) else _files_below(path, closed):
        if not file.endswith(_TRANSCRIPT_ENDINGS):
            continue
        try:
            if os.stat(file).st_mtime < changed_after:
                continue
        except OSError:
            continue  # deleted meanwhile
        if pieces or not (skip and sources.is_read(file)):
            yield from _members(file, False)
    for error in closed:
        if error.filename != path:  # a client that is not here keeps nothing
            yield _Item(error.filename, None, False, _system_words(error))


def _goes_on_elsewhere(tx: Importing, transcript: Transcript) -> bool:
    """Whether the first message names a parent that nobody has written yet."""
    first = transcript.entries[0] if transcript.entries else None
    if first is None or not transcript.unique or first.wanted is None:
        return False
    return not tx.find(transcript.identity(first.wanted))


# ================================================================================================
# 24. OpenCode on disk
#
# A database or a folder of small files, turned into what `opencode export` prints, a session a
# line. Only reads: a database is opened so that SQLite writes nothing, not even beside it.
# ================================================================================================

_SQLITE_MAGIC = b"SQLite format 3\0"
_OPENCODE_TABLES = ("session", "message", "part")
SQLITE_WAIT_S = 2.0  # for a lock that somebody holds
PIECE_BYTES_MAX = 64 << 20  # of one small file


class _DatabaseItem(_Item):
    """A SQLite database; `open` gives its sessions as a stream."""

    __slots__ = ()

    def find_format(self, forced: Format | None) -> str:
        if forced is not None and forced.name != "opencode":
            return f"a SQLite database, which is not read as {forced.name}"
        with self._connected() as base:
            self._check(base)
        self.format = _format_named("opencode")
        return ""

    def open(self) -> Any:
        import tempfile

        stream = tempfile.SpooledTemporaryFile(MEMBER_BYTES_IN_MEMORY)  # noqa: SIM115
        try:
            with self._connected() as base:
                self._check(base)
                for session in _sqlite_sessions(base):
                    stream.write(compact_json(session).encode("utf-8", "surrogatepass") + b"\n")
        except BaseException:
            stream.close()
            raise
        return stream

    def _connected(self) -> _Connected:
        return _Connected(self.file)

    @staticmethod
    def _check(base: Any) -> None:
        tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
        if not tables.issuperset(_OPENCODE_TABLES):
            raise Unreadable("a SQLite database, but not one of OpenCode")


class _Connected:
    """A read-only connection to the SQLite database in `file`, closed at the end.

    Raises:
        Unreadable: it is locked or damaged.
    """

    __slots__ = ("_base", "_copies", "_file")

    def __init__(self, file: str) -> None:
        self._file = file
        self._copies: Any = None
        self._base: Any = None

    def __enter__(self) -> Any:
        from urllib.parse import quote

        try:
            import sqlite3
        except ImportError:  # some systems leave it out
            raise Unreadable("a database, and this Python has no sqlite3 to read it") from None
        try:
            path = os.path.abspath(self._place())
            name = quote(os.fsencode(path if os.sep == "/" else "/" + path.replace(os.sep, "/")))
            base = self._base = sqlite3.connect(
                f"file:{name}?mode=ro{self._immutable()}", uri=True, timeout=SQLITE_WAIT_S
            )
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            base.row_factory = sqlite3.Row
            base.execute("BEGIN")  # one state for all questions
            base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return base

    def __exit__(self, kind: type[BaseException] | None, error: object, *_: object) -> None:
        import sqlite3

        if self._base is not None:
            self._base.close()
        if self._copies is not None:
            self._copies.cleanup()
        # Words about damage may quote it, and then are no UTF-8.
        if isinstance(error, (sqlite3.Error, UnicodeError)):
            words = f"the database cannot be read: {error!s:.200}"
            if "locked" in str(error) or "busy" in str(error):
                words = "the database is locked: close the program that writes to it, try again"
            raise Unreadable(words) from None

    def _place(self) -> str:
        """The file to open. With a log but without the memory that is shared while it is open,
        SQLite would make that beside it: so a copy of both is read."""
        log = self._file + "-wal"
        if not os.path.exists(log) or os.path.exists(self._file + "-shm"):
            return self._file
        import shutil
        import tempfile

        self._copies = tempfile.TemporaryDirectory()
        copy = os.path.join(self._copies.name, "opencode.db")
        shutil.copyfile(self._file, copy)
        shutil.copyfile(log, copy + "-wal")
        return copy

    def _immutable(self) -> str:
        """What keeps SQLite from making files beside a database that only would have a log."""
        with open(self._file, "rb") as stream:
            modes = stream.read(20)[18:20]
        return "&immutable=1" if b"\2" in modes and not os.path.exists(f"{self._file}-wal") else ""


def _sqlite_sessions(base: Any) -> Iterator[Json]:
    """Each session with its messages and their parts; `why` instead of them where the database is
    damaged."""
    import sqlite3

    order = "SELECT * FROM session ORDER BY time_created, id"
    for row in base.execute(order).fetchall():
        session = dict(row)
        names = ("id", "title", "directory", "revert")
        info: Json = {name: _sqlite_plain(session.get(name)) for name in names}
        info["time"] = {"created": _sqlite_plain(session.get("time_created"))}
        try:
            yield {"info": info, "messages": _sqlite_messages(base, session.get("id"))}
        except (sqlite3.DatabaseError, UnicodeError) as error:
            yield {"info": info, "messages": None, "why": f"{error!s:.200}"}


def _sqlite_messages(base: Any, session: object) -> list[Json]:
    parts: dict[object, list[object]] = {}
    asked = "SELECT * FROM part WHERE session_id = ? ORDER BY id"
    for row in base.execute(asked, (session,)):
        parts.setdefault(row["message_id"], []).append(_sqlite_data(row))
    asked = "SELECT * FROM message WHERE session_id = ? ORDER BY id"
    return [
        {"info": _sqlite_data(row), "parts": parts.get(row["id"], [])}
        for row in base.execute(asked, (session,))
    ]


def _sqlite_plain(value: object) -> object:
    return value if isinstance(value, (str, int)) else None


def _sqlite_data(row: Any) -> Json | None:
    """The JSON of a row, with its id; None if it is damaged."""
    data = row["data"]
    if isinstance(data, bytes):
        data, _ = decode_line(data)
    try:
        value, _ = _scan_document(data.strip(), 0) if isinstance(data, str) else (None, 0)
    except (ValueError, RecursionError):
        return None
    return {**value, "id": _sqlite_plain(row["id"])} if isinstance(value, dict) else None


class _StorageItem(_Item):
    """A session of an OpenCode storage folder; `pieces` are its files, by what they hold."""

    __slots__ = ("messages", "parts", "session")

    def __init__(self, first: _Item) -> None:
        super().__init__(first.file, first.member, False)
        self.format = _format_named("opencode")
        self.session: _Item | None = None
        self.messages: dict[str, _Item] = {}
        self.parts: dict[str, dict[str, _Item]] = {}

    def open(self) -> Any:

        id = next(iter(self.messages), None)
        info = _piece_in(self.session) if self.session is not None else None
        messages = []
        for message, item in sorted(self.messages.items()):
            found = _piece_in(item)
            id = _dict(found).get("sessionID", id)
            files = sorted(self.parts.get(message, {}).items())
            parts = [each for each in (_piece_in(file) for _, file in files) if each is not None]
            messages.append({"info": found, "parts": parts})
        document = {"info": info or {"id": id}, "messages": messages}
        return io.BytesIO(compact_json(document).encode("utf-8", "surrogatepass"))


def _piece_in(item: _Item) -> Json | None:
    """The one object of a small file; None if it holds anything else."""
    try:
        with item.open() as stream:
            raw = stream.read(PIECE_BYTES_MAX + 1)
    except Unreadable:
        return None
    text, _ = decode_line(raw)
    try:
        value, end = _scan_document(text.lstrip(), 0)
    except (ValueError, RecursionError):
        return None
    whole = len(raw) <= PIECE_BYTES_MAX and not text.lstrip()[end:].strip()
    return value if whole and isinstance(value, dict) else None


def storage_kind(piece: Json) -> str | None:
    """ "session", "message" or "part" for an object of an OpenCode storage folder, else None."""
    if not isinstance(piece.get("id"), str) or "info" in piece:
        return None
    if isinstance(piece.get("messageID"), str):
        return "part" if isinstance(piece.get("type"), str) else None
    if isinstance(piece.get("sessionID"), str):
        return "message" if piece.get("role") in ("user", "assistant") else None
    is_session = "projectID" in piece and isinstance(piece.get("time"), dict)
    return "session" if is_session and "directory" in piece else None


class _Storage:
    """Puts the small files of storage folders together again."""

    __slots__ = ("_loose", "_owner", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, _StorageItem] = {}
        self._owner: dict[str, str] = {}  # message -> session
        self._loose: list[tuple[str, str, _Item]] = []  # message, part, file

    def take(self, item: _Item) -> bool:
        """Whether the file is a piece of a session; then it is kept."""
        if item.trouble or item.named or isinstance(item, _DatabaseItem):
            return False
        try:
            piece = _piece_in(item)
        except OSError:
            return False
        kind = storage_kind(piece) if piece is not None else None
        if piece is None or kind is None:
            return False
        if kind == "part":
            self._loose.append((piece["messageID"], piece["id"], item))
            return True
        session = piece["id"] if kind == "session" else piece["sessionID"]
        whole = self.sessions.setdefault(session, _StorageItem(item))
        if kind == "message":
            whole.messages.setdefault(piece["id"], item)
            self._owner.setdefault(piece["id"], session)
        elif whole.session is None:
            whole.session = item
            whole.path = item.path
        return True

    def finish(self) -> list[Json]:
        """Give the parts to their messages; those that have none are returned as unrecognized."""
        left = []
        for message, part, item in self._loose:
            session = self._owner.get(message)
            if session is None:
                why = f"part of the OpenCode message {message:.80}, which is not here"
                left.append({"path": item.path, "why": why})
            else:
                self.sessions[session].parts.setdefault(message, {}).setdefault(part, item)
        return left


# ================================================================================================
# 25. Hooks
#
# What a client runs at events of a session. Nothing that goes wrong here may disturb the session:
# it is written to the hook's own log, never raised. The log is one JSON object a line:
#   time (Unix seconds), event, session, ok; ms it took; added (messages) of an import, or error.
# ================================================================================================

_IMPORTS_AT = (
    "Stop", "SubagentStop", "PreCompact", "PostCompact", "SessionEnd", "AfterAgent", "PreCompress",
)  # fmt: skip
HANDOFF_CHARS_MAX = 7_500  # clients cut at 10,000
START_CHARS_MAX = 600
HANDOFF_TEXT_CHARS = 500  # of one message in it
STDIN_BYTES_MAX = 16 << 20
HOOK_LOG_BYTES = 256 << 10
_LAST_COMPACTION_BYTES = 8 << 20  # of the end of a transcript, searched for its last compaction
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_HANDOFF_MARK = re.compile(r"<(/?)timeline-handoff", re.IGNORECASE)


def hook(path: str, raw: bytes) -> str:
    """Do what the event in `raw`, one JSON object, asks for, on the database at `path`; returns
    what to print. Source: README, "Hooks". Raises nothing.
    """
    return _Hook(path).run(raw)


class _Hook:
    __slots__ = ("event", "path", "told")

    def __init__(self, path: str) -> None:
        self.path = path
        self.event: Json = {}
        self.told: Json = {}  # for the log

    def run(self, raw: bytes) -> str:
        """What to print."""
        begin, text = time.monotonic(), ""
        try:
            text = self._act(raw)
            self.told["ok"] = True
        except OSError as error:
            self.told.update(ok=False, error=timeline.system_words(error))
        except timeline.TimelineError as error:
            self.told.update(ok=False, error=str(error))
        except Exception as error:  # noqa: BLE001  # whatever it is, the session goes on
            self.told.update(ok=False, error=f"internal error, please report it: {error!r}")
        self.told["ms"] = round((time.monotonic() - begin) * 1_000)
        # A look at a database that is not there leaves nothing behind.
        if self._name in _IMPORTS_AT or not self.told["ok"] or os.path.exists(self._log):
            self._write_log()
        return text

    @property
    def _name(self) -> str:
        return _string(self.event.get("hook_event_name"))

    @property
    def _log(self) -> str:
        return self.path + timeline.HOOK_LOG_ENDING

    def _act(self, raw: bytes) -> str:
        if len(raw) > STDIN_BYTES_MAX:
            raise timeline.InvalidArgument(f"the event has more than {STDIN_BYTES_MAX} bytes")
        try:
            event = json.loads(raw.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise timeline.InvalidArgument(
                "standard input holds no JSON object: a client that runs `tl hook` sends its event "
                f"there; it began with {raw[:40]!r}"
            )
        self.event = event
        if self._name in _IMPORTS_AT:
            self._import()
        elif self._name == "SessionStart":
            return self._answer(self._at_start())
        elif self._name == "UserPromptSubmit" and self._lacks_handoff():
            return self._answer(self._handoff())
        return ""

    # -- importing ---------------------------------------------------------------------------------

    def _import(self) -> None:
        file = self._transcript()
        if not file:
            self.told["added"] = 0
            self.told["note"] = "the event names no transcript"
            return
        if not os.path.exists(self.path) and (left := self._left_behind()):
            raise timeline.NotFound(
                f"database vanished: {self.path} is gone, but {left} is there: bring the database "
                "back, or delete what is left of it to begin a new one"
            )
        ends = self._name == "SessionEnd"
        database = timeline.Database(self.path, via="import", wait_s=0.3 if ends else 0.5)
        until = time.monotonic() + (0.7 if ends else 5.0)
        self.told["added"] = 0
        try:
            for each in (file, self._named("agent_transcript_path")):
                if each and (each == file or os.path.isfile(each)):
                    seconds = max(0.0, until - time.monotonic())
                    result = import_session(database, each, hold=not ends, seconds=seconds)
                    self.told["added"] += sum(row["added"] for row in result["timelines"])
                    if result["more"]:
                        self.told["note"] = "there was no time for all; the next event goes on"
        finally:
            database.close()

    def _transcript(self) -> str:
        """The path that the event names; "" if it names none. Never another one instead."""
        path = self._named()
        if not path:
            return ""
        if not os.path.isabs(path):
            raise timeline.InvalidArgument(f"transcript_path {path!r:.200} is no absolute path")
        if not os.path.isfile(path):
            what = "no regular file" if os.path.exists(path) else "not there"
            raise timeline.NotFound(f"transcript_path {path!r:.200} is {what}")
        return path

    def _named(self, field: str = "transcript_path") -> str:
        path = self.event.get(field)
        return os.path.expanduser(path) if isinstance(path, str) else ""

    def _left_behind(self) -> str:
        """What still lies beside a database that is gone."""
        for ending in (".lock", ".index", ".files"):
            if os.path.exists(self.path + ending):
                return self.path + ending
        done = any(entry.get("ok") and entry.get("added") for entry in timeline.hook_log(self.path))
        return self._log if done else ""

    # -- telling -----------------------------------------------------------------------------------

    def _answer(self, text: str) -> str:
        if not text:
            return ""
        self.told["printed"] = len(text)
        told = {"hookEventName": self._name, "additionalContext": text}
        return compact_json({"hookSpecificOutput": told}) + "\n"

    def _at_start(self) -> str:
        source = self.event.get("source")
        if source == "compact":
            return self._handoff()
        if source not in ("startup", "clear"):
            return ""
        body = "\n".join(filter(None, (self._newest(), self._failures())))
        return _marked(body, START_CHARS_MAX) if body else ""

    def _failures(self) -> str:
        count, last = timeline.hook_failures(self.path)
        if not count:
            return ""
        return f"`tl hook` failed {count} times since it last worked: {_plain(last, 200)}"

    def _newest(self) -> str:
        """One line on the newest timeline of the same folder."""
        cwd = self.event.get("cwd")
        if not isinstance(cwd, str) or not cwd or not os.path.exists(self.path):
            return ""
        with _Reading(self.path) as database:
            for row in database.run("list"):
                if row["project"] is not None and os.path.normpath(
                    row["project"]
                ) == os.path.normpath(cwd):
                    title = f" ({_plain(row['title'], 80)})" if row["title"] else ""
                    return (
                        f"Timeline holds earlier work in this folder: {row['timeline_id']}{title}, "
                        f"{row['messages']} messages, branch {_plain(row['current_branch'], 60)}. "
                        f"`tl context --timeline {row['timeline_id']} --last 20` and "
                        f"`tl search WORDS --timeline {row['timeline_id']}` read it; over MCP, "
                        "timeline_context and timeline_search."
                    )
        return ""

    def _lacks_handoff(self) -> bool:
        """Whether no handoff of ours stands behind the transcript's last compaction."""
        file = self._named()
        if not os.path.isabs(file) or not os.path.isfile(file):  # nothing was said yet
            return False
        with open(file, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _LAST_COMPACTION_BYTES))
            if stream.tell():
                stream.readline()  # the rest of a line
            compacted = handed = False
            for line in stream:
                if b"<timeline-handoff>" in line:
                    handed = True
                if b"ompact" in line and _is_compaction(line):
                    compacted, handed = True, False
        return compacted and not handed

    def _handoff(self) -> str:
        session = native_id(self.event.get("session_id"))
        if session is None or not os.path.exists(self.path):
            return ""
        with _Reading(self.path) as database:
            lines = handoff_of(database, session)
        body = "\n".join(filter(None, (*lines, self._failures() if lines else "")))
        return _marked(body, HANDOFF_CHARS_MAX) if body else ""

    # -- log ---------------------------------------------------------------------------------------

    def _write_log(self) -> None:
        line = {
            "time": int(time.time()), "event": _plain(self._name, 40),
            "session": _plain(_string(self.event.get("session_id")), 80), **self.told,
        }  # fmt: skip
        if "error" in line:
            line["error"] = _plain(line["error"], 600)
        data = compact_json(line).encode("utf-8", "replace") + b"\n"
        try:
            with open(self._log, "ab", opener=_private) as file:
                file.write(data)
                size = file.tell()
            if size > HOOK_LOG_BYTES:
                self._shorten_log()
        except OSError:
            pass  # there is no other place to say so

    def _shorten_log(self) -> None:
        """Keep the newer half."""
        with open(self._log, "rb") as file:
            file.seek(-HOOK_LOG_BYTES // 2, os.SEEK_END)
            file.readline()
            rest = file.read()
        with open(self._log + ".tmp", "wb", opener=_private) as file:
            file.write(rest)
        os.replace(self._log + ".tmp", self._log)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Reading:
    """A database to read from, which waits half a second for a lock at most."""

    def __init__(self, path: str) -> None:
        self._database = timeline.Database(path, via="import", wait_s=0.5)

    def __enter__(self) -> Database:
        return self._database

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _is_compaction(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict):
        return False
    return (
        record.get("isCompactSummary") is True
        or record.get("subtype") == "compact_boundary"
        or record.get("type") == "compacted"
    )


def _plain(text: object, chars: int) -> str:
    """Text on one line, without control characters and without our own marks, cut to `chars`."""
    plain = _CONTROL.sub(" ", text if isinstance(text, str) else "")
    plain = _HANDOFF_MARK.sub(r"‹\1timeline-handoff", plain).strip()
    return plain if len(plain) <= chars else plain[: chars - 1] + "…"


def _marked(body: str, chars: int) -> str:
    """`body` between our marks, all of it within `chars`."""
    room = chars - len("<timeline-handoff>\n\n</timeline-handoff>")
    body = body if len(body) <= room else body[: room - 1] + "…"
    return f"<timeline-handoff>\n{body}\n</timeline-handoff>"


def handoff_of(database: Database, session: str) -> list[str]:
    """What a model should know of a session whose context was compacted, in lines: where its
    messages are, what is pinned, and what was said last before the compaction. Empty if no
    transcript of that session was read."""
    states = database.refresh().state.timelines
    ending = f"\0{session}"
    found = [
        (tl, number)
        for tl, state in enumerate(states)
        for key, (number, _) in state.sessions.items()
        if key.endswith(ending)
    ]
    if not found:
        return []
    tl, number = found[-1]
    state, where = states[tl], f"tl{tl}"
    branch = next((each for each in state.in_order() if each.number == number), None)
    name = state.current if branch is None else branch.name
    title = f" ({_plain(state.title, 80)})" if state.title else ""
    lines = [
        f"Timeline keeps every message of this session word for word: {where}{title}, branch "
        f"{_plain(name, 60)}, {state.messages} messages.",
        f"`tl search WORDS --timeline {where}` finds what was said, `tl node --node n5` shows one "
        "message whole; over MCP, timeline_search and timeline_node.",
    ]
    path = database.run("context", {"timeline_id": where, "branch": name, "last": 200})
    pinned = [_shown_message(database, f"n{node}") for node in list(state.pins)[:20]]
    if pinned:
        lines += ["Pinned:", *pinned]
    summary = next((each for each in reversed(path) if each["role"] == "summary"), None)
    head = path[-1]["node"] if path else "n0"
    if summary is not None and "to" in summary:
        head = summary["to"]
        lines.append(
            f"The compaction stands for {summary['from']}..{head}: `tl context --timeline {where} "
            f"--node {head}` reads the originals."
        )
    talk = database.run("context", {"timeline_id": where, "node": head, "last": 60})
    said = [each for each in talk if each["role"] in ("user", "assistant") and each["text"]][-8:]
    if said:
        lines.append("Last messages before it:" if summary is not None else "Last messages:")
        lines += [_message_line(each) for each in said]
    return lines


def _shown_message(database: Database, node: str) -> str:
    return _message_line(database.run("node", {"node": node}))


def _message_line(message: Json) -> str:
    return f"{message['node']} {message['role']}: {_plain(message['text'], HANDOFF_TEXT_CHARS)}"


# ================================================================================================
# 26. Demo
#
# A session as Claude Code writes it: tools, parallel calls, a rewind, a compaction. Invented.
# ================================================================================================

_DEMO_SESSION = "d3301234-5678-4abc-8def-0123456789ab"

# A paragraph is a record: its name, the name of its parent, what it is (with the message it is a
# piece of, the tool called, or the call answered), and below what it says.
_DEMO = r"""
ask - user
Our order export opens garbled in Excel. Please look at shop/export.py.

think ask thinking m1
Garbled in Excel only: most likely there is no BOM. Read it first.

look think text m1
I will read the exporter first.

read look call m1 Read
{"file_path": "/srv/demo/shop/export.py"}

code read result read
def export(rows, path):
    with open(path, "w") as out:
        for row in rows:
            out.write(",".join(row) + "\n")

found code text m2
Two bugs: without a BOM Excel guesses the encoding, and a comma inside a field is not quoted.

edit found call m2 Edit
{"file_path": "/srv/demo/shop/export.py", "old_string": "open(path, \"w\")",
 "new_string": "open(path, \"w\", newline=\"\", encoding=\"utf-8-sig\")"}

edited edit result edit
The file /srv/demo/shop/export.py has been updated.

fixed edited text m3
Done: the export is written by csv.writer, as UTF-8 with a BOM.

thanks fixed user
谢谢！顺便把文件名也改成中文：订单导出.csv，旧的链接要继续能用。

search thanks call m4 Grep
{"pattern": "orders\\.csv"}

hits search result search
shop/routes.py:41: @route("/orders.csv")
docs/api.md:12: GET /orders.csv

routes search call m4 Read
{"file_path": "/srv/demo/shop/routes.py"}

source routes result routes
@route("/orders.csv")
def orders_csv():
    return send(export(orders()))

renamed source text m5
下载的文件名现在是「订单导出.csv」；/orders.csv 这个地址不变，旧链接照常可用。

since renamed user
Let me export only the orders since a date.

plan since text m6
Plan A: a --since option of the nightly script that loads all orders and filters them in Python.

doubt plan user
All orders are 4 million rows, that will not do.

query renamed user
Add ?since=YYYY-MM-DD to /orders.csv and filter in SQL: there are 4 million rows.

write query call m7 Edit
{"file_path": "/srv/demo/shop/routes.py", "old_string": "orders()",
 "new_string": "orders(since=args.get(\"since\"))"}

wrote write result write
The file /srv/demo/shop/routes.py has been updated.

run wrote call m8 Bash
{"command": "pytest -q tests/test_export.py"}

failed run result run
1 failed, 11 passed: test_since_rejects_garbage

reject failed text m9
What is no date must be answered with 400, not with all orders. I add the check and run again.

rerun reject call m9 Bash
{"command": "pytest -q tests/test_export.py"}

passed rerun result rerun
12 passed in 0.81s

done passed text m10
All 12 tests pass. /orders.csv?since=2026-01-31 filters in SQL, on the index of created_at.

compact done boundary

resume compact summary
This session is being continued from a previous conversation. Export: csv.writer, UTF-8 with BOM;
file name 订单导出.csv, address /orders.csv unchanged; ?since=YYYY-MM-DD filters in SQL and answers
400 to what is no date; 12 tests pass.

docs resume user
Now write it down in docs/api.md, 中英文都要。

note docs call m11 Edit
{"file_path": "/srv/demo/docs/api.md", "old_string": "GET /orders.csv",
 "new_string": "GET /orders.csv?since=YYYY-MM-DD"}

noted note result note
The file /srv/demo/docs/api.md has been updated.

end noted text m12
docs/api.md has it in English and Chinese（参数 since，格式 YYYY-MM-DD）, with the 400 answer.
"""


def demo_transcript() -> bytes:
    """A Claude Code session file of some 35 records, the same each time."""
    uuids: dict[str, str | None] = {"-": None}
    lines = []
    for number, paragraph in enumerate(_DEMO.strip().split("\n\n"), 1):
        head, _, said = paragraph.partition("\n")
        name, parent, kind, *more = head.split()
        uuids[name] = f"{number:08x}-7a11-4c0d-8e5d-{number:012x}"
        body = _demo_body(name, kind, more, said)
        record: Json = {
            "parentUuid": None if kind == "boundary" else uuids[parent],
            "isSidechain": False,
            "userType": "external",
            "cwd": "/srv/demo",
            "sessionId": _DEMO_SESSION,
            "version": "2.1.230",
            "gitBranch": "main",
            "uuid": uuids[name],
            "timestamp": f"2026-03-02T09:{number:02}:00.000Z",
            **body,
        }
        if kind == "boundary":
            record["logicalParentUuid"] = uuids[parent]
        lines.append(compact_json(record))
    title = {"type": "ai-title", "aiTitle": "Order export for Excel", "sessionId": _DEMO_SESSION}
    return "\n".join([*lines, compact_json(title), ""]).encode()


def _demo_body(name: str, kind: str, more: list[str], said: str) -> Json:
    """The fields of a record that depend on what it is."""
    if kind == "boundary":
        told = {"trigger": "manual", "preTokens": 48_211}
        return {"type": "system", "subtype": "compact_boundary", "compactMetadata": told}
    if kind == "result":
        block: Json = {"type": "tool_result", "tool_use_id": f"toolu_{more[0]}", "content": said}
        return {"type": "user", "message": {"role": "user", "content": [block]}}
    if kind in ("user", "summary"):
        body = {"type": "user", "message": {"role": "user", "content": said.replace("\n", " ")}}
        return {**body, "isCompactSummary": True} if kind == "summary" else body
    block = {"type": kind, kind: said}
    if kind == "call":
        block = {
            "type": "tool_use",
            "id": f"toolu_{name}",
            "name": more[1],
            "input": json.loads(said),
        }
    elif kind == "thinking":
        block["signature"] = "ZGVtbw=="
    message = {
        "id": f"msg_{more[0]}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [block],
        "usage": {"input_tokens": 1_200, "output_tokens": 80},
    }
    return {"type": "assistant", "message": message}
