"""Emits the portable ONNX form: a "cached" graph in standard ops and ONNX Runtime's own, with the cache in slots.

A step has B sequences of S tokens each: a batch of decode steps (S = 1), or a chunk of one prompt (B = 1). Rows are
token-major, [B * S, C]; only attention works on [B, S, C]. The cache of a sequence is one slot of max_seq_len
positions, which GroupQueryAttention reads and writes in place. portable_io.py has the inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorwright.builder.emit.onnx.group_attention import COLUMN_NORMS, emit_attention, padded_dim, refuse_gains
from tensorwright.builder.emit.onnx.model_file import CONTRIB, ELEMENTWISE_NAMES, TYPES
from tensorwright.builder.emit.onnx.portable_model import PortableModel
from tensorwright.builder.emit.onnx.refuse_states import refuse_states
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import SOURCES, Graph, Node
from tensorwright.ir.ops import kind_of
from tensorwright.models.checkpoint import Checkpoint

INT8_ACTIVATIONS = 4
"""The accuracy_level of MatMulNBits for int8; without one MatMulNBits computes in the activation type."""


def emit_portable(graph: Graph, checkpoint: Checkpoint, dtype: str) -> PortableModel:
    """Returns the model, which reads weights when it is written. Raises LoweringError for an op without such a form."""
    refuse_gains(graph)
    refuse_states(graph)
    e = PortableModel(graph, checkpoint, dtype)
    _inputs(e)
    for node in graph.nodes:
        if node.op in (*SOURCES, "rotary_table", "rotary_kv_write", *COLUMN_NORMS):
            continue
        handler = HANDLERS.get(node.op) or HANDLERS_OF_KINDS.get(kind_of(node.op))
        if handler is None:
            raise LoweringError(
                f"{node.op} in {node.scope or 'the model'} has no portable ONNX form; build with target cpu"
            )
        e.names.update(zip(node.outputs, handler(e, node), strict=True))
    _outputs(e)
    return e


def _inputs(e: PortableModel) -> None:
    for name, shape in (("token_ids", ("batch", "seq")), ("positions", ("batch", "seq")),
                        ("seqlens_k", ("batch",)), ("total_sequence_length", ()),
                        ("logit_rows", ("rows",))):  # fmt: skip
        e.model.input(name, "int32", shape)
    for layer in range(len(e.graph.facts.kv_layers)):
        for kind in "kv":
            e.model.input(f"past_{kind}.{layer}", e.dtype, _slots(e, layer))
    e.names.update({v: v.name for v in e.graph.inputs if v.name == "logit_rows"})


def _outputs(e: PortableModel) -> None:
    (logits,) = e.graph.outputs
    (name,) = e.model.node("Identity", [e.name(logits)], scope="", outputs=["logits"])
    e.model.output(name, "float32", ("rows", int(logits.shape[-1])))
    for layer in range(len(e.graph.facts.kv_layers)):
        for kind in "kv":
            e.model.output(f"present_{kind}.{layer}", e.dtype, _slots(e, layer))


def _slots(e: PortableModel, layer: int) -> tuple[int | str, ...]:
    """Returns the shape of K or V of one layer: a slot of all positions for each sequence."""
    facts = e.graph.facts
    cache = facts.kv_layers[layer]
    return "batch", cache.kv_heads, facts.max_seq_len, padded_dim(cache.head_dim)


def _embedding(e: PortableModel, node: Node) -> list[str]:
    table, ids = node.operand(0), node.operand(1)
    rows = e.model.node("Gather", [e.weights.plain(table), e.ids(ids.name)], scope=node.scope, axis=0)
    return _scaled(e, rows[0], float(node.attrs.get("scale", 1.0)), node.scope)


def _quantized_embedding(e: PortableModel, node: Node) -> list[str]:
    """Gathers rows of the unsigned int8 matrix that lm_head reads too, so that one matrix serves both."""
    table, ids = node.operand(0), node.operand(1)
    fmt, columns = node.attrs["format"], int(table.shape[-1])
    matrix, scales = e.weights.quantized(table, fmt)
    rows, steps = (e.model.node("Gather", [x, e.ids(ids.name)], scope=node.scope, axis=0)[0] for x in (matrix, scales))
    (rows,) = e.model.node("Cast", [rows], scope=node.scope, to=TYPES[e.dtype])
    zero = e.model.constant(np.array(128, e.dtype), "zero")
    (rows,) = e.model.node("Sub", [rows, zero], scope=node.scope)
    steps = e.reshape(steps, [0, 0, 1], node.scope)
    (rows,) = e.model.node("Mul", [rows, steps], scope=node.scope)
    padded = fmt.groups(columns) * fmt.group
    rows = e.reshape(rows, [-1, padded], node.scope)
    if padded != columns:
        bounds = [e.shape_constant([i]) for i in (0, columns, -1)]
        (rows,) = e.model.node("Slice", [rows, *bounds], scope=node.scope)
    return _scaled(e, rows, float(node.attrs["scale"]), node.scope)


def _scaled(e: PortableModel, x: str, scale: float, scope: str) -> list[str]:
    if scale == 1.0:
        return [x]
    return e.model.node("Mul", [x, e.model.constant(np.array(scale, e.dtype), "scale")], scope=scope)


def _linear(e: PortableModel, node: Node) -> list[str]:
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    operands = [e.name(x), e.weights.plain(w)] + ([] if bias is None else [e.weights.plain(bias)])
    return _logits(e, node, e.model.node("Gemm", operands, scope=node.scope, transB=1))


def _quantized_linear(e: PortableModel, node: Node) -> list[str]:
    """Emits a product with rounded weights. `quantized_linear` rounds the activations in the same groups too."""
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    n, k = (int(d) for d in w.shape)
    fmt: WeightFormat = node.attrs["format"]
    operands = [e.name(x), *e.weights.quantized(w, fmt)]
    operands += [] if bias is None else ["", "", e.weights.plain(bias)]
    made = e.model.node(
        "MatMulNBits", operands, scope=node.scope, domain=CONTRIB, N=n, K=k, bits=fmt.bits, block_size=fmt.group,
        accuracy_level=INT8_ACTIVATIONS if node.op == "quantized_linear" else None,
    )  # fmt: skip
    return _logits(e, node, made)


def _logits(e: PortableModel, node: Node, made: list[str]) -> list[str]:
    """Returns `made`, or its cast to float32 where the result is logits, or is computed from logits."""
    if node.output.shape[0] != "rows" or e.dtype == "float32":
        return made
    e.wide.add(node.output)
    return e.model.node("Cast", made, scope=node.scope, to=TYPES["float32"])


def _norm(e: PortableModel, node: Node) -> list[str]:
    return [e.normalise(node, e.name(node.operand(0)))]


def _add_norm(e: PortableModel, node: Node) -> list[str]:
    """Emits one op for the sum and its norm; the sum is not an output if no node reads it."""
    bias = node.optional(3)
    gamma = e.weights.plain(node.operand(2), plus=node.attrs["weight_offset"])
    operands = [e.name(node.operand(0)), e.name(node.operand(1)), gamma] + (
        [] if bias is None else [e.weights.plain(bias)]
    )
    op = "SkipSimplifiedLayerNormalization" if node.op == "add_rms_norm" else "SkipLayerNormalization"
    last = "" if e.users[node.outputs[1]] else "-"
    made = e.model.node(
        op, operands, scope=node.scope, domain=CONTRIB, epsilon=node.attrs["eps"],
        outputs=["", "-", "-", last] if last != "-" else [""],
    )  # fmt: skip
    return [made[0], made[-1]]


def _gate(e: PortableModel, node: Node) -> list[str]:
    columns = int(node.output.shape[-1])
    sizes = e.shape_constant([columns, columns])
    gate, up = e.model.node("Split", [e.name(node.operand(0)), sizes], scope=node.scope, outputs=["", ""], axis=-1)
    return e.model.node("Mul", [_activation(e, node.attrs["activation"], gate, node.scope), up], scope=node.scope)


def _activation(e: PortableModel, kind: str, x: str, scope: str) -> str:
    if kind == "silu":
        return e.model.node("QuickGelu", [x], scope=scope, domain=CONTRIB, alpha=1.0)[0]
    if kind == "relu":
        return e.model.node("Relu", [x], scope=scope)[0]
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    return e.model.node("Gelu", [x], scope=scope, approximate=approximate)[0]


def _gather_rows(e: PortableModel, node: Node) -> list[str]:
    return e.model.node("Gather", [e.name(node.operand(0)), e.name(node.operand(1))], scope=node.scope, axis=0)


def _attention(e: PortableModel, node: Node) -> list[str]:
    return [emit_attention(e, node.operand(1).producer, node)]


def _elementwise(e: PortableModel, node: Node) -> list[str]:
    dtype = e.dtype
    if any(v in e.wide for v in node.inputs):
        dtype = "float32"
        e.wide.add(node.output)
    operands = [e.names[v] if v in e.names else e.weights.plain(v, dtype) for v in node.inputs if v is not None]
    if node.op == "square":
        return e.model.node("Mul", operands * 2, scope=node.scope)
    if node.op == "rsqrt":
        return e.model.node("Reciprocal", e.model.node("Sqrt", operands, scope=node.scope), scope=node.scope)
    if node.op == "silu":
        return [_activation(e, "silu", operands[0], node.scope)]
    if node.op == "gelu":
        kind = "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu"
        return [_activation(e, kind, operands[0], node.scope)]
    return e.model.node(ELEMENTWISE_NAMES[node.op], operands, scope=node.scope)


def _clamp(e: PortableModel, node: Node) -> list[str]:
    """Emits a Clip without the bounds that are absent."""
    value = node.operand(0)
    dtype = "float32" if value in e.wide else e.dtype
    if value in e.wide:
        e.wide.add(node.output)
    bounds = [node.attrs["min"], node.attrs["max"]]
    named = ["" if b is None else e.model.constant(np.array(b, dtype), "bound") for b in bounds]
    return e.model.node("Clip", [e.name(value), *named], scope=node.scope)


def _slice(e: PortableModel, node: Node) -> list[str]:
    """Emits a slice of columns. No node slices tokens at this stage."""
    bounds = [e.shape_constant([int(node.attrs[key])]) for key in ("start", "end", "dim", "step")]
    return e.model.node("Slice", [e.name(node.operand(0)), *bounds], scope=node.scope)


HANDLERS: dict[str, Callable[[PortableModel, Node], list[str]]] = {
    "embedding": _embedding,
    "quantized_embedding": _quantized_embedding,
    "linear": _linear,
    **dict.fromkeys(("weight_only_linear", "quantized_linear"), _quantized_linear),
    "rms_norm": _norm,
    "layer_norm": _norm,
    "add_rms_norm": _add_norm,
    "add_layer_norm": _add_norm,
    "gather_rows": _gather_rows,
    "paged_attention": _attention,
    "clamp": _clamp,
    "slice": _slice,
    **dict.fromkeys((*ELEMENTWISE_NAMES, "square", "rsqrt", "silu", "gelu"), _elementwise),
}

HANDLERS_OF_KINDS = {"gate": _gate}
"""The handlers of all ops whose record says a kind."""
