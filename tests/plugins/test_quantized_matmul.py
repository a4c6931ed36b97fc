"""The quantized matmul: packer, activation rounding and kernels against quantize.py, which defines their bits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from support.made_matmul import offset_rows, same_bits
from support.made_quantized import (
    NAMES,
    PACKED,
    SCALAR,
    QuantizedMatmul,
    kernels,
    number,
    pack,
    quantize_rows,
    row_kernels,
    weight_kernels,
)
from support.sweep import sweep
from tensorwright.engine_format.weight_formats import MAX_WHOLE_ROW, parse_format
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.quantized_matmul import linear, op, quantize
from tensorwright.plugins.quantized_matmul.sparsity import pruned
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes

PANEL = 16
RNG = np.random.default_rng(5)


def matrix(rows: int, k: int) -> np.ndarray:
    """Rows of different sizes, one of zeros, one outlier."""
    w = np.random.default_rng([rows, k]).standard_normal((rows, k)).astype(np.float32)
    w *= np.exp(np.linspace(-8, 3, rows, dtype=np.float32))[:, None]
    w[rows // 2] = 0
    w[0, k // 2] = 100
    return w


ROWS = (1, 7, 8, 9, 15, 16, 17, 33)
DEPTHS = (1, 4, 5, 8, 9, 31, 32, 33, 127, 128, 129, 300)
SIZES = sorted({(rows, k) for rows in ROWS for k in (9, 129)} | {(rows, k) for rows in (9, 33) for k in DEPTHS})
"""Rows and columns that a packer gets. Rows are lanes and columns are steps of a loop, so not each goes with each."""


@lru_cache(maxsize=4096)
def defined_panels(name: str, rows: int, k: int) -> np.ndarray:
    """The panels of `matrix(rows, k)`, once for all kernels: the definition takes much longer than they take."""
    fmt = parse_format(name)
    return quantize.pack(quantize.quantize_weights(matrix(rows, k), fmt), fmt, k).reshape(-1)


@lru_cache(maxsize=len(PACKED))
def many_groups(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights of some thousand groups, the first of them with ties, and their panels: once for all kernels, too."""
    fmt, w = parse_format(name), np.random.default_rng(3).standard_normal((64, 1024)).astype(np.float32)
    w[:8] = np.rint(w[:8] * 4) / 4
    return w, quantize.pack(quantize.quantize_weights(w, fmt), fmt, 1024).reshape(-1)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("index", weight_kernels())
class TestPacker:
    @sweep("size", SIZES)
    def test_bytes_are_those_of_the_definition(self, name: str, index: int, size: tuple[int, int]) -> None:
        got = pack(matrix(*size), parse_format(name), index)[0]
        assert same_bits(got, defined_panels(name, *size))

    def test_bytes_of_many_groups(self, name: str, index: int) -> None:
        """Enough that ties and roundings of every kind occur."""
        w, panels = many_groups(name)
        assert same_bits(pack(w, parse_format(name), index)[0], panels)

    def test_vanishing_weights_are_zero(self, name: str, index: int) -> None:
        fmt, w = parse_format(name), np.full((16, 64), 2.0**-121, np.float32)
        w[1] = -0.0
        want = quantize.pack(quantize.quantize_weights(w, fmt), fmt, 64).reshape(-1)
        assert same_bits(pack(w, fmt, index)[0], want)

    @sweep("offset", [0, 1, 3])
    def test_bfloat16_source_and_strides(self, name: str, index: int, offset: int) -> None:
        fmt, bits = parse_format(name), to_bfloat16_bits(matrix(20, 70))
        got = pack(offset_rows(bits, offset, offset), fmt, index)[0]
        assert same_bits(got, pack(from_bfloat16_bits(bits), fmt, index)[0])

    def test_the_error_it_reports(self, name: str, index: int) -> None:
        fmt, w = parse_format(name), matrix(20, 90)
        lost = w - quantize.dequantized(quantize.quantize_weights(w, fmt), 90)
        error, weight, finite = reported = pack(w, fmt, index)[1]
        assert reported == pack(w, fmt, SCALAR)[1]
        assert finite
        assert error == pytest.approx(float((lost.astype(float) ** 2).sum()), rel=1e-5)
        assert weight == pytest.approx(float((w.astype(float) ** 2).sum()), rel=1e-5)

    @sweep("value", [np.inf, -np.inf, np.nan])
    @sweep("at", [(19, 89), (0, 0), (8, 31)])
    def test_a_weight_that_is_no_number_is_told(self, name: str, index: int, value: float, at: tuple[int, int]) -> None:
        w = matrix(20, 90)
        w[at] = value
        assert pack(w, parse_format(name), index)[1][2] is False

    def test_range_search_beats_the_plain_scale(self, name: str, index: int) -> None:
        fmt, w = parse_format(name), np.random.default_rng(5).standard_normal((32, 256)).astype(np.float32)
        if fmt.has_steps:  # Only the row's scale is plain. Offsets let 4 bits lose less than int4 does.
            assert pack(w, fmt, index)[1][0] <= 0.95 * pack(w, parse_format(f"int4:g{fmt.group}"), index)[1][0]
            return
        kept = pruned(w) if fmt.sparse else w
        groups = quantize.in_groups(kept, fmt)
        plain = np.abs(groups).max(axis=-1) / np.float32(fmt.largest)
        zeros = quantize.zero_points(groups, fmt) if fmt.has_zeros else None
        if fmt.kind != "int":
            plain = quantize.candidates(groups, fmt)[0]
        elif fmt.group:
            plain = quantize.narrowed(plain, fmt)
        naive = quantize.squared_error(groups, quantize.rounded(groups, plain, fmt, zeros), plain).sum()
        # With 8 bits there is little to win: the plain scale is the first candidate, so it is never worse.
        won = 1 + 1e-5 if fmt.bits == 8 else 0.97 if fmt.has_zeros else 0.95
        lost = float(np.square(w - kept, dtype=float).sum())
        assert pack(w, fmt, index)[1][0] - lost <= naive * won + 1e-9 * lost


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", row_kernels())
class TestQuantizeRows:
    @sweep("k", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200])
    def test_bits(self, name: str, index: int, k: int) -> None:
        fmt, x = parse_format(name), matrix(4, k)
        want = quantize.quantize_activations(x, fmt)
        q, scale, total = quantize_rows(x, fmt, index)
        assert same_bits(q, want.values.reshape(4, -1))
        assert same_bits(scale.T, want.scales)
        # What unsigned weights have too much.
        factor = (
            -1
            if fmt.has_zeros
            else {"int4": -8, "int3": -4, "int2": -2, "int8": -128, "mxfp4": -12, "w4a8": -128}[fmt.dtype]
        )
        assert same_bits(total.T, factor * want.values.astype(np.int32).sum(axis=-1, dtype=np.int32))

    def test_bfloat16_and_strides(self, name: str, index: int) -> None:
        fmt, bits = parse_format(name), to_bfloat16_bits(matrix(5, 77))
        wide = quantize_rows(from_bfloat16_bits(bits), fmt, index)
        for got, want in zip(quantize_rows(offset_rows(bits, 3, 5), fmt, index), wide, strict=True):
            assert same_bits(got, want)

    @sweep("value", [np.inf, -np.inf, np.nan])
    def test_what_is_no_number_makes_its_group_nan(self, name: str, index: int, value: float) -> None:
        fmt, x = parse_format(name), matrix(3, 150)
        x[1, 149] = value
        q, scale, _ = quantize_rows(x, fmt, index)
        assert np.isnan(scale[-1, 1])
        assert np.isfinite(scale[:, [0, 2]]).all()
        assert (q[1, (fmt.groups(150) - 1) * fmt.stored_group(150) :] == 0).all()

    def test_vanishing_magnitudes_are_zero(self, name: str, index: int) -> None:
        x = np.full((1, 64), 2.0**-125, np.float32)
        q, scale, total = quantize_rows(x, parse_format(name), index)
        assert not q.any()
        assert not scale.any()
        assert not total.any()


@pytest.mark.parametrize(("name", "index"), kernels())
class TestKernel:
    @sweep("n", [*range(1, PANEL + 2), 31, 32, 33, 47, 48, 63, 64, 65, 81])
    def test_every_width(self, name: str, index: int, n: int) -> None:
        QuantizedMatmul(name, 3, n, 40).check(index)

    @sweep("k", [*range(1, 12), 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 257])
    def test_every_depth(self, name: str, index: int, k: int) -> None:
        QuantizedMatmul(name, 2, 17, k).check(index)

    @sweep("rows", [*range(1, 20), 24, 64, 97])
    def test_every_number_of_rows(self, name: str, index: int, rows: int) -> None:
        QuantizedMatmul(name, rows, 5 * PANEL + 3, 70).check(index)

    @sweep("epilogue", [0, 1])
    @sweep("y_dtype", [0, 1])
    @pytest.mark.parametrize(("bias", "residual"), [(True, False), (False, True), (True, True)])
    def test_epilogues(self, name: str, index: int, epilogue: int, y_dtype: int, bias: bool, residual: bool) -> None:
        QuantizedMatmul(name, 7, 5 * PANEL + 5, 66, epilogue, bias, residual, y_dtype).check(index, offset=1, pad=3)

    @sweep("offset", [1, 3, 7, 15])
    def test_misaligned_buffers(self, name: str, index: int, offset: int) -> None:
        made = QuantizedMatmul(name, 5, 37, 100, bias=True, residual=True)
        assert same_bits(made.run(index, offset=offset, pad=offset), made.run(index))

    def test_panel_ranges_join(self, name: str, index: int) -> None:
        made = QuantizedMatmul(name, 8, 9 * PANEL, 65)
        whole, parts = made.run(index), np.full((8, 9 * PANEL), np.nan, np.float32)
        for begin, end in ((0, 1), (1, 6), (6, 9)):
            made.run(index, panels=(begin, end), y=parts)
        assert same_bits(parts, whole)

    @sweep("rows", [2, 6, 7, 13, 101])
    def test_a_row_alone_is_the_row_in_company(self, name: str, index: int, rows: int) -> None:
        made = QuantizedMatmul(name, rows, 6 * PANEL + 1, 130, 1, bias=True)
        together = made.run(index)
        for row in sorted({0, rows // 2, rows - 1}):
            assert same_bits(made.run(index, rows=slice(row, row + 1)), together[row : row + 1])

    def test_sums_in_blocks(self, name: str, index: int) -> None:
        """Deep enough that many rows cut K, and one row does not."""
        made = QuantizedMatmul(name, 21, 4 * PANEL, 20000 if index == 0 else 700)
        together = made.run(index)
        assert same_bits(made.run(index, rows=slice(3, 4)), together[3:4])

    def test_the_largest_and_the_least_codes(self, name: str, index: int) -> None:
        """Quantizing here never gives -128. Codes that a checkpoint holds may. A code with a zero point is at most as
        far from it as the largest code."""
        case = QuantizedMatmul(name, 3, 32, 200)
        fmt = case.fmt
        high = fmt.largest
        low = -1 - high if fmt.kind in ("int", "steps") else -high
        case.x = np.where(np.arange(200) < 150, np.float32(1), np.float32(-1)) * np.ones((3, 1), np.float32)
        case.q, case.scale, case.sum = quantize_rows(case.x, fmt)
        values = np.full((32, fmt.groups(200), fmt.stored_group(200)), low, np.int16)
        values[1::2] = high
        if fmt.sparse:
            values[..., 2::4] = values[..., 3::4] = 0
        zeros = np.zeros(values.shape[:2], np.uint8)
        zeros[::2] = 0 if fmt.has_steps else fmt.largest
        scales = np.ones(values.shape[:2], np.float32)
        codes = quantize.Quantized(values, scales, zeros if fmt.has_zeros else None)
        if fmt.has_steps:  # -128 is the code 0 of one group, 127 is the code 15 of another.
            zeros[1::2] = 15
            codes = quantize.Quantized(values, scales, zeros, np.full_like(zeros, 16))
        case.packed = quantize.pack(codes, fmt, 200).reshape(-1)
        got = case.run(index)
        assert same_bits(got, case.run(SCALAR))
        total = case.x[0, np.arange(200) % 4 < 2].sum() if fmt.sparse else case.x[0].sum()
        np.testing.assert_allclose(got[:, :2], [[total * low, total * high]] * 3, rtol=1e-6)

    def test_nan_scales_stay_in_their_row(self, name: str, index: int) -> None:
        made = QuantizedMatmul(name, 4, 20, 64)
        clean = made.run(index)
        made.scale[:, 2] = np.nan
        dirty = made.run(index)
        assert np.isnan(dirty[2]).all()
        assert same_bits(dirty[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (16, 32), (17, 33), (40, 127), (33, 300)])
def test_the_layout_is_invertible(name: str, rows: int, k: int) -> None:
    fmt = parse_format(name)
    made = quantize.quantize_weights(matrix(rows, k), fmt)
    back = quantize.unpack(quantize.pack(made, fmt, k), fmt, rows, k)
    assert same_bits(back.values, made.values)
    assert same_bits(back.scales, made.scales)
    assert (fmt.has_zeros or fmt.has_steps) == (made.zeros is not None)
    if fmt.has_steps:
        assert same_bits(back.steps, made.steps)
    if made.zeros is not None:
        assert same_bits(back.zeros, made.zeros)


def test_reference_swiglu_and_residual() -> None:
    x, w = RNG.standard_normal((3, 40)).astype(np.float32), RNG.standard_normal((20, 40)).astype(np.float32)
    (y,) = linear.reference([x, w, None], {"format": parse_format("int8:g32")}, "float32")
    assert np.abs(y - x @ w.T).max() < 0.02 * np.abs(x @ w.T).max()
    residual = RNG.standard_normal((3, 10)).astype(np.float32)
    (z,) = op.reference([x, w, None, residual], {"format": parse_format("int8:g32"), "epilogue": 1, "n": 10}, "float32")
    gate, up = np.split(y.astype(float), 2, axis=1)
    assert np.allclose(z, gate / (1 + np.exp(-gate)) * up + residual, atol=1e-5)


def test_bindings_refuse_what_would_read_past_an_end() -> None:
    w = np.zeros((16, 32), np.float32)
    with pytest.raises(InvalidOptionError, match="out must have"):
        _runtime.quantize_panels(3, 32, w, np.zeros(10, np.uint8))
    with pytest.raises(InvalidOptionError, match="group"):
        _runtime.quantize_panels(4, 0, w, np.zeros(10000, np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_builds_multiply_as_an_engine_does(name: str) -> None:
    made = QuantizedMatmul(name, rows=3, n=37, k=100)
    y = np.full((3, 37), np.nan, np.float32)
    _runtime.QuantizedRows(number(made.fmt), made.fmt.group, made.x).product(made.packed, y)
    assert same_bits(y, made.run(SCALAR))


def test_the_product_of_a_build_refuses_what_does_not_fit() -> None:
    made = QuantizedMatmul("int8", rows=3, n=37, k=100)
    rows = _runtime.QuantizedRows(number(made.fmt), made.fmt.group, made.x)
    with pytest.raises(InvalidOptionError, match="as many rows"):
        rows.product(made.packed, np.empty((2, 37), np.float32))
    with pytest.raises(InvalidOptionError, match="w must have"):
        rows.product(made.packed[:-1], np.empty((3, 37), np.float32))
    with pytest.raises(InvalidOptionError, match="group"):
        _runtime.QuantizedRows(number(made.fmt), 16, made.x)


def test_whole_rows_whose_sums_would_not_fit_are_refused() -> None:
    """127 * 128 times so many columns are more than an int32 holds, where the bits would depend on the kernel."""
    x = np.zeros((1, MAX_WHOLE_ROW + 1), np.float32)
    with pytest.raises(InvalidOptionError, match=f"whole rows must have at most {MAX_WHOLE_ROW} col"):
        _runtime.QuantizedRows(3, 0, x)
    with pytest.raises(InvalidOptionError, match="whole rows must have at most"):
        _runtime.quantize_panels(3, 0, x, np.zeros(16 * x.size + 64, np.uint8))
    with pytest.raises(InvalidOptionError, match="whole rows must have at most"):
        _runtime.QuantizedRows(number(parse_format("w4a8")), 32, x)
    _runtime.QuantizedRows(3, 0, x[:, 1:])
    _runtime.QuantizedRows(3, 128, x)
