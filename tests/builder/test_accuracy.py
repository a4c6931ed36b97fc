"""The accuracy record's numbers, and the streamed reference against the model it stands for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support.tiny_models import load_eager, make_variant
from tensorwright.builder.measure.accuracy import LOGIT_BYTES, block_rows, multiply_adds
from tensorwright.builder.measure.logit_blocks import split_head
from tensorwright.builder.measure.metrics import Comparison
from tensorwright.builder.measure.outputs import StreamedReference
from tensorwright.builder.measure.reference import transformers_logits
from tensorwright.builder.measure.streamed_weights import StreamedMatrices
from tensorwright.builder.trace.export import trace
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline


def compare(reference, logits, next_ids):
    comparison = Comparison()
    comparison.begin_window(4, 2)
    targets = [*next_ids, *[None] * (len(reference) - len(next_ids))]
    comparison.add(np.array(reference, np.float32), np.array(logits, np.float32), targets)
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
    # One token, which is one bit for the reference and two for the engine, is 4 bytes and 2 characters.
    assert (record["windows"], record["bytes"], record["characters"]) == (1, 4, 2)
    assert record["bits_per_byte_reference"] == pytest.approx(1 / 4, abs=1e-6)
    assert record["bits_per_byte_engine"] == pytest.approx(2 / 4, abs=1e-6)
    assert record["bits_per_character_reference"] == pytest.approx(1 / 2, abs=1e-6)
    assert record["bits_per_character_engine"] == pytest.approx(2 / 2, abs=1e-6)
    assert record["largest_logit_error"] == pytest.approx(math.log(3), abs=1e-5)
    assert compare([[0, 1]], [[1, 0]], [])["top1_agreement"] == 0


def test_a_broken_engine_shows():
    record = compare([[0, 1], [1, 0]], [[math.nan, 1], [1, 0]], [1])
    assert record["largest_logit_error"] is None
    assert record["kl_divergence"] is None
    with pytest.raises(ValueError, match="must be"):
        compare([[0, 1]], [[0, 1, 2]], [])


def streamed(checkpoint, traced, ids, rows=512):
    """The logits of the streamed reference: [len(ids), vocab] in blocks of `rows` positions."""
    with StreamedReference(checkpoint, traced, None, None) as reference:
        return np.concatenate(list(reference.logits(ids, rows)))


@pytest.mark.parametrize("variant", ["llama_tied", "llama_biases", "mixtral"])
def test_streamed_reference_is_the_model(tmp_path, variant):
    path = make_variant(tmp_path / "m", variant)
    checkpoint = open_checkpoint(path)
    ids = [5, 9, 1, 33, 33, 7]
    traced = trace(checkpoint, dtype="float32", max_seq_len=128)
    logits = streamed(checkpoint, traced, ids)
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
    logits = streamed(checkpoint, traced, ids)
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
    logits = streamed(checkpoint, traced, ids)
    difference = [np.abs(transformers_logits(path, ids, longest) - logits).max() for longest in (128, 32)]
    assert difference[0] < 1e-3 * difference[1]


@pytest.mark.parametrize("vocab_size", [101, 8192, 32_000, 152_000, 262_144, 10**7])
def test_a_block_of_logits_has_a_bound(vocab_size):
    rows = block_rows(vocab_size)
    assert 32 <= rows <= 512
    assert rows == 32 or 4 * rows * vocab_size <= LOGIT_BYTES


@pytest.mark.parametrize("variant", ["llama", "gemma2", "cohere", "granitemoe", "lfm2"])
@pytest.mark.parametrize("stage", ["traced", "cached"])
def test_only_a_block_of_logits_is_made(tmp_path, variant, stage):
    """With logits that are scaled or capped after the product too; and the graph of a rebuild is at stage cached."""
    checkpoint = open_checkpoint(make_variant(tmp_path / "m", variant))
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    if stage == "cached":
        graph.facts.update(block_size=32)
        graph = run_pipeline(graph).cached_graph
    vocab = graph.facts.vocab_size
    body, head = split_head(graph)
    assert head is not None
    assert all(vocab not in value.shape for node in body.nodes for value in node.outputs if not value.is_stored)
    ids = [5, 9, 1, 33, 33, 7, 64]
    whole = streamed(checkpoint, graph, ids)
    assert whole.shape == (7, vocab)
    # A product of fewer rows may be summed in another order: a few roundings of sums of the hidden size.
    allowed = 64 * np.finfo(np.float32).eps * np.abs(whole).max()
    assert np.abs(streamed(checkpoint, graph, ids, rows=3) - whole).max() <= allowed


def test_logits_that_are_no_product_are_computed_whole(tmp_path):
    checkpoint = open_checkpoint(make_variant(tmp_path / "m", "llama"))
    graph = trace(checkpoint, dtype="float32", max_seq_len=128)
    (logits,) = graph.outputs
    doubled = graph.add("add", [logits, logits], types=[(logits.dtype, logits.shape)])
    plain = streamed(checkpoint, graph, [5, 9, 1, 7], rows=3)
    graph.outputs = [graph.add("softmax", [doubled.output], {"dim": -1}, [(logits.dtype, logits.shape)]).output]
    assert split_head(graph) == (graph, None)
    got = streamed(checkpoint, graph, [5, 9, 1, 7], rows=3)
    np.testing.assert_allclose(got, torch.from_numpy(2 * plain).softmax(-1).numpy(), rtol=1e-4)
