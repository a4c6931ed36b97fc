"""The format of Qwen3-Coder and Qwen 3.5: <function=name> and <parameter=key> tags between <tool_call> tags.

Documented in https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct (chat_template.jinja).
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.chat_formats.bare_values import JsonObject, pairs_of, read_key, value_of
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TAG_END = ">"


def recognises(template: str) -> bool:
    """Seed-OSS writes the same between tags of another name."""
    return FUNCTION in template and PARAMETER in template and BEGIN in template


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    """Some models leave out the outer tags, so a function alone is a call too."""
    while found := (yield from prose(reader, output, (BEGIN, FUNCTION))):
        try:
            yield from _read_call(reader, output, tools, found == BEGIN)
        except Malformed:
            output.text(reader.recorded())


def _read_call(reader: TextReader, output: Output, tools: Tools, tagged: bool) -> Steps[None]:
    if tagged:
        yield from reader.space()
        yield from reader.expect(FUNCTION)
    name = yield from read_key(reader, TAG_END)
    if not name or "\n" in name:
        raise Malformed
    output.begin(name)
    reader.record()
    arguments = JsonObject(reader, output, tools.parameters.get(name, {}).get("properties", {}), lines=True)
    try:
        yield from reader.space()
        while (yield from reader.accept(PARAMETER)):
            key = yield from read_key(reader, TAG_END)
            if not (yield from arguments.pair(key, PARAMETER_END)):
                reader.forget()
                return
            reader.record()
            yield from reader.space()
    except Malformed:
        arguments.end()
        raise
    arguments.end()
    yield from reader.accept(FUNCTION_END)
    yield from reader.space()
    yield from reader.accept(CLOSE)
    reader.forget()


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    """Returns the grammar, which follows the schemas of all tools. Raises InvalidRequestError where it cannot."""
    choices = [_call(writer, tool) for tool in tools]
    one = f"{writer.text(chr(10))} {writer.one_of(choices)} {writer.text(chr(10))} {writer.marker(CLOSE)}"
    return CallGrammar(BEGIN, one, separator=f"{writer.text(chr(10))} {writer.marker(BEGIN)}")


def _call(writer: LarkWriter, tool: Tool) -> str:
    newline = writer.text("\n")

    def known(key: str) -> str:
        value = value_of(writer, tool, key, PARAMETER_END, "\n")
        return f"{writer.text(f'{PARAMETER}{key}>')} {newline} {value} {newline}"

    key = writer.terminal(r"/[^>\n]{1,100}/")
    any_pair = (
        f"{writer.text(PARAMETER)} {key} {writer.text(TAG_END)} {newline} {writer.until(PARAMETER_END)} {newline}"
    )
    head = writer.text(f"{FUNCTION}{tool.name}{TAG_END}")
    return f"{head} {newline} {pairs_of(tool, known, any_pair)} {writer.text(FUNCTION_END)}"


QWEN3_CODER = ToolFormat("qwen3_coder", recognises, (BEGIN, CLOSE), parse, calls)
