"""Makes the launch of swiglu, the gated activation y = act(gate) * up.

    inputs   x [T, 2 C], gate columns and then up columns
    outputs  y [T, C], of x's type
attrs: activation, one of ACTIVATIONS of plugins/gated.py, and `channels` (C) for `kernels`, which sees no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gated import ACTIVATIONS
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

MODULE = "tensorwright.plugins.swiglu.gpu"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per activation, number of columns and type."""
    return (_spec(attrs["activation"], attrs["channels"], dtypes["x"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, y = inputs["x"], outputs["y"]
    channels = y.shape[-1]
    require_shape(x, (*y.shape[:-1], 2 * channels), x.dtype)
    require_shape(y, y.shape, x.dtype)
    require_dense(x, y)
    if prod(y.shape) == 0:
        return []
    spec = _spec(attrs["activation"], channels, x.dtype)
    return [make_launch(spec, column_grid(prod(y.shape[:-1]), channels, spec), {"x": x, "y": y})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(activation: str, channels: int, dtype: str) -> KernelSpec:
    if activation not in ACTIVATIONS:
        raise KernelError(f"swiglu: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if channels < 1:
        raise KernelError(f"swiglu on a GPU: the result must have a column, got {channels}")
    return KernelSpec(
        kernel="gated_kernel",
        module=MODULE,
        signature=(("x", POINTERS[dtype]), ("y", POINTERS[dtype])),
        constants=(("ACTIVATION", activation), ("C", channels), ("BLOCK", column_block(channels))),
        aligned=("x", "y") if aligns_rows(channels, dtype) else (),
        num_warps=4,
    )
