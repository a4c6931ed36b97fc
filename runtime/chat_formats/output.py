"""Collects the events of one answer.

Blanks beside a tag belong to the tag, as templates write them: those before a call, those after a call or after the
thinking, and those at both ends of the thinking. Every other character of the text becomes part of an event.
"""

from __future__ import annotations

from tensorwright.runtime.chat_formats.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
)


class _Trimmed:
    """A text whose blanks at the end are held back, and whose blanks at the beginning may be left out."""

    def __init__(self, drop_leading: bool):
        self.drop_leading = drop_leading
        self._blanks: list[str] = []
        self._gap = ""  # the blanks before a call, which become text only if text follows the call
        self._some = False  # whether there was text

    def add(self, text: str) -> str:
        """Returns the text that is certain now."""
        body = text.rstrip()
        if not body:
            self._blanks.append(text)
            return ""
        certain = "".join(self._blanks) + body
        self._blanks = [text[len(body) :]]
        if self.drop_leading:
            certain = (self._gap if self._some else "") + certain.lstrip()
        self._gap, self._some, self.drop_leading = "", True, False
        return certain

    def drop(self) -> None:
        """Leaves out the blanks that come next, and those that are held back unless further text comes."""
        self._gap += "".join(self._blanks)
        self._blanks, self.drop_leading = [], True

    def rest(self) -> str:
        """Returns the blanks that are held back, for they end the text."""
        blanks, self._blanks = self._blanks, []
        return "" if self.drop_leading else "".join(blanks)


class Output:
    """The events that a parser made and nobody took yet. thinking: whether the text that comes next is thinking, as far
    as is certain."""

    def __init__(self) -> None:
        self.calls = 0
        self.thinking = False
        self._events: list[Event] = []
        self._content = _Trimmed(drop_leading=False)
        self._thinking = _Trimmed(drop_leading=True)

    def text(self, text: str) -> None:
        if certain := self._content.add(text):
            self._events.append(TextDelta(certain))

    def reasoning(self, text: str) -> None:
        if certain := self._thinking.add(text):
            self._events.append(ReasoningDelta(certain))

    def begin_thinking(self) -> None:
        """Begins a part of the thinking, at the tag that opens it."""
        self.thinking = True

    def end_thinking(self) -> None:
        """Ends a part of the thinking. If another one comes, a line end stands between them."""
        self.thinking = False
        self._thinking.drop()
        self._content.drop()

    def next_thinking(self) -> None:
        """Begins a further part of the thinking, on a line of its own."""
        self._events.append(ReasoningDelta("\n"))

    def pass_tag(self) -> None:
        """Passes a tag of the content, whose blanks are no text either."""
        self._content.drop()

    def begin(self, name: str) -> None:
        """Begins a call."""
        self._content.drop()
        self._events.append(ToolCallBegin(self.calls, name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """Adds to the arguments of the newest call."""
        if text:
            self._events.append(ToolArgumentsDelta(self.calls - 1, text))

    def finish(self) -> None:
        """Gives out the blanks that end the content."""
        if rest := self._content.rest():
            self._events.append(TextDelta(rest))

    def taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events
