"""Defines in numpy how weights and activations are quantized. The C++ must give the same bits.

The weights of a group take, of a list of scales, the one with the least sum of squared errors; the first wins a tie.
    int8   largest / 127 * t, values in [-127, 127]
    int4   signed largest / -8 * t, then largest / 7 * t, values in [-8, 7]: a negative scale lets the largest be -8
    int3   likewise with -4 and 3; int2 with -2 and 1
    uint8  (most - least) / 255 * t, least and most being of the values and 0; values in [0, 255] less the zero point,
           which is -least * 255 / (most - least), rounded
    uint4  likewise with 15, uint3 with 7, uint2 with 3
    mxfp4  2^(floor(log2 largest) - 2), then twice of it, values +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}: the first is the scale
           that the OCP Microscaling Formats specification (section 6.3) takes. Values are held doubled and scales
           halved here, so that values are whole numbers
    w4a8   two_levels.py
    fp8    largest / 448, rounded to bfloat16, values E4M3; where that is below 2^-120 the scale is 1
The weights of a 2:4 sparse format are pruned first (sparsity.py).
Scales of groups are bfloat16 or, where the format says so, float16 of at most 65504 in magnitude; those of whole rows
float32, and those of fp8 are float32 numbers that bfloat16 can hold, so that a target may store them in either type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorwright.engine_format.weight_formats import FLOAT16, LANES, SPARSE_BLOCK, SPARSE_PLACES, WeightFormat
from tensorwright.plugins.packing import panels_of
from tensorwright.plugins.quantized_matmul.fp8 import LARGEST, from_codes, round_to_e4m3, to_codes
from tensorwright.plugins.quantized_matmul.mxfp4 import E2M1, codes_of, doubled_scales, round_to_e2m1
from tensorwright.plugins.quantized_matmul.sparsity import compressed, expanded, pruned
from tensorwright.plugins.quantized_matmul.two_levels import CODE_OF_ZEROS, TINY, to_two_levels
from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits

LADDERS = {
    2: tuple(np.float32(1 - 0.05 * i) for i in range(14)),
    3: tuple(np.float32(1 - 0.04 * i) for i in range(8)),
    4: tuple(np.float32(1 - 0.04 * i) for i in range(8)),
    8: tuple(np.float32(1 - 0.02 * i) for i in range(3)),
    0: tuple(np.float32(1 - 0.05 * i) for i in range(10)),
}
"""The factors t by the bits of a weight; 0: for whole rows."""
LARGEST_FLOAT16 = np.float32(65504)


@dataclass
class Quantized:
    """values: whole numbers [rows, groups, elements of a group], for fp8 float32; scales: float32 [rows, groups].

    zeros: the zero points, uint8 [rows, groups], of formats that have them. The values are less them already.
    steps: of w4a8, the distances of its values, uint8 [rows, groups]; zeros are then its offsets, that is the values of
    the code 0, plus 128. The values hold steps and offsets already, and all groups of a row have the row's scale.
    """

    values: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None
    steps: np.ndarray | None = None


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
    w = np.asarray(w, np.float32)
    x = in_groups(pruned(w) if fmt.sparse else w, fmt)
    if fmt.has_steps:
        return _to_two_levels(x, w.shape[1])
    best = np.full(x.shape[:2], np.inf, np.float32)
    scales = np.zeros(x.shape[:2], np.float32)
    zeros = zero_points(x, fmt) if fmt.has_zeros else None
    for scale in candidates(x, fmt):
        error = squared_error(x, rounded(x, scale, fmt, zeros), scale)
        better = error < best
        best[better], scales[better] = error[better], scale[better]
    return Quantized(rounded(x, scales, fmt, zeros), scales, None if zeros is None else zeros.astype(np.uint8))


def _to_two_levels(x: np.ndarray, k: int) -> Quantized:
    made = to_two_levels(x, k)
    scales = np.repeat(made.scales[:, None], x.shape[1], axis=1)
    return Quantized(made.values, scales, (made.offsets + 128).astype(np.uint8), made.steps)


def fp8_scales(largest: np.ndarray) -> np.ndarray:
    """Returns the scales of rows or groups from their largest magnitudes."""
    scales = round_to(largest / LARGEST, "bfloat16")
    return np.where(scales >= TINY, scales, np.float32(1))


def _stretched(x: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns the scales [rows, groups] that stretch the range of x, 0 included, over the values of the format."""
    end = np.float32(fmt.largest)
    return x.max(axis=-1, initial=0) / end - x.min(axis=-1, initial=0) / end


def zero_points(x: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns the zero points of groups, float32 [rows, groups]."""
    top = _stretched(x, fmt)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(top >= TINY, np.float32(1) / top, np.float32(0)).astype(np.float32)
    return np.minimum(np.rint(-x.min(axis=-1, initial=0) * inverse), np.float32(fmt.largest))


def candidates(x: np.ndarray, fmt: WeightFormat) -> list[np.ndarray]:
    """Returns the scales [rows, groups] to choose from, in order."""
    at = np.abs(x).argmax(axis=-1)
    signed = np.take_along_axis(x, at[..., None], axis=-1)[..., 0]
    largest = np.abs(signed)
    if fmt.kind == "fp":
        return [fp8_scales(largest)]
    if fmt.kind == "mxfp":
        return [np.where(s >= TINY, s, np.float32(0)) for s in doubled_scales(largest)]
    ladder = LADDERS[0 if fmt.group == 0 else fmt.bits]
    if fmt.has_zeros:
        tops = [_stretched(x, fmt)]
    else:
        tops = [largest / np.float32(fmt.largest)]
        if fmt.bits < 8:
            tops.insert(0, signed / np.float32(fmt.least))
    scales = [top * t for top in tops for t in ladder]
    if fmt.group:
        scales = [narrowed(s, fmt) for s in scales]
    return [np.where(np.abs(s) >= TINY, s, np.float32(0)) for s in scales]


def narrowed(scales: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns the scales of groups as they are stored."""
    if fmt.scales == FLOAT16:
        return np.clip(scales, -LARGEST_FLOAT16, LARGEST_FLOAT16).astype(np.float16).astype(np.float32)
    return from_bfloat16_bits(to_bfloat16_bits(scales))


def rounded(x: np.ndarray, scale: np.ndarray, fmt: WeightFormat, zeros: np.ndarray | None = None) -> np.ndarray:
    """Returns x / scale: the nearest values of the format less the zero points, ties to even. int8, for uint8 int16,
    for fp8 float32."""
    if fmt.kind == "fp":
        return round_to_e4m3(x / scale[..., None])
    with np.errstate(divide="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    if fmt.kind == "mxfp":
        return round_to_e2m1(x * inverse[..., None])
    if zeros is not None:
        low, high = -zeros[..., None], np.float32(fmt.largest) - zeros[..., None]
        return np.clip(np.rint(x * inverse[..., None]), low, high).astype(fmt.values_dtype)
    return np.clip(np.rint(x * inverse[..., None]), fmt.least, fmt.largest).astype(np.int8)


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
    """Quantizes float32 [rows, k]. The scale of a group with an infinity or a NaN is NaN.

    Where products are sums over whole rows, a row is one group.
    """
    groups = in_groups(np.asarray(x, np.float32), fmt)
    if fmt.sums_whole_rows:
        groups = groups.reshape(len(x), 1, groups.shape[1] * groups.shape[2])
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
    if fmt.has_steps:
        return _pack_two_levels(quantized, fmt, k)
    rows, groups, size = quantized.values.shape
    panels = panels_of(rows)
    values = np.zeros((panels * LANES, groups, size), np.float32 if fmt.kind == "fp" else np.int16)
    scales = np.full((panels * LANES, groups), 1 if fmt.kind == "fp" else 0, np.float32)
    zeros = np.zeros((panels * LANES, groups), np.int16)
    values[:rows], scales[:rows] = quantized.values, quantized.scales
    if quantized.zeros is not None:
        zeros[:rows] = quantized.zeros
        values += zeros[..., None]
    less = _less(fmt)
    codes = to_codes(values).view(np.int8) if fmt.kind == "fp" else (values - less).astype(np.int8)
    by_panel = codes.reshape(panels, LANES, groups, size)
    out = np.zeros((panels, fmt.panel_bytes(k)), np.uint8)
    for i in range(groups):
        at = fmt.group_offset(k, i)
        out[:, at : at + fmt.group_bytes(k)] = _lines(by_panel[:, :, i], fmt).reshape(panels, -1)
        bits = scales.reshape(panels, LANES, groups)[:, :, i]
        at = fmt.scale_offset(k, i)
        out[:, at : at + fmt.scale_bytes * LANES] = _stored_scales(bits, fmt)
        if fmt.has_zeros:
            at = fmt.zero_offset(k, i)
            out[:, at : at + LANES] = (zeros.reshape(panels, LANES, groups)[:, :, i] - less).astype(np.uint8)
    return out


def unpack(panels: np.ndarray, fmt: WeightFormat, rows: int, k: int) -> Quantized:
    """Inverts `pack`: takes uint8 [panels * panel bytes] of `rows` rows."""
    panels = panels.reshape(-1, fmt.panel_bytes(k))
    if fmt.has_steps:
        return _unpack_two_levels(panels, fmt, rows, k)
    groups, size, count = fmt.groups(k), fmt.stored_group(k), len(panels)
    values = np.empty((count, LANES, groups, size), np.float32 if fmt.kind == "fp" else np.int8)
    scales = np.empty((count, LANES, groups), np.float32)
    zeros = np.empty((count, LANES, groups), np.uint8)
    for i in range(groups):
        at = fmt.group_offset(k, i)
        values[:, :, i] = _values(panels[:, at : at + fmt.group_bytes(k)], fmt)
        at = fmt.scale_offset(k, i)
        if fmt.has_zeros:
            zeros[:, :, i] = panels[:, fmt.zero_offset(k, i) :][:, :LANES] + np.uint8(_less(fmt))
        scales[:, :, i] = _scales(np.ascontiguousarray(panels[:, at : at + fmt.scale_bytes * LANES]), fmt)
    values, scales = values.reshape(-1, groups, size)[:rows], scales.reshape(-1, groups)[:rows]
    if not fmt.has_zeros:
        return Quantized(values, scales)
    zeros = zeros.reshape(-1, groups)[:rows]
    plain = values.astype(np.int16) + _less(fmt) - zeros[..., None]
    return Quantized(plain.astype(fmt.values_dtype), scales, zeros)


def _pack_two_levels(quantized: Quantized, fmt: WeightFormat, k: int) -> np.ndarray:
    """Does what `pack` does, for w4a8. Rows that do not exist have the bytes of rows of zeros."""
    assert quantized.steps is not None
    assert quantized.zeros is not None
    rows, groups, size = quantized.values.shape
    panels = panels_of(rows)
    codes = np.full((panels * LANES, groups, size), CODE_OF_ZEROS, np.uint8)
    scales = np.zeros(panels * LANES, np.float32)
    offsets = np.full((panels * LANES, groups), 128 - CODE_OF_ZEROS, np.uint8)
    steps = np.ones((panels * LANES, groups), np.uint8)
    scales[:rows], offsets[:rows], steps[:rows] = quantized.scales[:, 0], quantized.zeros, quantized.steps
    above = quantized.values + np.int16(128) - quantized.zeros.astype(np.int16)[..., None]
    codes[:rows] = above // quantized.steps[..., None]
    panel_codes = codes.reshape(panels, LANES, groups, size)
    panel_offsets, panel_steps = offsets.reshape(panels, LANES, groups), steps.reshape(panels, LANES, groups)
    out = np.zeros((panels, fmt.panel_bytes(k)), np.uint8)
    out[:, : fmt.front_bytes] = scales.reshape(panels, LANES).view(np.uint8)
    for i in range(groups):
        at = fmt.group_offset(k, i)
        out[:, at : at + fmt.group_bytes(k)] = _code_lines(panel_codes[:, :, i], fmt.bits).reshape(panels, -1)
        at = fmt.scale_offset(k, i)
        out[:, at : at + LANES] = panel_steps[:, :, i]
        at = fmt.zero_offset(k, i)
        out[:, at : at + LANES] = panel_offsets[:, :, i]
    return out


def _unpack_two_levels(panels: np.ndarray, fmt: WeightFormat, rows: int, k: int) -> Quantized:
    """Inverts `_pack_two_levels`: takes uint8 [panels, panel bytes]."""
    groups, size, count = fmt.groups(k), fmt.stored_group(k), len(panels)
    codes = np.empty((count, LANES, groups, size), np.uint8)
    steps, offsets = np.empty((2, count, LANES, groups), np.uint8)
    for i in range(groups):
        at = fmt.group_offset(k, i)
        codes[:, :, i] = _codes(panels[:, at : at + fmt.group_bytes(k)], fmt.bits)
        at = fmt.scale_offset(k, i)
        steps[:, :, i] = panels[:, at : at + LANES]
        at = fmt.zero_offset(k, i)
        offsets[:, :, i] = panels[:, at : at + LANES]
    values = codes.astype(np.int16) * steps[..., None] + offsets[..., None] - np.int16(128)
    scales = np.ascontiguousarray(panels[:, : fmt.front_bytes]).view(np.float32).reshape(-1)[:rows]
    return Quantized(
        values.astype(np.int8).reshape(-1, groups, size)[:rows], np.repeat(scales[:, None], groups, axis=1),
        offsets.reshape(-1, groups)[:rows], steps.reshape(-1, groups)[:rows],
    )  # fmt: skip


def _less(fmt: WeightFormat) -> int:
    """Returns what values and zero points are stored less: uint8 is stored in [-128, 127]."""
    return 128 if fmt.has_zeros and fmt.bits == 8 else 0


def _stored_scales(scales: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Turns float32 [panels, 16] into the bytes of the scales, uint8 [panels, bytes]."""
    bits = np.ascontiguousarray(scales)
    if fmt.kind == "mxfp":
        return (bits.view(np.uint32) >> 23).astype(np.uint8)
    if fmt.scales == FLOAT16:
        return bits.astype(np.float16).view(np.uint8)
    return np.ascontiguousarray(to_bfloat16_bits(bits) if fmt.scale_bytes == 2 else bits).view(np.uint8)


def _scales(stored: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Inverts `_stored_scales`."""
    if fmt.kind == "mxfp":
        return (stored.astype(np.uint32) << 23).view(np.float32)
    if fmt.scales == FLOAT16:
        return stored.view(np.float16).astype(np.float32)
    return from_bfloat16_bits(stored.view(np.uint16)) if fmt.scale_bytes == 2 else stored.view(np.float32)


def _values(data: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Inverts `_lines`: uint8 [panels, bytes of one group] -> int8 [panels, 16, size], for fp8 float32."""
    if fmt.sparse:
        blocks = data.reshape(-1, SPARSE_PLACES + SPARSE_BLOCK // 2 * LANES * fmt.bits // 8)
        kept = _values(np.ascontiguousarray(blocks[:, SPARSE_PLACES:]), replace(fmt, sparse=False))
        values = expanded(kept, _codes(np.ascontiguousarray(blocks[:, :SPARSE_PLACES]), 2))
        return values.reshape(len(data), -1, LANES, SPARSE_BLOCK).swapaxes(1, 2).reshape(len(data), LANES, -1)
    if fmt.bits == 8:
        lines = data.reshape(len(data), -1, LANES, 4)
        stored = lines.transpose(0, 2, 1, 3).reshape(len(data), LANES, -1)
        return from_codes(stored) if fmt.kind == "fp" else stored.view(np.int8)
    codes = _codes(data, fmt.bits)
    return E2M1[codes] if fmt.kind == "mxfp" else codes.astype(np.int8) + np.int8(fmt.least)


def _codes(data: np.ndarray, bits: int) -> np.ndarray:
    """Inverts `_code_lines`: uint8 [panels, bytes of one group] -> uint8 [panels, 16, size]."""
    lines = data.reshape(len(data), -1, LANES, 4)
    if bits == 3:
        blocks = lines.reshape(len(data), -1, 3, LANES, 4)
        low, upper = _steps(blocks[:, :, :2], 2), _steps(blocks[:, :, 2:], 1)
        codes = low | upper << 2
    else:
        codes = _steps(lines[:, :, None], bits)
    return codes.reshape(len(data), -1, LANES, 4).transpose(0, 2, 1, 3).reshape(len(data), LANES, -1)


def _steps(lines: np.ndarray, bits: int) -> np.ndarray:
    """Takes lines [panels, blocks, lines, 16, 4] apart: uint8 [panels, blocks, steps, 16, 4], with `bits` each."""
    parts = np.stack([lines >> bits * step & (1 << bits) - 1 for step in range(8 // bits)], axis=3)
    return parts.reshape(*lines.shape[:2], -1, *lines.shape[3:])


def _joined_steps(steps: np.ndarray, bits: int) -> np.ndarray:
    """Inverts `_steps`."""
    parts = steps.reshape(*steps.shape[:2], -1, 8 // bits, *steps.shape[3:])
    return np.bitwise_or.reduce(parts << (bits * np.arange(8 // bits, dtype=np.uint8))[:, None, None], axis=3)


def _lines(values: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Turns int8 [panels, 16, size] of one group into its bytes, uint8 [panels, lines, 16, 4]."""
    panels, lanes, size = values.shape
    if fmt.sparse:
        blocks = values.reshape(panels, lanes, -1, SPARSE_BLOCK).swapaxes(1, 2).reshape(-1, lanes, SPARSE_BLOCK)
        kept, places = compressed(blocks)
        parts = _code_lines(places, 2), _lines(kept, replace(fmt, sparse=False))
        lines = np.concatenate([part.reshape(len(blocks), -1) for part in parts], axis=1)
        return lines.reshape(panels, -1, lanes, 4)
    if fmt.bits == 8:
        return np.ascontiguousarray(values).view(np.uint8).reshape(panels, lanes, size // 4, 4).transpose(0, 2, 1, 3)
    return _code_lines(codes_of(values) if fmt.kind == "mxfp" else (values - fmt.least).astype(np.uint8), fmt.bits)


def _code_lines(codes: np.ndarray, bits: int) -> np.ndarray:
    """Turns codes, uint8 [panels, 16, size] of one group, into lines of `bits` each, uint8 [panels, lines, 16, 4]."""
    panels, lanes, size = codes.shape
    steps = codes.reshape(panels, lanes, size // 4, 4).transpose(0, 2, 1, 3)
    if bits != 3:
        return _joined_steps(steps.reshape(panels, -1, 8 // bits, lanes, 4), bits)
    blocks = steps.reshape(panels, -1, 8, lanes, 4)
    return np.concatenate([_joined_steps(blocks & 3, 2), _joined_steps(blocks >> 2, 1)], axis=2)
