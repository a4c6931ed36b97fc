"""Reads the parts of a tokenizer as tokenizer.json has them, and maps the letters of byte-level parts to bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any


def component_state(component: Any) -> dict[str, Any]:
    """Returns the JSON form of one component, {} for None. It does not read the whole tokenizer, because that takes
    long with the vocabulary."""
    return {} if component is None else json.loads(component.__getstate__())


def sequence_parts(state: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Yields the component, or the parts of a sequence, recursively. key: the key of a sequence's parts."""
    if state.get("type") == "Sequence":
        for part in state[key]:
            yield from sequence_parts(part, key)
    elif state:
        yield state


@cache
def byte_alphabet() -> dict[str, int]:
    """Returns {letter: byte}. A printable byte is spelled as itself; the others are letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
