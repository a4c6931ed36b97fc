"""Answers the engine's events with the masks of the tokens to come, while the engine computes their logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorwright.runtime.async_requests import RequestHandle


class MaskFeeder:
    """Of one engine: a `_runtime.Engine`. Only its consumer thread calls."""

    def __init__(self, engine: Any):
        self._engine = engine

    def feed(self, events: Iterable[Any], requests: Mapping[int, RequestHandle]) -> dict[int, BaseException]:
        """requests: by id. Returns what went wrong, by request.

        One mask after the other: each takes some 20 us, less than handing them to llguidance's own threads does.
        """
        failed: dict[int, BaseException] = {}
        for event in events:
            handle = requests.get(event.request_id) if event.tokens and not event.finish else None
            matcher = None if handle is None else handle._matcher(event.completion)
            if matcher is None:
                continue
            try:
                mask = matcher.advance(event.tokens)
                if mask is not None:
                    self._engine.set_mask(event.request_id, event.completion, matcher.generated, mask)
            except BaseException as error:  # whatever one request's grammar does must not end the others
                failed[event.request_id] = error
        return failed
