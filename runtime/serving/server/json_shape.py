"""Counts how much a JSON text holds before it is parsed.

A parser makes an object of every value, and holds the interpreter's lock until it has finished: 90 ms for a list of two
million ones, 500 ms for a million lists, in 4 MiB each. This module therefore refuses a text that holds too much by
counting brackets and commas outside of strings. It counts piece by piece, and another thread may run after every piece.
"""

from __future__ import annotations

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.request_bounds import BODY_DEPTH, BODY_PARTS, BODY_VALUES

SMALL_BODY = 2**16  # bytes that are counted, parsed and validated within a few milliseconds
PIECE = 2**16  # bytes
_OPENING, _CLOSING = b"[{", b"]}"
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)


def check_shape(text: bytes) -> None:
    """Raises InvalidRequestError if the text is too deep or holds too much. It does not check that the text is JSON."""
    shape = _Shape()
    inside, left = False, b""  # inside: whether the next byte is in a string
    for start in range(0, len(text), PIECE):
        piece = left + text[start : start + PIECE]
        left = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # The next piece has the escaped byte.
        plain = piece[: len(piece) - len(left)].replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = plain.split(b'"')
        shape.add(b"".join(texts[inside::2]), quotes=len(texts) - 1)
        inside ^= len(texts) % 2 == 0


class _Shape:
    def __init__(self) -> None:
        self._depth = self._brackets = self._quotes = self._values = 0

    def add(self, outside: bytes, quotes: int) -> None:
        """Counts one piece. outside: the bytes outside of strings. quotes: the number of quotes that begin or end a
        string."""
        self._brackets += outside.count(b"[") + outside.count(b"{")
        self._quotes += quotes
        self._values += outside.count(b",")
        if self._brackets + self._quotes // 2 > BODY_PARTS:
            raise _wrong(f"at most {BODY_PARTS} lists, objects and texts, got more")
        if self._values > BODY_VALUES:
            raise _wrong(f"at most {BODY_VALUES} values, got more")
        for bracket in outside.translate(None, _NO_BRACKETS):
            self._depth += 1 if bracket in _OPENING else -1
            if self._depth > BODY_DEPTH:
                raise _wrong(f"at most {BODY_DEPTH} lists and objects inside each other, got more")
            if self._depth < 0:
                raise _wrong("as many opening brackets as closing ones, got fewer")


def _wrong(must: str) -> InvalidRequestError:
    return InvalidRequestError(f"the body must have {must}")
