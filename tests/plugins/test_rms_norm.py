"""The rms_norm kernels against their numpy definition, and bit for bit against each other."""

from __future__ import annotations

import numpy as np
import pytest

from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.rms_norm import add_rms_norm, op, rms_norm_columns
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.rms_norm_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
WIDTHS = [*range(34), 47, 48, 49, 63, 64, 65, 576, 895, 896]
UNIT = 2.0**-24


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def unaligned(x: np.ndarray, shift: int) -> np.ndarray:
    """A copy with padded rows whose first element lies `shift` elements past an allocation's start."""
    rows, width = x.shape
    whole = np.zeros(rows * (width + 3) + shift, x.dtype)
    view = whole[shift:].reshape(rows, width + 3)[:, :width]
    view[:] = x
    return view


def bound(expected: np.ndarray, width: int) -> np.ndarray:
    """Per output: the sum of squares takes width/16 + 4 roundings, halved by the root; root, division, two products
    and the weight's offset add one each."""
    return np.abs(expected) * ((width / 16 + 4) / 2 + 6) * UNIT + 1e-30


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("width", WIDTHS)
@sweep("offset", [0.0, 1.0])
def test_definition(kernel: int, width: int, offset: float) -> None:
    x, w, y = normal(3, width), normal(width, seed=1), np.full((3, width), np.nan, np.float32)
    _testing.run_rms_norm(kernel, x, w, y, eps=1e-5, weight_offset=offset)
    if width == 0:
        return
    expected = op.normalise(x, w, 1e-5, offset)
    # w + 1 may cancel: its one rounding is relative to 1.
    assert (np.abs(y - expected) <= bound(expected, width) + offset * 4 * UNIT * np.abs(x).max()).all()


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("width", [1, 15, 16, 17, 50, 896])
@sweep("alias", ["none", "x", "residual"])
def test_add_variant_and_its_aliases(kernel: int, width: int, alias: str) -> None:
    x, residual, w = normal(3, width), normal(3, width, seed=1), normal(width, seed=2)
    attrs = {"eps": 1e-6, "weight_offset": 0.0}
    y_expected, sum_expected = add_rms_norm.reference([x, residual, w], attrs, "float32")
    y = np.full((3, width), np.nan, np.float32)
    total = {"none": np.empty_like(x), "x": x, "residual": residual}[alias]
    _testing.run_rms_norm(kernel, x, w, y, residual, total, eps=1e-6)
    np.testing.assert_array_equal(total, sum_expected)
    assert (np.abs(y - y_expected) <= bound(y_expected, width)).all()


@sweep("width", WIDTHS[1:])
@sweep("y_dtype", [np.float32, np.uint16])
@sweep("with_residual", [False, True])
def test_every_kernel_gives_the_same_bits(width: int, y_dtype: type, with_residual: bool) -> None:
    results = []
    for kernel, (_, _, runnable) in enumerate(TABLE):
        if not runnable:
            continue
        x, w = unaligned(normal(4, width), kernel + 1), unaligned(normal(1, width, seed=1), 1)[0]
        y, total = unaligned(np.zeros((4, width), y_dtype), 3), unaligned(np.zeros((4, width), np.float32), 1)
        extra = (unaligned(normal(4, width, seed=2), 2), total) if with_residual else (None, None)
        _testing.run_rms_norm(kernel, x, w, y, *extra, eps=1e-5, weight_offset=1.0)
        results.append((y.copy(), total.copy()))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_alone_gives_the_same_bits(kernel: int) -> None:
    x, w, y = normal(9, 100), normal(100, seed=1), np.zeros((9, 100), np.float32)
    _testing.run_rms_norm(kernel, x, w, y)
    for row in range(9):
        alone = np.zeros((1, 100), np.float32)
        _testing.run_rms_norm(kernel, x[row : row + 1], w, alone)
        np.testing.assert_array_equal(alone[0], y[row])


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_result_is_the_float32_result_rounded(kernel: int) -> None:
    x, w = normal(2, 70), normal(70, seed=1)
    y, bits = np.zeros((2, 70), np.float32), np.zeros((2, 70), np.uint16)
    _testing.run_rms_norm(kernel, x, w, y)
    _testing.run_rms_norm(kernel, x, w, bits)
    np.testing.assert_array_equal(bits, to_bfloat16_bits(y))


@pytest.mark.parametrize("kernel", KERNELS)
def test_zeros_and_large_values(kernel: int) -> None:
    w, y = np.ones(20, np.float32), np.full((1, 20), np.nan, np.float32)
    _testing.run_rms_norm(kernel, np.zeros((1, 20), np.float32), w, y, eps=1e-6)
    assert (y == 0).all()
    _testing.run_rms_norm(kernel, np.full((1, 20), 1e18, np.float32), w, y, eps=1e-6)
    np.testing.assert_allclose(y, 1, rtol=1e-6)


def test_infer_refuses_what_does_not_fit() -> None:
    from tensorwright.ir.graph import Value

    x, w = Value("x", "float32", ("tokens", 8)), Value("w", "float32", (7,))
    with pytest.raises(GraphError, match=r"w must be \[8\]"):
        op.infer([x, w], {})
    with pytest.raises(GraphError, match="residual"):
        add_rms_norm.infer([x, Value("r", "float32", ("tokens", 9)), w], {})


def test_columns_are_normalised_run_by_run_and_the_rest_stays() -> None:
    x, w = normal(3, 11), normal(2, seed=1)
    attrs = {"start": 1, "heads": 3, "eps": 1e-5, "weight_offset": 1.0}
    (y,) = rms_norm_columns.reference([x, w], attrs, "float32")
    for first in (1, 3, 5):
        np.testing.assert_array_equal(
            y[:, first : first + 2], op.normalise(x[:, first : first + 2], w, 1e-5, 1.0).astype(np.float32)
        )
    np.testing.assert_array_equal(y[:, [0, 7, 8, 9, 10]], x[:, [0, 7, 8, 9, 10]])


def test_runs_of_columns_must_lie_in_the_row() -> None:
    x, w = Value("x", "float32", ("tokens", 8)), Value("w", "float32", (3,))
    attrs = {"start": 2, "heads": 2, "eps": 1e-5, "weight_offset": 0.0}
    assert rms_norm_columns.infer([x, w], attrs) == [("float32", ("tokens", 8))]
    with pytest.raises(GraphError, match=r"2 runs of w \[3\] from column 3 on must lie in x"):
        rms_norm_columns.infer([x, w], {**attrs, "start": 3})
