"""Graphs at stage "cached" with one layer of attention or two, which have no weights but a table of embeddings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.pass_graphs import graph_of, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.ir import Graph
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.ragged import interpret_ragged

LAYER = KvLayer(group=0, kv_heads=1, head_dim=6, window=0)
SLIDING = KvLayer(group=1, kv_heads=1, head_dim=6, window=7)
HEADS = "heads = 2, kv_heads = 1, head_dim = 6"
WINDOW, SINKS = 5, 2
SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5] * 3, [8, 9], [7, 9, 3, 2, 3, 8, 4]]


def layer(number: int, window: int) -> str:
    return f"""
  %q{number}: float32[tokens, 12], %c{number}: kv[] = rotary_kv_write(%x, none, %slots, %kv_cache.{number}) {{layer = {number}, {HEADS}, rotary_dim = 0}}
  %a{number}: float32[tokens, 12] = paged_attention(%q{number}, %c{number}, %seq_starts, %context_lens, %block_tables{number or ""}) {{layer = {number}, {HEADS}, scale = 0.25, window = {window}, softcap = 0.0}}"""  # noqa: E501


def cached(*windows: int, asked: int = WINDOW, sinks: int = SINKS) -> Graph:
    """A graph with a layer of each of these windows, whose results it adds."""
    inputs = ["token_ids: int32[tokens]", "positions: int32[tokens]", "seq_starts: int32[seqs + 1]",
              "context_lens: int32[seqs]", "block_tables: int32[seqs, max_blocks]", "slots: int32[tokens]",
              "logit_rows: int32[rows]", *(f"kv_cache.{i}: kv[]" for i in range(len(windows)))]  # fmt: skip
    body = "".join(f"\n  %{text} = input()" for text in inputs)
    body += """
  %table: float32[20, 24] = weight() {expr = @"table"}
  %x: float32[tokens, 24] = embedding(%table, %token_ids) {scale = 1.0}"""
    body += "".join(layer(i, window) for i, window in enumerate(windows)).replace("%block_tables1", "%block_tables")
    total = "%a0"
    if len(windows) > 1:
        body += "\n  %s: float32[tokens, 12] = add(%a0, %a1)"
        total = "%s"
    graph = graph_of(f"{body}\n  %y: float32[rows, 12] = gather_rows({total}, %logit_rows)\n  return %y", "cached")
    graph.facts.kv_layers = [LAYER if window == 0 else replace(SLIDING, window=window, group=0) for window in windows]
    graph.facts.update(attention_window=asked, sink_tokens=sinks, max_seq_len=64, model_type="toy")
    return graph


def output(
    graph: Graph, steps: list[list[int]] | None = None, sequences: list[list[int]] = SEQUENCES
) -> list[np.ndarray]:
    rows = interpret_ragged(graph, sequences, checkpoint_weights(source_of(graph)), steps=steps)
    return [r.numpy() for r in rows]
