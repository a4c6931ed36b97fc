"""Makes the application of engines, options, routers and guards. The sockets are in process.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

import tensorwright
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.serving.server import chat, completions, health, models, tokenization
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.errors import install_handlers
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
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.pools import ServerPools
from tensorwright.runtime.serving.server.request_log import RequestLog
from tensorwright.runtime.serving.server.request_time import Lifecycle
from tensorwright.runtime.serving.server.shares import ShareGuard, make_shares

OPENAI_ROUTERS = (completions.router, chat.router, models.router, tokenization.router)
"""The routes of OpenAI's API, each group in its own file."""


def create_app(
    engines: Mapping[str, LLM],
    options: ServerOptions | None = None,
    routers: Iterable[APIRouter] | None = None,
    local: bool = False,
) -> FastAPI:
    """Returns the server's application. Handlers find `engines` (EngineRegistry), `options` and `pools` (ServerPools)
    in `request.app.state`.

    engines: the engines by the names that clients call them; the application shuts them down when it ends.
    routers: the routes; None means those of OpenAI's API.
    local: whether only this machine can reach the server; the Host header must then name this machine.
    """
    if not engines:
        raise InvalidOptionError("create_app: engines must name at least one engine")
    options = ServerOptions() if options is None else options
    app = FastAPI(
        title="Tensorwright", version=tensorwright.__version__, docs_url=None, redoc_url=None, lifespan=_lifespan
    )
    app.state.engines = EngineRegistry(engines)
    app.state.options = options
    app.state.lifecycle = Lifecycle()
    app.state.pools = ServerPools(options)
    app.state.exposition = Exposition(app.state.engines, app.state.pools)
    app.state.shares = make_shares(options, engines.values())
    app.state.exposition.http.show_shares(app.state.shares)
    app.state.body_memory = BodyMemory(options)
    app.state.exposition.http.show_bodies(app.state.body_memory)
    app.include_router(health.router)
    for router in OPENAI_ROUTERS if routers is None else routers:
        app.include_router(router)
    install_handlers(app)
    _add_guards(app, options, local)
    return app


def _add_guards(app: FastAPI, options: ServerOptions, local: bool) -> None:
    """Adds the guards from the innermost to the outermost."""
    app.add_middleware(TimeGuard, options=options)
    app.add_middleware(DrainGuard, lifecycle=app.state.lifecycle, options=options, unguarded=WATCH_PATHS)
    app.add_middleware(BodyGuard, options=options, memory=app.state.body_memory)
    app.add_middleware(ShareGuard, shares=app.state.shares, options=options, unguarded=WATCH_PATHS)
    if options.api_keys:
        app.add_middleware(KeyGuard, options=options)
    if options.cors_origins:  # CORS is outside of KeyGuard, for a browser's preflight request carries no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    if (local or options.allowed_hosts) and "*" not in options.allowed_hosts:
        app.add_middleware(HostGuard, allowed=options.allowed_hosts, local=local)
    app.add_middleware(TurnAwayGuard)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestLog, metrics=app.state.exposition.http, quiet=WATCH_PATHS if options.quiet_probes else ())


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        app.state.lifecycle.draining = True
        app.state.pools.close()
        for llm in app.state.engines.values():
            await asyncio.to_thread(llm.shutdown)
