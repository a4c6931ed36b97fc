from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_add_layer_norm import PATTERN, check, fuse_add_layer_norm
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %stream: float32[1, seq, 8] = input()
  %x: float32[1, seq, 8] = input()
  %w: float32[8] = weight() {expr = @"w"}
  %b: float32[8] = weight() {expr = @"b"}
  %sum: float32[1, seq, 8] = add(%stream, %x)
  %y: float32[1, seq, 8] = layer_norm(%sum, %w, %b) {eps = 1e-05, weight_offset = 1.0}
"""


def test_fires_and_keeps_the_sum_for_others():
    after = assert_fires(fuse_add_layer_norm, graph_of(BODY + "  return %y, %sum", "fused"), 1)
    assert ops(after) == ["add_layer_norm"]
    assert after.find("add_layer_norm")[0].attrs == {"eps": 1e-5, "weight_offset": 1.0}
    assert after.outputs == after.find("add_layer_norm")[0].outputs


def test_fires_where_the_sum_is_used_before_the_norm():
    body = BODY.replace("  %y:", "  %early: float32[1, seq, 8] = exp(%sum)\n  %y:")
    after = assert_fires(fuse_add_layer_norm, graph_of(body + "  return %y, %early", "fused"), 1)
    assert ops(after) == ["add_layer_norm", "exp"]


def test_fires_without_a_bias():
    body = BODY.replace("(%sum, %w, %b)", "(%sum, %w)")
    after = assert_fires(fuse_add_layer_norm, graph_of(body + "  return %y, %sum", "fused"), 1)
    assert ops(after) == ["add_layer_norm"]
    assert after.find("add_layer_norm")[0].inputs[3] is None


def test_a_second_norm_of_the_same_sum_stays_a_norm():
    body = BODY + "  %z: float32[1, seq, 8] = layer_norm(%sum, %w, %b) {eps = 1e-05, weight_offset = 0.0}\n"
    after = assert_fires(fuse_add_layer_norm, graph_of(body + "  return %y, %z", "fused"), 1)
    assert ops(after) == ["add_layer_norm", "layer_norm"]


def test_does_not_fire_without_an_addition():
    body = BODY.replace("add(%stream, %x)", "mul(%stream, %x)")
    assert_silent(fuse_add_layer_norm, graph_of(body + "  return %y", "fused"))


def test_does_not_fire_on_a_broadcast():
    body = BODY.replace("%x: float32[1, seq, 8]", "%x: float32[1, 1, 8]")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(fuse_add_layer_norm, graph)
    assert "[1 S C] needs S" in closest(graph, PATTERN, check)


def test_pinned_counts(model, rewritten):
    """All norms but the first; families with another norm have none."""
    assert model.count("fuse_add_layer_norm") == 0
    assert rewritten("starcoder2").count("fuse_add_layer_norm") == 4
    assert rewritten("gpt_neox").count("fuse_add_layer_norm") == 2  # two norms read each sum, one of them with it
