"""Makes the launches of a concat of columns: one for each operand.

    inputs   x0 [T, C0], x1 [T, C1] and so on, as many as there are
    outputs  y [T, C0 + C1 + ...]; all are of any floating types
attrs: for `kernels`, which sees no tensor, `channels`: the numbers of columns, in the order of the operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, require_shape
from tensorwright.plugins.take_columns.slice_launch import copy_columns, copy_spec


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation for each operand."""
    found, at, total = [], 0, sum(attrs["channels"])
    for index, count in enumerate(attrs["channels"]):
        found.append(copy_spec(count, range(count), at, total, dtypes[f"x{index}"], dtypes["y"]))
        at += count
    return tuple(found)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    parts, y = [inputs[f"x{index}"] for index in range(len(inputs))], outputs["y"]
    require_shape(y, (parts[0].shape[0], sum(part.shape[1] for part in parts)), y.dtype)
    found, at = [], 0
    for part in parts:
        require_shape(part, (y.shape[0], part.shape[1]), part.dtype)
        found += copy_columns(part, range(part.shape[1]), y, at)
        at += part.shape[1]
    return found


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0
