"""Turns one head of one token into small numbers and a scale; quantize.h gives the same bits for integers.

levels / max|x| and its product with each element are float32, rounded to nearest, ties to even. The product is then
rounded likewise: to an integer, or in an fp8 cache to E4M3, of which 448 is the largest. The largest element of a head
becomes that level, so that no element is beyond it; an element below 2^-10 / 448 of the largest becomes zero.

In an int4 cache each group of 64 dimensions (the last may be smaller) has a scale and an offset, both bfloat16: an
element is its integer, 0 to 15, times the scale, plus the offset.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorwright.plugins.quantized_matmul.fp8 import LARGEST, round_to_e4m3

KV_LEVELS = 127
"""The levels of K and V in the cache: 8 bits."""
QUERY_LEVELS = 127 * 128
"""The levels of q in attention: 15 bits, so that sums of products with 8 bits are exact in 32."""
NARROW_QUERY_LEVELS = 127 * 16
"""The levels of q in attention over an int4 cache: 12 bits, two signed bytes with the factors 16 and 1."""
QUERY_LEVELS_OF = {"int8": QUERY_LEVELS, "int4": NARROW_QUERY_LEVELS}
"""The levels of q by the type of the cache. Over a cache of any other type q is not rounded."""
GROUP = 64
"""Equal to TW_KV_GROUP of layout.h."""
MAX_HEAD_DIM = 1024
"""Equal to TW_MAX_INT_HEAD_DIM of layout.h."""
SMALLEST = np.float32(2.0**-110)
"""A head with a smaller largest magnitude becomes zeros, since the inverse of its scale might overflow."""


def quantize_heads(x: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns integers [..., D] as float32, scales [...] float32 of x [..., D]; NaN for a head with NaN or infinity."""
    return _scaled_heads(x, np.float32(levels), np.rint)


def quantize_heads_e4m3(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E4M3 numbers [..., D] as float32, scales [...] float32 of x [..., D]; NaN for a head with NaN or
    infinity. It saturates: a product that rounding has put above 448 is 448."""
    return _scaled_heads(x, LARGEST, lambda scaled: round_to_e4m3(np.clip(scaled, -LARGEST, LARGEST)))


def _scaled_heads(
    x: np.ndarray, levels: np.float32, to_numbers: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(axis=-1)
    finite, some = np.isfinite(largest), np.isfinite(largest) & (largest >= SMALLEST)
    safe = np.where(some, largest, np.float32(1))
    scale = np.where(some, safe / levels, np.float32(0))
    inverse = levels / safe
    q = to_numbers(np.where(some[..., None], x, np.float32(0)) * inverse[..., None])
    return q, np.where(finite, scale, np.float32(np.nan)).astype(np.float32)


def restore_heads(q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Returns the values of integers or of E4M3 numbers, exactly: [..., D] float64."""
    return q.astype(np.float64) * scale.astype(np.float64)[..., None]


def quantize_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns integers [..., D], scales [..., groups] and offsets [..., groups] of x [..., D], all as float32.

    The offset is at most the smallest element, the scale at least a 15th of what lies between it and the largest; both
    are rounded to bfloat16 that way. A group with NaN or infinity, or whose elements are further apart than float32
    goes, has a scale and an offset of NaN.
    """
    x = np.asarray(x, np.float32)
    starts = range(0, x.shape[-1], GROUP)
    parts = [_quantize_group(x[..., start : start + GROUP]) for start in starts]
    q = np.concatenate([part[0] for part in parts], axis=-1)
    scale, low = (np.stack([part[i] for part in parts], axis=-1) for i in (1, 2))
    return q, scale, low


def _quantize_group(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        lowest, highest = x.min(axis=-1) + np.float32(0), x.max(axis=-1)  # never -0
        low = _bfloat16(lowest, lowest < 0)
        span = highest - low
        finite = np.isfinite(highest - lowest) & np.isfinite(span)
        some = finite & (span >= SMALLEST)
        scale = _bfloat16(np.where(some, span, np.float32(15)) / np.float32(15), some)
        inverse = np.float32(1) / scale
        q = np.where(some[..., None], np.rint((x - low[..., None]) * inverse[..., None]), np.float32(0))
    nan = np.float32(np.nan)
    return q, np.where(finite, np.where(some, scale, np.float32(0)), nan), np.where(finite, low, nan)


def _bfloat16(x: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Returns x rounded to bfloat16, away from zero where `away`, else towards zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.where(away, np.uint32(0xFFFF), np.uint32(0))) & np.uint32(0xFFFF0000)).view(np.float32)


def restore_groups(q: np.ndarray, scale: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Returns the integers' values: [..., D] float64."""
    group = np.arange(q.shape[-1]) // GROUP
    return q.astype(np.float64) * scale.astype(np.float64)[..., group] + low.astype(np.float64)[..., group]
