"""For those who watch a server: is it alive, does it take requests, what does it do."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from tensorwright.runtime.server.errors import ApiError

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Answers as long as the process does."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Draining, or an engine stopped."}})
async def ready(request: Request) -> Response:
    """200 while every engine runs and the server is not draining."""
    state = request.app.state
    stopped = [name for name, llm in state.engines.items() if not llm.running]
    if state.lifecycle.draining or stopped:
        why = "draining" if state.lifecycle.draining else f"stopped engines: {', '.join(stopped)}"
        return ApiError(503, why, "service_unavailable_error", None, "not_ready").response()
    return JSONResponse({"status": "ready", "models": list(state.engines)})


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:  # not async: reading may wait for an engine's step
    """In Prometheus' text format."""
    return Response(request.app.state.exposition.text(), media_type=CONTENT_TYPE_LATEST)
