"""Writes errors in the form of the API that a client asked: OpenAI's, and Anthropic's where the path is Anthropic's.

Every error passes here, whether a handler, a guard or a stream reports it. Documented in
https://platform.openai.com/docs/guides/error-codes, https://platform.openai.com/docs/api-reference/responses-streaming
and https://docs.claude.com/en/api/errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ErrorFacts:
    """What an error tells a client. status: of HTTP. type, param, code: OpenAI's words for it. request_id: the value
    of the answer's header x-request-id."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None = None


@dataclass(frozen=True)
class ErrorForm:
    """The form of one API's errors. body: makes the JSON of an answer. event: makes the last event of a stream that
    fails, as it is sent."""

    body: Callable[[ErrorFacts], dict[str, Any]]
    event: Callable[[ErrorFacts], str]


def named_event(data: dict[str, Any]) -> str:
    """Returns an event whose name is the type of its data, as it is sent."""
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _openai_body(error: ErrorFacts) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def _responses_event(error: ErrorFacts) -> str:
    code = error.code or error.type
    return named_event({"type": "error", "code": code, "message": error.message, "param": error.param})


_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
"""Anthropic's word for a status. Other statuses below 500 are invalid requests, and others above are api_error."""


def _anthropic_body(error: ErrorFacts) -> dict[str, Any]:
    other = "invalid_request_error" if error.status < 500 else "api_error"
    details = {"type": _ANTHROPIC_TYPES.get(error.status, other), "message": error.message}
    return {"type": "error", "error": details, "request_id": error.request_id}


OPENAI = ErrorForm(_openai_body, lambda error: f"data: {json.dumps(_openai_body(error))}\n\n")
RESPONSES = ErrorForm(_openai_body, _responses_event)
ANTHROPIC = ErrorForm(_anthropic_body, lambda error: named_event(_anthropic_body(error)))
_BY_PREFIX = {"/v1/messages": ANTHROPIC, "/v1/responses": RESPONSES}


def form_of(path: str) -> ErrorForm:
    """Returns the form of the errors of a path."""
    return next(
        (form for prefix, form in _BY_PREFIX.items() if path == prefix or path.startswith(f"{prefix}/")), OPENAI
    )
