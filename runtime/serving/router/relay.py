"""Passes an engine's answer on to the client as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorwright.runtime.serving.router.upstream import RETURNED
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.requests import wait_for_disconnect

logger = logging.getLogger("tensorwright.router")
BROKEN = ApiError(502, "the engine broke off its answer", "server_error", None, "engine_gone")


class Relay(Response):
    """Sends what `answer` brings. When the client leaves, the engine's request ends with the connection.

    When the engine breaks off, a stream of events ends with an error, and any other answer with a cut connection.
    done: is called once, when the answer is over.
    """

    def __init__(self, answer: httpx.Response, done: Callable[[], None]):
        super().__init__(status_code=answer.status_code)
        del self.headers["content-length"]
        for name in RETURNED:
            if name in answer.headers:
                self.headers[name] = answer.headers[name]
        self._answer = answer
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._done()
            await self._answer.aclose()
        if not sending.cancelled():
            sending.result()  # This raises the exception of a failed sending.

    async def _send_all(self, scope: Scope, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_body(scope, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The client has gone, so nobody reads an error.

    async def _send_body(self, scope: Scope, send: Send) -> None:
        try:
            async for piece in self._answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except httpx.HTTPError as error:
            logger.warning("an engine broke off: %s", error)
            if not self.headers.get("content-type", "").startswith("text/event-stream"):
                raise
            event = BROKEN.event(scope).encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
