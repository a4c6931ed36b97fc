"""quantize_weights: which ops it claims, under which format, and that only the rounding of quantize.py is added."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerances import quantized_product_tolerance, sum_tolerance

from support.pass_graphs import assert_silent, graph_of, ops, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_formats import parse_format, parse_spec
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.passes.quantize_weights import quantize_weights

FORMATS = (
    "int4:g32", "int4:g64", "int4:g128", "int8:g32", "int8:g64", "int8:g128",
    "uint4:g32", "uint8:g64:fp16", "mxfp4", "w4a8:g64", "w8a8",
)  # fmt: skip
V, K = 12, 70
LINEAR = f"""
  %positions: int32[tokens] = input()
  %t: float32[9, {K}] = weight() {{expr = @"t"}} in wpe
  %x: float32[tokens, {K}] = embedding(%t, %positions) {{scale = 1.0}} in wpe
  %w: float32[{V}, {K}] = weight() {{expr = @"w"}} in layers.0.mlp.up
  %b: float32[{V}] = weight() {{expr = @"b"}} in layers.0.mlp.up
  %y: float32[tokens, {V}] = linear(%x, %w, %b) in layers.0.mlp.up
  return %y"""
TIED = f"""
  %token_ids: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %w: float32[{V}, {K}] = weight() {{expr = @"w"}} in embed
  %x: float32[tokens, {K}] = embedding(%w, %token_ids) {{scale = 3.0}} in embed
  %r: float32[rows, {K}] = gather_rows(%x, %logit_rows) in norm
  %y: float32[rows, {V}] = linear(%r, %w) in lm_head
  return %y"""
POSITIONS = f"""
  %positions: int32[tokens] = input()
  %w: float32[{V}, {K}] = weight() {{expr = @"w"}} in wpe
  %x: float32[tokens, {K}] = embedding(%w, %positions) {{scale = 1.0}} in wpe
  return %x"""
CONSTANT = LINEAR.replace(
    f'%w: float32[{V}, {K}] = weight() {{expr = @"w"}}',
    f"%w: float32[{V}, {K}] = constant() {{value = dense<float32 [{V}, {K}] ({', '.join(['0.5'] * (V * K))})>}}",
)


def asked(body: str, spec: str) -> Graph:
    graph = graph_of(body, "cached")
    graph.facts.quantize = parse_spec(spec)
    return graph


def fire(graph: Graph, count: int) -> Graph:
    """The graph after the pass, which rewrote `count` ops, left it legal and then found nothing more."""
    after = graph.clone()
    assert quantize_weights(after) == count
    verify(after, "cached")
    text = print_graph(after)
    assert quantize_weights(after) == 0
    assert print_graph(after) == text
    return after


def output(graph: Graph, **inputs: object) -> np.ndarray:
    tensors = {name: torch.as_tensor(value) for name, value in inputs.items()}
    (y,) = interpret(graph, tensors, checkpoint_weights(source_of(graph)))
    return y.numpy()


@pytest.mark.parametrize("name", FORMATS)
def test_a_linear_keeps_its_operands_and_its_numbers(name: str) -> None:
    before = asked(LINEAR, name)
    after = fire(before, 1)
    assert ops(after) == ["embedding", "quantized_linear"]
    (node,) = after.find("quantized_linear")
    (old,) = before.find("linear")
    assert node.attrs == {"format": parse_format(name)}
    assert [v.name for v in node.inputs] == [v.name for v in old.inputs]
    assert (node.scope, node.output.shape) == (old.scope, old.output.shape)
    positions = np.arange(5, dtype=np.int32)
    arrays, fmt = source_of(before).arrays, parse_format(name)
    x, w = arrays["t"][:5], arrays["w"]
    change = np.abs(output(after, positions=positions) - output(before, positions=positions))
    # The first scale of mxfp4 lets the largest be 8 to 16, where a step is 4 and what is beyond 12 becomes 12.
    # Steps of uint4 and uint8 are the range of the values, at most twice the largest, over `largest`.
    largest = {"mxfp": 2, "uint": fmt.largest // 2}.get(fmt.kind, fmt.largest)
    bound = quantized_product_tolerance(x, w, largest, fmt.group)
    assert (change <= bound + sum_tolerance("float32", K, float(np.abs(x).max() * np.abs(w).sum(axis=1).max()))).all()
    assert change.max() > 0  # it is lossy


def test_a_tied_matrix_is_quantized_for_both_uses() -> None:
    before = asked(TIED, "int8")
    after = fire(before, 2)
    assert ops(after) == ["quantized_embedding", "gather_rows", "quantized_linear"]
    (embedding,), (head,) = after.find("quantized_embedding"), after.find("quantized_linear")
    assert embedding.inputs[0] is head.inputs[1]
    assert embedding.attrs == {"format": parse_format("int8:g32"), "scale": 3.0}
    ids, rows = np.array([3, 0, 11, 3, 7], np.int32), np.array([4, 1], np.int32)
    w = source_of(before).arrays["w"]
    x = 3 * w[ids[rows]]
    # The gathered rows are weights of this matrix too, off by what a product with the unit matrix is.
    moved = 3 * quantized_product_tolerance(np.eye(K, dtype=np.float32), w, 127, 32).T.max() * np.abs(w).sum(axis=1)
    bound = quantized_product_tolerance(x, w, 127, 32) + moved[None]
    given = {"token_ids": ids, "logit_rows": rows}
    assert (np.abs(output(after, **given) - output(before, **given)) <= bound).all()


@pytest.mark.parametrize(
    ("spec", "embedding", "head"),
    [
        ("int4,lm_head=int8:g128", "int4:g32", "int8:g128"),
        ("w8a8,embedding=none,lm_head=int8", None, "int8:g32"),
        ("none,embedding=int4", "int4:g32", None),
        ("none,lm_head=w8a8", None, "w8a8"),
    ],
)
def test_embedding_and_head_have_formats_of_their_own(spec: str, embedding: str | None, head: str | None) -> None:
    after = fire(asked(TIED, spec), (embedding is not None) + (head is not None))
    assert [str(n.attrs["format"]) for n in after.find("quantized_embedding")] == ([embedding] if embedding else [])
    assert [str(n.attrs["format"]) for n in after.find("quantized_linear")] == ([head] if head else [])
    assert len(after.find("embedding")) + len(after.find("linear")) == (embedding is None) + (head is None)


TWO_LINEARS = f"""
  %token_ids: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %e: float32[{V}, {K}] = weight() {{expr = @"model.embed.weight"}} in embed
  %x: float32[tokens, {K}] = embedding(%e, %token_ids) {{scale = 1.0}} in embed
  %qk: float32[{2 * V}, {K}] = weight() {{expr = @concat(0, "layers.0.q.weight", "layers.0.k.weight")}} in layers.0
  %a: float32[tokens, {2 * V}] = linear(%x, %qk) in layers.0
  %o: float32[{K}, {2 * V}] = weight() {{expr = @"layers.0.o.weight"}} in layers.0
  %b: float32[tokens, {K}] = linear(%a, %o) in layers.0
  %r: float32[rows, {K}] = gather_rows(%b, %logit_rows) in norm
  %h: float32[{V}, {K}] = weight() {{expr = @"head.weight"}} in lm_head
  %y: float32[rows, {V}] = linear(%r, %h) in lm_head
  return %y"""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("int4,layers.*=int8", ["int4:g32", "int8:g32", "int8:g32", "int4:g32"]),
        ("int4,layers.0.o.weight=w8a8,embedding=none", [None, "int4:g32", "w8a8", "int4:g32"]),
        ("none,*.weight=int8,layers.0.*=int4,layers.0.o.*=none", ["int8:g32", "int4:g32", None, "int8:g32"]),
        ("int4,lm_head=int8,head.weight=none,layers.0.q.weight=int8,*.k.weight=int8", ["int4:g32", "int8:g32",
         "int4:g32", None]),
    ],
)  # fmt: skip
def test_rules_give_single_weights_a_format(spec: str, expected: list[str | None]) -> None:
    after = fire(asked(TWO_LINEARS, spec), sum(fmt is not None for fmt in expected))
    nodes = [node for node in after.nodes if node.op.endswith(("embedding", "linear"))]
    assert [str(node.attrs["format"]) if "format" in node.attrs else None for node in nodes] == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "int4,layers.0.q.weight=int8",
            "one format: layers.0.q.weight int8:g32, layers.0.k.weight int4:g32",
        ),
        ("none,*.k.*=int8", "must have one format: layers.0.q.weight none, layers.0.k.weight int8:g32"),
        ("int4,layers.1.*=int8,*.v.*=int8,layers.*=int8", r"layers\.1\.\*, \*\.v\.\* match no matrix"),
    ],
)
def test_rules_that_split_a_matrix_or_match_none_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        quantize_weights(asked(TWO_LINEARS, spec))


@pytest.mark.parametrize("body", [LINEAR, TIED, POSITIONS])
def test_without_the_fact_nothing_is_rewritten(body: str) -> None:
    assert_silent(quantize_weights, graph_of(body, "cached"))


@pytest.mark.parametrize("body", [POSITIONS, CONSTANT])
def test_tables_of_positions_and_constants_stay(body: str) -> None:
    assert_silent(quantize_weights, asked(body, "int8"))


def test_none_everywhere_rewrites_nothing() -> None:
    assert_silent(quantize_weights, asked(TIED, "none"))


def test_a_matrix_that_is_used_otherwise_too_stays_for_that_use() -> None:
    """The weight has a second user that no format claims: it reads what the checkpoint holds."""
    gather = f"  %z: float32[tokens, {K}] = embedding(%w, %positions) {{scale = 1.0}} in wpe\n  return %y, %z"
    after = fire(asked(LINEAR.replace("  return %y", gather), "int4"), 1)
    assert ops(after) == ["embedding", "quantized_linear", "embedding"]
    assert after.find("embedding")[1].inputs[0] is after.find("quantized_linear")[0].inputs[1]


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="weight format"):
        quantize_weights(asked(LINEAR, "int5"))


def test_only_linears_are_sparse() -> None:
    after = fire(asked(TIED, "none,lm_head=int8:2:4"), 1)
    assert [str(node.attrs["format"]) for node in after.find("quantized_linear")] == ["int8:g32:2:4"]
    with pytest.raises(UnsupportedModelError, match="only matrices of linear layers can be 2:4 sparse, and w is of em"):
        quantize_weights(asked(TIED, "none,embedding=int8:2:4"))


def test_rows_too_long_for_exact_sums_are_refused() -> None:
    """x is in [-127, 127] and a weight in [-128, 127]: 132104 products fit an int32, one more need not."""
    longest = LINEAR.replace(str(K), "132104")
    fire(asked(longest, "w8a8"), 1)
    longer = LINEAR.replace(str(K), "132105")
    fire(asked(longer, "int8"), 1)
    for name in ("w8a8", "w4a8"):
        wanted = rf"{name} takes matrices of at most 132104 columns.*%w has 132105"
        with pytest.raises(UnsupportedModelError, match=wanted):
            quantize_weights(asked(longer, name))


@pytest.mark.parametrize(
    ("variant", "count"),
    # Two layers of qkv, o, gate and up, down (plain MLPs: up, down), the embedding and lm_head.
    [("llama", 10), ("qwen2", 10), ("gemma2", 10), ("gpt2", 10), ("starcoder2", 10), ("falcon", 10), ("phi3", 10)],
)
def test_pinned_counts(rewritten, variant: str, count: int) -> None:
    traced = rewritten(variant).traced.clone()
    assert rewritten(variant).count("quantize_weights") == 0
    traced.facts.quantize = parse_spec("int8")
    assert run_pipeline(traced).counts["quantize_weights"] == count
    traced.facts.quantize = parse_spec("int8,embedding=none,lm_head=none")
    report = run_pipeline(traced)
    assert report.counts["quantize_weights"] == count - 2
    assert len(report.graph.find("quantized_matmul")) == count - 2
