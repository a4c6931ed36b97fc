"""What a simulated replica is: the facts of its model, and the limits with which its engine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.options import EngineOptions


@dataclass(frozen=True)
class ReplicaShape:
    """One engine, without its weights. itl_goal_s, ageing_s: 0 means none. block_bytes, group_windows, group_chunked,
    group_sink_tokens: of each cache group; a window of 0 is none. kv_cache_bytes: of all groups together. The other
    fields are those of the engine's options."""

    max_seq_len: int
    block_size: int
    block_bytes: tuple[int, ...]
    group_windows: tuple[int, ...]
    kv_cache_bytes: int
    max_batch_size: int
    max_num_tokens: int
    max_chunk: int
    max_queue: int
    prefix_cache: bool
    group_chunked: tuple[int, ...] = ()
    group_sink_tokens: tuple[int, ...] = ()
    state_bytes: int = 0
    chunk_multiple: int = 0
    sparse_prefill: int = 0
    state_snapshots: int = 0
    itl_goal_s: float = 0.0
    ageing_s: float = 0.0

    def native_options(self) -> Any:
        """Returns a FleetOptions of one such replica, whose steps have no costs yet."""
        options = native.load_module().FleetOptions()
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            setattr(options, name, list(value) if isinstance(value, tuple) else value)
        return options

    @property
    def positions(self) -> int:
        """The positions that the whole KV cache holds, if they were of one sequence without a window."""
        each = sum(size for size, window in zip(self.block_bytes, self.group_windows, strict=True) if window == 0)
        if each == 0:
            return self.max_seq_len
        kept = self.kv_cache_bytes - sum(
            size * -(-window // self.block_size)
            for size, window in zip(self.block_bytes, self.group_windows, strict=True)
        )
        return max(0, kept // each * self.block_size)

    def attention(self, sequences: Sequence[tuple[int, int]]) -> tuple[float, float]:
        """Returns the pairs and the reads of a step (step_costs.py). sequences: (tokens of the step, positions after
        it) of each."""
        pairs, reads = self.native_options().attention(list(sequences))
        return float(pairs), float(reads)


def _longest_chunk(most: int, stop: int) -> int:
    """Returns the most tokens of a prompt in one step. stop: the position whose multiples no step crosses; 0: none."""
    return min(most or stop, stop) if stop else most


def shape_of_engine(facts: Mapping[str, Any], stats: Mapping[str, Any], options: EngineOptions) -> ReplicaShape:
    """Returns the shape of an engine that runs. facts, stats: what it says of itself."""
    groups = stats["groups"][: len(facts["block_bytes"])]
    return ReplicaShape(
        max_seq_len=facts["max_seq_len"],
        block_size=facts["block_size"],
        block_bytes=tuple(facts["block_bytes"]),
        # A group whose sequences keep a budget of blocks is simulated as one with a window, which holds about as many.
        group_windows=tuple(
            group["kv_budget"] or window for group, window in zip(groups, facts["group_windows"], strict=True)
        ),
        kv_cache_bytes=options.kv_cache_bytes,
        max_batch_size=options.max_batch_size,
        max_num_tokens=options.max_num_tokens,
        max_chunk=_longest_chunk(options.max_prefill_chunk, facts["chunk_stop"]),
        max_queue=options.max_queue_size,
        prefix_cache=options.enable_prefix_caching,
        group_chunked=tuple(int(group["chunked"]) for group in groups),
        group_sink_tokens=tuple(group["sink_tokens"] for group in groups),
        state_bytes=facts["state_bytes"],
        chunk_multiple=facts["chunk_multiple"],
        sparse_prefill=facts["sparse_prefill"],
        state_snapshots=options.state_snapshots,
    )
