"""Collects the output of one completion from the engine's events. It takes no locks, because its handle guards it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.outputs import CompletionOutput, Logprob
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.detokenizer import IncrementalDetokenizer
from tensorwright.runtime.text.stop_strings import StopAutomaton, StopStrings
from tensorwright.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tensorwright.runtime.guided.matcher import GrammarMatcher


@dataclass
class Place:
    """How far a reader has read a completion, in characters and tokens."""

    characters: int = 0
    tokens: int = 0


def logprob_table(entries: list[tuple[int, float, int]], tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Returns a table of logprobs by token. entries: (token, logprob, rank), as the engine reports them."""
    table = {}
    for candidate, logprob, rank in entries:
        text = tokenizer.token_text(candidate) if tokenizer else None
        table[candidate] = Logprob(logprob, rank, text)
    return table


def detokenizer_of(tokenizer: Tokenizer, params: SamplingParams) -> IncrementalDetokenizer:
    """Returns a detokenizer that makes the text of a completion with these parameters."""
    ids = map(tokenizer.special_id, params.kept_special_tokens)
    kept = frozenset(token for token in ids if token is not None)
    return IncrementalDetokenizer(tokenizer, params.skip_special_tokens, kept)


class CompletionState:
    """The state of one completion.

    index: the completion's number, from 0 to n - 1. tokenizer: None means that nothing is decoded. matcher: None
    without a grammar. stops: None without stop strings.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        matcher: GrammarMatcher | None = None,
        stops: StopAutomaton | None = None,
    ):
        self.index = index
        self.params = params
        self.matcher = matcher
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = detokenizer_of(tokenizer, params)
        self._stops = None if stops is None else StopStrings(stops, params.include_stop_str_in_output)
        self._text = io.StringIO()  # the end of a StringIO can be read without the rest
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._is_beam = params.beam_width > 1
        self._cumulative = 0.0
        self._finish: str | None = None
        self._stop_reason: int | str | None = None
        self._stopped_here = False

    def apply(self, event: Any) -> None:
        """Adds one of the engine's events for this completion. Raises InvalidRequestError if the grammar ends before
        min_tokens."""
        asked = self.params.logprobs is not None
        end = len(event.tokens) - 1 if self._ends_without_text(event) else None
        for index, token in enumerate(event.tokens):  # event.tokens makes a new list at each access
            self._token_ids.append(token)
            if asked:
                self._add_logprobs(token, event.logprobs[index])
            if self._detokenizer is not None and index != end:
                self._add_text(self._detokenizer.push([token]))
            if self.finished:  # a stop string ended the completion, so the engine's later tokens are dropped
                break
        if self._is_beam:
            self._cumulative = event.cumulative_logprob
        if event.finish and not self.finished:
            self._end(event)
        matcher = self.matcher
        # The matcher may have consumed tokens whose events are not applied yet.
        ended = matcher is not None and matcher.ended and matcher.generated == len(self._token_ids)
        if ended and not self.finished:
            self._end_of_grammar()

    @property
    def length(self) -> int:
        """The number of tokens so far."""
        return len(self._token_ids)

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def stopped_early(self) -> bool:
        """Whether a stop string or the end of a grammar ended the completion. The engine does not know of either."""
        return self._stopped_here

    def output(self) -> CompletionOutput:
        """Returns a snapshot that later events do not change. Its time grows with the whole output."""
        return self._shown(self._text.getvalue(), 0)

    def news(self, place: Place) -> CompletionOutput:
        """Returns a snapshot whose text, token_ids and logprobs have only the output after `place`, and moves `place`
        to the end. Its time grows with the new output only."""
        self._text.seek(place.characters)
        shown = self._shown(self._text.read(), place.tokens)
        place.characters += len(shown.text)
        place.tokens += len(shown.token_ids)
        return shown

    def _shown(self, text: str, start: int) -> CompletionOutput:
        """Returns a snapshot with this text and the tokens from number `start` on."""
        asked = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self._token_ids[start:],
            logprobs=self._logprobs[start:] if asked else None,
            cumulative_logprob=self._cumulative if asked or self._is_beam else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
        )

    def _ends_without_text(self, event: Any) -> bool:
        """Whether the event's last token ends the completion and is no part of its text. A token that ends the
        completion is part of the text only if stop_token_ids has it and include_stop_str_in_output is True."""
        shown = self.params.include_stop_str_in_output and event.stop_token in self.params.stop_token_ids
        return event.finish == "stop" and event.stop_token >= 0 and not shown

    def _add_logprobs(self, token: int, entries: list[tuple[int, float, int]]) -> None:
        table = logprob_table(entries, self._tokenizer)
        self._cumulative += table[token].logprob
        self._logprobs.append(table)

    def _add_text(self, text: str) -> None:
        """Adds text, and searches it for stop strings unless it came with the first min_tokens tokens."""
        if self._stops is not None and len(self._token_ids) > self.params.min_tokens:
            text, stop = self._stops.push(text)
            if stop is not None:
                self._finish, self._stop_reason, self._stopped_here = "stop", stop, True
        self._write(text)

    def _write(self, text: str) -> None:
        self._text.seek(0, io.SEEK_END)
        self._text.write(text)

    def _end_of_grammar(self) -> None:
        """Ends the completion because no token can follow in its grammar. No token tells the engine so.

        Raises InvalidRequestError if there are fewer than min_tokens tokens.
        """
        if len(self._token_ids) < self.params.min_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most {len(self._token_ids)}, for nothing may follow that in guided_decoding, "
                f"got {self.params.min_tokens}"
            )
        if not self._add_rest():
            self._finish = "stop"
        self._stopped_here = True

    def _add_rest(self) -> bool:
        """Adds the text that is still held back. Returns True if a stop string was in it."""
        if self._detokenizer is not None:
            self._add_text(self._detokenizer.flush())
            if self.finished:
                return True
            if self._stops is not None:
                self._write(self._stops.flush())
        return False

    def _end(self, event: Any) -> None:
        if self._add_rest():
            return
        self._finish = event.finish
        if event.finish == "stop" and event.stop_token in self.params.stop_token_ids:
            self._stop_reason = event.stop_token
