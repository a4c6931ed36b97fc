"""split_layer_inputs:  one layer's part of what is computed of every token for all layers  ->  computed for it alone

    select(view(linear(x, W)), dim=2, i)     ->  linear(x, W[i P : (i + 1) P])
    select(view(embedding(W, ids)), dim=2, i)  ->  embedding(W[:, i P : (i + 1) P], ids)
    select(a + b), select(a * c), select(rms_norm(a, w))  ->  the same of the parts of a and b

S tokens, L layers, P channels of the input of one layer, c a number.  view, a, b: [1, S, L, P].  W: [L P, C] of a
linear, [V, L P] of an embedding.  Gemma 4 gives each layer such a part of its own; kernels read whole rows.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("out = select(x, dim=2, index=index)")
SUM = pattern("out = add(a, b)")
SCALED = pattern("out = mul(a, c)")
NORM = pattern("out = rms_norm(a, w)")
LINEAR = pattern("out = view(mul?(linear(rows, w), c))")
EMBEDDING = pattern("out = view(mul?(embedding(w, rows), c))")


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S L P")
    m.bind_shape(m.out, "1 S P")
    m.require(isinstance(m.index, int), "the layer is not fixed", m.out)
    require_parts(m, m.x)


def require_parts(m: Match, value: Value) -> None:
    """Requires that `value` is computed for each layer apart."""
    m.bind_shape(value, "1 S L P")
    total, scaled = match_value(value, SUM), match_value(value, SCALED)
    norm = match_value(value, NORM)
    if total is not None:
        require_parts(m, total.a)
        require_parts(m, total.b)
    elif scaled is not None:
        m.scalar(scaled.c)
        require_parts(m, scaled.a)
    elif norm is not None:
        require_parts(m, norm.a)
    else:
        leaf = m.read(value, (LINEAR, EMBEDDING), "no rows that a linear or an embedding gives for all layers")
        m.require(leaf.w.node is not None and leaf.w.node.op == "weight", "not a weight of the checkpoint", leaf.w)
        if leaf.c is not None:
            m.scalar(leaf.c)


def replace(m: Match, g: Rewriter) -> Value:
    return part(g, m.x, m.index)


def part(g: Rewriter, value: Value, index: int) -> Value:
    """Returns the part of one layer, [1, S, P]."""
    for form in (SUM, SCALED, NORM):
        found = match_value(value, form)
        if found is None:
            continue
        first = part(g, found.a, index)
        if form is SUM:
            return g.add("add", first, part(g, found.b, index))  # type: ignore[no-any-return]
        if form is SCALED:
            return g.mul(first, found.c)  # type: ignore[no-any-return]
        return g.rms_norm(first, found.w, **found.root.attrs)  # type: ignore[no-any-return]
    return part_of_leaf(g, value, index, int(value.shape[3]))


def part_of_leaf(g: Rewriter, value: Value, index: int, width: int) -> Value:
    linear = match_value(value, LINEAR)
    leaf, table = linear or match_value(value, EMBEDDING), linear is None
    assert leaf is not None  # by `check`
    source, start, end = leaf.w.producer, index * width, (index + 1) * width
    shape = (leaf.w.shape[0], width) if table else (width, leaf.w.shape[1])
    expr = source.attrs["expr"].slice(1 if table else 0, start, end)
    w = g.weight(expr=expr, type=(leaf.w.dtype, shape), scope=source.scope)
    out: Value = g.embedding(w, leaf.rows) if table else g.linear(leaf.rows, w)
    return out if leaf.c is None else g.mul(out, leaf.c)  # type: ignore[no-any-return]


def split_layer_inputs(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
