"""Reads calls that are written as JSON objects: {"name": "f", "arguments": {...}}, alone or in a list.

The arguments are passed on as they come, character by character as the model wrote them. Before the name is known
nothing is passed on, so a text that turns out to be no call can still become content.
"""

from __future__ import annotations

import json

from tensorwright.runtime.chat_formats.json_value import JsonValue
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tools import Tools

ARGUMENTS = ("arguments", "parameters")
"""The keys under which models write a call's arguments."""
OTHERS = ("name", "type", "id", "function")
"""The other keys that the object of a call may have where any JSON object could be an answer."""
EMPTY = "{}"
"""The arguments of a call that has none."""
IN_ONE_PIECE = ('"', "n")
"""The first characters of arguments that are not an object: a JSON text that holds them, and null."""


def read_call(
    reader: TextReader, output: Output, tools: Tools, only_known: bool = False, name_key: str = "name"
) -> Steps[None]:
    """Reads one call up to the brace that ends it.

    name_key: the key of the name. only_known: whether the object may be an answer in JSON: then it must name one of
    the tools, and have no keys that calls do not have. Raises Malformed with the reader's record: everything if it
    is no call, and what followed the arguments if only that is malformed. A call whose object does not end after
    the arguments is complete all the same.
    """
    yield from reader.expect("{")
    name: str | None = None
    begun = False
    held: str | None = None  # arguments that came before the name
    while True:
        yield from reader.space()
        found = yield from reader.next_is("}", '"')
        if found != '"':
            break
        key = yield from _text(reader)
        if only_known and key not in (*ARGUMENTS, *OTHERS):
            raise Malformed
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        if key == name_key and name is None:
            name = yield from _text(reader)
            if not name or (only_known and name not in tools.names):
                raise Malformed
            if held is not None:
                begun = True
                _begin(reader, output, name, held)
        elif key in ARGUMENTS and not begun and held is None:
            if name is None:
                held = _plain((yield from JsonValue(reader).whole()))
            else:
                begun = True
                _begin(reader, output, name, "")
                yield from pass_arguments(reader, output)
                reader.record()
        else:
            yield from JsonValue(reader).whole()
        yield from reader.space()
        if not (yield from reader.accept(",")):
            break
    ended = yield from reader.accept("}")
    if not begun:
        if name is None or not ended:
            raise Malformed
        _begin(reader, output, name, EMPTY)
    reader.forget()


def read_calls(reader: TextReader, output: Output, tools: Tools, name_key: str = "name") -> Steps[None]:
    """Reads one call, or a list of calls. Raises Malformed, as `read_call` does."""
    listed = yield from reader.accept("[")
    while True:
        yield from reader.space()
        yield from read_call(reader, output, tools, name_key=name_key)
        if not listed:
            return
        yield from reader.space()
        if (yield from reader.accept(",", "]")) != ",":
            return
        reader.record()


def pass_arguments(reader: TextReader, output: Output) -> Steps[None]:
    """Passes a value on as arguments. Arguments that stand in a JSON text are taken out of it; null, a blank text and a
    value that is left out mean none."""
    first = yield from reader.peek(1)
    value = JsonValue(reader)
    parts: list[str] = []
    some = False
    while part := (yield from value.piece()):
        some = True
        if first in IN_ONE_PIECE:
            parts.append(part)
        else:
            output.arguments(part)
    if parts or (value.complete and not some):
        output.arguments(_plain("".join(parts)))


def _begin(reader: TextReader, output: Output, name: str, arguments: str) -> None:
    """Begins a call. What is read from now on can only be malformed by itself."""
    output.begin(name)
    output.arguments(arguments)
    reader.record()


def _plain(value: str) -> str:
    """Returns the arguments that a value stands for."""
    if value[:1] not in IN_ONE_PIECE:
        return value or EMPTY
    try:
        parsed = json.loads(value)
        return EMPTY if parsed is None or not parsed.strip() else checked(parsed)
    except (ValueError, Malformed):
        return value


def _text(reader: TextReader) -> Steps[str]:
    """Reads a JSON text. Raises Malformed for anything else."""
    if (yield from reader.peek(1)) != '"':
        raise Malformed
    try:
        return checked(json.loads((yield from JsonValue(reader).whole())))
    except ValueError as error:
        raise Malformed from error


def checked(text: str) -> str:
    """Returns the text. Raises Malformed if it is no valid Unicode, for then no answer can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Malformed from error
    return text
