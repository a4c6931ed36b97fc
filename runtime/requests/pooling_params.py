"""Defines the parameters of a request that is answered with a row of numbers, and not with text."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.runtime.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class PoolingParams(SamplingParams):
    """The parameters of a request for the pooled row of its prompt: an embedding, or the logits that make a score.

    Nothing is drawn, so of SamplingParams only these count: priority, tenant, tenant_weight, deadline, timeout,
    cache_salt, adapter and truncate_prompt_tokens.
    """

    max_tokens: int | None = 1
    detokenize: bool = False
