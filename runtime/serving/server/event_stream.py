"""Sends an answer as server-sent events, and aborts its requests when the client goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.errors import describe_error, is_foreseen
from tensorwright.runtime.serving.server.requests import abort_all, wait_for_disconnect

log = logging.getLogger(__name__)


LAST = "data: [DONE]\n\n"


class EventStream(Response):
    """Sends every text of `events` as one event, and [DONE] as the last one. If `events` raises, the last event is the
    error instead, in the form of the request's path.

    framed: whether the texts are whole events, each with its name, as APIs want them whose last event needs no mark.

    Starlette's StreamingResponse is not used, for it may not notice that the client has gone while nothing is sent.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], handles: Sequence[RequestHandle], framed: bool = False):
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._handles = handles
        self._framed = framed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            abort_all(self._handles)
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()  # This raises the exception of a failed sending.

    async def _send_all(self, scope: Scope, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._guarded(scope):
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The client has gone, so nobody reads an error.

    async def _guarded(self, scope: Scope) -> AsyncIterator[str]:
        try:
            async for event in self._events:
                yield event if self._framed else f"data: {event}\n\n"
            if not self._framed:
                yield LAST
        except Exception as error:
            if not is_foreseen(error):
                log.exception("a stream failed")
            yield describe_error(error).event(scope)
