"""lower_to_cpu:  the cached graph  ->  one node per instruction of the CPU plan, with final types

A is the engine's type (float32 or bfloat16): matmul inputs, q, the KV cache, matmul weights and the embedding table are A,
everything else is float32.  Folded on the way, where the inner value has no other user:

    swiglu(x W^T + b)       ->  matmul with the swiglu epilogue (weight layout panels_swiglu)
    (x W^T + b) + residual  ->  matmul with a residual

Operands are in the order [x, w, bias?, residual?] for matmul and [x, w, residual?] for rms_norm; None where absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.builder.ir import Graph, Node, Shape, Value
from tensorwright.errors import LoweringError
from tensorwright.passes.matcher import describe
from tensorwright.passes.rewriter import make_node

EPILOGUE_NONE, EPILOGUE_SWIGLU = 0, 1
"""Numbers of plugins/matmul/kernel.h."""

PANELS, PANELS_SWIGLU, RAW = "panels", "panels_swiglu", "raw"


def lower_to_cpu(graph: Graph) -> int:
    """Returns how many instructions came out. Raises LoweringError for a node without a kernel."""
    lowering = _Lowering(graph)
    for node in graph.nodes:
        lowering.lower(node)
    graph.nodes = lowering.nodes
    graph.outputs = [lowering.moved[v] for v in graph.outputs]
    graph.stage = "lowered"
    graph.drop_dead()
    return sum(n.op not in ("input", "weight", "constant") for n in graph.nodes)


class _Lowering:
    """Rebuilds the graph in order; `moved` says what each old value has become."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.users = graph.users()
        self.act = str(graph.facts["dtype"])
        self.nodes: list[Node] = []
        self.moved: dict[Value, Value] = {}
        self.weights: dict[tuple[Value, str], Value] = {}
        self.folded = find_folded(graph, self.users)
        self.scope = ""

    def lower(self, node: Node) -> None:
        self.scope = node.scope
        if node.op in ("weight", "constant") or id(node) in self.folded:
            return
        rule = RULES.get(node.op)
        if rule is None:
            raise LoweringError(
                f"lower_to_cpu: no kernel for {describe(node.outputs[0])}; the CPU target has {', '.join(sorted(RULES))}"
            )
        for old, new in zip(node.outputs, rule(self, node), strict=True):
            self.moved[old] = new

    def emit(self, op: str, inputs: list[Value | None], kinds: list[tuple[str, Shape]], **attrs: Any) -> list[Value]:
        node = make_node(self.graph, op, inputs, attrs, kinds, self.scope)
        self.nodes.append(node)
        return node.outputs

    def value(self, value: Value | None) -> Value:
        """What an activation or input has become."""
        assert value is not None
        if value not in self.moved:
            raise LoweringError(f"lower_to_cpu: {describe(value)} is used as an activation, but it is a weight or constant")
        return self.moved[value]

    def weight(self, value: Value | None, layout: str) -> Value:
        """A weight or constant array in one layout; each layout of it is stored once."""
        assert value is not None and value.node is not None
        if value.node.op not in ("weight", "constant"):
            raise LoweringError(f"lower_to_cpu: {describe(value)} must be a weight of the checkpoint or a constant")
        if (value, layout) not in self.weights:
            dtype = "float32" if layout == RAW else self.act
            attrs = {**value.node.attrs, **({"layout": layout} if value.node.op == "weight" else {})}
            node = make_node(self.graph, value.node.op, (), attrs, [(dtype, value.shape)], value.node.scope, value.name)
            self.nodes.append(node)
            self.weights[value, layout] = node.output
        return self.weights[value, layout]

    def input_type(self, value: Value) -> str:
        """A if `value` feeds matmuls, float32 if it feeds the rest; refuses one that feeds both where these differ."""
        needs = {self.act if self.feeds_matmul(user, value) else "float32" for user in self.users[value]}
        if len(needs) > 1:
            raise LoweringError(f"lower_to_cpu: {describe(value)} is needed in {' and '.join(sorted(needs))}, and no kernel writes both")
        return needs.pop() if needs else "float32"

    def feeds_matmul(self, user: Node, value: Value) -> bool:
        return user.op == "linear" and user.inputs[0] is value

    def matmul_operand(self, value: Value | None) -> Value:
        """The input of a matmul, which must be A already: there is no instruction that converts."""
        x = self.value(value)
        if x.dtype != self.act:
            raise LoweringError(f"lower_to_cpu: {describe(x)} feeds a matmul and must be {self.act}, but nothing makes it so")
        return x


def find_folded(graph: Graph, users: dict[Value, list[Node]]) -> set[int]:
    """Linears that become part of the node after them: of a swiglu, or of an addition on at most one side."""
    folded: set[int] = set()
    for node in graph.nodes:
        candidates = node.inputs if node.op == "add" else node.inputs[:1] if node.op == "swiglu" else []
        for value in reversed(candidates):
            if value is None or value.node is None or value.node.op != "linear" or value in graph.outputs:
                continue
            if len(users[value]) == 1 and node.inputs.count(value) == 1:
                folded.add(id(value.node))
                break
    return folded


def lower_input(l: _Lowering, node: Node) -> list[Value]:
    l.nodes.append(node)
    return node.outputs


def lower_embedding(l: _Lowering, node: Node) -> list[Value]:
    table, ids = node.inputs
    kind = ("float32", node.output.shape)
    return l.emit("embedding", [l.weight(table, PANELS), l.value(ids)], [kind], scale=float(node.attrs["scale"]))


def lower_rms_norm(l: _Lowering, node: Node) -> list[Value]:
    x, w = node.inputs
    kind = (l.input_type(node.output), node.output.shape)
    return l.emit("rms_norm", [l.value(x), l.weight(w, RAW), None], [kind], **norm_attrs(node))


def lower_add_rms_norm(l: _Lowering, node: Node) -> list[Value]:
    x, residual, w = node.inputs
    y, total = node.outputs
    kinds = [(l.input_type(y), y.shape), ("float32", total.shape)]
    return l.emit("rms_norm", [l.value(x), l.weight(w, RAW), l.value(residual)], kinds, **norm_attrs(node))


def norm_attrs(node: Node) -> dict[str, float]:
    return {"eps": float(node.attrs["eps"]), "weight_offset": float(node.attrs["weight_offset"])}


def lower_linear(l: _Lowering, node: Node) -> list[Value]:
    return lower_matmul(l, node, node, PANELS, EPILOGUE_NONE, None)


def lower_matmul(
    l: _Lowering, linear: Node, last: Node, layout: str, epilogue: int, residual: Value | None
) -> list[Value]:
    """The instruction for `linear` and what is folded into it; `last` is the node whose result it gives."""
    x, w, bias = (*linear.inputs, None)[:3]
    bias = l.weight(bias, RAW) if bias is not None else None
    out = last.output
    kind = (l.input_type(out), out.shape)
    operands = [l.matmul_operand(x), l.weight(w, layout), bias, None if residual is None else l.value(residual)]
    return l.emit("matmul", operands, [kind], epilogue=epilogue, n=out.shape[-1])


def lower_swiglu(l: _Lowering, node: Node) -> list[Value]:
    (x,) = node.inputs
    assert x is not None
    if x.node is not None and id(x.node) in l.folded:
        return lower_matmul(l, x.node, node, PANELS_SWIGLU, EPILOGUE_SWIGLU, None)
    return l.emit("swiglu", [l.value(x)], [(l.input_type(node.output), node.output.shape)])


def lower_add(l: _Lowering, node: Node) -> list[Value]:
    a, b = node.inputs
    assert a is not None and b is not None
    if a.shape != b.shape:
        raise LoweringError(f"lower_to_cpu: {describe(node.output)} adds shapes that differ, and no kernel does")
    for linear, residual in ((b, a), (a, b)):
        if linear.node is not None and id(linear.node) in l.folded:
            return lower_matmul(l, linear.node, node, PANELS, EPILOGUE_NONE, residual)
    return l.emit("add", [l.value(a), l.value(b)], [("float32", node.output.shape)])


def lower_rotary_table(l: _Lowering, node: Node) -> list[Value]:
    positions, frequencies = node.inputs
    operands = [l.value(positions), l.weight(frequencies, RAW)]
    return l.emit("rotary_table", operands, [("float32", node.output.shape)], scale=float(node.attrs["scale"]))


def lower_rotary_kv_write(l: _Lowering, node: Node) -> list[Value]:
    q, cache = node.outputs
    kinds = [(l.act, q.shape), (cache.dtype, cache.shape)]
    return l.emit("rotary_kv_write", [l.value(v) for v in node.inputs], kinds, **kv_attrs(node, "rotary_dim"))


def lower_paged_attention(l: _Lowering, node: Node) -> list[Value]:
    kind = (l.input_type(node.output), node.output.shape)
    attrs = {**kv_attrs(node), "scale": float(node.attrs["scale"]), "softcap": float(node.attrs["softcap"])}
    return l.emit("paged_attention", [l.value(v) for v in node.inputs], [kind], **attrs)


def kv_attrs(node: Node, *more: str) -> dict[str, int]:
    return {"kv_layer": node.attrs["layer"], "heads": node.attrs["heads"], **{k: node.attrs[k] for k in more}}


def lower_gather_rows(l: _Lowering, node: Node) -> list[Value]:
    return l.emit("gather_rows", [l.value(v) for v in node.inputs], [("float32", node.output.shape)])


RULES: dict[str, Callable[[_Lowering, Node], list[Value]]] = {
    "input": lower_input,
    "embedding": lower_embedding,
    "rms_norm": lower_rms_norm,
    "add_rms_norm": lower_add_rms_norm,
    "linear": lower_linear,
    "swiglu": lower_swiglu,
    "add": lower_add,
    "rotary_table": lower_rotary_table,
    "rotary_kv_write": lower_rotary_kv_write,
    "paged_attention": lower_paged_attention,
    "gather_rows": lower_gather_rows,
}
