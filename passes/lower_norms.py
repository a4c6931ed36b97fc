"""How lower_to_cpu lowers the three ops of the instruction layer_norm; not a pass, part of lower_to_cpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorwright.ir import Node, Value

if TYPE_CHECKING:
    from tensorwright.passes.lower_to_cpu import Lowering

RAW = "raw"
"""The layout of vectors."""


def norm_attrs(node: Node) -> dict[str, float]:
    return {"eps": float(node.attrs["eps"]), "weight_offset": float(node.attrs["weight_offset"])}


def lower_layer_norm(low: Lowering, node: Node) -> list[Value]:
    x, w, b = (*node.inputs, None)[:3]
    return emit_layer_norm(low, node, x, w, b, None, whole_row(node))


def lower_add_layer_norm(low: Lowering, node: Node) -> list[Value]:
    x, residual, w, b = (*node.inputs, None)[:4]
    return emit_layer_norm(low, node, x, w, b, residual, whole_row(node))


def lower_layer_norm_columns(low: Lowering, node: Node) -> list[Value]:
    x, w, b = (*node.inputs, None)[:3]
    return emit_layer_norm(low, node, x, w, b, None, {k: node.attrs[k] for k in ("start", "heads", "width")})


def emit_layer_norm(
    low: Lowering,
    node: Node,
    x: Value | None,
    w: Value | None,
    b: Value | None,
    residual: Value | None,
    runs: dict[str, int],
) -> list[Value]:
    """The one instruction for all three: it has the results of `node`."""
    bias = None if b is None else low.weight(b, RAW)
    operands = [low.value(x), low.weight(w, RAW), bias, None if residual is None else low.value(residual)]
    y, *total = node.outputs
    kinds = [(low.input_type(y), y.shape), *(("float32", v.shape) for v in total)]
    return low.emit("layer_norm", operands, kinds, **runs, **norm_attrs(node))


def whole_row(node: Node) -> dict[str, int]:
    return {"start": 0, "heads": 1, "width": int(node.outputs[0].shape[-1])}


NORM_RULES: dict[str, Callable[[Lowering, Node], list[Value]]] = {
    "layer_norm": lower_layer_norm,
    "add_layer_norm": lower_add_layer_norm,
    "layer_norm_columns": lower_layer_norm_columns,
}
