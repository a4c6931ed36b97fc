"""Latent attention: the absorbed form against the expanded one, and the kernels of its cache against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import chain_tolerance

from support.paged import DTYPES, best_runnable, restored, stored
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.latent_attention import latent_kv_write, op
from tensorwright.plugins.paged_attention.attention import attend
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.rms_norm.op import normalise
from tensorwright.plugins.rotary.op import rotate
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes


def kernels(table: list[tuple[str, str, bool]]) -> list[object]:
    return [
        pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
        for i, (name, isa, runnable) in enumerate(table)
    ]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


ATTRS = {"eps": 1e-5, "weight_offset": 0.0, "scale": 0.3, "window": 0, "softcap": 0.0}


@pytest.mark.parametrize("rotated", [True, False])
def test_absorbed_is_expanded(rotated: bool) -> None:
    """Both forms in float64 but for the norm and the rotation, which both round alike."""
    length, heads, inner, latent, rope, out = 9, 3, 6, 8, 4, 5
    q, kv = normal(1, length, heads * (inner + rope)), normal(1, length, latent + rope, seed=1)
    norm, up_k, up_v = normal(latent, seed=2), normal(heads, latent, inner, seed=3), normal(heads, out, latent, seed=4)
    angle = normal(1, length, rope // 2, seed=5)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) if rotated else None
    (got,) = op.reference([q, kv, norm, up_k, up_v, table], ATTRS, "float32")
    turn = np.zeros((length, 0), np.float32) if table is None else table[0]
    c = normalise(kv[0][:, :latent], norm, 1e-5, 0.0).astype(np.float64)
    shared = np.repeat(rotate(kv[0][:, None, latent:], turn), heads, axis=1)
    k = np.concatenate([np.einsum("tl,hln->thn", c, up_k), shared], axis=-1)
    parts = q[0].reshape(length, heads, inner + rope)
    turned = np.concatenate([parts[..., :inner], rotate(parts[..., inner:], turn)], axis=-1)
    expected = attend(turned, k, np.einsum("tl,hol->tho", c, up_v), 0, 0.3, 0, 0.0).reshape(length, -1)
    assert np.abs(got[0] - expected).max() <= chain_tolerance("float32", latent, 4, float(np.abs(expected).max()))


def write(kernel: int, dtype: str, latent: int, rope: int, tokens: int, shift: int = 0, heads: int = 3) -> None:
    """One kernel and the definition, bit for bit; rows start `shift` elements past an allocation."""
    inner, block_size, blocks = 5, 32, 4
    width = latent + rope

    def rows(columns: int, seed: int) -> np.ndarray:
        storage = np.full(tokens * (columns + 5) + shift, np.nan, np.float32)
        padded = storage[shift:].reshape(tokens, columns + 5)[:, :columns]
        padded[:] = normal(tokens, columns, seed=seed)
        return padded

    q_latent, q, kv = rows(heads * latent, 1), rows(heads * (inner + rope), 2), rows(width, 3)
    table = rows(rope, 4) if rope else None
    slots = np.random.default_rng(6).permutation(blocks * block_size)[:tokens].astype(np.int32)
    cache = PagedCache.empty(blocks, 1, block_size, width, dtype, latent)
    pages = cache.to_pages()
    assert pages.shape == (blocks, block_size * width * (4 if dtype == "float32" else 2))
    y = stored(np.full((tokens, heads * width), np.nan, np.float32), dtype)
    sizes = {"heads": heads, "rope": rope, "block_size": block_size}
    _testing.run_latent_kv_write(kernel, q_latent, q, kv, table, slots, y, pages, **sizes)
    attrs = {"layer": 0, "heads": heads, "head_dim": width, "v_dim": latent}
    expected, written = latent_kv_write.reference([q_latent, q, kv, table, slots, cache], attrs, dtype)
    np.testing.assert_array_equal(restored(y), expected)
    np.testing.assert_array_equal(pages, written.to_pages())


@pytest.mark.parametrize("kernel", kernels(_testing.latent_kv_write_table()))
@pytest.mark.parametrize("dtype", DTYPES)
class TestWrite:
    @sweep("latent", [2, 14, 16, 24, 34, 512])
    @sweep("rope", [0, 2, 8, 34, 64])
    def test_widths(self, kernel: int, dtype: str, latent: int, rope: int) -> None:
        write(kernel, dtype, latent, rope, 5)

    @sweep("tokens", [0, 1, 100])
    @sweep("shift", [0, 3])
    def test_tokens_and_alignment(self, kernel: int, dtype: str, tokens: int, shift: int) -> None:
        write(kernel, dtype, 16, 8, tokens, shift)


@pytest.mark.parametrize("kernel", kernels(_testing.latent_values_table()))
@sweep("words", [1, 7, 8, 9, 16, 23, 256, 512])
def test_rows_of_v_are_columns_of_a_panel(kernel: int, words: int) -> None:
    panel = np.random.default_rng(words).integers(0, 2**32, (words + 3, 16), np.uint32)
    rows = np.zeros((16, words * 4), np.uint8)
    _testing.run_latent_values(kernel, panel.view(np.uint8).reshape(-1), rows)
    np.testing.assert_array_equal(rows.view(np.uint32), panel[:words].T)


def test_v_is_a_part_of_k() -> None:
    cache = PagedCache.empty(2, 1, 16, 6, "bfloat16", 4)
    k = normal(3, 1, 6)
    written = cache.write(np.array([17, 0, 5]), k, k[:, :, :0])
    read_k, read_v = written.read(np.array([1, 0]), 2)
    np.testing.assert_array_equal(read_v, read_k[:, :, :4])
    assert read_k.shape == (2, 1, 6)
    assert best_runnable(_testing.latent_values_table()) >= 0


def test_refusals() -> None:
    def infer(**changed: tuple) -> list:
        shapes = {
            "q": (1, "seq", 20), "kv": (1, "seq", 12), "norm": (8,), "up_k": (2, 8, 6), "up_v": (2, 5, 8),
            "table": (1, "seq", 4),
        }  # fmt: skip
        return op.infer([Value(n, "float32", s) for n, s in {**shapes, **changed}.items()], ATTRS)

    assert infer() == [("float32", (1, "seq", 10))]
    for changed in (
        {"q": (1, "seq", 22)},
        {"norm": (7,)},
        {"up_v": (3, 5, 8)},
        {"table": (1, "seq", 6)},
        {"up_k": (16, 6)},
    ):
        with pytest.raises(GraphError, match="latent_attention"):
            infer(**changed)
