"""Says what each op of a "cached" graph becomes on target cuda: a call of its launch.py, or a product.

The choice of types is that of the TensorRT plugin form (emit/onnx/plugin_form.py): norms, gates and ops on each element
compute in float32 inside their kernels, and round once to A.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensorwright.builder.emit.cuda.emitter import CudaEmitter, Handler
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import KernelError
from tensorwright.ir.graph import Node, Value
from tensorwright.ir.ops import ELEMENTWISE
from tensorwright.passes.rewriting.elementwise_trees import Tree, number_of, words_around
from tensorwright.plugins.causal_conv import launch as causal_conv
from tensorwright.plugins.concat import launch as concat
from tensorwright.plugins.delta_rule import launch as delta_rule
from tensorwright.plugins.elementwise import launch as elementwise
from tensorwright.plugins.embedding import launch as embedding
from tensorwright.plugins.embedding import quantized_launch as quantized_embedding
from tensorwright.plugins.experts import launch as experts_launch
from tensorwright.plugins.gather_rows import launch as gather_rows
from tensorwright.plugins.gpu.carried import BATCH
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.head_products import launch as head_products
from tensorwright.plugins.latent_attention import launch as latent_kv_write
from tensorwright.plugins.layer_norm import launch as layer_norm
from tensorwright.plugins.linear_attention import launch as linear_attention
from tensorwright.plugins.paged_attention import latent_launch as latent_attention
from tensorwright.plugins.paged_attention import launch as paged_attention
from tensorwright.plugins.paged_attention import work_list
from tensorwright.plugins.paged_attention.tiles import Attention
from tensorwright.plugins.quantized_matmul import bytes_launch as byte_product
from tensorwright.plugins.quantized_matmul import dense_launch as int4_product
from tensorwright.plugins.quantized_matmul import rounded_launch as rounded_product
from tensorwright.plugins.quantized_matmul.rows_launch import Form
from tensorwright.plugins.rg_lru import launch as rg_lru
from tensorwright.plugins.rms_norm import columns_launch
from tensorwright.plugins.rms_norm import launch as rms_norm
from tensorwright.plugins.rotary import launch as rotary_kv_write
from tensorwright.plugins.rotary import table_launch as rotary_table
from tensorwright.plugins.route import launch as route
from tensorwright.plugins.selective_scan import launch as selective_scan
from tensorwright.plugins.state_space_scan import launch as state_space_scan
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
    y, rest = e.result(node.output, "y"), _without_format(node)
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
    return _add_norm(e, node, rms_norm, {"w": e.plain(node.operand(2), "w", "float32")})


def _add_norm(e: CudaEmitter, node: Node, module: Any, weights: dict[str, Tensor]) -> Results:
    """Normalises a sum that a product has made, or else adds and normalises."""
    total = e.sum_in_products((node.operand(0), node.operand(1)), e.dtype)
    y = e.result(node.outputs[0], "y")
    attrs = {**node.attrs, "channels": y.shape[-1]}
    if total is not None:
        e.call(node, module, attrs, {"x": replace(total, name="x"), **weights}, {"y": y})
        return [y, total]
    inputs = {"x": e.activation(node.operand(0), "x"), "residual": e.activation(node.operand(1), "residual")}
    total = e.result(node.outputs[1], "sum")
    e.call(node, module, attrs, {**inputs, **weights}, {"y": y, "sum": total})
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
    return _add_norm(e, node, layer_norm, _norm_weights(e, node.operand(2), node.optional(3)))


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
    """Rotates q, and writes K and V. A layer without heads of its own for these reads what another one wrote."""
    layer, table = node.attrs["layer"], node.optional(1)
    writes = node.attrs["kv_heads"] > 0
    pages = e.pages(layer) if writes else {}
    inputs = {"qkv": e.activation(node.operand(0), "qkv"), **pages}
    inputs |= {} if table is None else {"table": e.activation(table, "table")}
    inputs |= {"slots": e.metadata("slots", e.graph.facts.kv_layers[layer].group)} if writes else {}
    q = e.result(node.outputs[0], "q")
    attrs = {**node.attrs, "e4m3_kv": _is_e4m3(e, layer) if writes else 0}
    e.call(node, rotary_kv_write, attrs, inputs, {"q": q, **pages})
    return [q, None]


def _is_e4m3(e: CudaEmitter, layer: int) -> int:
    """Whether the bytes of a layer's int8 pages are E4M3 numbers, as kernels are told."""
    return int(e.graph.facts.kv_layers[layer].dtype == "fp8")


def _latent_kv_write(e: CudaEmitter, node: Node) -> Results:
    layer, table = node.attrs["layer"], node.optional(3)
    pages, group = e.pages(layer), e.graph.facts.kv_layers[layer].group
    inputs = {name: e.activation(node.operand(i), name) for i, name in enumerate(("q_latent", "q", "kv"))}
    inputs |= {} if table is None else {"table": e.activation(table, "table")}
    y = e.result(node.outputs[0], "y")
    attrs = {**node.attrs, "q_columns": inputs["q"].shape[1] // node.attrs["heads"]}
    e.call(node, latent_kv_write, attrs, {**inputs, "slots": e.metadata("slots", group), **pages}, {"y": y, **pages})
    return [y, None]


def _paged_attention(e: CudaEmitter, node: Node) -> Results:
    layer = node.attrs["layer"]
    pages, group = e.pages(layer), e.graph.facts.kv_layers[layer].group
    inputs = {"q": e.activation(node.operand(0), "q"), **pages}
    inputs |= {name: e.metadata(name, group) for name in ("seq_starts", "context_lens", "block_tables")}
    if "v_dim" in node.attrs:
        out, attrs = e.result(node.output, "out"), {**node.attrs, "block_size": e.graph.facts.block_size}
        e.call(node, latent_attention, attrs, inputs, {"out": out})
        return [out]
    vectors = {"sinks": node.optional(5), "slopes": node.optional(6)}
    inputs |= {name: e.plain(v, name, "float32") for name, v in vectors.items() if v is not None}
    flags = {f"has_{name}": int(v is not None) for name, v in vectors.items()} | {"int8_kv": int(len(pages) > 2)}
    flags["e4m3_kv"] = _is_e4m3(e, layer)
    out = e.result(node.output, "out")
    attrs = {**node.attrs, **flags, "block_size": e.graph.facts.block_size}
    inputs["work"] = _work_list(e, node, attrs, inputs, group)
    e.call(node, paged_attention, attrs, inputs, {"out": out})
    return [out]


def _work_list(e: CudaEmitter, node: Node, attrs: dict[str, Any], inputs: dict[str, Tensor], group: int) -> Tensor:
    """Returns the list of the work of a step's decodes, made by the first of the layers that share it."""
    try:
        op = Attention.of(attrs, e.dtype)
    except KernelError as error:
        raise e.refusal(node, str(error)) from error
    shared = (group, *(getattr(op, name) for name in work_list.SHARED))
    if shared not in e.work_lists:
        operands = {name: inputs[name] for name in ("q", "seq_starts", "context_lens", "block_tables")}
        work = e.work_lists[shared] = e.make(("seqs", work_list.columns(op)), "work", "int32")
        e.call(node, work_list, attrs, operands, {"work": work})
    return e.work_lists[shared]


def _linear(e: CudaEmitter, node: Node) -> Results:
    bias, y = node.optional(2), e.wide_result(node.output, "y")
    added = None if bias is None else e.plain(bias, "bias", y.dtype)
    e.product(node, e.activation(node.operand(0), "x"), e.plain(node.operand(1), "w"), added, y)
    return [y]


def _weight_only_linear(e: CudaEmitter, node: Node) -> Results:
    fmt: WeightFormat = node.attrs["format"]
    w, bias, y = node.operand(1), node.optional(2), e.wide_result(node.output, "y")
    n, k = (int(size) for size in w.shape)
    sizes: dict[str, Any] = {"n": n, "k": k, "group": fmt.group}
    module: Any
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


def _quantized_linear(e: CudaEmitter, node: Node) -> Results:
    """Emits a product of w8a8, the one format that rounds x too."""
    w, bias, y = node.operand(1), node.optional(2), e.wide_result(node.output, "y")
    n, k = (int(size) for size in w.shape)
    values, scales = e.weights.whole_rows(w, node.attrs["format"])
    inputs = {"x": e.activation(node.operand(0), "x")}
    inputs |= {"values": e.file.tensor(values, "values"), "scales": e.file.tensor(scales, "scales")}
    inputs |= {} if bias is None else {"bias": e.plain(bias, "bias", y.dtype)}
    e.call(node, rounded_product, {"n": n, "k": k}, inputs, {"y": y})
    return [y]


def _gate(e: CudaEmitter, node: Node) -> Results:
    x, y = e.activation(node.operand(0), "x"), e.result(node.output, "y")
    e.call(node, gate, {**node.attrs, "channels": y.shape[-1]}, {"x": x}, {"y": y})
    return [y]


def _route(e: CudaEmitter, node: Node) -> Results:
    logits = e.activation(node.operand(0), "logits")
    names = ("bias", "expert_scales")
    vectors = {name: node.optional(i) for i, name in enumerate(names, start=1)}
    inputs = {"logits": logits, **{name: e.plain(v, name, "float32") for name, v in vectors.items() if v is not None}}
    index = e.result(node.outputs[0], "index", "int32")
    weights = e.result(node.outputs[1], "weights", "float32")
    attrs = {**node.attrs, "experts": logits.shape[-1]}
    e.call(node, route, attrs, inputs, {"index": index, "weights": weights})
    return [index, weights]


def _experts(e: CudaEmitter, node: Node) -> Results:
    inputs = {name: e.activation(node.operand(i), name) for i, name in enumerate(("x", "index", "weights"))}
    form = _form(e, node)
    for i, name in ((3, "up"), (4, "down")):
        inputs |= _matrices(e, node, node.operand(i), name, f"{name}_scales")
    biases = {name: node.optional(i) for i, name in ((5, "up_bias"), (6, "down_bias"))}
    inputs |= {name: e.plain(v, name, "float32") for name, v in biases.items() if v is not None}
    y = e.result(node.output, "y")
    experts, hidden, inner = (int(size) for size in node.operand(4).shape)
    sizes = {"experts": experts, "hidden": hidden, "inner": inner, "k": inputs["index"].shape[-1], "dtype": y.dtype}
    e.call(node, experts_launch, {**_without_format(node), **sizes, **form}, inputs, {"y": y})
    return [y]


def _head_products(e: CudaEmitter, node: Node) -> Results:
    x, y = e.activation(node.operand(0), "x"), e.result(node.output, "y")
    form, (heads, n, k) = _form(e, node), (int(size) for size in node.operand(1).shape)
    inputs = {"x": x, **_matrices(e, node, node.operand(1), "w", "scales")}
    sizes = {"heads": heads, "columns": x.shape[1] // heads, "n": n, "k": k}
    e.call(node, head_products, {**sizes, **form}, inputs, {"y": y})
    return [y]


def _carried(e: CudaEmitter, node: Node) -> Results:
    """Calls an op that carries a state per sequence: rows, the batch, the state, weights."""
    launch, rows, sizes = CARRIED[node.op]
    inputs = {name: e.activation(node.operand(i), name) for i, name in enumerate(rows)}
    weights = {"w": node.operand(len(rows) + len(BATCH) + 1), "bias": node.optional(len(rows) + len(BATCH) + 2)}
    inputs |= {name: e.plain(v, name, "float32") for name, v in weights.items() if v is not None}
    inputs |= {name: e.metadata(name) for name in BATCH}
    y = e.result(node.outputs[0], "y")
    known = {name: inputs[operand].shape[dim] for name, (operand, dim) in sizes.items()}
    attrs = {**node.attrs, **known, "slot_numbers": e.slot_numbers}
    e.call(node, launch, attrs, {**inputs, "states": e.state(node.attrs["state"])}, {"y": y})
    return [y, None]


def _form(e: CudaEmitter, node: Node) -> dict[str, Any]:
    """Returns the attributes of a launch.py that say how matrices are stored. Raises LoweringError."""
    if "format" not in node.attrs:
        return {}
    try:
        form = Form.of(node.attrs["format"])
    except KernelError as error:
        raise e.refusal(node, str(error)) from error
    return {"form": form.name, "group": form.group}


def _matrices(e: CudaEmitter, node: Node, value: Value, name: str, scales: str) -> dict[str, Tensor]:
    """Returns matrices [..., N, K] in the form of the node, and their scales if it has a format."""
    fmt: WeightFormat | None = node.attrs.get("format")
    if fmt is None:
        return {name: e.plain(value, name)}
    stored = e.weights.fp8_rows(value, fmt) if fmt.kind == "fp" else e.weights.grouped_rows(value, fmt)
    return {name: e.file.tensor(stored[0], name), scales: e.file.tensor(stored[1], scales)}


def _without_format(node: Node) -> dict[str, Any]:
    return {key: value for key, value in node.attrs.items() if key != "format"}


# -- ops on each element, and copies ----------------------------------------------------------------------------------


def _elementwise(e: CudaEmitter, node: Node) -> Results:
    """Calls a program of one op: one that no tree holds, since an operand has one value for each row."""
    around = words_around(node)
    if around is None:
        raise e.refusal(node, f"{node.op} has no kernel for target cuda")
    inputs: dict[str, Tensor] = {}
    words = []
    for value in (node.operand(i) for i in range(len(node.inputs))):
        number = number_of(value)
        if number is not None:
            words.append(repr(number))
        elif value.is_stored:
            inputs["w"] = _row(e, node, value, inputs)
            words.append("w")
        else:
            words.append(_operand(e, value, inputs))
    return _program(e, node, " ".join([*around[0], *words, *around[1]]), inputs)


def elementwise_tree(e: CudaEmitter, node: Node, tree: Tree) -> Results:
    """Calls the program of a tree of ops, whose last one is the node. A sum of products needs no program."""
    operands = [f"x{i}" for i in range(len(tree.x))]
    if sorted(tree.program.split()) == sorted([*operands, *["add"] * (len(operands) - 1)]):
        total = e.sum_in_products(tree.x, "float32" if node.output in e.wide else e.dtype)
        if total is not None:
            return [total]
    inputs = {f"x{i}": e.activation(value, f"x{i}") for i, value in enumerate(tree.x)}
    inputs |= {} if tree.w is None else {"w": e.plain(tree.w, "w", "float32")}
    return _program(e, node, tree.program, inputs)


def _program(e: CudaEmitter, node: Node, program: str, inputs: dict[str, Tensor]) -> Results:
    y = e.wide_result(node.output, "y")
    per_row = [name for name, tensor in inputs.items() if name != "w" and tensor.shape[-1] == 1 != y.shape[-1]]
    attrs = {"program": program, "channels": y.shape[-1], "per_row": " ".join(per_row)}
    e.call(node, elementwise, attrs, inputs, {"y": y})
    return [y]


def _operand(e: CudaEmitter, value: Value, inputs: dict[str, Tensor]) -> str:
    """Returns the word of a computed operand. The same value twice is one operand."""
    for name, tensor in inputs.items():
        if name != "w" and value in e.tensors and tensor.address == e.tensors[value].address:
            return name
    name = f"x{sum(name != 'w' for name in inputs)}"
    inputs[name] = e.activation(value, name)
    return name


def _row(e: CudaEmitter, node: Node, value: Value, inputs: dict[str, Tensor]) -> Tensor:
    """Returns a stored vector with one number for each column."""
    if "w" in inputs or value.shape != node.output.shape[-1:]:
        stored = list(value.shape)
        raise e.refusal(node, f"{node.op} with a stored operand of shape {stored} has no kernel for target cuda")
    return e.plain(value, "w", "float32")


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


def wide_logits(e: CudaEmitter, logits: Tensor, value: Value) -> Tensor:
    """Returns the logits as float32, by one more call where they are of A."""
    if logits.dtype == "float32":
        return logits
    y = e.make(value.shape, "y", "float32")
    e.call(value.producer, elementwise, {"program": "x0", "channels": y.shape[-1]}, {"x0": logits}, {"y": y})
    return y


CARRIED: dict[str, tuple[Any, tuple[str, ...], dict[str, tuple[str, int]]]] = {
    "carried_conv": (causal_conv, ("x",), {"width": ("w", 0), "channels": ("w", 1)}),
    "carried_scan": (state_space_scan, ("row", "dt"), {"columns": ("row", 1)}),
    "carried_selective_scan": (selective_scan, ("x", "dt", "b", "c"), {"channels": ("x", 1)}),
    "carried_delta_rule": (delta_rule, ("row", "dt", "beta"), {"columns": ("row", 1), "steps": ("dt", 1)}),
    "carried_linear_attention": (linear_attention, ("row",), {"columns": ("row", 1)}),
    "carried_rg_lru": (rg_lru, ("x", "input", "decay"), {"channels": ("x", 1)}),
}
"""Of each op with a state: its launch.py, its rows, and the attributes of its kernels that are sizes of operands."""
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
    "latent_kv_write": _latent_kv_write,
    "gather_rows": _gather_rows,
    **dict.fromkeys(CARRIED, _carried),
    "linear": _linear,
    "weight_only_linear": _weight_only_linear,
    "quantized_linear": _quantized_linear,
    "quantized_embedding": _quantized_embedding,
    "slice": _slice,
    "concat": _concat,
    "route": _route,
    **dict.fromkeys(("experts", "weight_only_experts"), _experts),
    **dict.fromkeys(("head_products", "weight_only_head_products"), _head_products),
    **dict.fromkeys((*ELEMENTWISE, "clamp"), _elementwise),
    "cast": _cast,
}

HANDLERS_OF_KINDS: dict[str, Handler] = {"gate": _gate}
"""The handlers of all ops whose record says a kind."""
