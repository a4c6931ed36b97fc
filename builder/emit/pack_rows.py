"""Packs rows of a matrix in panels: codes that the checkpoint holds as they are, all other rows rounded.

Whether a panel of 16 rows is kept depends on these rows alone, so that every reader of a matrix packs the same bytes,
in whatever pieces it does. The packer that rounds is the runtime's own C++ (plugins/quantized_matmul/quantize.cc): in
numpy a build would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.errors import MissingDependencyError
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.held_codes import HeldCodes, read_codes
from tensorwright.plugins.packing import panels_of
from tensorwright.plugins.quantized_matmul.quantize import Quantized, dequantized, pack

if TYPE_CHECKING:
    from tensorwright.models.read_weights import TensorSource

Rows: TypeAlias = Callable[[int, int], np.ndarray]
"""Takes [start, end), and returns those rows of the matrix: float32, or bfloat16 bits as uint16."""

Codes: TypeAlias = Callable[[int, int], HeldCodes | None]
"""Takes [start, end), and returns the codes of those rows; None if the checkpoint has none that the format can hold."""


class Packed(NamedTuple):
    """What rounding cost: the sum of squared errors, that of squared weights, and whether all weights were finite."""

    error: float
    weight: float
    finite: bool


@dataclass(frozen=True)
class RowPacker:
    """Packs rows of one matrix in one format."""

    fmt: WeightFormat
    k: int
    read: Rows
    codes: Codes

    def pack(self, start: int, end: int, out: np.ndarray, half: int = 0, halves: int = 1) -> list[Packed]:
        """Packs rows [start, end), the first of which begins a panel, into every `halves`-th panel of out from `half`
        on. out: uint8, of whole panels."""
        held = self.codes(start, end)
        if held is None:
            return [self._round(start, end, out, half, halves)]
        places = out.reshape(-1, self.fmt.panel_bytes(self.k))[half::halves]
        sums = []
        for fits, run in groupby(enumerate(held.panels()), key=lambda panel: bool(panel[1])):
            panels = [panel for panel, _ in run]
            first, last = panels[0] * LANES, min(end - start, (panels[-1] + 1) * LANES)
            into = places[panels[0] : panels[-1] + 1]
            if fits:
                zeros = None if held.zeros is None else held.zeros[first:last]
                kept = Quantized(held.values[first:last], held.scales[first:last], zeros)
                into[:] = pack(kept, self.fmt, self.k)
                with np.errstate(over="ignore"):  # A product may be beyond float32.
                    weights = dequantized(kept, self.k)
                finite = bool(np.isfinite(weights).all())
                sums.append(Packed(0.0, float(np.square(weights, dtype=np.float64).sum()), finite))
            else:
                rounded = np.empty(len(panels) * self.fmt.panel_bytes(self.k), np.uint8)
                sums.append(self._round(start + first, start + last, rounded, 0, 1))
                into[:] = rounded.reshape(len(panels), -1)
        return sums

    def _round(self, start: int, end: int, out: np.ndarray, half: int, halves: int) -> Packed:
        rows = self.read(start, end)
        return Packed(*native().quantize_panels(NUMBERS[self.fmt.codec], self.fmt.group, rows, out, half, halves))

    def whole(self, start: int, end: int) -> tuple[np.ndarray, list[Packed]]:
        """Returns the panels of rows [start, end) by themselves, and what rounding them cost."""
        out = np.empty(panels_of(end - start) * self.fmt.panel_bytes(self.k), np.uint8)
        return out, self.pack(start, end, out)


def no_codes(start: int, end: int) -> None:
    """The codes of a matrix of which every row is rounded."""
    return


def stored_codes(expr: WeightExpr, source: TensorSource, fmt: WeightFormat, matrix: int = 0) -> Codes:
    """Returns what reads the codes of a weight [N, K], or of the matrix of that number of a weight [E, N, K]."""
    *experts, _, k = expr.shape(source)

    def read(start: int, end: int) -> HeldCodes | None:
        if not experts:
            return read_codes(expr, source, fmt, ((start, end), (0, k)))
        held = read_codes(expr, source, fmt, ((matrix, matrix + 1), (start, end), (0, k)))
        return held and HeldCodes(
            held.values[0], held.scales[0], held.fits[0], None if held.zeros is None else held.zeros[0]
        )

    return read


def native() -> Any:
    """Returns the runtime's compiled module. Raises MissingDependencyError without it."""
    try:
        from tensorwright.runtime import _runtime
    except ImportError as error:
        raise MissingDependencyError(
            "quantizing weights needs the C++ runtime, which is not built here; "
            "install tensorwright with its compiled module"
        ) from error
    return _runtime
