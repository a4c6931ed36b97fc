"""split_linears:  slices of one linear  ->  one linear each, on the rows of its weight that the slice keeps

    slice(linear(x, W, b), dim=-1, start, end)  ->  linear(x, W[start:end], b[start:end])

S tokens, C channels, N columns.  x: [1, S, C], W: [N, C], b: [N].  The kernels read whole rows. A layer with a
recurrence makes the inputs of several ops by one linear, and an MLP both halves of a gate that no epilogue has. The
pass changes no linear that attention reads.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    row = linear(x, w, b?)
    out = slice(row, dim=-1, start=start, end=end, step=1)
    """,
    shared=["row"],
)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    for value in (m.w, m.b):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)


def replace(m: Match, g: Rewriter) -> Value:
    parts = [None if v is None else take_rows(g, v, m.start, m.end) for v in (m.w, m.b)]
    out: Value = g.linear(m.x, *parts, scope=m.row.node.scope)
    return out


def take_rows(g: Rewriter, value: Value, start: int, end: int) -> Value:
    """Returns the weight node of rows [start, end) of a weight or bias."""
    source = value.producer
    kind = (value.dtype, (end - start, *value.shape[1:]))
    out: Value = g.weight(expr=source.attrs["expr"].slice(0, start, end), type=kind, scope=source.scope)
    return out


def attention_linears(graph: Graph) -> list[Value]:
    """Returns the linears that make q, k and v of attention."""
    found: list[Value] = []
    waiting = [value for node in graph.find("attention") for value in node.inputs[:3]]
    while waiting:
        value = waiting.pop()
        if value is None or value.node is None:
            continue
        if value.node.op == "linear":
            found.append(value)
        else:
            waiting += value.node.inputs
    return found


def split_linears(graph: Graph) -> int:
    users = graph.users()
    # The list keeps the values, so that no later value gets the id of a removed one.
    kept = [
        *attention_linears(graph),
        *(node.output for node in graph.find("linear") if any(user.op != "slice" for user in users[node.output])),
    ]
    whole = {id(value) for value in kept}

    def check_users(m: Match) -> None:
        check(m)
        m.require(id(m.row) not in whole, "all of it is used, or attention reads it", m.row)

    return apply(graph, PATTERN, check_users, replace)
