"""Keeps codes and scales that a calibration chose, in a file without a name, until they are packed into weights.bin."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from tensorwright.builder.emit.quantized_weights import PackedPanels
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.read_weights import TensorSource
from tensorwright.plugins.quantized_matmul.quantize import Quantized, pack


@dataclass(frozen=True)
class _Place:
    """Where the codes of a matrix begin in the file, and its size. The scales of all rows follow the codes, and then
    come the zero points of a format that has them."""

    offset: int
    rows: int
    k: int


class ChosenCodes:
    """A `CodeSource`: the codes of calibrated matrices, written row after row and read in any ranges of rows.

    folder: where the file is. It has no name and disappears with the process. A code takes a byte there, whatever its
    format. The object is a context, at whose end the file is gone.
    """

    def __init__(self, folder: Path):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, the context is this object's own
        self._places: dict[tuple[WeightExpr, WeightFormat], _Place] = {}
        self._end = 0

    def __enter__(self) -> ChosenCodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, key: tuple[WeightExpr, WeightFormat]) -> bool:
        return key in self._places

    def __len__(self) -> int:
        """Returns how many matrices there are."""
        return len(self._places)

    def reserve(self, expr: WeightExpr, fmt: WeightFormat, rows: int, k: int) -> None:
        """Makes room for a matrix [rows, k]. Its rows must all be written before one of them is read."""
        self._places[expr, fmt] = _Place(self._end, rows, k)
        self._end += rows * (_code_bytes(fmt, k) + _scale_bytes(fmt, k) + _zero_bytes(fmt, k))

    def write(self, expr: WeightExpr, fmt: WeightFormat, start: int, rows: Quantized) -> None:
        """Writes rows [start, start + len(rows.values)). Any thread may."""
        place = self._places[expr, fmt]
        codes, scales, zeros = self._offsets(place, fmt, start)
        values = rows.values if rows.zeros is None else (rows.values + rows.zeros[..., None]).astype(np.uint8)
        self._write(np.ascontiguousarray(values).view(np.int8), codes)
        self._write(np.ascontiguousarray(rows.scales, np.float32), scales)
        if rows.zeros is not None:
            self._write(np.ascontiguousarray(rows.zeros, np.uint8), zeros)

    def quantized(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int) -> Quantized:
        """Returns rows [start, end)."""
        place = self._places[expr, fmt]
        codes, scales, zeros = self._offsets(place, fmt, start)
        count, groups = end - start, fmt.groups(place.k)
        values = np.frombuffer(self._read(count * _code_bytes(fmt, place.k), codes), np.int8).reshape(count, groups, -1)
        factors = np.frombuffer(self._read(count * _scale_bytes(fmt, place.k), scales), np.float32)
        if not fmt.has_zeros:
            return Quantized(values, factors.reshape(count, groups))
        points = np.frombuffer(self._read(count * _zero_bytes(fmt, place.k), zeros), np.uint8).reshape(count, groups)
        less = values.view(np.uint8).astype(np.int16) - points[..., None]
        return Quantized(less.astype(fmt.values_dtype), factors.reshape(count, groups), points)

    def _offsets(self, place: _Place, fmt: WeightFormat, row: int) -> tuple[int, int, int]:
        """Returns the offsets of a row's codes, of its scales and of its zero points."""
        codes, scales, zeros = (size(fmt, place.k) for size in (_code_bytes, _scale_bytes, _zero_bytes))
        all_codes = place.offset + place.rows * codes
        return place.offset + row * codes, all_codes + row * scales, all_codes + place.rows * scales + row * zeros

    def _write(self, data: np.ndarray, offset: int) -> None:
        rest = data.data.cast("B")
        while rest:
            count = os.pwrite(self._file.fileno(), rest, offset)
            rest, offset = rest[count:], offset + count

    def _read(self, size: int, offset: int) -> bytes:
        parts = []
        while size:
            part = os.pread(self._file.fileno(), size, offset)
            if not part:
                raise AssertionError(f"{size} bytes at {offset} of the chosen codes were never written")
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)


class ChosenPanels:
    """A `PanelSource`: panels of chosen codes, and of the nearest codes for all other matrices."""

    def __init__(self, codes: ChosenCodes, source: TensorSource):
        self._codes = codes
        self._nearest = PackedPanels(source)

    def halves(self, expr: WeightExpr, fmt: WeightFormat) -> int:
        """Returns 1: the rows are packed in one run."""
        return 1

    def panels(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, matrix: int = 0) -> np.ndarray:
        """Returns packed panels of rows [start, end), uint8; of the matrix of that number where there are several."""
        if (expr, fmt) not in self._codes:
            return self._nearest.panels(expr, fmt, start, end, matrix)
        rows = self._codes.quantized(expr, fmt, start, end)
        return pack(rows, fmt, rows.values.shape[1] * rows.values.shape[2]).reshape(-1)


def _code_bytes(fmt: WeightFormat, k: int) -> int:
    return fmt.groups(k) * fmt.stored_group(k)


def _scale_bytes(fmt: WeightFormat, k: int) -> int:
    return 4 * fmt.groups(k)


def _zero_bytes(fmt: WeightFormat, k: int) -> int:
    return fmt.groups(k) if fmt.has_zeros else 0
