import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_gated_expert import PATTERN, check, recognise_gated_expert
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 8] = input()
  %g: float32[1, 8] = weight() {expr = @"g"}
  %up: float32[10, 8] = weight() {expr = @"up"}
  %down: float32[8, 5] = weight() {expr = @"down"}
  %logit: float32[1, seq, 1] = linear(%x, %g)
  %share: float32[1, seq, 1] = sigmoid(%logit)
  %wide: float32[1, seq, 10] = linear(%x, %up)
  %inner: float32[1, seq, 5] = swiglu(%wide) {activation = "silu"}
  %mlp: float32[1, seq, 8] = linear(%inner, %down)
  %y: float32[1, seq, 8] = mul(%share, %mlp)
"""


def test_fires():
    after = assert_fires(recognise_gated_expert, graph_of(BODY + "  return %y", "fused"), 1)
    assert ops(after) == ["linear", "route", "experts"]
    (route,) = after.find("route")
    assert route.attrs == {"k": 1, "normalise": False, "score": "sigmoid"}
    (expert,) = after.find("experts")
    assert [expert.operand(i).shape for i in (3, 4)] == [(1, 10, 8), (1, 8, 5)]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sigmoid(%logit)", "tanh(%logit)", "it is not sigmoid"),
        ('%down: float32[8, 5] = weight() {expr = @"down"}', "%down: float32[8, 5] = input()", "not a weight of the"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    assert_silent(recognise_gated_expert, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["share", "inner", "mlp"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    assert_silent(recognise_gated_expert, graph_of(BODY + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(rewritten):
    assert rewritten("qwen2_moe").count("recognise_gated_expert") == 2
    assert rewritten("granitemoeshared").count("recognise_gated_expert") == 0
