import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.repeat_scalar_weights import PATTERN, check, repeat_scalar_weights
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 6] = input()
  %w: float32[1] = weight() {expr = @"w"}
  %y: float32[1, seq, 6] = mul(%x, %w)
  return %y"""


@pytest.mark.parametrize("operands", ["%x, %w", "%w, %x"])
def test_fires(operands):
    after = assert_fires(repeat_scalar_weights, graph_of(BODY.replace("%x, %w", operands), "fused"), 1, exact=True)
    assert ops(after) == ["mul"]
    (weight,) = after.find("weight")
    assert str(weight.attrs["expr"]) == 'repeat(0, 6, "w")'
    assert weight.output.shape == (6,)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('%w: float32[1] = weight() {expr = @"w"}', "%w: float32[1] = input()", "not a weight of the checkpoint"),
        ('%w: float32[1] = weight() {expr = @"w"}', '%w: float32[6] = weight() {expr = @"w"}', "needs 1 = 1"),
        ("float32[1, seq, 6]", "float32[1, seq, 1]", "there is one channel"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    graph = graph_of(BODY.replace(old, new), "fused")
    assert_silent(repeat_scalar_weights, graph)
    assert reason in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("gemma4_text").count("repeat_scalar_weights") == 2
    assert rewritten("llama").count("repeat_scalar_weights") == 0
