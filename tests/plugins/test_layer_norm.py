"""The layer_norm kernels against their numpy definition, and bit for bit against each other."""

from __future__ import annotations

import numpy as np
import pytest

from support.sweep import sweep
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.ir.graph import Value
from tensorwright.plugins.layer_norm import add_layer_norm, layer_norm_columns, op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

TABLE = _testing.layer_norm_table()
KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(TABLE)
]
WIDTHS = [*range(34), 47, 48, 49, 63, 64, 65, 576, 895, 896]
UNIT = 2.0**-24


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers whose mean is not nothing."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32) + np.float32(0.7)


def unaligned(x: np.ndarray, shift: int) -> np.ndarray:
    """A copy with padded rows whose first element lies `shift` elements past an allocation's start."""
    rows, width = x.shape
    whole = np.zeros(rows * (width + 3) + shift, x.dtype)
    view = whole[shift:].reshape(rows, width + 3)[:, :width]
    view[:] = x
    return view


def bound(x: np.ndarray, w: np.ndarray, expected: np.ndarray, eps: float) -> np.ndarray:
    """Per output. Sums take n = width/16 + 4 roundings each. The mean is off by at most n + 1 of |x|'s mean, and the
    difference rounds once; both are divided by the deviation. What follows (half of the variance's roundings, root,
    division, two products, the weight's offset) is relative to the product; the last sum to the result."""
    width = x.shape[-1]
    n = width / 16 + 4
    deviation = np.sqrt(x.astype(np.float64).var(-1, keepdims=True) + eps)
    centre = (n + 1) * np.abs(x).mean(-1, keepdims=True) + np.abs(x)
    # A wrong mean shifts the variance by its square only, which is nothing beside the rest, unless all x are one value.
    product = (np.abs(x - x.mean(-1, keepdims=True)) / deviation) * ((n / 2) + 7)
    return UNIT * (np.abs(w) * (centre / deviation + product) + np.abs(expected)) * 1.01


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("width", WIDTHS)
@sweep("offset", [0.0, 1.0])
@sweep("with_bias", [False, True])
def test_definition(kernel: int, width: int, offset: float, with_bias: bool) -> None:
    x, w, y = normal(3, width), normal(width, seed=1), np.full((3, width), np.nan, np.float32)
    b = normal(width, seed=2) if with_bias else None
    _testing.run_layer_norm(kernel, x, w, b, y, eps=1e-5, weight_offset=offset)
    if width == 0:
        return
    expected = op.normalise(x, w, b, 1e-5, offset)
    assert (np.abs(y - expected) <= bound(x, np.abs(w) + offset, expected, 1e-5)).all()


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("width", [2, 15, 16, 17, 50, 896])
@sweep("alias", ["none", "x", "residual"])
def test_add_variant_and_its_aliases(kernel: int, width: int, alias: str) -> None:
    x, residual, w, b = normal(3, width), normal(3, width, seed=1), normal(width, seed=2), normal(width, seed=3)
    attrs = {"eps": 1e-6, "weight_offset": 0.0}
    y_expected, sum_expected = add_layer_norm.reference([x, residual, w, b], attrs, "float32")
    y = np.full((3, width), np.nan, np.float32)
    total = {"none": np.empty_like(x), "x": x, "residual": residual}[alias]
    _testing.run_layer_norm(kernel, x, w, b, y, residual, total, eps=1e-6)
    np.testing.assert_array_equal(total, sum_expected)
    assert (np.abs(y - y_expected) <= bound(sum_expected, w, y_expected, 1e-6)).all()


@pytest.mark.parametrize("kernel", KERNELS)
@sweep("width", [1, 16, 31])
def test_in_place(kernel: int, width: int) -> None:
    x, w, apart = normal(3, width), normal(width, seed=1), np.zeros((3, width), np.float32)
    _testing.run_layer_norm(kernel, x, w, None, apart)
    _testing.run_layer_norm(kernel, x, w, None, x)
    np.testing.assert_array_equal(x, apart)


@sweep("width", WIDTHS[1:])
@sweep("y_dtype", [np.float32, np.uint16])
@sweep("with_residual", [False, True])
def test_every_kernel_gives_the_same_bits(width: int, y_dtype: type, with_residual: bool) -> None:
    results = []
    for kernel, (_, _, runnable) in enumerate(TABLE):
        if not runnable:
            continue
        x, w = unaligned(normal(4, width), kernel + 1), unaligned(normal(1, width, seed=1), 1)[0]
        b = unaligned(normal(1, width, seed=3), 2)[0]
        y, total = unaligned(np.zeros((4, width), y_dtype), 3), unaligned(np.zeros((4, width), np.float32), 1)
        extra = (unaligned(normal(4, width, seed=2), 2), total) if with_residual else (None, None)
        _testing.run_layer_norm(kernel, x, w, b, y, *extra, eps=1e-5, weight_offset=1.0)
        results.append((y.copy(), total.copy()))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_alone_gives_the_same_bits(kernel: int) -> None:
    x, w, y = normal(9, 100), normal(100, seed=1), np.zeros((9, 100), np.float32)
    _testing.run_layer_norm(kernel, x, w, w, y)
    for row in range(9):
        alone = np.zeros((1, 100), np.float32)
        _testing.run_layer_norm(kernel, x[row : row + 1], w, w, alone)
        np.testing.assert_array_equal(alone[0], y[row])


@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_result_is_the_float32_result_rounded(kernel: int) -> None:
    x, w = normal(2, 70), normal(70, seed=1)
    y, bits = np.zeros((2, 70), np.float32), np.zeros((2, 70), np.uint16)
    _testing.run_layer_norm(kernel, x, w, w, y)
    _testing.run_layer_norm(kernel, x, w, w, bits)
    np.testing.assert_array_equal(bits, to_bfloat16_bits(y))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_mean_far_from_zero_costs_no_digits(kernel: int) -> None:
    """The variance is that of the centred row: mean(x^2) - mean(x)^2 would have no digits left here."""
    x = np.tile(np.float32([4096, 4098]), (1, 16))
    y = np.zeros_like(x)
    _testing.run_layer_norm(kernel, x, np.ones(32, np.float32), None, y, eps=1e-12)
    np.testing.assert_allclose(y, np.tile([-1.0, 1.0], (1, 16)), rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_values_give_the_bias(kernel: int) -> None:
    w, b, y = np.ones(20, np.float32), normal(20), np.full((1, 20), np.nan, np.float32)
    for value in (0.0, 3.0):
        _testing.run_layer_norm(kernel, np.full((1, 20), value, np.float32), w, b, y, eps=1e-6)
        np.testing.assert_array_equal(y[0], b)


def test_the_binding_refuses_shapes_that_differ() -> None:
    x, w, scalar = normal(2, 8), normal(8), len(_testing.layer_norm_table()) - 1
    with pytest.raises(InvalidOptionError, match="x's columns"):
        _testing.run_layer_norm(scalar, x, w[:7], None, x)
    with pytest.raises(InvalidOptionError, match="x's shape"):
        _testing.run_layer_norm(scalar, x, w, None, normal(2, 7))
    with pytest.raises(InvalidOptionError, match="come together"):
        _testing.run_layer_norm(scalar, x, w, None, x, x)


def test_infer_refuses_what_does_not_fit() -> None:
    x, w = Value("x", "float32", ("tokens", 8)), Value("w", "float32", (7,))
    with pytest.raises(GraphError, match=r"w must be the last one or two dimensions of x .*, got \[7\]"):
        op.infer([x, w], {})
    eight = Value("w", "float32", (8,))
    assert op.infer([x, eight, None], {}) == [("float32", ("tokens", 8))]
    with pytest.raises(GraphError, match=r"b must have w's shape \[8\], got \[7\]"):
        op.infer([x, eight, w], {})
    with pytest.raises(GraphError, match="residual"):
        add_layer_norm.infer([x, Value("r", "float32", ("tokens", 9)), eight], {})


def test_every_head_may_have_its_own_weights() -> None:
    x, w, b = normal(2, 3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2)
    assert op.infer([Value("x", "float32", ("tokens", 3, 4)), Value("w", "float32", (3, 4))], {})
    (y,) = op.reference([x, w, b], {"eps": 1e-5, "weight_offset": 0.0}, "float32")
    for head in range(3):
        alone = op.normalise(x[:, head], w[head], b[head], 1e-5, 0.0)
        np.testing.assert_array_equal(y[:, head], alone.astype(np.float32))


@pytest.mark.parametrize("shared", [False, True])
def test_columns_are_normalised_run_by_run_and_the_rest_stays(shared: bool) -> None:
    x, w = normal(3, 11), normal(2, seed=1) if shared else normal(3, 2, seed=1)
    attrs = {"start": 1, "heads": 3, "width": 2, "eps": 1e-5, "weight_offset": 1.0}
    (y,) = layer_norm_columns.reference([x, w, w], attrs, "float32")
    for head, first in enumerate((1, 3, 5)):
        own = w if shared else w[head]
        alone = op.normalise(x[:, first : first + 2], own, own, 1e-5, 1.0)
        np.testing.assert_array_equal(y[:, first : first + 2], alone.astype(np.float32))
    np.testing.assert_array_equal(y[:, [0, 7, 8, 9, 10]], x[:, [0, 7, 8, 9, 10]])
    np.testing.assert_array_equal(layer_norm_columns.reference([x, w.ravel(), w.ravel()], attrs, "float32"), [y])


def test_runs_of_columns_must_lie_in_the_row() -> None:
    x, w = Value("x", "float32", ("tokens", 8)), Value("w", "float32", (3,))
    attrs = {"start": 2, "heads": 2, "width": 3, "eps": 1e-5, "weight_offset": 0.0}
    assert layer_norm_columns.infer([x, w], attrs) == [("float32", ("tokens", 8))]
    for change in ({"start": 3}, {"heads": 0}, {"width": 2}, {"start": -1}):
        with pytest.raises(GraphError, match=r"columns from .* on, with w \[3\], must lie in x"):
            layer_norm_columns.infer([x, w], {**attrs, **change})
    with pytest.raises(GraphError, match="b must have w's shape"):
        layer_norm_columns.infer([x, w, Value("b", "float32", (2, 3))], attrs)
