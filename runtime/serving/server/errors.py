"""Gives every error that leaves the server its status and OpenAI's words; error_forms.py writes them for the path."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from tensorwright.errors import (
    AdapterError,
    ClientShareError,
    DeadlineError,
    EngineRestartedError,
    EngineStoppedError,
    InvalidOptionError,
    InvalidRequestError,
    NumericalError,
    PromptTooLongError,
    QueueFullError,
    RateLimitError,
    ReplicaLostError,
    RequestAbortedError,
    TemporarilyUnavailableError,
    TensorwrightError,
    UnknownModelError,
    UnknownPrefixError,
    UnknownResponseError,
)
from tensorwright.runtime.serving.server.error_forms import OPENAI, ErrorFacts, form_of

log = logging.getLogger(__name__)
STOPPED = "this model's engine stopped; the server's log says why"  # The engine's own message may name files.
SHOWN_PLACE = 100  # the most characters of a field's name or of a header that an answer repeats


@dataclass(frozen=True)
class ApiError:
    """An error as a client sees it. message: the text, which may describe the request but never the server's inside."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Returns the JSON body of the answer in OpenAI's form."""
        return OPENAI.body(self._facts())

    def event(self, scope: Scope) -> str:
        """Returns the last event of a stream that fails, in the form of the request's path."""
        return form_of(scope["path"]).event(self._facts(scope))

    def response(self) -> ErrorResponse:
        """Returns the answer, which is written in the form of the request's path when it is sent."""
        return ErrorResponse(self)

    def _facts(self, scope: Scope | None = None) -> ErrorFacts:
        request_id = None if scope is None else scope.get("state", {}).get("request_id")
        return ErrorFacts(self.status, self.message, self.type, self.param, self.code, request_id)


class ErrorResponse(JSONResponse):
    """The answer to a request that failed. Guards answer before the request has a handler, so the form of the body
    follows from the path alone."""

    def __init__(self, error: ApiError):
        super().__init__(error.body(), error.status, dict(error.headers))
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = form_of(scope["path"]).body(self._error._facts(scope))
        await JSONResponse(body, self.status_code, self._own_headers())(scope, receive, send)

    def _own_headers(self) -> dict[str, str]:
        """Returns the headers without those that depend on the body; a route may have added some."""
        return {name: value for name, value in self.headers.items() if name not in ("content-length", "content-type")}


# The first class that fits is taken, so subclasses stand before their bases.
_KNOWN: tuple[tuple[type[TensorwrightError], int, str, str | None], ...] = (
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (UnknownPrefixError, 404, "invalid_request_error", "prefix_not_found"),
    (UnknownResponseError, 404, "invalid_request_error", "response_not_found"),
    (PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequestError, 400, "invalid_request_error", None),
    (AdapterError, 400, "invalid_request_error", None),
    (InvalidOptionError, 400, "invalid_request_error", None),
    (ClientShareError, 429, "rate_limit_error", "too_many_requests"),
    (RateLimitError, 429, "tokens", "rate_limit_exceeded"),  # as OpenAI names them
    (DeadlineError, 504, "timeout_error", "deadline_exceeded"),
    (EngineRestartedError, 503, "service_unavailable_error", "engine_restarted"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (TemporarilyUnavailableError, 503, "service_unavailable_error", "temporarily_unavailable"),
    (EngineStoppedError, 503, "service_unavailable_error", "engine_stopped"),  # The client reads STOPPED.
    (ReplicaLostError, 503, "service_unavailable_error", "replica_lost"),
    (RequestAbortedError, 503, "service_unavailable_error", "request_aborted"),
    (NumericalError, 500, "server_error", "NumericalError"),
)


def is_foreseen(error: BaseException) -> bool:
    """Returns whether an error comes from the request or from the load, so that the client may read its message. Every
    other message may name files and devices of this machine and goes to the log. The reason why an engine stopped is
    in the log already."""
    return any(isinstance(error, kind) for kind, *_ in _KNOWN)


def describe_error(error: BaseException, retry_after: int = 1) -> ApiError:
    """Returns the form of an error that a client sees. An unforeseen error shows its class at most."""
    for kind, status, name, code in _KNOWN:
        if isinstance(error, kind):
            param = "model" if kind is UnknownModelError else None
            wait = math.ceil(error.retry_after) if isinstance(error, RateLimitError) else retry_after
            headers = {"retry-after": str(wait)} if status in (429, 503) else {}
            message = STOPPED if kind is EngineStoppedError else str(error)
            return ApiError(status, message, name, param, code, headers)
    name = type(error).__name__ if isinstance(error, TensorwrightError) else "internal_error"
    return ApiError(500, "the server failed; its log says why", "server_error", None, name)


def describe_invalid(error: RequestValidationError) -> ApiError:
    """Describes the first mistake in a body or a path, with its place, but never with the value."""
    first = error.errors()[0]
    where = [str(part)[:SHOWN_PLACE] for part in first["loc"] if part not in ("body", "path", "query")]
    place = [part for part in where if not part.startswith("<")]  # Text in <> is a tag, not a field.
    param = ".".join(place) or None
    return ApiError(400, f"{param or 'the request'}: {first['msg']}", param=param)


def describe_media_type(request: Request) -> ApiError:
    """Describes a body that was not read because its Content-Type is not JSON. Browsers let any web page send such a
    body unasked."""
    came = (request.headers.get("content-type") or "none")[:SHOWN_PLACE]
    return ApiError(415, f'a body must come with the header "Content-Type: application/json", got {came}')


def _describe_http(error: HTTPException) -> ApiError:
    if error.status_code == 404 and error.detail == HTTPStatus(404).phrase:
        return ApiError(404, "there is nothing at this path; see /openapi.json", code="not_found")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ApiError(error.status_code, str(error.detail), kind, headers=error.headers or {})


def install_handlers(app: FastAPI) -> None:
    """Adds handlers for the exceptions of routes and of the framework. request_log.RequestLog answers all others."""

    async def on_ours(request: Request, error: Exception) -> ErrorResponse:
        if not is_foreseen(error):
            log.error("a request failed", exc_info=error, extra={"facts": {"request_id": request.state.request_id}})
        return describe_error(error, request.app.state.options.retry_after).response()

    async def on_invalid(request: Request, error: Exception) -> ErrorResponse:
        assert isinstance(error, RequestValidationError)
        return describe_invalid(error).response()

    async def on_http(request: Request, error: Exception) -> ErrorResponse:
        assert isinstance(error, HTTPException)
        return _describe_http(error).response()

    app.add_exception_handler(TensorwrightError, on_ours)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
