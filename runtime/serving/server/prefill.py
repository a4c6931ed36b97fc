"""Answers POST /prefill/completions, /chat/completions, /responses and /messages: computes prompts for engines that
decode.

Only routers may ask. The bodies are those of the paths without /prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.pinned_prefixes import computing_prefix
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat import plan_of
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.chat_run import plan_messages
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.completions import check_places
from tensorwright.runtime.serving.server.handover import PROOF, admit_router
from tensorwright.runtime.serving.server.messages_request import MessagesRequest
from tensorwright.runtime.serving.server.rate_limits import reserve_tokens
from tensorwright.runtime.serving.server.request_log import note_work
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, finish_all, start_all
from tensorwright.runtime.serving.server.responses_api import conversation_of, with_instructions
from tensorwright.runtime.serving.server.responses_request import ResponsesRequest
from tensorwright.runtime.serving.server.sampling import chat_params, completion_params
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["prefill"], route_class=BodyRoute)


class Prefilled(BaseModel):
    """Where the prefixes are: a port of this server, and a ticket for each prompt. prompt_tokens, cached_tokens: of all
    prompts together."""

    transfer_port: int
    tickets: list[str]
    prompt_tokens: int
    cached_tokens: int


@router.post("/prefill/completions", response_model=Prefilled)
async def prefill_completion(body: CompletionRequest, request: Request) -> Any:
    """Computes the prompts of a completion."""
    admit_router(request, request.headers.get(PROOF, ""))
    engine = find_engine(request, body.model)
    params = completion_params(body, client_defaults(request, body, engine.sampling_defaults))
    prompts = body.prompts
    check_places(engine.llm, len(prompts))
    return await _prefill(request, engine, lambda: prompts, len(prompts), params)


@router.post("/prefill/chat/completions", response_model=Prefilled)
async def prefill_chat(body: ChatCompletionRequest, request: Request) -> Any:
    """Computes the prompt of a conversation."""
    admit_router(request, request.headers.get(PROOF, ""))
    engine = find_engine(request, body.model)
    params = chat_params(body, client_defaults(request, body, engine.sampling_defaults))
    return await _prefill(request, engine, lambda: [plan_of(engine, body, params).prompt], 1, params)


@router.post("/prefill/responses", response_model=Prefilled)
async def prefill_response(body: ResponsesRequest, request: Request) -> Any:
    """Computes the prompt of a conversation of items, which goes on from no stored response."""
    admit_router(request, request.headers.get(PROOF, ""))
    if body.previous_response_id is not None:
        raise InvalidRequestError("previous_response_id must be left out: the engine that answers has the conversation")
    engine, most = find_engine(request, body.model), request.app.state.options.max_body_size
    chat = body.for_chat()
    params = chat_params(chat, client_defaults(request, chat, engine.sampling_defaults))

    def prompts() -> list[Prompt]:
        asked = with_instructions(body, conversation_of(body, None, most)[0])
        return [plan_messages(engine, asked, body.wish(), params).prompt]

    return await _prefill(request, engine, prompts, 1, params)


@router.post("/prefill/messages", response_model=Prefilled)
async def prefill_message(body: MessagesRequest, request: Request) -> Any:
    """Computes the prompt of a conversation of blocks."""
    admit_router(request, request.headers.get(PROOF, ""))
    engine = find_engine(request, body.model)
    chat = body.for_chat()
    params = chat_params(chat, client_defaults(request, chat, engine.sampling_defaults))

    def prompts() -> list[Prompt]:
        return [plan_messages(engine, body.for_template(), body.wish(), params).prompt]

    return await _prefill(request, engine, prompts, 1, params)


async def _prefill(
    request: Request,
    engine: TextEngine,
    make_prompts: Callable[[], Sequence[Prompt]],
    count: int,
    params: SamplingParams,
) -> Any:
    hold_places(request, count)
    reserve_tokens(request, computing_prefix(params), count)
    transfers = request.app.state.transfers
    try:
        handles = await start_all(request, engine.llm, make_prompts, computing_prefix(params))
        note_work(request, engine.name, handles)
        outputs = await finish_all(handles, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return Prefilled(
        transfer_port=transfers.server.port,
        tickets=[transfers.promise(engine.name, output, params.cache_salt) for output in outputs],
        prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        cached_tokens=sum(output.metrics.cached_tokens for output in outputs),
    )
