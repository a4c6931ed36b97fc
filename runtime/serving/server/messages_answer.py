"""Writes a message of Anthropic's API, in one piece or as its series of events.

Documented in https://docs.claude.com/en/api/messages and https://docs.claude.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel

from tensorwright.json_text import read_json
from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.requests.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.answer_blocks import AnswerBlocks, Block, Grown, Opened, Step
from tensorwright.runtime.serving.server.error_forms import named_event
from tensorwright.runtime.serving.server.requests import count_usage, follow_all
from tensorwright.runtime.serving.server.text_engine import TextEngine

PING_SECONDS = 15.0
"""After so long without an event, a ping tells the client that the answer is still being made."""
PING = named_event({"type": "ping"})
INVALID = "INVALID_JSON"
"""The key of an input whose text is no JSON object, as Anthropic's documentation of fine-grained streaming names it."""


class OutputTokens(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    """Token counts. input_tokens: the tokens of the prompt that the prefix cache did not have; cache_read_input_tokens:
    those that it had. The cache keeps prefixes by itself, so none are counted as written. thinking_tokens of the
    details: the tokens of the output that were thinking."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens


class TextContent(BaseModel):
    type: Literal["text"] = "text"
    text: str


class ThinkingContent(BaseModel):
    """What the model thought. signature: empty, for nothing checks it when it comes back."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class ToolUseContent(BaseModel):
    """A call. input: {"INVALID_JSON": text} where the model's text is no JSON object."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class MessageObject(BaseModel):
    """A message. stop_reason: end_turn, max_tokens, stop_sequence or tool_use, and beyond Anthropic's words timeout or
    abort."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: int


class MessagesAnswer:
    """The answer to one request, in one piece or as a stream of events."""

    framed = True

    def __init__(self, engine: TextEngine, plan: ChatPlan):
        self._plan = plan
        self._blocks = AnswerBlocks(plan, engine.tokenizer)
        self._head: dict[str, Any] = {"id": f"msg_{secrets.token_hex(12)}", "model": engine.name}

    def whole(self, output: RequestOutput) -> MessageObject:
        [choice] = output.outputs
        self._blocks.push(choice)
        content = [self._content(block, read_input(block.text)) for block in self._blocks.blocks]
        return MessageObject(
            **self._head, content=content, usage=usage_of(output, self._blocks.thought), **self._end(choice)
        )

    def _content(self, block: Block, given: dict[str, Any]) -> TextContent | ThinkingContent | ToolUseContent:
        """Returns a content block. given: the input, if it is a call."""
        if block.kind == "call":
            return ToolUseContent(id=self._call_id(block), name=block.name, input=given)
        return TextContent(text=block.text) if block.kind == "text" else ThinkingContent(thinking=block.text)

    def _call_id(self, block: Block) -> str:
        return self._plan.call_id(block.name, block.call).replace("call_", "toolu_")

    def _end(self, choice: CompletionOutput) -> dict[str, Any]:
        """Returns why the answer ended. An answer that ends by itself and has calls waits for their results."""
        stopped = choice.finish_reason == "stop"
        if stopped and isinstance(choice.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        ended = "tool_use" if self._blocks.calls else "end_turn"
        cut = "max_tokens" if choice.finish_reason == "length" else choice.finish_reason
        return {"stop_reason": ended if stopped else cut, "stop_sequence": None}

    async def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        async for event in with_pings(self._events(handles), PING_SECONDS):
            yield event

    async def _events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        [handle] = handles
        start = MessageObject(
            **self._head, content=[], stop_reason=None, stop_sequence=None, usage=usage_of(handle.so_far(), 0)
        )
        yield named_event({"type": "message_start", "message": start.model_dump()})
        yield PING
        ended: CompletionOutput | None = None
        async for _, output in follow_all(handles):  # `output` holds only what is new.
            [choice] = output.outputs
            if ended is None:
                for step in self._blocks.push(choice):
                    yield from_step(step, self._opened(step.block) if isinstance(step, Opened) else {})
            ended = choice if choice.finish_reason is not None else None
        assert ended is not None, "a request that has finished says why"
        usage = usage_of(handle.so_far(), self._blocks.thought).model_dump()
        yield named_event({"type": "message_delta", "delta": self._end(ended), "usage": usage})
        yield named_event({"type": "message_stop"})

    def _opened(self, block: Block) -> dict[str, Any]:
        return self._content(replace(block, parts=[]), {}).model_dump()


def from_step(step: Step, opened: dict[str, Any]) -> str:
    """Returns the event of a step. opened: the empty content block, if the step opens one."""
    place = {"index": step.block.index}
    if isinstance(step, Opened):
        return named_event({"type": "content_block_start", **place, "content_block": opened})
    if isinstance(step, Grown):
        kind, key = _DELTAS[step.block.kind]
        return named_event({"type": "content_block_delta", **place, "delta": {"type": kind, key: step.text}})
    return named_event({"type": "content_block_stop", **place})


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""The type of a delta and its key, by the kind of the block."""


def usage_of(output: RequestOutput, thought: int) -> MessageUsage:
    """Returns the token counts of an output so far. thought: how many tokens were thinking."""
    counts = count_usage([output])
    cached = counts.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=counts.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=counts.completion_tokens,
        output_tokens_details=OutputTokens(thinking_tokens=thought),
    )


def read_input(text: str) -> dict[str, Any]:
    """Returns the input of a call. The text is what the model wrote, so it may be anything."""
    try:
        given = read_json(text or "{}")
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {INVALID: text}


async def with_pings(events: AsyncIterator[str], seconds: float) -> AsyncIterator[str]:
    """Yields the events, and a ping whenever none has come for so many seconds."""

    async def following() -> str | None:
        return await anext(events, None)

    coming = asyncio.ensure_future(following())
    try:
        while True:
            await asyncio.wait({coming}, timeout=seconds)
            if not coming.done():
                yield PING
                continue
            event = coming.result()
            if event is None:
                return
            yield event
            coming = asyncio.ensure_future(following())
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
