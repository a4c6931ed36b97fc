"""The format of Command R7B, A and A Reasoning: a list of calls in JSON after <|START_ACTION|>, and a frame around
answers.

Documented in https://huggingface.co/CohereLabs/c4ai-command-r7b-12-2024 (its template for tools).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tensorwright.runtime.chat_formats.json_call import read_calls
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
FRAMES = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>"))
"""What stands around an answer, by the model's age."""
TAGS = tuple(tag for frame in FRAMES for tag in frame)


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    while (yield from prose(reader, output, (BEGIN,), TAGS)):
        try:
            yield from reader.space()
            yield from read_calls(reader, output, tools, "tool_name")
            yield from reader.space()
            yield from reader.accept(CLOSE)
        except Malformed:
            output.text(reader.recorded())


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    number, gap = writer.terminal("/[0-9]{1,4}/"), writer.terminal(r"/[\n ]{0,20}/")
    one = writer.one_of(
        f"{writer.text('{' + json.dumps('tool_call_id') + ': ' + chr(34))} {number} "
        f"{writer.text(chr(34) + ', ' + json.dumps('tool_name') + ': ' + json.dumps(tool.name) + ', ')} "
        f"{writer.text(json.dumps('parameters') + ': ')} {writer.arguments(tool)} {writer.text('}')}"
        for tool in tools
    )
    return CallGrammar(
        BEGIN,
        one,
        f"{writer.text('[')} {gap}",
        f"{writer.text(',')} {gap}",
        f"{gap} {writer.text(']')} {writer.marker(CLOSE)}",
        frames=FRAMES,
    )


COHERE = ToolFormat(
    "cohere",
    lambda template: BEGIN in template or any(begin in template for begin, _ in FRAMES),
    (BEGIN, CLOSE, *TAGS),
    parse,
    calls,
    frames_answer=True,
)
