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
    if s.no_repeat_ngram_size:
        scores = hf.NoRepeatNGramLogitsProcessor(s.no_repeat_ngram_size)(ids, scores)
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
    if s.typical_p < 1:
        scores = hf.TypicalLogitsWarper(s.typical_p)(ids, scores)
    return scores[0]


def borderline(scores: torch.Tensor, top_p: float, min_p: float) -> bool:
    """True if the rounding of an fp32 softmax decides: a ratio to the likeliest is so near min_p, or a sum so near
    1 - top_p. scores: those that top_p and min_p see."""
    ratios = (scores.double() - scores.double().max()).exp()
    if bool(((ratios[ratios < 1] - min_p).abs() < 16 * np.finfo(np.float32).eps * min_p).any()):
        return True
    sums = ratios.sort().values.cumsum(-1) / ratios.sum()
    return top_p < 1 and bool((sums - (1 - top_p)).abs().min() < 8 * np.finfo(np.float32).eps)


def near_typical(scores: torch.Tensor, mass: float) -> bool:
    """True if rounding decides what typical_p keeps: a sum is so near its mass, or two tokens are as far from the
    entropy. scores: those that typical_p sees."""
    p = scores.double().softmax(-1)[torch.isfinite(scores)]
    distances, order = (-p.log() + (p * p.log()).sum()).abs().sort()
    eps = 32 * np.finfo(np.float32).eps
    if len(p) > 1 and bool((distances.diff() < eps * distances.max().clamp(min=1)).any()):
        return True
    return bool((p[order].cumsum(-1) - mass).abs().min() < eps)


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
        "typical_p": draw(st.sampled_from([1.0, 1.0, 0.9, 0.3])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 0, 1, 2, 3])),
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
    before = reference_scores(
        logits, sampling(**{**fields, "min_p": 0.0, "top_p": 1.0, "typical_p": 1.0}), tokens, prompt
    )
    assume(torch.isfinite(before).any())
    assume(not borderline(before, s.top_p, s.min_p))
    unlike = reference_scores(logits, sampling(**{**fields, "typical_p": 1.0}), tokens, prompt)
    assume(s.typical_p == 1 or not near_typical(unlike, s.typical_p))
    expected = torch.isfinite(reference_scores(logits, s, tokens, prompt)).nonzero()[:, 0].tolist()
    assert _testing.token_set(logits, s, tokens, prompt) == expected
    greedy = sampling(**{**fields, "temperature": 0.0})
    likeliest = int(
        reference_scores(logits, sampling(**{**fields, "temperature": 1.0, "typical_p": 1.0}), tokens, prompt).argmax()
    )
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


def dry_penalties(s: Any, tokens: list[int], breakers: list[list[int]]) -> dict[int, float]:
    """DRY by its definition: every earlier place is compared token by token. Returns {token: penalty}."""
    window = len(tokens) if s.dry_penalty_last_n < 0 else s.dry_penalty_last_n
    seen = tokens[max(0, len(tokens) - window) :]
    limit = len(seen)
    for back in range(len(seen)):
        start = len(seen) - 1 - back
        lengths = [len(breaker) for breaker in breakers if seen[start : start + len(breaker)] == breaker]
        if lengths:
            limit = back - (max(lengths) - 1)
            break
    longest: dict[int, int] = {}
    if len(seen) > s.dry_allowed_length and limit >= s.dry_allowed_length:
        for place in range(1, len(seen)):  # the token at the place may come again
            length = 0
            while length < place and seen[place - 1 - length] == seen[-1 - length]:
                length += 1
            length = min(length, limit)
            if length >= s.dry_allowed_length:
                longest[seen[place]] = max(longest.get(seen[place], 0), length)
    return {
        token: s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length)
        for token, length in longest.items()
        if [token] not in breakers
    }


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_dry_is_its_definition(data: Any) -> None:
    small = st.integers(0, 2)  # so that much repeats
    tokens = data.draw(st.lists(small, min_size=1, max_size=24))
    breakers = data.draw(st.lists(st.lists(small, min_size=1, max_size=3), max_size=2))
    drawn = {
        "dry_multiplier": [0.5, 3.0],
        "dry_base": [1.0, 1.75],
        "dry_allowed_length": [1, 2, 3, 4],
        "dry_penalty_last_n": [-1, -1, 1, 6, 12],
    }
    s = sampling(temperature=0.0, **{name: data.draw(st.sampled_from(values)) for name, values in drawn.items()})
    s.dry_breakers = _runtime.DryBreakers([(breaker[1:], breaker[:1]) for breaker in breakers])
    penalties = dry_penalties(s, tokens, breakers)
    logits = np.arange(VOCAB, 0, -1).astype(np.float32)
    expected = logits.astype(np.float64)
    for token, penalty in penalties.items():
        expected[token] -= np.float32(penalty)
    assert _testing.sample(logits, s, 0, len(tokens), tokens, 1)[0] == int(expected.argmax())
    s.temperature, s.min_p = 1.0, 1.0  # only the likeliest may be drawn: two logits that differ are told apart
    assert _testing.token_set(logits, s, tokens, 1) == np.flatnonzero(expected == expected.max()).tolist()


def test_repetitions_of_any_kind_take_one_pass() -> None:
    """A text of one token repeats itself everywhere: the penalty is finite, and the work is a pass, not a square."""
    tokens = [1] * 300_000
    logits = np.array([0, 5, 0, 0], np.float32)
    dry = sampling(temperature=0.0, dry_multiplier=100.0, dry_base=100.0)
    assert _testing.sample(logits, dry, 0, len(tokens), tokens)[0] == 0
    assert _testing.token_set(np.array([-np.inf, 5], np.float32), dry, tokens) == [1]
    ngrams = sampling(temperature=1.0, no_repeat_ngram_size=100_000)
    assert _testing.token_set(logits, ngrams, tokens) == [0, 2, 3]


def test_xtc_leaves_the_least_likely_of_the_top_choices() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))
    s = sampling(xtc_probability=0.5, xtc_threshold=0.15)
    assert _testing.token_set(logits, s, coin=0.4) == [2, 3, 4]
    assert _testing.token_set(logits, s, coin=0.5) == [0, 1, 2, 3, 4]
    s.xtc_threshold = 0.35  # one token alone is no choice
    assert _testing.token_set(logits, s, coin=0.0) == [0, 1, 2, 3, 4]
    s.xtc_threshold, s.top_k = 0.15, 2  # of what the parameters before it leave
    assert _testing.token_set(logits, s, coin=0.0) == [1]
    flat = sampling(xtc_probability=1.0, xtc_threshold=0.1)
    assert _testing.token_set(np.zeros(4, np.float32), flat, coin=0.0) == [0]


def test_xtc_tosses_a_coin_of_its_own_at_each_position() -> None:
    """By seed and position, independent of the token's number, as often as xtc_probability says."""
    logits = np.log(np.array([0.6, 0.4], np.float32))
    s = sampling(xtc_probability=0.25, xtc_threshold=0.3)
    plain = sampling()
    drawn = [_testing.sample(logits, s, 7, position)[0] for position in range(2000)]
    assert drawn == [_testing.sample(logits, s, 7, position)[0] for position in range(2000)]
    firsts = [_testing.sample(logits, plain, 7, position)[0] == 0 for position in range(2000)]
    tossed = sum(token == 1 for token, first in zip(drawn, firsts, strict=True) if first)
    assert all(token == 1 for token, first in zip(drawn, firsts, strict=True) if not first)
    assert abs(tossed / sum(firsts) - 0.25) < 4 * (0.25 * 0.75 / sum(firsts)) ** 0.5
