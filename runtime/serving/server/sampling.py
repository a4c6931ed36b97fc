"""Translates the fields of a request into SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.generation_defaults import with_defaults, without_length
from tensorwright.runtime.requests.sampling_params import BEAMS, SamplingParams
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.request_fields import SamplingFields

SAME_NAME = (
    "n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "top_k", "min_p", "typical_p",
    "xtc_threshold", "xtc_probability", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "no_repeat_ngram_size", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids",
    "bad_words", "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens", "priority",
    "deadline", "cache_salt",
)  # fmt: skip
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def completion_params(request: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters of a completion. Raises InvalidRequestError for fields that contradict each other.

    defaults: the engine's defaults, by field of SamplingParams. Their length is not taken, for OpenAI's default is 16
    tokens, as in vLLM.
    """
    if request.only_scores and not request.echo:
        raise InvalidRequestError("max_tokens must be at least 1, or 0 with echo to score a prompt, got 0 without echo")
    fields = _common(request)
    if request.max_tokens is not None:
        fields["max_tokens"] = max(1, request.max_tokens)  # With 0, only_scores leaves the one token out again.
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
        if request.echo:
            fields["prompt_logprobs"] = request.logprobs
    return SamplingParams(**with_defaults(fields, without_length(defaults)))


def chat_params(request: ChatCompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters of a chat completion. Raises InvalidRequestError for fields that contradict each other.

    defaults: the engine's defaults, by field of SamplingParams.
    """
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("top_logprobs must come with logprobs: true")
    fields = _common(request)
    lengths = {length for length in (request.max_tokens, request.max_completion_tokens) if length is not None}
    if len(lengths) > 1:
        raise InvalidRequestError(
            f"max_tokens ({request.max_tokens}) and max_completion_tokens ({request.max_completion_tokens}) are names "
            "of the same: give one"
        )
    fields["max_tokens"] = lengths.pop() if lengths else defaults.get("max_tokens")
    if request.logprobs:
        fields["logprobs"] = request.top_logprobs or 0
    return SamplingParams(**with_defaults(fields, defaults))


def _common(request: SamplingFields) -> dict[str, Any]:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options must come with stream: true")
    fields = {name: value for name in SAME_NAME if (value := getattr(request, name)) is not None}
    fields |= _beams(request)
    if request.seed is not None:
        fields["seed"] = request.seed % 2**64  # Seeds of OpenAI's API are signed.
    if request.logit_bias is not None:
        fields["logit_bias"] = {_token_id(token): bias for token, bias in request.logit_bias.items()}
    guided = _guided(request)
    if request.guided_whitespace_pattern is not None:
        if not guided:
            raise InvalidRequestError("guided_whitespace_pattern must come with guided_json or response_format")
        guided["whitespace_pattern"] = request.guided_whitespace_pattern
    if guided:
        from tensorwright.runtime.guided.params import GuidedDecodingParams

        fields["guided_decoding"] = GuidedDecodingParams(**guided)
    return fields


def _beams(request: SamplingFields) -> dict[str, Any]:
    """Returns the keywords of a beam search, or none. best_of is the number of beams; without it there are n."""
    n = request.n or 1
    if not request.use_beam_search:
        if request.best_of not in (None, n):
            raise InvalidRequestError(
                f"best_of must be n ({n}) or left out without use_beam_search, for completions are not ranked, got "
                f"{request.best_of}"
            )
        for name in BEAMS:
            if getattr(request, name) is not None:
                raise InvalidRequestError(f"{name} must come with use_beam_search: true")
        return {}
    if request.stream:
        raise InvalidRequestError("use_beam_search must come without stream, for beams have no text before their end")
    width = n if request.best_of is None else request.best_of
    if width < n:
        raise InvalidRequestError(f"best_of must be at least n ({n}), got {width}")
    given = {name: value for name in BEAMS if (value := getattr(request, name)) is not None}
    # A single beam is the greedy answer.
    return {"beam_width": width} | given if width > 1 else {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def _token_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequestError(f"logit_bias must have token ids as its keys, got {text!r:.40}")
    return int(text)


def _guided(request: SamplingFields) -> dict[str, Any]:
    """Returns the keyword of GuidedDecodingParams that the request asks for, or an empty dict."""
    asked = {name: value for name in GUIDED if (value := getattr(request, name)) is not None}
    form = request.response_format
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise InvalidRequestError("response_format must have json_schema if, and only if, its type is json_schema")
    if form is not None and form.type != "text":
        asked["response_format"] = form
    if len(asked) > 1:
        raise InvalidRequestError(f"only one of {' and '.join(asked)} can shape the output: give one")
    if "response_format" in asked:
        return {"json_object": True} if form.json_schema is None else {"json": form.json_schema.schema_}  # type: ignore[union-attr]
    return {GUIDED[name]: value for name, value in asked.items()}
