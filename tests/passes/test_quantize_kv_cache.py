"""quantize_kv_cache: which layers it claims, and that only the rounding of quantize.py is added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tolerances import kv_attention_tolerance

from support.pass_graphs import assert_silent, graph_of, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.passes.quantize_kv_cache import quantize_kv_cache

LAYER = KvLayer(group=0, kv_heads=1, head_dim=6, window=0)
HEADS = "heads = 2, kv_heads = 1, head_dim = 6"
INPUTS = """
  %token_ids: int32[tokens] = input()
  %positions: int32[tokens] = input()
  %seq_starts: int32[seqs + 1] = input()
  %context_lens: int32[seqs] = input()
  %block_tables: int32[seqs, max_blocks] = input()
  %slots: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %kv_cache.0: kv[] = input()
  %table: float32[20, 24] = weight() {expr = @"table"}
  %x: float32[tokens, 24] = embedding(%table, %token_ids) {scale = 1.0}"""
WRITE = f"""
  %q: float32[tokens, 12], %c: kv[] = rotary_kv_write(%x, none, %slots, %kv_cache.0) {{layer = 0, {HEADS}, rotary_dim = 0}}"""  # noqa: E501
READ = f"""
  %a: float32[tokens, 12] = paged_attention(%q, %c, %seq_starts, %context_lens, %block_tables) {{layer = 0, {HEADS}, scale = 0.25, window = 0, softcap = 0.0}}"""  # noqa: E501
BODY = f"""{INPUTS}{WRITE}{READ}
  %y: float32[rows, 12] = gather_rows(%a, %logit_rows)
  return %y"""
TWICE = f"""{INPUTS}{WRITE}{READ}{READ.replace("%a", "%b").replace("scale = 0.25", "scale = 0.125")}
  %s: float32[tokens, 12] = add(%a, %b)
  %y: float32[rows, 12] = gather_rows(%s, %logit_rows)
  return %y"""
SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5] * 3, [8, 9], [7, 9, 3, 2, 3, 8, 4]]


def cached(body: str = BODY, asked: str | None = "int8", **layer: int) -> Graph:
    graph = graph_of(body, "cached")
    graph.facts.kv_layers = [replace(LAYER, **layer)]
    if asked is not None:
        graph.facts.kv_cache_dtype = asked
    return graph


def fire(graph: Graph, count: int) -> Graph:
    """The graph after the pass, which left it legal, changed no node and then found nothing more."""
    after = graph.clone()
    assert quantize_kv_cache(after) == count
    verify(after, "cached")
    text = print_graph(after)
    assert quantize_kv_cache(after) == 0
    assert print_graph(after) == text
    before = graph.clone()
    before.facts.kv_layers = after.facts.kv_layers
    assert print_graph(before) == text
    return after


def output(graph: Graph, steps: list[list[int]] | None = None) -> np.ndarray:
    rows = interpret_ragged(graph, SEQUENCES, checkpoint_weights(source_of(graph)), steps=steps)
    return np.concatenate([r.numpy() for r in rows])


@pytest.mark.parametrize("asked", ["int8", "int4"])
def test_fires(asked: str) -> None:
    graph = cached(asked=asked)
    after = fire(graph, 1)
    assert after.facts.kv_layers == [replace(LAYER, dtype=asked)]
    assert graph.facts.kv_layers == [LAYER]  # a clone's layers are its own
    assert parse_graph(print_graph(after)).facts == after.facts


@pytest.mark.parametrize("asked", [None, "auto"])
def test_is_silent_unless_asked(asked: str | None) -> None:
    assert_silent_here = cached(asked=asked)
    after = assert_silent_here.clone()
    assert quantize_kv_cache(after) == 0
    assert print_graph(after) == print_graph(assert_silent_here)
    assert_silent(quantize_kv_cache, graph_of("  %x: float32[1, seq] = input()\n  return %x"))


def test_a_cache_that_is_read_twice_is_int8_for_both() -> None:
    """Who else reads a layer's cache gets the same integers: the type belongs to the layer, not to a use."""
    before = cached(TWICE)
    after = fire(before, 1)
    alone = cached(TWICE.replace("add(%a, %b)", "add(%a, %a)"))
    assert quantize_kv_cache(alone) == 1
    once = cached()
    assert quantize_kv_cache(once) == 1
    np.testing.assert_array_equal(output(alone), 2 * output(once))
    assert np.abs(output(after) - output(before)).max() > 0


def test_layers_that_are_int8_already_are_not_counted() -> None:
    graph = cached()
    graph.facts.kv_layers = [replace(LAYER, dtype="int8"), LAYER]
    assert quantize_kv_cache(graph) == 1
    assert graph.facts.kv_layers == [replace(LAYER, dtype="int8")] * 2


@pytest.mark.parametrize("asked", ["int8", "int4", "fp8"])
def test_numbers_move_by_the_rounding_only(asked: str) -> None:
    before = cached(asked=asked)
    after = fire(before, 1)
    table = np.abs(source_of(before).arrays["table"])
    bound = kv_attention_tolerance(asked, table[:, :12].max(), table[:, 12:18].max(), table[:, 18:].max(), 6, 0.25)
    change = np.abs(output(after) - output(before)).max()
    assert 0 < change <= bound
    # A token's scales are its own: in whatever steps it is written, the same numbers.
    steps = [[5, 0, 2], [0, 2, 4], [28, 0, 1]]
    np.testing.assert_array_equal(output(after, steps), output(after))


@pytest.mark.parametrize("asked", ["fp16", "float16", "INT8", "", 8])
def test_a_type_that_does_not_exist_is_refused(asked: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"kv_cache_dtype must be one of auto, int8, int4, fp8, not {asked!r}"):
        quantize_kv_cache(cached(asked=asked))


def test_heads_too_wide_are_refused() -> None:
    graph = cached(head_dim=1025)
    with pytest.raises(UnsupportedModelError, match="at most 1024 dimensions, those of layer 0 have 1025"):
        quantize_kv_cache(graph)
    assert quantize_kv_cache(cached(head_dim=1024)) == 1


def test_latent_rows_are_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match="int8 KV cache of latent rows is not supported, and layer 0 has one"
    ):
        quantize_kv_cache(cached(v_dim=4))
    with pytest.raises(UnsupportedModelError, match="an int4 KV cache of latent rows is not supported"):
        quantize_kv_cache(cached(asked="int4", v_dim=4))


@pytest.mark.parametrize("variant", ["llama", "llama_mqa"])
def test_pinned_count(rewritten, variant: str) -> None:
    assert rewritten(variant).count("quantize_kv_cache") == 0
    traced = rewritten(variant).traced.clone()
    traced.facts.kv_cache_dtype = "int8"
    report = run_pipeline(traced, verify=True, weights=checkpoint_weights(rewritten(variant).checkpoint))
    assert report.counts["quantize_kv_cache"] == 2
    assert report.differences["quantize_kv_cache"] > 0
    for graph in (report.graph, report.cached_graph):
        assert [layer.dtype for layer in graph.facts.kv_layers] == ["int8", "int8"]


def test_the_pipeline_passes_on_what_the_pass_refuses(rewritten) -> None:
    traced = rewritten("llama").traced.clone()
    traced.facts.kv_cache_dtype = "fp16"
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype must be one of auto, int8, int4, fp8, not 'fp16'"):
        run_pipeline(traced)
