"""Engines of quantized checkpoints hold the weights that the decoded checkpoint would give them, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as LibraryTokenizer
from tolerances import chain_tolerance

from support.gguf_files import GGUF
from support.quantized_checkpoints import KINDS, MADE
from support.tiny_models import make_tiny
from tensorwright.builder.build import build
from tensorwright.builder.emit.transformers_tokenizer import convert
from tensorwright.builder.trace.export import trace
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.tools.inspect import describe


def decoded_copy(path: Path, out: Path) -> Path:
    """Writes the checkpoint of the same weights without a quantization, each in the type that it is decoded to."""
    shutil.copytree(path, out)
    config = json.loads((out / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    checkpoint, tensors = open_checkpoint(path), {}
    for name in checkpoint.names:
        kind = checkpoint.dtype(name)
        tensors[name] = torch.from_numpy(to_float32(checkpoint.read(name)).copy()).to(getattr(torch, kind))
    save_file(tensors, out / "model.safetensors")
    return out


def assert_same_engines(path: Path, tmp_path: Path, **options: object) -> dict:
    plain = decoded_copy(path, tmp_path / "plain")
    ours = build(path, tmp_path / "ours", accuracy="none", **options)
    theirs = build(plain, tmp_path / "theirs", accuracy="none", **options)
    for name in ("graph.txt", "cpu/weights.bin", "cpu/plan.bin"):
        assert (ours.path / name).read_bytes() == (theirs.path / name).read_bytes()
    assert "quantization" not in theirs.config["source"]
    return ours.config


@pytest.mark.parametrize(("kind", "options"), [
    ("gptq-4-order", {"dtype": "float32", "quantize": "none"}),
    ("awq-4", {"dtype": "bfloat16", "quantize": "none"}),
    ("gptq-4", {"quantize": "int8"}),
])  # fmt: skip
def test_an_engine_has_the_decoded_weights(tmp_path, kind, options):
    config = assert_same_engines(MADE / kind, tmp_path, **options)
    assert config["source"]["quantization"] == KINDS[kind]
    assert describe(open_engine(tmp_path / "ours"))["source"]["quantization"] == KINDS[kind]


def in_blocks(path: Path, size: int) -> None:
    """Turns the matrices of the layers into E4M3 floats with scales for blocks, as DeepSeek publishes them."""
    tensors = load_file(path / "model.safetensors")
    for name, w in list(tensors.items()):
        if w.dim() != 2 or ".layers." not in name or name.endswith("gate.weight"):
            continue
        grid = (-(-w.shape[0] // size), -(-w.shape[1] // size))
        scale = torch.rand(grid, generator=torch.Generator().manual_seed(len(name))) / 1000
        spread = scale.repeat_interleave(size, 0)[: w.shape[0]].repeat_interleave(size, 1)[:, : w.shape[1]]
        tensors[name] = (w / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
    save_file(tensors, path / "model.safetensors")
    name_quantization(path, {"quant_method": "fp8", "weight_block_size": [size, size], "fmt": "e4m3"})


def name_quantization(path: Path, section: dict) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": section}))


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_experts_and_latent_attention_in_blocks(tmp_path, family):
    path = make_tiny(tmp_path / "model", family, dtype="bfloat16")
    in_blocks(path, 16)
    config = assert_same_engines(path, tmp_path)
    assert config["source"]["quantization"] == "fp8 blocks 16x16"


def test_experts_of_gpt_oss(tmp_path):
    """The model has matrices [E, K, N], and the checkpoint has them [E, N, K] in blocks."""
    path = make_tiny(tmp_path / "model", "gpt_oss", hidden_size=64, intermediate_size=32)
    draw = torch.Generator().manual_seed(0)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, k, n = tensors.pop(name).shape
        shape = (experts, n, k // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=draw)
        tensors[f"{name}_scales"] = torch.randint(110, 124, shape, dtype=torch.uint8, generator=draw)
    save_file(tensors, path / "model.safetensors")
    name_quantization(path, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    assert assert_same_engines(path, tmp_path, quantize="none")["source"]["quantization"] == "mxfp4"
    kept = build(path, tmp_path / "kept", accuracy="none", quantize="kept,*.self_attn.*=int8:g32")
    record = kept.config["quantization"]
    errors, formats = record["weight_errors"], record["formats"]
    assert errors["mlp.experts.gate_up_proj"] == errors["mlp.experts.down_proj"] == [0, 0]
    assert formats["mlp.experts.gate_up_proj"] == formats["mlp.experts.down_proj"] == ["mxfp4", "mxfp4"]
    assert formats["self_attn.o_proj"] == ["int8:g32", "int8:g32"]
    assert min(errors["self_attn.o_proj"]) > 0


@pytest.mark.parametrize("accuracy", ["quick", "full"])
def test_logits_are_those_of_the_decoded_model(tmp_path, accuracy):
    options = {"dtype": "float32", "quantize": "none", "accuracy_tokens": 64}
    made = build(MADE / "gptq-4", tmp_path / "engine", accuracy=accuracy, **options)
    record = made.config["accuracy"]
    assert record["kind"] == accuracy
    widest = 64  # the most columns of a matrix
    assert record["largest_logit_error"] < chain_tolerance("float32", widest, 20, record["largest_reference_logit"])


def test_kept_weights_are_decoded(tmp_path):
    path = MADE / "ct-int4"
    build(path, tmp_path / "engine", accuracy="none", keep_weights=True)
    kept = load_file(tmp_path / "engine/weights.safetensors")
    checkpoint = open_checkpoint(path)
    assert set(kept) == set(checkpoint.names)
    for name, tensor in kept.items():
        np.testing.assert_array_equal(tensor.view(torch.uint16).numpy(), checkpoint.read(name).data)


def test_the_model_is_traced_without_its_quantization():
    graph = trace(open_checkpoint(MADE / "awq-4"), dtype="float32", max_seq_len=32)
    names = {name for node in graph.find("weight") for name in node.attrs["expr"].refs()}
    assert names == set(open_checkpoint(MADE / "awq-4").names)


def test_a_gguf_file_builds_with_its_codes_and_its_text_side(tmp_path):
    path = GGUF / "llama-q4_0.gguf"
    made = build(path, tmp_path / "engine", accuracy="none")
    assert made.config["quantization"]["spec"] == "int4:g32:fp16,embedding=int4:g32:fp16,lm_head=int4:g32:fp16"
    assert made.config["source"]["quantization"] == "gguf Q4_0"
    assert list(made.config["source"]["files"]) == [path.name]
    assert not any(error for errors in made.config["quantization"]["weight_errors"].values() for error in errors)
    engine = open_engine(made.path, read_tokenizer=True)
    for text, ids in json.loads(path.with_suffix(".json").read_text())["ids"].items():
        assert engine.tokenizer.encode(text) == ids
    assert engine.eos_token_ids == [1]
    assert "<|end|>" in (made.path / "chat_template.jinja").read_text()
    assert made.report["tokenizer"] == {"source": [path.name], "warnings": [], "differences": []}


def test_the_logits_of_a_gguf_file_are_those_of_transformers(tmp_path):
    options = {"dtype": "float32", "quantize": "none", "accuracy": "full", "accuracy_tokens": 32}
    made = build(GGUF / "qwen3.gguf", tmp_path / "engine", **options)
    record = made.config["accuracy"]
    widest = 256  # the columns of o_proj
    assert record["largest_logit_error"] < chain_tolerance("float32", widest, 20, record["largest_reference_logit"])


def test_the_tokenizer_of_sentencepiece_in_a_gguf_file():
    path = GGUF / "llama-q8_0.gguf"
    reference = convert(open_checkpoint(path), ())
    tokenizer = Tokenizer(LibraryTokenizer.from_str(reference.tokenizer_json().decode()), [])
    for text, ids in json.loads(path.with_suffix(".json").read_text())["ids"].items():
        assert reference.encode(text) == tokenizer.encode(text) == ids
