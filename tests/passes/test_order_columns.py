"""order_columns: which products read their inputs in another order, and that only their sums are added in another."""

from __future__ import annotations

import numpy as np
import torch

from support.lowered import MemorySource
from support.pass_graphs import assert_silent, graph_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import COLUMN_ORDER
from tensorwright.passes.order_columns import order_columns, restore_order
from tensorwright.passes.quantize_weights import quantize_weights

N, K = 12, 64
ORDER = np.random.default_rng(2).permutation(K).astype(np.float32)
BODY = f"""
  %positions: int32[tokens] = input()
  %t: float32[9, {K}] = weight() {{expr = @"t"}} in wpe
  %x: float32[tokens, {K}] = embedding(%t, %positions) {{scale = 1.0}} in wpe
  %q: float32[{N}, {K}] = weight() {{expr = @"q"}} in attn.q
  %v: float32[{N}, {K}] = weight() {{expr = @"v"}} in attn.v
  %b: float32[{N}] = weight() {{expr = @"b"}} in attn.q
  %y: float32[tokens, {N}] = linear(%x, %q, %b) in attn.q
  %z: float32[tokens, {N}] = linear(%x, %v) in attn.v
  %s: float32[tokens, {N}] = add(%y, %z) in attn
  return %s"""


def asked(orders: dict[str, str], spec: str = "int4") -> Graph:
    """The graph with quantized products."""
    graph = graph_of(BODY, "cached")
    graph.facts.update(quantize=parse_spec(spec), column_orders=orders)
    quantize_weights(graph)
    return graph


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"t": (9, K), "q": (N, K), "v": (N, K), "b": (N,)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, **{f"{COLUMN_ORDER}{name}": ORDER for name in "qv"}}


def test_products_of_one_order_share_the_ordered_value() -> None:
    """Two orders need two values. The text of the graph says them, and a second pass finds nothing."""
    for orders, values in (({'"q"': "q"}, 1), ({'"q"': "q", '"v"': "q"}, 1), ({'"q"': "q", '"v"': "v"}, 2)):
        graph = asked(orders)
        assert order_columns(graph) == len(orders)
        verify(graph, "cached")
        assert len(list(graph.find("take_columns"))) == values
        text = print_graph(graph)
        assert print_graph(parse_graph(text)) == text
        assert order_columns(graph) == 0


def test_products_compute_what_they_did() -> None:
    """With one scale for a row the sums are exact in any order, so the numbers are the same; without the ordered inputs
    they are others."""
    graph = asked({'"q"': "q", '"v"': "q"}, "w8a8")
    weights, inputs = checkpoint_weights(MemorySource(arrays())), {"positions": torch.arange(7, dtype=torch.int32)}
    (before,) = interpret(graph, inputs, weights)
    order_columns(graph)
    (after,) = interpret(graph, inputs, weights)
    assert torch.equal(after, before)
    for node in graph.find("quantized_linear"):
        node.inputs[0] = node.operand(0).producer.inputs[0]
    assert not torch.allclose(interpret(graph, inputs, weights)[0], before, atol=0.5)


def described(graph: Graph) -> list[str]:
    return sorted(f"{node.op} {node.attrs} {[v and v.shape for v in node.inputs]}" for node in graph.nodes)


def test_the_order_is_restored() -> None:
    graph = asked({'"q"': "q", '"v"': "v"})
    before = described(graph)
    order_columns(graph)
    restore_order(graph)
    verify(graph, "cached")
    assert described(graph) == before


def test_nothing_is_ordered_without_the_fact() -> None:
    assert_silent(order_columns, graph_of(BODY, "cached"))
