"""limit_kv_cache: which layers it claims, that the change can be undone, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from support.cached_attention import cached, output
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.errors import GraphError, InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.facts import StateLayer
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.limit_kv_cache import limit_kv_cache


def asked(*windows: int, budget: int = 16, recent: int = 5, sinks: int = 2, length: int = 64) -> Graph:
    graph = cached(*windows, asked=0, sinks=sinks)
    graph.facts.update(kv_budget=budget, recent_tokens=recent, kv_interval=8, block_size=4, max_seq_len=length)
    return graph


def test_fires_and_can_be_undone() -> None:
    before = asked(0)
    after = before.clone()
    assert limit_kv_cache(after) == 1
    verify(after, "cached")
    node = next(iter(after.find("paged_attention")))
    assert {name: node.attrs[name] for name in ("kept", "sinks", "recent", "interval", "scores")} == {
        "kept": 4, "sinks": 1, "recent": 2, "interval": 8, "scores": 1,
    }  # fmt: skip
    assert after.facts.state_layers == [StateLayer(192)]  # 16 blocks of 9 bytes, rounded up
    assert print_graph(parse_graph(print_graph(after))) == print_graph(after)
    plain = plain_graph(after)
    assert plain.facts.state_layers == []
    assert "scores" not in next(iter(plain.find("paged_attention"))).attrs
    np.testing.assert_array_equal(output(plain)[0], output(before)[0])


def test_is_silent_unless_asked() -> None:
    graph = asked(0, budget=0)
    before = print_graph(graph)
    assert limit_kv_cache(graph) == 0
    assert print_graph(graph) == before


def test_a_window_of_the_model_stays() -> None:
    graph = asked(7, 0)
    graph.facts.kv_layers = [layer if layer.window else type(layer)(1, 1, 6, 0) for layer in graph.facts.kv_layers]
    assert limit_kv_cache(graph) == 1
    assert ["kept" in node.attrs for node in graph.find("paged_attention")] == [False, True]


def test_rows_before_a_decision_are_those_of_full_attention() -> None:
    """One layer alone does not say which blocks are gone later: the graph says so by name."""
    graph = asked(0)
    limit_kv_cache(graph)
    np.testing.assert_array_equal(output(graph)[0], output(asked(0, budget=0))[0])
    node = next(iter(graph.find("paged_attention")))
    node.attrs = {**node.attrs, "kept": 1}  # of 16 positions: the interpreter has its own blocks
    with pytest.raises(GraphError, match="of a sequence of 33 positions some blocks are gone, because it keeps 16"):
        output(graph)


def test_what_keeps_nothing_by_scores_or_everything_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="kv_budget 12 holds 3 blocks of 4 positions, and 1 with sink_tokens"):
        limit_kv_cache(asked(0, budget=12))
    with pytest.raises(InvalidOptionError, match="at position 64, and max_seq_len is 64"):
        limit_kv_cache(asked(0, budget=56))
    assert limit_kv_cache(asked(0, budget=48)) == 1
    with pytest.raises(UnsupportedModelError, match="toy has none"):
        limit_kv_cache(asked(7))
