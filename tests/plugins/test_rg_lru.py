"""The rg_lru kernels against their numpy definition, and the bits of a sequence that is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import function_tolerance, sum_tolerance

from support.made_matmul import same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.ir.state_cache import StateCache
from tensorwright.plugins.rg_lru import carried, op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.rg_lru_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(TABLE) if runnable]


def made(channels: int, tokens: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """x, input and decay [tokens, C]; rate, input_bias and decay_bias [3, C]; and a state [1, C]."""
    draw = np.random.default_rng(channels * 100 + tokens).standard_normal
    rows = [draw((tokens, channels)).astype(np.float32) for _ in range(3)]
    rate = -8.0 * np.logaddexp(0.0, 2 * draw((1, channels)) - 2)
    vectors = np.concatenate([rate, draw((2, channels))]).astype(np.float32)
    return rows, vectors, draw((1, channels)).astype(np.float32)


def run(
    index: int, rows: list[np.ndarray], vectors: np.ndarray, state: np.ndarray, fresh: bool, dtype=np.float32
) -> np.ndarray:
    y = np.full(rows[0].shape, np.nan if dtype is np.float32 else 0, dtype)
    _testing.run_rg_lru(index, rows, vectors, state, y, fresh)
    return y


@pytest.mark.parametrize("index", KERNELS)
@sweep("channels", [*range(1, 35), 64, 100])
def test_definition(index: int, channels: int) -> None:
    rows, vectors, state = made(channels, 4)
    for fresh in (True, False):
        ours, theirs = state.copy(), np.zeros(channels, np.float32) if fresh else state[0].copy()
        y = run(index, rows, vectors, ours, fresh)
        expected = op.advance(*carried.gated(*rows, vectors, fresh), theirs)
        # A token adds at most x to what is left of the state. The roundings are those of two sigmoids, an exponential,
        # a tangent and a root; what exp passes on of its argument's rounding is at most 1/e of an exponent's.
        total = float(np.abs(state).max()) + 4 * float(np.abs(rows[0]).max())
        bound = sum_tolerance("float32", 4 * 4, total) + 4 * function_tolerance("float32", total)
        assert float(np.abs(ours[0] - theirs).max()) <= bound
        assert float(np.abs(y - expected).max()) <= bound


@sweep("channels", [16, 37, 64])
def test_same_bits_everywhere(channels: int) -> None:
    """On every instruction set, however the sequence is cut; and bfloat16 results are rounded once."""
    rows, vectors, _ = made(channels, 9)
    last = np.full((1, channels), np.nan, np.float32)
    whole = run(RUNNABLE[-1], rows, vectors, last, True)
    for index in RUNNABLE:
        state = np.full((1, channels), np.nan, np.float32)
        cuts = [(0, 1), (1, 3), (3, 8), (8, 9)]
        parts = [run(index, [r[a:b] for r in rows], vectors, state, a == 0) for a, b in cuts]
        assert same_bits(np.concatenate(parts), whole)
        assert same_bits(state, last)
        assert same_bits(run(index, rows, vectors, state, True, np.uint16), to_bfloat16_bits(whole))


@pytest.mark.parametrize("index", KERNELS)
def test_a_decay_near_one_does_not_cancel(index: int) -> None:
    """With a state of 0 and gated inputs of 1, y is sqrt(1 - a^2), right in its last places however small it is."""
    rate = -np.logspace(-12, 1, 2_001, dtype=np.float32)[None]
    rows = [np.ones_like(rate), np.full_like(rate, 100.0), np.full_like(rate, 100.0)]
    y = run(index, rows, np.concatenate([rate, 0 * rate, 0 * rate]), np.zeros_like(rate), False)[0]
    exact = np.sqrt(-np.expm1(2.0 * rate[0].astype(np.float64)))
    assert np.all(np.abs(y - exact) <= function_tolerance("float32", exact))


def test_the_carried_op() -> None:
    """Two sequences in two steps, against the op of one sequence."""
    rows, vectors, _ = made(5, 7)
    p = np.log(np.expm1(vectors[0].astype(np.float64) / carried.RATE)).astype(np.float32)
    w = np.stack([p, *vectors[1:]])
    states, parts = StateCache(), {0: [], 1: []}
    for cuts in ([(0, 4), (0, 2)], [(4, 7), (2, 7)]):
        step = [np.concatenate([r[a:b] for a, b in cuts]) for r in rows]
        counts = [b - a for a, b in cuts]
        batch = (np.array([0, counts[0], sum(counts)]), np.array([b for _, b in cuts]), np.array([3, 1]))
        y, states = carried.reference([*step, *batch, states, w], {"state": 0}, "float32")
        for seq, part in enumerate(np.split(y, [counts[0]])):
            parts[seq].append(part)
    x, a = carried.gated(*rows, vectors, True)
    first = (np.arange(7) == 0)[None, :, None]
    (whole,) = op.reference([x[None], a[None], first], {}, "float32")
    for seq in parts:
        np.testing.assert_allclose(np.concatenate(parts[seq]), whole[0], rtol=1e-5, atol=1e-6)


def test_the_first_token_keeps_nothing() -> None:
    x, a = np.ones((1, 3, 2), np.float32), np.full((1, 3, 2), 0.5, np.float32)
    (y,) = op.reference([x, a, np.array([[[True], [False], [True]]])], {}, "float32")
    assert y[0, :, 0].tolist() == [1.0, 1.5, 1.0]


def test_operands_that_do_not_fit() -> None:
    x, first = Value("x", "float32", (1, "seq", 16)), Value("first", "bool", (1, "seq", 1))
    assert op.infer([x, x, first], {}) == [("float32", (1, "seq", 16))]
    with pytest.raises(GraphError, match="x and a must be"):
        op.infer([x, x, x], {})
    with pytest.raises(GraphError, match="all operands must be present"):
        op.infer([x, None, first], {})
    row, w = Value("x", "float32", ("tokens", 16)), Value("w", "float32", (3, 16))
    batch = [None, None, None, Value("s", "state", ())]
    assert carried.infer([row, row, row, *batch, w], {})[0] == ("float32", ("tokens", 16))
    with pytest.raises(GraphError, match=r"w \[3, C\]"):
        carried.infer([row, row, row, *batch, Value("w", "float32", (2, 16))], {})
    with pytest.raises(GraphError, match="all operands must be present"):
        carried.infer([row, None, row, *batch, w], {})
