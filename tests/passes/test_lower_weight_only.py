"""lower_weight_only: products stop rounding their activations, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import sum_tolerance

from support.pass_graphs import assert_silent, graph_of, ops, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_formats import parse_format, parse_spec
from tensorwright.errors import LoweringError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.lower_weight_only import lower_weight_only
from tensorwright.passes.pipeline import WEIGHT_ONLY_PIPELINE, run_pipeline
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights

N, K = 12, 70
POSITIONS = np.arange(5, dtype=np.int32)
LINEAR = f"""
  %positions: int32[tokens] = input()
  %t: float32[9, {K}] = weight() {{expr = @"t"}} in wpe
  %x: float32[tokens, {K}] = embedding(%t, %positions) {{scale = 1.0}} in wpe
  %w: float32[{N}, {K}] = weight() {{expr = @"w"}} in layers.0.mlp.up
  %b: float32[{N}] = weight() {{expr = @"b"}} in layers.0.mlp.up
  %y: float32[tokens, {N}] = quantized_linear(%x, %w, %b) {{format = "FORMAT"}} in layers.0.mlp.up
  return %y"""
HEADS = f"""
  %positions: int32[tokens] = input()
  %t: float32[9, {3 * K}] = weight() {{expr = @"t"}} in wpe
  %x: float32[tokens, {3 * K}] = embedding(%t, %positions) {{scale = 1.0}} in wpe
  %w: float32[3, {N}, {K}] = weight() {{expr = @"w"}} in layers.0.attn
  %y: float32[tokens, {3 * N}] = quantized_head_products(%x, %w) {{format = "FORMAT"}} in layers.0.attn
  return %y"""
FLOAT = LINEAR.replace("quantized_linear", "linear").replace(' {format = "FORMAT"}', "")
EMBEDDING = f"""
  %token_ids: int32[tokens] = input()
  %w: float32[{N}, {K}] = weight() {{expr = @"w"}} in embed
  %x: float32[tokens, {K}] = quantized_embedding(%w, %token_ids) {{format = "FORMAT", scale = 1.0}} in embed
  return %x"""


def made(body: str, name: str) -> Graph:
    return graph_of(body.replace("FORMAT", name), "cached")


def fire(before: Graph, count: int) -> Graph:
    """The graph after the pass, which left it legal and then found nothing more."""
    after = before.clone()
    assert lower_weight_only(after) == count
    verify(after, "cached")
    text = print_graph(after)
    assert lower_weight_only(after) == 0
    assert print_graph(after) == text
    return after


def output(graph: Graph) -> np.ndarray:
    inputs = {"positions": torch.from_numpy(POSITIONS)}
    return interpret(graph, inputs, checkpoint_weights(source_of(graph)))[0].double().numpy()


@pytest.mark.parametrize("name", ["int4:g32", "int4:g128", "int8:g64", "fp8"])
def test_fires_once_and_rounds_weights_only(name: str) -> None:
    before = made(LINEAR, name)
    after = fire(before, 1)
    assert ops(after) == ["embedding", "weight_only_linear"]
    (node,), (old,) = after.find("weight_only_linear"), before.find("quantized_linear")
    assert (node.attrs, node.scope) == (old.attrs, old.scope)
    assert [v.name for v in node.inputs if v] == [v.name for v in old.inputs if v]
    arrays = source_of(before).arrays
    x, w = arrays["t"][POSITIONS].astype(np.float64), arrays["w"]
    stored = dequantized(quantize_weights(w, parse_format(name)), K)
    bound = sum_tolerance("float32", K + 1, float((np.abs(x) @ np.abs(stored).T + np.abs(arrays["b"])).max()))
    assert np.abs(output(after) - (x @ stored.T + arrays["b"])).max() <= bound
    if name != "fp8":  # there is no quantized_linear of it that rounds activations to integers
        assert np.abs(output(after) - output(before)).max() > bound


@pytest.mark.parametrize("name", ["int4:g32", "int8:g64"])
def test_each_head_has_a_matrix_of_its_own(name: str) -> None:
    before = made(HEADS, name)
    after = fire(before, 1)
    assert ops(after) == ["embedding", "weight_only_head_products"]
    arrays = source_of(before).arrays
    x = arrays["t"][POSITIONS].astype(np.float64).reshape(-1, 3, K)
    stored = np.stack([dequantized(quantize_weights(w, parse_format(name)), K) for w in arrays["w"]])
    bound = sum_tolerance("float32", K, float(np.einsum("thk,hnk->thn", np.abs(x), np.abs(stored)).max()))
    wanted = np.einsum("thk,hnk->thn", x, stored.astype(np.float64)).reshape(len(x), -1)
    assert np.abs(output(after) - wanted).max() <= bound
    assert np.abs(output(after) - output(before)).max() > bound


@pytest.mark.parametrize(("variant", "product"), [("mixtral", "experts"), ("minicpm3", "head_products")])
def test_other_products_keep_activations_too(rewritten, variant: str, product: str) -> None:
    traced = rewritten(variant).traced.clone()
    traced.facts.quantize = parse_spec("int4,embedding=none")
    graph = run_pipeline(traced, pipeline=WEIGHT_ONLY_PIPELINE).graph
    assert len(graph.find(f"weight_only_{product}")) == len(graph.facts.kv_layers) * (1 + (product != "experts"))
    assert not graph.find(f"quantized_{product}")


@pytest.mark.parametrize("body", [FLOAT, EMBEDDING.replace("FORMAT", "int8:g32")])
def test_products_in_floats_and_int8_embeddings_stay(body: str) -> None:
    assert_silent(lower_weight_only, graph_of(body, "cached"))


def test_a_matrix_that_is_used_otherwise_too_stays_for_that_use() -> None:
    gather = f"  %z: float32[tokens, {K}] = embedding(%w, %positions) {{scale = 1.0}} in wpe\n  return %y, %z"
    after = fire(made(LINEAR.replace("  return %y", gather), "int4:g32"), 1)
    assert ops(after) == ["embedding", "weight_only_linear", "embedding"]
    assert after.find("embedding")[1].inputs[0] is after.find("weight_only_linear")[0].inputs[1]


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        (LINEAR, "w8a8", "rounds its activations.*use int8"),
        (EMBEDDING, "int4:g32", "int4:g32 must have rows of int8"),
        (EMBEDDING, "fp8", "fp8 must have rows of int8"),
    ],
)
def test_what_needs_rounded_activations_is_refused(body: str, name: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lower_weight_only(made(body, name))


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_pinned_counts(rewritten, variant: str) -> None:
    """Two layers of four products each, and lm_head; graph.txt keeps the graph that all targets start from."""
    traced = rewritten(variant).traced.clone()
    traced.facts.quantize = parse_spec("int4,embedding=none")
    report = run_pipeline(traced, pipeline=WEIGHT_ONLY_PIPELINE)
    assert report.counts["lower_weight_only"] == report.counts["quantize_weights"] == 9
    assert len(report.graph.find("weight_only_linear")) == len(report.cached_graph.find("quantized_linear")) == 9
    assert not report.graph.find("quantized_linear")
    assert report.graph.stage == report.cached_graph.stage == "cached"


def test_matrices_that_stay_float32_are_refused_beside_narrower_activations():
    graph = made(FLOAT, "")
    graph.facts.update(model_type="ernie4_5_moe", dtype="float32", wide=["layers.0.gate"])
    assert lower_weight_only(graph) == 0
    graph.facts.dtype = "float16"
    with pytest.raises(UnsupportedModelError, match=r"ernie4_5_moe keeps 1 matrices in float32 .* layers\.0\.gate"):
        lower_weight_only(graph)
