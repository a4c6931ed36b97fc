"""One spelling for the formats of quantized weights, so that "int4" and "int4:g32" are one engine of the cache.

What the formats mean, and which exist, is known to plugins/quantized_matmul/formats.py alone, which the runtime does
not import; a text that is no list of formats stays as it is, for the builder to refuse.
"""

from __future__ import annotations

import re

DEFAULT_GROUP = 32
"""As plugins/quantized_matmul/formats.py says; a test compares."""
PARTS = ("embedding", "lm_head")
FORMAT = re.compile(r"none|w8a8|fp8|int[48](:g\d+)?")


def spelled_out(formats: str) -> str:
    """ "int4" -> "int4:g32,embedding=int4:g32,lm_head=int4:g32"."""
    first, *others = (part.strip() for part in formats.split(","))
    named = dict.fromkeys(PARTS, first)
    seen = set()
    for part in others:
        name, _, value = part.partition("=")
        if name not in named or name in seen:
            return formats
        seen.add(name)
        named[name] = value
    if not all(FORMAT.fullmatch(value) for value in (first, *named.values())):
        return formats
    return ",".join([_with_group(first), *(f"{name}={_with_group(value)}" for name, value in named.items())])


def _with_group(name: str) -> str:
    return f"{name}:g{DEFAULT_GROUP}" if name in ("int4", "int8") else name
