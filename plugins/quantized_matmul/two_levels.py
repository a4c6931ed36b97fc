"""Rounds to w4a8: codes of 4 bits, whole-number steps and offsets of groups, and one float32 scale for each row.

A weight is scale * (offset + step * code) with a code from 0 to 15 and a step from 1 to MAX_STEP. All 16 values of a
group fit int8, so products are exact sums of whole numbers over a whole row. Two levels of scales, the inner ones whole
numbers: "progressive group quantization" of QServe (Lin et al. 2024, https://arxiv.org/abs/2405.04532, section 4.1).
Its inner values are step * (code - zero); an offset in units of the row's scale loses less and costs a kernel less.

The scale of a row is the least that reaches all of its weights and ranges of groups. A group takes, of three steps and
five offsets, the pair with the least sum of squared errors; the first wins a tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.weight_formats import MAX_STEP

TINY = np.float32(2.0**-120)
"""Smaller magnitudes count as zero, because their reciprocals overflow."""
CODES = 15
"""The largest code."""
STEPS = (0, 1, 2)
"""What the steps that are tried are less than the one that reaches the whole range of a group."""
CENTRES = (7.0, 7.25, 7.5, 7.75, 8.0)
"""The codes, and points between codes, to which the middle of a group's range is moved in turn."""
CODE_OF_ZEROS = int(CENTRES[0])
"""The code of all weights of a group of zeros, whose step is 1."""


@dataclass
class TwoLevels:
    """values: int8 [rows, groups, elements], scales: float32 [rows], steps: uint8 [rows, groups], offsets: int16."""

    values: np.ndarray
    scales: np.ndarray
    steps: np.ndarray
    offsets: np.ndarray


def row_scales(least: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Returns the scales of rows, float32 [rows], from the least and the greatest weights [rows, groups]."""
    reach = np.float32(CODES * MAX_STEP)
    ranges = (most / reach - least / reach).max(axis=1)
    scales = np.maximum(ranges, np.maximum(most, -least).max(axis=1) / np.float32(127))
    return np.where(scales >= TINY, scales, np.float32(0)).astype(np.float32)


def to_two_levels(x: np.ndarray, k: int) -> TwoLevels:
    """Quantizes float32 [rows, groups, elements], all finite. The elements behind the first k of a row do not count."""
    there = np.arange(x[0].size).reshape(x.shape[1:]) < k
    within = np.where(there, x, x[..., :1])
    least, most = within.min(axis=2), within.max(axis=2)
    scales = row_scales(least, most)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0)).astype(np.float32)[:, None]
    low, high = least * inverse, most * inverse
    middle = (low + high) * np.float32(0.5)
    reaching = np.rint((high - low) * (np.float32(1) / np.float32(CODES)) + np.float32(0.5))
    best = np.full(low.shape, np.inf, np.float32)
    steps, offsets = np.ones_like(low), np.zeros_like(low)
    for less in STEPS:
        step = np.clip(reaching - np.float32(less), 1, MAX_STEP).astype(np.float32)
        for centre in CENTRES:
            wanted = np.rint(middle - np.float32(centre) * step)
            offset = np.clip(wanted, np.float32(-128), 127 - CODES * step).astype(np.float32)
            error = _squared_error(x, there, scales, inverse, step, offset)
            better = error < best
            best[better], steps[better], offsets[better] = error[better], step[better], offset[better]
    values = offsets[..., None] + nearest_codes(x * inverse[..., None], steps, offsets) * steps[..., None]
    return TwoLevels(values.astype(np.int8), scales, steps.astype(np.uint8), offsets.astype(np.int16))


def nearest_codes(y: np.ndarray, steps: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns the codes, as float32, of weights y [rows, groups, elements] in units of the scales of their rows."""
    inverse = (np.float32(1) / steps).astype(np.float32)
    return np.clip(np.rint((y - offsets[..., None]) * inverse[..., None]), 0, CODES)


def _squared_error(
    x: np.ndarray, there: np.ndarray, scales: np.ndarray, inverse: np.ndarray, step: np.ndarray, offset: np.ndarray
) -> np.ndarray:
    """Returns float32 sums over the group, elements ascending, with every step rounded."""
    total = np.zeros(step.shape, np.float32)
    codes = nearest_codes(x * inverse[..., None], step, offset)
    for k in range(x.shape[2]):
        value = offset + codes[..., k] * step
        difference = np.where(there[:, k], x[..., k] - value * scales[:, None], np.float32(0))
        total = total + difference * difference
    return total
