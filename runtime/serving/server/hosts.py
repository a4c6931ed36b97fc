"""Checks the Host header against the names by which this server is known.

A page of another site can make its own name point at 127.0.0.1 (DNS rebinding). A browser then lets that page read
this server's answers, but the requests still carry the other site's name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorwright.runtime.serving.server.errors import ApiError

LOCAL = "localhost"
_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]{1,253})(:[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Returns whether a host is "localhost" or a loopback address such as 127.0.0.1 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCAL


def is_host(text: str) -> bool:
    """Returns whether a text is a name or an address without a port, as --allowed-host takes it. An IPv6 address may
    have brackets."""
    found = _HEADER.fullmatch(text.lower())
    return (found is not None and found[2] is None) or ":" in _plain(text)


def _plain(host: str) -> str:
    """Returns the form in which hosts are compared. Text that is no address is a name, and loses its colons."""
    bare = host.lower().removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare.removesuffix(".").replace(":", "")


class HostGuard:
    """Refuses a request whose Host header is not in `allowed`. With local, loopback hosts are allowed too."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str], local: bool):
        self._app = app
        self._allowed = {_plain(host) for host in allowed}
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if header is None or self._admits(header):  # A request without the header comes from no browser.
            await self._app(scope, receive, send)
            return
        error = ApiError(
            421,
            "this server is not known by the name in the Host header: whoever runs it can allow it with "
            "--allowed-host NAME",
            code="host_not_allowed",
            headers={"connection": "close"},
        )
        await error.response()(scope, receive, send)

    def _admits(self, header: str) -> bool:
        found = _HEADER.fullmatch(header.lower())
        if found is None:
            return False
        host = _plain(found[1])
        return host in self._allowed or (self._local and is_loopback(host))
