"""The stdio server `tl-mcp`: Timeline's operations as tools of the Model Context Protocol.

    python /abs/scripts/timeline_mcp.py [--db PATH] [--tools LIST] [--errors tool|jsonrpc]
                                        [--max-output-chars N] [--lock-wait SECONDS]

One JSON-RPC 2.0 message a line on stdin and stdout; nothing else goes to stdout. `Server.handle`
knows messages and no pipes; `serve` knows pipes and no messages.

Revisions: 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25 are opened by `initialize`; a request
of 2026-07-28 carries its version in `params._meta` and stands alone. Each request is routed by
itself, so both kinds may share a pipe. The handshake leaves one thing behind, the revision that
shapes later results; what a conversation is at (current branch, heads) lies in the database.

Nothing is opened or locked before the first call of a tool, nor held between calls. A notification
is never carried out and never answered. Failures of a tool are results with `isError`, so that the
model sees them; with `--errors jsonrpc` they are JSON-RPC errors.

Sizes: a frame of at most FRAME_BYTES_MAX comes in; a result's text has at most --max-output-chars.
A reading call whose result is larger fails, names the narrower call that fits in `data.try`, and
does nothing else. A changing call never fails for its size: lists of ids are cut short and counted.
Source: https://modelcontextprotocol.io/specification, https://www.jsonrpc.org/specification.
"""

from __future__ import annotations

import json
import math
import os
import sys

import timeline
from timeline import TIMELINE, Argument, Database, InvalidArgument, Operation, TimelineError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, BinaryIO, TypeVar

    Json = dict[str, Any]
    T = TypeVar("T")

FRAME_BYTES_MAX = 8 << 20
ENDS_BYTES = 256  # of a longer frame, kept from either end to find its id in
DEPTH_MAX = 64  # nesting of a call's arguments
OUTPUT_CHARS = 40_000  # about 10,000 tokens, above which clients warn or cut
OUTPUT_CHARS_MIN = 10_000  # below, some single results would not fit
TEXT_CHARS_MAX = 20_000  # a longer text is shown by its two ends
TEXT_HEAD_CHARS, TEXT_TAIL_CHARS = 15_000, 2_000
IDS_MAX = 200  # entries of a list of ids or names
IDS_CHARS_MAX = 4_000  # and their JSON
ROWS_DEFAULT = 50  # rows of a list where no limit is given
ROWS_MAX = 100_000  # more would not fit whatever the limit of characters
MESSAGE_CHARS = 50  # the shortest message as JSON has more
MORE_CHARS = 500  # the mark behind a page: a name of 200 characters, escaped
LOCK_WAIT_S = 4.0
REGEX_S = 5.0  # how long a search for a regular expression may take

HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
BATCH_REVISIONS = HANDSHAKE_REVISIONS[:2]
ENVELOPE_REVISION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"

NOT_JSON = -32700
NO_REQUEST = -32600
NO_METHOD = -32601
WRONG_PARAMS = -32602
DEFECT = -32603
WRONG_VERSION = -32022
TOOL_FAILED = -32000  # only with --errors jsonrpc

INSTRUCTIONS = (
    "Timeline keeps conversations as a tree: every message stays readable, any message can be "
    "forked from, summaries stand beside the originals. Begin with timeline_list to find the "
    "conversation, then timeline_context with its timeline_id; timeline_create only where none "
    "fits. "
    "Record decisions, the user's own words and conclusions with timeline_append. Fork at the last "
    "message both lines share before a risky step or a second approach, then timeline_switch. When "
    "a phase is finished, timeline_summarize its interval. To rebuild a context use "
    "timeline_context_budget: its answer never costs more than max_tokens; where a placeholder "
    "stands for messages left out, read them with timeline_context at the placeholder's `to`. Pin "
    "goals and constraints. A branch that is decided and summarized goes to the archive. "
    "The current branch belongs to the database, not to this connection: other programs may move "
    "it, so name a branch or pass expect_head where that matters. Every changing tool takes "
    "idempotency_key: send the same key when you repeat a call that may have gone through. Ids "
    "such as n12 and tl0 come from answers; never make them up. Errors say what to do next."
)


# ---- tools --------------------------------------------------------------------------------------


TOOLS: dict[str, Operation] = {
    operation.tool: operation for operation in timeline.OPERATIONS.values() if operation.tool
}
GROUPS = tuple(dict.fromkeys(operation.group for operation in TOOLS.values()))
DEFAULT_GROUPS = ("core", "more")
DESTRUCTIVE = "timeline_drop_branch"


def chosen_tools(wanted: str | None) -> list[str]:
    """The names of the tools to offer, in the order of the table.

    `wanted`: names of tools and groups, separated by commas; with a + at any of them they are added
    to the default.

    Raises:
        InvalidArgument: a name that is neither.
    """
    items = [item.strip() for item in (wanted or "+core").split(",") if item.strip()]
    names = {item.lstrip("+") for item in items}
    for name in sorted(names - set(TOOLS) - set(GROUPS)):
        raise InvalidArgument(
            f"--tools: {quoted(name)} is no tool and no group; groups are {', '.join(GROUPS)}; "
            f"tools are {', '.join(TOOLS)}"
        )
    if not items or any(item.startswith("+") for item in items):
        names |= set(DEFAULT_GROUPS)
    return [name for name, each in TOOLS.items() if name in names or each.group in names]


_STRING: Json = {"type": "string"}
_SCHEMAS: dict[str, Json] = {
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "intent": {
        "type": "object",
        "properties": {"tag": _STRING, "note": _STRING},
        "required": ["tag"],
    },
    "nodes": {"type": "array", "items": _STRING},
    "seq": {"type": "integer"},
    "tokens": {"type": "integer"},
}


# Lists of tools lie in every context, so what the instructions or the name say is not said again.
_PLAIN_KINDS = ("intent", "key", "timeline")
PLAIN_HELP_CHARS = 26  # "the branch", "at most this many"


def needs_timeline(operation: Operation) -> bool:
    """Whether a call must always name its timeline: nothing else in it can tell which is meant."""
    argument = operation.by_name.get("timeline_id")
    return argument is TIMELINE and not any(
        each.kind == "node" and each.required for each in operation.arguments
    )


def shown_arguments(operation: Operation) -> list[Argument]:
    """The arguments that a tool lists. It takes the others too: a key, and the timeline of a
    node."""
    hidden = [] if operation.key_shown else ["idempotency_key"]
    if "node" in operation.required or "from" in operation.required:
        hidden.append("timeline_id")
    if operation.name == "fork":  # whose node may be n0, which each timeline has
        hidden.remove("timeline_id")
    return [argument for argument in operation.arguments if argument.name not in hidden]


def list_entry(operation: Operation, revision: str) -> Json:
    """A tool as `tools/list` shows it, in clients' own narrow dialect of JSON Schema."""
    properties: Json = {}
    for argument in shown_arguments(operation):
        schema = dict(_SCHEMAS.get(argument.kind, _STRING))
        if argument.kind not in _PLAIN_KINDS and len(argument.help) > PLAIN_HELP_CHARS:
            schema["description"] = argument.help
        if argument.choices:
            schema["enum"] = list(argument.choices)
        default = ROWS_DEFAULT if argument.name == "limit" else argument.default
        if default is not None:
            schema["default"] = default
        properties[argument.name] = schema
    required = list(operation.required)
    if needs_timeline(operation) and not optional_node(operation):
        required.append("timeline_id")
    if operation.name == "sync":
        required.append("project")
    schema = {"type": "object", "properties": properties}
    if len(properties) == len(operation.arguments):
        schema["additionalProperties"] = False  # else a client could not send what is not listed
    if required:
        schema["required"] = required
    entry = {"name": operation.tool, "description": operation.help, "inputSchema": schema}
    if revision != HANDSHAKE_REVISIONS[0]:
        entry["annotations"] = {
            "readOnlyHint": not operation.changes,
            "destructiveHint": operation.tool == DESTRUCTIVE,
            "idempotentHint": operation.repeatable,
            "openWorldHint": False,
        }
    return entry


def optional_node(operation: Operation) -> bool:
    """Whether a node may be named that tells the timeline."""
    return "node" in operation.by_name and "node" not in operation.required


def in_words_of_tools(text: str) -> str:
    """`text` with the names of tools in place of operations in backquotes."""
    parts = text.split("`")
    for place in range(1, len(parts) - 1, 2):
        operation = timeline.OPERATIONS.get(parts[place])
        if operation is not None and operation.tool is not None:
            parts[place] = operation.tool
    return "`".join(parts)


# ---- arguments ----------------------------------------------------------------------------------


def unwrapped(argument: Argument, value: object) -> object:
    """`value`, or what it says as JSON where a client put JSON into a string."""
    if type(value) is not str or argument.kind not in _SCHEMAS:
        return value
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        return value
    wanted = {"array": list, "boolean": bool, "integer": int, "object": dict}
    return inner if type(inner) is wanted[_SCHEMAS[argument.kind]["type"]] else value


def depth(value: object) -> int:
    """How deep lists and objects are nested in `value`."""
    level, found = [value], 0
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = inner
        found += bool(level)
    return found


def call_arguments(operation: Operation, params: Mapping[str, Any]) -> Json:
    """The arguments of a call as the engine takes them.

    Raises:
        InvalidArgument: two different keys, too deep, or no timeline is named.
    """
    given: Json = dict(params.get("arguments") or {})
    if depth(given) > DEPTH_MAX:
        raise InvalidArgument(f"the arguments are nested deeper than {DEPTH_MAX} levels")
    beside = params.get("idempotency_key")
    if beside is not None:
        if given.get("idempotency_key", beside) != beside:
            raise InvalidArgument(
                "idempotency_key differs in params and in arguments: send one, or the same in both"
            )
        given["idempotency_key"] = beside
    for name, value in given.items():
        argument = operation.by_name.get(name)
        if argument is not None:
            given[name] = unwrapped(argument, value)
    if operation.name == "sync" and not given.get("project"):
        raise InvalidArgument(
            f"{operation.tool} needs project, the folder you work in: the talks of other projects "
            "are not yours to read"
        )
    if given.get("timeline_id") is None and operation.by_name.get("timeline_id") is TIMELINE:
        named = [given.get(name) for name in ("node", "before", "from")]
        if "n0" in named:
            raise InvalidArgument(
                f"{operation.tool} needs timeline_id here: each timeline has its own n0"
            )
        if needs_timeline(operation) and not any(named):
            raise InvalidArgument(
                f"{operation.tool} needs timeline_id"
                + (" or node" if optional_node(operation) else "")
                + ": timeline_list shows the timelines"
            )
    return given


# ---- results ------------------------------------------------------------------------------------


class TooLarge(Exception):
    """A result above the limit: its `chars`; the same call with `narrower` (if any) fits."""

    def __init__(self, chars: int, narrower: Json | None) -> None:
        self.chars = chars
        self.narrower = narrower


class Shaper:
    """Makes results fit: cuts what is long, says how much it was, finds the narrower call."""

    def __init__(self, database: Database, chars_max: int) -> None:
        self.database = database
        self.chars_max = chars_max
        self.warning: str | None = None  # what the last result lacks

    def run(self, operation: Operation, given: Json) -> Any:
        """The result of a call, in shape.

        Raises:
            TooLarge, TimelineError
        """
        self.warning = None
        if operation.name == "list" and not os.path.exists(self.database.path):
            # Agents begin with this call: that nothing is there yet is an answer.
            timeline.check_arguments(operation, given)
            self.warning = str(timeline.missing_database(self.database.path))
            return []
        value = self._run(operation, given)
        if self.database.damage is not None:  # which stderr says to people only
            self.warning = f"what lies in the damage is missing here: {self.database.damage}"
        return value

    def _run(self, operation: Operation, given: Json) -> Any:
        if operation.name == "budget":
            return self._budget(given)
        if operation.name == "context":
            return self._context(given)
        if operation.name == "sync":
            return self._sync(operation, given)
        if "after" in operation.by_name:
            return self._rows(operation, given)
        value = self.database.run(operation.name, given)
        if operation.name == "node":
            return self._node(value, given)
        return self._cut_ids(value, "count") if operation.changes else value

    def fits(self, value: object) -> bool:
        return len(timeline.dumps(value)) <= self.chars_max

    def _fitting(self, value: T, narrower: Callable[[], Json | None]) -> T:
        size = len(timeline.dumps(value))
        if size > self.chars_max:
            raise TooLarge(size, narrower())
        return value

    def _context(self, given: Json) -> Any:
        if given.get("format") is not None:
            return self._request(given)

        def read(given: Json) -> list[Json]:
            return [self._cut_text(each) for each in self.database.run("context", given)]

        def last_that_fits(messages: list[Json]) -> Json:
            return {"last": _count_that_fits(reversed(messages), self.chars_max)}

        try:
            messages = read(given)
        except timeline.ResultTooLong as error:
            # More cannot fit, since each message takes some characters.
            some = read({**given, "last": self.chars_max // MESSAGE_CHARS})
            error.data["try"] = last_that_fits(some)
            raise
        return self._fitting(messages, lambda: last_that_fits(messages))

    def _request(self, given: Json) -> Json:
        """A context in the shape of an API, whose texts are never cut."""

        def shaped(given: Json) -> Json:
            return self._as_request(self._run_for_request("context", given), given)

        def narrower() -> Json | None:
            fits, high = 0, self.chars_max // MESSAGE_CHARS
            while fits < high:
                middle = (fits + high + 1) // 2
                if self.fits(shaped({**given, "last": middle})):
                    fits = middle
                else:
                    high = middle - 1
            return {"last": fits} if fits else None

        try:
            value = shaped(given)
        except timeline.ResultTooLong as error:
            narrowed = narrower()
            if narrowed is not None:
                error.data["try"] = narrowed
            raise
        return self._fitting(value, narrower)

    def _run_for_request(self, name: str, given: Json) -> Any:
        """What the engine answers, which knows nothing of the shape that is wanted."""
        timeline.check_arguments(timeline.OPERATIONS[name], given)
        return self.database.run(name, {**given, "format": None})

    def _as_request(self, messages: list[Json], given: Json) -> Json:
        import timeline_export

        return timeline_export.as_request(self.database, messages, given["format"])

    def _cut_text(self, message: Json) -> Json:
        """A message whose long text is shown by its two ends, at most half of the limit as JSON."""
        text = message["text"]
        room = self.chars_max // 2
        if len(text) <= TEXT_CHARS_MAX and len(timeline.dumps(text)) <= room:
            return message
        head, tail = TEXT_HEAD_CHARS, TEXT_TAIL_CHARS
        if len(text) <= TEXT_CHARS_MAX:  # short, but not as JSON
            head, tail = len(text) // 2, len(text) // 8
        while True:
            shown = text[:head] + text[len(text) - tail :]
            size = len(timeline.dumps(shown))
            if size <= room:
                return {**message, "text": shown, "cut": {"chars": len(text)}}
            head, tail = head * room // size, tail * room // size

    def _cut_ids(self, value: Any, count: str, room: int = IDS_CHARS_MAX) -> Any:
        """An object whose long lists of ids or names are cut short and counted under `count`."""
        if not isinstance(value, dict):
            return value
        shown = dict(value)
        for name, ids in value.items():
            if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
                continue
            kept = ids[:IDS_MAX]
            while len(timeline.dumps(kept)) > room:
                kept = kept[: len(kept) * 3 // 4]
            if len(kept) < len(ids):
                shown[name] = kept
                shown[count.format(name)] = len(ids)
        return shown

    def _node(self, value: Json, given: Json) -> Json:
        asked = "cut" in value  # for a part of the text
        room = self.chars_max // 16  # for each of its lists
        shown = self._cut_ids(value if asked else self._cut_text(value), "{}_count", room)
        if "summary" in shown:
            shown["summary"] = self._cut_ids(shown["summary"], "{}_count", room)
        note = shown.get("intent", {}).get("note", "")
        if (count := _chars_that_fit(note, self.chars_max // 4)) < len(note):
            shown["intent"] = {**shown["intent"], "note": note[:count], "note_chars": len(note)}

        def narrower() -> Json | None:
            slim = {"blocks": False} if "blocks" in shown else {}
            if slim and self.fits({**shown, "blocks": None}):
                return slim
            text = str(value["text"])
            cut = {"chars": timeline.TEXT_BYTES_MAX, "offset": timeline.TEXT_BYTES_MAX}
            bare = {**shown, "blocks": None, "text": "", "cut": cut}
            spare = self.chars_max - len(timeline.dumps(bare))
            return {**slim, "chars": _chars_that_fit(text, spare)} if spare > 0 else None

        return self._fitting(shown, narrower)

    def _rows(self, operation: Operation, given: Json) -> list[Json]:
        """A page of rows, and behind it a mark if there are more."""
        key = {"branches": "name", "list": "timeline_id"}.get(operation.name, "node")
        if given.get("limit") is None:
            given = {**given, "limit": ROWS_DEFAULT}
        limit = min(timeline.check_arguments(operation, given)["limit"], ROWS_MAX)
        # A search is costly; of the others all rows are asked for, since only the whole list shows
        # where a page may end (see `page`).
        enough = limit + 1 if operation.name == "search" else None
        run = self._search_apart if given.get("regex") is True else self.database.run
        found = run(operation.name, {**given, "limit": enough})
        rows = [self._cut_ids(row, "{}_count") for row in found]
        shown = timeline.page(rows, key, None, limit)
        if len(shown) < len(rows) and shown:
            shown = [*shown, {"more": True, "after": shown[-1][key]}]
        room = self.chars_max - MORE_CHARS

        def narrower() -> Json:
            count = _count_that_fits(iter(rows), room)
            page = timeline.page(rows, key, None, count)  # longer where ended branches share a name
            fits = len(timeline.dumps(page)) <= room
            return {"limit": count} if fits else {"all": False, "limit": self.chars_max // 1_200}

        return self._fitting(shown, narrower)

    def _sync(self, operation: Operation, given: Json) -> Json:
        """What is new in the transcripts of a project; of long answers the first rows, counted."""
        import time

        import timeline_import

        checked = timeline.check_arguments(operation, given)
        places = timeline_import.client_places(os.environ, os.path.expanduser("~"))
        if checked["client"] != "all":
            places = {checked["client"]: places[checked["client"]]}
        days = checked["since"]
        result: Json = self.database.again_if_unfit(
            lambda: timeline_import.sync(
                self.database,
                places,
                project=checked["project"],
                changed_after=0 if days is None else time.time() - 86_400 * days,
                key=checked["idempotency_key"],
            )
        )
        shown = dict(result)
        for name in ("timelines", "unrecognized"):
            rows = result[name]
            count = len(rows)
            while count and len(timeline.dumps(rows[:count])) > self.chars_max // 3:
                count //= 2
            if count < len(rows):
                shown[name] = rows[:count]
                shown[f"{name}_count"] = len(rows)
        return shown

    def _search_apart(self, name: str, given: Json) -> Any:
        """A search for a regular expression, in a process of its own: some patterns take for ever,
        and nothing else can stop them.

        Raises:
            TimelineError: what the search raises; Refused: it took longer than REGEX_S.
        """
        import subprocess

        self.database.refresh()  # what is known of damage is told by this process
        here = os.path.dirname(os.path.abspath(__file__))
        program = f"import sys; sys.path[:0] = [{here!r}]; import timeline_mcp as server"
        command = [sys.executable, "-c", f"{program}; server.answer_search()"]
        request = json.dumps([self.database.path, self.database.store.lock.wait_s, given])
        try:
            done = subprocess.run(
                command,
                input=request.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=REGEX_S,
                check=True,
            )
        except subprocess.TimeoutExpired:
            raise timeline.Refused(
                f"the search took longer than {REGEX_S:g} s and was stopped: a repeat within a "
                "repeat, as in (a+)+, can take for ever; write the pattern otherwise, or search "
                "for a plain text",
                seconds=REGEX_S,
            ) from None
        kind, value, data = json.loads(done.stdout)
        if kind:
            raise getattr(timeline, kind)(value, **data)
        return value

    def _budget(self, given: Json) -> Json:
        """A budget that is looked at before it writes its placeholders."""
        only_reads = given.get("dry_run") is True
        if only_reads or not self.database.is_repeated("budget", given):
            # A dry run refuses a key; this one is not what the key is for.
            asked = given if only_reads else {**_without_key(given), "dry_run": True}
            try:
                dry = self._shaped_budget(asked)
            except timeline.ResultTooLong as error:
                narrower = self._budget_that_fits(given, error)
                if narrower is not None:
                    error.data["try"] = narrower
                raise
            self._fitting(dry, lambda: self._narrower_budget(given, dry))
            if only_reads:
                return dry
        return self._shaped_budget(given)

    def _shaped_budget(self, given: Json) -> Json:
        value = self._run_for_request("budget", given)
        if given.get("format") is not None:
            value = {**value, **self._as_request(value["messages"], given)}
        else:
            value = {**value, "messages": [self._cut_text(each) for each in value["messages"]]}
        shown: Json = self._cut_ids(value, "count")
        return shown

    def _budget_that_fits(self, given: Json, error: timeline.ResultTooLong) -> Json | None:
        """A smaller `max_tokens` for an answer of too many messages; None if none fits."""
        asked = given["max_tokens"] if type(given["max_tokens"]) is int else timeline.TOKENS_MAX
        dry = {**_without_key(given), "explain": False, "dry_run": True}
        while asked:
            asked //= 4
            try:
                large = self._shaped_budget({**dry, "max_tokens": asked})
            except timeline.ResultTooLong:
                continue
            except timeline.BudgetInfeasible as infeasible:
                least = int(str(infeasible.data["required_tokens"]))
                try:
                    large = self._shaped_budget({**dry, "max_tokens": least})
                except timeline.ResultTooLong:
                    return None
                asked = least
            slim = {"explain": False} if given.get("explain") else {}
            if self.fits(large):
                return {**slim, "max_tokens": asked}
            narrower = self._narrower_budget({**dry, "max_tokens": asked}, large)
            return None if narrower is None else {**slim, **narrower}
        return None

    def _narrower_budget(self, given: Json, large: Json) -> Json | None:
        """No explanation, or a smaller `max_tokens`. Answers grow with it, but not evenly."""
        if "explain" in large:
            short = {name: value for name, value in large.items() if name != "explain"}
            given = {**given, "explain": False}
            narrower = {} if self.fits(short) else self._narrower_budget(given, short)
            return None if narrower is None else {"explain": False, **narrower}
        size = len(timeline.dumps(large))
        asked = large["total_tokens"]
        while asked:
            asked = asked * self.chars_max * 9 // (size * 10)
            dry = {**_without_key(given), "dry_run": True}
            try:
                answer = self._shaped_budget({**dry, "max_tokens": asked})
            except timeline.BudgetInfeasible as error:
                asked = int(str(error.data["required_tokens"]))
                answer = self._shaped_budget({**dry, "max_tokens": asked})
                return {"max_tokens": asked} if self.fits(answer) else None
            if self.fits(answer):
                return {"max_tokens": asked}
            size = len(timeline.dumps(answer))
        return None


def answer_search() -> None:
    """The other end of `Shaper._search_apart`: a request on stdin, [class of the error or "", the
    result or the error's text, data] on stdout."""
    path, wait_s, given = json.load(sys.stdin)
    try:
        answer = ["", Database(path, wait_s=wait_s).run("search", given), {}]
    except TimelineError as error:
        answer = [type(error).__name__, str(error), error.data]
    print(json.dumps(answer))  # noqa: T201 - no frame: the parent reads it


def _without_key(given: Json) -> Json:
    return {name: value for name, value in given.items() if name != "idempotency_key"}


def _count_that_fits(items: Iterator[Json], room: int) -> int:
    """How many of the first items fit into a JSON array of `room` characters; at least one."""
    room -= 2
    count = 0
    for item in items:
        room -= len(timeline.dumps(item)) + 1
        if room < 0:
            break
        count += 1
    return max(1, count)


def _chars_that_fit(text: str, room: int) -> int:
    """How many of the first characters of `text` take at most `room` as JSON."""
    count = min(len(text), room)
    while count and (size := len(timeline.dumps(text[:count]))) > room:
        count = min(count - 1, count * room // size)
    return count


# ---- messages -----------------------------------------------------------------------------------


class Failure(Exception):
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def is_id(value: object) -> bool:
    return type(value) in (str, int)


def response(request_id: object, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: object, code: int, message: str, data: object = None) -> Json:
    error: Json = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


class Server:
    """Answers messages. Keeps the engine open between calls and nothing of the conversation."""

    def __init__(
        self,
        path: str,
        tools: list[str] | None = None,
        *,
        protocol_errors: bool = False,
        output_chars_max: int = OUTPUT_CHARS,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.tools = chosen_tools(None) if tools is None else tools
        self.protocol_errors = protocol_errors
        self.database = Database(path, via="mcp", wait_s=lock_wait_s, notice=_say)
        self.shaper = Shaper(self.database, output_chars_max)
        self.revision: str | None = None  # of the handshake
        self._info: Json = {}

    def close(self) -> None:
        self.database.close()

    def handle(self, message: object) -> Json | list[Json] | None:
        """The answer to a parsed frame, None where there is none to give."""
        if not isinstance(message, list):
            return self._single(message)
        if self.revision not in BATCH_REVISIONS:
            return failure(None, NO_REQUEST, "no batches here: send one message a line")
        if not message:
            return failure(None, NO_REQUEST, "an empty batch")
        answers = [self._single(each, in_batch=True) for each in message]
        return [answer for answer in answers if answer is not None] or None

    def _single(self, message: object, in_batch: bool = False) -> Json | None:
        if not isinstance(message, dict):
            return failure(None, NO_REQUEST, "a message is a JSON object")
        if "method" not in message and ("result" in message or "error" in message):
            return None  # a response: answering it could start a storm of errors
        request_id = message.get("id")
        good_id = request_id if is_id(request_id) else None
        if message.get("jsonrpc") != "2.0" or type(message.get("method")) is not str:
            return failure(good_id, NO_REQUEST, 'a request has jsonrpc "2.0" and a method')
        if "id" not in message:
            return None  # a notification
        if good_id is None:
            return failure(None, NO_REQUEST, "an id is a string or a whole number")
        params = message.get("params")
        try:
            if params is not None and not isinstance(params, dict):
                raise Failure(WRONG_PARAMS, "params is an object")
            if in_batch and message["method"] == "initialize":
                raise Failure(NO_REQUEST, "initialize may not be part of a batch")
            return response(good_id, self._answer(message["method"], params or {}))
        except Failure as error:
            return failure(good_id, error.code, str(error), error.data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request has its answer
            _say_defect(error)
            return failure(good_id, DEFECT, "internal error, see stderr")

    def _answer(self, method: str, params: Json) -> Json:
        meta = params.get("_meta")
        enveloped = isinstance(meta, dict) and VERSION_KEY in meta
        if method == "initialize":
            return self._initialize(params, enveloped)
        if method == "server/discover" or enveloped:
            return self._modern(method, params, meta)
        return self._legacy(method, params)

    # ---- handshake -------------------------------------------------------------------------

    def _initialize(self, params: Json, enveloped: bool) -> Json:
        asked = params.get("protocolVersion")
        if type(asked) is not str:
            if enveloped:
                raise Failure(NO_METHOD, f"{ENVELOPE_REVISION} has no initialize")
            raise Failure(WRONG_PARAMS, "params.protocolVersion is missing")
        self.revision = asked if asked in HANDSHAKE_REVISIONS else HANDSHAKE_REVISIONS[-1]
        info = self._server_info()
        if self.revision < "2025-06-18":
            info = {name: value for name, value in info.items() if name != "title"}
        return {
            "protocolVersion": self.revision,
            "capabilities": {"tools": {}},
            "serverInfo": info,
            "instructions": INSTRUCTIONS,
        }

    def _legacy(self, method: str, params: Json) -> Json:
        empty: Json | None = {
            "ping": {},
            # Some hosts ask for these without being offered them, and give up on an error.
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
            "prompts/list": {"prompts": []},
        }.get(method)
        if empty is not None:
            return empty
        if method not in ("tools/list", "tools/call"):
            raise Failure(NO_METHOD, f"unknown method {quoted(method)}")
        if self.revision is None:
            raise Failure(
                WRONG_PARAMS, f"send initialize first, or put {VERSION_KEY} into params._meta"
            )
        if method == "tools/list":
            return self._list(params, self.revision)
        return self._call(params, self.revision)

    # ---- envelope --------------------------------------------------------------------------

    def _modern(self, method: str, params: Json, meta: object) -> Json:
        if not isinstance(meta, dict):
            raise Failure(WRONG_PARAMS, f"params._meta is missing: it holds {VERSION_KEY}")
        version = meta.get(VERSION_KEY)
        if type(version) is not str:
            raise Failure(WRONG_PARAMS, f"params._meta needs {VERSION_KEY}, a string")
        if not isinstance(meta.get(CAPABILITIES_KEY), dict):
            raise Failure(WRONG_PARAMS, f"params._meta needs {CAPABILITIES_KEY}, an object")
        if version != ENVELOPE_REVISION:
            raise Failure(
                WRONG_VERSION,
                f"protocol version {quoted(version)} is not served in an envelope",
                {"supported": [ENVELOPE_REVISION], "requested": quoted(version)[1:-1]},
            )
        if method == "server/discover":
            found = {
                "supportedVersions": [ENVELOPE_REVISION],
                "capabilities": {"tools": {}},
                "instructions": INSTRUCTIONS,
                **_CACHE,
            }
        elif method == "tools/list":
            found = {**self._list(params, ENVELOPE_REVISION), **_CACHE}
        elif method == "tools/call":
            found = self._call(params, ENVELOPE_REVISION)
        else:
            raise Failure(NO_METHOD, f"unknown method {quoted(method)}")
        return {"resultType": "complete", **found, "_meta": {SERVER_KEY: self._server_info()}}

    def _server_info(self) -> Json:
        if not self._info:
            self._info = {"name": "timeline", "version": timeline.version(), "title": "Timeline"}
        return self._info

    # ---- tools -----------------------------------------------------------------------------

    def _list(self, params: Json, revision: str) -> Json:
        if params.get("cursor") is not None:
            raise Failure(WRONG_PARAMS, "unknown cursor: the list has one page")
        return {"tools": [list_entry(TOOLS[name], revision) for name in self.tools]}

    def _call(self, params: Json, revision: str) -> Json:
        name, given = params.get("name"), params.get("arguments")
        if type(name) is not str:
            raise Failure(WRONG_PARAMS, "params.name is missing: the tool's name, a string")
        if given is not None and not isinstance(given, dict):
            raise Failure(WRONG_PARAMS, "params.arguments is an object")
        operation = TOOLS.get(name)
        if operation is None:
            raise Failure(
                WRONG_PARAMS, f"unknown tool {quoted(name)}: known are {', '.join(self.tools)}"
            )
        if name not in self.tools:
            raise Failure(WRONG_PARAMS, f"{name} is off: start with --tools +{operation.group}")
        try:
            value = self.shaper.run(operation, call_arguments(operation, params))
            text = timeline.dumps(value)
        except TooLarge as error:
            data: Json = {"chars": error.chars, "max": self.shaper.chars_max}
            if error.narrower is not None:
                data["try"] = error.narrower
            message = f"result of {error.chars:,} characters is above {self.shaper.chars_max:,}"
            if error.narrower is None:
                message += ": unpin or summarize, or start the server with --max-output-chars"
            return self._failed(message, data, False)
        except TimelineError as error:
            return self._failed(str(error), error.data, isinstance(error, InvalidArgument))
        except OSError as error:
            message = f"the system failed: {timeline.system_words(error)}"
            return self._failed(message, {"errno": error.errno}, False)
        except Exception as error:  # noqa: BLE001 - the last line of defence
            _say_defect(error)
            return self._failed(f"internal error in {name}, see stderr", {}, False)
        result: Json = {"content": [{"type": "text", "text": text}]}
        if revision >= "2025-06-18":
            result["structuredContent"] = value if isinstance(value, dict) else {"result": value}
        if self.shaper.warning is not None:
            warning = in_words_of_tools(f"warning: {self.shaper.warning}")
            result["content"].append({"type": "text", "text": warning})
            if "structuredContent" in result:
                result["structuredContent"] = {**result["structuredContent"], "warning": warning}
        return result

    def _failed(self, message: str, data: Mapping[str, Any], wrong_argument: bool) -> Json:
        message = in_words_of_tools(message)
        data = {
            name: in_words_of_tools(value) if name == "next" else value
            for name, value in data.items()
        }
        if self.protocol_errors:
            code = WRONG_PARAMS if wrong_argument else TOOL_FAILED
            raise Failure(code, message, data or None)
        shown: Json = {"error": message}
        if data:
            shown["data"] = data
        return {"content": [{"type": "text", "text": timeline.dumps(shown)}], "isError": True}


_CACHE: Json = {"ttlMs": 3_600_000, "cacheScope": "private"}


# ---- frames -------------------------------------------------------------------------------------


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large")
    return value


def parse_frame(line: bytes) -> object:
    """The JSON value of a frame.

    Raises:
        Failure: it is none, or its id could not be sent back as UTF-8.
    """
    try:
        message = json.loads(
            line.decode(), parse_constant=_no_constant, parse_float=_finite, strict=True
        )
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and type(each.get("id")) is str:
                each["id"].encode()
        return message
    except (ValueError, RecursionError) as error:
        kind = "too deep" if isinstance(error, RecursionError) else str(error)[:200]
        raise Failure(NOT_JSON, f"a frame is one line of JSON: {kind}") from None


def frames(source: BinaryIO) -> Iterator[tuple[bytes, bytes | None]]:
    """(line, None) for each line of `source` that is not blank; for one that is too long its first
    bytes and its last."""
    while line := source.readline(FRAME_BYTES_MAX + 1):
        if len(line) <= FRAME_BYTES_MAX or line.endswith(b"\n"):
            line = line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
            if line:
                yield line, None
            continue
        head, tail = line[:ENDS_BYTES], line[-ENDS_BYTES:]
        while not tail.endswith(b"\n"):
            more = source.readline(1 << 20)
            if not more:
                break
            tail = (tail + more)[-ENDS_BYTES:]
        yield head, tail


def id_in(head: bytes, tail: bytes) -> object:
    """The id of a long frame, if its first or last bytes show one at the first level."""
    import re

    pattern = rb'[{,]\s*"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.){0,100}")\s*(?=[,}])'
    # Quotes within a string are escaped, so what is found is no part of one.
    strings = rb'"(?:[^"\\]|\\.)*"'
    for part, from_start in ((head, True), (tail, False)):
        for found in re.finditer(pattern, part):
            outside = part[: found.start() + 1] if from_start else part[found.end() :]
            bare = re.sub(strings, b"", outside)
            opened = sum(map(bare.count, (b"{", b"["))) - sum(map(bare.count, (b"}", b"]")))
            if abs(opened) == 1:
                try:
                    value = json.loads(found[1])
                    str(value).encode()  # half of a surrogate pair could not be sent back
                    return value
                except ValueError:
                    return None
    return None


def answer_to(server: Server, line: bytes, tail: bytes | None) -> bytes:
    """The frame to send back, b"" for none."""
    answer: Json | list[Json] | None
    if tail is not None:
        answer = failure(
            id_in(line, tail),
            NO_REQUEST,
            f"a frame has at most {FRAME_BYTES_MAX} bytes: send long texts in parts",
        )
    else:
        try:
            answer = server.handle(parse_frame(line))
        except Failure as error:
            answer = failure(None, error.code, str(error))
    return b"" if answer is None else encoded(answer)


def encoded(answer: Json | list[Json]) -> bytes:
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def serve(server: Server, source: BinaryIO, write: Callable[[bytes], None]) -> None:
    """Answer what comes from `source` until it ends, one message after the other."""
    for line, tail in frames(source):
        try:
            answer = answer_to(server, line, tail)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are still served
            _say_defect(error)
            answer = encoded(failure(None, DEFECT, "internal error, see stderr"))
        if answer:
            write(answer)


def _say(message: str) -> None:
    """A line on stderr, which clients show as trouble."""
    try:
        sys.stderr.write(f"tl-mcp: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # nobody listens


def _say_defect(error: Exception) -> None:
    """Called where `error` is being handled."""
    _say(f"internal error, please report it: {type(error).__name__}: {quoted(error)}")
    if os.environ.get("TIMELINE_DEBUG"):
        import traceback

        _say(traceback.format_exc())


# ---- the program --------------------------------------------------------------------------------


def build_parser() -> Any:
    import argparse

    parser = argparse.ArgumentParser(
        prog="tl-mcp",
        description="Serve Timeline's tools to an MCP client over stdin and stdout.",
        epilog="`tl mcp-config` prints the entry for a client's configuration.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--db", metavar="PATH", help="database file (default: TIMELINE_DB, else ~/.timeline.json)"
    )
    parser.add_argument(
        "--tools",
        metavar="LIST",
        help=f"groups ({', '.join(GROUPS)}) and tools to offer, separated by commas; with a + they "
        f"are added to the default ({','.join(DEFAULT_GROUPS)})",
    )
    parser.add_argument(
        "--errors",
        choices=("tool", "jsonrpc"),
        default="tool",
        help="failures of tools as results that the model sees, or as JSON-RPC errors",
    )
    parser.add_argument(
        "--max-output-chars",
        type=int,
        default=OUTPUT_CHARS,
        metavar="N",
        help=f"longest text of a result (default: {OUTPUT_CHARS}, least: {OUTPUT_CHARS_MIN})",
    )
    parser.add_argument(
        "--lock-wait",
        type=float,
        default=LOCK_WAIT_S,
        metavar="SECONDS",
        help=f"how long a call waits for another process (default: {LOCK_WAIT_S:g})",
    )
    parser.add_argument("--version", action="version", version=f"tl-mcp {timeline.version()}")
    return parser


def make_server(arguments: list[str]) -> Server:
    """The server that the command line asks for. Exits with 2 on wrong usage."""
    if not arguments:  # the usual case, without the cost of argparse
        path, _ = timeline.choose_database(None, os.environ, os.path.expanduser("~"))
        return Server(path)
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.max_output_chars < OUTPUT_CHARS_MIN:
        parser.error(f"--max-output-chars {options.max_output_chars}: least is {OUTPUT_CHARS_MIN}")
    if not 0 <= options.lock_wait <= 3600:
        parser.error(f"--lock-wait {options.lock_wait:g}: 0 to 3600 seconds")
    try:
        path, _ = timeline.choose_database(options.db, os.environ, os.path.expanduser("~"))
        return Server(
            path,
            chosen_tools(options.tools),
            protocol_errors=options.errors == "jsonrpc",
            output_chars_max=options.max_output_chars,
            lock_wait_s=options.lock_wait,
        )
    except InvalidArgument as error:
        parser.error(str(error))
        raise


def main(arguments: list[str] | None = None) -> int:
    """Serve stdin and stdout until stdin ends; the exit code."""
    try:
        server = make_server(sys.argv[1:] if arguments is None else arguments)
    except TimelineError as error:
        _say(str(error))
        return error.exit_code
    # Whatever prints from now on, here or in a library, must not get between the frames.
    try:
        sink = os.dup(1)
    except OSError:
        _say("stdout is closed: there is nobody to answer")
        return 5
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(sink, data) :]

    try:
        if sys.stdin is not None:  # closed by whoever started us
            serve(server, sys.stdin.buffer, write)
        return 0
    except BrokenPipeError:
        return 0  # the client has gone
    except OSError as error:
        _say(f"cannot answer: {timeline.system_words(error)}")
        return 5
    except KeyboardInterrupt:
        return 130
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
