"""Computes the size of the KV cache: the size that the user asks for, or a share of the free memory.

In a model with recurrent layers, the states of the running sequences and the snapshots of states are a part of it.
runtime/core/engine/cache_size.h computes the same for the C interface; tests/runtime/engine/test_memory.py compares.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.errors import OutOfMemoryError
from tensorwright.options.engine import MAX_SNAPSHOTS
from tensorwright.runtime.base.host import available_memory
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.sizes import format_size

SNAPSHOT_SHARE = 1 / 4
"""The share of the cache that snapshots get, unless the user says how many there are."""
SNAPSHOTS_PER_SEQUENCE = 4
"""The most snapshots for each running sequence, unless the user says how many there are."""
POSITIONS_PER_STATE = 1024
"""Where memory is short, each running sequence gets its states and this many positions of KV cache."""
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
    least = engine.kv_block_bytes + engine.state_bytes
    if asked < least:
        states = f" and the states of one completion, {engine.state_bytes} bytes" if engine.state_bytes else ""
        raise OutOfMemoryError(
            f"kv_cache_memory must hold at least one block of {engine.kv_block_bytes} bytes{states}, got {asked}: "
            "raise it"
        )
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


@dataclass(frozen=True)
class CacheShares:
    """The parts of a cache: the bytes of its KV blocks, the sequences that have states, and the snapshots."""

    kv_bytes: int
    sequences: int
    snapshots: int


def share_cache(engine: EngineDir, size: int, max_batch_size: int, snapshots: int | None) -> CacheShares:
    """Divides a cache of `size` bytes, as check_kv_bytes or default_kv_bytes returned it.

    The states of max_batch_size sequences come first, or of fewer, if memory is short. snapshots: how many the user
    asks for; None leaves the choice. The KV cache gets the rest. Raises OutOfMemoryError for more snapshots than fit.
    """
    state, block = engine.state_bytes, engine.kv_block_bytes
    if state == 0:
        return CacheShares(size, max_batch_size, 0)
    positions = min(POSITIONS_PER_STATE, engine.most_held)
    with_positions = state + block * -(-positions // engine.block_size)
    sequences = max(1, min(max_batch_size, size // with_positions))
    room = max(0, size - sequences * (state + block)) // state
    if snapshots is None:
        wanted = min(SNAPSHOTS_PER_SEQUENCE * sequences, MAX_SNAPSHOTS)
        snapshots = min(wanted, int(size * SNAPSHOT_SHARE) // state, room)
    elif snapshots > room:
        raise OutOfMemoryError(
            f"state_snapshots={snapshots}: beside the states of {sequences} completions, kv_cache_memory of "
            f"{format_size(size)} holds {room} snapshots of {format_size(state)}; ask for fewer, or raise it"
        )
    return CacheShares(size - (sequences + snapshots) * state, sequences, snapshots)


def useful_bytes(held: int, state: int, max_batch_size: int, *, prefixes: bool) -> int:
    """Returns the bytes that a full batch of the longest sequences can use, with snapshots of states for prefixes.

    held: the bytes of KV blocks that the longest sequence holds. state: the bytes of its states.
    """
    states = state * max_batch_size
    useful = held * max_batch_size + states
    if prefixes:
        useful += min(SNAPSHOTS_PER_SEQUENCE * states, int(useful * SNAPSHOT_SHARE / (1 - SNAPSHOT_SHARE)))
    return useful


def default_kv_bytes(
    engine: EngineDir, max_batch_size: int, available: int | None = None, *, prefixes: bool = True
) -> int:
    """Returns half of the memory beside the weights, but no more than a full batch of the longest sequences can use.

    available: the free bytes; None means those of this machine. prefixes: whether there are to be snapshots of states.
    Raises OutOfMemoryError if not even one block, and the states of one sequence, fit.
    """
    if available is None:
        available = available_memory()
    least = engine.kv_block_bytes + engine.state_bytes
    weights = engine.weights.stat().st_size
    held = engine.kv_block_bytes * -(-engine.most_held // engine.block_size)
    useful = useful_bytes(held, engine.state_bytes, max_batch_size, prefixes=prefixes)
    # Mapped weights are page cache, which counts as available, but the engine needs them in memory while it runs.
    room = int((available - weights) * SHARE)
    if room < least:
        raise OutOfMemoryError(
            f"the KV cache needs at least {format_size(least)}, but {format_size(available)} of memory are available "
            f"and the weights take {format_size(weights)}: free some memory, or set kv_cache_memory yourself"
        )
    return min(useful, room)
