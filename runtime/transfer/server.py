"""Listens for engines that fetch prefixes, and serves each in a thread of its own, a bounded number at once."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError, TensorwrightError, TransferError, reason
from tensorwright.runtime.transfer.channel import Channel
from tensorwright.runtime.transfer.handshake import greet
from tensorwright.runtime.transfer.sender import send_prefix
from tensorwright.runtime.transfer.tickets import Tickets

logger = logging.getLogger("tensorwright.transfer")
GREETING = 5.0
"""The seconds in which a stranger must prove that it knows the token. It holds a place meanwhile."""
END_WAIT = 5.0


@dataclass
class SentCounts:
    """What a server has sent: prefixes, their bytes, and transfers that failed."""

    prefixes: int = 0
    content: int = 0
    failed: int = 0


class TransferServer:
    """Sends the prefixes of tickets. Raises InvalidOptionError if it cannot listen.

    port: 0 takes any that is free. timeout: the seconds that one transfer may take. idle: the most seconds in which a
    peer may take nothing. most: the transfers at once; one more is closed unserved.
    """

    def __init__(
        self,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        timeout: float = 10.0,
        idle: float = 5.0,
        most: int = 8,
    ):
        self.tickets = Tickets()
        self.sent = SentCounts()
        self._token, self._timeout, self._idle, self._most = token, timeout, idle, most
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closing = False
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=most)
        except OSError as error:
            raise InvalidOptionError(f"transfers must listen at {host}:{port}: {reason(error)}") from error
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="tensorwright-transfers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the transfers under way and the threads; a second call does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            threads = list(self._open.values())
            for connection in self._open:
                _hang_up(connection)
        _hang_up(self._socket)  # this ends the wait of accept()
        self._thread.join(END_WAIT)
        self._socket.close()
        for thread in threads:
            thread.join(END_WAIT)

    @property
    def open(self) -> int:
        """The number of connections."""
        with self._lock:
            return len(self._open)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closing:
                    return
                logger.warning("a connection was not taken: %s", reason(error))
                time.sleep(0.1)  # such as too many open files, which would fail again at once
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="tensorwright-transfer", daemon=True)
        with self._lock:
            full = self._closing or len(self._open) >= self._most
            if not full:
                self._open[connection] = thread
        if full:
            connection.close()
            return
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet_and_send(connection)
        except OSError as error:
            self._fail(TransferError(f"the connection broke: {reason(error)}"))
        finally:
            with self._lock:
                del self._open[connection]
            connection.close()

    def _greet_and_send(self, connection: socket.socket) -> None:
        channel = Channel(connection, time.monotonic() + GREETING, GREETING)
        try:
            greet(channel, self._token)
        except TransferError as error:
            return self._fail(error)
        channel = Channel(connection, time.monotonic() + self._timeout, self._idle)
        try:
            content = send_prefix(channel, self.tickets)
        except TensorwrightError as error:
            channel.send_error(str(error) if isinstance(error, TransferError) else "the engine sends no prefix now")
            return self._fail(error)
        except Exception:  # a fault of ours must not end the thread without a word
            logger.exception("a transfer failed")
            with self._lock:
                self.sent.failed += 1
            return None
        with self._lock:
            self.sent.prefixes += 1
            self.sent.content += content
        return None

    def _fail(self, error: TensorwrightError) -> None:
        with self._lock:
            self.sent.failed += 1
        logger.warning("a prefix was not sent: %s", error)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is not connected any more
        return
