"""A calibrated build: which matrices, whose codes, on what text, and that it is nearer to the model than rounding."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from support.tiny_models import make_variant, write_tokenizer
from tensorwright import build
from tensorwright.builder.calibrate.calibrate import calibrate, calibrated_nodes, calibration_record
from tensorwright.builder.calibrate.calibrating_weights import chooser
from tensorwright.builder.calibrate.chosen_codes import ChosenCodes, ChosenPanels
from tensorwright.builder.calibrate.sample import MAX_SEQUENCE, Sample, take_sample, token_budget
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.cpu_weights import StoredPanels
from tensorwright.builder.measure.reference import gather_embeddings, reference_inputs
from tensorwright.builder.measure.streamed_weights import StreamedWeights, stored
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.rebuild import rebuild
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.calibrations import CALIBRATIONS
from tensorwright.engine_format.engine_config import BUILT_IN_TEXT, EngineConfig
from tensorwright.engine_format.weight_formats import densified, parse_format, parse_spec
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.ir.graph import Graph
from tensorwright.ir.walk import Walk
from tensorwright.ir.weights import Ref
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.read_weights import evaluate_rows
from tensorwright.options.text_file import NamedText
from tensorwright.passes.pipeline import PassReport, run_pipeline
from tensorwright.plugins.quantized_matmul.quantize import Quantized, dequantized, pack, quantize_weights
from tensorwright.plugins.quantized_matmul.sparsity import pruned

TEXT = " ".join(f"t{i}" for i in np.random.default_rng(0).integers(3, 100, 80))
IDS = np.random.default_rng(1).integers(3, 100, 64).tolist()
SAMPLE = Sample([np.random.default_rng(2 + i).integers(3, 100, 32).tolist() for i in range(4)], "made")


def plant_outliers(path: Path) -> None:
    """Multiplies the weights of every norm by 100 for two of the columns."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if "layernorm" in name:
            tensor[[3, 17]] *= 100
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = make_variant(tmp_path_factory.mktemp("planted") / "model", "llama_tied", seed=5)
    plant_outliers(path)
    write_tokenizer(path, json.loads((path / "config.json").read_text())["vocab_size"])
    return open_checkpoint(path)


def rewritten(checkpoint: Checkpoint, quantize: str | None) -> PassReport:
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    graph.facts.update(quantize=None if quantize is None else parse_spec(quantize), block_size=32)
    return run_pipeline(graph)


def logits(graph: Graph, checkpoint: Checkpoint, codes: ChosenCodes | None = None) -> np.ndarray:
    panels = None if codes is None else ChosenPanels(codes, checkpoint)
    with StreamedWeights(checkpoint, panels) as weights:
        graph, inputs = reference_inputs(graph, checkpoint, IDS, panels)
        return Walk(graph, inputs, weights).finish()[0].numpy()


@pytest.mark.parametrize("spec", ["int4", "uint3:g128"])
def test_planted_outliers_cost_less_than_with_the_nearest_codes(planted: Checkpoint, tmp_path: Path, spec: str) -> None:
    exact = logits(rewritten(planted, None).cached_graph, planted)
    graph = rewritten(planted, f"{spec},embedding=none").cached_graph
    steps: list[tuple[int, int]] = []
    with ChosenCodes(tmp_path) as codes:
        calibrate(graph, planted, SAMPLE, codes, lambda done, total: steps.append((done, total)))
        calibrated = np.square(logits(graph, planted, codes) - exact).sum()
    nearest = np.square(logits(graph, planted) - exact).sum()
    assert calibrated < 0.9 * nearest
    assert steps == [(i, len(steps)) for i in range(1, len(steps) + 1)]
    assert len(steps) == len(list(graph.find("quantized_linear")))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", ["int8:g32:2:4", "int4:g64:2:4"])
def test_planted_outliers_decide_what_sparse_matrices_keep(planted: Checkpoint, tmp_path: Path, spec: str) -> None:
    """Each method loses less than the one before it: magnitudes, magnitudes times norms, and with GPTQ beside them."""
    exact = logits(rewritten(planted, None).cached_graph, planted)
    graph = rewritten(planted, f"{spec},embedding=none,lm_head=none").cached_graph
    errors = [np.square(logits(graph, planted) - exact).sum()]
    for method in ("wanda", "wanda+gptq"):
        with ChosenCodes(tmp_path) as codes:
            calibrate(graph, planted, SAMPLE, codes, lambda done, total: None, method)
            assert len(codes) == len(list(graph.find("quantized_linear")))
            errors.append(np.square(logits(graph, planted, codes) - exact).sum())
    assert errors[1] < 0.9 * errors[0]
    assert errors[2] < 0.9 * errors[1]
    assert calibrated_nodes(graph, "gptq") == []


@pytest.mark.parametrize("name", ["int8:g32:2:4", "int4:g64:2:4"])
@pytest.mark.parametrize("k", [30, 100])
def test_rows_keep_what_their_magnitudes_times_norms_say(name: str, k: int) -> None:
    rng = np.random.default_rng(k)
    fmt, w = parse_format(name), rng.standard_normal((5, k)).astype(np.float32)
    x = (rng.standard_normal((40, k)) * 10.0 ** rng.uniform(-1, 1, k)).astype(np.float32)
    kept = pruned(w, np.linalg.norm(x.astype(np.float64), axis=0).astype(np.float32))
    assert (kept != pruned(w)).any()
    nearest = chooser(x, fmt, CALIBRATIONS["wanda"])(w)
    dense = quantize_weights(kept, densified(fmt))
    np.testing.assert_array_equal(dequantized(nearest, k), dequantized(dense, k))
    made = dequantized(chooser(x, fmt, CALIBRATIONS["wanda+gptq"])(w), k)
    assert (made[kept == 0] == 0).all()
    assert np.square((made - w) @ x.T).sum() < 0.9 * np.square((dequantized(nearest, k) - w) @ x.T).sum()


def test_a_weight_that_is_no_number_is_told_where_norms_decide(planted: Checkpoint) -> None:
    w = np.full((2, 32), np.nan, np.float32)
    with pytest.raises(CheckpointError, match="infinite or not a number"):
        chooser(np.ones((3, 32), np.float32), parse_format("int8:g32:2:4"), CALIBRATIONS["wanda"])(w)


def test_an_engine_holds_the_codes_that_were_chosen(planted: Checkpoint, tmp_path: Path) -> None:
    """Rows of gate and up are packed side by side; each must be where the product looks for it."""
    report = rewritten(planted, "int4")
    plan = emit_cpu_plan(report.graph, planted)
    with ChosenCodes(tmp_path) as codes:
        calibrate(report.cached_graph, planted, SAMPLE, codes, lambda done, total: None)
        with (tmp_path / "weights.bin").open("wb") as file:
            plan.weights.stream(file, codes=codes)
        engine = StoredPanels(plan.weights, tmp_path / "weights.bin")
        for node in calibrated_nodes(report.cached_graph):
            expr, fmt = stored(node.operand(1)), node.attrs["format"]
            rows, k = expr.shape(planted)
            half = rows // engine.halves(expr, fmt)
            w = evaluate_rows(expr, planted, 0, rows).data
            lost = dequantized(codes.quantized(expr, fmt, 0, rows), k) - w
            (error,) = [found.value for key, found in plan.weights.errors.items() if key.source == expr]
            assert error == pytest.approx(np.linalg.norm(lost) / np.linalg.norm(w), rel=1e-5)
            for start in range(0, rows, half):
                chosen = pack(codes.quantized(expr, fmt, start, start + half), fmt, k).reshape(-1)
                np.testing.assert_array_equal(engine.panels(expr, fmt, start, start + half), chosen)
        # The embedding is lm_head, so its rows are those of the last product.
        graph = report.cached_graph.clone()
        (rows_read,) = gather_embeddings(graph, planted, torch.tensor([5, 100, 17]), engine).values()
        table = codes.quantized(expr, fmt, 0, rows)
        np.testing.assert_array_equal(rows_read.numpy(), dequantized(table, k)[[5, 100, 17]])


@pytest.mark.parametrize("name", ["int4:g64", "uint8:g64"])
def test_codes_come_back_by_rows(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    fmt = parse_format(name)
    exprs = [Ref("a"), Ref("b")]
    zeros = [rng.integers(0, fmt.largest + 1, (9, 2)).astype(np.uint8) if fmt.has_zeros else None for _ in exprs]
    made = [
        Quantized(
            (
                rng.integers(fmt.least, fmt.largest + 1, (9, 2, 64)) - (0 if z is None else z[..., None].astype(int))
            ).astype(fmt.values_dtype),
            rng.random((9, 2), np.float32),
            z,
        )
        for z in zeros
    ]
    with ChosenCodes(tmp_path) as codes:
        for expr, matrix in zip(exprs, made, strict=True):
            codes.reserve(expr, fmt, 9, 100)
            for part in (slice(4, 9), slice(0, 4)):
                own = None if matrix.zeros is None else matrix.zeros[part]
                codes.write(expr, fmt, part.start, Quantized(matrix.values[part], matrix.scales[part], own))
        for expr, matrix in zip(exprs, made, strict=True):
            got = codes.quantized(expr, fmt, 2, 7)
            np.testing.assert_array_equal(got.values, matrix.values[2:7], strict=True)
            np.testing.assert_array_equal(got.scales, matrix.scales[2:7])
            assert (got.zeros is None) == (matrix.zeros is None)
            if matrix.zeros is not None:
                np.testing.assert_array_equal(got.zeros, matrix.zeros[2:7])


@pytest.mark.parametrize(
    ("variant", "left_out"),
    [
        ("llama_tied", []),
        ("mixtral", ["embedding", "block_sparse_moe.experts.w1+w3", "block_sparse_moe.experts.w2"]),
    ],
)
def test_what_is_left_out_is_recorded(variant: str, left_out: list[str], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_variant(tmp_path / "model", variant))
    graph = rewritten(checkpoint, "int4").cached_graph
    record = calibration_record(graph, "gptq", SAMPLE)
    assert record == {"method": "gptq", "text": "made", "tokens": 128, "rounded_to_nearest": left_out}
    with ChosenCodes(tmp_path) as codes:
        calibrate(graph, checkpoint, SAMPLE, codes, lambda done, total: None)
        assert len(codes) == len(calibrated_nodes(graph)) > 0


@pytest.mark.parametrize(
    ("method", "sparsity", "left_out"), [("gptq", "none", []), ("wanda", "2:4", ["embedding", "lm_head"])]
)
def test_a_build_records_its_calibration_and_is_built_again(
    planted: Checkpoint, tmp_path: Path, method: str, sparsity: str, left_out: list[str]
) -> None:
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    options = {"quantize": "int4", "sparsity": sparsity, "accuracy": "none", "keep_weights": True}
    chosen = {**options, "accuracy": "quick", "calibrate": method, "calibration_text": text}
    first = build(planted.path, tmp_path / "first", **chosen)
    nearest = build(planted.path, tmp_path / "nearest", **options)
    record = first.engine_config.quantization.calibration
    assert (record.method, record.tokens, record.rounded_to_nearest) == (method, 80, left_out)
    assert record.text.startswith("xxh3_128 ")
    assert nearest.engine_config.quantization.calibration is None
    assert "calibrate" in first.report["phase_seconds"]
    assert TEXT not in (tmp_path / "first/config.json").read_text()
    weights = (tmp_path / "first/cpu/weights.bin").read_bytes()
    assert weights != (tmp_path / "nearest/cpu/weights.bin").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "mine.txt", "nearest"]

    config = EngineConfig.from_dict(json.loads((tmp_path / "first/config.json").read_text()), tmp_path / "config.json")
    with pytest.raises(InvalidOptionError, match="a text of its own"):
        rebuild(tmp_path / "first", config, tmp_path / "again")
    rebuild(tmp_path / "first", config, tmp_path / "again", calibration_text=text, accuracy="none")
    assert (tmp_path / "again/cpu/weights.bin").read_bytes() == weights


def test_the_text_is_cut_into_sequences(planted: Checkpoint, tmp_path: Path) -> None:
    graph = rewritten(planted, "int4").cached_graph
    sample = take_sample(planted.path, NamedText("t", " ".join(["t7"] * 300)), graph)
    assert [len(ids) for ids in sample.sequences] == [128, 128, 44]  # the engine's max_seq_len is 128
    assert MAX_SEQUENCE >= 128
    assert token_budget(graph) >= 300
    built_in = take_sample(planted.path, None, graph)
    assert built_in.text == BUILT_IN_TEXT
    with pytest.raises(InvalidOptionError, match="at least 64 tokens of the model, has 63"):
        take_sample(planted.path, NamedText("t", " ".join(["t7"] * 63)), graph)
    with pytest.raises(CheckpointError, match=r"put a tokenizer\.json"):
        take_sample(tmp_path, NamedText("t", TEXT), graph)
    write_tokenizer(tmp_path, 2 * graph.facts.vocab_size)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        take_sample(tmp_path, NamedText("t", f"{TEXT} t{graph.facts.vocab_size + 1}"), graph)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibrate": "gptq"}, "is for quantized weights"),
        ({"calibrate": "gptq", "quantize": "mxfp4"}, "chooses whole numbers"),
        ({"quantize": "int4", "calibration_text": "some"}, "say calibrate"),
        ({"quantize": "int4", "calibrate": "best"}, "none, gptq"),
        ({"quantize": "int4", "calibrate": "smoothquant"}, "scales channels for w8a8"),
        ({"quantize": "w8a8", "calibrate": "awq"}, "scales channels for formats with groups"),
        ({"quantize": "mxfp4", "calibrate": "awq+gptq"}, "chooses whole numbers"),
        ({"quantize": "int4", "calibrate": "wanda"}, "no matrix of .* is sparse; add sparsity 2:4"),
        ({"quantize": "mixed:4.5", "calibrate": "wanda+gptq"}, "which weights of 2:4 sparse matrices are kept"),
        ({"quantize": "fp8", "calibrate": "outliers"}, "keeps columns of inputs"),
        ({"quantize": "int4:wo,embedding=none,lm_head=none", "calibrate": "outliers"}, "keeps columns of inputs"),
        ({"quantize": "int4", "calibrate": "gptq", "target": "onnx"}, "onnx"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        BuildOptions(**options)


def test_threads_of_torch_are_as_before(planted: Checkpoint, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    graph = rewritten(planted, "int4").cached_graph
    with ChosenCodes(tmp_path) as codes, pytest.raises(RuntimeError, match="stop"):
        calibrate(graph, planted, SAMPLE, codes, stop)
    assert torch.get_num_threads() == before


def stop(done: int, total: int) -> None:
    raise RuntimeError("stop")
