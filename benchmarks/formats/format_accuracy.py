"""Compares engines with a reference on windows of a text, all of them beside each other, some positions at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.builder.measure.accuracy import EngineLogits
from tensorwright.builder.measure.interruptible import in_another_thread

WINDOW = 512


@dataclass
class Sums:
    """What is added up of one engine over the positions."""

    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    agreements: int = 0

    def record(self) -> dict[str, float]:
        return {
            "perplexity": math.exp(sum(self.losses) / len(self.losses)),
            "kl_divergence": sum(self.divergences) / len(self.divergences),
            "top1_agreement": self.agreements / len(self.divergences),
        }


def windows(model: Path, texts: list[str], count: int) -> list[list[int]]:
    """Returns token ids, at most [count][WINDOW], spread evenly over the texts, which are joined by token 0."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = [i for text in texts for i in [*tokenizer.encode(text).ids, 0]]
    whole = len(ids) // WINDOW
    if whole == 0:
        raise SystemExit(f"the text must have at least {WINDOW} tokens, has {len(ids)}")
    starts = np.linspace(0, whole - 1, min(count, whole)).astype(int) * WINDOW
    return [ids[start : start + WINDOW] for start in starts]


def compare(
    reference: Path, folders: Sequence[Path], parts: list[list[int]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Returns the figures of the engines in `folders`, over all windows."""
    rows = [Sums() for _ in folders]
    with in_another_thread() as call:
        exact, *engines = [EngineLogits(folder, WINDOW, call) for folder in (reference, *folders)]
        for number, ids in enumerate(parts):
            say(f"window {number + 1} of {len(parts)}")
            _add_window(rows, exact, engines, ids)
    return [row.record() for row in rows]


def _add_window(rows: list[Sums], reference: EngineLogits, engines: list[EngineLogits], ids: list[int]) -> None:
    """Adds one window to the sums, 32 positions at a time."""
    done = 0
    for wanted, *blocks in zip(*(engine(ids, 32) for engine in (reference, *engines)), strict=True):
        following = ids[done + 1 : done + 1 + len(wanted)]
        exact = log_softmax(wanted)
        for row, logits in zip(rows, blocks, strict=True):
            log_q = log_softmax(logits)
            row.divergences += (np.exp(exact) * (exact - log_q)).sum(axis=1).tolist()
            row.agreements += int((exact.argmax(axis=1) == log_q.argmax(axis=1)).sum())
            row.losses += [-float(log_q[i, token]) for i, token in enumerate(following)]
        done += len(wanted)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
