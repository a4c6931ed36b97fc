import numpy as np
import pytest
import torch

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.errors import UnsupportedModelError
from tensorwright.passes.recognise_masks import Span, evaluate, lengths, read_mask, recognise_masks

HEAD = """
  %position_ids: int64[1, seq] = input()
  %key: int64[1, 1, 1, seq] = view(%position_ids) {shape = (1, 1, 1, "seq")}
  %query: int64[1, 1, seq, 1] = view(%position_ids) {shape = (1, 1, "seq", 1)}
  %keyf: float32[1, 1, 1, seq] = cast(%key) {dtype = "float32"}
  %scores: float32[1, 2, seq, seq] = input()
  %zero: float64[] = constant() {value = 0.0}
  %low: float64[] = constant() {value = -3.4e38}
"""
TAIL = """
  %mask: float32[1, 1, seq, seq] = where(%seen, %zero, %low)
  %masked: float32[1, 2, seq, seq] = add(%scores, %mask)
  %y: float32[1, 2, seq, seq] = softmax(%masked) {dim = 3}
"""
CAUSAL = "  %seen: bool[1, 1, seq, seq] = le(%key, %query)\n"


def window(size):
    return (
        f"  %size: int64[] = constant() {{value = {size}}}\n"
        "  %least: int64[1, 1, seq, 1] = sub(%query, %size)\n"
        "  %recent: bool[1, 1, seq, seq] = gt(%key, %least)\n"
        "  %past: bool[1, 1, seq, seq] = le(%key, %query)\n"
        "  %seen: bool[1, 1, seq, seq] = logical_and(%recent, %past)\n"
    )


def chunks(size):
    return (
        f"  %size: int64[] = constant() {{value = {size}}}\n"
        "  %kc: int64[1, 1, 1, seq] = floor_div(%key, %size)\n"
        "  %qc: int64[1, 1, seq, 1] = floor_div(%query, %size)\n"
        "  %same: bool[1, 1, seq, seq] = eq(%kc, %qc)\n"
        "  %past: bool[1, 1, seq, seq] = le(%key, %query)\n"
        "  %seen: bool[1, 1, seq, seq] = logical_and(%same, %past)\n"
    )


MOVED = (
    chunks(4).replace("floor_div(%key, ", "floor_div(%later_key, ").replace("floor_div(%query, ", "floor_div(%later, ")
)
MOVED = (
    "  %three: int64[] = constant() {value = 3}\n"
    "  %later_key: int64[1, 1, 1, seq] = add(%key, %three)\n"
    "  %later: int64[1, 1, seq, 1] = add(%query, %three)\n" + MOVED
)
"""Chunks that do not begin at position 0."""
TWO_CHUNKS = (
    chunks(700)
    .replace("eq(%kc, %qc)", "eq(%kb, %qb)")
    .replace(
        "  %same",
        "  %none: int64[] = constant() {value = 0}\n"
        "  %kb: bool[1, 1, 1, seq] = gt(%kc, %none)\n  %qb: bool[1, 1, seq, 1] = gt(%qc, %none)\n  %same",
    )
)
"""A chunk of 700 positions, and all others in a second one."""


def masked(seen, tail=TAIL, **facts):
    graph = graph_of(HEAD + seen + tail + "  return %y", "fused")
    graph.facts.update(**facts)
    return graph


def mask_of(graph):
    return graph.find("softmax")[0].inputs[0].node.inputs[1]


# A canonical mask is itself an expression of positions, so a second run must leave it alone: assert_fires checks that.
@pytest.mark.parametrize(
    ("seen", "span"),
    [
        (CAUSAL, Span(0)),
        (window(2), Span(2)),
        (window(3), Span(3)),
        (window(700), Span(700)),
        (chunks(2), Span(2, chunked=True)),
        (chunks(17), Span(17, chunked=True)),
        (chunks(700), Span(700, chunked=True)),
        (chunks(1), Span(1)),
    ],
)
def test_fires(seen, span):
    after = assert_fires(recognise_masks, masked(seen), 1, exact=True)
    assert read_mask(mask_of(after)) == span


@pytest.mark.parametrize("seen", [window(50), chunks(50)])
def test_a_window_past_the_longest_sequence_is_causal(seen):
    graph = masked(seen, max_seq_len=50)
    assert recognise_masks(graph) == 1
    assert read_mask(mask_of(graph)) == Span(0)


@pytest.mark.parametrize("seen", [window(50), chunks(50)])
def test_a_window_of_all_but_one_position_is_seen(seen):
    graph = masked(seen, max_seq_len=51)
    assert recognise_masks(graph) == 1
    assert read_mask(mask_of(graph)) == Span(50, chunked=seen == chunks(50))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (MOVED, "hidden to query 1"),
        (TWO_CHUNKS, "at 1402 positions, key 0 is hidden to query 700"),
        (CAUSAL.replace("le(", "lt("), "hidden to query 0"),
        (CAUSAL.replace("le(%key, %query)", "ge(%key, %query)"), "is visible to query"),
        (
            "  %n: int64[1, 1, seq, seq] = mul(%key, %query)\n  %seen: bool[1, 1, seq, seq] = ge(%n, %zero)\n",
            "key 1 is visible",
        ),
    ],
)
def test_any_other_mask_is_refused(seen, reason):
    with pytest.raises(UnsupportedModelError, match="must be causal, a sliding window or chunks.*" + reason):
        recognise_masks(masked(seen))


def test_the_lowest_float16_hides_in_a_float16_model_alone():
    tail = "  %lowest: float64[] = constant() {value = -65504.0}\n" + TAIL.replace("%low)", "%lowest)")
    assert recognise_masks(masked(CAUSAL, tail, dtype="float16")) == 1
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(UnsupportedModelError, match="adds something else than zero or minus infinity"):
            recognise_masks(masked(CAUSAL, tail, dtype=dtype))
    above = tail.replace("-65504.0", "-6000.0")
    with pytest.raises(UnsupportedModelError, match="adds something else than zero or minus infinity"):
        recognise_masks(masked(CAUSAL, above, dtype="float16"))


def test_a_bias_is_no_mask():
    graph = masked(CAUSAL, TAIL.replace("%low)", "%keyf)"))
    with pytest.raises(UnsupportedModelError, match="adds something else than zero or minus infinity"):
        recognise_masks(graph)


def test_a_half_hearted_mask_is_refused():
    """-100 leaves a probability that is not zero."""
    graph = masked(CAUSAL)
    next(n for n in graph.nodes if n.outputs[0].name == "low").attrs["value"] = -100.0
    with pytest.raises(UnsupportedModelError, match="something else"):
        recognise_masks(graph)


def test_does_not_fire_without_a_mask_or_on_what_weights_make():
    body = HEAD + "  %y: float32[1, 2, seq, seq] = softmax(%scores) {dim = 3}\n  return %y"
    assert_silent(recognise_masks, graph_of(body, "fused"))
    learned = HEAD + (
        '  %w: float32[1, 1, 5, 5] = weight() {expr = @"w"}\n'
        "  %s: float32[1, 2, 5, 5] = input()\n"
        "  %masked: float32[1, 2, 5, 5] = add(%s, %w)\n"
        "  %y: float32[1, 2, 5, 5] = softmax(%masked) {dim = 3}\n  return %y"
    )
    assert_silent(recognise_masks, graph_of(learned, "fused"))


def test_a_mask_with_other_users_is_replaced_for_all():
    tail = TAIL + "  %z: float32[1, 1, seq, seq] = exp(%mask)\n"
    graph = graph_of(HEAD + window(3) + tail + "  return %y, %z", "fused")
    after = assert_fires(recognise_masks, graph, 1, exact=True)
    assert after.find("exp")[0].inputs[0] is mask_of(after)


def test_lengths_go_past_every_number_and_not_past_the_limit():
    graph = masked(window(700))
    assert max(lengths(graph, mask_of(graph))) > 700
    graph.facts.max_seq_len = 300
    assert max(lengths(graph, mask_of(graph))) == 300
    with pytest.raises(UnsupportedModelError, match="would have to be evaluated"):
        recognise_masks(masked(window(90000)))


def test_a_mask_that_counts_by_itself_is_as_long_as_the_inputs():
    """Some models count positions from 0 in place of reading them."""
    body = HEAD.replace(
        "  %key", '  %count: int64[seq] = arange() {start = 0, end = "seq", step = 1, dtype = "int64"}\n  %key', 1
    )
    body = body.replace("view(%position_ids)", "view(%count)")
    assert_fires(recognise_masks, graph_of(body + CAUSAL + TAIL + "  return %y", "fused"), 1)


def test_evaluation_is_what_the_model_computes():
    graph = masked(window(3))
    expected = torch.ones(9, 9).tril().triu(-2).numpy() == 1
    assert np.array_equal(evaluate(graph, mask_of(graph), 9)[0, 0] == 0, expected)


def test_pinned_counts(model, rewritten):
    assert model.count("recognise_masks") == 1
    assert rewritten("qwen2", "bfloat16").count("recognise_masks") == 1
    assert "cumsum" not in ops(model.report.cached_graph)
