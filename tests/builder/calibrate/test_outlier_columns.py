"""Columns that products keep: that planted outliers are found and cost nothing then, and builds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.planted import OUTLIERS, SAMPLE, TEXT, logits, plant_outliers
from support.tiny_models import make_variant, write_tokenizer
from tensorwright import build
from tensorwright.builder.calibrate.outlier_columns import best_count, choose_columns, columns_record
from tensorwright.builder.rebuild import rebuild
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.file_names import CPU_WEIGHTS
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import PIPELINE, run_pipeline

SPEC = "w8a8,embedding=none,lm_head=none"
BEHIND_NORMS = ["self_attn.q_proj+k_proj+v_proj", "mlp.gate_proj+up_proj"]
OTHERS = ["self_attn.o_proj", "mlp.down_proj"]


def made(folder: Path, *, outliers: bool) -> Checkpoint:
    path = make_variant(folder / "model", "llama_tied", seed=5)
    if outliers:
        plant_outliers(path)
    write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return made(tmp_path_factory.mktemp("planted"), outliers=True)


def cached(checkpoint: Checkpoint, quantize: str | None) -> Graph:
    """The graph before it is quantized."""
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    graph.facts.update(quantize=None if quantize is None else parse_spec(quantize), block_size=32)
    return run_pipeline(graph, pipeline=PIPELINE[:-2]).graph


def finished(graph: Graph, columns: dict[str, list[int]]) -> Graph:
    graph = graph.clone()
    graph.facts.outlier_columns = columns
    done = {step.name: 0 for phase in PIPELINE[:-2] for step in phase.steps}
    return run_pipeline(graph, pipeline=PIPELINE[-2:], done=done).cached_graph


@pytest.mark.parametrize("spec", [SPEC, "int4:g128,embedding=none,lm_head=none", "w4a8,embedding=none,lm_head=none"])
def test_planted_outliers_are_kept_and_cost_nothing(planted: Checkpoint, spec: str) -> None:
    graph = cached(planted, spec)
    steps: list[tuple[int, int]] = []
    columns = choose_columns(graph, planted, parse_spec(spec), SAMPLE, lambda done, total: steps.append((done, total)))
    assert list(columns.values()) == [OUTLIERS] * 4, "those behind the norms of both layers, and no others"
    assert steps == [(i, 8) for i in range(1, 9)]
    exact = logits(cached(planted, None), planted)
    nearest, kept = (np.square(logits(finished(graph, each), planted) - exact).sum() for each in ({}, columns))
    assert kept < (0.01 if spec == SPEC else 0.5) * nearest
    record = columns_record(finished(graph, columns))
    assert record == {**{name: [2, 2] for name in BEHIND_NORMS}, **{name: [0, 0] for name in OTHERS}}


def test_columns_must_save_more_than_as_many_bits_for_every_weight() -> None:
    counts = [0, 1, 2, 4]
    assert best_count(np.array([1.0, 0.9, 0.8, 0.3]), counts, 4096) == 0, "less than a bit for every weight saves"
    assert best_count(np.array([1.0, 0.2, 0.19, 0.18]), counts, 64) == 1, "two would cost half a bit for 5 %"
    assert best_count(np.array([1.0, 0.2, 0.1, 0.099]), counts, 4096) == 2
    assert best_count(np.zeros(4), counts, 64) == 0


def test_a_matrix_that_multiplies_several_values_keeps_none(planted: Checkpoint) -> None:
    graph = cached(planted, SPEC)
    first, second = (node for node in graph.find("linear") if node.scope.endswith("mlp"))
    second.inputs[1] = first.operand(1)
    columns = choose_columns(graph, planted, parse_spec(SPEC), SAMPLE, lambda done, total: None)
    assert len(columns) == 2


def test_a_build_records_its_columns_and_is_built_again(planted: Checkpoint, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    options = {"quantize": f"{SPEC},*.o_proj.*=int8", "keep_weights": True, "calibration_text": text}
    first = build(planted.path, tmp_path / "first", calibrate="outliers+gptq", **options)
    quantization = first.engine_config.quantization
    record = quantization.calibration
    assert (record.method, record.tokens, record.rounded_to_nearest) == ("outliers+gptq", 80, [])
    assert [record.outlier_columns[name] for name in BEHIND_NORMS] == [[2, 2], [2, 2]]
    assert quantization.formats["self_attn.q_proj+k_proj+v_proj"] == ["w8a8", "w8a8"], "not that of what is kept"
    assert "calibrate columns" in first.report["phase_seconds"]
    config = EngineConfig.from_dict(json.loads((tmp_path / "first/config.json").read_text()), tmp_path / "config.json")
    again = {"calibration_text": text, "accuracy": "none"}
    rebuild(tmp_path / "first", config, tmp_path / "again", **again)
    assert (tmp_path / "again" / CPU_WEIGHTS).read_bytes() == (tmp_path / "first" / CPU_WEIGHTS).read_bytes()
    # Without a calibration the same kept weights give the engine that never had one, and back.
    plain = rebuild(tmp_path / "first", config, tmp_path / "plain", calibrate="none", accuracy="none").engine_config
    build(planted.path, tmp_path / "nearest", quantize=options["quantize"], accuracy="none", keep_weights=True)
    assert (tmp_path / "plain" / CPU_WEIGHTS).read_bytes() == (tmp_path / "nearest" / CPU_WEIGHTS).read_bytes()
    back = rebuild(tmp_path / "plain", plain, tmp_path / "back", calibrate="outliers+gptq", **again)
    assert back.engine_config.quantization.calibration == record
    assert (tmp_path / "back" / CPU_WEIGHTS).read_bytes() == (tmp_path / "first" / CPU_WEIGHTS).read_bytes()
    # The bits of what is kept count, in float32, and its weights do not count twice.
    before, after = (each.quantization.bits_per_weight["layers"] for each in (plain, first.engine_config))
    shapes = [tuple(map(int, node.operand(1).shape)) for node in cached(planted, None).find("linear")][:4]
    rows = dict(zip(record.outlier_columns, (shape[0] for shape in shapes), strict=True))
    kept = sum(rows[name] * sum(counts) for name, counts in record.outlier_columns.items())
    weights = 2 * sum(n * k for n, k in shapes)
    assert after - before == pytest.approx(32 * kept / weights, rel=1e-2)


def test_a_model_without_outliers_has_the_bytes_of_an_uncalibrated_engine(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, outliers=False)
    spec = f"{SPEC},*.down_proj.*=none"  # A product of gate and up has a few large numbers, whatever the weights.
    built = build(checkpoint.path, tmp_path / "outliers", quantize=spec, calibrate="outliers", accuracy="none")
    record = built.engine_config.quantization.calibration
    assert record.outlier_columns == {name: [0, 0] for name in (*BEHIND_NORMS, "self_attn.o_proj")}
    build(checkpoint.path, tmp_path / "nearest", quantize=spec, accuracy="none")
    for name in (CPU_WEIGHTS, "cpu/plan.bin", "graph.txt"):
        assert (tmp_path / "outliers" / name).read_bytes() == (tmp_path / "nearest" / name).read_bytes()
