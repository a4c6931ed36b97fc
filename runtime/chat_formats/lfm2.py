"""The format of LFM2: a list of calls in Python between two tags, or in JSON where the prompt asks for JSON.

Documented in https://huggingface.co/LiquidAI/LFM2-1.2B ("Tool Use").
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.chat_formats import json_call, pythonic
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
OF_TOOLS = "<|tool_list_start|>"
"""The tag that stands before the tools in the templates of LFM2, which do not render calls themselves."""


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    while (yield from prose(reader, output, (BEGIN,))):
        try:
            yield from reader.space()
            if (yield from reader.peek(2)) in ("[{", '{"'):
                yield from json_call.read_calls(reader, output, tools)
            else:
                yield from pythonic.read_calls(reader, output, None)
            yield from reader.space()
            yield from reader.accept(CLOSE)
            reader.forget()
        except Malformed:
            output.text(reader.recorded())


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    end = f"{writer.text(']')} {writer.marker(CLOSE)}"
    return CallGrammar(BEGIN, pythonic.one_call(writer, tools), writer.text("["), writer.text(", "), end)


LFM2 = ToolFormat("lfm2", lambda template: BEGIN in template or OF_TOOLS in template, (BEGIN, CLOSE), parse, calls)
