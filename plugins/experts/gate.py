"""Defines what an expert computes between its two products, and the attributes that say it.

    gated       act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset),  where [gate, up] are the two halves;
                min(act(gate), limit) takes the place of act(min(gate, limit)) if `limits_activated`
    not gated   act(up), and the square of that if `squared`

act is `activation`, one of plugins/gated.py; with a `slope`, silu is x * sigmoid(slope * x).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.plugins.elementwise.op import UNARY
from tensorwright.plugins.gated import ACTIVATIONS

OPTIONAL_ATTRS = {
    "gated": "bool",
    "squared": "bool",
    "limits_activated": "bool",
    "slope": "float",
    "limit": "float",
    "up_offset": "float",
    "scales_input": "bool",
}
DEFAULTS: dict[str, Any] = {
    "gated": True,
    "squared": False,
    "limits_activated": False,
    "slope": 1.0,
    "limit": float("inf"),
    "up_offset": 0.0,
    "scales_input": False,
}
"""The values of the attributes that a node may lack. scales_input: the weights of a row's experts are multiplied into
what the experts read, not into what they give."""


def check_gate(attrs: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes with the values of those that are absent. Raises GraphError for what no kernel has."""
    if attrs["activation"] not in ACTIVATIONS:
        raise GraphError(f"experts: activation must be one of {', '.join(ACTIVATIONS)}, got {attrs['activation']!r}")
    every = {**DEFAULTS, **attrs}
    if every["squared"] and every["gated"]:
        raise GraphError("experts: only an activation without a gate may be squared")
    if every["slope"] != 1 and every["activation"] != "silu":
        raise GraphError(f"experts: slope is for silu alone, got activation {every['activation']!r}")
    return every


def apply_gate(wide: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Returns the inner row [..., I] of what the first product gives, [..., 2I] or [..., I], in float64."""
    every = check_gate({key: attrs[key] for key in ("activation", *OPTIONAL_ATTRS) if key in attrs})
    wide = wide.astype(np.float64)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite: silu is then -0
        if not every["gated"]:
            y = _activate(wide, every)
            return y * y if every["squared"] else y
        gate, up = np.split(wide, 2, axis=-1)
        limit = every["limit"]
        if every["limits_activated"]:
            gate = np.minimum(_activate(gate, every), limit)
        else:
            gate = _activate(np.minimum(gate, limit), every)
        return gate * (np.clip(up, -limit, limit) + every["up_offset"])


def _activate(x: np.ndarray, every: dict[str, Any]) -> np.ndarray:
    if every["activation"] == "silu":
        return x / (1.0 + np.exp(-every["slope"] * x))
    result: np.ndarray = UNARY[every["activation"]][1](x)
    return result
