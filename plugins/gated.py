"""Defines the gated activation, act(gate) * up: an operation of its own, and the epilogue of matrix products.

An activation has the name of a word of elementwise programs.
"""

from __future__ import annotations

import numpy as np

from tensorwright.plugins.elementwise.op import UNARY

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
"""The index of an activation is its number in tw_activation of plugins/common/kernel_types.h."""


def gated(gate_up: np.ndarray, activation: str) -> np.ndarray:
    """Returns act(gate) * up of [..., 2I], in float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite: silu is then -0
        product: np.ndarray = UNARY[activation][1](gate) * up
    return product
