import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.unflatten_heads import NORM, check_flat, unflatten_heads

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


def test_does_not_fire_without_a_recurrence():
    body = BODY.replace('causal_conv(%x, %k) {activation = "none"}', "relu(%x)")
    graph = graph_of(body + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(unflatten_heads, graph)


@pytest.mark.parametrize(("heads", "width"), [("seq", 8)])
def test_rows_that_are_no_heads(heads, width):
    body = (
        BODY.replace("2*seq", heads).replace(f"[{heads}, 4]", f"[{heads}, {width}]").replace("float32[4]", "float32[8]")
    )
    graph = graph_of(body.replace('("seq", 4)', '("seq", 8)').replace("(%z)", "(%x)") + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(unflatten_heads, graph)
    assert "the rows are no heads" in closest(graph, NORM, check_flat)


def test_pinned_counts(rewritten):
    assert rewritten("qwen3_5_text").count("unflatten_heads") == 3
