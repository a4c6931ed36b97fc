"""Handles one connection: extends uvicorn's protocol over the parser in C with bounds that protect other clients.

A request is parsed only when the one before it is answered. A body that nobody read ends the connection. The server
closes the connections of clients that send no head, take no answer or do not leave.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tensorwright.runtime.serving.server.connections import Connections, Place
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.framing import Framing, FramingError
from tensorwright.runtime.serving.server.guards import TURNED_AWAY, WATCH_PATHS
from tensorwright.runtime.serving.server.listen import Listen

PIECE = 4096  # bytes that are parsed before the connection checks whether to go on
MAX_HELD = 64 << 10  # With more unparsed bytes of later requests, the connection stops reading from the client.
LINGER_BYTES, LINGER_SECONDS = 64 << 20, 5.0  # So much input is dropped, so that the client can read its answer.
MIN_TAKEN = 1024  # bytes that a slow client must take within client_timeout
logger = logging.getLogger("tensorwright.server")


class Connection(HttpToolsProtocol):
    """The protocol of one connection.

    place: the connection's entry in the table. settings: the keywords of HttpToolsProtocol.
    """

    def __init__(self, listen: Listen, table: Connections, place: Place, **settings: Any):
        super().__init__(**settings)
        self.app = self._watched(self.app)  # type: ignore[assignment]
        self._listen = listen
        self._table = table
        self._place = place
        self._framing = Framing()
        self._unparsed: deque[memoryview] = deque()
        self._upgrade = False  # The client asked for an upgrade, which is not done; its next bytes are no HTTP.
        self._unread = False  # The answer ends before its request does.
        self._dropped: int | None = None  # bytes dropped since the connection lingers; None before that
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._place.close = transport.abort
        self._set_timer("head", self._listen.header_timeout, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for name in list(self._timers):
            self._stop_timer(name)
        self._unparsed.clear()
        self._table.leave(self._place)

    def data_received(self, data: bytes) -> None:
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self._end()
            return
        self._unset_keepalive_if_required()
        self._unparsed.append(memoryview(data))
        self._parse()
        if sum(map(len, self._unparsed)) > MAX_HELD:
            self.flow.pause_reading()

    def _parse(self) -> None:
        """Parses piece by piece, unless an answer must come first. The time for a head starts at its first byte."""
        begun = bool(self._unparsed)
        while self._unparsed and not self._waits():
            piece, rest = self._unparsed[0][:PIECE], self._unparsed[0][PIECE:]
            if rest:
                self._unparsed[0] = rest
            else:
                self._unparsed.popleft()
            self._feed(piece)
        if begun and self._framing.in_head and not self._waits() and "head" not in self._timers:
            self._unset_keepalive_if_required()
            self._set_timer("head", self._listen.header_timeout, self._end)

    def _waits(self) -> bool:
        asked = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return asked or self._dropped is not None or self.transport.is_closing()

    def _feed(self, piece: memoryview) -> None:
        try:
            self._framing.count_wire(len(piece))
            self.parser.feed_data(piece)
        except FramingError as error:
            self._refuse(error.answer)
        except httptools.HttpParserUpgrade:
            self._upgrade = True
            self._unparsed.clear()
        except httptools.HttpParserError as error:
            ours = error.__context__
            why = str(error) or type(error).__name__
            self._refuse(
                ours.answer if isinstance(ours, FramingError) else ApiError(400, f"this is no HTTP/1.1: {why}")
            )

    # The parser calls these methods.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing.in_head:  # A header outside of the head is a trailer, which must not change the request.
            self._framing.count_header()
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._framing.end_head(self.parser.get_http_version(), self.headers)
        self._stop_timer("head")
        super().on_headers_complete()  # This makes the task, which does not run yet.
        refusal = self._table.begin(self._place, self.scope["path"] in WATCH_PATHS)
        self._watch_client()
        if refusal is not None:
            self.scope["state"][TURNED_AWAY] = refusal

    def on_chunk_header(self) -> None:
        self._framing.count_chunk()

    def on_body(self, body: bytes) -> None:
        self._framing.count_content(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing.begin()
        super().on_message_complete()

    # These methods send and end answers.

    def _watched(self, app: ASGIApp) -> ASGIApp:
        """Wraps the application. An answer that starts before its request's body has come closes the connection."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_noting(message: Message) -> None:
                unread = scope is self.scope and self.cycle.more_body
                if message["type"] == "http.response.start" and (unread or self._upgrade):
                    others = [header for header in message.get("headers", []) if header[0].lower() != b"connection"]
                    message = {**message, "headers": [*others, (b"connection", b"close")]}
                elif message["type"] == "http.response.body" and unread and not message.get("more_body", False):
                    self._unread = True
                    self.cycle.keep_alive = True  # uvicorn would close at once; on_response_complete closes later.
                await send(message)

            await app(scope, receive, send_noting)

        return answer

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._table.end(self._place)
        self._watch_client()
        if self._unread:
            self._linger()
        else:
            self._parse()

    def _refuse(self, error: ApiError) -> None:
        """Answers a malformed request, unless another answer is on its way, and ends the connection."""
        self._table.closed["malformed"] += 1
        client = self.client[0] if self.client else None
        logger.info(
            "malformed request", extra={"facts": {"client": client, "status": error.status, "why": error.message}}
        )
        pending = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (pending and (self.cycle.response_started or not self.cycle.more_body)):
            self._end()
            return
        if pending:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps(error.body()).encode()
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self._linger()

    def _linger(self) -> None:
        """Reads and drops input for a while, then closes. If a socket closes with unread bytes, its client may lose
        the answer."""
        self._dropped = 0
        self._unparsed.clear()
        self._unset_keepalive_if_required()
        self._stop_timer("head")
        self._set_timer("linger", LINGER_SECONDS, self._end)
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # The client has reset the connection, which the loop has not noticed yet.
            self._end()
            return
        self.flow.resume_reading()

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_client()

    # These methods detect clients that do not take their answers.

    def pause_writing(self) -> None:
        """Starts watching a client that is behind: more bytes wait to be sent than the write buffer should hold."""
        super().pause_writing()
        self._watch_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_client()

    def _watch_client(self) -> None:
        """Sets the client's timer while unsent bytes exceed the write buffer's bound, or while the connection has only
        unsent bytes left: after the last answer, or when it is closing."""
        self._stop_timer("client")
        unsent = self.transport.get_write_buffer_size()
        if unsent and (self.flow.write_paused or not self._place.requests or self.transport.is_closing()):
            self._set_timer("client", self._listen.client_timeout, self._check_client, unsent)

    def _check_client(self, before: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent and before - unsent < MIN_TAKEN:
            self._table.closed["took_nothing"] += 1
            self.transport.abort()
        else:
            self._watch_client()

    def _set_timer(self, name: str, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        def due() -> None:
            del self._timers[name]
            then(*arguments)

        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, due)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
