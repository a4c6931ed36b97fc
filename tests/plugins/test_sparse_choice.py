"""How blocks of queries choose their keys in sparse prefill: the rule in numpy, and the kernels that it needs."""

from __future__ import annotations

import numpy as np
import pytest

from support.paged import DTYPES, KV_NUMBERS, SPLIT, Sequence
from tensorwright.plugins.paged_attention.choice import ChoiceRule, sparse_end
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

BLOCK, TILE, DIM = 32, 16, 16
RULE = ChoiceRule(budget=160, block=BLOCK, scale=0.25, softcap=0.0, q_dtype="float32")


def keys(blocks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((blocks * BLOCK, DIM)).astype(np.float32)


def queries(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((BLOCK, 3, DIM)).astype(np.float32)


def test_a_block_with_few_before_it_sees_all() -> None:
    assert RULE.chosen(queries(), keys(4)).tolist() == [0, 1, 2, 3, 4]
    chosen = RULE.chosen(queries(), keys(5)).tolist()
    assert len(chosen) == 5
    assert {0, 4, 5} <= set(chosen)


@pytest.mark.parametrize("place", [1, 9, 17])
def test_one_key_that_queries_look_for_is_found(place: int) -> None:
    """It would vanish in a mean of its block's keys: the others of the block look the other way."""
    q, k = queries(), keys(20)
    q[:, 1] += 3.0
    k[place * BLOCK : (place + 1) * BLOCK] -= 1.0
    k[place * BLOCK + 5] = 6.0
    assert place in RULE.chosen(q, k)


def test_equal_blocks_are_chosen_from_the_first_on() -> None:
    k = np.tile(keys(1), (9, 1))
    assert RULE.chosen(queries(), k).tolist() == [0, 1, 2, 8, 9]


def test_what_the_rest_of_a_prompt_sees() -> None:
    assert [sparse_end(n, BLOCK) for n in (1, 31, 32, 33, 64)] == [0, 0, 32, 32, 64]
    q = np.random.default_rng(4).standard_normal((10 * BLOCK, 4, DIM)).astype(np.float32)
    k = np.random.default_rng(5).standard_normal((10 * BLOCK, 2, DIM)).astype(np.float32)
    shown = RULE.shown(q, k, 0, 10 * BLOCK - 1)
    assert shown.shape == (2, len(q), len(k))
    assert shown[:, : RULE.budget].all()
    assert shown[:, 9 * BLOCK :].all()
    assert (shown[:, RULE.budget : 9 * BLOCK].sum(-1) == RULE.budget).all()
    assert (shown[0] != shown[1]).any(), "each KV head chooses for itself"


KERNELS = [
    pytest.param(dtype, kv, index, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for number, dtype, kv in ((0, "float32", ""), (1, "bfloat16", ""), (3, "bfloat16", "int8"), (4, "bfloat16", "int4"))
    for index, (name, isa, runnable) in enumerate(_testing.attention_table(number))
]


@pytest.mark.parametrize(("dtype", "kv", "kernel"), KERNELS)
@pytest.mark.parametrize("blocks", [1, 3, 16])
@pytest.mark.parametrize("group", [1, 6, 17])
def test_the_softmax_alone_is_that_of_attention(dtype: str, kv: str, kernel: int, blocks: int, group: int) -> None:
    """Bit for bit. Rows of several blocks of the kernel, and a split that is not full."""
    length = SPLIT + blocks * BLOCK
    made = Sequence(length, group=group, head_dim=24, dtype=dtype, kv=kv, softcap=4.0 if blocks == 3 else 0.0)
    found = []
    for values in (True, False):
        noted = np.full((2, SPLIT // TILE, 1, group), np.nan, np.float32)
        acc, *softmax = made.partial(
            kernel, length - 1, length, 0, 1, tile_max=noted[0], tile_sum=noted[1], values=values
        )
        assert values != np.isnan(acc).all(), "V is not read where it has no columns"
        found.append(np.concatenate([np.ravel(part) for part in (*softmax, noted)]))
        tiles = blocks * BLOCK // TILE
        assert not np.isnan(noted[:, :tiles]).any()
        assert np.isnan(noted[:, tiles:]).all(), "nothing is written for tiles that are not there"
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 9, 16, 33])
def test_shares(rows: int) -> None:
    """Every kernel gives the bits of the last of its table, which is scalar, and these are the shares of the rows."""
    random = np.random.default_rng(rows)
    top = (20 * random.standard_normal((40, rows))).astype(np.float32)
    parts = random.uniform(1, 32, (40, rows)).astype(np.float32)
    top[3, 0] = -np.inf
    if rows > 6:
        top[5, 6] = np.nan
    results = []
    for index, (_, _, runnable) in enumerate(_testing.attention_shares_table()):
        if not runnable:
            continue
        shares, total = parts.copy(), np.full(rows, np.nan, np.float32)
        _testing.run_attention_shares(index, top, shares, total)
        results.append((shares, total))
    for shares, total in results[:-1]:
        np.testing.assert_array_equal(shares.view(np.uint32), results[-1][0].view(np.uint32))
        np.testing.assert_array_equal(total.view(np.uint32), results[-1][1].view(np.uint32))
    exact = parts * np.exp(top.astype(np.float64) - np.nanmax(top, 0))
    sound = ~np.isnan(top).any(0)
    np.testing.assert_allclose(results[-1][0][:, sound], exact[:, sound], rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(results[-1][1][sound], exact[:, sound].sum(0), rtol=1e-5)
    assert np.isnan(results[-1][1][~sound]).all()


def test_the_kernels_of_this_file_are_all_that_there_are() -> None:
    assert len(KERNELS) == sum(len(_testing.attention_table(n)) for n in (*range(len(DTYPES)), *KV_NUMBERS.values()))
