"""Runs one conversation through an engine, whichever API it came by: plans, starts, follows, and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from fastapi import Request, Response
from pydantic import BaseModel

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.chat import Message
from tensorwright.runtime.api.chat_plan import ChatPlan, ChatSettings, ChatWish, plan_chat
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import ignored_fields
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
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine


class Answer(Protocol):
    """What an API makes of an engine's output. framed: as in EventStream."""

    framed: bool

    def whole(self, output: RequestOutput) -> BaseModel:
        """Returns the answer in one piece. A thread calls it."""

    def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        """Yields the events of the answer as its text comes."""


async def run_chat(
    request: Request,
    engine: TextEngine,
    params: SamplingParams,
    make_plan: Callable[[], ChatPlan],
    make_answer: Callable[[ChatPlan], Answer],
    stream: bool,
) -> Response:
    """Answers a conversation in one piece, or as a stream of events. Raises typed errors before any work starts.

    make_plan: plans the answer; a thread runs it, for rendering may take long.
    """
    hold_places(request, params.sequences)
    reserve_tokens(request, params)
    try:
        plan = await in_text_pool(request, make_plan)
        _note_unused(request, plan)
        answer = make_answer(plan)
        await bring_prefixes(request, engine.name, plan.params)
        try:
            handles = await start_all(request, engine.llm, lambda: [plan.prompt], plan.params)
        except InvalidRequestError as error:
            raise plan.explain(error) from error
        note_work(request, engine.name, handles)
        if stream:
            return EventStream(answer.events(handles), handles, answer.framed)
        [output] = await finish_all(handles, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return await write_answer(request, lambda: answer.whole(output))


def _note_unused(request: Request, plan: ChatPlan) -> None:
    """Notes the fields that this model cannot follow. Raises InvalidRequestError if the server is to refuse them."""
    if plan.unused and request.app.state.options.strict:
        raise InvalidRequestError(
            f"{plan.unused[0]}: this model's chat template has no variable for it, and knows no form of thinking"
        )
    ignored_fields(request).extend(plan.unused)


def plan_messages(engine: TextEngine, messages: Sequence[Message], wish: ChatWish, params: SamplingParams) -> ChatPlan:
    """Renders the messages with the model's chat template, and plans the answer. Rendering may take long. Raises
    InvalidRequestError, also if the model has no chat template.

    messages: in the form that LLM.chat takes.
    """
    llm = engine.llm
    if llm.chat_template is None and not llm.engine.chat_templates:
        raise InvalidRequestError(
            f"model {engine.name!r} has no chat template: use /v1/completions, or have the server started with "
            "--chat-template FILE"
        )
    settings = ChatSettings(llm.chat_template, llm.tool_parser, llm.reasoning_parser)
    return plan_chat(llm.engine, settings, messages, wish, params)
