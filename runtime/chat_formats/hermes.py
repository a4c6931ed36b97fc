"""The format of Hermes 2 Pro, Qwen 2.5 and 3, Granite 4 and many others: JSON between <tool_call> and </tool_call>.

ERNIE 4.5 Thinking writes the same, and a frame around answers. Documented in
https://github.com/NousResearch/Hermes-Function-Calling and
https://huggingface.co/baidu/ERNIE-4.5-21B-A3B-Thinking (chat_template.jinja).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorwright.runtime.chat_formats.json_call import read_call
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, as_written, json_calls, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<tool_call>", "</tool_call>"
RESPONSE = ("<response>", "</response>")
"""What ERNIE writes around an answer."""


def recognises(template: str) -> bool:
    """GLM and Qwen3-Coder write the same tags around XML, and Apriel writes <tool_calls> around a list."""
    text = as_written(template)
    others = ("<arg_key>", "<function=", "<tool_calls>")
    return BEGIN in text and '"arguments"' in text and not any(other in text for other in others)


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    yield from _parse(reader, output, tools, ())


def parse_ernie(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    yield from _parse(reader, output, tools, RESPONSE)


def _parse(reader: TextReader, output: Output, tools: Tools, frame: Sequence[str]) -> Steps[None]:
    while (yield from prose(reader, output, (BEGIN,), frame)):
        try:
            yield from reader.space()
            yield from read_call(reader, output, tools)
            yield from reader.space()
            yield from reader.accept(CLOSE)
        except Malformed:
            output.text(reader.recorded())


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    newline = writer.text("\n")
    one = f"{newline} {json_calls(writer, tools)} {newline} {writer.marker(CLOSE)}"
    return CallGrammar(BEGIN, one, separator=f"{newline} {writer.marker(BEGIN)}")


HERMES = ToolFormat("hermes", recognises, (BEGIN, CLOSE), parse, calls)
ERNIE = ToolFormat(
    "ernie",
    lambda template: BEGIN in template and RESPONSE[1] in template and "<tool_output>" in template,
    (BEGIN, CLOSE, *RESPONSE),
    parse_ernie,
    lambda writer, tools: replace(calls(writer, tools), frames=(RESPONSE,)),
    frames_answer=True,
)
