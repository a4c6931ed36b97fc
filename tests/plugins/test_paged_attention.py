"""The attention kernels against their numpy definition, and the bits that must not depend on company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.isa_levels import rounds_otherwise
from support.paged import DTYPES, Sequence, best_runnable
from support.sweep import sweep
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.plugins.paged_attention import attention, op
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 1030)
KERNELS = [
    pytest.param(dtype, index, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for code, dtype in enumerate(DTYPES)
    for index, (name, isa, runnable) in enumerate(_testing.attention_table(code))
]


def fast(dtype: str) -> int:
    """The best kernel of `dtype` that this processor has."""
    return best_runnable(_testing.attention_table(DTYPES.index(dtype)))


def exact_kernels(dtype: str) -> list[int]:
    """The kernels of `dtype` that must agree bit for bit: all but those with bf16 dot instructions."""
    table = _testing.attention_table(DTYPES.index(dtype))
    return [i for i, (name, _, runnable) in enumerate(table) if runnable and not rounds_otherwise(name)]


def close(sequence: Sequence, kernel: int, begin: int, chunk: int = 0) -> None:
    got = sequence.run(kernel, begin, sequence.length, chunk)
    worst = np.abs(got - sequence.expected(begin, sequence.length)).max()
    assert worst <= sequence.tolerance(kernel), f"off by {worst}, allowed {sequence.tolerance(kernel)}"


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
class TestDefinition:
    @sweep("length", LENGTHS)
    def test_lengths_around_tiles_blocks_and_splits(self, dtype: str, kernel: int, length: int) -> None:
        close(Sequence(length, dtype=dtype), kernel, max(0, length - 3))

    @sweep("head_dim", [2, 14, 16, 18, 30, 40, 64, 80, 96, 128, 256])
    def test_head_dims(self, dtype: str, kernel: int, head_dim: int) -> None:
        close(Sequence(45, head_dim=head_dim, dtype=dtype, kv_heads=2, group=3), kernel, 30)

    @sweep("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16])
    def test_groups(self, dtype: str, kernel: int, group: int) -> None:
        close(Sequence(50, group=group, kv_heads=2, head_dim=32, dtype=dtype), kernel, 46)

    @sweep("window", [1, 2, 15, 16, 17, 40, 600])
    @sweep("length", [50, 700])
    def test_windows(self, dtype: str, kernel: int, window: int, length: int) -> None:
        close(Sequence(length, group=3, head_dim=16, dtype=dtype, window=window), kernel, length - 20)

    @sweep("chunk", [1, 2, 15, 16, 17, 40, 512, 600])
    @sweep("length", [50, 700])
    def test_chunks(self, dtype: str, kernel: int, chunk: int, length: int) -> None:
        close(Sequence(length, group=3, head_dim=16, dtype=dtype, window=chunk, chunked=True), kernel, length - 20)

    @sweep("sink_tokens", [1, 4, 16, 20, 512])
    @sweep("window", [1, 17, 600])
    @sweep("length", [50, 1100])
    def test_sink_tokens(self, dtype: str, kernel: int, sink_tokens: int, window: int, length: int) -> None:
        made = Sequence(
            length, group=3, head_dim=16, dtype=dtype, window=window, sink_tokens=sink_tokens, with_slopes=True
        )
        close(made, kernel, length - 20)

    @sweep("gone", [(0,), (1, 2, 3), (0, 2, 16, 17), tuple(range(32))])
    @sweep("block_size", [16, 32, 64])
    def test_blocks_that_are_gone(self, dtype: str, kernel: int, gone: tuple[int, ...], block_size: int) -> None:
        """Whole splits too, with blocks of 16 and 32 positions."""
        made = Sequence(34 * block_size, group=3, head_dim=16, block_size=block_size, dtype=dtype, gone=gone)
        made.pages[made.block_table[list(gone)]] = 0xFF  # NaN, which a kernel that reads it would spread
        close(made, kernel, made.length - 20)

    @sweep("window", [0, 24])
    def test_softcap(self, dtype: str, kernel: int, window: int) -> None:
        close(Sequence(70, group=2, dtype=dtype, softcap=3.0, window=window), kernel, 40)

    @sweep("block_size", [16, 32, 64, 512])
    def test_block_sizes(self, dtype: str, kernel: int, block_size: int) -> None:
        close(Sequence(530, group=2, head_dim=16, dtype=dtype, block_size=block_size), kernel, 500)

    def test_whole_prompt(self, dtype: str, kernel: int) -> None:
        close(Sequence(90, group=3, kv_heads=2, head_dim=32, dtype=dtype), kernel, 0)


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
@sweep("group", [1, 3, 9])
def test_the_shares_of_tiles(dtype: str, kernel: int, group: int) -> None:
    """What is noted of a tile is the sum of its weights against the maximum so far; and what attention gives stays."""
    made = Sequence(1000, group=group, head_dim=16, dtype=dtype, gone=(3, 17), softcap=20.0, with_slopes=True)
    first, queries = 977, 23
    own = noted_tiles(made, kernel, first)
    q, k = made.q[first:].astype(np.float64), made.k[:, 0].astype(np.float64)
    key = np.arange(made.length)
    query = first + np.arange(queries)[:, None, None]
    score = 20 * np.tanh(made.scale * np.einsum("qhd,kd->qhk", q, k) / 20)
    score = score + made.slopes[None, :, None].astype(np.float64) * (key - query)
    score = np.where((key <= query) & ~np.isin(key // made.block_size, made.gone), score, -np.inf)
    share = np.exp(score - score.max(-1, keepdims=True))
    share = np.pad(share, [(0, 0), (0, 0), (0, 24)]).reshape(queries, group, 64, 16).sum(-1)
    top = score.max(-1)[..., None]
    tile_max, tile_sum = (np.moveaxis(np.concatenate(noted), 0, -1) for noted in own[:2])
    got = np.where(tile_sum > 0, tile_sum * np.exp(np.minimum(tile_max - top, 80)), 0)
    assert np.abs(got - share).max() <= 1e-4 * max(1.0, share.max())
    assert np.isnan(tile_max[..., 6:8]).all(), "of a tile that is gone nothing is noted"
    plain = made.partial(kernel, first, made.length, 0, 1)
    for one, other in zip(plain, own[2], strict=True):
        np.testing.assert_array_equal(one, other)
    reference = exact_kernels(dtype)[-1]
    if kernel in exact_kernels(dtype):
        for one, other in zip(own[:2], noted_tiles(made, reference, first)[:2], strict=True):
            np.testing.assert_array_equal(np.stack(one), np.stack(other))


def noted_tiles(made: Sequence, kernel: int, first: int) -> tuple[list[np.ndarray], list[np.ndarray], Any]:
    """tile_max and tile_sum [32, queries, group] of splits 0 and 1, and what split 1 gives. What is not noted is NaN
    and 0."""
    shape = (32, made.length - first, made.group)
    tops, sums = [np.full(shape, np.nan, np.float32) for _ in range(2)], [np.zeros(shape, np.float32) for _ in range(2)]
    parts = [
        made.partial(kernel, first, made.length, 0, split, tile_max=tops[split], tile_sum=sums[split])
        for split in range(2)
    ]
    return tops, sums, parts[1]


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
@sweep("group", [1, 3, 7])
@sweep("seen", [(0, 0), (37, 0), (-37, 0), (37, 5)])
def test_company_changes_no_bit(dtype: str, kernel: int, group: int, seen: tuple[int, int]) -> None:
    """A query alone gives the bits it gives in any chunk, across tile, block and split borders.

    seen: a window, and sink tokens. A negative window is a chunk: one of 37 ends at position 518, and so within most
    chunks of queries.
    """
    window, sink_tokens = seen
    sequence = Sequence(
        530, group=group, head_dim=24, dtype=dtype, window=abs(window), chunked=window < 0, sink_tokens=sink_tokens
    )
    alone = sequence.run(kernel, 490, 530, chunk=1)
    for chunk in (2, 3, 5, 8, 16, 40):
        np.testing.assert_array_equal(sequence.run(kernel, 490, 530, chunk), alone, f"chunk {chunk}")


def test_company_changes_no_bit_over_a_long_prompt() -> None:
    sequence = Sequence(1100, group=7, kv_heads=2, window=0)
    kernel = fast(sequence.dtype)
    whole = sequence.run(kernel, 0, 1100)
    assert np.abs(whole - sequence.expected(0, 1100)).max() <= sequence.tolerance(kernel)
    for first in (0, 1, 511, 512, 1023, 1024, 1099):
        np.testing.assert_array_equal(sequence.run(kernel, first, first + 1)[0], whole[first], f"position {first}")


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_exact_kernel_gives_the_same_bits(dtype: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 560), "length")
    queries = data.draw(st.integers(1, min(length, 12)), "queries")
    sequence = Sequence(
        length,
        group=data.draw(st.integers(1, 9), "group"),
        head_dim=2 * data.draw(st.integers(1, 50), "half head_dim"),
        block_size=data.draw(st.sampled_from([16, 32, 64]), "block_size"),
        dtype=dtype,
        window=data.draw(st.sampled_from([0, 1, 5, 16, 100, 540]), "window"),
        chunked=data.draw(st.booleans(), "chunked"),
        sink_tokens=data.draw(st.sampled_from([0, 3, 40]), "sink_tokens"),
        with_slopes=data.draw(st.booleans(), "with_slopes"),
        softcap=data.draw(st.sampled_from([0.0, 5.0]), "softcap"),
        seed=data.draw(st.integers(0, 9), "seed"),
    )
    begin = length - queries
    for split in range(-(-length // 512)):
        results = [sequence.partial(i, begin, length, 0, split) for i in exact_kernels(dtype)]
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
def test_a_split_that_nobody_sees_counts_for_nothing(dtype: str, kernel: int, chunked: bool) -> None:
    sequence = Sequence(600, group=2, head_dim=16, dtype=dtype, window=20, chunked=chunked)
    acc, top, total = sequence.partial(kernel, 590, 600, 0, 0)
    assert (acc == 0).all()
    assert (total == 0).all()
    assert (top == -np.inf).all()


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
def test_pages_between_sink_tokens_and_window_are_not_read(dtype: str, kernel: int) -> None:
    """Their blocks may be gone: the table then has no number for them."""
    sequence = Sequence(300, group=2, head_dim=16, dtype=dtype, window=40, sink_tokens=33)
    expected = sequence.run(kernel, 290, 300)
    sequence.block_table[2 : (290 - 40 + 1) // 32] = -1
    np.testing.assert_array_equal(sequence.run(kernel, 290, 300), expected)
    sequence.block_table[1] = -1
    with pytest.raises(InvalidOptionError, match="block_table must name"):
        sequence.run(kernel, 290, 300)


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
def test_infinite_values_reach_no_earlier_query(dtype: str, kernel: int) -> None:
    """0 * inf is NaN: what a later token wrote must not be multiplied at all."""
    sequence = Sequence(40, group=2, head_dim=16, dtype=dtype)
    clean = sequence.run(kernel, 30, 39)
    cache = PagedCache.from_pages(sequence.pages, 1, 32, 16, dtype)
    bad = np.full((1, 1, 16), np.inf, np.float32)
    sequence.pages = cache.write(sequence.slots[39:], bad, bad).to_pages()
    np.testing.assert_array_equal(sequence.run(kernel, 30, 40)[:9], clean)


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
def test_huge_and_equal_scores(dtype: str, kernel: int) -> None:
    """Weights underflow to zero, or are all the same: the mean of v."""
    sequence = Sequence(48, group=1, head_dim=16, dtype=dtype)
    sequence.scale = 0.0
    close(sequence, kernel, 47)
    sequence.scale = 50.0
    close(sequence, kernel, 30)


@pytest.mark.parametrize(("dtype", "kernel"), KERNELS)
@sweep("length", [1, 40, 530])
def test_scores_that_are_no_numbers_give_no_number(dtype: str, kernel: int, length: int) -> None:
    """An overflow must reach the logits, where it is found: it is not a row that sees nothing."""
    sequence = Sequence(length, group=2, head_dim=16, dtype=dtype, with_sinks=True)
    sequence.q[-1] = np.nan
    assert np.isnan(sequence.run(kernel, length - 1, length)).all()


COMBINES = [i for i, (_, _, runnable) in enumerate(_testing.attention_combine_table()) if runnable]


class TestCombine:
    @staticmethod
    def parts(splits: int, rows: int, head_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        random = np.random.default_rng(splits * 1000 + head_dim)
        acc = random.standard_normal((splits, rows, head_dim), np.float32)
        top = 3 * random.standard_normal((splits, rows), np.float32)
        return acc, top, random.uniform(1, 9, (splits, rows)).astype(np.float32)

    @staticmethod
    def run(index: int, parts: tuple[np.ndarray, ...], y_dtype: type = np.float32) -> np.ndarray:
        _, rows, head_dim = parts[0].shape
        y = np.zeros(rows * head_dim, y_dtype)
        _testing.run_attention_combine(index, *parts, y, [r * head_dim for r in range(rows)])
        return y.reshape(rows, head_dim)

    @pytest.mark.parametrize("index", COMBINES)
    @sweep("splits", [1, 2, 5])
    @sweep("head_dim", [2, 18, 64, 66, 256])
    def test_definition(self, index: int, splits: int, head_dim: int) -> None:
        acc, top, total = parts = self.parts(splits, 3, head_dim)
        weight = np.exp(top.astype(np.float64) - top.max(axis=0))
        expected = (acc * weight[..., None]).sum(axis=0) / (total * weight).sum(axis=0)[..., None]
        # Per split: one exp on each side and two roundings, relative to the largest term.
        bound = 8 * splits * 2.0**-24 * np.abs(acc).max()
        assert np.abs(self.run(index, parts) - expected).max() <= bound

    @pytest.mark.parametrize("y_dtype", [np.float32, np.uint16])
    def test_every_kernel_gives_the_same_bits(self, y_dtype: type) -> None:
        parts = self.parts(4, 5, 70)
        parts[1][1:3, 2] = -np.inf
        results = [self.run(i, parts, y_dtype) for i in COMBINES]
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)

    @pytest.mark.parametrize("index", COMBINES)
    def test_empty_splits_change_no_bit(self, index: int) -> None:
        parts = self.parts(1, 4, 40)
        # Of a split that a row sees nothing of, what stands in acc is not read.
        with_empty = tuple(np.concatenate([np.full_like(p, np.nan), p, np.full_like(p, np.nan)]) for p in parts)
        with_empty[1][[0, 2]], with_empty[2][[0, 2]] = -np.inf, 0
        np.testing.assert_array_equal(self.run(index, parts), self.run(index, with_empty))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bfloat16_results_are_rounded_ones(dtype: str) -> None:
    sequence = Sequence(40, dtype=dtype)
    kernel = fast(dtype)
    got = sequence.run(kernel, 30, 40, y_dtype="bfloat16")
    assert np.abs(got - sequence.expected(30, 40)).max() <= sequence.tolerance(kernel, "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_round_trip(dtype: str) -> None:
    sequence = Sequence(70, kv_heads=2, head_dim=6, dtype=dtype)
    code = DTYPES.index(dtype)
    assert sequence.pages.shape[1] == _testing.kv_block_bytes(code, 2, 6, 32)
    k, v = PagedCache.from_pages(sequence.pages, 2, 32, 6, dtype).read(sequence.block_table, 70)
    np.testing.assert_array_equal(k, sequence.k)
    np.testing.assert_array_equal(v, sequence.v)


def test_paged_definition_equals_attention_of_each_sequence() -> None:
    """A ragged batch: a prompt, the middle of one, a decode step."""
    lengths, queries = (20, 50, 30), (20, 7, 1)
    random = np.random.default_rng(5)
    cache = PagedCache.empty(8, 2, 16, 8, "float32")
    blocks = random.permutation(8)
    tables = np.stack([np.roll(blocks, -first) for first in (0, 2, 6)])  # blocks 0-1, 2-5, 6-7 of the permutation
    rows, expected = [], []
    for length, count, table in zip(lengths, queries, tables, strict=True):
        q, (k, v) = random.standard_normal((length, 6, 8)), random.standard_normal((2, length, 2, 8))
        position = np.arange(length)
        cache = cache.write(table[position // 16] * 16 + position % 16, k, v)
        k, v = k.astype(np.float32), v.astype(np.float32)
        attrs = {"scale": 0.3, "mask": "causal", "window": 0, "softcap": 0.0}
        whole = attention.reference([q[None].astype(np.float32), k[None], v[None]], attrs, "float32")[0][0]
        rows.append(q[length - count :].reshape(count, -1).astype(np.float32))
        expected.append(whole[length - count :].reshape(count, -1))
    starts = np.concatenate([[0], np.cumsum(queries)])
    attrs = {"layer": 0, "heads": 6, "kv_heads": 2, "head_dim": 8, "scale": 0.3, "window": 0, "softcap": 0.0}
    inputs = [np.concatenate(rows), cache, starts, np.array(lengths), tables]
    np.testing.assert_allclose(op.reference(inputs, attrs, "float32")[0], np.concatenate(expected), rtol=1e-6)


def test_a_block_table_out_of_bounds_is_refused() -> None:
    sequence = Sequence(40)
    sequence.block_table[1] = 99
    with pytest.raises(InvalidOptionError, match="block_table"):
        sequence.run(fast(sequence.dtype), 39, 40)


def test_infer_refuses_what_does_not_fit() -> None:
    from tensorwright.ir.graph import Value

    q, k = Value("q", "float32", (1, "seq", 6, 8)), Value("k", "float32", (1, "seq", 4, 8))
    attrs = {"scale": 1.0, "mask": "causal", "window": 0, "softcap": 0.0}
    with pytest.raises(GraphError, match="multiple of 4 KV heads"):
        attention.infer([q, k, k], attrs)
    k = Value("k", "float32", (1, "seq", 2, 8))
    assert attention.infer([q, k, k], attrs) == [("float32", (1, "seq", 6, 8))]
    with pytest.raises(GraphError, match="mask must be"):
        attention.infer([q, k, k], {**attrs, "mask": "window"})
    with pytest.raises(GraphError, match="chunk"):
        attention.infer([q, k, k], {**attrs, "mask": "chunk"})
