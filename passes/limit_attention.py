"""limit_attention:  paged_attention(window = 0)  ->  paged_attention(window = W, sink_tokens = S)

The facts "attention_window" W and "sink_tokens" S ask for it; without the first, each layer sees what the model's own
masks show. Layers that have a window or chunks keep theirs. A query at position p then sees positions below S and those
above p - W (StreamingLLM, Xiao et al. 2024, arXiv 2309.17453), and the cache frees the blocks between. What a row sees
is a function of its position alone, so a row's bits depend on nothing else.

Keys keep their own positions, where StreamingLLM numbers the positions in the cache anew. The new numbers serve texts
beyond the positions that a model was trained for, and an engine has no such positions: its max_seq_len is at most the
model's. With keys' own positions the pass is the same for every kind of positions, and prefixes can be shared.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir.facts import Facts
from tensorwright.ir.graph import Graph, Node


def limit_attention(graph: Graph) -> int:
    """Returns how many nodes of attention got a window. Raises InvalidOptionError for a window that hides nothing, and
    UnsupportedModelError for a model without full attention."""
    facts = graph.facts
    window, sinks = facts.attention_window, facts.sink_tokens
    if window == 0:
        return 0
    if window + sinks >= facts.max_seq_len:
        raise InvalidOptionError(
            f"attention_window and sink_tokens together must be below max_seq_len {facts.max_seq_len}, not "
            f"{window} + {sinks}: they would hide nothing; say smaller ones, or leave them out"
        )
    if any((layer.window, layer.sink_tokens, layer.chunked) == (window, sinks, False) for layer in facts.kv_layers):
        raise InvalidOptionError(
            f"attention_window {window} is the window that some layers of the model have themselves; say another one, "
            "or another number of sink_tokens"
        )
    limited = [i for i, layer in enumerate(facts.kv_layers) if layer.window == 0]
    if not limited:
        raise UnsupportedModelError(
            f"attention_window is for layers that attend to all positions, and {facts.model_type} has none; leave it "
            "out"
        )
    return _show(graph, limited, window, sinks)


def show_all(graph: Graph) -> None:
    """Undoes limit_attention: its layers see all positions again."""
    facts = graph.facts
    _show(graph, limited_layers(facts), 0, 0)


def limited_layers(facts: Facts) -> list[int]:
    """Returns which layers have the window that the facts ask for."""
    asked = (facts.attention_window, facts.sink_tokens, False)
    if facts.attention_window == 0:
        return []
    return [i for i, layer in enumerate(facts.kv_layers) if (layer.window, layer.sink_tokens, layer.chunked) == asked]


def _show(graph: Graph, layers: list[int], window: int, sinks: int) -> int:
    """Gives layers another window, and returns how many nodes of attention read them. The cache groups stay: all layers
    of a group have the same window."""
    facts = graph.facts
    facts.kv_layers = [
        replace(layer, window=window, sink_tokens=sinks) if i in layers else layer
        for i, layer in enumerate(facts.kv_layers)
    ]
    nodes: list[Node] = [node for node in graph.find("paged_attention") if node.attrs["layer"] in layers]
    for node in nodes:
        kept = {name: value for name, value in node.attrs.items() if name != "sink_tokens"}
        node.attrs = {**kept, "window": window, **({"sink_tokens": sinks} if sinks else {})}
    return len(nodes)
