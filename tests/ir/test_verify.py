"""The verifier: each rule, broken once. The message shows the node underlined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorwright.plugins.registry  # noqa: F401 - the table of operations is whole after it
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Graph
from tensorwright.ir.ops import STAGES, find_spec, op_names, stages_of
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.verify import Verified, verify

GOOD = """\
graph "good" stage fused {
  %ids: int64[1, seq] = input()
  %table: float32[100, 8] = weight() {expr = @"embed.weight"} in embed
  %x: float32[1, seq, 8] = embedding(%table, %ids) in embed
  %w: float32[8] = weight() {expr = @"norm.weight"} in norm
  %y: float32[1, seq, 8] = rms_norm(%x, %w) {eps = 1e-06, weight_offset = 0.0} in norm
  %c: float64[] = constant() {value = 0.5}
  %z: float32[1, seq, 8] = mul(%y, %c)
  %v: float32[1, seq, 2, 4] = view(%z) {shape = (1, "seq", 2, 4)}
  %s: float32[1, seq, 2, 2] = slice(%v) {dim = 3, start = 0, end = 2, step = 1}
  return %s
}
"""


def test_a_good_graph_passes():
    verify(parse_graph(GOOD))
    verify(parse_graph(GOOD), "fused")


def test_the_stage_must_be_the_expected_one():
    with pytest.raises(GraphError, match="must be at stage 'traced', not 'fused'"):
        verify(parse_graph(GOOD), "traced")
    with pytest.raises(GraphError, match="a stage must be one of"):
        verify(parse_graph(GOOD), "melted")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stage fused", "stage traced", "rms_norm is not legal here, only at fused, cached"),
        ("mul(%y, %c)", "multiply(%y, %c)", "there is no op 'multiply'"),
        ("mul(%y, %c)", "mul(%y)", "mul takes 2 operands, not 1"),
        ("mul(%y, %c)", "mul(%y, none)", "operand 1 of mul must not be absent"),
        ("weight_offset = 0.0", "offset = 0.0", "rms_norm lacks weight_offset and has no offset"),
        (", weight_offset = 0.0", "", "rms_norm lacks weight_offset"),
        ("= mul(%y, %c)", "= mul(%y, %c) {alpha = 1}", "mul has no alpha; its attributes are: none"),
        ("eps = 1e-06", 'eps = "small"', "attribute eps of rms_norm must be float, not 'small'"),
        ("dim = 3", "dim = true", "attribute dim of slice must be int, not True"),
        ("end = 2", 'end = "1 + 1"', "attribute end of slice must be dim, not '1 + 1'"),
        ('shape = (1, "seq", 2, 4)', 'shape = [1, "seq", 2, 4]', "attribute shape of view must be dims"),
        (
            "%z: float32[1, seq, 8]",
            "%z: bfloat16[1, seq, 8]",
            "%z is declared bfloat16[1, seq, 8], but mul gives float32",
        ),
        ("%z: float32[1, seq, 8]", "%z: float32[1, seq, 4]", "%z is declared float32[1, seq, 4], but mul gives"),
        ("%y: float32[1, seq, 8]", "%y: float32[1, 8, seq]", "%y is declared float32[1, 8, seq], but rms_norm gives"),
        ("%x: float32[1, seq, 8]", "%x: float32[1, seq + 1, 8]", "but embedding gives float32[1, seq, 8]"),
        ("2, 4)}", "2, 8)}", "[1, seq, 8] and [1, seq, 2, 8] differ in element count"),
        ("end = 2", "end = 5", "is outside [1, seq, 2, 4] at 3"),
        ("%w: float32[8]", "%w: float32[seq]", "a weight must have an element type and a fixed shape"),
        ("%w: float32[8]", "%w: float32[9]", "rms_norm: w must be [8]"),
        ('expr = @"norm.weight"', 'expr = "norm.weight"', "attribute expr of weight must be expr"),
        ("value = 0.5", 'value = "half"', "a constant must be a Python number or a numpy array, not str"),
        ("%c: float64[]", "%c: float64[1]", "a number is a constant of rank 0"),
        ("value = 0.5", "value = dense<float32 [] (0.5)>", "float64[] must be held as float64[], not float32[]"),
    ],
)
def test_each_rule_broken(old, new, message):
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(GraphError) as caught:
        verify(parse_graph(text))
    assert message in str(caught.value)
    assert "^^" in str(caught.value)


def test_the_message_shows_the_node_underlined():
    with pytest.raises(GraphError) as caught:
        verify(parse_graph(GOOD.replace("%z: float32[1, seq, 8]", "%z: float32[1, 1, 8]")))
    assert str(caught.value) == (
        "graph good breaks a rule of stage 'fused': "
        "%z is declared float32[1, 1, 8], but mul gives float32[1, seq, 8]\n"
        "  %y: float32[1, seq, 8] = rms_norm(%x, %w) {eps = 1e-06, weight_offset = 0.0} in norm\n"
        "  %c: float64[] = constant() {value = 0.5}\n"
        "  %z: float32[1, 1, 8] = mul(%y, %c)\n"
        "                         ^^^\n"
        '  %v: float32[1, seq, 2, 4] = view(%z) {shape = (1, "seq", 2, 4)}\n'
        "  %s: float32[1, seq, 2, 2] = slice(%v) {dim = 3, start = 0, end = 2, step = 1}"
    )


def node(graph, name):
    return graph.value(name).node


def use_before_definition(g):
    g.nodes.append(g.nodes.pop(2))


def operand_of_another_graph(g):
    node(g, "z").inputs[0] = parse_graph(GOOD).value("y")


def name_taken(g):
    g.value("y").name = "x"


def name_unprintable(g):
    g.value("y").name = "a b"


def value_of_another_node(g):
    g.value("y").node = node(g, "x")


def result_missing(g):
    node(g, "z").outputs = []


def unknown_dtype(g):
    g.value("z").dtype = "float8"


def dimension_not_canonical(g):
    g.value("z").shape = (1, "1*seq", 8)


def dimension_negative(g):
    g.value("z").shape = (1, -1, 8)


def dimension_no_number(g):
    g.value("z").shape = (1, 2.0, 8)


def attribute_of_numpy(g):
    node(g, "y").attrs["eps"] = np.float32(1e-6)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (use_before_definition, "operand %x is not computed before it is used"),
        (operand_of_another_graph, "operand %y is not computed before it is used"),
        (name_taken, "%x is taken"),
        (name_unprintable, "'a b' is no name"),
        (value_of_another_node, "%y does not know that rms_norm computes it"),
        (result_missing, "mul has 1 results, not 0"),
        (unknown_dtype, "has element type 'float8'"),
        (dimension_not_canonical, "has dimension '1*seq'"),
        (dimension_negative, "has dimension -1"),
        (dimension_no_number, "has dimension 2.0"),
        (attribute_of_numpy, "attribute eps of rms_norm must be float"),
    ],
)
def test_what_no_text_could_say(break_it, message):
    graph = parse_graph(GOOD)
    break_it(graph)
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert message in str(caught.value)


def test_outputs_must_exist():
    graph = parse_graph(GOOD)
    graph.outputs = []
    with pytest.raises(GraphError, match="must have an output"):
        verify(graph)
    graph.outputs = [parse_graph(GOOD).outputs[0]]
    with pytest.raises(GraphError, match="output %s is computed by no node"):
        verify(graph)


def test_the_table_of_stages():
    assert stages_of("attention") == ["fused"]
    assert stages_of("paged_attention") == ["cached", "lowered"]
    assert stages_of("rms_norm") == ["fused", "cached", "lowered"]
    assert stages_of("matmul") == list(STAGES)
    assert stages_of("linear") == ["traced", "fused", "cached"]
    assert stages_of("nothing") == []
    lowered = set(op_names("lowered")) - {"input", "weight", "constant"}
    assert lowered == {
        "embedding", "rms_norm", "matmul", "rotary_table", "rotary_kv_write", "paged_attention", "gather_rows",
        "swiglu", "add", "elementwise", "rms_norm_columns", "layer_norm", "quantized_matmul", "quantized_embedding",
        "route", "experts", "quantized_experts", "route_by_score", "experts_up", "experts_down", "quantized_experts_up",
        "quantized_experts_down", "head_products", "quantized_head_products", "latent_kv_write",
        "split_columns", "take_columns", "all_reduce", "all_gather", "send", "receive",
        "carried_conv", "carried_scan", "carried_delta_rule", "carried_rg_lru", "carried_selective_scan", "concat",
        "carried_linear_attention", "weight_only_matmul", "draft_features", "square_sums", "rms_norm_by_sums",
    }  # fmt: skip
    # At the last stage names mean instructions, with other operands and attributes.
    assert find_spec("matmul", "lowered") is not find_spec("matmul", "traced")


LOWERED = """\
graph "low" stage lowered {
  %positions: int32[tokens] = input()
  %x: float32[tokens, 8] = input()
  %w: float32[8] = weight() {expr = @"w", layout = "raw"}
  %y: bfloat16[tokens, 8], %s: float32[tokens, 8] = rms_norm(%x, %w, %x) {eps = 1e-6, weight_offset = 0.0, buffers = []}
  %m: bfloat16[16, 8] = weight() {expr = @"m", layout = "panels"}
  %z: float32[tokens, 16] = matmul(%y, %m, none, none) {epilogue = 0, n = 16}
  return %z
}
"""


def test_lowered_graphs():
    verify(parse_graph(LOWERED))
    with pytest.raises(GraphError, match="linear is not legal here"):
        verify(parse_graph(LOWERED.replace("matmul(", "linear(")))
    with pytest.raises(GraphError, match="matmul takes 4 operands, not 3"):
        verify(parse_graph(LOWERED.replace("%m, none, none", "%m, none")))
    with pytest.raises(GraphError, match="matmul lacks n"):
        verify(parse_graph(LOWERED.replace(", n = 16", "")))


def swap(graph: Graph, at: int) -> None:
    graph.nodes[at], graph.nodes[at + 1] = graph.nodes[at + 1], graph.nodes[at]


CHANGES: dict[str, tuple[Callable[[Graph], object], str]] = {
    "a result's type": (lambda g: setattr(g.value("z"), "dtype", "bfloat16"), "%z is declared bfloat16"),
    "a result's shape": (lambda g: setattr(g.value("s"), "shape", (1, "seq", 2, 3)), "%s is declared float32"),
    "an operand's shape": (lambda g: setattr(g.value("w"), "shape", (9,)), "rms_norm: w must be [8]"),
    "a number that becomes an array": (
        lambda g: g.value("c").producer.attrs.update(value=np.ones(2)), "must be held as float64[]"
    ),
    "an attribute": (lambda g: g.value("s").producer.attrs.update(end=5), "is outside [1, seq, 2, 4] at 3"),
    "an attribute of equal value": (
        lambda g: g.value("s").producer.attrs.update(step=True), "attribute step of slice must be int, not True"
    ),
    "another attribute": (lambda g: g.value("z").producer.attrs.update(alpha=1), "mul has no alpha"),
    "an operand": (lambda g: g.value("z").producer.inputs.pop(), "mul takes 2 operands, not 1"),
    "an absent operand": (
        lambda g: g.value("z").producer.inputs.__setitem__(1, None), "operand 1 of mul must not be absent"
    ),
    "the operation": (lambda g: setattr(g.value("z").producer, "op", "multiply"), "there is no op 'multiply'"),
    "the order": (lambda g: swap(g, 6), "operand %z is not computed before it is used"),
    "a name": (lambda g: setattr(g.value("z"), "name", "y"), "%y is taken"),
    "a node that is there twice": (lambda g: g.nodes.append(g.nodes[-1]), "%s is taken"),
    "who computes a result": (
        lambda g: setattr(g.value("z"), "node", g.value("y").node), "%z does not know that mul computes it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("changed", CHANGES)
def test_what_changes_after_it_was_found_right_is_checked_again(changed):
    """Whether all else was found right before does not matter: the message is the same."""
    change, message = CHANGES[changed]
    graph, verified = parse_graph(GOOD), Verified()
    verify(graph, "fused", verified)
    verify(graph, "fused", verified)
    change(graph)
    with pytest.raises(GraphError) as caught:
        verify(graph, "fused", verified)
    assert message in str(caught.value)
    with pytest.raises(GraphError) as again:
        verify(graph, "fused")
    assert str(again.value) == str(caught.value)


def test_another_stage_is_checked_in_full():
    graph, verified = parse_graph(GOOD), Verified()
    verify(graph, "fused", verified)
    graph.stage = "traced"
    with pytest.raises(GraphError, match="rms_norm is not legal here"):
        verify(graph, "traced", verified)
