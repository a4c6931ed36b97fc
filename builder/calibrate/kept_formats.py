"""Finds for each matrix of a quantized checkpoint the smallest format that holds its codes as they are.

Codes with act-order fit only with the columns of the matrix in the order of its groups (passes/order_columns.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.builder.calibrate.choose_formats import Matrix, chosen_spec, open_matrices
from tensorwright.builder.emit.pack_rows import stored_codes
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.weight_formats import KEPT, LANES, QuantizeSpec, WeightFormat
from tensorwright.ir.graph import Graph
from tensorwright.ir.ops import matrices_of
from tensorwright.ir.weights import ColumnOrder, Ordered, WeightExpr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.quantize_weights import format_for, quantizable, weights_of

_ROWS_ELEMENTS = 4 << 20
"""The elements of a matrix whose codes are read at a time."""


def choose_kept(
    cached: Graph, checkpoint: Checkpoint, spec: QuantizeSpec, formats: Sequence[WeightFormat], advance: Advance
) -> tuple[QuantizeSpec, dict[str, Any]]:
    """Returns the spec with a format in place of each `kept`, and the record of the choice.

    Matrices that no format holds whole have none. The record lists those among them that the checkpoint has quantized.
    """
    matrices = open_matrices(cached, spec, KEPT, formats)
    orders = _orders(cached, checkpoint)
    chosen: dict[Matrix, WeightFormat | None] = {}
    for done, matrix in enumerate(matrices):
        chosen[matrix] = _smallest(matrix, checkpoint, cached.facts.dtype, orders)
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


def choose_orders(cached: Graph, checkpoint: Checkpoint, spec: QuantizeSpec) -> dict[str, str]:
    """Returns the fact "column_orders" of a cached graph without quantized matrices, of which `spec` says the formats:
    the matrices whose first rows fit their format in another order of columns, and not as they are."""
    orders, found = _orders(cached, checkpoint), {}
    for node in quantizable(cached):
        if node.op != "linear" or node.operand(1).producer.attrs["expr"] not in orders:
            continue
        fmt, expr = format_for(node, spec), node.operand(1).producer.attrs["expr"]
        if fmt is None or _begins(expr, checkpoint, fmt):
            continue
        if _begins(Ordered(expr, orders[expr], 1), checkpoint, fmt):
            found[str(expr)] = orders[expr].matrix
    return found


def _orders(cached: Graph, checkpoint: Checkpoint) -> dict[WeightExpr, ColumnOrder]:
    """Returns the order of the columns of each matrix that one linear layer reads, where all weights that it is made of
    have the same."""
    stored = [value.producer.attrs["expr"] for node in quantizable(cached) for value in matrices_of(node)]
    linears = [node.operand(1) for node in quantizable(cached) if node.op == "linear"]
    uses, found = Counter(stored), {}
    for value in linears:
        expr = value.producer.attrs["expr"]
        names = list(dict.fromkeys(expr.refs()))
        first, *others = (checkpoint.column_order(name) for name in names)
        if first is None or uses[expr] > 1 or first.shape != value.shape[1:]:
            continue
        if all(other is not None and np.array_equal(first, other) for other in others):
            found[expr] = ColumnOrder(names[0], len(first))
    return found


def _begins(expr: WeightExpr, checkpoint: Checkpoint, fmt: WeightFormat) -> bool:
    """Returns whether a format holds the first panel of a matrix [N, K]."""
    held = stored_codes(expr, checkpoint, fmt)(0, min(LANES, expr.shape(checkpoint)[0]))
    return held is not None and bool(held.fits.all())


def _smallest(
    matrix: Matrix, checkpoint: Checkpoint, dtype: str, orders: dict[WeightExpr, ColumnOrder]
) -> WeightFormat | None:
    if all(checkpoint.decoded(name) is None for name in matrix.names):
        return None
    by_size = sorted(matrix.candidates, key=lambda fmt: matrix.bytes(fmt, dtype))
    forms = [matrix.exprs]
    if all(expr in orders for expr in matrix.exprs):
        forms.append(tuple(Ordered(expr, orders[expr], 1) for expr in matrix.exprs))
    for fmt in by_size:
        if any(all(_holds(expr, checkpoint, fmt) for expr in form) for form in forms):
            return fmt
    return None


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
