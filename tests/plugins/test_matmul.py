"""The matmul kernels against their numpy definition, and the bits that blocking and company must not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.isa_levels import rounds_otherwise
from support.made_matmul import BY_BF16, Matmul, kernel_params, same_bits, stored, widened
from support.sweep import sweep
from tensorwright.errors import InvalidOptionError, IsaError
from tensorwright.plugins import packing
from tensorwright.plugins.matmul import op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

KERNELS = kernel_params(0) + kernel_params(1) + kernel_params(BY_BF16)
BEST = 0
EPILOGUES = (op.EPILOGUE_NONE, *op.EPILOGUES.values())
PANEL = 16


def exact_kernels(dtype: int) -> list[int]:
    """Those that must agree bit for bit: all but bf16 dot instructions."""
    table = _testing.matmul_table(dtype)
    return [i for i, (name, _, runnable) in enumerate(table) if runnable and not rounds_otherwise(name)]


@pytest.mark.parametrize(("dtype", "index"), KERNELS)
class TestDefinition:
    @sweep("n", range(1, 2 * PANEL + 2))
    def test_every_width_around_a_panel(self, dtype: int, index: int, n: int) -> None:
        made = Matmul(dtype, 3, n, 5)
        made.check(made.run(index))

    @sweep("k", [*range(1, 20), 31, 32, 33, 127, 129])
    def test_every_depth(self, dtype: int, index: int, k: int) -> None:
        made = Matmul(dtype, 2, 17, k)
        made.check(made.run(index))

    @sweep("rows", [*range(1, 20), 24, 64, 67])
    def test_every_number_of_rows(self, dtype: int, index: int, rows: int) -> None:
        made = Matmul(dtype, rows, 7 * PANEL + 3, 9)
        made.check(made.run(index))

    @sweep("epilogue", EPILOGUES)
    @sweep("y_dtype", [0, 1])
    @pytest.mark.parametrize(("bias", "residual"), [(True, False), (False, True), (True, True)])
    def test_epilogues(self, dtype: int, index: int, epilogue: int, y_dtype: int, bias: bool, residual: bool) -> None:
        made = Matmul(dtype, 7, 5 * PANEL + 5, 33, epilogue, bias, residual, y_dtype)
        made.check(made.run(index, offset=1, pad=3))

    @sweep("epilogue", EPILOGUES)
    @sweep("n", [1, 16, 17, 5 * PANEL + 5])
    def test_addends_of_some_rows(self, dtype: int, index: int, n: int, epilogue: int) -> None:
        """A row's addend is a bias of its own. The other rows have the bits that they have without."""
        added = (1, 2, 5, 19)
        made = Matmul(dtype, 20, n, 33, epilogue, residual=True, added=added)
        y = made.run(index, pad=3)
        plain = Matmul(dtype, 20, n, 33, epilogue, residual=True)
        others = [row for row in range(20) if row not in added]
        assert same_bits(y[others], plain.run(index)[others])
        for row in added:
            alone = Matmul(dtype, 20, n, 33, epilogue, bias=True, residual=True)
            alone.x, alone.w, alone.packed, alone.r = made.x, made.w, made.packed, made.r
            alone.b = made.addends[row, :, :n].reshape(-1)
            assert same_bits(y[row : row + 1], alone.run(index, rows=slice(row, row + 1)))
            assert same_bits(y[row : row + 1], made.run(index, rows=slice(row, row + 1)))

    @sweep("offset", [1, 2, 3, 7, 15])
    def test_misaligned_buffers(self, dtype: int, index: int, offset: int) -> None:
        made = Matmul(dtype, 5, 37, 21, bias=True, residual=True)
        assert same_bits(made.run(index, offset=offset, pad=offset), made.run(index))

    def test_no_rows_and_no_panels(self, dtype: int, index: int) -> None:
        made = Matmul(dtype, 2, 40, 8)
        assert made.run(index, rows=slice(0, 0)).shape == (0, 40)
        assert np.isnan(made.run(index, panels=(1, 1))).all()


@pytest.mark.parametrize(("dtype", "index"), KERNELS)
class TestBits:
    """What the numeric contract promises within one kernel."""

    @sweep("epilogue", [0, 1])
    @sweep("rows", [2, 6, 7, 12, 13, 16, 17, 18, 19, 25, 101])
    def test_a_row_alone_is_the_row_in_company(self, dtype: int, index: int, rows: int, epilogue: int) -> None:
        made = Matmul(dtype, rows, 6 * PANEL + 1, 41, epilogue, bias=True, residual=True)
        together = made.run(index)
        for row in sorted({0, 1, rows // 2, rows - 1}):
            assert same_bits(made.run(index, rows=slice(row, row + 1)), together[row : row + 1])

    def test_blocks_of_a_long_sum(self, dtype: int, index: int) -> None:
        """Deep enough that a call of 1, 8 and 100 rows cuts K each in its own way, or not at all."""
        made = Matmul(dtype, 100, PANEL + 1, 4403 if index == BEST else 1101)
        together = made.run(index)
        made.check(together)
        for begin, end in ((0, 1), (3, 11), (50, 67)):
            assert same_bits(made.run(index, rows=slice(begin, end)), together[begin:end])

    @sweep("rows", [1, 9, 20])
    @sweep("epilogue", [0, 1])
    def test_panel_ranges_join(self, dtype: int, index: int, rows: int, epilogue: int) -> None:
        made = Matmul(dtype, rows, 9 * PANEL + 4, 30, epilogue, bias=True, residual=True)
        whole = made.run(index)
        panels, step = 10 * (1 + epilogue), 1 + epilogue
        for width in (step, 3 * step, 4 * step, 7 * step):
            joined = np.full_like(whole, np.nan)
            for begin in range(0, panels, width):
                part = made.run(index, panels=(begin, min(begin + width, panels)))
                columns = slice(begin // step * PANEL, (begin + width) // step * PANEL)
                assert np.isnan(np.delete(part, np.r_[columns].clip(max=made.n - 1), axis=1)).all()
                joined[:, columns] = part[:, columns]
            assert same_bits(joined, whole)

    def test_bfloat16_result_is_the_float32_result_rounded(self, dtype: int, index: int) -> None:
        exact = Matmul(dtype, 5, 50, 40, epilogue=1, bias=True)
        rounded = Matmul(dtype, 5, 50, 40, epilogue=1, bias=True, y_dtype=1)
        assert same_bits(rounded.run(index), to_bfloat16_bits(exact.run(index)))

    def test_infinity_and_nan_stay_in_their_row(self, dtype: int, index: int) -> None:
        made = Matmul(dtype, 8, 20, 9)
        clean = made.run(index)
        made.x[2, 8] = stored(np.full(1, np.inf), dtype)[0]
        made.x[5, 0] = stored(np.full(1, np.nan), dtype)[0]
        dirty = made.run(index)
        assert np.isinf(dirty[2]).all()
        assert np.isnan(dirty[5]).all()
        keep = [0, 1, 3, 4, 6, 7]
        assert same_bits(dirty[keep], clean[keep])


@pytest.mark.parametrize("dtype", [0, 1, BY_BF16])
@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 20),
    n=st.integers(1, 100),
    k=st.integers(1, 90),
    epilogue=st.sampled_from(EPILOGUES),
    y_dtype=st.sampled_from([0, 1]),
    bias=st.booleans(),
    residual=st.booleans(),
)
def test_instruction_sets_agree(
    dtype: int, rows: int, n: int, k: int, epilogue: int, y_dtype: int, bias: bool, residual: bool
) -> None:
    """Bit for bit, but for the bf16 dot instructions."""
    made = Matmul(dtype, rows, n, k, epilogue, bias, residual, y_dtype)
    results = [made.run(i) for i in exact_kernels(dtype)]
    assert all(same_bits(r, results[0]) for r in results)
    made.check(results[0])


@sweep("rows", [1, 5, 40])
@sweep("k", [1, 16, 33, 1101])
def test_bfloat16_weights_alone_have_the_bits_of_their_numbers_in_float32(rows: int, k: int) -> None:
    """What adapters in bfloat16 rest on."""
    made = Matmul(BY_BF16, rows, 2 * PANEL + 3, k)
    wide = Matmul(0, rows, 2 * PANEL + 3, k)
    wide.packed = _testing.pack_panels(0, widened(made.w))
    expected = wide.run(exact_kernels(0)[-1])
    for index in exact_kernels(BY_BF16):
        assert same_bits(made.run(index), expected)


class TestPacking:
    @pytest.mark.parametrize("dtype", [0, 1])
    @sweep("n", [1, 15, 16, 17, 33])
    @sweep("k", [1, 2, 3, 8, 31])
    def test_layout_is_the_definition_and_inverts(self, dtype: int, n: int, k: int) -> None:
        w = stored(np.random.default_rng(n * k).standard_normal((n, k)), dtype)
        packed = _testing.pack_panels(dtype, w)
        assert same_bits(packed, packing.pack_panels(w, ("float32", "bfloat16")[dtype]).reshape(-1))
        assert packed.size == -(-n // PANEL) * _testing.panel_bytes(dtype, k)
        assert same_bits(_testing.unpack_panels(dtype, packed, n, k), w)

    @pytest.mark.parametrize("dtype", [0, 1])
    def test_converts_by_rounding_to_nearest_even(self, dtype: int) -> None:
        w = np.random.default_rng(0).standard_normal((20, 9)).astype(np.float32)
        other = stored(w, 1 - dtype)
        assert same_bits(_testing.pack_panels(dtype, other), _testing.pack_panels(dtype, stored(widened(other), dtype)))

    def test_streams_by_ranges_of_rows(self) -> None:
        w = stored(np.random.default_rng(0).standard_normal((50, 6)), 1)
        parts = [_testing.pack_panels(1, w[i : i + 32]) for i in (0, 32)]
        assert same_bits(np.concatenate(parts), _testing.pack_panels(1, w))

    def test_swiglu_interleaves_panels(self) -> None:
        gate, up = np.random.default_rng(0).standard_normal((2, 40, 5)).astype(np.float32)
        pairs = _testing.pack_gated_panels(0, gate, up).reshape(3, 2, -1)
        assert same_bits(pairs[:, 0].reshape(-1), _testing.pack_panels(0, gate))
        assert same_bits(pairs[:, 1].reshape(-1), _testing.pack_panels(0, up))

    def test_refuses_other_types(self) -> None:
        with pytest.raises(InvalidOptionError, match="not dtype 2"):
            _testing.pack_panels(2, np.zeros((1, 1), np.float32))
        with pytest.raises(InvalidOptionError, match="must be float32"):
            _testing.pack_panels(0, np.zeros((1, 1), np.float64))


class TestBindings:
    def test_refuses_what_would_run_out_of_bounds(self) -> None:
        made = Matmul(0, 2, 20, 8)
        y = np.zeros((2, 20), np.float32)
        with pytest.raises(InvalidOptionError, match="bytes"):
            _testing.run_matmul(0, BEST, made.x, made.packed[:-64], y)
        with pytest.raises(InvalidOptionError, match="panel range"):
            _testing.run_matmul(0, BEST, made.x, made.packed, y, panel_end=3)
        with pytest.raises(InvalidOptionError, match="as many rows"):
            _testing.run_matmul(0, BEST, made.x, made.packed, y[:1])

    def test_refuses_a_kernel_that_is_not_there(self) -> None:
        made = Matmul(0, 2, 20, 8)
        with pytest.raises((InvalidOptionError, IsaError)):
            made.run(99)
