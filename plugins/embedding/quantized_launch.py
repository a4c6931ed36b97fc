"""Makes the launch of quantized_embedding of int8 rows: y[t] = scale * (the restored row ids[t] - first).

    inputs   values [V, S] int8 with S >= C, scales [V, groups], ids [T] int32
    outputs  y [T, C]; scales and y are of any floating types
attrs: group, optional scale (1) and first (0), and for `kernels`, which sees no tensor, `channels` (C). The numbers are
restored in float32 and rounded once. values and scales are those of a product of 8 bits (plugins/quantized_matmul/
bytes_launch.py), so a tied matrix is stored once. y is zeros for ids that the table has not.
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
    ceil_div,
    column_block,
    column_grid,
    make_launch,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.embedding.gpu_quantized"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per number of columns, group and types."""
    return (_spec(attrs["channels"], attrs["group"], dtypes),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    values, scales, ids, y = inputs["values"], inputs["scales"], inputs["ids"], outputs["y"]
    count, channels = values.shape[0], y.shape[1]
    groups = ceil_div(channels, attrs["group"])
    require_shape(ids, ids.shape[:1], "int32")
    require_shape(y, (*ids.shape, channels), y.dtype)
    require_shape(values, values.shape[:2], "int8")
    require_shape(scales, (count, groups), scales.dtype)
    require_dense(values, scales, ids, y)
    if values.shape[1] < channels:
        raise KernelError(f"quantized_embedding: a row of {values.name} must hold {channels} bytes, got {values.shape}")
    if prod(y.shape) == 0:
        return []
    spec = _spec(channels, attrs["group"], {"scales": scales.dtype, "y": y.dtype})
    grid = column_grid(ids.shape[0], channels, spec)
    numbers = {"first": int(attrs.get("first", 0)), "count": count, "scale": float(attrs.get("scale", 1.0))}
    return [make_launch(spec, grid, {**inputs, "y": y, **numbers, "row_bytes": values.shape[1], "groups": groups})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(channels: int, group: int, dtypes: Mapping[str, str]) -> KernelSpec:
    if min(channels, group) < 1:
        raise KernelError(f"quantized_embedding: columns and group must be at least 1, got {channels} and {group}")
    return KernelSpec(
        kernel="quantized_rows_kernel",
        module=MODULE,
        signature=(
            ("values", "*i8"),
            ("scales", POINTERS[dtypes["scales"]]),
            ("ids", "*i32"),
            ("y", POINTERS[dtypes["y"]]),
            ("first", "i32"),
            ("count", "i32"),
            ("scale", "fp32"),
            ("row_bytes", "i32"),
            ("groups", "i32"),
        ),
        constants=(("C", channels), ("GROUP", group), ("BLOCK", column_block(channels))),
        num_warps=4,
    )
