"""Converts to and from E4M3: floats of 4 bits of exponent and 3 of mantissa, without infinities, largest 448.

0x7F and 0xFF are NaN. It rounds to nearest, ties to even, as onnx and ml_dtypes do for float8_e4m3fn: 480 becomes NaN.
"""

from __future__ import annotations

import numpy as np

LARGEST = np.float32(448)
NAN = 0x7F


def _magnitudes() -> np.ndarray:
    """Returns float32 [127]: the values of the bytes 0 .. 0x7E, ascending."""
    code = np.arange(NAN)
    exponent, mantissa = code >> 3, (code & 7).astype(np.float64)
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent > 0, normal, mantissa * 2.0**-9).astype(np.float32)


MAGNITUDES = _magnitudes()
_MIN_NORMAL = np.float32(2.0**-6)


def to_codes(x: np.ndarray) -> np.ndarray:
    """Converts float32 to uint8 bytes of the nearest E4M3 number."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    size = bits & 0x7FFFFFFF
    # 20 of 23 bits of mantissa are rounded away. A carry goes into the exponent, whose bias is smaller by 120.
    code = (size + 0x7FFFF + (size >> 20 & 1) >> 20).astype(np.int32) - (120 << 3)
    small = size < _MIN_NORMAL.view(np.uint32)
    # Small numbers are multiples of 2^-9. The code is the multiple, up to the least normal number itself.
    code[small] = np.rint(size[small].view(np.float32) * np.float32(512)).astype(np.int32)
    return (np.minimum(code, NAN) | (bits >> 24 & 0x80)).astype(np.uint8).reshape(np.shape(x))


def from_codes(codes: np.ndarray) -> np.ndarray:
    """Converts uint8 bytes to float32, exactly."""
    table = np.append(MAGNITUDES, np.float32(np.nan))
    return np.where(codes & 0x80, -table[codes & 0x7F], table[codes & 0x7F])


def round_to_e4m3(x: np.ndarray) -> np.ndarray:
    """Rounds float32 to the nearest E4M3 numbers, as float32."""
    return from_codes(to_codes(x))
