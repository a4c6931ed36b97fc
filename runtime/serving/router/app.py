"""Makes the router's application: OpenAI's routes, each handed on to engines. The sockets are in server/process.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

import tensorwright
from tensorwright.runtime.serving.router.handing import RouterOptions, Routes
from tensorwright.runtime.serving.router.prompt_text import PromptText, read_prompt
from tensorwright.runtime.serving.router.relay import Relay
from tensorwright.runtime.serving.router.upstream import Unreachable, Upstream
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.errors import ApiError, install_handlers
from tensorwright.runtime.serving.server.exposition import Exposition
from tensorwright.runtime.serving.server.guards import WATCH_PATHS, BodyGuard, DrainGuard, HeadAsGet, TurnAwayGuard
from tensorwright.runtime.serving.server.hosts import HostGuard
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.pools import ServerPools
from tensorwright.runtime.serving.server.request_log import RequestLog
from tensorwright.runtime.serving.server.request_time import Lifecycle
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, unless_gone

router = APIRouter(tags=["router"])
GENERATING = ("/v1/completions", "/v1/chat/completions")
OTHERS = {"/v1/models": "GET", "/v1/models/{model:path}": "GET", "/tokenize": "POST", "/detokenize": "POST"}


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


async def generate(request: Request) -> Response:
    """Hands a request for completions on: its prompt to an engine that prefills, then all of it to one that decodes."""
    body, pool = await request.body(), request.app.state.pools.text
    prompt: PromptText = await pool.run(partial(read_prompt, body), client=client_of(request.scope))
    return await _hand_over(request, body, prompt)


async def pass_on(request: Request) -> Response:
    """Hands any other request on to an engine that decodes."""
    return await _hand_over(request, await request.body(), None)


async def _hand_over(request: Request, body: bytes, prompt: PromptText | None) -> Response:
    routes: Routes = request.app.state.routes
    path, headers = request.url.path, request.headers

    async def ask() -> Relay:
        handover = None if prompt is None else await routes.prefill(path, headers, body, prompt)
        request.scope["state"]["facts"]["prefilled"] = handover is not None
        return Relay(*await routes.open(request.method, path, headers, body, handover))

    asking = asyncio.ensure_future(ask())
    try:
        return await unless_gone(asking, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    except Unreachable:
        message = "no engine that decodes can be reached; try again later"
        after = {"retry-after": str(request.app.state.options.retry_after)}
        return ApiError(503, message, "service_unavailable_error", None, "no_engine", after).response()
    finally:
        request.state.held_body.close()


for _path in GENERATING:
    router.add_api_route(_path, generate, methods=["POST"], response_model=None)
for _path, _method in OTHERS.items():
    router.add_api_route(_path, pass_on, methods=[_method], response_model=None)
