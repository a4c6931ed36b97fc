"""Makes the launches of carried_linear_attention: rows row [T, heads P + 2 heads N], weights w [heads].

It is the scan of state_space_scan with steps of 1, without a skip, and with a group for each head. attrs: those of the
op and slot_numbers; for `kernels`, which sees no tensor, also columns, those of a row. plugins/gpu/carried.py has the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor
from tensorwright.plugins.state_space_scan.launch import scan_launch, scan_spec


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (scan_spec(attrs, dtypes, attrs["heads"], attrs["columns"], stepped=False),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    return scan_launch(attrs, inputs, outputs["y"], attrs["heads"], stepped=False)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0
