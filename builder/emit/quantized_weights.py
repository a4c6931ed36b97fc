"""Quantizes and packs weights while they stream: the part of cpu_weights.py for formats of fewer bits.

The packer is the runtime's own C++ (plugins/quantized_matmul/quantize.cc): in numpy a build would take minutes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.errors import CheckpointError, MissingDependencyError
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import to_float32
from tensorwright.models.read_weights import TensorSource, evaluate_matrix_rows, evaluate_rows
from tensorwright.plugins.packing import panels_of
from tensorwright.plugins.quantized_matmul.quantize import Quantized, quantize_weights, unpack

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime

_CHUNK_ELEMENTS = 2 << 20

Rows = Callable[[int, int], np.ndarray]
"""Takes [start, end), and returns those rows of the matrix: float32, or bfloat16 bits as uint16."""


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
    name: str, fmt: WeightFormat, rows: int, k: int, read: Rows, *, gated: bool, total: RelativeError
) -> Iterator[np.ndarray]:
    """Yields the panels of a matrix [rows, k] in order, uint8; of a gated product, panels of gate and up take turns.

    Adds the error to `total`. Raises CheckpointError for a weight that is infinite or not a number.
    """
    runtime = _native()
    halves = 2 if gated else 1
    part = rows // halves
    bytes_per_panel = fmt.panel_bytes(k)

    def pack(start: int) -> tuple[np.ndarray, list[tuple[float, float, bool]]]:
        end = min(part, start + step)
        out = np.empty(panels_of(end - start) * halves * bytes_per_panel, np.uint8)
        outcomes = [
            runtime.quantize_panels(
                NUMBERS[fmt.dtype], fmt.group, read(half * part + start, half * part + end), out, half, halves
            )
            for half in range(halves)
        ]
        return out, outcomes

    step = max(1, _CHUNK_ELEMENTS // (k * LANES * halves)) * LANES
    for out, outcomes in _in_order(pack, range(0, part, step)):
        for error, weight, finite in outcomes:
            _require_finite(finite, name, fmt)
            total.add(error, weight)
        yield out


class QuantizingWeights:
    """A `QuantizedSource` of a checkpoint's weights for the interpreter, quantized by the C++ packer.

    The bytes are those that an engine gets. The packer gives the bits of quantize.py about a hundred times faster.
    """

    def __init__(self, source: TensorSource):
        from tensorwright.builder.checkpoint_weights import (
            checkpoint_weights,  # imports torch, so only if weights are needed
        )

        self._read = checkpoint_weights(source)

    def __call__(self, expr: WeightExpr) -> Any:
        return self._read(expr)

    def quantized(self, expr: WeightExpr, fmt: WeightFormat) -> Quantized:
        w = self._read(expr).float().contiguous().numpy()
        rows, k = w.shape
        if fmt.kind == "fp":
            return quantize_weights(w, fmt)
        chunks = quantized_chunks(
            str(expr), fmt, rows, k, lambda start, end: w[start:end], gated=False, total=RelativeError()
        )
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
        if len(expr.shape(self._source)) == 3:
            tensor = evaluate_matrix_rows(expr, self._source, matrix, start, end)
        else:
            tensor = evaluate_rows(expr, self._source, start, end)
        w = np.ascontiguousarray(tensor.data if tensor.dtype == "bfloat16" else to_float32(tensor))
        out = np.empty(panels_of(end - start) * fmt.panel_bytes(w.shape[1]), np.uint8)
        _, _, finite = _native().quantize_panels(NUMBERS[fmt.dtype], fmt.group, w, out)
        _require_finite(finite, str(expr), fmt)
        return out


class Multiplier:
    """x [T, K] float32 in the form that the kernels of quantized_matmul read; any thread may use it."""

    def __init__(self, x: np.ndarray, fmt: WeightFormat):
        self._count = len(x)
        self._rows: _runtime.QuantizedRows = _native().QuantizedRows(NUMBERS[fmt.dtype], fmt.group, x)

    def product(self, panels: np.ndarray, n: int) -> np.ndarray:
        """Returns float32 [T, n], the product of x with the first n rows of a matrix in panels."""
        y = np.empty((self._count, n), np.float32)
        self._rows.product(panels, y)
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


def _native() -> Any:
    try:
        from tensorwright.runtime import _runtime
    except ImportError as error:
        raise MissingDependencyError(
            "quantizing weights needs the C++ runtime, which is not built here; "
            "install tensorwright with its compiled module"
        ) from error
    return _runtime
