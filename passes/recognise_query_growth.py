"""recognise_query_growth:  attention(q * f(positions), k, v)  ->  attention(q * view(spread(table[positions])), k, v)

S positions, H heads, D head dim, P the longest sequence.  f: one number per position, [1, S, 1, 1] beside q of
[1, S, H, D], or [1, 1, S, 1] beside q before its transpose.  table: [P, 1], a constant.  spread gives a row of H * D
columns its number (flatten_head_gates).  Where all numbers are 1, as for sequences that end before queries grow, q is
not multiplied.

Llama 4, Ministral 3 and others sharpen the attention of late positions so. The pass looks at the numbers, not at how
they are computed: every op before them must treat each position alone, so that they are one table for all sequences.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir import dims as dim_math
from tensorwright.ir.ops import ELEMENTWISE
from tensorwright.passes.flatten_head_gates import spread
from tensorwright.passes.recognise_masks import INTEGERS, cone, evaluate
from tensorwright.passes.rewriting.attention_vectors import vectors_of
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    grown = mul(q, growth)
    out   = attention(grown, k, v, sinks?, slopes?)
    """,
    commute=True,
)
TURNED = pattern(
    """
    grown = mul(heads, growth)
    out   = attention(transpose(grown, dim0=1, dim1=2), k, v, sinks?, slopes?)
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    m.bind_shape(m.growth, "1 S 1 1")
    check_growth(m)


def check_turned(m: Match) -> None:
    m.bind_shape(m.heads, "1 H S D")
    m.bind_shape(m.growth, "1 1 S 1")
    check_growth(m)


def check_growth(m: Match) -> None:
    """Notes the input with the positions."""
    for node in cone(m.growth):
        m.require(is_by_position(node, m.dims["S"]), "it is not computed of each position alone", node.outputs[0])


def is_by_position(node: Node, length: int | str) -> bool:
    """Returns whether the results of a node hold one number of each position in order, or one of all positions."""
    if node.op == "input":
        return node.output.dtype in INTEGERS and "position" in node.output.name
    if node.op == "arange":
        return (node.attrs["start"], node.attrs["end"], node.attrs["step"]) == (0, length, 1)
    if node.op == "constant":
        return node.output.is_scalar_constant
    sizes = [size for size in node.output.shape if size != 1]
    return node.op in (*ELEMENTWISE, "view") and (not sizes or (len(sizes) == 1 and dim_math.same(sizes[0], length)))


def table_of(graph: Graph, growth: Value) -> np.ndarray:
    """Returns the number of each position that an engine can see, [P, 1]."""
    return np.asarray(evaluate(graph, growth, graph.facts.max_seq_len), np.float32).reshape(-1, 1)


def grow(m: Match, g: Rewriter, q: Value) -> Value:
    """Returns the attention of q, multiplied by the numbers of its positions where one of them is not 1."""
    table = table_of(g.graph, m.growth)
    if not np.all(table == 1.0):
        positions = next(value for value in g.graph.inputs if "position" in value.name)
        numbers = g.embedding(g.constant(table, "float32", table.shape), positions)
        heads, width = (int(m.dims[letter]) for letter in "HD")
        row = spread(g, g.view(numbers, shape=(1, m.dims["S"], 1, 1)), heads * width)
        q = g.mul(q, g.view(row, shape=q.shape))
    out: Value = g.attention(q, m.k, m.v, *vectors_of(m), **m.root.attrs)
    return out


def recognise_query_growth(graph: Graph) -> int:
    """Returns how many attentions had such queries."""
    return apply(graph, PATTERN, check, lambda m, g: grow(m, g, m.q)) + apply(
        graph, TURNED, check_turned, lambda m, g: grow(m, g, g.transpose(m.heads, dim0=1, dim1=2))
    )
