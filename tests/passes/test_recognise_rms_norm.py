import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_rms_norm import PATTERN, check, check_weighed, recognise_rms_norm
from tensorwright.passes.recognise_rms_norm import WEIGHED as WEIGHED_FORM
from tensorwright.passes.rewriting.matcher import closest

NORM = """
  %x: float32[1, seq, 8] = input()
  %w: float32[8] = weight() {expr = @"w"}
  %eps: float64[] = constant() {value = 1e-05}
  %sq: float32[1, seq, 8] = mul(%x, %x)
  %mean: float32[1, seq, 1] = mean(%sq) {dims = (2,), keepdim = true}
  %var: float32[1, seq, 1] = add(%mean, %eps)
  %inv: float32[1, seq, 1] = rsqrt(%var)
  %unit: float32[1, seq, 8] = mul(%x, %inv)
  %y: float32[1, seq, 8] = mul(%w, %unit)
"""
PLUS_ONE = NORM.replace(
    "  %y: float32[1, seq, 8] = mul(%w, %unit)",
    "  %one: float64[] = constant() {value = 1.0}\n  %w1: float32[8] = add(%w, %one)\n"
    "  %y: float32[1, seq, 8] = mul(%unit, %w1)",
)


@pytest.mark.parametrize(("body", "offset"), [(NORM, 0.0), (PLUS_ONE, 1.0)])
def test_fires(body, offset):
    after = assert_fires(recognise_rms_norm, graph_of(body + "  return %y", "fused"), 1)
    assert ops(after) == ["rms_norm"]
    assert after.find("rms_norm")[0].attrs == {"eps": 1e-5, "weight_offset": offset}


WEIGHED = """
  %x: float32[1, seq, 2] = input()
  %w: float32[2] = weight() {expr = @"w"}
  %ones: float32[2] = constant() {value = dense<float32 [2] (1, 1)>}
  %unit: float32[1, seq, 2] = rms_norm(%x, %ones) {eps = 1e-05, weight_offset = 0.0}
  %y: float32[1, seq, 2] = mul(%unit, %w)
  return %y, %unit"""


def test_a_norm_that_is_read_with_a_weight_and_without():
    after = assert_fires(recognise_rms_norm, graph_of(WEIGHED, "fused"), 1)
    assert ops(after) == ["rms_norm", "rms_norm"]
    assert after.outputs[0].node.inputs[1].node.op == "weight"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(1, 1)", "(1, 2)", "the norm has a weight"),
        ("weight_offset = 0.0", "weight_offset = 1.0", "the norm has a weight"),
        ('weight() {expr = @"w"}', "input()", "the scale is not a weight"),
    ],
)
def test_a_norm_with_a_weight_keeps_it(old, new, reason):
    assert old in WEIGHED
    graph = graph_of(WEIGHED.replace(old, new), "fused")
    assert_silent(recognise_rms_norm, graph)
    assert reason in closest(graph, WEIGHED_FORM, check_weighed)


def test_fires_per_head():
    body = NORM.replace("1, seq, 8", "1, seq, 2, 8").replace("1, seq, 1]", "1, seq, 2, 1]").replace("(2,)", "(3,)")
    assert ops(assert_fires(recognise_rms_norm, graph_of(body + "  return %y", "fused"), 1)) == ["rms_norm"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%mean: float32[1, seq, 1] = mean(%sq) {dims = (2,), keepdim = true}",
         "%mean: float32[1, 1, 8] = mean(%sq) {dims = (1,), keepdim = true}", "attribute dims"),
        ("mul(%x, %x)", "mul(%x, %w)", "it is not"),
        ("value = 1e-05", "value = -1.0", "epsilon is not positive"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    body = NORM.replace(old, new).replace("1, seq, 1]", "1, 1, 8]") if "(1,)" in new else NORM.replace(old, new)
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(recognise_rms_norm, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (PLUS_ONE.replace("value = 1.0", "value = 2.0"), "offset is not one"),
        (NORM.replace("weight() {expr = @\"w\"}", "constant() {value = dense<float32 [8] (1, 2, 3, 4, 5, 6, 7, 8)>}"),
         "not a weight"),
    ],
)  # fmt: skip
def test_a_scale_of_another_kind_stays_a_product_with_a_plain_norm(body, reason):
    graph = graph_of(body + "  return %y", "fused")
    assert reason in closest(graph, PATTERN, check)
    made = ops(assert_fires(recognise_rms_norm, graph, 1))
    assert made[0] == "rms_norm"
    assert made[-1] == "mul"


@pytest.mark.parametrize("inner", ["sq", "mean", "inv"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(NORM + f"  %z: {'float32[1, seq, 8]' if inner in ('sq', 'unit') else 'float32[1, seq, 1]'} "
                     f"= neg(%{inner})\n  return %y, %z", "fused")  # fmt: skip
    assert_silent(recognise_rms_norm, graph)
    assert "also used by %z" in closest(graph, PATTERN, check)


def test_pinned_counts(model, rewritten):
    """Two in each of two layers, and the final one."""
    assert model.count("recognise_rms_norm") == 5
    assert rewritten("llama", "bfloat16").count("recognise_rms_norm") == 5


def test_a_norm_without_a_weight_gets_ones():
    body = NORM.replace("  %y: float32[1, seq, 8] = mul(%w, %unit)\n", "")
    after = assert_fires(recognise_rms_norm, graph_of(body + "  return %unit", "fused"), 1)
    (norm,) = after.find("rms_norm")
    assert norm.inputs[1].constant.tolist() == [1.0] * 8
