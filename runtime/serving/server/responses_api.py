"""Answers POST /v1/responses, and GET and DELETE /v1/responses/{response_id}: OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat_run import plan_messages, run_chat
from tensorwright.runtime.serving.server.clients import client_defaults, client_of
from tensorwright.runtime.serving.server.completions import STREAMED
from tensorwright.runtime.serving.server.handover import given_place
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, in_text_pool
from tensorwright.runtime.serving.server.response_store import ResponseStore, StoredResponse, owner_of
from tensorwright.runtime.serving.server.responses_answer import ResponsesAnswer, new_id, size_of
from tensorwright.runtime.serving.server.responses_form import DeletedResponse, ResponseObject
from tensorwright.runtime.serving.server.responses_items import messages_of
from tensorwright.runtime.serving.server.responses_request import ResponsesRequest
from tensorwright.runtime.serving.server.sampling import chat_params
from tensorwright.runtime.serving.server.text_engine import find_engine

router = APIRouter(tags=["openai"], route_class=BodyRoute)


@router.post("/v1/responses", response_model=ResponseObject, responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answers a conversation, or the next turn of a stored one. With stream: true the answer is a series of events."""
    engine = find_engine(request, body.model)
    chat = body.for_chat()
    params = chat_params(chat, client_defaults(request, chat, engine.sampling_defaults))
    store: ResponseStore = request.app.state.responses
    owner, identity = owner_of(request), new_id("resp", given_place(request))
    if body.store and not store.keeps:
        raise InvalidRequestError("store must be false or left out: this server stores no responses")
    before = None if body.previous_response_id is None else store.find(owner, body.previous_response_id)
    most = request.app.state.options.max_body_size
    try:
        messages, size = await in_text_pool(request, lambda: conversation_of(body, before, most))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    asked = with_instructions(body, messages)
    keep: Callable[[StoredResponse], bool] | None = None
    if body.store is not False and store.keeps:
        keep = partial(store.put, owner)
    pool = request.app.state.pools.answers
    in_thread = partial(pool.run, client=client_of(request.scope))
    return await run_chat(
        request,
        engine,
        params,
        lambda: plan_messages(engine, asked, body.wish(), params),
        lambda plan: ResponsesAnswer(engine, body, plan, messages, size, keep, in_thread, identity),
        bool(body.stream),
    )


def with_instructions(body: ResponsesRequest, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages of a conversation behind the instructions of a request."""
    return messages if body.instructions is None else [{"role": "system", "content": body.instructions}, *messages]


def conversation_of(
    body: ResponsesRequest, before: StoredResponse | None, most: int
) -> tuple[list[dict[str, Any]], int]:
    """Returns the messages of the whole conversation, and their bytes. A conversation that goes on from a stored one
    has the bounds of one that is sent whole. Raises InvalidRequestError. most: the most bytes."""
    new = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else messages_of(body.input)
    if before is None:
        return new, size_of(new)
    messages, size = [*before.messages, *new], before.messages_size + size_of(new)
    for what, bound, came in (("messages", bounds.MESSAGES, len(messages)), ("bytes", most, size)):
        if came > bound:
            raise InvalidRequestError(
                f"previous_response_id: the conversation must have at most {bound} {what}, got {came} with the input"
            )
    return messages, size


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def read_response(response_id: str, request: Request, stream: Literal["false"] = "false") -> Response:
    """Returns a stored response of this key. stream: a response that is complete does not stream again."""
    store: ResponseStore = request.app.state.responses
    return Response(store.find(owner_of(request), response_id).answer, media_type="application/json")


@router.delete("/v1/responses/{response_id}", response_model=DeletedResponse)
async def delete_response(response_id: str, request: Request) -> DeletedResponse:
    """Forgets a stored response of this key. Conversations that went on from it stay."""
    store: ResponseStore = request.app.state.responses
    store.delete(owner_of(request), response_id)
    return DeletedResponse(id=response_id)
