"""The rotary kernels against their numpy definitions: rotary_kv_write bit for bit, as it only multiplies and adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.paged import DTYPES, restored, stored
from support.sweep import sweep
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.ir.graph import Value
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.rotary import op, rotary_kv_write, rotary_table
from tensorwright.plugins.rounding import round_to
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

BF16 = 1  # TW_BF16 of kernel_types.h
TABLE = _testing.rotary_kv_write_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("half", [1, 3, 16, 32, 40])
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_table(half: int, scale: float) -> None:
    positions = np.array([0, 1, 2, 511, 4095, 131071], np.int32)
    inv_freq = (1e4 ** -(np.arange(half) / half)).astype(np.float32)
    got = np.full((len(positions), 2 * half), np.nan, np.float32)
    _testing.run_rotary_table(0, positions, inv_freq, got, scale)
    (expected,) = rotary_table.reference([positions, inv_freq], {"scale": scale}, "float32")
    # libm is within one unit in the last place of 1; the scale rounds once more.
    assert np.abs(got - expected).max() <= 3 * scale * 2.0**-24
    (alone,) = rotary_table.reference([positions[4:5], inv_freq], {"scale": scale}, "float32")
    np.testing.assert_array_equal(alone[0], expected[4])


def test_rotation_is_that_of_the_models() -> None:
    """x * cos + rotate_half(x) * sin, as transformers spells it."""
    x, angle = normal(1, 5, 3, 16), normal(1, 5, 8, seed=1)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    cos, sin = (np.tile(f(angle), 2)[..., None, :] for f in (np.cos, np.sin))
    turned = np.concatenate([-x[..., 8:], x[..., :8]], axis=-1)
    (got,) = op.reference([x, table], {"rotary_dim": 16}, "float32")
    np.testing.assert_array_equal(got, x * cos + turned * sin)


def write(
    kernel: int, dtype: str, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, tokens: int, shift: int = 0
) -> tuple[np.ndarray, PagedCache, np.ndarray, PagedCache]:
    """(q, cache) by the kernel and by definition; rows are padded and start `shift` elements past an allocation."""
    width, blocks, block_size = (heads + 2 * kv_heads) * head_dim, 6, 32
    random = np.random.default_rng(head_dim)
    qkv, table = normal(tokens, width), normal(tokens, rotary_dim, seed=1)
    slots = random.permutation(blocks * block_size)[:tokens].astype(np.int32)
    cache = PagedCache.empty(blocks, kv_heads, block_size, head_dim, dtype)
    pages = cache.to_pages()
    storage = np.full(tokens * (width + 5) + shift, np.nan, np.float32)
    padded = storage[shift:].reshape(tokens, width + 5)[:, :width]
    padded[:] = qkv
    q = stored(np.full((tokens, heads * head_dim), np.nan, np.float32), dtype)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    _testing.run_rotary_kv_write(kernel, padded, table, slots, q, pages, **sizes)
    attrs: dict[str, Any] = {
        "layer": 0, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim,
    }  # fmt: skip
    q_expected, cache_expected = rotary_kv_write.reference([qkv, table, slots, cache], attrs, dtype)
    got = PagedCache.from_pages(pages, kv_heads, block_size, head_dim, dtype)
    return restored(q), got, q_expected, cache_expected


def same(results: tuple[np.ndarray, PagedCache, np.ndarray, PagedCache]) -> None:
    q, cache, q_expected, cache_expected = results
    np.testing.assert_array_equal(q, q_expected)
    np.testing.assert_array_equal(cache.k, cache_expected.k)  # NaN where nothing was written: no stray store
    np.testing.assert_array_equal(cache.v, cache_expected.v)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
class TestKvWrite:
    @sweep("head_dim", [2, 6, 14, 16, 30, 32, 34, 40, 64, 80, 96, 128, 256])
    def test_head_dims(self, kernel: int, dtype: str, head_dim: int) -> None:
        same(write(kernel, dtype, 4, 2, head_dim, head_dim, 9))

    @sweep("rotary_dim", [2, 10, 20, 32, 34, 62])
    def test_partial_rotation(self, kernel: int, dtype: str, rotary_dim: int) -> None:
        same(write(kernel, dtype, 3, 1, 64, rotary_dim, 5))

    @sweep("head_dim", [*range(2, 34, 2), 64, 80, 256])
    @sweep("shift", [0, 3])
    def test_no_rotation(self, kernel: int, dtype: str, head_dim: int, shift: int) -> None:
        """Without a table q, k and v pass as they are: sizes 0 to 2N + 1 of both vector widths, and tails."""
        q, cache, *expected = write(kernel, dtype, 3, 1, head_dim, 0, 5, shift)
        same((q, cache, *expected))
        width = 5 * head_dim
        qkv = normal(5, width)
        np.testing.assert_array_equal(q, round_to(qkv[:, : 3 * head_dim], dtype))

    @sweep("shift", [1, 3, 7])
    def test_misaligned(self, kernel: int, dtype: str, shift: int) -> None:
        same(write(kernel, dtype, 7, 1, 40, 40, 20, shift))

    @sweep("tokens", [0, 1, 192])
    def test_token_counts(self, kernel: int, dtype: str, tokens: int) -> None:
        same(write(kernel, dtype, 2, 2, 16, 16, tokens))


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("head_dim", [6, 16, 34, 80])
def test_q_may_be_wider_than_the_cache(kernel: int, head_dim: int) -> None:
    """A product reads q in float32 before attention does: only q differs from what both in bfloat16 give."""
    tokens, sizes = 9, {"heads": 4, "kv_heads": 2, "head_dim": head_dim, "block_size": 32}
    qkv, table = normal(tokens, 8 * head_dim), normal(tokens, head_dim, seed=1)
    slots = np.arange(tokens, dtype=np.int32)
    narrow, wide = (PagedCache.empty(1, 2, 32, head_dim, "bfloat16").to_pages() for _ in range(2))
    q = np.full((tokens, 4 * head_dim), np.nan, np.float32)
    rounded = stored(q, "bfloat16")
    _testing.run_rotary_kv_write(kernel, qkv, table, slots, rounded, narrow, **sizes)
    _testing.run_rotary_kv_write(kernel, qkv, table, slots, q, wide, **sizes, kv_dtype=BF16)
    np.testing.assert_array_equal(narrow, wide)
    np.testing.assert_array_equal(round_to(q, "bfloat16"), restored(rounded))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@sweep("rotary_dim", [0, 16, 34])
def test_a_layer_that_reads_the_pages_of_another_writes_nothing(kernel: int, dtype: str, rotary_dim: int) -> None:
    tokens, heads, head_dim = 9, 3, 34
    queries, table = normal(tokens, heads * head_dim), normal(tokens, rotary_dim, seed=1)
    slots = np.arange(tokens, dtype=np.int32)
    cache = PagedCache.empty(1, 2, 32, head_dim, dtype)
    pages = cache.to_pages()
    before, q = pages.copy(), stored(np.full(queries.shape, np.nan, np.float32), dtype)
    sizes = {"heads": heads, "kv_heads": 0, "head_dim": head_dim}
    _testing.run_rotary_kv_write(kernel, queries, table, slots, q, pages, **sizes, block_size=32)
    np.testing.assert_array_equal(pages, before)
    attrs: dict[str, Any] = {"layer": 0, **sizes, "rotary_dim": rotary_dim}
    expected, written = rotary_kv_write.reference([queries, table if rotary_dim else None, slots, cache], attrs, dtype)
    np.testing.assert_array_equal(restored(q), expected)
    assert written is cache


def test_slots_out_of_bounds_are_refused() -> None:
    pages = PagedCache.empty(1, 1, 32, 16, "float32").to_pages()
    q, qkv, table = (np.zeros((1, n), np.float32) for n in (16, 48, 16))
    with pytest.raises(InvalidOptionError, match="slots"):
        _testing.run_rotary_kv_write(
            0, qkv, table, np.array([32], np.int32), q, pages, heads=1, kv_heads=1, head_dim=16, block_size=32
        )


def test_infer() -> None:
    x, table = Value("x", "float32", (1, "seq", 2, 8)), Value("t", "float32", (1, "seq", 8))
    assert op.infer([x, table], {"rotary_dim": 8}) == [("float32", (1, "seq", 2, 8))]
    with pytest.raises(GraphError, match="rotary_dim 6"):
        op.infer([x, table], {"rotary_dim": 6})
    qkv, slots, cache = Value("y", "float32", ("tokens", 16)), Value("s", "int32", ("tokens",)), Value("c", "kv", ())
    angles = Value("a", "float32", ("tokens", 4))
    heads = {"layer": 0, "heads": 2, "kv_heads": 1, "head_dim": 4}
    kinds = [("float32", ("tokens", 8)), ("kv", ())]
    assert rotary_kv_write.infer([qkv, angles, slots, cache], {**heads, "rotary_dim": 4}) == kinds
    assert rotary_kv_write.infer([qkv, None, slots, cache], {**heads, "rotary_dim": 0}) == kinds
    with pytest.raises(GraphError, match="table must be absent"):
        rotary_kv_write.infer([qkv, angles, slots, cache], {**heads, "rotary_dim": 0})
    with pytest.raises(GraphError, match=r"table must be \[tokens, 4\] .* got no table"):
        rotary_kv_write.infer([qkv, None, slots, cache], {**heads, "rotary_dim": 4})
    positions, inv_freq = Value("p", "int32", ("tokens",)), Value("f", "float32", (4,))
    assert rotary_table.infer([positions, inv_freq], {"scale": 1.0}) == [("float32", ("tokens", 8))]
