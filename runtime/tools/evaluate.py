"""Computes the logprobs of token sequences, from which perplexity is made, with the engine's own executor.

Sequences go through the executor in steps of hundreds of tokens, so that scoring is as fast as prefill. The executor
reduces every position's logits to one number in place. The cache is used once and shared by no one else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir

MAX_LOGIT_BYTES = 128 << 20
"""The most bytes of a step's logits. It bounds the tokens of a step."""
MAX_SCORED_PER_STEP = 512
MIN_SCORED_PER_STEP = 32


class Scorer:
    """Scores sequences of 2 to `longest` tokens."""

    def __init__(self, engine: EngineDir, longest: int, threads: int):
        self._executor = native.create_executor(engine, threads)
        # The last token of a sequence predicts nothing, so it is not computed.
        computed = longest - 1
        self._chunk = min(computed, step_tokens(engine.vocab_size))
        if engine.chunk_stop:  # Steps that begin at multiples of a divisor cross no multiple of the stop.
            stop = engine.chunk_stop
            self._chunk = max(n for n in range(1, min(self._chunk, stop) + 1) if stop % n == 0)
        self._side_by_side = max(1, step_tokens(engine.vocab_size) // computed)
        self._block = engine.block_size
        self._blocks = -(-computed // engine.block_size)  # blocks of one sequence
        facts = self._executor.facts()
        self._sparse = facts["sparse_prefill"] > 0
        if self._sparse and self._chunk < computed:
            self._chunk -= self._chunk % self._block  # Rows choose what they see in whole blocks.
        self._groups = len(facts["group_windows"])
        self._has_states = facts["state_bytes"] > 0
        tokens = self._chunk * self._side_by_side
        blocks = [self._blocks * self._side_by_side] * self._groups
        slots = self._side_by_side if self._has_states else 0
        self._executor.allocate(blocks, tokens, tokens, self._side_by_side, slots)

    def score(self, sequences: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
        """Yields for each sequence, in order, the logprob of every token but the first: float64 [tokens - 1]."""
        for first in range(0, len(sequences), self._side_by_side):
            yield from self._score_batch([list(ids) for ids in sequences[first : first + self._side_by_side]])

    def _score_batch(self, batch: list[list[int]]) -> list[np.ndarray]:
        parts: list[list[np.ndarray]] = [[] for _ in batch]
        for start in range(0, max(len(ids) for ids in batch) - 1, self._chunk):
            # Each span is (index in the batch, first position of this step, end of its positions).
            spans = [(i, start, min(start + self._chunk, len(ids) - 1)) for i, ids in enumerate(batch)]
            spans = [span for span in spans if span[1] < span[2]]
            targets = [token for i, begin, end in spans for token in batch[i][begin + 1 : end + 1]]
            state_slots = [i for i, _, _ in spans] if self._has_states else []
            prompts = [len(batch[i]) - 1 for i, _, _ in spans] if self._sparse else []
            scores = np.array(self._executor.score(*self._step(batch, spans), targets, state_slots, prompts))
            ends = np.cumsum([end - begin for _, begin, end in spans])
            for (i, _, _), part in zip(spans, np.split(scores, ends[:-1]), strict=True):
                parts[i].append(part)
        return [np.concatenate(each) for each in parts]

    def _step(self, batch: list[list[int]], spans: list[tuple[int, int, int]]) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Returns the arguments of CpuExecutor.score. Sequence i of the batch has its own blocks in every cache
        group."""
        tables = np.array([np.arange(i * self._blocks, (i + 1) * self._blocks) for i, _, _ in spans], np.int32)
        positions = [np.arange(begin, end) for _, begin, end in spans]
        blocks = [table[where // self._block] for table, where in zip(tables, positions, strict=True)]
        slots = [block * self._block + where % self._block for block, where in zip(blocks, positions, strict=True)]
        lengths = [end - begin for _, begin, end in spans]
        return (
            np.concatenate([batch[i][begin:end] for i, begin, end in spans]).astype(np.int32),
            np.concatenate(positions).astype(np.int32),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            np.array([end for _, _, end in spans], np.int32),
            np.arange(sum(lengths), dtype=np.int32),
            [(tables, np.concatenate(slots).astype(np.int32))] * self._groups,
        )


def step_tokens(vocab_size: int) -> int:
    """Returns the tokens of a step: enough for the best speed of the kernels, unless the logits would take too much
    memory."""
    return max(MIN_SCORED_PER_STEP, min(MAX_SCORED_PER_STEP, MAX_LOGIT_BYTES // (4 * vocab_size)))
