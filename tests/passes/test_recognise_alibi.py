import numpy as np
import pytest

from support.pass_graphs import assert_silent, graph_of, ops
from tensorwright.errors import UnsupportedModelError
from tensorwright.ir.verify import verify
from tensorwright.passes.recognise_alibi import find_biases, recognise_alibi
from tensorwright.passes.recognise_masks import Span, read_mask, read_slopes, recognise_masks

BODY = """
  %scores: float32[1, 2, seq, seq] = input()
  %index: int64[1, seq] = input()
  %key: int64[1, 1, 1, seq] = view(%index) {shape = (1, 1, 1, "seq")}
  %query: int64[1, 1, seq, 1] = view(%index) {shape = (1, 1, "seq", 1)}
  %slopes: float32[1, 2, 1, 1] = constant() {value = dense<float32 [1, 2, 1, 1] (0.3, 0.011)>}
  %more: float32[] = constant() {value = 3.0}
  %low: float64[] = constant() {value = -3.4e38}
  %zero: float32[] = constant() {value = 0.0}
  %seen: bool[1, 1, seq, seq] = le(%key, %query)
  %mask: float32[1, 1, seq, seq] = where(%seen, %zero, %low)
  %line: float32[1, 2, 1, seq] = mul(%slopes, %key)
  %far: float32[1, 2, 1, seq] = add(%line, %more)
  %bias: float32[1, 2, seq, seq] = add(%far, %mask)
  %masked: float32[1, 2, seq, seq] = add(%scores, %bias)
  %y: float32[1, 2, seq, seq] = softmax(%masked) {dim = 3}
  return %y"""


def test_fires():
    graph = graph_of(BODY, "fused")
    assert recognise_alibi(graph) == 1
    verify(graph, "fused")
    bias = graph.find("softmax")[0].operand(0).producer.operand(1)
    found = read_slopes(bias)
    assert read_mask(found.mask) == Span()
    assert np.allclose(np.ravel(found.slopes.constant), [0.3, 0.011], rtol=0, atol=2.0**-21)  # two roundings of about 3
    assert recognise_alibi(graph) == 0
    assert recognise_masks(graph) == 0
    assert "constant" not in ops(graph)


def test_a_window_is_kept():
    body = BODY.replace("le(%key, %query)", "logical_and(%past, %recent)").replace(
        "  %seen",
        "  %past: bool[1, 1, seq, seq] = le(%key, %query)\n  %minus: int64[] = constant() {value = -7}\n"
        "  %least: int64[1, 1, seq, 1] = add(%query, %minus)\n"
        "  %recent: bool[1, 1, seq, seq] = gt(%key, %least)\n  %seen",
        1,
    )
    graph = graph_of(body, "fused")
    assert recognise_alibi(graph) == 1
    found = read_slopes(graph.find("softmax")[0].operand(0).producer.operand(1))
    assert read_mask(found.mask) == Span(7)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("mul(%slopes, %key)", "pow(%slopes, %key)", "is off a straight line"),
        ("le(%key, %query)", "ge(%key, %query)", "is off a straight line|is hidden to query"),
    ],
)
def test_what_is_no_line_or_no_mask_is_refused(old, new, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        recognise_alibi(graph_of(BODY.replace(old, new), "fused"))


def test_does_not_fire_on_a_mask_of_all_heads():
    body = BODY.replace("add(%scores, %bias)", "add(%scores, %mask)")
    graph = graph_of(body, "fused")
    assert find_biases(graph) == []
    assert_silent(recognise_alibi, graph)


def test_pinned_counts(rewritten):
    for variant in ("bloom", "mpt", "falcon_alibi"):
        assert rewritten(variant).count("recognise_alibi") == 1
    assert rewritten("llama").count("recognise_alibi") == 0
