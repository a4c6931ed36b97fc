"""How far two right computations may be apart, from the arithmetic. A test that needs more says why on its line."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of each type at 1. Rounding to nearest moves a number by at most half of it, relatively."""
SUBNORMAL = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""Spacing of each type around 0, below its smallest normal number. There rounding moves a number by half of this."""

Bound = TypeVar("Bound", float, np.ndarray)
"""One number, or an array with a bound for each element."""


def rounding_tolerance(dtype: str, max_abs: Bound, roundings: int = 1) -> Bound:
    """Numbers up to `max_abs`, each rounded to `dtype` that many times."""
    return roundings * (EPSILON[dtype] / 2 * max_abs + SUBNORMAL[dtype] / 2)


def sum_tolerance(dtype: str, k: int, max_abs: Bound) -> Bound:
    """Two orders of a sum of `k` terms accumulated in `dtype`, whose partial sums stay within `max_abs`.

    Each order makes at most k - 1 roundings of half a spacing, so the two differ by at most eps * k * max_abs. Sums of
    subnormal numbers are exact; the terms may be products, each rounded to a subnormal number in both orders.
    """
    return EPSILON[dtype] * k * max_abs + SUBNORMAL[dtype] * k


def chain_tolerance(dtype: str, widest: int, depth: int, max_abs: float) -> float:
    """`depth` sums of at most `widest` terms after each other, as in a network, with results up to `max_abs`.

    Roundings of either sign add up like a random walk: sqrt(widest * depth) of them; 4 is four standard deviations.
    """
    return 4 * EPSILON[dtype] * math.sqrt(widest * depth) * max(max_abs, 1.0)


def function_tolerance(dtype: str, max_abs: Bound, ulps: int = 4) -> Bound:
    """exp, rsqrt, cos and the like by two libraries, each right to a few units in the last place."""
    return ulps * (EPSILON[dtype] * max_abs + SUBNORMAL[dtype])


def quantized_product_tolerance(x: np.ndarray, w: np.ndarray, largest: int, group: int) -> np.ndarray:
    """x w^T [rows, columns] against the same with both operands quantized in groups of `group` along K (0: all of K).

    A value moves by at most half a step, in steps of the group's largest / 127 for x and / `largest` for w; bfloat16
    scales move w by 2^-9 of its size more. The range search only makes the sum of squares smaller, so by
    Cauchy-Schwarz a group is off by |x| e(w) + |w| e(x) + e(x) e(w), with norms and errors e over the group.
    """
    size = group or x.shape[1]
    total = np.zeros((len(x), len(w)))
    for start in range(0, x.shape[1], size):
        a, b = (np.asarray(m[:, start : start + size], np.float64) for m in (x, w))
        root = math.sqrt(a.shape[1])
        error_a = root * np.abs(a).max(axis=1) / 254
        error_b = root * np.abs(b).max(axis=1) * (0.5 / largest + 2.0**-9)
        norm_a, norm_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        total += np.outer(norm_a + error_a, norm_b + error_b) - np.outer(norm_a, norm_b)
    return total


def kv_attention_tolerance(kv: str, q: float, k: float, v: float, head_dim: int, scale: float) -> float:
    """Attention over a quantized cache against a float one; q, k and v: the largest magnitudes.

    Half a step of each. fp8: a number is off by a 16th of itself at most, and q is not rounded. int8: q / 16256 / 2,
    k / 127 / 2, v / 127 / 2. int4: q / 2032 / 2, and of k and v half of a
    15th of 2 (1 + 2^-7) times the largest, for a group reaches from one sign to the other and its ends are rounded to
    bfloat16. A score moves by at most `score`, the weights by a factor of at most e^(2 score), a mean of v by that
    share of v, and by half of v's own step.
    """
    steps = {"int8": (1 / 32512, 1 / 254), "int4": (1 / 4064, (1 + 2.0**-7) / 15), "fp8": (0.0, 1 / 16)}
    of_q, of_kv = steps[kv]
    score = scale * head_dim * q * k * (of_kv + of_q * (1 + of_kv))
    return v * math.expm1(2 * score) + v * of_kv * math.exp(2 * score)


def gpu_attention_tolerance(
    dtype: str,
    q: float,
    k: float,
    v: float,
    head_dim: int,
    positions: int,
    scale: float,
    softcap: float,
    kv: str,
    bias: float = 0.0,
) -> float:
    """plugins/paged_attention/gpu*.py against the definition; q, k, v and bias: the largest magnitudes; kv: the
    quantized type of the cache, or "".

    Scores are float32 sums, a soft cap adds its cancellation and a bias its roundings; over int8 the definition rounds
    q to 15 bits, which the GPU does not. A score off by e moves weights by e^(2 e). Each weight is rounded to `dtype`,
    over a quantized cache with V's scale to bfloat16, and the result to `dtype`: neither can move a mean of v by more
    than half a spacing of v.
    """
    score = scale * sum_tolerance("float32", head_dim, head_dim * q * k) + 4 * EPSILON["float32"] * (softcap + bias)
    if kv == "int8":
        score += scale * head_dim * q * k / 32512
    weights = "bfloat16" if kv and dtype == "float16" else dtype
    sums = sum_tolerance("float32", positions, v) + function_tolerance("float32", v)
    return v * math.expm1(2 * score) + sums + rounding_tolerance(weights, v) + rounding_tolerance(dtype, v)
