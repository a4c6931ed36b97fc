"""Makes the launch of take_columns, y[t, i] = x[t, columns[i]].

    inputs   x [T, N], columns [C] float32, whole numbers from 0 to N - 1
    outputs  y [T, C]; x and y are of any floating types
attrs: for `kernels`, which sees no tensor, `columns` (N) and `channels` (C).
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
    column_block,
    column_grid,
    make_launch,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.take_columns.gpu"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per numbers of columns and types."""
    return (_spec(attrs["columns"], attrs["channels"], dtypes["x"], dtypes["y"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, columns, y = inputs["x"], inputs["columns"], outputs["y"]
    rows, channels = x.shape[0], columns.shape[0]
    require_shape(columns, (channels,), "float32")
    require_shape(y, (rows, channels), y.dtype)
    require_dense(x, columns, y)
    spec = _spec(x.shape[1], channels, x.dtype, y.dtype)
    if rows == 0:
        return []
    return [make_launch(spec, column_grid(rows, channels, spec), {"x": x, "columns": columns, "y": y})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(columns: int, channels: int, dtype: str, y_dtype: str) -> KernelSpec:
    if min(columns, channels) < 1:
        raise KernelError(f"take_columns on a GPU: there must be columns, got {columns}, of which {channels} are taken")
    return KernelSpec(
        kernel="take_columns_kernel",
        module=MODULE,
        signature=(("x", POINTERS[dtype]), ("columns", "*fp32"), ("y", POINTERS[y_dtype])),
        constants=(("N", columns), ("C", channels), ("BLOCK", column_block(channels))),
        num_warps=4,
    )
