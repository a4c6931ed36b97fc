"""Logs one line of JSON per request, with its id, and answers requests that raised an unforeseen exception."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.errors import describe_error
from tensorwright.runtime.serving.server.exposition import HttpMetrics
from tensorwright.runtime.serving.server.rate_limits import charge_prompts

logger = logging.getLogger("tensorwright.server")
_GIVEN_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")  # An id in this form may stand in a log and in a header.


def note_work(request: Request, model: str, handles: Sequence[RequestHandle]) -> None:
    """Notes the engine's requests that serve this request. The request's log line then has the model, and the ids and
    token counts of the engine's requests, however they end."""
    request.state.facts = {**getattr(request.state, "facts", {}), "model": model}
    request.state.handles = handles
    charge_prompts(request.scope, handles)


def _work(handles: Sequence[RequestHandle]) -> dict[str, Any]:
    outputs = [handle.so_far() for handle in handles]
    completions = [completion for output in outputs for completion in output.outputs]
    return {
        "engine_requests": [handle.request_id for handle in handles],
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "completion_tokens": sum(len(completion.token_ids) for completion in completions),
        "finish_reasons": [completion.finish_reason for completion in completions],
    }


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, logger, message, `facts` of the record, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str) -> None:
    """Sends all logs, also those of uvicorn, to standard error as lines of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn.error", "asyncio"):  # The server's own lines replace their "info".
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))


class RequestLog:
    """The outermost layer: it gives each request its id, measures its time, and answers unforeseen exceptions.

    quiet: the paths whose requests leave no line when they are answered with 200.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, quiet: Collection[str] = ()):
        self._app = app
        self._metrics = metrics
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        scope["state"] = {**scope.get("state", {}), "request_id": identity, "facts": {}, "handles": ()}
        status, begin = 0, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            with self._metrics.in_flight.track_inprogress():
                await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("a request failed", extra={"facts": {"request_id": identity}})
            for handle in scope["state"]["handles"]:
                handle.abort()  # The task that would have waited for the handle has failed.
            if status:
                raise  # This cuts the connection, so that the client does not take a part for the whole answer.
            await describe_error(error).response()(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begin
            self._metrics.observe(scope, status, seconds)
            if status != 200 or scope["path"] not in self._quiet:
                _log(scope, status, seconds)


def _log(scope: Scope, status: int, seconds: float) -> None:
    client, state = scope.get("client"), scope["state"]
    line = {
        "request_id": state["request_id"],
        "method": scope["method"],
        "path": scope["path"],
        "status": status or None,  # None means that the client left before the answer began.
        "seconds": round(seconds, 6),
        "client": client[0] if client else None,
        **state["facts"],
        **(_work(state["handles"]) if state["handles"] else {}),
    }
    logger.info("request", extra={"facts": line})
