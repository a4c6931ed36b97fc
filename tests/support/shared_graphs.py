"""What the tests of the passes that share a graph among ranks have in common: every tiny model, cut and interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from support.cached_graphs import cached_case
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.ir import Graph
from tensorwright.ir.interpret_ranks import interpret_ranks
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.passes.pipeline import PIPELINE, run_pipeline
from tensorwright.passes.rewriting.compare import tolerance

SHARD = [phase.name for phase in PIPELINE].index("shard")
STEPS = [[11, 0], [9, 9]]


def shared(whole: Graph, tensor: int, stages: int, **facts: bool) -> list[Graph]:
    """The graphs of all ranks, in order. facts: further ones, of every rank."""
    done = {step.name: 0 for phase in PIPELINE[:SHARD] for step in phase.steps}
    graphs = []
    for rank in range(tensor * stages):
        own = whole.clone()
        own.facts.update(
            tensor_parallel=tensor, tensor_rank=rank % tensor, pipeline_parallel=stages, pipeline_rank=rank // tensor,
            **facts,
        )  # fmt: skip
        graphs.append(run_pipeline(own, pipeline=PIPELINE[SHARD : SHARD + 1], done=done).graph)
    return graphs


def whole_of(factory: pytest.TempPathFactory, variant: str) -> Graph:
    return cached_case(factory, variant).graph


def assert_same_numbers(
    factory: pytest.TempPathFactory, variant: str, tensor: int, stages: int, **facts: bool
) -> list[Graph]:
    """All ranks together compute what the whole graph does, but for the order of sums; the last ranks alike."""
    case = cached_case(factory, variant)
    graphs, weights = shared(case.graph, tensor, stages, **facts), checkpoint_weights(case.checkpoint)
    rng = np.random.default_rng(4)
    sequences = [rng.integers(3, case.graph.facts.vocab_size - 1, length).tolist() for length in (20, 9)]
    wanted = interpret_ragged(case.graph, sequences, weights, steps=STEPS)
    bound = tolerance(case.graph, max(float(logits.abs().max()) for logits in wanted))
    results = interpret_ranks(graphs, sequences, weights, steps=STEPS)
    for got in results:
        for ours, theirs in zip(got, wanted, strict=True):
            assert float((ours - theirs).abs().max()) <= bound
        assert all((a == b).all() for a, b in zip(got, results[0], strict=True))
    return graphs
