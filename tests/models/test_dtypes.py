"""Conversions: bfloat16 rounds to nearest even as torch does, widening is exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import CheckpointError
from tensorwright.models.dtypes import (
    STORAGE,
    Tensor,
    bfloat16_bits,
    convert,
    float32_from_bits,
    narrow_values,
    to_bfloat16,
    to_float32,
    widest,
)


def test_rounding_equals_torch():
    # Every upper half, with lower halves at, just below and just above the tie.
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        values = values[~np.isnan(values)]
        expected = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
        np.testing.assert_array_equal(bfloat16_bits(values), expected)


def test_nan_stays_nan():
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7FC00000], np.uint32)
    assert np.isnan(float32_from_bits(bfloat16_bits(bits.view(np.float32)))).all()


def test_all_bfloat16_values_survive():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = float32_from_bits(bits)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(bfloat16_bits(values)[finite], bits[finite])


def test_float16_and_float64():
    halves = Tensor("float16", np.array([1.5, 65504, 6e-8], np.float16))
    np.testing.assert_array_equal(to_float32(halves), halves.data.astype(np.float64))
    np.testing.assert_array_equal(to_bfloat16(halves)[:1], [0x3FC0])
    assert to_float32(Tensor("float64", np.array([0.1]))) == np.float32(0.1)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_narrow_floats_equal_torch(dtype):
    expected = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    values, numbers = narrow_values(dtype), ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(values), ~numbers)
    np.testing.assert_array_equal(values[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def test_floats_of_4_bits():
    sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # the table of OCP Microscaling Formats 1.0, section 5.3.3
    np.testing.assert_array_equal(narrow_values("float4_e2m1fn_x2"), [*sizes, *(-size for size in sizes)])


def test_weights_of_8_bits_widen_exactly():
    stored = Tensor("float8_e4m3fn", np.uint8([[0x38, 0xC0], [0x01, 0x7E]]))
    np.testing.assert_array_equal(to_float32(stored), np.float32([[1, -2], [2**-9, 448]]))
    assert widest(["float8_e4m3fn", "bfloat16"]) == "float32"
    with pytest.raises(CheckpointError, match="this one is float8_e8m0fnu"):
        to_float32(Tensor("float8_e8m0fnu", np.uint8([127])))


def test_convert():
    tensor = Tensor("float32", np.ones(3, np.float32))
    assert convert(tensor, "float32") is tensor
    assert convert(tensor, "bfloat16").dtype == "bfloat16"
    halves = convert(Tensor("float32", np.float32([1 + 2**-11, 1 + 3 * 2**-11, 7e4])), "float16")
    np.testing.assert_array_equal(halves.data, np.float16([1, 1 + 2**-9, np.inf]))
    with pytest.raises(CheckpointError, match="not int8"):
        convert(tensor, "int8")
    with pytest.raises(CheckpointError, match="this one is int8"):
        convert(Tensor("int8", np.ones(3, np.int8)), "float32")


def test_widest():
    assert widest(["int8", "int8"]) == "int8"
    assert widest(["bfloat16", "float16"]) == "float32"
    assert widest(["bfloat16", "float64"]) == "float64"
    with pytest.raises(CheckpointError, match="int8"):
        widest(["int8", "float32"])


def test_tensor_checks_its_storage():
    with pytest.raises(TypeError, match="bfloat16"):
        Tensor("bfloat16", np.ones(3, np.float32))


def test_arrays_have_the_sizes_of_the_format() -> None:
    assert {dtype: storage.itemsize for dtype, storage in STORAGE.items()} == {
        dtype: ITEM_BYTES[dtype] for dtype in STORAGE
    }
