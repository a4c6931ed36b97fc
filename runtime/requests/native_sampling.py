"""Converts the sampling parameters of a checked request into the C++ engine's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorwright.engine_format.pooling import PoolingRecord
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests.logits_processors import ProcessorChain
from tensorwright.runtime.requests.prompts import CheckedRequest

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime


def make_sampling(
    request: CheckedRequest, eos_token_ids: list[int], pooling: PoolingRecord | None = None
) -> _runtime.Sampling:
    """Returns the request's SamplingParams in the C++ engine's form. pooling: that of an engine which draws no
    tokens."""
    params = request.params
    sampling: _runtime.Sampling = native.load_module().Sampling()
    sampling.n = int(params.n)
    sampling.beam_width = int(params.beam_width)
    sampling.length_penalty = float(params.length_penalty)
    sampling.early_stopping = {False: "no", True: "yes", "never": "never"}[params.early_stopping]
    sampling.max_tokens = request.max_tokens
    sampling.min_tokens = int(params.min_tokens)
    sampling.temperature = float(params.temperature)
    sampling.top_k = max(0, int(params.top_k))
    sampling.top_p = float(params.top_p)
    sampling.min_p = float(params.min_p)
    sampling.typical_p = float(params.typical_p)
    sampling.xtc_threshold = float(params.xtc_threshold)
    sampling.xtc_probability = float(params.xtc_probability)
    sampling.dry_multiplier = float(params.dry_multiplier)
    sampling.dry_base = float(params.dry_base)
    sampling.dry_allowed_length = int(params.dry_allowed_length)
    sampling.dry_penalty_last_n = int(params.dry_penalty_last_n)
    if request.dry_breakers is not None:
        sampling.dry_breakers = request.dry_breakers.native
    sampling.no_repeat_ngram_size = int(params.no_repeat_ngram_size)
    sampling.repetition_penalty = float(params.repetition_penalty)
    sampling.presence_penalty = float(params.presence_penalty)
    sampling.frequency_penalty = float(params.frequency_penalty)
    sampling.logit_bias = params.biases
    sampling.bad_words = request.bad_words
    if params.logits_processors:
        sampling.processor = ProcessorChain(params.logits_processors)
    sampling.timeout_s = -1.0 if params.timeout is None else float(params.timeout)
    sampling.priority = int(params.priority)
    sampling.tenant = int(params.tenant)
    sampling.tenant_weight = float(params.tenant_weight)
    sampling.deadline_s = -1.0 if params.deadline is None else float(params.deadline)
    sampling.cache_salt = params.cache_salt or ""
    if request.adapter is not None:
        sampling.adapter = request.adapter.native
    sampling.seed = None if params.seed is None else int(params.seed)
    sampling.stop_token_ids = list(params.stop_token_ids)
    sampling.ignore_eos = params.ignore_eos
    sampling.eos_token_ids = eos_token_ids
    sampling.logprobs = -1 if params.logprobs is None else int(params.logprobs)
    sampling.prompt_logprobs = -1 if params.prompt_logprobs is None else int(params.prompt_logprobs)
    sampling.guided = request.grammar is not None
    if pooling is not None:
        sampling.pooling = pooling.pooling
        sampling.pooled_columns = pooling.tokens or []
    return sampling
