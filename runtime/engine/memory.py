"""Computes the size of the KV cache: the size that the user asks for, or a share of the free memory."""

from __future__ import annotations

from tensorwright.errors import OutOfMemoryError
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.sizes import format_size

# The share of the memory beside the weights. The rest is for activations, the page cache and other programs.
SHARE = 0.5
MAX_POPULATED = 1 << 30
POPULATED_SHARE = 1 / 8  # the share of the free memory


def check_kv_bytes(asked: int, engine: EngineDir, available: int | None = None) -> int:
    """Returns `asked`, the bytes that the user asks for.

    available: the free bytes; None means those of this machine. Raises OutOfMemoryError, with numbers, if `asked` is
    less than one block or more than the free memory.
    """
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
    """Returns how many bytes of its memory an engine touches before requests come: 1 GiB, or an eighth of the free
    memory if that is less. The system provides the rest of a large cache on its first use.

    available: the free bytes; None means those of this machine.
    """
    if available is None:
        available = available_memory()
    return min(MAX_POPULATED, int(available * POPULATED_SHARE))


def default_kv_bytes(engine: EngineDir, max_batch_size: int, available: int | None = None) -> int:
    """Returns half of the memory beside the weights, but no more than a full batch of the longest sequences can use.

    available: the free bytes; None means those of this machine. Raises OutOfMemoryError if not even one block fits.
    """
    if available is None:
        available = available_memory()
    block = engine.kv_block_bytes
    weights = engine.weights.stat().st_size
    useful = block * (-(-engine.max_seq_len // engine.block_size)) * max_batch_size
    # Mapped weights are page cache, which counts as available, but the engine needs them in memory while it runs.
    room = int((available - weights) * SHARE)
    if room < block:
        raise OutOfMemoryError(
            f"the KV cache needs at least {format_size(block)}, but {format_size(available)} of memory are available "
            f"and the weights take {format_size(weights)}: free some memory, or set kv_cache_memory yourself"
        )
    return min(useful, room)
