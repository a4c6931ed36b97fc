"""Makes the launches of layer_norm, layer_norm_columns, and of add_layer_norm if there is a residual.

    inputs   x, residual (add_layer_norm) [..., C]; w, b (may be absent) float32: [C], or [H, C] for x [..., H, C]
    outputs  y, sum (add_layer_norm), of x's shape and type
For layer_norm_columns x is [T, N], and w is [width] or [heads, width]. Without a residual y may be x's memory.
attrs: eps, weight_offset, for columns start and heads too. For `kernels`, which sees no tensor, also `channels` (C, the
width of a run), `columns` (of a row; absent: the runs are the row), `per_head` (w has two dimensions), and `in_place`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rms_norm.launch import ELEMENTS_OF_A_THREAD, MAX_CHANNELS, MAX_WARPS

MODULE = "tensorwright.plugins.layer_norm.gpu"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per type, number of channels, and runs."""
    channels = attrs["channels"]
    if "residual" in dtypes:
        return (_spec(channels, dtypes["x"], "b" in dtypes),)
    runs = {"start": 0, "heads": 1, **attrs}
    columns = attrs.get("columns", runs["heads"] * channels)
    per_head, in_place = attrs.get("per_head", False), attrs.get("in_place", False)
    return (columns_launch.spec_of(runs, columns, channels, dtypes, in_place, centred=True, per_head=per_head),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    if "residual" in inputs:
        return _add(attrs, inputs, outputs)
    x, y, w = inputs["x"], outputs["y"], inputs["w"]
    if "start" in attrs:
        return columns_launch.normalise(attrs, inputs, y, centred=True)
    heads = w.shape[0] if len(w.shape) == 2 else 1
    require_shape(x, (*x.shape[: -len(w.shape)], *w.shape), x.dtype)
    require_shape(y, x.shape, x.dtype)
    require_dense(x, y)
    rows = {"x": _as_rows(x, len(w.shape)), "y": _as_rows(y, len(w.shape))}
    return columns_launch.normalise(
        {**attrs, "start": 0, "heads": heads}, {**inputs, "x": rows["x"]}, rows["y"], centred=True
    )


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _as_rows(x: Tensor, last: int) -> Tensor:
    """Returns a dense tensor as [rows, columns], with the `last` dimensions as columns."""
    shape = (prod(x.shape[:-last]), prod(x.shape[-last:]))
    return replace(x, shape=shape, strides=(shape[1], 1))


def _add(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> list[Launch]:
    x = inputs["x"]
    rows = {"x": x, "residual": inputs["residual"], "y": outputs["y"], "total": outputs["sum"]}
    weights = {name: inputs[name] for name in ("w", "b") if name in inputs}
    for tensor in rows.values():
        require_shape(tensor, x.shape, x.dtype)
    for tensor in weights.values():
        require_shape(tensor, x.shape[-1:], "float32")
    require_dense(*rows.values(), *weights.values())
    spec = _spec(x.shape[-1], x.dtype, "b" in weights)
    if prod(x.shape) == 0:
        return []
    scalars = {"eps": float(attrs["eps"]), "weight_offset": float(attrs["weight_offset"])}
    return [make_launch(spec, grid_of(prod(x.shape[:-1])), {**rows, **weights, **scalars})]


def _spec(channels: int, dtype: str, with_bias: bool) -> KernelSpec:
    if not 1 <= channels <= MAX_CHANNELS:
        raise KernelError(f"add_layer_norm on a GPU: rows must have 1 to {MAX_CHANNELS} channels, got {channels}")
    names = ("x", "residual", "w", *(("b",) if with_bias else ()), "y", "total")
    block = next_power_of_2(channels)
    return KernelSpec(
        kernel="add_layer_norm_kernel",
        module=MODULE,
        signature=(
            *((name, "*fp32" if name in ("w", "b") else POINTERS[dtype]) for name in names),
            ("eps", "fp32"),
            ("weight_offset", "fp32"),
        ),
        constants=(*(() if with_bias else (("b", None),)), ("C", channels), ("BLOCK", block)),
        aligned=names if channels * ITEM_BYTES[dtype] % 16 == 0 else (),
        num_warps=min(max(block // (32 * ELEMENTS_OF_A_THREAD), 1), MAX_WARPS),
    )
