import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_layer_norm import PATTERN, PLUS_ONE, check, check_plus_one, recognise_layer_norm
from tensorwright.passes.rewriting.matcher import closest

WRITTEN = """
  %x: float32[1, seq, 6] = input()
  %w: float32[6] = weight() {expr = @"w"}
  %mean: float32[1, seq, 1] = mean(%x) {dims = (2,), keepdim = true}
  %centred: float32[1, seq, 6] = sub(%x, %mean)
  %y: float32[1, seq, 6] = rms_norm(%centred, %w) {eps = 1e-05, weight_offset = 0.0}
"""
SHIFTED = """
  %x: float32[1, seq, 6] = input()
  %w: float32[6] = weight() {expr = @"w"}
  %b: float32[6] = weight() {expr = @"b"}
  %one: float64[] = constant() {value = 1.0}
  %scale: float32[6] = add(%w, %one)
  %y: float32[1, seq, 6] = layer_norm(%x, %scale, %b) {eps = 1e-05, weight_offset = 0.0}
"""


def test_fires_where_it_is_written_out():
    after = assert_fires(recognise_layer_norm, graph_of(WRITTEN + "  return %y", "fused"), 1)
    assert ops(after) == ["layer_norm"]
    assert after.find("layer_norm")[0].attrs == {"eps": 1e-05, "weight_offset": 0.0}


@pytest.mark.parametrize("bias", [", %b", ""])
def test_fires_on_weights_that_are_differences_from_one(bias):
    after = assert_fires(recognise_layer_norm, graph_of(SHIFTED.replace(", %b", bias) + "  return %y", "fused"), 1)
    assert ops(after) == ["layer_norm"]
    assert after.find("layer_norm")[0].attrs == {"eps": 1e-05, "weight_offset": 1.0}


@pytest.mark.parametrize(
    ("body", "old", "new", "reason"),
    [
        (WRITTEN, "sub(%x, %mean)", "add(%x, %mean)", "it is not sub"),
        (WRITTEN, "%mean: float32[1, seq, 1] = mean(%x) {dims = (2,)",
         "%mean: float32[1, 1, 6] = mean(%x) {dims = (1,)", "attribute dims is not [-1]"),
        (SHIFTED, "value = 1.0", "value = 2.0", "it is not the constant 1"),
        (SHIFTED, "weight_offset = 0.0", "weight_offset = 1.0", "attribute weight_offset is not 0.0"),
        (SHIFTED, 'weight() {expr = @"w"}', "input()", "not a weight"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(body, old, new, reason):
    assert old in body
    graph = graph_of(body.replace(old, new) + "  return %y", "fused")
    assert_silent(recognise_layer_norm, graph)
    rule = (PATTERN, check) if body is WRITTEN else (PLUS_ONE, check_plus_one)
    assert reason in closest(graph, *rule)


@pytest.mark.parametrize("inner", ["mean", "centred"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(WRITTEN + f"  return %y, %{inner}", "fused")
    assert_silent(recognise_layer_norm, graph)
    assert "also an output" in closest(graph, PATTERN, check)


@pytest.mark.parametrize("variant", ["cohere", "nemotron"])
def test_pinned_counts(rewritten, variant):
    """One a layer and the final one; Nemotron has two a layer, with no RMS norm in them."""
    model = rewritten(variant)
    assert model.count("recognise_layer_norm") == (3 if variant == "cohere" else 5)
    assert model.count("recognise_rms_norm") == (3 if variant == "cohere" else 0)
    assert rewritten("llama").count("recognise_layer_norm") == 0


EACH_HEAD = """
  %x: float32[1, seq, 3, 4] = input()
  %w: float32[3, 4] = weight() {expr = @"w"}
  %ones: float32[4] = constant() {value = dense<float32 [4] (1, 1, 1, 1)>}
  %n: float32[1, seq, 3, 4] = layer_norm(%x, %ones) {eps = 1e-05, weight_offset = 0.0}
  %y: float32[1, seq, 3, 4] = mul(%w, %n)
"""


def test_a_weight_for_each_head_is_the_norms_own():
    """It counts no further norm."""
    after = assert_fires(recognise_layer_norm, graph_of(EACH_HEAD + "  return %y", "fused"), 0)
    assert ops(after) == ["layer_norm"]
    assert after.find("layer_norm")[0].inputs[1].shape == (3, 4)


@pytest.mark.parametrize(
    ("old", "new"),
    [("(1, 1, 1, 1)", "(1, 2, 1, 1)"), ('%w: float32[3, 4] = weight() {expr = @"w"}', "%w: float32[3, 4] = input()")],
)
def test_a_norm_with_a_weight_keeps_the_product(old, new):
    assert old in EACH_HEAD
    assert_silent(recognise_layer_norm, graph_of(EACH_HEAD.replace(old, new) + "  return %y", "fused"))
