"""How byte-level tokenizers (GPT-2's) spell bytes in their vocabulary."""

from __future__ import annotations

from functools import cache


@cache
def byte_alphabet() -> dict[str, int]:
    """Letter -> byte: printable bytes are themselves, the others are the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
