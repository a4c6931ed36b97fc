"""recognise_rotary:  x * cos + rotate_half(x) * sin  ->  rotary(x, rotary_table(positions, inv_freq, scale))

S tokens, H heads, D head dim, R rotated dims (even, the first ones of D; often all).  In the trace x is [1, H, S, D],
and cos and sin are [1, 1, S, R] of angles positions[S] * inv_freq[R/2], repeated for both halves; rotary takes
[1, S, H, D] and pairs element i with i + R/2.

    rotate_half(x) = concat(-x[R/2:], x[:R/2])

Gemma 4 turns [1, S, H, D], with cos and sin [1, S, 1, R].
GPT-OSS writes the same per half, with cos and sin [1, 1, S, R/2] that are not repeated.
A model that turns the other way, by concat(x[R/2:], -x[:R/2]), gets a table of the opposite frequencies.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, Pattern, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

_HALVES = """
    first   = slice(x, dim=-1, start=0, end=half, step=1)
    second  = slice(x, dim=-1, start=half, end=rotary_dim, step=1)
    rotated = concat(neg(second), first, dim=-1)
    out     = add(mul(x, cos), mul(rotated, sin))
"""
PATTERN = pattern(_HALVES, commute=True)
BACKWARDS = pattern(_HALVES.replace("concat(neg(second), first,", "concat(second, neg(first),"), commute=True)

PARTIAL = pattern(
    """
    turning = slice(x, dim=-1, start=0, end=rotary_dim, step=1)
    passing = slice(x, dim=-1, start=rotary_dim, end=head_dim, step=1)
    first   = slice(turning, dim=-1, start=0, end=half, step=1)
    second  = slice(turning, dim=-1, start=half, end=rotary_dim, step=1)
    rotated = concat(neg(second), first, dim=-1)
    out     = concat(add(mul(turning, cos), mul(rotated, sin)), passing, dim=-1)
    """,
    commute=True,
)

BY_HALF = pattern(
    """
    first  = slice(x, dim=-1, start=0, end=half, step=1)
    second = slice(x, dim=-1, start=half, end=rotary_dim, step=1)
    out    = concat(sub(mul(first, cos), mul(second, sin)), add(mul(second, cos), mul(first, sin)), dim=-1)
    """,
    commute=True,
)

_FREQUENCIES = """
    frequencies = mul(view?(cast(view?(positions), dtype="float32")), view?(inv_freq))
"""
_ANGLES = _FREQUENCIES + "    angles = concat(frequencies, frequencies, dim=-1)\n"
COS = pattern(_ANGLES + "    out = view?(mul?(cos(angles), scale))\n", commute=True)
SIN = pattern(_ANGLES + "    out = view?(mul?(sin(angles), scale))\n", commute=True)
COS_OF_HALF = pattern(_FREQUENCIES + "    out = view?(mul?(cos(frequencies), scale))\n", commute=True)
SIN_OF_HALF = pattern(_FREQUENCIES + "    out = view?(mul?(sin(frequencies), scale))\n", commute=True)


def check(m: Match) -> None:
    token_major = m.cos.rank == 4 and m.cos.shape[1] != 1
    m.notes["token_major"] = token_major
    m.bind_shape(m.x, "1 S H D" if token_major else "1 H S D")
    for table in (m.cos, m.sin):
        m.bind_shape(table, "1 S 1 R" if token_major else "1 1 S R")
    m.require(m.rotary_dim == m.dims["R"] == 2 * m.half, "the halves of x do not pair up", m.x)
    check_angles(m, COS, SIN)


def check_by_half(m: Match) -> None:
    m.bind_shape(m.x, "1 H S D")
    m.bind_shape(m.cos, "1 1 S F")
    m.bind_shape(m.sin, "1 1 S F")
    m.require(m.rotary_dim == m.dims["D"] == 2 * m.half, "the halves of x do not pair up", m.x)
    check_angles(m, COS_OF_HALF, SIN_OF_HALF)


def check_angles(m: Match, cos: Pattern, sin: Pattern) -> None:
    """Requires tables of the same positions and frequencies, and notes these."""
    cosine, sine = match_angles(m, m.cos, cos), match_angles(m, m.sin, sin)
    m.require(cosine.positions is sine.positions, "cosine and sine of different positions", m.sin)
    m.require(cosine.inv_freq is sine.inv_freq, "cosine and sine of different frequencies", m.sin)
    scales = [1.0 if t.scale is None else t.scalar(t.scale) for t in (cosine, sine)]
    m.require(scales[0] == scales[1], "cosine and sine have different scales", m.sin)
    m.notes.update(positions=cosine.positions, inv_freq=cosine.inv_freq, scale=scales[0])


def match_angles(m: Match, table: Value, spelling: Pattern) -> Match:
    """Matches the parts of a cosine or sine table; refuses m if `table` is none or its frequencies are computed."""
    found = m.read(table, [spelling], "not a cosine or sine of positions times constant frequencies")
    frequencies = found.inv_freq.constant
    m.require(isinstance(frequencies, np.ndarray), "the inverse frequencies are not constant", found.inv_freq)
    m.require(frequencies.size == m.half, "the frequencies are not one per pair", found.inv_freq)
    m.bind_shape(found.positions, "1 S")
    m.require(found.positions.node.op == "input", "the positions are not an input of the graph", found.positions)
    return found


def replace(m: Match, g: Rewriter) -> Value:
    return turn(m, g, np.ascontiguousarray(m.notes["inv_freq"].constant).reshape(-1))


def replace_backwards(m: Match, g: Rewriter) -> Value:
    return turn(m, g, -np.ascontiguousarray(m.notes["inv_freq"].constant).reshape(-1))


def turn(m: Match, g: Rewriter, inv_freq: np.ndarray) -> Value:
    """Returns x rotated by the angles of these frequencies."""
    frequencies = g.constant(inv_freq, "float32", [m.half])
    table = g.rotary_table(m.notes["positions"], frequencies, scale=m.notes["scale"])
    if m.notes.get("token_major", False):
        rows: Value = g.rotary(m.x, table, rotary_dim=m.rotary_dim)
        return rows
    token_major = g.transpose(m.x, dim0=1, dim1=2)
    turned: Value = g.transpose(g.rotary(token_major, table, rotary_dim=m.rotary_dim), dim0=1, dim1=2)
    return turned


def recognise_rotary(graph: Graph) -> int:
    """Makes one table for each use. merge_common_subexpressions leaves one per model."""
    forwards = apply(graph, PARTIAL, check, replace) + apply(graph, PATTERN, check, replace)
    forwards += apply(graph, BY_HALF, check_by_half, replace)
    return forwards + apply(graph, BACKWARDS, check, replace_backwards)
