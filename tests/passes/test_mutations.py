"""The mutations of tests/mutations.py do what they are for: each changes the logits of a real model."""

import pytest
from mutations import MUTATIONS, NotApplicable, mutate
from tolerances import chain_tolerance

from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.text import print_graph

SEQUENCE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def logits(model, graph):
    return interpret_ragged(graph, [SEQUENCE], checkpoint_weights(model.checkpoint))[0]


@pytest.mark.parametrize("stage", ["cached", "lowered"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_shows_in_the_logits(rewritten, name, stage):
    model = rewritten("qwen2")
    graph = model.report.cached_graph if stage == "cached" else model.report.graph
    text = print_graph(graph)
    right, wrong = logits(model, graph), logits(model, mutate(graph, name))
    assert print_graph(graph) == text
    bound = chain_tolerance("float32", 48, 16, float(right.abs().max()))
    assert float((right - wrong).abs().max()) > 10 * bound


def test_a_model_without_the_feature_says_so(rewritten):
    with pytest.raises(NotApplicable):
        mutate(rewritten("llama").report.graph, "drop_biases")
    with pytest.raises(NotApplicable):
        mutate(rewritten("llama_mqa").report.graph, "shift_head_map")
