"""Converts the sampling parameters of a checked request into the C++ engine's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorwright.engine_format.pooling import PoolingRecord
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests.logits_processors import ProcessorChain
from tensorwright.runtime.requests.native_params import FORMS, NATIVE_PARAMS
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
    for name, (member, form) in NATIVE_PARAMS.items():
        setattr(sampling, member, FORMS[form](getattr(params, name)))
    sampling.max_tokens = request.max_tokens
    if request.dry_breakers is not None:
        sampling.dry_breakers = request.dry_breakers.native
    sampling.bad_words = request.bad_words
    if params.logits_processors:
        sampling.processor = ProcessorChain(params.logits_processors)
    if request.adapter is not None:
        sampling.adapter = request.adapter.native
    sampling.eos_token_ids = eos_token_ids
    sampling.guided = request.grammar is not None
    if pooling is not None:
        sampling.pooling = pooling.pooling
        sampling.pooled_columns = pooling.tokens or []
    return sampling
