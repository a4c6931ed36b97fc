"""The selective_scan kernels against their numpy definition, and the bits of a sequence that is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import function_tolerance, sum_tolerance

from support.made_matmul import same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.ir.state_cache import StateCache
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.plugins.selective_scan import carried, op
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

LANES = 16
TABLE = _testing.selective_scan_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(TABLE) if runnable]


def made(channels: int, states: int, tokens: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """x, dt, b and c; a [C, N], d and dt_bias [C]; and a state [C, N]."""
    draw = np.random.default_rng(channels * 100 + states).standard_normal
    shapes = [(tokens, n) for n in (channels, channels, states, states)]
    x, dt, b, c = (draw(shape).astype(np.float32) for shape in shapes)
    a, state = (draw((channels, states)).astype(np.float32) for _ in range(2))
    d, dt_bias = (draw(channels).astype(np.float32) for _ in range(2))
    return [x, 2 * dt, b, c], [-np.exp(a), d, dt_bias], state


def panels(array: np.ndarray) -> np.ndarray:
    """[C, N] in panels of 16 channels: [panels N, 16]. Lanes beyond the channels hold zeros."""
    channels, states = array.shape
    whole = np.zeros((-(-channels // LANES) * LANES, states), np.float32)
    whole[:channels] = array
    return np.ascontiguousarray(whole.reshape(-1, LANES, states).transpose(0, 2, 1)).reshape(-1, LANES)


def channels_of(stored: np.ndarray, channels: int, states: int) -> np.ndarray:
    """The inverse of `panels`."""
    return stored.reshape(-1, states, LANES).transpose(0, 2, 1).reshape(-1, states)[:channels]


def run(
    index: int, rows: list[np.ndarray], vectors: list[np.ndarray], stored: np.ndarray, fresh: bool, dtype=np.float32
) -> np.ndarray:
    y = (
        np.full(rows[0].shape, np.nan, np.float32).astype(dtype)
        if dtype is np.float32
        else np.zeros_like(rows[0], dtype)
    )
    _testing.run_selective_scan(index, rows, panels(vectors[0]), np.stack(vectors[1:]), stored, y, fresh)
    return y


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("states", [1, 5, 16])
@sweep("channels", [*range(1, 35), 64, 100])
def test_definition(index: int, states: int, channels: int) -> None:
    rows, vectors, state = made(channels, states, 4)
    for fresh in (True, False):
        stored, theirs = panels(state), np.zeros_like(state) if fresh else state.copy()
        y, expected = run(index, rows, vectors, stored, fresh), op.scan(*rows, vectors, theirs)
        ours = channels_of(stored, channels, states)
        # A state adds a term per token, and y one per state; each term has some roundings, of the step and exp too.
        # The exponents are up to the step times a, whose rounding the exponential passes on.
        largest = float(max(np.abs(r).max() for r in rows))
        step = float(np.logaddexp(0.0, rows[1] + vectors[2]).max())
        total = 4 * step * largest**2 + float(np.abs(state).max())
        bound = sum_tolerance("float32", 8, total) + function_tolerance("float32", total)
        assert float(np.abs(ours - theirs).max()) <= bound
        assert float(np.abs(y - expected).max()) <= (states + 1) * bound * largest


@sweep("channels", [16, 37, 64])
def test_same_bits_everywhere(channels: int) -> None:
    """On every instruction set, however the sequence is cut; and bfloat16 results are rounded once."""
    rows, vectors, _ = made(channels, 7, 9)
    last = np.full(panels(np.zeros((channels, 7))).shape, np.nan, np.float32)
    whole = run(RUNNABLE[-1], rows, vectors, last, True)
    for index in RUNNABLE:
        stored = np.full(last.shape, np.nan, np.float32)
        cuts = [(0, 1), (1, 3), (3, 8), (8, 9)]
        parts = [run(index, [r[a:b] for r in rows], vectors, stored, a == 0) for a, b in cuts]
        assert same_bits(np.concatenate(parts), whole)
        assert same_bits(channels_of(stored, channels, 7), channels_of(last, channels, 7))
        assert same_bits(run(index, rows, vectors, stored, True, np.uint16), to_bfloat16_bits(whole))


def test_every_decay_has_the_same_bits() -> None:
    """From none to all: without x, states of ones are the decays after a token. A step that is no number stays none."""
    dt = np.append(np.linspace(-30, 100, 20_001), np.nan).astype(np.float32)[None]
    zeros, one = np.zeros_like(dt), np.ones((1, 1), np.float32)
    vectors = [-np.ones((dt.size, 1), np.float32), zeros[0], zeros[0]]
    found = []
    for index in RUNNABLE:
        stored = panels(np.ones((dt.size, 1)))
        run(index, [zeros, dt, one, one], vectors, stored, False)
        found.append(channels_of(stored, dt.size, 1)[:, 0])
    for decays in found:
        assert same_bits(decays[:-1], found[-1][:-1])
        assert np.isnan(decays[-1])
    assert found[-1][0] > 1 - 1e-6
    assert found[-1][dt[0] > 87.34].max() == 0


@pytest.mark.parametrize("index", KERNELS)
def test_every_size_of_step(index: int) -> None:
    """softplus from where exp vanishes to where it overflows: with c = 1 and b = x = 1, y is the step."""
    dt = np.linspace(-90, 90, 2_001, dtype=np.float32)[None]
    rows = [np.ones_like(dt), dt, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)]
    zeros = np.zeros(dt.size, np.float32)
    vectors = [-np.ones((dt.size, 1), np.float32), zeros, zeros]
    y = run(index, rows, vectors, panels(np.zeros((dt.size, 1))), True)[0]
    for value, exact in zip(y, np.logaddexp(0.0, dt[0].astype(np.float64)), strict=True):
        assert abs(float(value) - exact) <= function_tolerance("float32", exact) + np.finfo(np.float32).tiny


def test_the_carried_op() -> None:
    """Two sequences in two steps, against the op of one sequence."""
    rows, vectors, _ = made(5, 3, 7)
    w = np.concatenate([np.log(-vectors[0]).T, np.stack(vectors[1:])])
    attrs, states, parts = {"state": 0, "states": 3}, StateCache(), {0: [], 1: []}
    for cuts in ([(0, 4), (0, 2)], [(4, 7), (2, 7)]):
        step = [np.concatenate([r[a:b] for a, b in cuts]) for r in rows]
        counts = [b - a for a, b in cuts]
        batch = (np.array([0, counts[0], sum(counts)]), np.array([b for _, b in cuts]), np.array([3, 1]))
        y, states = carried.reference([*step, *batch, states, w], attrs, "float32")
        for seq, part in enumerate(np.split(y, [counts[0]])):
            parts[seq].append(part)
    (whole,) = op.reference([r[None] for r in rows] + vectors, {}, "float32")
    for seq in parts:
        np.testing.assert_allclose(np.concatenate(parts[seq]), whole[0], rtol=1e-5, atol=1e-6)


def test_operands_that_do_not_fit() -> None:
    x, b = (Value(name, "float32", (1, "seq", n)) for name, n in (("x", 16), ("b", 6)))
    a, d = Value("a", "float32", (16, 6)), Value("d", "float32", (16,))
    assert op.infer([x, x, b, b, a, d, d], {}) == [("float32", (1, "seq", 16))]
    with pytest.raises(GraphError, match=r"d and dt_bias must be \[16\]"):
        op.infer([x, x, b, b, a, d, Value("t", "float32", (6,))], {})
    with pytest.raises(GraphError, match="x and dt must be"):
        op.infer([x, x, b, x, a, d, d], {})
    with pytest.raises(GraphError, match="all operands must be present"):
        op.infer([x, x, b, None, a, d, d], {})
    rows = [Value(name, "float32", ("tokens", n)) for name, n in (("x", 16), ("dt", 16), ("b", 6), ("c", 6))]
    batch = [None, None, None, Value("s", "state", ())]
    w = Value("w", "float32", (8, 16))
    assert carried.infer([*rows, *batch, w], {"states": 6})[0] == ("float32", ("tokens", 16))
    with pytest.raises(GraphError, match=r"w \[7, C\]"):
        carried.infer([*rows, *batch, w], {"states": 5})
