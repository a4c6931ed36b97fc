"""Reads a request as it grows, at a cost that grows with the new output only. Streams of answers use it.

Each partial output of a handle holds the whole output so far, so n partial outputs cost n times n / 2 tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle


class RequestNews:
    """A view of a request for one reader, which reads in one thread or event loop.

    It is read like a RequestHandle, but text, token_ids, logprobs and prompt_logprobs of each RequestOutput hold only
    the output since the RequestOutput before. Joined, they are those of the finished output. The other fields have
    their present values.
    """

    def __init__(self, handle: RequestHandle):
        self._handle = handle
        self._read = handle._state.unread()

    @property
    def done(self) -> bool:
        return self._handle.done

    def abort(self) -> bool:
        return self._handle.abort()

    def on_change(self, callback: Callable[[], None]) -> None:
        self._handle.on_change(callback)

    def latest(self) -> RequestOutput:
        """Returns the new output, without waiting. Raises the request's error."""
        self._handle._home.check()
        with self._handle._changed:
            return self._handle._show(self._news)

    def __iter__(self) -> Iterator[RequestOutput]:
        return self._handle._each(self._news)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._handle._each_in_loop(self._news)

    def _news(self) -> RequestOutput:
        return self._handle._state.news(self._read)
