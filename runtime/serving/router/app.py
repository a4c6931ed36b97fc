"""Makes the router's application: its own probes, and the endpoints of engines' servers (handlers.py).

The sockets are in server/process.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

import tensorwright
from tensorwright.runtime.serving.router.handing import RouterOptions, Routes
from tensorwright.runtime.serving.router.handlers import routes_of
from tensorwright.runtime.serving.router.upstream import Upstream
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.endpoints import GROUPS
from tensorwright.runtime.serving.server.errors import ApiError, install_handlers
from tensorwright.runtime.serving.server.exposition import Exposition
from tensorwright.runtime.serving.server.guards import WATCH_PATHS, BodyGuard, DrainGuard, HeadAsGet, TurnAwayGuard
from tensorwright.runtime.serving.server.hosts import HostGuard
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.pools import ServerPools
from tensorwright.runtime.serving.server.request_log import RequestLog
from tensorwright.runtime.serving.server.request_time import Lifecycle

router = APIRouter(tags=["router"])


def create_router_app(options: RouterOptions, server_options: ServerOptions, local: bool, most: int) -> FastAPI:
    """Returns the application. local: whether only this machine can reach it. most: the most requests at once."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Upstream(options.prefill_timeout, 2 * most) as upstream:  # a request asks two engines, in turn
            app.state.routes = Routes(options, upstream)
            app.state.exposition.http.show_counts(app.state.routes.counts.metrics)
            try:
                yield
            finally:
                app.state.lifecycle.draining = True
                app.state.pools.close()

    app = FastAPI(
        title="Tensorwright's router",
        version=tensorwright.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.engines = EngineRegistry({})
    app.state.options = server_options
    app.state.lifecycle = Lifecycle()
    app.state.pools = ServerPools(server_options)
    app.state.exposition = Exposition(app.state.engines, app.state.pools)
    app.state.body_memory = BodyMemory(server_options)
    app.state.exposition.http.show_bodies(app.state.body_memory)
    app.include_router(router)
    app.router.routes.extend(route for group in GROUPS for route in routes_of(group))
    install_handlers(app)
    app.add_middleware(DrainGuard, lifecycle=app.state.lifecycle, options=server_options, unguarded=WATCH_PATHS)
    app.add_middleware(BodyGuard, options=server_options, memory=app.state.body_memory)
    if (local or server_options.allowed_hosts) and "*" not in server_options.allowed_hosts:
        app.add_middleware(HostGuard, allowed=server_options.allowed_hosts, local=local)
    app.add_middleware(TurnAwayGuard)
    app.add_middleware(HeadAsGet)
    quiet = WATCH_PATHS if server_options.quiet_probes else ()
    app.add_middleware(RequestLog, metrics=app.state.exposition.http, quiet=quiet)
    return app


@router.get("/health")
async def health() -> dict[str, str]:
    """Answers as long as the process does."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Answers 200 while an engine that decodes can be reached and the router is not draining."""
    state = request.app.state
    if state.lifecycle.draining or not state.routes.ready():
        trouble = "draining" if state.lifecycle.draining else "no engine that decodes can be reached"
        return ApiError(503, trouble, "service_unavailable_error", None, "not_ready").response()
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Answers with the router's own metrics in Prometheus' text format."""
    state = request.app.state
    text = await state.pools.other.run(state.exposition.text, client=client_of(request.scope))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
