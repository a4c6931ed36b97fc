"""The gated activation, act(gate) * up: an operation of its own, and the epilogue of matrix products.

An activation is named by a word of elementwise programs.
"""

from __future__ import annotations

import numpy as np

from tensorwright.plugins.elementwise.op import UNARY

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
"""By number: tw_activation of plugins/common/kernel_types.h."""


def gated(gate_up: np.ndarray, activation: str) -> np.ndarray:
    """[..., 2I] -> act(gate) * up, float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite: silu is then -0
        product: np.ndarray = UNARY[activation][1](gate) * up
    return product
