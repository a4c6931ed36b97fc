"""limit_attention: which layers it claims, what their rows see then, and that the change can be undone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.pass_graphs import graph_of, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.limit_attention import limit_attention

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


def output(graph: Graph, steps: list[list[int]] | None = None) -> list[np.ndarray]:
    rows = interpret_ragged(graph, SEQUENCES, checkpoint_weights(source_of(graph)), steps=steps)
    return [r.numpy() for r in rows]


def test_fires_and_can_be_undone() -> None:
    before = cached(0)
    after = before.clone()
    assert limit_attention(after) == 1
    verify(after, "cached")
    assert after.facts.kv_layers == [replace(LAYER, window=WINDOW, sink_tokens=SINKS)]
    assert parse_graph(print_graph(after)).facts == after.facts
    plain = plain_graph(after)
    assert plain.facts.kv_layers == [LAYER]
    np.testing.assert_array_equal(output(plain)[0], output(before)[0])


def test_is_silent_unless_asked() -> None:
    graph = cached(0, asked=0, sinks=0)
    before = print_graph(graph)
    assert limit_attention(graph) == 0
    assert print_graph(graph) == before


def test_a_window_of_the_model_stays() -> None:
    graph = cached(7, 0)
    assert limit_attention(graph) == 1
    assert [one.window for one in graph.facts.kv_layers] == [7, WINDOW]


def test_rows_see_the_first_positions_and_the_last() -> None:
    """Row by row what a sequence of just the positions that it sees gives: nothing here depends on positions."""
    full, limited = cached(0), cached(0)
    limit_attention(limited)
    got = output(limited)
    for ids, rows in zip(SEQUENCES, got, strict=True):
        for p, row in enumerate(rows):
            seen = [i for i in range(p + 1) if i < SINKS or i > p - WINDOW]
            alone = interpret_ragged(full, [[ids[i] for i in seen]], checkpoint_weights(source_of(full)))[0]
            np.testing.assert_allclose(row, alone.numpy()[-1], rtol=0, atol=1e-6)  # sums of 7 terms below 10
    steps = [[5, 0, 2], [0, 2, 4], [28, 0, 1]]
    for one, other in zip(output(limited, steps), got, strict=True):
        np.testing.assert_array_equal(one, other, "what a row sees does not depend on the steps")


def test_what_would_hide_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="together must be below max_seq_len 64, not 60 \\+ 4"):
        limit_attention(cached(0, asked=60, sinks=4))
    assert limit_attention(cached(0, asked=59, sinks=4)) == 1
    with pytest.raises(UnsupportedModelError, match="toy has none"):
        limit_attention(cached(7))


def test_a_window_that_a_layer_has_itself_is_refused() -> None:
    """Two cache groups would have one name, in statistics and when the change is undone."""
    with pytest.raises(InvalidOptionError, match="7 is the window that some layers of the model have themselves"):
        limit_attention(cached(7, 0, asked=7, sinks=0))
    assert limit_attention(cached(7, 0, asked=7, sinks=1)) == 1
