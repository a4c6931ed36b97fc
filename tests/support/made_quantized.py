"""Made-up quantized matmuls: operands, a run of one kernel, and what the definition says of its bits."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache

import numpy as np
import pytest

from support.made_matmul import UNIT, offset_rows, same_bits
from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_formats import WeightFormat, parse_format
from tensorwright.plugins.quantized_matmul import quantize
from tensorwright.plugins.rounding import from_bfloat16_bits
from tensorwright.runtime import _runtime, _testing

NAMES = (
    "int4:g32", "int4:g64", "int4:g128", "int8:g32", "int8:g64", "int8:g128",
    "uint4:g32", "uint4:g128", "uint8:g64", "int4:g64:fp16", "int8:g128:fp16", "uint4:g64:fp16",
    "uint8:g32:fp16", "int3:g32", "uint3:g64:fp16", "int2:g128:fp16", "uint2:g32", "mxfp4", "w4a8:g32",
    "w4a8:g128", "w8a8", "int8:g32:2:4", "int4:g64:2:4", "int4:g128:2:4",
)  # fmt: skip
PACKED = (*NAMES, "fp8", "fp8:g32")
"""Formats that the packer rounds to. Products that round activations have only the others."""

SCALAR = -1


def number(fmt: WeightFormat) -> int:
    """tw_dtype."""
    return NUMBERS[fmt.codec]


def kernels() -> list[object]:
    """(format, index) of every kernel; those this processor lacks are skipped by name."""
    return [
        pytest.param(
            name,
            i,
            id=f"{kernel}-{name}",
            marks=[] if here else pytest.mark.skip(f"this processor cannot run {kernel}, of {isa} and perhaps more"),
        )
        for name in NAMES
        for i, (kernel, isa, here) in enumerate(_testing.quantized_matmul_table(number(parse_format(name))))
    ]


def row_kernels() -> list[object]:
    return [
        pytest.param(
            i,
            id=kernel,
            marks=[] if here else pytest.mark.skip(f"this processor cannot run {kernel}, of {isa} and perhaps more"),
        )
        for i, (kernel, isa, here) in enumerate(_testing.quantize_rows_table())
    ]


def weight_kernels() -> list[object]:
    return [
        pytest.param(
            i,
            id=kernel,
            marks=[] if here else pytest.mark.skip(f"this processor cannot run {kernel}, of {isa} and perhaps more"),
        )
        for i, (kernel, isa, here) in enumerate(_testing.quantize_weights_table())
    ]


def pack(w: np.ndarray, fmt: WeightFormat, index: int | None = None) -> tuple[np.ndarray, tuple[float, float, bool]]:
    """uint8 panels of w (float32 or bfloat16 bits), and what the packer says of its error."""
    out = np.full(-(-len(w) // 16) * fmt.panel_bytes(w.shape[1]), 0xA5, np.uint8)
    if index is None:
        return out, _runtime.quantize_panels(number(fmt), fmt.group, w, out)
    kernel = index % len(_testing.quantize_weights_table())
    return out, _testing.quantize_panels(kernel, number(fmt), fmt.group, w, out)


def quantize_rows(x: np.ndarray, fmt: WeightFormat, index: int = SCALAR) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int8 [rows, whole groups], float32 and int32 [groups, rows]."""
    rows, k = x.shape
    groups = fmt.activation_groups(k)
    q = np.full((rows, fmt.groups(k) * fmt.stored_group(k)), 99, np.int8)
    scale, total = np.zeros((groups, rows), np.float32), np.zeros((groups, rows), np.int32)
    index = index % len(_testing.quantize_rows_table())
    _testing.quantize_rows(number(fmt), index, fmt.group, x, q, scale, total)
    return q, scale, total


@dataclass
class QuantizedMatmul:
    """y = act(x w^T + bias) + residual with random operands. n counts columns of y."""

    name: str
    rows: int
    n: int
    k: int
    epilogue: int = 0
    bias: bool = False
    residual: bool = False
    y_dtype: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.rows, self.n, self.k])
        self.fmt = parse_format(self.name)
        wide = self.n * (1 + self.epilogue)
        self.w = rng.standard_normal((wide, self.k)).astype(np.float32)
        self.x = rng.standard_normal((self.rows, self.k)).astype(np.float32)
        self.q, self.scale, self.sum = quantize_rows(self.x, self.fmt)
        self.b = rng.standard_normal(wide).astype(np.float32) if self.bias else None
        self.r = rng.standard_normal((self.rows, self.n)).astype(np.float32) if self.residual else None
        halves = 1 + self.epilogue
        self.panels = -(-self.n // 16) * halves
        self.packed = np.zeros(self.panels * self.fmt.panel_bytes(self.k), np.uint8)
        for i in range(halves):
            part = self.w[i * self.n : (i + 1) * self.n]
            _runtime.quantize_panels(number(self.fmt), self.fmt.group, part, self.packed, i, halves)

    def panel_bias(self) -> np.ndarray | None:
        """In panel order; NaN where no lane may read."""
        if self.b is None:
            return None
        halves = 1 + self.epilogue
        padded = np.full((halves, self.panels // halves * 16), np.nan, np.float32)
        padded[:, : self.n] = self.b.reshape(halves, self.n)
        return np.ascontiguousarray(padded.reshape(halves, -1, 16).transpose(1, 0, 2)).reshape(-1)

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
        index = index % len(_testing.quantized_matmul_table(number(self.fmt)))
        q = offset_rows(self.q[rows].view(np.uint8), offset, pad).view(np.int8)
        scale, total = self.scale[:, rows].copy(), self.sum[:, rows].copy()
        residual = None if self.r is None else offset_rows(self.r[rows], offset, pad)
        packed = offset_rows(self.packed[None], 4 * offset, 0)[0] if offset else self.packed
        if in_place:
            y = residual
        if y is None:
            hole = np.full((len(q), self.n), 0x7FC0 if self.y_dtype else np.nan, (np.float32, np.uint16)[self.y_dtype])
            y = offset_rows(hole, offset, pad)
        _testing.run_quantized_matmul(
            number(self.fmt), index, self.fmt.group, self.k, x=q, scale=scale, sum=total, w=packed, y=y,
            bias=self.panel_bias(), residual=residual, epilogue=self.epilogue,
            panel_begin=panels[0], panel_end=panels[1],
        )  # fmt: skip
        return y

    def check(self, index: int, **how: int) -> None:
        """The bits of the scalar kernel, which are near the definition in float64. No operand was changed since."""
        got = self.run(index, **how)
        scalar, exact, size = _right_result(type(self), astuple(self))
        assert same_bits(got, scalar)
        y = from_bfloat16_bits(got) if self.y_dtype else got
        steps = self.fmt.groups(self.k) + 12
        allowed = 2 * steps * UNIT * size + (2.0**-8 * np.abs(exact) if self.y_dtype else 0)
        assert (np.abs(y - exact) <= allowed + 1e-6).all()

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """y in float64, and a bound of the sizes that rounding errors are relative to."""
        a = quantize.quantize_activations(self.x, self.fmt)
        return self.finished((a.values.astype(float) * a.scales[..., None]).reshape(self.rows, -1)[:, : self.k])

    def finished(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `expected` returns, for x [rows, k] in float64 as the kernel multiplies it."""
        b = quantize.quantize_weights(self.w, self.fmt)
        w = (b.values.astype(float) * b.scales[..., None]).reshape(len(self.w), -1)[:, : self.k]
        y, size = x @ w.T, np.abs(x) @ np.abs(w).T
        if self.b is not None:
            y, size = y + self.b, size + np.abs(self.b)
        if self.epilogue:
            (gate, up), (gs, us) = np.split(y, 2, axis=1), np.split(size, 2, axis=1)
            y, size = gate / (1 + np.exp(-gate)) * up, (gs + np.abs(gate)) * (us + np.abs(up))
        if self.r is not None:
            y, size = y + self.r, size + np.abs(self.r)
        return y, size


@lru_cache(maxsize=64)
def _right_result(
    kind: type[QuantizedMatmul], fields: tuple[str | int | bool, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the scalar kernel gives, and `expected`: once for all kernels of a format, as the definition takes
    longer than they take together."""
    made = kind(*fields)  # type: ignore[arg-type]
    return made.run(SCALAR), *made.expected()
