"""canonicalise_products:  products of heads without the batch  ->  the same with the batch, and a view behind them

    matmul(view(x, [H, S, D]), view(y, [H, D, S]))  ->  view(matmul(x, y), [H, S, S])        x: [1, H, S, D]
    softmax(view(x, [H, S, S]))                     ->  view(softmax(x), [H, S, S])

H heads, S tokens, D head dim.  Some models join the batch and the heads before they multiply, and compute scores so.
What stands between such a product and the next view (transposes of its operands, scales, sums) moves with it.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir import dims as dim_math
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

STARTS = ("matmul", "softmax")
"""Ops whose operands may be views of values with a batch."""
FOLLOWERS = ("add", "mul", "div", "maximum")
"""Ops that move only behind an op that has moved."""


def canonicalise_products(graph: Graph) -> int:
    """Returns how many ops were moved before a view."""
    lifted: dict[Value, Value] = {}
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    for node in graph.nodes:
        if len(node.outputs) != 1 or node.output.rank != 3:
            continue
        g = Rewriter(graph, node)
        operands = lift_operands(g, node, lifted)
        if operands is None:
            continue
        attrs = {**node.attrs, "dim": node.attrs["dim"] + 1} if node.op == "softmax" else node.attrs
        out = g.add(node.op, *operands, **attrs)
        lifted[node.output] = out
        forward[node.output] = g.view(out, shape=node.output.shape)
        inserted[id(node)] = g.nodes
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def lift_operands(g: Rewriter, node: Node, lifted: dict[Value, Value]) -> list[Value] | None:
    """Returns the operands of `node` with a batch; None if the node stays as it is."""
    if node.op not in (*STARTS, *FOLLOWERS):
        return None
    values = [node.operand(i) for i in range(len(node.inputs))]
    if node.op in STARTS:
        found = [with_batch(g, value, lifted) for value in values]
        return None if any(value is None for value in found) else [value for value in found if value is not None]
    if not any(value in lifted for value in values):
        return None
    return [lifted.get(v) or (g.view(v, shape=(1, *v.shape)) if v.rank == 3 else v) for v in values]


def with_batch(g: Rewriter, value: Value, lifted: dict[Value, Value]) -> Value | None:
    """Returns [1, H, S, D] of a value [H, S, D] that is a view of it, or a transpose of such a view."""
    if value in lifted:
        return lifted[value]
    node = value.node
    if node is None or value.rank != 3 or not isinstance(value.shape[0], int):
        return None
    if node.op == "transpose" and 0 not in (node.attrs["dim0"], node.attrs["dim1"]):
        inner = with_batch(g, node.operand(0), lifted)
        dims = {key: node.attrs[key] + 1 for key in ("dim0", "dim1")}
        return None if inner is None else g.transpose(inner, **dims)
    if node.op != "view":
        return None
    source = node.operand(0)
    wanted = (1, *value.shape)
    return source if source.rank == 4 and all(map(dim_math.same, source.shape, wanted)) else None
