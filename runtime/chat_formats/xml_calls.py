"""The formats that write calls as tags around bare values: Qwen3-Coder, Seed-OSS, MiniMax M2 and Step-3.

A tag opens the calls, one names the function, and one names each argument. Documented in the chat templates of
https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct, ByteDance-Seed/Seed-OSS-36B-Instruct, MiniMaxAI/MiniMax-M2
and stepfun-ai/step3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwright.runtime.chat_formats.bare_values import JsonObject, pairs_of, read_key, value_of
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, prose
from tensorwright.runtime.chat_formats.tools import Tool, Tools


@dataclass(frozen=True)
class Tags:
    """The tags of one format, in the order in which they come.

    begin, close: what stands around all calls, or around each. head, tail: what stands around each call inside those,
    a marker each, with a text between the two of the head. tag_end: ends the tags `function` and `parameter`, which a
    name follows. lines: whether a line end stands before and after each value. shared: whether one `begin` may have
    several calls. alone: whether a call may come without `begin`.
    """

    begin: str
    close: str
    function: str = "<function="
    function_end: str = "</function>"
    parameter: str = "<parameter="
    parameter_end: str = "</parameter>"
    tag_end: str = ">"
    head: tuple[str, str, str] | None = None
    tail: str = ""
    lines: bool = False
    shared: bool = False
    alone: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        inner = () if self.head is None else (self.head[0], self.head[2], self.tail)
        return (self.begin, self.close, *inner)

    def parse(self, reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
        begins = (self.begin, self.function) if self.alone else (self.begin,)
        while found := (yield from prose(reader, output, begins)):
            try:
                if found == self.begin:
                    yield from reader.space()
                    yield from self._open(reader)
                yield from self._read_call(reader, output, tools)
                yield from reader.space()
                while self.shared and (yield from reader.next_is(self._first)):
                    reader.record()
                    yield from self._open(reader)
                    yield from self._read_call(reader, output, tools)
                    yield from reader.space()
                yield from reader.accept(self.close)
                reader.forget()
            except Malformed:
                output.text(reader.recorded())

    @property
    def _first(self) -> str:
        """The tag with which each call begins."""
        return self.function if self.head is None else self.head[0]

    def _open(self, reader: TextReader) -> Steps[None]:
        """Reads up to the name of the function."""
        for part in (*(self.head or ()), self.function):
            yield from reader.expect(part)
            if part != self.function:
                yield from reader.space()

    def _read_call(self, reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
        name = yield from read_key(reader, self.tag_end)
        if not name or "\n" in name:
            raise Malformed
        output.begin(name)
        reader.record()
        properties = tools.parameters.get(name, {}).get("properties", {})
        arguments = JsonObject(reader, output, properties, lines=self.lines)
        if not (yield from arguments.pairs(self.parameter, lambda: read_key(reader, self.tag_end), self.parameter_end)):
            return
        yield from reader.accept(self.function_end)
        yield from reader.space()
        if self.tail:
            yield from reader.accept(self.tail)

    def calls(self, writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
        """Returns the grammar, which follows the schemas of all tools. Raises InvalidRequestError where it cannot."""
        newline, close = writer.text("\n"), writer.marker(self.close)
        one = writer.one_of(self._call(writer, tool) for tool in tools)
        if self.shared:
            return CallGrammar(self.begin, one, newline, newline, f"{newline} {close}")
        separator = f"{newline} {writer.marker(self.begin)}"
        return CallGrammar(self.begin, f"{newline} {one} {newline} {close}", separator=separator)

    def _call(self, writer: LarkWriter, tool: Tool) -> str:
        newline = writer.text("\n")
        line = "\n" if self.lines else ""

        def known(key: str) -> str:
            value = value_of(writer, tool, key, self.parameter_end, line)
            return f"{writer.text(f'{self.parameter}{key}{self.tag_end}{line}')} {value} {newline}"

        key = writer.terminal(r'/[^">\n]{1,100}/')
        any_pair = (
            f"{writer.text(self.parameter)} {key} {writer.text(self.tag_end + line)} "
            f"{writer.until(self.parameter_end)} {newline}"
        )
        before = after = ""
        if self.head is not None:
            first, word, second = self.head
            before = f"{writer.marker(first)} {writer.text(word)} {writer.marker(second)}"
            after = writer.marker(self.tail)
        head = writer.text(f"{self.function}{tool.name}{self.tag_end}\n")
        return f"{before} {head} {pairs_of(tool, known, any_pair)} {writer.text(self.function_end)} {after}"


_QWEN = Tags("<tool_call>", "</tool_call>", lines=True, alone=True)
_SEED = Tags("<seed:tool_call>", "</seed:tool_call>")
_MINIMAX = Tags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    "</invoke>",
    '<parameter name="',
    tag_end='">',
    shared=True,
)
_STEP = Tags(
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    '<steptml:invoke name="',
    "</steptml:invoke>",
    '<steptml:parameter name="',
    "</steptml:parameter>",
    '">',
    ("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>"),
    "<｜tool_call_end｜>",
    shared=True,
)


def _shows_qwen(template: str) -> bool:
    """Seed-OSS writes the same between tags of another name."""
    return all(tag in template for tag in (_QWEN.function, _QWEN.parameter, _QWEN.begin))


QWEN3_CODER = ToolFormat("qwen3_coder", _shows_qwen, _QWEN.markers, _QWEN.parse, _QWEN.calls)
SEED = ToolFormat("seed", lambda template: _SEED.begin in template, _SEED.markers, _SEED.parse, _SEED.calls)
MINIMAX = ToolFormat(
    "minimax", lambda template: _MINIMAX.begin in template, _MINIMAX.markers, _MINIMAX.parse, _MINIMAX.calls
)
STEP3 = ToolFormat("step3", lambda template: "<steptml:" in template, _STEP.markers, _STEP.parse, _STEP.calls)
