import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.move_norms_before_rotary import (
    PATTERN,
    PERMUTED,
    check,
    check_permuted,
    move_norms_before_rotary,
)
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %position_ids: int64[1, seq] = input()
  %q: float32[1, seq, 2, 6] = input()
  %k: float32[1, seq, 1, 6] = input()
  %v: float32[1, seq, 1, 6] = input()
  %freq: float32[2] = constant() {value = dense<float32 [2] (0.7, 0.2)>}
  %table: float32[1, seq, 4] = rotary_table(%position_ids, %freq) {scale = 1.0}
  %wq: float32[6] = weight() {expr = @"wq"}
  %wk: float32[6] = weight() {expr = @"wk"}
  %qr: float32[1, seq, 2, 6] = rotary(%q, %table) {rotary_dim = 4}
  %kr: float32[1, seq, 1, 6] = rotary(%k, %table) {rotary_dim = 4}
  %qn: float32[1, seq, 2, 6] = rms_norm(%qr, %wq) {eps = 1e-05, weight_offset = 0.0}
  %kn: float32[1, seq, 1, 6] = rms_norm(%kr, %wk) {eps = 1e-06, weight_offset = 0.0}
  %y: float32[1, seq, 2, 6] = attention(%qn, %kn, %v) {scale = 0.3, mask = "causal", window = 0, softcap = 0.0}
"""
ONES = "constant() {value = dense<float32 [6] (1, 1, 1, 1, 1, 1)>}"
ORDER = "  %order: int64[6] = constant() {value = dense<int64 [6] (0, 2, 1, 3, 4, 5)>}\n"
PLACED = "  %@p: float32[1, seq, #, 6] = index(%@r, none, none, none, %order)\n"
PLAIN = BODY.replace('weight() {expr = @"wq"}', ONES).replace('weight() {expr = @"wk"}', ONES)


def test_fires():
    """A part of each head turns, and the weights are random: no two of a pair are equal."""
    after = assert_fires(move_norms_before_rotary, graph_of(BODY + "  return %y", "fused"), 1)
    assert ops(after) == ["rotary_table", "rms_norm", "rotary", "rms_norm", "rotary", "mul", "mul", "attention"]
    assert [node.attrs["eps"] for node in after.find("rms_norm")] == [1e-5, 1e-6]


def test_norms_without_weights_need_no_products():
    after = assert_fires(move_norms_before_rotary, graph_of(PLAIN + "  return %y", "fused"), 1)
    assert ops(after) == ["rotary_table", "rms_norm", "rotary", "rms_norm", "rotary", "attention"]


def behind_a_permutation(body: str) -> str:
    """The norms of q and k stand behind a permutation of their columns."""
    for name, heads in (("q", "2"), ("k", "1")):
        norm = f"  %{name}n:"
        placed = PLACED.replace("@", name).replace("#", heads)
        body = body.replace(norm, placed + norm).replace(f"rms_norm(%{name}r", f"rms_norm(%{name}p")
    return ORDER + body


def test_norms_without_weights_behind_a_permutation():
    """It stays behind the rotation, where scores do not need it."""
    after = assert_fires(move_norms_before_rotary, graph_of(behind_a_permutation(PLAIN) + "  return %y", "fused"), 1)
    expected = ["rotary_table", *["rms_norm", "rotary"] * 2, "index", "index", "attention"]
    assert sorted(ops(after)) == sorted(expected)


def test_norms_with_weights_stay_behind_a_permutation():
    graph = graph_of(behind_a_permutation(BODY) + "  return %y", "fused")
    assert_silent(move_norms_before_rotary, graph)
    assert "the norm behind a permutation has a weight" in closest(graph, PERMUTED, check_permuted)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{scale = 1.0}", "{scale = 1.2}", "does not keep the length"),
        ("eps = 1e-05, weight_offset = 0.0", "eps = 1e-05, weight_offset = 1.0", "weight_offset is not 0.0"),
        ("attention(%qn, %kn, %v)", "attention(%qn, %kr, %v)", "it is not rms_norm"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    assert_silent(move_norms_before_rotary, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["qr", "kn"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(BODY + f"  return %y, %{inner}", "fused")
    assert_silent(move_norms_before_rotary, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("hunyuan_v1_dense").count("move_norms_before_rotary") == 2
    assert rewritten("nanochat").count("move_norms_before_rotary") == 2
    assert rewritten("qwen3").count("move_norms_before_rotary") == 0
