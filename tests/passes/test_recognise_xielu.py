import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_xielu import PATTERN, check, recognise_xielu
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 6] = input()
  %a: float32[1] = weight() {expr = @"a"}
  %b: float32[] = weight() {expr = @"b"}
  %c: float32[1] = weight() {expr = @"c"}
  %e: float32[] = weight() {expr = @"e"}
  %zero: float64[] = constant() {value = 0}
  %seen: bool[1, seq, 6] = gt(%x, %zero)
  %line: float32[1, seq, 6] = mul(%b, %x)
  %up: float32[1] = softplus(%a)
  %once: float32[1, seq, 6] = mul(%up, %x)
  %twice: float32[1, seq, 6] = mul(%once, %x)
  %positive: float32[1, seq, 6] = add(%twice, %line)
  %least: float32[1, seq, 6] = minimum(%x, %e)
  %less: float32[1, seq, 6] = expm1(%least)
  %below: float32[1, seq, 6] = sub(%less, %x)
  %down: float32[1] = softplus(%c)
  %slope: float32[1] = add(%b, %down)
  %bent: float32[1, seq, 6] = mul(%below, %slope)
  %negative: float32[1, seq, 6] = add(%bent, %line)
  %y: float32[1, seq, 6] = where(%seen, %positive, %negative)
"""


def test_fires():
    after = assert_fires(recognise_xielu, graph_of(BODY + "  return %y", "fused"), 1)
    assert not {"where", "gt", "expm1"} & set(ops(after))
    vectors = {str(node.attrs["expr"]): node.output.shape for node in after.find("weight")}
    expected = ['repeat(0, 6, "a")', 'repeat(0, 6, "c")', *(f'repeat(0, 6, reshape([1], "{n}"))' for n in "be")]
    assert sorted(vectors) == sorted(expected)
    assert set(vectors.values()) == {(6,)}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("where(%seen, %positive, %negative)", "where(%seen, %negative, %positive)", "it is not"),
        ("value = 0}", "value = 1}", "it is not the constant 0"),
        ('%e: float32[] = weight() {expr = @"e"}', "%e: float32[] = input()", "not a weight of the checkpoint"),
        ('%a: float32[1] = weight() {expr = @"a"}', '%a: float32[6] = weight() {expr = @"a"}', "not one number"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    text = BODY.replace(old, new)
    graph = graph_of(
        (text.replace("%up: float32[1]", "%up: float32[6]") if "[6]" in new else text) + "  return %y", "fused"
    )
    assert_silent(recognise_xielu, graph)
    assert reason in closest(graph, PATTERN, check)


def test_does_not_fire_where_an_inner_value_is_used_too():
    graph = graph_of(BODY + "  return %y, %bent", "fused")
    assert_silent(recognise_xielu, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("apertus").count("recognise_xielu") == 2
    assert rewritten("llama").count("recognise_xielu") == 0
