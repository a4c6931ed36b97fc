import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_gate_up import PATTERN, check, fuse_gate_up
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 6] = input()
  %wg: float32[4, 6] = weight() {expr = @"g"} in layers.0.mlp.gate
  %wu: float32[4, 6] = weight() {expr = @"u"} in layers.0.mlp.up
  %bg: float32[4] = weight() {expr = @"bg"} in layers.0.mlp.gate
  %bu: float32[4] = weight() {expr = @"bu"} in layers.0.mlp.up
  %g: float32[1, seq, 4] = linear(%x, %wg, %bg) in layers.0.mlp.gate
  %u: float32[1, seq, 4] = linear(%x, %wu, %bu) in layers.0.mlp.up
  %s: float32[1, seq, 4] = silu(%g) in layers.0.mlp.act
  %y: float32[1, seq, 4] = mul(%s, %u) in layers.0.mlp
"""
PLAIN = BODY.replace(", %bg)", ")").replace(", %bu)", ")")


def activated(how):
    return BODY.replace("= silu(%g)", f"= {how.replace('()', '(%g)')}")


@pytest.mark.parametrize("body", [BODY, PLAIN, BODY.replace("mul(%s, %u)", "mul(%u, %s)")])
def test_fires_with_the_gate_first(body):
    graph = graph_of(body + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(fuse_gate_up, graph, 1)
    assert ops(after) == ["linear", "slice", "slice", "silu", "mul"]
    (linear,) = after.find("linear")
    assert str(linear.inputs[1].node.attrs["expr"]) == 'concat(0, "g", "u")'
    assert linear.scope == "layers.0.mlp"


@pytest.mark.parametrize("how", ["relu()", 'gelu() {approximate = "tanh"}', 'gelu() {approximate = "none"}'])
def test_fires_under_other_activations(how):
    graph = graph_of(activated(how) + "  return %y", "fused")
    after = assert_fires(fuse_gate_up, graph, 1)
    assert ops(after) == ["linear", "slice", "slice", how.split("(")[0], "mul"]
    (before, now) = (g.find(how.split("(")[0])[0].attrs for g in (graph, after))
    assert before == now


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("linear(%x, %wu, %bu)", "linear(%x, %wu)", "only one of gate and up has a bias"),
        ("linear(%x, %wu, %bu)", "linear(%x2, %wu, %bu)", "it is not x again"),
        ("= silu(%g)", "= tanh(%g)", "it is not silu"),
        ("mul(%s, %u)", "add(%s, %u)", "no mul"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    body = "  %x2: float32[1, seq, 6] = input()\n" + BODY.replace(old, new)
    graph = graph_of(body + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(fuse_gate_up, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["g", "u", "s"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    assert_silent(fuse_gate_up, graph_of(BODY + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(model, rewritten):
    assert model.count("fuse_gate_up") == 2
    assert rewritten("llama_biases").count("fuse_gate_up") == 2
    assert rewritten("gemma2").count("fuse_gate_up") == 2
