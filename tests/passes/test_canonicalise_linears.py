import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_linears import (
    BIAS,
    FLAT,
    LEFT_PRODUCT,
    canonicalise_linears,
    check_bias,
    check_expanded,
    check_flat,
    check_left_product,
)
from tensorwright.passes.canonicalise_linears import EXPANDED as ROWS
from tensorwright.passes.rewriting.matcher import closest

X = "  %x: float32[1, seq, 6] = input()\n"
KN = '  %w: float32[6, 8] = weight() {expr = @"w"} in proj\n'
NK = '  %w: float32[8, 6] = weight() {expr = @"w"} in proj\n'
B = '  %b: float32[8] = weight() {expr = @"b"}\n'


def test_a_transposed_weight_is_another_expression():
    body = X + KN + "  %t: float32[8, 6] = transpose(%w) {dim0 = 0, dim1 = 1}\n"
    after = assert_fires(
        canonicalise_linears, graph_of(body + "  %y: float32[1, seq, 8] = linear(%x, %t)\n  return %y"), 1
    )
    assert ops(after) == ["linear"]
    (weight,) = after.find("weight")
    assert str(weight.attrs["expr"]) == 'transpose("w")'
    assert weight.scope == "proj"


def test_a_product_with_a_weight_is_a_linear():
    after = assert_fires(
        canonicalise_linears, graph_of(X + KN + "  %y: float32[1, seq, 8] = matmul(%x, %w)\n  return %y"), 1
    )
    assert ops(after) == ["linear"]


def test_a_product_with_a_transposed_weight_reads_it_as_it_is():
    body = X + NK + "  %t: float32[6, 8] = transpose(%w) {dim0 = 0, dim1 = 1}\n"
    after = assert_fires(
        canonicalise_linears, graph_of(body + "  %y: float32[1, seq, 8] = matmul(%x, %t)\n  return %y"), 2
    )
    assert [str(n.attrs["expr"]) for n in after.find("weight")] == ['"w"']


TURNED = X + NK + "  %t: float32[1, 6, seq] = transpose(%x) {dim0 = 1, dim1 = 2}\n"
LEFT = "  %y: float32[1, 8, seq] = matmul(%w, %t)\n"


def test_a_weight_times_columns_is_a_linear_of_rows():
    after = assert_fires(canonicalise_linears, graph_of(TURNED + LEFT + "  return %y"), 1)
    assert ops(after) == ["linear", "transpose"]
    assert after.find("linear")[0].output.shape == (1, "seq", 8)


def test_what_is_computed_times_columns_stays():
    body = TURNED.replace(NK, "  %w: float32[8, 6] = input()\n") + LEFT + "  return %y"
    assert_silent(canonicalise_linears, graph_of(body))
    assert "not a weight of the checkpoint" in closest(graph_of(body), LEFT_PRODUCT, check_left_product)


@pytest.mark.parametrize("order", ["%y, %b", "%b, %y"])
def test_a_bias_that_is_added_belongs_to_the_linear(order):
    body = X + NK + B + "  %y: float32[1, seq, 8] = linear(%x, %w)\n"
    after = assert_fires(
        canonicalise_linears, graph_of(body + f"  %z: float32[1, seq, 8] = add({order})\n  return %z"), 1
    )
    assert ops(after) == ["linear"]
    assert len(after.find("linear")[0].inputs) == 3


FLATTENED = '  %f: float32[seq, 6] = view(%x) {shape = ("seq", 6)}\n  %y: float32[seq, 8] = linear(%f, %w, %b)\n'


def test_a_view_that_drops_the_batch_moves_behind():
    body = X + NK + B + FLATTENED + '  %z: float32[1, seq, 8] = view(%y) {shape = (1, "seq", 8)}\n  return %z'
    after = assert_fires(canonicalise_linears, graph_of(body), 1)
    assert after.find("linear")[0].output.shape == (1, "seq", 8)


def test_heads_are_joined_before_the_batch_is_dropped():
    heads = X.replace("6]", "2, 3]")
    after = assert_fires(canonicalise_linears, graph_of(heads + NK + B + FLATTENED + "  return %y"), 1)
    assert ops(after) == ["view", "linear", "view"]


def test_does_not_fire_on_views_that_move_tokens():
    body = X.replace("[1, seq, 6]", "[2, seq, 3]") + NK + B + FLATTENED
    graph = graph_of(body + "  return %y")
    assert_silent(canonicalise_linears, graph)
    assert "does not keep the tokens" in closest(graph, FLAT, check_flat)


def test_does_not_fire_on_products_of_activations():
    other = "  %w: float32[6, 8] = input()\n  %y: float32[1, seq, 8] = matmul(%x, %w)\n  return %y"
    assert_silent(canonicalise_linears, graph_of(X + other))


def test_does_not_fire_on_a_residual():
    body = X + NK + "  %r: float32[1, seq, 8] = input()\n  %y: float32[1, seq, 8] = linear(%x, %w)\n"
    assert_silent(canonicalise_linears, graph_of(body + "  %z: float32[1, seq, 8] = add(%y, %r)\n  return %z"))


EXPANDED = (
    X
    + NK
    + B
    + """
  %wide: float32[1, seq, 8] = expand(%b) {shape = (1, "seq", 8)}
  %y: float32[1, seq, 8] = linear(%x, %w)
  %z: float32[1, seq, 8] = add(%y, %wide)
  return %z"""
)


def test_a_bias_that_is_expanded_to_every_token_belongs_to_the_linear():
    after = assert_fires(canonicalise_linears, graph_of(EXPANDED), 1)
    assert ops(after) == ["linear"]
    assert len(after.find("linear")[0].inputs) == 3


def test_a_bias_that_makes_the_sum_larger_stays():
    body = EXPANDED.replace("1, seq, 8] = expand", "3, seq, 8] = expand").replace("(1, ", "(3, ")
    body = body.replace("1, seq, 8] = add", "3, seq, 8] = add")
    assert_silent(canonicalise_linears, graph_of(body))
    assert "another shape than the product" in closest(graph_of(body), BIAS, check_bias)


STATE = "  %x: float32[1, seq, 8] = input()\n" + B
STATE += '  %wide: float32[1, seq, 8] = expand(%b) {shape = (1, "seq", 8)}\n'


@pytest.mark.parametrize("order", ["%x, %wide", "%wide, %x"])
def test_a_vector_that_is_expanded_to_every_token_is_added_as_it_is(order):
    """The first state of HRM-Text, say, which is no bias of a product."""
    body = STATE + f"  %z: float32[1, seq, 8] = add({order})\n  return %z"
    after = assert_fires(canonicalise_linears, graph_of(body), 1, exact=True)
    after.drop_dead()
    assert ops(after) == ["add"]
    assert after.find("add")[0].operand(1).shape == (8,)


def test_what_is_computed_and_expanded_stays():
    body = STATE.replace('weight() {expr = @"b"}', "input()") + "  %z: float32[1, seq, 8] = add(%x, %wide)\n  return %z"
    assert_silent(canonicalise_linears, graph_of(body))
    assert "not a weight of the checkpoint" in closest(graph_of(body), ROWS, check_expanded)


def test_does_not_fire_where_the_sum_without_bias_is_used_too():
    body = X + NK + B + "  %y: float32[1, seq, 8] = linear(%x, %w)\n  %z: float32[1, seq, 8] = add(%y, %b)\n"
    assert_silent(canonicalise_linears, graph_of(body + "  return %z, %y"))


def test_pinned_counts(model, rewritten):
    assert model.count("canonicalise_linears") == 0
    assert rewritten("gpt2").count("canonicalise_linears") == 16
    assert rewritten("falcon_serial").count("canonicalise_linears") == 24


FLAT_MLP = """
  %x: float32[1, seq, 4] = input()
  %wn: float32[4] = weight() {expr = @"wn"}
  %bn: float32[4] = weight() {expr = @"bn"}
  %wu: float32[6, 4] = weight() {expr = @"wu"}
  %wd: float32[4, 6] = weight() {expr = @"wd"}
  %flat: float32[seq, 4] = view(%x) {shape = ("seq", 4)}
  %n: float32[seq, 4] = layer_norm(%flat, %wn, %bn) {eps = 1e-05, weight_offset = 0.0}
  %u: float32[seq, 6] = linear(%n, %wu)
  %a: float32[seq, 6] = relu(%u)
  %d: float32[seq, 4] = linear(%a, %wd)
  %sum: float32[seq, 4] = add(%flat, %d)
  %y: float32[1, seq, 4] = view(%sum) {shape = (1, "seq", 4)}
"""


def test_a_whole_mlp_on_flattened_rows_keeps_the_batch():
    after = assert_fires(canonicalise_linears, graph_of(FLAT_MLP + "  return %y"), 5)
    computed = [node for node in after.nodes if node.op not in ("input", "weight", "constant", "view")]
    assert [node.op for node in computed] == ["layer_norm", "linear", "relu", "linear", "add"]
    assert all(node.output.rank == 3 for node in computed)
