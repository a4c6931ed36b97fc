import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.split_linears import PATTERN, check, split_linears

BODY = """
  %x: float32[1, seq, 8] = input()
  %w: float32[6, 8] = weight() {expr = @"w"}
  %bias: float32[6] = weight() {expr = @"b"}
  %k: float32[4, 3] = weight() {expr = @"k"}
  %row: float32[1, seq, 6] = linear(%x, %w, %bias)
  %a: float32[1, seq, 4] = slice(%row) {dim = 2, start = 0, end = 4, step = 1}
  %b: float32[1, seq, 2] = slice(%row) {dim = 2, start = 4, end = 6, step = 1}
  %y: float32[1, seq, 4] = causal_conv(%a, %k) {activation = "none"}
"""


def test_fires():
    after = assert_fires(split_linears, graph_of(BODY + "  return %y, %b", "fused"), 2)
    assert ops(after) == ["linear", "linear", "causal_conv"]
    stored = [str(node.attrs["expr"]) for node in after.find("weight")]
    assert 'slice(0, 0, 4, "w")' in stored
    assert 'slice(0, 4, 6, "b")' in stored


@pytest.mark.parametrize("inner", ["row", "x"])
def test_a_linear_that_is_used_whole_stays(inner):
    graph = graph_of(BODY + f"  return %y, %b, %{inner}", "fused")
    if inner == "row":
        graph.add("relu", [graph.find("linear")[0].output], {}, [("float32", (1, "seq", 6))])
        assert_silent(split_linears, graph)
    else:
        assert_fires(split_linears, graph, 2)


def test_the_halves_of_a_gate_that_no_epilogue_has():
    """Both are clamped first, as in MiniMax M3, so that fuse_swiglu leaves them."""
    body = BODY[: BODY.index("  %y")].replace("start = 0, end = 4", "start = 0, end = 2").replace("seq, 4]", "seq, 2]")
    body += """
  %a2: float32[1, seq, 2] = clamp(%a) {min = none, max = 7.0}
  %b2: float32[1, seq, 2] = clamp(%b) {min = -7.0, max = 7.0}
  %g: float32[1, seq, 2] = silu(%a2)
  %y: float32[1, seq, 2] = mul(%g, %b2)
"""
    after = assert_fires(split_linears, graph_of(body + "  return %y", "fused"), 2)
    assert ops(after) == ["linear", "linear", "clamp", "clamp", "silu", "mul"]


def test_a_gate_that_an_epilogue_has_stays_whole(rewritten):
    llama = rewritten("llama")
    assert llama.count("fuse_swiglu") == 2
    assert llama.count("split_linears") == 0


def test_does_not_fire_and_says_why():
    graph = graph_of(
        BODY.replace("linear(%x, %w, %bias)", "relu(%x)").replace("float32[1, seq, 8]", "float32[1, seq, 6]")
        + "  return %y, %b",
        "fused",
    )
    graph.drop_dead()
    assert_silent(split_linears, graph)
    assert "it is not linear" in closest(graph, PATTERN, check)


def test_the_linear_of_attention_stays(rewritten):
    """In a hybrid, q, k and v are slices of one linear too."""
    bamba = rewritten("bamba")
    assert bamba.count("split_linears") == 3
    assert bamba.count("fuse_qkv") == 1
