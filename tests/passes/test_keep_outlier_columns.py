"""keep_outlier_columns: which products are rewritten, and that only what is rounded changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import chain_tolerance

from support.cached_graphs import cached_case
from support.pass_graphs import assert_silent, graph_of, ops
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.rebuild import plain_graph
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir import Graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import Ref, parse_expr
from tensorwright.passes.keep_outlier_columns import columns_of, keep_outlier_columns
from tensorwright.passes.lower_to_cpu import lower_to_cpu
from tensorwright.passes.quantize_weights import QUANTIZED, quantize_weights

SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8]]
BODY = """
  %positions: int32[tokens] = input()
  %t: float32[9, 6] = weight() {expr = @"t"} in wpe
  %x: float32[tokens, 6] = embedding(%t, %positions) {scale = 1.0} in wpe
  %v: float32[8, 6] = weight() {expr = @"v"} in mlp.gate
  %w: float32[4, 6] = weight() {expr = @"w"} in mlp.up
  %b: float32[4] = weight() {expr = @"b"} in mlp.up
  %g: float32[tokens, 8] = linear(%x, %v) in mlp.gate
  %z: float32[tokens, 4] = linear(%x, %w, %b) in mlp.up
  return %g, %z"""


def asked(graph: Graph, columns: dict[str, list[int]], spec: str = "w8a8,embedding=none,lm_head=none") -> Graph:
    graph = graph.clone()
    graph.facts.update(quantize=parse_spec(spec), outlier_columns=columns)
    quantize_weights(graph)
    return graph


def kept(before: Graph, count: int) -> Graph:
    """The graph after the pass, which rewrote `count` products, left it legal, and then found nothing more."""
    after = before.clone()
    assert keep_outlier_columns(after) == count
    verify(after, "cached")
    text = print_graph(after)
    assert keep_outlier_columns(after) == 0
    assert print_graph(after) == text
    return after


def test_products_that_read_one_value_share_its_split() -> None:
    before = asked(graph_of(BODY, "cached"), {'"v"': [1, 4], '"w"': [1, 4]})
    after = kept(before, 2)
    products = ["linear", "quantized_linear", "add"]
    assert ops(after) == ["embedding", "split_columns", *products, *products]
    assert str(next(node for node in after.find("weight") if node.output.shape == (4, 2)).attrs["expr"]) == str(
        columns_of(Ref("w"), (1, 4))
    )
    bias = [node.optional(2) for node in after.find("quantized_linear")]
    assert [value is not None for value in bias] == [False, True], "the bias is added once"


@pytest.mark.parametrize("columns", [{}, {'"other"': [1]}], ids=["none", "of another matrix"])
def test_nothing_is_kept_unasked(columns: dict[str, list[int]]) -> None:
    assert_silent(keep_outlier_columns, asked(graph_of(BODY, "cached"), columns))


def test_products_that_are_not_quantized_stay() -> None:
    assert_silent(keep_outlier_columns, asked(graph_of(BODY, "cached"), {'"w"': [1]}, "none,embedding=int8"))


def test_neighbours_are_one_slice() -> None:
    expr = columns_of(Ref("w"), (0, 3, 4, 5))
    assert str(expr) == 'concat(1, slice(1, 0, 1, "w"), slice(1, 3, 6, "w"))'
    assert parse_expr(str(expr)) == expr
    assert columns_of(Ref("w"), (2,)) == Ref("w").slice(1, 2, 3)


def logits(graph: Graph, weights: object) -> torch.Tensor:
    return torch.cat(interpret_ragged(graph, SEQUENCES, weights))


@pytest.mark.parametrize("variant", ["llama_tied", "qwen2_untied", "stablelm_parallel"])
def test_without_rounding_the_logits_stay(tmp_path_factory: pytest.TempPathFactory, variant: str) -> None:
    """Every linear layer keeps three columns. What is forgotten, a zero or a column, shows."""
    case = cached_case(tmp_path_factory, variant)
    quantized = asked(case.graph, {})
    exprs = [str(node.operand(1).producer.attrs["expr"]) for node in quantized.find("quantized_linear")]
    before = asked(case.graph, {expr: [0, 7, 8] for expr in exprs})
    after = kept(before, 8)
    floats = after.clone()
    for node in floats.find("quantized_linear"):
        node.op = node.op.removeprefix(QUANTIZED)
        del node.attrs["format"]
    weights = checkpoint_weights(case.checkpoint)
    exact = logits(case.graph, weights)
    bound = chain_tolerance("float32", 128, 16, float(exact.abs().max()))
    assert float((logits(floats, weights) - exact).abs().max()) <= bound
    split = next(iter(floats.find("split_columns")))
    split.operand(1).producer.attrs["value"] = np.array([0, 7, 9], np.float32)
    assert float((logits(floats, weights) - exact).abs().max()) > 10 * bound
    # A rebuild takes it back.
    assert ops(plain_graph(after)) == ops(case.graph)
    assert print_graph(plain_graph(after)) == print_graph(plain_graph(quantized))


def test_each_split_is_one_instruction(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Beside it a product takes one instruction more; the product of the rest adds its result."""
    case = cached_case(tmp_path_factory, "llama_tied")
    quantized = asked(case.graph, {})
    expr = next(str(n.operand(1).producer.attrs["expr"]) for n in quantized.find("quantized_linear"))
    after = kept(asked(case.graph, {expr: [0, 7]}), 1)
    for graph in (quantized, after):
        graph.facts.update(dtype="bfloat16", block_size=32)
        lower_to_cpu(graph)
    at = ops(after).index("split_columns")
    assert ops(after)[at : at + 3] == ["split_columns", "matmul", "quantized_matmul"]
    assert len(ops(after)) == len(ops(quantized)) + 2
    split = next(iter(after.find("split_columns")))
    assert {value.dtype for value in (split.operand(0), *split.outputs)} == {"bfloat16"}
