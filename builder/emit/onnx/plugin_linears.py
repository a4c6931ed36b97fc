"""Products with stored matrices in the plugin form: MatMul with [K, N], and what makes that of rounded weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.ir.graph import Node

if TYPE_CHECKING:
    from tensorwright.builder.emit.onnx.plugin_form import PluginEmitter


def _linear(e: PluginEmitter, node: Node) -> list[str]:
    """A head tied to the embedding reads the embedding's own rows, so that they are stored once."""
    x, w, bias = (*node.inputs, None)[:3]
    assert w is not None
    if w in e.tables:
        product = e.add("Gemm", [e.activation(x), e.weights.plain(w)], node.scope, transB=1)
    else:
        product = e.add("MatMul", [e.activation(x), e.weights.matrix(w)], node.scope)
    return [product if bias is None else e.add("Add", [product, e.weights.plain(bias)], node.scope)]


def _weight_only_linear(e: PluginEmitter, node: Node) -> list[str]:
    x, w, bias = (*node.inputs, None)[:3]
    assert w is not None
    fmt = parse_format(node.attrs["format"])
    if fmt.bits == 4 and e.int4 == "plugin":
        return _plugin_linear(e, node)
    values, scales = e.weights.dequantizable(w, str(fmt))
    # A scale for each block of rows of [K, N], or for each column.
    attrs = {"axis": 1} if fmt.kind == "fp" else {"axis": 0, "block_size": fmt.group}
    matrix = e.add("DequantizeLinear", [values, scales], node.scope, **attrs)
    rows, k = e.activation(x), int(w.shape[1])
    missing = 0 if fmt.kind == "fp" else fmt.groups(k) * fmt.group - k
    if missing:
        rows = e.add("Pad", [rows, e.ints([0, 0, 0, missing])], node.scope)
    product = e.add("MatMul", [rows, matrix], node.scope)
    return [product if bias is None else e.add("Add", [product, e.weights.plain(bias)], node.scope)]


def _plugin_linear(e: PluginEmitter, node: Node) -> list[str]:
    x, w, bias = (*node.inputs, None)[:3]
    assert w is not None
    fmt, (n, k) = parse_format(node.attrs["format"]), (int(d) for d in w.shape)
    operands = [e.activation(x), *e.weights.words(w, str(fmt))]
    operands += [] if bias is None else [e.weights.plain(bias)]
    made = e.plugin("WeightOnlyLinear", operands, node, [""], n=n, k=k, group=fmt.group)
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


LINEAR_HANDLERS: dict[str, Callable[[PluginEmitter, Node], list[str]]] = {
    "linear": _linear,
    "weight_only_linear": _weight_only_linear,
}
