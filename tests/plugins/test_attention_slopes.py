"""Attention whose scores fall with distance (ALiBi): one slope per query head, in every kernel and every cache."""

from __future__ import annotations

import numpy as np
import pytest

from support.isa_levels import rounds_otherwise
from support.paged import KV_NUMBERS, SPLIT, Sequence
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.ir.graph import Value
from tensorwright.plugins.paged_attention import attention
from tensorwright.runtime import _testing

CODES = {"float32": 0, "bfloat16": 1}
ATTENDS = [
    (dtype, kv, i)
    for dtype, code in CODES.items()
    for kv in (("", "int8") if dtype == "float32" else ("", "int8", "int4"))
    for i, (_, _, runnable) in enumerate(_testing.attention_table(KV_NUMBERS.get(kv, code)))
    if runnable
]
ATTRS = {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 0.0}
SIZES = {"kv_heads": 2, "group": 3, "head_dim": 18, "with_slopes": True}


@pytest.mark.parametrize(("dtype", "kv", "kernel"), ATTENDS)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (100, 0.0), (0, 5.0)])
def test_definition(dtype: str, kv: str, kernel: int, window: int, softcap: float) -> None:
    """Queries on both sides of a split's end, two KV heads: each query head has its own slope."""
    sequence = Sequence(SPLIT + 20, dtype=dtype, kv=kv, window=window, softcap=softcap, **SIZES)
    begin, end = SPLIT - 10, SPLIT + 20
    got = sequence.run(kernel, begin, end)
    assert np.abs(got - sequence.expected(begin, end)).max() <= sequence.tolerance(kernel)
    slopes, sequence.slopes = sequence.slopes, None
    assert np.abs(got - sequence.expected(begin, end)).max() > 0.05  # the slopes matter
    sequence.slopes = slopes[::-1].copy()
    assert np.abs(got - sequence.expected(begin, end)).max() > 0.05  # and whose they are


@pytest.mark.parametrize(
    ("dtype", "kv"), [("float32", ""), ("float32", "int8"), ("bfloat16", ""), ("bfloat16", "int4")]
)
@pytest.mark.parametrize("length", [1, 15, 17, 40, 90, SPLIT + 33])
def test_kernels_give_the_same_bits(dtype: str, kv: str, length: int) -> None:
    """All but the kernel with bfloat16 dot products."""
    names = [name for name, _, _ in _testing.attention_table(KV_NUMBERS.get(kv, CODES[dtype]))]
    sequence = Sequence(length, dtype=dtype, kv=kv, softcap=0.0, **SIZES)
    begin = max(0, length - 40)
    kernels = [i for d, q, i in ATTENDS if (d, q) == (dtype, kv) and not rounds_otherwise(names[i])]
    first, *others = [sequence.run(kernel, begin, length) for kernel in kernels]
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(("dtype", "kv", "kernel"), ATTENDS)
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_chunks_of_the_prompt_change_no_bit(dtype: str, kv: str, kernel: int, chunk: int) -> None:
    sequence = Sequence(SPLIT + 40, dtype=dtype, kv=kv, **SIZES)
    whole = sequence.run(kernel, SPLIT - 8, SPLIT + 40)
    np.testing.assert_array_equal(whole, sequence.run(kernel, SPLIT - 8, SPLIT + 40, chunk=chunk))


def test_reference_adds_a_bias_to_scores() -> None:
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 5, heads, 4)).astype(np.float32) for heads in (4, 2, 2))
    slopes = np.array([1, 0.5, 0.25, -2], np.float32)
    (got,) = attention.reference([q, k, v, None, slopes], ATTRS, "float32")
    for head in range(4):
        score = 0.4 * q[0, :, head] @ k[0, :, head // 2].T + slopes[head] * np.arange(5)
        score = np.where(np.tri(5) > 0, score, -np.inf).astype(np.float64)
        weight = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[0, :, head], weight @ v[0, :, head // 2], rtol=1e-5, atol=1e-6)


def test_slopes_must_be_one_for_each_query_head() -> None:
    q, k = Value("q", "float32", (1, "seq", 4, 8)), Value("k", "float32", (1, "seq", 2, 8))
    slopes = Value("s", "float32", (4,))
    assert attention.infer([q, k, k, None, slopes], ATTRS) == [("float32", (1, "seq", 4, 8))]
    with pytest.raises(GraphError, match=r"slopes must be \[4\]"):
        attention.infer([q, k, k, None, Value("s", "float32", (2,))], ATTRS)
    sequence = Sequence(4, **SIZES)
    sequence.slopes = sequence.slopes[:2]
    with pytest.raises(InvalidOptionError, match="slopes"):
        sequence.run(0, 0, 4)
