"""Checks the server's network options before an engine is loaded: address, TLS, connections and their limits."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from dataclasses import dataclass, replace

from tensorwright.errors import InvalidOptionError, reason
from tensorwright.options.declare import check_values
from tensorwright.options.server import NetworkFields
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.serving.server.connections import RESERVE, allow_sockets
from tensorwright.runtime.serving.server.hosts import is_loopback

logger = logging.getLogger("tensorwright.server")


@dataclass(frozen=True)
class Listen(StrictKeywords, NetworkFields):
    """Checks the fields of NetworkFields, and makes the socket that they describe."""

    def __post_init__(self) -> None:
        check_values(self, NetworkFields)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidOptionError("tls_cert and tls_key must be given together")

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    @property
    def local(self) -> bool:
        """Whether only programs of this machine can reach the address."""
        return is_loopback(self.host)

    def check_files(self) -> Listen:
        """Raises the process's limit of open files, and returns these options with max_connections lowered to what the
        limit allows. A lowered number is logged. Raises InvalidOptionError if there is no room for one connection."""
        room = allow_sockets(self.max_connections + RESERVE, 1 + RESERVE) - RESERVE
        if room < self.max_connections:
            facts = {"wanted": self.max_connections, "max_connections": room}
            logger.warning("fewer connections, for this process may not open more files", extra={"facts": facts})
        return replace(self, max_connections=min(room, self.max_connections))

    def check_tls(self) -> None:
        """Raises InvalidOptionError if certificate and key cannot be read or do not belong together."""
        if self.tls_cert is None or self.tls_key is None:
            return
        for name in (self.tls_cert, self.tls_key):
            if not os.path.isfile(name):
                raise InvalidOptionError(f"tls_cert and tls_key must be files in PEM form, but {name} is no file")
        try:
            # The password is empty, for OpenSSL would otherwise ask for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidOptionError(
                f"tls_cert {self.tls_cert} and tls_key {self.tls_key} must be a certificate and its key, unencrypted, "
                f"in PEM form: {reason(error)}"
            ) from error

    def bind(self) -> socket.socket:
        """Returns a socket bound to the address, which does not listen yet. Raises InvalidOptionError if the host is no
        address of this machine or the port is taken."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            bound = socket.socket(family, kind, protocol)
        except OSError as error:
            raise InvalidOptionError(
                f"host {self.host!r} must be an address of this machine: {reason(error)}"
            ) from error
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            bound.close()
            raise InvalidOptionError(
                f"port {self.port} of {self.host} must be free: {reason(error)}; choose another with --port, or 0 for "
                "any"
            ) from error
        return bound

    def url(self, bound: socket.socket) -> str:
        host, port = bound.getsockname()[:2]
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
