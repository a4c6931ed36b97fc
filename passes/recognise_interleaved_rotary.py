"""recognise_interleaved_rotary:  x * cos + turn_pairs(x) * sin  ->  a rotary by halves, between two permutations

S tokens, H heads, D head dim, R rotated dims (even, the first ones of D; often all).  x is [1, H, S, D]. Pairs are the
neighbours (x[2i], x[2i + 1]) here, and (x[i], x[i + R/2]) in rotary, so that

    out = index(rotary(index(x, evens then odds), rotary_table(...)), back again)     turn_pairs(x) = (-x[1], x[0], ...)

The kernels know only halves, so permute_rotary_rows moves the permutations into the weights.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

_TURN = """
    even    = slice(turning, dim=-1, start=0, end=rotary_dim, step=2)
    odd     = slice(turning, dim=-1, start=1, end=rotary_dim, step=2)
    rotated = view(concat(view(neg(odd)), view(even), dim=-1))
    turned  = add(mul(turning, cos), mul(rotated, sin))
"""
PATTERN = pattern(_TURN.replace("turning", "x"), commute=True)
PARTIAL = pattern(
    """
    turning = slice(x, dim=-1, start=0, end=rotary_dim, step=1)
    passing = slice(x, dim=-1, start=rotary_dim, end=head_dim, step=1)
"""
    + _TURN
    + "    out = concat(turned, passing, dim=-1)\n",
    commute=True,
)

_FREQUENCIES = '    angles = mul(view?(cast(view?(positions), dtype="float32")), view?(inv_freq))\n'
# Each angle comes twice in a row before the cosine; or the halves are alike, and each cosine is repeated afterwards.
_BEFORE = _FREQUENCIES + "    out = view?(mul?(cos(view(expand(view(angles)))), scale))\n"
_AFTER = _FREQUENCIES + (
    "    halves = view?(mul?(cos(concat(angles, angles, dim=-1)), scale))\n"
    "    out    = view(expand(view(slice(halves, dim=-1, start=0, end=half, step=1))))\n"
)
COSINES = tuple(pattern(text, commute=True) for text in (_BEFORE, _AFTER))
SINES = tuple(pattern(text.replace("cos(", "sin("), commute=True) for text in (_BEFORE, _AFTER))


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 H S D")
    m.bind_shape(m.cos, "1 1 S R")
    m.bind_shape(m.sin, "1 1 S R")
    m.require(m.rotary_dim == m.dims["R"] and m.rotary_dim % 2 == 0, "the neighbours of x do not pair up", m.x)
    cosine, sine = (match_angles(m, *pair) for pair in ((m.cos, COSINES), (m.sin, SINES)))
    m.require(cosine.positions is sine.positions, "cosine and sine of different positions", m.sin)
    m.require(cosine.inv_freq is sine.inv_freq, "cosine and sine of different frequencies", m.sin)
    scales = [1.0 if t.scale is None else t.scalar(t.scale) for t in (cosine, sine)]
    m.require(scales[0] == scales[1], "cosine and sine have different scales", m.sin)
    m.notes.update(positions=cosine.positions, inv_freq=cosine.inv_freq, scale=scales[0])


def match_angles(m: Match, table: Value, spellings: tuple) -> Match:
    """Matches the parts of a cosine or sine table of neighbours; refuses m if `table` is none."""
    found = m.read(table, spellings, "not a cosine or sine of positions times constant frequencies, each twice")
    frequencies = found.inv_freq.constant
    m.require(isinstance(frequencies, np.ndarray), "the inverse frequencies are not constant", found.inv_freq)
    m.require(2 * frequencies.size == m.rotary_dim, "the frequencies are not one per pair", found.inv_freq)
    m.bind_shape(found.positions, "1 S")
    m.require(found.positions.node.op == "input", "the positions are not an input of the graph", found.positions)
    repeated = next(n for n in found.nodes if n.op == "expand")
    m.require(repeated.output.shape[-2:] == (m.rotary_dim // 2, 2), "not every angle twice in a row", repeated.output)
    return found


def split_pairs(head_dim: int, rotary_dim: int) -> np.ndarray:
    """Returns the new order of a head's columns: the even rotated ones, the odd ones, the rest."""
    columns = np.arange(head_dim, dtype=np.int64)
    return np.concatenate([columns[0:rotary_dim:2], columns[1:rotary_dim:2], columns[rotary_dim:]])


def replace(m: Match, g: Rewriter) -> Value:
    head_dim, rotary_dim = int(m.dims["D"]), m.rotary_dim
    frequencies = np.ascontiguousarray(m.notes["inv_freq"].constant).reshape(-1)
    table = g.rotary_table(
        m.notes["positions"], g.constant(frequencies, "float32", [rotary_dim // 2]), scale=m.notes["scale"]
    )
    order = split_pairs(head_dim, rotary_dim)
    there, back = (g.constant(columns, "int64", [head_dim]) for columns in (order, np.argsort(order)))
    split = g.index(g.transpose(m.x, dim0=1, dim1=2), None, None, None, there)
    turned = g.index(g.rotary(split, table, rotary_dim=rotary_dim), None, None, None, back)
    out: Value = g.transpose(turned, dim0=1, dim1=2)
    return out


def recognise_interleaved_rotary(graph: Graph) -> int:
    return apply(graph, PARTIAL, check, replace) + apply(graph, PATTERN, check, replace)
