"""add: what the numpy definition means and refuses. Its C++ runs in tests/runtime/core/test_executor.py."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.plugins.add import op

pytestmark = pytest.mark.computes


def test_adds_in_float32() -> None:
    a = np.array([[1.0, 2.0**24]], np.float32)
    b = np.array([[2.0, 1.0]], np.float32)
    (y,) = op.reference([a, b], {}, "bfloat16")
    assert y.dtype == np.float32
    assert y.tolist() == [[3.0, 2.0**24]]  # 2^24 + 1 is a tie in float32 and rounds to even
