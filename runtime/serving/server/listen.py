"""The server's side of the network: address, TLS, connections and their limits. Checked before an engine is loaded."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from dataclasses import dataclass, replace

from tensorwright.errors import InvalidOptionError, reason
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.parameter_checks import is_int
from tensorwright.runtime.serving.server.connections import RESERVE, allow_sockets
from tensorwright.runtime.serving.server.hosts import is_loopback
from tensorwright.runtime.serving.server.options import positive

logger = logging.getLogger("tensorwright.server")


@dataclass(frozen=True)
class Listen(StrictKeywords):
    """port 0: the system chooses one. tls_cert and tls_key: files in PEM form, both or neither.

    max_connections: those with requests under way; one more is answered 503, but for probes.
    max_connections_per_address: the same of one address, answered 429; None: no bound, for a proxy is one address.
    keep_alive: seconds that an idle connection stays open, if its place is not wanted before.
    header_timeout: seconds in which a request's headers must have come.
    client_timeout: seconds after which a client that takes nothing of its answer is cut off.
    drain_timeout: seconds that requests have to finish in once the server is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    tls_cert: str | None = None
    tls_key: str | None = None
    max_connections: int = 1024
    max_connections_per_address: int | None = None
    keep_alive: float = 65.0
    header_timeout: float = 15.0
    client_timeout: float = 60.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not is_int(self.port) or not 0 <= self.port <= 65535:
            raise InvalidOptionError(f"port must be from 0 to 65535, got {self.port!r}")
        for name in ("max_connections", "max_connections_per_address"):
            value = getattr(self, name)
            if not (is_int(value) and value > 0) and not (value is None and name != "max_connections"):
                raise InvalidOptionError(f"{name} must be a positive integer, got {value!r}")
        for name in ("keep_alive", "header_timeout", "client_timeout"):
            if not positive(getattr(self, name)):
                raise InvalidOptionError(f"{name} must be a positive number of seconds, got {getattr(self, name)!r}")
        if self.drain_timeout != 0 and not positive(self.drain_timeout):
            raise InvalidOptionError(f"drain_timeout must be 0 or more seconds, got {self.drain_timeout!r}")
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
        """With as many connections as this process may have files for: its limit is raised as far as it may be, and if
        that is not enough, the log says so. InvalidOptionError if there is no room for a single one."""
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
            # An empty password, or OpenSSL would ask for one at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InvalidOptionError(
                f"tls_cert {self.tls_cert} and tls_key {self.tls_key} must be a certificate and its key, unencrypted, "
                f"in PEM form: {reason(error)}"
            ) from error

    def bind(self) -> socket.socket:
        """A socket with this address, which does not listen yet. InvalidOptionError if somebody else has it."""
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
