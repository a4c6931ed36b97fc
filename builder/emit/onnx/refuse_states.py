"""Refuses graphs with layers whose caches a target does not keep: states, keys and values that layers share, chunks."""

from __future__ import annotations

from tensorwright.errors import LoweringError
from tensorwright.ir.graph import Graph


def refuse_states(graph: Graph) -> None:
    """Raises LoweringError if a layer of the graph has a state, no keys and values of its own, or attends in chunks."""
    readers = sum(node.attrs["kv_heads"] == 0 for node in graph.find("rotary_kv_write"))
    if readers:
        raise LoweringError(
            f"{readers} layers read the keys and values of other layers, which only targets cpu and cuda can; build "
            "with one of these"
        )
    chunks = sorted({layer.window for layer in graph.facts.kv_layers if layer.chunked})
    if chunks:
        raise LoweringError(
            f"some layers attend within chunks of {chunks[0]} positions, which only targets cpu and cuda can; build "
            f"with one of these, or with a --max-seq-len of at most {chunks[0]}"
        )
    layers = len(graph.facts.state_layers)
    if layers:
        raise LoweringError(
            f"{layers} recurrent layers keep a state for each sequence, which only targets cpu and cuda can; build "
            "with one of these"
        )
