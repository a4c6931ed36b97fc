"""E4M3: floats of 4 bits of exponent and 3 of mantissa, no infinities, largest 448; the bytes 0x7F and 0xFF are NaN.

Round to nearest, ties to even, as onnx and ml_dtypes do it for float8_e4m3fn: what would be 480 or more is NaN.
"""

from __future__ import annotations

import numpy as np

LARGEST = np.float32(448)
NAN = 0x7F


def _magnitudes() -> np.ndarray:
    """float32 [127]: what the bytes 0 .. 0x7E stand for, ascending."""
    code = np.arange(NAN)
    exponent, mantissa = code >> 3, (code & 7).astype(np.float64)
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent > 0, normal, mantissa * 2.0**-9).astype(np.float32)


MAGNITUDES = _magnitudes()
_LEAST_NORMAL = np.float32(2.0**-6)


def to_codes(x: np.ndarray) -> np.ndarray:
    """float32 -> uint8 bytes of the nearest E4M3 number."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    size = bits & 0x7FFFFFFF
    # 20 of 23 bits of mantissa are rounded away; a carry is the next exponent, whose bias is 120 less.
    code = (size + 0x7FFFF + (size >> 20 & 1) >> 20).astype(np.int32) - (120 << 3)
    small = size < _LEAST_NORMAL.view(np.uint32)
    # Multiples of 2^-9; what stands for them is their number, up to the least normal itself.
    code[small] = np.rint(size[small].view(np.float32) * np.float32(512)).astype(np.int32)
    return (np.minimum(code, NAN) | (bits >> 24 & 0x80)).astype(np.uint8).reshape(np.shape(x))


def from_codes(codes: np.ndarray) -> np.ndarray:
    """uint8 bytes -> float32, exactly."""
    table = np.append(MAGNITUDES, np.float32(np.nan))
    return np.where(codes & 0x80, -table[codes & 0x7F], table[codes & 0x7F])


def round_to_e4m3(x: np.ndarray) -> np.ndarray:
    """float32 -> the nearest E4M3 numbers, as float32."""
    return from_codes(to_codes(x))
