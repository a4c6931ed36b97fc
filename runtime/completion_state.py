"""What one completion has produced so far, added up from the engine's events. No locks: its handle guards it."""

from __future__ import annotations

from typing import Any

from tensorwright.runtime.detokenizer import IncrementalDetokenizer
from tensorwright.runtime.outputs import CompletionOutput, Logprob
from tensorwright.runtime.sampling_params import SamplingParams
from tensorwright.runtime.stop_strings import StopStrings
from tensorwright.runtime.tokenizer import Tokenizer


class CompletionState:
    """index: which of the request's n. tokenizer: None if nothing is to be decoded."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer | None):
        self.index = index
        self.params = params
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)  # type: ignore[arg-type]
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative = 0.0
        self._finish: str | None = None
        self._stop_reason: int | str | None = None

    def apply(self, event: Any) -> None:
        """event: one of the engine's events for this completion."""
        asked = self.params.logprobs is not None
        for index, token in enumerate(event.tokens):  # the engine makes a new list each time it is asked
            self._token_ids.append(token)
            if asked:
                self._add_logprobs(token, event.logprobs[index])
            if self._detokenizer is not None:
                self._add_text(self._detokenizer.push([token]))
            if self.finished:  # by a stop string; what the engine made since is nobody's
                break
        if event.finish and not self.finished:
            self._end(event)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self._token_ids)

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def stopped_early(self) -> bool:
        """By a stop string, of which the engine knows nothing."""
        return isinstance(self._stop_reason, str)

    def output(self) -> CompletionOutput:
        """A snapshot that later events do not touch."""
        self._pieces = ["".join(self._pieces)]
        asked = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self._pieces[0],
            token_ids=list(self._token_ids),
            logprobs=list(self._logprobs) if asked else None,
            cumulative_logprob=self._cumulative if asked else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
        )

    def _add_logprobs(self, token: int, entries: list[tuple[int, float, int]]) -> None:
        table = {}
        for candidate, logprob, rank in entries:
            text = self._tokenizer.decode([candidate], skip_special_tokens=False) if self._tokenizer else None
            table[candidate] = Logprob(logprob, rank, text)
        self._cumulative += table[token].logprob
        self._logprobs.append(table)

    def _add_text(self, text: str) -> None:
        """Searched for stop strings, unless it came with the first min_tokens tokens."""
        if len(self._token_ids) > self.params.min_tokens:
            text, stop = self._stops.push(text)
            if stop is not None:
                self._finish, self._stop_reason = "stop", stop
        self._pieces.append(text)

    def _end(self, event: Any) -> None:
        if self._detokenizer is not None:
            self._add_text(self._detokenizer.flush())
            if self.finished:
                return
            self._pieces.append(self._stops.flush())
        self._finish = event.finish
        if event.finish == "stop" and event.stop_token in self.params.stop_token_ids:
            self._stop_reason = event.stop_token
