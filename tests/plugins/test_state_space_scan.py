"""The state_space_scan kernels against their numpy definition, and the bits of a sequence that is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import function_tolerance, sum_tolerance

from support.made_matmul import same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.plugins.state_space_scan import op
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.state_space_scan_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(TABLE) if runnable]
NUMBERS = [-1.3, 0.7, 0.2, 0.05, 1.5]
"""a, d, dt_bias, dt_min, dt_max."""


def made(width: int, states: int, tokens: int) -> tuple[np.ndarray, ...]:
    """Rows [tokens, P + 2 N], dt [tokens, 1] and a state [N, P]."""
    draw = np.random.default_rng(width * 100 + states).standard_normal
    shapes = ((tokens, width + 2 * states), (tokens, 1), (states, width))
    row, dt, state = (draw(shape).astype(np.float32) for shape in shapes)
    return row, 3 * dt, state


def run(index: int, row: np.ndarray, dt: np.ndarray, state: np.ndarray, fresh: bool) -> np.ndarray:
    y = np.full((len(row), state.shape[1]), np.nan, np.float32)
    _testing.run_state_space_scan(index, row, dt, state, y, NUMBERS, fresh)
    return y


def defined(row: np.ndarray, dt: np.ndarray, state: np.ndarray) -> np.ndarray:
    a, d, bias, *limits = (np.float32(number) for number in NUMBERS)
    x, b, c = np.split(row, [state.shape[1], state.shape[1] + len(state)], axis=1)
    one_head = [v[:, None] for v in (x, b, c)]
    return op.scan(
        one_head[0], dt, one_head[1], one_head[2], *(np.array([v]) for v in (a, d, bias)), tuple(limits), state[None]
    )[:, 0]


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("states", [1, 5])
@sweep("width", [*range(1, 35), 64, 100, 130])
def test_definition(index: int, states: int, width: int) -> None:
    row, dt, state = made(width, states, 4)
    for fresh in (True, False):
        ours, theirs = state.copy(), np.zeros_like(state) if fresh else state.copy()
        y, expected = run(index, row, dt, ours, fresh), defined(row, dt, theirs)
        # A state adds a term per token, and y one per state; each term has some roundings, of the step and exp too.
        largest = 4 * NUMBERS[4] * float(np.abs(row).max()) ** 2 + float(np.abs(state).max())
        bound = sum_tolerance("float32", 8, largest) + function_tolerance("float32", largest)
        assert float(np.abs(ours - theirs).max()) <= bound
        assert float(np.abs(y - expected).max()) <= (states + 1) * bound * float(np.abs(row).max())


@pytest.mark.parametrize("states", [7, 37])
@sweep("width", [16, 37, 64])
def test_same_bits_everywhere(states: int, width: int) -> None:
    """On every instruction set, however the sequence is cut; and bfloat16 results are rounded once. The whole has two
    turns of 32 tokens and a part of one; 37 states are two lines of 16 rows and a part of one."""
    row, dt, _ = made(width, states, 70)
    last = np.full((states, width), np.nan, np.float32)
    whole = run(RUNNABLE[-1], row, dt, last, True)
    for index in RUNNABLE:
        state = np.full((states, width), np.nan, np.float32)
        cuts = [(0, 1), (1, 3), (3, 36), (36, 69), (69, 70)]
        parts = [run(index, row[a:b], dt[a:b], state, a == 0) for a, b in cuts]
        assert same_bits(np.concatenate(parts), whole)
        assert same_bits(state, last)
        y = np.zeros(whole.shape, np.uint16)
        _testing.run_state_space_scan(index, row, dt, state, y, NUMBERS, True)
        assert same_bits(y, to_bfloat16_bits(whole))


@pytest.mark.parametrize("index", KERNELS)
def test_every_size_of_step(index: int) -> None:
    """softplus from where exp vanishes to where it overflows: with c = 1 and b = x = 1, y is the step."""
    dt = np.linspace(-90, 90, 20_001, dtype=np.float32)
    for value, exact in zip(dt[::40], np.logaddexp(0.0, dt.astype(np.float64))[::40], strict=True):
        y = np.zeros((1, 1), np.float32)
        state = np.zeros((1, 1), np.float32)
        numbers = [-1.0, 0.0, 0.0, 0.0, op.MAX_STEP]
        _testing.run_state_space_scan(index, np.ones((1, 3), np.float32), value.reshape(1, 1), state, y, numbers, True)
        assert abs(float(y[0, 0]) - exact) <= function_tolerance("float32", exact) + np.finfo(np.float32).tiny


def test_operands_that_do_not_fit() -> None:
    x, dt, b = (Value(name, "float32", (1, "seq", n)) for name, n in (("x", 16), ("dt", 4), ("b", 6)))
    vectors = [Value(name, "float32", (4,)) for name in ("a", "d", "dt_bias")]
    attrs = {"heads": 4, "groups": 2, "dt_min": 0.0, "dt_max": 1.0}
    assert op.infer([x, dt, b, b, *vectors], attrs) == [("float32", (1, "seq", 16))]
    with pytest.raises(GraphError, match=r"a, d and dt_bias must be \[2\]"):
        op.infer([x, dt, b, b, *vectors], {**attrs, "heads": 2})
    with pytest.raises(GraphError, match="x, dt, b and c must be"):
        op.infer([x, dt, b, x, *vectors], attrs)
