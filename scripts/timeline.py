"""The engine of Timeline: conversations kept as trees in one append-only file.

MAP (sections are marked by banners)
   1 limits        numbers with their units
   2 errors        the class says who must act; `data` holds the facts
   3 operations    the one table that CLI, help, MCP schemas and document tests are made from
   4 format        lines of the log: JSON, crc chain, text literal; keys of the lookup
   5 state         rows and state, and `apply`, the only function that changes them
   6 tree          paths, ancestors, intervals, tool units
   7 summaries     versions, stale marks, coverage
   8 budget        which part of a path fits a number of tokens; pure
   9 archive       zones: what stands in the way, what would move
  10 check         the invariants I1..I9 as code
  11 disk, locks   every system call
  12 store         log and index together: open, catch up, commit, checkpoint, rebuild
  13 maintenance   doctor, repair, purge
  14 database      the public API: `Database.run(operation, arguments)`

GLOSSARY
  database  one file, the log         timeline  one conversation tree in it, tl0, tl1, ...
  node      entry of the tree, n1...  root      n0 of each timeline, holding nothing
  branch    a name for its head       path      root..node along parents, both ends included
  interval  from..to on one path      unit      a message and the tool results right after it
  summary   a node that stands for an interval; a placeholder is one made by the budget
  log       the file; a line is one record; a transaction is one line or several with one seq
  index     <db>.index/, derived from the log, may be deleted at any time
  tail      what the log holds beyond the last complete transaction

THE LOG
  UTF-8 JSON Lines. Each line ends in `,"crc":"xxxxxxxx"}` and a newline, where crc is
  zlib.crc32 of the line before `,"crc"`, started with the crc of the line before it (the
  header's starts at 0). So a crc is a digest of everything up to it. `text` stands last but one.
    {"timeline":"log","format_version":1,"log_id":"<32 hex>","generation":1,...,"crc":"0f9b8a17"}
    {"seq":1,"ts":1767225600,"op":"create","tl":0,"title":null,"estimator":"scalar4","crc":"..."}
    {"seq":2,"ts":1767225601,"op":"append","tl":0,"id":1,...,"tokens":2,"text":"Hello","crc":"..."}
    {"seq":3,"ts":1767225602,"op":"fork","tl":0,"node":1,"name":"try","of":"main","crc":"..."}
    {"seq":4,"ts":1767225603,"op":"append","more":1,"tl":0,"id":2,"parent":1,...}
    {"seq":4,"ts":1767225603,"op":"append","tl":0,"id":3,"parent":2,...}
  Lines of one transaction share `seq`; all but the last hold `"more":1`, and it counts only
  when the last one is whole. Replaying the lines with `apply` gives the state: no clock, no
  environment, no chance is read.

INVARIANTS
  I1 ids are dense: node i is the i-th node line of the log, and row i of the index.
  I2 a parent is 0 (the root) or a smaller id of the same timeline, so links cannot loop.
  I3 nothing of a transaction is in the log, or all of it; a failed write is cut back.
  I4 the state after catching up equals the state after replaying the whole log.
  I5 head, pin, exclusion, interval and segment name nodes that exist, in their own timeline.
  I6 an interval's `from` is `to` or an ancestor of it; no placeholder lies on a path.
  I7 the head of a live branch is hot.
  I8 created_at never decreases with the node number.
  I9 prefix_tokens(node) = prefix_tokens(parent) + tokens <= 2^53-1.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import zlib

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

try:
    # What `struct` re-exports. Loading that module costs as much as reading the index does.
    from _struct import Struct
except ImportError:  # another Python
    from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Json = dict[str, Any]
    Row = tuple[int, ...]
    Spot = tuple[int, int, int, int]  # node, parent, offset and length of its line

# ================================================================================================
# 1. Limits
# ================================================================================================

TEXT_BYTES_MAX = 1 << 20  # UTF-8 bytes of one text
TOKENS_MAX = (1 << 53) - 1  # JSON readers lose digits of larger whole numbers
RESERVE_TOKENS = 32  # what a placeholder costs, always
# A message that does not fit ends the budget's message list if it weighs less than this: passing
# over a small one would leave a hole for the sake of something older.
LIGHT_TOKENS = 256
MESSAGES_MAX = 100_000  # of one context or budget answer
NAME_CHARS_MAX = 200  # branch names, intent tags, titles
NOTE_CHARS_MAX = 4_000  # intent notes
KEY_CHARS_MAX = 256  # idempotency keys
KEY_LIFE_S = 604_800  # how long a key is remembered
DERIVED_MAX = 1_000  # entries of one derived_from
REASON_NODES_MAX = 100  # ids listed in one archive reason
SNIPPET_CHARS = 160
BLOCKS_BYTES_MAX = 8 << 20  # blocks of one imported message, as JSON
CHECKPOINT_COMMITS = 128  # an opening process replays what came since: 20 us a line at worst
CHECKPOINT_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
GROUP_BYTES = 256 << 10  # adjacent lines fetched by one read
WALK_BY_ROW_MAX = 2_000  # longer walks read the rows in chunks
FORK_STRETCH = 4_096  # nodes that are searched for children together
FORMAT_VERSION = 1
AGENT_MARK = "agent\0"  # before a subagent's name, in what the result of its run is known by
BOOKMARKS = "read-"  # how the names of notes on what was read of a transcript begin
HOOK_LOG_ENDING = ".hook.log"
SIDE_ENDINGS = (".files", HOOK_LOG_ENDING, ".index", ".lock", ".tmp", ".torn")  # of files beside it

ROLES = ("user", "assistant", "system", "tool", "summary")
ESTIMATORS = ("scalar4", "wide")
SYNC_CLIENTS = ("claude-code", "codex", "pi", "gemini", "opencode")
REQUEST_FORMATS = ("openai", "anthropic")
EXPORT_FORMATS = ("ascii", "drawio", "mermaid", "markdown", "html", "json", "claude-code")

# Scalar values that count as one token in `wide`: written out, so that every Python counts alike.
WIDE_RANGES = (
    (0x1100, 0x115F), (0x2E80, 0x303E), (0x3041, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF), (0xA960, 0xA97F), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE30, 0xFE4F),
    (0xFF00, 0xFF60), (0xFFE0, 0xFFE6), (0x1F300, 0x1FAFF), (0x20000, 0x3FFFD),
)  # fmt: skip


def estimate(text: str, estimator: str) -> int:
    """Tokens of `text` as `estimator` counts them, at least 1.

    `scalar4`: a quarter token per Unicode scalar value, rounded up. `wide`: the same, but an
    East Asian wide character or emoji counts one. Source: README, section Tokens.
    """
    size = len(text)
    if estimator == "scalar4" or text.isascii():
        return max(1, (size + 3) // 4)
    wide = _wide_count(text)
    return max(1, wide + (size - wide + 3) // 4)


def _wide_count(text: str) -> int:
    """How many characters of `text` are in WIDE_RANGES."""
    if len(text) < 1_000:  # where loading `re` costs more than it saves
        return sum(any(low <= ord(char) <= high for low, high in WIDE_RANGES) for char in text)
    import re

    ranges = "".join(f"{chr(low)}-{chr(high)}" for low, high in WIDE_RANGES)
    return len(text) - len(re.sub(f"[{ranges}]", "", text))  # `re` keeps the compiled pattern


# ================================================================================================
# 2. Errors
#
# The class says who must act; adapters map it to an exit code and print {"error", "data"}.
# ================================================================================================


class TimelineError(Exception):
    """Base of all errors of the engine. `data` holds JSON facts a program may use."""

    exit_code = 70

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.data = data


class InvalidArgument(TimelineError, ValueError):
    """Wrong in any state: fix the call."""

    exit_code = 2


class NotFound(TimelineError, LookupError):
    """No such node, branch, timeline or database: name another."""

    exit_code = 1


class Refused(TimelineError):
    """Valid, but the present state forbids it: change the state."""

    exit_code = 1


class BudgetInfeasible(Refused):
    """Even the cheapest layout costs more than `max_tokens`."""


class ResultTooLong(Refused):
    """More messages than one answer holds: ask for fewer."""


class ArchiveRefused(Refused):
    """The branch is not eligible for the archive; `data["reasons"]` says why."""


class NameTaken(Refused):
    """A branch of this name exists."""


class HeadMoved(Refused):
    """The branch's head is not the expected one; somebody else wrote."""


class Busy(TimelineError):
    """Another process holds the lock: try again."""

    exit_code = 4


class Corrupt(TimelineError):
    """The file breaks its format: stop, copy it, then `doctor`."""

    exit_code = 3


class UnknownVersion(Corrupt):
    """The file, or a line of it, was written by a newer Timeline: upgrade."""


class WriteFailed(TimelineError):
    """The system refused the write or the fsync; nothing was stored unless the message says so."""

    exit_code = 5


_SYSTEM_ADVICE = {
    errno.EACCES: "change its owner or mode, or choose another place",
    errno.EDQUOT: "make room, then repeat",
    errno.EIO: "look at the disk, then repeat",
    errno.ELOOP: "its links lead in a circle: name the file itself",
    errno.EMFILE: "close some files, then repeat",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "see whether the folders of this path exist",
    errno.ENOSPC: "make room on the disk, then repeat",
    errno.ENOTDIR: "a part of this path is a file: name another",
    errno.EPERM: "change its owner or mode, or choose another place",
    errno.EROFS: "choose a place that can be written",
}


def system_words(error: OSError, path: str = "") -> str:
    """What the system said, about which file, and what to do."""
    where = error.filename or path
    if isinstance(where, bytes):
        where = os.fsdecode(where)
    advice = _SYSTEM_ADVICE.get(error.errno or 0)
    if error.errno == errno.ENOENT and not where:
        advice = "the current folder does not exist any more: go to another one"
    return (
        str(error.strerror or error)
        + (f" ({where})" if where else "")
        + (f": {advice}" if advice else "")
    )


class _IndexUnfit(Exception):
    """A derived file disagrees with the log: drop the index and rebuild it. Never leaves the
    engine."""


def _unknown_node(node: int) -> NotFound:
    return NotFound(f"unknown node n{node}", node=f"n{node}")


def _unknown_branch(timeline: TimelineState, name: str) -> NotFound:
    """The text is fixed; what became of a branch that there was, and what there is, is data."""
    ends = [each.status for each in timeline.ended if each.name == name]
    known: Json = {"branches": [each.name for each in timeline.in_order()[:20]]}
    if ARCHIVED in ends:
        known = {"status": "archived", "next": "`thaw` with this name brings it back"}
    elif ends:
        known = {
            "status": "dropped",
            "next": "`branches` with `all` shows its last head: fork there",
        }
    return NotFound(f'unknown branch "{name}"', branch=name, **known)


# ================================================================================================
# 3. Operations
#
# One description of every operation. An argument's `name` is its name in `Database.run` and over
# MCP; its `flag` is what the command line calls it. Knows nothing of state or files.
# ================================================================================================


class Argument:
    """One argument: `kind` says how it is checked and what the checked value is (see `_CHECKS`).

    `flag` "-": only tools have it; the command line has a command of its own for it.
    """

    __slots__ = ("choices", "default", "flag", "help", "kind", "name", "positional", "required")

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        *,
        flag: str = "",
        required: bool = False,
        default: object = None,
        choices: tuple[str, ...] = (),
        positional: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.flag = flag or name.replace("_", "-")
        self.required = required
        self.default = default
        self.choices = choices
        self.positional = positional


class Operation:
    """One operation. `changes`: it may write and takes an idempotency key.

    `scope` is "timeline" (it works in one), "database" or "none" (it names its database itself, or
    needs none).
    `tool` is its MCP name and `group` the set of tools it belongs to; `repeatable`: doing it twice
    is like doing it once; `key_shown`: tools show the key among its arguments.
    """

    __slots__ = (
        "arguments",
        "by_name",
        "changes",
        "defaults",
        "example",
        "group",
        "help",
        "key_shown",
        "name",
        "repeatable",
        "required",
        "result",
        "scope",
        "tool",
    )

    def __init__(
        self,
        name: str,
        help: str,
        arguments: tuple[Argument, ...],
        result: str,
        example: str,
        *,
        changes: bool = False,
        tool: str | None = None,
        group: str = "core",
        repeatable: bool = True,
        key_shown: bool = False,
        scope: str = "timeline",
        timeline: Argument | None = None,
    ) -> None:
        self.name = name
        self.help = help
        self.result = result
        self.example = example
        self.changes = changes
        self.tool = tool
        self.group = group
        self.repeatable = repeatable
        self.key_shown = key_shown
        self.scope = scope
        if scope == "timeline":
            arguments = (*arguments, timeline or TIMELINE)
        if changes:
            arguments = (*arguments, _KEY)
        self.arguments = arguments
        self.by_name = {argument.name: argument for argument in arguments}
        self.required = [argument.name for argument in arguments if argument.required]
        self.defaults = {
            argument.name: argument.default for argument in arguments if not argument.required
        }


TIMELINE = Argument(
    "timeline_id",
    "timeline",
    "timeline, as tl1 (default: that of a node named, else the oldest, tl0)",
    flag="timeline",
)
_ANY_TIMELINE = Argument(
    "timeline_id", "timeline", "only this timeline, as tl1 (default: all)", flag="timeline"
)
_KEY = Argument(
    "idempotency_key",
    "key",
    "the same key within 7 days returns the first result, whatever else is asked",
)
_TARGET = (
    Argument("node", "node", "the path ends here (default: the current head)"),
    Argument("branch", "branch", "the path ends at its head"),
)
_INTENT = Argument("intent", "intent", "why it matters")
_SCOPE = Argument("scope", "choice", "own: only nodes that no other branch holds", choices=("own",))


# Carried out by the adapters, on the messages that the engine answers with.
_REQUEST_FORMAT = Argument(
    "format", "choice", "as an API takes them", flag="as", choices=REQUEST_FORMATS
)

_PART = (
    Argument("from", "node", "only the interval that begins here (with --to)"),
    Argument("to", "node", "only the interval that ends here"),
)
_TEXT_PICTURE = (
    Argument(
        "width", "width", "ascii: columns of a line, or auto: those of the terminal", default="auto"
    ),
    Argument(
        "fold",
        "choice",
        "ascii: auto shows long runs of a long picture by their ends, on a terminal only",
        default="auto",
        choices=("auto", "none"),
    ),
)


def _tokens_argument() -> Argument:
    return Argument("tokens", "tokens", "size (default: estimated)")


def _page_arguments(kind: str, limit: int | None = None) -> tuple[Argument, Argument]:
    what = {"branch": "name", "node": "node", "timeline": "timeline_id"}[kind]
    return (
        Argument("limit", "count", "at most this many", default=limit),
        Argument("after", kind, f"go on behind this {what}"),
    )


_OPERATION_LIST = (
    Operation(
        "create",
        "Make a new timeline with branch main at its root; makes the database if it is missing.",
        (
            Argument("title", "title", "a title for people"),
            Argument(
                "estimator",
                "choice",
                "scalar4: a token is 4 characters; wide: CJK counts 1",
                default="scalar4",
                choices=ESTIMATORS,
            ),
        ),
        '{"timeline_id":"tl0"}',
        'tl create --title "CSV export"',
        changes=True,
        tool="timeline_create",
        repeatable=False,
        key_shown=True,
        scope="database",
    ),
    Operation(
        "append",
        "Add a message behind the head of the current branch, or of another, and move that head.",
        (
            Argument("role", "choice", "who speaks", required=True, choices=ROLES),
            Argument("text", "text", "at most 1 MiB of UTF-8", required=True),
            _tokens_argument(),
            _INTENT,
            Argument("branch", "branch", "write to it without switching to it"),
            Argument("expect_head", "node", "write only if this is still the head"),
        ),
        '{"node":"n1"}',
        'tl append --role user --text "Only local data, please"',
        changes=True,
        tool="timeline_append",
        repeatable=False,
        key_shown=True,
    ),
    Operation(
        "fork",
        "Start a branch at any node of the tree. Does not switch to it.",
        (
            Argument("node", "node", "the last message both lines share", required=True),
            Argument("name", "name", "name of the new branch", required=True),
        ),
        '{"branch":"plan-b","head":"n1"}',
        "tl fork --node n1 --name plan-b",
        changes=True,
        tool="timeline_fork",
        repeatable=False,
    ),
    Operation(
        "switch",
        "Make another branch the current one, which append, context and budget go by.",
        (Argument("name", "branch", "the branch", required=True),),
        '{"current_branch":"plan-b"}',
        "tl switch --name plan-b",
        changes=True,
        tool="timeline_switch",
    ),
    Operation(
        "drop_branch",
        "Forget a branch's name; its nodes stay readable by id. Not the current branch.",
        (Argument("name", "branch", "the branch", required=True),),
        '{"dropped":"plan-b"}',
        "tl drop-branch --name plan-b",
        changes=True,
        tool="timeline_drop_branch",
    ),
    Operation(
        "context",
        "Read the messages from the root to a node or head, oldest first, excluded ones left out.",
        (
            *_TARGET,
            Argument("last", "count", "only the last K messages"),
            Argument("before", "node", "the path ends above it"),
            _REQUEST_FORMAT,
        ),
        '[{"node":"n1","role":"user","text":"...","tokens":8}]',
        "tl context --last 20",
        tool="timeline_context",
    ),
    Operation(
        "budget",
        "Pick what a model should see of a path within a number of tokens. Summaries and "
        "placeholders stand for what is left out.",
        (
            *_TARGET,
            Argument(
                "max_tokens", "tokens", "the answer never costs more", flag="max", required=True
            ),
            Argument(
                "order",
                "choice",
                "tiers: summaries before messages",
                default="turns",
                choices=("turns", "tiers"),
            ),
            Argument("explain", "flag", "say what is left out, why"),
            Argument("dry_run", "flag", "write no placeholders"),
            _REQUEST_FORMAT,
        ),
        '{"messages":[...],"total_tokens":65,"summaries_created":["n5"]}',
        "tl budget --max 4000",
        changes=True,
        tool="timeline_context_budget",
    ),
    Operation(
        "pin",
        "Keep a message, such as a goal or a constraint, word for word in every budget.",
        (Argument("node", "node", "the message", required=True),),
        '{"pinned":"n1"}',
        "tl pin --node n1",
        changes=True,
        tool="timeline_pin",
    ),
    Operation(
        "unpin",
        "Take a pin back. Refused where it would leave a bare message inside a finished stretch.",
        (Argument("node", "node", "the message", required=True),),
        '{"unpinned":"n1"}',
        "tl unpin --node n1",
        changes=True,
        tool="timeline_unpin",
    ),
    Operation(
        "exclude",
        "Leave a message, with the tool results that belong to it, out of context and budget.",
        (
            Argument("node", "node", "the message", required=True),
            Argument("include", "flag", "undo it", flag="-"),
        ),
        '{"excluded":["n1"]}',
        "tl exclude --node n1",
        changes=True,
        tool="timeline_exclude",
        group="more",
    ),
    Operation(
        "include",
        "Undo exclude.",
        (Argument("node", "node", "the message", required=True),),
        '{"included":["n1"]}',
        "tl include --node n1",
        changes=True,
    ),
    Operation(
        "summarize",
        "Write a summary of an interval beside its originals. It speaks where the whole interval "
        "is on the path; fork from it to go on with it in their place.",
        (
            Argument("from", "node", "first node of the interval", required=True),
            Argument("to", "node", "last node of the interval", required=True),
            Argument("summary", "text", "the summary", required=True),
            _tokens_argument(),
            Argument("derived_from", "nodes", "what else it rests on"),
            Argument("supersede", "node", "the newest summary of this interval, to be replaced"),
            _INTENT,
        ),
        '{"node":"n4"}',
        'tl summarize --from n1 --to n2 --summary "Agreed: UTF-8 with BOM"',
        changes=True,
        tool="timeline_summarize",
        key_shown=True,
    ),
    Operation(
        "branches",
        "List the branches, oldest first, with head, size and where each began.",
        (Argument("all", "flag", "archived and dropped ones too"), *_page_arguments("branch")),
        '[{"name":"main","head":"n2","current":true,"parent":null,"fork_node":null,"created_at":1767225600,"messages":2,"tokens":16}]',
        "tl branches --all",
        tool="timeline_branches",
    ),
    Operation(
        "node",
        "Read one node in full: links, text, tokens, marks, summaries over it.",
        (
            Argument("node", "node", "the node", required=True),
            Argument("blocks", "flag", "with the blocks of an imported message"),
            Argument("offset", "count", "text from this character on"),
            Argument("chars", "count", "at most this much of the text"),
        ),
        '{"node":"n1","parent":"n0","children":["n2"],"role":"user","text":"...","tokens":8,...}',
        "tl node --node n1",
        tool="timeline_node",
    ),
    Operation(
        "archive_check",
        "Say whether a branch may go to the archive, and what stands in the way.",
        (Argument("branch", "branch", "the branch", flag="name", required=True), _SCOPE),
        '{"eligible":false,"reasons":[{"reason":"uncovered","nodes":["n4"],"count":1,"message":"..."}]}',
        "tl archive-check --name plan-b",
        tool="timeline_archive_check",
    ),
    Operation(
        "archive_branch",
        "Move a finished branch to the archive: summarized, unpinned, not current. It stays "
        "readable.",
        (Argument("branch", "branch", "the branch", flag="name", required=True), _SCOPE),
        '{"archived":["n2","n3"]}',
        "tl archive-branch --name plan-b",
        changes=True,
        tool="timeline_archive_branch",
    ),
    Operation(
        "thaw",
        "Bring an archived node and what lies above it, or an archived branch, back.",
        (
            Argument("node", "node", "the node"),
            Argument("name", "branch", "the archived branch"),
            Argument("as_name", "name", "a new name, if its own is taken"),
        ),
        '{"thawed":["n2","n5"]}',
        "tl thaw --name plan-b",
        changes=True,
        tool="timeline_thaw",
        group="more",
    ),
    Operation(
        "list",
        "List the timelines (conversations), last changed first, with current branch and head.",
        (
            Argument("project", "string", "only those recorded in this folder"),
            Argument("subagents", "flag", "subagents' runs too"),
            *_page_arguments("timeline"),
        ),
        '[{"timeline_id":"tl0","title":null,"branches":1,"current_branch":"main","head":"n2","messages":2,"tokens":16,"project":null,"created_at":1767225600,"updated_at":1767225602}]',
        "tl list --limit 10",
        tool="timeline_list",
        group="more",
        scope="database",
    ),
    Operation(
        "summaries",
        "List the summaries that concern a branch, with interval and status.",
        (
            Argument("branch", "branch", "the branch (default: the current one)"),
            *_page_arguments("node"),
        ),
        '[{"node":"n4","from":"n1","to":"n2","kind":"real","version":1,"status":"active","tokens":12,"stale":false,"supersedes":null,"superseded_by":null}]',
        "tl summaries --branch main",
        tool="timeline_summaries",
        group="more",
    ),
    Operation(
        "search",
        "Find text in messages and summaries, newest first, archived and excluded ones too.",
        (
            Argument("text", "needle", "what to find", required=True, positional=True),
            Argument("regex", "flag", "text is a Python regular expression"),
            Argument("ignore_case", "flag", "case does not matter"),
            Argument("role", "choice", "only this role", choices=ROLES),
            Argument("branch", "branch", "only what is on its path"),
            Argument("subagents", "flag", "in subagents' runs too"),
            *_page_arguments("node", limit=20),
        ),
        '[{"timeline_id":"tl0","node":"n1","role":"user","snippet":"...","branches":["main"],"created_at":1767225601}]',
        'tl search "export" --ignore-case',
        tool="timeline_search",
        group="more",
        timeline=_ANY_TIMELINE,
    ),
    Operation(
        "audit",
        "List what was done, oldest first: every committed operation without its text.",
        (
            Argument("since", "seq", "only what came after this seq"),
            Argument("limit", "count", "at most this many", default=1000),
        ),
        '[{"seq":2,"ts":1767225601,"op":"append","timeline":"tl0","node":"n1","parent":"n0"}]',
        "tl audit --since 100",
        timeline=_ANY_TIMELINE,
    ),
    Operation(
        "rename",
        "Give a timeline another title, or a branch another name.",
        (
            Argument("title", "title", "the timeline's new title"),
            Argument("branch", "branch", "the branch to rename"),
            Argument("to", "name", "its new name"),
        ),
        '{"renamed":"plan-b","to":"plan-c"}',
        "tl rename --branch plan-b --to plan-c",
        changes=True,
    ),
    Operation(
        "where",
        "Say which database file is used and how it is. Never fails.",
        (),
        '{"path":"...","source":"default","exists":true,"size":1024,"transactions":3,"nodes":2,"index":"absent"}',
        "tl where",
        scope="none",
    ),
    Operation(
        "doctor",
        "Check the whole file and its index; with --repair-to write what is readable to a new "
        "file.",
        (
            Argument("repair_to", "path", "the new database; the old one is never touched"),
            Argument("until", "seq", "with --repair-to: stop after this seq"),
        ),
        '{"ok":true,"transactions":3,"nodes":2,"problems":[]}',
        "tl doctor",
        scope="none",
    ),
    Operation(
        "compact",
        "Empty the content of nodes for ever (for secrets): text, note, source and blocks. "
        "Numbers, "
        "tokens and audit stay.",
        (
            Argument("purge", "nodes", "the nodes to empty", required=True),
            Argument("yes", "flag", "do not ask for confirmation on a terminal"),
        ),
        '{"purged":["n5"],"generation":2}',
        "tl compact --purge n5 --yes",
        scope="none",
    ),
    Operation(
        "tree",
        "Draw the tree of a timeline as text.",
        (Argument("branch", "branch", "only this branch's path"), *_PART, *_TEXT_PICTURE),
        "the picture, as text",
        "tl tree",
    ),
    Operation(
        "export",
        "Write a picture or a transcript of a timeline, of one branch's path, or of one interval.",
        (
            Argument(
                "format",
                "choice",
                "ascii, mermaid, markdown, json (all there is, for import): also to standard "
                "output; drawio, html: need --output; claude-code: a branch as a session for "
                "`claude --resume`, in the folder --output",
                default="ascii",
                choices=EXPORT_FORMATS,
            ),
            Argument(
                "output",
                "path",
                "the file to write (claude-code: the folder); an existing file is an error",
            ),
            Argument("force", "flag", "replace an existing file"),
            Argument("branch", "branch", "only this branch's path (markdown: the current one)"),
            *_PART,
            *_TEXT_PICTURE,
        ),
        '{"format":"drawio","timeline_id":"tl0","output":"...","nodes":7,"edges":6}; without '
        "--output the picture itself",
        "tl export --format drawio --output talk.drawio",
    ),
    Operation(
        "import",
        "Read agent transcripts into timelines; what is known already is not read twice.",
        (
            Argument(
                "paths", "paths", "files, folders or ZIP files", required=True, positional=True
            ),
            Argument(
                "format",
                "choice",
                "what the files are (auto: told by their content)",
                default="auto",
                choices=(
                    "auto",
                    "claude-code",
                    "codex",
                    "pi",
                    "gemini",
                    "chatgpt",
                    "claude-ai",
                    "opencode",
                    "openai",
                    "anthropic",
                    "messages",
                    "timeline-json",
                ),
            ),
            Argument("into", "timeline", "put the conversation into this timeline"),
            Argument("dry_run", "flag", "say what would be read, write nothing"),
            Argument(
                "attachments", "flag", "keep pictures and other binary content beside the database"
            ),
            Argument(
                "ids",
                "path",
                "timeline-json: write here, as JSON, which node became which; an existing file is "
                "an error",
            ),
        ),
        '{"timelines":[{"timeline_id":"tl0","title":"...","added":7,...}],"unrecognized":[]}',
        "tl import ~/.claude/projects/my-project",
        changes=True,
        scope="database",
    ),
    Operation(
        "sync",
        "Find what the coding agents on this machine wrote to disk, and import what is new in it. "
        "An answer that may still grow waits for the next time.",
        (
            Argument(
                "client",
                "choice",
                "whose transcripts",
                default="all",
                choices=("all", *SYNC_CLIENTS),
            ),
            Argument("project", "string", "only sessions that worked in this folder or below"),
            Argument("since", "count", "only files changed within so many days", flag="since"),
        ),
        '{"timelines":[{"timeline_id":"tl0","title":"...","added":7,...}],"unrecognized":[],"unchanged":12}',
        "tl sync --client claude-code",
        changes=True,
        tool="timeline_sync",
        group="sync",
        scope="database",
    ),
    Operation(
        "hook",
        "For clients, which run it at events of a session: reads the event, a JSON object, from "
        "standard input and imports the transcript that it names. Prints only what the client is "
        "to show its model, and always exits 0; what happened stands in the database's .hook.log.",
        (),
        "nothing, or the client's JSON with what the model is told",
        "tl hook",
        scope="none",
    ),
    Operation(
        "hook_config",
        "Print the settings that let a client run `tl hook` by itself. stdout holds them alone, "
        "stderr says in which file they go.",
        (
            Argument(
                "client",
                "choice",
                "the client",
                default="claude-code",
                choices=("claude-code", "codex", "gemini"),
            ),
        ),
        "the settings, as JSON; with the database of --db or TIMELINE_DB, if given",
        "tl hook-config --client claude-code",
        scope="none",
    ),
    Operation(
        "demo",
        "Tell the whole story in a fresh database: import, fork, summarize, budget, archive, "
        "thaw, tree. TIMELINE_DB is not used.",
        (),
        "the story, as text",
        "tl demo",
        scope="none",
    ),
    Operation(
        "skill",
        "Install SKILL.md, which tells an agent when to use Timeline, as timeline/SKILL.md in its "
        "folder of skills.",
        (
            Argument(
                "action",
                "choice",
                "where it is, its text, or copy it (a different file there is kept as "
                "SKILL.md.bak-TIME)",
                required=True,
                choices=("path", "print", "install"),
                positional=True,
            ),
            Argument("to", "path", "folder of skills to install into"),
            Argument(
                "client",
                "choice",
                "claude-code: .claude/skills in the home folder; agents: .agents/skills, which "
                "other clients read; all: both, as without --to",
                choices=("claude-code", "agents", "all"),
            ),
            Argument("project", "flag", "into the current folder instead of the home folder"),
        ),
        '{"installed":[{"path":"...","status":"written"}]}; of path and print: text',
        "tl skill install --client all",
        scope="none",
    ),
    Operation(
        "mcp_config",
        "Print the entry that starts tl-mcp for a client's configuration. stdout holds the entry "
        "alone, stderr says in which file it goes and which database it names.",
        (
            Argument(
                "client",
                "choice",
                "the client",
                default="generic",
                choices=(
                    "claude-code",
                    "claude-desktop",
                    "cursor",
                    "vscode",
                    "codex",
                    "gemini",
                    "opencode",
                    "generic",
                ),
            ),
        ),
        "the entry, as JSON (codex: TOML); with the database of --db or TIMELINE_DB, if given",
        "tl mcp-config --client cursor",
        scope="none",
    ),
)

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _OPERATION_LIST}


def check_arguments(operation: Operation, given: Mapping[str, object]) -> Json:
    """Every argument of `operation` with its checked value; what was not given has its default.

    Node and timeline ids come back as numbers. State is not looked at.

    Raises:
        InvalidArgument: an unknown name, a missing argument, a wrong type or range.
    """
    checked = operation.defaults.copy()
    known = operation.by_name
    for name, value in given.items():
        argument = known.get(name)
        if argument is None:
            if name == "idempotency_key":
                raise InvalidArgument(f"`{operation.name}` only reads: it takes no idempotency key")
            raise InvalidArgument(
                f"unknown argument {quoted(name)}: `{operation.name}` takes "
                f"{', '.join(known) or 'none'}"
            )
        if value is not None:
            checked[name] = _CHECKS[argument.kind](argument, value)
    for name in operation.required:
        if name not in checked:
            raise InvalidArgument(f"`{operation.name}` needs {name}: {known[name].help}")
    return checked


def check_value(argument: Argument, value: object) -> Any:
    """The checked value of one argument.

    Raises:
        InvalidArgument: a wrong type or range.
    """
    return _CHECKS[argument.kind](argument, value)


def quoted(value: object) -> str:
    """`value` for an error message: a JSON literal, at most 80 characters of it."""
    try:
        text = value if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):  # a number of very many digits, a very deep list
        text = f"<{type(value).__name__}>"
    shown = text if len(text) <= 80 else text[:77] + "..."
    return '"' + "".join(_visible(char) for char in shown) + '"'


# Marks that reorder or hide text in a terminal.
_STEERING = (0x61C, 0x200B, 0x200E, 0x200F, 0x2066, 0x2067, 0x2068, 0x2069, 0xFEFF)


def _visible(char: str) -> str:
    """`char`, or an escape where it could drive a terminal or break UTF-8."""
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    if 0xD800 <= code < 0xE000 or code in _STEERING or 0x2028 <= code <= 0x202E:
        return f"\\u{code:04x}"
    return char


def _wrong(argument: Argument, value: object, wanted: str) -> InvalidArgument:
    given = quoted(value) if isinstance(value, str) else f"{quoted(value)} ({type(value).__name__})"
    return InvalidArgument(f"{argument.name} must be {wanted}, not {given}", argument=argument.name)


def _check_string(argument: Argument, value: object) -> str:
    if type(value) is not str:
        raise _wrong(argument, value, "a string")
    check_scalars(value, argument.name)
    return value


def check_scalars(text: str, what: str) -> None:
    """Raise InvalidArgument if `text` holds a lone surrogate, naming its position."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidArgument(
            f"{what} holds a lone surrogate (U+{code:04X}) at character {error.start}: "
            "text must be Unicode scalar values",
            position=error.start,
        ) from None


def _check_text(argument: Argument, value: object) -> str:
    text = _check_string(argument, value)
    size = len(text) if text.isascii() else len(text.encode())
    if size > TEXT_BYTES_MAX:
        raise InvalidArgument(
            f"{argument.name} is {size} bytes of UTF-8, above the limit of {TEXT_BYTES_MAX}: "
            "split it",
            bytes=size,
            max_bytes=TEXT_BYTES_MAX,
        )
    return text


def _check_needle(argument: Argument, value: object) -> str:
    text = _check_string(argument, value)
    if not text:
        raise InvalidArgument("text is empty: say what to search for")
    return text


def _check_title(argument: Argument, value: object) -> str:
    text = _check_string(argument, value)
    if len(text) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"{argument.name} has {len(text)} characters, above the limit of {NAME_CHARS_MAX}"
        )
    return text


def _check_name(argument: Argument, value: object) -> str:
    return check_name(_check_string(argument, value), argument.name)


def check_name(name: str, what: str = "name") -> str:
    """`name` itself if a branch may be called so.

    Raises:
        InvalidArgument: empty, above 200 characters, a `/`, a control character, or white space
            at an end.
    """
    if not name:
        raise InvalidArgument(f"{what} is empty: a branch needs a name")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidArgument(
            f"{what} has {len(name)} characters, above the limit of {NAME_CHARS_MAX}"
        )
    if "/" in name:
        raise InvalidArgument(f"{what} {quoted(name)} holds a /: branch names have none")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in name):
        raise InvalidArgument(f"{what} {quoted(name)} holds a control character")
    if name != name.strip():
        raise InvalidArgument(f"{what} {quoted(name)} begins or ends with white space")
    return name


def _check_choice(argument: Argument, value: object) -> str:
    if type(value) is not str or value not in argument.choices:
        raise _wrong(argument, value, "one of " + ", ".join(argument.choices))
    return value


def _check_flag(argument: Argument, value: object) -> bool:
    if type(value) is not bool:
        raise _wrong(argument, value, "true or false")
    return value


def _check_count(argument: Argument, value: object) -> int:
    if type(value) is not int or not 0 <= value <= TOKENS_MAX:
        raise _wrong(argument, value, f"a whole number from 0 to {TOKENS_MAX}")
    return value


def _number_after(prefix: str, value: object) -> int | None:
    """The number of an id such as n12 or tl3, None if `value` is no such id."""
    if type(value) is not str or not value.startswith(prefix):
        return None
    digits = value[len(prefix) :]
    if (
        not digits.isascii()
        or not digits.isdigit()
        or (digits[0] == "0" and digits != "0")
        or len(digits) > 18
    ):
        return None
    return int(digits)


def _check_node(argument: Argument, value: object) -> int:
    number = _number_after("n", value)
    if number is None:
        raise _wrong(argument, value, "a node id such as n12")
    return number


def _check_timeline(argument: Argument, value: object) -> int:
    number = _number_after("tl", value)
    if number is None:
        raise _wrong(argument, value, "a timeline id such as tl0")
    return number


def _check_nodes(argument: Argument, value: object) -> list[int]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(argument, value, 'a list of node ids such as ["n9","n10"]')
    numbers = dict.fromkeys(_check_node(argument, item) for item in value)
    if len(numbers) > DERIVED_MAX:
        raise InvalidArgument(
            f"{argument.name} has {len(numbers)} entries, above the limit of {DERIVED_MAX}"
        )
    return list(numbers)


def _check_paths(argument: Argument, value: object) -> list[str]:
    if not isinstance(value, (list, tuple)) or not value:
        raise _wrong(argument, value, "a list of paths")
    return [_check_path(argument, item) for item in value]


def _check_path(argument: Argument, value: object) -> str:
    if type(value) is not str or not is_path(value):
        raise _wrong(argument, value, "a path that this system can write")
    return value


def is_path(path: str) -> bool:
    """Whether the system can take `path`, whose text may hold bytes that are no UTF-8."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return bool(path) and "\0" not in path


def _check_key(argument: Argument, value: object) -> str:
    text = _check_string(argument, value)
    if not 1 <= len(text) <= KEY_CHARS_MAX:
        raise InvalidArgument(
            f"{argument.name} has {len(text)} characters; 1 to {KEY_CHARS_MAX} are allowed"
        )
    return text


def _check_intent(argument: Argument, value: object) -> Json:
    if not isinstance(value, dict) or not set(value) <= {"tag", "note"}:
        raise _wrong(argument, value, 'an object {"tag": "...", "note": "..."}')
    tag, note = value.get("tag"), value.get("note")
    if type(tag) is not str or not 1 <= len(tag) <= NAME_CHARS_MAX:
        given = "" if tag is None else f", not {quoted(tag)}"
        raise InvalidArgument(
            f"an intent needs a tag, a string of 1 to {NAME_CHARS_MAX} characters{given}"
        )
    check_scalars(tag, "the intent's tag")
    if note is None:
        return {"tag": tag}
    if type(note) is not str or len(note) > NOTE_CHARS_MAX:
        raise InvalidArgument(
            f"an intent's note is a string of at most {NOTE_CHARS_MAX} characters"
        )
    check_scalars(note, "the intent's note")
    return {"tag": tag, "note": note}


def _check_width(argument: Argument, value: object) -> str | int:
    if value == "auto":
        return "auto"
    digits = type(value) is str and value.isascii() and value.isdigit() and len(value) < 10
    number = int(value) if digits else value  # type: ignore[call-overload]
    if type(number) is int and 0 < number <= TOKENS_MAX:
        return number
    raise _wrong(argument, value, "auto or a number of columns")


_CHECKS: dict[str, Callable[[Argument, Any], Any]] = {
    "branch": _check_title,
    "choice": _check_choice,
    "count": _check_count,
    "flag": _check_flag,
    "intent": _check_intent,
    "key": _check_key,
    "name": _check_name,
    "needle": _check_needle,
    "node": _check_node,
    "nodes": _check_nodes,
    "path": _check_path,
    "paths": _check_paths,
    "seq": _check_count,
    "string": _check_string,
    "text": _check_text,
    "timeline": _check_timeline,
    "title": _check_title,
    "tokens": _check_count,
    "width": _check_width,
}


# ================================================================================================
# 4. Format
#
# Knows how a line of the log looks; must not know what the operations mean.
# ================================================================================================


def _json_codec() -> tuple[Callable[[Any], str], Callable[[str], Any], Callable[[str], str]]:
    """(dumps, loads, loads of one string literal), all without ASCII escapes.

    `import json` costs more than a whole one-shot append; the C parts it is made of do not. Where
    they are not as expected, and for the proper error, `json` itself is used.
    """

    def loads_slow(text: str) -> Any:
        import json

        return json.loads(text)

    def dumps_slow(value: Any) -> str:
        import json

        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    try:
        from _json import encode_basestring, scanstring
        from _json import make_encoder as encoder_class
        from _json import make_scanner as scanner_class
    except ImportError:
        return dumps_slow, loads_slow, loads_slow

    class Settings:
        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = None
        memo: dict[str, str] = {}  # noqa: RUF012

    try:
        # Typed loosely: their signatures are no public interface.
        make_scanner: Any = scanner_class
        make_encoder: Any = encoder_class
        scan = make_scanner(Settings)
        encode: Any = make_encoder(
            None, None, encode_basestring, None, ":", ",", False, False, False
        )
        if encode({"a": [1, "\u00fc"]}, 0) is None or scan("[1]", 0) != ([1], 3):
            return dumps_slow, loads_slow, loads_slow
    except (TypeError, AttributeError, SystemError, StopIteration):
        return dumps_slow, loads_slow, loads_slow

    def dumps(value: Any) -> str:
        return "".join(encode(value, 0))

    def loads(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError, TypeError):  # TypeError: NaN and Infinity
            return loads_slow(text)
        # Nothing else is white space of JSON, though `str` knows more of it.
        return value if end == len(text) or not text[end:].strip(" \t\r\n") else loads_slow(text)

    def loads_string(literal: str) -> str:
        return str(scanstring(literal, 1, True)[0])

    return dumps, loads, loads_string


dumps, loads, _loads_string = _json_codec()

_CRC_BYTES = 19  # ,"crc":"xxxxxxxx"} and the newline
_TEXT_MARK = b',"text":'
_PURGED_END = b',"purged":true,"text":""'


def encode_line(record: Json, crc: int) -> tuple[bytes, int]:
    """The line of `record` behind a line whose crc is `crc`, and its own crc."""
    body = dumps(record)[:-1].encode()
    crc = zlib.crc32(body, crc)
    return body + b',"crc":"%08x"}\n' % crc, crc


def line_crc(line: bytes, crc: int) -> int | None:
    """The crc of a whole `line` behind a line with `crc`; None if the line is not whole and
    right."""
    if line[-19:-11] != b',"crc":"' or line[-3:] != b'"}\n':
        return None
    crc = zlib.crc32(line[:-19], crc)
    return crc if line[-11:-3] == b"%08x" % crc else None


def decode_head(line: bytes) -> Json:
    """The record of a whole line without its `text`, which is the costly part to decode.

    Raises:
        ValueError: not a JSON object.
    """
    cut = line.rfind(_TEXT_MARK)
    if cut > 0:
        try:
            # A mark inside a nested object leaves its braces open, so this fails and the whole
            # line is read; inside a string the quotes would be escaped.
            return _as_object(loads(line[:cut].decode() + "}"))
        except ValueError:
            pass
    return _as_object(loads(line.decode()))


def decode_line(line: bytes) -> Json:
    """The whole record of a line. Raises ValueError like `decode_head`."""
    return _as_object(loads(line.decode()))


def _as_object(value: object) -> Json:
    if type(value) is not dict:
        raise ValueError("a line must hold a JSON object")
    return value


def is_purged(line: bytes) -> bool:
    """Whether `line`, of a node, is one whose content was emptied."""
    # `purged` is the last key before the text, and that is empty: nothing else can end so.
    return line.endswith(_PURGED_END, 0, len(line) - _CRC_BYTES)


def line_text(line: bytes) -> str:
    """The text of a line that ends in its text and its crc."""
    text = line[line.rindex(_TEXT_MARK) + 9 : -20]  # without the quotes
    if b"\\" in text:
        return _loads_string(f'"{text.decode()}"')
    return text.decode()


def new_header(created: int, generation: int = 1, previous: str | None = None) -> bytes:
    """The first line of a log with a fresh log_id."""
    record: Json = {
        "timeline": "log",
        "format_version": FORMAT_VERSION,
        "log_id": os.urandom(16).hex(),
        "generation": generation,
        "prev_log_id": previous,
        "created": created,
    }
    return encode_line(record, 0)[0]


class Header:
    """The first line of a log: what it says, its `length` in bytes and its `crc`."""

    __slots__ = ("crc", "created", "generation", "length", "log_id")

    def __init__(self, record: Json, length: int, crc: int) -> None:
        self.log_id: str = record["log_id"]
        self.generation: int = record["generation"]
        self.created: int = record["created"]
        self.length = length
        self.crc = crc


def parse_header(line: bytes, path: str) -> Header:
    """The header of a log, from its first line with the newline.

    Raises:
        Corrupt: it is not a Timeline database, or the line is damaged.
        UnknownVersion: a newer format_version.
    """
    try:
        record = decode_line(line)
    except (ValueError, RecursionError):
        if _HEADER_MARK in line[:40]:
            raise _damaged_header(path, line) from None
        raise Corrupt(
            f"{path} is no Timeline database (line 1, byte 0 is no header of one): choose "
            "another --db",
            line=1,
            byte=0,
        ) from None
    version = record.get("format_version")
    if record.get("timeline") != "log":
        raise Corrupt(foreign_message(record, path), line=1, byte=0)
    if type(version) is not int or version > FORMAT_VERSION:
        raise UnknownVersion(
            f"{path} has format_version {version!s:.40}; this program knows up to "
            f"{FORMAT_VERSION}: upgrade it",
            line=1,
            byte=0,
            format_version=version,
        )
    crc = line_crc(line, 0)
    if crc is None or version < 1 or not _has_header_fields(record):
        raise _damaged_header(path, line)
    return Header(record, len(line), crc)


_HEADER_MARK = b'"timeline":"log"'
_LINE_BEGINS = (b'{"seq":', b'{"timeline":"log"')


def _has_header_fields(record: Json) -> bool:
    log_id = record.get("log_id")
    return (
        type(log_id) is str
        and len(log_id) == 32
        and not log_id.strip("0123456789abcdef")
        and type(record.get("generation")) is int
        and type(record.get("created")) is int
    )


def _damaged_header(path: str, line: bytes) -> Corrupt:
    advice = "`tl doctor --repair-to NEW` writes the lines behind it to a new file"
    if not line.endswith(b"\n"):
        advice = "the file ends within it, so that nothing is left: put a copy in its place"
    return Corrupt(f"{path}: line 1, byte 0: the header is damaged; {advice}", line=1, byte=0)


def foreign_message(record: object, path: str) -> str:
    """Why a file whose content is the JSON value `record` is no log."""
    if isinstance(record, dict) and "format_version" in record:
        return f"{path} is a snapshot of the earlier Timeline; choose another --db"
    return f"{path} is no Timeline database but another program's file: choose another --db"


# Keys of the lookup. Any two of them may share a hash: a hit is always compared with its line.


def lookup_hash(kind: str, value: str) -> int:
    """64-bit hash of a lookup key, never 0. Not against malice: a collision only costs a read."""
    data = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
    return (zlib.crc32(data) | zlib.crc32(data[::-1]) << 32) or 1


def key_hash(tl: int | None, key: str) -> int:
    """For an idempotency key of timeline `tl`, or of the database (None)."""
    return lookup_hash("key", f"{'' if tl is None else tl}\0{key}")


def identity_hash(identity: str) -> int:
    """For the identity of an imported message."""
    return lookup_hash("id", identity)


def summary_hash(first: int, last: int, tokens: int, supersedes: int | None) -> int:
    """For a real summary; its text and the rest are compared in the line."""
    return lookup_hash("summary", f"{first} {last} {tokens} {supersedes or 0}")


def placeholder_hash(first: int, last: int) -> int:
    """For the placeholder of an interval."""
    return lookup_hash("placeholder", f"{first} {last}")


def to_runs(numbers: Iterable[int]) -> list[list[int]]:
    """`numbers` in their order as [first, last] runs of consecutive ones: [4,5,6,9] ->
    [[4,6],[9,9]]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> list[int]:
    """The numbers that `to_runs` was given."""
    return [number for first, last in runs for number in range(first, last + 1)]


# ================================================================================================
# 5. State
#
# Rows hold what never changes about a node, state what does. `apply` is the only function that
# changes either, and it reads nothing but its arguments: live writes, catching up, rebuilding,
# doctor and repair all go through it. Knows records; must not know files or locks.
# ================================================================================================

ROW = Struct("<2Q12I")
ROW_BYTES = ROW.size  # 64
OFFSET, PREFIX, PARENT, DEPTH, JUMP, TL, FLAGS, FROM, TO, PREV, FACT, LENGTH, COUNT, CRC = range(14)
# OFFSET, LENGTH: the node's line in the log. PREFIX: tokens of root..node. JUMP: a far ancestor.
# FROM, TO: a summary's interval. PREV: the summary of the same kind made before it in the
# timeline. COUNT: nodes of root..node that a context would show, copies left out.
# FACT: nearest fact node on the lineage, 0 while there are none.

ROOT_ROW: Row = (0,) * 14

ROLE_MASK = 7  # index in ROLES
KIND_REAL = 8
KIND_PLACEHOLDER = 16
KIND_SUMMARY = KIND_REAL | KIND_PLACEHOLDER
JOINS = 64  # belongs to the unit of its predecessor: a tool node, or blocks that hold a tool result
HAS_INTENT = 128
IS_COPY = 256  # a copy of a message that a client kept behind its own summary
HAS_SOURCE = 512  # came from a transcript

_ROLE_INDEX = {role: index for index, role in enumerate(ROLES)}
_pack_unchecked = Struct("<2Q11I").pack  # all but the row's crc
_unpack_row_from = ROW.unpack_from
_unpack_depth_and_jump = Struct("<2I").unpack_from
_U32 = Struct("<I")
_PARENT_BYTE = 16  # where PARENT stands in a row
_ROWS_KEPT = 1024  # half a megabyte


class Rows:
    """Row of each node: rows 1..stored by `read` from the index file, later ones in `tail`.

    Row i lies at byte i*64 of the file, whose first 64 bytes are a header.
    """

    __slots__ = ("_kept", "_newest", "_newest_row", "read", "stored", "tail")

    def __init__(self, read: Callable[[int, int], bytes] | None = None, stored: int = 0) -> None:
        self.read = read
        self.stored = stored
        self.tail = bytearray()
        # Stored rows read one by one: rows never change, and walks by jumps share most of them.
        self._kept: dict[int, Row] = {}
        self._newest = 0  # the row added last, since it is the parent of most that follow
        self._newest_row = ROOT_ROW

    def __len__(self) -> int:
        return self.stored + len(self.tail) // ROW_BYTES

    def __getitem__(self, node: int) -> Row:
        """Raises _IndexUnfit if the stored row is damaged."""
        place = node - self.stored - 1
        if place >= 0:
            return _unpack_row_from(self.tail, place * ROW_BYTES)
        if node == 0:
            return ROOT_ROW
        row = self._kept.get(node)
        if row is None:
            row = checked_row(self.stored_chunk(node, node), 0)
            if len(self._kept) >= _ROWS_KEPT:
                self._kept.clear()
            self._kept[node] = row
        return row

    def add(
        self,
        offset: int,
        length: int,
        tokens: int,
        parent: int,
        tl: int,
        flags: int,
        first: int = 0,
        last: int = 0,
        previous: int = 0,
    ) -> Row:
        """Append the row of the next node and return its parent's. O(1): depth, prefix and jump
        come from that one."""
        above = self._newest_row if parent == self._newest else self[parent]
        depth, jump = above[DEPTH], above[JUMP]
        if jump:
            far_depth, far_jump = self._depth_and_jump(jump)
            # Skew-binary jumps: two jumps of equal length are followed by one over both.
            if far_jump and depth - far_depth == far_depth - self._depth_and_jump(far_jump)[0]:
                jump = far_jump
            else:
                jump = parent
        else:
            jump = parent
        row = (
            offset,
            above[PREFIX] + tokens,
            parent,
            depth + 1,
            jump,
            tl,
            flags,
            first,
            last,
            previous,
            0,
            length,
            above[COUNT] + (0 if flags & IS_COPY else 1),
        )
        raw = _pack_unchecked(*row)
        crc = zlib.crc32(raw)
        self.tail += raw + crc.to_bytes(4, "little")
        self._newest = self.stored + len(self.tail) // ROW_BYTES
        self._newest_row = (*row, crc)
        return above

    def _depth_and_jump(self, node: int) -> tuple[int, int]:
        place = node - self.stored - 1
        if place >= 0:
            return _unpack_depth_and_jump(self.tail, place * ROW_BYTES + 20)
        row = self[node]
        return row[DEPTH], row[JUMP]

    def chunks(self, first: int, last: int, size: int = 4096) -> Iterator[tuple[int, bytes]]:
        """(number of the first row, raw rows) over rows first..last, oldest first, unchecked."""
        while first <= last:
            if first > self.stored:
                start = (first - self.stored - 1) * ROW_BYTES
                yield first, bytes(self.tail[start : (last - self.stored) * ROW_BYTES])
                return
            upto = min(last, self.stored, first + size - 1)
            yield first, self.stored_chunk(first, upto)
            first = upto + 1

    def stored_chunk(self, first: int, last: int) -> bytes:
        """Raw rows first..last of the file. Raises _IndexUnfit if they are not all there."""
        assert self.read is not None
        raw = self.read((last - first + 1) * ROW_BYTES, first * ROW_BYTES)
        if len(raw) != (last - first + 1) * ROW_BYTES:
            raise _IndexUnfit("rows end early")
        return raw


def checked_row(raw: bytes, place: int) -> Row:
    """The row at byte `place` of `raw`. Raises _IndexUnfit if it is damaged."""
    row = _unpack_row_from(raw, place)
    if row[CRC] != zlib.crc32(raw[place : place + 60]):
        raise _IndexUnfit("a row is damaged")
    return row


def rows_are_whole(raw: bytes) -> bool:
    """Whether every row of `raw` ends in its own crc.

    The crc of bytes that end in their crc is the same whatever they are, and so is that of many
    such rows in a line: one call compares them with as many rows of zeros.
    """
    count = len(raw) // ROW_BYTES
    blank = bytes(60) + _U32.pack(zlib.crc32(bytes(60)))
    return zlib.crc32(raw) == zlib.crc32(blank * count)


LIVE, ARCHIVED, DROPPED = range(3)
STATUS_NAMES = ("live", "archived", "dropped")


class Branch:
    """A branch: `number` is its identity, kept when it is renamed; `ended` the seq of its end."""

    __slots__ = (
        "created_at",
        "ended",
        "fork_node",
        "head",
        "imported",
        "name",
        "number",
        "parent",
        "status",
    )

    def __init__(
        self,
        number: int,
        name: str,
        head: int,
        fork_node: int | None,
        parent: int | None,
        created_at: int,
        imported: int = 0,
        status: int = LIVE,
        ended: int = 0,
    ) -> None:
        self.number = number
        self.name = name
        self.head = head
        self.fork_node = fork_node
        self.parent = parent
        self.created_at = created_at
        self.imported = imported
        self.status = status
        self.ended = ended

    def to_json(self) -> list[object]:
        return [
            self.number,
            self.name,
            self.head,
            self.fork_node,
            self.parent,
            self.created_at,
            self.imported,
            self.status,
            self.ended,
        ]


class TimelineState:
    """What changes about one timeline."""

    __slots__ = (
        "branches",
        "changed",
        "created_at",
        "current",
        "ended",
        "estimator",
        "excluded",
        "inline",
        "last_summary",
        "messages",
        "next_branch",
        "pins",
        "placeholder",
        "real",
        "segments",
        "sessions",
        "source",
        "title",
        "titled",
        "tokens",
        "updated_at",
    )

    def __init__(self, title: str | None, estimator: str, created_at: int) -> None:
        self.title = title
        self.titled = 0  # a user has given the title
        self.estimator = estimator
        self.created_at = created_at
        self.updated_at = created_at
        self.changed = 0  # seq of the last transaction that named it
        self.source: Json | None = None
        self.branches: dict[str, Branch] = {}  # live ones
        self.ended: list[Branch] = []  # archived and dropped ones, in the order they ended
        self.current = "main"
        self.next_branch = 0
        self.pins: dict[int, int] = {}  # node -> seq of pinning
        self.excluded: dict[int, int] = {}  # first node of the unit -> seq
        self.segments: list[list[int]] = []  # [top, head]: messages from top to head are cold
        self.last_summary = 0  # seq of the newest summary or placeholder
        self.real = 0  # newest real summary
        self.placeholder = 0  # newest placeholder
        self.inline: dict[int, int] = {}  # real summaries that have children
        self.messages = 0
        self.tokens = 0
        self.sessions: dict[
            str, list[int]
        ] = {}  # imported session -> [branch number, node last reached]

    def add_branch(
        self,
        name: str,
        head: int,
        fork_node: int | None,
        parent: int | None,
        now: int,
        imported: int = 0,
    ) -> None:
        self.branches[name] = Branch(self.next_branch, name, head, fork_node, parent, now, imported)
        self.next_branch += 1

    def in_order(self) -> list[Branch]:
        """Live branches, oldest first."""
        return sorted(self.branches.values(), key=_branch_number)

    def end_branch(self, name: str, status: int, seq: int) -> None:
        branch = self.branches.pop(name)
        branch.status = status
        branch.ended = seq
        self.ended.append(branch)

    def live_branch(self, number: int | None) -> Branch | None:
        """The live branch with this identity."""
        if number is None:
            return None
        return next((branch for branch in self.branches.values() if branch.number == number), None)

    def to_json(self) -> Json:
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["branches"] = [branch.to_json() for branch in self.branches.values()]
        plain["ended"] = [branch.to_json() for branch in self.ended]
        plain["pins"] = list(self.pins.items())
        plain["excluded"] = list(self.excluded.items())
        plain["inline"] = list(self.inline)
        return plain

    @classmethod
    def from_json(cls, plain: Json) -> TimelineState:
        state = cls.__new__(cls)
        for name in cls.__slots__:
            setattr(state, name, plain[name])
        branches = [Branch(*fields) for fields in plain["branches"]]
        state.branches = {branch.name: branch for branch in branches}
        state.ended = [Branch(*fields) for fields in plain["ended"]]
        state.pins = dict(plain["pins"])
        state.excluded = dict(plain["excluded"])
        state.inline = dict.fromkeys(plain["inline"], 1)
        return state


def _branch_number(branch: Branch) -> int:
    return branch.number


class State:
    """What changes about a database. `found` collects (lookup hash, line offset) for the index.

    `lowest` has an entry for each FORK_STRETCH node numbers: the smallest parent among the nodes
    in there that do not follow their parent at once, 0 if all do or begin a timeline. It says where
    children need not be looked for.
    """

    __slots__ = ("found", "lowest", "seq", "timelines", "ts")

    def __init__(self) -> None:
        self.seq = 0
        self.ts = 0
        self.timelines: list[TimelineState] = []
        self.lowest: list[int] = []
        self.found: list[tuple[int, int]] = []

    def to_json(self) -> Json:
        return {
            "seq": self.seq,
            "ts": self.ts,
            "lowest": self.lowest,
            "timelines": [timeline.to_json() for timeline in self.timelines],
        }

    @classmethod
    def from_json(cls, plain: Json) -> State:
        state = cls()
        state.seq = plain["seq"]
        state.ts = plain["ts"]
        state.lowest = plain["lowest"]
        state.timelines = [TimelineState.from_json(each) for each in plain["timelines"]]
        return state


def apply(state: State, rows: Rows, record: Json, offset: int, length: int) -> None:
    """Bring `record`, which lies at `offset` of the log, into state and rows.

    Raises:
        UnknownVersion: an operation this program does not know.
        KeyError, IndexError, TypeError, ValueError: the record does not fit the state; state and
            rows may then be changed in part and must be dropped.
    """
    op, change = record["op"], change_of(record)
    state.seq = record["seq"]
    state.ts = record["ts"]
    number = record.get("tl")
    if number is not None:
        if op == "create":
            _apply_create(state, record)
        timeline = state.timelines[number]
        timeline.updated_at = state.ts
        timeline.changed = state.seq
        change(state, timeline, rows, record, offset, length)
    key = record.get("key")
    if key is not None:
        state.found.append((key_hash(key_scope(record), key), offset))


def change_of(record: Json) -> Callable[..., None]:
    """What carries out the record's operation. Raises UnknownVersion."""
    op = record["op"]
    change = _APPLY.get(op)
    if change is None:
        raise UnknownVersion(f"operation {quoted(op)} is of a newer Timeline: upgrade", op=op)
    return change


def key_scope(record: Json) -> int | None:
    """The timeline in which the record's idempotency key counts, None: in the whole database."""
    return None if operation_of(record) in ("create", "import") else record["tl"]


def operation_of(record: Json) -> str:
    """The operation that wrote the record, by its name in OPERATIONS."""
    op: str = record.get("for") or record["op"]
    return _OPERATION_OF.get(op, op)


_OPERATION_OF = {"drop": "drop_branch", "archive": "archive_branch", "summary": "summarize"}


def _apply_create(state: State, record: Json) -> None:
    if record["tl"] != len(state.timelines):
        raise ValueError("timelines are numbered without gaps")
    timeline = TimelineState(record["title"], record["estimator"], record["ts"])
    timeline.source = record.get("source")
    timeline.titled = int(record["title"] is not None and timeline.source is None)
    timeline.add_branch("main", 0, None, None, record["ts"])
    state.timelines.append(timeline)


def _apply_nothing(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    """A line that only remembers a key and its result, or whose change is made elsewhere."""


def _check_next(state: State, rows: Rows, record: Json) -> None:
    """The next node fits; `lowest` learns of it."""
    node, parent, lowest = record["id"], record["parent"], state.lowest
    if node != len(rows) + 1 or not 0 <= parent < node:
        raise ValueError("nodes are numbered without gaps, parents before children")
    stretch = node // FORK_STRETCH
    if stretch == len(lowest):
        lowest.append(0)
    if 0 < parent < node - 1:
        lowest[stretch] = min(lowest[stretch] or parent, parent)


def _note_identities(state: State, record: Json, offset: int) -> None:
    for identity in record.get("ids", ()):
        state.found.append((identity_hash(identity), offset))


def message_flags(record: Json) -> int:
    """Row flags of a message: its role and what its record holds."""
    flags = _ROLE_INDEX[record["role"]]
    if record["role"] == "tool":
        flags |= JOINS
    if "intent" in record:
        flags |= HAS_INTENT
    source = record.get("source")
    if source is not None:
        flags |= HAS_SOURCE | (IS_COPY if "copy_of" in source else 0)
    if record.get("joins"):
        flags |= JOINS
    return flags


def _apply_append(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    _check_next(state, rows, record)
    flags = message_flags(record)
    above = rows.add(offset, length, record["tokens"], record["parent"], record["tl"], flags)
    if above[FLAGS] & KIND_REAL:
        timeline.inline[record["parent"]] = 1
    branch = record.get("branch")
    if branch is not None:
        timeline.branches[branch].head = record["id"]
    if not flags & IS_COPY:
        timeline.messages += 1
        timeline.tokens += record["tokens"]
    if "ids" in record:
        _note_identities(state, record, offset)


def _apply_summary(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    _check_next(state, rows, record)
    real = record["op"] == "summary"
    first, last = record["from"], record["to"]
    flags = _ROLE_INDEX["summary"] | (KIND_REAL if real else KIND_PLACEHOLDER)
    flags |= HAS_INTENT if "intent" in record else 0
    flags |= HAS_SOURCE if "source" in record else 0
    previous = timeline.real if real else timeline.placeholder
    above = rows.add(
        offset,
        length,
        record["tokens"],
        record["parent"],
        record["tl"],
        flags,
        first,
        last,
        previous,
    )
    if above[FLAGS] & KIND_REAL:
        timeline.inline[record["parent"]] = 1
    timeline.last_summary = state.seq
    if real:
        timeline.real = record["id"]
        state.found.append(
            (summary_hash(first, last, record["tokens"], record.get("supersedes")), offset)
        )
    else:
        timeline.placeholder = record["id"]
        state.found.append((placeholder_hash(first, last), offset))
    _note_identities(state, record, offset)


def _apply_fork(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    parent = None if record["of"] is None else timeline.branches[record["of"]].number
    name = record["name"]
    if name in timeline.branches or record["node"] > len(rows):
        raise ValueError("a new branch has a new name and an existing head")
    timeline.add_branch(
        name,
        record["node"],
        record.get("at", record["node"]),
        parent,
        record["ts"],
        record.get("imported", 0),
    )


def _apply_switch(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.current = timeline.branches[record["name"]].name


def _apply_drop(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.end_branch(record["name"], DROPPED, state.seq)


def _apply_move(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    if record["node"] > len(rows):
        raise ValueError("a head exists")
    timeline.branches[record["name"]].head = record["node"]


def _apply_rename(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    if "title" in record:
        timeline.title = record["title"]
        timeline.titled = record.get("titled", 0)
        return
    branch = timeline.branches.pop(record["name"])
    if timeline.current == branch.name:
        timeline.current = record["to"]
    branch.name = record["to"]
    timeline.branches[branch.name] = branch


def _apply_pin(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.pins[record["node"]] = state.seq


def _apply_unpin(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    del timeline.pins[record["node"]]


def _apply_exclude(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.excluded[record["unit"]] = state.seq


def _apply_include(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    del timeline.excluded[record["unit"]]


def _apply_archive(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    if record["top"]:
        timeline.segments.append([record["top"], timeline.branches[record["name"]].head])
    timeline.end_branch(record["name"], ARCHIVED, state.seq)


def _apply_thaw(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.segments = thawed_segments(rows, timeline.segments, record["node"])
    if "number" in record:
        branch = next(each for each in timeline.ended if each.number == record["number"])
        timeline.ended.remove(branch)
        branch.name = record["name"]
        branch.status = LIVE
        branch.ended = 0
        timeline.branches[branch.name] = branch


def _apply_session(
    state: State, timeline: TimelineState, rows: Rows, record: Json, offset: int, length: int
) -> None:
    timeline.sessions[record["session"]] = [
        timeline.branches[record["branch"]].number,
        record["node"],
    ]


_APPLY: dict[str, Callable[[State, TimelineState, Rows, Json, int, int], None]] = {
    "append": _apply_append,
    "archive": _apply_archive,
    "create": _apply_nothing,
    "drop": _apply_drop,
    "exclude": _apply_exclude,
    "fork": _apply_fork,
    "include": _apply_include,
    "move": _apply_move,
    "noop": _apply_nothing,
    "pin": _apply_pin,
    "placeholder": _apply_summary,
    "rename": _apply_rename,
    "session": _apply_session,
    "summary": _apply_summary,
    "switch": _apply_switch,
    "thaw": _apply_thaw,
    "unpin": _apply_unpin,
}


# ================================================================================================
# 6. Tree
#
# Knows rows: parents, depths, jumps. Must not know summaries' meaning, files or names. Every
# function may assume I1 and I2, so a walk up always ends at the root, 0.
# ================================================================================================


def ancestor_at(rows: Rows, node: int, depth: int) -> int:
    """The ancestor of `node` at `depth` (the root has 0), `node` itself where it is that deep.
    O(log)."""
    row = rows[node]
    while row[DEPTH] > depth:
        far = rows[row[JUMP]]
        if far[DEPTH] >= depth:
            node, row = row[JUMP], far
        else:
            node = row[PARENT]
            row = rows[node]
    return node


def is_ancestor(rows: Rows, upper: int, node: int) -> bool:
    """Whether `upper` lies on root..`node`, both ends included. O(log)."""
    if upper == 0 or upper == node:
        return True
    return upper < node and ancestor_at(rows, node, rows[upper][DEPTH]) == upper


def common_ancestor(rows: Rows, one: int, other: int) -> int:
    """The deepest node on both paths; for two nodes of different timelines, 0. O(log)."""
    first, second = rows[one], rows[other]
    if first[DEPTH] > second[DEPTH]:
        one = ancestor_at(rows, one, second[DEPTH])
        first = rows[one]
    elif second[DEPTH] > first[DEPTH]:
        other = ancestor_at(rows, other, first[DEPTH])
        second = rows[other]
    while one != other:
        # Nodes of one depth have jumps of one length, so both sides stay level.
        field = PARENT if first[JUMP] == second[JUMP] else JUMP
        one, other = first[field], second[field]
        first, second = rows[one], rows[other]
    return one


def climb(rows: Rows, node: int) -> Iterator[tuple[int, Row]]:
    """(node, row) from `node` up to below the root. Rows of the file are read in pieces, larger
    ones where the path used most of the one before."""
    while node > rows.stored:
        row = rows[node]
        yield node, row
        node = row[PARENT]
    size = 32
    while node:
        first = max(1, node - size + 1)
        raw = rows.stored_chunk(first, node)
        used = 0
        while node >= first:
            row = checked_row(raw, (node - first) * ROW_BYTES)
            yield node, row
            node = row[PARENT]
            used += 1
        size = min(size * 4, 4096) if used * 2 >= size else 32


def walk_between(rows: Rows, top_depth: int, node: int) -> list[tuple[int, Row]]:
    """(node, row) of the path to `node` from depth `top_depth` on (at least 1), oldest first."""
    part = []
    for each, row in climb(rows, node):
        if row[DEPTH] < top_depth:
            break
        part.append((each, row))
    part.reverse()
    return part


def children_of(rows: Rows, lowest: list[int], node: int, tl: int) -> list[int]:
    """Nodes of timeline `tl` whose parent is `node`, ascending.

    Most nodes follow their parent at once. The rest are looked for in the stretches that, by
    `lowest`, may hold one: as a rule in few.
    """
    count = len(rows)
    found = [node + 1] if node < count else []
    for stretch in range((node + 2) // FORK_STRETCH, len(lowest)):
        if node == 0 or 0 < lowest[stretch] <= node:
            first = max(node + 2, stretch * FORK_STRETCH)
            found += _named_parent(rows, node, first, min(count, (stretch + 1) * FORK_STRETCH - 1))
    # The column is read unchecked; reading the row checks it.
    return [child for child in found if rows[child][PARENT] == node and rows[child][TL] == tl]


def _named_parent(rows: Rows, node: int, first: int, last: int) -> list[int]:
    """Those of the nodes first..last whose rows, unchecked, name `node` as parent."""
    wanted = _U32.pack(node)
    found = []
    for start, raw in rows.chunks(first, last):
        # Two bytes of each row first, the whole field only where they fit: slicing bytes with a
        # step takes a tenth of what a column of fields takes.
        if wanted[1] not in raw[_PARENT_BYTE + 1 :: ROW_BYTES]:
            continue
        column = raw[_PARENT_BYTE::ROW_BYTES]
        place = column.find(wanted[0])
        while place >= 0:
            if raw.startswith(wanted, place * ROW_BYTES + _PARENT_BYTE):
                found.append(start + place)
            place = column.find(wanted[0], place + 1)
    return found


def unit_first(rows: Rows, node: int) -> int:
    """The first node of the tool unit that `node` is in."""
    row = rows[node]
    while row[FLAGS] & JOINS and row[PARENT]:
        node = row[PARENT]
        row = rows[node]
    return node


def unit_down_to(rows: Rows, node: int) -> list[int]:
    """The unit's nodes from its first one down to `node`."""
    part = [node]
    while rows[part[-1]][FLAGS] & JOINS and rows[part[-1]][PARENT]:
        part.append(rows[part[-1]][PARENT])
    part.reverse()
    return part


# ================================================================================================
# 7. Summaries
#
# Knows rows and the heads of summary lines. Staleness and succession are derived here, never
# stored. Must not know files: heads come through a function.
# ================================================================================================


class Summary:
    """What never changes about a real summary. `chain` is the first version's node."""

    __slots__ = (
        "chain",
        "derived_from",
        "first",
        "last",
        "node",
        "rests_on",
        "supersedes",
        "tokens",
        "version",
    )

    def __init__(self, node: int, row: Row, record: Json, older: Summary | None) -> None:
        self.node = node
        self.first = row[FROM]
        self.last = row[TO]
        self.tokens: int = record["tokens"]
        self.supersedes: int | None = record.get("supersedes")
        self.derived_from: list[int] = record.get("derived_from", [])
        self.version: int = 1 if older is None else older.version + 1
        self.chain: int = node if older is None else older.chain
        self.rests_on: list[int] | None = None  # summaries it derives from, once asked


class Summaries:
    """The real summaries of one timeline, ascending, kept up with the log by `update`."""

    __slots__ = ("_stale", "_stale_for", "by_node", "inline", "newest", "order", "successor")

    def __init__(self) -> None:
        self.by_node: dict[int, Summary] = {}
        self.order: list[int] = []
        self.successor: dict[int, int] = {}
        self.newest = 0
        self.inline: Mapping[int, int] = {}
        self._stale: set[int] = set()
        self._stale_for = 0

    def update(
        self, rows: Rows, timeline: TimelineState, head_of: Callable[[int, Row], Json]
    ) -> None:
        """Take in the summaries that came after the last update."""
        self.inline = timeline.inline
        newest = timeline.real
        fresh = []
        node = newest
        while node > self.newest:
            row = rows[node]
            fresh.append((node, row))
            node = row[PREV]
        for node, row in reversed(fresh):
            record = head_of(node, row)
            older = self.by_node.get(record.get("supersedes", 0))
            summary = Summary(node, row, record, older)
            self.by_node[node] = summary
            self.order.append(node)
            if older is not None:
                self.successor[older.node] = node
        self.newest = newest

    def newest_of_chain(self, node: int) -> int:
        while node in self.successor:
            node = self.successor[node]
        return node

    def stale(self, rows: Rows) -> set[int]:
        """Summaries that derive from a superseded or a stale one, their own chain left out."""
        if self._stale_for != self.newest:
            stale: set[int] = set()
            # What a summary rests on is older than it, so one pass in order settles the cascade.
            for node in self.order:
                rests_on = self._rests_on(rows, self.by_node[node])
                if any(each in self.successor or each in stale for each in rests_on):
                    stale.add(node)
            self._stale = stale
            self._stale_for = self.newest
        return self._stale

    def _rests_on(self, rows: Rows, summary: Summary) -> list[int]:
        if summary.rests_on is None:
            found = [each for each in summary.derived_from if each in self.by_node]
            found += self._inside(rows, summary.first, summary.last)
            summary.rests_on = [each for each in found if self.by_node[each].chain != summary.chain]
        return summary.rests_on

    def _inside(self, rows: Rows, first: int, last: int) -> list[int]:
        """Real summaries that lie on the interval first..last."""
        found = [last] if last in self.by_node else []
        # What lies above `last` on its path has a child, and a number from `first` on.
        found += [
            node for node in self.inline if first <= node < last and is_ancestor(rows, node, last)
        ]
        return found


def summary_chain(rows: Rows, newest: int) -> Iterator[tuple[int, Row]]:
    """(node, row) of the summaries of one kind, newest first."""
    while newest:
        row = rows[newest]
        yield newest, row
        newest = row[PREV]


def covers(rows: Rows, first: int, last: int, node: int) -> bool:
    """Whether `node` lies in the interval first..last."""
    return is_ancestor(rows, first, node) and is_ancestor(rows, node, last)


def covered_depths(rows: Rows, node: int, intervals: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Where intervals lie on root..`node`, as merged [from, to] ranges of depths, ascending."""
    found = []
    for first, last in intervals:
        top = rows[first][DEPTH]
        bottom = rows[common_ancestor(rows, last, node)][DEPTH]
        if top <= bottom:
            found.append([top, bottom])
    return merged_ranges(found)


def merged_ranges(ranges: list[list[int]]) -> list[list[int]]:
    """The union of inclusive ranges as disjoint ones, ascending; neighbours are joined."""
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return merged


def open_ranges(ranges: list[list[int]], low: int, high: int) -> list[tuple[int, int]]:
    """What of low..high the disjoint ascending `ranges` leave out."""
    left = []
    for start, end in ranges:
        if start > low:
            left.append((low, min(start - 1, high)))
        low = max(low, end + 1)
        if low > high:
            return left
    left.append((low, high))
    return [(start, end) for start, end in left if start <= end]


def watermark(rows: Rows, timeline: TimelineState, node: int, covered: list[list[int]]) -> int:
    """The deepest node of root..`node` up to which all is covered or a held pin.

    `covered` is `covered_depths` of the node over all its summaries, placeholders included.
    """
    bottom = rows[node][DEPTH]
    for low, high in open_ranges(covered, 1, bottom):
        for depth in range(low, high + 1):
            each = ancestor_at(rows, node, depth)
            # A pin is held once a summary was made while it stood.
            held = timeline.pins.get(each, timeline.last_summary) < timeline.last_summary
            if not held and not rows[each][FLAGS] & KIND_SUMMARY:
                return ancestor_at(rows, node, depth - 1)
    return node


# ================================================================================================
# 8. Budget
#
# Chooses what a model sees of one path. Knows units (a message and the tool results after it) as
# numbers 0..n-1, oldest first, their weights in tokens, and candidates (real summaries that cover
# whole units); must not know nodes, texts or files. Changes nothing. Ranges include both ends.
# The rule, its proofs and worked examples: README, section Budget. Three sentences carry it:
# B1 `closed` is the cost of the context if nothing but what is granted were used: the kept units,
#    for each granted summary the cheaper of itself and what is left of its units, and for each
#    free run (units neither kept nor owned) the cheaper of its weight and a placeholder.
# B2 A wish is granted iff the context can still be completed within the limit, summaries that
#    had no turn yet included; so some completion fits before and after every turn.
# B3 After the last turn no summary is waiting, so `closed` is that completion.
# ================================================================================================

# Why a unit is kept; 0 in `Selection.kept` means it is not.
_KEPT_MANDATORY, _KEPT_GRANTED, _KEPT_FOR_PLACEHOLDER, _KEPT_FOR_SUMMARY = 1, 2, 3, 4
# What became of a candidate, in `Selection.fates`, each with one number.
_FATE_NOT_ASKED, _FATE_NOTHING_FREE, _FATE_TOO_HEAVY, _FATE_OVER, _FATE_GRANTED = 0, 1, 2, 3, 4
# How far `_Filling.slack` and `_Filling.savings` can be trusted.
_SAVINGS_UNKNOWN, _SAVINGS_BOUND, _SAVINGS_EXACT = 0, 1, 2
# What an item of `in_path_order` is, if not the number of a shown candidate.
ITEM_KEPT, ITEM_GAP, _ITEM_SHOWN_BEFORE = -1, -2, -3


class Candidate:
    """A summary the budget may use: it covers the units `first..last`.

    `width` counts nodes, `number` says which is newer; both only rank it.
    """

    __slots__ = ("first", "last", "number", "stale", "tokens", "width")

    def __init__(
        self, first: int, last: int, tokens: int, stale: bool, width: int, number: int
    ) -> None:
        self.first = first
        self.last = last
        self.tokens = tokens
        self.stale = stale
        self.width = width
        self.number = number


class Selection:
    """What to show: `kept` units, `shown` candidates with the ranges they stand for, `gaps`.

    A unit is in exactly one of the three. `total` is the cost, `required` the least limit that
    succeeds. The rest is for `explain_rows` only: `owner` (unit -> candidate, -1 for none),
    `refused` (unit -> tokens above the limit), `ended_at` (the unit that ended the message list,
    -1 for none) and `fates` (candidate -> code, number).
    """

    __slots__ = (
        "ended_at",
        "fates",
        "gaps",
        "kept",
        "owner",
        "refused",
        "required",
        "shown",
        "total",
    )

    def __init__(self, units: int, candidates: int, required: int) -> None:
        self.required = required
        self.total = 0
        self.kept = bytearray(units)
        self.shown: list[tuple[int, list[tuple[int, int]]]] = []
        self.gaps: list[tuple[int, int]] = []
        self.owner = [-1] * units
        self.refused: dict[int, int] = {}
        self.ended_at = -1
        self.fates = [(_FATE_NOT_ASKED, 0)] * candidates


def select(
    weights: Sequence[int],
    mandatory: Iterable[int],
    candidates: Sequence[Candidate],
    max_tokens: int,
    order: str = "turns",
    *,
    explain: bool = False,
) -> Selection:
    """The context of at most `max_tokens` for a path of units, by the rule of the README.

    `mandatory` holds the units that must stay, the last one (the target's) among them. `order` is
    "turns" or "tiers". With `explain` every refusal knows how far it is above the limit exactly;
    without, that number may be too high, and finding it costs nothing.

    O(L log R + S log S) for L units, R free runs and S candidates, when no candidate is cheaper
    than the placeholders it could replace; otherwise up to O(S (R + S) log S) more.

    Raises:
        BudgetInfeasible: not even the cheapest context fits; `required_tokens` in its data does.
    """
    filling = _Filling(weights, sorted(mandatory), candidates, max_tokens, explain)
    if filling.required > max_tokens:
        raise BudgetInfeasible(
            "budget infeasible", required_tokens=filling.required, max_tokens=max_tokens
        )
    if filling.prefix[-1] <= max_tokens:
        return filling.close_with_everything()
    if order == "tiers":
        while filling.has_pending():
            filling.ask_summary()
    filling.take_turns()
    return filling.close()


class _Filling:
    """A context being filled: what is granted so far and what completing it costs.

    Free runs are kept as two sorted lists of bounds, `starts` and `ends`. Candidates stand in the
    order of their turns in `ranked`; those from `turn` on are pending.
    """

    __slots__ = (
        "asked_down_to",
        "closed",
        "ends",
        "exact",
        "granted",
        "left_of",
        "max_tokens",
        "prefix",
        "ranked",
        "ranked_by_last",
        "required",
        "savings",
        "savings_are",
        "selection",
        "slack",
        "starts",
        "tokens",
        "turn",
        "weights",
    )

    def __init__(
        self,
        weights: Sequence[int],
        mandatory: list[int],
        candidates: Sequence[Candidate],
        max_tokens: int,
        exact: bool,
    ) -> None:
        from itertools import accumulate

        self.weights = weights
        self.prefix = list(accumulate(weights, initial=0))
        self.max_tokens = max_tokens
        self.exact = exact
        self.tokens = [c.tokens for c in candidates]
        self.ranked = [
            (k, c.first, c.last, c.tokens)
            for k, c in sorted(
                enumerate(candidates), key=lambda e: (e[1].stale, -e[1].width, -e[1].number)
            )
        ]
        self.ranked_by_last = sorted(range(len(self.ranked)), key=lambda k: self.ranked[k][2])
        self.turn = 0  # next of `ranked` to be asked
        self.asked_down_to = len(weights)  # units from here on had their turn or take none
        self.granted: dict[int, list[tuple[int, int]]] = {}  # candidate -> pieces it owns
        self.left_of = [0] * len(candidates)  # candidate -> weight of its pieces not kept
        self.starts, self.ends = _runs_between(mandatory, len(weights))
        self.slack: list[int] = []
        self.savings: list[int] = []
        self.savings_are = _SAVINGS_UNKNOWN
        kept_weight = sum([weights[u] for u in mandatory])
        self.required = kept_weight + self.cover_min(self.starts, self.ends)
        self.closed = kept_weight + self.runs_cost(self.starts, self.ends)
        self.selection = Selection(len(weights), len(candidates), self.required)
        for u in mandatory:
            self.selection.kept[u] = _KEPT_MANDATORY

    def has_pending(self) -> bool:
        return self.turn < len(self.ranked)

    def take_turns(self) -> None:
        """Ask messages, newest first, and pending summaries in turns until both are through."""
        kept = self.selection.kept
        while self.has_pending():
            u = kept.rfind(0, 0, self.asked_down_to)
            self.asked_down_to = max(u, 0)
            if u >= 0:
                self.ask_message(u)
            self.ask_summary()
        self.finish_messages()

    # -- messages --------------------------------------------------------------------------------

    def ask_message(self, u: int) -> None:
        """Grant unit `u` if the context can still be completed, else note why not."""
        owned = self.selection.owner[u] >= 0
        over = self.ask_owned(u) if owned else self.ask_free(u)
        if over <= 0:
            self.selection.kept[u] = _KEPT_GRANTED
        else:
            self.refuse_message(u, over)

    def refuse_message(self, u: int, over: int) -> bool:
        """Note that `u` is `over` tokens above the limit; True if that ends the list."""
        self.selection.refused[u] = over
        if self.weights[u] >= LIGHT_TOKENS:
            return False
        self.selection.ended_at = u
        self.asked_down_to = 0
        return True

    def ask_owned(self, u: int) -> int:
        """Tokens above the limit with `u` kept, which a granted summary owns; <= 0 is granted."""
        s, weight = self.selection.owner[u], self.weights[u]
        tokens, left = self.tokens[s], self.left_of[s]
        cost = self.closed - min(tokens, left) + weight + min(tokens, left - weight)
        over = self.over(cost, 0, 0, [])
        if over <= 0:
            self.closed = cost
            self.left_of[s] = left - weight
        return over

    def ask_free(self, u: int) -> int:
        """Tokens above the limit with `u` kept, which lies in a free run; <= 0 is granted."""
        from bisect import bisect_left

        k = bisect_left(self.ends, u)
        prefix, first, last = self.prefix, self.starts[k], self.ends[k]
        at, behind = prefix[u], prefix[u + 1]
        before, after = at - prefix[first], prefix[last + 1] - behind
        whole = prefix[last + 1] - prefix[first]
        cost = self.closed - _run_cost(whole) + behind - at + _run_cost(before) + _run_cost(after)
        rest = _remainders(first, u, u, last)
        over = self.over(cost, k, k + 1, rest)
        if over <= 0:
            self.closed = cost
            self.replace_runs(k, k + 1, rest)
        return over

    def finish_messages(self) -> None:
        """Ask all messages left, once nothing is pending.

        The same as `ask_message` for each; a path may have 100,000 of them, so those of one
        stretch share a loop.
        """
        kept, owner = self.selection.kept, self.selection.owner
        while (u := kept.rfind(0, 0, self.asked_down_to)) >= 0:
            if owner[u] >= 0:
                self.finish_owned(u)
            else:
                self.finish_run(u)

    def finish_owned(self, u: int) -> None:
        """Ask `u` and the units before it as long as the same granted summary owns them."""
        kept, owner, weights = self.selection.kept, self.selection.owner, self.weights
        s = owner[u]
        tokens, left, limit = self.tokens[s], self.left_of[s], self.max_tokens
        cost = self.closed - min(tokens, left)  # of all but the summary
        while u >= 0 and owner[u] == s and not kept[u]:
            self.asked_down_to = u
            weight = weights[u]
            rest = left - weight
            over = cost + weight + (rest if rest < tokens else tokens) - limit
            if over <= 0:
                kept[u] = _KEPT_GRANTED
                cost += weight
                left = rest
            elif self.refuse_message(u, over):
                break
            u -= 1
        self.closed = cost + min(tokens, left)
        self.left_of[s] = left

    def finish_run(self, newest: int) -> None:
        """Ask `newest` and the units before it in its free run."""
        from bisect import bisect_left

        kept, prefix, limit = self.selection.kept, self.prefix, self.max_tokens
        k = bisect_left(self.ends, newest)
        first, last = self.starts[k], self.ends[k]
        cost = self.closed - _run_cost(self.weight(first, last))  # of all but the run
        bottom, top = prefix[first], prefix[last + 1]
        settled: list[tuple[int, int]] = []
        self.asked_down_to = first
        for u in range(newest, first - 1, -1):
            at, behind = prefix[u], prefix[u + 1]
            older, newer = at - bottom, top - behind  # the rests, as in `_run_cost`, but inline
            newer = newer if newer < RESERVE_TOKENS else RESERVE_TOKENS
            with_u = cost + behind - at + newer
            over = with_u + (older if older < RESERVE_TOKENS else RESERVE_TOKENS) - limit
            if over <= 0:
                kept[u] = _KEPT_GRANTED
                cost = with_u
                if u < last:
                    settled.append((u + 1, last))
                last, top = u - 1, at
            elif self.refuse_message(u, over):
                break
        self.closed = cost + _run_cost(top - bottom)
        if first <= last:
            settled.append((first, last))
        self.replace_runs(k, k + 1, settled[::-1])

    # -- summaries -------------------------------------------------------------------------------

    def ask_summary(self) -> None:
        """Give the next candidate its turn: it gets what it covers of the free runs, or nothing."""
        from bisect import bisect_left, bisect_right

        s, first, last, tokens = self.ranked[self.turn]
        self.turn += 1
        i, j = bisect_left(self.ends, first), bisect_right(self.starts, last)
        fates = self.selection.fates
        if i >= j:
            fates[s] = (_FATE_NOTHING_FREE, 0)
            return
        starts, ends = self.starts[i:j], self.ends[i:j]
        rest = _remainders(starts[0], first, last, ends[-1])
        cost = self.closed - self.runs_cost(starts, ends) + tokens
        cost += sum([_run_cost(self.weight(left, right)) for left, right in rest])
        starts[0], ends[-1] = max(starts[0], first), min(ends[-1], last)
        pieces = list(zip(starts, ends, strict=True))
        weight = sum([self.weight(left, right) for left, right in pieces])
        if tokens >= weight:
            fates[s] = (_FATE_TOO_HEAVY, weight)
            return
        over = self.over(cost, i, j, rest)
        if over > 0:
            fates[s] = (_FATE_OVER, over)
            return
        fates[s] = (_FATE_GRANTED, 0)
        self.closed = cost
        self.granted[s] = pieces
        self.left_of[s] = weight
        self.replace_runs(i, j, rest)
        for left, right in pieces:
            self.selection.owner[left : right + 1] = [s] * (right + 1 - left)

    # -- the three-step test ---------------------------------------------------------------------

    def over(self, cost: int, i: int, j: int, rest: list[tuple[int, int]]) -> int:
        """Tokens by which a wish misses the limit; <= 0 means it is to be granted.

        `cost` is `closed` after the wish, which turns the free runs `i..j-1` into `rest`. What
        pending summaries could save is estimated first: buying one saves at most a placeholder
        for each run it touches, whatever else is bought.
        """
        over = cost - self.max_tokens
        if over <= 0 or not self.has_pending():
            return over
        save = self.save(rest)
        if save >= over and self.savings_are == _SAVINGS_BOUND:
            self.savings_are = _SAVINGS_UNKNOWN
            save = self.save(rest)
        if save == 0 or (save < over and not self.exact):
            return over
        starts = self.starts[:i] + [left for left, _ in rest] + self.starts[j:]
        ends = self.ends[:i] + [right for _, right in rest] + self.ends[j:]
        fixed = cost - self.runs_cost(starts, ends)
        return fixed + self.cover_min(starts, ends) - self.max_tokens

    def save(self, rest: list[tuple[int, int]]) -> int:
        """A bound on what the pending summaries save if some run were replaced by `rest`.

        The numbers of runs they touch are counted anew only after a run was split: runs that
        shrank or vanished leave them too high, which is a bound as well.
        """
        if self.savings_are == _SAVINGS_UNKNOWN:
            self.count_savings()
        save = self.savings[self.turn]
        if len(rest) < 2:
            return save
        # The wish may split a run: one more to touch for whoever reaches both sides.
        left, right = rest[0][1], rest[1][0]
        for k in range(self.turn, len(self.ranked)):
            slack = self.slack[k]
            if slack > -RESERVE_TOKENS:
                _, first, last, _ = self.ranked[k]
                if first <= left and last >= right:
                    save += min(RESERVE_TOKENS, slack + RESERVE_TOKENS)
        return save

    def count_savings(self) -> None:
        """Count the runs each pending candidate touches; `savings[k]` sums up from `k` on."""
        from bisect import bisect_left, bisect_right

        starts, ends = self.starts, self.ends
        slack = [0] * self.turn
        slack += [
            RESERVE_TOKENS * (bisect_right(starts, last) - bisect_left(ends, first)) - tokens
            for _, first, last, tokens in self.ranked[self.turn :]
        ]
        savings = [0] * (len(slack) + 1)
        for k in range(len(slack) - 1, self.turn - 1, -1):
            savings[k] = savings[k + 1] + max(0, slack[k])
        self.slack, self.savings, self.savings_are = slack, savings, _SAVINGS_EXACT

    # -- free runs -------------------------------------------------------------------------------

    def weight(self, first: int, last: int) -> int:
        return self.prefix[last + 1] - self.prefix[first]

    def runs_cost(self, starts: list[int], ends: list[int]) -> int:
        prefix = self.prefix
        return sum(
            [
                min(RESERVE_TOKENS, prefix[last + 1] - prefix[first])
                for first, last in zip(starts, ends, strict=True)
            ]
        )

    def replace_runs(self, i: int, j: int, rest: list[tuple[int, int]]) -> None:
        self.starts[i:j] = [left for left, _ in rest]
        self.ends[i:j] = [right for _, right in rest]
        if len(rest) > 1:
            self.savings_are = _SAVINGS_UNKNOWN
        elif self.savings_are == _SAVINGS_EXACT:
            self.savings_are = _SAVINGS_BOUND

    def cover_min(self, starts: list[int], ends: list[int]) -> int:
        """Least cost of all units of these runs when pending candidates may be bought."""
        ranked, turn = self.ranked, self.turn
        spans = [ranked[k][1:] for k in self.ranked_by_last if k >= turn]
        return _cheapest_cover(self.prefix, starts, ends, spans)

    # -- the answer ------------------------------------------------------------------------------

    def close_with_everything(self) -> Selection:
        answer = self.selection
        answer.kept = bytearray([kept or _KEPT_GRANTED for kept in answer.kept])
        answer.total = self.prefix[-1]
        return answer

    def close(self) -> Selection:
        """The context that what was granted amounts to; ties go to the originals."""
        assert self.closed <= self.max_tokens  # B2, B3
        answer = self.selection
        answer.total = self.closed
        for s, pieces in self.granted.items():
            rest = [run for piece in pieces for run in self.omitted_runs(*piece)]
            if self.left_of[s] > self.tokens[s]:
                answer.shown.append((s, rest))
            else:
                self.keep_runs(rest, _KEPT_FOR_SUMMARY)
        for run in zip(self.starts, self.ends, strict=True):
            if self.weight(*run) > RESERVE_TOKENS:
                answer.gaps.append(run)
            else:
                self.keep_runs([run], _KEPT_FOR_PLACEHOLDER)
        return answer

    def omitted_runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What no turn granted in the piece `first..last` of a granted summary."""
        kept = self.selection.kept
        while (left := kept.find(0, first, last + 1)) >= 0:
            first = kept.find(_KEPT_GRANTED, left, last + 1)
            if first < 0:
                first = last + 1
            yield (left, first - 1)

    def keep_runs(self, runs: list[tuple[int, int]], why: int) -> None:
        for left, right in runs:
            self.selection.kept[left : right + 1] = bytes([why]) * (right + 1 - left)


def _run_cost(weight: int) -> int:
    """What a free run costs in the end: its weight or a placeholder, whichever is less."""
    return weight if weight < RESERVE_TOKENS else RESERVE_TOKENS


def _remainders(first: int, taken_first: int, taken_last: int, last: int) -> list[tuple[int, int]]:
    """What is left of the range `first..last` on both sides of what is taken; 0 to 2 ranges."""
    rest = []
    if first < taken_first:
        rest.append((first, taken_first - 1))
    if taken_last < last:
        rest.append((taken_last + 1, last))
    return rest


def _runs_between(taken: list[int], units: int) -> tuple[list[int], list[int]]:
    """First and last units of the maximal runs of 0..units-1 that `taken`, sorted, leaves free."""
    starts, ends, start = [], [], 0
    for u in [*taken, units]:
        if start < u:
            starts.append(start)
            ends.append(u - 1)
        start = u + 1
    return starts, ends


def _cheapest_cover(
    prefix: list[int], starts: list[int], ends: list[int], spans: list[tuple[int, int, int]]
) -> int:
    """Least cost of the units of the runs `starts..ends`, spans `(first, last, tokens)` for sale.

    `spans` is sorted by `last`. From cut to cut, oldest first: a piece between two cuts is covered
    whole or not at all, and uncovered it is kept whole or left out whole. `open_cost` is the least
    cost with a gap open at the cut, `cost` with none; units outside the runs cost nothing and end
    gaps. A span bought is used from some cut in its range up to its end, so what it can do is
    known at its end: the least cost at a cut in its range, plus its tokens. These minima are a
    stack, `marks` rising in place and `costs` in value. O((R + S) log S).
    """
    from bisect import bisect_left

    stops = [last + 1 for last in ends]
    cuts = {*starts, *stops}
    cuts.update([first for first, _, _ in spans], [last + 1 for _, last, _ in spans])
    never = prefix[-1] + RESERVE_TOKENS + 1  # above every cost that can come up
    cost, open_cost = 0, never
    run, runs, span = 0, len(starts), 0
    marks: list[int] = []
    costs: list[int] = []
    previous = 0
    spans = [*spans, (0, -2, 0)]  # ends at no cut
    for cut in sorted(cuts):
        if run < runs and previous >= starts[run]:
            least = cost if cost < open_cost else open_cost
            if cost + RESERVE_TOKENS < open_cost:
                open_cost = cost + RESERVE_TOKENS
            cost = least + prefix[cut] - prefix[previous]
            if cut == stops[run]:
                cost = cost if cost < open_cost else open_cost
                open_cost = never
                run += 1
        while spans[span][1] == cut - 1:
            first, _, tokens = spans[span]
            bought = tokens + costs[bisect_left(marks, first)]
            if bought < cost:
                cost = bought
            span += 1
        least = cost if cost < open_cost else open_cost
        while costs and costs[-1] >= least:
            costs.pop()
            marks.pop()
        costs.append(least)
        marks.append(cut)
        previous = cut
    return costs[-1] if costs else 0


# -- showing and explaining --------------------------------------------------------------------


def in_path_order(selection: Selection) -> list[tuple[int, int, int]]:
    """The answer as `(first, last, what)`, oldest first, each shown candidate once.

    `what` is `ITEM_KEPT` for a run of kept units, `ITEM_GAP`, or the number of the candidate
    shown, which stands at the first range it stands for; its other ranges are left out.
    """
    omitted = [(left, right, ITEM_GAP) for left, right in selection.gaps]
    for s, ranges in selection.shown:
        omitted.append((*ranges[0], s))
        omitted += [(left, right, _ITEM_SHOWN_BEFORE) for left, right in ranges[1:]]
    omitted.sort()
    items, start = [], 0
    for left, right, what in [*omitted, (len(selection.kept), 0, _ITEM_SHOWN_BEFORE)]:
        if start < left:
            items.append((start, left - 1, ITEM_KEPT))
        if what != _ITEM_SHOWN_BEFORE:
            items.append((left, right, what))
        start = right + 1
    return items


class Explanation:
    """Why the units `first..last`, or the `candidate` (-1 for none) covering them, came out so."""

    __slots__ = ("candidate", "first", "last", "verdict", "why")

    def __init__(self, first: int, last: int, candidate: int, verdict: str, why: str) -> None:
        self.first = first
        self.last = last
        self.candidate = candidate
        self.verdict = verdict
        self.why = why


def explain_rows(
    selection: Selection,
    candidates: Sequence[Candidate],
    unit_name: Callable[[int], str],
    candidate_name: Callable[[int], str],
) -> list[Explanation]:
    """One row for each run of units with the same verdict and reason and for each candidate.

    Oldest first; of rows starting at one unit the units' own comes first.
    """
    rows: list[Explanation] = []
    shown = {s for s, _ in selection.shown}
    for u in range(len(selection.kept)):
        verdict, why = _explain_unit(selection, u, shown, unit_name, candidate_name)
        if rows and (rows[-1].verdict, rows[-1].why) == (verdict, why):
            rows[-1].last = u
        else:
            rows.append(Explanation(u, u, -1, verdict, why))
    for s, c in enumerate(candidates):
        verdict, why = _explain_candidate(selection, s, c, s in shown, candidate_name)
        rows.append(Explanation(c.first, c.last, s, verdict, why))
    rows.sort(key=lambda row: (row.first, row.candidate))
    return rows


def _explain_unit(
    selection: Selection,
    u: int,
    shown: set[int],
    unit_name: Callable[[int], str],
    candidate_name: Callable[[int], str],
) -> tuple[str, str]:
    """Verdict and reason of one unit."""
    kept, s = selection.kept[u], selection.owner[u]
    if kept == _KEPT_MANDATORY:
        return "mandatory", "target" if u == len(selection.kept) - 1 else "pinned"
    if kept == _KEPT_GRANTED:
        return "kept", "fits"
    if kept == _KEPT_FOR_PLACEHOLDER:
        return "kept", "costs no more than a placeholder"
    if kept == _KEPT_FOR_SUMMARY:
        return "kept", f"costs no more than {candidate_name(s)}"
    if s in shown:
        return "summary", f"stands in {candidate_name(s)}"
    if u in selection.refused:
        return "gap", f"did not fit: {selection.refused[u]} over"
    return "gap", f"list ended at {unit_name(selection.ended_at)}"


def _explain_candidate(
    selection: Selection,
    s: int,
    candidate: Candidate,
    is_shown: bool,
    candidate_name: Callable[[int], str],
) -> tuple[str, str]:
    """Verdict and reason of one candidate."""
    if is_shown:
        return "shown", "cheaper than what it stands for"
    fate, number = selection.fates[s]
    if fate == _FATE_NOT_ASKED:
        return "unused", "nothing is left out"
    if fate == _FATE_GRANTED:
        return "unused", "keeping what it stands for costs no more"
    if fate == _FATE_OVER:
        return "unused", f"did not fit: {number} over"
    if fate == _FATE_TOO_HEAVY:
        return "unused", f"costs {candidate.tokens}, what is left for it {number}"
    for owner in selection.owner[candidate.first : candidate.last + 1]:
        if owner >= 0:
            return "unused", f"owned by {candidate_name(owner)}"
    return "unused", "all it covers is kept"


# ================================================================================================
# 9. Archive
#
# Zones are segments: a message is cold iff it lies on the path from some segment's top to its
# head. Knows rows and segments; decides, changes nothing.
# ================================================================================================


def is_cold(rows: Rows, segments: Sequence[Sequence[int]], node: int, row: Row) -> bool:
    """Whether the node is archived. Summaries stay hot."""
    if row[FLAGS] & KIND_SUMMARY:
        return False
    return any(
        node >= top and rows[top][DEPTH] <= row[DEPTH] and is_ancestor(rows, node, head)
        for top, head in segments
    )


def thawed_segments(rows: Rows, segments: Sequence[Sequence[int]], node: int) -> list[list[int]]:
    """The segments without what lies on root..`node`."""
    kept = []
    for top, head in segments:
        shared = common_ancestor(rows, head, node)
        if rows[shared][DEPTH] < rows[top][DEPTH]:
            kept.append([top, head])
        elif shared != head:
            kept.append([ancestor_at(rows, head, rows[shared][DEPTH] + 1), head])
    return kept


def cold_on_path(rows: Rows, segments: Sequence[Sequence[int]], node: int) -> list[int]:
    """The cold nodes of root..`node`, oldest first."""
    found = []
    for low, high in covered_depths(rows, node, [(top, head) for top, head in segments]):
        part = walk_between(rows, low, ancestor_at(rows, node, high))
        found += [each for each, row in part if not row[FLAGS] & KIND_SUMMARY]
    return found


def own_depth(rows: Rows, timeline: TimelineState, branch: Branch) -> int:
    """The depth at which the nodes begin that only this branch's path holds."""
    others = (each.head for each in timeline.branches.values() if each is not branch)
    return 1 + max(
        (rows[common_ancestor(rows, branch.head, head)][DEPTH] for head in others), default=0
    )


def archive_reasons(
    rows: Rows, timeline: TimelineState, branch: Branch, own: bool, real: Iterable[tuple[int, int]]
) -> list[Json]:
    """What stands in the way of archiving; [] if nothing. `real`: intervals of the real
    summaries."""
    top = own_depth(rows, timeline, branch) if own else 1
    reasons: list[Json] = []
    if timeline.current == branch.name:
        reasons.append(
            _reason("current", [], 0, f"{quoted(branch.name)} is the current branch: switch first")
        )
    pinned = sorted(
        node
        for node in timeline.pins
        if rows[node][DEPTH] >= top and is_ancestor(rows, node, branch.head)
    )
    if pinned:
        reasons.append(
            _reason("pinned", pinned, len(pinned), "pinned messages lie on its path: unpin them")
        )
    bare: list[int] = []
    count = 0
    covered = covered_depths(rows, branch.head, real)
    for low, high in open_ranges(covered, top, rows[branch.head][DEPTH]):
        for node, row in walk_between(rows, low, ancestor_at(rows, branch.head, high)):
            if not row[FLAGS] & KIND_SUMMARY:
                count += 1
                if len(bare) < REASON_NODES_MAX:
                    bare.append(node)
    if count:
        reasons.append(
            _reason(
                "uncovered", bare, count, "no real summary covers these messages: summarize them"
            )
        )
    return reasons


def _reason(reason: str, nodes: list[int], count: int, message: str) -> Json:
    return {
        "reason": reason,
        "nodes": [f"n{node}" for node in nodes[:REASON_NODES_MAX]],
        "count": count,
        "message": message,
    }


def archived_part(rows: Rows, timeline: TimelineState, branch: Branch) -> tuple[int, list[int]]:
    """(top of the new segment or 0, hot messages that become cold), for archiving the branch."""
    low = own_depth(rows, timeline, branch)
    if low > rows[branch.head][DEPTH]:
        return 0, []
    part = walk_between(rows, low, branch.head)
    cold = set(cold_on_path(rows, timeline.segments, branch.head))
    moved = [node for node, row in part if not row[FLAGS] & KIND_SUMMARY and node not in cold]
    return part[0][0], moved


# ================================================================================================
# 10. Check
#
# The invariants as code, for doctor and for tests. Repairs nothing.
# ================================================================================================


def check(state: State, rows: Rows) -> list[str]:
    """One sentence for each broken invariant, at most 100; [] when all hold."""
    problems = _check_rows(rows)
    for number, timeline in enumerate(state.timelines):
        problems += _check_timeline_state(number, timeline, rows)
    return problems[:100]


def _check_rows(rows: Rows) -> list[str]:
    problems = []
    for first, raw in rows.chunks(1, len(rows)):
        for place in range(0, len(raw), ROW_BYTES):
            node = first + place // ROW_BYTES
            row = _unpack_row_from(raw, place)
            if row[CRC] != zlib.crc32(raw[place : place + 60]):
                problems.append(f"I1: row {node} is damaged")
            elif row[PARENT] >= node:
                problems.append(f"I2: n{node} has the parent n{row[PARENT]}, which is not older")
            elif row[PREFIX] > TOKENS_MAX:
                problems.append(f"I9: n{node} has {row[PREFIX]} tokens up to it")
            if len(problems) > 100:
                return problems
    return problems


def _check_timeline_state(number: int, timeline: TimelineState, rows: Rows) -> list[str]:
    problems = []
    size = len(rows)

    def names_node(what: str, node: int) -> bool:
        if 0 < node <= size and rows[node][TL] == number:
            return True
        problems.append(f"I5: {what} of tl{number} names n{node}, which it does not have")
        return False

    for branch in timeline.branches.values():
        if branch.head and names_node(f"branch {quoted(branch.name)}", branch.head):
            row = rows[branch.head]
            if row[FLAGS] & KIND_PLACEHOLDER:
                problems.append(
                    f"I6: branch {quoted(branch.name)} ends at the placeholder n{branch.head}"
                )
            if is_cold(rows, timeline.segments, branch.head, row):
                problems.append(
                    f"I7: branch {quoted(branch.name)} ends at the archived n{branch.head}"
                )
    if timeline.current not in timeline.branches:
        problems.append(f"I5: the current branch {quoted(timeline.current)} of tl{number} is none")
    for what, nodes in (("a pin", timeline.pins), ("an exclusion", timeline.excluded)):
        for node in nodes:
            names_node(what, node)
    for top, head in timeline.segments:
        if (
            names_node("a segment", top)
            and names_node("a segment", head)
            and not is_ancestor(rows, top, head)
        ):
            problems.append(f"I6: the segment n{top}..n{head} is no interval")
    for newest in (timeline.real, timeline.placeholder):
        for node, row in summary_chain(rows, newest):
            if not (row[FROM] and row[TO] < node and is_ancestor(rows, row[FROM], row[TO])):
                problems.append(
                    f"I6: n{node} stands for n{row[FROM]}..n{row[TO]}, which is no interval"
                )
    return problems


# ================================================================================================
# 11. Disk, locks
#
# Every system call of the engine. Tests replace a Disk by one that dies or is full.
# ================================================================================================

_OPEN_FLAGS = (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
)
_KEEPS_OPEN = sys.platform != "win32"  # Windows cannot replace a file that somebody has open


class Disk:
    """The system calls. Files it creates are 0600 and folders 0700 whatever the umask is."""

    def open(self, path: str, flags: int) -> int:
        """A file descriptor; with O_CREAT a new file gets mode 0600, an old one keeps its own."""
        if not flags & os.O_CREAT:
            return os.open(path, flags | _OPEN_FLAGS)
        try:
            file = os.open(path, flags | os.O_EXCL | _OPEN_FLAGS, 0o600)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return os.open(path, flags | _OPEN_FLAGS, 0o600)
        if sys.platform != "win32":
            os.fchmod(file, 0o600)
        return file

    def close(self, file: int) -> None:
        os.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`, fewer at the end of the file."""
        if sys.platform == "win32":
            os.lseek(file, offset, os.SEEK_SET)
            data = os.read(file, size)
        else:
            data = os.pread(file, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # a signal or a network drive may cut a read short
        missing = size - len(data)
        while missing:
            if sys.platform == "win32":
                data = os.read(file, missing)
            else:
                data = os.pread(file, missing, offset + size - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def write_at(self, file: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            if sys.platform == "win32":
                os.lseek(file, offset, os.SEEK_SET)
                done = os.write(file, view)
            else:
                done = os.pwrite(file, view, offset)
            view = view[done:]
            offset += done

    def write_new(self, path: str, data: bytes) -> None:
        """A temporary file that holds `data` and is on disk; none if that fails."""
        file = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_at(file, data, 0)
            self.fsync(file)
        except OSError:
            self.close(file)
            self.remove(path)
            raise
        except BaseException:
            self.close(file)
            raise
        self.close(file)

    def append(self, file: int, data: bytes) -> None:
        """Write all of `data` to a file opened with O_APPEND."""
        done = os.write(file, data)
        while done < len(data):
            data = data[done:]
            done = os.write(file, data)

    def fsync(self, file: int) -> None:
        if sys.platform == "darwin":
            try:
                fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # fsync of macOS does not reach the platter
            except OSError:
                os.fsync(file)
            return
        os.fsync(file)

    def sync_data(self, file: int) -> None:
        """fdatasync where there is one."""
        if sys.platform == "linux":
            os.fdatasync(file)
        else:
            self.fsync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def replace(self, source: str, target: str) -> None:
        """Rename over an existing file. Windows refuses while somebody has it open, so it waits."""
        wait_s = 0.01
        for attempt in range(10):
            try:
                os.replace(source, target)
                return
            except PermissionError:
                if _KEEPS_OPEN or attempt == 9:
                    raise
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, 1.0)

    def place_new(self, source: str, target: str) -> None:
        """Rename without overwriting. Raises FileExistsError."""
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links here; the caller holds the lock
            if os.path.lexists(target):
                raise FileExistsError(target) from None
            os.rename(source, target)
            return
        os.unlink(source)

    def remove(self, path: str) -> None:
        """Delete a file if it is there."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def make_folder(self, path: str) -> None:
        """Make a folder of mode 0700 if it is not there."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return
        if sys.platform != "win32":
            os.chmod(path, 0o700)

    def sync_folder(self, path: str) -> None:
        """Make renames and new names in a folder durable; Windows has no such call."""
        if sys.platform == "win32":
            return
        folder = os.open(path or ".", os.O_RDONLY | _OPEN_FLAGS)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


_lock_files: set[int] = set()  # open descriptors of lock files, held, kept or waited for
_forks = 0  # how often this process is a child of one that had loaded this module


def _drop_locks_in_child() -> None:
    # A child shares the parent's open file descriptions: what it keeps open would stay locked
    # after the parent let go. That goes for one that a thread of the parent still waits for, too.
    global _forks
    for file in _lock_files:
        try:
            os.close(file)
        except OSError:
            pass
    _lock_files.clear()
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_locks_in_child)


def lock(path: str, exclusive: bool, wait_s: float) -> int:
    """Lock the file `path` (made if missing, never deleted) and return its descriptor for `unlock`.

    Returns -1 where no lock is possible and only a shared one is wanted: readers then do without.

    Raises:
        Busy: another process held it for `wait_s` seconds.
        OSError: no exclusive lock is possible here.
    """
    if sys.platform == "win32":
        return _lock_windows(path, wait_s) if exclusive else -1
    else:  # noqa: RET505 - type checkers follow platforms by branches
        try:
            file = _lock_posix(path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, wait_s)
        except OSError:
            if exclusive:
                raise
            return -1
        return file


def unlock(file: int) -> None:
    """Let go of a lock."""
    if file < 0:
        return
    if sys.platform == "win32":
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
    _close_lock(file)


def _close_lock(file: int) -> None:
    _lock_files.discard(file)
    os.close(file)


class Lock:
    """The lock file `path` of one database, kept open between operations where a lock can be let go
    of without closing it: opening costs as much as all the rest of locking."""

    __slots__ = ("_file", "_forks", "_held", "_identity", "path", "wait_s")

    def __init__(self, path: str, wait_s: float) -> None:
        self.path = path
        self.wait_s = wait_s
        self._file = -1
        self._held = False
        self._identity = (0, 0)
        self._forks = 0

    def take(self, exclusive: bool) -> None:
        """Lock it; raises like `lock`. Where no lock is possible, a shared one is done without."""
        assert not self._held
        if not self._take_kept(exclusive):
            self.close()
            self._file = lock(self.path, exclusive, self.wait_s)
            self._forks = _forks
            if self._file >= 0:
                held = os.fstat(self._file)
                self._identity = (held.st_dev, held.st_ino)
        self._held = True

    def _take_kept(self, exclusive: bool) -> bool:
        if sys.platform == "win32" or self._file < 0 or self._forks != _forks:
            return False
        else:  # noqa: RET505 - type checkers follow platforms by branches
            try:
                kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
                named = os.stat(self.path)
            except OSError:  # held by another, or deleted: `lock` waits, or makes it
                return False
            return (named.st_dev, named.st_ino) == self._identity

    def let_go(self) -> None:
        self._held = False
        if sys.platform == "win32" or self._file < 0 or self._forks != _forks:
            self.close()
        else:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of it and of the file."""
        file, self._file, self._held = self._file, -1, False
        if self._forks == _forks:  # else the file was closed when this process began
            unlock(file)


def _busy(path: str, wait_s: float) -> Busy:
    return Busy(
        f"another process holds the lock {path} (waited {wait_s:g} s): try again",
        waited_s=wait_s,
        retry=True,
    )


if sys.platform != "win32":

    def _open_lock(path: str) -> int:
        try:
            file = os.open(path, os.O_RDWR | _OPEN_FLAGS)
        except FileNotFoundError:
            file = Disk().open(path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            file = os.open(path, os.O_RDONLY | _OPEN_FLAGS)  # flock asks for no write access
        _lock_files.add(file)
        return file

    def _lock_posix(path: str, kind: int, wait_s: float) -> int:
        while True:
            file = _open_lock(path)
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                _close_lock(file)
                file = _wait_for_lock(path, kind, wait_s)
            except OSError:
                _close_lock(file)
                raise
            if _is_same_file(file, path):
                return file
            _close_lock(file)  # somebody deleted the lock file: the next one must be locked

    def _is_same_file(file: int, path: str) -> bool:
        held = os.fstat(file)
        try:
            named = os.stat(path)
        except FileNotFoundError:
            return False
        return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)

    def _wait_for_lock(path: str, kind: int, wait_s: float) -> int:
        """A descriptor with the lock. A thread blocks in flock, since polling starves under
        load."""
        import threading

        guard = threading.Lock()
        done = threading.Lock()
        done.acquire()
        granted: list[int] = []
        abandoned: list[bool] = []

        def block() -> None:
            file = _open_lock(path)
            try:
                fcntl.flock(file, kind)
            except OSError:
                _close_lock(file)
                file = -1
            with guard:
                if abandoned and file >= 0:
                    _close_lock(file)
                else:
                    granted.append(file)
            done.release()

        threading.Thread(target=block, daemon=True).start()
        try:
            arrived = done.acquire(timeout=wait_s)
        except BaseException:  # interrupted: what was granted, or will be, is let go
            with guard:
                abandoned.append(True)
                for file in granted:
                    if file >= 0:
                        _close_lock(file)
            raise
        with guard:
            abandoned.append(True)
        if granted and granted[0] >= 0:
            return granted[0]
        if arrived:
            raise OSError(f"{path}: this file system has no locks")
        raise _busy(path, wait_s)

else:

    def _lock_windows(path: str, wait_s: float) -> int:
        import random

        file = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                os.lseek(file, 0, os.SEEK_SET)
                msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
                return file
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(file)
                    raise _busy(path, wait_s) from None
                time.sleep(random.uniform(0.001, 0.005))


# ================================================================================================
# 12. Store
#
# Log and index together: open, catch up, commit, checkpoint, rebuild, read lines back. Knows
# bytes, offsets and transactions; must not know what the operations mean beyond `apply`.
# ================================================================================================

# Hash; log offset + 1 and, in the upper 16 bits, part of a crc of the slot; all zero: empty.
_SLOT = Struct("<QQ")
_SLOT_OFFSET = (1 << 48) - 1
_SLOT_BYTES = 16
_FIRST_TABLE_SLOTS = 4096
_PROBE_SLOTS = 32  # slots fetched by one read
_INDEX_HEADER_BYTES = 64


class Lookup:
    """Hash -> offsets of log lines, in tables of doubling size that are at most half full.

    A full table stays and the next one is begun, so nothing is ever rehashed. What is not in the
    file yet is in `pending`. `count` entries are in the file; it decides which table is current,
    so storing the same entries again finds them in place and changes nothing.
    """

    __slots__ = ("count", "pending", "read")

    def __init__(self, read: Callable[[int, int], bytes] | None = None, count: int = 0) -> None:
        self.read = read
        self.count = count
        self.pending: dict[int, list[int]] = {}

    def add(self, found: list[tuple[int, int]]) -> None:
        for key, offset in found:
            self.pending.setdefault(key, []).append(offset)

    def find(self, key: int) -> list[int]:
        """Offsets noted under `key`, newest first; the caller compares each line."""
        offsets = list(reversed(self.pending.get(key, ())))
        if self.count:
            for table in range(lookup_table(self.count - 1), -1, -1):
                offsets += [
                    offset for offset in reversed(self._probe(table, key)) if offset not in offsets
                ]
        return offsets

    def _probe(self, table: int, key: int) -> list[int]:
        start, slots = lookup_place(table)
        assert self.read is not None
        found: list[int] = []
        place = key & (slots - 1)
        for _ in range(slots // _PROBE_SLOTS + 2):
            size = min(_PROBE_SLOTS, slots - place)
            raw = self.read(size * _SLOT_BYTES, start + place * _SLOT_BYTES)
            for slot_key, value in _SLOT.iter_unpack(raw[: len(raw) // _SLOT_BYTES * _SLOT_BYTES]):
                if not value and not slot_key:
                    return found
                offset = (value & _SLOT_OFFSET) - 1
                # Each slot passed over is checked: a damaged key would look like an unknown one.
                if pack_slot(slot_key, offset) != _SLOT.pack(slot_key, value):
                    raise _IndexUnfit("a slot of the lookup is damaged")
                if slot_key == key:
                    found.append(offset)
            place = (place + size) & (slots - 1)
        return found

    def store(self, read: Callable[[int, int], bytes], write: Callable[[bytes, int], None]) -> int:
        """Put what is pending into the tables, in log order; the new count. `pending` stays.

        Raises:
            _IndexUnfit: a table has no room, which cannot be.
        """
        entries = sorted(
            (offset, key) for key, offsets in self.pending.items() for offset in offsets
        )
        count = self.count
        for offset, key in entries:
            start, slots = lookup_place(lookup_table(count))
            wanted = pack_slot(key, offset)
            place = key & (slots - 1)
            for _ in range(slots):
                raw = read(_SLOT_BYTES, start + place * _SLOT_BYTES)
                if raw == wanted:
                    break
                if len(raw) < _SLOT_BYTES or raw == _NO_SLOT:
                    write(wanted, start + place * _SLOT_BYTES)
                    break
                place = (place + 1) & (slots - 1)
            else:
                raise _IndexUnfit("a table of the lookup is full")
            count += 1
        return count


_NO_SLOT = bytes(_SLOT_BYTES)


def pack_slot(key: int, offset: int) -> bytes:
    """The 16 bytes of an entry of the lookup."""
    check = zlib.crc32(_SLOT.pack(key, offset + 1 & _SLOT_OFFSET)) & 0xFFFF
    return _SLOT.pack(key, offset + 1 & _SLOT_OFFSET | check << 48)


def lookup_table(count: int) -> int:
    """The table that entry number `count` (from 0) belongs into: half of all slots before it are
    used."""
    return (count // (_FIRST_TABLE_SLOTS // 2) + 1).bit_length() - 1


def lookup_place(table: int) -> tuple[int, int]:
    """(byte offset of the table in the file, number of its slots)."""
    slots = _FIRST_TABLE_SLOTS << table
    return _INDEX_HEADER_BYTES + (slots - _FIRST_TABLE_SLOTS) * _SLOT_BYTES, slots


def lookup_file_bytes(count: int) -> int:
    """Size of a lookup file with `count` entries: whole tables."""
    start, slots = lookup_place(lookup_table(max(count - 1, 0)))
    return start + slots * _SLOT_BYTES


def index_header(magic: bytes, log_id: str, index_id: str) -> bytes:
    """First 64 bytes of `rows` and `lookup`: which log, and which build of its index, they
    belong to."""
    body = (magic + bytes.fromhex(log_id) + bytes.fromhex(index_id)).ljust(60, b"\0")
    return body + _U32.pack(zlib.crc32(body))


class Memory:
    """A file in memory, for building a lookup before it is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, size: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, data: bytes, offset: int) -> None:
        if len(self.data) < offset + len(data):
            self.data.extend(bytes(offset + len(data) - len(self.data)))
        self.data[offset : offset + len(data)] = data


class Index:
    """The three derived files in `<db>.index/`. Reading problems are _IndexUnfit or OSError."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        self.index_id = ""
        self._unfit_id: str | None = None  # of a build found damaged, not to be opened again
        self._rows = -1
        self._lookup = -1

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def close(self) -> None:
        for file in (self._rows, self._lookup):
            if file >= 0:
                self.disk.close(file)
        self._rows = self._lookup = -1

    def read_state(self) -> Json | None:
        """The content of the state file, None if there is none or it is damaged."""
        try:
            file = self.disk.open(self.path("state"), os.O_RDONLY)
        except OSError:
            return None
        try:
            line = self.disk.read_at(file, self.disk.size(file), 0)
            if line_crc(line, 0) is None:
                return None
            return decode_line(line)
        except (OSError, ValueError):
            return None
        finally:
            self.disk.close(file)

    def open(self, plain: Json, log_id: str) -> tuple[Rows, Lookup]:
        """Rows and lookup that the state file `plain` belongs to.

        Raises:
            _IndexUnfit, OSError: they are missing, too short or of another build.
        """
        self.close()
        self.index_id = plain["index_id"]
        if self.index_id == self._unfit_id:
            raise _IndexUnfit("found damaged before")
        count, nodes = plain["lookups"], plain["n"]
        self._rows = self._open_file("rows")
        self._lookup = self._open_file("lookup")
        for file, magic, size in (
            (self._rows, b"TLROWS1\n", (nodes + 1) * ROW_BYTES),
            (self._lookup, b"TLLOOK2\n", lookup_file_bytes(count)),
        ):
            wanted = index_header(magic, log_id, self.index_id)
            if (
                self.disk.read_at(file, _INDEX_HEADER_BYTES, 0) != wanted
                or self.disk.size(file) < size
            ):
                raise _IndexUnfit("another build or too short")
        return Rows(self._read_rows, nodes), Lookup(self._read_lookup, count)

    def _open_file(self, name: str) -> int:
        try:
            return self.disk.open(self.path(name), os.O_RDWR)
        except FileNotFoundError:
            raise _IndexUnfit(name) from None
        except OSError:
            return self.disk.open(self.path(name), os.O_RDONLY)

    def _read_rows(self, size: int, offset: int) -> bytes:
        return self._read(self._rows, size, offset)

    def _read_lookup(self, size: int, offset: int) -> bytes:
        return self._read(self._lookup, size, offset)

    def _read(self, file: int, size: int, offset: int) -> bytes:
        try:
            return self.disk.read_at(file, size, offset)
        except OSError as error:
            raise _IndexUnfit(str(error)) from None

    def _write_lookup(self, data: bytes, offset: int) -> None:
        self.disk.write_at(self._lookup, data, offset)

    def lookup_in_memory(self) -> Memory:
        """A copy of the open lookup file."""
        memory = Memory()
        memory.data += self.disk.read_at(self._lookup, self.disk.size(self._lookup), 0)
        return memory

    def is_ours(self) -> bool:
        """Whether the open files are still the ones in the folder."""
        if self._rows < 0:
            return False
        for file, name in ((self._rows, "rows"), (self._lookup, "lookup")):
            held = os.fstat(file)
            try:
                named = os.stat(self.path(name))
            except FileNotFoundError:
                return False
            if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
                return False
        return True

    def extend(self, rows: Rows, lookup: Lookup, plain: Json) -> None:
        """Write what came since the last checkpoint into the open files, then the state file."""
        self.disk.write_at(self._rows, bytes(rows.tail), (rows.stored + 1) * ROW_BYTES)
        entries = sum(map(len, lookup.pending.values()))
        size = lookup_file_bytes(lookup.count + entries)
        if self.disk.size(self._lookup) < size:
            self.disk.truncate(self._lookup, size)
        count = lookup.store(self._read_lookup, self._write_lookup)
        self.disk.sync_data(self._rows)
        self.disk.sync_data(self._lookup)
        self._write_state(plain, len(rows), count)
        rows.stored = len(rows)
        rows.tail = bytearray()
        lookup.count = count
        lookup.pending = {}

    def build(
        self, rows: Rows, lookup: Lookup, table: Memory, plain: Json, log_id: str
    ) -> tuple[Rows, Lookup]:
        """Write a whole new index from rows in memory and open it.

        Raises:
            Busy, OSError: another process is at it, or the system failed.
        """
        self.close()
        self.disk.make_folder(self.folder)
        # Readers share the log's lock, so that several may come here at once.
        held = lock(self.path("lock"), True, 0)
        try:
            self._write_build(rows, lookup, table, plain, log_id)
        finally:
            unlock(held)
        return self.open(
            {"index_id": self.index_id, "n": len(rows), "lookups": lookup.count}, log_id
        )

    def _write_build(
        self, rows: Rows, lookup: Lookup, table: Memory, plain: Json, log_id: str
    ) -> None:
        self.disk.remove(self.path("state"))  # so that it never names the files of another build
        self.index_id = os.urandom(8).hex()
        lookup.count = lookup.store(table.read, table.write)
        lookup.pending = {}
        table.write(index_header(b"TLLOOK2\n", log_id, self.index_id), 0)
        for name, parts in (
            ("rows", (index_header(b"TLROWS1\n", log_id, self.index_id), rows.tail)),
            ("lookup", (table.data,)),
        ):
            file = self.disk.open(self.path(name + ".tmp"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                offset = 0
                for part in parts:
                    self.disk.write_at(file, part, offset)  # type: ignore[arg-type]
                    offset += len(part)
                if name == "lookup":
                    self.disk.truncate(file, lookup_file_bytes(lookup.count))
                self.disk.sync_data(file)
            finally:
                self.disk.close(file)
            self.disk.replace(self.path(name + ".tmp"), self.path(name))
        self._write_state(plain, len(rows), lookup.count)

    def _write_state(
        self, plain: Json, nodes: int, lookups: int, index_id: str | None = None
    ) -> None:
        index_id = index_id or self.index_id
        record = {**plain, "index_id": index_id, "n": nodes, "lookups": lookups}
        temporary = self.path("state.tmp")
        file = self.disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.disk.write_at(file, encode_line(record, 0)[0], 0)
            self.disk.sync_data(file)
        finally:
            self.disk.close(file)
        self.disk.replace(temporary, self.path("state"))

    def drop(self) -> None:
        """Make the next opening rebuild the index. What it knew of the log's length stays: it tells
        damage from an unfinished write."""
        self.close()
        self._unfit_id = self.index_id
        plain = self.read_state()
        if plain is None:
            return
        plain["unfit"] = True
        try:
            self._write_state(plain, plain["n"], plain["lookups"])
        except (OSError, KeyError):
            pass

    def note_spoiled(self, log_id: str, offset: int) -> None:
        """Note in the state file, if it speaks of this log, that the line at `offset` cannot be
        read. Failures are swallowed: the next reader of the line finds it too."""
        plain = self.read_state()
        if plain is None or plain.get("log_id") != log_id:
            return
        plain["spoiled"] = offset
        try:
            self._write_state(plain, plain["n"], plain["lookups"], plain["index_id"])
        except (OSError, KeyError):
            pass

    def forget(self) -> None:
        """Delete the state file: it speaks of a log that is not this one any more."""
        self.close()
        try:
            self.disk.remove(self.path("state"))
        except OSError:
            pass


class Store:
    """One database file, kept open between operations.

    After `refresh` under a lock, `state` and `rows` are those of the log up to `end`. All below
    `end` never changes, so reading on needs no lock. Not for several threads at once.
    """

    def __init__(self, path: str, disk: Disk, wait_s: float, notice: Callable[[str], None]) -> None:
        try:
            self.path = os.path.realpath(path)
        except FileNotFoundError:
            raise NotFound(
                f"the current folder does not exist any more, so {quoted(path)} names nothing: go "
                "to another folder, or give the database by its whole path"
            ) from None
        self.lock = Lock(self.path + ".lock", wait_s)
        self.disk = disk
        self.notice = notice
        self.index = Index(self.path + ".index", disk)
        self.header: Header
        self.state = State()
        self.rows = Rows()
        self.lookup = Lookup()
        self.end = 0  # where the last complete transaction ends
        self.crc = 0  # of the line that ends there
        self.damage: Corrupt | None = None  # what stops reading at `end`
        self.spoiled: Corrupt | None = None  # a line below `end` that cannot be read any more
        self._stopped_at = 0  # offset of the line that the last replay could not take
        self.synced = 0  # up to here this process knows the log to be on disk
        self._log = -1
        self._identity = (0, 0)
        self._size = 0  # of the log, as the last refresh saw it
        self._swept = False  # leftovers beside it were looked for
        self._read_only = False
        self._process = 0
        self._table = Memory()
        self._damage_size = 0
        self.state_on_the_way: Json = {}
        self._reload_at = 0
        self._checkpoint_end = 0
        self._checkpoint_seq = 0
        self._checkpoint_failures = 0

    # ---- opening and catching up -----------------------------------------------------------

    def close(self) -> None:
        """Drop the handles; the next operation opens the files anew."""
        self.close_log()
        self.index.close()

    def close_log(self) -> None:
        """Drop the log's handle only."""
        if self._log >= 0 and self._process in (0, os.getpid()):
            self.disk.close(self._log)
        self._log = -1

    @property
    def log_file(self) -> int:
        """The descriptor of the open log."""
        return self._log

    def open_raw(self) -> None:
        """Open the log for repair, whatever its state is."""
        self.close()
        self._log = self._open_log()
        self._process = os.getpid()

    def log_id_left(self) -> str | None:
        """The log_id of a header that may be damaged; None if it cannot be read.

        Raises:
            UnknownVersion: a newer format_version. Corrupt: no line of the file is one of a log.
        """
        line = self.disk.read_at(self._log, 4096, 0).split(b"\n")[0].removeprefix(b"\xef\xbb\xbf")
        try:
            record = decode_line(line.rstrip(b"\r"))
            if record["timeline"] == "log" and record["format_version"] <= FORMAT_VERSION:
                return str(record["log_id"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        try:
            self._read_header()
        except UnknownVersion:
            raise
        except Corrupt:
            if all(each.record is None for each in scan_log(self, self.disk.size(self._log))):
                raise
        return None

    def replay_alone(self, pause_at: int, claimed: int) -> None:
        """Read the whole log without the index; `state_on_the_way` is the state at byte
        `pause_at`. An index knows of `claimed` bytes."""
        self.open_raw()
        self.header = self._read_header()
        self._start_empty()
        size = self.disk.size(self._log)
        stopped = self._replay(pause_at) if pause_at else None
        self.state_on_the_way = loads(dumps(self.state.to_json()))
        stopped = stopped or self._replay(size)
        if stopped and not self._is_torn(size, claimed):
            self.damage = self._damage(self._stopped_at, stopped)

    def lookup_entries(self) -> Iterator[tuple[int, int]]:
        """(key, offset) of every entry of a lookup that was made in memory."""
        table = self._table.data
        for key, value in _SLOT.iter_unpack(table[_INDEX_HEADER_BYTES : len(table) // 16 * 16]):
            if value:
                yield key, (value & _SLOT_OFFSET) - 1
        for key, offsets in self.lookup.pending.items():
            for offset in offsets:
                yield key, offset

    def is_open(self) -> bool:
        return self._log >= 0

    def refuse_foreign(self) -> None:
        """Raise Corrupt if the file is not a log of ours, before anything is made beside it."""
        if self._log < 0:
            self._log = self._open_log()
            self._process = os.getpid()
            try:
                self._read_header()
            finally:
                self.close_log()

    def refresh(self) -> None:
        """Bring state and rows up to what the log holds now. Call with a lock held.

        Raises:
            NotFound: no such file. Corrupt: not a log this program can read.
        """
        size = -1 if self._log < 0 or self._process != os.getpid() else self._size_if_ours()
        if size < 0:
            self._open()
            return
        self._size = size
        if self.disk.read_at(self._log, 11, self.end - 11) != b'%08x"}\n' % self.crc:
            self._open()  # a backup was restored into the file, however long it is now
            return
        if size == (self.end if self.damage is None else self._damage_size):
            return
        if self.damage is not None or size - self.end > CHECKPOINT_BYTES:
            self._open()  # cut back, or so much that somebody else's checkpoint is cheaper
        elif self._replay(size) and not self._is_torn(size, 0):
            self._open()  # what looks like damage is read once more, from the start
        elif self.end - self._reload_at > 4 * CHECKPOINT_BYTES:
            self._reload_at = self.end
            plain = self.index.read_state()
            if plain is not None and plain["valid_off"] > self._checkpoint_end:
                self._open()  # a checkpoint of another process keeps our tail in memory short

    def _size_if_ours(self) -> int:
        """Size of the file at `path`, -1 if it is not the one we have open."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return -1
        return named.st_size if (named.st_dev, named.st_ino) == self._identity else -1

    def _open(self) -> None:
        self.close()
        self._log = self._open_log()
        self._process = os.getpid()
        held = os.fstat(self._log)
        self._identity = (held.st_dev, held.st_ino)
        self._swept = False
        try:
            self.header = self._read_header()
            claimed = self._load_index()
            self._load_tail(claimed)
        except BaseException:
            self.close()
            raise

    def _open_log(self) -> int:
        self._read_only = False
        try:
            if not _is_file(self.path):
                raise Refused(f"{self.path} is no regular file: choose another --db")
            return self.disk.open(self.path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            raise missing_database(self.path) from None
        except IsADirectoryError:
            raise Refused(f"{self.path} is a folder, not a database: choose another --db") from None
        except OSError:
            self._read_only = True
            return self.disk.open(self.path, os.O_RDONLY)

    def _read_header(self) -> Header:
        start = self.disk.read_at(self._log, 4096, 0)
        if not start:
            raise Corrupt(
                f"{self.path} is empty (line 1, byte 0), no Timeline database: delete it or "
                "choose another --db",
                line=1,
                byte=0,
            )
        newline = start.find(b"\n")
        line = start[: newline + 1] or start
        if _HEADER_MARK not in line[:40]:
            if start.startswith(_LINE_BEGINS, newline + 1):
                raise _damaged_header(self.path, line)
            whole = self.disk.read_at(self._log, 64 << 20, 0)
            try:
                raise Corrupt(foreign_message(loads(whole.decode()), self.path), line=1, byte=0)
            except (ValueError, RecursionError):
                pass
        return parse_header(line, self.path)

    def _load_index(self) -> int:
        """Start from the checkpoint if it fits the log, else from nothing; what it claims to know
        of
        this log, in bytes, is returned if it does not fit."""
        plain = self.index.read_state()
        self.damage = self.spoiled = None
        claimed = 0
        if plain is not None and plain.get("log_id") == self.header.log_id:
            claimed = plain["valid_off"]
            tail = self.disk.read_at(self._log, 11, claimed - 11)
            if tail == b'%08x"}\n' % plain["last_crc"] and "unfit" not in plain:
                try:
                    self.rows, self.lookup = self.index.open(plain, self.header.log_id)
                    self.state = State.from_json(plain["state"])
                    self._start_at(claimed, plain["last_crc"])
                    spoiled = plain.get("spoiled")
                    if spoiled is not None and not self._is_whole_at(spoiled):
                        self.spoiled = self._spoiled_line(spoiled)
                    return 0
                except (_IndexUnfit, OSError, KeyError, TypeError, ValueError):
                    pass
        self.index.close()
        self._start_empty()
        return claimed

    def _start_empty(self) -> None:
        self._table = Memory()
        self.state, self.rows, self.lookup = State(), Rows(), Lookup(self._table.read)
        self._start_at(self.header.length, self.header.crc)

    def _start_at(self, end: int, crc: int) -> None:
        self.end, self.crc = end, crc
        self._checkpoint_end = end
        self._checkpoint_seq = self.state.seq
        self._checkpoint_failures = 0
        self._reload_at = end
        self.synced = 0

    def _load_tail(self, claimed: int) -> None:
        size = self._size = self.disk.size(self._log)
        stopped = self._replay(size)
        if stopped and self._is_torn(size, claimed):
            stopped = None
            if self._lacks_newline_only(size):
                self.notice(
                    f"{self.path}: the last line lacks its newline, as an editor may leave it: "
                    "what it says is shown again as soon as something is written"
                )
        if stopped:
            self.damage = self._damage(self._stopped_at, stopped)
            self._damage_size = size
            return
        if claimed > self.end:
            self.notice(f"{self.path} is older than its index: read as a restored backup")
            self.index.forget()
        if self.rows.read is None and (
            self.end - self.header.length >= CHECKPOINT_BYTES
            or self.state.seq >= CHECKPOINT_COMMITS
        ):
            self.checkpoint()

    def _replay(self, size: int) -> str | None:
        """Apply the complete transactions of end..size; what is wrong with what stopped it, or
        None."""
        started = time.monotonic()
        shown = 0
        group: list[tuple[Json, int, int]] = []
        crc = self.crc
        for lines, offset in self.plain_lines(self.end, size):
            problem, crc = self._apply_lines(lines, offset, crc, group)
            self.lookup.add(self.state.found)
            self.state.found.clear()
            if self.rows.read is None and len(self.lookup.pending) > 4096:
                self.lookup.count = self.lookup.store(self._table.read, self._table.write)
                self.lookup.pending = {}
            if problem:
                return problem
            seconds = int(time.monotonic() - started)
            if seconds > shown:
                shown = seconds
                self.notice(f"reading {self.path}: {self.end * 100 // size} %")
        self._stopped_at = self.end
        return None if self.end == size else "is not finished"

    def _apply_lines(
        self, lines: list[bytes], offset: int, crc: int, group: list[tuple[Json, int, int]]
    ) -> tuple[str | None, int]:
        """Apply `lines` (without newlines) that begin at `offset` behind a line with `crc`.

        `group` holds the lines of a transaction that is not complete yet, here and from call to
        call. Returns what is wrong with the first line that cannot be applied, or None, and the
        crc.
        """
        state, rows = self.state, self.rows
        wanted = state.seq + 1
        for line in lines:
            self._stopped_at = offset
            length = len(line) + 1
            crc = zlib.crc32(line[:-18], crc)
            if line[-18:] != b',"crc":"%08x"}' % crc:
                return "does not match its checksum", crc
            try:
                record = decode_head(line)
                if record["seq"] != wanted:
                    return f"has seq {record['seq']!s:.20} where {wanted} is due", crc
                if group or "more" in record:
                    group.append((record, offset, length))
                    offset += length
                    if "more" in record:
                        continue
                    for each in group:  # before anything of it is applied
                        self._stopped_at = each[1]
                        change_of(each[0])
                    for each in group:
                        apply(state, rows, *each)
                    group.clear()
                else:
                    apply(state, rows, record, offset, length)
                    offset += length
            except UnknownVersion as error:
                return str(error), crc
            except (
                KeyError,
                IndexError,
                TypeError,
                ValueError,
                AttributeError,
                RecursionError,
            ) as error:
                return f"does not fit what is before it ({type(error).__name__})", crc
            wanted += 1
            self.end, self.crc = offset, crc
        return None, crc

    def _is_torn(self, size: int, claimed: int) -> bool:
        """Whether what lies in end..size can be an unfinished write. Else it is damage.

        Damage: an index knows more of the log, or a later transaction lies behind it, or every
        line up to one that commits still reads as JSON: a write that was cut short leaves out
        newlines or whole sectors. A transaction is never begun before the one before it is on
        disk, so nothing acknowledged can lie in a torn tail.
        """
        if claimed > self.end:
            return False
        crcs = {self.crc}
        reads = True  # every line so far
        for lines, _ in self.plain_lines(self.end, size):
            for line in lines:
                for part, _ in _parts(line):
                    valid = _valid_record(part, crcs)
                    if valid is not None and valid["seq"] >= self.state.seq + 2:
                        return False
                    if reads:
                        record = valid or _read_record(part)
                        reads = record is not None
                        if record is not None and "more" not in record:
                            return False
                    crcs = _crcs_after(part, crcs, valid is not None)
        return True

    def plain_lines(
        self, offset: int, size: int, last: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        """(lines without their newline, offset of the first) of offset..size, in chunks.

        What follows the last newline comes only with `last`.
        """
        rest: list[bytes] = []
        start = offset
        while offset < size:
            data = self.disk.read_at(self._log, min(CHUNK_BYTES, size - offset), offset)
            if not data:
                return
            offset += len(data)
            rest.append(data)
            if b"\n" in data:
                lines = b"".join(rest).split(b"\n")
                rest = [lines.pop()]
                yield lines, start
                start = offset - len(rest[0])
        if last and any(rest):
            yield [b"".join(rest)], start

    def _damage(self, offset: int, what: str) -> Corrupt:
        line = self.line_number(offset)
        kind = UnknownVersion if what.startswith("operation ") else Corrupt
        advice = (
            "upgrade"
            if kind is UnknownVersion
            else "`tl doctor --repair-to NEW` writes what is left to a new file"
        )
        return kind(
            f"{self.path}: line {line}, byte {offset}: {what}; the operations before it stay "
            f"readable, writing is refused; {advice}",
            line=line,
            byte=offset,
        )

    def line_number(self, offset: int) -> int:
        """The number, from 1, of the line that begins at `offset`."""
        count = 1
        for start in range(0, offset, CHUNK_BYTES):
            count += self.disk.read_at(self._log, min(CHUNK_BYTES, offset - start), start).count(
                b"\n"
            )
        return count

    # ---- writing ---------------------------------------------------------------------------

    def create_if_missing(self, now: int) -> None:
        """Make an empty database if there is none. Call with the exclusive lock held."""
        if os.path.lexists(self.path):
            return
        temporary = self.path + ".tmp"
        self.disk.write_new(temporary, new_header(now))
        try:
            self.disk.place_new(temporary, self.path)
        except FileExistsError:
            self.disk.remove(temporary)
        self.disk.sync_folder(os.path.dirname(self.path))

    def prepare(self) -> None:
        """Make the log ready for writing: caught up, undamaged, without a torn tail, under the
        lock."""
        self.refresh()
        for found in (self.damage, self.spoiled):
            if found is not None:
                raise found
        if self._read_only:
            raise WriteFailed(f"not stored: {self.path} is read-only")
        if self._size != self.end:
            self._finish_last_line()
        if self._size != self.end:
            self._set_torn_aside(self._size)
        if not self._swept:
            self._swept = True
            if os.path.exists(self.path + ".tmp"):
                self.disk.remove(self.path + ".tmp")  # left by a create or purge that died

    def _lacks_newline_only(self, size: int) -> bool:
        """Whether end..size is a transaction that is whole but for its last newline."""
        tail = self.disk.read_at(self._log, size - self.end, self.end)
        if not tail.endswith(b'"}'):
            return False
        crc: int | None = self.crc
        lines = tail.split(b"\n")
        for line in lines:
            crc = None if crc is None else line_crc(line + b"\n", crc)
        return crc is not None and "more" not in decode_head(lines[-1])

    def _finish_last_line(self) -> None:
        """Write the newline that a last transaction, whole but for it, lacks: it counts as stored,
        for an editor may have taken the newline from one that was acknowledged."""
        if not self._lacks_newline_only(self._size):
            return
        self.disk.append(self._log, b"\n")
        self.disk.fsync(self._log)
        self.notice(f"{self.path}: the last line lacked its newline, which was added")
        self.refresh()

    def _set_torn_aside(self, size: int) -> None:
        torn = self.disk.read_at(self._log, size - self.end, self.end)
        file = self.disk.open(self.path + ".torn", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self.disk.append(
                file, b"%d bytes cut from byte %d:\n" % (len(torn), self.end) + torn + b"\n"
            )
            self.disk.fsync(file)
        finally:
            self.disk.close(file)
        self.disk.truncate(self._log, self.end)
        self.disk.fsync(self._log)  # or a power cut may mix the old tail with the next line
        self.notice(
            f"{self.path}: {len(torn)} bytes of an unfinished write at byte {self.end} moved to "
            f"{self.path}.torn"
        )

    def commit(self, records: list[Json], now: int) -> None:
        """Make `records` one transaction of the log. Call after `prepare`, under the exclusive
        lock.

        Raises:
            WriteFailed: nothing is stored; the log was cut back and the handles are dropped, since
                after a failed fsync nobody knows what the disk holds.
        """
        seq, ts = self.state.seq + 1, max(now, self.state.ts)
        lines, placed = [], []
        offset, crc = self.end, self.crc
        for number, record in enumerate(records, 1):
            whole = {"seq": seq, "ts": ts, "op": record["op"]}
            if number < len(records):
                whole["more"] = 1
            whole.update(record)
            line, crc = encode_line(whole, crc)
            lines.append(line)
            placed.append((whole, offset, len(line)))
            offset += len(line)
        self._write(b"".join(lines))
        self._take_in(placed, offset, crc)

    def commit_lines(self, data: bytes, end: int, crc: int) -> None:
        """Like `commit`, for lines that are encoded and applied already. On failure the caller
        must drop the state."""
        self._write(data)
        self._take_in([], end, crc)

    def _take_in(self, placed: list[tuple[Json, int, int]], end: int, crc: int) -> None:
        """Bring what was written into memory; checkpoint if that is due."""
        try:
            for each in placed:
                apply(self.state, self.rows, *each)
        except (_IndexUnfit, OSError):
            # The transaction is on disk; only what we keep beside it must be made anew.
            self.index.drop()
            self.close()
            return
        except BaseException:
            self.close()
            raise
        self.lookup.add(self.state.found)
        self.state.found.clear()
        self.end, self.crc, self.synced = end, crc, end
        if (
            self.state.seq - self._checkpoint_seq >= CHECKPOINT_COMMITS << self._checkpoint_failures
            or end - self._checkpoint_end >= CHECKPOINT_BYTES << self._checkpoint_failures
        ):
            self.checkpoint()

    def _write(self, data: bytes) -> None:
        try:
            self.disk.append(self._log, data)
            self.disk.fsync(self._log)
        except OSError as error:
            state = "not stored"
            try:
                self.disk.truncate(self._log, self.end)
            except OSError:
                state = "state unknown, repeat with the idempotency key"
            self.close()
            raise WriteFailed(
                f"{state}: {system_words(error, self.path)}", errno=error.errno
            ) from None
        except BaseException:
            self.close()  # interrupted: the next operation reads what the disk holds
            raise

    def settle(self) -> None:
        """Be sure that the log up to `end` is on disk before an answer rests on another's line."""
        if self.synced < self.end:
            try:
                self.disk.fsync(self._log)
            except OSError as error:
                self.close()
                raise WriteFailed(
                    f"state unknown, repeat: {system_words(error, self.path)}", errno=error.errno
                ) from None
            self.synced = self.end

    def checkpoint(self) -> None:
        """Write the index up to `end`. Failures are swallowed: it can be rebuilt, the log
        cannot."""
        try:
            if self.rows.read is None:
                self.rows, self.lookup = self.index.build(
                    self.rows, self.lookup, self._table, self._plain(), self.header.log_id
                )
                self._table = Memory()
            elif self.index.is_ours():
                self.index.extend(self.rows, self.lookup, self._plain())
            else:
                self.index.forget()  # somebody deleted or rebuilt it: start again from the log
                self._open()
                return
        except (OSError, Busy, _IndexUnfit) as error:
            if isinstance(error, _IndexUnfit) and self.rows.read is not None:
                self.index.drop()
                self._open()
                return
            self._checkpoint_failures = min(self._checkpoint_failures + 1, 20)
            return
        self._checkpoint_end = self.end
        self._checkpoint_seq = self.state.seq
        self._checkpoint_failures = 0

    def _plain(self) -> Json:
        return {
            "log_id": self.header.log_id,
            "valid_off": self.end,
            "last_crc": self.crc,
            "state": self.state.to_json(),
        }

    # ---- reading back ----------------------------------------------------------------------

    def line(self, offset: int, length: int) -> bytes:
        """The line at `offset`, checked against the crc printed just before it.

        Raises:
            Corrupt: it does not match.
        """
        raw = self.disk.read_at(self._log, length + 11, offset - 11)
        if len(raw) == length + 11 and self._is_right(raw[11:], _printed_crc(raw, 11), offset):
            return raw[11:]
        raise self.unreadable(offset)

    def unreadable(self, offset: int) -> Corrupt:
        """The error for a line below `end` that no longer matches its checksum.

        Rows and state were made when it did, so the other lines stay readable through them. That is
        noted in the index: whoever opens it from now on refuses to write.
        """
        if self.spoiled is None:
            self.spoiled = self._spoiled_line(offset)
            self.index.note_spoiled(self.header.log_id, offset)
        return self._spoiled_line(offset)

    def is_line(self, offset: int, length: int) -> bool:
        """Whether the line at `offset` can be read; if not, that is noted."""
        try:
            return bool(self.line(offset, length))
        except Corrupt:
            return False

    def _spoiled_line(self, offset: int) -> Corrupt:
        line = self.line_number(offset)
        return Corrupt(
            f"{self.path}: line {line}, byte {offset}: does not match its checksum; the others "
            "stay readable, writing is refused; `tl doctor --repair-to NEW` writes all but this "
            "line to a new file",
            line=line,
            byte=offset,
        )

    def _is_right(self, line: bytes, crc: int, offset: int) -> bool:
        """Whether `line`, at `offset`, follows from the `crc` printed before it, or from the one
        that should be printed there."""
        return (
            line_crc(line, crc) is not None
            or line_crc(line, self._crc_due_before(offset)) is not None
        )

    def _crc_due_before(self, offset: int) -> int:
        """The crc that the line before `offset` should end in, whatever it prints."""
        size = 4096
        while True:
            start = max(0, offset - size)
            raw = self.disk.read_at(self._log, offset - start, start)
            cut = raw.rfind(b"\n", 0, max(0, len(raw) - 1)) + 1
            if cut or not start:
                break
            size *= 4
        begin = start + cut
        before = self.disk.read_at(self._log, 11, begin - 11) if begin else b""
        return zlib.crc32(raw[cut:-_CRC_BYTES], _printed_crc(before, 11))

    def _is_whole_at(self, offset: int) -> bool:
        """Whether a whole line begins at `offset`."""
        try:
            return bool(self._line_from(offset))
        except _IndexUnfit:
            return False

    def line_at(self, offset: int) -> bytes:
        """The line that the lookup says begins at `offset`; its length is not known.

        Raises:
            Corrupt: the line there does not match its checksum.
            _IndexUnfit: no line begins there. If the log is at fault, the replay that follows finds
                the place.
        """
        line = self._line_from(offset)
        if not line:
            raise self.unreadable(offset)
        return line

    def _line_from(self, offset: int) -> bytes:
        """The line that begins at `offset`, b"" if it does not match its checksum.

        Raises:
            _IndexUnfit: no line begins there.
        """
        size = 4096
        while self.header.length <= offset < self.end:
            raw = self.disk.read_at(self._log, size, offset - 11)
            newline = raw.find(b"\n", 11)
            if newline >= 0 or len(raw) < size:
                line = raw[11 : newline + 1]
                if self._is_right(line, _printed_crc(raw, 11), offset):
                    return line
                if raw[8:11] == b'"}\n':
                    return b""
                break
            size *= 4
        raise _IndexUnfit(f"the lookup leads to byte {offset}, where no line begins")

    def head(self, node: int, row: Row) -> Json:
        """The record of a node's line without its text."""
        return decode_head(self.node_line(node, row))

    def node_line(self, node: int, row: Row) -> bytes:
        """A node's line. Raises _IndexUnfit if the row leads to another node's line."""
        line = self.line(row[OFFSET], row[LENGTH])
        if line.find(b',"id":%d,"parent":%d,' % (node, row[PARENT]), 0, 200) < 0:
            raise _IndexUnfit(f"row {node} leads to another line")
        return line

    def node_lines(self, spots: Iterable[Spot]) -> Iterator[bytes]:
        """The nodes' lines in the order given; adjacent ones are fetched together and all
        checked."""
        group: list[Spot] = []
        start = end = limit = -1
        for spot in spots:
            _, _, offset, length = spot
            if offset != end or end + length > limit:
                yield from self._lines_of(group, start, end)
                group = []
                start, end, limit = offset, offset, offset + GROUP_BYTES
            end += length
            group.append(spot)
        yield from self._lines_of(group, start, end)

    def _lines_of(self, group: list[Spot], start: int, end: int) -> list[bytes]:
        lines: list[bytes] = []
        if not group:
            return lines
        raw = self.disk.read_at(self._log, end - start + 11, start - 11)
        place = 11
        crc = _printed_crc(raw, place)
        crc32 = zlib.crc32
        for node, parent, offset, length in group:
            line = raw[place : place + length]
            before, crc = crc, crc32(line[:-19], crc)
            if line[-19:] != b',"crc":"%08x"}\n' % crc:
                if not self._is_right(line, before, offset):
                    raise self.unreadable(offset)
                crc = _printed_crc(raw, place + length)
            if line.find(b',"id":%d,"parent":%d,' % (node, parent), 0, 200) < 0:
                raise _IndexUnfit(f"row {node} leads to another line")
            place += length
            lines.append(line)
        return lines

    def chunks_backwards(self) -> Iterator[tuple[bytes, int]]:
        """(whole lines as one piece, its offset), from `end` back to the header, for searching."""
        end = self.end
        size = 4 * CHUNK_BYTES
        while end > self.header.length:
            start = max(self.header.length, end - size)
            raw = self.disk.read_at(self._log, end - start, start)
            if start > self.header.length:
                cut = raw.find(b"\n") + 1
                if cut == 0 or cut == len(raw):
                    size *= 4  # one line larger than the chunk
                    continue
                raw = raw[cut:]
                start += cut
            yield raw, start
            end = start
            size = 4 * CHUNK_BYTES  # the step may have grown for a long line

    def lines_from(self, offset: int) -> Iterator[tuple[bytes, int]]:
        """(line with its newline, offset) from a line's offset to `end`, unchecked."""
        for lines, start in self.plain_lines(offset, self.end):
            for line in lines:
                yield line + b"\n", start
                start += len(line) + 1

    def offset_of_seq(self, seq: int) -> int:
        """Where the first line of a transaction above `seq` begins; `end` if there is none."""
        low, high = self.header.length, self.end
        while high - low > 65536:  # the lines are ordered by seq
            middle = (low + high) // 2
            raw = self.disk.read_at(self._log, 1 << 24, middle)
            begin = middle + raw.find(b"\n") + 1
            if begin == middle or begin >= high:
                break
            if decode_head(self.line_at(begin))["seq"] > seq:
                high = begin
            else:
                low = begin
        for line, offset in self.lines_from(low):
            if decode_head(self.line(offset, len(line)))["seq"] > seq:
                return offset
        return self.end


def _is_file(path: str) -> bool:
    """Whether a regular file is there. Opening a pipe could wait for ever. Raises OSError."""
    kind = os.stat(path).st_mode & 0o170000
    if kind == 0o040000:
        raise IsADirectoryError(path)
    return kind == 0o100000


def _printed_crc(raw: bytes, place: int) -> int:
    """The crc that the line before `place` ends in; 0, as before a header, if it is unreadable."""
    try:
        return int(raw[place - 11 : place - 3], 16)
    except ValueError:
        return 0


def missing_database(path: str) -> NotFound:
    """The error for a database file that is not there."""
    return NotFound(
        f"no database at {path}: `create` makes one; --db or TIMELINE_DB names another", path=path
    )


# ================================================================================================
# 13. Maintenance
#
# Doctor, repair, purge: whole passes over the log. Knows the store and `apply`.
# ================================================================================================


class Scanned:
    """A line met by `scan_log`: `record` is None where it is not valid by itself."""

    __slots__ = ("end", "number", "record", "start")

    def __init__(self, number: int, start: int, end: int, record: Json | None) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.record = record


def scan_log(store: Store, size: int) -> Iterator[Scanned]:
    """Every line behind the header, one after the other, whatever came before it.

    A line is valid by itself if its crc follows from the crc printed in the line before it, or
    from the one that line should have printed. A newline lost to damage is found again by how a
    line begins, and a CR that an editor put before the newlines is not counted as one.
    """
    number = 0
    crcs: set[int] = set()
    for lines, offset in store.plain_lines(0, size, last=True):
        for line in lines:
            number += 1
            start, end = offset, min(offset + len(line) + 1, size)
            offset += len(line) + 1
            if line.endswith(b"\r"):
                line = line[:-1]
            parts = _parts(line) if line else []
            if number == 1:
                header = parts.pop(0)[0] if parts else b""
                crcs = _crcs_after(header.removeprefix(b"\xef\xbb\xbf"), {0}, valid=False)
            for part, place in parts:
                record = _valid_record(part, crcs)
                yield Scanned(
                    number, start + place, min(start + place + len(part) + 1, end), record
                )
                crcs = _crcs_after(part, crcs, record is not None)


def _parts(line: bytes) -> list[tuple[bytes, int]]:
    """(line, its place) of the lines that a damaged newline glued together: mostly one."""
    cuts = [0]
    place = line.find(b'"}', 0)
    while place >= 0:
        begin = line.find(b'{"seq":', place, place + 10)
        if begin > 0 and line[place - 16 : place - 8] == b',"crc":"':
            cuts.append(begin)
        place = line.find(b'"}', place + 1)
    if len(cuts) == 1:
        return [(line, 0)]
    ends = [*(cut - 1 for cut in cuts[1:]), len(line)]
    return [(line[cut:end], cut) for cut, end in zip(cuts, ends, strict=True)]


def _read_record(line: bytes) -> Json | None:
    """The record of a line (without its newline) that reads as JSON, whatever its crc says."""
    try:
        return decode_line(line + b"\n")
    except (ValueError, RecursionError):
        return None


def _valid_record(line: bytes, crcs: set[int]) -> Json | None:
    line += b"\n"
    if all(line_crc(line, crc) is None for crc in crcs):
        return None
    try:
        record = decode_line(line)
        return record if type(record["seq"]) is int and type(record["op"]) is str else None
    except (ValueError, KeyError, RecursionError):
        return None


def _crcs_after(line: bytes, crcs: set[int], valid: bool) -> set[int]:
    """What the next line's crc may start from: what this one prints, and, if it is not valid, what
    it should print."""
    # In a long damaged stretch only what is printed can help, so a few of the others will do.
    found = set() if valid else {zlib.crc32(line[:-18], crc) for crc in list(crcs)[:7]}
    try:
        found.add(int(line[-10:-2], 16))
    except ValueError:
        pass
    return found


def examine(store: Store) -> Json:
    """The doctor's report on a caught-up store: the whole log is replayed and compared."""
    problems: list[Json] = []
    size = store.disk.size(store.log_file)
    plain = store.index.read_state()
    fresh = Store(store.path, store.disk, store.lock.wait_s, store.notice)
    try:
        claimed = plain["valid_off"] if plain and plain["log_id"] == store.header.log_id else 0
        fresh.replay_alone(claimed if _speaks_of(plain, store) else 0, claimed)
        if fresh.damage is not None:
            for each in scan_log(store, size):
                if each.record is None and len(problems) < 100:
                    what = "this line does not match its checksum"
                    problems.append({"line": each.number, "byte": each.start, "what": what})
                    if store.damage is None and each.start < store.end:
                        store.unreadable(each.start)  # so that writing is refused from now on
            problems = problems or [_problem(str(fresh.damage), **fresh.damage.data)]
        problems += [_problem(what) for what in check(fresh.state, fresh.rows)]
        # What was read ends where the damage begins, while the index goes on behind it.
        if fresh.damage is None and plain is not None and "unfit" not in plain:
            problems += [_problem(what) for what in _compare_index(store, fresh, plain)]
    finally:
        fresh.close()
    report: Json = {
        "ok": not problems,
        "transactions": fresh.state.seq,
        "nodes": len(fresh.rows),
        "problems": problems,
    }
    if fresh.damage is None and size > fresh.end:
        report["unfinished"] = {"byte": fresh.end, "bytes": size - fresh.end}
    if os.path.exists(store.path + ".torn"):
        report["set_aside"] = store.path + ".torn"
    return report


def _problem(what: str, line: object = None, byte: object = None, **_: object) -> Json:
    return {"line": line, "byte": byte, "what": what}


def _speaks_of(plain: Json | None, store: Store) -> bool:
    """Whether a state file belongs to this log as it is."""
    if plain is None or plain.get("log_id") != store.header.log_id or "unfit" in plain:
        return False
    tail = store.disk.read_at(store.log_file, 11, plain["valid_off"] - 11)
    return tail == b'%08x"}\n' % plain["last_crc"]


def _compare_index(store: Store, fresh: Store, plain: Json) -> list[str]:
    """Where the index differs from the replay; [] where it does not speak of this log."""
    if not _speaks_of(plain, store):
        return []
    found = []
    if fresh.state_on_the_way != plain["state"]:
        found.append(
            "the index's state differs from the replay of the log: delete the .index folder"
        )
    index = Index(store.index.folder, store.disk)
    try:
        rows, lookup = index.open(plain, store.header.log_id)
        for first, raw in rows.chunks(1, rows.stored):
            start = (first - 1) * ROW_BYTES
            if raw != fresh.rows.tail[start : start + len(raw)]:
                found.append(
                    f"the index's rows from n{first} on differ from the log: delete the .index "
                    "folder"
                )
                break
        lookup.read = index.lookup_in_memory().read
        for key, offset in fresh.lookup_entries():
            if offset < plain["valid_off"] and offset not in lookup.find(key):
                found.append(
                    f"the index does not know the key of the line at byte {offset}: delete the "
                    ".index folder"
                )
                break
    except (_IndexUnfit, OSError) as error:
        found.append(f"the index cannot be read ({error}): delete the .index folder")
    finally:
        index.close()
    now = store.index.read_state()
    # Somebody may have rebuilt the index while we looked at it.
    return found if now is not None and now.get("index_id") == plain["index_id"] else []


class Repair:
    """Writes what is valid of a damaged log to a new one, with the same node numbers and seqs."""

    def __init__(self, store: Store, until: int | None) -> None:
        self.store = store
        self.until = TOKENS_MAX if until is None else until
        self.size = store.disk.size(store.log_file)
        self.state = State()
        self.rows = Rows()
        self.lost: list[Json] = []
        self.left_out: list[int] = []
        self._children: dict[int, Json] = {}  # lost node -> first later record that hangs on it
        self._lost_at: dict[int, list[int]] = {}  # start of a gap -> nodes lost there
        self._gap: list[Scanned] = []  # invalid lines since the last valid one
        self._output = b""
        self._file = -1
        self._crc = 0
        self._group: list[Json] = []

    def write(self, path: str, created: int) -> Json:
        """Write the new log to `path`, which must not exist, and say what was lost."""
        self._find_children()
        old = self.store.log_id_left()
        header = new_header(created, previous=old)
        if old is None:
            self.lost.append({"line": 1, "byte": 0, "nodes": []})
        temporary = path + ".tmp"
        disk = self.store.disk
        self._file = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            self._output = header
            self._crc = int(header[-11:-3], 16)
            self._replay()
            self._flush(b"")
            disk.fsync(self._file)
        except BaseException:
            disk.close(self._file)
            disk.remove(temporary)
            raise
        disk.close(self._file)
        try:
            disk.place_new(temporary, path)
        except FileExistsError:
            disk.remove(temporary)
            raise exists_already(path) from None
        disk.sync_folder(os.path.dirname(path))
        return {
            "path": path,
            "transactions": self.state.seq,
            "nodes": len(self.rows),
            "lost": self.lost,
            "left_out": self.left_out,
        }

    def _find_children(self) -> None:
        """Learn which gap lost which nodes, and which later line hangs on such a node: it tells
        where the node belonged."""
        gaps: list[list[int]] = []  # since the last node's line: [start, number of lines]
        newest = 0
        lost: set[int] = set()
        before = True  # the line before was valid
        for scanned in scan_log(self.store, self.size):
            record = scanned.record
            if record is None:
                if before:
                    gaps.append([scanned.start, 0])
                gaps[-1][1] += 1
            node = None if record is None else record.get("id")
            if type(node) is int and newest < node <= self.size:
                missing = list(range(newest + 1, node))
                lost.update(missing)
                for start, lines in gaps[:-1]:
                    self._lost_at[start] = missing[:lines]
                    del missing[:lines]
                if gaps:
                    self._lost_at[gaps[-1][0]] = missing
                newest, gaps = node, []
            before = record is not None
        if lost:
            for scanned in scan_log(self.store, self.size):
                record = scanned.record
                if record is not None and record.get("parent") in lost:
                    self._children.setdefault(record["parent"], record)

    def _replay(self) -> None:
        for scanned in scan_log(self.store, self.size):
            record = scanned.record
            if record is None:
                self._gap.append(scanned)
                continue
            if record["seq"] > self.until:
                break
            if record["seq"] < self.state.seq or record["seq"] < self._seq():
                self._leave_out(record)
                continue
            self._close_group(record["seq"])
            self._fill_gap(record, scanned)
            self._make_fitting(record)
            if _fits(self.state, self.rows, record):
                self._add(record)
                continue
            self._leave_out(record)
            if record.get("id") == len(self.rows) + 1:
                self._add(self._stub(record["id"], record["seq"], record, _place_of([scanned])))
        self._close_group(None)
        if self._gap:
            self._note_lost(self._gap, [])

    def _seq(self) -> int:
        return self._group[-1]["seq"] if self._group else self.state.seq

    def _leave_out(self, record: Json) -> None:
        if record["seq"] not in self.left_out:
            self.left_out.append(record["seq"])

    def _note_lost(self, gap: list[Scanned], nodes: list[int]) -> None:
        self.lost.append(
            {"line": gap[0].number, "byte": gap[0].start, "nodes": [f"n{node}" for node in nodes]}
        )
        self._gap = []

    def _fill_gap(self, record: Json, scanned: Scanned) -> None:
        """Stubs for the nodes that are missing before `record`, and a line for each missing seq."""
        # Without invalid lines whole ones were taken out: right before this one.
        gap = self._gap or [Scanned(scanned.number, scanned.start, scanned.start, None)]
        node = record.get("id")
        upto = max(self._lost_at.get(gap[0].start, ()), default=0)
        if type(node) is int and node <= self.size:
            upto = max(upto, node - 1)
        missing = range(len(self.rows) + 1, upto + 1)
        makers: list[Callable[[int], Json]] = []
        if record.get("tl") == len(self.state.timelines) and record["op"] != "create":
            makers.append(self._timeline_record)
        makers += [self._stub_maker(each, record, _place_of(gap)) for each in missing]
        seqs = range(self._seq() + 1, record["seq"])
        if self._gap or makers or any(seq not in self.left_out for seq in seqs):
            self._note_lost(gap, list(missing))
        for seq in seqs:
            self._close_group(seq)
            if makers:
                self._add(makers.pop(0)(seq))
            else:
                why = "left out" if seq in self.left_out else _place_of(gap)
                self._add({"seq": seq, "ts": self._ts(), "op": "noop", "lost": why})
        self._close_group(record["seq"])
        for make in makers:
            self._add(make(record["seq"]))

    def _ts(self) -> int:
        return self.state.ts

    def _stub_maker(self, node: int, record: Json, where: str) -> Callable[[int], Json]:
        return lambda seq: self._stub(node, seq, record, where)

    def _stub(self, node: int, seq: int, record: Json, where: str) -> Json:
        """The line of a lost node: a system message at the head its branch had before the loss."""
        child = self._children.get(node, {})
        tl = child.get("tl", record.get("tl", 0))
        if type(tl) is not int or tl >= len(self.state.timelines):
            tl = 0
        timeline = self.state.timelines[tl]
        branch = timeline.branches.get(child.get("branch") or timeline.current)
        if branch is None:
            branch = timeline.branches[timeline.current]
        return {
            "seq": seq,
            "ts": self._ts(),
            "op": "append",
            "tl": tl,
            "id": node,
            "parent": branch.head,
            "branch": branch.name,
            "role": "system",
            "tokens": 0,
            "via": "cli",
            "text": f"[lost: {where}]",
        }

    def _timeline_record(self, seq: int) -> Json:
        """Stands in for a lost create."""
        number = len(self.state.timelines)
        return {
            "seq": seq,
            "ts": self._ts(),
            "op": "create",
            "tl": number,
            "title": None,
            "estimator": "scalar4",
        }

    def _make_fitting(self, record: Json) -> None:
        """Make the branch that `record` takes for granted, if the line that made it was lost."""
        tl = record.get("tl")
        if (
            type(tl) is not int
            or tl >= len(self.state.timelines)
            or record["op"] not in ("append", "fork")
        ):
            return
        timeline = self.state.timelines[tl]
        if record["op"] == "fork" and record.get("of") not in timeline.branches:
            record["of"] = None
        branch, parent = record.get("branch"), record.get("parent")
        known = type(branch) is not str or branch in timeline.branches
        if (
            record["op"] == "append"
            and not known
            and type(parent) is int
            and _can_be_head(timeline, self.rows, record, parent)
        ):
            seq = record["seq"]
            self._add(
                {
                    "seq": seq,
                    "ts": self._ts(),
                    "op": "fork",
                    "tl": tl,
                    "node": parent,
                    "name": branch,
                    "of": None,
                }
            )

    def _add(self, record: Json) -> None:
        """Apply a record and keep it for its transaction."""
        apply(self.state, self.rows, record, 0, 0)
        self.state.found.clear()
        self._group.append(record)

    def _close_group(self, seq: int | None) -> None:
        """Write the transaction before the one with `seq`."""
        if not self._group or self._group[0]["seq"] == seq:
            return
        for number, record in enumerate(self._group, 1):
            plain = {name: record[name] for name in ("seq", "ts", "op")}
            if number < len(self._group):
                plain["more"] = 1
            rest = {name: value for name, value in record.items() if name not in ("more", "crc")}
            line, self._crc = encode_line({**plain, **rest}, self._crc)
            self._flush(line)
        self._group = []

    def _flush(self, line: bytes) -> None:
        self._output += line
        if not line or len(self._output) > CHUNK_BYTES:
            self.store.disk.append(self._file, self._output)
            self._output = b""


def _place_of(gap: list[Scanned]) -> str:
    return f"line {gap[0].number}, bytes {gap[0].start}..{gap[-1].end}"


def _fits(state: State, rows: Rows, record: Json) -> bool:
    """Whether `apply` can take the record without breaking an invariant."""
    op, tl = record["op"], record.get("tl")
    if op not in _APPLY:
        return False
    if tl is None:
        return bool(op == "noop")
    if op == "create":
        return bool(tl == len(state.timelines))
    if type(tl) is not int or tl >= len(state.timelines):
        return False
    try:
        return bool(_FITS.get(op, _fits_always)(state.timelines[tl], rows, record))
    except (KeyError, IndexError, TypeError, ValueError):
        return False


def _fits_always(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    return True


def _is_own(rows: Rows, record: Json, node: int) -> bool:
    """Whether the node exists in the record's timeline."""
    return 0 < node <= len(rows) and rows[node][TL] == record["tl"]


def _can_be_head(timeline: TimelineState, rows: Rows, record: Json, node: int) -> bool:
    if node == 0:
        return True
    if not _is_own(rows, record, node):
        return False
    row = rows[node]
    return not row[FLAGS] & KIND_PLACEHOLDER and not is_cold(rows, timeline.segments, node, row)


def _fits_append(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    branch, parent = record.get("branch"), record["parent"]
    return (
        record["id"] == len(rows) + 1
        and (parent == 0 or _is_own(rows, record, parent))
        and not rows[parent][FLAGS] & KIND_PLACEHOLDER
        and record["role"] in ROLES
        and (branch is None or branch in timeline.branches)
    )


def _fits_summary(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    first, last, parent = record["from"], record["to"], record["parent"]
    return (
        record["id"] == len(rows) + 1
        and _is_own(rows, record, first)
        and _is_own(rows, record, last)
        and is_ancestor(rows, first, last)
        and (parent == 0 or _is_own(rows, record, parent))
    )


def _fits_fork(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    return record["name"] not in timeline.branches and _can_be_head(
        timeline, rows, record, record["node"]
    )


def _fits_end(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    return record["name"] in timeline.branches and record["name"] != timeline.current


def _fits_archive(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    top = record["top"]
    if not _fits_end(timeline, rows, record):
        return False
    head = timeline.branches[record["name"]].head
    return top == 0 or (
        _is_own(rows, record, top)
        and is_ancestor(rows, top, head)
        and not any(
            covers(rows, top, head, each.head)
            for each in timeline.branches.values()
            if each.head and each.name != record["name"]
        )
    )


def _fits_branch(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    if "title" in record:
        return True
    name = record.get("branch") or record["name"]
    return name in timeline.branches and record.get("to") not in timeline.branches


def _fits_move(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    return record["name"] in timeline.branches and _can_be_head(
        timeline, rows, record, record["node"]
    )


def _fits_node(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    return _is_own(rows, record, record["node"])


def _fits_session(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    node = record["node"]
    return record["branch"] in timeline.branches and (node == 0 or _is_own(rows, record, node))


def _fits_thaw(timeline: TimelineState, rows: Rows, record: Json) -> bool:
    node = record["node"]
    if "number" in record and not any(
        each.number == record["number"] and each.head == node for each in timeline.ended
    ):
        return False
    if record.get("name") in timeline.branches:
        return False
    return bool(node == 0 or _is_own(rows, record, node))


_FITS: dict[str, Callable[[TimelineState, Rows, Json], bool]] = {
    "append": _fits_append,
    "archive": _fits_archive,
    "drop": _fits_end,
    "exclude": lambda timeline, rows, record: _is_own(rows, record, record["unit"]),
    "fork": _fits_fork,
    "include": lambda timeline, rows, record: record["unit"] in timeline.excluded,
    "move": _fits_move,
    "pin": _fits_node,
    "placeholder": _fits_summary,
    "rename": _fits_branch,
    "session": _fits_session,
    "summary": _fits_summary,
    "switch": _fits_branch,
    "thaw": _fits_thaw,
    "unpin": lambda timeline, rows, record: record["node"] in timeline.pins,
}


def exists_already(path: str) -> Refused:
    return Refused(f"{path} exists: name a file that does not", path=path)


def purged_record(record: Json) -> Json:
    """The record of a node without its content. Its numbers stay, and `ids`, so that a later import
    does not bring the message back."""
    purged = {
        name: value for name, value in record.items() if name not in ("blocks", "crc", "text")
    }
    if "intent" in purged:
        purged["intent"] = {"tag": purged["intent"]["tag"]}
    if "source" in purged:
        purged["source"] = {
            name: purged["source"][name] for name in ("copy_of",) if name in purged["source"]
        }
    purged["purged"] = True
    purged["text"] = ""
    return purged


def write_purged(store: Store, nodes: Iterable[int], file: int, created: int) -> int:
    """Write the log of a caught-up store to `file` with the nodes emptied; the new generation.

    Raises:
        Corrupt: a line does not match its checksum.
    """
    wanted = set(nodes)
    generation = store.header.generation + 1
    header = new_header(created, generation, store.header.log_id)
    crc = int(header[-11:-3], 16)
    parts, size = [header], len(header)
    before = store.header.crc
    for line, offset in store.lines_from(store.header.length):
        checked = line_crc(line, before)
        if checked is None:
            raise store.unreadable(offset)
        before = checked
        start = line.find(b',"id":', 0, 120)
        if start >= 0 and int(line[start + 6 : line.index(b",", start + 6)]) in wanted:
            line, crc = encode_line(purged_record(decode_line(line)), crc)
        else:
            crc = zlib.crc32(line[:-19], crc)
            line = line[:-19] + b',"crc":"%08x"}\n' % crc
        parts.append(line)
        size += len(line)
        if size > CHUNK_BYTES:
            store.disk.append(file, b"".join(parts))
            parts, size = [], 0
    store.disk.append(file, b"".join(parts))
    store.disk.fsync(file)
    return generation


# ================================================================================================
# 14. Database
#
# The public API. `run` checks arguments, finds the timeline and calls one method for the
# operation; a changing one is: lock, catch up, plan records, commit, answer from the records.
# ================================================================================================


class _Writing:
    """The exclusive lock with the log ready for writing, for a `with` statement."""

    __slots__ = ("_create", "_database")

    def __init__(self, database: Database, create: bool) -> None:
        self._database = database
        self._create = create

    def __enter__(self) -> Store:
        database, store = self._database, self._database.store
        if self._create or not store.is_open():  # else `refresh` sees what became of the file
            self._look_before_locking()
        store.lock.take(True)
        try:
            if self._create:
                store.create_if_missing(database.now())
            store.prepare()
        except OSError as error:
            self.__exit__()
            raise WriteFailed(
                f"not stored: {system_words(error, store.path)}", errno=error.errno
            ) from None
        except BaseException:
            self.__exit__()
            raise
        return store

    def _look_before_locking(self) -> None:
        """Refuse what is no database before a lock file is made beside it."""
        store = self._database.store
        if not self._create and not os.path.exists(store.path):
            raise missing_database(store.path)
        if not os.path.isdir(os.path.dirname(store.path) or "."):
            raise NotFound(
                f"the folder {os.path.dirname(store.path)} does not exist: make it, or choose "
                "another --db",
                path=store.path,
            )
        if not self._create or os.path.exists(store.path):
            store.refuse_foreign()

    def __exit__(self, *_: object) -> None:
        if not _KEEPS_OPEN:
            self._database.store.close()
        self._database.store.lock.let_go()


class PathColumns:
    """A whole path, oldest first, a column for each thing the budget asks for."""

    __slots__ = ("flags", "ids", "lengths", "offsets", "prefix")

    def __init__(self, rows: Rows, node: int) -> None:
        if rows[node][DEPTH] > WALK_BY_ROW_MAX:
            self._read_columns(rows, node)
            return
        part = list(climb(rows, node))
        part.reverse()
        self.ids: Any = [each for each, _ in part]
        self.prefix: Any = [row[PREFIX] for _, row in part]
        self.flags: Any = [row[FLAGS] for _, row in part]
        self.offsets: Any = [row[OFFSET] for _, row in part]
        self.lengths: Any = [row[LENGTH] for _, row in part]

    def _read_columns(self, rows: Rows, node: int) -> None:
        from array import array
        from bisect import bisect_right

        self.ids, self.flags, self.lengths = array("I"), array("I"), array("I")
        self.prefix, self.offsets = array("Q"), array("Q")
        wanted = (
            (self.prefix, "Q", PREFIX),
            (self.flags, "I", FLAGS + 2),
            (self.offsets, "Q", OFFSET),
            (self.lengths, "I", LENGTH + 2),
        )
        while node:
            first = max(1 if node <= rows.stored else rows.stored + 1, node - 4095)
            raw = next(rows.chunks(first, node))[1]
            if not rows_are_whole(raw):
                raise _IndexUnfit(f"one of the rows {first} to {node} is damaged")
            parents = _column(raw, "I", PARENT + 2)
            columns = [(column, _column(raw, code, field)) for column, code, field in wanted]
            # Between these places each node is the child of the one before it, so that whole
            # stretches of the path can be copied.
            breaks = [
                place
                for place, (parent, before) in enumerate(
                    zip(parents, range(first - 1, node), strict=True)
                )
                if parent != before or not place
            ]
            while node >= first:
                last = node - first
                start = breaks[bisect_right(breaks, last) - 1]
                self.ids.extend(range(node, first + start - 1, -1))
                for column, values in columns:
                    column.extend(values[start : last + 1][::-1])
                node = parents[start]
        for column in (self.ids, self.prefix, self.flags, self.offsets, self.lengths):
            column.reverse()

    def spots(self, first: int, last: int) -> list[Spot]:
        """What reading the lines of the nodes at places first..last takes."""
        nodes = self.ids[first : last + 1]
        parents = [self.ids[first - 1] if first else 0, *nodes[:-1]]
        offsets, lengths = self.offsets[first : last + 1], self.lengths[first : last + 1]
        return list(zip(nodes, parents, offsets, lengths, strict=True))

    def tokens(self, place: int) -> int:
        before = self.prefix[place - 1] if place else 0
        return int(self.prefix[place] - before)


def _column(raw: bytes, code: str, field: int) -> Any:
    """One field of all rows: `field` counts items of the array type `code` within a row."""
    from array import array

    items = ROW_BYTES // array(code).itemsize
    view: Any = memoryview(raw)
    values = array(code, view.cast(code)[field::items].tobytes())
    if sys.byteorder == "big":
        values.byteswap()
    return values


class Units:
    """The tool units of a path that are not excluded, as places in its columns (ends included)."""

    __slots__ = ("firsts", "lasts", "left_out", "weights")

    def __init__(self, path: PathColumns, excluded: Mapping[int, int]) -> None:
        flags, ids, prefix = path.flags, path.ids, path.prefix
        firsts = [place for place, each in enumerate(flags) if not each & JOINS or not place]
        lasts = [place - 1 for place in firsts[1:]]
        if firsts:
            lasts.append(len(ids) - 1)
        ends = list(map(prefix.__getitem__, lasts))
        weights = [end - before for end, before in zip(ends, [0, *ends], strict=False)]
        self.left_out: list[tuple[int, int]] = []
        if excluded:
            kept = [unit for unit, first in enumerate(firsts) if ids[first] not in excluded]
            self.left_out = [
                (first, last)
                for first, last in zip(firsts, lasts, strict=True)
                if ids[first] in excluded
            ]
            firsts = [firsts[unit] for unit in kept]
            lasts = [lasts[unit] for unit in kept]
            weights = [weights[unit] for unit in kept]
        self.firsts, self.lasts, self.weights = firsts, lasts, weights

    def holding(self, place: int) -> int | None:
        """The unit that holds the node at `place`; None if it is excluded."""
        from bisect import bisect_right

        unit = bisect_right(self.firsts, place) - 1
        return unit if unit >= 0 and self.lasts[unit] >= place else None

    def inside(self, first: int, last: int) -> tuple[int, int]:
        """(first, last) of the units that lie whole in places first..last; last < first if none
        does."""
        from bisect import bisect_left, bisect_right

        return bisect_left(self.firsts, first), bisect_right(self.lasts, last) - 1


class Database:
    """One database file. `run` is the door for every operation.

    `clock` gives Unix seconds, `via` says who writes (cli, mcp, import), `wait_s` how long to wait
    for the lock, `notice` takes a line for people (progress, repairs). Not for several threads.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        via: str = "cli",
        wait_s: float = 10.0,
        disk: Disk | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if not is_path(path):
            raise InvalidArgument(f"{quoted(path)} is no path that this system can write")
        self.store = Store(path, disk or Disk(), wait_s, notice or _ignore)
        self.via = via
        self._clock = clock
        self._summaries: list[Summaries] = []
        self._summaries_of = ""
        self._told = ""  # damage that was noticed already

    @property
    def path(self) -> str:
        """The real path of the file, links resolved."""
        return self.store.path

    def owns(self, path: str) -> bool:
        """Whether `path` is this database, by whatever name, or belongs to what lies beside it."""
        real = os.path.realpath(path)
        try:
            if os.path.samefile(real, self.path):
                return True
        except OSError:
            pass  # one of them does not exist
        name, own = os.path.normcase(real), os.path.normcase(self.path)
        beside = [own, *(own + ending for ending in SIDE_ENDINGS)]
        return any(name == each or name.startswith(each + os.sep) for each in beside)

    def close(self) -> None:
        """Close the files. The database can still be used: the next operation opens them anew."""
        self.store.close()
        self.store.lock.close()

    def now(self) -> int:
        return int(self._clock())

    def run(self, name: str, arguments: Mapping[str, object] | None = None) -> Any:
        """Carry out operation `name` of OPERATIONS and return its JSON value.

        Raises:
            InvalidArgument: unknown operation or argument, wrong type or range.
            TimelineError: see section 2; nothing is changed then.
        """
        operation = OPERATIONS.get(name)
        method = self._METHODS.get(name)
        if operation is None or method is None:
            raise InvalidArgument(
                f"unknown operation {quoted(name)}: known are {', '.join(self._METHODS)}"
            )
        checked = check_arguments(operation, arguments or {})
        try:
            value = self.again_if_unfit(lambda: method(self, checked))
            self._tell()
            return value
        finally:
            if not _KEEPS_OPEN:
                self.store.close()

    def again_if_unfit(self, action: Callable[[], Any]) -> Any:
        """The result of `action`; if it meets a damaged index, that is rebuilt and it runs once
        more."""
        try:
            return action()
        except _IndexUnfit:
            self.store.index.drop()
            self.store.close()
        try:
            return action()
        except _IndexUnfit as error:
            self.store.close()
            raise Corrupt(
                f"the index of {self.path} does not fit its log: delete {self.path}.index ({error})"
            ) from None

    # ---- shared by the operations ----------------------------------------------------------

    def refresh(self) -> Store:
        """The store caught up with the log, for reading.

        Raises:
            Corrupt: nothing of it can be read.
        """
        store = self._catch_up()
        if store.damage is not None and not store.state.timelines:
            raise store.damage
        self._tell()
        return store

    def _catch_up(self) -> Store:
        store = self.store
        store.refuse_foreign()
        store.lock.take(False)
        try:
            store.refresh()
        finally:
            store.lock.let_go()
        return store

    @property
    def damage(self) -> Corrupt | None:
        """What is known to be damaged in the file: answers may lack what lies there."""
        return self.store.damage or self.store.spoiled

    def _tell(self) -> None:
        """A notice about damage, once."""
        if self.damage is not None and str(self.damage) != self._told:
            self._told = str(self.damage)
            self.store.notice(self._told)

    def _commit(self, store: Store, records: list[Json]) -> None:
        store.commit(records, self.now())

    def _change(
        self,
        arguments: Json,
        name: str,
        plan: Callable[[Store, int], list[Json]],
        same: Callable[[], Json],
    ) -> Json:
        """Commit what `plan` returns for the arguments' timeline, and answer from it.

        No records: nothing is to be changed, and `same()` is the answer.
        """
        with self.writing() as store:
            key = arguments["idempotency_key"]
            if key is not None:
                earlier = self._kept(store, self._timeline_for_key(store, arguments), key, name)
                if earlier is not None:
                    return self.result_of(earlier)
            tl = self._timeline(store, arguments)
            records = plan(store, tl)
            if not records:
                answer = same()
                if key is None:
                    store.settle()
                    return answer
                records = [{"op": "noop", "tl": tl, "for": name, "key": key, "result": answer}]
            elif key is not None:
                _put_key(records[-1], key)
            self._commit(store, records)
            return self.result_of(records[-1])

    def writing(self, create: bool = False) -> _Writing:
        """`with database.writing() as store`: the exclusive lock, caught up, ready for `commit`."""
        return _Writing(self, create)

    def _kept(self, store: Store, tl: int | None, key: str, name: str) -> Json | None:
        """The record an idempotency key belongs to, if it still counts.

        Raises:
            Refused: it belongs to another operation.
        """
        now = max(self.now(), store.state.ts)
        for offset in store.lookup.find(key_hash(tl, key)):
            record = decode_head(store.line_at(offset))
            if (
                record.get("key") != key
                or key_scope(record) != tl
                or now - record["ts"] > KEY_LIFE_S
            ):
                continue
            operation = operation_of(record)
            if operation != name:
                node = f" n{record['id']}" if "id" in record else f" (seq {record['seq']})"
                raise Refused(f"idempotency key {quoted(key)} belongs to {operation}{node}")
            store.settle()
            return record
        return None

    def is_repeated(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Whether the idempotency key among `arguments` has a result of operation `name` already.

        Raises:
            Refused: the key belongs to another operation.
        """
        checked = check_arguments(OPERATIONS[name], arguments)
        key = checked["idempotency_key"]
        if key is None:
            return False
        store = self.refresh()
        return self._kept(store, self._timeline_for_key(store, checked), key, name) is not None

    def result_of(self, record: Json) -> Json:
        """The answer to the operation that wrote `record`."""
        return _RESULTS[record["op"]](record)

    def _timeline_for_key(self, store: Store, arguments: Json) -> int:
        """The timeline whose keys count, however wrong the other arguments may be."""
        for node in _named_nodes(arguments):
            if 0 < node <= len(store.rows):
                return store.rows[node][TL]
        number = arguments["timeline_id"]
        return 0 if number is None else int(number)

    def _timeline(self, store: Store, arguments: Json) -> int:
        """The timeline the arguments mean, all nodes they name being in it.

        Raises:
            NotFound: no such node or timeline. Refused: nodes of two timelines.
        """
        chosen: int | None = arguments.get("timeline_id")
        count = len(store.state.timelines)
        if store.damage is not None and (chosen or 0) >= count:
            raise store.damage  # it may lie behind
        if chosen is not None and chosen >= count:
            raise NotFound(f"unknown timeline tl{chosen}", timeline=f"tl{chosen}")
        first = None
        for node in _named_nodes(arguments):
            if node == 0:
                continue
            tl = self._row(store, node)[TL]
            if chosen is None:
                chosen, first = tl, node
            elif tl != chosen:
                other = (
                    f"n{first} is in tl{chosen}" if first is not None else f"tl{chosen} was named"
                )
                raise Refused(
                    f"n{node} is in tl{tl}, but {other}: one operation works in one timeline"
                )
        if chosen is None:
            chosen = 0
            if not count:
                raise NotFound(
                    "unknown timeline tl0: the database has none yet; `create` makes one"
                )
        return chosen

    def _row(self, store: Store, node: int) -> Row:
        """The row of a node (0: the root's). Raises NotFound, or Corrupt if it may lie in the
        damage."""
        if node > len(store.rows):
            if store.damage is not None:
                raise store.damage
            raise _unknown_node(node)
        return store.rows[node]

    def _branch(self, timeline: TimelineState, name: str | None) -> Branch:
        branch = timeline.branches.get(timeline.current if name is None else name)
        if branch is None:
            raise self.store.damage or _unknown_branch(timeline, name or timeline.current)
        return branch

    def _target(self, timeline: TimelineState, arguments: Json) -> int:
        """The node a path ends at, from --node or --branch."""
        if arguments["node"] is None:
            return self._branch(timeline, arguments["branch"]).head
        if arguments["branch"] is not None:
            raise InvalidArgument("node and branch were both given: name one of them")
        node: int = arguments["node"]
        return node

    def _ordinary(self, store: Store, node: int, what: str) -> Row:
        """The row of a node that is neither the root nor a placeholder."""
        if node == 0:
            raise InvalidArgument(f"n0 is the root, which holds no message: it cannot be {what}")
        row = self._row(store, node)
        if row[FLAGS] & KIND_PLACEHOLDER:
            raise Refused(f"n{node} is a placeholder: it can be read, not {what}")
        return row

    def summaries_of(self, tl: int) -> Summaries:
        """The real summaries of a timeline, caught up with the store."""
        store = self.store
        if self._summaries_of != store.header.log_id:
            self._summaries = []
            self._summaries_of = store.header.log_id
        while len(self._summaries) <= tl:
            self._summaries.append(Summaries())
        summaries = self._summaries[tl]
        summaries.update(store.rows, store.state.timelines[tl], store.head)
        return summaries

    def _coverage(self, store: Store, timeline: TimelineState, node: int) -> list[list[int]]:
        """Depths of root..`node` that real summaries or placeholders cover."""
        chains = (
            summary_chain(store.rows, newest) for newest in (timeline.real, timeline.placeholder)
        )
        return covered_depths(
            store.rows, node, ((row[FROM], row[TO]) for chain in chains for _, row in chain)
        )

    def timeline_of(self, checked: Json) -> int:
        """The timeline that checked arguments mean, the store being caught up."""
        return self._timeline(self.refresh(), checked)

    # ---- timelines and branches ------------------------------------------------------------

    def _create(self, a: Json) -> Json:
        with self.writing(create=True) as store:
            key = a["idempotency_key"]
            if key is not None:
                earlier = self._kept(store, None, key, "create")
                if earlier is not None:
                    return self.result_of(earlier)
            record: Json = {
                "op": "create",
                "tl": len(store.state.timelines),
                "title": a["title"],
                "estimator": a["estimator"],
            }
            if key is not None:
                record["key"] = key
            self._commit(store, [record])
            return self.result_of(record)

    def _append(self, a: Json) -> Json:
        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            branch = self._branch(timeline, a["branch"])
            expected = a["expect_head"]
            if expected is not None and expected != branch.head:
                raise HeadMoved("head moved", expected=f"n{expected}", actual=f"n{branch.head}")
            tokens = a["tokens"]
            if tokens is None:
                tokens = estimate(a["text"], timeline.estimator)
            self._check_sum(store, branch.head, tokens)
            record = {
                "op": "append",
                "tl": tl,
                "id": len(store.rows) + 1,
                "parent": branch.head,
                "branch": branch.name,
                "role": a["role"],
                "tokens": tokens,
                "via": self.via,
            }
            if a["intent"] is not None:
                record["intent"] = a["intent"]
            record["text"] = a["text"]
            return [record]

        return self._change(a, "append", plan, dict)

    def _check_sum(self, store: Store, parent: int, tokens: int) -> None:
        total = store.rows[parent][PREFIX] + tokens
        if total > TOKENS_MAX:
            raise Refused(
                "token overflow",
                tokens=tokens,
                prefix_tokens=store.rows[parent][PREFIX],
                max=TOKENS_MAX,
            )

    def _fork(self, a: Json) -> Json:
        node, name = a["node"], check_name(a["name"])

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            if node:
                row = self._ordinary(store, node, "forked from")
                if is_cold(store.rows, timeline.segments, node, row):
                    raise Refused(
                        f"n{node} is archived: bring it back first, with `thaw` of n{node}"
                    )
            _refuse_taken(timeline, name)
            parent = self.parent_branch(store, timeline, node)
            return [{"op": "fork", "tl": tl, "node": node, "name": name, "of": parent}]

        return self._change(a, "fork", plan, dict)

    def parent_branch(self, store: Store, timeline: TimelineState, node: int) -> str | None:
        """The branch a fork at `node` comes from: the current one if its path holds the node, else
        the
        oldest that does; for a summary on no path the same is asked of the end of its interval."""
        rows = store.rows
        while True:
            current = timeline.branches[timeline.current]
            for branch in (current, *timeline.in_order()):
                if is_ancestor(rows, node, branch.head):
                    return branch.name
            row = rows[node]
            if not row[FLAGS] & KIND_REAL:
                return None
            node = row[TO]

    def _switch(self, a: Json) -> Json:
        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            branch = self._branch(timeline, a["name"])
            return (
                []
                if branch.name == timeline.current
                else [{"op": "switch", "tl": tl, "name": branch.name}]
            )

        return self._change(a, "switch", plan, lambda: {"current_branch": a["name"]})

    def _drop_branch(self, a: Json) -> Json:
        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            branch = self._branch(timeline, a["name"])
            if branch.name == timeline.current:
                raise Refused(
                    f"{quoted(branch.name)} is the current branch: switch to another first"
                )
            return [{"op": "drop", "tl": tl, "name": branch.name}]

        return self._change(a, "drop_branch", plan, dict)

    def _rename(self, a: Json) -> Json:
        title, old, new = a["title"], a["branch"], a["to"]
        if (title is None) == (old is None) or (old is None) != (new is None):
            raise InvalidArgument("rename takes either title, or branch and to")

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            if title is not None:
                if title == timeline.title and timeline.titled:
                    return []
                return [{"op": "rename", "tl": tl, "title": title, "titled": 1}]
            branch = self._branch(timeline, old)
            if old == new:
                return []
            _refuse_taken(timeline, new)
            return [{"op": "rename", "tl": tl, "name": branch.name, "to": new}]

        return self._change(
            a, "rename", plan, lambda: _rename_result({"title": title, "name": old, "to": new})
        )

    def _branches(self, a: Json) -> list[Json]:
        store = self.refresh()
        timeline = store.state.timelines[self._timeline(store, a)]
        branches = timeline.in_order()
        if a["all"]:
            branches = sorted([*branches, *timeline.ended], key=_branch_number)
        rows = [self._branch_row(store, timeline, branch, a["all"]) for branch in branches]
        return page(rows, "name", a["after"], a["limit"])

    def _branch_row(
        self, store: Store, timeline: TimelineState, branch: Branch, status: bool
    ) -> Json:
        row = store.rows[branch.head]
        parent = timeline.live_branch(branch.parent)
        shown: Json = {
            "name": branch.name,
            "head": f"n{branch.head}",
            "current": branch.status == LIVE and branch.name == timeline.current,
            "parent": None if parent is None else parent.name,
            "fork_node": None if branch.fork_node is None else f"n{branch.fork_node}",
            "created_at": branch.created_at,
            "messages": row[COUNT],
            "tokens": row[PREFIX],
        }
        if status:
            shown["status"] = STATUS_NAMES[branch.status]
        return shown

    def _list(self, a: Json) -> list[Json]:
        store = self.refresh()
        wanted = None if a["project"] is None else os.path.abspath(a["project"])
        rows: list[Json] = []
        numbered = sorted(
            enumerate(store.state.timelines), key=lambda each: (-each[1].changed, each[0])
        )
        for number, timeline in numbered:
            source = timeline.source or {}
            project = source.get("cwd")
            if wanted is not None and not is_below(project, wanted):
                continue
            if "parent" in source and not a["subagents"]:
                continue
            rows.append(
                {
                    "timeline_id": f"tl{number}",
                    **({"parent": source["parent"]} if "parent" in source else {}),
                    "title": timeline.title,
                    "branches": len(timeline.branches),
                    "current_branch": timeline.current,
                    "head": f"n{timeline.branches[timeline.current].head}",
                    "messages": timeline.messages,
                    "tokens": timeline.tokens,
                    "project": project,
                    "created_at": timeline.created_at,
                    "updated_at": timeline.updated_at,
                }
            )
        after = None if a["after"] is None else f"tl{a['after']}"
        return page(rows, "timeline_id", after, a["limit"])

    # ---- reading ---------------------------------------------------------------------------

    def _context(self, a: Json) -> list[Json]:
        _leave_format(a)
        store = self.refresh()
        tl = self._timeline(store, a)
        timeline = store.state.timelines[tl]
        before, last = a["before"], a["last"]
        ends = self._target(timeline, a) if before is None else self._end_before(store, timeline, a)
        self._row(store, ends)
        part = self._shown_path(store, timeline, ends, last)
        return self._path_messages(store, tl, part)

    def _end_before(self, store: Store, timeline: TimelineState, a: Json) -> int:
        before: int = a["before"]
        if before == 0:
            raise InvalidArgument("before n0: the root has nothing before it")
        row = self._row(store, before)
        if a["node"] is not None or a["branch"] is not None:
            target = self._target(timeline, a)
            if not is_ancestor(store.rows, before, target):
                raise Refused(f"n{before} is not on the path of n{target}")
        return row[PARENT]

    def _shown_path(
        self, store: Store, timeline: TimelineState, node: int, last: int | None
    ) -> list[tuple[int, Row]]:
        """The path's nodes that are not excluded, newest first; only `last` of them."""
        limit = MESSAGES_MAX + 1 if last is None else last
        part: list[tuple[int, Row]] = []
        unit: list[tuple[int, Row]] = []
        excluded = timeline.excluded
        for each, row in climb(store.rows, node):
            if len(part) >= limit:
                break
            if excluded:
                # Whether a tool node is left out is known at its unit's first node.
                unit.append((each, row))
                if row[FLAGS] & JOINS and row[PARENT]:
                    continue
                if each not in excluded:
                    part += unit
                unit = []
            else:
                part.append((each, row))
        del part[limit:]
        if len(part) > MESSAGES_MAX:
            raise too_long(store.rows[node][DEPTH], "`last`, `before` or `node`")
        return part

    def _path_messages(self, store: Store, tl: int, part: list[tuple[int, Row]]) -> list[Json]:
        """Messages of nodes given newest first, in path order."""
        part.reverse()
        spots = [(node, row[PARENT], row[OFFSET], row[LENGTH]) for node, row in part]
        return self._messages(store, tl, spots, [row[FLAGS] for _, row in part])

    def _messages(
        self, store: Store, tl: int, spots: list[Spot], flags: Iterable[int]
    ) -> list[Json]:
        """What a context shows of nodes, given where their lines are and their rows' flags."""
        messages = []
        for spot, each, line in zip(spots, flags, store.node_lines(spots), strict=True):
            place = line.index(b',"tokens":') + 10
            message = {
                "node": f"n{spot[0]}",
                "role": ROLES[each & ROLE_MASK],
                "text": line_text(line),
                "tokens": int(line[place : line.index(b",", place)]),
            }
            if each & (HAS_INTENT | KIND_SUMMARY):
                self._mark_message(store, tl, spot[0], each, line, message)
            if not message["text"] and is_purged(line):
                message["purged"] = True
            messages.append(message)
        return messages

    def _mark_message(
        self, store: Store, tl: int, node: int, flags: int, line: bytes, message: Json
    ) -> None:
        if flags & HAS_INTENT:
            message["intent_tag"] = decode_head(line)["intent"]["tag"]
        if flags & KIND_SUMMARY:
            row = store.rows[node]
            message["from"] = f"n{row[FROM]}"
            message["to"] = f"n{row[TO]}"
            if flags & KIND_PLACEHOLDER:
                message["placeholder"] = True
            elif node in self.summaries_of(tl).stale(store.rows):
                message["stale"] = True

    def _node(self, a: Json) -> Json:
        store = self.refresh()
        tl = self._timeline(store, a)
        timeline = store.state.timelines[tl]
        node, rows = a["node"], store.rows
        row = self._row(store, node)
        if node == 0:
            shown: Json = {
                "node": "n0",
                "parent": None,
                "children": [],
                "role": None,
                "text": "",
                "tokens": 0,
                "prefix_tokens": 0,
                "created_at": timeline.created_at,
                "via": None,
                "zone": "hot",
                "pinned": False,
                "excluded": False,
                "branches": [],
                "covered_by": [],
            }
        else:
            record = decode_line(store.node_line(node, row))
            shown = self._node_of_record(node, row, record)
            shown["zone"] = "archive" if is_cold(rows, timeline.segments, node, row) else "hot"
            shown["pinned"] = node in timeline.pins
            shown["excluded"] = (
                bool(timeline.excluded) and unit_first(rows, node) in timeline.excluded
            )
            summaries = self.summaries_of(tl)
            shown["covered_by"] = [
                f"n{each}"
                for each in summaries.order
                if covers(rows, summaries.by_node[each].first, summaries.by_node[each].last, node)
            ]
            if row[FLAGS] & KIND_SUMMARY:
                shown["summary"] = self._summary_facts(store, tl, node, row)
            if a["blocks"] and "blocks" in record:
                shown["blocks"] = record["blocks"]
        shown["children"] = [f"n{each}" for each in children_of(rows, store.state.lowest, node, tl)]
        shown["branches"] = self.branches_holding(store, timeline, node)
        if node and (runs := self._subagents(store, tl, node)):
            shown["subagents"] = runs
        if a["offset"] is not None or a["chars"] is not None:
            start, text = a["offset"] or 0, shown["text"]
            shown["text"] = text[start:][: a["chars"]]
            shown["cut"] = {"chars": len(text), "offset": start}
        return shown

    def _subagents(self, store: Store, tl: int, node: int) -> list[str]:
        """The timelines of the runs that a message started: its results carry their names."""
        rows, timelines = store.rows, store.state.timelines
        if (
            ROLES[rows[node][FLAGS] & ROLE_MASK] != "assistant"
            or not rows[node][FLAGS] & HAS_SOURCE
        ):
            return []
        runs = {
            (str(each.source.get("format")), str(each.source["parent"].get("agent"))): number
            for number, each in enumerate(timelines)
            if each.source is not None and isinstance(each.source.get("parent"), dict)
        }
        found: list[str] = []
        chain = [node] if runs else []
        while chain:
            results = [
                each
                for each in children_of(rows, store.state.lowest, chain.pop(), tl)
                if ROLES[rows[each][FLAGS] & ROLE_MASK] == "tool"
            ]
            for each in results:
                for name in decode_line(store.node_line(each, rows[each])).get("ids", ()):
                    format, _, agent = str(name).partition(f"\0{AGENT_MARK}")
                    if agent and (format, agent) in runs:
                        found.append(f"tl{runs[format, agent]}")
            chain += results
        return found

    def _node_of_record(self, node: int, row: Row, record: Json) -> Json:
        shown: Json = {
            "node": f"n{node}",
            "parent": f"n{row[PARENT]}",
            "children": [],
            "role": ROLES[row[FLAGS] & ROLE_MASK],
            "text": record["text"],
            "tokens": record["tokens"],
            "prefix_tokens": row[PREFIX],
            "created_at": record["ts"],
            "via": record["via"],
            "zone": "hot",
            "pinned": False,
            "excluded": False,
            "branches": [],
            "covered_by": [],
        }
        for name in ("intent", "source", "purged"):
            if name in record:
                shown[name] = record[name]
        return shown

    def branches_holding(self, store: Store, timeline: TimelineState, node: int) -> list[str]:
        """Names of the live branches whose path holds the node, oldest first."""
        return [
            each.name for each in timeline.in_order() if is_ancestor(store.rows, node, each.head)
        ]

    def _summary_facts(self, store: Store, tl: int, node: int, row: Row) -> Json:
        facts: Json = {
            "from": f"n{row[FROM]}",
            "to": f"n{row[TO]}",
            "kind": "placeholder",
            "version": 1,
            "supersedes": None,
            "superseded_by": None,
            "derived_from": [],
            "stale": False,
        }
        if row[FLAGS] & KIND_REAL:
            summaries = self.summaries_of(tl)
            summary = summaries.by_node[node]
            facts["kind"] = "real"
            facts["version"] = summary.version
            facts["supersedes"] = _node_or_none(summary.supersedes)
            facts["superseded_by"] = _node_or_none(summaries.successor.get(node))
            facts["derived_from"] = [f"n{each}" for each in summary.derived_from]
            facts["stale"] = node in summaries.stale(store.rows)
        return facts

    def _search(self, a: Json) -> list[Json]:
        store = self.refresh()
        finder = Finder(a["text"], a["regex"], a["ignore_case"])
        only = (
            self._timeline(store, a)
            if a["timeline_id"] is not None or a["branch"] is not None
            else None
        )
        head = None
        if a["branch"] is not None and only is not None:
            head = self._branch(store.state.timelines[only], a["branch"]).head
        hidden: set[int] = set()
        if only is None and not a["subagents"]:
            hidden = {
                number
                for number, each in enumerate(store.state.timelines)
                if "parent" in (each.source or {})
            }
        found: list[Json] = []
        below = a["after"]
        if below is not None:
            self._row(store, below)
        for raw, start in store.chunks_backwards():
            for offset, end in finder.lines(raw):
                if len(found) >= a["limit"]:
                    return found
                line = raw[offset:end]
                if not finder.may_hit(line):
                    continue
                try:
                    hit = self._hit(
                        store, finder, line, start + offset, a["role"], only, head, below, hidden
                    )
                except Corrupt:
                    continue  # noted in the store, and told behind the answer
                except (ValueError, KeyError, IndexError, TypeError):
                    if store.is_line(start + offset, len(line)):
                        raise
                    continue
                if hit is not None:
                    found.append(hit)
        return found

    def _hit(
        self,
        store: Store,
        finder: Finder,
        line: bytes,
        offset: int,
        role: str | None,
        only: int | None,
        head: int | None,
        below: int | None,
        hidden: set[int],
    ) -> Json | None:
        """The search result of a line, None if it is none, or of a timeline in `hidden`."""
        record = decode_head(line)
        node = record.get("id")
        if (
            node is None
            or record["op"] == "placeholder"
            or (only is not None and record["tl"] != only)
            or record["tl"] in hidden
            or (below is not None and node >= below)
        ):
            return None
        if not 0 < node <= len(store.rows):
            raise ValueError(f"a line of n{node}, which is no node")
        row = store.rows[node]
        if row[FLAGS] & IS_COPY or (role is not None and ROLES[row[FLAGS] & ROLE_MASK] != role):
            return None
        if head is not None and not is_ancestor(store.rows, node, head):
            return None
        text = line_text(line)
        place = finder.place(text)
        if place is None:
            return None
        store.line(offset, len(line))  # what is shown has been checked
        timeline = store.state.timelines[record["tl"]]
        return {
            "timeline_id": f"tl{record['tl']}",
            "node": f"n{node}",
            "role": ROLES[row[FLAGS] & ROLE_MASK],
            "snippet": snippet(text, *place),
            "branches": self.branches_holding(store, timeline, node),
            "created_at": record["ts"],
        }

    def _audit(self, a: Json) -> list[Json]:
        store = self.refresh()
        wanted = a["timeline_id"]
        rows: list[Json] = []
        start = store.offset_of_seq(a["since"]) if a["since"] is not None else store.header.length
        for line, offset in store.lines_from(start):
            if len(rows) >= a["limit"]:
                break
            record = decode_head(store.line(offset, len(line)))
            if wanted is None or record.get("tl") == wanted:
                rows.append(audit_row(record))
        return rows

    # ---- marks -----------------------------------------------------------------------------

    def _pin(self, a: Json) -> Json:
        node = a["node"]

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            self._ordinary(store, node, "pinned")
            if node in timeline.pins:
                return []
            if timeline.excluded and unit_first(store.rows, node) in timeline.excluded:
                raise Refused(f"n{node} is excluded: include it first")
            return [{"op": "pin", "tl": tl, "node": node}]

        return self._change(a, "pin", plan, lambda: {"pinned": f"n{node}"})

    def _unpin(self, a: Json) -> Json:
        node = a["node"]

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            self._ordinary(store, node, "unpinned")
            if node not in timeline.pins:
                return []
            covered = self._coverage(store, timeline, node)
            depth = store.rows[node][DEPTH]
            bare = not any(low <= depth <= high for low, high in covered)
            is_message = not store.rows[node][FLAGS] & KIND_SUMMARY
            if bare and is_message and watermark(store.rows, timeline, node, covered) == node:
                raise Refused(
                    f"n{node} holds a finished stretch together and no summary covers it: "
                    "summarize it first"
                )
            return [{"op": "unpin", "tl": tl, "node": node}]

        return self._change(a, "unpin", plan, lambda: {"unpinned": f"n{node}"})

    def _exclude(self, a: Json) -> Json:
        return self._include(a) if a["include"] else self._mark(a, "exclude", "excluded")

    def _include(self, a: Json) -> Json:
        return self._mark(a, "include", "included")

    def _mark(self, a: Json, name: str, answer: str) -> Json:
        """Exclude or include the unit of a node; the answer lists it down to that node."""
        node = a["node"]
        unit: list[int] = []

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            self._ordinary(store, node, answer)
            unit[:] = unit_down_to(store.rows, node)
            if (unit[0] in timeline.excluded) == (name == "exclude"):
                return []
            if name == "exclude":
                for pin in timeline.pins:
                    if pin >= unit[0] and unit_first(store.rows, pin) == unit[0]:
                        raise Refused(f"n{pin} of the same unit is pinned: unpin it first")
            return [{"op": name, "tl": tl, "unit": unit[0], "nodes": to_runs(unit)}]

        return self._change(a, name, plan, lambda: {answer: [f"n{each}" for each in unit]})

    # ---- summaries -------------------------------------------------------------------------

    def _summarize(self, a: Json) -> Json:
        same: list[int] = []

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            record = self._summary_record(store, tl, timeline, a)
            known = self._same_summary(store, record)
            if known is not None:
                same.append(known)
                return []
            if record.get("supersedes") is not None:
                self._check_supersede(store, tl, record)
            self._check_sum(store, record["parent"], record["tokens"])
            return [record]

        return self._change(a, "summarize", plan, lambda: {"node": f"n{same[0]}"})

    def _summary_record(self, store: Store, tl: int, timeline: TimelineState, a: Json) -> Json:
        first, last = a["from"], a["to"]
        self._check_interval(store, first, last)
        derived = a["derived_from"] or []
        for node in derived:
            self._ordinary(store, node, "derived from")
        tokens = a["tokens"]
        if tokens is None:
            tokens = estimate(a["summary"], timeline.estimator)
        record: Json = {
            "op": "summary",
            "tl": tl,
            "id": len(store.rows) + 1,
            "parent": store.rows[first][PARENT],
            "from": first,
            "to": last,
            "tokens": tokens,
            "via": self.via,
        }
        for name, value in (
            ("supersedes", a["supersede"]),
            ("derived_from", derived),
            ("intent", a["intent"]),
        ):
            if value:
                record[name] = value
        if a["supersede"] == 0:
            raise InvalidArgument("n0 is the root: it is no summary to supersede")
        record["text"] = a["summary"]
        return record

    def _check_interval(self, store: Store, first: int, last: int) -> None:
        """Raises unless `first` is `last` or an ancestor of it, both being messages or
        summaries."""
        for node in (first, last):
            self._ordinary(store, node, "summarized")
        rows = store.rows
        if is_ancestor(rows, first, last):
            return
        shared = common_ancestor(rows, first, last)
        # The usual mistake: an original is named where the path goes through its summary.
        if rows[last][DEPTH] > rows[shared][DEPTH]:
            inline = ancestor_at(rows, last, rows[shared][DEPTH] + 1)
            for each in [node for node, _ in walk_between(rows, rows[inline][DEPTH], last)][
                :MESSAGES_MAX
            ]:
                row = rows[each]
                if row[FLAGS] & KIND_REAL and covers(rows, row[FROM], row[TO], first):
                    raise Refused(
                        f"n{first} is not on the path of n{last}; there n{each} stands for it"
                    )
        if is_ancestor(rows, last, first):
            raise Refused(f"n{first} comes after n{last}: name the older one as from")
        raise Refused(f"n{first} is not on the path of n{last}")

    def _same_summary(self, store: Store, record: Json) -> int | None:
        """The first summary with the same content, however it stands now."""
        key = summary_hash(record["from"], record["to"], record["tokens"], record.get("supersedes"))
        for offset in reversed(store.lookup.find(key)):
            line = store.line_at(offset)
            known = decode_head(line)
            same = known["op"] == "summary" and all(
                known.get(name) == record.get(name)
                for name in ("tl", "from", "to", "tokens", "derived_from", "supersedes", "intent")
            )
            if same and "purged" not in known and line_text(line) == record["text"]:
                return int(known["id"])
        return None

    def _check_supersede(self, store: Store, tl: int, record: Json) -> None:
        older = record["supersedes"]
        row = self._row(store, older)
        if not row[FLAGS] & KIND_REAL:
            raise Refused(f"n{older} is no summary: only a real summary can be superseded")
        if (row[FROM], row[TO]) != (record["from"], record["to"]):
            raise Refused(
                f"n{older} stands for n{row[FROM]}..n{row[TO]}, not for "
                f"n{record['from']}..n{record['to']}: "
                "a new version has the same interval"
            )
        newest = self.summaries_of(tl).newest_of_chain(older)
        if newest != older:
            raise Refused(
                f"n{older} is superseded already: the newest version is n{newest}",
                newest=f"n{newest}",
            )

    def _list_summaries(self, a: Json) -> list[Json]:
        store = self.refresh()
        tl = self._timeline(store, a)
        timeline = store.state.timelines[tl]
        head = self._branch(timeline, a["branch"]).head
        rows = store.rows
        chains = [*summary_chain(rows, timeline.real), *summary_chain(rows, timeline.placeholder)]
        found = []
        for node, row in sorted(chains):
            inline = is_ancestor(rows, node, head)
            if inline or is_ancestor(rows, row[FROM], head):
                found.append(self._summary_row(store, tl, head, node, row, inline))
        return page(found, "node", _node_or_none(a["after"]), a["limit"])

    def _summary_row(
        self, store: Store, tl: int, head: int, node: int, row: Row, inline: bool
    ) -> Json:
        rows, summaries = store.rows, self.summaries_of(tl)
        facts = self._summary_facts(store, tl, node, row)
        shown: Json = {
            "node": f"n{node}",
            "from": facts["from"],
            "to": facts["to"],
            "kind": facts["kind"],
            "version": facts["version"],
            "status": "active",
            "tokens": row[PREFIX] - rows[row[PARENT]][PREFIX],
            "stale": facts["stale"],
            "supersedes": facts["supersedes"],
            "superseded_by": facts["superseded_by"],
        }
        if inline:
            shown["inline"] = True
        if not inline and not is_ancestor(rows, row[TO], head):
            shown["status"] = "hidden"
            shown["on_path"] = {
                "from": facts["from"],
                "to": f"n{common_ancestor(rows, row[TO], head)}",
            }
        elif row[FLAGS] & KIND_PLACEHOLDER:
            shown["status"] = "placeholder"
            by = [
                each
                for each in summaries.order
                if covers(rows, summaries.by_node[each].first, row[TO], row[FROM])
                and is_ancestor(rows, row[TO], summaries.by_node[each].last)
            ]
            shown["backfilled_by"] = _node_or_none(by[-1] if by else None)
        elif node in summaries.successor:
            shown["status"] = "superseded"
        elif facts["stale"]:
            shown["status"] = "stale"
        return shown

    # ---- budget ----------------------------------------------------------------------------

    def _budget(self, a: Json) -> Json:
        _leave_format(a)
        if a["idempotency_key"] is not None:
            return self._keyed_budget(a)
        store = self.refresh()
        tl = self._timeline(store, a)
        answer = Answer(self, store, tl, self._target(store.state.timelines[tl], a), a)
        if a["dry_run"] or not answer.missing():
            if not a["dry_run"] and store.synced < store.end and answer.created():
                store.settle()
            return answer.to_json()
        with self.writing() as store:
            # Others may have written since: select again before anything is stored.
            answer = Answer(self, store, tl, self._target(store.state.timelines[tl], a), a)
            records = answer.plan_placeholders()
            if records:
                self._commit(store, records)
            return answer.to_json()

    def _keyed_budget(self, a: Json) -> Json:
        if a["dry_run"]:
            raise InvalidArgument("a dry run only reads: it takes no idempotency key")
        with self.writing() as store:
            key = a["idempotency_key"]
            earlier = self._kept(store, self._timeline_for_key(store, a), key, "budget")
            if earlier is not None:
                return self._kept_budget(store, earlier)
            tl = self._timeline(store, a)
            answer = Answer(self, store, tl, self._target(store.state.timelines[tl], a), a)
            records = answer.plan_placeholders()
            result: Json = {"nodes": to_runs(answer.nodes()), "created": answer.created()}
            if a["explain"]:
                result["explain"] = answer.to_json()["explain"]
            records.append({"op": "noop", "tl": tl, "for": "budget", "key": key, "result": result})
            self._commit(store, records)
            return answer.to_json()

    def _kept_budget(self, store: Store, record: Json) -> Json:
        """The answer whose node ids a key remembers, as these nodes read now."""
        nodes = from_runs(record["result"]["nodes"])
        messages = []
        rows = [store.rows[node] for node in nodes]
        spots = [
            (node, row[PARENT], row[OFFSET], row[LENGTH])
            for node, row in zip(nodes, rows, strict=True)
        ]
        messages = self._messages(store, record["tl"], spots, [row[FLAGS] for row in rows])
        kept: Json = {
            "messages": messages,
            "total_tokens": sum(message["tokens"] for message in messages),
            "summaries_created": [f"n{node}" for node in record["result"]["created"]],
        }
        if "explain" in record["result"]:
            kept["explain"] = record["result"]["explain"]
        return kept

    def find_placeholder(
        self, store: Store, first: int, last: int, before: int = TOKENS_MAX
    ) -> int | None:
        """The placeholder of an interval, if there is one whose line begins before `before`."""
        for offset in store.lookup.find(placeholder_hash(first, last)):
            if offset >= before:
                continue
            record = decode_head(store.line_at(offset))
            if record["op"] == "placeholder" and (record["from"], record["to"]) == (first, last):
                return int(record["id"])
        return None

    # ---- archive ---------------------------------------------------------------------------

    def _reasons(self, store: Store, tl: int, a: Json) -> list[Json]:
        timeline = store.state.timelines[tl]
        branch = self._branch(timeline, a["branch"])
        real = [(row[FROM], row[TO]) for _, row in summary_chain(store.rows, timeline.real)]
        return archive_reasons(store.rows, timeline, branch, a["scope"] == "own", real)

    def _archive_check(self, a: Json) -> Json:
        store = self.refresh()
        reasons = self._reasons(store, self._timeline(store, a), a)
        return {"eligible": not reasons, "reasons": reasons}

    def _archive_branch(self, a: Json) -> Json:
        def plan(store: Store, tl: int) -> list[Json]:
            reasons = self._reasons(store, tl, a)
            if reasons:
                raise ArchiveRefused("not eligible", reasons=reasons)
            timeline = store.state.timelines[tl]
            branch = self._branch(timeline, a["branch"])
            top, moved = archived_part(store.rows, timeline, branch)
            record: Json = {
                "op": "archive",
                "tl": tl,
                "name": branch.name,
                "top": top,
                "moved": to_runs(moved),
            }
            return [record]

        return self._change(a, "archive_branch", plan, dict)

    def _thaw(self, a: Json) -> Json:
        node, name = a["node"], a["name"]
        if (node is None) == (name is None):
            raise InvalidArgument("thaw takes either node or name")
        if a["as_name"] is not None and name is None:
            raise InvalidArgument("as_name goes with name: it is the name the branch gets")

        def plan(store: Store, tl: int) -> list[Json]:
            timeline = store.state.timelines[tl]
            record: Json = {"op": "thaw", "tl": tl, "node": node}
            if name is not None:
                branch = _archived_branch(timeline, name)
                new_name = a["as_name"] or branch.name
                _refuse_taken(timeline, new_name, "give it another with `as_name`")
                record.update(node=branch.head, number=branch.number, name=new_name)
            elif node:
                self._ordinary(store, node, "thawed")
            moved = cold_on_path(store.rows, timeline.segments, record["node"])
            record["moved"] = to_runs(moved)
            return [record] if moved or name is not None else []

        return self._change(a, "thaw", plan, lambda: {"thawed": []})

    # ---- maintenance -----------------------------------------------------------------------

    def describe(self) -> Json:
        """Where the database is and how it stands; never raises for what it finds there."""
        store = self.store
        found: Json = {"path": self.path, "exists": os.path.exists(self.path), "size": None}
        found.update({"transactions": None, "nodes": None, "index": "absent"})
        try:
            found["size"] = os.stat(self.path).st_size
            plain = store.index.read_state()
            self.refresh()
            if self.damage is not None:
                found["problem"] = str(self.damage)
            found["transactions"] = store.state.seq
            found["nodes"] = len(store.rows)
            if plain is not None:
                fits = _speaks_of(plain, store)
                found["index"] = (
                    "unfit"
                    if not fits
                    else "fresh"
                    if plain["valid_off"] == store.end
                    else "behind"
                )
        except (TimelineError, OSError, _IndexUnfit) as error:
            if found["exists"]:
                found["problem"] = str(error)
        return found

    def _doctor(self, a: Json) -> Json:
        if a["repair_to"] is not None:
            return self.repair(a["repair_to"], a["until"])
        if a["until"] is not None:
            raise InvalidArgument("until goes with repair_to: it ends the repaired copy")
        return self.doctor()

    def _compact(self, a: Json) -> Json:
        return self.purge(a["purge"])

    def doctor(self) -> Json:
        """The report of a whole check. Raises Corrupt if the header cannot be read."""
        store = self.store
        try:
            self._catch_up()
        except _IndexUnfit:
            store.index.drop()
            self._catch_up()
        report = examine(store)
        failures, last = hook_failures(self.path)
        if failures:
            report["hook_failures"] = {"since_success": failures, "last": last}
        return report

    def repair(self, path: str, until: int | None = None) -> Json:
        """Write what is valid to a new database at `path`; this one is not touched."""
        path = os.path.abspath(path)
        if os.path.lexists(path):
            raise exists_already(path)
        if self.owns(path):
            raise Refused(f"{path} belongs to {self.path}: choose another file", path=path)
        if not os.path.isdir(os.path.dirname(path)):
            raise NotFound(
                f"the folder {os.path.dirname(path)} does not exist: make it first", path=path
            )
        self.store.open_raw()
        try:
            return Repair(self.store, until).write(path, self.now())
        finally:
            self.store.close()

    def purge(self, nodes: list[int]) -> Json:
        """Empty the content of nodes for ever: the log is written anew and replaced."""
        if not nodes:
            raise InvalidArgument("purge names no node")
        with self.writing() as store:
            for node in nodes:
                if node == 0:
                    raise InvalidArgument(
                        "n0 is the root, which holds nothing: there is nothing to purge"
                    )
                self._row(store, node)
            temporary = store.path + ".tmp"
            file = store.disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            try:
                self._own_alike(temporary)
                files = self._files_of(store, nodes)
                generation = write_purged(store, nodes, file, self.now())
            except BaseException:
                store.disk.close(file)
                store.disk.remove(temporary)
                raise
            store.disk.close(file)
            store.close()  # Windows cannot replace a file that is open
            try:
                store.disk.replace(temporary, store.path)
            except OSError as error:
                store.disk.remove(temporary)
                raise WriteFailed(
                    f"nothing changed: {system_words(error, store.path)}", errno=error.errno
                ) from None
            store.disk.sync_folder(os.path.dirname(store.path))
            store.index.forget()
            self.forget_notes(BOOKMARKS, 0)  # they may hold what was said last
            removed = self._remove_files(files)
        answer: Json = {"purged": [f"n{node}" for node in nodes], "generation": generation}
        if removed:
            answer["files_removed"] = removed
        if os.path.exists(self.path + ".torn"):
            answer["look_at"] = [self.path + ".torn"]
        return answer

    def _own_alike(self, path: str) -> None:
        """Give a new file the mode and the owner of the database."""
        old = os.stat(self.path)
        if sys.platform != "win32" and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(path, old.st_uid, old.st_gid)
        os.chmod(path, old.st_mode & 0o777)

    def _files_of(self, store: Store, nodes: list[int]) -> list[str]:
        """Names of the kept files that the nodes' lines mention."""
        import re

        if not os.path.isdir(self.path + ".files"):
            return []
        lines = (store.node_line(node, store.rows[node]) for node in nodes)
        names = {name.decode() for line in lines for name in re.findall(rb"[0-9a-f]{64}", line)}
        return sorted(
            each for each in names if os.path.exists(os.path.join(self.path + ".files", each))
        )

    def _remove_files(self, names: list[str]) -> list[str]:
        """Remove kept files that no line mentions any more; their names."""
        if not names:
            return []
        with open(self.path, "rb") as log:
            for line in log:
                names = [name for name in names if name.encode() not in line]
        for name in names:
            self.store.disk.remove(os.path.join(self.path + ".files", name))
        self.store.disk.sync_folder(self.path + ".files")
        return names

    def keep_bytes(self, data: bytes) -> str:
        """Keep binary content beside the database, once; its sha256 in hex is its name."""
        from hashlib import sha256

        name = sha256(data).hexdigest()
        folder = self.path + ".files"
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return name
        disk = self.store.disk
        disk.make_folder(folder)
        disk.write_new(path + ".tmp", data)
        disk.replace(path + ".tmp", path)
        disk.sync_folder(folder)
        return name

    def kept_bytes(self, name: str) -> bytes | None:
        """What `keep_bytes` kept under this name; None if it is not there, or damaged."""
        from hashlib import sha256

        if len(name) != 64 or name.strip("0123456789abcdef"):
            return None
        try:
            with open(os.path.join(self.path + ".files", name), "rb") as file:
                data = file.read()
        except OSError:
            return None
        return data if sha256(data).hexdigest() == name else None

    def mark(self) -> str:
        """A sign of all that the log holds now, for `holds`."""
        store = self.refresh()
        return f"{store.header.log_id} {store.end} {store.crc:08x}"

    def holds(self, mark: str) -> bool:
        """Whether the log still begins with all that it held when `mark` was made: it is no other
        database, and no older copy."""
        if not os.path.exists(self.path):
            return False
        store = self.refresh()
        log_id, end, crc = [*mark.split(" "), "", "", ""][:3]
        if log_id != store.header.log_id or not end.isdigit() or int(end) > store.end:
            return False
        tail = store.disk.read_at(store.log_file, 11, int(end) - 11)
        return tail == f'{crc}"}}\n'.encode()

    def read_note(self, name: str) -> bytes | None:
        """What `write_note` kept; None if it is gone."""
        try:
            with open(self.store.index.path(name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def write_note(self, name: str, data: bytes) -> None:
        """Keep bytes beside the index, where they may be deleted at any time. Failures are
        swallowed."""
        disk, path = self.store.disk, self.store.index.path(name)
        try:
            disk.make_folder(self.store.index.folder)
            disk.write_new(f"{path}.tmp", data)
            disk.replace(f"{path}.tmp", path)
        except OSError:
            pass

    def forget_notes(self, prefix: str, days: int) -> None:
        """Delete notes whose names begin with `prefix` that were written longer ago than this."""
        oldest = time.time() - days * 86_400
        try:
            for each in os.scandir(self.store.index.folder):
                if each.name.startswith(prefix) and each.stat().st_mtime < oldest:
                    os.unlink(each.path)
        except OSError:
            pass

    def importing(self, key: str | None = None, dry_run: bool = False) -> Importing:
        """A transaction of many nodes, for readers of transcripts."""
        return Importing(self, key, dry_run)

    _METHODS: dict[str, Callable[[Database, Json], Any]] = {  # noqa: RUF012
        "append": _append,
        "archive_branch": _archive_branch,
        "archive_check": _archive_check,
        "audit": _audit,
        "branches": _branches,
        "budget": _budget,
        "compact": _compact,
        "context": _context,
        "doctor": _doctor,
        "create": _create,
        "drop_branch": _drop_branch,
        "exclude": _exclude,
        "fork": _fork,
        "include": _include,
        "list": _list,
        "node": _node,
        "pin": _pin,
        "rename": _rename,
        "search": _search,
        "summaries": _list_summaries,
        "summarize": _summarize,
        "switch": _switch,
        "thaw": _thaw,
        "unpin": _unpin,
    }


def hook_log(path: str) -> list[Json]:
    """The newest entries of the log that `tl hook` keeps beside the database at `path`, oldest
    first; see timeline_import.py, section 25."""
    try:
        with open(path + HOOK_LOG_ENDING, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - CHUNK_BYTES))
            lines = file.read().splitlines()[1 if size > CHUNK_BYTES else 0 :]
    except OSError:
        return []
    entries = []
    for line in lines:
        try:
            entry = loads(line.decode())
        except (ValueError, RecursionError):
            continue  # cut short when the machine went down
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def hook_failures(path: str) -> tuple[int, str]:
    """How often the hook failed since it last brought a transcript in, and why the last time."""
    count, last = 0, ""
    for entry in reversed(hook_log(path)):
        if entry.get("ok") is True and "added" in entry:
            break
        if entry.get("ok") is False:
            count += 1
            last = last or str(entry.get("error", ""))
    return count, last


class NodeFacts:
    """What an import asks about a node."""

    __slots__ = (
        "depth",
        "is_copy",
        "is_summary",
        "parent",
        "role",
        "source_known",
        "timeline",
        "tokens",
    )

    def __init__(self, rows: Rows, node: int) -> None:
        row = rows[node]
        flags = row[FLAGS]
        self.parent = row[PARENT]
        self.depth = row[DEPTH]
        self.timeline = row[TL]
        self.role = ROLES[flags & ROLE_MASK]
        self.tokens = row[PREFIX] - rows[row[PARENT]][PREFIX]
        self.is_summary = bool(flags & KIND_SUMMARY)
        self.is_copy = bool(flags & IS_COPY)
        self.source_known = bool(flags & HAS_SOURCE)


def _answers_another(blocks: Sequence[Json]) -> bool:
    """Whether the blocks of a message hold the result of a call that is not among them."""
    # A list, since a damaged id may be anything.
    calls = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    return any(block.get("tool_use_id") not in calls for block in results)


def node_uuid(log_id: str, node: int) -> str:
    """The uuid of a node that has none of its own: version 5 of RFC 9562, named nN within the id of
    the log."""
    from uuid import UUID, uuid5

    return str(uuid5(UUID(log_id), f"n{node}"))


class Importing:
    """Many records as one transaction, or several where `commit` is called in between.

    Each record is applied to the state in memory at once, so that questions see it, and lies in a
    buffer until `commit` writes all of them with one fsync. If the block is left by an exception,
    or in a dry run, the buffer is dropped and the state read anew from the log.

    The exclusive lock is held from entering the block to leaving it: whoever reads a transcript
    does so before. A dry run locks nothing, and so may also ask about what is stored.
    """

    def __init__(self, database: Database, key: str | None, dry_run: bool) -> None:
        self._database = database
        self._store = database.store
        self._key = key
        self._dry_run = dry_run
        self._writing = database.writing(create=True)
        self._buffer: list[bytes] = []
        self._start = 0  # offset of the first buffered line
        self._offset = 0
        self._crc = 0
        self._seq = 0
        self._ts = 0
        self._identities: dict[str, list[int]] = {}
        self._result: Json | None = None
        self._closes = False
        self.earlier: Json | None = None  # the result a key remembers: do nothing and return it

    def __enter__(self) -> Importing:
        if self._dry_run:
            self._enter_dry()
        else:
            self._writing.__enter__()
        try:
            self._look_up_key()
        except BaseException:
            if self._dry_run:
                self._store.close()
            else:
                self._writing.__exit__()
            raise
        self._begin()
        return self

    def _look_up_key(self) -> None:
        if self._key is not None:
            kept = self._database._kept(self._store, None, self._key, "import")
            if kept is not None:
                self.earlier = self._database.result_of(kept)

    def _enter_dry(self) -> None:
        if os.path.exists(self._store.path):
            self._database.refresh()
            self._closes = not _KEEPS_OPEN
            return
        self._closes = True  # the empty state is of no file
        header = new_header(self._database.now())
        self._store.header = parse_header(header, self._store.path)
        self._store._start_empty()

    def _begin(self) -> None:
        store = self._store
        self._start = self._offset = store.end
        self._crc = store.crc
        self._seq = store.state.seq + 1
        self._ts = max(self._database.now(), store.state.ts)
        self._buffer = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self._dry_run:
                # Without a result there is nothing yet that the key could return.
                self.commit(None if self._result is None else self._key)
        finally:
            try:
                if self._buffer or kind is not None or self._closes:
                    self._store.close()  # the state in memory runs ahead of the log: read it anew
            finally:
                if not self._dry_run:
                    self._writing.__exit__()

    def commit(self, key: str | None = None) -> None:
        """Store what was recorded so far; nothing is written if that is nothing."""
        if not self._buffer and key is None:
            return
        if self._dry_run:
            return
        last: Json = {"op": "noop", "for": "import"}
        if key is not None and self.earlier is None:
            last["key"] = key
            last["result"] = self._result
        elif not self._buffer:
            return
        self._record(last, more=False)
        self._store.commit_lines(b"".join(self._buffer), self._offset, self._crc)
        self._identities.clear()  # the lookup knows them now
        self._begin()

    def remember(self, result: Json) -> None:
        """The result that the idempotency key returns from now on."""
        self._result = result

    def _record(self, record: Json, more: bool = True) -> None:
        whole: Json = {"seq": self._seq, "ts": self._ts, "op": record["op"]}
        if more:
            whole["more"] = 1
        whole.update(record)
        line, self._crc = encode_line(whole, self._crc)
        store = self._store
        apply(store.state, store.rows, whole, self._offset, len(line))
        store.lookup.add(store.state.found)
        store.state.found.clear()
        self._buffer.append(line)
        self._offset += len(line)

    # ---- questions -------------------------------------------------------------------------

    def timelines(self) -> list[TimelineState]:
        return self._store.state.timelines

    def exported(self, uuid: str, node: str) -> int | None:
        """The node of this database, as n5, if `node_uuid` gives it this uuid."""
        digits = node.removeprefix("n")
        number = int(digits) if digits.isdecimal() and len(digits) < 18 else 0
        if not 0 < number <= self.node_count or node_uuid(self.log_id, number) != uuid:
            return None
        return number

    def find(self, identity: str, tl: int | None = None) -> list[int]:
        """Nodes that carry the identity, oldest first."""
        found = list(self._identities.get(identity, ()))
        for offset in self._store.lookup.find(identity_hash(identity)):
            if offset < self._start:
                record = decode_head(self._store.line_at(offset))
                if identity in record.get("ids", ()) and record["id"] not in found:
                    found.append(record["id"])
        if tl is not None:
            found = [node for node in found if self._store.rows[node][TL] == tl]
        return sorted(found)

    def row(self, node: int) -> NodeFacts:
        return NodeFacts(self._store.rows, node)

    @property
    def log_id(self) -> str:
        return self._store.header.log_id

    @property
    def node_count(self) -> int:
        return len(self._store.rows)

    def interval_of(self, summary: int) -> tuple[int, int]:
        """What a summary or placeholder stands for; (0, 0) of a message."""
        row = self._store.rows[summary]
        return row[FROM], row[TO]

    def find_placeholder(self, first: int, last: int) -> int | None:
        """The placeholder of an interval, if one was stored before this transaction."""
        return self._database.find_placeholder(self._store, first, last, self._start)

    def unit_first(self, node: int) -> int:
        """The first node of the tool unit that the node is in."""
        return unit_first(self._store.rows, node)

    def is_cold(self, tl: int, node: int) -> bool:
        """Whether the node is archived."""
        rows = self._store.rows
        return is_cold(rows, self.timelines()[tl].segments, node, rows[node])

    def record(self, node: int) -> Json:
        """The stored line of a node."""
        row = self._store.rows[node]
        if row[OFFSET] < self._start:
            return decode_line(self._store.node_line(node, row))
        from bisect import bisect_right
        from itertools import accumulate

        starts = list(accumulate(map(len, self._buffer), initial=self._start))
        return decode_line(self._buffer[bisect_right(starts, row[OFFSET]) - 1])

    def text(self, node: int) -> str:
        return str(self.record(node)["text"])

    def children_any(self, node: int) -> bool:
        """Whether the node has children, summaries over what follows it left out."""
        rows, lowest = self._store.rows, self._store.state.lowest
        children = children_of(rows, lowest, node, rows[node][TL])
        return any(not rows[each][FLAGS] & KIND_SUMMARY for each in children)

    def common(self, one: int, other: int) -> int:
        return common_ancestor(self._store.rows, one, other)

    def is_ancestor(self, upper: int, node: int) -> bool:
        return is_ancestor(self._store.rows, upper, node)

    def branch_of(self, tl: int, number: int) -> Branch | None:
        """The live branch with this identity."""
        return self.timelines()[tl].live_branch(number)

    # ---- records ---------------------------------------------------------------------------

    def create(self, title: str | None, estimator: str, source: Json) -> int:
        number = len(self.timelines())
        self._record(
            {"op": "create", "tl": number, "title": title, "estimator": estimator, "source": source}
        )
        return number

    def append(
        self,
        tl: int,
        parent: int,
        role: str,
        text: str,
        tokens: int,
        source: Json,
        blocks: list[Json] | None = None,
        identities: Sequence[str] = (),
        *,
        joins: bool = False,
        intent: Json | None = None,
        purged: bool = False,
    ) -> int:
        """A message on no branch. Its `identities` are found from now on."""
        self._database._check_sum(self._store, parent, tokens)
        node = len(self._store.rows) + 1
        record: Json = {
            "op": "append",
            "tl": tl,
            "id": node,
            "parent": parent,
            "role": role,
            "tokens": tokens,
            "via": "import",
            "source": source,
        }
        if blocks:
            record["blocks"] = blocks
            if role != "tool" and _answers_another(blocks):
                joins = True
        if joins:
            record["joins"] = 1
        return self._node(record, text, identities, intent, purged)

    def _node(
        self,
        record: Json,
        text: str,
        identities: Sequence[str] = (),
        intent: Json | None = None,
        purged: bool = False,
    ) -> int:
        """Record a node; what every kind of node may have comes last."""
        node: int = record["id"]
        if intent is not None:
            record["intent"] = intent
        self._note(node, record, identities)
        if purged:
            record["purged"] = True
        record["text"] = text
        self._record(record)
        return node

    def summary(
        self,
        tl: int,
        first: int,
        last: int,
        text: str,
        tokens: int,
        source: Json,
        identities: Sequence[str] = (),
        *,
        supersedes: int | None = None,
        derived_from: Sequence[int] = (),
        intent: Json | None = None,
        purged: bool = False,
    ) -> int:
        """A real summary over first..last, beside the originals."""
        parent = self._store.rows[first][PARENT]
        self._database._check_sum(self._store, parent, tokens)
        node = len(self._store.rows) + 1
        record: Json = {
            "op": "summary",
            "tl": tl,
            "id": node,
            "parent": parent,
            "from": first,
            "to": last,
            "tokens": tokens,
            "via": "import",
            "source": source,
        }
        if supersedes is not None:
            record["supersedes"] = supersedes
        if derived_from:
            record["derived_from"] = list(derived_from)
        return self._node(record, text, identities, intent, purged)

    def placeholder(self, tl: int, first: int, last: int) -> int:
        """A placeholder of first..last, with its text."""
        rows = self._store.rows
        parent = rows[first][PARENT]
        self._database._check_sum(self._store, parent, RESERVE_TOKENS)
        record: Json = {
            "op": "placeholder",
            "tl": tl,
            "id": len(rows) + 1,
            "parent": parent,
            "from": first,
            "to": last,
            "tokens": RESERVE_TOKENS,
            "via": "import",
        }
        count = rows[last][DEPTH] - rows[first][DEPTH] + 1
        return self._node(record, placeholder_text(first, last, count))

    def _note(self, node: int, record: Json, identities: Sequence[str]) -> None:
        if identities:
            record["ids"] = list(identities)
            for identity in identities:
                self._identities.setdefault(identity, []).append(node)

    def branch(self, tl: int, name: str, head: int) -> None:
        """A branch made by import; it forks from the current branch where their paths part."""
        timeline = self.timelines()[tl]
        current = timeline.branches[timeline.current]
        self._record(
            {
                "op": "fork",
                "tl": tl,
                "node": head,
                "name": name,
                "of": current.name,
                "at": self.common(head, current.head),
                "imported": 1,
            }
        )

    def fork(
        self, tl: int, name: str, head: int, of: str | None, at: int | None, imported: bool
    ) -> None:
        """A branch as it was elsewhere: begun at node `at` of the live branch `of`."""
        record: Json = {"op": "fork", "tl": tl, "node": head, "name": name, "of": of, "at": at}
        if imported:
            record["imported"] = 1
        self._record(record)

    def rename_branch(self, tl: int, name: str, to: str) -> None:
        self._record({"op": "rename", "tl": tl, "name": name, "to": to})

    def switch(self, tl: int, name: str) -> None:
        self._record({"op": "switch", "tl": tl, "name": name})

    def archive(self, tl: int, name: str, top: int) -> bool:
        """Archive a branch and the messages from `top` (0: none) to its head. False, and nothing is
        done, if another branch ends there."""
        rows, timeline = self._store.rows, self.timelines()[tl]
        record: Json = {"op": "archive", "tl": tl, "name": name, "top": top, "moved": []}
        if not _fits_archive(timeline, rows, record):
            return False
        if top:
            part = walk_between(rows, rows[top][DEPTH], timeline.branches[name].head)
            record["moved"] = to_runs(
                node for node, row in part
                if not row[FLAGS] & KIND_SUMMARY and not is_cold(rows, timeline.segments, node, row)
            )  # fmt: skip
        self._record(record)
        return True

    def thaw(self, tl: int, node: int) -> None:
        """Bring the node and what lies above it back from the archive."""
        moved = cold_on_path(self._store.rows, self.timelines()[tl].segments, node)
        self._record({"op": "thaw", "tl": tl, "node": node, "moved": to_runs(moved)})

    def pin(self, tl: int, node: int) -> None:
        self._record({"op": "pin", "tl": tl, "node": node})

    def exclude(self, tl: int, node: int) -> None:
        """Exclude the unit of the node."""
        unit = unit_down_to(self._store.rows, node)
        self._record({"op": "exclude", "tl": tl, "unit": unit[0], "nodes": to_runs(unit)})

    def next_seq(self) -> None:
        """End a transaction of the log and begin the next: what was before (a pin, say) counts as
        older than what follows. `commit` still writes both at once."""
        self._record({"op": "noop", "for": "import"}, more=False)
        self._seq += 1

    def move(self, tl: int, name: str, head: int) -> None:
        """Move a branch's head."""
        self._record({"op": "move", "tl": tl, "name": name, "node": head})

    def drop(self, tl: int, name: str) -> None:
        self._record({"op": "drop", "tl": tl, "name": name})

    def session(self, tl: int, key: str, branch: str, node: int) -> None:
        """Remember the branch of an imported session and the node it last reached."""
        self._record({"op": "session", "tl": tl, "session": key, "branch": branch, "node": node})

    def rename(self, tl: int, title: str, titled: int = 0) -> None:
        """A title from the transcript; a user's own (`titled`) stays."""
        self._record({"op": "rename", "tl": tl, "title": title, "titled": titled})


class Answer:
    """One answer of the budget: what was selected of a path, and the placeholders it needs."""

    def __init__(self, database: Database, store: Store, tl: int, target: int, a: Json) -> None:
        self.database = database
        self.store = store
        self.tl = tl
        self.explain: bool = a["explain"]
        if target and store.rows[target][FLAGS] & KIND_PLACEHOLDER:
            raise Refused(f"n{target} is a placeholder: ask for the budget of a message or summary")
        timeline = store.state.timelines[tl]
        self.path = PathColumns(store.rows, target)
        self.units = Units(self.path, timeline.excluded)
        self.summaries: list[int] = []
        self.candidates = self._candidates(timeline)
        self.selection = select(
            self.units.weights,
            self._mandatory(timeline),
            self.candidates,
            a["max_tokens"],
            a["order"],
            explain=self.explain,
        )
        self.items = in_path_order(self.selection)
        self.placeholders: dict[tuple[int, int], int | None] = {}
        for first, last, kind in self.items:
            if kind == ITEM_GAP:
                interval = self._interval(first, last)
                self.placeholders[interval] = database.find_placeholder(store, *interval)
        count = sum(
            self.units.lasts[last] - self.units.firsts[first] + 1 if kind == ITEM_KEPT else 1
            for first, last, kind in self.items
        )
        if count > MESSAGES_MAX:
            raise too_long(count, "`node` or a smaller `max_tokens`")

    def _interval(self, first: int, last: int) -> tuple[int, int]:
        """(first node, last node) of units first..last."""
        return self.path.ids[self.units.firsts[first]], self.path.ids[self.units.lasts[last]]

    def _place(self, node: int) -> int | None:
        """Where on the path the node lies."""
        place = self.store.rows[node][DEPTH] - 1
        return place if 0 <= place < len(self.path.ids) and self.path.ids[place] == node else None

    def _mandatory(self, timeline: TimelineState) -> set[int]:
        found = set()
        for pin in timeline.pins:
            place = self._place(pin)
            unit = None if place is None else self.units.holding(place)
            if unit is not None:
                found.add(unit)
        if self.units.weights:
            found.add(len(self.units.weights) - 1)
        return found

    def _candidates(self, timeline: TimelineState) -> list[Candidate]:
        """Applicable real summaries, the newest of each chain, that cover a whole unit."""
        rows = self.store.rows
        summaries = self.database.summaries_of(self.tl)
        stale: set[int] | None = None
        # Behind an excluded end of the path nothing is shown, nor spoken for.
        bottom = self.units.lasts[-1] if self.units.lasts else -1
        found = []
        for node in summaries.order:
            summary = summaries.by_node[node]
            last = self._place(summary.last)
            if last is None or last > bottom or node in summaries.successor:
                continue
            if timeline.excluded and unit_first(rows, node) in timeline.excluded:
                continue
            first = rows[summary.first][DEPTH] - 1
            left, right = self.units.inside(first, last)
            if left <= right:
                if stale is None:
                    stale = summaries.stale(rows)
                self.summaries.append(node)
                found.append(
                    Candidate(left, right, summary.tokens, node in stale, last - first + 1, node)
                )
        return found

    def missing(self) -> bool:
        return None in self.placeholders.values()

    def created(self) -> list[int]:
        """The placeholders of this answer, in path order."""
        return [node for node in self.placeholders.values() if node is not None]

    def plan_placeholders(self) -> list[Json]:
        """Records of the placeholders that do not exist yet; they count as made from now on."""
        records: list[Json] = []
        for interval, known in self.placeholders.items():
            if known is None:
                node = len(self.store.rows) + 1 + len(records)
                self.placeholders[interval] = node
                records.append(
                    {
                        "op": "placeholder",
                        "tl": self.tl,
                        "id": node,
                        "parent": self.store.rows[interval[0]][PARENT],
                        "from": interval[0],
                        "to": interval[1],
                        "tokens": RESERVE_TOKENS,
                        "via": self.database.via,
                        "text": self._placeholder_text(*interval),
                    }
                )
        return records

    def _placeholder_text(self, first: int, last: int) -> str:
        rows = self.store.rows
        return placeholder_text(first, last, rows[last][DEPTH] - rows[first][DEPTH] + 1)

    def nodes(self) -> list[int]:
        """The nodes shown, in path order."""
        found: list[int] = []
        for first, last, kind in self.items:
            if kind == ITEM_KEPT:
                found += self._kept_nodes(first, last)
            elif kind == ITEM_GAP:
                found.append(self.placeholders[self._interval(first, last)] or 0)
            else:
                found.append(self.summaries[kind])
        return found

    def _kept_nodes(self, first: int, last: int) -> list[int]:
        return [
            node
            for low, high in self._kept_places(first, last)
            for node in self.path.ids[low : high + 1]
        ]

    def _kept_places(self, first: int, last: int) -> list[list[int]]:
        """The places of units first..last as [low, high] ranges; excluded units part them."""
        firsts, lasts = self.units.firsts, self.units.lasts
        if not self.units.left_out:
            return [[firsts[first], lasts[last]]]
        return merged_ranges([[firsts[unit], lasts[unit]] for unit in range(first, last + 1)])

    def to_json(self) -> Json:
        messages: list[Json] = []
        for first, last, kind in self.items:
            if kind == ITEM_KEPT:
                messages += self._kept_messages(first, last)
            elif kind == ITEM_GAP:
                messages.append(self._gap_message(first, last))
            else:
                messages.append(self._summary_message(self.summaries[kind]))
        answer: Json = {
            "messages": messages,
            "total_tokens": self.selection.total,
            "summaries_created": [f"n{node}" for node in self.created()],
        }
        if self.explain:
            answer["explain"] = self._explanation()
        return answer

    def _kept_messages(self, first: int, last: int) -> list[Json]:
        messages: list[Json] = []
        for low, high in self._kept_places(first, last):
            spots, flags = self.path.spots(low, high), self.path.flags[low : high + 1]
            messages += self.database._messages(self.store, self.tl, spots, flags)
        return messages

    def _summary_message(self, node: int) -> Json:
        row = self.store.rows[node]
        spot = (node, row[PARENT], row[OFFSET], row[LENGTH])
        return self.database._messages(self.store, self.tl, [spot], [row[FLAGS]])[0]

    def _gap_message(self, first: int, last: int) -> Json:
        interval = self._interval(first, last)
        node = self.placeholders[interval]
        return {
            "node": _node_or_none(node),
            "role": "summary",
            "text": self._placeholder_text(*interval),
            "tokens": RESERVE_TOKENS,
            "from": f"n{interval[0]}",
            "to": f"n{interval[1]}",
            "placeholder": True,
        }

    def _explanation(self) -> list[Json]:
        found = []
        rows = explain_rows(
            self.selection,
            self.candidates,
            lambda unit: f"n{self.path.ids[self.units.firsts[unit]]}",
            lambda number: f"n{self.summaries[number]}",
        )
        for row in rows:
            first, last = self._interval(row.first, row.last)
            shown: Json = {
                "from": f"n{first}",
                "to": f"n{last}",
                "verdict": row.verdict,
                "why": row.why,
            }
            if row.candidate >= 0:
                summary = self.database.summaries_of(self.tl).by_node[self.summaries[row.candidate]]
                shown.update(
                    {
                        "node": f"n{summary.node}",
                        "from": f"n{summary.first}",
                        "to": f"n{summary.last}",
                    }
                )
            found.append((self._place_of(shown), shown))
        for first, last in self.units.left_out:
            ids = self.path.ids
            shown = {
                "from": f"n{ids[first]}",
                "to": f"n{ids[last]}",
                "verdict": "excluded",
                "why": "excluded",
            }
            found.append((first, shown))
        found.sort(key=lambda each: each[0])
        return [shown for _, shown in found]

    def _place_of(self, shown: Json) -> int:
        return self.store.rows[int(shown["from"][1:])][DEPTH] - 1


class Finder:
    """Finds a text in lines of the log without decoding most of them."""

    def __init__(self, text: str, regex: bool, ignore_case: bool) -> None:
        self.text = text
        self.fold = ignore_case
        self.pattern: Any = None
        self.needle: bytes | None = None
        if regex:
            import re
            import warnings

            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about patterns whose meaning may change
                    self.pattern = re.compile(text, re.IGNORECASE if ignore_case else 0)
            except (re.error, RecursionError, OverflowError) as error:
                raise InvalidArgument(f"{quoted(text)} is no regular expression: {error}") from None
        elif not ignore_case:
            self.needle = dumps(text)[1:-1].encode()
        elif text.isascii():
            self.needle = dumps(text)[1:-1].encode().lower()

    def lines(self, raw: bytes) -> Iterator[tuple[int, int]]:
        """(start, end) of the lines that may hold a hit, newest first."""
        if self.needle is None or (self.fold and _may_fold_to_ascii(raw)):
            end = len(raw)
            while end > 0:
                start = raw.rfind(b"\n", 0, end - 1) + 1
                yield start, end
                end = start
            return
        haystack = raw.lower() if self.fold else raw
        end = len(raw)
        while True:
            place = haystack.rfind(self.needle, 0, end)
            if place < 0:
                return
            start = raw.rfind(b"\n", 0, place) + 1
            yield start, raw.find(b"\n", place) + 1
            end = start

    def may_hit(self, line: bytes) -> bool:
        """Whether the line's text holds a hit, where that was not looked at yet. Asked before the
        rest of the line is decoded, which costs more."""
        if self.needle is not None:
            return True
        try:
            return _TEXT_MARK in line and self.place(line_text(line)) is not None
        except (ValueError, IndexError):
            return True  # a damaged line: the caller finds out

    def place(self, text: str) -> tuple[int, int] | None:
        """(start, end) of the first hit in a text."""
        if self.pattern is not None:
            match = self.pattern.search(text)
            return None if match is None else match.span()
        if not self.fold:
            start = text.find(self.text)
            return None if start < 0 else (start, start + len(self.text))
        folded, wanted = text.casefold(), self.text.casefold()
        start = folded.find(wanted)
        if start < 0:
            return None
        if len(folded) != len(text):
            # Folding changed the length before the hit: find where it began.
            done = 0
            for place, char in enumerate(text):
                if done >= start:
                    start = place
                    break
                done += len(char.casefold())
        return start, min(len(text), start + len(wanted))


def page(rows: list[Json], key: str, after: str | None, limit: int | None) -> list[Json]:
    """At most `limit` of the rows behind the one whose `key` is `after`.

    Ended branches may share a name. Those come on one page, or `after` would pass some over; only
    then it is longer than `limit`.

    Raises:
        NotFound: no row has that key.
    """
    last_places = {row[key]: place for place, row in enumerate(rows)}
    start = 0
    if after is not None:
        if after not in last_places:
            raise NotFound(f"{quoted(after)} is not in this list: begin again without after")
        start = last_places[after] + 1
    end = len(rows) if limit is None else min(len(rows), start + limit)
    while end > start and last_places[rows[end - 1][key]] >= end:
        end = last_places[rows[end - 1][key]] + 1
    return rows[start:end]


_ASCII = bytes(range(128))
# What casefold turns into text with ASCII letters, so that a search for ASCII must look closer.
_FOLDS_TO_ASCII = tuple(
    char.encode()
    for char in "\u212a\u017f\u00df\u1e9e\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06\u0149"
    "\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u0130"
)


def _may_fold_to_ascii(raw: bytes) -> bool:
    """Whether `raw` holds a character that `casefold` turns into ASCII letters."""
    if raw.isascii():
        return False
    rest = raw.translate(None, _ASCII)  # UTF-8 keeps the bytes of one character together
    return any(each in rest for each in _FOLDS_TO_ASCII)


def snippet(text: str, start: int, end: int) -> str:
    """At most 160 characters of `text` around start..end."""
    room = max(0, SNIPPET_CHARS - (end - start))
    first = max(0, min(start - room // 2, len(text) - SNIPPET_CHARS))
    return text[first : first + SNIPPET_CHARS]


def placeholder_text(first: int, last: int, count: int) -> str:
    """What stands in a context for an omitted stretch of `count` messages."""
    return (
        f"[{count} messages left out: n{first}..n{last}. "
        f"Read the originals as the context of n{last}, from n{first} on.]"
    )


def too_long(count: int, advice: str) -> ResultTooLong:
    """The error for an answer of more messages than one call gives."""
    return ResultTooLong(
        f"result too long: {count} messages, above {MESSAGES_MAX}; narrow it with {advice}",
        messages=count,
        max_messages=MESSAGES_MAX,
    )


def is_below(path: object, folder: str) -> bool:
    """Whether `path` is `folder` or lies below it, as text."""
    if not isinstance(path, str):
        return False
    path, folder = os.path.normpath(path), os.path.normpath(folder)
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_NODE_ARGUMENTS = ("node", "from", "to", "expect_head", "before", "supersede")
_AUDIT_NODES = ("parent", "node", "from", "to", "unit", "top", "supersedes")


def audit_row(record: Json) -> Json:
    """A line for the audit: its fields but text, blocks and what only the machine needs."""
    row: Json = {"seq": record["seq"], "ts": record["ts"], "op": record["op"]}
    if "tl" in record:
        row["timeline"] = f"tl{record['tl']}"
    for name, value in record.items():
        if name == "id":
            row["node"] = f"n{value}"
        elif name in _AUDIT_NODES and type(value) is int:
            row[name] = f"n{value}"
        elif name == "derived_from":
            row[name] = [f"n{node}" for node in value]
        elif name in ("moved", "nodes"):
            row[name] = [
                f"n{first}" if first == last else f"n{first}..n{last}" for first, last in value
            ]
        elif name not in ("seq", "ts", "op", "tl", "text", "blocks", "crc", "ids"):
            row[name] = value
    return row


def _named_nodes(arguments: Json) -> list[int]:
    """The nodes that arguments name, in the order of _NODE_ARGUMENTS."""
    named = [arguments[name] for name in _NODE_ARGUMENTS if name in arguments]
    nodes = [node for node in named if type(node) is int]
    if "derived_from" in arguments:
        nodes += arguments["derived_from"] or ()
    return nodes


def _leave_format(arguments: Json) -> None:
    """Raise if an adapter passed on what is its own to do."""
    if arguments["format"] is not None:
        raise InvalidArgument("format is made of the answer: see `timeline_export.as_request`")


def _node_or_none(node: int | None) -> str | None:
    return None if node is None else f"n{node}"


def _refuse_taken(timeline: TimelineState, name: str, advice: str = "choose another name") -> None:
    if name in timeline.branches:
        raise NameTaken(f"a branch {quoted(name)} exists: {advice}", name=name)


def _archived_branch(timeline: TimelineState, name: str) -> Branch:
    """The newest archived branch of that name."""
    for branch in reversed(timeline.ended):
        if branch.name == name and branch.status == ARCHIVED:
            return branch
    if name in timeline.branches:
        raise Refused(f"branch {quoted(name)} is not archived")
    raise _unknown_branch(timeline, name)


def _put_key(record: Json, key: str) -> None:
    """Add the idempotency key to a planned record; `text` stays last."""
    text = record.pop("text", None)
    record["key"] = key
    if text is not None:
        record["text"] = text


def _nodes_of_runs(record: Json, name: str) -> list[str]:
    return [f"n{node}" for node in from_runs(record[name])]


def _rename_result(record: Json) -> Json:
    if record.get("title") is not None:
        return {"renamed": "title", "to": record["title"]}
    return {"renamed": record["name"], "to": record["to"]}


# What each kind of record answers: the first call and every keyed repetition of it.
_RESULTS: dict[str, Callable[[Json], Json]] = {
    "append": lambda record: {"node": f"n{record['id']}"},
    "archive": lambda record: {"archived": _nodes_of_runs(record, "moved")},
    "create": lambda record: {"timeline_id": f"tl{record['tl']}"},
    "drop": lambda record: {"dropped": record["name"]},
    "exclude": lambda record: {"excluded": _nodes_of_runs(record, "nodes")},
    "fork": lambda record: {"branch": record["name"], "head": f"n{record['node']}"},
    "include": lambda record: {"included": _nodes_of_runs(record, "nodes")},
    "noop": lambda record: dict(record["result"]),
    "pin": lambda record: {"pinned": f"n{record['node']}"},
    "rename": _rename_result,
    "summary": lambda record: {"node": f"n{record['id']}"},
    "switch": lambda record: {"current_branch": record["name"]},
    "thaw": lambda record: {"thawed": _nodes_of_runs(record, "moved")},
    "unpin": lambda record: {"unpinned": f"n{record['node']}"},
}


def choose_database(
    option: str | None, environment: Mapping[str, str], home: str
) -> tuple[str, str]:
    """(path, where it comes from) of the database that a program shall use: `option`, else the
    variable TIMELINE_DB, else a file in the home folder.

    Raises:
        InvalidArgument: the option is empty.
    """
    if option is not None:
        if not option:
            raise InvalidArgument("--db is empty: name a file")
        return option, "option"
    variable = environment.get("TIMELINE_DB")
    if variable:
        return variable, "variable"
    if environment.get("HOME") == "" and sys.platform != "win32":
        raise InvalidArgument(
            "the variable HOME is empty, so there is no home folder: name a database with --db or "
            "TIMELINE_DB"
        )
    profile = environment.get("USERPROFILE") if sys.platform == "win32" else None
    return os.path.join(profile or environment.get("HOME") or home, ".timeline.json"), "default"


def version() -> str:
    """The version, from pyproject.toml in a source checkout, else from the installed metadata."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        with open(os.path.join(folder, "pyproject.toml"), encoding="utf-8") as file:
            for line in file:
                if line.startswith("version ="):
                    return line.split('"')[1]
    except (OSError, IndexError):
        pass
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("timeline")
    except PackageNotFoundError:
        return "unknown"


def _ignore(message: str) -> None:
    """A notice nobody asked for."""


if __name__ == "__main__":
    from timeline_cli import main

    sys.exit(main())
