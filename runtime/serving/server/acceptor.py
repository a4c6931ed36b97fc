"""Takes connections from the listening socket. Where there are too many, a waiting one is closed for each new one.

This module replaces asyncio's own server. That one takes every connection, and when no descriptor is left, it tries
again in a loop and writes a log line each time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tensorwright.runtime.serving.server.clients import one_client
from tensorwright.runtime.serving.server.connections import Connections, Place


class SlowLog:
    """Writes the first warning at once, and later ones at most every `seconds`, with the number of those left out."""

    def __init__(self, logger: logging.Logger, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._quiet_until = float("-inf")
        self._left_out = 0

    def warn(self, message: str, **facts: Any) -> None:
        now = self._clock()
        if now < self._quiet_until:
            self._left_out += 1
            return
        self._quiet_until = now + self._seconds
        if self._left_out:
            facts["left_out"] = self._left_out
            self._left_out = 0
        self._logger.warning(message, extra={"facts": facts})


BACKLOG = 2048  # connections that the system queues until they are accepted
AT_ONCE = 16  # connections accepted before the event loop runs other work; fewer than SPARE of connections.py
RETRY_SECONDS = 1.0  # The next attempt comes so much later when the system has no resources left.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC)  # ENOSPC: epoll is out of watches

MakeProtocol = Callable[[Place], asyncio.Protocol]


class Acceptor:
    """Accepts connections and makes a protocol for each.

    handshake_timeout: the seconds that a TLS handshake may take. shutdown_timeout: the seconds that TLS's end may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None = None,
        handshake_timeout: float = 15.0,
        shutdown_timeout: float = 5.0,
    ):
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._connections = connections
        self._make_protocol = make_protocol
        self._tls: dict[str, object] = {} if tls is None else {
            "ssl": tls, "ssl_handshake_timeout": handshake_timeout, "ssl_shutdown_timeout": shutdown_timeout,
        }  # fmt: skip
        self._log = SlowLog(logging.getLogger("tensorwright.server"))
        self._starting: set[asyncio.Task[None]] = set()
        self._listens = False
        self._open = True

    def start(self) -> None:
        self._listening.listen(BACKLOG)
        self._listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accepts no more connections. Those that are open stay open."""
        self._open = False
        self._pause()

    async def wait_closed(self) -> None:
        """Returns at once, for uvicorn waits for the connections itself."""

    def _listen(self) -> None:
        if self._open and not self._listens:
            self._listens = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _pause(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._wait_for_resources(error)
                    return
                continue  # The error belongs to this one connection, which is gone.
            if not self._take(accepted, one_client(str(address[0]))):
                return

    def _take(self, accepted: socket.socket, address: str) -> bool:
        """Starts the protocol of an accepted socket. Returns False if the system has no resources for the socket."""
        accepted.setblocking(False)
        if _has_left(accepted):
            accepted.close()
            return True
        try:
            self._loop.add_reader(accepted.fileno(), lambda: None)  # asyncio does this later, and only logs a failure
            self._loop.remove_reader(accepted.fileno())
        except OSError as error:
            accepted.close()
            self._wait_for_resources(error)
            return False
        start = _Start(accepted)
        place = self._connections.enter(address, start.close)
        start.task = self._loop.create_task(self._begin(accepted, place))
        self._starting.add(start.task)
        start.task.add_done_callback(partial(self._begun, accepted, place))
        return True

    async def _begin(self, accepted: socket.socket, place: Place) -> None:
        await self._loop.connect_accepted_socket(lambda: self._make_protocol(place), accepted, **self._tls)  # type: ignore[arg-type]

    def _begun(self, accepted: socket.socket, place: Place, task: asyncio.Task[None]) -> None:
        """Removes a connection whose handshake failed or was cancelled, whoever caused that."""
        self._starting.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._connections.leave(place)
            self._loop.call_soon(accepted.close)  # A transport, if there is one, must release the socket first.

    def _wait_for_resources(self, error: OSError) -> None:
        """Closes a waiting connection, which frees its descriptor, and accepts again after RETRY_SECONDS."""
        self._connections.give_up_one()
        self._log.warn("no connection can be taken", error=str(error), open=self._connections.open)
        self._pause()
        self._loop.call_later(RETRY_SECONDS, self._listen)


def _has_left(accepted: socket.socket) -> bool:
    """Returns whether the client closed the connection and sent nothing. This check takes an eighth of the time that a
    protocol would take. Without it, clients that only open and close connections make everybody else wait."""
    try:
        return not accepted.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


class _Start:
    """A connection that has no protocol yet. `close` cancels the task that makes the protocol."""

    def __init__(self, accepted: socket.socket):
        self._accepted = accepted
        self.task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
