"""Asks engines' servers on behalf of the router's clients."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.json_text import read_json
from tensorwright.runtime.serving.server.handover import PROOF, Handover

try:
    import httpx
except ImportError as error:
    raise MissingDependencyError(f"the router needs httpx, which is not installed: {install('serve')}") from error

CONNECT = 5.0
"""The seconds in which an engine's server must take a connection."""
PASSED = ("authorization", "content-type", "accept", "x-request-id")
"""The headers of a client that an engine gets. The router's own are never a client's."""
RETURNED = ("content-type", "cache-control", "x-accel-buffering", "retry-after", "www-authenticate")
"""The headers of an engine that a client gets."""
MAX_REPLY = 1 << 20


class Unreachable(Exception):
    """An engine could not be reached, or broke off before its answer began."""


def check_url(url: str, flag: str) -> str:
    """Returns the address of a server without a slash at its end. Raises InvalidOptionError."""
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        valid = False
    if not valid or parts.path not in ("", "/") or parts.query or parts.username:
        raise InvalidOptionError(f"{flag} must be the address of a server, like http://10.0.0.1:8000, got {url!r}")
    return url.rstrip("/")


class Upstream:
    """The connections to all engines. prefill_timeout: the seconds that a prefill may take."""

    def __init__(self, prefill_timeout: float, most: int):
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=min(most, 64), keepalive_expiry=30)
        # Nothing bounds an answer's time here: the engine ends requests, and clients leave.
        timeout = httpx.Timeout(None, connect=CONNECT, pool=CONNECT)
        self._http = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
        self._prefill_timeout = httpx.Timeout(prefill_timeout, connect=CONNECT, pool=CONNECT)

    async def __aenter__(self) -> Upstream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def prefill(
        self, url: str, path: str, headers: Mapping[str, str], body: bytes, proof: str
    ) -> Handover | None:
        """Has an engine compute the prompts of a body. Returns where their prefixes are, or None if the engine refused:
        the engine that answers then says why, or computes the prompts. Raises Unreachable."""
        sent = {**passed(headers), PROOF: proof}
        try:
            answer = await self._http.post(
                f"{url}/prefill{path.removeprefix('/v1')}", content=body, headers=sent, timeout=self._prefill_timeout
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        if answer.status_code >= 500:
            raise Unreachable(f"it answered {answer.status_code}")
        return _read_reply(url, answer) if answer.status_code == 200 else None

    async def open(
        self, method: str, url: str, path: str, headers: Mapping[str, str], body: bytes, own: Mapping[str, str]
    ) -> httpx.Response:
        """Returns an engine's answer when its head has come; whoever reads it must close it. own: headers of the
        router's own. Raises Unreachable."""
        sent = {**passed(headers), **own, "accept-encoding": "identity"}
        request = self._http.build_request(method, url + path, content=body, headers=sent)
        try:
            return await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None


def passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in PASSED if name in headers}


def _read_reply(url: str, answer: httpx.Response) -> Handover:
    """Returns what an engine that prefilled says. Raises Unreachable for anything else than it can say."""
    try:
        if len(answer.content) > MAX_REPLY:
            raise ValueError("it is too long")
        fields: Any = read_json(answer.content)
        port, tickets = fields["transfer_port"], tuple(fields["tickets"])
        if type(port) is not int or not tickets or not all(type(ticket) is str for ticket in tickets):
            raise ValueError("a port or tickets are missing")
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"its answer is no prefill: {error}") from None
    host = urlsplit(url).hostname
    assert host is not None, "check_url() has seen the address"
    return Handover(host, port, tickets)
