"""Counts, parses and validates a request's body. A large body is parsed in a thread, not in the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.errors import describe_media_type
from tensorwright.runtime.serving.server.json_shape import SMALL_BODY, check_shape
from tensorwright.runtime.serving.server.lenient_fields import HEADER, describe, leave_out
from tensorwright.runtime.serving.server.pools import WorkPool


class BodyRoute(APIRoute):
    """A route whose handler may take one body, a BaseModel. FastAPI would parse and validate a body of any size in the
    event loop; this route hands the finished model to FastAPI instead."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model: Any = self.body_field.field_info.annotation
        assert issubclass(model, BaseModel), "a body is one model"

        async def read_and_handle(request: Request) -> Response:
            # request.body() would keep the bytes until the request ends.
            raw = b"".join([piece async for piece in request.stream() if piece])
            if not raw:
                return await handle(_ReadRequest(request, None))  # FastAPI refuses a missing body.
            if not _is_json(request.headers.get("content-type", "")):
                return describe_media_type(request).response()
            body = await _read(request, raw, model)
            del raw
            response = await handle(_ReadRequest(request, body))
            if ignored := ignored_fields(request):
                response.headers[HEADER] = describe(ignored)
            return response

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body was read already, or that has no body. The bytes of the body are not kept."""

    def __init__(self, request: Request, body: BaseModel | None):
        super().__init__(request.scope, request.receive)
        self._read = body

    async def body(self) -> bytes:
        """Returns bytes that tell FastAPI whether there is a body."""
        return b"" if self._read is None else b"{}"

    async def json(self) -> BaseModel | None:
        return self._read


def ignored_fields(request: Request) -> list[str]:
    """Returns the list of the fields that do not count in this request. A handler may add to it."""
    if not hasattr(request.state, "ignored"):
        request.state.ignored = []
    names: list[str] = request.state.ignored
    return names


async def _read(request: Request, raw: bytes, model: type[BaseModel]) -> BaseModel:
    ignored = None if request.app.state.options.strict else ignored_fields(request)
    if len(raw) <= SMALL_BODY:
        return read_body(raw, model, ignored)
    pool: WorkPool = request.app.state.pools.text
    return await pool.run(read_body, raw, model, ignored, client=client_of(request.scope))


def read_body(raw: bytes, model: type[BaseModel], ignored: list[str] | None = None) -> BaseModel:
    """Returns the model that a body holds. Raises InvalidRequestError if the body is no JSON or too large a one, and
    RequestValidationError, with one error, if the JSON does not fit the model.

    ignored: gets the names of the fields that were left out; None leaves out nothing.
    """
    check_shape(raw)
    try:
        value = from_json(raw)
    except ValueError as error:
        raise InvalidRequestError(f"the body must be JSON of valid Unicode: {error}") from error
    if ignored is not None:
        ignored += leave_out(value, model)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    raise RequestValidationError([first])


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
