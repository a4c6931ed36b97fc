"""The graph of a model and that of its heads become one: caches, buffers and results are where the plan says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.made_heads import make_heads
from support.tiny_models import make_tiny
from tensorwright.builder.trace.export import trace_with_heads
from tensorwright.errors import PassError
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.graph import Graph
from tensorwright.ir.verify import FEATURES, verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.heads_checkpoint import open_heads_checkpoint
from tensorwright.passes.pipeline import CUDA_PIPELINE, run_pipeline
from tensorwright.passes.rewriting.join_draft_heads import join_draft_heads, model_of


@pytest.fixture(scope="module")
def traced_parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    """The traced graphs of a tiny model of three layers, and of heads for it."""
    folder = tmp_path_factory.mktemp("heads")
    target = make_tiny(folder / "model", "llama", num_hidden_layers=3)
    heads = make_heads(folder / "heads", target, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    opened = open_heads_checkpoint(Path(heads))
    model, traced = trace_with_heads(open_checkpoint(target), opened, dtype="float32", max_seq_len=64)
    for graph in (model, traced.graph):
        graph.facts.block_size = 16
    return model, traced.graph


@pytest.fixture(scope="module")
def parts(traced_parts: tuple[Graph, Graph]) -> tuple[Graph, Graph]:
    """The same, lowered."""
    model, heads = (run_pipeline(graph).graph for graph in traced_parts)
    return model, heads


@pytest.fixture(scope="module")
def cached(traced_parts: tuple[Graph, Graph]) -> tuple[Graph, Graph]:
    """The same, as target cuda takes them."""
    model, heads = (run_pipeline(graph, pipeline=CUDA_PIPELINE).graph for graph in traced_parts)
    return model, heads


def test_the_heads_follow_the_model_with_a_cache_of_their_own(parts: tuple[Graph, Graph]) -> None:
    model, heads = parts
    joined = join_draft_heads(model, heads)
    ops = [node.op for node in joined.nodes if node.op not in ("input", "weight", "constant")]
    at = ops.index("draft_features")
    assert ops.count("draft_features") == 1
    assert (ops[:at].count("paged_attention"), ops[at:].count("paged_attention")) == (3, 1)
    assert joined.facts.kv_layers == [*model.facts.kv_layers, *heads.facts.kv_layers]
    writes = [node.attrs["kv_layer"] for node in joined.find("rotary_kv_write")]
    assert writes == [0, 1, 2, 3]
    assert len([value for value in joined.inputs if value.name == "token_ids"]) == 1


def test_draft_features_names_the_buffers_of_the_results(parts: tuple[Graph, Graph]) -> None:
    joined = join_draft_heads(*parts)
    (node,) = joined.find("draft_features")
    logits, hidden = (joined.facts.buffers[node.attrs[name]] for name in ("logits", "hidden"))
    assert (logits.kind, logits.cols) == ("rows", 101)
    assert (hidden.kind, hidden.cols) == ("rows", 32)
    assert node.inputs[0] is not None
    assert node.inputs[0].shape == ("tokens", 32)


@pytest.mark.parametrize(
    ("layers", "group"),
    [
        ([KvLayer(0, 2, 8, 16), KvLayer(1, 2, 8, 0), KvLayer(0, 2, 8, 16)], 1),
        ([KvLayer(0, 2, 8, 16)] * 3, 1),
        ([KvLayer(0, 2, 8, 0)] * 3, 0),
    ],
    ids=["the group without a window", "a new group", "the only group"],
)
def test_the_cache_group_of_the_heads(parts: tuple[Graph, Graph], layers: list[KvLayer], group: int) -> None:
    model, heads = parts[0].clone(), parts[1]
    model.facts.kv_layers = layers
    assert join_draft_heads(model, heads).facts.kv_layers[-1].group == group


def test_what_cannot_be_joined_is_refused(parts: tuple[Graph, Graph]) -> None:
    model, heads = parts
    plain = model.clone()
    plain.outputs = plain.outputs[:1]
    with pytest.raises(PassError, match="must be lowered, with logits and features"):
        join_draft_heads(plain, heads)
    rows = model.clone()
    rows.outputs = [rows.outputs[0], rows.outputs[0]]
    with pytest.raises(PassError, match="must be float32 of every token"):
        join_draft_heads(rows, heads)
    windowed = heads.clone()
    windowed.facts.kv_layers = [replace(layer, window=8) for layer in heads.facts.kv_layers]
    with pytest.raises(PassError, match="attend to a window"):
        join_draft_heads(model, windowed)


def test_at_stage_cached_the_features_stay_an_output_and_an_input(parts: tuple[Graph, Graph], cached) -> None:
    model, heads = cached
    joined = join_draft_heads(model, heads)
    assert joined.stage == "cached"
    assert [value.shape for value in joined.outputs] == [
        ("rows", 101), ("tokens", 32), ("rows", 101), ("rows", 32)
    ]  # fmt: skip
    assert sorted(value.name for value in joined.inputs if value.name.startswith("kv_cache.")) == [
        f"kv_cache.{layer}" for layer in range(4)
    ]
    assert [node.attrs["layer"] for node in joined.find("rotary_kv_write")] == [0, 1, 2, 3]
    assert FEATURES in {value.name for value in joined.inputs}
    alone = model_of(joined)
    verify(alone, "cached")
    assert FEATURES not in {value.name for value in alone.inputs}
    assert len(alone.find("paged_attention")) == 3
    with pytest.raises(PassError, match="must be cached, with logits and features"):
        join_draft_heads(model, parts[1])


def test_features_of_the_norm_that_the_logits_read_are_float32(tmp_path: Path) -> None:
    target = make_tiny(tmp_path / "model", "llama", num_hidden_layers=3)
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_output": True}
    opened = open_heads_checkpoint(make_heads(tmp_path / "heads", target, **layers))
    _, traced = trace_with_heads(open_checkpoint(target), opened, dtype="bfloat16", max_seq_len=64)
    traced.graph.facts.block_size = 16
    lowered = run_pipeline(traced.graph).graph
    assert [value.dtype for value in lowered.outputs] == ["float32", "float32"]
    (norm,) = [node for node in lowered.find("rms_norm") if lowered.outputs[1] in node.outputs]
    assert norm.outputs[0].dtype == "float32"
