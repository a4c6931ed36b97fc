"""Writes a response of the Responses API, in one piece or as the documented series of events, and stores it."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.requests.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.answer_blocks import AnswerBlocks, Block, Closed, Grown, Opened, Step
from tensorwright.runtime.serving.server.error_forms import named_event
from tensorwright.runtime.serving.server.errors import describe_error, is_foreseen
from tensorwright.runtime.serving.server.requests import count_usage, follow_all
from tensorwright.runtime.serving.server.response_store import StoredResponse
from tensorwright.runtime.serving.server.responses import ReasoningTokens
from tensorwright.runtime.serving.server.responses_form import (
    CallItem,
    Incomplete,
    InputTokens,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
)
from tensorwright.runtime.serving.server.responses_items import InputItem, messages_of
from tensorwright.runtime.serving.server.responses_request import ResponsesRequest
from tensorwright.runtime.serving.server.text_engine import TextEngine

log = logging.getLogger(__name__)
PREFIXES = {"text": "msg", "thinking": "rs", "call": "fc"}
"""What the id of an item begins with, by the kind of its block."""
INCOMPLETE = {"length": "max_output_tokens"}
"""OpenAI's words for the reasons that cut an answer off; other reasons keep their own."""


def new_id(prefix: str, place: str | None = None) -> str:
    """Returns an id that nobody can guess, for it may be all that protects a stored response.

    place: the name by which a router calls this server, which becomes a part of the id; None without a router.
    """
    return "_".join(part for part in (prefix, place, secrets.token_hex(24)) if part is not None)


class ResponsesAnswer:
    """The answer to one request.

    messages: the conversation before the answer, without the instructions. messages_size: its bytes. keep: stores a
    response and returns whether it did; None if the response is not to be stored. in_thread: runs work in a thread of
    the pool for answers, for a response repeats instructions and tools and may have megabytes. identity: its id.
    """

    framed = True

    def __init__(
        self,
        engine: TextEngine,
        body: ResponsesRequest,
        plan: ChatPlan,
        messages: Sequence[dict[str, Any]],
        messages_size: int,
        keep: Callable[[StoredResponse], bool] | None,
        in_thread: Callable[[Callable[[], str]], Awaitable[str]],
        identity: str,
    ):
        self._body = body
        self._plan = plan
        self._messages = messages
        self._messages_size = messages_size
        self._keep = keep
        self._in_thread = in_thread
        self._blocks = AnswerBlocks(plan, engine.tokenizer)
        self._ids: list[tuple[str, str]] = []  # of each block: the item's id, and of a call the call's id or else ""
        self._sequence = 0
        self._head = {"id": identity, **self._describe(engine.name)}

    def _describe(self, model: str) -> dict[str, Any]:
        """Returns the fields of the response that do not depend on the output."""
        body, params = self._body, self._plan.params
        form = None if body.text is None or body.text.format is None else body.text.format
        effort = None if body.reasoning is None else body.reasoning.effort
        choice = body.tool_choice
        return {
            "created_at": int(time.time()),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": model,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": self._keep is not None,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": choice.model_dump(exclude_none=True) if isinstance(choice, BaseModel) else choice or "auto",
            "tools": [{"parameters": None, "strict": None, **tool.model_dump()} for tool in body.tools or ()],
            "top_p": params.top_p,
            "user": body.user,
        }

    def whole(self, output: RequestOutput) -> ResponseObject:
        [choice] = output.outputs
        self._blocks.push(choice)
        return self._finish(choice, output)[0]

    async def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        try:
            for name in ("response.created", "response.in_progress"):
                yield await self._in_thread(partial(self._begun, name))
            ended: CompletionOutput | None = None
            async for _, output in follow_all(handles):  # `output` holds only what is new.
                [choice] = output.outputs
                if ended is None:
                    for event in self._of_steps(self._blocks.push(choice), choice):
                        yield event
                ended = choice if choice.finish_reason is not None else None
            assert ended is not None, "a request that has finished says why"
            yield await self._in_thread(partial(self._last, ended, handles[0]))
        except Exception as error:
            if not is_foreseen(error):
                log.exception("a stream failed")
            yield await self._in_thread(partial(self._failure, error))

    def _begun(self, name: str) -> str:
        return self._response_event(name, self._response("in_progress"))

    def _failure(self, error: Exception) -> str:
        facts = describe_error(error)
        told = ResponseError(code=facts.code or facts.type, message=facts.message)
        return self._response_event("response.failed", self._response("failed", error=told))

    def _last(self, choice: CompletionOutput, handle: RequestHandle) -> str:
        return self._finish(choice, handle.so_far())[1]

    def _finish(self, choice: CompletionOutput, output: RequestOutput) -> tuple[ResponseObject, str]:
        """Ends and stores the response. Returns it, and its last event. output: the whole output."""
        counts = count_usage([output])
        cut = choice.finish_reason != "stop"
        status: Status = "incomplete" if cut else "completed"
        response = self._response(
            status,
            output=[self._item(block, self._status(block, choice)) for block in self._blocks.blocks],
            completed_at=None if cut else int(time.time()),
            incomplete_details=Incomplete(reason=INCOMPLETE.get(str(choice.finish_reason), str(choice.finish_reason)))
            if cut
            else None,
            usage=ResponseUsage(
                input_tokens=counts.prompt_tokens,
                input_tokens_details=InputTokens(cached_tokens=counts.prompt_tokens_details.cached_tokens),
                output_tokens=counts.completion_tokens,
                output_tokens_details=ReasoningTokens(reasoning_tokens=self._blocks.thought),
                total_tokens=counts.total_tokens,
            ),
        )
        if self._keep is not None and not self._store(response):
            response.store = False
        return response, self._response_event(f"response.{status}", response)

    def _store(self, response: ResponseObject) -> bool:
        assert self._keep is not None, "the response is to be stored"
        added = messages_of(self._as_input(block) for block in self._blocks.blocks)
        size = self._messages_size + size_of(added)
        stored = StoredResponse(response.id, response.model_dump_json(), (*self._messages, *added), size)
        return self._keep(stored)

    def _as_input(self, block: Block) -> InputItem:
        """Returns the item that a client would send back. It is not validated, for a model may write any name."""
        if block.kind == "call":
            call_id = self._ids[block.index][1]
            return InputItem.model_construct(
                type="function_call", call_id=call_id, name=block.name, arguments=block.text
            )
        if block.kind == "text":
            return InputItem.model_construct(type="message", role="assistant", content=block.text)
        return InputItem.model_construct(type="reasoning", content=block.text)

    def _response(self, status: Status, **fields: Any) -> ResponseObject:
        return ResponseObject(**self._head, status=status, **{"output": [], **fields})

    def _status(self, block: Block, choice: CompletionOutput) -> Status:
        """Returns how an item ended: the last one is cut off if the answer is."""
        last = block is self._blocks.blocks[-1]
        return "incomplete" if last and choice.finish_reason != "stop" else "completed"

    def _item(self, block: Block, status: Status) -> OutputItem:
        if block.index == len(self._ids):
            call_id = self._plan.call_id(block.name, block.call) if block.kind == "call" else ""
            self._ids.append((new_id(PREFIXES[block.kind]), call_id))
        name, call_id = self._ids[block.index]
        begun = bool(block.parts)
        if block.kind == "call":
            return CallItem(id=name, call_id=call_id, name=block.name, arguments=block.text, status=status)
        if block.kind == "text":
            return MessageItem(id=name, status=status, content=[OutputText(text=block.text)] if begun else [])
        return ReasoningItem(id=name, status=status, content=[ReasoningText(text=block.text)] if begun else [])

    def _of_steps(self, steps: Sequence[Step], choice: CompletionOutput) -> Iterator[str]:
        for step in steps:
            block = step.block
            if isinstance(step, Opened):
                yield from self._open(block)
            elif isinstance(step, Grown):
                yield self._event(f"response.{_DELTAS[block.kind]}.delta", block, delta=step.text)
            else:
                assert isinstance(step, Closed)
                yield from self._close(block, self._status(block, choice))

    def _open(self, block: Block) -> Iterator[str]:
        empty = self._item(replace(block, parts=[]), "in_progress")
        yield self._item_event("response.output_item.added", block, empty)
        if block.kind != "call":
            yield self._event("response.content_part.added", block, part=_part(block.kind, ""))

    def _close(self, block: Block, status: Status) -> Iterator[str]:
        done = f"response.{_DELTAS[block.kind]}.done"
        if block.kind == "call":
            yield self._event(done, block, name=block.name, arguments=block.text)
        else:
            yield self._event(done, block, text=block.text)
            yield self._event("response.content_part.done", block, part=_part(block.kind, block.text))
        yield self._item_event("response.output_item.done", block, self._item(block, status))

    def _event(self, kind: str, block: Block, **fields: Any) -> str:
        """Returns an event inside of an item. kind: the event's name."""
        place: dict[str, Any] = {"item_id": self._ids[block.index][0], "output_index": block.index}
        if block.kind != "call":
            place["content_index"] = 0
        if kind.startswith("response.output_text"):
            place["logprobs"] = []
        return self._numbered({"type": kind, **place, **fields})

    def _item_event(self, name: str, block: Block, item: OutputItem) -> str:
        return self._numbered({"type": name, "output_index": block.index, "item": item.model_dump()})

    def _response_event(self, name: str, response: ResponseObject) -> str:
        return self._numbered({"type": name, "response": response.model_dump()})

    def _numbered(self, event: dict[str, Any]) -> str:
        number, self._sequence = self._sequence, self._sequence + 1
        return named_event({**event, "sequence_number": number})


_DELTAS = {"text": "output_text", "thinking": "reasoning_text", "call": "function_call_arguments"}
"""What the events of new text are called, by the kind of the block."""


def _part(kind: str, text: str) -> dict[str, Any]:
    part = OutputText(text=text) if kind == "text" else ReasoningText(text=text)
    return part.model_dump()


def size_of(messages: Sequence[dict[str, Any]]) -> int:
    """Returns the bytes of messages as JSON, by which a conversation is bounded."""
    return len(json.dumps(messages, ensure_ascii=False).encode("utf-8", "surrogatepass"))
