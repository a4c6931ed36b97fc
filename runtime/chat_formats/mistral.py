"""The formats of Mistral's models after [TOOL_CALLS]: a JSON list of calls, and since v11 a name, [ARGS] and arguments.

Documented in https://github.com/mistralai/mistral-common (the tokenizers of each version).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from tensorwright.runtime.chat_formats.json_call import pass_arguments, read_calls
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, json_calls, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

BEGIN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
NAME = re.compile(r"[\w.\-]*")
MAX_NAME = 256
"""The most characters of a name or of an id."""


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    while (yield from prose(reader, output, (BEGIN,))):
        try:
            yield from reader.space()
            if (yield from reader.next_is("[", "{")):
                yield from read_calls(reader, output, tools)
            else:
                yield from _read_named(reader, output)
        except Malformed:
            output.text(reader.recorded())


def _read_named(reader: TextReader, output: Output) -> Steps[None]:
    name = yield from reader.run_of(NAME, MAX_NAME)
    if not name:
        raise Malformed
    if (yield from reader.accept(ID)):
        yield from reader.run_of(NAME, MAX_NAME)
    yield from reader.accept(ARGS)
    yield from reader.space()
    if not (yield from reader.next_is("{", '"')):
        raise Malformed
    reader.forget()
    output.begin(name)
    yield from pass_arguments(reader, output)


def list_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    one = json_calls(writer, tools)
    return CallGrammar(BEGIN, one, writer.text("["), writer.text(", "), writer.text("]"))


def named_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    args = writer.marker(ARGS)
    one = writer.one_of(f"{writer.text(tool.name)} {args} {writer.arguments(tool)}" for tool in tools)
    return CallGrammar(BEGIN, one, separator=writer.marker(BEGIN))


def short_id(name: str, number: int) -> str:
    """Returns nine letters and digits, for the templates refuse any other id."""
    return secrets.token_hex(5)[:9]


MISTRAL = ToolFormat(
    "mistral",
    lambda template: BEGIN in template and ARGS not in template,
    (BEGIN, ID, ARGS),
    parse,
    list_calls,
    call_id=short_id,
)
MISTRAL_NAMED = ToolFormat(
    "mistral_named",
    lambda template: BEGIN in template and ARGS in template,
    (BEGIN, ID, ARGS),
    parse,
    named_calls,
    call_id=short_id,
)
