"""fuse_latent_attention: absorbs the up-projections, with and without a permutation of what rotates."""

import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_latent_attention import (
    PATTERN,
    UNROTATED,
    check,
    check_unrotated,
    fuse_latent_attention,
)
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
WIDER = (
    ("[14, 6]", "[22, 6]"),
    ("[1, seq, 14]", "[1, seq, 22]"),
    (
        """
  %q_heads: float32[1, seq, 2, 7] = view(%q_row) {shape = (1, "seq", 2, 7)}""",
        """
  %q_whole: float32[1, seq, 2, 11] = view(%q_row) {shape = (1, "seq", 2, 11)}
  %q_heads: float32[1, seq, 2, 7] = slice(%q_whole) {dim = 3, start = 2, end = 9, step = 1}
  %gate: float32[1, seq, 2, 2] = slice(%q_whole) {dim = 3, start = 9, end = 11, step = 1}""",
    ),
)
"""What gives the linear of q more columns for each head, before its own and behind them."""


def widened(body: str) -> str:
    for old, new in WIDER:
        assert old in body
        body = body.replace(old, new)
    return body


FUSED = ["linear", "linear", "rotary_table", "latent_attention", "view"]


@pytest.mark.parametrize("body", [BODY, PLAIN], ids=["permuted", "as they are"])
def test_fires(body):
    after = assert_fires(fuse_latent_attention, graph_of(body + "  return %y", "fused"), 1)
    assert sorted(ops(after)) == sorted(FUSED)
    assert after.find("latent_attention")[0].attrs["scale"] == 0.4


UNTURNED = "".join(
    line.replace("%r_back", "%r").replace("%q_in, ", "%q_heads, ") + "\n"
    for line in BODY.splitlines()
    if not line.startswith(tuple(f"  %{name}:" for name in (
        "position_ids", "frequencies", "table", "other", "order", "q_turned", "q_nope", "q_rope", "q_tokens", "q_pairs",
        "q_spun", "q_back", "q", "r_tokens", "r_pairs", "r_spun", "r_back", "q_in",
    )))
)  # fmt: skip


def test_where_nothing_rotates():
    after = assert_fires(fuse_latent_attention, graph_of(UNTURNED + "  return %y", "fused"), 1)
    assert sorted(ops(after)) == ["latent_attention", "linear", "linear", "view"]
    assert after.find("latent_attention")[0].optional(5) is None


@pytest.mark.parametrize("body", [BODY, PLAIN, UNTURNED], ids=["permuted", "as they are", "unrotated"])
def test_fires_where_a_head_has_more_columns(body):
    graph = graph_of(widened(body) + "  return %y, %gate", "fused")
    after = assert_fires(fuse_latent_attention, graph, 1)
    (attention,) = after.find("latent_attention")
    assert attention.operand(0).producer.operand(1).shape == (14, 6)
    assert len(after.find("linear")) == 3


@pytest.mark.parametrize("body", [BODY, UNTURNED])
def test_does_not_fire_where_more_columns_are_no_rows_of_weights(body):
    row = "%q_row: float32[1, seq, 22] = "
    graph = graph_of(widened(body).replace(f"{row}linear(%x, %q_weight)", f"{row}input()") + "  return %y", "fused")
    assert_silent(fuse_latent_attention, graph)
    pair = (PATTERN, check) if body is BODY else (UNROTATED, check_unrotated)
    assert "no row of a linear" in closest(graph, *pair)


def test_where_nothing_rotates_and_columns_are_left():
    body = UNTURNED.replace("start = 5, end = 9", "start = 4, end = 8")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(fuse_latent_attention, graph)
    assert "attribute start is not 5" in closest(graph, UNROTATED, check_unrotated)


NORMED = (
    ("transpose(%r)", "transpose(%r_normed)"),
    (
        "  %r_tokens",
        """  %r_norm: float32[4] = weight() {expr = @"r_norm"}
  %r_normed: float32[1, 1, seq, 4] = rms_norm(%r, %r_norm) {eps = 1e-4, weight_offset = 1.0}
  %r_tokens""",
    ),
)
SCALED = (
    ("linear(%c_head", "linear(%c_scaled"),
    (
        "  %up_weight",
        """  %factor: float64[] = constant() {value = 1.7}
  %c_scaled: float32[1, 1, seq, 5] = mul(%c_head, %factor)
  %up_weight""",
    ),
)


def changed(body: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in body
        body = body.replace(old, new, 1)
    return body


@pytest.mark.parametrize("body", [BODY, PLAIN], ids=["permuted", "as they are"])
@pytest.mark.parametrize("pairs", [NORMED, SCALED, NORMED + SCALED], ids=["normed", "scaled", "both"])
def test_fires_where_latents_are_scaled_and_what_rotates_is_normalised(body, pairs):
    after = assert_fires(fuse_latent_attention, graph_of(changed(body, *pairs) + "  return %y", "fused"), 1)
    (attention,) = after.find("latent_attention")
    parts = attention.operand(1).producer
    assert parts.op == "concat"
    assert [parts.operand(0).producer.op] == ["linear"]
    assert len(after.find("rms_norm")) == (NORMED[0] in pairs)
    assert attention.attrs["scale"] == pytest.approx(0.4 * (1.7 if SCALED[0] in pairs else 1.0))


LONGCAT = (
    ("transpose(%q_rope)", "transpose(%q_rope_scaled)"),
    ("concat(%q_nope,", "concat(%q_nope_scaled,"),
    ("view(%c)", "view(%c_scaled)"),
    (
        "  %q_tokens",
        """  %q_factor: float64[] = constant() {value = 1.5}
  %part_factor: float64[] = constant() {value = 1.5}
  %q_nope_scaled: float32[1, 2, seq, 3] = mul(%q_nope, %q_factor)
  %q_rope_scaled: float32[1, 2, seq, 4] = mul(%q_rope, %part_factor)
  %q_tokens""",
    ),
    (
        "  %c_head",
        """  %c_factor: float64[] = constant() {value = 1.2}
  %c_scaled: float32[1, seq, 5] = mul(%c, %c_factor)
  %c_head""",
    ),
)
"""Both parts of q are scaled by one number, and the latents before they are viewed as a head."""


@pytest.mark.parametrize("body", [BODY, PLAIN], ids=["permuted", "as they are"])
def test_fires_where_all_of_q_is_scaled(body):
    after = assert_fires(fuse_latent_attention, graph_of(changed(body, *LONGCAT) + "  return %y", "fused"), 1)
    assert after.find("latent_attention")[0].attrs["scale"] == pytest.approx(0.4 * 1.5 * 1.2)


def test_does_not_fire_where_the_parts_of_q_are_scaled_apart():
    apart = changed(PLAIN, *LONGCAT, ("%part_factor: float64[] = constant() {value = 1.5}",
                                      "%part_factor: float64[] = constant() {value = 1.4}"))  # fmt: skip
    graph = graph_of(apart + "  return %y", "fused")
    assert_silent(fuse_latent_attention, graph)
    assert "the parts of q are scaled apart" in closest(graph, PATTERN, check)


@pytest.mark.parametrize(
    ("pairs", "old", "new", "reason"),
    [
        (SCALED, "value = 1.7", "value = -1.7", "not scaled by a number above 0"),
        (SCALED, '%factor: float64[] = constant() {value = 1.7}', "%factor: float32[] = input()", "not a scalar"),
        (NORMED, '%r_norm: float32[4] = weight() {expr = @"r_norm"}', "%r_norm: float32[4] = input()", "not a weight"),
        (NORMED, "%kv: float32[1, seq, 9] = linear(%x, %kv_weight)", "%kv: float32[1, seq, 9] = input()", "no row of"),
    ],
)  # fmt: skip
def test_does_not_fire_where_they_are_changed_otherwise(pairs, old, new, reason):
    graph = graph_of(changed(PLAIN, *pairs, (old, new)) + "  return %y", "fused")
    assert_silent(fuse_latent_attention, graph)
    assert reason in closest(graph, PATTERN, check)


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
    assert rewritten("kimi_linear").count("fuse_latent_attention") == 1
    assert rewritten("deepseek_v3_dense").count("fuse_latent_attention") == 2
    assert rewritten("llama").count("fuse_latent_attention") == 0
