"""Checkpoints open whole or fail with one error that names the file and the remedy."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from support.made_checkpoints import write_checkpoint, write_sharded
from tensorwright.errors import CheckpointError
from tensorwright.models.checkpoint import open_checkpoint

A, B = np.ones((2, 3), np.float32), np.zeros(4, np.float16)


def test_single_file(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "m", {"a": A, "b": B}))
    assert checkpoint.names == ("a", "b")
    assert checkpoint.shape("a") == (2, 3)
    assert checkpoint.dtype("b") == "float16"
    assert checkpoint.config["model_type"] == "llama"
    assert [p.name for p in checkpoint.source_files] == ["config.json", "model.safetensors"]
    np.testing.assert_array_equal(checkpoint.read("a").data, A)


def test_sharded(tmp_path):
    checkpoint = open_checkpoint(
        write_sharded(tmp_path / "m", {"x-1.safetensors": {"a": A}, "x-2.safetensors": {"b": B}})
    )
    assert checkpoint.names == ("a", "b")
    np.testing.assert_array_equal(checkpoint.read("b").data, B)
    assert len(checkpoint.source_files) == 4


def test_all_missing_weights_at_once(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "m", {"a": A}))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.require({"a": (3, 2), "norm.weight": (4,), "head.weight": (5, 4)})
    text = str(caught.value)
    assert "3 of 3 weights" in text
    assert "norm.weight: missing" in text
    assert "head.weight: missing" in text
    assert "a: stored as [2, 3], config.json implies [3, 2]" in text
    checkpoint.require({"a": (2, 3)})


def test_many_missing_weights_are_counted(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "m", {"a": A}))
    with pytest.raises(CheckpointError, match=r"25 of 25 weights") as caught:
        checkpoint.require({f"layer{i}": (1,) for i in range(25)})
    assert str(caught.value).splitlines()[-1] == "  and 15 more"
    assert len(str(caught.value).splitlines()) == 12


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "x-1.safetensors", "c": "x-1.safetensors"}, r"lists 1 tensors that their shards do not hold:\n  c "),
        ({"a": "x-1.safetensors", "b": "x-9.safetensors", "c": "x-8.safetensors"}, r"x-8.safetensors, x-9.safetensors"),
        ({"a": "../x-1.safetensors"}, "without a folder"),
        ({"a": 1}, "must map tensor names to file names"),
        ({"a": "x" * 300}, "of which these are missing: xxx"),
        ({str(i): f"{i:02}.safetensors" for i in range(50)}, r"missing: 00.*, 09.safetensors and 40 more; download"),
        ({f"n{i:02}": "x-1.safetensors" for i in range(50)}, r"n09 \(in x-1.safetensors\)\n  and 40 more$"),
    ],
)
def test_wrong_index(tmp_path, weight_map, message):
    path = write_sharded(tmp_path / "m", {"x-1.safetensors": {"a": A}}, weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_tensor_in_two_shards(tmp_path):
    path = write_sharded(
        tmp_path / "m",
        {"x-1.safetensors": {"a": A, "b": B}, "x-2.safetensors": {"a": A, "c": B}},
        {"a": "x-1.safetensors", "b": "x-1.safetensors", "c": "x-2.safetensors"},
    )
    with pytest.raises(CheckpointError, match=r"'a' is in both x-1.safetensors and x-2.safetensors"):
        open_checkpoint(path)


def test_truncated_shard_is_named(tmp_path):
    path = write_sharded(tmp_path / "m", {"x-1.safetensors": {"a": A}, "x-2.safetensors": {"b": B}})
    shard = path / "x-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"x-2\.safetensors.*truncated"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "config.json").unlink(), "config.json is missing"),
        (lambda p: (p / "config.json").write_text("{"), "is not JSON"),
        (lambda p: (p / "config.json").write_text("[]"), "must be a JSON object"),
        (lambda p: (p / "config.json").write_text('{"model_type": "\\ud800"}'), "is not JSON"),
        (
            lambda p: (p / "config.json").write_text('{"a": ' + "[" * 150 + "]" * 150 + "}"),
            "is not JSON .more than 100",
        ),
        (lambda p: (p / "config.json").write_bytes(b"\xff"), "cannot be read"),
        (lambda p: (p / "generation_config.json").write_text("?"), "generation_config.json: is not JSON"),
        (lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"), "not pytorch_model.bin"),
        (lambda p: (p / "model.safetensors").unlink(), "must hold model.safetensors"),
        (lambda p: (p / "tokenizer.json").write_text("{}"), r"tokenizer.json: not a tokenizer .* download it again"),
        (lambda p: (p / "config.json").write_text('{"format": "tensorwright-engine"}'), "is a built engine"),
    ],
)
def test_wrong_files(tmp_path, spoil, message):
    path = write_checkpoint(tmp_path / "m", {"a": A})
    spoil(path)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_a_tokenizer_that_the_library_panics_at(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path / "m", {"a": A})
    (path / "tokenizer.json").write_text("{}")

    def panic(file):
        raise type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("index out of bounds")

    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_file=panic))
    with pytest.raises(CheckpointError, match=r"not a tokenizer.*index out of bounds"):
        open_checkpoint(path)


def test_wrong_paths(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"or a GGUF file \(\.gguf\)"):
        open_checkpoint(file)
    with pytest.raises(CheckpointError, match="no such directory"):
        open_checkpoint(tmp_path / "absent" / "deep" / "dir")


def test_hub_name_without_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="org/absent: is no local directory, was not downloaded"):
        open_checkpoint("org/absent")


@pytest.mark.parametrize(
    ("generation", "config", "eos"),
    [
        (None, {"eos_token_id": 3}, [3]),
        ({"eos_token_id": 5}, {"eos_token_id": 3}, [5]),
        ({"eos_token_id": [9, 5, 9]}, {"eos_token_id": 3}, [5, 9]),
        ({"eos_token_id": None}, {"eos_token_id": [1]}, [1]),
        (None, {}, []),
    ],
)
def test_eos(tmp_path, generation, config, eos):
    path = write_checkpoint(tmp_path / "m", {"a": A}, **config)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    assert open_checkpoint(path).eos_token_ids == eos


def test_wrong_eos(tmp_path):
    with pytest.raises(CheckpointError, match="eos_token_id must be a token id"):
        _ = open_checkpoint(write_checkpoint(tmp_path / "m", {"a": A}, eos_token_id="</s>")).eos_token_ids


def test_native_dtype(tmp_path):
    def native(tensors, **config):
        return open_checkpoint(write_checkpoint(tmp_path / "m", tensors, **config)).native_dtype

    assert native({"a": A, "b": B}) == "float32"
    assert native({"a": A.astype(np.uint16), "b": B}) == "bfloat16"
    assert native({"a": A}, dtype="bfloat16") == "bfloat16"
    assert native({"a": A}, torch_dtype="float16") == "float16"
    assert native({"a": A}, dtype=None, torch_dtype="float16") == "float16"
    with pytest.raises(CheckpointError, match="dtype must be one of"):
        native({"a": A}, dtype="int8")


def test_chat_templates(tmp_path):
    def templates(config, **files):
        path = write_checkpoint(tmp_path / "m", {"a": A})
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in files.items():
            place = path / ("chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja")
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
        checkpoint = open_checkpoint(path)
        assert {place.name for place in checkpoint.source_files if place.suffix == ".jinja"} == {
            file.name for file in path.rglob("*.jinja")
        }
        return checkpoint.chat_templates

    assert templates({}) == templates({"chat_template": []}) == {}
    assert templates({"chat_template": "{{ x }}"}) == {"default": "{{ x }}"}
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert templates({"chat_template": named}) == {"tool_use": "t", "default": "d"}
    for wrong in (4, ["a"], [{"name": "a"}], [{"name": 1, "template": "a"}]):
        with pytest.raises(CheckpointError, match="chat_template"):
            templates({"chat_template": wrong})
    with pytest.raises(CheckpointError, match=r"is called '\.\./\.\./x', which no file could be"):
        templates({"chat_template": [{"name": "../../x", "template": "t"}]})
    assert templates({"chat_template": "old"}, default="new") == {"default": "new"}
    assert templates({"chat_template": named}, rag="r") == {"default": "new", "rag": "r"}
