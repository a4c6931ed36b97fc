"""Answers the probes that watch a server: /health, /ready and /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import State

from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.errors import ApiError

router = APIRouter(tags=["operation"])


@router.get("/health", responses={503: {"description": "An engine hangs in a step, or is being replaced."}})
async def health(request: Request) -> Response:
    """Answers 200 as long as the process does, but 503 while an engine hangs in a step or another one takes its place
    (--watchdog)."""
    troubles = "; ".join(_engine_troubles(request.app.state))
    if troubles:
        return ApiError(503, troubles, "service_unavailable_error", None, "engine_in_trouble").response()
    return JSONResponse({"status": "ok"})


@router.get(
    "/ready",
    responses={503: {"description": "Draining, or an engine stopped or is stalled, or a pool of threads is stuck."}},
)
async def ready(request: Request) -> Response:
    """Answers 200 while every engine runs and ends its steps, no pool of threads is stuck, and the server is not
    draining."""
    state = request.app.state
    troubles = "; ".join(_troubles(state))
    if troubles:
        return ApiError(503, troubles, "service_unavailable_error", None, "not_ready").response()
    return JSONResponse({"status": "ready", "models": list(state.engines)})


def _engine_troubles(state: State) -> Iterator[str]:
    for name, llm in state.engines.items():
        if trouble := llm.trouble:
            yield f"{name}: {trouble}"


def _troubles(state: State) -> Iterator[str]:
    """Yields every reason why this server is not ready."""
    if state.lifecycle.draining:
        yield "draining"
    yield from _engine_troubles(state)
    if stopped := [name for name, llm in state.engines.items() if not llm.running]:
        yield f"stopped engines: {', '.join(stopped)}"
    limit = state.options.max_stall_seconds
    if stalled := [name for name, llm in state.engines.items() if llm.running and llm.stalled_seconds > limit]:
        yield f"stalled engines: {', '.join(stalled)}"
    if stuck := state.pools.stuck():
        yield f"stuck pools of threads: {', '.join(stuck)}"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Answers with all metrics in Prometheus' text format."""
    state = request.app.state
    # A thread reads the metrics, for reading may wait for an engine's step.
    text = await state.pools.other.run(state.exposition.text, client=client_of(request.scope))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
