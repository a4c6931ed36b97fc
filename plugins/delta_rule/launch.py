"""Makes the launches of carried_delta_rule: rows row [T, 2 key_heads K + heads P], dt [T, heads] or [T, heads K] and
beta [T, heads], weights w [heads].

attrs: those of the op and slot_numbers; for `kernels`, which sees no tensor, also columns, those of a row, and steps,
those of dt. plugins/gpu/carried.py has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.delta_rule.op import EPSILON
from tensorwright.plugins.gpu.carried import carried_launch, carried_spec
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, ceil_div, next_power_of_2

MODULE = "tensorwright.plugins.delta_rule.gpu"
STATE = 4096
"""The most numbers of a state that a program holds, for keys of up to 256: 32 for each of 128 threads."""
MAX_KEYS = 512


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes, attrs["columns"], attrs["steps"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    (tokens, columns), heads, width = inputs["row"].shape, attrs["heads"], attrs["width"]
    steps = inputs["dt"].shape[1]
    spec = _spec(attrs, {name: tensor.dtype for name, tensor in inputs.items()}, columns, steps)
    keys = spec.size("K")
    shapes = {
        "row": (tokens, columns), "dt": (tokens, steps), "beta": (tokens, heads), "w": (heads,),
        "y": (tokens, heads * width),
    }  # fmt: skip
    numbers = {"beta_scale": float(attrs["beta_scale"]), "scale": keys**-0.5, "epsilon": EPSILON}
    parts = (heads, ceil_div(width, spec.size("P_BLOCK")))
    return carried_launch(spec, parts, inputs, outputs["y"], shapes, heads * keys * width, numbers)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(attrs: Mapping[str, Any], dtypes: Mapping[str, str], columns: int, steps: int) -> KernelSpec:
    heads, key_heads, width = attrs["heads"], attrs["key_heads"], attrs["width"]
    keys, rest = divmod(columns - heads * width, 2 * key_heads)
    if not 1 <= keys <= MAX_KEYS or rest or heads % key_heads or steps not in (heads, heads * keys):
        raise KernelError(
            f"carried_delta_rule on a GPU: keys must have 1 to {MAX_KEYS} columns, and dt one for each head or key, "
            f"got {keys} and {steps} for {heads} heads"
        )
    block = next_power_of_2(keys)
    constants = {
        "HEADS": heads, "KEY_HEADS": key_heads, "K": keys, "P": width, "PER_KEY": steps != heads,
        "SLOT": attrs["slot_numbers"], "K_BLOCK": block,
        "P_BLOCK": min(next_power_of_2(width), max(STATE // block, 8)),
    }  # fmt: skip
    rows, numbers = ("row", "dt", "beta"), ("beta_scale", "scale", "epsilon")
    return carried_spec("carried_delta_rule_kernel", MODULE, rows, ("w",), dtypes, constants, numbers=numbers)
