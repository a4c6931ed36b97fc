"""What one request has produced so far: its completions and its times. No locks: its handle guards it."""

from __future__ import annotations

from typing import Any

from tensorwright.runtime.completion_state import CompletionState
from tensorwright.runtime.outputs import RequestMetrics, RequestOutput
from tensorwright.runtime.sampling_params import SamplingParams
from tensorwright.runtime.tokenizer import Tokenizer


class RequestState:
    """prompt: the text it came as, None for ids. tokenizer: None if nothing is to be decoded."""

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.completions = [CompletionState(index, params, tokenizer) for index in range(params.n)]
        self._metrics = RequestMetrics()
        self._first_token_at: float | None = None

    def apply(self, event: Any, now: float) -> None:
        """event: one of the engine's events for this request; now: seconds on the monotonic clock."""
        if event.tokens and self._first_token_at is None:
            self._first_token_at = now
            self._metrics.queue_time = event.queue_s
            self._metrics.time_to_first_token = event.first_token_s
            self._metrics.cached_tokens = event.cached_tokens
        self.completions[event.completion].apply(event)
        longest = max(completion.length for completion in self.completions)
        if self.finished and self._first_token_at is not None and longest > 1:
            self._metrics.time_per_output_token = (now - self._first_token_at) / (longest - 1)

    @property
    def finished(self) -> bool:
        return all(completion.finished for completion in self.completions)

    def output(self) -> RequestOutput:
        """A snapshot that later events do not touch."""
        outputs = [completion.output() for completion in self.completions]
        metrics = RequestMetrics(**vars(self._metrics))
        return RequestOutput(self.request_id, self.prompt, self.prompt_token_ids, outputs, self.finished, metrics)
