import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, numbers, ops, source_of
from tensorwright.passes.recognise_attention import (
    PATTERN,
    SCALED_LATE,
    SHARED_LATE,
    check,
    check_late,
    check_shared_late,
    recognise_attention,
)
from tensorwright.passes.rewriting.matcher import closest

HEAD = """
  %q: float32[1, 2, seq, 4] = input()
  %k: float32[1, 2, seq, 4] = input()
  %v: float32[1, 2, seq, 4] = input()
  %index: int64[seq] = arange() {start = 0, end = "seq", step = 1, dtype = "int64"}
  %key: int64[1, 1, 1, seq] = view(%index) {shape = (1, 1, 1, "seq")}
  %query: int64[1, 1, seq, 1] = view(%index) {shape = (1, 1, "seq", 1)}
  %zero: float32[] = constant() {value = 0.0}
  %low: float32[] = constant() {value = -inf}
  %scale: float64[] = constant() {value = 0.4}
  %cap: float64[] = constant() {value = 3.0}
  %minus: int64[] = constant() {value = -2}
  %past: bool[1, 1, seq, seq] = le(%key, %query)
"""
CAUSAL = "  %mask: float32[1, 1, seq, seq] = where(%past, %zero, %low)\n"
WINDOW = """
  %least: int64[1, 1, seq, 1] = add(%query, %minus)
  %recent: bool[1, 1, seq, seq] = gt(%key, %least)
  %seen: bool[1, 1, seq, seq] = logical_and(%past, %recent)
  %mask: float32[1, 1, seq, seq] = where(%seen, %zero, %low)
"""
CHUNK = """
  %size: int64[] = constant() {value = 2}
  %kc: int64[1, 1, 1, seq] = floor_div(%key, %size)
  %qc: int64[1, 1, seq, 1] = floor_div(%query, %size)
  %same: bool[1, 1, seq, seq] = eq(%kc, %qc)
  %seen: bool[1, 1, seq, seq] = logical_and(%past, %same)
  %mask: float32[1, 1, seq, seq] = where(%seen, %zero, %low)
"""
SCORES = """
  %kt: float32[1, 2, 4, seq] = transpose(%k) {dim0 = 2, dim1 = 3}
  %raw: float32[1, 2, seq, seq] = matmul(%q, %kt)
  %scores: float32[1, 2, seq, seq] = mul(%raw, %scale)
"""
CAPPED = """
  %small: float32[1, 2, seq, seq] = div(%scores, %cap)
  %bounded: float32[1, 2, seq, seq] = tanh(%small)
  %final: float32[1, 2, seq, seq] = mul(%bounded, %cap)
"""
REST = """
  %masked: float32[1, 2, seq, seq] = add(%scores, %mask)
  %p: float32[1, 2, seq, seq] = softmax(%masked) {dim = 3}
  %y: float32[1, 2, seq, 4] = matmul(%p, %v)
"""
SINKS = """
  %sinks: float32[2] = weight() {expr = @"sinks"}
  %logit: float32[1, 2, 1, 1] = view(%sinks) {shape = (1, 2, 1, 1)}
  %column: float32[1, 2, seq, 1] = expand(%logit) {shape = (1, 2, "seq", 1)}
  %masked: float32[1, 2, seq, seq] = add(%scores, %mask)
  %wide: float32[1, 2, seq, seq + 1] = concat(%masked, %column) {dim = 3}
"""
SHIFT = """
  %top: float32[1, 2, seq, 1] = amax(%wide) {dims = (3,), keepdim = true}
  %shifted: float32[1, 2, seq, seq + 1] = sub(%wide, %top)
"""
DROPPED = """
  %all: float32[1, 2, seq, seq + 1] = softmax(%wide) {dim = 3}
  %p: float32[1, 2, seq, seq] = slice(%all) {dim = 3, start = 0, end = "seq", step = 1}
  %y: float32[1, 2, seq, 4] = matmul(%p, %v)
"""
PLAIN = HEAD + CAUSAL + SCORES + REST
SOFT = HEAD + CAUSAL + SCORES + CAPPED + REST.replace("add(%scores", "add(%final")
DIVIDED = PLAIN.replace("mul(%raw, %scale)", "div(%raw, %scale)")
ONE_HEAD = PLAIN.replace("%k: float32[1, 2,", "%k: float32[1, 1,").replace("%v: float32[1, 2,", "%v: float32[1, 1,")
ONE_HEAD = ONE_HEAD.replace("%kt: float32[1, 2,", "%kt: float32[1, 1,")


@pytest.mark.parametrize(
    ("body", "attrs"),
    [
        (PLAIN, {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 0.0}),
        (HEAD + WINDOW + SCORES + REST, {"scale": 0.4, "mask": "window", "window": 2, "softcap": 0.0}),
        (HEAD + CHUNK + SCORES + REST, {"scale": 0.4, "mask": "chunk", "window": 2, "softcap": 0.0}),
        (SOFT, {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 3.0}),
        (PLAIN.replace("add(%scores", "add(%raw"), {"scale": 1.0, "mask": "causal", "window": 0, "softcap": 0.0}),
        (DIVIDED, {"scale": 2.5, "mask": "causal", "window": 0, "softcap": 0.0}),
        (ONE_HEAD, {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 0.0}),
        (PLAIN.replace("add(%scores, %mask)", "add(%mask, %scores)"),
         {"scale": 0.4, "mask": "causal", "window": 0, "softcap": 0.0}),
    ],
    ids=["causal", "window", "chunk", "softcap", "unscaled", "divided", "one KV head", "commuted"],
)  # fmt: skip
def test_fires(body, attrs):
    graph = graph_of(body + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(recognise_attention, graph, 1)
    assert ops(after) == ["transpose", "transpose", "transpose", "attention", "transpose"]
    assert after.find("attention")[0].attrs == attrs


def test_layers_that_share_their_keys():
    second = REST.replace("%masked", "%again").replace("%p", "%p2").replace("%y", "%z").replace("%scores", "%more")
    body = PLAIN + "  %more: float32[1, 2, seq, seq] = matmul(%v, %kt)\n" + second
    graph = graph_of(body + "  return %y, %z", "fused")
    graph.drop_dead()
    after = assert_fires(recognise_attention, graph, 2)
    assert len(after.find("attention")) == 2


WITH_SINKS = HEAD + CAUSAL + SCORES + SINKS + DROPPED
SHIFTED_SINKS = HEAD + CAUSAL + SCORES + SINKS + SHIFT + DROPPED.replace("softmax(%wide)", "softmax(%shifted)")


@pytest.mark.parametrize("body", [WITH_SINKS, SHIFTED_SINKS], ids=["plain", "maximum subtracted"])
def test_sinks(body):
    graph = graph_of(body + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(recognise_attention, graph, 1)
    assert ops(after) == ["transpose", "transpose", "transpose", "attention", "transpose"]
    (node,) = after.find("attention")
    assert node.inputs[3].node.op == "weight"
    assert node.inputs[3].shape == (2,)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('weight() {expr = @"sinks"}', "input()", "sinks that are no weight"),
        ("concat(%masked, %column)", "concat(%column, %masked)", "not add"),
        ('start = 0, end = "seq", step = 1}\n  %y', 'start = 1, end = "seq + 1", step = 1}\n  %y', "start is not 0"),
    ],
)
def test_other_columns_are_no_sinks(old, new, reason):
    changed = WITH_SINKS.replace(old, new)
    assert changed != WITH_SINKS
    graph = graph_of(changed + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(recognise_attention, graph)
    assert reason in closest(graph, PATTERN, check)


SHARE = """
  %masked: float32[1, 2, seq, seq] = add(%scores, %mask)
  %top: float32[1, 2, seq, 1] = amax(%masked) {dims = (3,), keepdim = true}
  %below: float32[1, 2, seq, seq] = sub(%masked, %top)
  %powers: float32[1, 2, seq, seq] = exp(%below)
  %total: float32[1, 2, seq, 1] = sum(%powers) {dims = (3,), keepdim = true}
  %log: float32[1, 2, seq, 1] = log(%total)
  %lse: float32[1, 2, seq, 1] = add(%log, %top)
  %flat: float32[1, 2, seq] = view(%lse) {shape = (1, 2, "seq")}
  %sinks: float32[2] = weight() {expr = @"sinks"}
  %column: float32[1, 2, 1] = view(%sinks) {shape = (1, 2, 1)}
  %above: float32[1, 2, seq] = sub(%flat, %column)
  %share: float32[1, 2, seq] = sigmoid(%above)
  %p: float32[1, 2, seq, seq] = softmax(%masked) {dim = 3}
  %mixed: float32[1, 2, seq, 4] = matmul(%p, %v)
  %each: float32[1, 2, seq, 1] = view(%share) {shape = (1, 2, "seq", 1)}
  %y: float32[1, 2, seq, 4] = mul(%mixed, %each)
"""
SHARED = HEAD + CAUSAL + SCORES + SHARE


def test_sinks_after_the_softmax():
    graph = graph_of(SHARED + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(recognise_attention, graph, 1)
    assert ops(after) == ["transpose", "transpose", "transpose", "attention", "transpose"]
    (node,) = after.find("attention")
    assert node.inputs[3].node.op == "weight"
    source = source_of(graph)
    right = numbers(graph, source)[0]
    node.inputs.pop()
    assert float((numbers(after, source)[0] - right).abs().max()) > 0.1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('weight() {expr = @"sinks"}', "input()", "sinks that are no weight"),
        ("sub(%masked, %top)", "sub(%scores, %top)", "it is not masked again"),
        ("sub(%flat, %column)", "sub(%column, %flat)", "it is not add"),
        ("softmax(%masked)", "softmax(%scores)", "it is not add"),
    ],
)
def test_other_shares_are_no_sinks(old, new, reason):
    changed = SHARED.replace(old, new)
    assert changed != SHARED
    graph = graph_of(changed + "  return %y", "fused")
    graph.drop_dead()
    assert reason in closest(graph, SHARED_LATE, check_shared_late)
    recognise_attention(graph)
    assert not any(node.op == "attention" and len(node.inputs) > 3 for node in graph.nodes)


@pytest.mark.parametrize("inner", ["wide", "all", "p"])
def test_does_not_fire_where_the_sinks_are_looked_at(inner):
    graph = graph_of(WITH_SINKS + f"  return %y, %{inner}", "fused")
    graph.drop_dead()
    assert_silent(recognise_attention, graph)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("le(%key, %query)", "lt(%key, %query)", "not one that recognise_masks understood"),
        ("-inf", "-3.4e38", "not one that recognise_masks understood"),
        ("{dim = 3}\n  %y", "{dim = 2}\n  %y", "attribute dim"),
        ("mul(%raw, %scale)", "mul(%raw, %mask)", "not a scalar constant"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    graph = graph_of(PLAIN.replace(old, new) + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(recognise_attention, graph)
    assert reason in closest(graph, PATTERN, check)


def test_a_cap_needs_its_tanh():
    body = SOFT.replace("= tanh(%small)", "= silu(%small)")
    assert_silent(recognise_attention, graph_of(body + "  return %y", "fused"))


@pytest.mark.parametrize("inner", ["raw", "scores", "masked", "p"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    """Somebody who looks at the probabilities would lose them."""
    graph = graph_of(PLAIN + f"  return %y, %{inner}", "fused")
    graph.drop_dead()
    assert_silent(recognise_attention, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(model):
    assert model.count("recognise_attention") == 2
    assert "softmax" not in ops(model.report.cached_graph)


LATE = """
  %masked: float32[1, 2, seq, seq] = add(%raw, %mask)
  %scores: float32[1, 2, seq, seq] = mul(%masked, %scale)
  %p: float32[1, 2, seq, seq] = softmax(%scores) {dim = 3}
  %y: float32[1, 2, seq, 4] = matmul(%p, %v)
  return %y
"""
RAW = SCORES.replace("  %scores: float32[1, 2, seq, seq] = mul(%raw, %scale)\n", "")


@pytest.mark.parametrize(("op", "scale"), [("mul", 0.4), ("div", 2.5)])
def test_a_scale_behind_the_mask_is_the_scale(op, scale):
    graph = graph_of(HEAD + CAUSAL + RAW + LATE.replace("mul(%masked", f"{op}(%masked"), "fused")
    after = assert_fires(recognise_attention, graph, 1)
    assert after.find("attention")[0].attrs["scale"] == pytest.approx(scale)


def test_a_negative_scale_behind_the_mask_would_show_what_is_hidden():
    body = HEAD.replace("value = 0.4", "value = -0.4") + CAUSAL + RAW + LATE
    graph = graph_of(body, "fused")
    assert_silent(recognise_attention, graph)
    assert "not scaled by a positive number" in closest(graph, SCALED_LATE, check_late)
