"""Lists the GGUF files that are kept beside the tests, and makes others of them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

GGUF = Path(__file__).parents[1] / "models" / "gguf_files"
"""The files that write_gguf.py made, each with a JSON file of what transformers reads from it."""

KINDS = {
    "gemma2": "gguf Q8_0",
    "gemma3": "gguf Q8_0",
    "gpt2": "gguf Q8_0",
    "lfm2": "gguf Q8_0 float32",
    "llama-f16": "gguf float16",
    "llama-mixed": "gguf bfloat16 Q4_1 Q3_K Q4_K Q6_K MXFP4 Q5_1 Q5_0 IQ4_NL Q5_K Q2_K",
    "llama-q4_0": "gguf Q4_0",
    "llama-q8_0": "gguf Q8_0",
    "nemotron": "gguf Q8_0",
    "phi3": "gguf Q8_0",
    "qwen2": "gguf float32",
    "qwen2moe": "gguf Q8_0 float32",
    "qwen3": "gguf Q8_0",
    "qwen3moe": "gguf Q8_0 float32",
    "stablelm": "gguf Q8_0",
    "starcoder2": "gguf Q8_0",
}
"""The kind of each, as a record names it."""


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value: Any) -> bytes:
    """Metadata of a text, a whole number or raw bytes, which have their type in front."""
    if isinstance(value, bytes):
        return text(key) + value
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    return text(key) + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    metadata: list[bytes], tensors: list[bytes], version: int = 3, counts: tuple[int, int] | None = None
) -> bytes:
    """The bytes of a file up to its data. counts: what it announces, if that is something else than it has."""
    count, entries = counts or (len(tensors), len(metadata))
    return b"GGUF" + struct.pack("<IQQ", version, count, entries) + b"".join(metadata) + b"".join(tensors)


def padded(data: bytes, more: int = 0, alignment: int = 32) -> bytes:
    """The bytes up to the data, with `more` zeros behind."""
    return data + bytes(-len(data) % alignment + more)
