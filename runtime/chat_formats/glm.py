"""The format of GLM 4.5 and later: a name, then pairs of <arg_key> and <arg_value>, between <tool_call> tags.

Documented in https://huggingface.co/zai-org/GLM-4.5 (chat_template.jinja).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorwright.runtime.chat_formats.bare_values import JsonObject, pairs_of, read_key, value_of
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
MARKERS = (BEGIN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)
NAME = re.compile(r"[\w.\-]*")
MAX_NAME = 256
"""The most characters of a name."""


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    while (yield from prose(reader, output, (BEGIN,))):
        try:
            yield from _read_call(reader, output, tools)
        except Malformed:
            output.text(reader.recorded())


def _read_call(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    yield from reader.space()
    name = yield from reader.run_of(NAME, MAX_NAME)
    yield from reader.space()
    if not name or not (yield from reader.next_is(KEY, CLOSE)):
        raise Malformed
    output.begin(name)
    reader.record()
    arguments = JsonObject(reader, output, tools.parameters.get(name, {}).get("properties", {}))
    if (yield from arguments.pairs(KEY, lambda: _read_key(reader), VALUE_END)):
        yield from reader.accept(CLOSE)
    reader.forget()


def _read_key(reader: TextReader) -> Steps[str]:
    key = yield from read_key(reader, KEY_END)
    yield from reader.space()
    yield from reader.expect(VALUE)
    return key


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    """Returns the grammar, which follows the schemas of all tools. Raises InvalidRequestError where it cannot."""
    one = writer.one_of(_call(writer, tool) for tool in tools)
    return CallGrammar(BEGIN, one, separator=f"{writer.text(chr(10))}? {writer.marker(BEGIN)}")


def _call(writer: LarkWriter, tool: Tool) -> str:
    newline = f"{writer.text(chr(10))}?"  # GLM 4.7 writes none

    def pair(key: str, value: str) -> str:
        return f"{writer.marker(KEY)} {key} {newline} {writer.marker(VALUE)} {value} {newline}"

    def known(key: str) -> str:
        return pair(f"{writer.text(key)} {writer.marker(KEY_END)}", value_of(writer, tool, key, VALUE_END))

    pairs = pairs_of(tool, known, pair(writer.until(KEY_END), writer.until(VALUE_END)))
    return f"{writer.text(tool.name)} {newline} {pairs} {writer.marker(CLOSE)}"


GLM = ToolFormat("glm", lambda template: KEY in template, MARKERS, parse, calls)
