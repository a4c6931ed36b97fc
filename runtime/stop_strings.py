"""Finding stop strings in text that comes in pieces of any size.

What is found does not depend on how the text is cut up: the first place where any of the strings is complete; of
several that end there, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """One request's. Text that may be the start of a stop string is held back until that is decided."""

    def __init__(self, stops: Sequence[str], include: bool):
        self._stops = stops
        self._include = include
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is certain to be output, and the stop string that ends it, if one is complete."""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, stop = min(found)
            self._held = ""
            return text[: end if self._include else start], stop
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """What was held back, for nothing follows it."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a longer stop string starts with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
