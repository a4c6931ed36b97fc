"""Turns one head of one token into integers and a scale; quantize.h gives the same bits.

levels / max|x| and its product with each element are float32, rounded to nearest, ties to even.
"""

from __future__ import annotations

import numpy as np

KV_LEVELS = 127
"""The levels of K and V in the cache: 8 bits."""
QUERY_LEVELS = 127 * 128
"""The levels of q in attention: 15 bits, so that sums of products with 8 bits are exact in 32."""
MAX_HEAD_DIM = 1024
"""Equal to TW_MAX_I8_HEAD_DIM of layout.h."""
SMALLEST = np.float32(2.0**-110)
"""A head with a smaller largest magnitude becomes zeros, since the inverse of its scale might overflow."""


def quantize_heads(x: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns integers [..., D] as float32, scales [...] float32 of x [..., D]; NaN for a head with NaN or infinity."""
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(axis=-1)
    finite, some = np.isfinite(largest), np.isfinite(largest) & (largest >= SMALLEST)
    safe = np.where(some, largest, np.float32(1))
    scale = np.where(some, safe / np.float32(levels), np.float32(0))
    inverse = np.float32(levels) / safe
    q = np.rint(np.where(some[..., None], x, np.float32(0)) * inverse[..., None])
    return q, np.where(finite, scale, np.float32(np.nan)).astype(np.float32)


def restore_heads(q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns the integers' values, exactly: [..., D] float64."""
    return q.astype(np.float64) * scale.astype(np.float64)[..., None]
