"""The format of Llama 3.1, 3.2 and 3.3: the whole answer is {"name": "f", "parameters": {...}}, and nothing marks it.

Several calls are separated by semicolons. <|python_tag|> may stand before a call. Documented in
https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.chat_formats.json_call import read_call
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat, as_written, json_calls
from tensorwright.runtime.chat_formats.tools import Tool, Tools

TAG = "<|python_tag|>"


def recognises(template: str) -> bool:
    text = as_written(template)
    llama = "<|start_header_id|>" in text or "<|header_start|>" in text
    return llama and '"parameters": ' in text and "<tool_call>" not in text and "[func_name" not in text


def parse(reader: TextReader, output: Output, tools: Tools) -> Steps[None]:
    reader.record()
    try:
        yield from reader.space()
        while (yield from reader.next_is("{", TAG)):
            yield from reader.accept(TAG)
            yield from reader.space()
            yield from read_call(reader, output, tools, only_known=True)
            reader.record()
            yield from reader.space()
            yield from reader.accept(";")
            yield from reader.space()
            if not (yield from reader.peek(1)):
                reader.forget()  # a semicolon that ends the calls is no text
    except Malformed:
        pass
    output.text(reader.recorded())


def calls(writer: LarkWriter, tools: Sequence[Tool]) -> CallGrammar:
    one = json_calls(writer, tools, "parameters")
    return CallGrammar("", one, separator=writer.text("; "), other=r"([^{\s](.|\n)*)?")


LLAMA_JSON = ToolFormat("llama3_json", recognises, (TAG,), parse, calls)
