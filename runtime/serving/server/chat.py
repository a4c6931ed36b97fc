"""Answers POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.chat_plan import ChatPlan, ChatSettings, plan_chat
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute, ignored_fields
from tensorwright.runtime.serving.server.chat_answer import ChatAnswer
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest, ChatFields
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completions import STREAMED
from tensorwright.runtime.serving.server.event_stream import EventStream
from tensorwright.runtime.serving.server.handover import bring_prefixes
from tensorwright.runtime.serving.server.rate_limits import reserve_tokens
from tensorwright.runtime.serving.server.request_log import note_work
from tensorwright.runtime.serving.server.requests import (
    CLIENT_CLOSED,
    ClientGone,
    finish_all,
    in_text_pool,
    start_all,
    write_answer,
)
from tensorwright.runtime.serving.server.responses import ChatCompletion
from tensorwright.runtime.serving.server.sampling import chat_params
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["openai"], route_class=BodyRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation. With stream: true the answer is a series of events, each with the text that is new."""
    engine = find_engine(request, body.model)
    params = chat_params(body, client_defaults(request, body, engine.sampling_defaults))
    hold_places(request, params.sequences)
    reserve_tokens(request, params)
    try:
        plan = await in_text_pool(request, lambda: plan_of(engine, body, params))
        note_unused(request, plan)
        answer = ChatAnswer(engine, body, plan)
        await bring_prefixes(request, engine.name, plan.params)
        try:
            handles = await start_all(request, engine.llm, lambda: [plan.prompt], plan.params)
        except InvalidRequestError as error:
            raise plan.explain(error) from error
        note_work(request, engine.name, handles)
        if body.stream:
            return EventStream(answer.events(handles), handles)
        [output] = await finish_all(handles, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return await write_answer(request, lambda: answer.whole(output))


def note_unused(request: Request, plan: ChatPlan) -> None:
    """Notes the fields that this model cannot follow. Raises InvalidRequestError if the server is to refuse them."""
    if plan.unused and request.app.state.options.strict:
        raise InvalidRequestError(
            f"{plan.unused[0]}: this model's chat template has no variable for it, and knows no form of thinking"
        )
    ignored_fields(request).extend(plan.unused)


def plan_of(engine: TextEngine, body: ChatFields, params: SamplingParams) -> ChatPlan:
    """Renders the messages with the model's chat template, and plans the answer. Rendering may take long. Raises
    InvalidRequestError, also if the model has no chat template."""
    llm = engine.llm
    if llm.chat_template is None and not llm.engine.chat_templates:
        raise InvalidRequestError(
            f"model {engine.name!r} has no chat template: use /v1/completions, or have the server started with "
            "--chat-template FILE"
        )
    settings = ChatSettings(llm.chat_template, llm.tool_parser, llm.reasoning_parser)
    messages = [message.for_template() for message in body.messages]
    return plan_chat(llm.engine, settings, messages, body.wish(), params)
