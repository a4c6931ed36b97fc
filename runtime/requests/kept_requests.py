"""Keeps what it takes to submit requests once more, so that those without output go on when their engine is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.runtime.requests.request_handle import RequestHandle


class KeptRequests:
    """The requests of one client that have not ended. Its client guards it; only `keep` and `submit_to` are of one
    thread."""

    def __init__(self) -> None:
        self._submissions: dict[int, tuple[Any, Any]] = {}
        self._kept: dict[int, RequestHandle] = {}
        self._submitted_again: set[int] = set()

    def note(self, request_id: int, sampling: Any, first_mask: Any) -> None:
        """Notes what a request is submitted with."""
        self._submissions[request_id] = sampling, first_mask

    def forget(self, request_id: int) -> None:
        """Forgets a request that has ended."""
        self._submissions.pop(request_id, None)
        self._submitted_again.discard(request_id)

    def may_keep(self, handle: RequestHandle) -> bool:
        """Whether a request can go on with another engine: it has no output, and no engine was lost with it before,
        for a request that two engines were lost with may be the cause."""
        return handle.request_id not in self._submitted_again and not handle._has_begun

    def keep(self, handle: RequestHandle) -> None:
        self._kept[handle.request_id] = handle

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._kept

    def take(self) -> list[RequestHandle]:
        """Returns the kept requests in the order in which they came, and keeps none any more."""
        kept, self._kept = self._kept, {}
        return [kept[request_id] for request_id in sorted(kept)]

    def submit_to(self, engine: Any, end: Callable[[RequestHandle, Exception], None]) -> None:
        """Submits the kept requests. end: ends one that the engine refuses."""
        for handle in self.take():
            submission = self._submissions.get(handle.request_id)
            if submission is None:
                continue  # it has ended meanwhile
            self._submitted_again.add(handle.request_id)
            sampling, first_mask = submission
            try:
                engine.submit(handle.request_id, handle._prompt_token_ids, sampling, first_mask)
            except Exception as error:  # the error is this request's; the others go on
                end(handle, error)
                continue
            if handle._asked_to_abort:  # while there was no engine
                engine.abort(handle.request_id)
