"""Heads that propose tokens on target cuda: features, passes of the heads and their own features equal the graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerances import chain_tolerance

from support.cuda_heads import BLOCK, HeadsCase, make_case
from support.cuda_model import CudaModel, CudaSteps
from support.plugin_form import SEQUENCES, STEPS, finite, rms
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.cuda.emit import plan_graph
from tensorwright.builder.emit.cuda.heads import parts_of
from tensorwright.builder.measure.interpreter import narrowed
from tensorwright.errors import LoweringError
from tensorwright.ir import Graph
from tensorwright.ir.facts import StateLayer
from tensorwright.ir.interpret_ops import torch_dtype
from tensorwright.ir.ops import summing_ops
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.verify import FEATURES

Rows = list[np.ndarray]
"""[rows, columns] float64 of each sequence."""


class Oracle:
    """The outputs of a graph beside each other, by the interpreter: as the engine's types round, and unrounded."""

    def __init__(self, case: HeadsCase, graph: Graph, sequences: list[list[int]], features: Rows | None = None):
        self.graph = graph
        exact = graph.clone()
        exact.facts.kv_layers = [replace(layer, dtype="float32") for layer in exact.facts.kv_layers]
        weights = checkpoint_weights(case.checkpoint)

        def run(form: Graph) -> Rows:
            kinds = [torch_dtype(value.dtype) for value in form.inputs if value.name == FEATURES]
            given = features and [torch.from_numpy(one).to(kinds[0]) for one in features]
            found = interpret_ragged(form, sequences, weights, block_size=BLOCK, features=given)
            return [one.double().numpy() for one in found]

        self.rounded, self.exact = run(narrowed(graph, graph.facts.dtype)), run(exact)

    def excess(self, ours: Rows, part: Callable[[np.ndarray], np.ndarray]) -> float:
        """The error of a part of each sequence's outputs, as a multiple of what is allowed (PluginModel.excess)."""
        rounded, exact = [part(one) for one in self.rounded], [part(one) for one in self.exact]
        assert [one.shape for one in ours] == [one.shape for one in rounded]
        if self.graph.facts.dtype != "float32":
            return finite(rms(ours, rounded) / rms(rounded, exact)) / math.sqrt(2)
        largest = max(float(np.abs(one).max()) for one in rounded)
        widest = max(d for v in self.graph.values() for d in v.shape if isinstance(d, int))
        length = sum(node.op in summing_ops() for node in self.graph.nodes)
        error = max(float(np.abs(a - b).max()) for a, b in zip(ours, rounded, strict=True))
        return finite(error) / chain_tolerance("float32", widest, length, largest)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("eagle3", {}, marks=pytest.mark.slow),
        ("eagle3", {"dtype": "bfloat16", "norm_before_fc": True, "norm_output": True, "draft_vocab": 40}),
        pytest.param("eagle3", {"dtype": "float16", "quantize": "int4", "kv": "int8"}, marks=pytest.mark.slow),
        ("mtp", {}),
        ("medusa", {}),
        pytest.param("medusa", {"dtype": "bfloat16", "blocks": 2}, marks=pytest.mark.slow),
    ],
)
def test_heads_equal_the_interpreter(tmp_path: Path, interpreter, kind: str, options: dict) -> None:
    """Chunks of the model leave features, from which the heads compute all positions; then one position more, from a
    feature of their own, as they compute what is behind a proposed token."""
    case = make_case(tmp_path, kind, **options)
    model = CudaModel(case.checkpoint, case.joined, interpreter)
    steps = CudaSteps(model)
    pieces = [steps.run(counts) for counts in STEPS]
    logits = [np.concatenate([piece[i] for piece in pieces]) for i in range(len(SEQUENCES))]
    features = steps.features()
    columns = logits[0].shape[1]
    theirs = Oracle(case, case.model, SEQUENCES)
    assert theirs.excess(logits, lambda one: one[:, :columns]) <= 1
    assert theirs.excess(features, lambda one: one[:, columns:]) <= 1

    known = [[*tokens[1:], 11] for tokens in SEQUENCES]
    lengths = [len(tokens) - 1 for tokens in known]
    batch = steps.batch(known)
    said = steps.run_heads(batch, lengths)
    first = [one[:-1] for one in features]
    theirs = Oracle(case, case.heads, [tokens[:-1] for tokens in known], first)
    columns = said[0].shape[1]
    assert theirs.excess(said, lambda one: one[:, :columns]) <= 1
    if kind == "medusa":  # they say all tokens at once
        return
    own = [one[-1:] for one in steps.features()]
    assert theirs.excess(own, lambda one: one[-1:, columns:]) <= 1
    further = [np.concatenate(both) for both in zip(first, own, strict=True)]
    again = steps.run_heads(batch, [1] * len(known))
    assert Oracle(case, case.heads, known, further).excess(again, lambda one: one[-1:, :columns]) <= 1


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> HeadsCase:
    return make_case(tmp_path_factory.mktemp("eagle"), "eagle3", dtype="bfloat16")


def test_the_parts_of_a_joined_graph(eagle: HeadsCase) -> None:
    """The model is what it is without heads; only what the features need is computed for them."""
    parts = parts_of(eagle.joined)
    alone = eagle.model.clone()
    alone.outputs = alone.outputs[:1]
    alone.drop_dead()
    assert [node.op for node in parts.model] == [node.op for node in parts_of(alone).model]
    assert [node.op for node in parts.features] == ["concat", "linear"]
    assert "paged_attention" in [node.op for node in parts.heads]
    assert parts_of(alone).features == parts_of(alone).heads == []


def test_a_graph_without_heads_has_the_same_calls(eagle: HeadsCase) -> None:
    """What heads add stands behind what a step without them starts."""
    alone = eagle.model.clone()
    alone.outputs = alone.outputs[:1]
    alone.drop_dead()
    plain, joined = (plan_graph(graph, eagle.checkpoint, "bfloat16", (64, 64, 8)) for graph in (alone, eagle.joined))
    assert plain.heads is None
    assert joined.heads is not None
    assert joined.draws is not None
    names = [call.text for call in joined.emitter.calls[: joined.heads.first_feature]]
    assert names == [call.text for call in plain.emitter.calls]
    assert joined.block_bytes == plain.block_bytes * 3 // 2 + BLOCK * joined.heads.width * 2, "a layer and features"


def test_recurrent_layers_have_no_heads(eagle: HeadsCase) -> None:
    graph = eagle.joined.clone()
    graph.facts.state_layers = [StateLayer(64)]
    with pytest.raises(LoweringError, match="states of recurrent layers cannot be taken back"):
        plan_graph(graph, eagle.checkpoint, "bfloat16", (64, 64, 8))
