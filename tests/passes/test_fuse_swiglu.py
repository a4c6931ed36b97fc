import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_swiglu import PATTERN, check, fuse_swiglu
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 8] = input()
  %g: float32[1, seq, 4] = slice(%x) {dim = 2, start = 0, end = 4, step = 1}
  %u: float32[1, seq, 4] = slice(%x) {dim = 2, start = 4, end = 8, step = 1}
  %s: float32[1, seq, 4] = silu(%g)
  %y: float32[1, seq, 4] = mul(%s, %u)
"""


@pytest.mark.parametrize("body", [BODY, BODY.replace("mul(%s, %u)", "mul(%u, %s)")])
def test_fires(body):
    after = assert_fires(fuse_swiglu, graph_of(body + "  return %y", "fused"), 1)
    assert ops(after) == ["swiglu"]
    assert after.nodes[-1].attrs == {"activation": "silu"}


@pytest.mark.parametrize(
    ("how", "activation"),
    [
        ("relu(%g)", "relu"),
        ('gelu(%g) {approximate = "tanh"}', "gelu_tanh"),
        ('gelu(%g) {approximate = "none"}', "gelu"),
    ],
)
def test_fires_under_other_activations(how, activation):
    after = assert_fires(fuse_swiglu, graph_of(BODY.replace("silu(%g)", how) + "  return %y", "fused"), 1)
    assert ops(after) == ["swiglu"]
    assert after.nodes[-1].attrs == {"activation": activation}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("silu(%g)", "silu(%u)", "attribute start"),
        ("mul(%s, %u)", "mul(%s, %g)", "attribute start"),
        ("%x: float32[1, seq, 8]", "%x: float32[1, seq, 9]", "not the two halves"),
        ("silu(%g)", "tanh(%g)", "it is not silu"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    graph.drop_dead()
    assert_silent(fuse_swiglu, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["g", "u", "s"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    assert_silent(fuse_swiglu, graph_of(BODY + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(model, rewritten):
    assert model.count("fuse_swiglu") == 2
    assert rewritten("gemma2").count("fuse_swiglu") == 2
