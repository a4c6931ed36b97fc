"""The formats that write all calls as one JSON list after a marker: Granite 3, Phi-4-mini, Hunyuan, Apriel and Jamba.

Documented in https://www.ibm.com/granite/docs/models/granite and https://huggingface.co/microsoft/Phi-4-mini-instruct,
tencent/Hunyuan-A13B-Instruct, ServiceNow-AI/Apriel-1.5-15b-Thinker and ai21labs/AI21-Jamba-Mini-1.6.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from tensorwright.runtime.chat_formats.json_call import read_calls
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, Parse, ToolFormat, json_calls, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

GRANITE_BEGIN = ("<|tool_call|>", "<tool_call>")
PHI_BEGIN, PHI_CLOSE = "<|tool_call|>", "<|/tool_call|>"
FUNCTOOLS = "functools"
TAGGED = ("<tool_calls>", "</tool_calls>")
ANSWER = ("<answer>", "</answer>")
"""What Hunyuan writes around an answer that it has thought about."""


def _parser(begin: tuple[str, ...], close: str = "", frame: tuple[str, ...] = ()) -> Parse:
    """Returns the parser of calls after any of the markers `begin`. frame: the tags around answers."""

    def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
        while (yield from prose(reader, output, begin, frame)):
            try:
                yield from reader.space()
                yield from read_calls(reader, output, tools)
                if close:
                    yield from reader.space()
                    yield from reader.accept(close)
            except Malformed:
                output.text(reader.recorded())

    return parse


def _list_of_calls(writer: LarkWriter, tools: Sequence[Tool], begin: str, close: str = "") -> CallGrammar:
    end = f"{writer.text(']')} {writer.marker(close) if close else ''}"
    return CallGrammar(begin, json_calls(writer, tools), writer.text("["), writer.text(", "), end)


def tagged_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _list_of_calls(writer, tools, *TAGGED)


def hunyuan_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return replace(tagged_calls(writer, tools), frames=(ANSWER,))


def granite_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _list_of_calls(writer, tools, GRANITE_BEGIN[0])


def write_granite(calls: Sequence[tuple[str, str]]) -> str:
    """Granite's template renders no calls: its makers put them into the content."""
    listed = ", ".join(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' for name, arguments in calls)
    return f"{GRANITE_BEGIN[0]}[{listed}]"


def phi_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _list_of_calls(writer, tools, PHI_BEGIN, PHI_CLOSE)


def functools_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    return _list_of_calls(writer, tools, FUNCTOOLS)


GRANITE = ToolFormat(
    "granite",
    lambda template: "<|tool_call|>" in template and "<|start_of_role|>" in template,
    GRANITE_BEGIN,
    _parser(GRANITE_BEGIN),
    granite_calls,
    write=write_granite,
)
PHI4 = ToolFormat(
    "phi4",
    lambda template: "<|tool|>" in template and "functools" not in template,
    (PHI_BEGIN, PHI_CLOSE),
    _parser((PHI_BEGIN, FUNCTOOLS), PHI_CLOSE),
    phi_calls,
)
PHI4_FUNCTOOLS = ToolFormat(
    "phi4_functools",
    lambda template: "functools[" in template,
    (FUNCTOOLS, PHI_BEGIN, PHI_CLOSE),
    _parser((PHI_BEGIN, FUNCTOOLS), PHI_CLOSE),
    functools_calls,
)
HUNYUAN = ToolFormat(
    "hunyuan",
    lambda template: TAGGED[0] in template and ANSWER[0] in template,
    (*TAGGED, *ANSWER),
    _parser(TAGGED[:1], TAGGED[1], ANSWER),
    hunyuan_calls,
    frames_answer=True,
)
TOOL_CALLS = ToolFormat(
    "tool_calls",
    lambda template: TAGGED[0] in template and ANSWER[0] not in template,
    TAGGED,
    _parser(TAGGED[:1], TAGGED[1]),
    tagged_calls,
)
