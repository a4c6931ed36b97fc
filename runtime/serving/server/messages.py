"""Answers POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tensorwright.runtime.requests.prompts import encode_whole
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat_run import plan_messages, run_chat
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completions import STREAMED
from tensorwright.runtime.serving.server.messages_answer import MessageObject, MessagesAnswer, TokenCount
from tensorwright.runtime.serving.server.messages_request import CountRequest, MessagesRequest
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, in_text_pool
from tensorwright.runtime.serving.server.sampling import chat_params
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["anthropic"], route_class=BodyRoute)


@router.post("/v1/messages", response_model=MessageObject, responses=STREAMED)
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """Answers a conversation. With stream: true the answer is a series of events."""
    engine = find_engine(request, body.model)
    chat = body.for_chat()
    params = chat_params(chat, client_defaults(request, chat, engine.sampling_defaults))
    return await run_chat(
        request,
        engine,
        params,
        lambda: plan_messages(engine, body.for_template(), body.wish(), params),
        lambda plan: MessagesAnswer(engine, plan),
        bool(body.stream),
    )


@router.post("/v1/messages/count_tokens", response_model=TokenCount)
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """Counts the tokens of the prompt that the same fields make at /v1/messages. Nothing is computed."""
    engine = find_engine(request, body.model)
    try:
        counted = await in_text_pool(request, lambda: _count(engine, body))
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return Response(counted.model_dump_json(), media_type="application/json")


def _count(engine: TextEngine, body: CountRequest) -> TokenCount:
    prompt = plan_messages(engine, body.for_template(), body.wish(), SamplingParams()).prompt
    return TokenCount(input_tokens=len(encode_whole(prompt.text, engine.llm.engine, add_special_tokens=False)))
