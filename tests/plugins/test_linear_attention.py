"""linear_attention against attention with weights that decay, and the carried form in steps. Its instruction runs the
kernels of state_space_scan, which test_state_space_scan.py tests, with steps of 1."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.ir.state_cache import StateCache
from tensorwright.plugins.linear_attention import carried, op

HEADS, WIDTH, STATES, TOKENS = 2, 5, 3, 7


def made() -> tuple[list[np.ndarray], np.ndarray]:
    """v, k and q of one sequence, and the slopes."""
    draw = np.random.default_rng(1).standard_normal
    columns = (HEADS * WIDTH, HEADS * STATES, HEADS * STATES)
    return [draw((TOKENS, n)).astype(np.float32) for n in columns], np.array([0.3, 0.05], np.float32)


def test_definition() -> None:
    """The sum over earlier positions of q k^T, times what is left after their distance, times v."""
    parts, slopes = made()
    (y,) = op.reference([*(x[None] for x in parts), slopes], {"heads": HEADS}, "float32")
    v, k, q = (x.astype(np.float64).reshape(TOKENS, HEADS, -1) for x in parts)
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :]
    left = np.where(distance >= 0, np.exp(-slopes[:, None, None].astype(np.float64) * distance), 0.0)
    expected = np.einsum("hts,thn,shn,shp->thp", left, q, k, v).reshape(TOKENS, -1)
    np.testing.assert_allclose(y[0], expected, rtol=1e-5, atol=1e-5)


def test_the_carried_op() -> None:
    """Two sequences in two steps, against the op of one sequence."""
    parts, slopes = made()
    row = np.concatenate(parts, axis=1)
    attrs, states, rows = {"state": 0, "heads": HEADS, "states": STATES}, StateCache(), {0: [], 1: []}
    for cuts in ([(0, 4), (0, 2)], [(4, 7), (2, 7)]):
        step = np.concatenate([row[a:b] for a, b in cuts])
        counts = [b - a for a, b in cuts]
        batch = (np.array([0, counts[0], sum(counts)]), np.array([b for _, b in cuts]), np.array([3, 1]))
        y, states = carried.reference([step, *batch, states, slopes], attrs, "float32")
        for seq, part in enumerate(np.split(y, [counts[0]])):
            rows[seq].append(part)
    (whole,) = op.reference([*(x[None] for x in parts), slopes], {"heads": HEADS}, "float32")
    for seq in rows:
        assert np.array_equal(np.concatenate(rows[seq]), whole[0])


def test_operands_that_do_not_fit() -> None:
    v, k = (Value(name, "float32", (1, "seq", n)) for name, n in (("v", 10), ("k", 6)))
    slopes = Value("slopes", "float32", (2,))
    assert op.infer([v, k, k, slopes], {"heads": 2}) == [("float32", (1, "seq", 10))]
    with pytest.raises(GraphError, match="v must be"):
        op.infer([v, k, v, slopes], {"heads": 2})
    with pytest.raises(GraphError, match=r"slopes \[5\]"):
        op.infer([v, k, k, slopes], {"heads": 5})
    with pytest.raises(GraphError, match="all operands must be present"):
        op.infer([v, k, None, slopes], {"heads": 2})
    row, batch = Value("row", "float32", ("tokens", 22)), [None, None, None, Value("s", "state", ())]
    attrs = {"heads": 2, "states": 3}
    assert carried.infer([row, *batch, slopes], attrs)[0] == ("float32", ("tokens", 10))
    with pytest.raises(GraphError, match="row must be"):
        carried.infer([row, *batch, slopes], {"heads": 2, "states": 6})
    with pytest.raises(GraphError, match="all operands must be present"):
        carried.infer([row, *batch, None], attrs)
