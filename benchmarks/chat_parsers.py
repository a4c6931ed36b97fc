"""How fast the parsers of calls and of thinking are: characters a second, for each format, at once and in small pieces.

python benchmarks/chat_parsers.py [CHARACTERS]
"""

from __future__ import annotations

import json
import sys
import time

from tensorwright.runtime.chat_formats.chat_parser import ChatParser
from tensorwright.runtime.chat_formats.registry import REASONING_FORMATS, TOOL_FORMATS
from tensorwright.runtime.chat_formats.tools import read_tools

PIECE = 4
"""The characters of a small piece, about those of a token."""
TOOLS = read_tools([{"type": "function", "function": {"name": "f"}}])
HEADS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": ',
    "llama3_json": '{"name": "f", "parameters": ',
    "pythonic": "[f(a=",
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": ',
    "mistral_named": "[TOOL_CALLS]f[ARGS]",
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>",
}


def seconds(name: str | None, text: str, piece: int) -> float:
    form = None if name is None else TOOL_FORMATS[name]
    reasoning = None if name == "harmony" else REASONING_FORMATS["think"]
    parser = ChatParser(form, reasoning, TOOLS, False)
    begun = time.perf_counter()
    for at in range(0, len(text), piece):
        parser.push(text[at : at + piece])
    parser.finish()
    return time.perf_counter() - begun


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    words = "a word, (or) [two] {of} <them> = \\n 'it' "
    content = words * (size // len(words))
    value = json.dumps({"text": content})
    print(f"{'format':>16} {'text':>8} {'at once':>10} {f'by {PIECE}':>10}   million characters a second")
    for name, head in HEADS.items():
        tags = head[:11] * (size // 11)  # a tag that begins a call, again and again
        for kind, text in (("content", content), ("calls", head + value), ("tags", tags)):
            rates = [len(text) / seconds(name, text, piece) / 1e6 for piece in (len(text), PIECE)]
            print(f"{name:>16} {kind:>8} {rates[0]:10.2f} {rates[1]:10.2f}")


if __name__ == "__main__":
    main()
