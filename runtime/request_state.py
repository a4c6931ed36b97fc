"""What one request has produced so far, added up from the engine's events. No locks: its handle guards it."""

from __future__ import annotations

from typing import Any

from tensorwright.runtime.detokenizer import IncrementalDetokenizer
from tensorwright.runtime.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
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
        self.params = params
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens)
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative = 0.0
        self._finish: str | None = None
        self._stop_reason: int | None = None
        self._metrics = RequestMetrics()
        self._first_token_at = 0.0

    def apply(self, event: Any, now: float) -> None:
        """event: one of the engine's events for this request; now: seconds on the monotonic clock."""
        tokens = event.tokens  # the engine makes a new list each time it is asked
        if tokens and not self._token_ids:
            self._first_token_at = now
            self._metrics.queue_time = event.queue_s
            self._metrics.time_to_first_token = event.first_token_s
            self._metrics.cached_tokens = event.cached_tokens
        self._token_ids += tokens
        if self.params.logprobs is not None:
            for token, entries in zip(tokens, event.logprobs, strict=True):
                self._add_logprobs(token, entries)
        if self._detokenizer is not None:
            self._pieces.append(self._detokenizer.push(tokens))
            if event.finish:
                self._pieces.append(self._detokenizer.flush())
        if event.finish:
            self._end(event, now)

    def output(self) -> RequestOutput:
        """A snapshot that later events do not touch."""
        self._pieces = ["".join(self._pieces)]
        asked = self.params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=self._pieces[0],
            token_ids=list(self._token_ids),
            logprobs=list(self._logprobs) if asked else None,
            cumulative_logprob=self._cumulative if asked else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
        )
        metrics = RequestMetrics(**vars(self._metrics))
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, [completion], self._finish is not None, metrics
        )

    def _add_logprobs(self, token: int, entries: list[tuple[int, float, int]]) -> None:
        table = {}
        for candidate, logprob, rank in entries:
            text = self._tokenizer.decode([candidate], skip_special_tokens=False) if self._tokenizer else None
            table[candidate] = Logprob(logprob, rank, text)
        self._cumulative += table[token].logprob
        self._logprobs.append(table)

    def _end(self, event: Any, now: float) -> None:
        self._finish = event.finish
        if event.finish == "stop" and event.stop_token in self.params.stop_token_ids:
            self._stop_reason = event.stop_token
        later = len(self._token_ids) - 1
        if later > 0:
            self._metrics.time_per_output_token = (now - self._first_token_at) / later
