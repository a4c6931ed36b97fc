"""Guards the handlers with plain ASGI layers: refused connections, HEAD, keys, bodies, time, draining.

No guard buffers an answer, so tokens leave as they come.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorwright.runtime.serving.server.body_memory import BodyMemory, HeldBody
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.json_shape import SMALL_BODY, check_shape
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.request_time import Deadline, Lifecycle

OPEN_PATHS = ("/health", "/ready")
WATCH_PATHS = (*OPEN_PATHS, "/metrics")
TURNED_AWAY = "turned_away"  # The state of a scope has the ApiError for a connection beyond the limits under this key.


class TurnAwayGuard:
    """Answers with the connection's error if there are too many connections."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = scope.get("state", {}).get(TURNED_AWAY)
        await (self._app if error is None else error.response())(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET, without the body. Outer layers see the method HEAD and the route that was taken."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_bare(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, send_bare)
        finally:
            scope.update({**asked, "method": "HEAD"})


class KeyGuard:
    """Checks the key of each request, which is OpenAI's bearer token or Anthropic's header x-api-key. Every check
    compares the digests of all keys, so its time reveals nothing about a key.

    public: further paths that need no key.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, public: Iterable[str] = ()):
        self._app = app
        self._digests = [_digest(key.key.encode()) for key in options.keys]
        self._open = {*(OPEN_PATHS if options.protect_metrics else WATCH_PATHS), *public}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        if (number := self._admit(scope)) is not None:
            scope["state"]["key"] = number
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            'this server needs a key, as the header "Authorization: Bearer KEY" or "x-api-key: KEY"; none came, or one '
            "that is not known",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer", "connection": "close"},  # Strangers keep no connection.
        )
        await error.response()(scope, receive, send)

    def _admit(self, scope: Scope) -> int | None:
        """Returns the number of the request's key, counted from 1, or None if the key is missing or unknown. A known
        bearer token comes before x-api-key, for some clients send a placeholder in one of the two headers."""
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = self._find(token) if scheme.lower() == "bearer" else None
        return self._find(headers.get("x-api-key", "")) if bearer is None else bearer

    def _find(self, key: str) -> int | None:
        asked = _digest(key.strip().encode("latin-1", "replace"))
        matches = [hmac.compare_digest(asked, digest) for digest in self._digests]
        return matches.index(True) + 1 if any(matches) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyGuard:
    """Receives a request's whole body before a handler runs. It bounds the bytes of the body, the bytes of all bodies
    together, and the time, whether the length is announced or not. The body of a probe, or of a request for a public
    path, is not read, and its connection ends with the answer."""

    def __init__(self, app: ASGIApp, options: ServerOptions, memory: BodyMemory, public: Iterable[str] = ()):
        self._app = app
        self._unread = {*WATCH_PATHS, *public}
        self._options = options
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unread:
            await self._app(scope, receive, send)
            return
        held = scope["state"]["held_body"] = self._memory.open(scope)
        try:
            await self._guard(scope, receive, send, held)
        finally:
            held.close()

    async def _guard(self, scope: Scope, receive: Receive, send: Send, held: HeldBody) -> None:
        try:
            async with asyncio.timeout(self._options.body_timeout):
                body = await self._read(Headers(scope=scope), receive, held)
        except TimeoutError:
            seconds = self._options.body_timeout
            late = ApiError(408, f"the request's body must come within {seconds:g} seconds", code="body_timeout")
            await _close(late)(scope, receive, send)
            return
        if body is None:
            return  # The client has left.
        if isinstance(body, ApiError):
            await _close(body)(scope, receive, send)
            return
        if self._options.log_prompts and body:
            scope["state"]["facts"]["body"] = _readable(body)
        receive = _replay(body, receive)
        del body  # Only the reader of the body may hold it.
        await self._app(scope, receive, send)

    async def _read(self, headers: Headers, receive: Receive, held: HeldBody) -> bytes | ApiError | None:
        most, length = self._options.max_body_size, headers.get("content-length", "")
        announced = int(length[:19]) if length.isdigit() else 0
        if announced > most:
            return self._too_large()
        if (refusal := held.grow(announced)) is not None:
            return refusal
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                return self._too_large()
            if (refusal := held.grow(len(body))) is not None:
                return refusal
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        most = self._options.max_body_size
        return ApiError(413, f"the request's body must have at most {most} bytes", code="body_too_large")


def _close(error: ApiError) -> ASGIApp:
    """Returns the error's answer, which closes the connection: after a half-read body it cannot be used again."""
    return ApiError(
        error.status, error.message, error.type, error.param, error.code, {**error.headers, "connection": "close"}
    ).response()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a receive function that gives the body as one message, and then the messages of `receive`, such as the
    client's disconnect."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _readable(body: bytes) -> object:
    """Returns a body in the form for the log: parsed JSON if the body is small and not too deep, else its text."""
    if len(body) <= SMALL_BODY:
        with suppress(ValueError):
            check_shape(body)
            return json.loads(body)
    return body.decode("utf-8", "replace")


class TimeGuard:
    """Ends a request that takes too long and that the engine does not end (`request_time.py`). The client gets an
    error. If its answer streams already, it gets an error event and no regular end. The request's work is cancelled."""

    def __init__(self, app: ASGIApp, options: ServerOptions):
        self._app = app
        self._timeout = options.request_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._timeout is None:
            await self._app(scope, receive, send)
            return
        kind: str | None = None

        async def watched(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type", "")
            await send(message)

        try:
            async with asyncio.timeout(self._timeout) as limit:
                scope.setdefault("state", {})["deadline"] = Deadline(self._timeout, limit)
                await self._app(scope, receive, watched)
        except TimeoutError:
            if not limit.expired():
                raise
            scope["state"]["facts"]["timed_out"] = True
            error = ApiError(504, f"the request took longer than {self._timeout:g} seconds", "timeout_error")
            if kind is None:
                await error.response()(scope, receive, send)
            elif kind.startswith("text/event-stream"):
                await send({"type": "http.response.body", "body": error.event(scope).encode(), "more_body": False})
            else:
                raise


class DrainGuard:
    """Counts requests, and refuses new ones while the server drains."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, options: ServerOptions, unguarded: Iterable[str]):
        self._app = app
        self._lifecycle = lifecycle
        self._retry_after = str(options.retry_after)
        self._unguarded = tuple(unguarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unguarded:
            await self._app(scope, receive, send)
            return
        if self._lifecycle.draining:
            headers = {"retry-after": self._retry_after, "connection": "close"}
            error = ApiError(
                503, "this server is shutting down", "service_unavailable_error", None, "draining", headers
            )
            await error.response()(scope, receive, send)
            return
        with self._lifecycle.request():
            await self._app(scope, receive, send)
