"""E2M1 numbers with shared powers of two, against their definition written out."""

from __future__ import annotations

import numpy as np
import pytest

from support.made_quantized import pack
from tensorwright.engine_format.weight_formats import MXFP4
from tensorwright.plugins.quantized_matmul import quantize
from tensorwright.plugins.quantized_matmul.mxfp4 import (
    E2M1,
    codes_of,
    doubled_scales,
    round_to_e2m1,
)

RNG = np.random.default_rng(7)


def numbers() -> list[float]:
    """The number of each code: a sign, 2 bits of exponent with bias 1, a bit of mantissa."""
    values = []
    for code in range(16):
        exponent, mantissa = code >> 1 & 3, code & 1
        size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
        values.append(-size if code & 8 else size)
    return values


def test_the_table_has_twice_the_numbers() -> None:
    np.testing.assert_array_equal(E2M1, 2 * np.array(numbers()))
    codes = np.array([code for code in range(16) if code != 8], np.uint8)  # 8 is minus zero
    np.testing.assert_array_equal(codes_of(E2M1[codes]), codes)


def test_rounding_takes_the_nearest_number_and_of_two_the_even_code() -> None:
    halves = np.arange(-60, 61, dtype=np.float32) / 4
    for x in [*halves.tolist(), *RNG.uniform(-13, 13, 200).tolist()]:
        near = min(range(8), key=lambda code: (abs(abs(x) - float(E2M1[code])), code % 2))
        assert round_to_e2m1(np.float32([x]))[0] == np.copysign(float(E2M1[near]), x)


@pytest.mark.parametrize(("largest", "exponent"), [(6.0, 0), (4.0, 0), (3.999, -1), (8.0, 1), (2.0**-20, -22)])
def test_the_first_scale_is_that_of_the_specification(largest: float, exponent: int) -> None:
    """The exponent is that of the largest magnitude less 2, which is that of 4, the largest power of two of E2M1."""
    assert doubled_scales(np.float32([largest]))[0][0] == 2.0**exponent / 2


def test_numbers_of_a_checkpoint_stay_as_they_are() -> None:
    codes = RNG.integers(0, 16, (40, 3, 32)).astype(np.uint8)
    exponents = RNG.integers(60, 190, (40, 3)).astype(np.uint8)
    codes[3] &= 9  # small numbers alone: other codes and another exponent stand for the same numbers
    exact = np.array(numbers())[codes] * 2.0 ** (exponents.astype(float) - 127)[..., None]
    stored = quantize.Quantized(E2M1[codes], np.ldexp(np.float32(1), exponents.astype(int) - 128))
    back = quantize.unpack(quantize.pack(stored, MXFP4, 96), MXFP4, 40, 96)
    np.testing.assert_array_equal(quantize.dequantized(back, 96), exact.reshape(40, 96))
    panels, (error, _, _) = pack(exact.reshape(40, 96).astype(np.float32), MXFP4)
    assert error == 0
    np.testing.assert_array_equal(
        quantize.dequantized(quantize.unpack(panels, MXFP4, 40, 96), 96), exact.reshape(40, 96)
    )
