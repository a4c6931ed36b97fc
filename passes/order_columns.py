"""order_columns:  quantized_linear(x, W, b){format}  ->  quantized_linear(take_columns(x, order), W ordered, b){format}

T tokens, K channels, N outer.  x: [T, K], W: [N, K], order: the numbers of the channels, [K].  A checkpoint with
act-order (as GPTQModel writes it, with a group for each column in g_idx) has codes whose groups are not neighbours.
With the columns of W in the order of its groups, a format in groups holds the codes as they are.

The fact "column_orders" says whose order it is, by the text of W: the name of a matrix of the checkpoint. The build has
found out that the ordered codes fit (builder/calibrate/kept_formats.py). Products that read one value in one order
share the ordered value.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.weights import ColumnOrder, Ordered
from tensorwright.passes.rewriting.rewriter import Rewriter, splice


def order_columns(graph: Graph) -> int:
    """Returns how many products were rewritten."""
    orders = graph.facts.column_orders
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    ordered: dict[tuple[Value, ColumnOrder], Value] = {}
    for node in list(graph.find("quantized_linear")) if orders else []:
        x, w = node.operand(0), node.operand(1)
        matrix = orders.get(str(w.producer.attrs.get("expr")))
        if matrix is None:
            continue
        g = Rewriter(graph, node)
        width = int(w.shape[1])
        order = ColumnOrder(matrix, width)
        if (x, order) not in ordered:
            columns = g.add("weight", type=("float32", [width]), expr=order)
            ordered[x, order] = g.take_columns(x, columns)
        expr = Ordered(w.producer.attrs["expr"], order, 1)
        turned = g.add("weight", type=(w.dtype, w.shape), expr=expr)
        forward[node.output] = g.quantized_linear(ordered[x, order], turned, *node.inputs[2:], **node.attrs)
        inserted[id(node)] = g.nodes
    splice(graph, inserted, forward)
    return len(forward)


def restore_order(graph: Graph) -> None:
    """Undoes order_columns: products read the columns in the order of the model."""
    forward = {node.output: node.operand(0) for node in graph.find("take_columns")}
    for node in graph.find("weight"):
        if isinstance(node.attrs["expr"], Ordered):
            node.attrs["expr"] = node.attrs["expr"].part
    splice(graph, {}, forward)
