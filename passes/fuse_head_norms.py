"""fuse_head_norms:  concat over h of layer_norm(x[:, h], w_h, b_h)  ->  layer_norm(x, stack(w_h), stack(b_h))

S tokens, H heads, D head dim.  In the trace x is [1, H, S, D], split into heads, each of which has its own norm. The
fused norm is on [1, S, H, D], with weights [H, D].  All heads have a b, or none has.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.ir import Graph, Node, Value
from tensorwright.passes.rewriting.matcher import Match, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

PATTERN = pattern("""
    head = slice(x, dim=1, start=start, end=end, step=1)
    out  = layer_norm(head, w, b?, eps=eps, weight_offset=offset)
""")
"""Matches one head's norm. The concat around the norms takes any number of them."""


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 H S D")
    m.bind_shape(m.head, "1 1 S D")
    for value in (m.w, m.b):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)
        m.require(value is None or value.rank == 1, "the norm is of several heads", value)


def fuse_head_norms(graph: Graph) -> int:
    users = graph.users()
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    for node in graph.find("concat"):
        heads = read_heads(node)
        if not heads or any(len(users[m.out]) != 1 or m.out in graph.outputs for m in heads):
            continue
        g = Rewriter(graph, node)
        forward[node.output] = replace(heads, g)
        inserted[id(node)] = g.nodes
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def read_heads(node: Node) -> list[Match]:
    """Returns the norms of all heads in order if a concat joins such norms; else an empty list."""
    heads = [match_value(v, PATTERN, check) for v in node.inputs if v is not None]
    found = [m for m in heads if m is not None]
    if len(found) < len(heads) or node.attrs["dim"] != 1:
        return []
    first = found[0]
    same = all(
        (m.x, m.eps, m.offset, m.b is None) == (first.x, first.eps, first.offset, first.b is None) for m in found
    )
    in_order = all(m.start == h for h, m in enumerate(found)) and len(found) == first.dims["H"]
    return found if same and in_order else []


def replace(heads: Sequence[Match], g: Rewriter) -> Value:
    first = heads[0]
    w = stack(g, [m.w for m in heads])
    b = None if first.b is None else stack(g, [m.b for m in heads])
    token_major = g.transpose(first.x, dim0=1, dim1=2)
    normed = g.layer_norm(token_major, w, b, eps=first.eps, weight_offset=first.offset)
    out: Value = g.transpose(normed, dim0=1, dim1=2)
    return out


def stack(g: Rewriter, parts: Sequence[Value]) -> Value:
    """Returns one weight node with a row for each of `parts`, which are weight nodes."""
    exprs = [part.producer.attrs["expr"] for part in parts]
    kind = (parts[0].dtype, (len(parts), *parts[0].shape))
    weight: Value = g.weight(expr=exprs[0].stack(exprs[1:]), type=kind)
    return weight
