"""Writes weights.bin of target cpu: every weight once, packed, streamed out a few megabytes at a time.

A weight is an expression over the checkpoint (or a constant of the graph) in a layout of
tensorwright.engine_format.weight_layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from tensorwright.builder.emit.pack_rows import RowPacker, no_codes, stored_codes
from tensorwright.builder.emit.quantized_weights import CodeSource, RelativeError, coded_chunks, quantized_chunks
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.engine_format.weight_layouts import BIAS, PANELS, RAW, WeightLayout, gated
from tensorwright.errors import BuildError, CheckpointError
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import Tensor, convert
from tensorwright.models.read_weights import TensorSource, evaluate_matrix_rows, evaluate_rows
from tensorwright.plugins.packing import pack_panels, panel_bytes, panels_of

ALIGNMENT = 64
_CHUNK_BYTES = 8 << 20
_LAYOUT_NUMBERS = {"raw": 0, "bias": 0, "panels": 1, "quantized": 2}  # numbers of WeightLayout in plan_format.h
_WEIGHT_ONLY = 3  # the number for quantized weights beside which activations are not rounded


class Sink(Protocol):
    """A file that weights are written to."""

    def write(self, data: bytes | memoryview, /) -> object: ...


@dataclass(frozen=True)
class ConstantArray:
    """An array that the graph itself carries. Two arrays with equal bytes are equal."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> ConstantArray:
        if array.dtype != np.float32:
            raise BuildError(f"a constant that a kernel reads must be float32, not {array.dtype}")
        return cls("float32", array.shape, array.tobytes())


@dataclass(frozen=True)
class WeightKey:
    """The identity of a record: uses of weights with equal keys share one record."""

    source: WeightExpr | ConstantArray
    layout: WeightLayout
    dtype: str


@dataclass(frozen=True)
class WeightPlan:
    """One record of the plan. `rows` and `k` are the matrix's; `n` rows are stored, at `offset` in weights.bin.

    `matrices`: how many matrices of that size follow each other in the record, one for each expert; `n` counts the rows
    of all of them.
    """

    key: WeightKey
    name: str
    rows: int
    n: int
    k: int
    offset: int
    bytes: int
    matrices: int = 1

    @property
    def values(self) -> int:
        """Returns how many numbers of the checkpoint the record holds."""
        return self.matrices * self.rows * (self.k if self.n > 1 else 1)

    @property
    def layout_number(self) -> int:
        if self.format is not None and self.format.keeps_activations:
            return _WEIGHT_ONLY
        return _LAYOUT_NUMBERS[self.key.layout.kind]

    @property
    def group(self) -> int:
        """Returns how many elements of K share one scale; 0 if a whole row does, and for floats."""
        return self.format.group if self.format else 0

    @property
    def format(self) -> WeightFormat | None:
        """Returns the format of a quantized weight, None for other weights."""
        return self.key.layout.format

    @property
    def panel_bytes(self) -> int:
        return self.format.panel_bytes(self.k) if self.format else panel_bytes(self.key.dtype, self.k)


class WeightTable:
    """Collects the weights that instructions use, in order of first use, and lays them out in weights.bin."""

    def __init__(self, source: TensorSource):
        self._source = source
        self._index: dict[WeightKey, int] = {}
        self.plans: list[WeightPlan] = []
        self.total_bytes = 0
        self.errors: dict[WeightKey, RelativeError] = {}
        """The error of each quantized weight that has been streamed so far."""

    def add(self, source: WeightExpr | ConstantArray, layout: WeightLayout, dtype: str, name: str = "") -> int:
        """Returns the index of the record for this weight. Equal weights share one record."""
        key = WeightKey(source, layout, dtype)
        if key not in self._index:
            self._index[key] = len(self.plans)
            plan = self._place(key, name or str(source))
            self.plans.append(plan)
            self.total_bytes = plan.offset + plan.bytes
        return self._index[key]

    def _place(self, key: WeightKey, name: str) -> WeightPlan:
        offset = -(-self.total_bytes // ALIGNMENT) * ALIGNMENT
        shape = key.source.shape if isinstance(key.source, ConstantArray) else key.source.shape(self._source)
        ranks = (2, 3) if key.layout.is_matrix else (1,)
        if len(shape) not in ranks or 0 in shape:
            raise CheckpointError(
                f"{name} must be of rank {' or '.join(map(str, ranks))} and not empty for layout {key.layout}, is "
                f"{list(shape)}"
            )
        if len(shape) == 1:
            stored = _stored_rows(key.layout, shape[0], name)
            return WeightPlan(key, name, shape[0], 1, stored, offset, stored * 4)
        matrices, rows, k = (1, *shape) if len(shape) == 2 else shape
        stored = matrices * _stored_rows(key.layout, rows, name)
        plan = WeightPlan(key, name, rows, stored, k, offset, 0, matrices)
        return replace(plan, bytes=panels_of(stored) * plan.panel_bytes)

    def stream(
        self,
        sink: Sink,
        progress: Callable[[int, int], None] = lambda done, total: None,
        codes: CodeSource | None = None,
    ) -> None:
        """Writes all of weights.bin in order. `progress` gets (bytes done, bytes in all).

        codes: the codes of matrices that the packer need not choose.
        """
        position = 0
        for plan in self.plans:
            sink.write(bytes(plan.offset - position))
            position = plan.offset
            for chunk in _all_chunks(plan, self._source, self.errors, codes):
                sink.write(chunk.data.cast("B"))
                position += chunk.nbytes
                progress(position, self.total_bytes)
            if position != plan.offset + plan.bytes:
                raise AssertionError(f"{plan.name}: wrote {position - plan.offset} bytes, planned {plan.bytes}")


class StoredPanels:
    """A `PanelSource` of the quantized matrices in a finished weights.bin: those that the engine multiplies."""

    def __init__(self, table: WeightTable, path: Path):
        self._plans = {(plan.key.source, plan.format): plan for plan in table.plans if plan.format is not None}
        self._bytes = np.memmap(path, np.uint8, "c")  # The kernels take only writable memory; nobody writes to it.

    def halves(self, expr: WeightExpr, fmt: WeightFormat) -> int:
        """Returns 2 where the rows of gate and up were packed as two runs, else 1."""
        return 2 if self._plans[expr, fmt].key.layout.gated else 1

    def panels(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, matrix: int = 0) -> np.ndarray:
        """Returns the packed panels of rows [start, end), uint8, of the matrix of that number where there are several.
        The rows start with a panel of their half."""
        plan = self._plans[expr, fmt]
        size = plan.bytes // plan.matrices
        first = plan.offset + matrix * size
        stored = np.asarray(self._bytes[first : first + size]).reshape(-1, plan.panel_bytes)
        if not plan.key.layout.gated:
            return stored[start // LANES : panels_of(end)].reshape(-1)
        half, row = divmod(start, plan.rows // 2)
        panels = stored[half::2][row // LANES : row // LANES + panels_of(end - start)]
        return np.ascontiguousarray(panels).reshape(-1)


def _stored_rows(layout: WeightLayout, rows: int, name: str) -> int:
    if layout == RAW:
        return rows
    if not layout.gated:
        return panels_of(rows) * LANES
    if rows % 2:
        raise CheckpointError(f"{name} must hold gate rows and as many up rows, has {rows}")
    return 2 * panels_of(rows // 2) * LANES


def _all_chunks(
    plan: WeightPlan, source: TensorSource, errors: dict[WeightKey, RelativeError], codes: CodeSource | None
) -> Iterator[np.ndarray]:
    """Yields the record's bytes in order, as contiguous arrays: one matrix after the other."""
    expr, fmt, k = plan.key.source, plan.format, plan.k
    if codes is not None and fmt is not None and isinstance(expr, WeightExpr) and (expr, fmt) in codes:
        error = errors.setdefault(plan.key, RelativeError())
        chosen, read = partial(codes.quantized, expr, fmt), partial(_rows, plan, source, 0)
        yield from coded_chunks(chosen, fmt, plan.rows, k, read, gated=plan.key.layout.gated, total=error)
        return
    for matrix in range(plan.matrices):
        yield from _chunks(plan, source, errors, matrix)


def _chunks(
    plan: WeightPlan, source: TensorSource, errors: dict[WeightKey, RelativeError], matrix: int
) -> Iterator[np.ndarray]:
    """Yields the bytes of one of the record's matrices, or of its vector, in order."""
    layout = plan.key.layout
    read = partial(_rows, plan, source, matrix)
    if layout == RAW:
        yield read(0, plan.rows)
    elif layout == BIAS:
        yield np.pad(read(0, plan.rows), (0, plan.k - plan.rows))
    elif layout == gated(BIAS):
        halves = read(0, plan.rows).reshape(2, -1)
        padded = np.pad(halves, ((0, 0), (0, plan.k // 2 - halves.shape[1])))
        yield np.ascontiguousarray(padded.reshape(2, -1, LANES).transpose(1, 0, 2))
    elif plan.format is not None:
        error = errors.setdefault(plan.key, RelativeError())
        weight = plan.key.source
        codes = no_codes if isinstance(weight, ConstantArray) else stored_codes(weight, source, plan.format, matrix)
        packer = RowPacker(plan.format, plan.k, read, codes)
        yield from quantized_chunks(plan.name, packer, plan.rows, gated=layout.gated, total=error)
    elif layout == PANELS:
        for start, end in _row_steps(plan, plan.rows):
            yield pack_panels(read(start, end), plan.key.dtype)
    else:
        half = plan.rows // 2
        for start, end in _row_steps(plan, half):
            gate = pack_panels(read(start, end), plan.key.dtype)
            up = pack_panels(read(half + start, half + end), plan.key.dtype)
            yield np.stack([gate, up], axis=1)


def _row_steps(plan: WeightPlan, rows: int) -> Iterator[tuple[int, int]]:
    """Yields [start, end) ranges of whole panels, about a chunk of bytes each."""
    step = max(1, _CHUNK_BYTES // plan.panel_bytes) * LANES
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


def _rows(plan: WeightPlan, source: TensorSource, matrix: int, start: int, end: int) -> np.ndarray:
    """Returns rows [start, end) of one matrix, or of the vector, in the record's dtype."""
    key = plan.key
    if isinstance(key.source, ConstantArray):
        array = np.frombuffer(key.source.data, np.float32).reshape(key.source.shape)
        tensor = Tensor(key.source.dtype, (array[matrix] if array.ndim == 3 else array)[start:end])
    elif len(key.source.shape(source)) == 3:
        tensor = evaluate_matrix_rows(key.source, source, matrix, start, end)
    else:
        tensor = evaluate_rows(key.source, source, start, end)
    dtype = key.dtype
    if plan.format is not None:  # the packer reads float32 and bfloat16
        dtype = tensor.dtype if tensor.dtype == "bfloat16" else "float32"
    return np.ascontiguousarray(convert(tensor, dtype).data)
