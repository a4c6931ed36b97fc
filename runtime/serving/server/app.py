"""Makes the application of engines, options, routers and guards. The sockets are in process.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

import tensorwright
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.serving.server import adapters, health, page
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.clients import salt_secret
from tensorwright.runtime.serving.server.endpoints import routers_of
from tensorwright.runtime.serving.server.errors import install_handlers
from tensorwright.runtime.serving.server.event_readers import EventReaders
from tensorwright.runtime.serving.server.exposition import Exposition
from tensorwright.runtime.serving.server.guards import (
    WATCH_PATHS,
    BodyGuard,
    DrainGuard,
    HeadAsGet,
    KeyGuard,
    TimeGuard,
    TurnAwayGuard,
)
from tensorwright.runtime.serving.server.hosts import HostGuard
from tensorwright.runtime.serving.server.lenient_fields import HEADER
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.pools import ServerPools
from tensorwright.runtime.serving.server.rate_limits import HEADERS as RATE_HEADERS
from tensorwright.runtime.serving.server.rate_limits import RateGuard, RateLimits
from tensorwright.runtime.serving.server.request_log import RequestLog
from tensorwright.runtime.serving.server.request_time import Lifecycle
from tensorwright.runtime.serving.server.response_store import ResponseStore
from tensorwright.runtime.serving.server.served_model import ServedModel
from tensorwright.runtime.serving.server.shares import ShareGuard, make_shares
from tensorwright.runtime.serving.server.tracing import TraceGuard, Tracing
from tensorwright.runtime.serving.server.transfers import Transfers


def create_app(
    engines: Mapping[str, ServedModel],
    options: ServerOptions | None = None,
    routers: Iterable[APIRouter] | None = None,
    local: bool = False,
    transfers: Transfers | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """Returns the server's application. Handlers find `engines` (EngineRegistry), `options` and `pools` (ServerPools)
    in `request.app.state`.

    engines: the engines by the names that clients call them; the application shuts them down when it ends.
    routers: the routes; None means those that `routers_of` gives. Those of probes come on top where they lack.
    local: whether only this machine can reach the server; the Host header must then name this machine.
    transfers: the exchange of prefixes with other engines, which the application closes when it ends; None without.
    tracing: makes spans of requests, and ends with the application; None means one as the environment says with
    options.otel, and else none.
    """
    if not engines:
        raise InvalidOptionError("create_app: engines must name at least one engine")
    options = ServerOptions() if options is None else options
    app = FastAPI(
        title="Tensorwright", version=tensorwright.__version__, docs_url=None, redoc_url=None, lifespan=_lifespan
    )
    adapters.check_adapters(dict(engines))
    if transfers is not None and (options.adapter_folder is not None or any(llm.adapters for llm in engines.values())):
        raise InvalidOptionError(
            "create_app: adapters must be left out where prefixes are exchanged with other engines"
        )
    if transfers is not None:
        for llm in engines.values():
            llm.engine.config.require_generation(llm.engine.path, "exchanging prefixes with other engines")
    app.state.engines = EngineRegistry(engines)
    app.state.options = options
    app.state.salt_secret = salt_secret(engines.values())
    app.state.transfers = transfers
    app.state.tracing = Tracing() if tracing is None and options.otel else tracing
    app.state.lifecycle = Lifecycle()
    app.state.pools = ServerPools(options)
    app.state.exposition = Exposition(app.state.engines, app.state.pools)
    app.state.shares = make_shares(options, engines.values())
    app.state.exposition.http.show_shares(app.state.shares)
    app.state.event_readers = EventReaders()
    app.state.rates = RateLimits(options.keys)
    app.state.exposition.http.show_rates(app.state.rates)
    app.state.body_memory = BodyMemory(options)
    app.state.exposition.http.show_bodies(app.state.body_memory)
    app.state.responses = ResponseStore(options)
    app.state.exposition.http.show_responses(app.state.responses)
    if transfers is not None:
        app.state.exposition.http.show_transfers(transfers)
    role = "both" if transfers is None else transfers.options.role
    chosen = routers_of(role, transfers is not None, options) if routers is None else (health.router, *routers)
    for router in chosen:
        app.include_router(router)
    public = page.page_paths() if page.router in chosen else ()
    install_handlers(app)
    _add_guards(app, options, local, public)
    return app


def _add_guards(app: FastAPI, options: ServerOptions, local: bool, public: tuple[str, ...]) -> None:
    """Adds the guards from the innermost to the outermost. public: the paths that need no key and take no body."""
    app.add_middleware(TimeGuard, options=options)
    app.add_middleware(DrainGuard, lifecycle=app.state.lifecycle, options=options, unguarded=WATCH_PATHS)
    app.add_middleware(BodyGuard, options=options, memory=app.state.body_memory, public=public)
    if app.state.rates:
        app.add_middleware(RateGuard, limits=app.state.rates)
    app.add_middleware(ShareGuard, shares=app.state.shares, options=options, unguarded=WATCH_PATHS)
    if options.api_keys:
        app.add_middleware(KeyGuard, options=options, public=public)
    if options.cors_origins:  # CORS is outside of KeyGuard, for a browser's preflight request carries no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", HEADER, *RATE_HEADERS],
        )
    if (local or options.allowed_hosts) and "*" not in options.allowed_hosts:
        app.add_middleware(HostGuard, allowed=options.allowed_hosts, local=local)
    if app.state.tracing is not None:
        app.add_middleware(TraceGuard, tracing=app.state.tracing, quiet=WATCH_PATHS)
    app.add_middleware(TurnAwayGuard)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestLog, metrics=app.state.exposition.http, quiet=WATCH_PATHS if options.quiet_probes else ())


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        app.state.lifecycle.draining = True
        if app.state.transfers is not None:
            await asyncio.to_thread(app.state.transfers.close)
        app.state.pools.close()
        for llm in app.state.engines.values():
            await asyncio.to_thread(llm.shutdown)
        if app.state.tracing is not None:
            await asyncio.to_thread(app.state.tracing.shutdown)
