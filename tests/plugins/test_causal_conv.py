"""The causal_conv kernels against their numpy definition, and the bits of a sequence that is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import function_tolerance, sum_tolerance

from support.made_matmul import same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.ir.state_cache import StateCache
from tensorwright.plugins.causal_conv import carried, op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.causal_conv_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(TABLE) if runnable]


def made(channels: int, width: int, tokens: int) -> tuple[np.ndarray, ...]:
    """x [tokens, C], w [W, C], bias [1, C] and the state before x, [W - 1, C]."""
    draw = np.random.default_rng(channels * 100 + width).standard_normal
    shapes = ((tokens, channels), (width, channels), (1, channels), (width - 1, channels))
    return tuple(draw(shape).astype(np.float32) for shape in shapes)


def run(
    index: int, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, state: np.ndarray, **how: object
) -> np.ndarray:
    y = np.full(x.shape, np.nan, np.float32)
    _testing.run_causal_conv(index, x, w, bias, state, y, **how)
    return y


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("width", [1, 3, 4, 16])
@sweep("channels", [*range(1, 34), 100])
def test_definition(index: int, width: int, channels: int) -> None:
    x, w, bias, state = made(channels, width, 5)
    for activation in (0, 1):
        for begins in (True, False):
            after = state.copy()
            y = run(index, x, w, bias, after, fresh=begins, activation=activation)
            before = np.zeros_like(state) if begins else state
            expected = op.convolve(x, w, bias[0], op.ACTIVATIONS[activation], before)
            terms = width * float(np.abs(w).max()) * float(np.abs(x).max()) + 4
            bound = sum_tolerance("float32", width + 1, terms) + function_tolerance("float32", terms)
            assert float(np.abs(y - expected).max()) <= bound
            assert same_bits(after, np.concatenate([before, x])[len(x) :])


@pytest.mark.parametrize("width", [2, 4])
def test_same_bits_everywhere(width: int) -> None:
    """On every instruction set, with and without a bias, however the sequence is cut."""
    x, w, bias, _ = made(37, width, 9)
    for used in (bias, None):
        whole = run(RUNNABLE[-1], x, w, used, np.full((width - 1, 37), np.nan, np.float32), activation=1)
        for index in RUNNABLE:
            state = np.full((width - 1, 37), np.nan, np.float32)
            cuts = [(0, 1), (1, 3), (3, 8), (8, 9)]
            parts = [run(index, x[a:b], w, used, state, fresh=a == 0, activation=1) for a, b in cuts]
            assert same_bits(np.concatenate(parts), whole)


def test_bfloat16_results_are_rounded_once() -> None:
    x, w, bias, state = made(37, 3, 4)
    wide = run(RUNNABLE[-1], x, w, bias, state.copy(), fresh=False)
    for index in RUNNABLE:
        y = np.zeros(x.shape, np.uint16)
        _testing.run_causal_conv(index, x, w, bias, state.copy(), y, fresh=False)
        assert same_bits(y, to_bfloat16_bits(wide))


def test_a_ragged_batch_is_each_sequence_alone() -> None:
    """The carried op, in two steps, against the op of one sequence."""
    x, w, bias, _ = made(6, 3, 9)
    attrs = {"activation": "silu"}
    first, second = (op.reference([part[None], w.T, bias[0]], attrs, "float32")[0][0] for part in (x[:5], x[5:]))
    steps = [(np.concatenate([x[:2], x[5:8]]), [0, 2, 5], [2, 3]), (np.concatenate([x[2:5], x[8:]]), [0, 3, 4], [5, 4])]
    states, parts = StateCache(), []
    for rows, starts, lengths in steps:
        batch = [np.array(v, np.int32) for v in (starts, lengths, [1, 0])]
        y, states = carried.reference([rows, *batch, states, w, bias[0]], {**attrs, "state": 0}, "float32")
        parts.append(y)
    assert same_bits(np.concatenate([parts[0][:2], parts[1][:3]]), first)
    assert same_bits(np.concatenate([parts[0][2:], parts[1][3:]]), second)


def test_operands_that_do_not_fit() -> None:
    x, w = Value("x", "float32", (1, "seq", 8)), Value("w", "float32", (8, 3))
    assert op.infer([x, w], {"activation": "none"}) == [("float32", (1, "seq", 8))]
    with pytest.raises(GraphError, match="activation must be one of none, silu"):
        op.infer([x, w], {"activation": "relu"})
    with pytest.raises(GraphError, match=r"must be \[1, S, C\] and \[C, W\]"):
        op.infer([x, Value("w", "float32", (3, 8))], {"activation": "none"})
    with pytest.raises(GraphError, match=r"bias must be \[8\]"):
        op.infer([x, w, Value("b", "float32", (3,))], {"activation": "none"})
