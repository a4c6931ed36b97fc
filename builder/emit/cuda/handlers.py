"""Says what each op of a "cached" graph becomes on target cuda: a call of its launch.py, or a product.

The choice of types is that of the TensorRT plugin form (emit/onnx/plugin_form.py): norms, gates and ops on each element
compute in float32 inside their kernels, and round once to A.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.builder.emit.cuda.emitter import CudaEmitter, Handler
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.ir.graph import Node, Value
from tensorwright.ir.ops import ELEMENTWISE
from tensorwright.plugins.concat import launch as concat
from tensorwright.plugins.elementwise import launch as elementwise
from tensorwright.plugins.elementwise.op import BINARY, UNARY
from tensorwright.plugins.embedding import launch as embedding
from tensorwright.plugins.embedding import quantized_launch as quantized_embedding
from tensorwright.plugins.gather_rows import launch as gather_rows
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.layer_norm import launch as layer_norm
from tensorwright.plugins.paged_attention import launch as paged_attention
from tensorwright.plugins.quantized_matmul import bytes_launch as byte_product
from tensorwright.plugins.quantized_matmul import launch as int4_product
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rms_norm import launch as rms_norm
from tensorwright.plugins.rotary import launch as rotary_kv_write
from tensorwright.plugins.rotary import table_launch as rotary_table
from tensorwright.plugins.swiglu import launch as gate
from tensorwright.plugins.take_columns import slice_launch as slice_columns

Results = list[Tensor | None]


def _embedding(e: CudaEmitter, node: Node) -> Results:
    table, y = e.plain(node.operand(0), "table"), e.result(node.output, "y")
    attrs = {**node.attrs, "channels": table.shape[1]}
    e.call(node, embedding, attrs, {"table": table, "ids": e.activation(node.operand(1), "ids")}, {"y": y})
    return [y]


def _quantized_embedding(e: CudaEmitter, node: Node) -> Results:
    """Restores rows of int8 when they are gathered."""
    fmt: WeightFormat = node.attrs["format"]
    values, scales = e.weights.grouped_rows(node.operand(0), fmt)
    y, rest = e.result(node.output, "y"), {key: value for key, value in node.attrs.items() if key != "format"}
    inputs = {"values": e.file.tensor(values, "values"), "scales": e.file.tensor(scales, "scales")}
    inputs["ids"] = e.activation(node.operand(1), "ids")
    e.call(node, quantized_embedding, {**rest, "group": fmt.group, "channels": y.shape[-1]}, inputs, {"y": y})
    return [y]


def _gather_rows(e: CudaEmitter, node: Node) -> Results:
    x, rows = e.activation(node.operand(0), "x"), e.activation(node.operand(1), "logit_rows")
    y = e.result(node.output, "y", x.dtype)
    e.call(node, gather_rows, {"channels": x.shape[1]}, {"x": x, "logit_rows": rows}, {"y": y})
    return [y]


def _rms_norm(e: CudaEmitter, node: Node) -> Results:
    inputs = {"x": e.activation(node.operand(0), "x"), "w": e.plain(node.operand(1), "w", "float32")}
    y = e.result(node.output, "y")
    e.call(node, rms_norm, {**node.attrs, "channels": y.shape[-1]}, inputs, {"y": y})
    return [y]


def _add_rms_norm(e: CudaEmitter, node: Node) -> Results:
    inputs = {
        "x": e.activation(node.operand(0), "x"),
        "residual": e.activation(node.operand(1), "residual"),
        "w": e.plain(node.operand(2), "w", "float32"),
    }
    y, total = e.result(node.outputs[0], "y"), e.result(node.outputs[1], "sum")
    e.call(node, rms_norm, {**node.attrs, "channels": y.shape[-1]}, inputs, {"y": y, "sum": total})
    return [y, total]


def _layer_norm(e: CudaEmitter, node: Node) -> Results:
    x, y = e.activation(node.operand(0), "x"), e.result(node.output, "y")
    weights = _norm_weights(e, node.operand(1), node.optional(2))
    w = weights["w"]
    attrs = {**node.attrs, "channels": w.shape[-1], "per_head": len(w.shape) == 2}
    if len(w.shape) == 2:
        attrs["heads"] = w.shape[0]
    e.call(node, layer_norm, attrs, {"x": x, **weights}, {"y": y})
    return [y]


def _add_layer_norm(e: CudaEmitter, node: Node) -> Results:
    inputs = {"x": e.activation(node.operand(0), "x"), "residual": e.activation(node.operand(1), "residual")}
    inputs |= _norm_weights(e, node.operand(2), node.optional(3))
    y, total = e.result(node.outputs[0], "y"), e.result(node.outputs[1], "sum")
    e.call(node, layer_norm, {**node.attrs, "channels": y.shape[-1]}, inputs, {"y": y, "sum": total})
    return [y, total]


def _norm_weights(e: CudaEmitter, w: Value, b: Value | None) -> dict[str, Tensor]:
    beta = {} if b is None else {"b": e.plain(b, "b", "float32")}
    return {"w": e.plain(w, "w", "float32"), **beta}


def _columns_norm(e: CudaEmitter, node: Node) -> Results:
    """Normalises runs of columns: in place where nothing else reads the row, else with a copy of the others."""
    x = e.activation(node.operand(0), "x")
    in_place = e.only_use(node.operand(0))
    y = e.activation(node.operand(0), "y") if in_place else e.result(node.output, "y")
    weights = _norm_weights(e, node.operand(1), node.optional(2))
    width, columns = weights["w"].shape[-1], x.shape[1]
    attrs = {**node.attrs, "columns": columns, "in_place": in_place}
    if node.op == "rms_norm_columns":
        e.call(node, columns_launch, {**attrs, "width": width}, {"x": x, **weights}, {"y": y})
    else:
        per_head = len(weights["w"].shape) == 2
        e.call(node, layer_norm, {**attrs, "channels": width, "per_head": per_head}, {"x": x, **weights}, {"y": y})
    return [y]


def _rotary_table(e: CudaEmitter, node: Node) -> Results:
    positions, inv_freq = e.activation(node.operand(0), "positions"), e.plain(node.operand(1), "inv_freq", "float32")
    table = e.result(node.output, "table", "float32")
    attrs = {**node.attrs, "half": inv_freq.shape[0]}
    e.call(node, rotary_table, attrs, {"positions": positions, "inv_freq": inv_freq}, {"table": table})
    return [table]


def _rotary_kv_write(e: CudaEmitter, node: Node) -> Results:
    layer = node.attrs["layer"]
    pages, group = e.pages(layer), e.graph.facts.kv_layers[layer].group
    table = node.optional(1)
    inputs = {"qkv": e.activation(node.operand(0), "qkv")}
    inputs |= {} if table is None else {"table": e.activation(table, "table")}
    q = e.result(node.outputs[0], "q")
    e.call(
        node, rotary_kv_write, node.attrs, {**inputs, "slots": e.metadata("slots", group), **pages}, {"q": q, **pages}
    )
    return [q, None]


def _paged_attention(e: CudaEmitter, node: Node) -> Results:
    if node.optional(6) is not None:
        raise e.refusal(node, "attention with slopes (alibi) has no kernel for target cuda")
    layer, sinks = node.attrs["layer"], node.optional(5)
    pages, group = e.pages(layer), e.graph.facts.kv_layers[layer].group
    inputs = {"q": e.activation(node.operand(0), "q"), **pages}
    inputs |= {name: e.metadata(name, group) for name in ("seq_starts", "context_lens", "block_tables")}
    inputs |= {} if sinks is None else {"sinks": e.plain(sinks, "sinks", "float32")}
    flags = {"has_sinks": int(sinks is not None), "int8_kv": int(len(pages) > 2)}
    out = e.result(node.output, "out")
    attrs = {**node.attrs, **flags, "block_size": e.graph.facts.block_size}
    e.call(node, paged_attention, attrs, inputs, {"out": out})
    return [out]


def _linear(e: CudaEmitter, node: Node) -> Results:
    bias, y = node.optional(2), e.wide_result(node.output, "y")
    added = None if bias is None else e.plain(bias, "bias", y.dtype)
    e.product(node, e.activation(node.operand(0), "x"), e.plain(node.operand(1), "w"), added, y)
    return [y]


def _weight_only_linear(e: CudaEmitter, node: Node) -> Results:
    fmt: WeightFormat = node.attrs["format"]
    w, bias, y = node.operand(1), node.optional(2), e.wide_result(node.output, "y")
    n, k = (int(size) for size in w.shape)
    sizes = {"n": n, "k": k, "group": fmt.group}
    if fmt.bits == 4 and fmt.kind == "int":
        module, (values, scales), name = int4_product, e.weights.words(w, fmt), "packed"
    elif fmt.bits == 8 and fmt.kind in byte_product.KINDS:
        stored = e.weights.fp8_rows(w, fmt) if fmt.kind == "fp" else e.weights.grouped_rows(w, fmt)
        module, (values, scales), name = byte_product, stored, "values"
        sizes["kind"] = fmt.kind
    else:
        raise e.refusal(node, f"a product with {fmt} weights has no kernel for target cuda")
    inputs = {"x": e.activation(node.operand(0), "x"), name: e.file.tensor(values, name)}
    inputs["scales"] = e.file.tensor(scales, "scales")
    inputs |= {} if bias is None else {"bias": e.plain(bias, "bias", y.dtype)}
    e.call(node, module, sizes, inputs, {"y": y})
    return [y]


def _gate(e: CudaEmitter, node: Node) -> Results:
    x, y = e.activation(node.operand(0), "x"), e.result(node.output, "y")
    e.call(node, gate, {**node.attrs, "channels": y.shape[-1]}, {"x": x}, {"y": y})
    return [y]


# -- ops on each element ----------------------------------------------------------------------------------------------


def _elementwise(e: CudaEmitter, node: Node) -> Results:
    return _program(e, node, [node.operand(i) for i in range(len(node.inputs))], _word(e, node))


def _word(e: CudaEmitter, node: Node) -> str:
    """Returns the word of an op in elementwise programs."""
    if node.op == "gelu" and node.attrs["approximate"] == "tanh":
        return "gelu_tanh"
    if node.op not in UNARY and node.op not in BINARY:
        raise e.refusal(node, f"{node.op} has no kernel for target cuda")
    return node.op


def _program(e: CudaEmitter, node: Node, values: Sequence[Value], ends: str) -> Results:
    """Calls the kernel of elementwise programs on the operands of a node; `ends` are the words behind the operands."""
    inputs: dict[str, Tensor] = {}
    words = []
    for value in values:
        if value.is_scalar_constant:
            words.append(repr(float(value.constant)))
        elif value.is_stored:
            inputs["w"] = _row(e, node, value, inputs)
            words.append("w")
        else:
            words.append(_operand(e, value, inputs))
    y = e.wide_result(node.output, "y")
    per_row = [name for name, tensor in inputs.items() if name != "w" and tensor.shape[-1] == 1 != y.shape[-1]]
    attrs = {"program": " ".join([*words, ends]), "channels": y.shape[-1], "per_row": " ".join(per_row)}
    e.call(node, elementwise, attrs, inputs, {"y": y})
    return [y]


def _operand(e: CudaEmitter, value: Value, inputs: dict[str, Tensor]) -> str:
    """Returns the word of a computed operand. The same value twice is one operand."""
    for name, tensor in inputs.items():
        if name != "w" and tensor.address == e.tensors[value].address:
            return name
    name = f"x{sum(name != 'w' for name in inputs)}"
    inputs[name] = e.activation(value, name)
    return name


def _row(e: CudaEmitter, node: Node, value: Value, inputs: dict[str, Tensor]) -> Tensor:
    """Returns a stored vector with one number for each column."""
    if "w" in inputs or value.shape != node.output.shape[-1:]:
        raise e.refusal(
            node, f"{node.op} with a stored operand of shape {list(value.shape)} has no kernel for target cuda"
        )
    return e.plain(value, "w", "float32")


def _clamp(e: CudaEmitter, node: Node) -> Results:
    bounds = ((node.attrs["min"], "maximum"), (node.attrs["max"], "minimum"))
    words = [f"{float(bound)!r} {word}" for bound, word in bounds if bound is not None]
    return _program(e, node, [node.operand(0)], " ".join(words))


def _slice(e: CudaEmitter, node: Node) -> Results:
    x = e.activation(node.operand(0), "x")
    _require_columns(e, node, x)
    y = e.make(node.output.shape, "y", x.dtype)
    attrs = {key: int(node.attrs[key]) for key in ("start", "end", "step")}
    e.call(node, slice_columns, {**attrs, "columns": x.shape[1]}, {"x": x}, {"y": y})
    return [y]


def _concat(e: CudaEmitter, node: Node) -> Results:
    parts = {f"x{i}": e.activation(node.operand(i), f"x{i}") for i in range(len(node.inputs))}
    y = e.result(node.output, "y")
    _require_columns(e, node, y)
    e.call(node, concat, {"channels": tuple(part.shape[1] for part in parts.values())}, parts, {"y": y})
    return [y]


def _require_columns(e: CudaEmitter, node: Node, tensor: Tensor) -> None:
    """Refuses what moves anything but columns of rows."""
    if len(tensor.shape) != 2 or node.attrs["dim"] not in (1, -1):
        raise e.refusal(node, f"{node.op} of other dimensions than columns has no kernel for target cuda")


def _cast(e: CudaEmitter, node: Node) -> Results:
    """Returns the operand of a cast between floating types, since every activation has its type already."""
    if node.attrs["dtype"] not in ("float32", "float16", "bfloat16"):
        raise e.refusal(node, f"a cast to {node.attrs['dtype']} has no kernel for target cuda")
    return [e.activation(node.operand(0), "y")]


def with_logits(e: CudaEmitter, logits: Tensor, value: Value) -> Tensor:
    """Returns the logits as float32, by one more call where they are of A."""
    if logits.dtype == "float32":
        return logits
    y = e.make(value.shape, "y", "float32")
    e.call(value.producer, elementwise, {"program": "x0", "channels": y.shape[-1]}, {"x0": logits}, {"y": y})
    return y


HANDLERS: dict[str, Handler] = {
    "embedding": _embedding,
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
    "quantized_embedding": _quantized_embedding,
    "slice": _slice,
    "concat": _concat,
    **dict.fromkeys((*ELEMENTWISE, "square", "rsqrt", "silu", "gelu"), _elementwise),
    "clamp": _clamp,
    "cast": _cast,
}

HANDLERS_OF_KINDS: dict[str, Handler] = {"gate": _gate}
"""The handlers of all ops whose record says a kind."""
