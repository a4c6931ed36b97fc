"""Answers the engine's events with the masks of the tokens to come, while the engine computes their logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tensorwright.runtime.guided.mask_threads import MaskJob, MaskThreads, Told
from tensorwright.runtime.guided.matcher import GrammarMatcher

PATIENCE_S = 0.002
"""How long quick masks are waited for: they mostly take some 20 us, and the threads that compute them need the
interpreter's lock, which whoever waits lets go of."""


MatcherOf = Callable[[int, int], GrammarMatcher | None]
"""The matcher of a request, by its id, and of one of its completions, by its index; None where nothing guides it."""


@dataclass(frozen=True)
class GrammarEnded:
    """An event, like those of the engine: nothing can follow what one completion has."""

    request_id: int
    completion: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Any, ...] = ()
    prompt_logprobs: tuple[Any, ...] = ()
    finish: str = ""
    stop_token: int = -1


class MaskFeeder:
    """Of one engine: a `_runtime.Engine`. Only its consumer thread calls."""

    def __init__(self, engine: Any):
        self._engine = engine
        self._threads = MaskThreads()
        self._ended: deque[GrammarEnded] = deque()
        self._failed: deque[tuple[int, BaseException]] = deque()

    def feed(self, events: Iterable[Any], matcher_of: MatcherOf) -> None:
        """The masks are on their way when it returns, and most are there."""
        jobs = []
        for event in events:
            unfinished = event.tokens and not event.finish
            matcher = matcher_of(event.request_id, event.completion) if unfinished else None
            if matcher is not None:
                jobs.append(MaskJob(matcher, event.tokens, self._teller(event, matcher)))
        if jobs:
            self._threads.compute(jobs, PATIENCE_S)

    def ended(self) -> list[GrammarEnded]:
        """Completions whose grammar has ended, each told once. Of events that were fed, but maybe not yet handed
        out."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def failed(self) -> list[tuple[int, BaseException]]:
        """Requests whose grammar could not be followed, each told once."""
        return [self._failed.popleft() for _ in range(len(self._failed))]

    def close(self) -> None:
        self._threads.close()

    def _teller(self, event: Any, matcher: GrammarMatcher) -> Told:
        """The engine is told to end what has ended or failed after that was noted: its own event wakes the consumer."""
        request, completion = event.request_id, event.completion

        def tell(mask: Any, error: BaseException | None) -> None:
            try:
                if error is None and mask is not None:
                    self._engine.set_mask(request, completion, matcher.generated, mask)
                    return
            except BaseException as found:  # a panic of the library, too
                error = found
            if error is None:
                self._ended.append(GrammarEnded(request, completion))
                self._engine.abort(request, completion)
            else:
                self._failed.append((request, error))
                self._engine.abort(request)

        return tell
