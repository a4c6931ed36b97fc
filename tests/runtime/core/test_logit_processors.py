"""The C++ sampler after biases, penalties and bans: its token sets are those of transformers' processors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

VOCAB = 40
EOS = [3, 5]


def sampling(**fields: Any):
    s = _runtime.Sampling()
    for name, value in fields.items():
        assert hasattr(s, name)
        setattr(s, name, value)
    return s


def reference_scores(logits: np.ndarray, s, tokens: list[int], prompt: int) -> torch.Tensor:
    """Scores [vocab] of generate(), its processors in its order; presence and frequency as vLLM writes them."""
    ids = torch.tensor([tokens])
    scores = torch.from_numpy(logits)[None].clone()
    if s.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor({(token,): bias for token, bias in s.logit_bias})(ids, scores)
    if s.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(ids, scores)
    counts = torch.bincount(ids[0, prompt:], minlength=len(logits))
    scores = scores - s.frequency_penalty * counts
    scores = scores - s.presence_penalty * (counts > 0)
    if s.bad_words:
        scores = hf.NoBadWordsLogitsProcessor(s.bad_words)(ids, scores)
    if s.min_tokens:
        ends = [*s.eos_token_ids, *s.stop_token_ids]
        scores = hf.MinNewTokensLengthLogitsProcessor(prompt, s.min_tokens, ends)(ids, scores)
    scores = hf.TemperatureLogitsWarper(s.temperature)(ids, scores)
    if s.top_k:
        scores = hf.TopKLogitsWarper(s.top_k)(ids, scores)
    if s.top_p < 1:
        scores = hf.TopPLogitsWarper(s.top_p)(ids, scores)
    if s.min_p:
        scores = hf.MinPLogitsWarper(s.min_p)(ids, scores)
    return scores[0]


def borderline(scores: torch.Tensor, top_p: float, min_p: float) -> bool:
    """True if the rounding of an fp32 softmax decides: a ratio to the likeliest is so near min_p, or a sum so near
    1 - top_p. scores: those that top_p and min_p see."""
    ratios = (scores.double() - scores.double().max()).exp()
    if bool(((ratios[ratios < 1] - min_p).abs() < 16 * np.finfo(np.float32).eps * min_p).any()):
        return True
    sums = ratios.sort().values.cumsum(-1) / ratios.sum()
    return top_p < 1 and bool((sums - (1 - top_p)).abs().min() < 8 * np.finfo(np.float32).eps)


penalty = st.sampled_from([0.0, 0.5, -2.0, 5.0])
token = st.integers(0, VOCAB - 1)
few = st.integers(0, 5)  # so that words occur


@st.composite
def cases(draw):
    tokens = draw(st.lists(few, min_size=4, max_size=12))
    fields = {
        "temperature": draw(st.sampled_from([0.5, 1.0])),
        "top_k": draw(st.sampled_from([0, 4])),
        "top_p": draw(st.sampled_from([1.0, 0.9, 0.6])),
        "min_p": draw(st.sampled_from([0.0, 0.05, 0.2, 1.0])),
        "min_tokens": draw(st.integers(0, 4)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.8])),
        "presence_penalty": draw(penalty),
        "frequency_penalty": draw(penalty),
        "logit_bias": list(draw(st.dictionaries(token, st.sampled_from([1.0, -2.5, 30.0, -math.inf]))).items()),
        "bad_words": draw(st.lists(st.lists(few, min_size=1, max_size=3), max_size=4, unique_by=tuple)),
        "eos_token_ids": EOS,
        "stop_token_ids": draw(st.sampled_from([[], [7]])),
    }
    return tokens, draw(st.integers(1, 4)), fields, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_token_sets_are_those_of_transformers(case):
    tokens, prompt, fields, seed = case
    s = sampling(**fields)
    logits = (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)
    logits[:6] += 3  # the tokens that occur are likely ones, else penalties seldom matter
    before = reference_scores(logits, sampling(**{**fields, "min_p": 0.0, "top_p": 1.0}), tokens, prompt)
    assume(not borderline(before, s.top_p, s.min_p))
    expected = torch.isfinite(reference_scores(logits, s, tokens, prompt)).nonzero()[:, 0].tolist()
    assert _testing.token_set(logits, s, tokens, prompt) == expected
    greedy = sampling(**{**fields, "temperature": 0.0})
    likeliest = int(reference_scores(logits, sampling(**{**fields, "temperature": 1.0}), tokens, prompt).argmax())
    assert _testing.sample(logits, greedy, 0, len(tokens), tokens, prompt)[0] == likeliest


def test_logprobs_are_of_the_row_as_it_came():
    logits = np.array([3, 2, 1, 0], np.float32)
    token, entries = _testing.sample(logits, sampling(temperature=0.0, logit_bias=[(0, -9.0)], logprobs=1), 0, 0)
    assert token == 1
    assert [(entry[0], entry[2]) for entry in entries] == [(1, 2), (0, 1)]
    assert entries[0][1] == pytest.approx(float(torch.from_numpy(logits).double().log_softmax(-1)[1]), abs=1e-15)


def test_min_tokens_bans_only_what_would_end_the_request():
    logits = np.zeros(8, np.float32)
    s = sampling(min_tokens=2, eos_token_ids=[1], stop_token_ids=[2])
    assert _testing.token_set(logits, s, [0, 0], 1) == [0, 3, 4, 5, 6, 7]
    assert _testing.token_set(logits, s, [0, 0, 0], 1) == list(range(8))
    s.ignore_eos = True
    assert _testing.token_set(logits, s, [0, 0], 1) == [0, 1, 3, 4, 5, 6, 7]


def test_a_request_that_forbids_everything_ends_with_its_own_error():
    with pytest.raises(InvalidRequestError, match="left none"):
        _testing.token_set(np.zeros(2, np.float32), sampling(bad_words=[[0], [1]]), [], 0)


def test_a_history_that_is_none_is_refused():
    for tokens, prompt in (([4], 0), ([-1], 0), ([0], 2)):
        with pytest.raises(InvalidRequestError, match="tokens"):
            _testing.token_set(np.zeros(4, np.float32), sampling(), tokens, prompt)
