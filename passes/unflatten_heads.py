"""unflatten_heads:  norms and gates of heads  ->  the same on rows [1, S, C]

    rms_norm(view(x, [S C / D, D]), w)  ->  view(rms_norm(view(x, [1, S, C / D, D]), w), [S C / D, D])
    silu(view(x, [S C / D, D]))         ->  view(silu(view(x, [1, S, C])), [S C / D, D])
    mul(view(x), view(y))               ->  view(mul(view(x, [1, S, C]), view(y, [1, S, C])))
    view(mul(w, x))                     ->  mul(view(w), view(x)), w: [C / D, D], x: [1, S, C / D, D]
    view(mul(x, sigmoid(y)))            ->  mul(view(x), sigmoid(view(y))), x and y: [1, S, C / D, D]

S tokens, C channels, D channels of a head.  x, y: [1, S, ...] of C channels, w: [D].  canonicalise_shapes then
joins the views. The pass is for models with recurrences or with gates of heads.
"""

from __future__ import annotations

from math import prod

from tensorwright.ir import Dim, Graph, Value
from tensorwright.ir.dims import mul, same
from tensorwright.passes.canonicalise_recurrences import has_recurrences
from tensorwright.passes.rewriting.matcher import Match, apply, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

NORM = pattern("""
    flat = view(x)
    out  = rms_norm(flat, w)
""", shared=["flat"])  # fmt: skip
GATE = pattern("""
    flat = view(x)
    out  = silu(flat)
""", shared=["flat"])  # fmt: skip
PRODUCT = pattern("""
    left  = view(x)
    right = view(y)
    out   = mul(left, right)
""", shared=["left", "right"])  # fmt: skip
GATED = pattern("""
    gated = mul(x, sigmoid(y))
    out   = view(gated)
""", commute=True)  # fmt: skip
WEIGHTED = pattern("""
    scaled = mul(w, x)
    out    = view(scaled)
""", commute=True)  # fmt: skip


def row_shape(m: Match, value: Value) -> tuple[Dim, ...]:
    """Returns [1, S, C] for a value [1, S, ...] whose rows have C channels, however these are arranged."""
    m.require(value.rank > 2 and value.shape[0] == 1, "not the rows of one sequence", value)
    m.require(all(isinstance(dim, int) for dim in value.shape[2:]), "the width is not fixed", value)
    return (*value.shape[:2], prod(int(dim) for dim in value.shape[2:]))


def check_flat(m: Match) -> None:
    m.bind_shape(m.flat, "R D")
    row = row_shape(m, m.x)
    heads = int(row[2]) // int(m.flat.shape[1])
    m.require(heads > 1 and same(m.flat.shape[0], mul(heads, row[1])), "the rows are no heads", m.flat)


def check_product(m: Match) -> None:
    m.bind_shape(m.left, "R D")
    m.bind_shape(m.right, "R D")
    m.require(row_shape(m, m.x) == row_shape(m, m.y), "not of as many channels", m.y)


def check_weighted(m: Match) -> None:
    m.bind_shape(m.w, "G D")
    m.bind_shape(m.x, "1 S G D")
    m.bind_shape(m.out, "1 S C")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)


def check_gated(m: Match) -> None:
    m.bind_shape(m.x, "1 S G D")
    m.bind_shape(m.y, "1 S G D")
    m.bind_shape(m.out, "1 S G*D")


def weigh_rows(m: Match, g: Rewriter) -> Value:
    source, width = m.w.node, int(m.out.shape[2])
    expr = source.attrs["expr"].reshape([width])
    w = g.weight(expr=expr, type=(m.w.dtype, (width,)), scope=source.scope)
    out: Value = g.mul(w, g.view(m.x, shape=m.out.shape))
    return out


def norm_heads(m: Match, g: Rewriter) -> Value:
    """Normalises the heads of each row, as a view of whole rows that is viewed again."""
    row, width = row_shape(m, m.x), int(m.flat.shape[1])
    heads = g.view(m.x, shape=(*row[:2], int(row[2]) // width, width))
    out: Value = g.view(g.view(g.rms_norm(heads, m.w, **m.root.attrs), shape=row), shape=m.out.shape)
    return out


def gate_rows(m: Match, g: Rewriter) -> Value:
    out: Value = g.view(g.silu(g.view(m.x, shape=row_shape(m, m.x))), shape=m.out.shape)
    return out


def multiply_rows(m: Match, g: Rewriter) -> Value:
    out: Value = g.view(g.mul(*(g.view(x, shape=row_shape(m, x)) for x in (m.x, m.y))), shape=m.out.shape)
    return out


def gate_heads(m: Match, g: Rewriter) -> Value:
    x, y = (g.view(part, shape=m.out.shape) for part in (m.x, m.y))
    out: Value = g.mul(x, g.sigmoid(y))
    return out


def has_heads_to_unflatten(graph: Graph) -> bool:
    """Returns whether a graph has recurrences, or gates of heads. The pass is for these, and for all of their heads."""
    return has_recurrences(graph) or any(match_value(n.output, GATED, check_gated) for n in graph.find("view"))


def unflatten_heads(graph: Graph) -> int:
    return (
        apply(graph, NORM, check_flat, norm_heads)
        + apply(graph, GATE, check_flat, gate_rows)
        + apply(graph, PRODUCT, check_product, multiply_rows)
        + apply(graph, WEIGHTED, check_weighted, weigh_rows)
        + apply(graph, GATED, check_gated, gate_heads)
    )
