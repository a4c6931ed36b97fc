"""The interpreter: every primitive op against torch, in every type, and the rules of type promotion."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerances import sum_tolerance

from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.errors import GraphError
from tensorwright.ir import Graph
from tensorwright.ir.graph import Value
from tensorwright.ir.interpret import interpret, run
from tensorwright.ir.interpret_ops import COMPOUND_RULES, RULES
from tensorwright.ir.ops import emit, find_spec, op_names
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import Ref
from tensorwright.models.dtypes import Tensor
from tensorwright.plugins.experts import op as experts

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
PLACES = (X[:, :1] > 0).long()
POSITIVE = X.abs() + 0.1
MASK = X > 0
WHOLE = torch.randint(-5, 9, (2, 3, 4))
IDS = torch.tensor([[0, 2], [1, 1]])

# op, operands, attributes, what torch computes
CASES = [
    *[(op, [X], {}, getattr(torch, op)(X)) for op in ("exp", "cos", "sin", "tanh", "sigmoid", "erf", "neg", "abs")],
    *[(op, [POSITIVE], {}, getattr(torch, op)(POSITIVE)) for op in ("sqrt", "rsqrt", "log", "square")],
    ("silu", [X], {}, F.silu(X)),
    ("softplus", [X], {}, F.softplus(X)),
    ("expm1", [X], {}, torch.expm1(X)),
    ("relu", [X], {}, F.relu(X)),
    ("neg", [WHOLE], {}, -WHOLE),
    ("cos", [WHOLE], {}, torch.cos(WHOLE)),
    ("gelu", [X], {"approximate": "tanh"}, F.gelu(X, approximate="tanh")),
    ("gelu", [X], {"approximate": "none"}, F.gelu(X)),
    ("layer_norm", [X, X[0, 0]], {"eps": 1e-5, "weight_offset": 1.0}, F.layer_norm(X, (4,), X[0, 0] + 1)),
    ("layer_norm", [X, X[0, 0], X[0, 1]], {"eps": 0.5, "weight_offset": 0.0}, F.layer_norm(X, (4,), *X[0, :2], 0.5)),
    ("layer_norm", [X, X[0], X[1]], {"eps": 0.5, "weight_offset": 0.0}, F.layer_norm(X, (4,), eps=0.5) * X[0] + X[1]),
    ("add", [X, X[0]], {}, X + X[0]),
    ("sub", [X, 2.5], {}, X - 2.5),
    ("sub", [2.5, X], {}, 2.5 - X),
    ("mul", [X, WHOLE], {}, X * WHOLE),
    ("mul", [WHOLE, 2], {}, WHOLE * 2),
    ("mul", [WHOLE, 2.5], {}, WHOLE * 2.5),
    ("mul", [MASK, 2], {}, MASK * 2),
    ("div", [WHOLE, 2], {}, WHOLE / 2),
    ("div", [1.0, POSITIVE], {}, 1.0 / POSITIVE),
    ("pow", [X, 2], {}, X**2),
    ("pow", [POSITIVE, 0.5], {}, POSITIVE**0.5),
    ("pow", [2.0, X], {}, 2.0**X),
    ("floor_div", [WHOLE, 2], {}, WHOLE // 2),
    ("remainder", [WHOLE, 3], {}, WHOLE % 3),
    ("maximum", [X, 0.1], {}, X.clamp(min=0.1)),
    ("minimum", [X, X.flip(0)], {}, torch.minimum(X, X.flip(0))),
    ("clamp", [X], {"min": -0.5, "max": None}, X.clamp(min=-0.5)),
    ("clamp", [X], {"min": None, "max": 0.5}, X.clamp(max=0.5)),
    *[(op, [X, 0.1], {}, getattr(torch, op)(X, 0.1)) for op in ("eq", "ne", "lt", "le", "gt", "ge")],
    ("logical_and", [MASK, ~MASK], {}, MASK & ~MASK),
    ("logical_or", [MASK, True], {}, MASK | True),
    ("logical_not", [MASK], {}, ~MASK),
    ("where", [MASK, X, 0.0], {}, torch.where(MASK, X, 0.0)),
    ("where", [MASK, 1.0, float("-inf")], {}, torch.where(MASK, 1.0, float("-inf"))),
    ("cast", [X], {"dtype": "int32"}, X.int()),
    ("cast", [WHOLE], {"dtype": "bfloat16"}, WHOLE.bfloat16()),
    ("mean", [X], {"dims": (2,), "keepdim": True}, X.mean(2, keepdim=True)),
    ("mean", [X], {"dims": (0, 2), "keepdim": False}, X.mean((0, 2))),
    ("sum", [MASK], {"dims": (1,), "keepdim": False}, MASK.sum(1)),
    ("amax", [X], {"dims": (0, 1, 2), "keepdim": False}, X.amax()),
    ("any", [MASK], {"dims": (1,), "keepdim": False}, MASK.any(1)),
    ("all", [MASK], {"dims": (1, 2), "keepdim": True}, MASK.flatten(1).all(1)[:, None, None]),
    ("softmax", [X], {"dim": 1}, X.softmax(1)),
    ("gather", [X, PLACES], {"dim": 1}, X.gather(1, PLACES)),
    ("scatter", [X, PLACES], {"dim": 1, "value": 2.5}, X.scatter(1, PLACES, 2.5)),
    ("cumsum", [MASK], {"dim": 2}, MASK.cumsum(2)),
    ("matmul", [X, X.mT], {}, X @ X.mT),
    ("matmul", [X, X[0].T.contiguous()], {}, X @ X[0].T),
    ("linear", [X, torch.ones(5, 4)], {}, F.linear(X, torch.ones(5, 4))),
    ("linear", [X, torch.ones(5, 4), torch.arange(5.0)], {}, F.linear(X, torch.ones(5, 4), torch.arange(5.0))),
    ("embedding", [X[0], IDS], {}, X[0][IDS]),
    ("embedding", [X[0], IDS.int()], {"scale": 2.0}, X[0][IDS] * 2),
    ("view", [X], {"shape": (6, 4)}, X.reshape(6, 4)),
    ("transpose", [X], {"dim0": 0, "dim1": 2}, X.transpose(0, 2)),
    ("permute", [X], {"dims": (2, 0, 1)}, X.permute(2, 0, 1)),
    ("unsqueeze", [X], {"dim": 3}, X[..., None]),
    ("squeeze", [X[:, :1]], {"dim": 1}, X[:, 0]),
    ("expand", [X[:1]], {"shape": (7, 2, 3, 4)}, X[:1].expand(7, 2, 3, 4)),
    ("concat", [X, X], {"dim": 1}, torch.cat([X, X], 1)),
    ("slice", [X], {"dim": 2, "start": 1, "end": 4, "step": 2}, X[:, :, 1:4:2]),
    ("select", [X], {"dim": 1, "index": 2}, X[:, 2]),
    ("index", [X, IDS[:, :1] * 0, IDS], {}, X[IDS[:, :1] * 0, IDS]),
    ("index", [X, None, IDS], {}, X[:, IDS]),
    ("arange", [], {"start": 2, "end": 9, "step": 3, "dtype": "int64"}, torch.arange(2, 9, 3)),
    ("full", [], {"shape": (2, 1), "value": 0.5, "dtype": "float32"}, torch.full((2, 1), 0.5)),
]  # fmt: skip


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def one_op(op, operands, attrs, results=1):
    """A graph of one op; tensors are inputs, numbers constants. Returns it with its inputs."""
    graph, inputs, values = Graph("one", "traced"), {}, []
    for i, x in enumerate(operands):
        if isinstance(x, torch.Tensor):
            inputs[f"x{i}"] = x
            values.append(graph.add("input", types=[(dtype_name(x), tuple(x.shape))], names=[f"x{i}"]).output)
        elif x is None:
            values.append(None)
        else:
            dtype = {bool: "bool", int: "int64", float: "float64"}[type(x)]
            values.append(graph.constant(x, dtype))
    graph.outputs = emit(graph, op, values, **attrs).outputs
    assert len(graph.outputs) == results
    verify(graph)
    return graph, inputs


PRODUCTS = ("matmul", "linear")


def no_weights(expr):
    raise AssertionError(f"{expr} was asked for")


@pytest.mark.parametrize(("op", "operands", "attrs", "expected"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_each_op_computes_what_torch_does(op, operands, attrs, expected):
    graph, inputs = one_op(op, operands, attrs)
    (result,) = interpret(graph, inputs, no_weights)
    assert result.dtype == expected.dtype
    if op in PRODUCTS:  # the libraries below torch choose the order of a sum by where its operands happen to lie
        largest = float(expected.abs().max())
        assert (result - expected).abs().max() <= sum_tolerance("float32", operands[0].shape[-1], largest)
    else:
        assert torch.equal(result, expected)
    value = graph.outputs[0]
    assert (value.dtype, value.shape) == (dtype_name(expected), tuple(expected.shape))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_topk_computes_what_torch_does(dim):
    graph, inputs = one_op("topk", [X], {"dim": dim, "k": 2}, results=2)
    for result, expected in zip(interpret(graph, inputs, no_weights), torch.topk(X, 2, dim=dim), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "attrs",
    [
        *({"activation": activation} for activation in ("silu", "gelu", "gelu_tanh", "relu")),
        {"activation": "silu", "limit": 0.5, "slope": 1.7, "up_offset": 1.0},
        {"activation": "silu", "scales_input": True},
        {"activation": "relu", "gated": False, "squared": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("biased", [False, True])
def test_experts_compute_what_the_definition_says(attrs, biased):
    """tests/builder/test_trace_variants.py compares them with transformers bit for bit."""
    draw = torch.Generator().manual_seed(4)
    x, weights = torch.randn(2, 5, 8, generator=draw), torch.rand(2, 5, 2, generator=draw)
    index = torch.stack([torch.randperm(3, generator=draw)[:2] for _ in range(10)]).reshape(2, 5, 2)
    gate_up, down = torch.randn(3, 12, 8, generator=draw), torch.randn(3, 8, 6, generator=draw)
    up = gate_up if attrs.get("gated", True) else gate_up[:, :6]
    biases = [torch.randn(up.shape[:2], generator=draw), torch.randn(down.shape[:2], generator=draw)] if biased else []
    operands = [x, index, weights, up, down, *biases]
    (result,) = interpret(*one_op("experts", operands, attrs), no_weights)
    (expected,) = experts.reference([v.numpy() for v in operands], attrs, "float32")
    largest = float(np.abs(expected).max())
    assert np.abs(result.numpy() - expected).max() <= 4 * sum_tolerance("float32", 8, largest)


def test_every_primitive_op_is_tested():
    primitives = {op for op in op_names() if (s := find_spec(op, "traced")) and s.reference is None}
    assert primitives - {"input", "weight", "constant"} == set(RULES)
    assert set(RULES) | set(COMPOUND_RULES) == {case[0] for case in CASES} | {"topk", "experts", "causal_conv"}


@pytest.mark.parametrize("op", ["add", "mul", "div", "pow", "maximum"])
@pytest.mark.parametrize("number", [0.1, 3, 1e-3])
def test_numbers_keep_their_precision_beside_bfloat16(op, number):
    x = POSITIVE.bfloat16()
    function = {"add": torch.add, "mul": torch.mul, "div": torch.div, "pow": torch.pow}.get(op)
    expected = function(x, number) if function else torch.maximum(x, torch.tensor(number))
    (result,) = interpret(*one_op(op, [x, number], {}), no_weights)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)


DTYPES = ["bool", "int32", "int64", "float32", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", [*DTYPES, True, 2, 2.5])
@pytest.mark.parametrize("scalar", [False, True])
def test_type_promotion_is_torchs(left, right, scalar):
    a = torch.ones(2, 2, dtype=getattr(torch, left))
    b = torch.ones(() if scalar else (2,), dtype=getattr(torch, right)) if isinstance(right, str) else right
    (result,) = interpret(*one_op("mul", [a, b], {}), no_weights)
    assert result.dtype == torch.result_type(a, b)


GRAPH = """\
graph "g" stage traced {
  %ids: int64[1, seq] = input()
  %table: bfloat16[3, 2] = weight() {expr = @"table"}
  %scale: float32[2] = constant() {value = dense<float32 [2] (1.0, 2.0)>}
  %x: bfloat16[1, seq, 2] = embedding(%table, %ids)
  %y: float32[1, seq, 2] = mul(%x, %scale)
  %n: int64[] = full() {shape = (), value = "seq + 1", dtype = "int64"}
  %z: float32[1, seq, 2] = mul(%y, %n)
  return %z, %x
}
"""
TABLE = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.1, 0.2]])


def test_weights_constants_and_symbols():
    graph = parse_graph(GRAPH)
    verify(graph)
    asked = []
    z, x = interpret(graph, {"ids": torch.tensor([[2, 0, 1]])}, lambda e: asked.append(str(e)) or TABLE)
    rows = TABLE[[2, 0, 1]].bfloat16()[None]
    assert asked == ['"table"']
    assert torch.equal(x, rows)
    assert torch.equal(z, rows.float() * torch.tensor([1.0, 2.0]) * 4)


def test_all_values_by_name():
    found = run(parse_graph(GRAPH), {"ids": torch.tensor([[1]])}, lambda e: TABLE)
    values = {value.name: data for value, data in found}
    assert set(values) == {"ids", "x", "y", "n", "z"}
    assert values["n"].item() == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"missing \['ids'\]"),
        ({"ids": torch.zeros(1, 2, dtype=torch.int64), "more": torch.zeros(1)}, r"not known \['more'\]"),
        ({"ids": torch.zeros(1, 2, dtype=torch.int32)}, r"must be int64\[1, 'seq'\], not int32\[1, 2\]"),
        ({"ids": torch.zeros(2, 2, dtype=torch.int64)}, r"must be \[1, 'seq'\] where \{'seq': 2\}, not \[2, 2\]"),
        ({"ids": torch.zeros(2, dtype=torch.int64)}, r"not int64\[2\]"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(GraphError, match=message):
        interpret(parse_graph(GRAPH), inputs, lambda e: TABLE)


def test_a_weight_of_the_wrong_shape_is_an_error():
    with pytest.raises(GraphError, match=r"weight %table must be \[3, 2\], not \[2\]"):
        interpret(parse_graph(GRAPH), {"ids": torch.tensor([[1]])}, lambda e: TABLE[0])


def test_a_type_the_graph_does_not_keep_is_an_error():
    graph = parse_graph(GRAPH)
    graph.value("y").dtype = "bfloat16"
    with pytest.raises(GraphError, match="mul %y must give bfloat16"):
        interpret(graph, {"ids": torch.tensor([[1]])}, lambda e: TABLE)


def test_values_are_freed_after_their_last_use():
    """A chain of n ops over weights never holds more than two of each. Counts of references free them, no collector."""
    graph = Graph("chain", "traced")
    x = graph.add("input", types=[("float32", (4,))], names=["x"]).output
    for i in range(6):
        w = graph.add("weight", (), {"expr": Ref(f"w{i}")}, [("float32", (4,))]).output
        x = emit(graph, "mul", [x, w]).output
    graph.outputs = [x]
    alive: list[weakref.ref] = []
    most = 0

    def weights(expr):
        nonlocal most
        most = max(most, sum(r() is not None for r in alive))
        tensor = torch.ones(4)
        alive.append(weakref.ref(tensor))
        return tensor

    interpret(graph, {"x": torch.ones(4)}, weights)
    assert len(alive) == 6
    assert most <= 1


def test_compound_ops_come_from_their_plugins():
    graph = parse_graph("""
graph "n" stage fused {
  %x: bfloat16[1, seq, 8] = input()
  %w: bfloat16[8] = weight() {expr = @"w"}
  %y: bfloat16[1, seq, 8] = rms_norm(%x, %w) {eps = 1e-05, weight_offset = 1.0}
  return %y
}""")
    verify(graph)
    x, w = torch.randn(1, 5, 8).bfloat16(), torch.randn(8).bfloat16()
    (y,) = interpret(graph, {"x": x}, lambda e: w)
    exact = F.rms_norm(x.double(), (8,), (w.double() + 1), 1e-5)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.float().bfloat16())


class Source:
    """One stored tensor of each type."""

    def shape(self, name):
        return (3,)

    def dtype(self, name):
        return name

    def read_part(self, name, ranges):
        bits = {"bfloat16": np.array([0x3F80, 0x4000, 0xC040], np.uint16)}
        data = bits.get(name, np.array([1, 2, -3], None if name == "bfloat16" else name))
        data.setflags(write=False)
        return Tensor(name, data[slice(*ranges[0])])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_of_a_checkpoint(dtype):
    tensor = checkpoint_weights(Source())(Ref(dtype))
    assert torch.equal(tensor, torch.tensor([1.0, 2.0, -3.0], dtype=getattr(torch, dtype)))


def test_values_are_identities():
    assert Value("a", "bool", ()) != Value("a", "bool", ())
