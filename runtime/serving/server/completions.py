"""Answers POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.clients import client_defaults
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.event_stream import EventStream
from tensorwright.runtime.serving.server.handover import bring_prefixes
from tensorwright.runtime.serving.server.logprobs import CompletionLogprobWriter, Table
from tensorwright.runtime.serving.server.rate_limits import reserve_tokens
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
from tensorwright.runtime.serving.server.responses import CompletionChoice, CompletionResponse
from tensorwright.runtime.serving.server.sampling import completion_params
from tensorwright.runtime.serving.server.served_model import ServedModel
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
router = APIRouter(tags=["openai"], route_class=BodyRoute)


@router.post("/v1/completions", response_model=CompletionResponse, responses=STREAMED)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continues texts. With stream: true the answer is a series of events, each with the text that is new."""
    engine = find_engine(request, body.model)
    params = completion_params(body, client_defaults(request, body, engine.sampling_defaults))
    prompts = body.prompts
    check_places(engine.llm, len(prompts))
    hold_places(request, len(prompts) * params.sequences)
    reserve_tokens(request, params, len(prompts))
    answer = CompletionAnswer(engine, body, params)
    try:
        await bring_prefixes(request, engine.name, params)
        handles = await start_all(request, engine.llm, lambda: prompts, params)
        note_work(request, engine.name, handles)
        if body.stream:
            return EventStream(answer.events(handles), handles)
        outputs = await finish_all(handles, request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    return await write_answer(request, lambda: answer.whole(outputs))


def check_places(llm: ServedModel, prompts: int) -> None:
    """Raises InvalidRequestError if a request has more prompts than the empty engine has places."""
    options = llm.options
    places = options.max_batch_size + options.max_queue_size
    if prompts > places:
        raise InvalidRequestError(
            f"prompt must have at most {places} prompts, for so many can run and wait here (max_batch_size and "
            f"max_queue_size), got {prompts}: send them in several requests"
        )


class CompletionAnswer:
    """The answer to one request, in one piece or as events. Choice j of prompt i has the index i * n + j."""

    def __init__(self, engine: TextEngine, body: CompletionRequest, params: SamplingParams):
        self._engine = engine
        self._body = body
        self._params = params
        self._writers: dict[int, list[ChoiceWriter]] = {}  # by prompt, for prompts that have output
        self._head: dict[str, Any] = {
            "object": "text_completion",
            "id": f"cmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": engine.name,
            "system_fingerprint": engine.fingerprint,
        }

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        choices = [choice for number, output in enumerate(outputs) for choice in self._news(number, output)]
        usage = count_usage(outputs, not self._body.only_scores)
        return CompletionResponse(**self._head, choices=choices, usage=usage)

    async def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        options = self._body.stream_options
        counts = options is not None and bool(options.include_usage)
        nothing_yet: dict[str, Any] = {"usage": None} if counts else {}
        async for number, output in follow_all(handles):
            for choice in self._news(number, output):
                chunk = CompletionResponse(**self._head, choices=[choice], **nothing_yet)
                yield chunk.model_dump_json(exclude_unset=True)
        if counts:
            usage = count_usage([handle.so_far() for handle in handles], not self._body.only_scores)
            yield CompletionResponse(**self._head, choices=[], usage=usage).model_dump_json(exclude_unset=True)

    def _news(self, number: int, output: RequestOutput) -> list[CompletionChoice]:
        """Returns the choices that have something new. output: the new part of the output of prompt `number`."""
        if number not in self._writers:
            first = number * self._params.n
            self._writers[number] = [
                ChoiceWriter(self._engine, self._body, self._params, first + completion, completion)
                for completion in range(self._params.n)
            ]
        return [choice for writer in self._writers[number] if (choice := writer.write(output)) is not None]


class ChoiceWriter:
    """Writes the new part of one choice. completion: the choice's number among the completions of its prompt."""

    def __init__(
        self, engine: TextEngine, body: CompletionRequest, params: SamplingParams, index: int, completion: int
    ):
        self._engine = engine
        self._body = body
        self._params = params
        self._index = index
        self._completion = completion
        self._begun = self._ended = False
        self._echoed: list[Table] = []  # the prompt's tables, until the first chunk is written
        self._logprobs = None
        if params.logprobs is not None:
            self._logprobs = CompletionLogprobWriter(engine, params.skip_special_tokens)

    def write(self, output: RequestOutput) -> CompletionChoice | None:
        """Returns the new part of the choice, or None if there is nothing new. output: the new part of the output."""
        completion = output.outputs[self._completion]
        finish, scores = completion.finish_reason, self._body.only_scores
        text = "" if scores else completion.text
        tokens = [] if scores else completion.token_ids
        tables: list[Table] = [] if scores else [*(completion.logprobs or [])]
        self._echoed += output.prompt_logprobs or []
        logprobs_wait = self._logprobs is not None and tokens
        if self._ended or not (finish or text or logprobs_wait):
            return None
        if not self._begun and self._body.echo:
            text = self._prompt_text(output) + text
            tokens = output.prompt_token_ids + tokens
            tables = [*self._echoed, *tables]
        self._begun, self._ended = True, finish is not None
        logprobs = None if self._logprobs is None else self._logprobs.write(tokens, tables)
        reason = "length" if scores and finish == "stop" else finish  # The answer does not show the stop token.
        return CompletionChoice(
            index=self._index, text=text, logprobs=logprobs, finish_reason=reason, stop_reason=completion.stop_reason
        )

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None and self._params.truncate_prompt_tokens is None:
            return output.prompt
        return self._engine.tokenizer.decode(output.prompt_token_ids, self._params.skip_special_tokens)
