"""Makes the launch of rms_norm_columns, and of every layer norm without a sum (plugins/layer_norm/launch.py).

    inputs   x [T, N], w [width] or [heads, width] float32, b (layer norms; may be absent) as w
    outputs  y [T, N], of x's type. If it is x's memory, only the runs are touched; else the other columns are copied
attrs: start, heads, eps, weight_offset; for `kernels`, which sees no tensor, also `width`, `columns` (N), `in_place`.
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
    ceil_div,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)
from tensorwright.plugins.rms_norm.launch import ELEMENTS_OF_A_THREAD, MAX_CHANNELS, MAX_WARPS

MODULE = "tensorwright.plugins.rms_norm.gpu_columns"
ELEMENTS = 1024
"""The elements of a program that takes several runs."""


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per type, number of columns, and runs."""
    return (spec_of(attrs, attrs["columns"], attrs["width"], dtypes, attrs["in_place"], centred=False, per_head=False),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    return normalise(attrs, inputs, outputs["y"], centred=False)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def normalise(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor, *, centred: bool) -> list[Launch]:
    """Makes the launch for x [T, N], w [width] or [heads, width], b like w. `centred`: a layer norm."""
    x, w = inputs["x"], inputs["w"]
    rows, columns = x.shape
    width, per_head = w.shape[-1], len(w.shape) == 2
    shape = (attrs["heads"], width) if per_head else (width,)
    require_shape(y, x.shape, x.dtype)
    for name in ("w", "b"):
        if name in inputs:
            require_shape(inputs[name], shape, "float32")
    require_dense(*inputs.values(), y)
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    in_place = x.address == y.address
    spec = spec_of(attrs, columns, width, dtypes, in_place, centred=centred, per_head=per_head)
    if rows == 0:
        return []
    parts = ceil_div(attrs["heads"], spec.size("HEADS")) + ceil_div(spec.size("COPIED"), spec.size("COPY_BLOCK"))
    scalars = {"eps": float(attrs["eps"]), "weight_offset": float(attrs["weight_offset"])}
    return [make_launch(spec, grid_of(rows, parts), {**inputs, "y": y, **scalars})]


def spec_of(
    attrs: Mapping[str, Any],
    columns: int,
    width: int,
    dtypes: Mapping[str, str],
    in_place: bool,
    *,
    centred: bool,
    per_head: bool,
) -> KernelSpec:
    start, heads = attrs["start"], attrs["heads"]
    if not 1 <= width <= MAX_CHANNELS or heads < 1 or start < 0 or start + heads * width > columns:
        raise KernelError(
            f"a norm of columns on a GPU: {heads} runs of {width} columns from {start} on must lie in {columns}, "
            f"and have 1 to {MAX_CHANNELS} columns each"
        )
    item, kind = ITEM_BYTES[dtypes["x"]], POINTERS[dtypes["x"]]
    block = next_power_of_2(width)
    heads_of_a_program = min(max(ELEMENTS // block, 1), next_power_of_2(heads))
    names = ("x", "w", "b", "y") if "b" in dtypes else ("x", "w", "y")
    wide = all(size * item % 16 == 0 for size in (columns, start, width)) and width % 4 == 0
    return KernelSpec(
        kernel="columns_norm_kernel",
        module=MODULE,
        signature=(
            *((name, kind if name in ("x", "y") else "*fp32") for name in names),
            ("eps", "fp32"),
            ("weight_offset", "fp32"),
        ),
        constants=(
            *(() if "b" in dtypes else (("b", None),)),
            ("N", columns),
            ("START", start),
            ("RUNS", heads),
            ("WIDTH", width),
            ("HEADS", heads_of_a_program),
            ("WIDTH_BLOCK", block),
            ("CENTRED", centred),
            ("PER_HEAD", per_head),
            ("COPIED", 0 if in_place else columns - heads * width),
            ("COPY_BLOCK", ELEMENTS),
        ),
        aligned=names if wide else (),
        num_warps=min(max(heads_of_a_program * block // (32 * ELEMENTS_OF_A_THREAD), 1), MAX_WARPS),
    )
