import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_linears import FLAT, canonicalise_linears, check_flat
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
