"""Which recurrences are understood, and what is expected of hybrids that no family of the registry describes."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.builder.trace.load_model import load_model
from tensorwright.builder.trace.trace_recurrences import is_recurrent, opaque_recurrences
from tensorwright.errors import PassError, UnsupportedModelError
from tensorwright.models import registry
from tensorwright.models.checkpoint import open_checkpoint

RECURRENT = {
    "lfm2": "conv",
    "qwen3_5_text": "linear_attn",
    "mamba2": "mixer",
    "falcon_h1": "mamba",
    "kimi_linear": "self_attn",
    "minimax": "self_attn",
    "recurrent_gemma": "rg_lru",
}
"""variant -> what its recurrent modules are called."""


@pytest.mark.parametrize("variant", RECURRENT)
def test_modules_that_call_known_recurrences(tmp_path, variant):
    model = load_model(open_checkpoint(make_variant(tmp_path, variant)), "float32")
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if is_recurrent(module)}
    assert found == {RECURRENT[variant]}


def test_functions_return_to_the_modelling_file():
    config = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = MambaForCausalLM(config)
    file = sys.modules[type(model).__module__]
    before = {name: getattr(file, name) for name in ("causal_conv1d_fn", "mamba_inner_fn")}
    with opaque_recurrences(model):
        with pytest.raises(UnsupportedModelError, match="the recurrence mamba_inner_fn is not supported"):
            file.mamba_inner_fn(torch.zeros(1))
        assert file.causal_conv1d_fn is not before["causal_conv1d_fn"]
    assert {name: getattr(file, name) for name in before} == before


def test_methods_return_to_their_class(tmp_path):
    model = load_model(open_checkpoint(make_variant(tmp_path, "recurrent_gemma")), "float32")
    unit = next(type(module) for module in model.modules() if is_recurrent(module))
    before = unit._rnn_scan
    with opaque_recurrences(model):
        assert unit._rnn_scan is not before
        with pytest.raises(UnsupportedModelError, match="a recurrence with an initial state is not supported"):
            unit._rnn_scan(None, *[torch.zeros(1, 2, 3)] * 4)
    assert unit._rnn_scan is before


@pytest.fixture
def forgetful(monkeypatch):
    """Makes the registry forget all families."""
    monkeypatch.setattr(registry, "_FAMILIES", {})


@pytest.mark.parametrize(("variant", "attentions", "caches"), [("qwen3_5_text", 1, 3), ("falcon_h1", 2, 6)])
def test_hybrids_that_are_not_registered_build(tmp_path, forgetful, variant, attentions, caches):
    model = make_variant(tmp_path / "model", variant)
    passes = build(model, tmp_path / "engine", dtype="float32", accuracy="none").config["passes"]
    assert (passes["recognise_attention"], passes["insert_kv_cache"]) == (attentions, caches)


def test_every_attention_of_a_hybrid_must_be_recognised(tmp_path, forgetful, monkeypatch):
    model = make_variant(tmp_path / "model", "qwen3_5_text")
    check = "tensorwright.passes.recognise_attention.check"
    monkeypatch.setattr(check, lambda m: m.require(False, "nothing is attention", m.out))
    with pytest.raises(PassError, match="recognise_attention must rewrite 1 times in this model, and rewrote 0"):
        build(model, tmp_path / "engine", dtype="float32", accuracy="none")


def test_expected_counts_of_a_trace():
    config = {"model_type": "anything", "num_hidden_layers": 4}
    traced = registry.Traced(attentions=1, recurrences=6, mixtures=2)
    counts = {"recognise_attention": 1, "insert_kv_cache": 7, "recognise_router": 2}
    assert registry.expected_counts(config, traced=traced) == counts
    decoder = {"recognise_attention": 4, "insert_kv_cache": 4, "recognise_router": 0}
    assert registry.expected_counts(config, traced=registry.Traced(attentions=1)) == decoder
