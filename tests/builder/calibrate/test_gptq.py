"""GPTQ against its definition: the textbook's loop, which keeps the inverse of H for the columns that are left."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.builder.calibrate.calibrating_weights import second_moments
from tensorwright.builder.calibrate.gptq import DAMPING, choose_codes, factorise
from tensorwright.engine_format.weight_formats import WeightFormat, parse_format
from tensorwright.errors import CheckpointError
from tensorwright.plugins.quantized_matmul.quantize import (
    dequantized,
    in_groups,
    quantize_activations,
    quantize_weights,
    rounded,
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


def textbook(w: np.ndarray, moments: np.ndarray, scales: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns the codes of GPTQ as the paper's section 3 has it: after each column, all columns that are left move by
    the error times their row of the inverse of H, and the inverse loses the column."""
    k = w.shape[1]
    left = list(np.argsort(-np.diagonal(moments), kind="stable"))
    h = moments + DAMPING * np.diagonal(moments).mean() * np.eye(k)
    w = w.astype(np.float64)
    codes = np.zeros(w.shape, np.int8)
    while left:
        column = left[0]
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        scale = scales[:, column // fmt.stored_group(k)]
        code = rounded(w[:, column, None].astype(np.float64), scale, fmt)[:, 0]
        codes[:, column] = code
        error = (w[:, column] - code * scale.astype(np.float64)) / inverse[0, 0]
        w[:, left] -= error[:, None] * inverse[0]
        left = left[1:]
    return codes


def output_error(w: np.ndarray, codes: np.ndarray, scales: np.ndarray, fmt: WeightFormat, x: np.ndarray) -> float:
    """Returns the sum of the squared errors of the product with x, as the kernels round x."""
    k = w.shape[1]
    size = fmt.stored_group(k)
    error = codes * np.repeat(scales, size, axis=1)[:, :k] - w
    return float(np.square(dequantized(quantize_activations(x, fmt), k) @ error.T.astype(np.float64)).sum())


@pytest.mark.parametrize("name", ["int4:g32", "int4:g128", "int8:g64", "int3:g32", "int2:g64", "w8a8"])
@pytest.mark.parametrize("k", [31, 64, 200])
def test_codes_are_those_of_the_textbook(name: str, k: int) -> None:
    fmt = parse_format(name)
    w, moments = weights(k), second_moments(inputs(k), fmt)
    scales = quantize_weights(w, fmt).scales
    codes = choose_codes(w, scales, fmt, factorise(moments))
    expected = textbook(w, moments, scales, fmt)
    # The two ways round otherwise, so that a value half way between two codes may fall to either side.
    assert np.mean(codes != expected) <= 0.005
    assert codes.dtype == np.int8
    assert codes.min() >= fmt.least


@pytest.mark.parametrize("name", ["int4:g32", "int4:g128", "w8a8"])
def test_outputs_are_nearer_than_those_of_the_nearest_codes(name: str) -> None:
    fmt = parse_format(name)
    w, x = weights(256), inputs(256, tokens=512)
    nearest = quantize_weights(w, fmt)
    codes = choose_codes(w, nearest.scales, fmt, factorise(second_moments(x, fmt)))
    chosen, plain = (
        output_error(w, each, nearest.scales, fmt, x) for each in (codes, nearest.values.reshape(ROWS, -1)[:, :256])
    )
    assert chosen < 0.8 * plain


def test_independent_inputs_leave_the_nearest_codes() -> None:
    """With H a multiple of the identity no column can make up for another."""
    fmt = parse_format("int4:g32")
    w = weights(96)
    nearest = quantize_weights(w, fmt)
    codes = choose_codes(w, nearest.scales, fmt, factorise(7 * np.eye(96)))
    np.testing.assert_array_equal(in_groups(codes, fmt).astype(np.int8), nearest.values)


def test_inputs_of_zeros_leave_the_nearest_codes() -> None:
    fmt = parse_format("int4:g32")
    w = weights(64)
    nearest = quantize_weights(w, fmt)
    codes = choose_codes(w, nearest.scales, fmt, factorise(np.zeros((64, 64))))
    np.testing.assert_array_equal(codes.reshape(nearest.values.shape), nearest.values)


def test_second_moments_are_of_rounded_inputs() -> None:
    fmt = parse_format("int8:g32")
    x = inputs(1100, tokens=30)
    seen = dequantized(quantize_activations(x, fmt), 1100).astype(np.float64)
    # A sum of T = 30 products in float32, then of parts in float64.
    limit = 30 * np.finfo(np.float32).eps * np.abs(seen).T @ np.abs(seen)
    assert (np.abs(second_moments(x, fmt) - seen.T @ seen) <= limit).all()


def test_inputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot be calibrated"):
        factorise(np.full((4, 4), np.nan))
