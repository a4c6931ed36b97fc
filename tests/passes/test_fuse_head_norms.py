import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_head_norms import fuse_head_norms

BODY = """
  %x: float32[1, 2, seq, 4] = input()
  %w0: float32[4] = weight() {expr = @"w0"}
  %w1: float32[4] = weight() {expr = @"w1"}
  %b0: float32[4] = weight() {expr = @"b0"}
  %b1: float32[4] = weight() {expr = @"b1"}
  %h0: float32[1, 1, seq, 4] = slice(%x) {dim = 1, start = 0, end = 1, step = 1}
  %h1: float32[1, 1, seq, 4] = slice(%x) {dim = 1, start = 1, end = 2, step = 1}
  %n0: float32[1, 1, seq, 4] = layer_norm(%h0, %w0, %b0) {eps = 1e-05, weight_offset = 0.0}
  %n1: float32[1, 1, seq, 4] = layer_norm(%h1, %w1, %b1) {eps = 1e-05, weight_offset = 0.0}
  %y: float32[1, 2, seq, 4] = concat(%n0, %n1) {dim = 1}
"""
PLAIN = BODY.replace(", %b0)", ")").replace(", %b1)", ")")


@pytest.mark.parametrize("body", [BODY, PLAIN], ids=["with bias", "without"])
def test_fires(body):
    after = assert_fires(fuse_head_norms, graph_of(body + "  return %y", "fused"), 1)
    assert ops(after) == ["transpose", "layer_norm", "transpose"]
    (norm,) = after.find("layer_norm")
    assert norm.inputs[1].shape == (2, 4)
    assert str(norm.inputs[1].node.attrs["expr"]) == 'stack("w0", "w1")'
    assert (norm.inputs[2] is None) == (body is PLAIN)


def test_fires_where_the_heads_are_read_by_others():
    body = BODY + "  %z: float32[1, 1, seq, 4] = exp(%h0)\n"
    after = assert_fires(fuse_head_norms, graph_of(body + "  return %y, %z", "fused"), 1)
    assert ops(after) == ["slice", "transpose", "layer_norm", "transpose", "exp"]


def test_does_not_fire_where_one_norm_is_used_alone():
    body = BODY + "  %z: float32[1, 1, seq, 4] = exp(%n0)\n"
    assert_silent(fuse_head_norms, graph_of(body + "  return %y, %z", "fused"))
    assert_silent(fuse_head_norms, graph_of(BODY + "  return %y, %n1", "fused"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("concat(%n0, %n1)", "concat(%n1, %n0)"),
        ("layer_norm(%h1, %w1, %b1) {eps = 1e-05", "layer_norm(%h1, %w1, %b1) {eps = 1e-06"),
        ("layer_norm(%h1, %w1, %b1)", "layer_norm(%h1, %w1)"),
        ("layer_norm(%h1, %w1, %b1)", "layer_norm(%h0, %w1, %b1)"),
        ("layer_norm(%h1, %w1, %b1) {eps = 1e-05, weight_offset = 0.0}", "exp(%h1)"),
    ],
)  # fmt: skip
def test_does_not_fire_on_other_heads(old, new):
    assert old in BODY
    assert_silent(fuse_head_norms, graph_of(BODY.replace(old, new) + "  return %y", "fused"))


def test_does_not_fire_on_only_some_heads():
    body = BODY.replace("%x: float32[1, 2, seq, 4]", "%x: float32[1, 3, seq, 4]")
    assert_silent(fuse_head_norms, graph_of(body + "  return %y", "fused"))


def test_pinned_counts(rewritten):
    """q and k of two layers."""
    assert rewritten("stablelm_head_norms").count("fuse_head_norms") == 4
    assert rewritten("llama").count("fuse_head_norms") == 0
