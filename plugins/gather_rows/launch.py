"""Makes the launch of gather_rows, y[r] = x[logit_rows[r]], and that of any other op that copies rows by their numbers.

    inputs   x [T, C], logit_rows [R] int32
    outputs  y [R, C]
attrs: `channels` (C) for `kernels`, which sees no tensor. x and y are of any floating types.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    aligns_rows,
    column_block,
    column_grid,
    make_launch,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.gather_rows.gpu"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per number of columns and types."""
    return (_spec(attrs["channels"], dtypes["x"], dtypes["y"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    return gather(inputs["x"], inputs["logit_rows"], outputs["y"], first=0, scale=1.0)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def gather(table: Tensor, ids: Tensor, y: Tensor, *, first: int, scale: float) -> list[Launch]:
    """Makes the launch of y[t] = scale * table[ids[t] - first], and zeros for numbers that the table has not.

    table [V, C], ids [T] int32, y [T, C]. The product is a float32 and is rounded once.
    """
    count, channels = table.shape
    require_shape(ids, ids.shape[:1], "int32")
    require_shape(y, (*ids.shape, channels), y.dtype)
    require_dense(table, ids, y)
    if prod(y.shape) == 0:
        return []
    spec = _spec(channels, table.dtype, y.dtype)
    values = {"table": table, "ids": ids, "y": y, "first": first, "count": count, "scale": float(scale)}
    return [make_launch(spec, column_grid(ids.shape[0], channels, spec), values)]


def _spec(channels: int, dtype: str, y_dtype: str) -> KernelSpec:
    if channels < 1:
        raise KernelError(f"rows that are gathered on a GPU must have a column, got {channels}")
    return KernelSpec(
        kernel="gather_rows_kernel",
        module=MODULE,
        signature=(
            ("table", POINTERS[dtype]),
            ("ids", "*i32"),
            ("y", POINTERS[y_dtype]),
            ("first", "i32"),
            ("count", "i32"),
            ("scale", "fp32"),
        ),
        constants=(("C", channels), ("BLOCK", column_block(channels))),
        aligned=("table", "y") if aligns_rows(channels, dtype, y_dtype) else (),
        num_warps=4,
    )
