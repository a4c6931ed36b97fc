"""Makes the launch that writes features to the slots of their positions: table[ids[r]] = x[r].

    inputs   x [R, C], ids [R] int32
    outputs  table [V, C]
attrs: `channels` (C) for `kernels`. x and table are of any floating types. A row with a negative number is written
nowhere, and two rows must not have the same number. plugins/gather_rows reads the rows back.
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

MODULE = "tensorwright.plugins.draft_features.gpu"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per number of columns and types."""
    return (_spec(attrs["channels"], dtypes["x"], dtypes["table"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, ids, table = inputs["x"], inputs["ids"], outputs["table"]
    channels = x.shape[1]
    require_shape(ids, x.shape[:1], "int32")
    require_shape(table, (table.shape[0], channels), table.dtype)
    require_dense(x, ids, table)
    if prod(x.shape) == 0:
        return []
    spec = _spec(channels, x.dtype, table.dtype)
    return [make_launch(spec, column_grid(x.shape[0], channels, spec), {"x": x, "ids": ids, "table": table})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(channels: int, dtype: str, table_dtype: str) -> KernelSpec:
    if channels < 1:
        raise KernelError(f"features that are written on a GPU must have a column, got {channels}")
    return KernelSpec(
        kernel="put_rows_kernel",
        module=MODULE,
        signature=(("x", POINTERS[dtype]), ("ids", "*i32"), ("table", POINTERS[table_dtype])),
        constants=(("C", channels), ("BLOCK", column_block(channels))),
        aligned=("x", "table") if aligns_rows(channels, dtype, table_dtype) else (),
        num_warps=4,
    )
