"""What config.json says of quantized weights: bits as stored, errors of weights and of outputs by place."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from support.lowered import MemorySource
from support.tiny_models import make_variant
from tensorwright.builder.build import build
from tensorwright.builder.emit import quantization_record
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.cpu_weights import StoredPanels
from tensorwright.builder.emit.quantized_weights import PackedPanels, QuantizingWeights
from tensorwright.builder.measure.accuracy import Measurement, measure_accuracy
from tensorwright.builder.measure.outputs import output_errors
from tensorwright.builder.measure.sample import Extent, bundled_text, text_sample
from tensorwright.builder.measure.streamed_weights import StreamedMatrix, StreamedWeights, stored
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.weight_formats import parse_format, parse_spec
from tensorwright.errors import CheckpointError
from tensorwright.ir.ops import matrices_of
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models import read_weights
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.dtypes import Tensor
from tensorwright.models.read_weights import Ranges
from tensorwright.passes.pipeline import PassReport, run_pipeline
from tensorwright.plugins.quantized_matmul import linear, quantize

MATRICES = ["mlp.down_proj", "mlp.gate_proj+up_proj", "self_attn.o_proj", "self_attn.q_proj+k_proj+v_proj"]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_variant(tmp_path_factory.mktemp("record") / "model", "qwen2"))


@pytest.fixture(scope="module")
def built(tied: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("built") / "engine"
    return build(tied.path, out, quantize="int4,lm_head=w8a8").config | {"path": str(out)}


def rewritten(checkpoint: Checkpoint, quantize: str) -> PassReport:
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    graph.facts.update(quantize=parse_spec(quantize), block_size=32)
    return run_pipeline(graph)


def relative_error(w: np.ndarray, name: str) -> float:
    lost = w - quantize.dequantized(quantize.quantize_weights(w, parse_format(name)), w.shape[1])
    return float(np.linalg.norm(lost) / np.linalg.norm(w))


def test_errors_of_weights_are_those_of_the_definition(built: dict, tied: Checkpoint) -> None:
    record = built["quantization"]
    assert record["spec"] == "int4:g32,embedding=int4:g32,lm_head=w8a8"
    assert record["tied"] is True
    errors = record["weight_errors"]
    assert sorted(errors) == sorted(["embedding", "lm_head", *MATRICES])
    down = [tied.read(f"model.layers.{i}.mlp.down_proj.weight").data for i in range(2)]
    assert errors["mlp.down_proj"] == [pytest.approx(relative_error(w, "int4:g32"), rel=0.01) for w in down]
    table = tied.read("model.embed_tokens.weight").data  # one matrix, two formats, two errors
    assert errors["embedding"] == [pytest.approx(relative_error(table, "int4:g32"), rel=0.01)]
    assert errors["lm_head"] == [pytest.approx(relative_error(table, "w8a8"), rel=0.01)]


def test_bits_are_bytes_as_stored(built: dict) -> None:
    bits = built["quantization"]["bits_per_weight"]
    # 101 rows are 7 panels of 16; a panel of one group of 32 columns has 64 bytes of scales, of which half are used.
    assert bits["embedding"] == pytest.approx(8 * 7 * (64 + 32 * 16 // 2) / (101 * 32), rel=1e-3)
    assert bits["lm_head"] == pytest.approx(8 * 7 * (64 + 32 * 16) / (101 * 32), rel=1e-3)
    size = built["sizes"]["cpu/weights.bin"]
    header = (Path(built["path"]).parent / "engine/cpu/plan.bin").read_bytes()
    assert struct.unpack_from("<Q", header, 24)[0] == size
    weights = 101 * 32 + 2 * (32 * 64 + 64 + 32 * 32 + 96 * 32 + 32 * 48 + 2 * 32) + 32
    frequencies = 4
    assert bits["all"] == pytest.approx(8 * size / (weights + frequencies), rel=1e-3)


def test_errors_of_outputs_are_by_place(built: dict) -> None:
    outputs = built["accuracy"]["output_errors"]
    assert sorted(outputs) == sorted(["lm_head", *MATRICES])
    assert all(0.01 < error < 0.3 for name in MATRICES for error in outputs[name])
    assert 0 < outputs["lm_head"][0] < 0.03  # 8 bits
    assert len(outputs["mlp.down_proj"]) == 2


def test_errors_of_outputs_are_of_the_products(tied: Checkpoint) -> None:
    """The first product of all: its input is known without running anything else."""
    cached = rewritten(tied, "int4,embedding=none,lm_head=none").cached_graph
    ids = [5, 9, 1, 33, 33, 7]
    got = output_errors(cached, tied, ids)
    x = tied.read("model.embed_tokens.weight").data[ids].astype(np.float64)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    x = (x * tied.read("model.layers.0.input_layernorm.weight").data).astype(np.float32)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    w = np.concatenate([tied.read(name).data for name in names])
    exact = x.astype(np.float64) @ w.T
    lost = linear.product(x, w, parse_format("int4:g32")) - exact
    want = np.linalg.norm(lost) / np.linalg.norm(exact)
    assert got["self_attn.q_proj+k_proj+v_proj"][0] == pytest.approx(want, rel=0.01)
    assert "lm_head" not in got
    assert output_errors(cached, tied, [*ids, *range(60)])  # longer than what is measured


def test_large_matrices_are_measured_in_parts(tied: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = rewritten(tied, "int8").cached_graph
    whole = output_errors(cached, tied, [5, 9, 1])
    monkeypatch.setattr("tensorwright.builder.measure.streamed_weights.CHUNK_ELEMENTS", 32 * 20)
    sizes: list[int] = []
    read = StreamedWeights.rows

    def rows(weights: StreamedWeights, expr: WeightExpr, start: int, end: int) -> torch.Tensor:
        sizes.append(end - start)
        return read(weights, expr, start, end)

    monkeypatch.setattr(StreamedWeights, "rows", rows)
    assert output_errors(cached, tied, [5, 9, 1]) == whole
    assert max(sizes) == 16


def test_panels_of_an_engine_are_those_that_packing_gives(built: dict, tied: Checkpoint) -> None:
    lowered = rewritten(tied, "int4,lm_head=w8a8").graph
    stored = StoredPanels(emit_cpu_plan(lowered, tied).weights, Path(built["path"]) / "cpu" / "weights.bin")
    packed = PackedPanels(tied)
    halves = []
    for node in lowered.find("quantized_matmul"):
        w, fmt = node.inputs[1].node.attrs["expr"], node.attrs["format"]
        run = w.shape(tied)[0] // stored.halves(w, fmt)
        halves.append(stored.halves(w, fmt))
        for start in range(0, w.shape(tied)[0], run):
            for ends in ((start, start + run), (start + 16, start + min(32, run))):
                np.testing.assert_array_equal(stored.panels(w, fmt, *ends), packed.panels(w, fmt, *ends))
    assert set(halves) == {1, 2}


def test_every_weight_is_read_twice_and_soon(built: dict, tied: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference and by the product that a quantized one is held against, which follows it closely: what is read
    from a disk is read once. Nothing is quantized again, nor multiplied by the slow definition."""
    monkeypatch.setattr(linear, "product", None)
    monkeypatch.setattr(PackedPanels, "panels", None)
    reads: list[tuple[str, int]] = []
    read_part = read_weights.read_part

    def count(expr: WeightExpr, source: Checkpoint, ranges: Ranges) -> Tensor:
        tensor = read_part(expr, source, ranges)
        if isinstance(expr, Ref):
            reads.append((expr.name, tensor.nbytes))
        return tensor

    monkeypatch.setattr(read_weights, "read_part", count)
    report = rewritten(tied, "int4,lm_head=w8a8")
    weights = emit_cpu_plan(report.graph, tied).weights
    traced = trace(tied, dtype="float32", max_seq_len=128)
    sample = text_sample(bundled_text(), tied.path / "tokenizer.json", Extent(128, 128), traced.facts.vocab_size)
    task = Measurement("quick", sample)
    record = measure_accuracy(task, tied, Path(built["path"]), traced, report.cached_graph, weights)
    assert record == built["accuracy"]
    matrices = [name for name in tied.names if len(tied.shape(name)) == 2 and "embed" not in name]
    total = {name: sum(size for read, size in reads if read == name) for name in matrices}
    assert total == {name: 2 * tied.read(name).data.nbytes for name in matrices}
    layers = [int(name.split(".")[2]) for name, _ in reads if name in matrices]
    assert layers == sorted(layers)


def test_without_accuracy_the_errors_of_weights_are_kept(tied: Checkpoint, tmp_path: Path) -> None:
    config = build(tied.path, tmp_path / "engine", quantize="int8", accuracy="none").config
    assert config["accuracy"] is None
    assert all(0 < e < 0.01 for row in config["quantization"]["weight_errors"].values() for e in row)
    assert json.loads((tmp_path / "engine" / "config.json").read_text())["quantization"] == config["quantization"]
    plain = build(tied.path, tmp_path / "plain", accuracy="quick").config
    assert plain["quantization"] is None
    assert "output_errors" not in plain["accuracy"]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_variant(tmp_path_factory.mktemp("experts") / "model", "mixtral"))


@pytest.fixture(scope="module")
def of_experts(mixtral: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("experts") / "engine"
    return build(mixtral.path, out, quantize="int4").config | {"path": str(out)}


class TestExperts:
    W13, W2 = "block_sparse_moe.experts.w1+w3", "block_sparse_moe.experts.w2"

    def test_errors_and_bits_count_all_experts(self, of_experts: dict, mixtral: Checkpoint) -> None:
        errors = of_experts["quantization"]["weight_errors"]
        matrices = ["self_attn.q_proj+k_proj+v_proj", "self_attn.o_proj", self.W13, self.W2]
        assert sorted(errors) == sorted(["embedding", "lm_head", *matrices])
        assert sorted(of_experts["accuracy"]["output_errors"]) == sorted(["lm_head", *matrices])
        experts = [f"model.layers.1.block_sparse_moe.experts.{i}" for i in range(6)]
        for place, parts in ((self.W13, ("w1", "w3")), (self.W2, ("w2",))):
            names = [f"{expert}.{part}.weight" for expert in experts for part in parts]
            w = np.concatenate([mixtral.read(name).data for name in names])
            assert errors[place][1] == pytest.approx(relative_error(w, "int4:g32"), rel=0.01)
        # Rows of 32 and 48 columns are one and two groups; panels hold 16 rows, and scales of two groups. The router's
        # 6 rows stay float32.
        layer = 4 * (64 + 256) + 2 * (64 + 256) + 6 * (6 * (64 + 256) + 2 * (64 + 512)) + 16 * 32 * 4
        weights = 64 * 32 + 32 * 32 + 6 * 3 * 32 * 48 + 6 * 32
        assert of_experts["quantization"]["bits_per_weight"]["layers"] == pytest.approx(8 * layer / weights, rel=1e-3)

    def test_panels_of_an_engine_are_those_that_packing_gives(self, of_experts: dict, mixtral: Checkpoint) -> None:
        lowered = rewritten(mixtral, "int4").graph
        stored = StoredPanels(emit_cpu_plan(lowered, mixtral).weights, Path(of_experts["path"]) / "cpu" / "weights.bin")
        packed, halves = PackedPanels(mixtral), []
        node = next(iter(lowered.find("quantized_experts")))
        for value in matrices_of(node):
            w, fmt = value.producer.attrs["expr"], node.attrs["format"]
            halves.append(stored.halves(w, fmt))
            run = int(value.shape[1]) // halves[-1]
            for start in range(0, run * halves[-1], run):
                for expert in (0, 1, 5):
                    ends = (start, start + run, expert)
                    np.testing.assert_array_equal(stored.panels(w, fmt, *ends), packed.panels(w, fmt, *ends))
        assert halves == [2, 1]

    def test_the_matrices_of_a_layer_are_never_in_memory_together(
        self, mixtral: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each is read for itself, multiplied with the bits of the definition, and held against the stored one."""
        totals: dict[str, np.ndarray] = {}

        def product(matrix: StreamedMatrix, x: np.ndarray) -> np.ndarray:
            w = matrix.of.floats(matrix.expert).numpy()
            got = multiply(matrix, x)
            assert np.array_equal(got, linear.product(x, w, parse_format("int4")))
            exact = x.astype(np.float64) @ w.T.astype(np.float64)
            place = quantization_record.place_of(matrix.of.node, stored(matrix.of.operand))
            squares = np.array([np.sum((got - exact) ** 2), np.sum(exact**2)])
            totals[str(place)] = totals.get(str(place), 0) + squares
            return got

        multiply = StreamedMatrix.product
        monkeypatch.setattr(StreamedMatrix, "product", product)
        whole = StreamedWeights.__call__
        read: list[int] = []
        monkeypatch.setattr(
            StreamedWeights, "__call__", lambda self, expr: read.append(len(expr.shape(mixtral))) or whole(self, expr)
        )
        errors = output_errors(rewritten(mixtral, "int4").cached_graph, mixtral, [5, 9, 1, 33])
        assert set(read) == {1}  # norms
        assert len(totals) == 4
        for place, layer in ((self.W13, 0), (self.W2, 1)):
            lost, size = totals[str((place, layer))]
            assert errors[place][layer] == pytest.approx((lost / size) ** 0.5, rel=0.01)


class TestQuantizingWeights:
    @pytest.mark.parametrize("name", ["int4:g32", "int4:g128", "int8:g64", "w8a8"])
    def test_it_gives_what_the_definition_gives(self, name: str) -> None:
        w = np.random.default_rng(3).standard_normal((37, 70)).astype(np.float32)
        made = QuantizingWeights(MemorySource({"w": w})).quantized(Ref("w"), parse_format(name))
        want = quantize.quantize_weights(w, parse_format(name))
        np.testing.assert_array_equal(made.values, want.values)
        np.testing.assert_array_equal(made.scales, want.scales)

    def test_the_interpreter_takes_it(self, tied: Checkpoint) -> None:
        """The same logits to the bit as with weights that the plugins quantize themselves, at both stages."""
        from tensorwright.builder.checkpoint_weights import checkpoint_weights
        from tensorwright.ir.ragged import interpret_ragged

        report = rewritten(tied, "int4,lm_head=int8")
        for graph in (report.cached_graph, report.graph):
            ready, plain = (
                interpret_ragged(graph, [[5, 9, 1]], weights)[0]
                for weights in (QuantizingWeights(tied), checkpoint_weights(tied))
            )
            assert torch.equal(ready, plain)

    def test_a_weight_that_is_no_number_is_refused(self) -> None:
        w = np.full((4, 8), np.inf, np.float32)
        with pytest.raises(CheckpointError, match="infinity or a NaN"):
            QuantizingWeights(MemorySource({"w": w})).quantized(Ref("w"), parse_format("int8:g32"))
