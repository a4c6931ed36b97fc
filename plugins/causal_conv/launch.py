"""Makes the launches of carried_conv: rows x [T, C], weights w [W, C] and bias [C], which may be absent.

attrs: activation and slot_numbers; for `kernels`, which sees no tensor, also channels (C) and width (W).
plugins/gpu/carried.py has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.causal_conv.op import ACTIVATIONS
from tensorwright.plugins.gpu.carried import carried_launch, carried_spec
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, ceil_div, next_power_of_2

MODULE = "tensorwright.plugins.causal_conv.gpu"
BLOCK, ROWS = 64, 16
MAX_WIDTH = 16


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes, attrs["channels"], attrs["width"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    x, (width, channels) = inputs["x"], inputs["w"].shape
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    shapes = {"x": (x.shape[0], channels), "w": (width, channels), "bias": (channels,), "y": (x.shape[0], channels)}
    spec = _spec(attrs, dtypes, channels, width)
    return carried_launch(spec, (ceil_div(channels, BLOCK),), inputs, outputs["y"], shapes, (width - 1) * channels)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(attrs: Mapping[str, Any], dtypes: Mapping[str, str], channels: int, width: int) -> KernelSpec:
    if not 1 <= width <= MAX_WIDTH or attrs["activation"] not in ACTIVATIONS:
        raise KernelError(
            f"carried_conv on a GPU: there must be 1 to {MAX_WIDTH} inputs, and the activation one of {ACTIVATIONS}, "
            f"got {width} and {attrs['activation']!r}"
        )
    constants = {
        "C": channels, "WIDTH": width, "ACTIVATION": attrs["activation"], "SLOT": attrs["slot_numbers"],
        "BLOCK": BLOCK, "ROWS": ROWS, "KEPT": next_power_of_2(max(width - 1, 1)),
    }  # fmt: skip
    return carried_spec("carried_conv_kernel", MODULE, ("x",), ("w", "bias"), dtypes, constants)
