"""limit_kv_cache:  paged_attention(window = 0)  ->  paged_attention(window = 0, kept = K, sinks = S, recent = R, ...)

The fact "kv_budget" asks for it; without it, sequences keep all blocks. Layers that have a window or chunks keep
theirs. Of each other cache group a sequence then keeps K blocks at each multiple of "kv_interval" positions: the first
S, which hold the "sink_tokens", the last R, which hold the "recent_tokens", and of the others those that got the
largest shares of attention (H2O, Zhang et al. 2023, arXiv 2306.14048; whole blocks: PagedEviction, arXiv 2509.04377).
Later rows do not see the others, and the cache frees them (runtime/core/ops/kept_blocks.h).

The scores of a group's blocks are a state of the sequence, a further one in the fact "state_layers"; the attribute
`scores` is its number and 1. Keys keep their own positions.
"""

from __future__ import annotations

from typing import Any

from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir.facts import Facts, StateLayer
from tensorwright.ir.graph import Graph
from tensorwright.plugins.paged_attention.op import BUDGET


def limit_kv_cache(graph: Graph) -> int:
    """Returns how many nodes of attention got a budget. Raises InvalidOptionError for a budget that no sequence reaches
    or that leaves no choice, and UnsupportedModelError for a model without full attention."""
    facts = graph.facts
    if facts.kv_budget == 0:
        return 0
    budget = _blocks_of(facts)
    groups = sorted({layer.group for layer in facts.kv_layers if layer.window == 0})
    if not groups:
        raise UnsupportedModelError(
            f"kv_budget is for layers that attend to all positions, and {facts.model_type} has none; leave it out"
        )
    layers = list(facts.state_layers)
    scores = {group: len(layers) + 1 + i for i, group in enumerate(groups)}
    facts.state_layers = [*layers, *[StateLayer(_state_bytes(facts)) for _ in groups]]
    nodes = [node for node in graph.find("paged_attention") if facts.kv_layers[node.attrs["layer"]].group in scores]
    for node in nodes:
        node.attrs = {**node.attrs, **budget, "scores": scores[facts.kv_layers[node.attrs["layer"]].group]}
    return len(nodes)


def keep_all(graph: Graph) -> None:
    """Undoes limit_kv_cache: sequences keep all blocks again."""
    nodes = [node for node in graph.find("paged_attention") if "scores" in node.attrs]
    if not nodes:
        return
    first = min(node.attrs["scores"] for node in nodes) - 1
    graph.facts.state_layers = graph.facts.state_layers[:first]
    for node in nodes:
        node.attrs = {name: value for name, value in node.attrs.items() if name not in BUDGET}


def _blocks_of(facts: Facts) -> dict[str, Any]:
    """Returns the attributes of a budget but `scores`. Raises InvalidOptionError."""
    size, interval = facts.block_size, max(facts.kv_interval, facts.block_size)
    kept, sinks, recent = facts.kv_budget // size, -(-facts.sink_tokens // size), -(-facts.recent_tokens // size)
    if kept <= sinks + recent:
        raise InvalidOptionError(
            f"kv_budget {facts.kv_budget} holds {kept} blocks of {size} positions, and {sinks} with sink_tokens and "
            f"{recent} with recent_tokens stay whatever their scores: none is left to choose; say a larger budget, or "
            "attention_window, which keeps the first and the last positions alone"
        )
    first = (kept * size // interval + 1) * interval
    if first >= facts.max_seq_len:
        raise InvalidOptionError(
            f"kv_budget {facts.kv_budget} would make no sequence forget anything: the first decision that has too many "
            f"blocks is at position {first}, and max_seq_len is {facts.max_seq_len}; say a smaller budget, or leave it "
            "out"
        )
    return {"kept": kept, "sinks": sinks, "recent": max(1, recent), "interval": interval}


def _state_bytes(facts: Facts) -> int:
    """Returns the bytes of the scores of a sequence's blocks: equal to kept_bytes of runtime/core/plan/plan.h."""
    blocks = -(-facts.max_seq_len // facts.block_size)
    return -(-9 * blocks // 64) * 64
