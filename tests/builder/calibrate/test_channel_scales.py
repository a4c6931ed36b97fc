"""Scales of input channels: what they are for, that they never cost more where they were chosen, and builds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support.planted import OUTLIERS, SAMPLE, TEXT, logits, plant_outliers
from support.tiny_models import make_variant, write_tokenizer
from tensorwright import build
from tensorwright.builder.calibrate.channel_scales import (
    Site,
    choose_scales,
    drop_ones,
    find_sites,
    scales_record,
)
from tensorwright.builder.measure.streamed_weights import StreamedWeights
from tensorwright.builder.rebuild import rebuild
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.file_names import CPU_WEIGHTS
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import CheckpointError
from tensorwright.ir.graph import Graph
from tensorwright.ir.weights import ChannelScales, scales_of
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import run_pipeline


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = make_variant(tmp_path_factory.mktemp("planted") / "model", "llama_tied", seed=5)
    plant_outliers(path)
    write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def traced(planted: Checkpoint) -> Graph:
    return trace(planted, dtype="float32", max_seq_len=128)


def cached(traced: Graph, quantize: str | None, method: str = "") -> Graph:
    graph = traced.clone()
    graph.facts.update(
        quantize=None if quantize is None else parse_spec(quantize), channel_scales=method, block_size=32
    )
    return run_pipeline(graph).cached_graph


@pytest.mark.parametrize(
    ("spec", "method", "most"),
    [("w8a8,embedding=none,lm_head=none", "smoothquant", 0.01), ("int4:g128,embedding=none,lm_head=none", "awq", 0.5)],
)
def test_planted_outliers_cost_less(
    planted: Checkpoint, traced: Graph, monkeypatch: pytest.MonkeyPatch, spec: str, method: str, most: float
) -> None:
    monkeypatch.setattr(planted, "channel_scales", {})
    exact = logits(cached(traced, None), planted)
    nearest = np.square(logits(cached(traced, spec), planted) - exact).sum()
    graph = cached(traced, spec, method)
    np.testing.assert_array_equal(logits(graph, planted), logits(cached(traced, spec), planted))  # All are ones yet.
    steps: list[tuple[int, int]] = []
    gains = choose_scales(graph, planted, SAMPLE, lambda done, total: steps.append((done, total)))
    record = scales_record(graph, gains)
    drop_ones(graph, gains)
    assert np.square(logits(graph, planted) - exact).sum() < most * nearest
    assert steps == [(i, len(gains)) for i in range(1, len(gains) + 1)]
    assert all(0 < gain <= 1 for gain in gains.values())
    assert list(record) == [
        "self_attn.q_proj+k_proj+v_proj", "self_attn.o_proj", "mlp.gate_proj+up_proj", "mlp.down_proj",
    ]  # fmt: skip
    scales = next(iter(find_sites(graph).values())).scales
    chosen = planted.channel_scales[scales.name]
    if method == "smoothquant":
        assert chosen[OUTLIERS].min() > 3 * np.delete(chosen, OUTLIERS).max()


def test_vectors_of_ones_leave_no_trace(traced: Graph) -> None:
    plain, graph = cached(traced, "int4"), cached(traced, "int4", "awq")
    numbers = {v.number for node in graph.find("weight") for v in scales_of(node.attrs["expr"])}
    assert numbers
    drop_ones(graph, dict.fromkeys(numbers, 1.0))
    before, after = ([node.attrs["expr"] for node in each.find("weight")] for each in (plain, graph))
    assert sorted(map(str, before)) == sorted(map(str, after))


def test_heads_that_share_a_head_of_v_share_its_numbers() -> None:
    scales = ChannelScales(0, 4)  # Two heads of v of two channels, each for three heads of q.
    site = Site(scales, scales.reshape([2, 1, 2]).repeat(1, 3).reshape([12]), [])
    vector = np.array([1, 2, 3, 4], np.float32)
    assert site.spread(vector).tolist() == [1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4]
    columns = np.arange(12.0)
    assert site.collect(columns, True).tolist() == [4, 5, 10, 11]
    assert site.collect(columns, False).tolist() == [2, 3, 8, 9]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_inputs_that_are_no_numbers_are_refused(
    planted: Checkpoint, traced: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted, "channel_scales", {})
    graph = cached(traced, "int4", "awq")
    monkeypatch.setattr(StreamedWeights, "__call__", lambda self, expr: torch.full(expr.shape(planted), float("inf")))
    with pytest.raises(CheckpointError, match="cannot be scaled"):
        choose_scales(graph, planted, SAMPLE, lambda done, total: None)


def test_a_build_records_its_scales_and_is_built_again(planted: Checkpoint, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    options = {"quantize": "int4", "keep_weights": True, "calibrate": "awq+gptq", "calibration_text": text}
    first = build(planted.path, tmp_path / "first", **options)
    record = first.engine_config.quantization.calibration
    assert (record.method, record.tokens, record.rounded_to_nearest) == ("awq+gptq", 80, [])
    assert all(0 < gain <= 1 for gains in record.scale_gains.values() for gain in gains)
    assert {"calibrate scales", "calibrate codes"} <= first.report["phase_seconds"].keys()
    assert "channel_scales(" in (tmp_path / "first/graph.txt").read_text()
    config = EngineConfig.from_dict(json.loads((tmp_path / "first/config.json").read_text()), tmp_path / "config.json")
    again = {"calibration_text": text, "accuracy": "none"}
    rebuild(tmp_path / "first", config, tmp_path / "again", **again)
    assert (tmp_path / "again" / CPU_WEIGHTS).read_bytes() == (tmp_path / "first" / CPU_WEIGHTS).read_bytes()
    # Without a calibration the same kept weights give the engine that never had one.
    scaled = rebuild(tmp_path / "first", config, tmp_path / "scaled", calibrate="awq", **again).engine_config
    assert scaled.quantization.calibration.rounded_to_nearest == ["embedding", "lm_head"]
    rebuild(tmp_path / "first", config, tmp_path / "plain", calibrate="none", accuracy="none")
    build(planted.path, tmp_path / "nearest", quantize="int4", accuracy="none")
    assert (tmp_path / "plain" / CPU_WEIGHTS).read_bytes() == (tmp_path / "nearest" / CPU_WEIGHTS).read_bytes()
