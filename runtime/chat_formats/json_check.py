"""Tells whether a text that arrives in pieces is a JSON value, which is known as soon as the last piece has come."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 500
"""The most brackets inside each other. Deeper values are no JSON that clients could read."""
MAX_SCALAR = 4300
"""The most characters of a number, which are as many as Python reads."""
_BLANKS = re.compile(r"[ \t\r\n]*")
_IN_TEXT = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r'[^{}\[\],:" \t\r\n]*')
_WORD = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGUN = re.compile(r"\\(u[0-9a-fA-F]{0,3})?")
_ENDS = {"}": "{", "]": "["}


class _Next(Enum):
    """What must come next. AFTER: after a value comes a comma or the end of what it is in, or nothing more."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    AFTER = auto()


class JsonCheck:
    """Follows one value. `add` takes the next piece; `ended` says, after the last one, whether they are JSON."""

    def __init__(self) -> None:
        self._wrong = False
        self._open: list[str] = []
        self._next = _Next.VALUE
        self._scalar = ""  # the beginning of a number or of a word
        self._in_text = False
        self._escape = ""  # the beginning of an escape

    def add(self, text: str) -> None:
        at = 0
        while at < len(text) and not self._wrong:
            if self._in_text:
                at = self._through_text(text, at)
            elif text[at] in '{}[],:"':
                self._end_scalar()
                self._mark(text[at])
                at += 1
            elif (end := _end(_BLANKS, text, at)) > at:
                self._end_scalar()
                at = end
            else:
                end = _end(_SCALAR, text, at)
                self._scalar += text[at:end]
                self._wrong = len(self._scalar) > MAX_SCALAR
                at = end

    def ended(self) -> bool:
        self._end_scalar()
        return not (self._wrong or self._in_text or self._open) and self._next is _Next.AFTER

    def _through_text(self, text: str, at: int) -> int:
        if self._escape:
            self._escape += text[at]
            if _ESCAPE.fullmatch(self._escape):
                self._escape = ""
            else:
                self._wrong = not _BEGUN.fullmatch(self._escape)
            return at + 1
        at = _end(_IN_TEXT, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escape = "\\"
        elif text[at] == '"':
            self._in_text = False
        else:
            self._wrong = True
        return at + 1

    def _mark(self, mark: str) -> None:
        coming = self._next
        value = coming in (_Next.VALUE, _Next.VALUE_OR_END)
        key = coming in (_Next.KEY, _Next.KEY_OR_END)
        if mark == '"' and (value or key):
            self._in_text = True
            self._next = _Next.COLON if key else _Next.AFTER
        elif mark in "{[" and value and len(self._open) < MAX_DEPTH:
            self._open.append(mark)
            self._next = _Next.KEY_OR_END if mark == "{" else _Next.VALUE_OR_END
        elif mark in _ENDS and self._open[-1:] == [_ENDS[mark]] and coming in (
            _Next.AFTER, _Next.KEY_OR_END, _Next.VALUE_OR_END
        ):  # fmt: skip
            self._open.pop()
            self._next = _Next.AFTER
        elif mark == "," and coming is _Next.AFTER and self._open:
            self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
        elif mark == ":" and coming is _Next.COLON:
            self._next = _Next.VALUE
        else:
            self._wrong = True

    def _end_scalar(self) -> None:
        if not self._scalar:
            return
        if self._next not in (_Next.VALUE, _Next.VALUE_OR_END) or not _WORD.fullmatch(self._scalar):
            self._wrong = True
        self._next = _Next.AFTER
        self._scalar = ""


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
