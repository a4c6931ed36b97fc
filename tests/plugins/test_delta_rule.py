"""The delta_rule kernels against their numpy definition, and the bits of a sequence that is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import function_tolerance, sum_tolerance

from support.made_matmul import same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.delta_rule import op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.delta_rule_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(TABLE) if runnable]
NUMBERS = [-0.8, 1.0]
"""a and beta_scale."""


def made(keys: int, width: int, tokens: int, decays: int = 1) -> tuple[np.ndarray, ...]:
    """Rows [tokens, 2 K + P], dt and beta [tokens, decays + 1] and a state [K, P]."""
    draw = np.random.default_rng(width * 100 + keys).standard_normal
    shapes = ((tokens, 2 * keys + width), (tokens, decays + 1), (keys, width))
    row, numbers, state = (draw(shape).astype(np.float32) for shape in shapes)
    return row, numbers, state


def run(index: int, row: np.ndarray, numbers: np.ndarray, state: np.ndarray, fresh: bool) -> np.ndarray:
    y = np.full((len(row), state.shape[1]), np.nan, np.float32)
    _testing.run_delta_rule(index, row, numbers, state, y, NUMBERS, fresh)
    return y


def defined(row: np.ndarray, numbers: np.ndarray, state: np.ndarray) -> np.ndarray:
    a, scale = (np.float32(number) for number in NUMBERS)
    q, k, v = (part[:, None] for part in np.split(row, [len(state), 2 * len(state)], axis=1))
    g = a * np.logaddexp(0.0, numbers[:, None, :-1].astype(np.float64))
    rate = scale / (1.0 + np.exp(-numbers[:, -1:].astype(np.float64)))
    return op.advance(q, k, v, g, rate, state[None])[:, 0]


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("keys", [1, 5, 16, 20])
@pytest.mark.parametrize("each", [False, True], ids=["one decay", "a decay for each element"])
@sweep("width", [*range(1, 35), 64, 100])
def test_definition(index: int, keys: int, width: int, each: bool) -> None:
    row, numbers, state = made(keys, width, 4, keys if each else 1)
    for fresh in (True, False):
        ours, theirs = state.copy(), np.zeros_like(state) if fresh else state.copy()
        y, expected = run(index, row, numbers, ours, fresh), defined(row, numbers, theirs)
        # Keys have length 1, so a token reads at most the norm of a column, adds at most that and v, and decays it.
        largest = (float(np.abs(state).max()) * np.sqrt(keys) + float(np.abs(row).max())) * 2
        bound = 4 * (sum_tolerance("float32", keys + 4, largest) + function_tolerance("float32", largest))
        assert float(np.abs(ours - theirs).max()) <= bound
        assert float(np.abs(y - expected).max()) <= bound * np.sqrt(keys)


@pytest.mark.parametrize("decays", [1, 20])
@sweep("width", [16, 37, 64])
def test_same_bits_everywhere(width: int, decays: int) -> None:
    """On every instruction set, however the sequence is cut; and bfloat16 results are rounded once."""
    row, numbers, _ = made(20, width, 9, decays)
    last = np.full((20, width), np.nan, np.float32)
    whole = run(RUNNABLE[-1], row, numbers, last, True)
    for index in RUNNABLE:
        state = np.full((20, width), np.nan, np.float32)
        cuts = [(0, 1), (1, 3), (3, 8), (8, 9)]
        parts = [run(index, row[a:b], numbers[a:b], state, a == 0) for a, b in cuts]
        assert same_bits(np.concatenate(parts), whole)
        assert same_bits(state, last)
        y = np.zeros(whole.shape, np.uint16)
        _testing.run_delta_rule(index, row, numbers, state, y, NUMBERS, True)
        assert same_bits(y, to_bfloat16_bits(whole))


def test_equal_decays_are_one_decay() -> None:
    row, numbers, state = made(20, 37, 9)
    results = []
    for each in (numbers, np.concatenate([np.repeat(numbers[:, :1], 20, axis=1), numbers[:, 1:]], axis=1)):
        after = state.copy()
        results += [run(RUNNABLE[0], row, each, after, False), after]
    assert same_bits(results[0], results[2])
    assert same_bits(results[1], results[3])


def test_operands_that_do_not_fit() -> None:
    q, v, g = (Value(name, "float32", (1, "seq", n)) for name, n in (("q", 12), ("v", 16), ("g", 4)))
    attrs = {"key_heads": 2, "heads": 4}
    each = Value("each", "float32", (1, "seq", 24))
    assert op.infer([q, q, v, g, g], attrs) == op.infer([q, q, v, each, g], attrs) == [("float32", (1, "seq", 16))]
    for wrong, more in (
        ([q, v, v, g, g], {}),
        ([q, q, v, g, v], {}),
        ([q, q, v, q, g], {}),
        ([q, q, v, each, each], {}),
        ([q, q, v, g, g], {"key_heads": 3}),
    ):
        with pytest.raises(GraphError, match="q and k must be"):
            op.infer(wrong, {**attrs, **more})
