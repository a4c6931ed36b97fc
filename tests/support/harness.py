"""What the end-to-end tests share: a checkpoint's logits in transformers, and an engine's through the executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from support.tiny_models import class_of
from tensorwright.runtime import _runtime

BLOCK = 32


def reference_logits(model_dir: Path, ids: list[int], dtype: torch.dtype) -> np.ndarray:
    """[len(ids), vocab] float64, computed by transformers in `dtype` with eager attention and experts."""
    return logits_of(load_reference(model_dir, dtype), ids, dtype)


def logits_of(model: torch.nn.Module, ids: list[int], dtype: torch.dtype) -> np.ndarray:
    """[len(ids), vocab] float64, computed by a model of transformers that was loaded in `dtype`."""
    with torch.inference_mode(), default_type(dtype):
        return model(torch.tensor([ids])).logits[0].double().numpy()


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Numbers that a model makes itself while it computes are of `dtype`: XGLM makes the lowest number of float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def load_reference(model_dir: Path, dtype: torch.dtype) -> torch.nn.Module:
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return class_of(model_dir).from_pretrained(model_dir, dtype=dtype, **eager).eval()


def reference_choices(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> list[int]:
    """What transformers picks greedily at each place of `answer`, given all before it.

    Equal to `answer` exactly when transformers, generating by itself, gives `answer` (by induction over its places);
    one forward instead of one per token.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    return logits.argmax(-1).tolist()


class EngineSteps:
    """One sequence at a time through the executor of a finished engine, with its own block table."""

    def __init__(self, engine_dir: Path, threads: int = 1, max_tokens: int = 2048, blocks: int = 80):
        cpu = Path(engine_dir) / "cpu"
        self.executor = _runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), threads, "map")
        self.block = self.executor.facts()["block_size"]
        self.blocks = blocks
        facts = self.executor.facts()
        self.groups = len(facts["group_windows"])
        self.state_slots = [1] if facts["state_bytes"] else []
        self.executor.allocate([blocks] * self.groups, max_tokens, max_tokens, 64, 2 * len(self.state_slots))

    def logits(
        self, ids: list[int], chunks: list[int] | None = None, first_block: int = 0, prompt: int | None = None
    ) -> np.ndarray:
        """[len(ids), vocab] float32: `ids` fed in chunks of the given sizes (default: all at once). prompt: how many of
        them are a prompt, for an engine with sparse prefill."""
        rows, done = [], 0
        needed = -(-len(ids) // self.block)
        table = [(first_block + 3 * i) % self.blocks for i in range(needed)]
        if len(set(table)) != needed:
            table = list(range(needed))
        for size in chunks or [len(ids)]:
            size = min(size, len(ids) - done)
            if size == 0:
                break
            positions = np.arange(done, done + size, dtype=np.int32)
            slots = np.array([table[p // self.block] * self.block + p % self.block for p in positions], np.int32)
            rows.append(
                self.executor.step(
                    np.array(ids[done : done + size], np.int32),
                    positions,
                    np.array([0, size], np.int32),
                    np.array([done + size], np.int32),
                    np.arange(size, dtype=np.int32),
                    [(np.array([table], np.int32), slots)] * self.groups,
                    self.state_slots,
                    [] if prompt is None else [prompt],
                )
            )
            done += size
        assert done == len(ids), "the chunks must cover the prompt"
        return np.concatenate(rows)


def worst(ours: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference of two [tokens, vocab] logit tables."""
    return float(np.abs(ours.astype(np.float64) - exact).max())
