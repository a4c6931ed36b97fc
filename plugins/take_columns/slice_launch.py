"""Makes the launch of a slice of columns, y = x[:, start : end : step], and of the copies that make a concat.

    inputs   x [T, N]
    outputs  y [T, C], C columns of the range; x and y are of any floating types
attrs: start, end and step, as the op slice has them (end may lie behind N; negative numbers count from the end); for
`kernels`, which sees no tensor, also `columns` (N).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
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
from tensorwright.plugins.take_columns.launch import MODULE


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per range and types."""
    places = _range(attrs, attrs["columns"])
    return (copy_spec(attrs["columns"], places, 0, len(places), dtypes["x"], dtypes["y"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, y = inputs["x"], outputs["y"]
    places = _range(attrs, x.shape[1])
    require_shape(y, (x.shape[0], len(places)), y.dtype)
    return copy_columns(x, places, y, 0)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def copy_columns(x: Tensor, places: range, y: Tensor, to: int) -> list[Launch]:
    """Makes the launch of y[t, to + i] = x[t, places[i]] for x [T, N] and y [T, M]."""
    rows = x.shape[0]
    require_dense(x, y)
    spec = copy_spec(x.shape[1], places, to, y.shape[1], x.dtype, y.dtype)
    if rows == 0:
        return []
    return [make_launch(spec, column_grid(rows, len(places), spec), {"x": x, "y": y})]


def copy_spec(columns: int, places: range, to: int, y_columns: int, dtype: str, y_dtype: str) -> KernelSpec:
    count = len(places)
    if count < 1 or places.step < 1 or places.start < 0 or places[-1] >= columns or not 0 <= to <= y_columns - count:
        raise KernelError(
            f"columns that are copied on a GPU must lie in {columns} and become some of {y_columns}, in order; "
            f"got {places} and the place {to}"
        )
    sizes = ((columns, dtype), (places.start, dtype), (count, y_dtype), (to, y_dtype), (y_columns, y_dtype))
    wide = places.step == 1 and all(size * ITEM_BYTES[kind] % 16 == 0 for size, kind in sizes)
    return KernelSpec(
        kernel="copy_columns_kernel",
        module=MODULE,
        signature=(("x", POINTERS[dtype]), ("y", POINTERS[y_dtype])),
        constants=(
            ("N", columns),
            ("START", places.start),
            ("STEP", places.step),
            ("C", count),
            ("TO", to),
            ("M", y_columns),
            ("BLOCK", column_block(count)),
        ),
        aligned=("x", "y") if wide else (),
        num_warps=4,
    )


def _range(attrs: Mapping[str, Any], columns: int) -> range:
    return range(columns)[attrs["start"] : attrs["end"] : attrs["step"]]
