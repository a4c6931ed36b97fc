"""Computes y_h = x_h W_h^T for every head, each with a matrix of its own, on tensor cores as W_h times x_h^T.

A program takes COLUMNS columns of one head for ROWS rows of x, so that a matrix is read once for each ROWS rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.quantized_matmul.gpu_rows import add_product, in_scale, load_weights, scales_of


@triton.jit
def head_products_kernel(
    x, w, scales, y, rows, H: tl.constexpr, S: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FORM: tl.constexpr,
    GROUP: tl.constexpr, ROW: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """The grid is: rows / ROWS, N / COLUMNS, H. x [rows, H S], of whose heads the first K columns are read, y
    [rows, H N]; w [H, N, ROW] and scales [H, N, GROUPS] as gpu_rows.py has them."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    head = tl.program_id(2)
    known = row < rows
    inside = column < N
    element: tl.constexpr = x.dtype.element_ty
    rows_of_x = x + (row.to(tl.int64) * H + head)[:, None] * S
    place = head.to(tl.int64) * N + column
    row_scales = scales_of(scales, place, GROUPS)
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for first in range(0, K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        a = tl.load(rows_of_x + k[None, :], mask=known[:, None] & (k < K)[None, :], other=0.0)
        tile = load_weights(w + place[:, None] * ROW, first, inside, K, FORM, COLUMNS, DEPTH, element)
        acc = add_product(acc, tile, tl.trans(a), row_scales, first, inside, GROUP)
    acc = in_scale(acc, row_scales, inside, FORM, GROUP)
    to = y + ((row.to(tl.int64) * H + head) * N)[None, :] + column[:, None]
    tl.store(to, acc.to(y.dtype.element_ty), mask=inside[:, None] & known[None, :])
