"""How fast the parsers of calls and of thinking are: characters a second, for each format, at once and in small pieces,
and the longest time that one small piece takes. The formats are all of the registry, and their calls those of the
tests' samples, with long values in place of short ones.

python benchmarks/chat_parsers.py [CHARACTERS]
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

from support.chat_samples import CALLS, SAMPLES, TOOLS  # noqa: E402
from tensorwright.runtime.chat_formats.chat_parser import ChatParser  # noqa: E402
from tensorwright.runtime.chat_formats.registry import REASONING_FORMATS, TOOL_FORMATS  # noqa: E402
from tensorwright.runtime.chat_formats.tools import read_tools  # noqa: E402

PIECE = 4
"""The characters of a small piece, about those of a token."""
TAG = 11
"""The characters of a call's beginning that the kind "tags" repeats."""
CITY: str = json.loads(CALLS[0][1])["city"]
WORDS = "a word, (or) [two] {of} <them> = 'it' "
"""They begin no tag of a format whose texts stand bare."""


def texts_of(name: str, size: int) -> dict[str, str]:
    """Returns texts of about `size` characters by their kind: content, a call with a long text, one with a long list of
    numbers, and the beginning of a call again and again."""
    call = SAMPLES[name].single
    words = WORDS * (size // len(WORDS))
    bare, quoted = (CITY, words), (json.dumps(CITY, ensure_ascii=False)[1:-1], json.dumps(words)[1:-1])
    short, long = bare if bare[0] in call else quoted
    assert short in call, f"the sample of {name} has not the value {CITY}"
    numbers = f"[{'1, ' * (size // 3)}1]"
    tags = call[:TAG] * (size // TAG)
    return {"content": words, "calls": call.replace(short, long), "values": call.replace("3", numbers), "tags": tags}


def seconds(name: str, text: str, piece: int) -> tuple[float, float]:
    """Returns the time of the whole text, and that of the piece that takes longest, in seconds of the processor."""
    reasoning = None if name == "harmony" else REASONING_FORMATS["think"]
    parser = ChatParser(TOOL_FORMATS[name], reasoning, read_tools(TOOLS), False)
    times = [time.thread_time()]
    for at in range(0, len(text), piece):
        parser.push(text[at : at + piece])
        times.append(time.thread_time())
    parser.finish()
    times.append(time.thread_time())
    return times[-1] - times[0], max(after - before for before, after in pairwise(times))


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{'format':>16} {'text':>8} {'at once':>10} {f'by {PIECE}':>10} {'longest':>10}   million characters/s, ms")
    for name in TOOL_FORMATS:
        for kind, text in texts_of(name, size).items():
            (whole, _), (pieces, longest) = (seconds(name, text, piece) for piece in (len(text), PIECE))
            rates = [len(text) / time / 1e6 for time in (whole, pieces)]
            print(f"{name:>16} {kind:>8} {rates[0]:10.2f} {rates[1]:10.2f} {longest * 1e3:10.2f}")


if __name__ == "__main__":
    main()
