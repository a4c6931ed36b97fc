"""Sinks, a score of each head without a value: every combine kernel against the definition, and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from support.paged import DTYPES, SPLIT, UNIT, Sequence
from support.sweep import sweep
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.ir.graph import Value
from tensorwright.plugins.paged_attention import attention
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

COMBINES = [i for i, (_, _, runnable) in enumerate(_testing.attention_combine_table()) if runnable]
ATTENDS = [
    (dtype, i)
    for code, dtype in enumerate(DTYPES)
    for i, (_, _, runnable) in enumerate(_testing.attention_table(code))
    if runnable
]
ATTRS = {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 0.0}


def combined(index: int, parts: tuple[np.ndarray, ...], sinks: np.ndarray | None, y_dtype: type = np.float32):
    _, rows, head_dim = parts[0].shape
    y = np.zeros(rows * head_dim, y_dtype)
    _testing.run_attention_combine(index, *parts, y, [r * head_dim for r in range(rows)], sinks)
    return y.reshape(rows, head_dim)


def parts(splits: int, rows: int, head_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(splits * 1000 + head_dim)
    acc = random.standard_normal((splits, rows, head_dim), np.float32)
    top = 3 * random.standard_normal((splits, rows), np.float32)
    return acc, top, random.uniform(1, 9, (splits, rows)).astype(np.float32)


@pytest.mark.parametrize("index", COMBINES)
@sweep("splits", [1, 2, 5])
@sweep("head_dim", [*range(1, 35), 63, 64, 66, 130])
def test_definition(index: int, splits: int, head_dim: int) -> None:
    acc, top, total = made = parts(splits, 3, head_dim)
    sinks = np.array([-4, 0.5, 6], np.float32)  # below, among and above the scores
    highest = np.maximum(top.max(axis=0), sinks).astype(np.float64)
    weight = np.exp(top - highest)
    expected = (acc * weight[..., None]).sum(axis=0) / ((total * weight).sum(axis=0) + np.exp(sinks - highest))[:, None]
    # Per split and sink: one exp on each side and two roundings, relative to the largest term.
    assert np.abs(combined(index, made, sinks) - expected).max() <= 8 * (splits + 1) * UNIT * np.abs(acc).max()


@pytest.mark.parametrize("y_dtype", [np.float32, np.uint16])
@sweep("head_dim", [1, 7, 17, 70, 256])
def test_every_kernel_gives_the_same_bits(head_dim: int, y_dtype: type) -> None:
    made = parts(4, 5, head_dim)
    made[1][1:3, 2] = -np.inf
    made[2][1:3, 2] = 0
    sinks = np.array([-np.inf, -90, 0, 3, 90], np.float32)
    results = [combined(i, made, sinks, y_dtype) for i in COMBINES]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("index", COMBINES)
def test_a_sink_of_minus_infinity_is_none(index: int) -> None:
    made = parts(3, 4, 20)
    np.testing.assert_array_equal(combined(index, made, np.full(4, -np.inf, np.float32)), combined(index, made, None))


@pytest.mark.parametrize("index", COMBINES)
def test_a_row_that_sees_nothing_gives_it_all_to_the_sink(index: int) -> None:
    made = parts(2, 1, 9)
    made[1][:] = -np.inf
    made[2][:] = 0
    made[0][:] = np.nan
    np.testing.assert_array_equal(combined(index, made, np.zeros(1, np.float32)), np.zeros((1, 9), np.float32))


@pytest.mark.parametrize(("dtype", "kernel"), ATTENDS)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (100, 0.0), (0, 5.0)])
def test_attention_with_sinks(dtype: str, kernel: int, window: int, softcap: float) -> None:
    """Queries on both sides of a split's end, two KV heads: each head has its own sink."""
    sequence = Sequence(
        SPLIT + 20, kv_heads=2, group=3, head_dim=18, dtype=dtype, window=window, softcap=softcap, with_sinks=True
    )
    begin, end = SPLIT - 10, SPLIT + 20
    got = sequence.run(kernel, begin, end)
    assert np.abs(got - sequence.expected(begin, end)).max() <= sequence.tolerance(kernel)
    far = (2 if sequence.rounds_weights(kernel) else 10) * sequence.tolerance(kernel)
    sinks, sequence.sinks = sequence.sinks, None
    assert np.abs(got - sequence.expected(begin, end)).max() > far  # the sinks matter
    sequence.sinks = sinks[::-1].copy()
    assert np.abs(got - sequence.expected(begin, end)).max() > far  # and whose they are


@pytest.mark.parametrize(("dtype", "kernel"), ATTENDS)
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_chunks_of_the_prompt_change_no_bit(dtype: str, kernel: int, chunk: int) -> None:
    sequence = Sequence(SPLIT + 40, kv_heads=2, group=3, head_dim=18, dtype=dtype, with_sinks=True)
    whole = sequence.run(kernel, SPLIT - 8, SPLIT + 40)
    np.testing.assert_array_equal(whole, sequence.run(kernel, SPLIT - 8, SPLIT + 40, chunk=chunk))


def test_reference_is_a_softmax_with_one_column_more() -> None:
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((1, 5, heads, 4)).astype(np.float32) for heads in (4, 2, 2))
    sinks = random.standard_normal(4).astype(np.float32)
    (got,) = attention.reference([q, k, v, sinks], ATTRS, "float32")
    for head in range(4):
        score = np.where(np.tri(5) > 0, 0.4 * q[0, :, head] @ k[0, :, head // 2].T, -np.inf)
        score = np.concatenate([score, np.full((5, 1), sinks[head])], axis=1).astype(np.float64)
        weight = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[0, :, head], weight[:, :5] @ v[0, :, head // 2], rtol=1e-5, atol=1e-6)


def test_sinks_must_be_one_for_each_query_head() -> None:
    q, k = Value("q", "float32", (1, "seq", 4, 8)), Value("k", "float32", (1, "seq", 2, 8))
    assert attention.infer([q, k, k, Value("s", "float32", (4,))], ATTRS) == [("float32", (1, "seq", 4, 8))]
    with pytest.raises(GraphError, match=r"sinks must be \[4\]"):
        attention.infer([q, k, k, Value("s", "float32", (2,))], ATTRS)
    with pytest.raises(InvalidOptionError, match="sinks"):
        combined(COMBINES[0], parts(1, 3, 4), np.zeros(2, np.float32))
