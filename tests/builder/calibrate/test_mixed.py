"""Formats by measured sensitivity: what is measured, on what, and that a mixed engine is nearer to the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support.tiny_models import make_variant, write_tokenizer
from tensorwright import build
from tensorwright.builder.calibrate.choose_formats import open_matrices
from tensorwright.builder.calibrate.mixed import spread_sequences
from tensorwright.builder.calibrate.sensitivity import Costs, Sensitivity
from tensorwright.builder.measure.reference import reference_inputs
from tensorwright.builder.measure.streamed_weights import StreamedWeights
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.rebuild import rebuild
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.engine_config import BUILT_IN_TEXT, EngineConfig
from tensorwright.engine_format.weight_formats import Choice, QuantizeSpec, parse_format, parse_spec
from tensorwright.errors import InvalidOptionError
from tensorwright.ir.graph import Graph
from tensorwright.ir.walk import Walk
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.passes.quantize_weights import quantize_weights

IDS = np.random.default_rng(1).integers(3, 100, 40).tolist()
FORMATS = tuple(map(parse_format, ("int4:g32", "int8:g32")))
CHOICE = Choice(5.0)


def cached_graph(checkpoint: Checkpoint) -> Graph:
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    graph.facts.block_size = 32
    return run_pipeline(graph).cached_graph


def log_probabilities(graph: Graph, checkpoint: Checkpoint) -> torch.Tensor:
    with StreamedWeights(checkpoint) as weights:
        graph, inputs = reference_inputs(graph, checkpoint, IDS)
        (logits,) = Walk(graph, inputs, weights).finish()
    return torch.log_softmax(logits.double(), dim=-1)


@pytest.mark.parametrize("variant", ["llama_tied", "deepseek_v3_experts"])
def test_a_divergence_is_that_of_the_model_with_one_matrix_rounded(tmp_path: Path, variant: str) -> None:
    """The walk to the matrix is shared. The oracle runs the whole graph anew for each matrix."""
    checkpoint = open_checkpoint(make_variant(tmp_path / "model", variant))
    cached = cached_graph(checkpoint)
    matrices = open_matrices(cached, QuantizeSpec(CHOICE, CHOICE, CHOICE), CHOICE, FORMATS)
    few = [matrices[0], *matrices[-3:]]
    told: list[tuple[int, int]] = []
    found = Sensitivity(cached, checkpoint, [IDS], 16).measure(
        few, {matrix: [FORMATS[0]] for matrix in few}, lambda done, total: told.append((done, total))
    )
    exact = log_probabilities(cached, checkpoint)
    for matrix in few:
        graph = cached.clone()
        names = ",".join(f"{name}=int4" for name in matrix.names)
        graph.facts.quantize = parse_spec(f"none,{names}")
        assert quantize_weights(graph) > 0
        got = log_probabilities(graph, checkpoint)
        expected = float((exact.exp() * (exact - got)).sum(-1).mean())
        assert expected > 1e-8
        # Both are sums of 100 float32 logarithms per position, each rounded to half a step of numbers below 8.
        assert found[matrix].divergences[FORMATS[0]] == pytest.approx(expected, rel=0.02, abs=100 * 2.0**-22)
        assert 0 < found[matrix].errors[FORMATS[1]] < found[matrix].errors[FORMATS[0]] / 16
    assert told == [(n + 1, len(few)) for n in range(len(few))]


def test_the_cost_of_another_format_follows_its_error() -> None:
    int4, int8 = FORMATS
    costs = Costs({int4: 0.02, int8: 0.0001}, {int4: 0.5})
    assert costs.cost(int4) == 0.5
    assert costs.cost(int8) == pytest.approx(0.0025)
    assert Costs({int4: 0.0, int8: 0.0}, {int4: 0.0}).cost(int8) == 0


def test_sequences_lie_evenly_over_the_text() -> None:
    sequences = [list(range(i, i + 256)) for i in range(0, 256 * 32, 256)]
    found = spread_sequences(sequences, 512)
    assert [part[0] for part in found] == [0, 2048, 4096, 6144]
    assert {len(part) for part in found} == {128}
    assert [len(part) for part in spread_sequences(sequences[:1], 100)] == [100]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose second layer's MLP hardly counts: its matrices that add to the residual are a hundredth."""
    from safetensors.torch import load_file, save_file

    path = make_variant(tmp_path_factory.mktemp("uneven") / "model", "llama", seed=3)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 0.01
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])
    return path


def test_matrices_that_do_not_count_get_the_fewest_bits(uneven: Path, tmp_path: Path) -> None:
    options = {"dtype": "float32", "accuracy_tokens": 64}
    mixed = build(uneven, tmp_path / "mixed", quantize="mixed:7", calibrate="gptq", keep_weights=True, **options).config
    record = mixed["quantization"]
    bits = {
        name: [None if fmt == "none" else parse_format(fmt).bits for fmt in row]
        for name, row in record["formats"].items()
    }
    fewest, most = (of(count for row in bits.values() for count in row if count is not None) for of in (min, max))
    assert bits["mlp.down_proj"][1] == bits["mlp.gate_proj+up_proj"][1] == fewest
    assert most == 8
    assert record["bits_per_weight"]["all"] < 7.5  # Norms take space too.
    choice = record["choice"]
    assert (choice["method"], choice["text"]) == ("mixed", BUILT_IN_TEXT)
    assert set(choice["divergences"]) == set(record["formats"])
    assert record["calibration"]["method"] == "gptq"
    config = EngineConfig.from_dict(mixed, tmp_path / "mixed")
    again = rebuild(tmp_path / "mixed", config, tmp_path / "again", keep_weights=False)
    assert again.config["quantization"] == record
    for name in ("cpu/weights.bin", "graph.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "mixed" / name).read_bytes()


def test_a_text_may_be_given_for_mixed_formats() -> None:
    BuildOptions(quantize="mixed:4.5", calibration_text="my.txt")
    with pytest.raises(InvalidOptionError, match="calibration_text is for a calibrated build, or one of mixed formats"):
        BuildOptions(quantize="int4", calibration_text="my.txt")
    with pytest.raises(InvalidOptionError, match=r"chooses codes, and quantize='kept,.*keeps those of the checkpoint"):
        BuildOptions(quantize="kept,lm_head=int8", calibrate="gptq")
    with pytest.raises(InvalidOptionError, match=r"calibrate='awq' scales channels for formats that are named"):
        BuildOptions(quantize="mixed:4.5", calibrate="awq")
