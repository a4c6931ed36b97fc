"""An executor written in Python, whose "model" reads its context from its own paged cache.

Next token = sum over the context of (token + 1) * (position + 3), modulo the vocabulary: a block that is lost, mixed up
or not copied changes what comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from support.waiting import wait_until
from tensorwright.runtime import _runtime

VOCAB = 101


def next_token(context: list[int]) -> int:
    """What the model says after these tokens."""
    return sum((token + 1) * (at + 3) for at, token in enumerate(context)) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ToyExecutor:
    """`hook(step)` is called at the start of each run; `change(logits)` is what run returns."""

    def __init__(
        self,
        block_size: int = 16,
        max_seq_len: int = 256,
        hook: Callable[[Any], None] | None = None,
        change: Callable[[np.ndarray], Any] | None = None,
    ):
        self.block_size, self.max_seq_len = block_size, max_seq_len
        self.hook, self.change = hook, change
        self.cache = np.zeros((0, block_size), np.int64)
        self.limits: tuple[int, ...] = ()
        self.batches: list[int] = []  # sequences of each step
        self.copies = 0
        self.closed = threading.Event()
        self.logits: np.ndarray | None = None

    def facts(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCAB,
            "max_seq_len": self.max_seq_len,
            "block_size": self.block_size,
            "block_bytes": [8 * self.block_size],
            "group_windows": [0],
        }

    def allocate(self, blocks: list[int], max_tokens: int, max_rows: int, max_seqs: int) -> None:
        self.limits = (max_tokens, max_rows, max_seqs)
        self.cache = np.full((blocks[0], self.block_size), -(10**6), np.int64)

    def run(self, step: Any) -> Any:
        if self.hook is not None:
            self.hook(step)
        self.batches.append(len(step.context_lens))
        self.cache.reshape(-1)[step.slots(0)] = (step.token_ids.astype(np.int64) + 1) * (step.positions + 3)
        logits = np.zeros((len(step.logit_rows), VOCAB), np.float32)
        sequence_of = np.searchsorted(step.seq_starts, step.logit_rows, side="right") - 1
        for row, (token, sequence) in enumerate(zip(step.logit_rows, sequence_of, strict=True)):
            held = self.cache[step.block_tables(0)[sequence]].reshape(-1)
            logits[row, held[: step.positions[token] + 1].sum() % VOCAB] = 1.0
        self.logits = logits
        return logits if self.change is None else self.change(logits)

    def copy_block(self, group: int, source: int, target: int) -> None:
        assert group == 0
        self.copies += 1
        self.cache[target] = self.cache[source]

    def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


def options(executor: ToyExecutor, blocks: int = 64, **changes: Any) -> Any:
    made = _runtime.EngineOptions()
    made.kv_cache_bytes = blocks * executor.facts()["block_bytes"][0]
    made.max_batch_size, made.max_num_tokens = 8, 64
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def sampling(max_tokens: int, **changes: Any) -> Any:
    made = _runtime.Sampling()
    made.max_tokens, made.temperature = max_tokens, 0.0
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def collect(engine: Any, ends: int) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], Any]]:
    """Tokens and last events, by request and completion, until `ends` completions have ended."""
    tokens: dict[tuple[int, int], list[int]] = {}
    last: dict[tuple[int, int], Any] = {}

    def ended() -> bool:
        for event in engine.wait_events(0.2):
            name = (event.request_id, event.completion)
            tokens.setdefault(name, []).extend(event.tokens)
            if event.finish:
                last[name] = event
        return len(last) >= ends

    wait_until(ended)
    return tokens, last
