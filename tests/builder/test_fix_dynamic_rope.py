"""Dynamic NTK rope: plain rope up to the model's own positions, and refused beyond."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from support.survey import DYNAMIC
from support.tiny_models import make_tiny
from support.traced import assert_same_logits
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.fix_dynamic_rope import fix_dynamic_rope
from tensorwright.builder.trace.load_model import load_model
from tensorwright.errors import UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint

POSITIONS = 128


@pytest.fixture
def checkpoint(tmp_path):
    path = make_tiny(tmp_path / "m", "llama", num_hidden_layers=1, rope_parameters=DYNAMIC)
    return open_checkpoint(path)


def test_a_trace_turns_as_transformers_up_to_the_last_position(checkpoint):
    graph = trace(checkpoint, dtype="float32", max_seq_len=POSITIONS)
    assert_same_logits(graph, checkpoint.path, "float32", (2, 33, POSITIONS))


def test_one_position_more_would_be_rescaled(checkpoint):
    """What would turn the comparison red: transformers' own frequencies change there."""
    rotary = load_model(checkpoint, "float32").model.rotary_emb
    before = rotary.inv_freq.clone()
    for last, same in ((POSITIONS - 1, True), (POSITIONS, False)):
        rotary(torch.zeros(1), torch.tensor([[0, last]]))
        assert torch.equal(rotary.inv_freq, before) is same


def test_longer_engines_are_refused(checkpoint):
    with pytest.raises(UnsupportedModelError, match=r"model\.rotary_emb has dynamic NTK rope.* at most 128, not 129"):
        trace(checkpoint, dtype="float32", max_seq_len=POSITIONS + 1)


def test_tables_by_layer_type(checkpoint):
    """Only the layers that are dynamic are looked at, and named plain."""
    model = load_model(checkpoint, "float32")
    rotary = model.model.rotary_emb
    rotary.rope_type = {"sliding_attention": "linear", "full_attention": "dynamic"}

    def forward(x, positions, layer_type):
        return (positions * 1.0, positions * 2.0)

    rotary.forward = forward
    fix_dynamic_rope(model, POSITIONS)
    assert rotary.rope_type == {"sliding_attention": "linear", "full_attention": "default"}


def test_a_dynamic_rope_of_another_kind_is_refused(checkpoint, monkeypatch):
    original = LlamaRotaryEmbedding.forward

    def forward(self, x, position_ids):
        cos, sin = original(self, x, position_ids)
        return cos * (1.5 if self.rope_type == "dynamic" else 1.0), sin

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", forward)
    with pytest.raises(UnsupportedModelError, match=r"LlamaRotaryEmbedding.* has a dynamic rope of its own kind"):
        trace(checkpoint, dtype="float32", max_seq_len=64)
