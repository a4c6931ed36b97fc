"""Hands out events of many tokens in parts, so that nobody's next token waits until all of them are text.

The tokens of a beam search come at once, for all its completions. Those of others come a few at a time, more where
this process is slower than the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from tensorwright.runtime.base.engine_event import EngineEvent

PART = 256
"""The most tokens that are handed out together: about 3 ms of decoding to text."""
NAMES = tuple(field.name for field in fields(EngineEvent))


class LongEvents:
    """The events that wait. Only one thread may call it."""

    def __init__(self) -> None:
        self._waiting: deque[Iterator[Any]] = deque()
        self._requests: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, events: Iterable[Any]) -> list[Any]:
        """Keeps the long events, and those of requests that have a long one waiting. Returns the others."""
        others = []
        for event in events:
            if len(event.tokens) <= PART and event.request_id not in self._requests:
                others.append(event)
            else:
                self._waiting.append(parts(event))
                self._requests.append(event.request_id)
        return others

    def next_part(self) -> Any:
        """Returns the next part of what waits, of the oldest first; None if nothing does."""
        while self._waiting:
            part = next(self._waiting[0], None)
            if part is not None:
                return part
            self._waiting.popleft()
            self._requests.popleft()
        return None


def parts(event: Any) -> Iterator[Any]:
    """Yields events that tell together what `event` does, of at most PART tokens each."""
    if len(event.tokens) <= PART:
        yield event
        return
    whole = {name: getattr(event, name) for name in NAMES}
    tokens, logprobs = whole["tokens"], whole["logprobs"]
    for start in range(0, len(tokens), PART):
        news = {**whole, "tokens": tokens[start : start + PART], "logprobs": logprobs[start : start + PART]}
        if start > 0:
            news["prompt_logprobs"] = ()
        if start + PART < len(tokens):
            news |= {"finish": "", "stop_token": -1, "error_type": "", "error": ""}
        yield EngineEvent(**news)
