"""Rounds float32 arrays to an activation type, and to bfloat16 bit patterns. Round to nearest, ties to even."""

from __future__ import annotations

import numpy as np


def to_bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """Converts float32 to uint16 bit patterns of bfloat16. NaN stays NaN; too large numbers become infinity."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), ((bits >> 16) | 0x40).astype(np.uint16), rounded)


def from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """Converts uint16 bit patterns of bfloat16 to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the float32 values nearest to `x` that `dtype` ("float32", "bfloat16" or "float16") can hold."""
    x = np.asarray(x, np.float32)
    if dtype == "float32":
        return x
    if dtype == "bfloat16":
        return from_bfloat16_bits(to_bfloat16_bits(x)).reshape(x.shape)
    if dtype == "float16":
        with np.errstate(over="ignore"):  # too large numbers become infinity, as in bfloat16
            return x.astype(np.float16).astype(np.float32)
    raise TypeError(f"activations are float32, bfloat16 or float16, not {dtype}")
