"""Finds for each matrix of a quantized checkpoint the smallest format that holds its codes as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorwright.builder.calibrate.choose_formats import Matrix, chosen_spec, open_matrices
from tensorwright.builder.emit.pack_rows import stored_codes
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.weight_formats import KEPT, LANES, QuantizeSpec, WeightFormat
from tensorwright.ir.graph import Graph
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.quantize_weights import quantizable, weights_of

_ROWS_ELEMENTS = 4 << 20
"""The elements of a matrix whose codes are read at a time."""


def choose_kept(
    cached: Graph, checkpoint: Checkpoint, spec: QuantizeSpec, formats: Sequence[WeightFormat], advance: Advance
) -> tuple[QuantizeSpec, dict[str, Any]]:
    """Returns the spec with a format in place of each `kept`, and the record of the choice.

    Matrices that no format holds whole have none. The record lists those among them that the checkpoint has quantized.
    """
    matrices = open_matrices(cached, spec, KEPT, formats)
    chosen: dict[Matrix, WeightFormat | None] = {}
    for done, matrix in enumerate(matrices):
        chosen[matrix] = _smallest(matrix, checkpoint, cached.facts.dtype)
        advance(done + 1, len(matrices))
    names = [name for node in quantizable(cached) for name in weights_of(node)]
    decoded = [
        name
        for matrix, fmt in chosen.items()
        if fmt is None
        for name in matrix.names
        if checkpoint.decoded(name) is not None
    ]
    return chosen_spec(spec, chosen, names), {"method": "kept", "decoded": decoded}


def _smallest(matrix: Matrix, checkpoint: Checkpoint, dtype: str) -> WeightFormat | None:
    if all(checkpoint.decoded(name) is None for name in matrix.names):
        return None
    by_size = sorted(matrix.candidates, key=lambda fmt: matrix.bytes(fmt, dtype))
    return next((fmt for fmt in by_size if all(_holds(expr, checkpoint, fmt) for expr in matrix.exprs)), None)


def _holds(expr: WeightExpr, checkpoint: Checkpoint, fmt: WeightFormat) -> bool:
    """Returns whether a format holds every row of a weight [N, K] or [E, N, K]. The first rows decide nearly always."""
    *several, rows, columns = expr.shape(checkpoint)
    step = max(1, _ROWS_ELEMENTS // (columns * LANES)) * LANES
    ranges = [(0, min(rows, LANES)), *((start, min(rows, start + step)) for start in range(0, rows, step))]
    for number in range(several[0] if several else 1):
        codes = stored_codes(expr, checkpoint, fmt, number)
        for start, end in ranges:
            held = codes(start, end)
            if held is None or not held.fits.all():
                return False
    return True
