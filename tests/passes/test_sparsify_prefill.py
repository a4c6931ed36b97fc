"""sparsify_prefill: what it asks of attention, which rows see less then, and that the change can be undone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.pass_graphs import graph_of, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.errors import GraphError, InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.facts import KvLayer, StateLayer
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.sparsify_prefill import sparsify_prefill

BLOCK, BUDGET = 32, 128
HEADS = "heads = 4, kv_heads = 2, head_dim = 6"
INPUTS = ["token_ids: int32[tokens]", "positions: int32[tokens]", "seq_starts: int32[seqs + 1]",
          "context_lens: int32[seqs]", "block_tables: int32[seqs, max_blocks]", "slots: int32[tokens]",
          "logit_rows: int32[rows]", "kv_cache.0: kv[]"]  # fmt: skip
SEEN = f"{{layer = 0, {HEADS}, scale = 0.25, window = 0, softcap = 0.0}}"
BODY = f"""
  %table: float32[20, 48] = weight() {{expr = @"table"}}
  %x: float32[tokens, 48] = embedding(%table, %token_ids) {{scale = 1.0}}
  %q: float32[tokens, 24], %c: kv[] = rotary_kv_write(%x, none, %slots, %kv_cache.0) {{layer = 0, {HEADS}, rotary_dim = 0}}
  %a: float32[tokens, 24] = paged_attention(%q, %c, %seq_starts, %context_lens, %block_tables) {SEEN}
  %y: float32[rows, 24] = gather_rows(%a, %logit_rows)
  return %y"""  # noqa: E501
GRAPH = "".join(f"\n  %{text} = input()" for text in INPUTS) + BODY
LAYER = KvLayer(group=0, kv_heads=2, head_dim=6, window=0)
IDS = np.random.default_rng(3).integers(0, 20, 250).tolist()


def cached(asked: int = BUDGET) -> Graph:
    graph = graph_of(GRAPH, "cached")
    graph.facts.kv_layers = [LAYER]
    graph.facts.update(sparse_prefill=asked, max_seq_len=512, block_size=BLOCK, model_type="toy")
    return graph


def output(graph: Graph, ids: list[int], steps: list[list[int]] | None = None) -> np.ndarray:
    weights = checkpoint_weights(source_of(graph))
    return interpret_ragged(graph, [ids, [7, 8]], weights, steps=steps, block_size=BLOCK)[0].numpy()


def test_fires_and_can_be_undone() -> None:
    before = cached()
    after = before.clone()
    assert sparsify_prefill(after) == 1
    verify(after, "cached")
    assert print_graph(parse_graph(print_graph(after))) == print_graph(after)
    plain = plain_graph(after)
    verify(plain, "cached")
    before.facts.clear("sparse_prefill")
    assert print_graph(plain) == print_graph(before)


def test_is_silent_unless_asked() -> None:
    graph = cached(asked=0)
    before = print_graph(graph)
    assert sparsify_prefill(graph) == 0
    assert print_graph(graph) == before


def test_blocks_of_a_prompt_choose_and_the_rest_sees_everything() -> None:
    """250 positions are 7 whole blocks, of which those from 128 on choose 4 of 5 and more."""
    full, sparse = cached(), cached()
    sparsify_prefill(sparse)
    dense, rows = output(full, IDS), output(sparse, IDS)
    differs = (dense != rows).any(1)
    assert not differs[:BUDGET].any()
    assert differs[BUDGET : 7 * BLOCK].mean() > 0.9
    assert not differs[7 * BLOCK :].any()


def test_steps_of_whole_blocks_change_nothing() -> None:
    sparse = cached()
    sparsify_prefill(sparse)
    whole = output(sparse, IDS)
    for steps in ([[128, 0], [32, 2], [90, 0]], [[64, 2], [160, 0], [26, 0]]):
        np.testing.assert_array_equal(output(sparse, IDS, steps), whole)
    with pytest.raises(GraphError, match="whole blocks of 32 queries"):
        output(sparse, IDS, [[140, 2], [110, 0]])


def test_what_would_hide_nothing_is_refused() -> None:
    graph = cached(asked=512)
    with pytest.raises(InvalidOptionError, match="at most max_seq_len less 32, 480, not 512"):
        sparsify_prefill(graph)
    assert sparsify_prefill(cached(asked=480)) == 1


def test_attention_that_cannot_choose_is_refused() -> None:
    def refused(graph: Graph) -> str:
        with pytest.raises(UnsupportedModelError) as caught:
            sparsify_prefill(graph)
        return str(caught.value)

    graph = cached()
    graph.facts.state_layers = [StateLayer(64)]
    assert "toy has recurrent layers" in refused(graph)
    for layer, why in ((replace(LAYER, window=9), "a window of their own"), (replace(LAYER, v_dim=4), "latent rows")):
        graph = cached()
        graph.facts.kv_layers = [layer]
        assert why in refused(graph)
    graph = cached()
    (node,) = graph.find("paged_attention")
    node.inputs += [None, graph.value("table")]
    assert "ALiBi" in refused(graph)
    graph = cached()
    graph.nodes = [node for node in graph.nodes if node.op != "paged_attention"]
    assert "no attention" in refused(graph)
