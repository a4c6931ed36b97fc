import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.join_linears import PATTERN, check, join_linears
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 4] = input()
  %wa: float32[2, 4] = weight() {expr = @"a"}
  %wb: float32[3, 4] = weight() {expr = @"b"}
  %wc: float32[1, 4] = weight() {expr = @"c"}
  %bias: float32[6] = weight() {expr = @"bias"}
  %k: float32[6, 3] = weight() {expr = @"k"}
  %a: float32[1, seq, 2] = linear(%x, %wa, none)
  %b: float32[1, seq, 3] = linear(%x, %wb)
  %c: float32[1, seq, 1] = linear(%x, %wc)
  %row: float32[1, seq, 6] = concat(%a, %b, %c) {dim = 2}
  %sum: float32[1, seq, 6] = add(%row, %bias)
  %y: float32[1, seq, 6] = causal_conv(%sum, %k) {activation = "none"}
"""


def test_fires():
    after = assert_fires(join_linears, graph_of(BODY + "  return %y", "fused"), 2)
    assert ops(after) == ["linear", "causal_conv"]
    assert str(after.find("linear")[0].operand(1).node.attrs["expr"]) == 'concat(0, "a", "b", "c")'


@pytest.mark.parametrize("inner", ["a", "row"])
def test_what_is_used_elsewhere_stays(inner):
    graph = graph_of(BODY + f"  return %y, %{inner}", "fused")
    assert join_linears(graph) == (0 if inner == "a" else 1)


def test_does_not_fire_and_says_why():
    graph = graph_of(
        BODY.replace("linear(%x, %wb)", "linear(%x, %wb, %small)").replace(
            "  %k:", '  %small: float32[3] = weight() {expr = @"s"}\n  %k:'
        )
        + "  return %y",
        "fused",
    )
    assert_silent(join_linears, graph)
    assert "a linear has a bias" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("qwen3_next").count("join_linears") == 2
