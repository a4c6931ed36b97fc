"""Answers GET /v1/cache_events: which blocks the prefix cache of a model stores and removes, at once or as a stream.

With keys, a key needs the right to it. "hashes" tells of all blocks by their names, which are made with a secret of the
engine; "tokens" tells the tokens of stored blocks too, those of other keys included. Without keys nobody is told
tokens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from tensorwright.errors import QueueFullError
from tensorwright.options.server import HASHES, TOKENS
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.cache_events import CURSOR_LENGTH, MAX_READ, CacheEvent, CacheEvents, EventType, Tier
from tensorwright.runtime.serving.server.clients import client_of, key_of
from tensorwright.runtime.serving.server.event_readers import EventReaders
from tensorwright.runtime.serving.server.event_stream import EventStream
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.served_model import ServedModel

router = APIRouter(tags=["prefixes"])

MAX_WAIT = 30.0
"""The most seconds for which an answer waits for its first event."""
MAX_STREAMS = 64
"""The most streams of a server at once: each event is sent to each of them."""
PINGS = 15.0
"""After so many seconds without an event a stream sends a comment, so that no proxy takes it for dead."""
PING = ": nothing new\n\n"

Cursor = Annotated[str, Query(min_length=1, max_length=CURSOR_LENGTH)]


class CountedStream(EventStream):
    """A stream that counts among the server's while it is open. Raises QueueFullError if there are MAX_STREAMS."""

    def __init__(self, events: AsyncIterator[str], readers: EventReaders):
        if readers.open >= MAX_STREAMS:
            raise QueueFullError(
                f"{MAX_STREAMS} clients read events as streams, which is the most; ask without stream, or later"
            )
        super().__init__(events, (), framed=True)
        self._readers = readers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._readers.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._readers.open -= 1


class CacheEventCard(BaseModel):
    """One event. Those that remove have only the first five fields, "cleared" has only type and sequence."""

    type: EventType
    sequence: int
    tier: Tier | None = None
    group: int | None = None
    block: str | None = None
    parent: str | None = None
    salt: str | None = None
    adapter: str | None = None
    token_ids: list[int] | None = None


class CacheEventList(BaseModel):
    """next: `after` of the next request. lost: events that are not told, because the client was too slow, or null if
    nobody can say how many; if it is not 0, the events begin with "cleared". more: whether there is more to read at
    once."""

    object: Literal["list"] = "list"
    data: list[CacheEventCard]
    next: str
    lost: int | None
    more: bool


@router.get("/v1/cache_events", response_model=CacheEventList)
async def cache_events(
    request: Request,
    model: Annotated[str | None, Query(max_length=bounds.NAME_LENGTH)] = None,
    after: Cursor | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_READ)] = MAX_READ,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0.0,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header(max_length=CURSOR_LENGTH)] = None,
) -> Response:
    """Tells the events of a model's prefix cache behind `after`, and without it the whole content first.

    model: may be left out where the server has one. wait: the seconds to wait for the first event. stream: sends each
    event as a server-sent event, until the client goes away; "id" is the cursor, from which a client that comes again
    goes on with Last-Event-ID.
    """
    registry: EngineRegistry = request.app.state.engines
    llm = registry.find(registry.only if model is None else model)
    with_tokens = _may_read_tokens(request)
    first = last_event_id or after  # a browser comes again with the same address, and says how far it came
    if stream:
        start = await _read(request, llm, first, limit)  # what is wrong with the request is told with its status
        return CountedStream(_events(request, llm, start, limit, with_tokens), request.app.state.event_readers)
    found = await _read(request, llm, first, limit)
    if wait > 0 and not (found.events or found.more):
        found = await _next(request, llm, found.next, limit, wait) or found
    return Response(await _run(request, _list, found, with_tokens), media_type="application/json")


async def _read(request: Request, llm: ServedModel, after: str | None, limit: int) -> CacheEvents:
    return await _run(request, lambda: llm.cache_events(after, limit=limit))


async def _next(request: Request, llm: ServedModel, after: str, limit: int, timeout: float) -> CacheEvents | None:
    """Returns the events behind the last one that there is; none if the server drains, None if none comes in time."""
    readers: EventReaders = request.app.state.event_readers
    look = partial(_read, request, llm, after, limit)
    return await readers.next((llm, limit, after), look, partial(_ends, request), timeout)


async def _run(request: Request, work: Any, *arguments: Any) -> Any:
    return await request.app.state.pools.events.run(work, *arguments, client=client_of(request.scope))


async def _events(
    request: Request, llm: ServedModel, found: CacheEvents, limit: int, with_tokens: bool
) -> AsyncIterator[str]:
    """Yields server-sent events until the server drains: "lost" before what follows a loss, and each event of the
    cache. found: what was read already."""
    while True:
        if found.events or found.lost != 0:
            yield await _run(request, _frames, found, with_tokens)
        if _ends(request):
            return
        if found.more:
            found = await _read(request, llm, found.next, limit)
            continue
        while (news := await _next(request, llm, found.next, limit, PINGS)) is None:
            yield PING
        found = news


def _frames(found: CacheEvents, with_tokens: bool) -> str:
    """Returns the events of one reading as text. The last one has the cursor: who leaves in between and comes again is
    told some of them twice, which changes nothing."""
    frames = []
    if found.lost != 0:
        frames.append(f'event: lost\ndata: {{"type":"lost","count":{json.dumps(found.lost)}}}\n\n')
    frames += [f"event: {event.type}\ndata: {_text(event, with_tokens)}\n\n" for event in found.events]
    if frames:
        frames[-1] = f"id: {found.next}\n{frames[-1]}"
    return "".join(frames)


def _list(found: CacheEvents, with_tokens: bool) -> str:
    data = ",".join(_text(event, with_tokens) for event in found.events)
    rest = json.dumps({"next": found.next, "lost": found.lost, "more": found.more})
    return f'{{"object":"list","data":[{data}],{rest[1:]}'


def _text(event: CacheEvent, with_tokens: bool) -> str:
    fields: dict[str, Any] = {"type": event.type, "sequence": event.sequence}
    if event.type != "cleared":
        fields |= {"tier": event.tier, "group": event.group, "block": event.block}
    if event.type == "stored" and event.tier == "cache":
        fields |= {"parent": event.parent, "salt": event.salt, "adapter": event.adapter}
        if with_tokens:
            fields["token_ids"] = event.token_ids
    return json.dumps(fields, separators=(",", ":"))


def _ends(request: Request) -> bool:
    return bool(request.app.state.lifecycle.draining)


def _may_read_tokens(request: Request) -> bool:
    """Whether the client may read tokens. Raises HTTPException with 403 for a key that may read no events."""
    key = key_of(request)
    if key is None:
        return False
    if key.cache_events is None:
        raise HTTPException(
            403,
            f"this key may read no events: cache_events={HASHES} or cache_events={TOKENS} behind a key is the right to",
        )
    return key.cache_events == TOKENS
