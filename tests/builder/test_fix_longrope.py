"""longrope: the factors fixed at build are transformers' own at the longest length; what cannot be fixed is named."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from support.tiny_configs import COMMON, LONGROPE
from support.tiny_models import make_variant
from support.traced import assert_same_logits
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.fix_longrope import fix_longrope
from tensorwright.errors import UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint

LONG = {"factors": "long", "original_max_position_embeddings": 32}
SHORT = {**LONG, "factors": "short"}


@pytest.mark.parametrize(("max_seq_len", "fact"), [(2, SHORT), (31, SHORT), (32, SHORT), (33, LONG), (128, LONG)])
def test_longrope_is_fixed_by_the_longest_sequence(tmp_path, max_seq_len, fact):
    path = make_variant(tmp_path / "m", "phi3_longrope", num_hidden_layers=1)
    graph = trace(open_checkpoint(path), dtype="float32", max_seq_len=max_seq_len)
    assert graph.facts.longrope == fact
    lengths = (2, 17, 32) if fact is SHORT else (33, 50)
    assert_same_logits(graph, path, "float32", [n for n in lengths if n <= max_seq_len])
    assert graph.find("amax") == []


def test_longrope_per_layer_type():
    """Tables of their own for two kinds of layer; the one that is not longrope stays as it is."""
    config = Gemma3TextConfig(
        **{**COMMON, "head_dim": 8, "pad_token_id": 0},
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {**LONGROPE, "original_max_position_embeddings": 32},
        },
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.model.rotary_emb = Gemma3RotaryEmbedding(config)
    own = copy.deepcopy(model.model.rotary_emb)
    x, positions = torch.zeros(1), torch.arange(40)[None]
    assert fix_longrope(model, 64) == {"full_attention": LONG}
    for layer_type in config.layer_types:
        fixed, theirs = (r(x, positions, layer_type) for r in (model.model.rotary_emb, own))
        assert all(torch.equal(a, b) for a, b in zip(fixed, theirs, strict=True))


def test_a_longrope_of_another_kind_is_refused(tmp_path, monkeypatch):
    """One whose attention factor switches as well, say: what is fixed must equal what the module gives by itself."""
    original = Phi3RotaryEmbedding.forward

    def forward(self, x, position_ids):
        cos, sin = original(self, x, position_ids)
        return cos * (1.5 if position_ids.max() > 32 and self.rope_type == "longrope" else 1.0), sin

    monkeypatch.setattr(Phi3RotaryEmbedding, "forward", forward)
    checkpoint = open_checkpoint(make_variant(tmp_path / "m", "phi3_longrope", num_hidden_layers=1))
    with pytest.raises(UnsupportedModelError, match=r"Phi3RotaryEmbedding.* has a longrope of its own kind"):
        trace(checkpoint, dtype="float32", max_seq_len=64)
