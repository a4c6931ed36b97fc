"""Attention as GPT-OSS writes it, on a model without its mixture of experts."""

from __future__ import annotations

import re

import pytest
import torch

from support.known_traces import known_traces
from support.tiny_models import load_eager, make_variant
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.trace.export import trace, trace_for_engine
from tensorwright.errors import UnsupportedModelError
from tensorwright.ir.interpret import interpret
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline


def test_the_maximum_is_taken_off_before_the_softmax(tmp_path, monkeypatch):
    """torch gives the maxima over a dimension together with their places."""
    from transformers.models.flint import modeling_flint
    from transformers.models.gpt_oss import modeling_gpt_oss

    monkeypatch.setattr(modeling_flint, "eager_attention_forward", modeling_gpt_oss.eager_attention_forward)
    path = make_variant(tmp_path / "m", "flint")
    checkpoint = open_checkpoint(path)
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    assert len(graph.find("amax")) == 2
    ids = torch.randint(0, 97, (1, 33), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = load_eager(path)(input_ids=ids, use_cache=False).logits
    inputs = {"input_ids": ids, "position_ids": torch.arange(33)[None]}
    assert torch.equal(interpret(graph, inputs, checkpoint_weights(checkpoint))[0], expected)
    report = run_pipeline(graph)
    assert report.counts["recognise_attention"] == 2
    assert all(n.inputs[5] is not None for n in report.graph.find("paged_attention"))


def test_weights_that_a_family_keeps_in_float32(tmp_path, monkeypatch):
    """transformers' keys are searched for in the names of the weights that are there: a dense Flint has no gate.

    Matrices are noted in an engine's graph, for float32 too, from which a narrower engine may be rebuilt; a vector of
    another name than those that are read in float32 is refused.
    """
    from transformers import FlintForCausalLM

    checkpoint = open_checkpoint(make_variant(tmp_path / "m", "flint"))
    with known_traces(tmp_path):  # The fact is found before the export, which is always the same.
        for key, dtype in (("o_proj", "float32"), ("mlp.*_proj", "bfloat16"), ("o_proj", "float16")):
            monkeypatch.setattr(FlintForCausalLM, "_keep_in_fp32_modules_strict", ["gate.weight", "sinks", key])
            wide = trace_for_engine(checkpoint, dtype=dtype, max_seq_len=128).facts.wide
            assert wide
            assert all(re.search(key, name) for name in wide)
    monkeypatch.setattr(FlintForCausalLM, "_keep_in_fp32_modules_strict", ["gate.weight", "o_proj", "layernorm"])
    with pytest.raises(UnsupportedModelError, match=r"flint keeps layernorm in float32 when run in float16"):
        trace(checkpoint, dtype="float16", max_seq_len=128)
