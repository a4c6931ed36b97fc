"""Quantizes and packs weights while they stream: the part of cpu_weights.py for formats of fewer bits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from tensorwright.builder.emit.pack_rows import Packed, RowPacker, Rows, native, stored_codes
from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.errors import CheckpointError
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import Tensor, to_float32
from tensorwright.models.read_weights import TensorSource, evaluate_matrix_rows, evaluate_rows
from tensorwright.plugins.packing import panels_of
from tensorwright.plugins.quantized_matmul.quantize import (
    Quantized,
    dequantized,
    pack,
    unpack,
)

_CHUNK_ELEMENTS = 2 << 20


class CodeSource(Protocol):
    """Codes of some matrices that something else than the packer chose."""

    def __contains__(self, key: tuple[WeightExpr, WeightFormat], /) -> bool: ...

    def quantized(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, /) -> Quantized:
        """Returns the codes and scales of rows [start, end)."""


@dataclass
class RelativeError:
    """Root of the sum of squared errors over that of squared weights."""

    error: float = 0.0
    weight: float = 0.0

    def add(self, error: float, weight: float) -> None:
        self.error += error
        self.weight += weight

    @property
    def value(self) -> float:
        return (self.error / self.weight) ** 0.5 if self.weight else 0.0


def quantized_chunks(
    name: str, packer: RowPacker, rows: int, *, gated: bool, total: RelativeError
) -> Iterator[np.ndarray]:
    """Yields the panels of a matrix [rows, k] in order, uint8; of a gated product, panels of gate and up take turns.

    Adds the error to `total`. Raises CheckpointError for a weight that is infinite or not a number.
    """
    native()  # Without the module it says so at once.
    fmt, k = packer.fmt, packer.k
    halves = 2 if gated else 1
    part = rows // halves
    bytes_per_panel = fmt.panel_bytes(k)

    def pack(start: int) -> tuple[np.ndarray, list[Packed]]:
        end = min(part, start + step)
        out = np.empty(panels_of(end - start) * halves * bytes_per_panel, np.uint8)
        sums = [packer.pack(half * part + start, half * part + end, out, half, halves) for half in range(halves)]
        return out, [packed for packeds in sums for packed in packeds]

    step = _rows_of_chunk(k, halves)
    for out, sums in _in_order(pack, range(0, part, step)):
        for error, weight, finite in sums:
            _require_finite(finite, name, fmt)
            total.add(error, weight)
        yield out


def coded_chunks(
    codes: Callable[[int, int], Quantized], fmt: WeightFormat, rows: int, k: int, read: Rows, *, gated: bool,
    total: RelativeError,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yields what `quantized_chunks` does, of codes that are there already. codes: takes [start, end), as `read`."""
    halves = 2 if gated else 1
    part = rows // halves

    def panels(start: int) -> tuple[np.ndarray, list[tuple[float, float]]]:
        end = min(part, start + step)
        packed, outcomes = [], []
        for half in range(halves):
            first, last = half * part + start, half * part + end
            chosen, w = codes(first, last), _as_float32(read(first, last))
            packed.append(pack(chosen, fmt, k))
            outcomes.append((_squares(dequantized(chosen, k) - w), _squares(w)))
        return np.ascontiguousarray(np.stack(packed, axis=1)).reshape(-1), outcomes

    step = _rows_of_chunk(k, halves)
    for out, outcomes in _in_order(panels, range(0, part, step)):
        for error, weight in outcomes:
            total.add(error, weight)
        yield out


def _rows_of_chunk(k: int, halves: int) -> int:
    """Returns how many rows of each half are packed at a time: whole panels."""
    return max(1, _CHUNK_ELEMENTS // (k * LANES * halves)) * LANES


def _as_float32(rows: np.ndarray) -> np.ndarray:
    return to_float32(Tensor("bfloat16", rows)) if rows.dtype == np.uint16 else rows


def _squares(x: np.ndarray) -> float:
    return float(np.square(x, dtype=np.float64).sum())


class QuantizingWeights:
    """A `QuantizedSource` of a checkpoint's weights for the interpreter, quantized by the C++ packer.

    The bytes are those that an engine gets. The packer gives the bits of quantize.py about a hundred times faster.
    """

    def __init__(self, source: TensorSource):
        from tensorwright.builder.checkpoint_weights import (
            checkpoint_weights,  # imports torch, so only if weights are needed
        )

        self._read, self._source = checkpoint_weights(source), source

    def __call__(self, expr: WeightExpr) -> Any:
        return self._read(expr)

    def quantized(self, expr: WeightExpr, fmt: WeightFormat) -> Quantized:
        w = self._read(expr).float().contiguous().numpy()
        rows, k = w.shape
        codes = stored_codes(expr, self._source, fmt)
        packer = RowPacker(fmt, k, lambda start, end: w[start:end], codes)
        chunks = quantized_chunks(str(expr), packer, rows, gated=False, total=RelativeError())
        return unpack(np.concatenate(list(chunks)), fmt, rows, k)


class PackedPanels:
    """Packs panels of a checkpoint's matrices when they are asked for, with the bytes that an engine would get."""

    def __init__(self, source: TensorSource):
        self._source = source

    def halves(self, expr: WeightExpr, fmt: WeightFormat) -> int:
        """Returns 1: the rows are packed in one run."""
        return 1

    def panels(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, matrix: int = 0) -> np.ndarray:
        """Returns packed panels of rows [start, end), uint8; of the matrix of that number where there are several.

        Raises CheckpointError for an infinite weight or a NaN.
        """
        packer = RowPacker(
            fmt, expr.shape(self._source)[-1], partial(_rows, expr, self._source, matrix),
            stored_codes(expr, self._source, fmt, matrix),
        )  # fmt: skip
        out, sums = packer.whole(start, end)
        _require_finite(all(packed.finite for packed in sums), str(expr), fmt)
        return out


def _rows(expr: WeightExpr, source: TensorSource, matrix: int, start: int, end: int) -> np.ndarray:
    if len(expr.shape(source)) == 3:
        tensor = evaluate_matrix_rows(expr, source, matrix, start, end)
    else:
        tensor = evaluate_rows(expr, source, start, end)
    return np.ascontiguousarray(tensor.data if tensor.dtype == "bfloat16" else to_float32(tensor))


class Multiplier:
    """x [T, K] float32 in the form that the kernels for weights of a format read; any thread may use it."""

    def __init__(self, x: np.ndarray, fmt: WeightFormat):
        self._count = len(x)
        number = NUMBERS[fmt.codec]
        if fmt.keeps_activations:
            self._product: Any = partial(native().FloatRows(x).product, number, fmt.group)
        else:
            self._product = native().QuantizedRows(number, fmt.group, x).product

    def product(self, panels: np.ndarray, n: int) -> np.ndarray:
        """Returns float32 [T, n], the product of x with the first n rows of a matrix in panels."""
        y = np.empty((self._count, n), np.float32)
        self._product(panels, y)
        return y


def _require_finite(finite: bool, name: str, fmt: WeightFormat) -> None:
    if not finite:
        raise CheckpointError(f"{name} holds an infinity or a NaN, which no scale can carry; it cannot be {fmt}")


def _in_order(work: Callable[[int], Any], starts: Iterable[int]) -> Iterator[Any]:
    """Yields results in order, computed on as many threads as this process may use."""
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Any]] = deque()
        for start in starts:
            waiting.append(pool.submit(work, start))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
