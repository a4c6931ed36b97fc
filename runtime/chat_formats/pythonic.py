"""The format of Llama 3.2 and 4 as Python: the whole answer is [f(a=1, b="x"), g()], and nothing marks it.

<|python_start|> and <|python_end|> may stand around it. Documented in
https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/ ("zero-shot function calling").
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.chat_formats.bare_values import alone, known_keys
from tensorwright.runtime.chat_formats.json_value import is_json
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, CLOSE = "<|python_start|>", "<|python_end|>"
NAME = re.compile(r"[\w.\-]*")
KEY = re.compile(r"\w*")
MAX_NAME = 256
MAX_DEPTH = 50
"""The most brackets inside each other in a value."""
_PLAIN = re.compile(r"[^\"'()\[\]{},]*")
_QUOTED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    reader.record()
    try:
        yield from reader.space()
        yield from reader.accept(BEGIN)
        yield from reader.space()
        yield from reader.expect("[")
        while True:
            yield from reader.space()
            yield from _read_call(reader, output, tools)
            yield from reader.space()
            if (yield from reader.expect(",", "]")) == "]":
                break
        yield from reader.space()
        yield from reader.accept(CLOSE)
        reader.forget()
    except Malformed:
        output.text(reader.recorded())


def _read_call(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    name = yield from reader.run_of(NAME, MAX_NAME)
    if name not in tools.names:
        raise Malformed
    yield from reader.expect("(")
    output.begin(name)
    reader.record()
    opened = "{"
    try:
        yield from reader.space()
        while not (yield from reader.accept(")")):
            key = yield from reader.run_of(KEY, MAX_NAME)
            yield from reader.space()
            yield from reader.expect("=")
            yield from reader.space()
            value = _as_json((yield from _raw_value(reader)))
            output.arguments(f"{opened}{json.dumps(key, ensure_ascii=False)}: {value}")
            opened = ", "
            if (yield from reader.accept(",")):
                yield from reader.space()
            reader.record()
    finally:
        output.arguments("{}" if opened == "{" else "}")
    reader.record()


def _raw_value(reader: TextReader) -> Steps[str]:
    """Reads a value up to the comma or the bracket after it."""
    parts: list[str] = []
    depth, quote = 0, ""
    while (yield from reader.waiting()):
        if quote:
            parts.append(reader.take(reader.span(_QUOTED[quote])))
            mark = yield from reader.peek(1)
            if mark:
                parts.append(reader.take(2 if mark == "\\" and (yield from reader.peek(2)) else 1))
                quote = "" if mark == quote else quote
            continue
        parts.append(reader.take(reader.span(_PLAIN)))
        mark = yield from reader.peek(1)
        if mark in ("", ",", ")", "]", "}") and depth == 0:
            break
        depth += (mark in tuple("([{")) - (mark in tuple(")]}"))
        if depth > MAX_DEPTH:
            raise Malformed
        quote = mark if mark in tuple("\"'") else ""
        parts.append(reader.take(1))
    return "".join(parts)


def _as_json(raw: str) -> str:
    """Returns a Python literal as JSON. JSON itself is taken as it is. Raises Malformed for anything else."""
    if is_json(raw):
        return raw.strip()
    try:
        text = json.dumps(ast.literal_eval(raw.strip()), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Malformed from error
    return text


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    """Returns the grammar. Values are JSON in it, which the parser takes as well as Python. Raises InvalidRequestError
    for a schema that it cannot follow."""
    one = writer.one_of(_call(writer, tool) for tool in tools)
    other = r"([^\[\s](.|\n)*)?"
    return CallGrammar("", one, writer.text("["), writer.text(", "), writer.text("]"), other)


def _call(writer: LarkWriter, tool: Tool) -> str:
    """Returns the expression of one call: the arguments in the schema's order, each but the first after a comma."""
    if not tool.strict:
        argument = f"{writer.terminal(f'/[A-Za-z_]{chr(92)}w*/')} {writer.text('=')} {writer.json({}, tool.name)}"
        return f"{writer.text(tool.name + '(')} ({argument} ({writer.text(', ')} {argument})*)? {writer.text(')')}"
    required = frozenset(tool.parameters.get("required", []))
    after = {True: "", False: ""}  # the expression of the arguments that follow, with and without one before them
    for key in reversed(list(known_keys(tool))):
        if not KEY.fullmatch(key):
            raise InvalidRequestError(
                f"tools: this model writes Python, where the parameter {key!r:.80} of {tool.name!r} is no name"
            )
        value = writer.json(alone(tool, key), tool.name)
        argument = f"{writer.text(key + '=')} {value}"
        rest = after[True]
        after = {
            before: writer.rule(
                f"{writer.text(', ') if before else ''} {argument} {rest}"
                + ("" if key in required else f" | {after[before]}")
            )
            for before in (True, False)
        }
    return f"{writer.text(tool.name + '(')} {after[False]} {writer.text(')')}"


def recognises(template: str) -> bool:
    llama = "<|start_header_id|>" in template or "<|header_start|>" in template
    return llama and ("[func_name" in template or BEGIN in template)


PYTHONIC = ToolFormat("pythonic", recognises, (BEGIN, CLOSE), parse, calls)
