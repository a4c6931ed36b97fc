from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_recurrences import (
    HEADS,
    PRODUCT,
    SOFTPLUS,
    canonicalise_recurrences,
    check_heads,
    check_product,
    check_softplus,
)
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


def test_a_product_with_something_else_stays():
    body = BODY.replace("mul(%a, %b)", "mul(%a, %n)").replace("  %m", "  %n: float32[1, 4, seq] = silu(%b)\n  %m")
    graph = graph_of(body + "  return %y", "fused")
    assert canonicalise_recurrences(graph) == 3  # the slices and the weight
    assert "it is not transpose" in closest(graph, PRODUCT, check_product)


STEPS = (
    BODY
    + """
  %limit: float32[] = constant() {value = 20.0}
  %one: float32[] = constant() {value = 1.0}
  %bias: float32[4] = weight() {expr = @"bias"}
  %row: float32[1, 1, 4] = view(%bias) {shape = (1, 1, 4)}
  %s: float32[1, seq, 4] = add(%y, %row)
  %g: bool[1, seq, 4] = gt(%s, %limit)
  %e: float32[1, seq, 4] = exp(%s)
  %p: float32[1, seq, 4] = add(%e, %one)
  %l: float32[1, seq, 4] = log(%p)
  %z: float32[1, seq, 4] = where(%g, %s, %l)
"""
)


def test_a_softplus_that_is_written_out():
    after = assert_fires(canonicalise_recurrences, graph_of(STEPS + "  return %z", "fused"), 6)
    assert ops(after)[-2:] == ["add", "softplus"]
    assert after.find("add")[0].operand(1).shape == (4,)


def test_another_limit_is_no_softplus():
    graph = graph_of(STEPS.replace("20.0", "10.0") + "  return %z", "fused")
    assert canonicalise_recurrences(graph) == 5
    assert not graph.find("softplus")
    assert "it is not the constant 20" in closest(graph, SOFTPLUS, check_softplus)


HEADS_BODY = """
  %x: float32[1, seq, 6] = input()
  %k: float32[6, 3] = weight() {expr = @"k"}
  %w: float32[2, 3, 4] = weight() {expr = @"w"}
  %b: float32[2, 1, 4] = weight() {expr = @"b"}
  %c: float32[1, seq, 6] = causal_conv(%x, %k) {activation = "none"}
  %s: float32[seq, 2, 3] = view(%c) {shape = ("seq", 2, 3)}
  %h: float32[2, seq, 3] = transpose(%s) {dim0 = 0, dim1 = 1}
  %p: float32[2, seq, 4] = matmul(%h, %w)
  %a: float32[2, seq, 4] = add(%p, %b)
  %t: float32[seq, 2, 4] = transpose(%a) {dim0 = 0, dim1 = 1}
  %y: float32[1, seq, 8] = view(%t) {shape = (1, "seq", 8)}
"""


def test_products_of_heads():
    after = assert_fires(canonicalise_recurrences, graph_of(HEADS_BODY + "  return %y", "fused"), 1)
    assert ops(after) == ["causal_conv", "head_products", "add"]


def test_products_of_heads_that_are_not_stored():
    body = HEADS_BODY.replace('%w: float32[2, 3, 4] = weight() {expr = @"w"}', "%w: float32[2, 3, 4] = input()")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(canonicalise_recurrences, graph)
    assert "not a weight of the checkpoint" in closest(graph, HEADS, check_heads)


def test_pinned_counts(rewritten):
    assert rewritten("lfm2").count("canonicalise_recurrences") == 12
    assert rewritten("kimi_linear").count("canonicalise_recurrences") == 6
    assert rewritten("recurrent_gemma").count("canonicalise_recurrences") == 10
    assert rewritten("llama").count("canonicalise_recurrences") == 0


REPEATED = """
  %q: float32[1, seq, 24] = input()
  %k: float32[1, seq, 24] = input()
  %v: float32[1, seq, 32] = input()
  %g: float32[1, seq, 4] = input()
  %b: float32[1, seq, 4] = input()
  %qc: float32[1, seq, 2, 1, 12] = view(%q) {shape = (1, "seq", 2, 1, 12)}
  %qg: float32[1, seq, 2, 2, 12] = expand(%qc) {shape = (1, "seq", 2, 2, 12)}
  %qh: float32[1, seq, 48] = view(%qg) {shape = (1, "seq", 48)}
  %kc: float32[1, seq, 2, 1, 12] = view(%k) {shape = (1, "seq", 2, 1, 12)}
  %kg: float32[1, seq, 2, 2, 12] = expand(%kc) {shape = (1, "seq", 2, 2, 12)}
  %kh: float32[1, seq, 48] = view(%kg) {shape = (1, "seq", 48)}
  %y: float32[1, seq, 32] = delta_rule(%qh, %kh, %v, %g, %b) {key_heads = 4, heads = 4}
  return %y
"""


def test_heads_that_are_repeated_before_a_delta_rule():
    """As transformers 5.22 does. The numbers stay, which assert_fires compares."""
    after = assert_fires(canonicalise_recurrences, graph_of(REPEATED, "fused"), 1)
    (rule,) = after.find("delta_rule")
    assert rule.attrs["key_heads"] == 2
    assert not after.find("expand")
