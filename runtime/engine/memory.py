"""How much memory the KV cache takes: what the user says, or a share of what is free."""

from __future__ import annotations

import re
from typing import Any

from tensorwright.byte_sizes import format_size
from tensorwright.errors import InvalidOptionError, OutOfMemoryError
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.base.parameter_checks import is_int
from tensorwright.runtime.engine.engine_dir import EngineDir

SHARE = 0.5  # of the memory left beside the weights; the rest is for activations, the page cache and other programs
MOST_POPULATED = 1 << 30
POPULATED_SHARE = 1 / 8  # of the free memory
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


def check_kv_bytes(asked: int, engine: EngineDir, available: int | None = None) -> int:
    """What the user asked for, if one block fits in it and it fits in memory; else OutOfMemoryError with numbers."""
    if available is None:
        available = available_memory()
    block = engine.kv_block_bytes
    if asked < block:
        raise OutOfMemoryError(f"kv_cache_memory must hold at least one block of {block} bytes, got {asked}: raise it")
    if asked > available:
        raise OutOfMemoryError(
            f"kv_cache_memory is {format_size(asked)}, but {format_size(available)} of memory are available: "
            "ask for less, or leave it out"
        )
    return asked


def populated_bytes(available: int | None = None) -> int:
    """How much of its memory an engine takes before requests come, page faults and all: 1 GiB, or an eighth of
    what is free where that is less. The rest of a large cache is taken as it is used.

    available: free bytes, None: of this machine.
    """
    if available is None:
        available = available_memory()
    return min(MOST_POPULATED, int(available * POPULATED_SHARE))


def default_kv_bytes(engine: EngineDir, max_batch_size: int, available: int | None = None) -> int:
    """Half of the memory left beside the weights, but no more than a full batch of the longest sequences can use.

    available: free bytes, None: of this machine. OutOfMemoryError if not even one block fits.
    """
    if available is None:
        available = available_memory()
    block = engine.kv_block_bytes
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
