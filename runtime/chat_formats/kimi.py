"""The format of Kimi K2: an id that holds the name, and the arguments as JSON, between special tokens.

Documented in https://huggingface.co/moonshotai/Kimi-K2-Instruct (docs/tool_call_guidance.md, chat_template.jinja).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorwright.runtime.chat_formats.json_call import pass_arguments
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, read_section
from tensorwright.runtime.chat_formats.tools import Tool, Tools

ALL_BEGIN, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MARKERS = (ALL_BEGIN, ALL_END, BEGIN, ARGUMENTS, END)
ID = re.compile(r"[\w.\-:]*")
NUMBERED = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
"""An id. Some quantized models leave out its first or its last part."""
MAX_ID = 300
"""The most characters of an id."""


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    yield from read_section(reader, output, (ALL_BEGIN, BEGIN, ALL_END), _read_call)


def _read_call(reader: TextReader, output: Output) -> Steps[None]:
    yield from reader.space()
    found = NUMBERED.fullmatch((yield from reader.run_of(ID, MAX_ID)))
    yield from reader.space()
    yield from reader.expect(ARGUMENTS)
    yield from reader.space()
    if found is None or not (yield from reader.next_is("{", '"')):
        raise Malformed
    reader.forget()
    output.begin(found[1])
    yield from pass_arguments(reader, output)
    yield from reader.space()
    yield from reader.accept(END)


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    number = writer.terminal("/[0-9]{1,4}/")
    one = writer.one_of(
        f"{writer.text(call_id(tool.name, ''))} {number} {writer.marker(ARGUMENTS)} "
        f"{writer.arguments(tool)} {writer.marker(END)}"
        for tool in tools
    )
    begin = writer.marker(BEGIN)
    return CallGrammar(ALL_BEGIN, one, begin, begin, writer.marker(ALL_END))


def call_id(name: str, number: int | str) -> str:
    """Returns the id of a call. The template renders it, and the model knows ids of this form alone."""
    return f"functions.{name}:{number}"


KIMI = ToolFormat("kimi_k2", lambda template: ALL_BEGIN in template, MARKERS, parse, calls, call_id=call_id)
