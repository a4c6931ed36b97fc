"""Defines the output of a request as plain data, in the shape that users of vLLM and TensorRT-LLM know."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensorwright.runtime.chat_formats.events import AssistantMessage


@dataclass(frozen=True)
class Logprob:
    """The natural logarithm of one token's probability, before temperature and truncation; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion, finished or not.

    text: the decoded token_ids, up to a stop string; while unfinished it never ends in a part of a character, nor in
        the beginning of a stop string.
    token_ids: all sampled tokens, also the token that ended the completion.
    logprobs: one dict per token, by token id; the sampled token is always among the keys. None unless the request asked
        for logprobs.
    cumulative_logprob: the sum over the sampled tokens; None unless the request asked for logprobs. A beam always has
        the sum that it was ranked by, after penalties.
    finish_reason: None while unfinished, then "stop", "length", "abort" or "timeout".
    stop_reason: the stop token or stop string that ended the completion; None for the model's own end-of-sequence
        token.
    message: what the text is as an answer of a chat: content, reasoning and calls of tools. Only LLM.chat sets it.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    message: AssistantMessage | None = None


@dataclass
class RequestMetrics:
    """The times of a request, in seconds. A time is None until it is known.

    queue_time: from arrival to the step that first worked on the request.
    time_to_first_token: from arrival to the first sampled token.
    time_per_output_token: the mean over the tokens after the first; None for a single token.
    cached_tokens: the number of prompt tokens whose keys and values came from the prefix cache.
    draft_tokens, accepted_tokens: the tokens that were proposed for the completions, and those that were right.
    total_time: from arrival to the end; None also if no token was sampled.
    inter_token_times: the times between two successive tokens of a completion, for all completions. The list grows
        while the request runs.
    arrival_time: when the request was submitted, in seconds since 1970.
    """

    queue_time: float | None = None
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    total_time: float | None = None
    inter_token_times: list[float] = field(default_factory=list, repr=False)
    arrival_time: float | None = None


@dataclass
class RequestOutput:
    """The output of a request: partial (finished=False) while the request runs, complete at the end.

    prompt: the prompt's text; None if the prompt was token ids.
    prompt_logprobs: None for the first prompt token, then one dict per token, by token id; the prompt's own token is
        always among the keys. Until the whole prompt is computed the list is shorter. None unless the request asked for
        it.
    pooled: of a request with PoolingParams that has finished, the pooled row of the model, float32 [columns].
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    pooled: NDArray[np.float32] | None = None
