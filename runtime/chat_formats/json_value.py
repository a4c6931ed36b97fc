"""Finds the end of a JSON value in text that arrives in pieces.

It follows texts and brackets only. Whatever else the model writes in the value is passed on as it is.
"""

from __future__ import annotations

import re

from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader

_IN_STRING = re.compile(r'[^"\\]*')
_BETWEEN = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^\s,}\]\[{\"<]*")


class JsonValue:
    """Reads one value piece by piece. `complete` says whether the value has ended."""

    def __init__(self, reader: TextReader):
        self.complete = False
        self._reader = reader
        self._kind = ""  # the first character of an object, a list or a text; "scalar" for anything else
        self._depth = 0
        self._in_string = False
        self._escaped = False  # whether a backslash stands before the next character

    def piece(self) -> Steps[str]:
        """Waits for text, and returns the next part of the value; "" at the end of the value or of all text."""
        there = 0 if self.complete else (yield from self._reader.waiting())
        if not there:
            return ""
        text, begin = self._reader.view()
        if not self._kind:
            self._kind = text[begin] if text[begin] in '{["' else "scalar"
        if self._kind == "scalar":
            count = self._reader.span(_SCALAR)
            self.complete = count < there
            return self._reader.take(count)
        at = begin
        while at < len(text) and not self.complete:
            at = self._through_string(text, at) if self._in_string else self._through_brackets(text, at)
        return self._reader.take(at - begin)

    def whole(self) -> Steps[str]:
        """Returns the whole value. Raises Malformed if the text ends before the value does."""
        parts: list[str] = []
        while part := (yield from self.piece()):
            parts.append(part)
        if not self.complete:
            raise Malformed
        return "".join(parts)

    def _through_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _end(_IN_STRING, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.complete = self._depth == 0
        return at + 1

    def _through_brackets(self, text: str, at: int) -> int:
        at = _end(_BETWEEN, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = True
        elif text[at] in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.complete = self._depth == 0
        return at + 1


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
