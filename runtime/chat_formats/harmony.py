"""The format of gpt-oss: every message has a channel, which says whether it is thinking, a call, or the answer.

Documented in https://github.com/openai/harmony (docs/format.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat
from tensorwright.runtime.chat_formats.tools import Tool, Tools

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
MAX_HEADER = 1024
"""The most characters before a message."""
RECIPIENT = re.compile(r"\bto=functions\.([\w.\-]+)")
TO = "to=functions."
"""What the first message may begin with, for the prompt ends with the beginning of its header."""
THINKING = "analysis"


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    thought = False
    while True:
        reader.record()
        yield from reader.space()
        if not (yield from reader.next_is(START, CHANNEL, TO)):
            output.text(reader.recorded())
            return
        try:
            channel, name = yield from _read_header(reader)
        except Malformed:
            output.text(reader.recorded())
            return
        reader.forget()
        if name and tools.callable:
            output.begin(name)
            if not (yield from _pass_body(reader, output.arguments)):
                output.arguments("{}")
        elif channel == THINKING:
            if thought:
                output.next_thinking()
            thought = True
            output.begin_thinking()
            yield from _pass_body(reader, output.reasoning)
            output.end_thinking()
        else:
            yield from _pass_body(reader, output.text)


def _read_header(reader: TextReader) -> Steps[tuple[str, str]]:
    """Returns the channel of a message, and the name of the function that it calls or ""."""
    parts: list[str] = []
    length = 0
    while True:
        text, marker = yield from reader.before(MARKERS)
        parts.append(text)
        length += len(text)
        if length > MAX_HEADER or not (text or marker) or marker in (END, CALL, RETURN):
            raise Malformed
        if marker:
            parts.append(reader.take(len(marker)))
        if marker == MESSAGE:
            break
    header = "".join(parts)
    recipient = RECIPIENT.search(header)
    channel = header.partition(CHANNEL)[2].split("<")[0].split()
    return (channel[0] if channel else "final"), (recipient[1] if recipient else "")


def _pass_body(reader: TextReader, show: Callable[[str], None]) -> Steps[bool]:
    """Passes a message's text to `show`, up to the marker that ends it. Returns whether there was any."""
    some = False
    while True:
        text, marker = yield from reader.before((END, CALL, RETURN, START, CHANNEL))
        if text:
            some = True
            show(text)
        if marker in (END, CALL, RETURN):
            reader.take(len(marker))
        if marker or not text:
            return some


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    """Returns the grammar of a call alone. The model's token after a call ends the answer."""
    choices = (
        f"{writer.text(f'commentary to=functions.{tool.name} ')} {writer.marker(CONSTRAIN)} {writer.text('json')} "
        f"{writer.marker(MESSAGE)} {writer.arguments(tool)}"
        for tool in tools
    )
    return CallGrammar("", f"{writer.marker(CHANNEL)} {writer.one_of(choices)}")


def thinking(writer: LarkWriter, budget: int | None) -> str:
    """Returns the expression of one message of thinking, and of the start of the next message."""
    head = f"{writer.marker(CHANNEL)} {writer.text(THINKING)} {writer.marker(MESSAGE)}"
    return f"({head} {writer.bounded(END, budget)} {writer.marker(START)} {writer.text('assistant')})?"


def remarks(writer: LarkWriter) -> str:
    """Returns the expression of remarks for the reader, which may come before calls and before the answer."""
    head = f"{writer.marker(CHANNEL)} {writer.text('commentary')} {writer.marker(MESSAGE)}"
    return f"({head} {writer.until(END)} {writer.marker(START)} {writer.text('assistant')})*"


def final(writer: LarkWriter) -> str:
    """Returns the expression of what comes before the answer's own text."""
    return f"{writer.marker(CHANNEL)} {writer.text('final')} {writer.marker(MESSAGE)}"


HARMONY = ToolFormat(
    "harmony",
    lambda template: CHANNEL in template and MESSAGE in template,
    MARKERS,
    parse,
    calls,
    frames_answer=True,
)
