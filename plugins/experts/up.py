"""experts_up(x, index, weights?, up, bias?):  the first product of experts, and what follows it

y: of each row the inner rows of its slots side by side, [..., k I]. With `weights`, they are multiplied into x. The
other operands and the attributes are those of plugins/experts/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.ir.records import Instruction, rows, shared
from tensorwright.plugins.experts.gate import OPTIONAL_ATTRS
from tensorwright.plugins.experts.op import PART, Multiply, inner_of, multiply_floats, own_experts
from tensorwright.plugins.gated import ACTIVATIONS

GATE = {key: kind for key, kind in OPTIONAL_ATTRS.items() if key != "scales_input"}
ATTRS = {"experts": "int", "activation": "str", **GATE, **PART, "inner": "dtype"}
WORDS = {"activation": ACTIVATIONS, "gated": (False, True), "squared": (False, True), "limits_activated": (False, True)}


def compute(inputs: Sequence[Any], attrs: dict[str, Any], multiply: Multiply) -> list[np.ndarray]:
    x, index, weights, up, bias = (*inputs, None)[:5]
    flat, chosen = np.asarray(x, np.float32).reshape(-1, x.shape[-1]), index.reshape(-1, index.shape[-1])
    halves = 2 if attrs["gated"] else 1
    y = np.zeros((*chosen.shape, up.shape[1] // halves), np.float32)
    biases = None if bias is None else np.asarray(bias).reshape(up.shape[:2])
    shares = np.ones(chosen.shape) if weights is None else weights.reshape(chosen.shape).astype(np.float64)
    for expert, places in own_experts(chosen, attrs, up.shape[0]):
        row, slot = np.nonzero(places)
        own = None if biases is None else biases[expert]
        scaled = {**attrs, "scales_input": weights is not None}
        y[row, slot] = inner_of(flat[row], up[expert], own, shares[row, slot, None], scaled, multiply)
    return [y.reshape(*x.shape[:-1], -1)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64, and rounds to the attribute `inner`."""
    return compute(inputs, attrs, multiply_floats)


INSTRUCTION = Instruction(
    "experts_up",
    number=29,
    operands=(rows("x"), rows("index"), rows("weights?"), shared("up", PANELS), shared("bias?")),
    attrs=ATTRS,
    words=WORDS,
    kind="mixture",
    reference=reference,
    sums=True,
)
