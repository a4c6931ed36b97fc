"""Defines in numpy how weights and activations are quantized. The C++ must give the same bits.

The weights of a group take, of a list of scales, the one with the least sum of squared errors; the first wins a tie.
    int8   largest / 127 * t, values in [-127, 127]
    int4   signed largest / -8 * t, then largest / 7 * t, values in [-8, 7]: a negative scale lets the largest be -8
    fp8    largest / 448, values E4M3; a row of zeros has scale 1
Grouped scales are bfloat16, those of whole rows float32. Scales of fp8 are float32 numbers that bfloat16 can hold, so
that a target may store them in either type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.weight_formats import LANES, SCALE_BYTES, WeightFormat
from tensorwright.plugins.packing import panels_of
from tensorwright.plugins.quantized_matmul.fp8 import LARGEST, round_to_e4m3
from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits

LADDERS = {
    4: tuple(np.float32(1 - 0.04 * i) for i in range(8)),
    8: tuple(np.float32(1 - 0.02 * i) for i in range(3)),
    0: tuple(np.float32(1 - 0.05 * i) for i in range(10)),
}
"""The factors t, for 4 bits, for 8 bits, and for whole rows."""
TINY = np.float32(2.0**-120)
"""Smaller magnitudes count as zero, because their reciprocals overflow."""


@dataclass
class Quantized:
    """values: int8 [rows, groups, elements of a group], for fp8 float32; scales: float32 [rows, groups]."""

    values: np.ndarray
    scales: np.ndarray


def in_groups(x: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns float32 [rows, k] as [rows, groups, elements of a group as stored], padded with zeros."""
    rows, k = x.shape
    groups, size = fmt.groups(k), fmt.stored_group(k)
    padded = np.zeros((rows, groups * size), np.float32)
    padded[:, :k] = x
    return padded.reshape(rows, groups, size)


def quantize_weights(w: np.ndarray, fmt: WeightFormat) -> Quantized:
    """Quantizes float32 [rows, k]. Raises ValueError for an infinity or a NaN."""
    if not np.isfinite(w).all():
        raise ValueError("a weight is infinite or not a number")
    x = in_groups(np.asarray(w, np.float32), fmt)
    if fmt.kind == "fp":
        return _to_fp8(x)
    best = np.full(x.shape[:2], np.inf, np.float32)
    scales = np.zeros(x.shape[:2], np.float32)
    for scale in candidates(x, fmt):
        error = squared_error(x, rounded(x, scale, fmt), scale)
        better = error < best
        best[better], scales[better] = error[better], scale[better]
    return Quantized(rounded(x, scales, fmt), scales)


def _to_fp8(x: np.ndarray) -> Quantized:
    scales = fp8_scales(np.abs(x).max(axis=-1, initial=0))
    return Quantized(round_to_e4m3(x / scales[..., None]), scales)


def fp8_scales(largest: np.ndarray) -> np.ndarray:
    """Returns the scales of rows from their largest magnitudes."""
    return round_to(np.where(largest >= TINY, largest, LARGEST) / LARGEST, "bfloat16")


def candidates(x: np.ndarray, fmt: WeightFormat) -> list[np.ndarray]:
    """Returns the scales [rows, groups] to choose from, in order."""
    at = np.abs(x).argmax(axis=-1)
    signed = np.take_along_axis(x, at[..., None], axis=-1)[..., 0]
    largest = np.abs(signed)
    ladder = LADDERS[0 if fmt.group == 0 else fmt.bits]
    tops = [largest / np.float32(127)] if fmt.bits == 8 else [signed / np.float32(-8), largest / np.float32(7)]
    scales = [top * t for top in tops for t in ladder]
    if fmt.group:
        scales = [from_bfloat16_bits(to_bfloat16_bits(s)) for s in scales]
    return [np.where(np.abs(s) >= TINY, s, np.float32(0)) for s in scales]


def rounded(x: np.ndarray, scale: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns x / scale as int8, rounded to nearest even, clamped to the format's range."""
    with np.errstate(divide="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    low = -127 if fmt.bits == 8 else -8
    return np.clip(np.rint(x * inverse[..., None]), low, fmt.largest).astype(np.int8)


def squared_error(x: np.ndarray, q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns float32 sums over the group, elements ascending, with every step rounded."""
    total = np.zeros(scale.shape, np.float32)
    for k in range(x.shape[-1]):
        difference = x[..., k] - q[..., k].astype(np.float32) * scale
        total = total + difference * difference
    return total


def dequantized(quantized: Quantized, k: int) -> np.ndarray:
    """Returns the quantized weights as float32 [rows, k]."""
    x = quantized.values.astype(np.float32) * quantized.scales[..., None]
    return x.reshape(len(x), -1)[:, :k]


def quantize_activations(x: np.ndarray, fmt: WeightFormat) -> Quantized:
    """Quantizes float32 [rows, k]. The scale of a group with an infinity or a NaN is NaN."""
    groups = in_groups(np.asarray(x, np.float32), fmt)
    largest = np.abs(groups).max(axis=-1)
    finite = np.isfinite(largest)
    alive = finite & (largest >= TINY)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(alive, np.float32(127) / largest, np.float32(0))
        values = np.where(alive[..., None], np.rint(groups * inverse[..., None]), 0).astype(np.int8)
        scales = np.where(alive, largest / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    return Quantized(values, scales.astype(np.float32))


def pack(quantized: Quantized, fmt: WeightFormat, k: int) -> np.ndarray:
    """Returns uint8 [panels, panel bytes] in the layout of layout.h."""
    rows, groups, size = quantized.values.shape
    panels = panels_of(rows)
    values = np.zeros((panels * LANES, groups, size), np.int8)
    scales = np.zeros((panels * LANES, groups), np.float32)
    values[:rows], scales[:rows] = quantized.values, quantized.scales
    by_panel = values.reshape(panels, LANES, groups, size)
    out = np.zeros((panels, fmt.panel_bytes(k)), np.uint8)
    for i in range(groups):
        at = (i // 2 + 1) * SCALE_BYTES + i * fmt.group_bytes(k)
        out[:, at : at + fmt.group_bytes(k)] = _lines(by_panel[:, :, i], fmt).reshape(panels, -1)
        bits = scales.reshape(panels, LANES, groups)[:, :, i]
        stored = np.ascontiguousarray(to_bfloat16_bits(bits) if fmt.group else bits).view(np.uint8)
        at = i // 2 * (SCALE_BYTES + 2 * fmt.group_bytes(k)) + i % 2 * 32
        out[:, at : at + stored.shape[1]] = stored
    return out


def unpack(panels: np.ndarray, fmt: WeightFormat, rows: int, k: int) -> Quantized:
    """Inverts `pack`: takes uint8 [panels * panel bytes] of `rows` rows."""
    panels = panels.reshape(-1, fmt.panel_bytes(k))
    groups, size, count = fmt.groups(k), fmt.stored_group(k), len(panels)
    values = np.empty((count, LANES, groups, size), np.int8)
    scales = np.empty((count, LANES, groups), np.float32)
    for i in range(groups):
        at = (i // 2 + 1) * SCALE_BYTES + i * fmt.group_bytes(k)
        values[:, :, i] = _values(panels[:, at : at + fmt.group_bytes(k)], fmt)
        at = i // 2 * (SCALE_BYTES + 2 * fmt.group_bytes(k)) + i % 2 * 32
        stored = np.ascontiguousarray(panels[:, at : at + (2 if fmt.group else 4) * LANES])
        scales[:, :, i] = from_bfloat16_bits(stored.view(np.uint16)) if fmt.group else stored.view(np.float32)
    return Quantized(values.reshape(-1, groups, size)[:rows], scales.reshape(-1, groups)[:rows])


def _values(data: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Inverts `_lines`: uint8 [panels, bytes of one group] -> int8 [panels, 16, size]."""
    lines = data.reshape(len(data), -1, LANES, 4)
    if fmt.bits == 8:
        return lines.transpose(0, 2, 1, 3).reshape(len(data), LANES, -1).view(np.int8)
    nibbles = np.stack([lines & 15, lines >> 4], axis=2).astype(np.int8) - np.int8(8)  # [panels, lines, half, 16, 4]
    return nibbles.transpose(0, 3, 1, 2, 4).reshape(len(data), LANES, -1)


def _lines(values: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Turns int8 [panels, 16, size] of one group into its bytes, uint8 [panels, lines, 16, 4]."""
    panels, lanes, size = values.shape
    if fmt.bits == 8:
        return values.view(np.uint8).reshape(panels, lanes, size // 4, 4).transpose(0, 2, 1, 3)
    nibbles = (values + 8).astype(np.uint8).reshape(panels, lanes, size // 8, 2, 4).transpose(0, 2, 3, 1, 4)
    return nibbles[:, :, 0] | nibbles[:, :, 1] << 4
