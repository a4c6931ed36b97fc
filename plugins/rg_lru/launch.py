"""Makes the launches of carried_rg_lru: rows x, input and decay [T, C], weights w [3, C].

attrs: slot_numbers; for `kernels`, which sees no tensor, also channels (C). plugins/gpu/carried.py has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.plugins.gpu.carried import carried_launch, carried_spec
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, ceil_div
from tensorwright.plugins.rg_lru.carried import RATE

MODULE = "tensorwright.plugins.rg_lru.gpu"
BLOCK = 128


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes, attrs["channels"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    tokens, channels = inputs["x"].shape
    shapes = {**dict.fromkeys(("x", "input", "decay", "y"), (tokens, channels)), "w": (3, channels)}
    spec = _spec(attrs, {name: tensor.dtype for name, tensor in inputs.items()}, channels)
    return carried_launch(spec, (ceil_div(channels, BLOCK),), inputs, outputs["y"], shapes, channels, {"rate": RATE})


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(attrs: Mapping[str, Any], dtypes: Mapping[str, str], channels: int) -> KernelSpec:
    constants = {"C": channels, "SLOT": attrs["slot_numbers"], "BLOCK": BLOCK}
    rows = ("x", "input", "decay")
    return carried_spec(
        "carried_rg_lru_kernel", MODULE, rows, ("w",), dtypes, constants, num_warps=1, numbers=("rate",)
    )
