"""Defines the events into which the text of a chat's answer is parsed. Whoever shows answers reads these events.

The text of all deltas of a kind, joined, does not depend on how the answer was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextDelta:
    """New text of the answer's content."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """New text of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ToolCallBegin:
    """A call of a tool begins. index: the number of the call in the answer, from 0. The calls do not overlap."""

    index: int
    name: str


@dataclass(frozen=True)
class ToolArgumentsDelta:
    """New text of a call's arguments, which are JSON as the model wrote it, or as it was made of the model's format."""

    index: int
    text: str


@dataclass(frozen=True)
class End:
    """The answer is complete. calls: how many calls it has."""

    calls: int


Event = TextDelta | ReasoningDelta | ToolCallBegin | ToolArgumentsDelta | End


@dataclass
class ToolCall:
    """One call of a tool. arguments: JSON text, which is cut off if the answer is."""

    name: str
    arguments: str = ""


@dataclass
class AssistantMessage:
    """A whole answer of a chat. content: None if the answer has calls or reasoning and nothing else."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


def message_of(events: Iterable[Event]) -> AssistantMessage:
    """Returns the message that the events of one answer make together."""
    content: list[str] = []
    reasoning: list[str] = []
    names: list[str] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, TextDelta):
            content.append(event.text)
        elif isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        elif isinstance(event, ToolCallBegin):
            names.append(event.name)
            arguments.append([])
        elif isinstance(event, ToolArgumentsDelta):
            arguments[event.index].append(event.text)
    text = "".join(content)
    calls = [ToolCall(name, "".join(parts)) for name, parts in zip(names, arguments, strict=True)]
    only_others = not text and (calls or reasoning)
    return AssistantMessage(None if only_others else text, "".join(reasoning) or None, calls)
