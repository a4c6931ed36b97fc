from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_recurrences import PRODUCT, canonicalise_recurrences, check_product
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 8] = input()
  %stored: float32[4, 1, 3] = weight() {expr = @"w"}
  %t: float32[1, 8, seq] = transpose(%x) {dim0 = 1, dim1 = 2}
  %a: float32[1, 4, seq] = slice(%t) {dim = 1, start = 0, end = 4, step = 1}
  %b: float32[1, 4, seq] = slice(%t) {dim = 1, start = 4, end = 8, step = 1}
  %m: float32[1, 4, seq] = mul(%a, %b)
  %w: float32[4, 3] = view(%stored) {shape = (4, 3)}
  %r: float32[1, seq, 4] = transpose(%m) {dim0 = 1, dim1 = 2}
  %y: float32[1, seq, 4] = causal_conv(%r, %w) {activation = "silu"}
"""


def test_fires():
    after = assert_fires(canonicalise_recurrences, graph_of(BODY + "  return %y", "fused"), 4)
    assert ops(after) == ["slice", "slice", "mul", "transpose", "transpose", "causal_conv"]
    (weight,) = after.find("weight")
    assert str(weight.attrs["expr"]) == 'reshape([4, 3], "w")'


def test_does_not_fire_without_a_recurrence():
    body = BODY[: BODY.index("  %y")]
    assert_silent(canonicalise_recurrences, graph_of(body + "  return %r, %w", "fused"))


def test_a_product_with_something_else_stays():
    body = BODY.replace("mul(%a, %b)", "mul(%a, %n)").replace("  %m", "  %n: float32[1, 4, seq] = silu(%b)\n  %m")
    graph = graph_of(body + "  return %y", "fused")
    assert canonicalise_recurrences(graph) == 3  # the slices and the weight
    assert "it is not transpose" in closest(graph, PRODUCT, check_product)


def test_pinned_counts(rewritten):
    assert rewritten("lfm2").count("canonicalise_recurrences") == 12
    assert rewritten("llama").count("canonicalise_recurrences") == 0
