"""fold_channel_scales: which values get a vector, and that any numbers of it leave what a graph computes as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import chain_tolerance

from support.cached_graphs import cached_case
from support.lowered import MemorySource
from support.pass_graphs import assert_silent, graph_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import ChannelScales, Divided, Ref, Scaled, WeightExpr, scales_of
from tensorwright.passes.fold_channel_scales import fold_channel_scales
from tensorwright.passes.quantize_weights import QUANTIZED, quantize_weights

SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8]]
LINE = {
    "x": '%positions: int32[tokens] = input()\n%t: float32[9, 6] = weight() {expr = @"t"} in wpe\n'
    "%x: float32[tokens, 6] = embedding(%t, %positions) {scale = 1.0} in wpe",
    "w": '%w: float32[4, 6] = weight() {expr = @"w"} in mlp.up',
    "norm": '%n: float32[6] = weight() {expr = @"n"} in norm\n'
            "%y: float32[tokens, 6] = rms_norm(%x, %n) {eps = 1e-05, weight_offset = 1.0} in norm",
    "product": "%z: float32[tokens, 4] = linear(%y, %w) in mlp.up",
}  # fmt: skip
NORM = "\n".join(LINE.values())
RELU = f"""
  {LINE["x"]}
  {LINE["w"]}
  %u: float32[6, 6] = weight() {{expr = @"u"}} in mlp.up
  %b: float32[6] = weight() {{expr = @"b"}} in mlp.up
  %a: float32[tokens, 6] = linear(%x, %u, %b) in mlp.up
  %y: float32[tokens, 6] = ACTIVATION
  {LINE["product"]}
  return %z"""


def asked(graph: Graph, spec: str = "int4", method: str = "awq") -> Graph:
    """The graph with quantized products, for which scales are asked."""
    graph.facts.update(quantize=parse_spec(spec), channel_scales=method)
    quantize_weights(graph)
    return graph


def folded(graph: Graph, count: int) -> Graph:
    """The graph after the pass, which found `count` values, left it legal, and then found nothing more."""
    after = graph.clone()
    assert fold_channel_scales(after) == count
    verify(after, "cached")
    text = print_graph(after)
    assert fold_channel_scales(after) == 0
    assert print_graph(after) == text
    return after


def in_floats(graph: Graph) -> Graph:
    """The graph with products of unquantized weights, scaled or not."""
    graph = graph.clone()
    for node in graph.nodes:
        if node.op.startswith(QUANTIZED):
            node.op = node.op.removeprefix(QUANTIZED)
            node.attrs = {name: value for name, value in node.attrs.items() if name != "format"}
    return graph


def vectors(graph: Graph) -> dict[str, np.ndarray]:
    """Numbers for all vectors of a graph, from about 1/4 to 4."""
    rng = np.random.default_rng(5)
    found = {v.name: v.size for node in graph.find("weight") for v in scales_of(node.attrs["expr"])}
    return {name: np.exp2(rng.normal(size=size)).astype(np.float32) for name, size in found.items()}


def exprs(graph: Graph) -> dict[str, WeightExpr]:
    """The weights that products and norms read, by the name of the tensor."""
    found = {next(node.attrs["expr"].refs()): node.attrs["expr"] for node in graph.find("weight")}
    assert found.pop("t") == Ref("t")
    return found


def test_a_norm_divides_and_its_products_multiply() -> None:
    other = (
        '%v: float32[8, 6] = weight() {expr = @"v"} in mlp.gate\n%g: float32[tokens, 8] = linear(%y, %v) in mlp.gate'
    )
    graph = asked(graph_of(f"{NORM}\n{other}\nreturn %z, %g", "cached"))
    after = folded(graph, 1)
    s = ChannelScales(0, 6)
    assert exprs(after) == {
        "n": Divided(Ref("n"), s, 0, 0, 1), "w": Scaled(Ref("w"), s, 1), "v": Scaled(Ref("v"), s, 1),
    }  # fmt: skip
    rng = np.random.default_rng(1)
    shapes = {"t": (9, 6), "n": (6,), "w": (4, 6), "v": (8, 6)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    inputs = {"positions": torch.arange(5, dtype=torch.int32)}
    source = checkpoint_weights(MemorySource({**arrays, **vectors(after)}))
    exact, got = (interpret(in_floats(each), inputs, source) for each in (graph, after))
    for before, now in zip(exact, got, strict=True):
        assert float((before - now).abs().max()) <= chain_tolerance("float32", 8, 4, float(before.abs().max()))


@pytest.mark.parametrize(
    "body",
    [
        f"{NORM}\n%s: float32[tokens, 6] = silu(%y)\nreturn %z, %s",  # something else reads the value
        f"{NORM}\nreturn %z, %y",  # the value is a result
        RELU.replace("ACTIVATION", "silu(%a)"),  # silu(x / s) is not silu(x) / s
        RELU.replace("ACTIVATION", "relu(%a)").replace("return %z", "return %z, %a"),  # a result before relu
        RELU.replace("ACTIVATION", "add(%a, %a)"),
        f"{NORM}\n%o: float32[tokens, 4] = linear(%x, %w) in mlp.other\nreturn %z, %o",  # the matrix is used twice
    ],
)
def test_values_that_must_stay(body: str) -> None:
    assert_silent(fold_channel_scales, asked(graph_of(body, "cached")))


@pytest.mark.parametrize(("spec", "method"), [("int4", ""), ("int4", "smoothquant"), ("w8a8", "awq"), ("w4a8", "awq")])
def test_other_formats_and_methods_are_left_alone(spec: str, method: str) -> None:
    assert_silent(fold_channel_scales, asked(graph_of(f"{NORM}\nreturn %z", "cached"), spec, method))


def test_a_product_before_relu_has_its_rows_and_its_bias_divided() -> None:
    after = folded(asked(graph_of(RELU.replace("ACTIVATION", "relu(%a)"), "cached"), "w8a8", "smoothquant"), 1)
    s = ChannelScales(0, 6)
    assert exprs(after) == {"u": Divided(Ref("u"), s, 0), "b": Divided(Ref("b"), s, 0), "w": Scaled(Ref("w"), s, 1)}


@pytest.mark.parametrize(
    ("variant", "count", "scaled"),
    [
        ("llama_tied", 8, 8),  # all but lm_head, which is the embedding too; v serves several heads of q
        ("qwen2_untied", 9, 9),  # biases of q, k and v
        ("gemma3", 8, 8),  # norms of form 1 + w, and norms of q and k
        ("stablelm_parallel", 7, 9),  # layer norms with biases, which attention and MLP share
        ("olmo2", 5, 5),  # no norm before the products
    ],
)
def test_any_numbers_leave_the_logits(
    tmp_path_factory: pytest.TempPathFactory, variant: str, count: int, scaled: int
) -> None:
    case = cached_case(tmp_path_factory, variant)
    before = asked(case.graph)
    after = folded(before, count)
    products = [node.operand(1).producer.attrs["expr"] for node in after.find("quantized_linear")]
    assert sum(isinstance(expr, Scaled) for expr in products) == scaled
    case.checkpoint.channel_scales.update(vectors(after))
    weights = checkpoint_weights(case.checkpoint)
    exact = torch.cat(interpret_ragged(in_floats(before), SEQUENCES, weights))
    bound = chain_tolerance("float32", 128, 16, float(exact.abs().max()))
    assert float((torch.cat(interpret_ragged(in_floats(after), SEQUENCES, weights)) - exact).abs().max()) <= bound
    # One vector that is not divided by, or an offset that is forgotten, shows.
    broken = in_floats(after)
    divided = [node for node in broken.find("weight") if isinstance(node.attrs["expr"], Divided)]
    forgotten = next((node for node in divided if node.attrs["expr"].offset), divided[-1])
    expr = forgotten.attrs["expr"]
    forgotten.attrs["expr"] = Divided(expr.part, expr.by, 0) if expr.offset else expr.part
    assert float((torch.cat(interpret_ragged(broken, SEQUENCES, weights)) - exact).abs().max()) > 10 * bound
