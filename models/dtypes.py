"""Defines the element types of stored tensors, and converts between them.

numpy has neither bfloat16 nor the floats of 8 and 4 bits. Such elements are stored as bit patterns, and `Tensor` has
the type that the bits mean. Two elements of 4 bits share a byte, the first in the low half; a shape counts these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.errors import CheckpointError

STORAGE: dict[str, np.dtype] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float8_e4m3fn": np.dtype("u1"),
    "float8_e5m2": np.dtype("u1"),
    "float8_e8m0fnu": np.dtype("u1"),
    "float4_e2m1fn_x2": np.dtype("u1"),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
"""The numpy dtype that holds each element type."""

FLOATS = ("float64", *DTYPES)
"""The types that a model can run in, or that its weights are rounded from."""

WEIGHTS = (*FLOATS, "float8_e4m3fn", "float8_e5m2")
"""The types in which one element is one weight."""

_LAYOUTS = {"float8_e4m3fn": (4, 3, 7), "float8_e5m2": (5, 2, 15), "float4_e2m1fn_x2": (2, 1, 1)}
"""The bits of the exponent, those of the mantissa, and the bias, of the narrow floats that have a sign."""


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""One half-open interval per dimension."""


@dataclass(frozen=True)
class Tensor:
    """An array and the element type that its bits mean. `data` has the dtype STORAGE[dtype], and may be a read-only
    view of a file."""

    dtype: str
    data: np.ndarray

    def __post_init__(self) -> None:
        if self.data.dtype != STORAGE[self.dtype]:
            raise TypeError(f"a {self.dtype} tensor is stored as {STORAGE[self.dtype]}, not {self.data.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def part(self, ranges: Ranges) -> Tensor:
        """Returns the part inside `ranges`, which has one interval per dimension, as a view."""
        return Tensor(self.dtype, self.data[tuple(slice(*span) for span in ranges)])


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Returns float32 values as bfloat16 bit patterns (uint16), rounded to nearest, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # The steps run in place on one temporary, for the values may be a whole weight matrix.
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():  # The carry of the rounding could turn a NaN into an infinity.
        result[nan] = (bits[nan] >> 16 | 0x40).astype(np.uint16)
    return result


def float32_from_bits(bits: np.ndarray) -> np.ndarray:
    """Returns bfloat16 bit patterns (uint16) as float32 of exactly the same values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@cache
def narrow_values(dtype: str) -> np.ndarray:
    """Returns float32 [256]: the value of every byte of a type of 8 bits, or [16] for a type of 4 bits.

    E4M3 has one NaN of each sign and no infinity, E5M2 is a float16 without its last 8 bits, E8M0 is a power of two
    without a sign (255 is NaN), E2M1 has neither NaN nor infinity (OCP Microscaling Formats 1.0, sections 5.3 and 5.4).
    """
    if dtype == "float8_e5m2":
        return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    if dtype == "float8_e8m0fnu":
        powers = np.ldexp(np.ones(255), np.arange(255) - 127).astype(np.float32)
        return np.append(powers, np.float32(np.nan))
    exponent_bits, mantissa_bits, bias = _LAYOUTS[dtype]
    codes = np.arange(1 << 1 + exponent_bits + mantissa_bits)
    mantissa = codes & (1 << mantissa_bits) - 1
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    normal = np.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
    size = np.where(exponent > 0, normal, np.ldexp(mantissa, 1 - bias - mantissa_bits))
    values = np.where(codes >> exponent_bits + mantissa_bits, -size, size).astype(np.float32)
    if dtype == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    return values


def to_float32(tensor: Tensor) -> np.ndarray:
    """Returns the values of a floating-point tensor as float32. Only float64 is rounded, to nearest even. Raises
    CheckpointError for another type."""
    if tensor.dtype == "bfloat16":
        return float32_from_bits(tensor.data)
    if tensor.dtype in WEIGHTS and tensor.dtype not in FLOATS:
        return narrow_values(tensor.dtype)[tensor.data]
    _require_float(tensor.dtype)
    return tensor.data.astype(np.float32, copy=False)


def to_bfloat16(tensor: Tensor) -> np.ndarray:
    """Returns the values of a floating-point tensor as bfloat16 bits (uint16), rounded to nearest even."""
    if tensor.dtype == "bfloat16":
        return tensor.data
    return bfloat16_bits(to_float32(tensor))


def to_float16(tensor: Tensor) -> np.ndarray:
    """Returns the values of a floating-point tensor as float16, rounded to nearest even. Too large values become
    infinity."""
    with np.errstate(over="ignore"):
        return to_float32(tensor).astype(np.float16)


def convert(tensor: Tensor, dtype: str) -> Tensor:
    """Returns a tensor as "float32", "bfloat16" or "float16", or the same tensor if it has that type. Raises
    CheckpointError for another type."""
    if dtype == tensor.dtype:
        return tensor
    if dtype == "float32":
        return Tensor(dtype, to_float32(tensor))
    if dtype == "bfloat16":
        return Tensor(dtype, to_bfloat16(tensor))
    if dtype == "float16":
        return Tensor(dtype, to_float16(tensor))
    raise CheckpointError(f"a weight must become float32, bfloat16 or float16, not {dtype}")


def widest(dtypes: list[str]) -> str:
    """Returns an element type that holds all of `dtypes` exactly: their common one, else float32 or float64. Raises
    CheckpointError if different types are not all floating point."""
    distinct = set(dtypes)
    if len(distinct) == 1:
        return distinct.pop()
    for dtype in sorted(distinct):
        _require_float(dtype)
    return "float64" if "float64" in distinct else "float32"


def _require_float(dtype: str) -> None:
    if dtype not in WEIGHTS:
        raise CheckpointError(
            f"a weight must be one of {', '.join(WEIGHTS)}; this one is {dtype}, and config.json names no quantization "
            "that explains it: take the config.json that came with the weights"
        )
