"""Bounds the requests that one key and one address have under way at once, so that no client takes all places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorwright.errors import ClientShareError, InvalidRequestError
from tensorwright.runtime.serving.server.clients import address_of
from tensorwright.runtime.serving.server.errors import describe_error
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.served_model import ServedModel


class Shares:
    """Counts requests by client. A request for completions counts prompts times n; any other counts 1. The object
    belongs to one event loop.

    per_key, per_address: the most of one key, and of one address; None means no bound.
    """

    def __init__(self, per_key: int | None, per_address: int | None):
        self.per_key = per_key
        self.per_address = per_address
        self._alive: Counter[tuple[str, object]] = Counter()

    def of_keys(self) -> Iterator[tuple[int, int]]:
        """Yields pairs (number of a key, its count) for every key that has requests under way. Any thread may call
        it."""
        alive = list(self._alive.items())
        return ((number, count) for (kind, number), count in alive if kind == "key")  # type: ignore[misc]

    def open(self, scope: Scope) -> Share:
        """Returns the share of one request, with one place. Raises ClientShareError if the client has its most."""
        bounds: dict[tuple[str, object], int | None] = {("address", address_of(scope)): self.per_address}
        if "key" in scope["state"]:
            bounds["key", scope["state"]["key"]] = self.per_key
        share = Share(self._alive, bounds)
        share.grow(1)
        return share


class Share:
    """The places that one request holds, until `close`."""

    def __init__(self, alive: Counter[tuple[str, object]], bounds: Mapping[tuple[str, object], int | None]):
        self._alive = alive
        self._bounds = bounds
        self._places = 0

    def grow(self, places: int) -> None:
        """Sets the number of places that the request holds. Raises ClientShareError if the client has too many now, and
        InvalidRequestError if a client can never have `places`."""
        more = places - self._places
        for who, most in self._bounds.items():
            if most is not None and places > most:
                raise InvalidRequestError(
                    f"this server lets one {who[0]} have {most} completions at once, and this request asks for {places}"
                )
            if most is not None and self._alive[who] + more > most:
                raise ClientShareError(
                    f"your {who[0]} has {self._alive[who]} requests and completions under way, of {most} at once"
                )
        self._alive.update(dict.fromkeys(self._bounds, more))
        self._places = places

    def close(self) -> None:
        for who in self._bounds:
            self._alive[who] -= self._places
            if not self._alive[who]:
                del self._alive[who]
        self._places = 0


def make_shares(options: ServerOptions, engines: Iterable[ServedModel]) -> Shares:
    """Returns the server's Shares. By default a key may have half of the smallest engine's places. With a single key,
    clients cannot be told apart, so that the key may have all."""
    per_key = options.max_requests_per_key
    if per_key is None and len(set(options.keys)) > 1:
        per_key = min(llm.options.max_batch_size + llm.options.max_queue_size for llm in engines)
        per_key = (per_key + 1) // 2
    return Shares(per_key, options.max_requests_per_address)


def hold_places(request: Request, completions: int) -> None:
    """Takes places for all completions of a request before any work. Raises ClientShareError (429)."""
    request.state.share.grow(completions)


class ShareGuard:
    """Refuses requests of a client that has its share under way. unguarded: the paths that do not count."""

    def __init__(self, app: ASGIApp, shares: Shares, options: ServerOptions, unguarded: Iterable[str]):
        self._app = app
        self._shares = shares
        self._retry_after = options.retry_after
        self._unguarded = tuple(unguarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unguarded:
            await self._app(scope, receive, send)
            return
        try:
            share = self._shares.open(scope)
        except ClientShareError as error:
            await describe_error(error, self._retry_after).response()(scope, receive, send)
            return
        scope["state"]["share"] = share
        try:
            await self._app(scope, receive, send)
        finally:
            share.close()
