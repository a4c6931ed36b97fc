"""SamplingParams: what is refused, and that the refusal names field, value and range."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.sampling_params import SamplingParams


def test_defaults_are_those_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.max_tokens, params.temperature, params.top_k, params.top_p) == (1, 16, 1.0, 0, 1.0)
    assert params.seed is None
    assert params.logprobs is None


@pytest.mark.parametrize(
    ("field", "value", "range_text"),
    [
        ("n", 0, "a positive integer"),
        ("n", 1.5, "a positive integer"),
        ("max_tokens", 0, "positive"),
        ("max_tokens", 1.5, "positive"),
        ("max_tokens", True, "positive"),
        ("temperature", -0.1, "0 or from 1e-06 to 1e+06"),
        ("temperature", float("nan"), "0 or from"),
        ("temperature", float("inf"), "0 or from"),
        ("temperature", "hot", "0 or from"),
        ("temperature", 1e-7, "0 or from"),
        ("top_k", -2, "0 or -1"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.01, "at most 1"),
        ("min_p", 1.5, "0 to 1"),
        ("typical_p", 0, "above 0 and at most 1"),
        ("xtc_threshold", -0.1, "0 to 1"),
        ("xtc_probability", 1.5, "0 to 1"),
        ("dry_multiplier", -1, "0 to 100"),
        ("dry_base", 0.5, "1 to 100"),
        ("dry_allowed_length", 0, "a positive integer"),
        ("dry_penalty_last_n", -2, "-1"),
        ("dry_sequence_breakers", "", "none empty"),
        ("no_repeat_ngram_size", -1, "an integer >= 0"),
        ("min_tokens", 17, "max_tokens"),
        ("min_tokens", -1, "max_tokens"),
        ("repetition_penalty", 0, "0.01 to 100"),
        ("presence_penalty", float("nan"), "-100 to 100"),
        ("frequency_penalty", "x", "-100 to 100"),
        ("logit_bias", 3, "dict"),
        ("logit_bias", [3], "dict"),
        ("bad_words", "text", "list"),
        ("stop", 3, "list of texts"),
        ("timeout", -1, "0 to 1e+07"),
        ("timeout", "soon", "0 to 1e+07"),
        ("priority", 1.5, "integer"),
        ("priority", 2**31, "integer"),
        ("cache_salt", "", "1 to 256 characters"),
        ("cache_salt", 5, "1 to 256 characters"),
        ("cache_salt", "\ud800", "valid Unicode"),
        ("stop", "", "none empty"),
        ("truncate_prompt_tokens", 0, "positive"),
        ("include_stop_str_in_output", None, "True or False"),
        ("bad_words", 3, "list"),
        ("seed", -1, "2**64"),
        ("seed", 2**64, "2**64"),
        ("stop_token_ids", [-1], ">= 0"),
        ("stop_token_ids", 7, "list"),
        ("stop_token_ids", ["a"], "list"),
        ("ignore_eos", 1, "True or False"),
        ("logprobs", -1, ">= 0"),
        ("prompt_logprobs", -1, ">= 0"),
        ("prompt_logprobs", True, ">= 0"),
        ("prompt_logprobs", 1.0, ">= 0"),
        ("prompt_logprobs", 2**31, ">= 0"),
        ("detokenize", None, "True or False"),
    ],
)
def test_impossible_value_is_refused_by_name(field: str, value: Any, range_text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert field in message
    assert repr(value if field != "stop_token_ids" or not isinstance(value, list) else value[0]) in message
    assert range_text in message


@pytest.mark.parametrize(
    ("field", "value", "range_text"),
    [
        ("logit_bias", {-1: 0.5}, "-inf"),
        ("logit_bias", {"a": 0.5}, "-inf"),
        ("logit_bias", {1: float("inf")}, "-inf"),
        ("logit_bias", {1: float("nan")}, "-inf"),
        ("bad_words", [""], "none empty"),
        ("bad_words", [[]], "none empty"),
        ("bad_words", [[-1]], ">= 0"),
        ("bad_words", [1], "list"),
        ("stop", ["a", ""], "none empty"),
        ("stop", ["a", 1], "list of texts"),
    ],
)
def test_impossible_part_of_a_value_is_refused_by_name(field: str, value: Any, range_text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} must be .*{range_text}"):
        SamplingParams(**{field: value})


AT_THE_BOUNDS: list[tuple[str, Any, Any]] = [
    ("stop", ["a"] * bounds.STOP_STRINGS, "b"),
    ("stop_token_ids", [1] * bounds.STOP_TOKEN_IDS, 1),
    ("bad_words", ["a"] * bounds.BAD_WORDS, "a"),
    ("bad_words", [[1] * bounds.BAD_WORD_TOKENS], [[1] * (bounds.BAD_WORD_TOKENS + 1)]),
    ("bad_words", ["a" * bounds.BAD_WORD_LENGTH], ["a" * (bounds.BAD_WORD_LENGTH + 1)]),
    ("stop", ["a" * bounds.STOP_LENGTH], "a" * (bounds.STOP_LENGTH + 1)),
    ("dry_sequence_breakers", ["a"] * bounds.DRY_BREAKERS, "a"),
    ("dry_sequence_breakers", ["a" * bounds.DRY_BREAKER_LENGTH], ["a" * (bounds.DRY_BREAKER_LENGTH + 1)]),
    ("logit_bias", dict.fromkeys(range(bounds.LOGIT_BIASES), 1), {-1: 1}),
]


@pytest.mark.parametrize(("field", "most", "more"), AT_THE_BOUNDS)
def test_as_many_as_the_bound_are_taken_and_one_more_is_refused(field: str, most: Any, more: Any) -> None:
    assert SamplingParams(**{field: most})
    if isinstance(most, dict):
        more = {**most, **more}
    elif len(most) > 1:
        more = [*most, more]
    with pytest.raises(InvalidRequestError, match=rf"{field} must have at most \d+ [a-z ]+, got \d+$"):
        SamplingParams(**{field: more})


HUGE = 10**5000


@pytest.mark.parametrize(
    "odd",
    [HUGE, -HUGE, "a" * 10**6, [1] * 10**6, dict.fromkeys(range(5000), "a"), [HUGE], {HUGE: 1.0}, {1: HUGE},
     [[HUGE]], Fraction(HUGE), object, float("nan"), "\ud800"],
    ids=lambda odd: type(odd).__name__,
)  # fmt: skip
def test_the_oddest_values_end_typed_and_short(odd: Any) -> None:
    """Whatever stands in any field: it is taken, or InvalidRequestError names the field in a line that one can read."""
    for field in dataclasses.fields(SamplingParams):
        message = field.name
        try:
            SamplingParams(**{field.name: odd})
        except InvalidRequestError as error:
            message = str(error)
        assert field.name in message
        assert len(message) < 500


def test_a_salt_has_a_bound() -> None:
    SamplingParams(cache_salt="x" * 256)
    with pytest.raises(InvalidRequestError, match="1 to 256 characters"):
        SamplingParams(cache_salt="x" * 257)


def test_unknown_keyword_names_the_closest() -> None:
    with pytest.raises(InvalidOptionError, match=r"no option 'temprature'; did you mean temperature\?"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidOptionError,
        match="there are adapter, bad_words, beam_width, cache_salt, deadline, detokenize, ",
    ):
        SamplingParams(zzz=1)  # type: ignore[call-arg]


def test_numpy_numbers_count() -> None:
    params = SamplingParams(max_tokens=np.int64(4), temperature=np.float32(0.5), stop_token_ids=[np.int32(3)])
    assert params.stop_token_ids == (3,)


def test_frozen_hashable_copyable() -> None:
    params = SamplingParams(stop_token_ids=[1, 2], seed=3, logit_bias={4: -1, 2: 0.5}, bad_words=["a", [1]])
    assert (params.logit_bias, params.bad_words) == (((2, 0.5), (4, -1.0)), ("a", (1,)))
    assert dataclasses.replace(params) == params
    params = SamplingParams(stop_token_ids=[1, 2], seed=3)
    with pytest.raises(AttributeError):
        params.seed = 4  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(stop_token_ids=(1, 2), seed=3))
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
