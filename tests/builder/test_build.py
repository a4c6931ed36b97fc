"""build(): whole engines, twice the same bytes, and nothing left behind by whatever goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from tolerances import chain_tolerance

from support.made_checkpoints import write_checkpoint
from support.tiny_models import make_tiny, make_variant
from tensorwright import build
from tensorwright.builder.emit import cpu_weights
from tensorwright.errors import BuildError, CheckpointError, InvalidOptionError, PassError, UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes import quantize_weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_variant(tmp_path_factory.mktemp("build") / "model", "llama_tied")


@pytest.fixture(scope="module")
def engine(tiny) -> Path:
    return build(tiny, tiny.parent / "engine", accuracy="none").path


def files_of(engine: Path) -> dict[str, bytes]:
    paths = (p for p in engine.rglob("*") if p.is_file() and p.name != "build-report.json")
    return {str(p.relative_to(engine)): p.read_bytes() for p in paths}


def test_what_is_in_an_engine(engine, tiny):
    assert sorted(files_of(engine)) == [
        "checksums.txt", "config.json", "cpu/adapters.json", "cpu/plan.bin", "cpu/weights.bin",
        "generation_config.json", "graph.txt", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = json.loads((engine / "config.json").read_text())
    assert config["format"] == "tensorwright-engine"
    assert config["format_version"] == 1
    assert config["model"]["model_type"] == "llama"
    assert config["model"]["eos_token_ids"] == [2]
    assert config["dtype"] == "float32"
    assert config["limits"] == {"max_seq_len": 128, "block_size": 32, "kv_block_bytes": 8192}
    assert config["passes"]["recognise_rms_norm"] == 5
    assert config["accuracy"] is None
    assert config["sizes"]["cpu/weights.bin"] == (engine / "cpu" / "weights.bin").stat().st_size
    source = config["source"]["files"]["model.safetensors"]
    assert source["xxh3_128"] == xxhash.xxh3_128_hexdigest((tiny / "model.safetensors").read_bytes())
    report = json.loads((engine / "build-report.json").read_text())
    assert set(report["phase_seconds"]) >= {"trace", "passes", "source", "weights"}
    assert sum(report["phase_seconds"].values()) == pytest.approx(report["total_seconds"], abs=0.01)
    assert 1e6 < report["peak_memory_bytes"]["anonymous"] < report["peak_memory_bytes"]["resident"]


def test_the_runtime_opens_it(engine):
    from tensorwright.runtime.engine.engine_dir import open_engine

    opened = open_engine(engine)
    assert opened.eos_token_ids == [2]
    assert opened.max_seq_len == 128


@pytest.mark.parametrize(("kind", "asked", "tokens"), [("quick", None, 128), ("quick", 300, 300), ("full", 300, 300)])
def test_accuracy_is_recorded(tiny, tmp_path, kind, asked, tokens):
    record = build(tiny, tmp_path / "engine", accuracy=kind, accuracy_tokens=asked).config["accuracy"]
    assert record["kind"] == kind
    assert record["reference_dtype"] == "float32"
    assert (record["tokens"], record["windows"]) == (tokens, -(-tokens // 128))
    # Four matmuls and their norms a layer, two layers, the head; sums of at most 48 products.
    allowed = chain_tolerance("float32", widest=48, depth=13, max_abs=record["largest_reference_logit"])
    assert record["largest_logit_error"] <= allowed
    assert record["kl_divergence"] <= allowed


def test_accuracy_shows_a_broken_engine(tiny, tmp_path, monkeypatch):
    real = cpu_weights.pack_panels
    monkeypatch.setattr(cpu_weights, "pack_panels", lambda rows, dtype: real(np.roll(rows, 1, axis=0), dtype))
    record = build(tiny, tmp_path / "engine").config["accuracy"]
    assert record["kl_divergence"] > 0.1
    assert record["largest_logit_error"] > 0.1 * record["largest_reference_logit"]


def test_graph_text_parses_back(engine):
    from tensorwright.ir.parse import parse_graph
    from tensorwright.ir.text import print_graph

    text = (engine / "graph.txt").read_text()
    graph = parse_graph(text)
    assert graph.stage == "cached"
    assert print_graph(graph) == text


def test_two_builds_are_the_same_bytes(engine, tiny, tmp_path):
    moved = tmp_path / "elsewhere" / "model"
    moved.mkdir(parents=True)
    for path in tiny.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    again = build(moved, tmp_path / "deep" / "engine", accuracy="none")
    assert files_of(again.path) == files_of(engine)
    everything = b"".join(files_of(again.path).values())
    assert str(tmp_path).encode() not in everything


def test_tied_embeddings_are_stored_once(engine, tiny):
    stored = (engine / "cpu" / "weights.bin").stat().st_size
    checkpoint = open_checkpoint(tiny)
    table = np.prod(checkpoint.shape("model.embed_tokens.weight")) * 4
    total = sum(np.prod(checkpoint.shape(n)) * 4 for n in checkpoint.names)
    # Padding to panels and to 64 bytes is all that comes on top; a second table would be more.
    assert total <= stored < total + table


@pytest.mark.parametrize(
    ("stored", "asked", "built"),
    [
        ("bfloat16", "auto", "bfloat16"), ("float16", "auto", "float32"), ("float32", "auto", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)  # fmt: skip
def test_dtypes(tmp_path, stored, asked, built):
    model = make_tiny(tmp_path / "model", "llama", dtype=stored)
    assert build(model, tmp_path / "engine", dtype=asked, accuracy="none").config["dtype"] == built


def test_chat_template_and_shorter_context(tmp_path):
    model = make_tiny(tmp_path / "model", "qwen2")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{{ messages }}"}))
    result = build(model, tmp_path / "engine", max_seq_len=64, accuracy="none")
    assert (result.path / "chat_template.jinja").read_text() == "{{ messages }}"
    assert result.config["limits"]["max_seq_len"] == 64
    assert result.config["build_options"]["max_seq_len"] == 64


def test_progress(tiny, tmp_path):
    seen = []
    build(tiny, tmp_path / "engine", accuracy="none", progress=lambda *args: seen.append(args))
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == [
        "open", "import", "trace", "passes", "source", "tokenizer", "plan", "weights", "checksums",
    ]  # fmt: skip
    for phase in ("passes", "weights"):
        done = [(d, t) for p, d, t in seen if p == phase and t]
        assert done[-1][0] == done[-1][1]


@pytest.mark.parametrize("error", [RuntimeError("bang"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_by_a_failure_midway(tiny, tmp_path, monkeypatch, error):
    def explode(*args):
        raise error

    monkeypatch.setattr(cpu_weights, "pack_panels", explode)
    with pytest.raises(BuildError if isinstance(error, OSError) else type(error)):
        build(tiny, tmp_path / "out" / "engine", accuracy="none")
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_that_is_not_quantized_fails_the_build(tiny, tmp_path, monkeypatch):
    """As when a new transformers hides a matrix from the pass: nothing may stay unquantized unseen."""
    chosen = quantize_weights.format_for
    monkeypatch.setattr(
        quantize_weights,
        "format_for",
        lambda node, spec: None if node.scope.endswith("layers.1.mlp.down_proj") else chosen(node, spec),
    )
    with pytest.raises(PassError, match="pass quantize_weights must rewrite 10 times in this model, and rewrote 9"):
        build(tiny, tmp_path / "out", accuracy="none", quantize="int4")
    assert list(tmp_path.iterdir()) == []


def test_existing_output(tiny, engine, tmp_path):
    before = files_of(engine)
    with pytest.raises(BuildError, match="already exists"):
        build(tiny, engine, accuracy="none")
    assert files_of(engine) == before


def test_wrong_options(tiny, tmp_path):
    for options, message in (
        ({"target": "abacus"}, "target must be one of cpu, onnx, cuda, tensorrt, tensorrt-rtx, not 'abacus'"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype must be one of auto, int8, int4, fp8, not 'bfloat16'"),
        ({"dtype": "float16"}, "dtype must be auto, float32 or bfloat16 on target cpu, not float16"),
        ({"accuracy": "high"}, "accuracy must be one of none, quick, full"),
        ({"quantize": 5}, "quantize must be the names of formats, .*, not 5"),
        ({"sm": 5}, "sm must be distinct whole numbers, such as 80 and 89, not 5"),
        ({"max_seq_len": 1}, "at least 2"),
        ({"accuracy_tokens": 1}, "from 2 to 16777216"),
        ({"accuracy_tokens": 1 << 24 | 1}, "from 2 to 16777216"),
        ({"sink_tokens": 4}, "sink_tokens are seen besides a window"),
        ({"attention_window": 0, "sink_tokens": 4}, "sink_tokens are seen besides a window"),
        ({"attention_window": 8, "sink_tokens": 513}, "sink_tokens must be a whole number from 0 to 512, not 513"),
        ({"attention_window": 8, "heads": "mtp"}, "leave out heads or attention_window"),
        ({"attention_window": 8, "accuracy": "quick", "accuracy_tokens": 12}, "above the 12 positions"),
        ({"attention_window": 8, "target": "onnx"}, "attention_window"),
        ({"recent_tokens": 4}, "recent_tokens are a part of kv_budget"),
        ({"kv_budget": 96, "attention_window": 8}, "leave out one of them"),
        ({"kv_budget": 96, "heads": "mtp"}, "leave out heads or kv_budget"),
        ({"kv_budget": 96, "tensor_parallel": 2}, "kv_budget scores blocks by all heads and layers"),
        ({"kv_budget": 96, "target": "onnx"}, "kv_budget"),
        (
            {"kv_budget": 96, "accuracy": "quick", "accuracy_tokens": 224},
            "above the 224 positions up to which kv_budget hides",
        ),
        ({"kv_budget": 64}, "kv_budget 64 holds 2 blocks of 32 positions"),
        ({"kv_budget": 96}, "at position 128, and max_seq_len is 128"),
        ({"attention_window": 124}, r"below max_seq_len 128, not 124 \+ 4"),
        ({"sparse_prefill": 96}, "sparse_prefill must be 0, or a multiple of 32 from 128 to 16777216, not 96"),
        ({"sparse_prefill": 144}, "a multiple of 32 from 128 to 16777216, not 144"),
        ({"sparse_prefill": 128, "attention_window": 8}, "leave out one of them"),
        ({"sparse_prefill": 128, "kv_budget": 160}, "kv_budget leaves none; leave out one of them"),
        ({"sparse_prefill": 128, "heads": "mtp"}, "leave out heads or sparse_prefill"),
        ({"sparse_prefill": 128, "tensor_parallel": 2}, "sparse_prefill is for engines of one rank"),
        ({"sparse_prefill": 128, "target": "onnx"}, "sparse_prefill"),
        ({"sparse_prefill": 128, "accuracy": "quick", "accuracy_tokens": 159}, "above the 159 positions"),
        ({"sparse_prefill": 128}, "at most max_seq_len less 32, 96, not 128"),
        ({"max_seq_len": 129}, "at most the model's 128 positions, not 129"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            build(tiny, tmp_path / "engine", **{"accuracy": "none", **options})
    assert list(tmp_path.iterdir()) == []


def test_without_torch(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorwright.builder.trace.export", None)  # importing it fails
    with pytest.raises(ModuleNotFoundError, match=r"builder\.trace"):
        build(tiny, tmp_path / "engine")
    code = "import sys; sys.modules['torch'] = None; from tensorwright import build; build(*sys.argv[1:])"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tiny), str(tmp_path / "engine")], capture_output=True, text=True
    )
    assert "MissingDependencyError: building an engine needs torch, which is not installed" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_checkpoints(tmp_path):
    out = tmp_path / "engine"
    with pytest.raises(CheckpointError, match="no such directory"):
        build(tmp_path / "absent", out)
    empty = write_checkpoint(tmp_path / "m", {"a": np.ones(2, np.float32)}, hidden_size=8, num_attention_heads=2)
    with pytest.raises(CheckpointError, match="weights do not fit the model"):
        build(empty, out)
    unknown = write_checkpoint(tmp_path / "u", {"a": np.ones(2, np.float32)}, model_type="never-seen")
    with pytest.raises(UnsupportedModelError, match="never-seen"):
        build(unknown, out)
    assert not out.exists()
