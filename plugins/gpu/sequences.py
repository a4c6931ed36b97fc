"""Reads what a step's metadata says of one sequence, for kernels that carry a state from token to token."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sequence_of(seq, seq_starts, context_lens, state_slots, SLOT: tl.constexpr):
    """Returns the first row of a sequence in the step, how many rows it has, where its states begin behind those of
    slot 0 (SLOT numbers for each slot), and whether there is a state before its first row."""
    start = tl.load(seq_starts + seq)
    count = tl.load(seq_starts + seq + 1) - start
    at = tl.load(state_slots + seq).to(tl.int64) * SLOT
    return start.to(tl.int64), count, at, tl.load(context_lens + seq) > count
