"""keep_outlier_columns:  quantized_linear(x, W, b){format}  ->  linear(x_S, W_S) + quantized_linear(x_0, W, b){format}

T tokens, K channels, N outer, S: the numbers of k channels whose inputs are far larger than the others.  x: [T, K],
W: [N, K], x_S: [T, k] and W_S: [N, k], these columns alone, and x_0: [T, K], x with zeros in them. What the product
rounds to 8 bits is x_0, so that the large numbers do not make the others coarse (LLM.int8(),
https://arxiv.org/abs/2208.07339, section 3.2; there the channels are found while the model runs).

The fact "outlier_columns" says which they are, by the text of W; a calibration has chosen them
(builder/calibrate/outlier_columns.py). W itself stays whole: its columns S are multiplied by zeros, so a matrix that
something else reads too is still stored once.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.weights import WeightExpr
from tensorwright.passes.rewriting.rewriter import Rewriter, make_node, splice


def keep_outlier_columns(graph: Graph) -> int:
    """Returns how many products were rewritten."""
    chosen = graph.facts.outlier_columns
    if not chosen or any(node.op == "split_columns" for node in graph.nodes):
        return 0
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    parts: dict[tuple[Value, tuple[int, ...]], tuple[Value, Value]] = {}
    for node in list(graph.find("quantized_linear")):
        x, w = node.operand(0), node.operand(1)
        numbers = tuple(chosen.get(str(w.producer.attrs.get("expr")), ()))
        if not numbers:
            continue
        g = Rewriter(graph, node)
        if (x, numbers) not in parts:
            columns = g.constant(np.array(numbers, np.float32), "float32", [len(numbers)])
            parts[x, numbers] = g.split_columns(x, columns)
        rest, taken = parts[x, numbers]
        kept = columns_of(w.producer.attrs["expr"], numbers)
        w_kept = g.add("weight", type=(w.dtype, [w.shape[0], len(numbers)]), expr=kept)
        large = g.linear(taken, w_kept)
        kind = (node.output.dtype, node.output.shape)
        name = node.output.name.rpartition(".")[0]  # as quantize_weights named it
        rounded = make_node(graph, node.op, [rest, *node.inputs[1:]], dict(node.attrs), [kind], node.scope, name)
        g.nodes.append(rounded)
        inserted[id(node)] = g.nodes
        forward[node.output] = g.add("add", large, rounded.output)
    splice(graph, inserted, forward)
    return len(forward)


def columns_of(expr: WeightExpr, numbers: tuple[int, ...]) -> WeightExpr:
    """Returns these columns of a matrix [N, K], in ascending order. Neighbours are one slice."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    first, *rest = (expr.slice(1, start, end) for start, end in runs)
    return first.concat(rest, dim=1)
