"""Asks engines' servers on behalf of the router's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.json_text import read_json
from tensorwright.runtime.serving.server.endpoints import prefill_path
from tensorwright.runtime.serving.server.handover import PROOF, Handover
from tensorwright.runtime.serving.server.lenient_fields import HEADER as IGNORED
from tensorwright.runtime.serving.server.rate_limits import HEADERS as RATE_HEADERS

try:
    import httpx
except ImportError as error:
    raise MissingDependencyError(f"the router needs httpx, which is not installed: {install('serve')}") from error

CONNECT = 5.0
"""The seconds in which an engine's server must take a connection."""
PASSED = ("authorization", "x-api-key", "content-type", "accept", "traceparent", "tracestate")
"""The headers of a client that an engine gets. The router's own are never a client's."""
RETURNED = (
    "content-type", "cache-control", "x-accel-buffering", "retry-after", "www-authenticate", IGNORED.lower(),
    *RATE_HEADERS,
)  # fmt: skip
"""The headers of an engine that a client gets."""
MAX_REPLY = 1 << 20


@dataclass(frozen=True)
class Asked:
    """What a client asked the router. path: as it came, quoted, without the query. query: without the "?". headers:
    those of PASSED, and the id under which the router logs the request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """The path and the query, for an engine. Segments of dots are quoted, or they would lead to other paths."""
        path = "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in self.path.split("/"))
        return f"{path}?{self.query}" if self.query else path


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

    async def prefill(self, url: str, asked: Asked, proof: str) -> Handover | None:
        """Has an engine compute the prompts of a request. Returns where their prefixes are, or None if the engine
        refused: the engine that answers then says why, or computes the prompts. Raises Unreachable."""
        sent = {**asked.headers, PROOF: proof}
        path = url + prefill_path(asked.path)
        try:
            answer = await self._http.post(path, content=asked.body, headers=sent, timeout=self._prefill_timeout)
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        if answer.status_code >= 500:
            raise Unreachable(f"it answered {answer.status_code}")
        return _read_reply(url, answer) if answer.status_code == 200 else None

    async def open(self, url: str, asked: Asked, own: Mapping[str, str]) -> httpx.Response:
        """Returns an engine's answer when its head has come; whoever reads it must close it. own: headers of the
        router's own. Raises Unreachable."""
        sent = {**asked.headers, **own, "accept-encoding": "identity"}
        request = self._http.build_request(asked.method, url + asked.target, content=asked.body, headers=sent)
        try:
            return await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None

    async def ask(self, url: str, asked: Asked) -> httpx.Response:
        """Returns an engine's whole answer, of at most MAX_REPLY bytes. Raises Unreachable, also if it is longer."""
        answer = await self.open(url, asked, {})
        read = bytearray()
        try:
            async for piece in answer.aiter_raw():
                read += piece
                if len(read) > MAX_REPLY:
                    raise Unreachable(f"its answer is longer than {MAX_REPLY} bytes")
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        finally:
            await answer.aclose()
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(read))


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
