"""experts_down(x, index, weights?, down, bias?):  the second product of experts, and the sum over slots

x: what experts_up gives, [..., k I].  y: [..., H].  Without `weights`, the slots have the weight one. The other
operands are those of plugins/experts/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.ir.records import Instruction, rows, shared
from tensorwright.plugins.experts.op import PART, Multiply, multiply_floats, own_experts


def compute(inputs: Sequence[Any], attrs: dict[str, Any], multiply: Multiply) -> list[np.ndarray]:
    x, index, weights, down, bias = (*inputs, None)[:5]
    chosen = index.reshape(-1, index.shape[-1])
    inner = np.asarray(x, np.float32).reshape(*chosen.shape, -1)
    shares = np.ones(chosen.shape) if weights is None else weights.reshape(chosen.shape).astype(np.float64)
    biases = np.zeros(down.shape[:2]) if bias is None else np.asarray(bias, np.float64).reshape(down.shape[:2])
    y = np.zeros((len(chosen), down.shape[1]))
    for expert, places in own_experts(chosen, attrs, down.shape[0]):
        row, slot = np.nonzero(places)
        given = multiply(inner[row, slot], down[expert]) + biases[expert]
        np.add.at(y, row, shares[row, slot, None] * given)
    return [y.reshape(*x.shape[:-1], -1).astype(np.float32)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64."""
    return compute(inputs, attrs, multiply_floats)


INSTRUCTION = Instruction(
    "experts_down",
    number=30,
    operands=(rows("x"), rows("index"), rows("weights?"), shared("down", PANELS), shared("bias?")),
    attrs={"experts": "int", **PART},
    kind="mixture",
    reference=reference,
    sums=True,
)
