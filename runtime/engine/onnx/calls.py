"""A step of the scheduler as calls of an ONNX model, whose batches are rectangular.

GroupQueryAttention takes several new tokens of one sequence, or one of each of several. So each chunk of a prompt is a
call, and sequences with one token are a call together where their slots lie side by side, for the cache is handed over
as one piece. Slots between them that have no token in the step get an idle row: an idle row costs a row, another call
would read all weights once more. It writes behind what its slot holds, where nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_IDLE = 4
"""Idle rows side by side. A row costs about a fifth of what a call costs besides (pico in float32, one core)."""


@dataclass(frozen=True)
class Call:
    """Tokens [batch, seq] of the slots first_slot .. first_slot + batch - 1, in that order.

    tokens: index in the step of each, -1 for idle ones. past: positions that each slot holds before. wanted: rows of
    [batch * seq] whose logits are asked for; rows: where in the step's logits each belongs.
    """

    first_slot: int
    seq: int
    tokens: tuple[int, ...]
    past: tuple[int, ...]
    wanted: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def batch(self) -> int:
        return len(self.past)

    @property
    def total(self) -> int:
        """The longest of its sequences, with the new tokens."""
        return max(self.past) + self.seq

    def token_ids(self, of_step: np.ndarray) -> np.ndarray:
        """[batch, seq]; idle rows have token 0, for they must have one."""
        index = np.array(self.tokens)
        return np.where(index < 0, 0, of_step[index]).reshape(self.batch, self.seq)

    def positions(self) -> np.ndarray:
        """[batch, seq]"""
        return np.array(self.past)[:, None] + np.arange(self.seq)[None, :]

    def seqlens_k(self) -> np.ndarray:
        """[batch]: the length of each with its new tokens, less one."""
        return np.array(self.past) + (self.seq - 1)


def split(step: Any, held: np.ndarray, max_len: int) -> list[Call]:
    """In the order in which they must run. held: positions that each slot was last seen to hold.

    What lies behind them may be overwritten, also by the idle row of a slot whose prompt goes on in this step: that
    is why prompts come last.
    """
    starts, contexts = step.seq_starts.tolist(), step.context_lens.tolist()
    slots = step.block_tables(0)[:, 0].tolist() if contexts else []
    rows_of: dict[int, list[int]] = {}  # logit rows of each token: one may be asked for twice
    for row, token in enumerate(step.logit_rows.tolist()):
        rows_of.setdefault(token, []).append(row)
    prompts, single = [], {}
    for sequence, (slot, context) in enumerate(zip(slots, contexts, strict=True)):
        first, end = starts[sequence], starts[sequence + 1]
        if end - first == 1:
            single[slot] = (first, context - 1)
        elif end > first:
            prompts.append(_call(slot, end - first, range(first, end), [context - (end - first)], rows_of))
    decodes = []
    for run in _runs(sorted(single), held, max_len):
        cells = [single.get(slot, (-1, int(held[slot]))) for slot in run]
        decodes.append(_call(run[0], 1, [token for token, _ in cells], [past for _, past in cells], rows_of))
    return [*decodes, *prompts]


def _call(slot: int, seq: int, tokens: Iterable[int], past: list[int], rows_of: dict[int, list[int]]) -> Call:
    tokens = tuple(tokens)
    pairs = sorted((row, at) for at, token in enumerate(tokens) for row in rows_of.get(token, ()))
    return Call(slot, seq, tokens, tuple(past), tuple(at for _, at in pairs), tuple(row for row, _ in pairs))


def _runs(slots: list[int], held: np.ndarray, max_len: int) -> list[range]:
    """Slots side by side, bridged over a few that have room for an idle row."""
    runs: list[range] = []
    for slot in slots:
        last = runs[-1].stop - 1 if runs else -1
        between = slice(last + 1, slot)
        if runs and slot - last - 1 <= MAX_IDLE and (held[between] < max_len).all():
            runs[-1] = range(runs[-1].start, slot + 1)
        else:
            runs.append(range(slot, slot + 1))
    return runs
