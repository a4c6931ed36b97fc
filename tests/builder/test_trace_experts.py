"""Layers of experts in traces: one operation each, of matrices that checkpoints store in parts; others by name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from support.survey import make_model
from support.tiny_models import make_tiny
from support.traced import assert_same_logits
from tensorwright.builder.trace import load_model, trace_experts
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


def test_matrices_that_are_transposed_with_alternating_rows_and_biases(tmp_path):
    """As GPT-OSS stores them, with a gate of its own."""
    path = make_tiny(tmp_path / "m", "gpt_oss", num_hidden_layers=1, layer_types=["full_attention"])
    graph = traced(path)
    (mixture,) = graph.find("experts")
    assert mixture.attrs == {"activation": "silu", "limit": 0.5, "slope": 1.702, "up_offset": 1.0}
    root = "model.layers.0.mlp.experts"
    stored = f'transpose(1, 2, "{root}.gate_up_proj")'
    assert (
        str(mixture.operand(3).producer.attrs["expr"])
        == f"concat(1, every(1, 0, 2, {stored}), every(1, 1, 2, {stored}))"
    )
    assert [mixture.operand(i).shape for i in (3, 4, 5, 6)] == [(6, 96, 32), (6, 32, 48), (6, 96), (6, 32)]
    assert_same_logits(graph, path, "float32")


def test_experts_without_a_gate(tmp_path, monkeypatch):
    """Their activation is squared."""
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

    sizes = {"n_routed_experts": 4, "hidden_size": 8, "moe_intermediate_size": 6, "moe_latent_size": None}
    experts = NemotronHExperts(type("Config", (), {**sizes, "mlp_hidden_act": "relu2"})())
    assert trace_experts.find_gate("experts", experts) == {"activation": "relu", "squared": True, "gated": False}


def test_experts_that_read_scaled_rows(tmp_path):
    """Llama 4 computes all experts for all rows, by a class of its own."""
    path = make_tiny(tmp_path / "m", "llama4_text", num_hidden_layers=1, no_rope_layers=[1])
    graph = traced(path)
    (mixture,) = graph.find("experts")
    assert mixture.attrs == {"activation": "silu", "scales_input": True}
    assert [mixture.operand(i).shape for i in (3, 4)] == [(6, 48, 32), (6, 32, 24)]


def test_a_layer_of_experts_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    """The name of a class decides nothing: a small layer of it must compute what is known of it."""
    from transformers.models.llama4.modeling_llama4 import Llama4Router

    scores = Llama4Router.forward

    def softer(self, rows):
        chosen, every = scores(self, rows)
        return chosen / 2, every

    path = make_tiny(tmp_path / "m", "llama4_text")
    monkeypatch.setattr(Llama4Router, "forward", softer)
    with pytest.raises(UnsupportedModelError, match=r"feed_forward \(Llama4TextMoe\) computes its experts in another"):
        traced(path)


def test_experts_of_three_stacked_matrices(tmp_path):
    """DBRX holds the rows of all experts in w1, v1 and w2, and divides by the sum of absolute scores."""
    path = tmp_path / "m"
    make_model("dbrx", path)
    graph = traced(path)
    mixture = next(iter(graph.find("experts")))
    assert [mixture.operand(i).shape for i in (3, 4)] == [(4, 96, 32), (4, 32, 48)]
    stored = "transformer.blocks.0.ffn.experts.mlp"
    up, down = (str(mixture.operand(i).producer.attrs["expr"]) for i in (3, 4))
    assert up == f'concat(1, reshape([4, 48, 32], "{stored}.w1"), reshape([4, 48, 32], "{stored}.v1"))'
    assert down == f'transpose(1, 2, reshape([4, 48, 32], "{stored}.w2"))'
    assert_same_logits(graph, path, "float32")


def test_experts_without_matrices(tmp_path):
    """The last experts of LongCat give what they read. Nothing reads the products stored for them."""
    path = tmp_path / "m"
    make_model("longcat_flash", path)
    graph = traced(path)
    mixture = next(iter(graph.find("experts")))
    assert mixture.attrs == {"activation": "silu", "identities": 4}
    assert [mixture.operand(i).shape for i in (3, 4)] == [(8, 48, 32), (8, 32, 24)]
    assert str(mixture.operand(3).producer.attrs["expr"]).startswith("slice(0, 0, 8, ")
    assert_same_logits(graph, path, "float32")


def test_stacked_experts_that_compute_something_else_are_refused(tmp_path, monkeypatch):
    from transformers.models.dbrx.modeling_dbrx import DbrxExpertGLU

    exact = DbrxExpertGLU.forward
    make_model("dbrx", tmp_path / "m")
    monkeypatch.setattr(DbrxExpertGLU, "forward", lambda self, x, w1, v1, w2: exact(self, x, v1, w1, w2))
    with pytest.raises(UnsupportedModelError, match=r"blocks.0.ffn \(DbrxFFN\) computes its experts in another"):
        traced(tmp_path / "m")


def test_an_activation_that_no_kernel_has(tmp_path):
    path = make_tiny(tmp_path / "m", "llama4_text", hidden_act="mish")
    with pytest.raises(UnsupportedModelError, match=r"feed_forward .* has experts with the activation Mish"):
        traced(path)


def test_a_gate_of_another_kind_is_refused(tmp_path, monkeypatch):
    """What the class computes decides, not its name."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    path = make_tiny(tmp_path / "m", "mixtral")
    monkeypatch.setattr(MixtralExperts, "_apply_gate", lambda self, wide: torch.tanh(wide[..., ::2]))
    with pytest.raises(
        UnsupportedModelError, match=r"mlp.experts \(MixtralExperts\) has experts with a gate of their own"
    ):
        traced(path)


def test_a_norm_after_each_expert_is_refused(tmp_path):
    model = load_model.load_model(open_checkpoint(make_tiny(tmp_path / "m", "mixtral")), "float32")
    model.model.layers[1].mlp.experts.has_post_expert_norm = True
    with pytest.raises(
        UnsupportedModelError, match=r"layers.1.mlp.experts .* has experts with a norm after each expert"
    ):
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
