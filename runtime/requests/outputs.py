"""What a request returns. Plain data, in the shape that users of vLLM and TensorRT-LLM know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Logprob:
    """One token's natural-log probability, before temperature and truncation; rank 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion, so far or finished.

    text: the decoded token_ids, up to a stop string; while unfinished it never ends in part of a character, nor in what
        may become a stop string.
    token_ids: everything sampled, the token that ended the request included.
    logprobs: one dict per token, by token id, when asked for; the sampled token is always among the keys.
    cumulative_logprob: sum over the sampled tokens; None unless logprobs were asked for.
    finish_reason: None while unfinished, then "stop", "length", "abort" or "timeout".
    stop_reason: the stop token or stop string that ended it, None for the model's own end-of-sequence token.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestMetrics:
    """Times in seconds. None until known.

    queue_time: from arrival to the step that first worked on the request.
    time_to_first_token: from arrival to the first sampled token.
    time_per_output_token: mean over the tokens after the first; None for a single token.
    cached_tokens: prompt tokens whose keys and values came from the prefix cache.
    total_time: from arrival to the end; None too if nothing was sampled.
    inter_token_times: between a completion's token and its next, of all completions. Grows while the request runs.
    """

    queue_time: float | None = None
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    cached_tokens: int = 0
    total_time: float | None = None
    inter_token_times: list[float] = field(default_factory=list, repr=False)


@dataclass
class RequestOutput:
    """A request's state: partial (finished=False) while it streams, whole at the end. prompt is None for token ids.

    prompt_logprobs: when asked for, None for the first prompt token, then one dict per token, by token id; the prompt's
        own token is always among the keys. While the prompt is worked on, as far as that has come.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
