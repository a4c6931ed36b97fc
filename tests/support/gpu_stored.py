"""Weights in the forms of plugins/quantized_matmul/gpu_rows.py: made from random numbers, and read back."""

from __future__ import annotations

import numpy as np

from tensorwright.builder.emit.onnx.plugin_weights import nibbles_of_rows
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.quantized_matmul.fp8 import from_codes, to_codes
from tensorwright.plugins.quantized_matmul.quantize import quantize_weights


def stacked(fmt: WeightFormat, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns values [..., N, S] int8 and scales [..., N, groups] of random weights. What lies behind a row of K is
    large, and no zeros: nobody may count it."""
    *outer, k = shape
    numbers = np.random.default_rng(sum(shape)).standard_normal((int(np.prod(outer)), k)) / np.sqrt(k)
    made = quantize_weights(numbers.astype(np.float32), fmt)
    rows = made.values.reshape(len(numbers), -1)
    if fmt.kind == "fp":
        values = to_codes(rows[:, :k]).view(np.int8)
    else:
        values = rows.astype(np.int8)
        values[:, k:] = 7 if fmt.bits == 4 else 99
        values = nibbles_of_rows(values, k) if fmt.bits == 4 else values
    return values.reshape(*outer, -1), made.scales.reshape(*outer, -1)


def numbers_of(values: np.ndarray, scales: np.ndarray, fmt: WeightFormat, k: int) -> np.ndarray:
    """Returns the weights [..., N, K] in float64."""
    if fmt.kind == "fp":
        return from_codes(values.view(np.uint8)).astype(np.float64) * scales.astype(np.float64)
    if fmt.bits == 4:
        signed = values.astype(np.int32)
        values = np.stack([(signed << 28) >> 28, signed >> 4], axis=-1).reshape(*values.shape[:-1], -1)
    of_each = np.repeat(scales.astype(np.float64), fmt.group, axis=-1)
    return (values.astype(np.float64) * of_each)[..., :k]
