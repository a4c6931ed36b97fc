"""What a model writes: the text of an answer, in any format of calls and of thinking."""

from __future__ import annotations

import json

from tensorwright.runtime.chat_formats.chat_parser import ChatParser
from tensorwright.runtime.chat_formats.events import AssistantMessage, message_of
from tensorwright.runtime.chat_formats.registry import REASONING_FORMATS, TOOL_FORMATS
from tensorwright.runtime.chat_formats.tools import read_tools

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
TOOLS = read_tools(
    [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
        for name in ("f", "get_weather")
    ]
)
FORMS = [
    (tool, reasoning, opened)
    for tool in (None, *TOOL_FORMATS.values())
    for reasoning in (None, *REASONING_FORMATS.values())
    for opened in (False, True)
]


def answer(data: bytes) -> None:
    """data: a byte that chooses the formats, one that says how the text is cut, and the text. Every cut gives the same
    message, and every message can be sent."""
    if len(data) < 2:
        return
    form, size, text = FORMS[data[0] % len(FORMS)], data[1] % 16 + 1, data[2:].decode(errors="replace")
    message = _parsed(form, [text])
    assert _parsed(form, [text[at : at + size] for at in range(0, len(text), size)]) == message
    for call in message.tool_calls:
        assert call.name
    json.dumps([message.content, message.reasoning, *map(vars, message.tool_calls)], ensure_ascii=False).encode()


def _parsed(form: tuple, pieces: list[str]) -> AssistantMessage:  # type: ignore[type-arg]
    parser = ChatParser(form[0], form[1], TOOLS, form[2])
    return message_of([*(event for piece in pieces for event in parser.push(piece)), *parser.finish()])
