"""The terminal program `tl`: arguments in, one JSON value out.

Parser and help are made from `timeline.OPERATIONS`. Usual arguments are read by a small loop over
that table, since `argparse` takes longer to load than most commands take to run; it is used for
`--help` and for whatever the loop does not know, and so makes the error messages too.

stdout holds one JSON value (or a picture), stderr one JSON object for a failure:
{"error": "...", "data": {...}}. Exit codes: 0 done, 1 the state does not allow it, 2 wrong usage,
3 the file is damaged, foreign or newer, 4 another process holds the lock, 5 the system failed,
70 a defect of this program (TIMELINE_DEBUG=1 shows where), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys

import timeline
from timeline import Argument, Database, InvalidArgument, Operation, TimelineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    Json = dict[str, Any]

EXIT_SYSTEM = 5
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130

_PROGRAM = "tl"
_GLOBAL = {"db": "db", "timeline": "timeline_id", "idempotency-key": "idempotency_key"}


# ---- streams ------------------------------------------------------------------------------------


def write_out(text: str) -> None:
    """Write text to stdout as UTF-8, whatever the console's code page is."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    _write(sys.stdout, text)


def write_error(text: str) -> None:
    """Write text to stderr as UTF-8. Lone surrogates, as in names of files, become escapes."""
    if sys.stderr is not None:  # closed by whoever started us
        _write(sys.stderr, text)


def _write(stream: Any, text: str) -> None:
    try:
        # A path comes back as the bytes it was, where these are UTF-8.
        data = text.encode("utf-8", "surrogateescape")
        data.decode("utf-8")
    except UnicodeError:
        data = text.encode("utf-8", "backslashreplace")
    raw = getattr(stream, "buffer", None)
    if raw is None:  # replaced by a program that calls `main`
        stream.write(data.decode())
    else:
        raw.write(data)
    stream.flush()


def notice(message: str) -> None:
    """A line for people beside the result: progress, a repaired tail."""
    write_error(f"tl: {message}\n")


def print_json(value: Any) -> None:
    """Print one JSON value; indented if a person looks at it."""
    if sys.stdout is not None and sys.stdout.isatty():
        import json

        write_out(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    else:
        write_out(timeline.dumps(value) + "\n")


def print_failure(message: str, data: Mapping[str, Any]) -> None:
    """Print a failure as one JSON object on stderr."""
    shown: Json = {"error": message}
    if data:
        shown["data"] = dict(data)
    write_error(timeline.dumps(shown) + "\n")


# ---- arguments ----------------------------------------------------------------------------------


def command_name(operation: Operation) -> str:
    """What the command line calls an operation."""
    return operation.name.replace("_", "-")


def decode_arguments(arguments: list[str]) -> list[str]:
    """Arguments as UTF-8 whatever the locale is.

    Raises:
        InvalidArgument: bytes that are no UTF-8; the message names their position.
    """
    decoded = []
    for number, argument in enumerate(arguments, 1):
        if argument.isascii() or sys.platform == "win32":
            decoded.append(argument)
            continue
        raw = os.fsencode(argument)
        try:
            decoded.append(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"argument {number} is no UTF-8: byte 0x{raw[error.start]:02x} at position "
                f"{error.start}",
                argument=number,
                position=error.start,
            ) from None
    return decoded


class Unusual(Exception):
    """The small loop does not know what this is; argparse shall say it."""


class Call:
    """A parsed command line: the operation's `values` by argument name, and the database path."""

    __slots__ = ("db", "operation", "values")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.values: Json = {}
        self.db: str | None = None


def read_arguments(arguments: list[str]) -> Call:
    """The call that `arguments` (behind the program's name) ask for.

    Raises:
        InvalidArgument: wrong usage. SystemExit: help or version was printed.
    """
    try:
        return _read_usual(arguments)
    except Unusual:
        return _read_with_argparse(arguments)


def _read_usual(arguments: list[str]) -> Call:
    before: list[tuple[str, str]] = []
    position = 0
    while position < len(arguments) and arguments[position].startswith("--"):
        name, value, position = _option(arguments, position)
        if name not in _GLOBAL or value is None:
            raise Unusual
        before.append((name, value))
    if position == len(arguments):
        raise Unusual
    operation = timeline.OPERATIONS.get(arguments[position].replace("-", "_"))
    if operation is None or "_" in arguments[position]:
        if arguments[position] == "help" or arguments[position].startswith("-"):
            raise Unusual
        raise _unknown_command(arguments[position])
    call = Call(operation)
    for name, value in before:
        _take(call, name, value, {})
    flags = {
        argument.flag: argument
        for argument in operation.arguments
        if not argument.positional and argument.flag != "-"
    }
    positional = [argument for argument in operation.arguments if argument.positional]
    position += 1
    while position < len(arguments):
        if not arguments[position].startswith("-") and positional:
            if positional[0].kind == "paths":
                path = system_path(arguments[position])
                call.values.setdefault(positional[0].name, []).append(path)
            else:
                call.values[positional.pop(0).name] = arguments[position]
            position += 1
            continue
        if not arguments[position].startswith("-") and not _asks_for_help(arguments):
            raise _stray_word(operation, arguments, position)
        argument = flags.get(arguments[position][2:])
        if (
            argument is not None
            and argument.kind == "flag"
            and arguments[position].startswith("--")
        ):
            call.values[argument.name] = True
            position += 1
            continue
        name, value, position = _option(arguments, position)
        if value is None:
            raise Unusual
        _take(call, name, value, flags)
    if any(
        argument.required and argument.name not in call.values for argument in operation.arguments
    ):
        raise Unusual
    return call


def _unknown_command(word: str) -> InvalidArgument:
    from difflib import get_close_matches

    names = [command_name(operation) for operation in timeline.OPERATIONS.values()]
    near = get_close_matches(word.lower().replace("_", "-"), names, 1)
    meant = f": did you mean {near[0]}?" if near else f": known are {', '.join(names)};"
    return InvalidArgument(
        f"unknown command {timeline.quoted(word)}{meant} see `{_PROGRAM} --help`"
    )


def _asks_for_help(arguments: list[str]) -> bool:
    return "--help" in arguments or "-h" in arguments


_FREE = ("text", "title", "string", "branch", "name", "key")  # kinds that take any word


def _stray_word(operation: Operation, arguments: list[str], position: int) -> InvalidArgument:
    """The error for a word that stands where only options can, with the option that it fits."""
    command, word = command_name(operation), arguments[position]
    options = [each for each in operation.arguments if not each.positional]
    by_flag = {each.flag: each for each in options}
    shown = timeline.quoted(word)
    before = by_flag.get(arguments[position - 2][2:])
    if arguments[position - 2].startswith("--") and before is not None and before.kind in _FREE:
        return InvalidArgument(
            f"{shown} belongs to no option: put quotes around a --{before.flag} of several words; "
            f"see `{_PROGRAM} {command} --help`"
        )
    if any(each.positional for each in operation.arguments):  # and it has its value by now
        return InvalidArgument(
            f"{shown} belongs to no option: put quotes around a text of several words; "
            f"see `{_PROGRAM} {command} --help`"
        )
    given = {each[2:].partition("=")[0] for each in arguments if each.startswith("--")}
    fitting = [each for each in options if each.flag not in given and _fits(each, word)]
    # What has a shape of its own is the surest guess, then what may not be missing.
    fitting.sort(key=lambda each: (each.kind in _FREE, not each.required))
    if not fitting:
        return InvalidArgument(
            f"{shown} belongs to no option of {command}: see `{_PROGRAM} {command} --help`"
        )
    value = word if word.isalnum() or word.replace("-", "").isalnum() else shown
    return InvalidArgument(
        f"{shown} belongs to no option: did you mean --{fitting[0].flag} {value}? "
        f"see `{_PROGRAM} {command} --help`"
    )


def _fits(argument: Argument, word: str) -> bool:
    """Whether `word` can be the value of an option."""
    if argument.kind in ("flag", "intent"):
        return False
    try:
        timeline.check_value(argument, option_value(argument, word))
    except InvalidArgument:
        return False
    return True


def _option(arguments: list[str], position: int) -> tuple[str, str | None, int]:
    """(name, value, next position) of `--name value` or `--name=value`."""
    option = arguments[position]
    if not option.startswith("--") or len(option) == 2:
        raise Unusual
    name, equals, value = option[2:].partition("=")
    if equals:
        return name, "\0-" if value == "-" else value, position + 1
    if position + 1 == len(arguments):
        return name, None, position + 1
    value = arguments[position + 1]
    if value.startswith("-") and value != "-":
        return name, None, position + 1
    return name, value, position + 2


def _take(call: Call, name: str, value: str, flags: Mapping[str, Argument]) -> None:
    """Store one option's value in the call."""
    if name == "db":
        call.db = value
        return
    argument = flags.get(name)
    if argument is None and name in _GLOBAL and _GLOBAL[name] in call.operation.by_name:
        argument = call.operation.by_name[_GLOBAL[name]]
    if argument is not None and argument.kind not in ("flag", "intent"):
        if argument.name in call.values:
            raise Unusual
        call.values[argument.name] = option_value(argument, value)
        return
    if name.endswith("-file") and getattr(flags.get(name[:-5]), "kind", "") == "text":
        argument = flags[name[:-5]]
        if argument.name in call.values:
            raise Unusual
        call.values[argument.name] = text_of_file(value)
        return
    if name in ("intent-tag", "intent-note") and "intent" in flags:
        intent = call.values.setdefault("intent", {})
        if name[7:] in intent:
            raise Unusual
        intent[name[7:]] = value
        return
    raise Unusual


def option_value(argument: Argument, value: str) -> object:
    """What the engine takes for an option's text."""
    if argument.kind == "text":
        if value == "-":
            return text_of_input()
        return "-" if value == "\0-" else value
    value = "-" if value == "\0-" else value
    if argument.kind in ("count", "seq", "tokens"):
        return whole_number(argument, value)
    if argument.kind == "path":
        return system_path(value)
    if argument.kind == "nodes":
        return [part.strip() for part in value.split(",")]
    return value


def system_path(path: str) -> str:
    """A path as the system's own text, whatever the locale is."""
    return path if path.isascii() or sys.platform == "win32" else os.fsdecode(path.encode())


def whole_number(argument: Argument, value: str) -> int:
    """A number in decimal digits."""
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20:
        raise InvalidArgument(
            f"--{argument.flag} must be a whole number, not {timeline.quoted(value)}",
            argument=argument.flag,
        )
    return int(value)


def text_of_input() -> str:
    """All of standard input."""
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed: there is no text to read")
    return decode_text(sys.stdin.buffer.read(timeline.TEXT_BYTES_MAX + 2), "standard input")


def text_of_file(path: str) -> str:
    """The text in a file; `-` is standard input."""
    if path in ("-", "\0-"):
        return text_of_input()
    return decode_text(read_file(path), path)


def read_file(path: str) -> bytes:
    """The bytes of a text file, as far as they matter for the limit."""
    try:
        with open(system_path(path), "rb") as file:
            return file.read(timeline.TEXT_BYTES_MAX + 2)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"cannot read the text from {timeline.quoted(path)}: {error}"
        ) from None


def decode_text(data: bytes, source: str) -> str:
    """Bytes as text: final newline, CR and BOM belong to it.

    Raises:
        InvalidArgument: no UTF-8, with the position; above the limit.
    """
    if len(data) > timeline.TEXT_BYTES_MAX:
        size = f"{timeline.TEXT_BYTES_MAX + 1} bytes or more"
        raise InvalidArgument(
            f"text from {source} is {size}, above the limit of {timeline.TEXT_BYTES_MAX} bytes: "
            "split it",
            max_bytes=timeline.TEXT_BYTES_MAX,
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"text from {source} is no UTF-8: byte 0x{data[error.start]:02x} at position "
            f"{error.start}",
            position=error.start,
        ) from None


# ---- argparse: help and everything unusual ------------------------------------------------------


def _read_with_argparse(arguments: list[str]) -> Call:
    parser = build_parser()
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if not arguments:
        if sys.stderr is not None and sys.stderr.isatty():
            write_error(parser.format_help())
            raise SystemExit(2)
        parser.error("a command is missing")
    # Command names come first for argparse; what stands before them is moved behind.
    known, rest = parser.parse_known_args(_command_first(_literal_dashes(arguments)))
    parsed = vars(known)
    operation = timeline.OPERATIONS[parsed["operation"].replace("-", "_")]
    if rest:  # argparse itself would name the help of the program, not of the command
        raise InvalidArgument(
            f"unrecognized arguments: {' '.join(rest)}; "
            f"see `{_PROGRAM} {command_name(operation)} --help`".replace("\0-", "-")
        )
    call = Call(operation)
    call.db = parsed.get("db")
    for argument in operation.arguments:
        if argument.kind == "intent":
            intent = {part: parsed[f"intent_{part}"] for part in ("tag", "note")}
            if any(value is not None for value in intent.values()):
                call.values["intent"] = {
                    part: value for part, value in intent.items() if value is not None
                }
            continue
        value = parsed.get(argument.name)
        if argument.kind == "text":
            value = _text_value(argument, value, parsed.get(argument.name + "_file"))
        elif argument.kind == "paths":
            value = [system_path(path) for path in value or ()]
        elif isinstance(value, str) and argument.kind != "text":
            value = option_value(argument, value)
        if value is not None and value is not False:
            call.values[argument.name] = value
    return call


def _text_value(argument: Argument, value: str | None, path: str | None) -> object:
    flag = f"--{argument.flag}"
    if value is None and path is None:
        raise InvalidArgument(
            f'the text is missing: {flag} "...", {flag}-file PATH, or {flag} - for standard input'
        )
    if value is not None and path is not None:
        raise InvalidArgument(f"{flag} and {flag}-file were both given: name one of them")
    if path is not None:
        return text_of_file(path)
    return option_value(argument, value or "")


def _literal_dashes(arguments: list[str]) -> list[str]:
    """`--text=-` means a dash, `--text -` standard input: mark the first, which argparse
    forgets."""
    return [
        each[:-1] + "\0-" if each.startswith("--") and each.endswith("=-") else each
        for each in arguments
    ]


def _command_first(arguments: list[str]) -> list[str]:
    position = 0
    while position < len(arguments) and arguments[position].startswith("--"):
        name, equals, _ = arguments[position][2:].partition("=")
        if name not in _GLOBAL:
            return arguments
        position += 1 if equals else 2
    return [*arguments[position : position + 1], *arguments[:position], *arguments[position + 1 :]]


def build_parser() -> argparse.ArgumentParser:
    """The whole parser, from the table of operations."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            if message.endswith("expected one argument"):
                message += " (one that begins with - follows an equals sign: --text=-x)"
            raise InvalidArgument(f"{message}; see `{self.prog} --help`")

        def _print_message(self, message: str, file: Any = None) -> None:
            write_out(message)

    parser = Parser(
        prog=_PROGRAM,
        description="Timeline keeps conversations of people and agents as a tree: fork at any "
        "message, summarize beside the originals, fit a context into a token budget, archive.",
        epilog="Exit codes: 0 done, 1 the state does not allow it, 2 wrong usage, 3 the file is "
        "damaged or foreign, 4 locked, 5 the system failed. `tl COMMAND --help` shows an example.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {timeline.version()}")
    commands = parser.add_subparsers(
        title="commands", dest="operation", metavar="COMMAND", required=True, parser_class=Parser
    )
    for operation in timeline.OPERATIONS.values():
        _add_command(commands, operation, argparse.RawDescriptionHelpFormatter)
    return parser


def _add_command(commands: Any, operation: Operation, formatter: Any) -> None:
    command = commands.add_parser(
        command_name(operation),
        help=_percent(operation.help),
        description=_percent(operation.help),
        epilog=_percent(f"answer:  {operation.result}\nexample: {operation.example}"),
        formatter_class=formatter,
        allow_abbrev=False,
    )
    for argument in operation.arguments:
        if argument.flag != "-":
            _add_argument(command, argument)
    command.add_argument("--db", metavar="PATH", help=_DB_HELP.get(operation.name, _DB_HELP[""]))


_DB_HELP = {
    "": "database file (default: TIMELINE_DB, else ~/.timeline.json)",
    "demo": "a new file for the story's database (default: one in a temporary folder)",
    "mcp_config": "database to name in the entry (default: TIMELINE_DB, else none: the server "
    "then uses ~/.timeline.json)",
    "skill": "without effect: no database is used",
}


def _add_argument(command: Any, argument: Argument) -> None:
    text = _percent(argument.help)
    if argument.default is not None:
        text += f" (default: {argument.default})"
    if argument.positional:
        many = {"nargs": "+"} if argument.kind == "paths" else {}
        name = "|".join(argument.choices) or argument.name.rstrip("s").upper()
        command.add_argument(argument.name, metavar=name, help=text, **many)
    elif argument.kind == "flag":
        command.add_argument(
            f"--{argument.flag}", dest=argument.name, action="store_true", help=text
        )
    elif argument.kind == "intent":
        command.add_argument("--intent-tag", metavar="TAG", help=text)
        command.add_argument(
            "--intent-note", metavar="NOTE", help="a note to the tag; never part of a context"
        )
    elif argument.kind == "text":
        command.add_argument(
            f"--{argument.flag}",
            dest=argument.name,
            metavar="TEXT",
            help=f"{text}; - reads standard input",
        )
        command.add_argument(
            f"--{argument.flag}-file",
            dest=f"{argument.name}_file",
            metavar="PATH",
            help="read it from a file; - is standard input",
        )
    else:
        choices = (
            {"choices": argument.choices}
            if argument.choices
            else {"metavar": argument.kind.upper()}
        )
        command.add_argument(
            f"--{argument.flag}",
            dest=argument.name,
            required=argument.required,
            help=text,
            **choices,
        )


def _percent(text: str) -> str:
    return text.replace("%", "%%")


# ---- the database -------------------------------------------------------------------------------


def database_path(option: str | None) -> tuple[str, str]:
    """(path, where it comes from) of the database to use."""
    path, source = timeline.choose_database(option, os.environ, os.path.expanduser("~"))
    return (system_path(path) if source == "option" else path), source


def run(call: Call) -> None:
    """Carry out a call and print its result."""
    path, source = database_path(call.db)
    database = Database(path, notice=notice)
    try:
        value = answer(call, database, source)
        try:
            _print_answer(call, value)
        except BrokenPipeError:
            raise
        except OSError as error:
            _leave_quietly()  # what waits in the buffer of stdout shall not fail again at the end
            files = "output" in call.values or "repair_to" in call.values
            if not (call.operation.changes or files) or call.values.get("dry_run"):
                raise
            raise timeline.WriteFailed(
                f"{command_name(call.operation)} is done and stored, but its answer could not be "
                f"written to standard output ({error.strerror or error}): do not repeat it, the "
                "answer is here in data",
                errno=error.errno,
                stored=True,
                answer=value,
            ) from None
    finally:
        database.close()
    if call.operation.name == "doctor" and not value.get("ok", True):
        raise SystemExit(1)


class Text:
    """An answer that is no JSON value: a picture, a page of text."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = pieces


def _print_answer(call: Call, value: Any) -> None:
    if isinstance(value, Text):
        for piece in value.pieces:
            write_out(piece)
    elif value is not None:
        print_json(value)


def answer(call: Call, database: Database, source: str) -> Any:
    """The result of a call: a JSON value, or for a picture its lines."""
    own = _COMMANDS.get(call.operation.name)
    try:
        if own is None:
            format = call.values.pop("format", None)
            if format is not None:
                timeline.check_value(call.operation.by_name["format"], format)
            value = database.run(call.operation.name, call.values)
            return value if format is None else _as_request(database, value, format)
        return own(database, timeline.check_arguments(call.operation, call.values), source)
    except TimelineError as error:
        raise _in_words_of_the_command_line(call, error) from None


def _in_words_of_the_command_line(call: Call, error: TimelineError) -> TimelineError:
    """The error with options in place of the names of arguments: the one that it begins with, if it
    is about a value, and those in backquotes."""
    parts = str(error).split("`")
    for place in range(1, len(parts) - 1, 2):
        argument = call.operation.by_name.get(parts[place])
        if argument is not None and argument.flag != "-":
            parts[place] = f"--{argument.flag}"
    message, data = "`".join(parts), error.data
    name, space, rest = message.partition(" ")
    argument = call.operation.by_name.get(name)
    if (
        isinstance(error, InvalidArgument)
        and argument is not None
        and not argument.positional
        and name in call.values
    ):
        message = f"--{argument.flag}{space}{rest}"
        if "argument" in data:
            data = {**data, "argument": argument.flag}
    return type(error)(message, **data)


def _as_request(database: Database, value: Any, format: str) -> Any:
    """A context or a budget as an API takes it."""
    import timeline_export

    if isinstance(value, list):
        return timeline_export.as_request(database, value, format)
    return {**value, **timeline_export.as_request(database, value["messages"], format)}


def _where(database: Database, checked: Json, source: str) -> Json:
    found = database.describe()
    return {"path": found.pop("path"), "source": source, **found}


def _compact(database: Database, checked: Json, source: str) -> Any:
    nodes = checked["purge"]
    if not checked["yes"] and sys.stdin is not None and sys.stdin.isatty():
        names = ", ".join(f"n{node}" for node in nodes)
        write_error(f"Empty the content of {names} in {database.path} for ever? Type yes: ")
        if sys.stdin.readline().strip() != "yes":
            raise timeline.Refused("nothing was purged: not confirmed")
    return database.run("compact", {"purge": [f"n{node}" for node in nodes]})


def _tree(database: Database, checked: Json, source: str) -> Text:
    return Text(_picture(database, {**checked, "format": "ascii", "output": None}).pieces)


def _export(database: Database, checked: Json, source: str) -> Any:
    output = checked["output"]
    if output is None:
        if checked["format"] in _FILE_FORMATS:
            raise InvalidArgument(f"--format {checked['format']} needs --output: name the file")
        return Text(_picture(database, checked).pieces)
    output = os.path.abspath(output)
    _refuse_own_file(database, output)
    if checked["format"] == "claude-code":
        return _export_session(database, checked, output)
    _check_output(output, checked["force"])
    picture = _picture(database, checked)
    _write_output(output, checked["force"], picture.pieces)
    return {
        "format": checked["format"],
        "timeline_id": f"tl{database.timeline_of(checked)}",
        "output": output,
        "nodes": picture.nodes,
        "edges": picture.edges,
    }


_FILE_FORMATS = ("claude-code", "drawio", "html")  # no terminal and no pipe has a use for them


def _export_session(database: Database, checked: Json, folder: str) -> Json:
    """A branch as a session of Claude Code, a new file in `folder`."""
    import timeline_export
    import timeline_import

    if checked["from"] is not None or checked["to"] is not None:
        raise InvalidArgument(
            "--format claude-code writes a branch whole: leave out --from and --to"
        )
    tl = database.again_if_unfit(lambda: database.timeline_of(checked))
    branch = checked["branch"] or database.refresh().state.timelines[tl].current
    session = timeline_export.ClaudeSession(database, tl, branch, timeline_import.block_text)
    if not session.nodes:
        raise timeline.Refused(
            f"branch {timeline.quoted(branch)} of tl{tl} holds no message: nothing to resume",
            branch=branch,
        )
    if os.path.isdir(os.path.dirname(folder)) and not os.path.lexists(folder):
        os.mkdir(folder)
    output = os.path.join(folder, f"{session.id}.jsonl")
    _refuse_own_file(database, output)
    _check_output(output, force=False)
    cwd = session.cwd or os.getcwd()
    _write_output(output, False, session.lines(cwd))
    return {
        "format": "claude-code",
        "timeline_id": f"tl{tl}",
        "session": session.id,
        "output": output,
        "cwd": cwd,
        "run": f"claude --resume {session.id}",
        "nodes": session.nodes,
    }


def _picture(database: Database, checked: Json) -> Any:
    import timeline_export

    if (checked["from"] is None) != (checked["to"] is None):
        raise InvalidArgument("--from and --to go together")
    to_terminal = checked["output"] is None and sys.stdout is not None and sys.stdout.isatty()
    width = checked["width"]
    if width == "auto":
        width = None
        if to_terminal:
            import shutil

            width = shutil.get_terminal_size().columns
    return timeline_export.picture(
        database,
        database.again_if_unfit(lambda: database.timeline_of(checked)),
        checked["format"],
        branch=checked["branch"],
        first=checked["from"],
        last=checked["to"],
        width=width,
        fold=to_terminal and checked["fold"] == "auto",
    )


def _refuse_own_file(database: Database, output: str) -> None:
    """Raise if `output` is the database, by whatever name, or one of the files beside it."""
    if database.owns(output):
        raise timeline.Refused(
            f"{output} belongs to the database {database.path}: choose another file", output=output
        )


def _check_output(output: str, force: bool, may_force: bool = True) -> None:
    """Raise if `output` may not be written."""
    folder = os.path.dirname(output)
    if not os.path.isdir(folder):
        raise timeline.NotFound(f"no folder {folder}: make it first", folder=folder)
    if os.path.islink(output):
        raise timeline.Refused(
            f"{output} is a symbolic link to {os.readlink(output)}: name the file itself"
        )
    if os.path.isdir(output):
        raise timeline.Refused(f"{output} is a folder: name a file in it")
    if os.path.exists(output) and not os.path.isfile(output):
        raise timeline.Refused(f"{output} is no regular file: choose another")
    if not force and os.path.lexists(output):
        raise timeline.Refused(
            f"{output} exists, and may have been edited: choose another"
            + (", or replace it with --force" if may_force else "")
        )


def _write_output(output: str, force: bool, pieces: Iterator[str]) -> None:
    """Write a file that is there whole or not at all.

    Raises:
        Refused: somebody made such a file meanwhile. OSError: nothing was written.
    """
    import tempfile

    disk = timeline.Disk()
    file, temporary = tempfile.mkstemp(
        prefix=os.path.basename(output)[:60] + ".", suffix=".tmp", dir=os.path.dirname(output)
    )
    try:
        with open(file, "w", encoding="utf-8", newline="") as stream:
            _write_pieces(stream, pieces)
            stream.flush()
            disk.fsync(stream.fileno())
        _take_usual_mode(temporary)
        if force:
            _check_output(output, force)
            disk.replace(temporary, output)
        else:
            disk.place_new(temporary, output)
    except FileExistsError:
        disk.remove(temporary)
        _check_output(output, force)
        raise
    except BaseException:
        disk.remove(temporary)
        raise


def _write_pieces(stream: Any, pieces: Iterator[str]) -> None:
    import time

    shown = time.monotonic() + 1
    for number, piece in enumerate(pieces, 1):
        stream.write(piece)
        if time.monotonic() > shown and sys.stderr is not None and sys.stderr.isatty():
            shown += 1
            notice(f"{number:,} pieces written")


def _take_usual_mode(path: str) -> None:
    """Give a file the mode that new files have: pictures are made to be shown, unlike databases."""
    if sys.platform != "win32":
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(path, 0o666 & ~mask)


def _read_transcripts(database: Database) -> None:
    """Get ready for a long command over many conversations."""
    import gc

    gc.enable()  # which `tl.py` turned off: what was read of each conversation refers to itself
    database.via = "import"


def _import(database: Database, checked: Json, source: str) -> Any:
    import timeline_import

    _read_transcripts(database)
    output = checked["ids"]
    ids: dict[str, str] | None = None
    if output is not None:
        output, ids = os.path.abspath(output), {}
        _refuse_own_file(database, output)
        _check_output(output, False, may_force=False)
    result = database.again_if_unfit(
        lambda: timeline_import.import_paths(
            database,
            checked["paths"],
            format=checked["format"],
            into=checked["into"],
            dry_run=checked["dry_run"],
            attachments=checked["attachments"],
            progress=notice if sys.stderr is not None and sys.stderr.isatty() else None,
            key=checked["idempotency_key"],
            ids=ids,
        )
    )
    if ids is not None:
        try:
            _write_output(output, False, iter([timeline.dumps(ids) + "\n"]))
        except (TimelineError, OSError) as error:
            words = timeline.system_words(error) if isinstance(error, OSError) else str(error)
            raise timeline.WriteFailed(
                f"import is done and stored, but --ids could not be written ({words}): the answer "
                "and the ids are here in data",
                stored=True,
                answer=result,
                ids=ids,
            ) from None
    return result


def _sync(database: Database, checked: Json, source: str) -> Any:
    import time

    import timeline_import

    _read_transcripts(database)
    places = timeline_import.client_places(os.environ, os.path.expanduser("~"))
    if checked["client"] != "all":
        places = {checked["client"]: places[checked["client"]]}
    days = checked["since"]
    return database.again_if_unfit(
        lambda: timeline_import.sync(
            database,
            places,
            project=checked["project"],
            changed_after=0 if days is None else time.time() - 86_400 * days,
            progress=notice if sys.stderr is not None and sys.stderr.isatty() else None,
            key=checked["idempotency_key"],
        )
    )


# What the demo says and does; node numbers are those that the bundled conversation gets.
_STORY = (
    (
        "A coding agent's session comes in, every original with its compaction as a summary "
        "beside it.",
        "import {transcript}",
    ),
    ("`main` is what the agent sees now: its summary of n1..n22, and what followed.", "context"),
    (
        "The originals are one fork away: try another idea where the old talk stood at n11.",
        "fork --node n11 --name try-xlsx",
    ),
    (
        "Work on the new branch, without leaving main. It sees the originals, not the summary.",
        "append --branch try-xlsx --role user --text 'What if we wrote .xlsx instead?'",
    ),
    (
        "",
        "append --branch try-xlsx --role assistant --text 'It needs a package we may not add, "
        "and 4 million rows do not "
        "fit: a sheet ends at 1,048,576.' --intent-tag finding",
    ),
    (
        "The idea is decided: a summary keeps what was learnt, beside the two messages.",
        "summarize --from n28 --to n29 "
        "--summary 'Tried .xlsx: no package allowed, and 4 million rows do not fit a sheet. CSV "
        "stays.' --intent-tag decision",
    ),
    ("The user's first words must stay word for word.", "pin --node n1"),
    (
        "What should a model see of the long original line in 220 tokens? The pin, the newest "
        "messages, and the summary for what is left out between them; never a token more.",
        "budget --branch 'before compaction 1' --max 220",
    ),
    ("May the finished branch go to the archive?", "archive-check --name try-xlsx --scope own"),
    (
        "Only its own two messages move; they stay readable.",
        "archive-branch --name try-xlsx --scope own",
    ),
    ("Search finds them there.", "search '1,048,576'"),
    ("And it comes back.", "thaw --name try-xlsx"),
    ("The whole tree:", "tree"),
)


def _demo(database: Database, checked: Json, source: str) -> None:
    """Tell the story in a database of its own: --db if it names a new file, else a temporary
    one."""
    import shlex
    import tempfile

    import timeline_import

    path = os.path.abspath(database.path) if source == "option" else None
    if path is not None and os.path.lexists(path):
        raise timeline.Refused(f"{path} exists: the demo wants a new file", path=path)
    folder = tempfile.mkdtemp(prefix="timeline-demo-")
    path = path or os.path.join(folder, "demo.json")
    transcript = os.path.join(folder, "session.jsonl")
    with open(transcript, "wb") as file:
        file.write(timeline_import.demo_transcript())
    write_out("The commands below ran in a database of their own. To give it more yourself:\n")
    for line in _demo_start(path):
        write_out(f"  $ {line}\n")
    write_out("\n")
    for told, command in _STORY:
        words = [word.format(transcript=transcript) for word in shlex.split(command)]
        write_out(f"{told}\n" if told else "")
        write_out(f"  $ tl {command.format(transcript=_shell([transcript]))}\n")
        call = read_arguments([*words, "--db", path])
        shown = answer(call, Database(path, notice=notice), "option")
        for line in _demo_lines(call.operation.name, shown):
            write_out(f"  {line}\n")
        write_out("\n")
    page = os.path.join(folder, "demo.html")
    call = read_arguments(["export", "--format", "html", "--output", page, "--db", path])
    answer(call, Database(path, notice=notice), "option")
    write_out(f"The same as a page to look, click and search in: {page}\n\n")
    write_out(f"{folder} may be deleted. Look at the database again:\n")
    write_out(f"  $ {_demo_program()} tree --db {_shell([path])}\n")


def _demo_start(path: str) -> Iterator[str]:
    """The lines for a shell in which the commands of the story work as they are shown."""
    program = _demo_program()
    if sys.platform == "win32":  # PowerShell
        yield "$env:TIMELINE_DB = '" + path.replace("'", "''") + "'"
        if program != _PROGRAM:
            yield f"function {_PROGRAM} {{ {program} @args }}"
        return
    yield f"export TIMELINE_DB={_shell([path])}"
    if program != _PROGRAM:
        yield f"alias {_PROGRAM}={_shell([program])}"


def _demo_program() -> str:
    """What starts this program in a shell, from any folder."""
    if not sys.argv[0].endswith(".py"):
        return _PROGRAM
    python = "python" if sys.platform == "win32" else "python3"
    return _shell([python, os.path.abspath(sys.argv[0])])


def _demo_lines(name: str, shown: Any) -> Iterator[str]:
    """A result for people: a picture as it is, messages and the rest in short lines."""
    if name == "tree":
        yield from "".join(shown.pieces).removesuffix("\n").split("\n")
        return
    messages = shown["messages"] if name == "budget" else shown if name == "context" else ()
    for each in messages:
        text = " ".join(each["text"].split())
        yield f"{each['node']} {each['role']} {each['tokens']}: {_shortened(text, 70)}"
    if name == "budget":
        yield f"total_tokens: {shown['total_tokens']}"
    elif name != "context":
        yield _shortened(timeline.dumps(shown), 400)


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


# ---- setting up agents --------------------------------------------------------------------------


def _mcp_config(database: Database, checked: Json, source: str) -> Text:
    """The entry; a notice says where it goes."""
    import json

    if not sys.executable:
        raise timeline.Refused("the path of this Python is unknown: start it by its whole path")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timeline_mcp.py")
    # Clients pass little of the environment on, so what TIMELINE_DB says is written down.
    named = [] if source == "default" else ["--db", os.path.abspath(database.path)]
    command = [_utf8_path(each) for each in (sys.executable, script, *named)]
    client = checked["client"]
    for line in _config_places(client, command):
        notice(line)
    if named:
        origin = "--db" if source == "option" else "TIMELINE_DB"
        notice(f"the entry names the database of {origin}: {timeline.quoted(command[-1])}")
    if sys.prefix != sys.base_prefix:
        notice(
            f"the entry uses the Python of the virtual environment {timeline.quoted(sys.prefix)}: "
            "keep that, or run mcp-config with another Python"
        )
    if client == "codex":
        # A JSON string is a TOML string but for DEL, which TOML wants escaped.
        program, *arguments = (
            json.dumps(each, ensure_ascii=False).replace("\x7f", "\\u007f") for each in command
        )
        args = ", ".join(arguments)
        return Text([f"[mcp_servers.timeline]\ncommand = {program}\nargs = [{args}]\n"])
    if client == "opencode":
        local = {"type": "local", "command": command}
        shown: Json = {"mcp": {"timeline": local}}
        return Text([json.dumps(shown, ensure_ascii=False, indent=2) + "\n"])
    entry: Json = {"command": command[0], "args": command[1:]}
    if client in ("claude-code", "cursor", "vscode"):
        entry = {"type": "stdio", **entry}
    table = "servers" if client == "vscode" else "mcpServers"
    shown = {table: {"timeline": entry}}
    return Text([json.dumps(shown, ensure_ascii=False, indent=2) + "\n"])


def _hook(database: Database, checked: Json, source: str) -> Text:
    import timeline_import

    stdin = getattr(sys.stdin, "buffer", None)  # None: closed by whoever started us
    raw = b"" if stdin is None else stdin.read(timeline_import.STDIN_BYTES_MAX + 1)
    return Text([timeline_import.hook(database.path, raw)])


# Event -> seconds that the client is to wait at most. Claude Code gives all hooks together 1.5 at
# SessionEnd, whatever stands here.
_HOOK_EVENTS = {
    "claude-code": {
        "SessionStart": 10, "UserPromptSubmit": 10, "Stop": 15, "SubagentStop": 15,
        "PreCompact": 15, "PostCompact": 15, "SessionEnd": 10,
    },
    "codex": {
        "SessionStart": 10, "UserPromptSubmit": 10, "Stop": 15, "PreCompact": 15, "PostCompact": 15,
    },
    "gemini": {"SessionStart": 10, "AfterAgent": 15, "PreCompress": 15, "SessionEnd": 10},
}  # fmt: skip


def _hook_config(database: Database, checked: Json, source: str) -> Text:
    """The settings; a notice says where they go."""
    import json

    if not sys.executable:
        raise timeline.Refused("the path of this Python is unknown: start it by its whole path")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tl.py")
    named = [] if source == "default" else ["--db", os.path.abspath(database.path)]
    command = _shell([_utf8_path(each) for each in (sys.executable, script, *named, "hook")])
    client = checked["client"]
    home = _home() or "~"
    codex = os.environ.get("CODEX_HOME") or os.path.join(home, ".codex")
    claude = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
    place = {
        "claude-code": os.path.join(claude, "settings.json")
        + ", or .claude/settings.json in the project's folder",
        "codex": os.path.join(codex, "hooks.json"),
        "gemini": os.path.join(home, ".gemini", "settings.json")
        + ", or .gemini/settings.json in the project's folder",
    }[client]
    notice(f"this goes into {place}; where that has other hooks, add these beside them")
    hooks = {}
    for event, seconds in _HOOK_EVENTS[client].items():
        # Gemini counts milliseconds.
        timeout = seconds * 1_000 if client == "gemini" else seconds
        hooks[event] = [{"hooks": [{"type": "command", "command": command, "timeout": timeout}]}]
    return Text([json.dumps({"hooks": hooks}, ensure_ascii=False, indent=2) + "\n"])


def _utf8_path(path: str) -> str:
    """A path as it can stand in a file of UTF-8, whatever the locale is."""
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeError:
        raise timeline.Refused(
            f"{timeline.quoted(path)} is no UTF-8, so no configuration can hold it: rename it"
        ) from None


def _config_places(client: str, command: list[str]) -> Iterator[str]:
    """What to do with the entry of a client, in lines."""
    home = _home() or "~"
    if client == "claude-desktop":
        folders = {
            "darwin": os.path.join(home, "Library", "Application Support"),
            "win32": os.environ.get("APPDATA") or os.path.join(home, "AppData", "Roaming"),
        }
        folder = folders.get(sys.platform, os.path.join(home, ".config"))
        place = os.path.join(folder, "Claude", "claude_desktop_config.json")
    else:
        codex = os.environ.get("CODEX_HOME") or os.path.join(home, ".codex")
        place = {
            "claude-code": ".mcp.json in the project's folder",
            "codex": os.path.join(codex, "config.toml"),
            "cursor": os.path.join(home, ".cursor", "mcp.json")
            + ", or .cursor/mcp.json in the project's folder",
            "gemini": os.path.join(home, ".gemini", "settings.json")
            + ", or .gemini/settings.json in the project's folder",
            "generic": "your client's MCP configuration",
            "opencode": os.path.join(
                os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"),
                "opencode",
                "opencode.json",
            )
            + ", or opencode.json in the project's folder",
            "vscode": ".vscode/mcp.json in the project's folder",
        }[client]
    yield f"this goes into {place}; where that has other servers, add timeline beside them"
    if client == "claude-code":
        yield f"or, for all projects: claude mcp add --scope user timeline -- {_shell(command)}"


def _shell(command: list[str]) -> str:
    """A command as this system's shell reads it."""
    if sys.platform == "win32":
        import subprocess

        return subprocess.list2cmdline(command)
    import shlex

    return shlex.join(command)


def _skill(database: Database, checked: Json, source: str) -> Json | Text:
    given = [name for name in ("to", "client", "project") if checked[name]]
    path = skill_path()
    if checked["action"] != "install":
        if given:
            raise InvalidArgument(f"--{given[0]} goes with install, not {checked['action']}")
        if checked["action"] == "path":
            return Text([path + "\n"])
        with open(path, encoding="utf-8", newline="") as file:
            return Text([file.read()])
    if checked["to"] is not None and len(given) > 1:
        raise InvalidArgument(f"--to and --{given[1]} were both given: name one of them")
    with open(path, "rb") as source_file:
        data = source_file.read()
    folders = _skills_folders(checked)
    for folder in folders:  # before any is written
        skill_file_in(folder)
    return {"installed": [install_skill(folder, data) for folder in folders]}


def skill_path() -> str:
    """Where SKILL.md is: in the source checkout, else among the files of the installed package.

    Raises:
        Refused: it is in neither.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(os.path.dirname(here), "SKILL.md")
    if os.path.isfile(path):
        return path
    from importlib.metadata import PackageNotFoundError, files

    try:
        found = [each for each in files("timeline") or () if each.name == "SKILL.md"]
    except PackageNotFoundError:
        found = []
    for each in found:
        path = os.path.normpath(str(each.locate()))
        if os.path.isfile(path):
            return path
    raise timeline.Refused(
        f"SKILL.md is neither above {here} nor in an installed package: install Timeline again"
    )


def _skills_folders(checked: Json) -> list[str]:
    """The folders of skills to install into."""
    if checked["to"] is not None:
        return [os.path.abspath(checked["to"])]
    client = checked["client"] or "all"
    base = os.getcwd() if checked["project"] else _home()
    folders = {
        "claude-code": base and os.path.join(base, ".claude"),
        "agents": base and os.path.join(base, ".agents"),
    }
    if not checked["project"]:
        folders["claude-code"] = os.environ.get("CLAUDE_CONFIG_DIR") or folders["claude-code"]
    found = []
    for name, folder in folders.items():
        if client not in (name, "all"):
            continue
        if folder is None:
            variable = "USERPROFILE" if sys.platform == "win32" else "HOME"
            raise timeline.Refused(
                f"the home folder is unknown: set {variable} to its whole path, or name the "
                "folder of skills with --to"
            )
        found.append(os.path.join(folder, "skills"))
    return found


def _home() -> str | None:
    """The home folder; None if the environment names none, or no whole path."""
    home = os.path.expanduser("~")
    # An empty HOME comes back as the root folder.
    empty = sys.platform != "win32" and os.environ.get("HOME") == ""
    return None if empty or not os.path.isabs(home) else home


def skill_file_in(skills: str) -> tuple[str, bytes | None]:
    """The path of SKILL.md in a folder of skills, and what it holds: None if there is none, or
    a link that leads to no file.

    Raises:
        Refused: something that is no file is in the way.
    """
    folder = os.path.join(skills, "timeline")
    path = os.path.join(folder, "SKILL.md")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise timeline.Refused(
            f"{folder} is no folder: move it away and install again", path=folder
        )
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return path, file.read()
    # Opening a FIFO would wait for its writer.
    if os.path.lexists(path) and not os.path.islink(path):
        what = "a folder" if os.path.isdir(path) else "no regular file"
        raise timeline.Refused(f"{path} is {what}: move it away and install again", path=path)
    return path, None


def install_skill(skills: str, data: bytes) -> Json:
    """Make `timeline/SKILL.md` in the folder `skills` hold `data`, and say what was done.

    Another file there is kept beside it. A link in its place is kept too, as a link, and what it
    leads to is never written. A failure leaves what was there, and no new folder.

    Raises:
        Refused: the folder `timeline` is a link, so the file would land elsewhere; something
            that is no file is in the way.
    """
    path, old = skill_file_in(skills)
    if old == data:
        return {"path": path, "status": "unchanged"}
    folder = os.path.dirname(path)
    if os.path.islink(folder):
        raise timeline.Refused(
            f"{folder} is a link to {os.readlink(folder)}, which holds another SKILL.md or none: "
            "bring that one up to date, or remove the link and install again",
            path=folder,
        )
    missing = _missing_folders(folder)
    temporary = f"{path}.tmp-{os.getpid()}"
    result: Json = {"path": path, "status": "written"}
    try:
        os.makedirs(folder, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.lexists(path):
            result = {"path": path, "status": "replaced", "kept": _keep(path, old)}
        os.replace(temporary, path)
    except BaseException:
        for each in (temporary, result.get("kept")):
            if each is not None and os.path.lexists(each):
                os.remove(each)
        for each in missing:
            try:
                os.rmdir(each)
            except OSError:  # not made, or in use by now
                pass
        raise
    return result


def _missing_folders(folder: str) -> list[str]:
    """The folders that must be made for `folder` to be there, the innermost first."""
    missing = []
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _keep(path: str, data: bytes | None) -> str:
    """The path of a copy of the file or link at `path`."""
    import time

    name = f"{path}.bak-{time.strftime('%Y%m%dT%H%M%S')}"
    kept, number = name, 1
    while True:
        try:
            if os.path.islink(path):
                os.symlink(os.readlink(path), kept)
            else:
                with open(kept, "xb") as file:
                    file.write(data or b"")
            return kept
        except FileExistsError:  # of the same second
            number += 1
            kept = f"{name}-{number}"


_COMMANDS: dict[str, Callable[[Database, Json, str], Any]] = {
    "compact": _compact,
    "demo": _demo,
    "export": _export,
    "hook": _hook,
    "hook_config": _hook_config,
    "import": _import,
    "mcp_config": _mcp_config,
    "skill": _skill,
    "sync": _sync,
    "tree": _tree,
    "where": _where,
}


# ---- the program --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the program on `arguments` (default: the process's own) and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    code = _carry_out(given)
    # A client takes any other code of a hook for a decision: to block, or to go on.
    return 0 if _is_hook(given) else code


def _is_hook(arguments: list[str]) -> bool:
    """Whether the command is `hook`, whatever else is wrong."""
    words = iter(arguments)
    for word in words:
        if word == "--db":
            next(words, None)
        elif not word.startswith("-"):
            return word == "hook"
    return False


def _carry_out(given: list[str]) -> int:
    try:
        run(read_arguments(decode_arguments(given)))
        return 0
    except BrokenPipeError:
        return _leave_quietly()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except TimelineError as error:
        return _fail(str(error), error.data, error.exit_code)
    except OSError as error:
        return _fail(_system_message(error), {"errno": error.errno}, EXIT_SYSTEM)
    except (Exception, RecursionError) as error:  # the last line of defence
        if os.environ.get("TIMELINE_DEBUG"):
            raise
        where = f"{type(error).__name__}: {error}"
        return _fail(
            f"internal error, please report it: {where}; TIMELINE_DEBUG=1 shows more",
            {},
            EXIT_DEFECT,
        )


def _fail(message: str, data: Mapping[str, Any], code: int) -> int:
    try:
        print_failure(message, data)
    except (OSError, ValueError):
        return _leave_quietly() or code
    return code


def _system_message(error: OSError) -> str:
    return f"the system failed: {timeline.system_words(error)}"


def leave(code: int) -> None:
    """End the process at once. Everything was flushed as it was written, so there is nothing that
    taking the interpreter apart would still do, and that costs a third of a short command."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by whoever started us
                stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def _leave_quietly() -> int:
    """The reader of our output has gone: leave without the interpreter's complaint at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
