"""Every error leaves the server in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tensorwright.errors import (
    ClientShareError,
    EngineStoppedError,
    InvalidOptionError,
    InvalidRequestError,
    NumericalError,
    PromptTooLongError,
    QueueFullError,
    RequestAbortedError,
    TemporarilyUnavailableError,
    TensorwrightError,
    UnknownModelError,
)

log = logging.getLogger(__name__)
STOPPED = "this model's engine stopped; the server's log says why"  # that may name files
SHOWN_PLACE = 100  # characters of a field's name, or of a header, that a client is told back


@dataclass(frozen=True)
class ApiError:
    """An error as a client sees it. message: may tell of the request, never of the server's inside."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Also what a stream sends as its last event when it fails."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, dict(self.headers))


# The first class that fits: subclasses stand before their bases.
_KNOWN: tuple[tuple[type[TensorwrightError], int, str, str | None], ...] = (
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequestError, 400, "invalid_request_error", None),
    (InvalidOptionError, 400, "invalid_request_error", None),
    (ClientShareError, 429, "rate_limit_error", "too_many_requests"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (TemporarilyUnavailableError, 503, "service_unavailable_error", "temporarily_unavailable"),
    (EngineStoppedError, 503, "service_unavailable_error", "engine_stopped"),  # told as STOPPED
    (RequestAbortedError, 503, "service_unavailable_error", "request_aborted"),
    (NumericalError, 500, "server_error", "NumericalError"),
)


def is_foreseen(error: BaseException) -> bool:
    """Whether it is of the request or of the load, so that the client is told of it. All else may name files and
    devices of this machine: the log has it. Why an engine stopped was logged when it did."""
    return any(isinstance(error, kind) for kind, *_ in _KNOWN)


def describe_error(error: BaseException, retry_after: int = 1) -> ApiError:
    """How a client is told of an error. What is not foreseen shows its class at most."""
    for kind, status, name, code in _KNOWN:
        if isinstance(error, kind):
            param = "model" if kind is UnknownModelError else None
            headers = {"retry-after": str(retry_after)} if status in (429, 503) else {}
            message = STOPPED if kind is EngineStoppedError else str(error)
            return ApiError(status, message, name, param, code, headers)
    name = type(error).__name__ if isinstance(error, TensorwrightError) else "internal_error"
    return ApiError(500, "the server failed; its log says why", "server_error", None, name)


def describe_invalid(error: RequestValidationError) -> ApiError:
    """The first of what a body or a path has wrong, with its place; never what it held."""
    first = error.errors()[0]
    where = [str(part)[:SHOWN_PLACE] for part in first["loc"] if part not in ("body", "path", "query")]
    place = [part for part in where if not part.startswith("<")]  # a tag, not a field
    param = ".".join(place) or None
    return ApiError(400, f"{param or 'the request'}: {first['msg']}", param=param)


def describe_media_type(request: Request) -> ApiError:
    """Of a body that was not read, since it does not say that it is JSON: then any web page could send it unasked."""
    came = (request.headers.get("content-type") or "none")[:SHOWN_PLACE]
    return ApiError(415, f'a body must come with the header "Content-Type: application/json", got {came}')


def _describe_http(error: HTTPException) -> ApiError:
    if error.status_code == 404 and error.detail == HTTPStatus(404).phrase:
        return ApiError(404, "there is nothing at this path; see /openapi.json", code="not_found")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ApiError(error.status_code, str(error.detail), kind, headers=error.headers or {})


def install_handlers(app: FastAPI) -> None:
    """Exceptions of handlers and of the framework. Those that nobody foresaw end in middleware.RequestLog."""

    async def on_ours(request: Request, error: Exception) -> JSONResponse:
        if not is_foreseen(error):
            log.error("a request failed", exc_info=error, extra={"facts": {"request_id": request.state.request_id}})
        return describe_error(error, request.app.state.options.retry_after).response()

    async def on_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return describe_invalid(error).response()

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return _describe_http(error).response()

    app.add_exception_handler(TensorwrightError, on_ours)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
