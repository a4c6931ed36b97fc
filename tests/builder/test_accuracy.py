"""The accuracy record's numbers, and the streamed reference against the model it stands for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support.made_checkpoints import write_checkpoint
from support.tiny_models import load_eager, make_variant
from tensorwright.builder.measure.accuracy import multiply_adds, sample_ids, token_budget
from tensorwright.builder.measure.metrics import Comparison
from tensorwright.builder.measure.outputs import compute_reference
from tensorwright.builder.measure.reference import transformers_logits
from tensorwright.builder.measure.streamed_weights import StreamedMatrices
from tensorwright.builder.trace.export import trace
from tensorwright.errors import CheckpointError
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline


def compare(reference, logits, next_ids):
    comparison = Comparison()
    comparison.add(np.array(reference, np.float32), np.array(logits, np.float32), next_ids)
    return comparison.record()


def test_equal_logits():
    record = compare([[1, 2, 3], [3, 2, 1]], [[1, 2, 3], [3, 2, 1]], [2])
    assert record["largest_logit_error"] == 0
    assert record["kl_divergence"] == 0
    assert record["top1_agreement"] == 1
    assert record["tokens"] == 2
    assert record["largest_reference_logit"] == 3
    assert record["perplexity_reference"] == record["perplexity_engine"]


def test_known_numbers():
    # Reference: probabilities 1/2, 1/2; engine: 3/4, 1/4. The text goes on with token 1.
    record = compare([[0, 0]], [[math.log(3), 0]], [1])
    assert record["kl_divergence"] == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25), abs=1e-6)
    assert record["perplexity_reference"] == pytest.approx(2, abs=1e-5)
    assert record["perplexity_engine"] == pytest.approx(4, abs=1e-5)
    assert record["largest_logit_error"] == pytest.approx(math.log(3), abs=1e-5)
    assert compare([[0, 1]], [[1, 0]], [])["top1_agreement"] == 0


def test_a_broken_engine_shows():
    record = compare([[0, 1], [1, 0]], [[math.nan, 1], [1, 0]], [1])
    assert record["largest_logit_error"] is None
    assert record["kl_divergence"] is None
    with pytest.raises(ValueError, match="must be"):
        compare([[0, 1]], [[0, 1, 2]], [])


@pytest.mark.parametrize(
    ("vocab_size", "multiply_adds", "tokens"),
    [
        (8192, 10**7, 512),  # pico
        (152_000, 10**7, 110),  # of a large vocabulary, whose logits are held
        (10**7, 10**7, 64),
        (8192, 2 * 10**8, 320),
        (151_936, 494 * 10**6, 110),  # Qwen2.5-0.5B
        (128_256, 1236 * 10**6, 64),  # Llama-3.2-1B
        (128_256, 75 * 10**8, 64),  # Llama-3.1-8B
        (1, 0, 512),
    ],
)
def test_token_budget(vocab_size, multiply_adds, tokens):
    """By the model's size alone: two builds must measure the same, whatever the machine does meanwhile."""
    assert token_budget(vocab_size, multiply_adds) == tokens


def test_sample_ids(tmp_path):
    bare = open_checkpoint(write_checkpoint(tmp_path / "bare", {"a": np.ones(1, np.float32)}))
    ids, text = sample_ids(bare, 40, 7)
    assert (len(ids), text) == (40, "random token ids")
    assert len(set(ids)) > 1
    assert set(ids) <= set(range(7))
    assert ids == sample_ids(bare, 40, 7)[0]
    tiny = open_checkpoint(make_variant(tmp_path / "tiny", "llama"))
    ids, text = sample_ids(tiny, 10, 101)
    assert (len(ids), text) == (10, "built-in text")
    with pytest.raises(CheckpointError, match="gives token 100, but the model has a vocabulary of 50"):
        sample_ids(tiny, 10, 50)


@pytest.mark.parametrize("variant", ["llama_tied", "llama_biases", "mixtral"])
def test_streamed_reference_is_the_model(tmp_path, variant):
    path = make_variant(tmp_path / "m", variant)
    checkpoint = open_checkpoint(path)
    ids = [5, 9, 1, 33, 33, 7]
    traced = trace(checkpoint, dtype="float32", max_seq_len=128)
    logits, _ = compute_reference("quick", checkpoint, ids, traced, None, None)
    with torch.inference_mode():
        exact = load_eager(path).double()(torch.tensor([ids])).logits[0].numpy()
    theirs = transformers_logits(path, ids, 128)
    # Both sum the same float32 products in some order: no further from float64 than a few times the other.
    allowed = 4 * np.abs(theirs - exact).max() + np.finfo(np.float32).eps * np.abs(exact).max()
    assert np.abs(logits - exact).max() <= allowed


def test_experts_in_another_order_show(tmp_path, monkeypatch):
    path = make_variant(tmp_path / "m", "mixtral")
    checkpoint = open_checkpoint(path)
    ids = [5, 9, 1, 33, 33, 7]
    traced = trace(checkpoint, dtype="float32", max_seq_len=128)
    floats = StreamedMatrices.floats
    monkeypatch.setattr(StreamedMatrices, "floats", lambda self, expert: floats(self, (expert + 1) % 6))
    logits, _ = compute_reference("quick", checkpoint, ids, traced, None, None)
    assert np.abs(transformers_logits(path, ids, 128) - logits).max() > 1e-3


def test_a_token_is_multiplied_by_the_experts_that_it_takes(tmp_path):
    checkpoint = open_checkpoint(make_variant(tmp_path / "m", "mixtral"))
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    graph.facts.update(block_size=32)
    config = checkpoint.config
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    mixture = config["num_local_experts"] * hidden + config["num_experts_per_tok"] * 3 * hidden * inner
    expected = layers * (attention + mixture) + config["vocab_size"] * hidden
    assert multiply_adds(run_pipeline(graph).cached_graph) == expected


def test_longrope_is_measured_with_the_engines_factors(tmp_path):
    """A text shorter than the original length has short factors in transformers, and the engine has long ones."""
    path = make_variant(tmp_path / "m", "phi3_longrope")
    ids = [5, 9, 1, 33, 33, 7]
    checkpoint = open_checkpoint(path)
    traced = trace(checkpoint, dtype="float32", max_seq_len=128)
    logits, _ = compute_reference("quick", checkpoint, ids, traced, None, None)
    difference = [np.abs(transformers_logits(path, ids, longest) - logits).max() for longest in (128, 32)]
    assert difference[0] < 1e-3 * difference[1]
