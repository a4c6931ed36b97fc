import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_router import CHOSEN_FIRST, PATTERN, check, recognise_router
from tensorwright.passes.rewriting.matcher import closest

HEAD = """
  %flat: float32[seq, 8] = input()
  %logits: float32[seq, 6] = input()
  %gate_up: float32[6, 10, 8] = weight() {expr = @"gate_up"}
  %down: float32[6, 8, 5] = weight() {expr = @"down"}
"""
SOFTMAX = """
  %p: float32[seq, 6] = softmax(%logits) {dim = 1}
  %best: float32[seq, 2], %index: int64[seq, 2] = topk(%p) {dim = 1, k = 2}
"""
NORMALISED = """
  %total: float32[seq, 1] = sum(%best) {dims = (1,), keepdim = true}
  %w: float32[seq, 2] = div(%best, %total)
"""
CHOSEN = """
  %best: float32[seq, 2], %index: int64[seq, 2] = topk(%logits) {dim = 1, k = 2}
  %w: float32[seq, 2] = softmax(%best) {dim = 1}
"""


def experts(weights: str) -> str:
    return f'  %y: float32[seq, 8] = experts(%flat, %index, {weights}, %gate_up, %down) {{activation = "silu"}}\n'


FORMS = {
    "plain": (HEAD + SOFTMAX + experts("%best"), False),
    "normalised": (HEAD + SOFTMAX + NORMALISED + experts("%w"), True),
    "chosen first": (HEAD + CHOSEN + experts("%w"), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_fires(form):
    body, normalise = FORMS[form]
    after = assert_fires(recognise_router, graph_of(body + "  return %y", "fused"), 1)
    assert ops(after) == ["view", "route", "view", "experts", "view"]
    (route,) = after.find("route")
    assert route.attrs == {"k": 2, "normalise": normalise}
    (mixture,) = after.find("experts")
    assert mixture.inputs[1:3] == route.outputs
    assert mixture.outputs[0].shape == (1, "seq", 8)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sum(%best)", "sum(%p)", "it is not best again"),
        ("div(%best, %total)", "mul(%best, %total)", "it is not div"),
        ("softmax(%logits) {dim = 1}", "sigmoid(%logits)", "it is not softmax"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    body, _ = FORMS["normalised"]
    assert old in body
    graph = graph_of(body.replace(old, new) + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(recognise_router, graph)
    assert reason in closest(graph, PATTERN, check)


def test_softmax_of_something_else():
    body = FORMS["chosen first"][0].replace("softmax(%best) {dim = 1}", "sigmoid(%best)")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(recognise_router, graph)
    assert "it is not softmax" in closest(graph, CHOSEN_FIRST, check)


@pytest.mark.parametrize("inner", ["p", "best", "index", "total", "w"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    body, _ = FORMS["normalised"]
    assert_silent(recognise_router, graph_of(body + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(rewritten):
    assert rewritten("mixtral").count("recognise_router") == 2
    assert rewritten("qwen3_moe_some").count("recognise_router") == 2
    assert rewritten("llama").count("recognise_router") == 0
