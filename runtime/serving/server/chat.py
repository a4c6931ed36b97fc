"""Answers POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.chat import chat_prompt
from tensorwright.runtime.requests.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.requests.prompts import RenderedPrompt
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest, ChatFields
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completions import STREAMED
from tensorwright.runtime.serving.server.event_stream import EventStream
from tensorwright.runtime.serving.server.logprobs import chat_logprobs
from tensorwright.runtime.serving.server.request_log import note_work
from tensorwright.runtime.serving.server.requests import (
    CLIENT_CLOSED,
    ClientGone,
    count_usage,
    finish_all,
    follow_all,
    start_all,
    write_answer,
)
from tensorwright.runtime.serving.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from tensorwright.runtime.serving.server.sampling import chat_params
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["openai"], route_class=BodyRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answers a conversation. With stream: true the answer is a series of events, each with the text that is new."""
    engine = find_engine(request, body.model)
    params = chat_params(body, client_defaults(request, body, engine.llm.sampling_defaults))
    hold_places(request, params.sequences)
    answer = ChatAnswer(engine, body)
    try:
        handles = await start_all(request, engine.llm, lambda: [prompt_of(engine, body)], params)
        note_work(request, engine.name, handles)
        if body.stream:
            return EventStream(answer.events(handles), handles)
        [output] = await finish_all(handles, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return await write_answer(request, lambda: answer.whole(output))


def prompt_of(engine: TextEngine, body: ChatFields) -> RenderedPrompt:
    """Renders the messages with the model's chat template. Rendering may take long. Raises InvalidRequestError if the
    model has no chat template."""
    llm = engine.llm
    if llm.chat_template is None and not llm.engine.chat_templates:
        raise InvalidRequestError(
            f"model {engine.name!r} has no chat template: use /v1/completions, or have the server started with "
            "--chat-template FILE"
        )
    messages = [message.for_template() for message in body.messages]
    variables = body.chat_template_kwargs or {}
    return chat_prompt(llm.engine, messages, llm.chat_template, body.add_generation_prompt, variables)


class ChatAnswer:
    """The answer to one request, in one piece or as a stream of events."""

    def __init__(self, engine: TextEngine, body: ChatCompletionRequest):
        self._engine = engine
        self._body = body
        self._begun: set[int] = set()  # the indices of choices
        self._ended: set[int] = set()  # the indices of choices
        self._head: dict[str, Any] = {
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": engine.name,
            "system_fingerprint": engine.fingerprint,
        }

    def whole(self, output: RequestOutput) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=choice.index,
                message=ChatMessage(content=choice.text),
                logprobs=self._logprobs(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in output.outputs
        ]
        return ChatCompletion(**self._head, choices=choices, usage=count_usage([output]))

    async def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        counts = self._body.stream_options is not None and self._body.stream_options.include_usage
        nothing_yet: dict[str, Any] = {"usage": None} if counts else {}
        async for _, output in follow_all(handles):  # `output` holds only what is new.
            for choice in output.outputs:
                for piece in self._pieces(choice):
                    chunk = ChatChunk(**self._head, choices=[piece], **nothing_yet)
                    yield chunk.model_dump_json(exclude_unset=True)
        if counts:
            usage = count_usage([handle.so_far() for handle in handles])
            yield ChatChunk(**self._head, choices=[], usage=usage).model_dump_json(exclude_unset=True)

    def _pieces(self, choice: CompletionOutput) -> list[ChatChunkChoice]:
        """Returns the chunks for the new part of a choice. The role comes before the first text, and the finish reason
        after the last."""
        pieces = []
        if choice.index in self._ended or not (choice.token_ids or choice.finish_reason):
            return []
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            pieces.append(self._piece(choice, ChatDelta(role="assistant", content="")))
        logprobs = self._logprobs(choice)
        if choice.text or (logprobs is not None and logprobs.content):
            pieces.append(self._piece(choice, ChatDelta(content=choice.text), logprobs))
        if choice.finish_reason is not None:
            self._ended.add(choice.index)
            last = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            pieces.append(self._piece(choice, ChatDelta(), None, **last))
        return pieces

    def _piece(
        self, choice: CompletionOutput, delta: ChatDelta, logprobs: ChatLogprobs | None = None, **end: Any
    ) -> ChatChunkChoice:
        end = end or {"finish_reason": None}
        return ChatChunkChoice(index=choice.index, delta=delta, logprobs=logprobs, **end)

    def _logprobs(self, choice: CompletionOutput) -> ChatLogprobs | None:
        """Returns the logprobs of a choice's tokens, or None if the request did not ask for them."""
        if choice.logprobs is None:
            return None
        return chat_logprobs(self._engine, choice.token_ids, choice.logprobs, self._body.top_logprobs or 0)
