"""The format of Llama 3.2 and 4 as Python: the whole answer is [f(a=1, b="x"), g()], and nothing marks it.

<|python_start|> and <|python_end|> may stand around it. Documented in
https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/ ("zero-shot function calling").
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.chat_formats.bare_values import alone, joined_pairs
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.python_literal import read_text, read_value, text_begins
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<|python_start|>", "<|python_end|>"
NAME = re.compile(r"[\w.\-]*")
KEY = re.compile(r"\w*")
MAX_NAME = 256


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    reader.record()
    try:
        yield from reader.space()
        yield from reader.accept(BEGIN)
        yield from reader.space()
        yield from read_calls(reader, output, tools.names)
        yield from reader.space()
        yield from reader.accept(CLOSE)
        reader.forget()
    except Malformed:
        output.text(reader.recorded())


def read_calls(reader: TextReader, output: Output, known: Container[str] | None) -> Steps[None]:
    """Reads a list of calls. known: the names that are calls, None for any. Raises Malformed, with the reader's record:
    everything if the first call is none, and otherwise what follows the last argument that is complete."""
    yield from reader.expect("[")
    while True:
        yield from reader.space()
        yield from read_call(reader, output, known)
        yield from reader.space()
        if (yield from reader.expect(",", "]")) == "]":
            return


def read_call(reader: TextReader, output: Output, known: Container[str] | None) -> Steps[None]:
    """Reads one call, as `read_calls` does."""
    name = yield from reader.run_of(NAME, MAX_NAME)
    if not name or (known is not None and name not in known):
        raise Malformed
    yield from reader.expect("(")
    output.begin(name)
    reader.record()
    before = "{"  # what stands before the next argument
    try:
        yield from reader.space()
        while not (yield from reader.accept(")")):
            key = yield from reader.run_of(KEY, MAX_NAME)
            yield from reader.space()
            if not key or not (yield from reader.accept("=")):
                raise Malformed
            yield from reader.space()
            head = f"{before}{json.dumps(key, ensure_ascii=False)}: "
            if (yield from text_begins(reader)):
                output.arguments(head)
                if not (yield from read_text(reader, output.arguments)):
                    reader.record()
                    return  # The answer was cut off, and so are the arguments.
            else:
                output.arguments(head + (yield from read_value(reader)))
            before = ", "
            reader.record()
            yield from reader.space()
            if not (yield from reader.accept(",")):
                yield from reader.expect(")")
                break
            yield from reader.space()
            reader.record()
    except Malformed:
        output.arguments(_end(before))
        raise
    output.arguments(_end(before))
    reader.record()


def _end(before: str) -> str:
    """Returns the end of the arguments."""
    return "{}" if before == "{" else "}"


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    """Returns the grammar. Values are JSON in it, which the parser takes as well as Python. Raises InvalidRequestError
    for a schema that it cannot follow."""
    one = one_call(writer, tools)
    other = r"([^\[\s](.|\n)*)?"
    return CallGrammar("", one, writer.text("["), writer.text(", "), writer.text("]"), other)


def one_call(writer: LarkWriter, tools: Sequence[Tool]) -> str:
    """Returns the expression of a call of any of the tools. Raises InvalidRequestError as `calls` does."""
    return writer.one_of(_call(writer, tool) for tool in tools)


def _call(writer: LarkWriter, tool: Tool) -> str:
    """Returns the expression of one call: the arguments in the schema's order, each but the first after a comma."""
    if not tool.strict:
        argument = f"{writer.terminal(f'/[A-Za-z_]{chr(92)}w*/')} {writer.text('=')} {writer.json({}, tool.name)}"
        return f"{writer.text(tool.name + '(')} ({argument} ({writer.text(', ')} {argument})*)? {writer.text(')')}"

    def known(key: str) -> str:
        if not KEY.fullmatch(key):
            raise InvalidRequestError(
                f"tools: this model writes Python, where the parameter {key!r:.80} of {tool.name!r} is no name"
            )
        return f"{writer.text(key + '=')} {writer.json(alone(tool, key), tool.name)}"

    return f"{writer.text(tool.name + '(')} {joined_pairs(writer, tool, known, ', ')} {writer.text(')')}"


def recognises(template: str) -> bool:
    """Templates of others show Llama's list of calls too, Gemma 3's with vLLM say."""
    llama = "<|start_header_id|>" in template or "<|header_start|>" in template
    return "[func_name" in template or (llama and BEGIN in template)


PYTHONIC = ToolFormat("pythonic", recognises, (BEGIN, CLOSE), parse, calls)
