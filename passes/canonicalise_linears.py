"""canonicalise_linears:  one spelling of a product with a weight, linear on [1, S, C] with W: [N, C].

    transpose(W) -> W^T            matmul(x, W) -> linear(x, W^T)            linear(x, W) + b -> linear(x, W, b)
    linear(x, W) + expand(b) -> linear(x, W, b)                              x + expand(b) -> x + b
    matmul(W, transpose(x)) -> transpose(linear(x, W))
    linear(view(x, [S, C])) -> view(linear(x), [S, N])                       x: [1, S, ...]

A model that flattens its rows for a whole MLP flattens what stands between the products too, so these take [1, S, C] as
well: layer_norm, activations, and sums of two flattened values.

W is a weight of the checkpoint. W^T is another expression over it, so the running engine computes no transpose.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

TRANSPOSED = pattern("out = transpose(w, dim0=dim0, dim1=dim1)")
PRODUCT = pattern("out = matmul(x, w)")
LEFT_PRODUCT = pattern("""
    turned = transpose(x, dim0=1, dim1=2)
    out    = matmul(w, turned)
""", shared=["turned"])  # fmt: skip
BIAS = pattern("out = add(linear(x, w), expand?(b))", commute=True)
EXPANDED = pattern("""
    rows = expand(b)
    out  = add(rows, x)
""", commute=True)  # fmt: skip
FLAT = pattern("""
    flat = view(x)
    out  = linear(flat, w, b?)
""", shared=["flat"])  # fmt: skip
FLAT_NORM = pattern("""
    flat = view(x)
    out  = layer_norm(flat, w, b?)
""", shared=["flat"])  # fmt: skip
FLAT_ACTIVATIONS = tuple(
    pattern(f"""
    flat = view(x)
    out  = {op}(flat)
""", shared=["flat"]) for op in ("relu", "gelu", "silu")
)  # fmt: skip
FLAT_SUM = pattern("""
    flat  = view(x)
    other = view(y)
    out   = add(flat, other)
""", shared=["flat", "other"])  # fmt: skip


def require_weight(m: Match, value: Value) -> None:
    m.require(value.node is not None and value.node.op == "weight", "not a weight of the checkpoint", value)


def transposed(g: Rewriter, w: Value, dim0: int, dim1: int) -> Value:
    shape = list(w.shape)
    shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
    expr = w.producer.attrs["expr"].transpose(dim0, dim1)
    out: Value = g.weight(expr=expr, type=(w.dtype, shape), scope=w.producer.scope)
    return out


def check_transposed(m: Match) -> None:
    require_weight(m, m.w)


def check_product(m: Match) -> None:
    require_weight(m, m.w)
    m.bind_shape(m.w, "C N")


def check_left_product(m: Match) -> None:
    require_weight(m, m.w)
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.x, "1 S C")


def check_bias(m: Match) -> None:
    require_weight(m, m.b)
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.b, "N")
    m.require(m.x.rank >= 2, "x has no rows", m.x)
    m.require(m.out.shape == (*m.x.shape[:-1], m.dims["N"]), "the sum has another shape than the product", m.out)


def check_expanded(m: Match) -> None:
    require_weight(m, m.b)
    m.bind_shape(m.b, "C")
    m.bind_shape(m.rows, "1 S C")
    m.bind_shape(m.x, "1 S C")


def check_flat(m: Match) -> None:
    m.bind_shape(m.flat, "S C")
    m.require(m.x.rank > 2 and m.x.shape[:2] == (1, m.flat.shape[0]), "the view does not keep the tokens", m.x)


def check_flat_rows(m: Match) -> None:
    m.bind_shape(m.flat, "S C")
    m.bind_shape(m.x, "1 S C")


def check_flat_sum(m: Match) -> None:
    check_flat_rows(m)
    m.bind_shape(m.other, "S C")
    m.bind_shape(m.y, "1 S C")


def flatten_later(m: Match, g: Rewriter) -> Value:
    """Computes the op of the match's root on [1, S, C], and flattens its result."""
    operands = [m.x, *m.root.inputs[1:]] if m.root.op != "add" else [m.x, m.y]
    out: Value = g.view(g.add(m.root.op, *operands, **m.root.attrs), shape=m.out.shape)
    return out


def multiply_rows(m: Match, g: Rewriter) -> Value:
    out: Value = g.linear(m.x, transposed(g, m.w, 0, 1))
    return out


def multiply_then_transpose(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.linear(m.x, m.w), dim0=1, dim1=2)
    return out


def multiply_then_flatten(m: Match, g: Rewriter) -> Value:
    rows = g.view(m.x, shape=(1, *m.flat.shape))
    out: Value = g.view(g.linear(rows, m.w, m.b), shape=m.out.shape)
    return out


def add_bias(m: Match, g: Rewriter) -> Value:
    out: Value = g.linear(m.x, m.w, m.b)
    return out


def canonicalise_linears(graph: Graph) -> int:
    return (
        apply(graph, TRANSPOSED, check_transposed, lambda m, g: transposed(g, m.w, m.dim0, m.dim1))
        + apply(graph, PRODUCT, check_product, multiply_rows)
        + apply(graph, LEFT_PRODUCT, check_left_product, multiply_then_transpose)
        + unflatten(graph)
        + apply(graph, BIAS, check_bias, add_bias)
        + apply(graph, EXPANDED, check_expanded, lambda m, g: g.add("add", m.x, m.b))
    )


def unflatten(graph: Graph) -> int:
    """Moves views that drop the batch behind everything that computes row by row. Each one shows the next."""
    total, count = 0, 1
    while count:
        count = apply(graph, FLAT, check_flat, multiply_then_flatten)
        for rule in (FLAT_NORM, *FLAT_ACTIVATIONS):
            count += apply(graph, rule, check_flat_rows, flatten_later)
        count += apply(graph, FLAT_SUM, check_flat_sum, flatten_later)
        total += count
    return total
