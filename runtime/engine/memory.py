"""How much memory the KV cache takes: what the user says, or a share of what is free."""

from __future__ import annotations

from tensorwright.errors import OutOfMemoryError
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.sizes import format_size

SHARE = 0.5  # of the memory left beside the weights; the rest is for activations, the page cache and other programs
MAX_POPULATED = 1 << 30
POPULATED_SHARE = 1 / 8  # of the free memory


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
    return min(MAX_POPULATED, int(available * POPULATED_SHARE))


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
