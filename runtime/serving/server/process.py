"""Runs the application on its socket until a signal comes and the requests under way have finished."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from tensorwright.interrupts import EXIT_INTERRUPTED
from tensorwright.runtime.serving.server.acceptor import Acceptor
from tensorwright.runtime.serving.server.connection import LINGER_SECONDS, Connection
from tensorwright.runtime.serving.server.connections import Connections, Place
from tensorwright.runtime.serving.server.listen import Listen

logger = logging.getLogger("tensorwright.server")
FLUSH = 5  # the seconds in which written answers must reach their clients at the end


def serve(
    app: FastAPI,
    listen: Listen,
    bound: socket.socket,
    announce: Callable[[], None],
    reload: Callable[[], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT comes and the requests have finished or drain_timeout has passed. A second signal
    ends the server at once with KeyboardInterrupt.

    announce: called when the server takes connections. reload: called in a thread, once at a time, for each SIGHUP;
    None leaves SIGHUP to the system, which ends the process.
    """
    connections = Connections(listen.max_connections, listen.max_connections_per_address, app.state.options.retry_after)
    app.state.exposition.http.show_connections(connections)
    server = _Server(_config(app, listen), listen, connections, announce)
    drain = _Drain(server, app, listen.drain_timeout)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, drain.on_signal)
        if reload is not None:
            loop.add_signal_handler(signal.SIGHUP, _Reload(reload).on_signal)
        await server.serve(sockets=[bound])

    asyncio.run(main())
    if drain.signals > 1:
        raise KeyboardInterrupt("a second signal came before the requests had finished")


def _config(app: FastAPI, listen: Listen) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=listen.keep_alive,  # type: ignore[arg-type]  # seconds of loop.call_later
        timeout_graceful_shutdown=FLUSH,
        ssl_certfile=listen.tls_cert,
        ssl_keyfile=listen.tls_key,
    )


class _Server(uvicorn.Server):
    """A uvicorn server whose connections Acceptor takes and whose signals _Drain handles."""

    def __init__(self, config: uvicorn.Config, listen: Listen, connections: Connections, announce: Callable[[], None]):
        super().__init__(config)
        self._listen = listen
        self._connections = connections
        self._announce = announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override]
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the application did not start; the log says why")
        assert sockets is not None
        tls, patience = self.config.ssl, self._listen.header_timeout
        self.servers = [
            Acceptor(bound, self._connections, self._connection, tls, patience, LINGER_SECONDS)  # type: ignore[misc]
            for bound in sockets
        ]
        for acceptor in self.servers:
            acceptor.start()  # type: ignore[attr-defined]
        self.started = True
        self._announce()

    def _connection(self, place: Place) -> Connection:
        return Connection(
            self._listen,
            self._connections,
            place,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


class _Reload:
    """Handles SIGHUP. Signals that come while `reload` runs make it run once more."""

    def __init__(self, reload: Callable[[], None]):
        self._reload = reload
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            await asyncio.to_thread(self._reload)


class _Drain:
    """Handles signals. After the first, /ready answers 503, new requests are refused, and those under way finish. The
    second ends the server at once. The third ends the process, in case that the server hangs."""

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
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # uvicorn logs every cancelled task.
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
                await asyncio.to_thread(llm.shutdown)  # Its requests end with an error, which clients get.
            await lifecycle.wait_idle(FLUSH)
        self._server.should_exit = True
