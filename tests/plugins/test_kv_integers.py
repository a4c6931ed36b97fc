"""The KV caches of integers: what is written against quantize.py bit for bit, what attention makes of it against its
definition, and the same bits on every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paged import DTYPES, KV_NUMBERS, Sequence, best_runnable, restored, stored
from support.sweep import sweep
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.paged_attention import op, quantize
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.rotary import rotary_kv_write
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes


def cases(table_of: Any, kv: str, dtypes: tuple[str, ...]) -> list[Any]:
    """Every kernel of a table with types of q. The code around an int4 cache is that of int8, so each of its kernels
    takes one type only."""
    return [
        pytest.param(
            kv, i, dtype, id=f"{name}-{kv}-{dtype}",
            marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"),
        )
        for i, (name, isa, runnable) in enumerate(table_of(kv))
        for dtype in (dtypes if kv == "int8" else (dtypes[i % 2],))
    ]  # fmt: skip


def attention_table(kv: str) -> list[tuple[str, str, bool]]:
    return _testing.attention_table(KV_NUMBERS[kv])


def every(table_of: Any) -> Any:
    """Parametrizes a test over both caches and the kernels of a table."""
    params = [case for kv in KV_NUMBERS for case in cases(table_of, kv, DTYPES)]
    return pytest.mark.parametrize(("kv", "kernel", "dtype"), params)


HEAD_DIMS = [8, 14, 16, 18, 30, 40, 64, 80, 96, 128, 256]


class TestQuantize:
    @pytest.mark.parametrize("levels", [quantize.KV_LEVELS, quantize.QUERY_LEVELS])
    def test_error_is_at_most_half_a_step(self, levels: int) -> None:
        x = np.random.default_rng(1).standard_normal((50, 64), np.float32)
        q, scale = quantize.quantize_heads(x, levels)
        assert np.abs(q).max() == levels
        np.testing.assert_array_equal(np.abs(q).max(axis=-1), levels)
        # Half a step, and the roundings of the scale, its inverse and their products with x.
        bound = scale[:, None].astype(np.float64) * (0.5 + 4 * levels * 2.0**-24)
        assert (np.abs(quantize.restore_heads(q, scale) - x) <= bound).all()

    def test_zeros_and_what_is_too_small(self) -> None:
        x = np.zeros((3, 8), np.float32)
        x[1] = 2.0**-111
        x[2, 0] = -(2.0**-110)
        q, scale = quantize.quantize_heads(x, quantize.KV_LEVELS)
        np.testing.assert_array_equal(q[:2], 0)
        np.testing.assert_array_equal(scale[:2], 0)
        assert q[2, 0] == -127

    def test_e4m3_numbers_are_the_nearest_and_reach_448(self) -> None:
        x = np.random.default_rng(1).standard_normal((50, 64), np.float32)
        x[:, 1] = x[:, 0] * 2.0 ** -np.arange(50)
        q, scale = quantize.quantize_heads_e4m3(x)
        np.testing.assert_array_equal(np.abs(q).max(axis=-1), 448)
        np.testing.assert_array_equal(q, q.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
        # A 16th of a number, or half of the least one's step; and the roundings of the scale and of its inverse.
        bound = np.maximum(np.abs(x) / 16, scale[:, None].astype(np.float64) * 2.0**-10) * (1 + 2.0**-20)
        assert (np.abs(quantize.restore_heads(q, scale) - x) <= bound).all()
        np.testing.assert_array_equal(quantize.quantize_heads_e4m3(x * np.float32(4))[0], q)

    def test_groups_are_off_by_half_a_step(self) -> None:
        x = np.random.default_rng(1).standard_normal((50, 200), np.float32) + np.arange(50, dtype=np.float32)[:, None]
        q, scale, low = quantize.quantize_groups(x)
        assert scale.shape == low.shape == (50, 4)
        assert (q.min(), q.max()) == (0, 15)
        for part in (scale, low):
            np.testing.assert_array_equal(part.view(np.uint32) & 0xFFFF, 0, "not bfloat16")
        # Half a step, and the roundings of x - low, its product with the inverse, and the inverse.
        bound = np.repeat(scale, quantize.GROUP, axis=1)[:, :200].astype(np.float64) * (0.5 + 3 * 15 * 2.0**-24)
        assert (np.abs(quantize.restore_groups(q, scale, low) - x) <= bound + 2.0**-24 * np.abs(x)).all()
        # The ends of a group lie within bfloat16's spacing of its elements.
        groups = [x[:, at : at + quantize.GROUP] for at in range(0, 200, quantize.GROUP)]
        least, most = (np.stack([f(part, axis=1) for part in groups], axis=1) for f in (np.min, np.max))
        assert (low <= least).all()
        assert (low >= least - 2.0**-7 * np.abs(least)).all()
        assert (low + 15 * scale >= most - 2.0**-22 * (most - low)).all()
        assert (low + 15 * scale <= most + 2.0**-7 * (most - low)).all()

    def test_groups_without_width_or_too_wide(self) -> None:
        x = np.full((4, 70), 3.0, np.float32)
        x[1] = 0
        x[2, 64:] = 2.0**-120
        x[3, :2] = 3e38, -3e38
        q, scale, low = quantize.quantize_groups(x)
        np.testing.assert_array_equal(q, 0)
        np.testing.assert_array_equal(scale[:3], 0)
        np.testing.assert_array_equal(low[:3], [[3, 3], [0, 0], [3, 2.0**-120]])
        assert np.isnan([scale[3, 0], low[3, 0]]).all()
        assert (scale[3, 1], low[3, 1]) == (0, 3)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_gives_nan(self, bad: float) -> None:
        x = np.ones((2, 8), np.float32)
        x[0, 3] = bad
        q, scale = quantize.quantize_heads(x, quantize.KV_LEVELS)
        assert np.isnan(scale[0])
        assert scale[1] == np.float32(1) / np.float32(127)
        np.testing.assert_array_equal(q[0], 0)
        q, scale = quantize.quantize_heads_e4m3(x)
        assert np.isnan(scale[0])
        assert scale[1] == np.float32(1) / np.float32(448)
        np.testing.assert_array_equal(q, [[0] * 8, [448] * 8])
        q, scale, low = quantize.quantize_groups(x)
        assert np.isnan([scale[0, 0], low[0, 0]]).all()
        assert (scale[1, 0], low[1, 0]) == (0, 1)


@every(lambda kv: _testing.rotary_kv_write_table())
class TestWrite:
    @staticmethod
    def same(
        kv: str, kernel: int, dtype: str, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int, *,
        block_size: int = 32, shift: int = 0, special: float | None = None,
    ) -> None:  # fmt: skip
        """One call of the kernel against the definition; rows are padded and start `shift` past an allocation."""
        heads, blocks = 3, 6
        width = (heads + 2 * kv_heads) * head_dim
        random = np.random.default_rng(head_dim)
        storage = np.full(tokens * (width + 5) + shift, np.nan, np.float32)
        qkv = storage[shift:].reshape(tokens, width + 5)[:, :width]
        qkv[:] = random.standard_normal(qkv.shape) * 10.0 ** random.integers(-3, 4, (tokens, 1))
        if special is not None:
            qkv[::2, -head_dim] = qkv[::2, heads * head_dim] = special
        table = random.standard_normal((tokens, rotary_dim), np.float32)
        slots = random.permutation(blocks * block_size)[:tokens].astype(np.int32)
        cache = PagedCache.empty(blocks, kv_heads, block_size, head_dim, kv)
        pages = cache.to_pages()
        q = stored(np.full((tokens, heads * head_dim), np.nan, np.float32), dtype)
        _testing.run_rotary_kv_write(
            kernel, qkv, table, slots, q, pages,
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, kv_dtype=KV_NUMBERS[kv],
        )  # fmt: skip
        attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
        q_expected, expected = rotary_kv_write.reference([qkv, table, slots, cache], attrs, dtype)
        got = PagedCache.from_pages(pages, kv_heads, block_size, head_dim, kv)
        np.testing.assert_array_equal(restored(q), q_expected)
        lows = ("k_low", "v_low") if kv == "int4" else ()
        for name in ("k", "v", "k_scale", "v_scale", *lows):  # -128 and NaN where nothing was written: no stray store
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)

    @sweep("head_dim", [2, 6, *HEAD_DIMS])
    def test_head_dims(self, kv: str, kernel: int, dtype: str, head_dim: int) -> None:
        self.same(kv, kernel, dtype, 2, head_dim, head_dim, 9)

    @sweep("head_dim", [*range(1, 35), 80, 1024])
    @sweep("shift", [0, 3])
    def test_no_rotation(self, kv: str, kernel: int, dtype: str, head_dim: int, shift: int) -> None:
        self.same(kv, kernel, dtype, 2, head_dim, 0, 5, shift=shift)

    @sweep("rotary_dim", [2, 10, 20, 32, 34, 62])
    def test_partial_rotation(self, kv: str, kernel: int, dtype: str, rotary_dim: int) -> None:
        self.same(kv, kernel, dtype, 1, 64, rotary_dim, 5)

    @sweep("block_size", [16, 64, 512])
    @sweep("tokens", [0, 1, 90])
    def test_blocks_and_tokens(self, kv: str, kernel: int, dtype: str, block_size: int, tokens: int) -> None:
        self.same(kv, kernel, dtype, 2, 24, 24, tokens, block_size=block_size, shift=1)

    @sweep("special", [0.0, 2.0**-140, 2.0**-115, 3e38, np.inf, -np.inf, np.nan])
    def test_special_values(self, kv: str, kernel: int, dtype: str, special: float) -> None:
        self.same(kv, kernel, dtype, 1, 1, 0, 6, special=special)
        self.same(kv, kernel, dtype, 2, 40, 0, 6, special=special)


def close(sequence: Sequence, kernel: int, begin: int, chunk: int = 0) -> None:
    got = sequence.run(kernel, begin, sequence.length, chunk)
    worst = np.abs(got - sequence.expected(begin, sequence.length)).max()
    assert worst <= sequence.tolerance(kernel), f"off by {worst}, allowed {sequence.tolerance(kernel)}"


@every(attention_table)
class TestAttention:
    @sweep("length", [1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 1030])
    def test_lengths_around_tiles_blocks_and_splits(self, kv: str, kernel: int, dtype: str, length: int) -> None:
        close(Sequence(length, dtype=dtype, kv=kv), kernel, max(0, length - 3))

    @sweep("head_dim", [1, 3, 7, 9, 15, 17, 31, 33, *HEAD_DIMS])
    def test_head_dims(self, kv: str, kernel: int, dtype: str, head_dim: int) -> None:
        close(Sequence(45, head_dim=head_dim, dtype=dtype, kv_heads=2, group=3, kv=kv), kernel, 30)

    @sweep("group", [*range(1, 10), 16])
    def test_groups(self, kv: str, kernel: int, dtype: str, group: int) -> None:
        close(Sequence(50, group=group, kv_heads=2, head_dim=32, dtype=dtype, kv=kv), kernel, 46)

    @sweep("window", [1, 2, 15, 16, 17, 40, 600])
    @sweep("length", [50, 700])
    def test_windows(self, kv: str, kernel: int, dtype: str, window: int, length: int) -> None:
        close(Sequence(length, group=3, head_dim=16, dtype=dtype, window=window, kv=kv), kernel, length - 20)

    @sweep("chunk", [1, 16, 17, 512, 600])
    @sweep("length", [50, 700])
    def test_chunks(self, kv: str, kernel: int, dtype: str, chunk: int, length: int) -> None:
        made = Sequence(length, group=3, head_dim=16, dtype=dtype, window=chunk, chunked=True, kv=kv)
        close(made, kernel, length - 20)

    @sweep("window", [0, 24])
    @pytest.mark.parametrize("with_sinks", [False, True])
    def test_softcap_and_sinks(self, kv: str, kernel: int, dtype: str, window: int, with_sinks: bool) -> None:
        made = Sequence(70, group=2, dtype=dtype, softcap=3.0, window=window, with_sinks=with_sinks, kv=kv)
        close(made, kernel, 40)

    @sweep("block_size", [16, 32, 64, 512])
    def test_block_sizes(self, kv: str, kernel: int, dtype: str, block_size: int) -> None:
        close(Sequence(530, group=2, head_dim=16, dtype=dtype, block_size=block_size, kv=kv), kernel, 500)

    @sweep("group", [1, 3, 7])
    @sweep("window", [0, 37, -37])
    def test_company_changes_no_bit(self, kv: str, kernel: int, dtype: str, group: int, window: int) -> None:
        """A negative window is a chunk."""
        sequence = Sequence(530, group=group, head_dim=24, dtype=dtype, window=abs(window), chunked=window < 0, kv=kv)
        alone = sequence.run(kernel, 490, 530, chunk=1)
        for chunk in (2, 5, 16, 40):
            np.testing.assert_array_equal(sequence.run(kernel, 490, 530, chunk), alone, f"chunk {chunk}")

    def test_the_widest_head_overflows_nothing(self, kv: str, kernel: int, dtype: str) -> None:
        """All of q and k at their largest: the sum comes closest to 32 bits."""
        sequence = Sequence(20, group=2, head_dim=quantize.MAX_HEAD_DIM, dtype=dtype, kv=kv)
        sequence.q = np.ones_like(sequence.q)
        ones = np.ones((20, 1, quantize.MAX_HEAD_DIM), np.float32)
        cache = PagedCache.empty(4, 1, 32, quantize.MAX_HEAD_DIM, kv).write(sequence.slots, ones, ones)
        sequence.pages, (sequence.k, sequence.v) = cache.to_pages(), cache.read(sequence.block_table, 20)
        close(sequence, kernel, 15)

    def test_misaligned_pages(self, kv: str, kernel: int, dtype: str) -> None:
        sequence = Sequence(70, group=3, head_dim=18, dtype=dtype, kv=kv)
        expected = sequence.run(kernel, 60, 70)
        shape = sequence.pages.shape
        moved = np.zeros(sequence.pages.size + 4, np.uint8)[4:].reshape(shape)
        moved[:] = sequence.pages
        sequence.pages = moved
        np.testing.assert_array_equal(sequence.run(kernel, 60, 70), expected)

    @pytest.mark.parametrize("bad", [np.inf, np.nan])
    def test_bad_values_reach_no_earlier_query(self, kv: str, kernel: int, dtype: str, bad: float) -> None:
        sequence = Sequence(40, group=2, head_dim=16, dtype=dtype, kv=kv)
        clean = sequence.run(kernel, 30, 39)
        cache = PagedCache.from_pages(sequence.pages, 1, 32, 16, kv)
        values = np.full((1, 1, 16), bad, np.float32)
        sequence.pages = cache.write(sequence.slots[39:], values, values).to_pages()
        got = sequence.run(kernel, 30, 40)
        np.testing.assert_array_equal(got[:9], clean)
        assert np.isnan(got[9]).all()

    def test_a_split_that_nobody_sees_counts_for_nothing(self, kv: str, kernel: int, dtype: str) -> None:
        sequence = Sequence(600, group=2, head_dim=16, dtype=dtype, window=20, kv=kv)
        acc, top, total = sequence.partial(kernel, 590, 600, 0, 0)
        assert (acc == 0).all()
        assert (total == 0).all()
        assert (top == -np.inf).all()


@pytest.mark.parametrize(("kv", "dtype"), [("int8", "float32"), ("int8", "bfloat16"), ("int4", "bfloat16")])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_kernel_gives_the_same_bits(kv: str, dtype: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 560), "length")
    queries = data.draw(st.integers(1, min(length, 12)), "queries")
    sequence = Sequence(
        length,
        group=data.draw(st.integers(1, 9), "group"),
        head_dim=data.draw(st.integers(1, 100), "head_dim"),
        block_size=data.draw(st.sampled_from([16, 32, 64]), "block_size"),
        dtype=dtype,
        window=data.draw(st.sampled_from([0, 1, 5, 16, 100, 540]), "window"),
        chunked=data.draw(st.booleans(), "chunked"),
        softcap=data.draw(st.sampled_from([0.0, 5.0]), "softcap"),
        seed=data.draw(st.integers(0, 9), "seed"),
        kv=kv,
    )
    begin = length - queries
    runnable = [i for i, (_, _, runs) in enumerate(attention_table(kv)) if runs]
    for split in range(-(-length // 512)):
        results = [sequence.partial(i, begin, length, 0, split) for i in runnable]
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


class TestMutations:
    """The comparison with the definition can fail: a broken page is far outside what is allowed."""

    @staticmethod
    def error(damage: Any, kv: str = "int8") -> float:
        sequence = Sequence(60, group=2, head_dim=24, kv=kv)
        cache = PagedCache.from_pages(sequence.pages, 1, 32, 24, kv)
        damage(cache)
        sequence.pages = cache.to_pages()
        kernel = best_runnable(attention_table(kv))
        got = sequence.run(kernel, 50, 60)
        return float(np.abs(got - sequence.expected(50, 60)).max()) / sequence.tolerance(kernel)

    def test_unbroken(self) -> None:
        assert self.error(lambda cache: None) <= 1
        assert self.error(lambda cache: None, "int4") <= 1

    @pytest.mark.parametrize("name", ["k_low", "v_low"])
    def test_offsets_dropped(self, name: str) -> None:
        assert self.error(lambda cache: getattr(cache, name).fill(0), "int4") > 100

    @pytest.mark.parametrize("name", ["k", "v"])
    def test_halves_of_bytes_exchanged(self, name: str) -> None:
        def swap(cache: PagedCache) -> None:
            values = getattr(cache, name)
            run = 4 if name == "k" else 16
            order = [d ^ run if d ^ run < values.shape[-1] else d for d in range(values.shape[-1])]
            values[:] = values[..., order]

        assert self.error(swap, "int4") > 100

    def test_scales_of_v_dropped(self) -> None:
        assert self.error(lambda cache: cache.v_scale.fill(1)) > 100

    def test_scales_of_k_shifted_by_a_lane(self) -> None:
        def shift(cache: PagedCache) -> None:
            assert cache.k_scale is not None
            written = np.where(np.isnan(cache.k_scale), np.float32(1), cache.k_scale)
            cache.k_scale[:] = np.roll(written, 1, axis=-1)

        assert self.error(shift) > 100

    def test_elements_of_k_in_another_order(self) -> None:
        def swap(cache: PagedCache) -> None:
            cache.k[:] = cache.k[..., ::-1].copy()

        assert self.error(swap) > 100


@pytest.mark.parametrize("kv", KV_NUMBERS)
@sweep("head_dim", [1, 6, 18, 64, 130])
@sweep("block_size", [16, 32])
def test_pages_round_trip(kv: str, head_dim: int, block_size: int) -> None:
    sequence = Sequence(70, kv_heads=2, head_dim=head_dim, block_size=block_size, kv=kv)
    assert sequence.pages.shape[1] == _testing.kv_block_bytes(KV_NUMBERS[kv], 2, head_dim, block_size)
    cache = PagedCache.from_pages(sequence.pages, 2, block_size, head_dim, kv)
    k, v = cache.read(sequence.block_table, 70)
    np.testing.assert_array_equal(k, sequence.k)
    np.testing.assert_array_equal(v, sequence.v)
    np.testing.assert_array_equal(cache.to_pages(), sequence.pages)


def test_definition_quantizes_q() -> None:
    """One position: its weight is 1, so the result is V as the cache holds it; two: q's rounding shows."""
    random = np.random.default_rng(3)
    k, v, q = random.standard_normal((3, 2, 1, 8)).astype(np.float32)
    cache = PagedCache.empty(1, 1, 16, 8, "int8").write(np.arange(2), k, v)
    attrs = {"heads": 1, "kv_heads": 1, "head_dim": 8, "scale": 1.0, "window": 0, "softcap": 0.0}
    inputs = [q.reshape(2, 8), cache, np.array([0, 2]), np.array([2]), np.array([[0]])]
    (y,) = op.reference(inputs, attrs, "float32")
    k_read, v_read = cache.read(np.array([0]), 2)
    np.testing.assert_array_equal(y[0], v_read[0, 0].astype(np.float32))
    exact = quantize.restore_heads(*quantize.quantize_heads(q[1], quantize.QUERY_LEVELS))
    weight = np.exp(k_read[:, 0] @ exact[0])
    # float64 but for the last rounding.
    np.testing.assert_allclose(y[1], (weight @ v_read[:, 0]) / weight.sum(), rtol=2.0**-23)


def test_what_does_not_fit_is_refused() -> None:
    for kv in KV_NUMBERS:
        sequence = Sequence(20, head_dim=quantize.MAX_HEAD_DIM + 1, group=1, kv=kv)
        with pytest.raises(InvalidOptionError, match="head_dim is too large for a cache of integers"):
            sequence.run(0, 19, 20)
    sequence = Sequence(20, dtype="float32")
    acc, top = np.zeros((1, 7, 64), np.float32), np.zeros((1, 7), np.float32)
    q = sequence.q[19:].reshape(1, -1)
    with pytest.raises(InvalidOptionError, match="kv_dtype must be q's, int8 or int4"):
        _testing.run_attention(
            0, q, sequence.pages, sequence.block_table, acc, top, top,
            kv_head=0, block_size=32, first_position=19, split=0, scale=1.0, kv_dtype=1,
        )  # fmt: skip
