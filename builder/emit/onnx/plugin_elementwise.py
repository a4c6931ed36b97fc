"""Ops on each element in the plugin form. What one op of A rounds as float32 arithmetic would is computed in A."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorwright.builder.emit.onnx.elementwise import NAMES
from tensorwright.ir.graph import Node, Value

if TYPE_CHECKING:
    from tensorwright.builder.emit.onnx.plugin_form import PluginEmitter

EXACT = frozenset(("add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "relu", "square"))
"""One rounding at most, so that A's own arithmetic is right."""


def _elementwise(e: PluginEmitter, node: Node) -> list[str]:
    numbers = [number_of(v) for v in node.inputs]
    streams = [v for v in node.inputs if v in e.names]
    all_wide = all(e.kinds[v] == "float32" for v in streams if v is not None)
    in_a = node.op in EXACT and not all_wide and all(n is None or e.exact(n) for n in numbers)
    dtype = e.dtype if in_a else "float32"
    operands = [_operand(e, v, n, dtype) for v, n in zip(node.inputs, numbers, strict=True)]
    result = _compute(e, node, operands)
    if all_wide:
        e.kinds[node.output] = "float32"
        return [result]
    return [result if in_a else e.narrow(result, node.scope)]


def number_of(value: Value | None) -> float | None:
    """A constant number."""
    if value is None or not value.is_scalar_constant:
        return None
    return float(value.constant)


def _operand(e: PluginEmitter, value: Value | None, number: float | None, dtype: str) -> str:
    assert value is not None
    if number is not None:
        return e.number(number, dtype)
    if value not in e.names:
        return e.weights.plain(value, dtype)
    return e.activation(value) if e.kinds[value] == dtype else e.wide(value)


def _compute(e: PluginEmitter, node: Node, x: list[str]) -> str:
    scope = node.scope
    if node.op == "square":
        return e.add("Mul", x * 2, scope)
    if node.op == "rsqrt":
        return e.add("Reciprocal", [e.add("Sqrt", x, scope)], scope)
    if node.op == "silu":
        return activate(e, "silu", x[0], scope)
    if node.op == "gelu":
        return activate(e, "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu", x[0], scope)
    return e.add(NAMES[node.op], x, scope)


def activate(e: PluginEmitter, kind: str, x: str, scope: str) -> str:
    """An activation of plugins/swiglu, in float32."""
    if kind == "silu":
        return e.add("Mul", [x, e.add("Sigmoid", [x], scope)], scope)
    if kind == "relu":
        return e.add("Relu", [x], scope)
    return e.add("Gelu", [x], scope, approximate="tanh" if kind == "gelu_tanh" else "none")


def _swiglu(e: PluginEmitter, node: Node) -> list[str]:
    """Halves of a row, multiplied in float32 and rounded once."""
    columns, scope = int(node.output.shape[-1]), node.scope
    halves = [e.wide(node.inputs[0]), e.ints([columns, columns])]
    gate, up = e.model.node("Split", halves, scope=scope, outputs=["", ""], axis=-1)
    return [e.narrow(e.add("Mul", [activate(e, node.attrs["activation"], gate, scope), up], scope), scope)]


def _clamp(e: PluginEmitter, node: Node) -> list[str]:
    """In float32, which holds the bounds."""
    bounds = [node.attrs["min"], node.attrs["max"]]
    operands = [e.wide(node.inputs[0]), *("" if b is None else e.number(float(b), "float32") for b in bounds)]
    return [e.narrow(e.add("Clip", operands, node.scope), node.scope)]


def _slice(e: PluginEmitter, node: Node) -> list[str]:
    """Of columns; tokens are never sliced at this stage."""
    start, end, step = (int(node.attrs[key]) for key in ("start", "end", "step"))
    bounds = [e.ints([number]) for number in (start, end, node.attrs["dim"], step)]
    return [e.add("Slice", [e.activation(node.inputs[0]), *bounds], node.scope)]


def _cast(e: PluginEmitter, node: Node) -> list[str]:
    """Among floating types: all activations are A already."""
    if node.attrs["dtype"] not in ("float32", "float16", "bfloat16"):
        raise e.refusal(node, f"a cast to {node.attrs['dtype']} has no ONNX form for TensorRT")
    value = node.inputs[0]
    assert value is not None
    e.kinds[node.output] = e.kinds[value]
    return [e.activation(value)]


ELEMENTWISE_HANDLERS: dict[str, Callable[[PluginEmitter, Node], list[str]]] = {
    **dict.fromkeys((*NAMES, "square", "rsqrt", "silu", "gelu"), _elementwise),
    "swiglu": _swiglu,
    "clamp": _clamp,
    "slice": _slice,
    "cast": _cast,
}
