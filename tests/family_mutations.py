"""Lowered graphs with one thing wrong that only some families have. Like mutations.py: no shape changes.

Each function breaks a graph in place, and fails if the graph has nothing to break.
"""

from __future__ import annotations

from tensorwright.builder.ir import Graph


def drop_window(graph: Graph) -> None:
    """Attention sees all positions where it should see the last few."""
    assert any(layer["window"] for layer in graph.facts["kv_layers"])
    for layer in graph.facts["kv_layers"]:
        layer["window"] = 0


def widen_window(graph: Graph) -> None:
    """Windows one position too long."""
    assert any(layer["window"] for layer in graph.facts["kv_layers"])
    for layer in graph.facts["kv_layers"]:
        layer["window"] += 1 if layer["window"] else 0
