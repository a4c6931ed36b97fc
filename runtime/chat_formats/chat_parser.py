"""Parses the text of one answer, as it comes, into the events of events.py."""

from __future__ import annotations

from tensorwright.runtime.chat_formats.events import End, Event, TextDelta
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.reasoning import ReasoningFormat, read_thinking
from tensorwright.runtime.chat_formats.text_reader import Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import ToolFormat
from tensorwright.runtime.chat_formats.tools import Tools


class ChatParser:
    """The parser of one answer. `push` takes new text, `finish` says that no more comes.

    tool_format: None if the answer can have no calls. reasoning: None if the model does not think. opened: whether the
    prompt began the thinking.
    """

    def __init__(self, tool_format: ToolFormat | None, reasoning: ReasoningFormat | None, tools: Tools, opened: bool):
        self.past_thinking = reasoning is None
        """Whether no thinking can come any more."""
        self._plain = tool_format is None and reasoning is None
        self._reader = TextReader()
        self._output = Output()
        self._steps = self._read(tool_format, reasoning, tools, opened)
        next(self._steps)

    def push(self, text: str) -> list[Event]:
        """Returns the events that are certain now."""
        if self._plain:
            return [TextDelta(text)] if text else []
        if text:
            self._reader.feed(text)
            next(self._steps)
        return self._output.taken()

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the thinking."""
        return self._output.thinking

    def finish(self) -> list[Event]:
        """Returns the remaining events, the End last."""
        self._reader.ended = True
        for _ in self._steps:
            pass
        self._output.finish()
        return [*self._output.taken(), End(self._output.calls)]

    def _read(
        self, tool_format: ToolFormat | None, reasoning: ReasoningFormat | None, tools: Tools, opened: bool
    ) -> Steps[None]:
        reader, output = self._reader, self._output
        if reasoning is not None and reasoning.begin:
            yield from read_thinking(reader, output, reasoning, opened)
            self.past_thinking = True
        if tool_format is not None:
            yield from tool_format.parse(reader, output, tools)
        while there := (yield from reader.waiting()):  # what follows is content
            output.text(reader.take(there))
