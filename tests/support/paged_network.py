"""A "network" for the stand-in of TensorRT: it reads its context from the pages of every layer, through the metadata.

Next token = sum over layers and the positions that they see of (layer + 1) * (token + 1) * (position + 3), modulo the
vocabulary. Keys hold the token, values the position, in every head and channel in another way; so a wrong page, slot,
stride or table changes what comes, or is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.fake_gpu import FaultError
from tensorwright.engine_format.kv_cache import SCALED_BYTES
from tensorwright.engine_format.tensorrt_manifest import Manifest


def next_token(context: Sequence[int], manifest: Manifest) -> int:
    """What the model says after these tokens."""
    total = 0
    for index, layer in enumerate(manifest.layers):
        window = manifest.group_windows[layer.group] or len(context)
        seen = range(max(0, len(context) - window), len(context))
        total += sum((index + 1) * (context[at] + 1) * (at + 3) for at in seen)
    return total % manifest.vocab_size


def continuation(prompt: Sequence[int], count: int, manifest: Manifest) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, manifest))
    return tokens[len(prompt) :]


class PagedNetwork:
    """(inputs, outputs) -> None, for FakeTensorRt. `steps` keeps the sizes of each call, `tables` the last tables."""

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.steps: list[dict[str, tuple[int, ...]]] = []
        self.tables: dict[str, np.ndarray] = {}

    def __call__(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        self.steps.append({name: array.shape for name, array in inputs.items()})
        self.tables = {name: array.copy() for name, array in inputs.items() if name.startswith("block_tables.")}
        if not all(np.isfinite(array).all() for array in inputs.values()):
            raise FaultError("a page holds NaN")
        for index in range(len(self.manifest.layers)):
            self._write(index, inputs, outputs)
        logits = outputs["logits"]
        logits[:] = 0
        sequences = np.searchsorted(inputs["seq_starts"], inputs["logit_rows"], side="right") - 1
        for row, (token, sequence) in enumerate(zip(inputs["logit_rows"], sequences, strict=True)):
            length = int(inputs["positions"][token]) + 1
            if length > inputs["context_lens"][sequence]:
                raise FaultError(f"a context of {inputs['context_lens'][sequence]} has no position {length - 1}")
            total = sum(self._read(i, inputs, int(sequence), length) for i in range(len(self.manifest.layers)))
            logits[row, total % self.manifest.vocab_size] = 1

    def _write(self, index: int, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        layer, block_size = self.manifest.layers[index], self.manifest.block_size
        slots = inputs[f"slots.{layer.group}"]
        if slots.min() < 0:
            raise FaultError(f"slot {slots.min()}")
        for kind, values in (("k", inputs["token_ids"]), ("v", inputs["positions"])):
            for name, pattern in self._patterns(kind, index):
                pages = outputs[name.replace(".", "_out.")]
                each = values.reshape(-1, *[1] * pattern.ndim) + pattern
                pages[slots // block_size, :, slots % block_size] = each
        if f"k_scales.{index}" in inputs:
            assert np.shares_memory(inputs[f"k_scales.{index}"], outputs[f"k_scales_out.{index}"])

    def _patterns(self, kind: str, index: int) -> list[tuple[str, np.ndarray]]:
        """(tensor, what is added to the value in each head and channel)"""
        layer = self.manifest.layers[index]
        heads, channels = np.arange(layer.kv_heads), np.arange(layer.head_dim)
        found = [(f"{kind}_pages.{index}", (heads[:, None] * 3 + channels) % 5)]
        if self.manifest.kv_dtype in SCALED_BYTES:
            found.append((f"{kind}_scales.{index}", heads * 7 + index))
        return found

    def _read(self, index: int, inputs: dict[str, np.ndarray], sequence: int, length: int) -> int:
        layer = self.manifest.layers[index]
        window = self.manifest.group_windows[layer.group] or length
        at = np.arange(max(0, length - window), length)
        table = inputs[f"block_tables.{layer.group}"][sequence]
        blocks, offsets = table[at // self.manifest.block_size], at % self.manifest.block_size
        if blocks.min() < 0:
            raise FaultError(f"layer {index} reads block {blocks.min()}")
        tokens, positions = (self._held(k, index, inputs, blocks, offsets) for k in "kv")
        if not np.array_equal(positions, at):
            return 0  # not what was written for this sequence: the token comes out wrong
        return int((index + 1) * ((tokens + 1) * (at + 3)).sum())

    def _held(
        self, kind: str, index: int, inputs: dict[str, np.ndarray], blocks: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """[positions]: the value, which every head and channel must hold."""
        alike = []
        for name, pattern in self._patterns(kind, index):
            values = inputs[name][blocks, :, offsets].astype(np.float64) - pattern
            alike.append(values.reshape(len(blocks), -1))
        values = np.concatenate(alike, axis=1)
        if not (values == values[:, :1]).all():
            return np.zeros(len(blocks), np.int64)
        return values[:, 0].astype(np.int64)
