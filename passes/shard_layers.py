"""shard_layers:  the layers of the model  ->  those of this stage, between receive and send

The stages of a pipeline have layers that follow each other, cut so that the widest has as little to compute as can be.
What a later stage reads of an earlier one is sent from stage to stage; what is computed of positions and constants
alone, such as the tables of rotations, every stage computes for itself. The first stage embeds the tokens, and the last
one computes the logits. The caches and states of a stage are counted from 0 again.

The facts pipeline_parallel and pipeline_rank say who shares; with one stage nothing is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensorwright.errors import InvalidOptionError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.graph import SOURCES
from tensorwright.ir.ops import elements_of, infer, matrices_of
from tensorwright.ir.row_purity import is_per_row
from tensorwright.passes.rewriting.rewriter import make_node, sort_nodes

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
"""The number of a layer in the path of a module."""


def shard_layers(graph: Graph) -> int:
    """Returns how many values this stage receives and sends.

    Raises InvalidOptionError if there are fewer layers than stages.
    """
    stages, stage = graph.facts.pipeline_parallel, graph.facts.pipeline_rank
    if stages == 1 or graph.find("send") or graph.find("receive"):
        return 0
    of_node = assign_stages(graph, stages)
    cheap = _computed_by_all(graph)
    received = _crossing(graph, of_node, cheap, stage)
    sent = _crossing(graph, of_node, cheap, stage + 1) if stage + 1 < stages else []
    forward: dict[Value, Value] = {}
    receives: list[Node] = []
    sends: list[Node] = []
    positions = graph.value("positions")
    for number, value in enumerate(received):
        attrs = {"message": number, "columns": int(value.shape[1])}
        types = infer("receive", [positions], attrs)
        node = make_node(graph, "receive", [positions], attrs, types, value.producer.scope, value.name)
        forward[value] = node.output
        receives.append(node)
    mine = [n for n in graph.nodes if n.op in SOURCES or id(n) in cheap or of_node[id(n)] == stage]
    for node in mine:
        node.inputs = [None if v is None else forward.get(v, v) for v in node.inputs]
    ends: list[Value] = []
    for number, value in enumerate(sent):
        x = forward.get(value, value)
        node = make_node(graph, "send", [x], {"message": number}, [(x.dtype, x.shape)], x.producer.scope, x.name)
        sends.append(node)
        ends.append(node.output)
    # Messages are received in the order in which they are sent: all before the layers, and all behind them.
    sources = [n for n in mine if n.op in SOURCES]
    graph.nodes = [*sources, *receives, *(n for n in mine if n.op not in SOURCES), *sends]
    if stage + 1 < stages:
        graph.outputs = ends
    graph.drop_dead()
    sort_nodes(graph)
    _renumber(graph)
    return len(received) + len(sent)


def assign_stages(graph: Graph, stages: int) -> dict[int, int]:
    """Returns the stage of each node, by its id: no node is of an earlier stage than what it reads."""
    layers = _layers(graph)
    names = sorted({layer for layer in layers.values() if layer is not None})
    if len(names) < stages:
        raise InvalidOptionError(
            f"pipeline_parallel must be at most {len(names)}, the layers of the model, not {stages}"
        )
    work = dict.fromkeys(names, 0)
    for node in graph.nodes:
        layer = layers[id(node)]
        if layer is not None:
            work[layer] += elements_of(node)
    ends = sum(elements_of(n) for n in graph.nodes if layers[id(n)] is None and n.outputs[0].shape[:1] == ("rows",))
    cuts = cut_evenly([work[name] for name in names], stages, ends)
    stage_of = {name: sum(at >= end for end in cuts) for at, name in enumerate(names)}
    found: dict[int, int] = {}
    for node in graph.nodes:
        layer = layers[id(node)]
        after = [found[id(v.node)] for v in node.inputs if v is not None and v.node is not None]
        own = 0 if layer is None else stage_of[layer]
        if layer is None and node.outputs[0].shape[:1] == ("rows",):
            own = stages - 1
        found[id(node)] = max([own, *after])
    return found


def cut_evenly(work: list[int], stages: int, last: int) -> list[int]:
    """Returns after how many layers each stage but the last one ends, such that the most work of a stage is least.

    last: the work of the last stage beside its layers. Every stage has a layer.
    """
    count = len(work)
    sums = [0]
    for each in work:
        sums.append(sums[-1] + each)
    best: list[list[tuple[int, int]]] = [[(sums[end], 0) for end in range(count + 1)]]
    for stage in range(1, stages):
        extra = last if stage == stages - 1 else 0
        row = []
        for end in range(count + 1):
            options = [(max(best[-1][at][0], sums[end] - sums[at] + extra), at) for at in range(stage, end)]
            row.append(min(options, default=(sums[-1] + last + 1, 0)))
        best.append(row)
    cuts: list[int] = []
    end = count
    for stage in range(stages - 1, 0, -1):
        end = best[stage][end][1]
        cuts.append(end)
    return cuts[::-1]


def _layers(graph: Graph) -> dict[int, int | None]:
    """Returns the number of the layer of each node; None for what is before, after or beside the layers."""
    found: dict[int, int | None] = {}
    for node in graph.nodes:
        match = _LAYER.search(node.scope)
        found[id(node)] = int(match[1]) if match and node.op not in SOURCES else None
    return found


def _computed_by_all(graph: Graph) -> set[int]:
    """Returns the nodes that depend on positions, constants and small weights alone, not on tokens or caches."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op in SOURCES or matrices_of(node) or any(v.is_cache for v in node.outputs):
            continue
        operands = [v for v in node.inputs if v is not None]
        if all(v.node is not None and (v.node.op in SOURCES or id(v.node) in found) for v in operands) and not any(
            v.is_cache or v.name == "token_ids" for v in operands
        ):
            found.add(id(node))
    return found


def _crossing(graph: Graph, of_node: dict[int, int], cheap: set[int], stage: int) -> list[Value]:
    """Returns the values of earlier stages that `stage` or a later one reads, in order."""

    def reads(node: Node) -> Iterable[Value]:
        return (v for v in node.inputs if v is not None and v.node is not None and v.node.op not in SOURCES)

    wanted = {
        v
        for node in graph.nodes
        if node.op not in SOURCES and id(node) not in cheap and of_node[id(node)] >= stage
        for v in reads(node)
        if id(v.node) not in cheap and of_node[id(v.node)] < stage
    }
    for value in wanted:
        if value.is_cache or not is_per_row(value) or value.shape[0] != "tokens":
            raise InvalidOptionError(
                f"pipeline_parallel: a layer reads %{value.name} of {value.producer.scope}, which cannot be sent from "
                "stage to stage"
            )
    return [v for node in graph.nodes for v in node.outputs if v in wanted]


def _renumber(graph: Graph) -> None:
    """Counts the caches and states that are left from 0."""
    kept = [v for v in graph.inputs if v.is_cache]
    read = {v for node in graph.nodes for v in node.inputs}
    graph.nodes = [n for n in graph.nodes if n.op != "input" or n.output not in kept or n.output in read]
    for prefix, attr, fact in (("kv_cache.", "layer", "kv_layers"), ("state.", "state", "state_layers")):
        old = [int(v.name.removeprefix(prefix)) for v in graph.inputs if v.name.startswith(prefix)]
        place = {layer: i for i, layer in enumerate(old)}
        for value in graph.inputs:
            if value.name.startswith(prefix):
                value.name = f"{prefix}{place[int(value.name.removeprefix(prefix))]}"
        for node in graph.nodes:
            if attr in node.attrs and node.op not in SOURCES:
                node.attrs[attr] = place[node.attrs[attr]]
        setattr(graph.facts, fact, [getattr(graph.facts, fact)[layer] for layer in old])
    graph.restart_names()
