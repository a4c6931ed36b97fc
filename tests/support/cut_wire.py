"""A connection between two peers on which something goes wrong: it is cut, altered or held at a chosen byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Wire:
    """Passes one connection on to a server. from_server, from_client: at which byte of that direction `fault` strikes,
    None for never. fault: "cut" closes both ends, "alter" changes the byte, "hold" passes nothing more."""

    def __init__(self, port: int, fault: str, from_server: int | None = None, from_client: int | None = None):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._target, self._fault = port, fault
        self._at = {"server": from_server, "client": from_client}
        self.passed = {"server": 0, "client": 0}
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            for name, source, target in (("server", server, client), ("client", client, server)):
                thread = threading.Thread(target=self._pass, args=(name, source, target), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(self, name: str, source: socket.socket, target: socket.socket) -> None:
        at = self._at[name]
        with suppress(OSError):
            while data := source.recv(1 << 16):
                start = self.passed[name]
                self.passed[name] += len(data)
                if at is not None and start <= at < start + len(data):
                    if self._fault == "alter":
                        data = bytearray(data)
                        data[at - start] ^= 0x40
                    else:
                        target.sendall(data[: at - start])
                        if self._fault == "cut":
                            self._hang_up()
                        return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _hang_up(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._hang_up()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()


@contextmanager
def wire(port: int, fault: str, **at: int | None) -> Iterator[Wire]:
    made = Wire(port, fault, **at)
    try:
        yield made
    finally:
        made.close()
