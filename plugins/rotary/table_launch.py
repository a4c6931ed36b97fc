"""Makes the launch of rotary_table.

    inputs   positions [T] int32, inv_freq [D / 2] float32
    outputs  table [T, D] float32: cosines, then sines, times scale
attrs: scale, and `half` (D / 2) for `kernels`, which sees no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    KernelSpec,
    Launch,
    Tensor,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.rotary.gpu_table"
MAX_HALF = 512
"""The most angles of a token, for a head of 1024 dimensions."""


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per number of angles."""
    return (_spec(attrs["half"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    positions, inv_freq, table = inputs["positions"], inputs["inv_freq"], outputs["table"]
    tokens, half = positions.shape[0], inv_freq.shape[0]
    require_shape(positions, (tokens,), "int32")
    require_shape(inv_freq, (half,), "float32")
    require_shape(table, (tokens, 2 * half), "float32")
    require_dense(positions, inv_freq, table)
    if tokens == 0:
        return []
    values = {"positions": positions, "inv_freq": inv_freq, "table": table, "scale": float(attrs["scale"])}
    return [make_launch(_spec(half), grid_of(tokens), values)]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(half: int) -> KernelSpec:
    if not 1 <= half <= MAX_HALF:
        raise KernelError(f"rotary_table on a GPU: a token must have 1 to {MAX_HALF} angles, got {half}")
    return KernelSpec(
        kernel="rotary_table_kernel",
        module=MODULE,
        signature=(("positions", "*i32"), ("inv_freq", "*fp32"), ("table", "*fp32"), ("scale", "fp32")),
        constants=(("HALF", half), ("BLOCK", next_power_of_2(half))),
        num_warps=1,
    )
