"""Refuses graphs with recurrent layers, whose states only target cpu keeps."""

from __future__ import annotations

from tensorwright.errors import LoweringError
from tensorwright.ir.graph import Graph


def refuse_states(graph: Graph) -> None:
    """Raises LoweringError if a layer of the graph has a state."""
    layers = len(graph.facts.state_layers)
    if layers:
        raise LoweringError(
            f"{layers} recurrent layers keep a state for each sequence, which only target cpu can; build with target "
            "cpu"
        )
