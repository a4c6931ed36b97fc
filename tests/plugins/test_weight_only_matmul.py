"""Products of quantized weights with activations as they are: kernels against quantize.py and the scalar kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from support.isa_levels import rounds_otherwise
from support.made_matmul import UNIT, offset_rows, same_bits, stored, widened
from support.made_quantized import QuantizedMatmul, number
from support.sweep import sweep
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.quantized_matmul import linear, quantize
from tensorwright.plugins.quantized_matmul.fp8 import from_codes
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

PANEL = 16
NAMES = (
    "fp8", "fp8:g32", "fp8:g128", "int8:g64:wo", "int4:g32:wo", "uint8:g128:wo", "uint4:g32:fp16:wo", "mxfp4:wo",
    "int3:g32:wo", "uint3:g64:wo", "int2:g128:wo",
)  # fmt: skip
"""Every way in which numbers and scales are stored."""
SCALAR = -1


def kernels() -> list[object]:
    """(type of x, index) of every kernel; those this processor lacks are skipped by name."""
    return [
        pytest.param(dtype, i, id=name, marks=[] if here else pytest.mark.skip(f"this processor lacks {isa}"))
        for dtype in (0, 1)
        for i, (name, isa, here) in enumerate(_testing.weight_only_matmul_table(dtype))
    ]


@dataclass
class WeightOnly(QuantizedMatmul):
    """A product of which x is of the type `dtype`."""

    dtype: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.floats = stored(self.x, self.dtype)
        self.x = widened(self.floats)

    def run(self, index: int, rows: slice = slice(None), panels: tuple[int, int] = (0, -1), offset: int = 0,
            pad: int = 0, y: np.ndarray | None = None, in_place: bool = False) -> np.ndarray:  # fmt: skip
        index = index % len(_testing.weight_only_matmul_table(self.dtype))
        x = offset_rows(self.floats[rows], offset, pad)
        residual = None if self.r is None else offset_rows(self.r[rows], offset, pad)
        packed = offset_rows(self.packed[None], 4 * offset, 0)[0] if offset else self.packed
        y = residual if in_place else y
        if y is None:
            hole = np.full((len(x), self.n), 0x7FC0 if self.y_dtype else np.nan, (np.float32, np.uint16)[self.y_dtype])
            y = offset_rows(hole, offset, pad)
        _testing.run_weight_only_matmul(
            self.dtype, index, number(self.fmt), self.fmt.group, x=x, w=packed, y=y, bias=self.panel_bias(),
            residual=residual, epilogue=self.epilogue, panel_begin=panels[0], panel_end=panels[1],
        )  # fmt: skip
        return y

    def check(self, index: int, **how: int) -> None:
        """Near the definition in float64, and with the scalar kernel's bits where no dot product of bfloat16 runs."""
        got = self.run(index, **how)
        if not rounds_otherwise(_testing.weight_only_matmul_table(self.dtype)[index][0]):
            assert same_bits(got, self.run(SCALAR))
        y = widened(got)
        exact, size = self.expected()
        allowed = 2 * (self.k + self.fmt.groups(self.k) + 12) * UNIT * size
        assert (np.abs(y - exact) <= allowed + (2.0**-8 * np.abs(exact) if self.y_dtype else 0) + 1e-6).all()

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """y in float64, and a bound of the sizes that rounding errors are relative to."""
        return self.finished(self.x.astype(float))


@pytest.mark.parametrize(("dtype", "index"), kernels())
class TestKernel:
    @sweep("name", NAMES)
    @sweep("k", [1, 2, 3, 31, 33, 127, 128, 130, 257])
    @sweep("rows", [2, 7])
    def test_every_format_and_depth(self, dtype: int, index: int, name: str, k: int, rows: int) -> None:
        """Few rows multiply weights that are decoded in registers, more rows those that were decoded to memory."""
        WeightOnly(name, rows, 17, k, dtype=dtype).check(index)

    @sweep("n", [*range(1, PANEL + 2), 33, 48, 63, 65])
    def test_every_width(self, dtype: int, index: int, n: int) -> None:
        WeightOnly("fp8:g32", 3, n, 40, dtype=dtype).check(index)

    @sweep("rows", [*range(1, 14), 193])
    @sweep("name", ["fp8", "int4:g64:wo", "uint8:g128:wo", "uint4:g32:fp16:wo", "mxfp4:wo"])
    def test_every_number_of_rows(self, dtype: int, index: int, name: str, rows: int) -> None:
        WeightOnly(name, rows, 5 * PANEL + 3, 70, dtype=dtype).check(index)

    @sweep("epilogue", [0, 1])
    @sweep("y_dtype", [0, 1])
    def test_epilogues(self, dtype: int, index: int, epilogue: int, y_dtype: int) -> None:
        made = WeightOnly("fp8", 7, 5 * PANEL + 5, 66, epilogue, True, not epilogue, y_dtype, dtype)
        made.check(index, offset=1, pad=3)
        assert same_bits(made.run(index, offset=3, pad=3), made.run(index))

    def test_panel_ranges_join(self, dtype: int, index: int) -> None:
        made = WeightOnly("fp8:g128", 8, 9 * PANEL, 165, dtype=dtype)
        whole, parts = made.run(index), np.full((8, 9 * PANEL), np.nan, np.float32)
        for begin, end in ((0, 1), (1, 6), (6, 9)):
            made.run(index, panels=(begin, end), y=parts)
        assert same_bits(parts, whole)

    @sweep("name", ["fp8", "fp8:g128", "int8:g64:wo", "uint4:g32:fp16:wo", "int3:g32:wo"])
    @sweep("rows", [2, 6, 7, 200])
    def test_a_row_alone_is_the_row_in_company(self, dtype: int, index: int, name: str, rows: int) -> None:
        made = WeightOnly(name, rows, 6 * PANEL + 1, 290, 1, bias=True, dtype=dtype)
        together = made.run(index)
        for row in sorted({0, rows // 2, rows - 1}):
            assert same_bits(made.run(index, rows=slice(row, row + 1)), together[row : row + 1])

    def test_every_code_of_e4m3(self, dtype: int, index: int) -> None:
        """The product with rows of the identity gives the weights, so that each code is seen alone."""
        codes = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])
        made = WeightOnly("fp8", 254, 2, 254, dtype=dtype)
        values = np.zeros((2, 1, 256), np.float32)
        values[:, 0, :254] = [from_codes(codes), from_codes(codes[::-1])]
        made.floats = stored(np.eye(254, dtype=np.float32), dtype)
        made.packed = quantize.pack(quantize.Quantized(values, np.ones((2, 1), np.float32)), made.fmt, 254).reshape(-1)
        np.testing.assert_array_equal(made.run(index), values[:, 0, :254].T)
        few = [made.run(index, rows=slice(row, row + 6)) for row in range(0, 254, 6)]
        np.testing.assert_array_equal(np.concatenate(few), values[:, 0, :254].T)


@pytest.mark.parametrize("name", NAMES)
def test_builds_multiply_as_an_engine_does(name: str) -> None:
    made = WeightOnly(name, rows=3, n=37, k=100)
    y = np.full((3, 37), np.nan, np.float32)
    _runtime.FloatRows(made.x).product(number(made.fmt), made.fmt.group, made.packed, y)
    assert same_bits(y, made.run(SCALAR))


def test_the_definition_leaves_activations_alone() -> None:
    made = WeightOnly("fp8:g32", 4, 20, 70)
    exact, size = made.expected()
    got = linear.product(made.x, made.w, made.fmt)
    assert (np.abs(got - exact) <= 4 * UNIT * size).all()
    rounded = linear.product(made.x, made.w, parse_format("int8:g32"))
    assert np.abs(rounded - exact).max() > 100 * np.abs(got - exact).max()


def test_what_does_not_fit_is_refused() -> None:
    made = WeightOnly("fp8:g32", rows=3, n=37, k=100)
    rows = _runtime.FloatRows(made.x)
    with pytest.raises(InvalidOptionError, match="as many rows"):
        rows.product(number(made.fmt), 32, made.packed, np.empty((2, 37), np.float32))
    with pytest.raises(InvalidOptionError, match="w must have"):
        rows.product(number(made.fmt), 32, made.packed[:-1], np.empty((3, 37), np.float32))
    with pytest.raises(InvalidOptionError, match="group"):
        rows.product(number(made.fmt), 16, made.packed, np.empty((3, 37), np.float32))
