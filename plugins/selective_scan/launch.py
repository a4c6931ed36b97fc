"""Makes the launches of carried_selective_scan: rows x and dt [T, C], b and c [T, N], weights w [N + 2, C].

attrs: states (N) and slot_numbers; for `kernels`, which sees no tensor, also channels (C). plugins/gpu/carried.py has
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.carried import carried_launch, carried_spec
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, ceil_div, next_power_of_2

MODULE = "tensorwright.plugins.selective_scan.gpu"
STATE = 2048
"""The numbers of a state that a program holds: 16 for each of 128 threads."""
MAX_STATES = 256


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes, attrs["channels"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    (tokens, channels), count = inputs["x"].shape, attrs["states"]
    wide, narrow = (tokens, channels), (tokens, count)
    shapes = {"x": wide, "dt": wide, "b": narrow, "c": narrow, "w": (count + 2, channels), "y": wide}
    spec = _spec(attrs, {name: tensor.dtype for name, tensor in inputs.items()}, channels)
    parts = (ceil_div(channels, spec.size("BLOCK")),)
    return carried_launch(spec, parts, inputs, outputs["y"], shapes, channels * count)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(attrs: Mapping[str, Any], dtypes: Mapping[str, str], channels: int) -> KernelSpec:
    count = attrs["states"]
    if not 1 <= count <= MAX_STATES:
        raise KernelError(f"carried_selective_scan on a GPU: states must be 1 to {MAX_STATES}, got {count}")
    block = next_power_of_2(count)
    constants = {"C": channels, "N": count, "SLOT": attrs["slot_numbers"], "BLOCK": STATE // block, "N_BLOCK": block}
    return carried_spec("carried_selective_scan_kernel", MODULE, ("x", "dt", "b", "c"), ("w",), dtypes, constants)
