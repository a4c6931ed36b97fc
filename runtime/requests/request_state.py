"""Collects the output and the times of one request. It takes no locks, because the request's handle guards it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.runtime.requests.completion_state import CompletionState, Place, logprob_table
from tensorwright.runtime.requests.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.stop_strings import StopAutomaton
from tensorwright.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tensorwright.runtime.guided.grammar import Grammar


@dataclass
class ReadSoFar:
    """How far a reader has read a request. scores: the number of prompt_logprobs that were read."""

    places: list[Place]  # one place for each completion
    scores: int = 0


class RequestState:
    """The state of one request. prompt: the prompt's text, None for token ids. tokenizer: None means that nothing is
    decoded."""

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        grammar: Grammar | None = None,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        stops = StopAutomaton(tuple(params.stop)) if params.stop else None
        self.completions = [
            CompletionState(
                index, params, tokenizer, None if grammar is None else grammar.start(params.ignore_eos), stops
            )
            for index in range(params.n)
        ]
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = [None]
        self._pooled: NDArray[np.float32] | None = None
        self._metrics = RequestMetrics(arrival_time=time.time())
        self._first_token_at: float | None = None
        self._last_token_at: dict[int, float] = {}  # completion -> the time of its last token
        self._drafted: dict[int, tuple[int, int]] = {}  # completion -> proposed tokens, and those that were right

    def apply(self, event: Any, now: float) -> None:
        """Adds one of the engine's events for this request. now: the present time in seconds of time.monotonic()."""
        if event.pooled is not None:
            self._pooled = event.pooled
        begins = event.tokens or event.pooled is not None
        if begins and self._first_token_at is None:
            self._first_token_at = now
            self._metrics.queue_time = event.queue_s
            self._metrics.time_to_first_token = event.first_token_s
            self._metrics.cached_tokens = event.cached_tokens
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += [logprob_table(entries, self._tokenizer) for entries in event.prompt_logprobs]
        self._add_gaps(event, now)
        if event.draft_tokens:
            self._drafted[event.completion] = event.draft_tokens, event.accepted_tokens
            self._metrics.draft_tokens = sum(proposed for proposed, _ in self._drafted.values())
            self._metrics.accepted_tokens = sum(right for _, right in self._drafted.values())
        self.completions[event.completion].apply(event)
        longest = max(completion.length for completion in self.completions)
        if self.finished and self._first_token_at is not None and longest > 1:
            self._metrics.time_per_output_token = (now - self._first_token_at) / (longest - 1)
        if self.finished and self._first_token_at is not None:
            self._metrics.total_time = (self._metrics.time_to_first_token or 0.0) + now - self._first_token_at

    def _add_gaps(self, event: Any, now: float) -> None:
        """Adds the times between tokens. Tokens of one event share the time since the last token equally; the first
        token of a completion has no time."""
        if not (count := len(event.tokens)):
            return
        last = self._last_token_at.get(event.completion)
        gaps = [0.0] * (count - 1) if last is None else [(now - last) / count] * count
        self._metrics.inter_token_times += gaps
        self._last_token_at[event.completion] = now

    @property
    def finished(self) -> bool:
        return all(completion.finished for completion in self.completions)

    def output(self) -> RequestOutput:
        """Returns a snapshot that later events do not change."""
        return self._shown([completion.output() for completion in self.completions], 0)

    def unread(self) -> ReadSoFar:
        """Returns the position of a reader that has read nothing."""
        return ReadSoFar([Place() for _ in self.completions])

    def news(self, read: ReadSoFar) -> RequestOutput:
        """Returns a snapshot whose text, token_ids, logprobs and prompt_logprobs have only the unread output, and moves
        `read` to the end. Its time grows with the new output only."""
        places = zip(self.completions, read.places, strict=True)
        shown = self._shown([completion.news(place) for completion, place in places], read.scores)
        read.scores += len(shown.prompt_logprobs or ())
        return shown

    def _shown(self, outputs: list[CompletionOutput], start: int) -> RequestOutput:
        """Returns a RequestOutput with the prompt_logprobs from number `start` on."""
        metrics = RequestMetrics(**vars(self._metrics))
        scores = None if self._prompt_logprobs is None else self._prompt_logprobs[start:]
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, outputs, self.finished, metrics, scores, self._pooled
        )
