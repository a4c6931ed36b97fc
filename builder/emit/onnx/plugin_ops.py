"""Each op of stage "cached" in the plugin form: (emitter, node) -> the names of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.builder.emit.onnx.plugin_elementwise import ELEMENTWISE_HANDLERS
from tensorwright.builder.emit.onnx.plugin_linears import LINEAR_HANDLERS
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.ir.graph import Node, Value

if TYPE_CHECKING:
    from tensorwright.builder.emit.onnx.plugin_form import PluginEmitter


def _embedding(e: PluginEmitter, node: Node) -> list[str]:
    table, ids = node.inputs
    assert table is not None
    rows = e.add("Gather", [e.weights.plain(table), e.activation(ids)], node.scope, axis=0)
    return [_scaled(e, rows, node)]


def _quantized_embedding(e: PluginEmitter, node: Node) -> list[str]:
    """TensorRT takes a constant of int8 only before a DequantizeLinear, so that comes before the rows are gathered."""
    table, ids = node.inputs
    assert table is not None
    values, scales = e.weights.grouped_rows(table, node.attrs["format"])
    columns = int(table.shape[1])
    group = parse_format(node.attrs["format"]).group
    matrix = e.add("DequantizeLinear", [values, scales], node.scope, axis=1, block_size=group)
    rows = e.add("Gather", [matrix, e.activation(ids)], node.scope, axis=0)
    if columns % group:
        rows = e.add("Slice", [rows, e.ints([0]), e.ints([columns]), e.ints([1])], node.scope)
    return [_scaled(e, rows, node)]


def _scaled(e: PluginEmitter, rows: str, node: Node) -> str:
    scale = float(node.attrs.get("scale", 1.0))
    if scale == 1.0:
        return rows
    if e.exact(scale):
        return e.add("Mul", [rows, e.number(scale, e.dtype)], node.scope)
    wide = e.add("Cast", [rows], node.scope, to=1)
    return e.narrow(e.add("Mul", [wide, e.number(scale, "float32")], node.scope), node.scope)


def _rms_norm(e: PluginEmitter, node: Node) -> list[str]:
    x, w = node.inputs
    assert w is not None
    made = e.plugin("RmsNorm", [e.activation(x), e.weights.plain(w, "float32")], node, [""], **_norm(node))
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


def _add_rms_norm(e: PluginEmitter, node: Node) -> list[str]:
    x, residual, w = node.inputs
    assert w is not None
    operands = [e.activation(x), e.activation(residual), e.weights.plain(w, "float32")]
    made = e.plugin("AddRmsNorm", operands, node, ["", ""], **_norm(node))
    for name, value in zip(made, node.outputs, strict=True):
        e.model.tell(name, e.dtype, value.shape)
    return made


def _norm(node: Node) -> dict[str, float]:
    return {"eps": float(node.attrs["eps"]), "weight_offset": float(node.attrs["weight_offset"])}


def _layer_norm(e: PluginEmitter, node: Node) -> list[str]:
    x, w, b = (*node.inputs, None)[:3]
    return [e.narrow(_layer_normalised(e, node, e.wide(x), w, b), node.scope)]


def _add_layer_norm(e: PluginEmitter, node: Node) -> list[str]:
    """The norm reads the sum as it is stored, in A."""
    x, residual, w, b = (*node.inputs, None)[:4]
    total = e.add("Add", [e.activation(x), e.activation(residual)], node.scope)
    wide = total if e.dtype == "float32" else e.add("Cast", [total], node.scope, to=1)
    return [e.narrow(_layer_normalised(e, node, wide, w, b), node.scope), total]


def _layer_normalised(e: PluginEmitter, node: Node, x: str, w: Value | None, b: Value | None) -> str:
    """float32 in and out; w is of the last dimension, or one for each head."""
    assert w is not None
    scope, attrs = node.scope, {"axis": -1, "epsilon": float(node.attrs["eps"])}
    gamma = e.weights.plain(w, "float32", plus=float(node.attrs["weight_offset"]))
    beta = None if b is None else e.weights.plain(b, "float32")
    if w.rank == 1:
        return e.add("LayerNormalization", [x, gamma] + ([] if beta is None else [beta]), scope, **attrs)
    ones = e.model.constant(np.ones(int(w.shape[-1]), np.float32), "ones")
    y = e.add("Mul", [e.add("LayerNormalization", [x, ones], scope, **attrs), gamma], scope)
    return y if beta is None else e.add("Add", [y, beta], scope)


def _rms_normalised(e: PluginEmitter, node: Node, x: str, w: Value) -> str:
    scope = node.scope
    gamma = e.weights.plain(w, "float32", plus=float(node.attrs["weight_offset"]))
    mean = e.add("ReduceMean", [e.add("Mul", [x, x], scope), e.ints([-1])], scope, keepdims=1)
    root = e.add("Sqrt", [e.add("Add", [mean, e.number(node.attrs["eps"], "float32")], scope)], scope)
    return e.add("Mul", [e.add("Div", [x, root], scope), gamma], scope)


def _columns_norm(e: PluginEmitter, node: Node) -> list[str]:
    """Runs of columns of a row, normalised each alone: split off, and joined again."""
    x, w, b = (*node.inputs, None)[:3]
    assert x is not None
    assert w is not None
    start, heads, width = node.attrs["start"], node.attrs["heads"], int(w.shape[-1])
    sizes = [start, heads * width, int(x.shape[1]) - start - heads * width]
    kept = [size for size in sizes if size]
    parts = [e.activation(x)]
    if len(kept) > 1:
        parts = e.model.node("Split", [*parts, e.ints(kept)], scope=node.scope, outputs=[""] * len(kept), axis=-1)
    at = 1 if start else 0
    run = e.add("Reshape", [parts[at], e.ints([0, heads, width])], node.scope)
    run = run if e.dtype == "float32" else e.add("Cast", [run], node.scope, to=1)
    rms = node.op == "rms_norm_columns"
    run = _rms_normalised(e, node, run, w) if rms else _layer_normalised(e, node, run, w, b)
    parts[at] = e.add("Reshape", [e.narrow(run, node.scope), e.ints([0, heads * width])], node.scope)
    return [parts[0] if len(parts) == 1 else e.add("Concat", parts, node.scope, axis=-1)]


def _rotary_table(e: PluginEmitter, node: Node) -> list[str]:
    """float32, whatever A is."""
    positions, frequencies = node.inputs
    assert frequencies is not None
    scope = node.scope
    wide = e.add("Cast", [e.activation(positions)], scope, to=1)
    column = e.add("Unsqueeze", [wide, e.ints([-1])], scope)
    angle = e.add("Mul", [column, e.weights.plain(frequencies, "float32")], scope)
    table = e.add("Concat", [e.add("Cos", [angle], scope), e.add("Sin", [angle], scope)], scope, axis=-1)
    scale = float(node.attrs["scale"])
    e.kinds[node.output] = "float32"
    return [table if scale == 1.0 else e.add("Mul", [table, e.number(scale, "float32")], scope)]


def _rotary_kv_write(e: PluginEmitter, node: Node) -> list[str]:
    qkv, table, _, cache = node.inputs
    assert cache is not None
    layer, pages = node.attrs["layer"], e.caches[cache]
    about = e.graph.facts["kv_layers"][layer]
    operands = [e.activation(qkv)] + ([] if table is None else [e.wide(table)]) + [f"slots.{about['group']}", *pages]
    outputs = ["", *(name.replace(".", "_out.", 1) for name in pages)]
    attrs = {key: int(node.attrs[key]) for key in ("heads", "kv_heads", "head_dim", "rotary_dim")}
    made = e.plugin("RotaryKvWrite", operands, node, outputs, **attrs, int8_kv=int(len(pages) > 2))
    e.model.tell(made[0], e.dtype, node.outputs[0].shape)
    e.caches[node.outputs[1]] = made[1:]
    return [made[0], ""]


def _paged_attention(e: PluginEmitter, node: Node) -> list[str]:
    q, cache = node.inputs[:2]
    sinks = node.inputs[5] if len(node.inputs) > 5 else None
    assert cache is not None
    pages = e.caches[cache]
    about = e.graph.facts["kv_layers"][node.attrs["layer"]]
    operands = [e.activation(q), *pages, "seq_starts", "context_lens", f"block_tables.{about['group']}"]
    operands += [] if sinks is None else [e.weights.plain(sinks, "float32")]
    attrs: dict[str, Any] = {key: int(node.attrs[key]) for key in ("heads", "kv_heads", "head_dim", "window")}
    attrs |= {key: float(node.attrs[key]) for key in ("scale", "softcap")}
    flags = {"has_sinks": int(sinks is not None), "int8_kv": int(len(pages) > 2)}
    made = e.plugin("PagedAttention", operands, node, [""], **attrs, **flags)
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


def _gather_rows(e: PluginEmitter, node: Node) -> list[str]:
    return [e.add("Gather", [e.activation(v) for v in node.inputs], node.scope, axis=0)]


HANDLERS: dict[str, Callable[[PluginEmitter, Node], list[str]]] = {
    "embedding": _embedding,
    "quantized_embedding": _quantized_embedding,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "layer_norm": _layer_norm,
    "add_layer_norm": _add_layer_norm,
    "rms_norm_columns": _columns_norm,
    "layer_norm_columns": _columns_norm,
    "rotary_table": _rotary_table,
    "rotary_kv_write": _rotary_kv_write,
    "paged_attention": _paged_attention,
    "gather_rows": _gather_rows,
    **LINEAR_HANDLERS,
    **ELEMENTWISE_HANDLERS,
}
