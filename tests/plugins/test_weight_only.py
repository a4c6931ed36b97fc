"""Weight-only products, the formats that targets take, and E4M3 against ml_dtypes, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tolerances import rounding_tolerance, sum_tolerance

from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.quantized_matmul import weight_only
from tensorwright.plugins.quantized_matmul.fp8 import MAGNITUDES, from_codes, round_to_e4m3, to_codes
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights
from tensorwright.plugins.rounding import round_to

pytestmark = pytest.mark.computes


def bit_patterns() -> np.ndarray:
    """Every E4M3 number, its neighbours in float32 and theirs halfway, and the ends of the range."""
    middle = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
    edges = np.float32([464, 463.99997, 464.00003, 480, 1e30, np.inf, np.nan, 2.0**-10, 2.0**-149])
    x = np.concatenate([MAGNITUDES, middle, edges, np.geomspace(1e-4, 600, 20_001, dtype=np.float32)])
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))])
    return np.concatenate([x, -x])


def test_e4m3_is_ml_dtypes() -> None:
    x = bit_patterns()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(to_codes(x), expected.view(np.uint8))
    np.testing.assert_array_equal(round_to_e4m3(x), expected.astype(np.float32))
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(from_codes(codes), codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_fp8_weights() -> None:
    w = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    w[3] = 0
    made = quantize_weights(w, parse_format("fp8"))
    np.testing.assert_array_equal(made.scales, round_to(made.scales, "bfloat16"))
    assert made.scales[3] == 1
    np.testing.assert_array_equal(made.values, round_to_e4m3(made.values))
    largest = np.abs(w).max(axis=1, keepdims=True)
    # Half a step of 3 bits of mantissa, or of the smallest exponent's.
    bound = np.maximum(np.abs(w) / 16, largest / 448 * 2.0**-9) * (1 + 2.0**-8)
    assert (np.abs(dequantized(made, 33) - w) <= bound).all()
    assert np.abs(dequantized(made, 33) - w).max() > 0
    with pytest.raises(ValueError, match="infinite"):
        quantize_weights(np.full((1, 4), np.inf, np.float32), parse_format("fp8"))


@pytest.mark.parametrize("act", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["int4:g32", "int8:g64", "fp8"])
def test_reference(name: str, act: str) -> None:
    rng = np.random.default_rng(1)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((4, 70), (9, 70), (9,)))
    (y,) = weight_only.reference([x, w, bias], {"format": parse_format(name)}, act)
    (same,) = weight_only.reference(
        [x, quantize_weights(w, parse_format(name)), bias], {"format": parse_format(name)}, act
    )
    np.testing.assert_array_equal(y, same)
    np.testing.assert_array_equal(y, round_to(y, act))
    stored = dequantized(quantize_weights(w, parse_format(name)), 70).astype(np.float64)
    exact, size = x.astype(np.float64) @ stored.T + bias, np.abs(x) @ np.abs(stored).T + np.abs(bias)
    # x, scale, weight, bias, the sum and the result are rounded once each.
    bound = rounding_tolerance(act, float(size.max()), 6) + sum_tolerance("float32", 70, float(size.max()))
    assert np.abs(y - exact).max() <= bound


def test_operands_are_checked() -> None:
    x, w = Value("x", "float32", ("tokens", 8)), Value("w", "float32", (3, 8))
    assert weight_only.infer([x, w], {"format": parse_format("fp8")}) == [("float32", ("tokens", 3))]
    for inputs, name, message in (
        ([x, Value("w", "float32", (3, 7))], "int4:g32", r"w must be \[N, 8\]"),
        ([x, w, Value("b", "float32", (4,))], "int4:g32", r"bias must be \[3\]"),
        ([x, None], "int4:g32", "must be present"),
        ([x, w], "w8a8", "leave activations"),
    ):
        with pytest.raises(GraphError, match=message):
            weight_only.infer(inputs, {"format": parse_format(name)})
