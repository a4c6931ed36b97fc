"""recognise_interleaved_rotary:  x * cos + turn_pairs(x) * sin  ->  a rotary by halves, between two permutations

S tokens, H heads, D head dim, R rotated dims (even, the first ones of D; often all).  x is [1, H, S, D]. Pairs are the
neighbours (x[2i], x[2i + 1]) here, and (x[i], x[i + R/2]) in rotary, so that

    out = index(rotary(index(x, evens then odds), rotary_table(...)), back again)     turn_pairs(x) = (-x[1], x[0], ...)

Some models leave the halves where they are, and compute out = concat(even * cos - odd * sin, odd * cos + even * sin):
then nothing is put back. Or x is viewed as complex numbers, [1, H, S, R / 2, 2], and turned by a complex product.

The kernels know only halves, so permute_rotary_rows moves the permutations into the weights. x may also be
[1, S, H, D]. Cosines and sines may be rows of a constant table, sin | cos of [P, R / 2] each, which is checked to be
one of angles position * frequency, for every position.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, match_value, pattern
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

SPLIT = pattern(
    """
    even   = slice(x, dim=-1, start=0, end=rotary_dim, step=2)
    odd    = slice(x, dim=-1, start=1, end=rotary_dim, step=2)
    first  = sub(mul(even, cos), mul(odd, sin))
    second = add(mul(odd, cos), mul(even, sin))
    out    = concat(first, second, dim=-1)
    """,
    commute=True,
)

COMPLEX = pattern(
    """
    pairs  = view(x)
    even   = select(pairs, dim=-1, index=0)
    odd    = select(pairs, dim=-1, index=1)
    first  = sub(mul(even, cos), mul(odd, sin))
    second = add(mul(odd, cos), mul(even, sin))
    out    = view(concat(view(first), view(second), dim=-1))
    """,
    commute=True,
)

_FREQUENCIES = '    angles = mul(view?(cast(view?(positions), dtype="float32")), view?(inv_freq))\n'
# Each angle comes twice in a row before the cosine; or the halves are alike, and each cosine is repeated afterwards.
_BEFORE = _FREQUENCIES + "    out = view?(mul?(cos(view(expand(view(angles)))), scale))\n"
_AFTER = _FREQUENCIES + (
    "    halves = view?(mul?(cos(concat(angles, angles, dim=-1)), scale))\n"
    "    out    = view(expand(view(slice(halves, dim=-1, start=0, end=half, step=1))))\n"
)
_ONCE = _FREQUENCIES + (
    "    halves = view?(mul?(cos(concat(angles, angles, dim=-1)), scale))\n"
    "    out    = view(slice(halves, dim=-1, start=0, end=half, step=1))\n"
)
_PLAIN = _FREQUENCIES + "    out = view?(mul?(cos(angles), scale))\n"
_TABLE = """
    rows = index(table, positions)
    out  = view(expand(view(slice(rows, dim=-1, start=start, end=end, step=1))))
"""
COSINES = tuple(pattern(text, commute=True) for text in (_BEFORE, _AFTER))
FROM_TABLE = pattern(_TABLE)
SINES = tuple(pattern(text.replace("cos(", "sin("), commute=True) for text in (_BEFORE, _AFTER))
COSINES_ONCE, SINES_ONCE = (
    tuple(pattern(text.replace("cos(", f"{name}("), commute=True) for text in (_ONCE, _PLAIN))
    for name in ("cos", "sin")
)


TABLE_ERROR = 1e-6
"""The most that a table of float32 cosines may differ from its angles' cosines: some roundings of a number below 1."""


def check(m: Match) -> None:
    m.notes["token_major"] = m.cos.rank == 4 and m.cos.shape[1] != 1
    m.bind_shape(m.x, "1 S H D" if m.notes["token_major"] else "1 H S D")
    for values in (m.cos, m.sin):
        m.bind_shape(values, "1 S 1 R" if m.notes["token_major"] else "1 1 S R")
    m.require(m.rotary_dim == m.dims["R"] and m.rotary_dim % 2 == 0, "the neighbours of x do not pair up", m.x)
    m.notes["rotary_dim"] = m.rotary_dim
    if match_value(m.cos, FROM_TABLE) is not None:
        check_table(m)
    else:
        check_angles(m)


def check_split(m: Match) -> None:
    """Checks the form that leaves the halves apart."""
    m.bind_shape(m.x, "1 H S D")
    m.require(m.rotary_dim == m.dims["D"] and m.rotary_dim % 2 == 0, "the neighbours of x do not pair up", m.x)
    m.notes.update(token_major=False, split=True, rotary_dim=m.rotary_dim)
    check_once(m)


def check_complex(m: Match) -> None:
    """Checks the form of complex numbers. x may lack the dimension of heads if there is one, or if they are columns."""
    token_major = m.cos.rank == 4 and m.cos.shape[1] != 1
    m.bind_shape(m.out, "1 S H D" if token_major else "1 H S D")
    m.dims["pairs"], m.dims["row"] = int(m.dims["D"]) // 2, int(m.dims["H"]) * int(m.dims["D"])
    m.bind_shape(m.x, ("1 S H D" if token_major else "1 H S D") if m.x.rank == 4 else "1 S row")
    m.require(m.x.rank == 4 or token_major or m.dims["H"] == 1, "a row is no head", m.x)
    m.notes.update(token_major=token_major, rotary_dim=int(m.dims["D"]))
    m.bind_shape(m.pairs, "1 S H pairs 2" if token_major else "1 H S pairs 2")
    check_once(m)


def check_once(m: Match) -> None:
    """Reads the frequencies of cosines and sines with one column for each pair."""
    for values in (m.cos, m.sin):
        m.bind_shape(values, "1 S 1 R" if m.notes["token_major"] else "1 1 S R")
    m.require(m.dims["R"] == m.notes["rotary_dim"] // 2, "the cosines are not one per pair", m.cos)
    read_frequencies(m, *(find_angles(m, *pair) for pair in ((m.cos, COSINES_ONCE), (m.sin, SINES_ONCE))))


def check_angles(m: Match) -> None:
    """Reads the frequencies of cosines and sines that are computed from positions."""
    read_frequencies(m, *(match_angles(m, *pair) for pair in ((m.cos, COSINES), (m.sin, SINES))))


def read_frequencies(m: Match, cosine: Match, sine: Match) -> None:
    """Notes the positions, frequencies and scale, which the cosine and the sine must share."""
    m.require(cosine.positions is sine.positions, "cosine and sine of different positions", m.sin)
    m.require(cosine.inv_freq is sine.inv_freq, "cosine and sine of different frequencies", m.sin)
    scales = [1.0 if t.scale is None else t.scalar(t.scale) for t in (cosine, sine)]
    m.require(scales[0] == scales[1], "cosine and sine have different scales", m.sin)
    m.notes.update(positions=cosine.positions, inv_freq=cosine.inv_freq.constant, scale=scales[0])


def check_table(m: Match) -> None:
    """Reads the frequencies of cosines and sines that are rows of a table."""
    cosine, sine = (m.read(v, (FROM_TABLE,), "not rows of a table of cosines and sines") for v in (m.cos, m.sin))
    m.require(cosine.table is sine.table, "cosine and sine of different tables", m.sin)
    m.require(cosine.positions is sine.positions, "cosine and sine of different positions", m.sin)
    m.bind_shape(cosine.positions, "1 S")
    m.require(cosine.positions.producer.op == "input", "the positions are not an input of the graph", cosine.positions)
    half = m.rotary_dim // 2
    halves = [(found.start, found.end) for found in (sine, cosine)]
    m.require(halves == [(0, half), (half, m.rotary_dim)], "the table is not sines and then cosines", cosine.table)
    for found in (cosine, sine):
        repeated = next(n for n in found.nodes if n.op == "expand")
        m.require(repeated.output.shape[-2:] == (half, 2), "not every angle twice in a row", repeated.output)
    table = cosine.table.constant
    frequencies = table_frequencies(table, half) if isinstance(table, np.ndarray) else None
    m.require(frequencies is not None, "the table is not one of positions times frequencies", cosine.table)
    m.notes.update(positions=cosine.positions, inv_freq=frequencies, scale=1.0)


def table_frequencies(table: np.ndarray, half: int) -> np.ndarray | None:
    """Returns the float32 frequencies f of a table [P, 2 * half] whose row p is sin(p f) | cos(p f); None for others.

    The angle of row 1 gives f roughly, that of row 2 gives it twice as well, and so on by powers of two. Of the
    float32 numbers next to the result, the one that fits all rows best is taken, and must fit them.
    """
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] != 2 * half:
        return None
    phases = np.arctan2(table[:, :half].astype(np.float64), table[:, half:].astype(np.float64))
    rough, row = phases[1], 2
    while row < len(table):
        turns = np.round((row * rough - phases[row]) / (2 * np.pi))
        rough, row = (phases[row] + 2 * np.pi * turns) / row, 2 * row
    nearest = rough.astype(np.float32)
    candidates = np.stack([np.nextafter(nearest, np.float32(-10)), nearest, np.nextafter(nearest, np.float32(10))])
    angles = np.arange(len(table), dtype=np.float32)[:, None] * candidates[:, None]
    errors = np.abs(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1) - table)
    worst = errors.reshape(3, len(table), 2, half).max(axis=(1, 2))
    best = worst.argmin(axis=0)
    fits = worst[best, np.arange(half)].max() <= TABLE_ERROR
    return candidates[best, np.arange(half)] if fits else None


def match_angles(m: Match, table: Value, spellings: tuple) -> Match:
    """Matches the parts of a cosine or sine table of neighbours; refuses m if `table` is none."""
    found = find_angles(m, table, spellings)
    repeated = next(n for n in found.nodes if n.op == "expand")
    m.require(repeated.output.shape[-2:] == (m.rotary_dim // 2, 2), "not every angle twice in a row", repeated.output)
    return found


def find_angles(m: Match, table: Value, spellings: tuple) -> Match:
    """Matches the parts of a table of one of these spellings."""
    found = m.read(table, spellings, "not a cosine or sine of positions times constant frequencies, each twice")
    frequencies = found.inv_freq.constant
    m.require(isinstance(frequencies, np.ndarray), "the inverse frequencies are not constant", found.inv_freq)
    m.require(2 * frequencies.size == m.notes["rotary_dim"], "the frequencies are not one per pair", found.inv_freq)
    m.bind_shape(found.positions, "1 S")
    m.require(found.positions.node.op == "input", "the positions are not an input of the graph", found.positions)
    return found


def split_pairs(head_dim: int, rotary_dim: int) -> np.ndarray:
    """Returns the new order of a head's columns: the even rotated ones, the odd ones, the rest."""
    columns = np.arange(head_dim, dtype=np.int64)
    return np.concatenate([columns[0:rotary_dim:2], columns[1:rotary_dim:2], columns[rotary_dim:]])


def replace(m: Match, g: Rewriter) -> Value:
    head_dim, rotary_dim = int(m.dims["D"]), m.notes["rotary_dim"]
    frequencies = np.ascontiguousarray(m.notes["inv_freq"]).reshape(-1)
    table = g.rotary_table(
        m.notes["positions"], g.constant(frequencies, "float32", [rotary_dim // 2]), scale=m.notes["scale"]
    )
    order = split_pairs(head_dim, rotary_dim)
    there, back = (g.constant(columns, "int64", [head_dim]) for columns in (order, np.argsort(order)))
    token_major = m.notes["token_major"]
    x = m.x if m.x.rank == 4 else g.view(m.x, shape=m.root.output.shape)
    x = x if token_major else g.transpose(x, dim0=1, dim1=2)
    split = g.index(x, None, None, None, there)
    turned: Value = g.rotary(split, table, rotary_dim=rotary_dim)
    turned = turned if m.notes.get("split") else g.index(turned, None, None, None, back)
    return turned if token_major else g.transpose(turned, dim0=1, dim1=2)


def recognise_interleaved_rotary(graph: Graph) -> int:
    joined = apply(graph, PARTIAL, check, replace) + apply(graph, PATTERN, check, replace)
    return joined + apply(graph, SPLIT, check_split, replace) + apply(graph, COMPLEX, check_complex, replace)
