import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_rotary import PATTERN, check, recognise_rotary
from tensorwright.passes.rewriting.matcher import closest

TABLE = """
  %position_ids: int64[1, seq] = input()
  %x: float32[1, 3, seq, 8] = input()
  %freq: float32[4] = constant() {value = dense<float32 [4] (1, 0.3, 0.1, 0.03)>}
  %scale: float64[] = constant() {value = 1.25}
  %column: int64[1, seq, 1] = view(%position_ids) {shape = (1, "seq", 1)}
  %where: float32[1, seq, 1] = cast(%column) {dtype = "float32"}
  %half: float32[1, seq, 4] = mul(%where, %freq)
  %angles: float32[1, seq, 8] = concat(%half, %half) {dim = 2}
  %c0: float32[1, seq, 8] = cos(%angles)
  %c1: float32[1, seq, 8] = mul(%c0, %scale)
  %cos: float32[1, 1, seq, 8] = view(%c1) {shape = (1, 1, "seq", 8)}
  %s0: float32[1, seq, 8] = sin(%angles)
  %s1: float32[1, seq, 8] = mul(%s0, %scale)
  %sin: float32[1, 1, seq, 8] = view(%s1) {shape = (1, 1, "seq", 8)}
"""
TURN = """
  %first: float32[1, 3, seq, 4] = slice(%x) {dim = 3, start = 0, end = 4, step = 1}
  %second: float32[1, 3, seq, 4] = slice(%x) {dim = 3, start = 4, end = 8, step = 1}
  %minus: float32[1, 3, seq, 4] = neg(%second)
  %rotated: float32[1, 3, seq, 8] = concat(%minus, %first) {dim = 3}
  %xc: float32[1, 3, seq, 8] = mul(%x, %cos)
  %rs: float32[1, 3, seq, 8] = mul(%rotated, %sin)
  %y: float32[1, 3, seq, 8] = add(%xc, %rs)
"""
PARTIAL = TABLE.replace("%x: float32[1, 3, seq, 8]", "%all: float32[1, 3, seq, 12]") + (
    "  %x: float32[1, 3, seq, 8] = slice(%all) {dim = 3, start = 0, end = 8, step = 1}\n"
    "  %rest: float32[1, 3, seq, 4] = slice(%all) {dim = 3, start = 8, end = 12, step = 1}\n"
    + TURN
    + "  %out: float32[1, 3, seq, 12] = concat(%y, %rest) {dim = 3}\n"
)


def test_fires():
    after = assert_fires(recognise_rotary, graph_of(TABLE + TURN + "  return %y", "fused"), 1)
    assert ops(after) == ["rotary_table", "transpose", "rotary", "transpose"]
    assert after.find("rotary_table")[0].attrs == {"scale": 1.25}
    assert after.find("rotary")[0].attrs == {"rotary_dim": 8}


def test_heads_behind_their_positions():
    """x is [1, S, H, D], and cos and sin are [1, S, 1, R]."""
    text = (TABLE + TURN).replace("[1, 3, seq,", "[1, seq, 3,").replace("[1, 1, seq, 8]", "[1, seq, 1, 8]")
    text = text.replace('(1, 1, "seq", 8)', '(1, "seq", 1, 8)')
    after = assert_fires(recognise_rotary, graph_of(text + "  return %y", "fused"), 1)
    assert ops(after) == ["rotary_table", "rotary"]
    assert after.find("rotary")[0].attrs == {"rotary_dim": 8}


def test_fires_on_the_first_dimensions_only():
    after = assert_fires(recognise_rotary, graph_of(PARTIAL + "  return %out", "fused"), 1)
    assert ops(after) == ["rotary_table", "transpose", "rotary", "transpose"]
    assert after.find("rotary")[0].attrs == {"rotary_dim": 8}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("concat(%minus, %first)", "concat(%first, %minus)", "it is not neg"),
        ("neg(%second)", "exp(%second)", "it is not neg"),
        ("= sin(%angles)", "= cos(%angles)", "not a cosine or sine"),
        ("mul(%s0, %scale)", "mul(%s0, %s0)", "not a scalar constant"),
        ("concat(%half, %half)", "concat(%half, %where4)", "not a cosine or sine"),
        ("%freq: float32[4] = constant() {value = dense<float32 [4] (1, 0.3, 0.1, 0.03)>}",
         '%freq: float32[4] = weight() {expr = @"freq"}', "not constant"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    body = (TABLE + TURN).replace(old, new)
    if "%where4" in new:
        extra = "  %where4: float32[1, seq, 4] = mul(%half, %half)\n"
        body = body.replace("  %angles:", extra + "  %angles:")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(recognise_rotary, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["first", "rotated", "xc"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(TABLE + TURN + f"  return %y, %{inner}", "fused")
    assert_silent(recognise_rotary, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_the_table_may_have_other_users():
    assert_fires(recognise_rotary, graph_of(TABLE + TURN + "  return %y, %cos", "fused"), 1)


def test_pinned_counts(model):
    """q and k of two layers, one table for the whole model."""
    assert model.count("recognise_rotary") == 4
    assert len(model.report.cached_graph.find("rotary_table")) == 1


def test_a_rotation_the_other_way_has_opposite_frequencies():
    turn = TURN.replace("neg(%second)", "neg(%first)").replace("concat(%minus, %first)", "concat(%second, %minus)")
    after = assert_fires(recognise_rotary, graph_of(TABLE + turn + "  return %y", "fused"), 1)
    assert ops(after) == ["rotary_table", "transpose", "rotary", "transpose"]
    (table,) = after.find("rotary_table")
    assert table.inputs[1].constant.tolist() == pytest.approx([-1, -0.3, -0.1, -0.03])
