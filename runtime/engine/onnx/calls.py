"""Splits a step of the scheduler into calls of an ONNX model, whose batches are rectangular.

GroupQueryAttention takes several new tokens of one sequence, or one new token of each of several sequences. So each
chunk of a prompt is a call. Sequences with one token share a call if their slots lie side by side, because a call gets
its part of the cache as one piece. A slot between them that has no token in the step gets an idle row. An idle row
costs one row, but another call would read all weights once more. An idle row writes behind the positions that its slot
holds, where nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_IDLE = 4
"""The most idle rows side by side. A row costs about a fifth of the fixed cost of a call (pico in float32, one
core)."""


@dataclass(frozen=True)
class Call:
    """One call of the model, with tokens [batch, seq] of the slots first_slot .. first_slot + batch - 1 in that order.

    tokens: [batch * seq], the index of each token in the step; -1 for an idle row.
    past: [batch], the number of positions that each slot holds before the call.
    wanted: the rows of [batch * seq] whose logits the step asks for.
    rows: for each of `wanted`, its row in the step's logits.
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
        """The length of the longest sequence of the call, with its new tokens."""
        return max(self.past) + self.seq

    def token_ids(self, of_step: np.ndarray) -> np.ndarray:
        """Returns the token ids, [batch, seq]. Idle rows have token 0, because each row must have a token.

        of_step: the token ids of the step.
        """
        index = np.array(self.tokens)
        return np.where(index < 0, 0, of_step[index]).reshape(self.batch, self.seq)

    def positions(self) -> np.ndarray:
        """Returns the position of each token in its sequence, [batch, seq]."""
        return np.array(self.past)[:, None] + np.arange(self.seq)[None, :]

    def seqlens_k(self) -> np.ndarray:
        """Returns the length of each sequence with its new tokens, minus one, [batch]."""
        return np.array(self.past) + (self.seq - 1)


def split(step: Any, held: np.ndarray, max_len: int) -> list[Call]:
    """Returns the calls of a step, in the order in which they must run.

    held: the number of positions that each slot held after its last step. Positions behind them may be overwritten, for
    example by the idle row of a slot whose prompt goes on in this step. So the calls of prompts come last.
    """
    starts, contexts = step.seq_starts.tolist(), step.context_lens.tolist()
    slots = step.block_tables(0)[:, 0].tolist() if contexts else []
    rows_of: dict[int, list[int]] = {}  # token -> its logit rows; a step may ask for the logits of a token twice
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
    """Returns the ranges of slots that share a call. A range may contain up to MAX_IDLE slots side by side that are not
    in `slots`, if each has room for an idle row."""
    runs: list[range] = []
    for slot in slots:
        last = runs[-1].stop - 1 if runs else -1
        between = slice(last + 1, slot)
        if runs and slot - last - 1 <= MAX_IDLE and (held[between] < max_len).all():
            runs[-1] = range(runs[-1].start, slot + 1)
        else:
            runs.append(range(slot, slot + 1))
    return runs
