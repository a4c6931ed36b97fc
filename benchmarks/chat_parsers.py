"""How fast the parsers of calls and of thinking are: characters a second, for each format, at once and in small pieces,
and the longest time that one small piece takes.

python benchmarks/chat_parsers.py [CHARACTERS]
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

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
TAIL = ")]</arg_value></tool_call>"
"""Ends a value in the formats that hold values back; the others pass it on."""


def seconds(name: str | None, text: str, piece: int) -> tuple[float, float]:
    """Returns the time of the whole text, and that of the piece that takes longest, in seconds of the processor."""
    form = None if name is None else TOOL_FORMATS[name]
    reasoning = None if name == "harmony" else REASONING_FORMATS["think"]
    parser = ChatParser(form, reasoning, TOOLS, False)
    times = [time.thread_time()]
    for at in range(0, len(text), piece):
        parser.push(text[at : at + piece])
        times.append(time.thread_time())
    parser.finish()
    times.append(time.thread_time())
    return times[-1] - times[0], max(after - before for before, after in pairwise(times))


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    words = "a word, (or) [two] {of} <them> = \\n 'it' "
    content = words * (size // len(words))
    value = json.dumps({"text": content})
    numbers = f"[{'1, ' * (size // 3)}1]{TAIL}"
    print(f"{'format':>16} {'text':>8} {'at once':>10} {f'by {PIECE}':>10} {'longest':>10}   million characters/s, ms")
    for name, head in HEADS.items():
        tags = head[:11] * (size // 11)  # a tag that begins a call, again and again
        kinds = {"content": content, "calls": head + value, "values": head + numbers, "tags": tags}
        for kind, text in kinds.items():
            (whole, _), (pieces, longest) = (seconds(name, text, piece) for piece in (len(text), PIECE))
            rates = [len(text) / time / 1e6 for time in (whole, pieces)]
            print(f"{name:>16} {kind:>8} {rates[0]:10.2f} {rates[1]:10.2f} {longest * 1e3:10.2f}")


if __name__ == "__main__":
    main()
