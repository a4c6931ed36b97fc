"""Emits what ranks do together as nodes of the plugins AllReduce, AllGather, Send and Receive.

All of them are in A, the activation type: a rank rounds its part of a sum to A, and NCCL adds in A. Each node has the
result of the one before as its last operand, for ranks must do these things in one order (plugins/collectives).
"""

from __future__ import annotations

from tensorwright.builder.emit.onnx.model_file import TYPES
from tensorwright.builder.emit.onnx.plugin_emitter import Handlers, PluginEmitter
from tensorwright.engine_format.tensorrt_manifest import sent_output
from tensorwright.ir.graph import Node, Shape
from tensorwright.passes.rewriting.cut import cut_columns


def _together(e: PluginEmitter, op: str, node: Node, x: str, shape: Shape, name: str = "", **attrs: int) -> str:
    """Adds a node that comes after all those before it. name: of its result, where that is an output of the engine."""
    (made,) = e.plugin(op, [x, *e.met], node, [name], **attrs)
    if not name:
        e.model.tell(made, e.dtype, shape)
    e.met = [made]
    return made


def _all_reduce(e: PluginEmitter, node: Node) -> list[str]:
    return [_together(e, "AllReduce", node, e.rounded(node.operand(0)), node.output.shape)]


def _all_gather(e: PluginEmitter, node: Node) -> list[str]:
    """Gathers parts of the same width, one behind the other, and joins them by columns, without what fills them up."""
    x, columns, ranks = node.operand(0), int(node.attrs["columns"]), e.graph.facts.tensor_parallel
    parts = [cut_columns(columns, ranks, rank) or (0, 0) for rank in range(ranks)]
    if parts[e.graph.facts.tensor_rank] != (node.attrs["first"], node.attrs["first"] + int(x.shape[1])):
        raise e.refusal(node, f"all_gather has other columns than the ranks share, {parts}")
    widths = [end - begin for begin, end in parts]
    own, scope, missing = e.rounded(x), node.scope, max(widths) - int(x.shape[1])
    if missing:
        own = e.add("Pad", [own, e.ints([0, 0, 0, missing])], scope)
    rows = x.shape[0]
    made = _together(e, "AllGather", node, own, (ranks, rows, max(widths)), ranks=ranks)
    joined = e.add("Transpose", [made], scope, perm=[1, 0, 2])
    joined = e.add("Reshape", [joined, e.ints([0, ranks * max(widths)])], scope)
    if len(set(widths)) > 1:
        starts = [rank * max(widths) for rank in range(ranks)]
        bounds = [(start, start + width) for start, width in zip(starts, widths, strict=True)]
        pieces = [e.add("Slice", [joined, e.ints([a]), e.ints([b]), e.ints([1])], scope) for a, b in bounds]
        joined = e.add("Concat", pieces, scope, axis=-1)
    e.met = [joined]
    return [joined]


def _send(e: PluginEmitter, node: Node) -> list[str]:
    x = e.rounded(node.operand(0))
    _together(e, "Send", node, x, (1, 1), sent_output(int(node.attrs["message"])))
    return [x]


def _receive(e: PluginEmitter, node: Node) -> list[str]:
    like = e.add("Cast", [e.activation(node.operand(0))], node.scope, to=TYPES[e.dtype])
    return [_together(e, "Receive", node, like, node.output.shape, columns=int(node.attrs["columns"]))]


COLLECTIVES: Handlers = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "send": _send,
    "receive": _receive,
}
