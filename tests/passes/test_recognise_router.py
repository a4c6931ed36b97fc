import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_router import PATTERN, check, recognise_router
from tensorwright.passes.rewriting.matcher import closest

HEAD = """
  %flat: float32[seq, 8] = input()
  %logits: float32[seq, 6] = input()
  %up: float32[6, 10, 8] = weight() {expr = @"up"}
  %down: float32[6, 8, 5] = weight() {expr = @"down"}
"""
SOFTMAX = """
  %p: float32[seq, 6] = softmax(%logits) {dim = 1}
"""
SIGMOID = """
  %p: float32[seq, 6] = sigmoid(%logits)
"""
TOP = """
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
BIASED = """
  %bias: float32[6] = weight() {expr = @"bias"}
  %c: float32[seq, 6] = add(%p, %bias)
"""
PICKED = """
  %values: float32[seq, 2], %index: int64[seq, 2] = topk(%c) {dim = 1, k = 2}
  %best: float32[seq, 2] = gather(%p, %index) {dim = 1}
"""
SCALED = """
  %scales: float32[6] = weight() {expr = @"scales"}
  %chosen: float32[seq, 2] = index(%scales, %index)
  %v: float32[seq, 2] = mul(%w, %chosen)
"""
GROUPS = """
  %g: float32[seq, 3, 2] = view(%SCORES) {shape = ("seq", 3, 2)}
  SUMS
  %tops: float32[seq, 2], %groups: int64[seq, 2] = topk(%sums) {dim = 1, k = 2}
  %none: float32[seq, 3] = full() {dtype = "float32", shape = ("seq", 3), value = 0}
  %ones: float32[seq, 3] = scatter(%none, %groups) {dim = 1, value = 1}
  %wide: float32[seq, 3, 1] = view(%ones) {shape = ("seq", 3, 1)}
  %wider: float32[seq, 3, 2] = expand(%wide) {shape = ("seq", 3, 2)}
  %flags: float32[seq, 6] = view(%wider) {shape = ("seq", 6)}
  %counts: bool[seq, 6] = cast(%flags) {dtype = "bool"}
  %out: bool[seq, 6] = logical_not(%counts)
  %left_out: float32[] = constant() {value = LEFT_OUT}
  %limited: float32[seq, 6] = where(%out, %left_out, %SCORES)
"""
LARGEST = "%sums: float32[seq, 3] = amax(%g) {dims = (2,), keepdim = false}"
OF_TWO = """%two: float32[seq, 3, 2], %within: int64[seq, 3, 2] = topk(%g) {dim = 2, k = 2}
  %sums: float32[seq, 3] = sum(%two) {dims = (2,), keepdim = false}"""


def groups(scores: str, sums: str, left_out: str) -> str:
    return GROUPS.replace("SCORES", scores).replace("SUMS", sums).replace("LEFT_OUT", left_out)


def experts(weights: str) -> str:
    return f'  %y: float32[seq, 8] = experts(%flat, %index, {weights}, %up, %down) {{activation = "silu"}}\n'


PLAIN = {"k": 2, "normalise": False}
NORMAL = {"k": 2, "normalise": True}
CORRECTED = {"k": 2, "normalise": False, "score": "sigmoid", "by_scores": True}
FORMS = {
    "plain": (SOFTMAX + TOP + experts("%best"), PLAIN),
    "normalised": (SOFTMAX + TOP + NORMALISED + experts("%w"), NORMAL),
    "chosen first": (CHOSEN + experts("%w"), NORMAL),
    "sigmoid": (SIGMOID + TOP + NORMALISED + experts("%w"), {**NORMAL, "score": "sigmoid"}),
    "sigmoid of the chosen": (
        CHOSEN.replace("softmax(%best) {dim = 1}", "sigmoid(%best)") + experts("%w"),
        {**PLAIN, "score": "sigmoid"},
    ),
    "corrected": (SIGMOID + BIASED + PICKED + experts("%best"), CORRECTED),
    "corrected and scaled": (
        SIGMOID + BIASED + PICKED + "  %s: float32[] = constant() {value = 2.5}\n"
        "  %w: float32[seq, 2] = mul(%best, %s)\n" + experts("%w"),
        {**CORRECTED, "scale": 2.5},
    ),
    "corrected logits": (
        BIASED.replace("%p", "%logits") + PICKED.replace("%p", "%logits") + "  %w: float32[seq, 2] = sigmoid(%best)\n"
        + experts("%w"),
        {**PLAIN, "score": "sigmoid"},
    ),
    "with epsilon": (
        SIGMOID + TOP + NORMALISED.replace("div(%best, %total)", "div(%best, %more)").replace(
            "  %w:", "  %e: float32[] = constant() {value = 0.5}\n  %more: float32[seq, 1] = add(%total, %e)\n  %w:"
        ) + experts("%w"),
        {**NORMAL, "score": "sigmoid", "epsilon": 0.5},
    ),
    "by a norm of order one": (
        SOFTMAX + TOP + NORMALISED.replace("sum(%best)", "sum(%size)").replace(
            "  %total:", "  %size: float32[seq, 2] = abs(%best)\n  %total:"
        ) + experts("%w"),
        NORMAL,
    ),
    "scaled by expert": (SOFTMAX + TOP + NORMALISED + SCALED + experts("%v"), NORMAL),
    "corrected and scaled by expert": (
        SIGMOID + BIASED + PICKED + SCALED.replace("mul(%w, %chosen)", "mul(%chosen, %best)") + experts("%v"),
        CORRECTED,
    ),
    "from least": (
        SOFTMAX + BIASED + PICKED + NORMALISED.replace("div(%best, %total)", "div(%best, %more)").replace(
            "  %w:", "  %more: float32[seq, 1] = clamp(%total) {max = none, min = 0.9}\n  %w:"
        ) + experts("%w"),
        {**NORMAL, "by_scores": True, "least": 0.9},
    ),
    "groups": (
        SIGMOID + BIASED + groups("c", OF_TWO, "-inf") + PICKED.replace("topk(%c)", "topk(%limited)")
        + experts("%best"),
        {**CORRECTED, "groups": 3, "group_limit": 2, "group_best": 2},
    ),
    "groups by their largest": (
        SOFTMAX + groups("p", LARGEST, "0.0") + TOP.replace("%p", "%limited") + experts("%best"),
        {**PLAIN, "by_scores": True, "groups": 3, "group_limit": 2, "group_best": 1},
    ),
    "groups that keep others": (
        SIGMOID + BIASED + groups("c", OF_TWO, "0.0") + PICKED.replace("topk(%c)", "topk(%limited)")
        + experts("%best"),
        {**CORRECTED, "groups": 3, "group_limit": 2, "group_best": 2, "keeps_others": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_fires(form):
    body, attrs = FORMS[form]
    after = assert_fires(recognise_router, graph_of(HEAD + body + "  return %y", "fused"), 1)
    assert ops(after) == ["view", "route", "view", "experts", "view"]
    (route,) = after.find("route")
    assert route.attrs == attrs
    vectors = [name for name in ("bias", "scales") if f"%{name}" in body]
    assert [vector.name for vector in route.inputs[1:] if vector is not None] == vectors
    assert len(route.inputs) == (3 if "scales" in vectors else 2 if vectors else 1)
    (mixture,) = after.find("experts")
    assert mixture.inputs[1:3] == route.outputs
    assert mixture.outputs[0].shape == (1, "seq", 8)


@pytest.mark.parametrize(
    ("form", "old", "new", "reason"),
    [
        ("normalised", "sum(%best)", "sum(%p)", "the weights are not the values of the experts' topk"),
        ("normalised", "div(%best, %total)", "mul(%best, %total)", "the weights are not the values"),
        ("normalised", "softmax(%logits) {dim = 1}", "tanh(%logits)", "neither a softmax nor a sigmoid"),
        ("chosen first", "softmax(%best) {dim = 1}", "tanh(%best)", "the weights are not the values"),
        ("corrected", "add(%p, %bias)", "mul(%p, %bias)", "experts are chosen by something else"),
        ("corrected", "gather(%p, %index)", "gather(%c, %index)", "neither a softmax nor a sigmoid"),
        (
            "scaled by expert",
            "  %chosen: float32[seq, 2] = index(%scales, %index)",
            "  %others: int64[seq, 2] = input()\n  %chosen: float32[seq, 2] = index(%scales, %others)",
            "the numbers of other experts",
        ),
        ("scaled by expert", 'weight() {expr = @"scales"}', "input()", "what scales the weights is not of the"),
        ("scaled by expert", "mul(%w, %chosen)", "add(%w, %chosen)", "the weights are not the values"),
        ("groups", "value = -inf", "value = 1.0", "experts left out are neither 0 nor -inf"),
        (
            "groups",
            'shape = ("seq", 3), value = 0}',
            'shape = ("seq", 3), value = 2}',
            "groups do not begin with zeros",
        ),
    ],
)
def test_does_not_fire_and_says_why(form, old, new, reason):
    body, _ = FORMS[form]
    assert old in body
    graph = graph_of(HEAD + body.replace(old, new) + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(recognise_router, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["p", "best", "index", "total", "w"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    body, _ = FORMS["normalised"]
    assert_silent(recognise_router, graph_of(HEAD + body + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(rewritten):
    assert rewritten("mixtral").count("recognise_router") == 2
    assert rewritten("qwen3_moe_some").count("recognise_router") == 2
    assert rewritten("glm4_moe").count("recognise_router") == 1
    assert rewritten("phimoe").count("recognise_router") == 2
    assert rewritten("llama").count("recognise_router") == 0
