"""GPTQ against its definition: the textbook's loop, which keeps the inverse of H for the columns that are left."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.builder.calibrate.calibrating_weights import second_moments
from tensorwright.builder.calibrate.gptq import DAMPING, ChosenRows, choose_codes, factorise
from tensorwright.builder.calibrate.group_scales import choose_scales
from tensorwright.builder.calibrate.refine import refine_codes, refine_scales
from tensorwright.engine_format.weight_formats import WeightFormat, parse_format
from tensorwright.errors import CheckpointError
from tensorwright.plugins.quantized_matmul.quantize import (
    candidates,
    dequantized,
    in_groups,
    quantize_activations,
    quantize_weights,
    rounded,
    zero_points,
)

ROWS = 5


def inputs(k: int, tokens: int = 96, seed: int = 3) -> np.ndarray:
    """Correlated inputs, a few of which are ten times as large as the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, k)) @ rng.standard_normal((k, k)) / np.sqrt(k)
    x[:, rng.integers(0, k, 3)] *= 10
    return x.astype(np.float32)


def weights(k: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal((ROWS, k)).astype(np.float32)


def calibrated(w: np.ndarray, moments: np.ndarray, fmt: WeightFormat) -> ChosenRows:
    return choose_codes(w, fmt, factorise(moments, fmt))


def spread(each: np.ndarray | None, fmt: WeightFormat, k: int) -> np.ndarray:
    """Returns what every column of [R, groups] has, [R, K]; 0 for no zero points."""
    return (
        np.zeros((ROWS, k)) if each is None else np.repeat(each, fmt.stored_group(k), axis=1)[:, :k].astype(np.float64)
    )


def textbook(w: np.ndarray, moments: np.ndarray, chosen: ChosenRows, fmt: WeightFormat) -> np.ndarray:
    """Returns the codes of GPTQ as the paper's section 3 has it, for scales and zero points that are there: after each
    column, all columns that are left move by the error times their row of the inverse of H, and the inverse loses the
    column. Groups of large inputs come first, and in a group columns of large inputs."""
    k = w.shape[1]
    size, sums = fmt.stored_group(k), np.diagonal(moments)
    groups = sorted(range(fmt.groups(k)), key=lambda g: -sums[g * size : (g + 1) * size].mean())
    left = [c for g in groups for c in sorted(range(g * size, min(g * size + size, k)), key=lambda c: -sums[c])]
    h = moments + DAMPING * sums.mean() * np.eye(k)
    w = w.astype(np.float64)
    scales, zeros = spread(chosen.scales, fmt, k), spread(chosen.zeros, fmt, k)
    codes = np.zeros(w.shape)
    while left:
        column = left[0]
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        scale, zero = scales[:, column], zeros[:, column]
        code = np.clip(np.rint(w[:, column] / scale), fmt.least - zero, fmt.largest - zero)
        codes[:, column] = code
        error = (w[:, column] - code * scale) / inverse[0, 0]
        w[:, left] -= error[:, None] * inverse[0]
        left = left[1:]
    return codes


def squared_error(w: np.ndarray, chosen: ChosenRows, fmt: WeightFormat, moments: np.ndarray) -> float:
    """Returns the sum of the squared errors of the product, by the second moments of its inputs."""
    error = chosen.codes * spread(chosen.scales, fmt, w.shape[1]) - w
    return float(((error @ moments) * error).sum())


def nearest_codes(w: np.ndarray, fmt: WeightFormat) -> ChosenRows:
    made = quantize_weights(w, fmt)
    return ChosenRows(made.values.reshape(ROWS, -1)[:, : w.shape[1]], made.scales, made.zeros)


FORMATS = ["int4:g32", "int4:g128", "int8:g64", "int3:g32", "int2:g64", "uint2:g32", "uint4:g128", "uint8:g32", "w8a8"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("k", [31, 64, 200])
def test_codes_are_those_of_the_textbook(name: str, k: int) -> None:
    fmt = parse_format(name)
    w, moments = weights(k), second_moments(inputs(k), fmt)
    chosen = calibrated(w, moments, fmt)
    # The two ways round otherwise, so that a value half way between two codes may fall to either side.
    assert np.mean(chosen.codes != textbook(w, moments, chosen, fmt)) <= 0.005
    stored = chosen.codes + spread(chosen.zeros, fmt, k)
    assert fmt.least <= stored.min()
    assert stored.max() <= fmt.largest


@pytest.mark.parametrize("name", ["int4:g32", "int4:g128", "uint4:g64", "uint8:g64", "int3:g32", "uint2:g32", "w8a8"])
def test_outputs_are_nearer_than_those_of_the_nearest_codes(name: str) -> None:
    fmt = parse_format(name)
    w, moments = weights(256), second_moments(inputs(256, tokens=512), fmt)
    nearest = squared_error(w, nearest_codes(w, fmt), fmt, moments)
    assert squared_error(w, calibrated(w, moments, fmt), fmt, moments) < 0.8 * nearest


@pytest.mark.parametrize("name", ["int4:g32", "uint4:g64"])
@pytest.mark.parametrize("moments", [7 * np.eye(96), np.zeros((96, 96))])
def test_independent_inputs_leave_the_nearest_codes(name: str, moments: np.ndarray) -> None:
    """With H a multiple of the identity no column can make up for another, and inputs of zeros say nothing."""
    fmt = parse_format(name)
    w = weights(96)
    nearest, chosen = nearest_codes(w, fmt), calibrated(w, moments, fmt)
    np.testing.assert_array_equal(chosen.scales, nearest.scales)
    np.testing.assert_array_equal(chosen.codes, nearest.codes)
    assert (chosen.zeros is None) == (nearest.zeros is None)
    if chosen.zeros is not None:
        np.testing.assert_array_equal(chosen.zeros, nearest.zeros)


@pytest.mark.parametrize("name", ["int4:g32", "uint3:g32"])
def test_scales_are_the_best_for_the_columns_that_count(name: str) -> None:
    fmt = parse_format(name)
    w, importance = weights(32), np.random.default_rng(1).exponential(1, 32) ** 4
    x = in_groups(w, fmt)

    def error(scales: np.ndarray, zeros: np.ndarray | None) -> np.ndarray:
        return np.square(x - rounded(x, scales, fmt, zeros) * scales[..., None]).astype(np.float64) @ importance

    nearest = zero_points(x, fmt) if fmt.has_zeros else None
    errors = [error(scales, nearest) for scales in candidates(x, fmt)]
    scales, zeros = choose_scales(w, fmt, importance)
    own = error(scales[:, None], zeros[:, None] if fmt.has_zeros else None)
    assert (own <= np.min(errors, axis=0) * (1 + 32 * np.finfo(np.float32).eps)).all()
    packed = quantize_weights(w, fmt)
    assert own.sum() < 0.95 * error(packed.scales, packed.zeros).sum()


@pytest.mark.parametrize("name", ["int4:g32", "uint3:g64:fp16", "int2:g128", "w8a8"])
def test_refining_lowers_the_error_and_ends_with_the_best_codes(name: str) -> None:
    """One step after the other: no step is allowed to lose, and the last scale and the last code cannot be better."""
    fmt = parse_format(name)
    k = 200
    w, moments = weights(k), second_moments(inputs(k), fmt) + 0.1 * np.eye(k)
    chosen = nearest_codes(w, fmt)
    zeros = np.zeros_like(chosen.scales) if chosen.zeros is None else chosen.zeros.astype(np.float64)
    codes, scales = chosen.codes.T.astype(np.float64), chosen.scales.T.astype(np.float64)

    def error(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        lost = codes.T * spread(scales.T, fmt, k) - w
        return ((lost @ moments) * lost).sum(axis=1)

    first = error(codes, scales)
    scales = refine_scales(w.T.astype(np.float64), codes, scales, fmt, moments)
    second = error(codes, scales)
    assert (second <= first * (1 + 1e-9)).all()
    assert second.sum() < first.sum()
    for factor in (1 - 2.0**-6, 1 + 2.0**-6):  # further than the rounding of bfloat16
        moved = scales.copy()
        moved[-1] *= factor
        assert (error(codes, moved) > second).all()
    codes = refine_codes(w.T.astype(np.float64), codes, scales, zeros.T, fmt, moments)
    third = error(codes, scales)
    assert (third <= second * (1 + 1e-9)).all()
    assert third.sum() < 0.9 * second.sum()
    low, high = int(fmt.least), int(fmt.largest)
    for stored in range(low, high + 1):
        moved = codes.copy()
        moved[-1] = stored - zeros.T[-1]
        assert (error(moved, scales) >= third * (1 - 1e-9)).all()


def test_second_moments_are_of_rounded_inputs() -> None:
    fmt = parse_format("int8:g32")
    x = inputs(1100, tokens=30)
    seen = dequantized(quantize_activations(x, fmt), 1100).astype(np.float64)
    # A sum of T = 30 products in float32, then of parts in float64.
    limit = 30 * np.finfo(np.float32).eps * np.abs(seen).T @ np.abs(seen)
    assert (np.abs(second_moments(x, fmt) - seen.T @ seen) <= limit).all()


def test_inputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot be calibrated"):
        factorise(np.full((4, 4), np.nan), parse_format("int4"))
