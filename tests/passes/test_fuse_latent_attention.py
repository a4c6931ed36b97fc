"""fuse_latent_attention: absorbs the up-projections, with and without a permutation of what rotates."""

import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_latent_attention import PATTERN, check, fuse_latent_attention
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 6] = input()
  %position_ids: int64[1, seq] = input()
  %q_weight: float32[14, 6] = weight() {expr = @"q"}
  %q_row: float32[1, seq, 14] = linear(%x, %q_weight)
  %kv_weight: float32[9, 6] = weight() {expr = @"kv"}
  %kv: float32[1, seq, 9] = linear(%x, %kv_weight)
  %frequencies: float32[2] = constant() {value = dense<float32 [2] (1.0, 0.25)>}
  %table: float32[1, seq, 4] = rotary_table(%position_ids, %frequencies) {scale = 1.0}
  %other: float32[1, seq, 4] = rotary_table(%position_ids, %frequencies) {scale = 1.0}
  %order: int64[4] = constant() {value = dense<int64 [4] (0, 2, 1, 3)>}
  %q_heads: float32[1, seq, 2, 7] = view(%q_row) {shape = (1, "seq", 2, 7)}
  %q_turned: float32[1, 2, seq, 7] = transpose(%q_heads) {dim0 = 1, dim1 = 2}
  %q_nope: float32[1, 2, seq, 3] = slice(%q_turned) {dim = 3, start = 0, end = 3, step = 1}
  %q_rope: float32[1, 2, seq, 4] = slice(%q_turned) {dim = 3, start = 3, end = 7, step = 1}
  %q_tokens: float32[1, seq, 2, 4] = transpose(%q_rope) {dim0 = 1, dim1 = 2}
  %q_pairs: float32[1, seq, 2, 4] = index(%q_tokens, none, none, none, %order)
  %q_spun: float32[1, seq, 2, 4] = rotary(%q_pairs, %table) {rotary_dim = 4}
  %q_back: float32[1, 2, seq, 4] = transpose(%q_spun) {dim0 = 1, dim1 = 2}
  %q: float32[1, 2, seq, 7] = concat(%q_nope, %q_back) {dim = 3}
  %c_row: float32[1, seq, 5] = slice(%kv) {dim = 2, start = 0, end = 5, step = 1}
  %norm: float32[5] = weight() {expr = @"norm"}
  %c: float32[1, seq, 5] = rms_norm(%c_row, %norm) {eps = 1e-5, weight_offset = 0.0}
  %r_row: float32[1, seq, 4] = slice(%kv) {dim = 2, start = 5, end = 9, step = 1}
  %r: float32[1, 1, seq, 4] = view(%r_row) {shape = (1, 1, "seq", 4)}
  %r_tokens: float32[1, seq, 1, 4] = transpose(%r) {dim0 = 1, dim1 = 2}
  %r_pairs: float32[1, seq, 1, 4] = index(%r_tokens, none, none, none, %order)
  %r_spun: float32[1, seq, 1, 4] = rotary(%r_pairs, %other) {rotary_dim = 4}
  %r_back: float32[1, 1, seq, 4] = transpose(%r_spun) {dim0 = 1, dim1 = 2}
  %r_heads: float32[1, 2, seq, 4] = expand(%r_back) {shape = (1, 2, "seq", 4)}
  %c_head: float32[1, 1, seq, 5] = view(%c) {shape = (1, 1, "seq", 5)}
  %up_weight: float32[10, 5] = weight() {expr = @"up"}
  %up: float32[1, 1, seq, 10] = linear(%c_head, %up_weight)
  %up_heads: float32[1, seq, 2, 5] = view(%up) {shape = (1, "seq", 2, 5)}
  %up_turned: float32[1, 2, seq, 5] = transpose(%up_heads) {dim0 = 1, dim1 = 2}
  %k_nope: float32[1, 2, seq, 3] = slice(%up_turned) {dim = 3, start = 0, end = 3, step = 1}
  %k: float32[1, 2, seq, 7] = concat(%k_nope, %r_heads) {dim = 3}
  %v: float32[1, 2, seq, 2] = slice(%up_turned) {dim = 3, start = 3, end = 5, step = 1}
  %q_in: float32[1, seq, 2, 7] = transpose(%q) {dim0 = 1, dim1 = 2}
  %k_in: float32[1, seq, 2, 7] = transpose(%k) {dim0 = 1, dim1 = 2}
  %v_in: float32[1, seq, 2, 2] = transpose(%v) {dim0 = 1, dim1 = 2}
  %y: float32[1, seq, 2, 2] = attention(%q_in, %k_in, %v_in) {scale = 0.4, mask = "causal", window = 0, softcap = 0.0}
"""
Q_PAIRS = "  %q_pairs: float32[1, seq, 2, 4] = index(%q_tokens, none, none, none, %order)\n"
R_PAIRS = "  %r_pairs: float32[1, seq, 1, 4] = index(%r_tokens, none, none, none, %order)\n"
K_PLAIN = BODY.replace(R_PAIRS, "").replace("rotary(%r_pairs", "rotary(%r_tokens")
PLAIN = K_PLAIN.replace(Q_PAIRS, "").replace("rotary(%q_pairs", "rotary(%q_tokens")
FUSED = ["linear", "linear", "rotary_table", "latent_attention", "view"]


@pytest.mark.parametrize("body", [BODY, PLAIN], ids=["permuted", "as they are"])
def test_fires(body):
    after = assert_fires(fuse_latent_attention, graph_of(body + "  return %y", "fused"), 1)
    assert sorted(ops(after)) == sorted(FUSED)
    assert after.find("latent_attention")[0].attrs["scale"] == 0.4


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (BODY, K_PLAIN, "only one of q and k is permuted"),
        ("(0, 2, 1, 3)", "(3, 2, 1, 0)", "not pairs split into halves"),
        ('%other: float32[1, seq, 4] = rotary_table(%position_ids, %frequencies) {scale = 1.0}',
         '%other: float32[1, seq, 4] = rotary_table(%position_ids, %frequencies) {scale = 0.5}', "different tables"),
        ('%up_weight: float32[10, 5] = weight() {expr = @"up"}', "%up_weight: float32[10, 5] = input()",
         "not a weight of the checkpoint"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    graph = graph_of(BODY.replace(old, new, 1) + "  return %y", "fused")
    assert_silent(fuse_latent_attention, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["c", "up", "r_spun", "q"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(BODY + f"  return %y, %{inner}", "fused")
    assert_silent(fuse_latent_attention, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("minicpm3").count("fuse_latent_attention") == 2
    assert rewritten("deepseek_v3_dense").count("fuse_latent_attention") == 2
    assert rewritten("llama").count("fuse_latent_attention") == 0
