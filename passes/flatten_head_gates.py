"""flatten_head_gates:  arithmetic on heads before they are joined  ->  the same on whole rows

    view(op(x, y))  ->  op(row(x), row(y))          view(op(x))  ->  op(row(x))

S tokens, H heads, D channels of a head.  The view joins [1, S, H, D] to [1, S, H * D].  row(x) of [1, S, H, D] is a
view.  row(g) of [1, S, H, 1], one number per head, is head_products(g, ones [H, D, 1]): sums of one term each, which
are exact.  row(w) of a stored [D] or [H, 1] is one vector: w for every head, or each number D times.  Models gate
the heads of attention so. Each rewrite shows the next one, until there are only rows. Then a vector that is added to
a product is the product's bias.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.ir.dims import same
from tensorwright.passes.canonicalise_linears import BIAS, add_bias, check_bias
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter
from tensorwright.plugins.elementwise.op import BINARY, UNARY

UNARY_FORMS = tuple(
    pattern(f"""
    whole = {op}(x)
    out   = view(whole)
""") for op in UNARY if op != "gelu_tanh"
)  # fmt: skip
BINARY_FORMS = tuple(
    pattern(f"""
    whole = {op}(x, y)
    out   = view(whole)
""") for op in BINARY
)  # fmt: skip

HEADS, NUMBERS, SCALAR, OF_CHANNELS, OF_HEADS = "heads", "numbers", "scalar", "of channels", "of heads"


def check_unary(m: Match) -> None:
    m.bind_shape(m.whole, "1 S H D")
    m.bind_shape(m.out, "1 S H*D")


def check_binary(m: Match) -> None:
    check_unary(m)
    for value in (m.x, m.y):
        m.require(kind_of(m, value) is not None, "neither heads, nor one number of each, nor stored", value)
    m.require(HEADS in (kind_of(m, m.x), kind_of(m, m.y)), "no operand has whole heads", m.x)


def stored(value: Value) -> Value | None:
    """Returns the weight or constant that a value is, or is a view of; None for another value."""
    if value.node is not None and value.node.op == "view":
        value = value.node.operand(0)
    return value if value.is_stored else None


def kind_of(m: Match, value: Value) -> str | None:
    """Returns what an operand of the heads [1, S, H, D] is; None for what has no form as rows."""
    heads, width = m.dims["H"], m.dims["D"]
    shape = [*[1] * (4 - value.rank), *value.shape]
    if value.is_scalar_constant:
        return SCALAR
    if stored(value) is not None:
        return OF_CHANNELS if shape == [1, 1, 1, width] else OF_HEADS if shape == [1, 1, heads, 1] else None
    if value.rank != 4 or shape[0] != 1 or not same(shape[1], m.dims["S"]):
        return None
    return HEADS if shape[2:] == [heads, width] else NUMBERS if shape[2:] in ([heads, 1], [1, 1]) else None


def row(m: Match, g: Rewriter, value: Value) -> Value:
    """Returns an operand as rows [1, S, H * D], as a vector [H * D], or as it is if it is a scalar."""
    heads, width = int(m.dims["H"]), int(m.dims["D"])
    kind = kind_of(m, value)
    if kind == SCALAR:
        return value
    if kind in (OF_CHANNELS, OF_HEADS):
        return vector(g, value, heads, width, per_head=kind == OF_HEADS)
    if kind == NUMBERS:
        return spread(g, value, heads * width)
    if value.producer.op == "view" and value.producer.operand(0).shape == m.out.shape:
        return value.producer.operand(0)
    rows: Value = g.view(value, shape=m.out.shape)
    return rows


def spread(g: Rewriter, numbers: Value, width: int) -> Value:
    """Returns the numbers [1, S, N, 1] as a row [1, S, width], in which each fills as many columns."""
    count = int(numbers.shape[2])
    ones = np.ones((count, width // count, 1), np.float32)
    out: Value = g.head_products(g.view(numbers, shape=numbers.shape[:3]), g.constant(ones, "float32", ones.shape))
    return out


def vector(g: Rewriter, value: Value, heads: int, width: int, *, per_head: bool) -> Value:
    """Returns a vector [heads * width] of the channels of a head, once per head, or of one number per head."""
    source = stored(value)
    assert source is not None
    times, dim, shape = (width, 1, [heads, 1]) if per_head else (heads, 0, [1, width])
    if source.constant is not None:
        array = np.repeat(np.asarray(source.constant, np.float32).reshape(shape), times, axis=dim).ravel()
        return g.constant(array, "float32", array.shape)
    expr = source.producer.attrs["expr"].reshape(shape)
    whole = expr.concat([expr] * (times - 1), dim).reshape([heads * width])
    out: Value = g.weight(expr=whole, type=(source.dtype, (heads * width,)), scope=source.producer.scope)
    return out


def flatten(m: Match, g: Rewriter) -> Value:
    """Computes the op of the heads on rows."""
    source = m.whole.producer
    operands = [row(m, g, source.operand(i)) for i in range(len(source.inputs))]
    out: Value = g.add(source.op, *operands, **source.attrs)
    return out


def flatten_head_gates(graph: Graph) -> int:
    total, count = 0, 1
    while count:
        count = sum(apply(graph, form, check_unary, flatten) for form in UNARY_FORMS)
        count += sum(apply(graph, form, check_binary, flatten) for form in BINARY_FORMS)
        total += count
    return total + apply(graph, BIAS, check_bias, add_bias)
