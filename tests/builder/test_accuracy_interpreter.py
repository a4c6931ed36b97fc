"""The accuracy record without a device: a graph rounded to the activation type, measured by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.tiny_models import load_eager, make_variant
from tensorwright.builder.measure.accuracy import Measurement
from tensorwright.builder.measure.interpreter import interpreted_logits, measure_on_interpreter, narrowed
from tensorwright.builder.measure.sample import Extent, bundled_text, text_sample
from tensorwright.builder.measure.streamed_weights import StreamedWeights
from tensorwright.builder.target.interface import Graphs
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import WEIGHT_ONLY_PIPELINE, run_pipeline

IDS = np.random.default_rng(0).integers(0, 97, 20).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Graph]:
    """Tied, so that one matrix is read in two types."""
    checkpoint = open_checkpoint(make_variant(tmp_path_factory.mktemp("qwen2") / "m", "qwen2"))
    return checkpoint, trace(checkpoint, dtype="float32", max_seq_len=64)


def graphs_of(traced: Graph, dtype: str, quantize: str | None = None, kv: str = "auto") -> Graphs:
    graph = traced.clone()
    spec = None if quantize is None else parse_spec(quantize)
    graph.facts.update(dtype=dtype, kv_cache_dtype=kv, quantize=spec)
    report = run_pipeline(graph, pipeline=WEIGHT_ONLY_PIPELINE)
    return Graphs(traced, report.cached_graph, report.graph)


def test_types(model) -> None:
    lowered = graphs_of(model[1], "float16", "int4,embedding=none", "int8").lowered
    graph = narrowed(lowered, "float16")
    kinds = {value.name: value.dtype for value in lowered.values()}
    assert kinds == {value.name: value.dtype for value in lowered.values()}, "the graph itself stays as it is"
    assert {n.output.dtype for n in graph.find("rotary_table")} == {"float32"}
    for op in ("weight_only_linear", "embedding", "add", "rms_norm", "swiglu", "gather_rows"):
        assert {n.output.dtype for n in graph.find(op)} == {"float16"}, op
    for node in graph.find("rms_norm"):
        assert node.inputs[1].dtype == "float32"
    for node in graph.find("weight_only_linear"):
        assert node.inputs[1].dtype == "float32"
        assert all(v.dtype == "float16" for v in node.inputs[2:] if v is not None)
    (table,) = (n.inputs[0] for n in graph.find("embedding"))
    assert table.dtype == "float16"
    assert {about.dtype for about in graph.facts.kv_layers} == {"int8"}
    assert not graph.find("add_rms_norm")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_further_from_float32_than_transformers_is(model, dtype: str) -> None:
    checkpoint, traced = model
    graph = graphs_of(traced, dtype).lowered
    blocks = list(interpreted_logits(graph, checkpoint, IDS, dtype, 8, StreamedWeights(checkpoint)))
    assert [len(block) for block in blocks] == [8, 8, 4]
    got = np.concatenate(blocks)
    with torch.no_grad():
        exact, theirs = (
            load_eager(checkpoint.path, kind)(torch.tensor([IDS])).logits[0].double().numpy()
            for kind in ("float32", dtype)
        )
    ours, others = (float(np.sqrt(np.mean((x - exact) ** 2))) for x in (got.astype(np.float64), theirs))
    # Theirs rounds more often (every norm and gate in parts), ours keeps tables and norms in float32.
    assert 0 < ours <= 1.2 * others


def test_record(model) -> None:
    checkpoint, traced = model
    graphs = graphs_of(traced, "bfloat16", "int4,embedding=none")
    text = text_sample(bundled_text(), checkpoint.path / "tokenizer.json", Extent(64, 48), traced.facts.vocab_size)
    threads = torch.get_num_threads()
    record = measure_on_interpreter(graphs, checkpoint, Measurement("quick", text), "bfloat16")
    assert torch.get_num_threads() == threads
    assert record["measured_on"] == "graph interpreter"
    assert 0 < record["largest_logit_error"] < record["largest_reference_logit"]
    assert (record["windows"], record["tokens"]) == (2, 64)
    assert record["output_errors"]["lm_head"][0] > 0
    better = measure_on_interpreter(graphs_of(traced, "float32"), checkpoint, Measurement("quick", text), "float32")
    assert better["largest_logit_error"] < 1e-4 * better["largest_reference_logit"]
    assert better["kl_divergence"] < record["kl_divergence"]
