"""Answers the engine's events with the masks of the next tokens, while the engine computes their logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tensorwright.runtime.base.engine_event import EngineEvent
from tensorwright.runtime.guided.mask_threads import MaskJob, MaskReceiver, MaskThreads
from tensorwright.runtime.guided.matcher import GrammarMatcher

PATIENCE_S = 0.002
"""The seconds for which feed() waits for quick masks. Most take some 20 us, and the threads that compute them need the
interpreter's lock, which a waiting thread releases."""


MatcherOf = Callable[[int, int], GrammarMatcher | None]
"""Returns the matcher of a completion, from the request's id and the completion's index; None without a grammar."""


class MaskFeeder:
    """Feeds masks to one engine, a `_runtime.Engine`. Only the engine's consumer thread may call it."""

    def __init__(self, engine: Any):
        self._engine = engine
        self._threads = MaskThreads()
        self._ended: deque[EngineEvent] = deque()
        self._failed: deque[tuple[int, BaseException]] = deque()

    def feed(self, events: Iterable[Any], matcher_of: MatcherOf) -> None:
        """Begins to compute the masks that follow these events. When it returns, most masks are set already."""
        jobs = []
        for event in events:
            unfinished = event.tokens and not event.finish
            matcher = matcher_of(event.request_id, event.completion) if unfinished else None
            if matcher is not None:
                jobs.append(MaskJob(matcher, event.tokens, self._teller(event, matcher)))
        if jobs:
            self._threads.compute(jobs, PATIENCE_S)

    def ended(self) -> list[EngineEvent]:
        """Returns an event for each completion whose grammar admits no further token, once. The last events of these
        completions were fed, but the consumer may not have dispatched them yet."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def failed(self) -> list[tuple[int, BaseException]]:
        """Returns the requests whose grammar could not be followed with their errors, each once."""
        return [self._failed.popleft() for _ in range(len(self._failed))]

    def close(self) -> None:
        self._threads.close()

    def _teller(self, event: Any, matcher: GrammarMatcher) -> MaskReceiver:
        """Returns the function that takes the mask of the next token. It notes an end or a failure before it tells the
        engine to abort, because the event of the abort wakes the consumer."""
        request, completion = event.request_id, event.completion

        def tell(mask: Any, error: BaseException | None) -> None:
            try:
                if error is None and mask is not None:
                    self._engine.set_mask(request, completion, matcher.generated, mask)
                    return
            except BaseException as found:  # also a panic of the library
                error = found
            if error is None:
                self._ended.append(EngineEvent(request, completion))
                self._engine.abort(request, completion)
            else:
                self._failed.append((request, error))
                self._engine.abort(request)

        return tell
