"""The C++ sampler's token sets are those of transformers' processors, in its order: temperature, top_k, top_p."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tensorwright.errors import InvalidRequestError, NumericalError
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes


def sampling(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, logprobs: int = -1):
    s = _runtime.Sampling()
    s.temperature, s.top_k, s.top_p, s.logprobs = temperature, top_k, top_p, logprobs
    return s


def reference_scores(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Scores [vocab] as generate() computes them."""
    scores = TemperatureLogitsWarper(temperature)(None, torch.from_numpy(logits)[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores[0]


def borderline(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> bool:
    """True if a cumulative probability is so near 1 - top_p that fp32 sums in another order decide otherwise."""
    scores = reference_scores(logits, temperature, top_k, 1.0).double()
    cumulative = scores.sort().values.softmax(-1).cumsum(-1)
    # fp32 softmax and its sum: an error of each term's rounding, and of exp's few.
    return bool((cumulative - (1 - top_p)).abs().min() < 8 * np.finfo(np.float32).eps)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 300, 2000]),
    levels=st.sampled_from([2, 50, 1 << 20]),  # few: ties
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 2, 7, 50, 5000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.501, 0.1, 1e-6]),
)
def test_token_sets_are_those_of_transformers(seed, vocab, levels, temperature, top_k, top_p):
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, levels, vocab) * np.float32(16 / levels) - 8).astype(np.float32)
    if top_p < 1 and borderline(logits, temperature, top_k, top_p):
        return
    expected = reference_scores(logits, temperature, top_k, top_p)
    kept = _testing.token_set(logits, sampling(temperature, top_k, top_p))
    scaled = reference_scores(logits, temperature, 0, 1.0)
    # Of equal scores at the edge of top_p which one stays is torch.sort's choice, and it promises none; so the scores
    # that stay are compared, each as often as it stays.
    assert torch.equal(scaled[kept].sort().values, expected[torch.isfinite(expected)].sort().values)


def test_logprobs_are_the_log_softmax():
    logits = np.random.default_rng(1).standard_normal(5000).astype(np.float32) * 4
    token, entries = _testing.sample(logits, sampling(0.0, logprobs=5), 0, 0)
    expected = torch.from_numpy(logits).double().log_softmax(-1)
    top = expected.topk(5)
    assert token == int(top.indices[0])
    assert [entry[0] for entry in entries] == top.indices.tolist()
    assert [entry[2] for entry in entries] == [1, 2, 3, 4, 5]
    # Double throughout; a sum of 5000 terms, each within two roundings.
    np.testing.assert_allclose([entry[1] for entry in entries], top.values, rtol=0, atol=5000 * 2.3e-16)


def test_a_draw_is_a_function_of_seed_and_position():
    logits = np.zeros(1000, np.float32)
    draw = {(seed, at): _testing.sample(logits, sampling(), seed, at)[0] for seed in range(5) for at in range(40)}
    assert all(_testing.sample(logits, sampling(), *key)[0] == token for key, token in draw.items())
    assert len(set(draw.values())) > 150


def test_seeds_out_of_range_are_refused_by_name():
    s = _runtime.Sampling()
    s.seed = 2**64 - 1
    assert s.seed == 2**64 - 1
    s.seed = None
    assert s.seed is None
    for seed in (-1, 2**64, "1"):
        with pytest.raises(InvalidRequestError, match="seed"):
            s.seed = seed


def test_rows_without_a_distribution_are_refused():
    with pytest.raises(NumericalError, match="NaN"):
        _testing.sample(np.array([0, np.nan], np.float32), sampling(), 0, 0)
