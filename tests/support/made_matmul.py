"""Made-up matmuls: operands, a run of one kernel over padded buffers, the definition and its error bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tensorwright.plugins.matmul import op
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits
from tensorwright.plugins.swiglu.op import ACTIVATIONS, gated
from tensorwright.runtime import _testing

DTYPES = ("float32", "bfloat16")
"""By number: tw_dtype."""
BY_BF16 = -1
"""The number of the table of kernels whose x is float32 and whose weights are bfloat16."""
UNIT = 2.0**-24
"""Half a step of float32, relative: the error of one rounding. Below: that of bfloat16, of 8 significant bits."""
BFLOAT16_UNIT = 2.0**-8


SLOPE = 1.13
"""No activation is steeper."""


def gate_rounding(gate: np.ndarray, act: np.ndarray, activation: str) -> np.ndarray:
    """How far a kernel's activation of `gate`, which is `act` in size, may be off.

    exp, sum, division and product round eight times at most. tanh and erf are right to 3e-7 beside 1 (tanh.h), and a
    gelu is half its gate times 1 + that, where the sum may cancel; its argument is rounded three times, and moves that
    by less than the gate.
    """
    absolute = 0.5 * np.abs(gate) * (3e-7 + 6 * UNIT) if activation.startswith("gelu") else 0.0
    return 8 * UNIT * act + absolute


def kernel_params(dtype: int) -> list[object]:
    """(dtype, index) of every matmul kernel; those this processor lacks are skipped by name."""
    return [
        pytest.param(dtype, i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
        for i, (name, isa, runnable) in enumerate(_testing.matmul_table(dtype))
    ]


def stored(x: np.ndarray, dtype: int) -> np.ndarray:
    """float32 values as the kernels take them: float32, or uint16 bits of bfloat16, which weights of BY_BF16 are."""
    return to_bfloat16_bits(x) if dtype == 1 else np.asarray(x, np.float32)


def widened(x: np.ndarray) -> np.ndarray:
    return from_bfloat16_bits(x) if x.dtype == np.uint16 else x


def offset_rows(x: np.ndarray, offset: int, pad: int) -> np.ndarray:
    """A copy of x whose first element lies `offset` elements past alignment, `pad` NaNs after every row."""
    rows, cols = x.shape
    hole = np.nan if x.dtype == np.float32 else 0x7FC0 if x.dtype == np.uint16 else 0xFF
    buffer = np.full(offset + rows * (cols + pad) + 64, hole, x.dtype)
    view = buffer[offset : offset + rows * (cols + pad)].reshape(rows, cols + pad)[:, :cols]
    view[:] = x
    return view


@dataclass
class Matmul:
    """y = act(x w^T + addend + bias) + residual with random operands. n counts columns of y. added: the rows that have
    an addend."""

    dtype: int
    rows: int
    n: int
    k: int
    epilogue: int = 0
    bias: bool = False
    residual: bool = False
    y_dtype: int = 0
    seed: int = 0
    added: tuple[int, ...] = ()

    @property
    def parts(self) -> int:
        """Rows of w for one column of y: gate and up, or one."""
        return 1 if self.epilogue == op.EPILOGUE_NONE else 2

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, self.rows, self.n, self.k])
        wide = self.n * self.parts
        w_dtype = 1 if self.dtype == BY_BF16 else self.dtype
        self.x = stored(rng.standard_normal((self.rows, self.k)), self.dtype)
        self.w = stored(rng.standard_normal((wide, self.k)), w_dtype)
        self.b = rng.standard_normal(wide).astype(np.float32) if self.bias else None
        self.r = rng.standard_normal((self.rows, self.n)).astype(np.float32) if self.residual else None
        self.addends = rng.standard_normal((self.rows, self.parts, -(-self.n // 16) * 16)).astype(np.float32)
        if self.parts == 2:
            self.packed = _testing.pack_gated_panels(w_dtype, self.w[: self.n], self.w[self.n :])
        else:
            self.packed = _testing.pack_panels(w_dtype, self.w)

    def panel_bias(self) -> np.ndarray | None:
        """The bias in panel order; where no lane may read it, NaN."""
        if self.b is None:
            return None
        halves = self.b.reshape(self.parts, self.n)
        panels = -(-self.n // 16)
        padded = np.full((self.parts, panels * 16), np.nan, np.float32)
        padded[:, : self.n] = halves
        return np.ascontiguousarray(padded.reshape(-1, panels, 16).transpose(1, 0, 2)).reshape(-1)

    def run(
        self,
        index: int,
        rows: slice = slice(None),
        panels: tuple[int, int] = (0, -1),
        offset: int = 0,
        pad: int = 0,
        y: np.ndarray | None = None,
        in_place: bool = False,
    ) -> np.ndarray:
        """y of the given rows; NaN (as float32) where the kernel wrote nothing. Fails if it wrote beside y.

        in_place: whether y is the memory of the residual.
        """
        x = offset_rows(self.x[rows], offset, pad)
        residual = None if self.r is None else offset_rows(self.r[rows], offset, pad)
        packed = offset_rows(self.packed[None], 4 * offset, 0)[0] if offset else self.packed
        if in_place:
            y = residual
        if y is None:
            hole = np.full(
                (x.shape[0], self.n), 0x7FC0 if self.y_dtype else np.nan, (np.float32, np.uint16)[self.y_dtype]
            )
            y = offset_rows(hole, offset, pad)
        _testing.run_matmul(
            self.dtype, index, x, packed, y, bias=self.panel_bias(), residual=residual, epilogue=self.epilogue,
            panel_begin=panels[0], panel_end=panels[1], **self.sums(rows),
        )  # fmt: skip
        if pad and y.base is not None:
            gaps = y.base[offset:][: y.shape[0] * (self.n + pad)].reshape(-1, self.n + pad)[:, self.n :]
            assert np.isnan(widened(gaps)).all(), "wrote between rows of y"
        return y

    def sums(self, rows: slice) -> dict[str, object]:
        """The keywords of the rows' addends, which are NaN in rows that have none and in lanes past n."""
        if not self.added:
            return {}
        numbers = range(self.rows)[rows]
        addends = np.full_like(self.addends, np.nan)
        for row in self.added:
            addends[row, :, : self.n] = self.addends[row, :, : self.n]
        added = [at for at, row in enumerate(numbers) if row in self.added]
        return {"addends": addends[rows].reshape(len(numbers), -1), "added": added}

    def expected(self) -> np.ndarray:
        attrs = {"epilogue": self.epilogue, "n": self.n}
        return op.reference([widened(self.x), widened(self.w), self.b, self.r], attrs, "float32")[0]

    def tolerance(self) -> np.ndarray:
        """Bound of the error of every y: k + 2 roundings of terms as large as the sum of absolute values."""
        zero = np.zeros(1)
        b = zero if self.b is None else np.abs(self.b)
        size = np.abs(widened(self.x)).astype(float) @ np.abs(widened(self.w)).astype(float).T + b
        error = (self.k + 2) * UNIT * size
        y = np.abs(self.expected().astype(float))
        if self.parts == 2:
            exact = op.product(widened(self.x), widened(self.w), self.b)
            (g, u), (eg, eu) = np.split(exact, 2, axis=1), np.split(error, 2, axis=1)
            activation = ACTIVATIONS[self.epilogue - 1]
            act = np.abs(gated(np.concatenate([g, np.ones_like(g)], axis=1), activation))
            error = SLOPE * eg * (np.abs(u) + eu) + act * eu + gate_rounding(g, act, activation) * np.abs(u)
        error = error + 2 * UNIT * (y + (zero if self.r is None else np.abs(self.r)))
        return error + BFLOAT16_UNIT * (y + error) if self.y_dtype else error

    def check(self, y: np.ndarray) -> None:
        worst = np.abs(widened(y).astype(float) - self.expected()) - self.tolerance()
        assert (worst <= 0).all(), f"beyond the bound by {np.nanmax(worst)}"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
