"""How much memory the KV cache takes: what the user says, or a share of what is free."""

from __future__ import annotations

import re
from typing import Any

from tensorwright.errors import InvalidOptionError, OutOfMemoryError
from tensorwright.runtime.engine_dir import EngineDir
from tensorwright.runtime.host import available_memory
from tensorwright.runtime.parameter_checks import is_int

SHARE = 0.5  # of the memory left beside the weights; the rest is for activations, the page cache and other programs
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(value: Any, name: str = "kv_cache_memory") -> int:
    """Bytes from an int or from text such as "512MiB", "1.5 GiB", "2GB". InvalidOptionError names the option."""
    if is_int(value) and value > 0:
        return int(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _UNITS:
        size = int(float(match[1]) * _UNITS[match[2].lower()])
        if size > 0:
            return size
    raise InvalidOptionError(f'{name} must be a positive number of bytes or a text like "512MiB", got {value!r}')


def format_size(size: float) -> str:
    """Bytes for people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def kv_block_bytes(engine: EngineDir) -> int:
    """Bytes of one KV block over all layers: keys and values of block_size positions. Padding aside."""
    size = 2 * engine.block_size * ITEM_BYTES[engine.dtype]
    for fact in ("layers", "kv_heads", "head_dim"):
        if fact not in engine.model:
            raise InvalidOptionError(f"{engine.path}: config.json does not give model.{fact}; set kv_cache_memory")
        size *= engine.model[fact]
    return size


def default_kv_bytes(engine: EngineDir, max_batch_size: int, available: int | None = None) -> int:
    """Half of the memory left beside the weights, but no more than a full batch of the longest sequences can use.

    available: free bytes, None: of this machine. OutOfMemoryError if not even one block fits.
    """
    if available is None:
        available = available_memory()
    block = kv_block_bytes(engine)
    weights = engine.weights.stat().st_size
    useful = block * (-(-engine.max_seq_len // engine.block_size)) * max_batch_size
    # Mapped weights are page cache, which counts as available; serving from them needs them in memory all the same.
    room = int((available - weights) * SHARE)
    if room < block:
        raise OutOfMemoryError(
            f"the KV cache needs at least {format_size(block)}, but {format_size(available)} of memory are available "
            f"and the weights take {format_size(weights)}: free some memory, or set kv_cache_memory yourself"
        )
    return min(useful, room)
