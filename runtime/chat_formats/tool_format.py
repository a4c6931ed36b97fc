"""Defines what a format of tool calls is: how a template shows it, its markers, its parser, and its grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tools import Tool, Tools

Parse = Callable[[TextReader, Output, Tools], Steps[None]]
"""Reads a whole answer and makes its events. It returns at the end of the text, or leaves the rest as content."""


@dataclass(frozen=True)
class CallGrammar:
    """The expressions of calls: begin, open, one call, then separator and one call any number of times, and close.

    begin: the marker that begins calls, and that nothing else contains; "" if calls have none.
    other: for calls without a marker, the regular expression of the answers that are no calls. frames: pairs of markers
    between which an answer without calls may stand.
    """

    begin: str
    one: str
    open: str = ""
    separator: str = ""
    close: str = ""
    other: str = ""
    frames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ToolFormat:
    """A format of calls.

    recognises: whether a chat template teaches the model this format. markers: the texts of the format that some
    tokenizers have as special tokens, so that they must be kept in the text. call_id: makes the id
    of a call of its name and of its number in the conversation, where the template or the model admits no other ids;
    None for any. frames_answer: whether the format frames answers
    without calls too. write: writes earlier calls, as pairs of a name and JSON, into the content of their message, for
    templates that know no calls although their models write them.
    """

    name: str
    recognises: Callable[[str], bool]
    markers: tuple[str, ...]
    parse: Parse
    calls: Callable[[LarkWriter, Sequence[Tool]], CallGrammar]
    call_id: Callable[[str, int], str] | None = None
    frames_answer: bool = False
    write: Callable[[Sequence[tuple[str, str]]], str] | None = None


def prose(reader: TextReader, output: Output, markers: Sequence[str], frame: Sequence[str] = ()) -> Steps[str]:
    """Passes text on as content up to a marker. Reads and returns the marker, from which on the reader records; ""
    at the end of the text. frame: the tags around answers, which are left out."""
    while True:
        text, marker = yield from reader.before((*markers, *frame))
        if text:
            output.text(text)
        if marker in frame:
            reader.take(len(marker))
            output.pass_tag()
            continue
        if marker:
            reader.record()
            reader.take(len(marker))
        if marker or not text:
            return marker


def read_section(
    reader: TextReader,
    output: Output,
    marks: tuple[str, str, str],
    read_call: Callable[[TextReader, Output], Steps[None]],
) -> Steps[None]:
    """Reads text, and calls between special tokens. marks: what begins a section of calls and each call, and what ends
    the section; some models leave out its begin or its end. read_call: reads a call behind its begin."""
    all_begin, begin, all_end = marks
    while found := (yield from prose(reader, output, (all_begin, begin))):
        try:
            if found == all_begin:
                yield from reader.space()
                yield from reader.expect(begin)
            yield from read_call(reader, output)
            yield from reader.space()
            reader.record()
            while (yield from reader.accept(begin)):
                yield from read_call(reader, output)
                yield from reader.space()
                reader.record()
            yield from reader.accept(all_end)
            reader.forget()
        except Malformed:
            output.text(reader.recorded())


def json_calls(writer: LarkWriter, tools: Sequence[Tool], key: str = "arguments") -> str:
    """Returns the expression of one call in JSON, spelled as templates spell it. key: the key of the arguments."""
    heads = [f'{{"name": {json.dumps(tool.name)}, "{key}": ' for tool in tools]
    end = writer.text("}")
    pairs = zip(heads, tools, strict=True)
    return writer.one_of(f"{writer.text(head)} {writer.arguments(tool)} {end}" for head, tool in pairs)


def as_written(text: str) -> str:
    """Returns a template's text with the escapes of its string constants undone, so that words can be looked for."""
    return text.replace('\\"', '"').replace("\\n", "\n")
