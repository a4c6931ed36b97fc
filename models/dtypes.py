"""Defines the element types of stored tensors, and converts between them.

numpy has no bfloat16. Such elements are stored as uint16 bit patterns, and `Tensor` has the type that the bits mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.errors import CheckpointError

STORAGE: dict[str, np.dtype] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
"""The numpy dtype that holds each element type."""

FLOATS = ("float64", *DTYPES)


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


def to_float32(tensor: Tensor) -> np.ndarray:
    """Returns the values of a floating-point tensor as float32. Only float64 is rounded, to nearest even. Raises
    CheckpointError for another type."""
    if tensor.dtype == "bfloat16":
        return float32_from_bits(tensor.data)
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
    for dtype in dtypes:
        _require_float(dtype)
    return "float64" if "float64" in distinct else "float32"


def _require_float(dtype: str) -> None:
    if dtype not in FLOATS:
        raise CheckpointError(
            f"a weight must be one of {', '.join(FLOATS)}; this one is {dtype}. "
            "Quantized checkpoints are not read yet: use the original floating-point one"
        )
