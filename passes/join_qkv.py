"""join_qkv:  q, k, v of one attention that come of several computations  ->  slices of concat(q, k, v)

S tokens, H query heads, Hkv key-value heads, D head dim.  q: [1, S, H D], k, v: [1, S, Hkv D], in the order q, k, v.
The write of the cache reads one row of all three. fuse_qkv makes q, k and v by one linear where it can; the rest, such
as linears with an adapter each beside them, are computed apart and put side by side here.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.join_weights import slice_columns
from tensorwright.passes.rewriting.matcher import Match, apply, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

_ATTENTION = """
    q_rows  = view(q)
    k_rows  = view(k)
    v_rows  = view(v)
    q_heads = rotary?(either(layer_norm(q_rows, q_scale, q_shift?), rms_norm?(q_rows, q_norm)), table)
    k_heads = rotary?(either(layer_norm(k_rows, k_scale, k_shift?), rms_norm?(k_rows, k_norm)), table)
    out     = attention(q_heads, k_heads, v_rows, sinks?, slopes?)
"""
PATTERN = pattern(_ATTENTION, outputs=["q_rows", "k_rows", "v_rows"])
GAINED = pattern(
    _ATTENTION.replace("attention(q_heads,", "attention(mul(mul(q_heads, q_gain), k_gain),"),
    outputs=["q_rows", "k_rows", "v_rows"],
)
PART = pattern("out = slice(row, dim=-1, start=start, end=end, step=1)")
NORMED_PART = pattern("out = rms_norm(slice(row, dim=-1, start=start, end=end, step=1), w)")


def check(m: Match) -> None:
    m.bind_shape(m.q_rows, "1 S H D")
    m.bind_shape(m.k_rows, "1 S Hkv D")
    m.bind_shape(m.v_rows, "1 S Hkv D")
    for rows, heads in ((m.q, "H"), (m.k, "Hkv"), (m.v, "Hkv")):
        m.bind_shape(rows, f"1 S {heads}*D")
    m.require(not parts_of_one_row(m), "they are slices of one row", m.q)


def parts_of_one_row(m: Match) -> bool:
    """Returns whether q, k and v, q and k perhaps normalised, are consecutive parts of one row in this order."""
    found = [match_value(m.v, PART)]
    found += [match_value(value, PART) or match_value(value, NORMED_PART) for value in (m.k, m.q)]
    parts = [part for part in reversed(found) if part is not None]
    if len(parts) < 3 or any(part.row is not parts[0].row for part in parts):
        return False
    ends = [0, *(part.end for part in parts)]
    return [part.start for part in parts] == ends[:-1] and ends[-1] == parts[0].row.shape[-1]


def replace(m: Match, g: Rewriter) -> tuple[Value, ...]:
    rows = [m.q, m.k, m.v]
    joined = g.concat(*rows, dim=2)
    parts = slice_columns(g, joined, [value.shape[-1] for value in rows])
    heads = (m.q_rows, m.k_rows, m.v_rows)
    return tuple(g.view(part, shape=old.shape) for part, old in zip(parts, heads, strict=True))


def join_qkv(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace) + apply(graph, GAINED, check, replace)
