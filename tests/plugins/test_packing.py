"""The packed layout: its definition element by element, its inverse, and the C++ packer that must agree with it."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.engine_format.weight_formats import LANES
from tensorwright.plugins.packing import pack_panels, panel_bytes, panels_of, unpack_panels

pytestmark = pytest.mark.computes

SHAPES = [(1, 1), (15, 2), (16, 3), (17, 4), (33, 7), (48, 64)]
STORAGE = {"float32": np.float32, "bfloat16": np.uint16}
NUMBERS = {"float32": 0, "bfloat16": 1}  # tw_dtype


def matrix(n: int, k: int, dtype: str) -> np.ndarray:
    draw = np.random.default_rng(n * 100 + k)
    return draw.integers(1, 2**16, (n, k)).astype(STORAGE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_element_is_where_the_layout_says(n, k, dtype):
    rows = matrix(n, k, dtype)
    packed = pack_panels(rows, dtype)
    assert packed.shape == (panels_of(n), panel_bytes(dtype, k))
    elements = packed.reshape(-1).view(STORAGE[dtype])
    group = 4 // rows.itemsize
    per_panel = panel_bytes(dtype, k) // rows.itemsize
    expected = np.zeros(panels_of(n) * per_panel, STORAGE[dtype])
    for i in range(n):
        for j in range(k):
            place = i // LANES * per_panel + j // group * LANES * group + i % LANES * group + j % group
            expected[place] = rows[i, j]
    np.testing.assert_array_equal(elements, expected)
    np.testing.assert_array_equal(unpack_panels(packed, dtype, n, k), rows)


def test_views_and_wrong_types():
    rows = matrix(20, 6, "float32")
    np.testing.assert_array_equal(pack_panels(rows.T, "float32"), pack_panels(rows.T.copy(), "float32"))
    with pytest.raises(TypeError, match=r"needs \[n, k\] uint16 for bfloat16"):
        pack_panels(rows, "bfloat16")
    with pytest.raises(TypeError, match=r"\[n, k\]"):
        pack_panels(rows[0], "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_cpp_packer_agrees(n, k, dtype):
    from tensorwright.runtime import _testing

    rows = matrix(n, k, dtype)
    packed = np.asarray(_testing.pack_panels(NUMBERS[dtype], rows))
    np.testing.assert_array_equal(packed.reshape(-1), pack_panels(rows, dtype).reshape(-1))
