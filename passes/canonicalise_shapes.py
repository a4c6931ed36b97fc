"""canonicalise_shapes:  one spelling of moving elements around.

    unsqueeze, squeeze -> view           permute of two dims -> transpose       view(view(x)) -> view(x)
    permute(x, [0, 2, 3, 1]) -> transpose(transpose(x)): of rows of heads, the keys of scores
    transpose(transpose(x)) -> x         rms_norm(transpose(x), w) -> transpose(rms_norm(x, w)) of heads
    view, expand, slice, concat that change nothing -> x        concat(x, empty) -> x
    slice(view(linear)) -> view(slice(linear)) where the view adds a dimension of size 1 before the last

A transpose of a dimension of size 1 stays a transpose, so that patterns see one layout for any number of heads.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Shape, Value
from tensorwright.ir import dims as dim_math
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

UNSQUEEZE = pattern("out = unsqueeze(x)")
SQUEEZE = pattern("out = squeeze(x)")
PERMUTE = pattern("out = permute(x, dims=order)")
KEYS = pattern("out = permute(x, dims=order)")
VIEWS = pattern("""
    inner = view(x)
    out   = view(inner)
""", shared=["inner"])  # fmt: skip
TRANSPOSES = pattern("""
    inner = transpose(x, dim0=a, dim1=b)
    out   = transpose(inner, dim0=c, dim1=d)
""", shared=["inner"])  # fmt: skip
NORM_AFTER_TRANSPOSE = pattern("""
    inner = transpose(x, dim0=1, dim1=2)
    out   = rms_norm(inner, w)
""")  # fmt: skip
SLICE_OF_VIEW = pattern("""
    row  = linear(x, w, b?)
    wide = view(row)
    out  = slice(wide, dim=-1, start=start, end=end, step=1)
""", shared=["row", "wide"])  # fmt: skip
SAME_VIEW = pattern("out = view(x)")
SAME_EXPAND = pattern("out = expand(x)")
SAME_SLICE = pattern("out = slice(x, step=1)")
SINGLE_CONCAT = pattern("out = concat(x)")
EMPTY_END = pattern("out = concat(x, empty, dim=dim)")


def same_shape(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(dim_math.same(x, y) for x, y in zip(a, b, strict=True))


def check_swap(m: Match) -> None:
    m.notes["moved"] = [i for i, d in enumerate(m.order) if i != d]
    m.require(len(m.notes["moved"]) == 2, "not a swap of two dimensions", m.out)


def check_keys(m: Match) -> None:
    m.require(tuple(m.order) == (0, 2, 3, 1), "not the permutation of keys", m.out)


def check_undone(m: Match) -> None:
    m.require({m.a, m.b} == {m.c, m.d}, "the second transpose does not undo the first", m.out)


def check_norm(m: Match) -> None:
    m.bind_shape(m.x, "1 S H D")


def check_same(m: Match) -> None:
    m.require(same_shape(m.x.shape, m.out.shape), "the shape changes", m.x)


def check_wider(m: Match) -> None:
    m.bind_shape(m.row, "1 S N")
    m.bind_shape(m.wide, "1 1 S N")


def check_empty(m: Match) -> None:
    m.require(m.empty.shape[m.dim] == 0, "nothing in it is empty", m.empty)
    m.require(same_shape(m.x.shape, m.out.shape), "the shape changes", m.x)


def as_view(m: Match, g: Rewriter) -> Value:
    out: Value = g.view(m.x, shape=m.out.shape)
    return out


def as_transpose(m: Match, g: Rewriter) -> Value:
    dim0, dim1 = m.notes["moved"]
    out: Value = g.transpose(m.x, dim0=dim0, dim1=dim1)
    return out


def as_keys(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.transpose(m.x, dim0=1, dim1=2), dim0=2, dim1=3)
    return out


def norm_first(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.rms_norm(m.x, m.w, **m.root.attrs), dim0=1, dim1=2)
    return out


def slice_first(m: Match, g: Rewriter) -> Value:
    part = g.slice(m.row, dim=2, start=m.start, end=m.end, step=1)
    out: Value = g.view(part, shape=m.out.shape)
    return out


def drop(m: Match, g: Rewriter) -> Value:
    x: Value = m.x
    return x


def canonicalise_shapes(graph: Graph) -> int:
    return (
        apply(graph, UNSQUEEZE, None, as_view)
        + apply(graph, SQUEEZE, None, as_view)
        + apply(graph, PERMUTE, check_swap, as_transpose)
        + apply(graph, KEYS, check_keys, as_keys)
        + apply(graph, NORM_AFTER_TRANSPOSE, check_norm, norm_first)
        + apply(graph, TRANSPOSES, check_undone, drop)
        + apply(graph, SLICE_OF_VIEW, check_wider, slice_first)
        + apply(graph, VIEWS, None, as_view)
        + apply(graph, SAME_VIEW, check_same, drop)
        + apply(graph, SAME_EXPAND, check_same, drop)
        + apply(graph, SAME_SLICE, check_same, drop)
        + apply(graph, SINGLE_CONCAT, None, drop)
        + apply(graph, EMPTY_END, check_empty, drop)
    )
