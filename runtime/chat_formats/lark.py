"""Writes grammars in the Lark dialect of llguidance, for the form of calls and of thinking.

A grammar speaks of bytes and of tokens. A marker that the tokenizer has as one token must be written as that token, for
no text can spell it; any other marker is written as its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.request_bounds import GRAMMAR_LENGTH
from tensorwright.runtime.chat_formats.tools import Tool

FREE = r"/(.|\n)*/"
"""Any text. No special token is text."""
BLANKS = r"[\x20\x0A\x0D\x09]{0,20}"
"""What may stand between the parts of JSON."""


NOTES = frozenset({"title", "description", "examples", "default", "deprecated", "$comment"})
"""The keywords of a schema that admit and forbid nothing. They are the longest part of most tools."""
OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
OF_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")
"""The keywords that hold schemas by their names, and schemas or lists of them."""


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_notes(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key not in NOTES}
    for key in kept.keys() & {*OF_NAMES, *OF_SCHEMAS}:
        part = kept[key]
        named = key in OF_NAMES and isinstance(part, Mapping)
        kept[key] = {name: _without_notes(each) for name, each in part.items()} if named else _without_notes(part)
    return kept


class LarkWriter:
    """Collects the rules of one grammar. Its methods return expressions, and raise InvalidRequestError as soon as the
    rules are longer than a grammar may be: formats that repeat definitions could write a thousand times what came.

    token_ids: the markers that are one token of the model, and their ids. owners: the lines of the grammar that hold
    schemas of tools, and the tools' names.
    """

    def __init__(self, token_ids: Mapping[str, int]):
        self.owners: dict[int, str] = {}
        self._token_ids = token_ids
        self._rules: list[str] = [f"TEXT: {FREE}"]
        self._length = 0

    def is_token(self, marker: str) -> bool:
        return marker in self._token_ids

    def text(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False) if text else ""

    def marker(self, marker: str) -> str:
        token = self._token_ids.get(marker)
        return self.text(marker) if token is None else f"<[{token}]>"

    def json(self, schema: Mapping[str, Any], owner: str) -> str:
        """Returns the expression of the JSON values that a schema admits. Unknown keywords of the schema are an error
        when the grammar is compiled. owner: the name of the tool to which the schema belongs."""
        self.owners[len(self._rules) + 2] = owner  # the line of the next rule: the start and TEXT come first
        shape = {**_without_notes(schema), "x-guidance": {"whitespace_pattern": BLANKS, "lenient": False}}
        return self.rule("%json " + json.dumps(shape))

    def arguments(self, tool: Tool) -> str:
        """Returns the expression of a call's arguments, as JSON."""
        return self.json(tool.enforced, tool.name)

    def rule(self, body: str, attributes: str = "") -> str:
        """Adds a rule and returns its name. attributes: such as "lazy"."""
        name = f"r{len(self._rules)}"
        self._add(f"{name}{f'[{attributes}]' if attributes else ''}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """Adds a terminal, which regular expressions define, and returns its name."""
        name = f"T{len(self._rules)}"
        self._add(f"{name}: {body}")
        return name

    def _add(self, rule: str) -> None:
        self._length += len(rule) + 1
        _check_length(self._length)
        self._rules.append(rule)

    def one_of(self, choices: Iterable[str]) -> str:
        """Returns the name of a rule for any of the expressions."""
        return self.rule(" | ".join(choices))

    def until(self, marker: str) -> str:
        """Returns the expression of any text and the marker that ends it."""
        if self.is_token(marker):
            return f"TEXT {self.marker(marker)}"
        return self.rule(f"TEXT {self.marker(marker)}", "lazy")

    def bounded(self, marker: str, most: int | None) -> str:
        """Returns the expression of a text of at most so many tokens, and of the marker that ends it. None means any
        number. Raises InvalidRequestError if the marker is not one token, for then its parts would count."""
        if most is None:
            return self.until(marker)
        if not self.is_token(marker):
            raise InvalidRequestError(
                f"thinking_token_budget needs a model with {marker} as one token, and this one spells it with several"
            )
        return f"{self.rule('TEXT', f'max_tokens={most}')} {self.marker(marker)}"

    def without(self, marker: str) -> str:
        """Returns the expression of any text in which the marker does not occur."""
        if self.is_token(marker):
            return "TEXT"
        literal = "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in marker)
        return self.terminal(rf"/(.|\n)*/ & ~/(.|\n)*{literal}(.|\n)*/")

    def grammar(self, start: str) -> str:
        lark = "\n".join([f"start: {start}", *self._rules, ""])
        _check_length(len(lark))
        return lark


def _check_length(length: int) -> None:
    if length > GRAMMAR_LENGTH:
        raise InvalidRequestError(
            f"tools: their parameters together must have at most about {GRAMMAR_LENGTH} characters to be enforced: "
            "leave out strict, or tools"
        )
