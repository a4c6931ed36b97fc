"""Chooses the scale and the zero point of a group of columns by the errors of a product, row by row.

The candidates are those of plugins/quantized_matmul/quantize.py. There every column of a group counts alike; here each
has a weight of its own.
"""

from __future__ import annotations

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.quantized_matmul.quantize import candidates, rounded, zero_points

_ZERO_STEPS = {2: (0, -1, 1), 3: (0, -1, 1)}
"""What is added to the packer's zero point, by the bits of a weight. Where codes are few, the best may be beside it."""


def choose_scales(w: np.ndarray, fmt: WeightFormat, importance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scales and the zero points, float32 [R]. These are 0 for a format that has none.

    w: float32 [R, S], the columns of one group, in any order. importance: [S], by which their squared errors are
    multiplied.
    """
    x, weight = w[:, None], importance.astype(np.float32)
    best = np.full((len(w), 1), np.inf, np.float32)
    scales, chosen = np.zeros((2, len(w), 1), np.float32)
    for zeros in _zero_points(x, fmt):
        for scale in candidates(x, fmt):
            difference = x - rounded(x, scale, fmt, zeros) * scale[..., None]
            error = (difference * difference) @ weight
            better = error < best
            best[better], scales[better] = error[better], scale[better]
            chosen[better] = 0 if zeros is None else zeros[better]
    return scales[:, 0], chosen[:, 0]


def _zero_points(x: np.ndarray, fmt: WeightFormat) -> list[np.ndarray | None]:
    if not fmt.has_zeros:
        return [None]
    nearest = zero_points(x, fmt)
    return [np.clip(nearest + step, 0, fmt.largest).astype(np.float32) for step in _ZERO_STEPS.get(fmt.bits, (0,))]
