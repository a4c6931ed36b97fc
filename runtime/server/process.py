"""Runs the application on its socket until a signal ends it, the requests under way first."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from tensorwright.runtime.command import EXIT_INTERRUPTED
from tensorwright.runtime.server.listen import Listen

logger = logging.getLogger("tensorwright.server")
FLUSH = 5  # seconds that written answers have to reach their clients in, at the end


def serve(app: FastAPI, listen: Listen, bound: socket.socket, announce: Callable[[], None]) -> None:
    """Returns when SIGTERM or SIGINT came and requests have finished, or drain_timeout has passed. A second signal ends
    at once, with KeyboardInterrupt. announce: called when connections are taken."""
    server = _Server(_config(app, listen), announce)
    drain = _Drain(server, app, listen.drain_timeout)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, drain.on_signal)
        await server.serve(sockets=[bound])

    asyncio.run(main())
    if drain.signals > 1:
        raise KeyboardInterrupt("a second signal came before the requests had finished")


def _config(app: FastAPI, listen: Listen) -> uvicorn.Config:
    class Connection(_Connection):
        header_timeout = listen.header_timeout
        client_timeout = listen.client_timeout

    return uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=listen.keep_alive,  # type: ignore[arg-type]  # seconds of loop.call_later
        timeout_graceful_shutdown=FLUSH,
        limit_concurrency=listen.max_connections,
        ssl_certfile=listen.tls_cert,
        ssl_keyfile=listen.tls_key,
    )


class _Server(uvicorn.Server):
    """Signals are ours; see _Drain."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]):
        super().__init__(config)
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


class _Drain:
    """First signal: /ready says no, new requests are refused, those under way finish. Second: the end. Third: should
    even that hang, the process goes."""

    def __init__(self, server: uvicorn.Server, app: FastAPI, timeout: float):
        self.signals = 0
        self._server = server
        self._state = app.state
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        self.signals += 1
        if self.signals == 1:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        elif self.signals == 2:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # tells of each task that is cancelled
            self._server.should_exit = self._server.force_exit = True
        else:
            os._exit(EXIT_INTERRUPTED)

    async def _drain(self) -> None:
        lifecycle = self._state.lifecycle
        lifecycle.draining = True
        logger.info("draining", extra={"facts": {"in_flight": lifecycle.in_flight, "seconds": self._timeout}})
        if not await lifecycle.wait_idle(self._timeout):
            logger.warning("requests are ended", extra={"facts": {"in_flight": lifecycle.in_flight}})
            for llm in self._state.engines.values():
                await asyncio.to_thread(llm.shutdown)  # its requests end with an error, which clients get
            await lifecycle.wait_idle(FLUSH)
        self._server.should_exit = True


class _Connection(H11Protocol):
    """Closes connections whose headers do not come, and those whose client takes nothing: uvicorn watches idle ones."""

    header_timeout: float
    client_timeout: float
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        self._stop_write_timer()

    def pause_writing(self) -> None:
        """The client is behind: more waits to be sent than is kept for it."""
        super().pause_writing()
        self._watch_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _watch_client(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.client_timeout, self._check_client, unsent)

    def _check_client(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:  # slow, but it takes something
            self._watch_client()
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_headers(self) -> None:
        """A timer runs from a request's first byte (of the first request: from the connection) to its headers' end."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
