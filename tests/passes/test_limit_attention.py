"""limit_attention: which layers it claims, what their rows see then, and that the change can be undone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.cached_attention import LAYER, SEQUENCES, SINKS, WINDOW, cached, output
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.passes.limit_attention import limit_attention


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
            alone = output(full, sequences=[[ids[i] for i in seen]])[0]
            np.testing.assert_allclose(row, alone[-1], rtol=0, atol=1e-6)  # sums of 7 terms below 10
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
