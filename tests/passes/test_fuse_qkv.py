import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_qkv import PATTERN, check, fuse_qkv
from tensorwright.passes.rewriting.matcher import closest

SIZES = {"q": 8, "k": 4, "v": 4}


def projection(name, x="x", bias=True):
    size = SIZES[name]
    return (
        f'  %w{name}: float32[{size}, 6] = weight() {{expr = @"w{name}"}}\n'
        f'  %b{name}: float32[{size}] = weight() {{expr = @"b{name}"}}\n'
        f"  %{name}: float32[1, seq, {size}] = linear(%{x}, %w{name}{f', %b{name}' if bias else ''}) in attn.{name}\n"
        f'  %{name}h: float32[1, seq, {size // 4}, 4] = view(%{name}) {{shape = (1, "seq", {size // 4}, 4)}}\n'
    )


HEAD = """
  %x: float32[1, seq, 6] = input()
  %other: float32[1, seq, 6] = input()
  %table: float32[1, seq, 4] = input()
"""
ROTATE = """
  %qr: float32[1, seq, 2, 4] = rotary(%qh, %table) {rotary_dim = 4}
  %kr: float32[1, seq, 1, 4] = rotary(%kh, %table) {rotary_dim = 4}
"""
CAUSAL = '{scale = 0.5, mask = "causal", window = 0, softcap = 0.0}'
ATTEND = f"  %y: float32[1, seq, 2, 4] = attention(Q, K, %vh) {CAUSAL}\n"
ROTATED = ROTATE + ATTEND.replace("Q", "%qr").replace("K", "%kr")
PLAIN = ATTEND.replace("Q", "%qh").replace("K", "%kh")
GROWTH = """
  %row: float32[1, seq, 8] = input()
  %heads: float32[1, seq, 2, 4] = view(%row) {shape = (1, "seq", 2, 4)}
  %large: float32[1, seq, 2, 4] = mul(%qr, %heads)
"""
GROWN = ROTATE + GROWTH + ATTEND.replace("Q", "%large").replace("K", "%kr")


def body(rest=ROTATED, **kwargs):
    return HEAD + "".join(projection(n, **kwargs) for n in SIZES) + rest


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rest", [ROTATED, PLAIN, GROWN], ids=["rotary", "no positions", "grown"])
def test_fires(rest, bias):
    graph = graph_of(body(rest, bias=bias) + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(fuse_qkv, graph, 1)
    (linear,) = after.find("linear")
    assert str(linear.inputs[1].node.attrs["expr"]) == 'concat(0, "wq", "wk", "wv")'
    assert linear.scope == "attn"
    assert [(n.attrs["start"], n.attrs["end"]) for n in after.find("slice")] == [(0, 8), (8, 12), (12, 16)]


def test_a_projection_with_other_users_is_fused_for_them_too():
    """q, k and v are outputs of the rewrite: whoever reads one gets its slice."""
    after = assert_fires(fuse_qkv, graph_of(body() + "  return %y, %k", "fused"), 1)
    assert after.outputs[1].node.op == "slice"


def test_does_not_fire_on_rotated_heads_used_by_others():
    graph = graph_of(body() + "  return %y, %qr", "fused")
    assert_silent(fuse_qkv, graph)
    assert "also an output" in closest(graph, PATTERN, check)


NORMS = """
  %ones: float32[4] = constant() {value = dense<float32 [4] (1, 1, 1, 1)>}
  %wn: float32[4] = weight() {expr = @"wn"}
  %kn: float32[1, seq, 1, 4] = rms_norm(%kh, %wn) {eps = 1e-05, weight_offset = 0.0}
  %kr: float32[1, seq, 1, 4] = rotary(%kn, %table) {rotary_dim = 4}
  %vn: float32[1, seq, 1, 4] = rms_norm(VALUES, %ones) {eps = 1e-05, weight_offset = 0.0}
"""
NORMED = NORMS + ATTEND.replace("Q", "%qh").replace("K", "%kr").replace("%vh", "%vn")


def test_keys_and_values_that_another_layer_reads_too():
    more = NORMED.replace("VALUES", "%vh") + f"  %z: float32[1, seq, 2, 4] = attention(%again, %kr, %vn) {CAUSAL}\n"
    again = "  %again: float32[1, seq, 2, 4] = input()\n"
    after = assert_fires(fuse_qkv, graph_of(again + body(more) + "  return %y, %z", "fused"), 1)
    assert len(after.find("linear")) == 1
    first, second = after.find("attention")
    assert first.inputs[1:3] == second.inputs[1:3]


def test_values_that_are_the_keys_come_once_more():
    text = HEAD + projection("q") + projection("k") + NORMED.replace("VALUES", "%kh") + "  return %y"
    after = assert_fires(fuse_qkv, graph_of(text, "fused"), 1)
    (linear,) = after.find("linear")
    assert str(linear.inputs[1].node.attrs["expr"]) == 'concat(0, "wq", "wk", "wk")'
    assert str(linear.inputs[2].node.attrs["expr"]) == 'concat(0, "bq", "bk", "bk")'


def test_does_not_fire_on_different_inputs():
    text = HEAD + projection("q") + projection("k", x="other") + projection("v") + ROTATED + "  return %y"
    graph = graph_of(text, "fused")
    assert_silent(fuse_qkv, graph)
    assert "it is not x again" in closest(graph, PATTERN, check)


def test_does_not_fire_on_some_biases():
    text = HEAD + projection("q") + projection("k", bias=False) + projection("v") + ROTATED + "  return %y"
    graph = graph_of(text, "fused")
    graph.drop_dead()
    assert_silent(fuse_qkv, graph)
    assert "only some of q, k and v have a bias" in closest(graph, PATTERN, check)


def test_does_not_fire_without_attention():
    assert_silent(fuse_qkv, graph_of(body("") + "  return %qh, %kh, %vh", "fused"))


def test_pinned_counts(model):
    assert model.count("fuse_qkv") == 2
    assert "linear" in ops(model.report.cached_graph)
