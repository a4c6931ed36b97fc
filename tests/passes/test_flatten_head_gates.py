import numpy as np
import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, numbers, ops, source_of
from tensorwright.passes.flatten_head_gates import BINARY_FORMS, check_binary, flatten_head_gates
from tensorwright.passes.rewriting.matcher import closest

HEADS = "  %heads: float32[1, seq, 3, 4] = input()\n"
ROWS = '  %y: float32[1, seq, 12] = view(%out) {shape = (1, "seq", 12)}\n'
GATE = """
  %g: float32[1, seq, 3] = input()
  %s: float32[1, seq, 3] = sigmoid(%g)
  %gate: float32[1, seq, 3, 1] = view(%s) {shape = (1, "seq", 3, 1)}
"""
PER_HEAD = HEADS + GATE + "  %out: float32[1, seq, 3, 4] = mul(%heads, %gate)\n" + ROWS
WHOLE = HEADS + """
  %g: float32[1, seq, 12] = input()
  %b: float32[3] = weight() {expr = @"b"}
  %wide: float32[1, seq, 3, 4] = view(%g) {shape = (1, "seq", 3, 4)}
  %column: float32[1, 1, 3, 1] = view(%b) {shape = (1, 1, 3, 1)}
  %shifted: float32[1, seq, 3, 4] = add(%wide, %column)
  %gate: float32[1, seq, 3, 4] = sigmoid(%shifted)
  %out: float32[1, seq, 3, 4] = mul(%heads, %gate)
""" + ROWS  # fmt: skip


def test_one_number_per_head():
    after = assert_fires(flatten_head_gates, graph_of(PER_HEAD + "  return %y", "fused"), 1, exact=True)
    assert [op for op in ops(after) if op != "view"] == ["sigmoid", "head_products", "mul"]
    assert after.find("mul")[0].output.shape == (1, "seq", 12)


def test_one_number_per_token():
    body = PER_HEAD.replace("seq, 3] ", "seq, 1] ").replace("seq, 3, 1]", "seq, 1, 1]").replace("3, 1)", "1, 1)")
    after = assert_fires(flatten_head_gates, graph_of(body + "  return %y", "fused"), 1, exact=True)
    assert after.find("head_products")[0].operand(1).shape == (1, 12, 1)


def test_a_gate_of_whole_heads_with_a_bias_per_head():
    after = assert_fires(flatten_head_gates, graph_of(WHOLE + "  return %y", "fused"), 3, exact=True)
    assert [op for op in ops(after) if op != "view"] == ["add", "sigmoid", "mul"]
    assert all(node.output.rank == 3 for node in after.find("add") + after.find("mul"))


def test_a_bias_per_head_belongs_to_the_product():
    product = """
  %x: float32[1, seq, 5] = input()
  %w: float32[12, 5] = weight() {expr = @"w"}
  %g: float32[1, seq, 12] = linear(%x, %w)
"""
    body = WHOLE.replace("  %g: float32[1, seq, 12] = input()\n", product)
    after = assert_fires(flatten_head_gates, graph_of(body + "  return %y", "fused"), 4)
    assert [op for op in ops(after) if op != "view"] == ["linear", "sigmoid", "mul"]
    assert after.find("linear")[0].operand(2).shape == (12,)


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        ('weight() {expr = @"c"}', "float32[4]"),
        ("constant() {value = dense<float32 [4] (0.5, 1.5, -2.0, 3.0)>}", "float32[4]"),
        ("constant() {value = 0.25}", "float32[]"),
    ],
    ids=["weight", "constant", "number"],
)
def test_what_is_stored(source, shape):
    body = HEADS + f"  %c: {shape} = {source}\n  %out: float32[1, seq, 3, 4] = mul(%heads, %c)\n" + ROWS
    after = assert_fires(flatten_head_gates, graph_of(body + "  return %y", "fused"), 1, exact=True)
    assert after.find("mul")[0].operand(1).shape == ((12,) if shape != "float32[]" else ())


def test_numbers_show_a_gate_of_another_head():
    before = graph_of(PER_HEAD + "  return %y", "fused")
    after = before.clone()
    flatten_head_gates(after)
    wrong = after.find("head_products")[0].operand(1).producer
    wrong.attrs["value"] = np.concatenate([np.zeros_like(wrong.attrs["value"][:1]), wrong.attrs["value"][1:]])
    (x,), (y,) = (numbers(graph, source_of(before)) for graph in (before, after))
    assert float((x - y).abs().max()) > 0.1


def test_does_not_fire_where_the_heads_are_used_too():
    assert_silent(flatten_head_gates, graph_of(PER_HEAD + "  return %y, %out", "fused"))


def test_does_not_fire_where_no_view_joins_the_heads():
    assert_silent(flatten_head_gates, graph_of(PER_HEAD.replace(ROWS, "") + "  return %out", "fused"))


def test_other_shapes_are_no_gates():
    body = HEADS + "  %c: float32[3, 4] = input()\n  %out: float32[1, seq, 3, 4] = mul(%heads, %c)\n" + ROWS
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(flatten_head_gates, graph)
    form = next(form for form in BINARY_FORMS if form.root.args[0].op == "mul")
    assert "neither heads, nor one number of each, nor stored" in closest(graph, form, check_binary)


def test_pinned_counts(rewritten):
    assert rewritten("llama").count("flatten_head_gates") == 0
