import numpy as np
import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_interleaved_rotary import (
    PATTERN,
    TABLE_ERROR,
    check,
    recognise_interleaved_rotary,
    table_frequencies,
)
from tensorwright.passes.rewriting.matcher import closest

ANGLES = """
  %position_ids: int64[1, seq] = input()
  %x: float32[1, 3, seq, 8] = input()
  %freq: float32[4] = constant() {value = dense<float32 [4] (1, 0.3, 0.1, 0.03)>}
  %scale: float64[] = constant() {value = 1.25}
  %column: int64[1, seq, 1] = view(%position_ids) {shape = (1, "seq", 1)}
  %where: float32[1, seq, 1] = cast(%column) {dtype = "float32"}
  %half: float32[1, seq, 4] = mul(%where, %freq)
"""
BEFORE = (
    ANGLES
    + """
  %one: float32[1, seq, 4, 1] = view(%half) {shape = (1, "seq", 4, 1)}
  %two: float32[1, seq, 4, 2] = expand(%one) {shape = (1, "seq", 4, 2)}
  %angles: float32[1, seq, 8] = view(%two) {shape = (1, "seq", 8)}
  %c0: float32[1, seq, 8] = cos(%angles)
  %c1: float32[1, seq, 8] = mul(%c0, %scale)
  %cos: float32[1, 1, seq, 8] = view(%c1) {shape = (1, 1, "seq", 8)}
  %s0: float32[1, seq, 8] = sin(%angles)
  %s1: float32[1, seq, 8] = mul(%s0, %scale)
  %sin: float32[1, 1, seq, 8] = view(%s1) {shape = (1, 1, "seq", 8)}
"""
)
AFTER = (
    ANGLES
    + "  %angles: float32[1, seq, 8] = concat(%half, %half) {dim = 2}\n"
    + "".join(
        """
  %@0: float32[1, seq, 8] = @(%angles)
  %@1: float32[1, 1, seq, 8] = view(%@0) {shape = (1, 1, "seq", 8)}
  %@2: float32[1, 1, seq, 4] = slice(%@1) {dim = 3, start = 0, end = 4, step = 1}
  %@3: float32[1, 1, seq, 4, 1] = view(%@2) {shape = (1, 1, "seq", 4, 1)}
  %@4: float32[1, 1, seq, 4, 2] = expand(%@3) {shape = (1, 1, "seq", 4, 2)}
  %@: float32[1, 1, seq, 8] = view(%@4) {shape = (1, 1, "seq", 8)}
""".replace("@", name)
        for name in ("cos", "sin")
    )
)
TURN = """
  %even: float32[1, 3, seq, 4] = slice(%x) {dim = 3, start = 0, end = 8, step = 2}
  %odd: float32[1, 3, seq, 4] = slice(%x) {dim = 3, start = 1, end = 8, step = 2}
  %minus: float32[1, 3, seq, 4] = neg(%odd)
  %left: float32[1, 3, seq, 4, 1] = view(%minus) {shape = (1, 3, "seq", 4, 1)}
  %right: float32[1, 3, seq, 4, 1] = view(%even) {shape = (1, 3, "seq", 4, 1)}
  %pairs: float32[1, 3, seq, 4, 2] = concat(%left, %right) {dim = 4}
  %rotated: float32[1, 3, seq, 8] = view(%pairs) {shape = (1, 3, "seq", 8)}
  %xc: float32[1, 3, seq, 8] = mul(%x, %cos)
  %rs: float32[1, 3, seq, 8] = mul(%rotated, %sin)
  %y: float32[1, 3, seq, 8] = add(%xc, %rs)
"""  # fmt: skip
PARTIAL = BEFORE.replace("%x: float32[1, 3, seq, 8]", "%all: float32[1, 3, seq, 12]") + (
    "  %x: float32[1, 3, seq, 8] = slice(%all) {dim = 3, start = 0, end = 8, step = 1}\n"
    "  %rest: float32[1, 3, seq, 4] = slice(%all) {dim = 3, start = 8, end = 12, step = 1}\n"
    + TURN
    + "  %out: float32[1, 3, seq, 12] = concat(%y, %rest) {dim = 3}\n"
)
MADE = ["rotary_table", "transpose", "index", "rotary", "index", "transpose"]


@pytest.mark.parametrize("table", [BEFORE, AFTER], ids=["angles twice", "cosines twice"])
def test_fires(table):
    after = assert_fires(recognise_interleaved_rotary, graph_of(table + TURN + "  return %y", "fused"), 1)
    assert ops(after) == MADE
    assert after.find("rotary_table")[0].attrs == {"scale": 1.25 if table is BEFORE else 1.0}
    assert after.find("rotary")[0].attrs == {"rotary_dim": 8}


def test_fires_on_the_first_dimensions_only():
    after = assert_fires(recognise_interleaved_rotary, graph_of(PARTIAL + "  return %out", "fused"), 1)
    assert ops(after) == MADE
    assert after.find("rotary")[0].attrs == {"rotary_dim": 8}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("concat(%left, %right)", "concat(%right, %left)", "it is not neg"),
        ("start = 1, end = 8, step = 2", "start = 0, end = 8, step = 2", "attribute start is not 1"),
        ("= sin(%angles)", "= cos(%angles)", "not a cosine or sine"),
        ("mul(%s0, %scale)", "mul(%s0, %s0)", "not a scalar constant"),
        ("%freq: float32[4] = constant() {value = dense<float32 [4] (1, 0.3, 0.1, 0.03)>}",
         '%freq: float32[4] = weight() {expr = @"freq"}', "not constant"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    body = (BEFORE + TURN).replace(old, new)
    assert body != BEFORE + TURN
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(recognise_interleaved_rotary, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["even", "rotated", "xc"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(BEFORE + TURN + f"  return %y, %{inner}", "fused")
    assert_silent(recognise_interleaved_rotary, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_halves_are_not_neighbours(rewritten):
    assert rewritten("llama").count("recognise_interleaved_rotary") == 0


@pytest.mark.parametrize("variant", ["glm", "ernie4_5"])
def test_pinned_counts(rewritten, variant):
    """q and k of two layers, one table for the whole model; none of the ordinary kind."""
    model = rewritten(variant)
    assert model.count("recognise_interleaved_rotary") == 4
    assert model.count("recognise_rotary") == 0
    assert len(model.report.cached_graph.find("rotary_table")) == 1


FREQUENCIES = np.array([1, 0.3, 0.01, 0.0004], np.float32)


def table_of(frequencies: np.ndarray, rows: int = 64) -> np.ndarray:
    """Sines, then cosines, of float32 angles: as models keep them."""
    angles = np.arange(rows, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def from_table(table: np.ndarray, *, sines_first: bool = True) -> str:
    """x is [1, seq, 3, 8], and its cosines and sines are rows of `table`."""
    numbers = ", ".join(repr(float(n)) for n in table.reshape(-1))
    halves = {"sin": (0, 4), "cos": (4, 8)} if sines_first else {"cos": (0, 4), "sin": (4, 8)}
    lines = [
        "%position_ids: int64[1, seq] = input()",
        "%x: float32[1, seq, 3, 8] = input()",
        f"%table: float32[{len(table)}, 8] = constant() {{value = dense<float32 [{len(table)}, 8] ({numbers})>}}",
        "%rows: float32[1, seq, 8] = index(%table, %position_ids)",
    ]
    for name, (start, end) in halves.items():
        lines += [
            f"%{name}0: float32[1, seq, 4] = slice(%rows) {{dim = 2, start = {start}, end = {end}, step = 1}}",
            f'%{name}1: float32[1, seq, 1, 4, 1] = view(%{name}0) {{shape = (1, "seq", 1, 4, 1)}}',
            f'%{name}2: float32[1, seq, 1, 4, 2] = expand(%{name}1) {{shape = (1, "seq", 1, 4, 2)}}',
            f'%{name}: float32[1, seq, 1, 8] = view(%{name}2) {{shape = (1, "seq", 1, 8)}}',
        ]
    turn = TURN.replace("1, 3, seq", "1, seq, 3").replace('1, 3, "seq"', '1, "seq", 3')
    return "\n".join(f"  {line}" for line in lines) + turn + "  return %y"


def test_a_table_of_positions_is_read_back_to_its_frequencies():
    after = assert_fires(recognise_interleaved_rotary, graph_of(from_table(table_of(FREQUENCIES)), "fused"), 1)
    assert ops(after) == ["rotary_table", "index", "rotary", "index"]
    np.testing.assert_array_equal(after.find("rotary_table")[0].inputs[1].constant, FREQUENCIES)


@pytest.mark.parametrize("dim", [2, 4, 64, 128])
def test_the_frequencies_of_published_tables_are_exact(dim):
    frequencies = (1.0 / (10000 ** (np.arange(0, dim, 2) / dim))).astype(np.float32)
    found = table_frequencies(table_of(frequencies, 2048), dim // 2)
    assert found is not None
    angles = [np.float64(np.arange(2048)[:, None]) * f for f in (found, frequencies)]
    assert np.abs(angles[0] - angles[1]).max() <= TABLE_ERROR


@pytest.mark.parametrize("change", ["one number", "swapped", "scaled"])
def test_another_table_is_left_alone(change):
    table = table_of(FREQUENCIES)
    if change == "one number":
        table[50, 2] += 1e-5
    if change == "scaled":
        table *= 1.1
    graph = graph_of(from_table(table, sines_first=change != "swapped"), "fused")
    assert_silent(recognise_interleaved_rotary, graph)
    reason = "not sines and then cosines" if change == "swapped" else "not one of positions times frequencies"
    assert reason in closest(graph, PATTERN, check)
