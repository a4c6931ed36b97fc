"""Layers of experts in traces: one operation each, of matrices that checkpoints store in parts; others by name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from support.survey import make_model
from support.tiny_models import make_tiny
from support.traced import assert_same_logits
from tensorwright.builder.trace import load_model
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.trace_experts import make_experts_opaque
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint


def edit_weights(path, edit):
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def traced(path):
    return trace(open_checkpoint(path), dtype="float32", max_seq_len=64)


def test_one_operation_for_each_layer(tmp_path):
    graph = traced(make_tiny(tmp_path / "m", "mixtral"))
    mixtures = list(graph.find("experts"))
    assert [node.scope for node in mixtures] == [f"model.layers.{i}.mlp.experts" for i in range(2)]
    assert {node.attrs["activation"] for node in mixtures} == {"silu"}
    gate_up, down = (mixtures[1].operand(i) for i in (3, 4))
    assert (gate_up.shape, down.shape) == ((6, 96, 32), (6, 32, 48))
    experts = "model.layers.1.block_sparse_moe.experts"
    assert list(down.producer.attrs["expr"].refs()) == [f"{experts}.{i}.w2.weight" for i in range(6)]
    names = [f"{experts}.{i}.{w}.weight" for w in ("w1", "w3") for i in range(6)]
    assert list(gate_up.producer.attrs["expr"].refs()) == names


def test_a_dozen_experts_are_in_the_order_of_their_numbers(tmp_path):
    path = make_tiny(tmp_path / "m", "qwen3_moe", num_experts=12, num_hidden_layers=1)
    assert_same_logits(traced(path), path, "float32")


def test_matrices_that_are_stored_joined(tmp_path):
    """As transformers holds them in memory."""
    path = make_tiny(tmp_path / "m", "qwen3_moe", num_hidden_layers=1)

    def join(tensors):
        root = "model.layers.0.mlp.experts"
        parts = [[tensors.pop(f"{root}.{i}.{w}_proj.weight") for i in range(6)] for w in ("gate", "up", "down")]
        gate, up, down = (torch.stack(some) for some in parts)
        tensors[f"{root}.gate_up_proj"], tensors[f"{root}.down_proj"] = torch.cat([gate, up], 1), down

    edit_weights(path, join)
    assert_same_logits(traced(path), path, "float32")


def test_an_expert_that_is_missing(tmp_path):
    path = make_tiny(tmp_path / "m", "mixtral", num_hidden_layers=1)
    edit_weights(path, lambda tensors: tensors.pop("model.layers.0.block_sparse_moe.experts.3.w2.weight"))
    message = r"model.layers.0.mlp.experts.down_proj must be \[6, 32, 48\], but its stored parts make \[5, 32, 48\]"
    with pytest.raises(CheckpointError, match=message):
        traced(path)


def test_one_of_the_matrices_of_an_expert_is_missing(tmp_path):
    path = make_tiny(tmp_path / "m", "mixtral", num_hidden_layers=1)
    edit_weights(path, lambda tensors: tensors.pop("model.layers.0.block_sparse_moe.experts.3.w3.weight"))
    with pytest.raises(CheckpointError, match="weight expression does not fit the checkpoint"):
        traced(path)


def test_experts_of_another_shape(tmp_path):
    path = make_tiny(tmp_path / "m", "mixtral", num_hidden_layers=1)
    name = "model.layers.0.block_sparse_moe.experts.3.w2.weight"
    edit_weights(path, lambda tensors: tensors.update({name: torch.zeros(32, 47)}))
    with pytest.raises(CheckpointError, match="weight expression does not fit the checkpoint"):
        traced(path)


@pytest.mark.parametrize("model_type", ["gpt_oss", "deepseek_v3"])
def test_families_that_are_not_known_are_refused(model_type, tmp_path):
    make_model(model_type, tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"a mixture of experts \(.*\), which is not supported"):
        traced(tmp_path)


def test_experts_of_another_kind_are_refused(tmp_path, monkeypatch):
    """The flags of the class decide, whatever the family."""
    make_model("gpt_oss", tmp_path)
    monkeypatch.setattr(load_model, "FAMILIES_OF_EXPERTS", ("gpt_oss",))
    model = load_model.load_model(open_checkpoint(tmp_path), "float32")
    with pytest.raises(UnsupportedModelError, match=r"mlp.experts \(GptOssExperts\) has experts with matrices"):
        make_experts_opaque(model)


def test_an_activation_that_is_not_known(tmp_path):
    path = make_tiny(tmp_path / "m", "mixtral", hidden_act="tanh")
    with pytest.raises(UnsupportedModelError, match="has experts with the activation Tanh"):
        traced(path)


def test_transformers_own_functions_stay(tmp_path):
    """A trace names its function in the config of the traced model alone."""
    path = make_tiny(tmp_path / "m", "mixtral", num_hidden_layers=1)
    before = dict(ALL_EXPERTS_FUNCTIONS)
    assert_same_logits(traced(path), path, "float32")
    assert dict(ALL_EXPERTS_FUNCTIONS) == before
