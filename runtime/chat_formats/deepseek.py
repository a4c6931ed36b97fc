"""The formats of DeepSeek V3 and R1 and of V3.1: calls between special tokens whose names contain a wide bar.

V3 writes the word "function", the name, and the arguments as a block of code; V3.1 writes the name and the arguments.
Documented in https://huggingface.co/deepseek-ai/DeepSeek-V3.1 and .../DeepSeek-V3-0324.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorwright.runtime.chat_formats.json_call import pass_arguments
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import SPACE, Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, read_section
from tensorwright.runtime.chat_formats.tools import Tool, Tools

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = (ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)
CODE, CODE_END = "```json\n", "\n```"
NAME = re.compile(r"[\w.\-]*")
MAX_NAME = 256


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    yield from read_section(reader, output, (ALL_BEGIN, BEGIN, ALL_END), _read_call)


def _read_call(reader: TextReader, output: Output) -> Steps[None]:
    yield from reader.space()
    name = yield from reader.run_of(NAME, MAX_NAME)
    yield from reader.space()
    yield from reader.expect(SEPARATOR)
    in_code = name == "function" and not (yield from reader.next_is("{"))
    if in_code:
        yield from reader.space()
        name = yield from reader.run_of(NAME, MAX_NAME)
        yield from reader.run_of(SPACE)
        yield from reader.expect(CODE)
    yield from reader.space()
    if not name or not (yield from reader.next_is("{", '"')):
        raise Malformed
    reader.forget()
    output.begin(name)
    yield from pass_arguments(reader, output)
    yield from reader.space()
    if in_code:
        yield from reader.accept("```")
        yield from reader.space()
    yield from reader.accept(END)


def _calls(writer: LarkWriter, tools: Sequence[Tool], before: str, between: str, after: str) -> CallGrammar:
    """Returns the grammar of calls that write `before` the name, `between` name and arguments, and `after` both."""
    head = f"{writer.text(before)} {writer.marker(SEPARATOR)}" if before else ""
    choices = (
        f"{head} {writer.text(tool.name)} {between} {writer.arguments(tool)} {writer.text(after)} {writer.marker(END)}"
        for tool in tools
    )
    begin = writer.marker(BEGIN)
    return CallGrammar(ALL_BEGIN, writer.one_of(choices), begin, f"{writer.text(NEWLINE[after])} {begin}",
                       writer.marker(ALL_END))  # fmt: skip


NEWLINE = {"": "", CODE_END: "\n"}
"""What stands between two calls, by what ends the arguments."""


def block_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _calls(writer, tools, "function", writer.text("\n" + CODE), CODE_END)


def plain_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _calls(writer, tools, "", writer.marker(SEPARATOR), "")


DEEPSEEK_V3 = ToolFormat(
    "deepseek_v3",
    lambda template: ALL_BEGIN in template and "```json" in template,
    MARKERS,
    parse,
    block_calls,
)
DEEPSEEK_V31 = ToolFormat(
    "deepseek_v31",
    lambda template: ALL_BEGIN in template and "```json" not in template,
    MARKERS,
    parse,
    plain_calls,
)
