"""The text form: exact round trip of everything a graph may hold, and errors that point at the place."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.errors import GraphError
from tensorwright.ir import Graph
from tensorwright.ir.facts import Facts
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph, print_node, underline
from tensorwright.ir.weights import Ref

SMALL = """\
graph "small" stage fused {
  fact layers = 2
  fact eos_token_ids = [1, 2]
  %x: float32[1, seq, 8] = input()
  %w: float32[8] = weight() {expr = @"norm.weight"} in model.norm
  %y: float32[1, seq, 8] = rms_norm(%x, %w) {eps = 1e-06, weight_offset = 0.0} in model.norm
  return %y
}
"""


def test_text_round_trip():
    graph = parse_graph(SMALL)
    assert (graph.name, graph.stage, graph.facts) == ("small", "fused", Facts(layers=2, eos_token_ids=[1, 2]))
    x, w, y = graph.nodes
    assert y.inputs == [x.output, w.output]
    assert y.attrs == {"eps": 1e-6, "weight_offset": 0.0}
    assert (y.scope, y.output.name, y.output.dtype, y.output.shape) == ("model.norm", "y", "float32", (1, "seq", 8))
    assert w.attrs["expr"] == Ref("norm.weight")
    assert graph.outputs == [y.output]
    assert print_graph(graph) == SMALL


ATTRIBUTES = {
    "nothing": None,
    "yes": True,
    "whole": -7,
    "large": 2**62,
    "real": 0.1,
    "tiny": 5e-324,
    "negative_zero": -0.0,
    "infinite": float("inf"),
    "minus_infinite": float("-inf"),
    "text": 'a "quoted", {bracketed} ) text\n with a second line and é',
    "empty_text": "",
    "empty_tuple": (),
    "one": (1,),
    "two": (1, "seq + 1"),
    "nested": [[1, 2], (3, [None, True]), {"a": {"b": 2.5}, "c": []}],
    "empty_list": [],
    "empty_dict": {},
    "expr": Ref("a.weight").concat([Ref('odd "name", )]}'), Ref("c").transpose()], 0).slice(0, 1, 3),
}


def make_graph(attrs):
    graph = Graph('a "name"', "traced")
    x = graph.add("input", types=[("float32", (1, "seq", 8))], names=["x"]).output
    node = graph.add(
        "anything", [x, None, x], attrs, [("kv", ()), ("bool", ("seq + 1", 2))], scope="a b", names=["y.1", "z-$"]
    )
    graph.outputs = [node.outputs[1], x]
    return graph


def test_every_kind_of_attribute_comes_back():
    text = print_graph(make_graph(ATTRIBUTES))
    graph = parse_graph(text)
    node = graph.nodes[1]
    assert print_graph(graph) == text
    for name, value in ATTRIBUTES.items():
        assert node.attrs[name] == value, name
        assert type(node.attrs[name]) is type(value), name
    assert str(node.attrs["negative_zero"]) == "-0.0"
    assert node.inputs == [graph.nodes[0].output, None, graph.nodes[0].output]
    assert [v.name for v in node.outputs] == ["y.1", "z-$"]
    assert node.scope == "a b"


def test_not_a_number_comes_back():
    graph = parse_graph(print_graph(make_graph({"x": float("nan")})))
    assert np.isnan(graph.nodes[1].attrs["x"])


RNG = np.random.default_rng(0)
ARRAYS = {
    "float32": RNG.standard_normal(64).astype(np.float32) * np.float32(1e-8),
    "float64": RNG.standard_normal((3, 5)),
    "float16": RNG.standard_normal(7).astype(np.float16),
    "large": RNG.standard_normal((40, 3)).astype(np.float32),
    "special": np.array([np.inf, -np.inf, -0.0, 1e-45], np.float32),
    "nan": np.array([np.nan, 1.0], np.float32),
    "int64": np.array([[2**62, -1]]),
    "int8": np.arange(-100, 100, dtype=np.int8),
    "bool": np.array([True, False, True]),
    "empty": np.zeros((0, 4), np.float32),
    "rank0": np.array(3, np.int32),
    "transposed": RNG.standard_normal((4, 30)).astype(np.float32).T,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_bit_for_bit(name):
    array = ARRAYS[name]
    text = print_graph(make_graph({"value": array}))
    again = parse_graph(text).nodes[1].attrs["value"]
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == np.ascontiguousarray(array).tobytes()
    assert print_graph(parse_graph(text)) == text


def test_a_parsed_graph_can_grow():
    graph = parse_graph(SMALL)
    node = graph.add("neg", [graph.outputs[0]], {}, [("float32", (1, "seq", 8))], names=["x"])
    assert node.output.name not in ("x", "w", "y")


def test_dimensions_are_spelled_one_way():
    graph = parse_graph(SMALL.replace("[1, seq, 8]", "[1, 1 + seq, 8]"))
    assert graph.nodes[0].output.shape == (1, "seq + 1", 8)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('graph "small"', 'grph "small"', 1, "'graph' was expected"),
        ("stage fused", "stage melted", 1, "a stage must be one of traced, fused, cached, lowered"),
        ("fact eos_token_ids = [1, 2]", "fact layers = 3", 3, "fact layers is given twice"),
        ("fact layers = 2", "fact floors = 2", 2, "no fact of a graph is called 'floors'; there are model_type, "),
        ("fact layers = 2", 'fact layers = "2"', 2, "fact layers cannot be read: it must be a whole number"),
        ("fact layers = 2", 'fact quantize = "int5"', 2, "fact quantize cannot be read: quantize: a weight format"),
        ("fact layers = 2", "fact kv_layers = [{}]", 2, "fact kv_layers cannot be read: "),
        ("fact layers = 2", 'fact kv_layers = [{"size": 1}]', 2, "keys group, kv_heads, head_dim, window, dtype"),
        (
            "fact layers = 2",
            'fact kv_layers = [{"group": 0, "kv_heads": 1, "head_dim": 4, "window": 5, "chunked": 1}]',
            2,
            "fact kv_layers cannot be read: it must be true or false",
        ),
        ("fact layers = 2", "fact buffers = [[1, 2]]", 2, "a list of lists [kind, dtype, cols, stride, offset]"),
        (
            'expr = @"norm.weight"',
            'expr = @"norm.weight", layout = "tiles"',
            5,
            "attribute layout: a weight's layout must",
        ),
        ("[1, 2]", "[1, 2", 3, "',' or ']' was expected"),
        ("[1, 2]", "[1 2]", 3, "',' or ']' was expected"),
        ("%x: float32[1, seq, 8]", "%x: float33[1, seq, 8]", 4, "an element type must be one of"),
        ("%x: float32[1, seq, 8]", "%x: float32[1, seq/, 8]", 4, "a dimension"),
        ("%x: float32", "%x float32", 4, "':' was expected"),
        ("%w: float32", "%x: float32", 5, "%x is defined twice"),
        ('@"norm.weight"', "@norm.weight", 5, "weight expression"),
        ('@"norm.weight"', "whatever", 5, "a literal was expected, not 'whatever'"),
        ("rms_norm(%x, %w)", "rms_norm(%x, %v)", 6, "%v is not defined above"),
        ("rms_norm(%x, %w)", "rms_norm(%x %w)", 6, "',' was expected"),
        ("eps = 1e-06, weight_offset", "eps = 1e-06, eps", 6, "attribute eps is given twice"),
        ("in model.norm\n  return", "in model.norm extra\n  return", 6, "the line should end here"),
        ("return %y", "return %q", 7, "%q is not defined above"),
        ("return %y", "return none", 7, "an output must be a value"),
        ("  return %y\n}", "}", 7, "a graph must end with 'return'"),
        ("return %y\n", "return %y\n  %z: bool[] = full()\n", 8, "nothing may follow 'return'"),
        ("return %y", "give %y", 7, "a node"),
    ],
)
def test_errors_point_at_the_line(old, new, line, message):
    text = SMALL.replace(old, new)
    assert text != SMALL
    with pytest.raises(GraphError) as caught:
        parse_graph(text)
    assert str(caught.value).startswith(f"line {line}, column ")
    assert message in str(caught.value)
    assert caught.value.args[0].splitlines()[-1].strip() == "^"


def test_an_error_shows_the_column():
    with pytest.raises(GraphError) as caught:
        parse_graph(SMALL.replace("(%x, %w)", "(%x, %v)"))
    _, row, caret = str(caught.value).split("\n")
    assert row[: caret.index("^")].endswith("(%x, %v")


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        ("dense<float32 [3] (1.0, 2.0)>", "the array does not fit its type"),
        ('dense<float32 [1] "####">', "the array does not fit its type"),
        ("dense<bfloat16 [1] (1.0,)>", "must be one numpy has"),
        ("dense<int8 [1] (1000,)>", "the array does not fit its type"),
        ('{"a" 1}', "':' was expected"),
        ('"open', "text in double quotes"),
        ("9" * 5000, "integer string conversion"),
        ("[" * 5000, "at most 50 literals may stand inside each other"),
        ("[" * 51 + "]" * 51, "at most 50 literals may stand inside each other"),
        ('@"\\q"', "weight expression"),
    ],
)
def test_bad_literals(literal, message):
    text = SMALL.replace("fact layers = 2", f"fact layers = {literal}")
    with pytest.raises(GraphError, match="line 2") as caught:
        parse_graph(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_empty_and_unclosed_texts():
    with pytest.raises(GraphError, match="the text is empty"):
        parse_graph("\n  # only a comment\n")
    with pytest.raises(GraphError, match="not closed"):
        parse_graph(SMALL.rstrip().removesuffix("}"))
    with pytest.raises(GraphError, match="closed already"):
        parse_graph(SMALL + "}")


def test_comments_and_blank_lines_are_skipped_but_counted():
    text = SMALL.replace("  %x:", "\n  # the input\n  %x:")
    assert print_graph(parse_graph(text)) == SMALL
    with pytest.raises(GraphError, match="line 9"):
        parse_graph(text.replace("return %y", "return %q"))


@pytest.mark.parametrize("value", [np.float32(1.0), {1: 2}, object(), {"a", "b"}])
def test_what_has_no_text_form_is_refused(value):
    with pytest.raises(GraphError):
        print_graph(make_graph({"value": value}))


def test_names_that_could_not_be_read_back_are_refused():
    graph = parse_graph(SMALL)
    graph.outputs[0].name = "a b"
    with pytest.raises(GraphError, match="a value's name must be"):
        print_graph(graph)


def test_underline_shows_the_neighbours():
    graph = parse_graph(SMALL)
    assert underline(graph, graph.nodes[1], context=1) == (
        "  %x: float32[1, seq, 8] = input()\n"
        '  %w: float32[8] = weight() {expr = @"norm.weight"} in model.norm\n'
        "                   ^^^^^^\n"
        "  %y: float32[1, seq, 8] = rms_norm(%x, %w) {eps = 1e-06, weight_offset = 0.0} in model.norm"
    )


def test_short_form_leaves_out_elements():
    graph = make_graph({"value": ARRAYS["large"]})
    assert "dense<float32 [40, 3] ...>" in print_node(graph.nodes[1], short=True)
