"""split_interleaved_linears:  slices of the heads of one linear  ->  one linear each, on rows picked out of its weight

    slice(view(linear(x, W, b)), dim=d)  ->  view(linear(x, W', b'))          select(...) likewise

S tokens, C channels, H heads, Hkv key-value heads, D head dim.  A checkpoint may hold q, k and v of each head (or group
of heads) side by side: W is [H, 3, D] or [Hkv, H / Hkv + 2, D] rows of C channels, and the view shows these dimensions.
W' is W with these dimensions, sliced in the same way, so that fuse_qkv can join the parts in the order that the cache
needs. The pass applies only if every user of the view takes a slice.
"""

from __future__ import annotations

from math import prod

from tensorwright.ir import Graph, Node, Value
from tensorwright.passes.rewriting.matcher import Check, Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    rows   = linear(x, w, b?)
    heads  = view(rows)
    turned = transpose?(heads, dim0=1, dim1=2)
    out    = slice(turned, dim=dim, start=start, end=end, step=1)
    """,
    shared=["rows", "heads", "turned"],
)
SELECTED = pattern(
    """
    rows   = linear(x, w, b?)
    heads  = view(rows)
    out    = select(heads, dim=dim, index=start)
    """,
    shared=["rows", "heads"],
)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.require(m.heads.rank > 3 and m.heads.shape[:2] == m.x.shape[:2], "the view does not keep the tokens", m.heads)
    for value in (m.w, m.b):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)


def check_slice(m: Match) -> None:
    check(m)
    m.require(m.dim >= (2 if m.turned is None else 3), "the slice is not within what was side by side", m.out)


def take(m: Match, g: Rewriter, end: int) -> Value:
    """Returns the linear that gives only elements [start, end) of dimension `dim` of the view."""
    parts = [None if v is None else take_rows(g, v, m.heads.shape[2:], m.dim - 2, m.start, end) for v in (m.w, m.b)]
    rows: Value = g.linear(m.x, *parts, scope=m.rows.node.scope)
    return rows


def take_rows(g: Rewriter, value: Value, shape: tuple[int, ...], dim: int, start: int, end: int) -> Value:
    """Returns the weight or bias node of the rows that a slice keeps. `shape` is the shape of all rows together."""
    source, rest = value.producer, value.shape[1:]
    kept = (*shape[:dim], end - start, *shape[dim + 1 :])
    expr = source.attrs["expr"].reshape([*shape, *rest]).slice(dim, start, end).reshape([prod(kept), *rest])
    out: Value = g.weight(expr=expr, type=(value.dtype, (prod(kept), *rest)), scope=source.scope)
    return out


def replace_slice(m: Match, g: Rewriter) -> Value:
    shape = m.heads.shape
    heads: Value = g.view(take(m, g, m.end), shape=(*shape[: m.dim], m.end - m.start, *shape[m.dim + 1 :]))
    return heads if m.turned is None else g.transpose(heads, dim0=1, dim1=2)


def replace_select(m: Match, g: Rewriter) -> Value:
    out: Value = g.view(take(m, g, m.start + 1), shape=m.out.shape)
    return out


def split_interleaved_linears(graph: Graph) -> int:
    """Returns how many slices there were."""
    users = graph.users()

    def all_slices(value: Value) -> bool:
        return value not in graph.outputs and all(
            takes_part(user) or (user.op == "transpose" and all_slices(user.output)) for user in users[value]
        )

    # The dictionary holds the nodes, so that no later node gets the id of a removed one.
    whole = {id(node): node for node in graph.find("view") if not all_slices(node.output)}

    def only_parts(inner: Check) -> Check:
        def check_users(m: Match) -> None:
            inner(m)
            m.require(id(m.heads.node) not in whole, "all of it is used, not only slices", m.heads)

        return check_users

    return apply(graph, PATTERN, only_parts(check_slice), replace_slice) + apply(
        graph, SELECTED, only_parts(check), replace_select
    )


def takes_part(node: Node) -> bool:
    """Returns whether a node takes a slice or an element that is the same at every length."""
    ends = [node.attrs.get(name, 0) for name in ("start", "end", "index")]
    return node.op in ("slice", "select") and node.attrs["dim"] >= 2 and all(isinstance(end, int) for end in ends)
