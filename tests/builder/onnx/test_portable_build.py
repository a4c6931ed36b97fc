"""build(target="onnx"): what lies in the engine, what is measured, what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.tiny_models import make_tiny
from tensorwright import build
from tensorwright.builder.emit.onnx.weights_source import Weights
from tensorwright.errors import BuildError, InvalidOptionError, MissingDependencyError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """Tied, of bfloat16 weights, heads of 16 dims."""
    path = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny(path, "llama", seed=3, head_dim=16, tie_word_embeddings=True, dtype="bfloat16")


@pytest.fixture(scope="module")
def pico_onnx(pico_model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pico") / "engine"
    build(pico_model, out, target="onnx", dtype="float32", max_seq_len=256)
    return out


def test_pico_is_built_and_measured(pico_onnx):
    config = json.loads((pico_onnx / "config.json").read_text())
    io = json.loads((pico_onnx / "onnx" / "io.json").read_text())
    assert (config["target"], config["dtype"]) == ("onnx", "float32")
    assert {"onnx/model.onnx", "onnx/model.onnx.data", "onnx/io.json", "tokenizer.json"} <= set(config["sizes"])
    assert config["limits"] == {"max_seq_len": 256, "block_size": 256, "kv_block_bytes": io["slot_bytes"]}
    layers = config["model"]["layers"]
    assert io["slot_bytes"] == layers * 2 * config["model"]["kv_heads"] * 256 * config["model"]["head_dim"] * 4
    accuracy = config["accuracy"]
    assert accuracy["measured_on"] == "onnxruntime CPU"
    assert accuracy["top1_agreement"] == 1.0
    assert 0 < accuracy["largest_logit_error"] < 1e-5 * accuracy["largest_reference_logit"]


def test_float16_build(tiny, tmp_path):
    config = build(tiny, tmp_path / "out", target="onnx", dtype="float16", max_seq_len=64).config
    io = json.loads((tmp_path / "out" / "onnx" / "io.json").read_text())
    assert (config["dtype"], io["dtype"], {layer["dtype"] for layer in io["cache"]}) == ("float16",) * 2 + (
        {"float16"},
    )
    assert config["limits"]["kv_block_bytes"] == io["slot_bytes"] == 2 * 2 * 2 * 64 * 16 * 2
    assert 1e-4 < config["accuracy"]["largest_logit_error"] < 0.1


def test_int4_record_and_rebuild(tiny, tmp_path):
    for name in "ab":
        first = build(tiny, tmp_path / name, target="onnx", quantize="int4", activations="int8")
    sums = [(tmp_path / name / "checksums.txt").read_bytes() for name in "ab"]
    assert sums[0] == sums[1]
    assert first.config["dtype"] == "float32"  # auto, of a bfloat16 checkpoint
    record = first.config["quantization"]
    assert record["spec"] == "int4:g32,embedding=none,lm_head=int4:g32"
    assert record["tied"]
    assert first.config["build_options"]["activations"] == "int8"
    assert record["bits_per_weight"]["embedding"] == 32.0
    assert record["bits_per_weight"]["lm_head"] == 5.0  # 4, and a float32 scale for 32
    assert 0.03 < record["weight_errors"]["self_attn.q_proj+k_proj+v_proj"][1] < 0.15
    assert first.config["accuracy"]["largest_logit_error"] > 1e-3
    assert set(first.config["accuracy"]["output_errors"]) == set(record["weight_errors"])


REFUSED = [
    ({"dtype": "bfloat16"}, "dtype must be float32 or float16 on target onnx, not bfloat16: .* --dtype float32"),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype must be auto on target onnx, not int8"),
    ({"quantize": "w8a8"}, "must not be w8a8: target onnx"),
    ({"quantize": "fp8"}, "must not be fp8: target onnx"),
    (
        {"activations": "int8"},
        "activations='int8' is for quantized weights, and these stay as they are; leave it out, or say quantize",
    ),
    (
        {"activations": "int8", "quantize": "int8", "target": "cpu"},
        "activations is an option of target onnx; leave it out for cpu",
    ),
    ({"activations": "int4"}, "activations must be one of auto, int8, not 'int4'"),
    ({"quantize": "int4,embedding=int4"}, "on target onnx the embedding must be int8 or none, not int4"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refused_before_any_work(tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("tensorwright.builder.build.open_checkpoint", lambda model: pytest.fail("work was begun"))
    with pytest.raises(InvalidOptionError, match=message):
        build(tmp_path / "model", tmp_path / "out", **{"target": "onnx", **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("package", "options"), [("onnx", {"accuracy": "none"}), ("onnxruntime", {})])
def test_missing_package_is_named_before_any_work(tmp_path, monkeypatch, package, options):
    from importlib import util

    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(MissingDependencyError, match=rf"needs {package}, .*pip install -e '.\[onnx\]'"):
        build(tmp_path / "model", tmp_path / "out", target="onnx", **options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_is_left(tiny, tmp_path, monkeypatch):
    def fails(*args):
        yield 0, np.zeros(4, np.uint8)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Weights, "_quantized_chunks", fails)
    with pytest.raises(BuildError, match=r"onnx/model.onnx.data cannot be written \(No space left on device\)"):
        build(tiny, tmp_path / "out", target="onnx", quantize="int8", accuracy="none")
    assert list(tmp_path.iterdir()) == []
