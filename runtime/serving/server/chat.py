"""Answers POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat_answer import ChatAnswer
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest, ChatFields
from tensorwright.runtime.serving.server.chat_run import plan_messages, run_chat
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completions import STREAMED
from tensorwright.runtime.serving.server.responses import ChatCompletion
from tensorwright.runtime.serving.server.sampling import chat_params
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["openai"], route_class=BodyRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation. With stream: true the answer is a series of events, each with the text that is new."""
    engine = find_engine(request, body.model)
    params = chat_params(body, client_defaults(request, body, engine.sampling_defaults))
    return await run_chat(
        request,
        engine,
        params,
        lambda: plan_of(engine, body, params),
        lambda plan: ChatAnswer(engine, body, plan),
        bool(body.stream),
    )


def plan_of(engine: TextEngine, body: ChatFields, params: SamplingParams) -> ChatPlan:
    """Returns the plan of `plan_messages` for a body. Raises InvalidRequestError."""
    return plan_messages(engine, [message.for_template() for message in body.messages], body.wish(), params)
