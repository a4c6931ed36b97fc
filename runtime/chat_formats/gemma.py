"""The formats of Gemma: call:f{a:1} between tags, where a tag stands for quotes, and Gemma 3's code in Python.

FunctionGemma and Gemma 4 differ in their tags. Documented in
https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices,
https://ai.google.dev/gemma/docs/capabilities/function-calling and Gemma 3n's template in google-ai-edge/LiteRT-LM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorwright.runtime.chat_formats import pythonic
from tensorwright.runtime.chat_formats.bare_values import alone, is_text, joined_pairs, value_of
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.python_literal import JSON_NUMBER, MAX_DEPTH, WORDS, read_text
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools

CALL = "call:"
NAME = re.compile(r"[\w.\-]*")
BARE = re.compile(r'[^,:\[\]{}<"]*')
MAX_BARE = 1024
"""The most characters of a name, and of a key or a value without quotes."""
CODE, CODE_END = "```tool_code", "```"


@dataclass(frozen=True)
class Tags:
    """The tags of one model. begin, close: around a call. quote: before and after each text."""

    begin: str
    close: str
    quote: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, self.close, self.quote)

    def parse(self, reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
        while (yield from prose(reader, output, (self.begin,))):
            try:
                yield from self._read_call(reader, output)
            except Malformed:
                output.text(reader.recorded())

    def _read_call(self, reader: TextReader, output: Output) -> Steps[None]:
        yield from reader.space()
        yield from reader.expect(CALL)
        name = yield from reader.run_of(NAME, MAX_BARE)
        if not name:
            raise Malformed
        yield from reader.expect("{")
        output.begin(name)
        reader.record()
        before = "{"
        try:
            yield from reader.space()
            while not (yield from reader.accept("}")):
                keys: list[str] = []
                yield from self._read_key(reader, keys)
                head = before + "".join(keys)
                if (yield from reader.next_is(self.quote)):
                    output.arguments(head)
                    if not (yield from self._read_quoted(reader, output.arguments)):
                        reader.forget()
                        return  # The answer was cut off, and so are the arguments.
                else:
                    parts: list[str] = []
                    yield from self._read_value(reader, parts, 0)
                    output.arguments(head + "".join(parts))
                before = ", "
                reader.record()
                yield from reader.space()
                if not (yield from reader.accept(",")):
                    yield from reader.expect("}")
                    break
                yield from reader.space()
                reader.record()
        except Malformed:
            output.arguments("{}" if before == "{" else "}")
            raise
        output.arguments("{}" if before == "{" else "}")
        yield from reader.space()
        yield from reader.accept(self.close)
        reader.forget()

    def _read_quoted(self, reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
        """Reads a text between two quotes, and passes it on as JSON. Returns whether the text ended."""
        reader.take(len(self.quote))
        put('"')
        while True:
            text, marker = yield from reader.before((self.quote,))
            put(json.dumps(text, ensure_ascii=False)[1:-1])
            if marker:
                reader.take(len(marker))
                put('"')
                return True
            if not text:
                return False

    def _read_some_text(self, reader: TextReader, parts: list[str]) -> Steps[bool]:
        """Reads a text inside a value, in the model's quotes or in JSON's. Returns whether there is one."""
        found = yield from reader.next_is(self.quote, '"')
        if found:
            read = read_text(reader, parts.append) if found == '"' else self._read_quoted(reader, parts.append)
            if not (yield from read):
                raise Malformed
        return bool(found)

    def _read_key(self, reader: TextReader, parts: list[str]) -> Steps[None]:
        """Reads a key and the colon after it."""
        if not (yield from self._read_some_text(reader, parts)):
            key = yield from reader.run_of(BARE, MAX_BARE)
            if not key.strip():
                raise Malformed
            parts.append(json.dumps(key.strip(), ensure_ascii=False))
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        parts.append(": ")

    def _read_value(self, reader: TextReader, parts: list[str], depth: int) -> Steps[None]:
        """Reads a value as JSON. Raises Malformed for one that is cut off or too deep."""
        if (yield from self._read_some_text(reader, parts)):
            return
        mark = yield from reader.accept("[", "{")
        if not mark:
            parts.append(_bare((yield from reader.run_of(BARE, MAX_BARE))))
            return
        if depth == MAX_DEPTH:
            raise Malformed
        closing = "]" if mark == "[" else "}"
        parts.append(mark)
        yield from reader.space()
        more = not (yield from reader.accept(closing))
        while more:
            if mark == "{":
                yield from self._read_key(reader, parts)
            yield from self._read_value(reader, parts, depth + 1)
            yield from reader.space()
            more = (yield from reader.expect(",", closing)) == ","
            parts.append(", " if more else "")
            yield from reader.space()
        parts.append(closing)

    def calls(self, writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
        """Returns the grammar. Texts inside lists and objects are JSON in it, which the parser takes as well. Raises
        InvalidRequestError for a schema that it cannot follow."""
        close = writer.marker(self.close)
        one = writer.one_of(f"{self._call(writer, tool)} {close}" for tool in tools)
        return CallGrammar(self.begin, one, separator=writer.marker(self.begin))

    def _call(self, writer: LarkWriter, tool: Tool) -> str:
        head, end = writer.text(f"{CALL}{tool.name}{{"), writer.text("}")
        quote = writer.marker(self.quote)
        if not tool.strict:
            value = f"({quote} {writer.until(self.quote)} | {writer.json({}, tool.name)})"
            pair = f"{writer.terminal(f'/[A-Za-z_]{chr(92)}w*/')} {writer.text(':')} {value}"
            return f"{head} ({pair} ({writer.text(',')} {pair})*)? {end}"

        def known(key: str) -> str:
            if is_text(tool.parameters["properties"][key]):
                return f"{writer.text(key + ':')} {quote} {value_of(writer, tool, key, self.quote)}"
            return f"{writer.text(key + ':')} {writer.json(alone(tool, key), tool.name)}"

        return f"{head} {joined_pairs(writer, tool, known, ',')} {end}"


def _bare(text: str) -> str:
    """Returns a value without quotes as JSON: a number, a word such as true, or a text whose quotes were forgotten."""
    word = text.strip()
    if not word:
        raise Malformed
    if word in WORDS:
        return WORDS[word]
    return word if JSON_NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False)


def parse_code(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    """Reads Gemma 3's blocks of code, which have a call on each line. Other code is text, so only tools are called."""
    while (yield from prose(reader, output, (CODE,))):
        try:
            yield from reader.space()
            while True:
                yield from pythonic.read_call(reader, output, tools.names)
                yield from reader.space()
                if (yield from reader.accept(CODE_END)) or not (yield from reader.peek(1)):
                    break
                reader.record()
            reader.forget()
        except Malformed:
            output.text(reader.recorded())


def code_calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    newline = writer.text("\n")
    return CallGrammar(CODE, pythonic.one_call(writer, tools), newline, newline, writer.text("\n" + CODE_END))


_FUNCTION = Tags("<start_function_call>", "<end_function_call>", "<escape>")
_FOUR = Tags("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = ToolFormat(
    "function_gemma", lambda template: _FUNCTION.begin in template, _FUNCTION.markers, _FUNCTION.parse, _FUNCTION.calls
)
GEMMA4 = ToolFormat("gemma4", lambda template: _FOUR.begin in template, _FOUR.markers, _FOUR.parse, _FOUR.calls)
GEMMA3 = ToolFormat("gemma3", lambda template: CODE in template, (), parse_code, code_calls)
