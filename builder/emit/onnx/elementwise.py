"""Ops on each element, as standard ONNX ops."""

from __future__ import annotations

NAMES = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min",
    "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "erf": "Erf", "relu": "Relu",
}  # fmt: skip
"""The graph's op -> ONNX's of the same meaning."""
