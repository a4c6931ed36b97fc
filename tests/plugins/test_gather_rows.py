"""gather_rows: what the numpy definition means and refuses. Its C++ runs in tests/runtime/core/test_executor.py."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.gather_rows import op

pytestmark = pytest.mark.computes


def test_takes_rows_in_the_order_asked_for() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (y,) = op.reference([x, np.array([3, 0, 3], np.int32)], {}, "float32")
    assert y.tolist() == [x[3].tolist(), x[0].tolist(), x[3].tolist()]


def test_no_rows() -> None:
    (y,) = op.reference([np.ones((4, 3), np.float32), np.zeros(0, np.int32)], {}, "float32")
    assert y.shape == (0, 3)


def test_infer() -> None:
    x = Value("x", "bfloat16", ("tokens", 8))
    assert op.infer([x, Value("rows", "int32", ("rows",))], {}) == [("bfloat16", ("rows", 8))]
    with pytest.raises(GraphError, match="must be a vector"):
        op.infer([x, Value("rows", "int32", ("rows", 1))], {})
