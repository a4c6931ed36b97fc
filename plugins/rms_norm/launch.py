"""Makes the launches of rms_norm, and of add_rms_norm if there is a residual.

    inputs   x [..., C], residual [..., C] (add_rms_norm), w [C] float32
    outputs  y [..., C], sum [..., C] (add_rms_norm)
All but w are of one type. attrs: eps, weight_offset, and `channels` (C) for `kernels`, which sees no tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
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

MODULE = "tensorwright.plugins.rms_norm.gpu"
MAX_CHANNELS = 16384
"""The most channels: a row stays in the registers of one block of threads."""
MAX_WARPS = 16
ELEMENTS_OF_A_THREAD = 16


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per number of channels and type."""
    return (_spec(attrs["channels"], dtypes["x"], "residual" in dtypes),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    x, w = inputs["x"], inputs["w"]
    with_sum = "residual" in inputs
    rows = {name: inputs[name] for name in ("x", "residual") if name in inputs}
    rows |= {"y": outputs["y"], **({"total": outputs["sum"]} if with_sum else {})}
    for tensor in rows.values():
        require_shape(tensor, x.shape, x.dtype)
    require_shape(w, x.shape[-1:], "float32")
    require_dense(*rows.values(), w)
    if prod(x.shape) == 0:
        return []
    spec = _spec(x.shape[-1], x.dtype, with_sum)
    scalars = {"eps": float(attrs["eps"]), "weight_offset": float(attrs["weight_offset"])}
    return [make_launch(spec, grid_of(prod(x.shape[:-1])), {**rows, "w": w, **scalars})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


@functools.cache
def _spec(channels: int, dtype: str, with_sum: bool) -> KernelSpec:
    if not 1 <= channels <= MAX_CHANNELS:
        raise KernelError(f"rms_norm on a GPU: rows must have 1 to {MAX_CHANNELS} channels, got {channels}")
    names = ("x", "residual", "w", "y", "total") if with_sum else ("x", "w", "y")
    block = next_power_of_2(channels)
    warps = min(max(block // (32 * ELEMENTS_OF_A_THREAD), 1), MAX_WARPS)
    tensors = tuple((name, "*fp32" if name == "w" else POINTERS[dtype]) for name in names)
    return KernelSpec(
        kernel="add_rms_norm_kernel" if with_sum else "rms_norm_kernel",
        module=MODULE,
        signature=(*tensors, ("eps", "fp32"), ("weight_offset", "fp32")),
        constants=(("C", channels), ("BLOCK", block)),
        aligned=names if channels * ITEM_BYTES[dtype] % 16 == 0 else (),
        num_warps=warps,
    )
