"""Makes the launches of head_products and weight_only_head_products.

    inputs   x [T, H S], w [H, N, ...] and, for quantized weights, scales, as rows_launch.py has them of [H, N, K]
    outputs  y [T, H N], of x's type
attrs: heads (H), columns (S), n, k, and optional form and group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    aligns_rows,
    ceil_div,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)
from tensorwright.plugins.quantized_matmul.rows_launch import FLOAT, Form

MODULE = "tensorwright.plugins.head_products.gpu"
ROWS = (16, 64)
"""The rows of x of a program, in each specialisation. Steps of more rows than the first get the second."""
COLUMNS = 64
WARPS = {16: 4, 64: 8}
STAGES = 3


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of rows."""
    return tuple(_spec(attrs, dtypes["x"], rows) for rows in ROWS)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, y = inputs["x"], outputs["y"]
    heads, columns, n, k = (attrs[name] for name in ("heads", "columns", "n", "k"))
    rows = x.shape[0]
    require_shape(x, (rows, heads * columns), x.dtype)
    require_shape(y, (rows, heads * n), x.dtype)
    form_of(attrs).check(inputs["w"], inputs.get("scales"), (heads, n, k), x.dtype)
    require_dense(*inputs.values(), y)
    if rows == 0:
        return []
    of_a_program = ROWS[0] if rows <= ROWS[0] else ROWS[1]
    spec = _spec(attrs, x.dtype, of_a_program)
    grid = grid_of(ceil_div(rows, of_a_program), ceil_div(n, COLUMNS), heads)
    return [make_launch(spec, grid, {**inputs, "y": y, "rows": rows})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def form_of(attrs: Mapping[str, Any]) -> Form:
    return Form(attrs.get("form", FLOAT), attrs.get("group", 0))


def _spec(attrs: Mapping[str, Any], dtype: str, rows: int) -> KernelSpec:
    heads, columns, n, k = (attrs[name] for name in ("heads", "columns", "n", "k"))
    if min(heads, n, k) < 1 or columns < k:
        raise KernelError(f"head_products: {heads} heads of {columns} columns must have the {k} that are multiplied")
    form = form_of(attrs)
    scales = (("scales", POINTERS[dtype]),) if form.scaled else ()
    tensors = (("x", POINTERS[dtype]), ("w", POINTERS[form.dtype(dtype)]), *scales, ("y", POINTERS[dtype]))
    wide = aligns_rows(columns, dtype) and aligns_rows(n, dtype) and form.aligns(k, dtype)
    return KernelSpec(
        kernel="head_products_kernel",
        module=MODULE,
        signature=(*tensors, ("rows", "i32")),
        constants=(
            *(() if form.scaled else (("scales", None),)),
            ("H", heads),
            ("S", columns),
            ("N", n),
            ("K", k),
            *form.constants(k).items(),
            ("ROWS", rows),
            ("COLUMNS", COLUMNS),
            ("DEPTH", form.depth(dtype)),
        ),
        aligned=("x", "w", "y") if wide else (),
        num_warps=WARPS[rows],
        num_stages=STAGES,
    )
