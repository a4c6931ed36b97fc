"""Makes the launch of embedding: y[t] = scale * table[ids[t] - first].

    inputs   table [V, C], ids [T] int32
    outputs  y [T, C]
attrs: optional scale (1) and first (0), and `channels` (C) for `kernels`. table and y are of any floating types. The
product with scale is a float32, rounded once. y is zeros for ids that the table has not, so no id reads other memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.plugins.gather_rows import launch as rows
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return rows.kernels(attrs, {"x": dtypes["table"], "y": dtypes["y"]}, sm)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    first, scale = int(attrs.get("first", 0)), float(attrs.get("scale", 1.0))
    return rows.gather(inputs["table"], inputs["ids"], outputs["y"], first=first, scale=scale)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0
