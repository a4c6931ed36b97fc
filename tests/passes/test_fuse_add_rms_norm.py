from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_add_rms_norm import PATTERN, check, fuse_add_rms_norm
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %stream: float32[1, seq, 8] = input()
  %x: float32[1, seq, 8] = input()
  %w: float32[8] = weight() {expr = @"w"}
  %sum: float32[1, seq, 8] = add(%stream, %x)
  %y: float32[1, seq, 8] = rms_norm(%sum, %w) {eps = 1e-05, weight_offset = 1.0}
"""


def test_fires_and_keeps_the_sum_for_others():
    after = assert_fires(fuse_add_rms_norm, graph_of(BODY + "  return %y, %sum", "fused"), 1)
    assert ops(after) == ["add_rms_norm"]
    assert after.find("add_rms_norm")[0].attrs == {"eps": 1e-5, "weight_offset": 1.0}
    assert after.outputs == after.find("add_rms_norm")[0].outputs


def test_fires_where_the_sum_is_used_before_the_norm():
    body = BODY.replace("  %y:", "  %early: float32[1, seq, 8] = exp(%sum)\n  %y:")
    after = assert_fires(fuse_add_rms_norm, graph_of(body + "  return %y, %early", "fused"), 1)
    assert ops(after) == ["add_rms_norm", "exp"]


def test_a_second_norm_of_the_same_sum_stays_a_norm():
    body = BODY + "  %z: float32[1, seq, 8] = rms_norm(%sum, %w) {eps = 1e-05, weight_offset = 0.0}\n"
    after = assert_fires(fuse_add_rms_norm, graph_of(body + "  return %y, %z", "fused"), 1)
    assert ops(after) == ["add_rms_norm", "rms_norm"]


def test_does_not_fire_without_an_addition():
    body = BODY.replace("add(%stream, %x)", "mul(%stream, %x)")
    assert_silent(fuse_add_rms_norm, graph_of(body + "  return %y", "fused"))


def test_does_not_fire_on_a_broadcast():
    body = BODY.replace("%x: float32[1, seq, 8]", "%x: float32[1, 1, 8]")
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(fuse_add_rms_norm, graph)
    assert "[1 S C] needs S" in closest(graph, PATTERN, check)


def test_pinned_counts(model):
    """All norms but the first."""
    assert model.count("fuse_add_rms_norm") == 4
