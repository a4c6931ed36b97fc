"""Emits the plugin form: a "cached" graph in standard ONNX ops and those of domain tensorwright, for TensorRT.

A is the activation type. Every activation is A; norms, gates and rotary tables compute in float32; logits are
float32. The cache consists of pages [pages, kv_heads, block_size, head_dim] of A or int8, which are inputs and are
updated in place; each cache group has its own block tables and slots. plugin_io.py has the names. A graph of one rank
has nodes for what ranks do together; that of a stage which is not the last ends in sends, and has no logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.builder.emit.onnx.model_file import ELEMENTWISE_NAMES
from tensorwright.builder.emit.onnx.plugin_collectives import COLLECTIVES
from tensorwright.builder.emit.onnx.plugin_emitter import Handler, PluginEmitter
from tensorwright.builder.emit.onnx.plugin_io import describe_io
from tensorwright.builder.emit.onnx.refuse_states import refuse_states
from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.engine_format.kv_cache import SCALED_BYTES
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import InvalidOptionError, LoweringError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint

MODEL, DATA = "model.onnx", "model.onnx.data"
INT4 = ("native", "plugin")
EXACT = frozenset(("add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "relu", "square"))
"""Ops with at most one rounding, which can therefore compute in A."""


def emit_plugin_form(
    graph: Graph, checkpoint: Checkpoint, path_dir: str | Path, dtype: str, *, int4: str = "native"
) -> dict[str, Any]:
    """Writes model.onnx and model.onnx.data into a folder. Returns what plugin_io.describe_io returns, the record
    of quantization ("quantization"), and what the record of several ranks is made of ("matrices").

    dtype: the type A, one of DTYPES. int4: "native" (DequantizeLinear of INT4) or "plugin" (WeightOnlyLinear). Raises
    LoweringError for an op without an ONNX form, CheckpointError for weights that A cannot hold, InvalidOptionError.
    """
    import onnx

    refuse_states(graph)
    if dtype not in DTYPES or int4 not in INT4:
        raise InvalidOptionError(
            f"dtype must be one of {', '.join(DTYPES)} and int4 one of {', '.join(INT4)}, not {dtype!r} and {int4!r}"
        )
    emitter = PluginEmitter(graph, checkpoint, dtype, int4)
    emitter.run(HANDLERS, HANDLERS_OF_KINDS)
    folder = Path(path_dir)
    (folder / MODEL).write_bytes(emitter.model.serialized(DATA))
    with (folder / DATA).open("wb") as file:
        emitter.model.write_data(file)
    onnx.checker.check_model(str(folder / MODEL), full_check=True)
    weights = emitter.weights
    return {**describe_io(graph, dtype), "quantization": weights.record(graph), "matrices": weights.part(graph)}


# -- embeddings, norms, attention -------------------------------------------------------------------------------------


def _embedding(e: PluginEmitter, node: Node) -> list[str]:
    ids, inside = _own_ids(e, node)
    rows = e.add("Gather", [e.weights.plain(node.operand(0)), ids], node.scope, axis=0)
    return [_scaled(e, _own_rows(e, rows, inside, node), node)]


def _own_ids(e: PluginEmitter, node: Node) -> tuple[str, str | None]:
    """Returns the places of tokens in a table, and which of them are in the part of it that a rank has: None for a
    whole table. A token outside gets the place of another."""
    ids = e.activation(node.operand(1))
    if "first" not in node.attrs:
        return ids, None
    first, last, low = (
        e.model.constant(np.array(n, np.int32), "ints")
        for n in (node.attrs["first"], int(node.operand(0).shape[0]) - 1, 0)
    )
    place = e.add("Sub", [ids, first], node.scope)
    held = e.add("Min", [e.add("Max", [place, low], node.scope), last], node.scope)
    return held, e.add("Equal", [place, held], node.scope)


def _own_rows(e: PluginEmitter, rows: str, inside: str | None, node: Node) -> str:
    """Returns rows of a table with zeros for tokens that it has not."""
    if inside is None:
        return rows
    mask = e.add("Unsqueeze", [inside, e.ints([-1])], node.scope)
    return e.add("Where", [mask, rows, e.number(0.0, e.dtype)], node.scope)


def _quantized_embedding(e: PluginEmitter, node: Node) -> list[str]:
    """Dequantizes before the rows are gathered: TensorRT takes an int8 constant only before a DequantizeLinear."""
    table = node.operand(0)
    values, scales = e.weights.grouped_rows(table, node.attrs["format"])
    columns = int(table.shape[1])
    group = node.attrs["format"].group
    matrix = e.add("DequantizeLinear", [values, scales], node.scope, axis=1, block_size=group)
    ids, inside = _own_ids(e, node)
    rows = e.add("Gather", [matrix, ids], node.scope, axis=0)
    if columns % group:
        rows = e.add("Slice", [rows, e.ints([0]), e.ints([columns]), e.ints([1])], node.scope)
    return [_scaled(e, _own_rows(e, rows, inside, node), node)]


def _scaled(e: PluginEmitter, rows: str, node: Node) -> str:
    scale = float(node.attrs.get("scale", 1.0))
    if scale == 1.0:
        return rows
    if e.exact(scale):
        return e.add("Mul", [rows, e.number(scale, e.dtype)], node.scope)
    wide = e.add("Cast", [rows], node.scope, to=1)
    return e.narrow(e.add("Mul", [wide, e.number(scale, "float32")], node.scope), node.scope)


def _rms_norm(e: PluginEmitter, node: Node) -> list[str]:
    operands = [e.activation(node.operand(0)), e.weights.plain(node.operand(1), "float32")]
    made = e.plugin("RmsNorm", operands, node, [""], **_norm(node))
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


def _add_rms_norm(e: PluginEmitter, node: Node) -> list[str]:
    streams = [e.activation(node.operand(0)), e.activation(node.operand(1))]
    operands = [*streams, e.weights.plain(node.operand(2), "float32")]
    made = e.plugin("AddRmsNorm", operands, node, ["", ""], **_norm(node))
    for name, value in zip(made, node.outputs, strict=True):
        e.model.tell(name, e.dtype, value.shape)
    return made


def _norm(node: Node) -> dict[str, float]:
    return {"eps": float(node.attrs["eps"]), "weight_offset": float(node.attrs["weight_offset"])}


def _layer_norm(e: PluginEmitter, node: Node) -> list[str]:
    y = _layer_normalised(e, node, e.wide(node.operand(0)), node.operand(1), node.optional(2))
    return [e.narrow(y, node.scope)]


def _add_layer_norm(e: PluginEmitter, node: Node) -> list[str]:
    """Adds and normalises. The norm reads the sum as it is stored, in A."""
    total = e.add("Add", [e.activation(node.operand(0)), e.activation(node.operand(1))], node.scope)
    wide = total if e.dtype == "float32" else e.add("Cast", [total], node.scope, to=1)
    y = _layer_normalised(e, node, wide, node.operand(2), node.optional(3))
    return [e.narrow(y, node.scope), total]


def _layer_normalised(e: PluginEmitter, node: Node, x: str, w: Value, b: Value | None) -> str:
    """Normalises float32 rows; w belongs to the last dimension, or has a row for each head."""
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
    """Normalises each run of columns of a row alone: the runs are split off, and joined again."""
    x, w = node.operand(0), node.operand(1)
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
    run = _rms_normalised(e, node, run, w) if rms else _layer_normalised(e, node, run, w, node.optional(2))
    parts[at] = e.add("Reshape", [e.narrow(run, node.scope), e.ints([0, heads * width])], node.scope)
    return [parts[0] if len(parts) == 1 else e.add("Concat", parts, node.scope, axis=-1)]


def _rotary_table(e: PluginEmitter, node: Node) -> list[str]:
    """Computes the table in float32, whatever A is."""
    scope = node.scope
    wide = e.add("Cast", [e.activation(node.operand(0))], scope, to=1)
    column = e.add("Unsqueeze", [wide, e.ints([-1])], scope)
    angle = e.add("Mul", [column, e.weights.plain(node.operand(1), "float32")], scope)
    table = e.add("Concat", [e.add("Cos", [angle], scope), e.add("Sin", [angle], scope)], scope, axis=-1)
    scale = float(node.attrs["scale"])
    e.kinds[node.output] = "float32"
    return [table if scale == 1.0 else e.add("Mul", [table, e.number(scale, "float32")], scope)]


def _rotary_kv_write(e: PluginEmitter, node: Node) -> list[str]:
    table = node.optional(1)
    layer, pages = node.attrs["layer"], e.caches[node.operand(3)]
    group = e.graph.facts.kv_layers[layer].group
    operands = [e.activation(node.operand(0))] + ([] if table is None else [e.wide(table)])
    operands += [f"slots.{group}", *pages]
    outputs = ["", *(name.replace(".", "_out.", 1) for name in pages)]
    attrs = {key: int(node.attrs[key]) for key in ("heads", "kv_heads", "head_dim", "rotary_dim")}
    made = e.plugin("RotaryKvWrite", operands, node, outputs, **attrs, **_page_flags(e, layer))
    e.model.tell(made[0], e.dtype, node.outputs[0].shape)
    e.caches[node.outputs[1]] = made[1:]
    return [made[0], ""]


def _page_flags(e: PluginEmitter, layer: int) -> dict[str, int]:
    """Returns what the plugins are told of a layer's pages."""
    dtype = e.graph.facts.kv_layers[layer].dtype
    return {"int8_kv": int(dtype in SCALED_BYTES), "e4m3_kv": int(dtype == "fp8")}


def _paged_attention(e: PluginEmitter, node: Node) -> list[str]:
    sinks = node.optional(5)
    if node.optional(6) is not None:
        raise LoweringError(
            f"attention in {node.scope} has slopes (alibi), which have no ONNX form for TensorRT; build with target cpu"
        )
    pages = e.caches[node.operand(1)]
    layer = node.attrs["layer"]
    group = e.graph.facts.kv_layers[layer].group
    tables = ["seq_starts", "context_lens", f"block_tables.{group}"]
    operands = [e.activation(node.operand(0)), *pages, *tables]
    operands += [] if sinks is None else [e.weights.plain(sinks, "float32")]
    attrs: dict[str, Any] = {key: int(node.attrs[key]) for key in ("heads", "kv_heads", "head_dim", "window")}
    attrs |= {key: float(node.attrs[key]) for key in ("scale", "softcap")}
    flags = {"has_sinks": int(sinks is not None), **_page_flags(e, layer)}
    made = e.plugin("PagedAttention", operands, node, [""], **attrs, **flags)
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


def _gather_rows(e: PluginEmitter, node: Node) -> list[str]:
    return [e.add("Gather", [e.activation(node.operand(0)), e.activation(node.operand(1))], node.scope, axis=0)]


# -- products with stored matrices ------------------------------------------------------------------------------------


def _linear(e: PluginEmitter, node: Node) -> list[str]:
    """Emits a product. A head tied to the embedding reads the embedding's own rows, so that they are stored once."""
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    if w in e.tables:
        product = e.add("Gemm", [e.activation(x), e.weights.plain(w)], node.scope, transB=1)
    else:
        product = e.add("MatMul", [e.activation(x), e.weights.matrix(w)], node.scope)
    return [product if bias is None else e.add("Add", [product, e.weights.plain(bias)], node.scope)]


def _weight_only_linear(e: PluginEmitter, node: Node) -> list[str]:
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    fmt: WeightFormat = node.attrs["format"]
    if fmt.bits == 4 and e.int4 == "plugin":
        return _plugin_linear(e, node)
    values, scales = e.weights.dequantizable(w, fmt)
    # int4 and int8 have a scale for each block of rows of [K, N], fp8 has one for each column.
    attrs = {"axis": 1} if fmt.kind == "fp" else {"axis": 0, "block_size": fmt.group}
    matrix = e.add("DequantizeLinear", [values, scales], node.scope, **attrs)
    rows, k = e.activation(x), int(w.shape[1])
    missing = 0 if fmt.kind == "fp" else fmt.groups(k) * fmt.group - k
    if missing:
        rows = e.add("Pad", [rows, e.ints([0, 0, 0, missing])], node.scope)
    product = e.add("MatMul", [rows, matrix], node.scope)
    return [product if bias is None else e.add("Add", [product, e.weights.plain(bias)], node.scope)]


def _plugin_linear(e: PluginEmitter, node: Node) -> list[str]:
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    fmt, (n, k) = node.attrs["format"], (int(d) for d in w.shape)
    operands = [e.activation(x), *e.weights.words(w, fmt)]
    operands += [] if bias is None else [e.weights.plain(bias)]
    made = e.plugin("WeightOnlyLinear", operands, node, [""], n=n, k=k, group=fmt.group)
    e.model.tell(made[0], e.dtype, node.output.shape)
    return made


# -- ops on each element ----------------------------------------------------------------------------------------------


def _elementwise(e: PluginEmitter, node: Node) -> list[str]:
    values = [node.operand(i) for i in range(len(node.inputs))]
    numbers = [number_of(v) for v in values]
    all_wide = all(e.kinds[v] == "float32" for v in values if v in e.names)
    in_a = node.op in EXACT and not all_wide and all(n is None or e.exact(n) for n in numbers)
    dtype = e.dtype if in_a else "float32"
    operands = [_operand(e, v, n, dtype) for v, n in zip(values, numbers, strict=True)]
    result = _compute(e, node, operands)
    if all_wide:
        e.kinds[node.output] = "float32"
        return [result]
    return [result if in_a else e.narrow(result, node.scope)]


def number_of(value: Value) -> float | None:
    """Returns the number that a scalar constant holds; None for any other value."""
    return float(value.constant) if value.is_scalar_constant else None


def _operand(e: PluginEmitter, value: Value, number: float | None, dtype: str) -> str:
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
    return e.add(ELEMENTWISE_NAMES[node.op], x, scope)


def activate(e: PluginEmitter, kind: str, x: str, scope: str) -> str:
    """Emits an activation, named by its word in elementwise programs, in float32."""
    if kind == "silu":
        return e.add("Mul", [x, e.add("Sigmoid", [x], scope)], scope)
    if kind == "relu":
        return e.add("Relu", [x], scope)
    return e.add("Gelu", [x], scope, approximate="tanh" if kind == "gelu_tanh" else "none")


def _gate(e: PluginEmitter, node: Node) -> list[str]:
    """Multiplies the halves of a row in float32 and rounds once."""
    columns, scope = int(node.output.shape[-1]), node.scope
    halves = [e.wide(node.operand(0)), e.ints([columns, columns])]
    gate, up = e.model.node("Split", halves, scope=scope, outputs=["", ""], axis=-1)
    return [e.narrow(e.add("Mul", [activate(e, node.attrs["activation"], gate, scope), up], scope), scope)]


def _clamp(e: PluginEmitter, node: Node) -> list[str]:
    """Clamps in float32, which holds the bounds exactly."""
    bounds = [node.attrs["min"], node.attrs["max"]]
    operands = [e.wide(node.operand(0)), *("" if b is None else e.number(float(b), "float32") for b in bounds)]
    return [e.narrow(e.add("Clip", operands, node.scope), node.scope)]


def _slice(e: PluginEmitter, node: Node) -> list[str]:
    """Emits a slice of columns. No node slices tokens at this stage."""
    start, end, step = (int(node.attrs[key]) for key in ("start", "end", "step"))
    bounds = [e.ints([number]) for number in (start, end, node.attrs["dim"], step)]
    return [e.add("Slice", [e.activation(node.operand(0)), *bounds], node.scope)]


def _cast(e: PluginEmitter, node: Node) -> list[str]:
    """Returns the operand of a cast between floating types, since every activation is A already."""
    if node.attrs["dtype"] not in ("float32", "float16", "bfloat16"):
        raise e.refusal(node, f"a cast to {node.attrs['dtype']} has no ONNX form for TensorRT")
    value = node.operand(0)
    e.kinds[node.output] = e.kinds[value]
    return [e.activation(value)]


HANDLERS: dict[str, Handler] = {
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
    "linear": _linear,
    "weight_only_linear": _weight_only_linear,
    **dict.fromkeys((*ELEMENTWISE_NAMES, "square", "rsqrt", "silu", "gelu"), _elementwise),
    "clamp": _clamp,
    "slice": _slice,
    "cast": _cast,
    **COLLECTIVES,
}

HANDLERS_OF_KINDS = {"gate": _gate}
"""The handlers of all ops whose record says a kind."""
