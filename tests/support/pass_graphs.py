"""What the tests of the passes share: graphs written as text, their numbers on seeded inputs, how a pass is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tolerances import chain_tolerance

from support.lowered import MemorySource
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import Ref

LENGTH = 5
"""What "seq" stands for."""

Pass = Callable[[Graph], int]


def graph_of(body: str, stage: str = "traced") -> Graph:
    """A verified graph of these lines, which end in "return"."""
    graph = parse_graph(f'graph "test" stage {stage} {{\n{body}\n}}\n')
    verify(graph, stage)
    return graph


def source_of(graph: Graph) -> MemorySource:
    """Seeded numbers for every plain weight reference of the graph."""
    draw = np.random.default_rng(7).standard_normal
    arrays: dict[str, np.ndarray] = {}
    for node in graph.find("weight"):
        assert isinstance(node.attrs["expr"], Ref), "the tests' own graphs use plain references"
        arrays.setdefault(node.attrs["expr"].name, draw(node.output.shape).astype(np.float32))
    return MemorySource(arrays)


def inputs_of(graph: Graph, length: int = LENGTH) -> dict[str, Any]:
    """Seeded inputs: counting integers for positions, small ones for ids, normal numbers for the rest."""
    generator = torch.Generator().manual_seed(3)
    inputs: dict[str, Any] = {}
    for value in graph.inputs:
        shape = [length if d == "seq" else int(d) for d in value.shape]
        dtype = getattr(torch, value.dtype)
        if "position" in value.name:
            inputs[value.name] = torch.arange(length, dtype=dtype).expand(shape).clone()
        elif dtype.is_floating_point:
            inputs[value.name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            inputs[value.name] = torch.randint(0, 7, shape, generator=generator).to(dtype)
    return inputs


def numbers(graph: Graph, source: MemorySource, length: int = LENGTH) -> list[torch.Tensor]:
    outputs = interpret(graph, inputs_of(graph, length), checkpoint_weights(source))
    return [x.double() for x in outputs]


def assert_fires(run: Pass, before: Graph, count: int, *, exact: bool = False) -> Graph:
    """The pass rewrites `count` times, leaves a legal graph, keeps the numbers and finds nothing to do again."""
    after = before.clone()
    assert run(after) == count
    verify(after, before.stage)
    source = source_of(before)
    for x, y in zip(numbers(before, source), numbers(after, source), strict=True):
        bound = 0.0 if exact else chain_tolerance("float32", 16, 8, float(x.abs().max()))
        assert float((x - y).abs().max()) <= bound
    text = print_graph(after)
    assert run(after) == 0
    assert print_graph(after) == text
    return after


def assert_silent(run: Pass, before: Graph) -> None:
    """The pass does nothing at all: expected = before."""
    after = before.clone()
    assert run(after) == 0
    assert print_graph(after) == print_graph(before)


def ops(graph: Graph) -> list[str]:
    """The ops of a graph in order, sources aside."""
    return [n.op for n in graph.nodes if n.op not in ("input", "weight", "constant")]
