import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.unflatten_heads import GATED as HEADS
from tensorwright.passes.unflatten_heads import NORM, check_flat, check_gated, has_heads_to_unflatten, unflatten_heads

BODY = """
  %x: float32[1, seq, 8] = input()
  %w: float32[4] = weight() {expr = @"w"}
  %k: float32[8, 3] = weight() {expr = @"k"}
  %c: float32[1, seq, 8] = causal_conv(%x, %k) {activation = "none"}
  %z: float32[1, seq, 2, 4] = view(%x) {shape = (1, "seq", 2, 4)}
  %a: float32[2*seq, 4] = view(%c) {shape = ("2*seq", 4)}
  %b: float32[2*seq, 4] = view(%z) {shape = ("2*seq", 4)}
  %n: float32[2*seq, 4] = rms_norm(%a, %w) {eps = 1e-05, weight_offset = 0.0}
  %s: float32[2*seq, 4] = silu(%b)
  %m: float32[2*seq, 4] = mul(%n, %s)
  %y: float32[1, seq, 8] = view(%m) {shape = (1, "seq", 8)}
"""


def test_fires():
    after = assert_fires(unflatten_heads, graph_of(BODY + "  return %y", "fused"), 3)
    assert all(node.output.shape[:2] == (1, "seq") for node in after.find("rms_norm") + after.find("mul"))
    assert "mul" in ops(after)


@pytest.mark.parametrize(("heads", "width"), [("seq", 8)])
def test_rows_that_are_no_heads(heads, width):
    body = (
        BODY.replace("2*seq", heads).replace(f"[{heads}, 4]", f"[{heads}, {width}]").replace("float32[4]", "float32[8]")
    )
    graph = graph_of(body.replace('("seq", 4)', '("seq", 8)').replace("(%z)", "(%x)") + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(unflatten_heads, graph)
    assert "the rows are no heads" in closest(graph, NORM, check_flat)


GATED = """
  %x: float32[1, seq, 8] = input()
  %k: float32[8, 3] = weight() {expr = @"k"}
  %c: float32[1, seq, 8] = causal_conv(%x, %k) {activation = "none"}
  %a: float32[1, seq, 2, 4] = view(%c) {shape = (1, "seq", 2, 4)}
  %b: float32[1, seq, 2, 4] = view(%x) {shape = (1, "seq", 2, 4)}
  %s: float32[1, seq, 2, 4] = sigmoid(%b)
  %m: float32[1, seq, 2, 4] = mul(%a, %s)
  %y: float32[1, seq, 8] = view(%m) {shape = (1, "seq", 8)}
"""


def test_gates_of_heads():
    after = assert_fires(unflatten_heads, graph_of(GATED + "  return %y", "fused"), 1)
    assert [node.output.shape for node in after.find("sigmoid") + after.find("mul")] == [(1, "seq", 8)] * 2


def test_gated_heads_that_are_used_too():
    graph = graph_of(GATED + "  return %y, %m", "fused")
    assert_silent(unflatten_heads, graph)
    assert "also an output" in closest(graph, HEADS, check_gated)


def test_which_graphs_it_is_for():
    """Those with a recurrence, and those with gates of heads alone; not one with norms of heads and neither."""
    gates = graph_of(GATED + "  return %y", "fused")
    assert has_heads_to_unflatten(gates)
    without = GATED.replace('causal_conv(%x, %k) {activation = "none"}', "relu(%x)")
    assert has_heads_to_unflatten(graph_of(without + "  return %y", "fused"))
    assert not has_heads_to_unflatten(graph_of(without.replace("sigmoid", "relu") + "  return %y", "fused"))


def test_pinned_counts(rewritten):
    assert rewritten("kimi_linear").count("unflatten_heads") == 2
    assert rewritten("qwen3_5_text").count("unflatten_heads") == 3
