"""Declares the answers of the Responses API. Documented in https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from tensorwright.runtime.serving.server.responses import CachedTokens, ReasoningTokens

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class CallItem(BaseModel):
    """A call of a function. call_id: what the call's result must name. arguments: JSON text."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningItem(BaseModel):
    """What the model thought. There is never a summary, for the thinking itself is shown."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    status: Status


OutputItem = ReasoningItem | MessageItem | CallItem


class InputTokens(CachedTokens):
    """cache_write_tokens: 0, for the cache keeps prefixes by itself and nobody pays for it."""

    cache_write_tokens: int = 0


class ResponseUsage(BaseModel):
    """Token counts. cached_tokens: those of the input that the prefix cache had. reasoning_tokens: those of the output
    that were thinking."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Incomplete(BaseModel):
    """Why an answer is cut off: max_output_tokens, or beyond OpenAI's words "timeout" or "abort"."""

    reason: str


class ResponseError(BaseModel):
    code: str
    message: str


class ResponseObject(BaseModel):
    """A response. The fields of the request are repeated with the values that they had in effect. store: whether the
    response can be read again."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
