"""Reads the text of an answer that arrives in pieces of any size.

A parser is a generator: it yields when it needs more text, and goes on when there is some. Whatever it does depends on
the text alone, never on the cuts. What was read can be recorded, so that a parser can give it back as plain text when
it turns out to be no call. Every character is read once, so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A part of a parser. It yields when it needs more text, and returns a value at its end."""

SPACE = re.compile(r"[ \t\r\n]*")
"""The blanks that may stand between the parts of a call."""


class Malformed(Exception):
    """The text is no call after all."""


@lru_cache(maxsize=64)
def _search(markers: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    """Returns the pattern of the markers, all their proper prefixes, and the length of the longest prefix."""
    for marker in markers:
        clash = [other for other in markers if other != marker and other.startswith(marker)]
        assert not clash, f"{marker!r} begins {clash}"
    prefixes = frozenset(marker[:length] for marker in markers for length in range(1, len(marker)))
    return re.compile("|".join(map(re.escape, markers))), prefixes, max(map(len, markers)) - 1


class TextReader:
    """The text that has come and was not read yet. `ended` says that no more will come."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """Adds new text. What is unread is short, since parsers read what they have understood."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def record(self) -> None:
        """Starts to record what is read, after forgetting an older record."""
        self._record = []

    def recorded(self) -> str:
        """Ends the record, and returns it."""
        record, self._record = self._record, None
        return "".join(record or ())

    def forget(self) -> None:
        """Ends the record, for what it holds is certainly a call."""
        self._record = None

    def take(self, count: int) -> str:
        """Reads the next `count` characters, or as many as there are now."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._record is not None:
            self._record.append(text)
        return text

    def waiting(self) -> Steps[int]:
        """Waits until there is unread text, and returns its length; 0 at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return len(self._text) - self._at

    def view(self) -> tuple[str, int]:
        """Returns a text and the place in it where the unread text begins. To copy the unread text at each step would
        take time that grows with the square of a long piece."""
        return self._text, self._at

    def span(self, pattern: re.Pattern[str]) -> int:
        """Returns how many of the next characters match. pattern: one that matches the empty text too."""
        found = pattern.match(self._text, self._at)
        assert found is not None, "the pattern matches the empty text"
        return found.end() - self._at

    def peek(self, count: int) -> Steps[str]:
        """Returns the next `count` characters without reading them, fewer only at the end."""
        while len(self._text) - self._at < count and not self.ended:
            yield
        return self._text[self._at : self._at + count]

    def next_is(self, *literals: str) -> Steps[str]:
        """Returns the literal with which the text goes on, without reading it; "" if it is none of them."""
        size = 0
        while True:
            size += 1
            seen = yield from self.peek(size)
            if seen in literals:
                return seen
            if len(seen) < size or not any(literal.startswith(seen) for literal in literals):
                return ""

    def accept(self, *literals: str) -> Steps[str]:
        """Reads one of the literals if the text goes on with it, and returns it; "" otherwise."""
        found = yield from self.next_is(*literals)
        return self.take(len(found))

    def expect(self, *literals: str) -> Steps[str]:
        """Reads one of the literals. Raises Malformed if the text goes on with something else."""
        found = yield from self.accept(*literals)
        if not found:
            raise Malformed
        return found

    def run_of(self, pattern: re.Pattern[str], most: int | None = None) -> Steps[str]:
        """Reads the characters that match the pattern, which matches any number of characters of one set.

        Raises Malformed for more than `most` characters.
        """
        parts: list[str] = []
        length = 0
        while there := (yield from self.waiting()):
            count = self.span(pattern)
            parts.append(self.take(count))
            length += count
            if most is not None and length > most:
                raise Malformed
            if count < there:
                break
        return "".join(parts)

    def space(self) -> Steps[str]:
        return (yield from self.run_of(SPACE))

    def before(self, markers: Sequence[str], most: int | None = None) -> Steps[tuple[str, str]]:
        """Reads text up to the first of the markers, at most `most` characters.

        Returns the text that is certain now, and the marker that follows it. The marker is not read. It is "" if none
        has come yet: then there may be more text, and the caller calls again. At the end of all text both are "".
        """
        pattern, prefixes, longest = _search(tuple(markers))
        while there := (yield from self.waiting()):
            if found := pattern.search(self._text, self._at):
                count = found.start() - self._at
                return (self.take(count), found[0]) if most is None or count <= most else (self.take(most), "")
            held = 0
            if not self.ended:
                lengths = range(min(longest, there), 0, -1)
                held = next((length for length in lengths if self._text[-length:] in prefixes), 0)
            if held < there:
                return self.take(there - held if most is None else min(there - held, most)), ""
            yield
        return "", ""
