"""Reads and describes arguments in the formats that write texts bare, without quotes and escapes, between two tags.

All other values are JSON, so that the tools' schemas say which is which. The arguments become one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.chat_formats.json_check import JsonCheck
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tools import Tool

MAX_KEY = 1024
"""The most characters of a key."""
PLAIN = frozenset({"type", "title", "description", "default", "examples", "deprecated", "enum", "const"})
"""The keywords of a text's schema that a grammar of bare texts can follow."""
OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""The values that some templates write as Python does."""


def read_key(reader: TextReader, end: str) -> Steps[str]:
    """Reads a key and the marker that ends it. Raises Malformed, after one character too many at most: how much is read
    may not depend on the cuts, for what follows may be a call."""
    parts: list[str] = []
    length = 0
    while True:
        text, marker = yield from reader.before((end,), MAX_KEY + 1 - length)
        parts.append(text)
        length += len(text)
        if length > MAX_KEY or not (text or marker):
            raise Malformed
        if marker:
            reader.take(len(marker))
            return "".join(parts)


class JsonObject:
    """Passes pairs of a key and a bare value on as the arguments of a call. lines: whether a line end stands before and
    after each value, and belongs to the tags."""

    def __init__(self, reader: TextReader, output: Output, properties: Mapping[str, Any], lines: bool = False):
        self._reader = reader
        self._output = output
        self._properties = properties
        self._lines = lines
        self._before = "{"

    def _pair(self, key: str, end: str) -> Steps[bool]:
        """Reads a value and the marker that ends it. A text is passed on at once, other values when they end.

        Returns whether the value ended. If not, the answer was cut off, and so are the arguments.
        """
        schema = self._properties.get(key)
        quoted = is_text(schema)
        self._output.arguments(f"{self._before}{json.dumps(key, ensure_ascii=False)}: {chr(34) if quoted else ''}")
        self._before = ", "
        if self._lines:
            yield from self._reader.accept("\n")
        parts: list[str] = []
        check = JsonCheck()
        line_end = ""  # the line end that may belong to the tag
        while True:
            text, marker = yield from self._reader.before((end,))
            if not (text or marker):
                return False
            if self._lines and text:
                text, line_end = line_end + text, ""
                if text.endswith("\n"):
                    text, line_end = text[:-1], "\n"
            if quoted:
                self._output.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            else:
                parts.append(text)
                check.add(text)
            if marker:
                break
        self._reader.take(len(end))
        self._output.arguments('"' if quoted else _as_json("".join(parts).strip(), check.ended(), schema))
        return True

    def pairs(self, begin: str, key: Callable[[], Steps[str]], end: str) -> Steps[bool]:
        """Reads all pairs of a call and ends the arguments, also before it raises Malformed. begin: the marker before
        each pair. key: reads a key, up to its value. end: the marker that ends a value.

        Returns whether the last value ended. If not, the answer was cut off, and so are the arguments.
        """
        try:
            yield from self._reader.space()
            while (yield from self._reader.accept(begin)):
                name = yield from key()
                ended = yield from self._pair(name, end)
                self._reader.record()
                if not ended:
                    return False
                yield from self._reader.space()
        except Malformed:
            self._end()
            raise
        self._end()
        return True

    def _end(self) -> None:
        self._output.arguments("{}" if self._before == "{" else "}")


def _as_json(value: str, is_json: bool, schema: Any) -> str:
    """Returns a value that the schema does not call a text alone: JSON as it is, or a text after all. A value that may
    be a text is JSON only if the schema names its type: 12 is a text where there may be a text or null."""
    types = _types(schema)
    written = OF_PYTHON.get(value, value)
    if (is_json or value in OF_PYTHON) and (
        "string" not in types or KINDS.get(written[0], {"number", "integer"}) & types
    ):
        return written
    return json.dumps(value, ensure_ascii=False)


KINDS = {"{": {"object"}, "[": {"array"}, '"': {"string"}, "t": {"boolean"}, "f": {"boolean"}, "n": {"null"}}
"""The types of JSON values by their first characters; the others are numbers."""
MOST_ALTERNATIVES = 8
"""The most alternatives of a schema that are looked at for each value."""


def _types(schema: Any) -> set[str]:
    """Returns the types that a schema names, itself or in a few alternatives; none if there may be others."""
    if not isinstance(schema, Mapping):
        return set()
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(alternatives, list):
        return _named(schema)
    found = [_named(each) for each in alternatives[: MOST_ALTERNATIVES + 1]]
    return set[str]().union(*found) if all(found) and len(found) <= MOST_ALTERNATIVES else set()


def _named(schema: Any) -> set[str]:
    named = schema.get("type") if isinstance(schema, Mapping) else None
    return {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}


def is_text(schema: Any) -> bool:
    """Whether a schema admits texts alone."""
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def known_keys(tool: Tool) -> Mapping[str, Any]:
    """Returns the schemas of a tool's arguments by key. Raises InvalidRequestError if a required one has none."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    unknown = next((key for key in tool.parameters.get("required", []) if key not in properties), None)
    if unknown is not None:
        raise InvalidRequestError(f"tools: required of {tool.name!r} names {unknown!r:.80}, which properties lacks")
    return properties


def pairs_of(tool: Tool, known: Callable[[str], str], any_pair: str) -> str:
    """Returns the expression of a call's pairs: those of the schema in its order, or any pairs if nothing is enforced.

    known: returns the expression of the pair with a key of the schema. any_pair: that of any pair.
    """
    if not tool.strict:
        return f"({any_pair})*"
    required = frozenset(tool.parameters.get("required", []))
    return " ".join(known(key) if key in required else f"({known(key)})?" for key in known_keys(tool))


def joined_pairs(writer: LarkWriter, tool: Tool, known: Callable[[str], str], comma: str) -> str:
    """Returns the expression of a call's pairs in the schema's order, each but the first after a comma.

    known: returns the expression of the pair with a key of the schema.
    """
    required = frozenset(tool.parameters.get("required", []))
    after = {True: "", False: ""}  # the expression of the pairs that follow, with and without one before them
    for key in reversed(list(known_keys(tool))):
        pair = known(key)
        rest = after[True]
        after = {
            before: writer.rule(
                f"{writer.text(comma) if before else ''} {pair} {rest}"
                + ("" if key in required else f" | {after[before]}")
            )
            for before in (True, False)
        }
    return after[False]


def value_of(writer: LarkWriter, tool: Tool, key: str, end: str, line: str = "") -> str:
    """Returns the expression of a bare value and of the marker that ends it. line: what stands between the two.

    Raises InvalidRequestError for a text whose schema the grammar cannot follow.
    """
    schema = tool.parameters["properties"][key]
    if not is_text(schema):
        return f"{writer.json(alone(tool, key), tool.name)} {writer.text(line)} {writer.marker(end)}"
    if beyond := sorted(schema.keys() - PLAIN):
        raise InvalidRequestError(
            f"tools: this model writes texts without quotes, so {beyond[0]!r:.80} of the parameter {key!r:.80} of "
            f"{tool.name!r} cannot be enforced: leave it out, or let the model choose (tool_choice auto, not strict)"
        )
    texts = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if texts is None:
        return writer.until(end)
    if not isinstance(texts, (list, tuple)) or not texts:
        raise InvalidRequestError(f"tools: enum of the parameter {key!r:.80} of {tool.name!r} must be a list of texts")
    return f"{writer.one_of(writer.text(str(text)) for text in texts)} {writer.text(line)} {writer.marker(end)}"


def alone(tool: Tool, key: str) -> dict[str, Any]:
    """Returns the schema of one argument, with the definitions of the whole schema to which it may refer."""
    schema = tool.parameters["properties"][key]
    definitions: dict[str, Any] = {
        name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters
    }
    return definitions | (schema if isinstance(schema, dict) else {})
