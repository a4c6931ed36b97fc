"""Declares the answers of the OpenAI endpoints. Streamed chunks are written without the fields that were not set."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from tensorwright.engine_format.pooling import GENERATE

Reason = str | None  # "stop", "length" and "tool_calls" as in OpenAI's API; also "abort" and "timeout"


class CachedTokens(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """Token counts of all prompts and choices. cached_tokens of the details: the prompt tokens taken from the cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class ChatUsage(Usage):
    """Token counts of a chat. reasoning_tokens of the details: the generated tokens that were thinking."""

    completion_tokens_details: ReasoningTokens


class CompletionLogprobs(BaseModel):
    """Lists with one entry per token. text_offset: where the token's text starts in the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Reason = None
    stop_reason: int | str | None = None


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """A token and its logprob. bytes: the bytes of the token's text, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(BaseModel):
    """The function of a call. name: only in the first chunk of a call. arguments: JSON text, or the new part of it."""

    name: str | None = None
    arguments: str = ""


class MessageToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """An answer. content: None if there is nothing but calls or thinking. reasoning_content and reasoning: the same
    text, under the names of older and newer clients. Where there are neither calls nor thinking, the answer has no such
    fields."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageToolCall] | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        absent = [name for name in OF_TOOLS_AND_THINKING if getattr(self, name) is None]
        return {name: value for name, value in written.items() if name not in absent}


OF_TOOLS_AND_THINKING = ("reasoning_content", "reasoning", "tool_calls")
"""The fields of an answer that only some answers have."""


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason = None
    stop_reason: int | str | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage


class ToolCallDelta(BaseModel):
    """The new part of a call. id and type: only in its first chunk."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason = None
    stop_reason: int | str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: ChatUsage | None = None


class ModelCard(BaseModel):
    """One model or adapter of the list. max_model_len: the most tokens of prompt and output together. parent: of an
    adapter, the model that it changes. task: what it answers with, one of TASKS of engine_format/pooling.py."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tensorwright"
    max_model_len: int
    parent: str | None = None
    task: str = GENERATE


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    prompt: str


class PooledUsage(BaseModel):
    """Token counts of a request that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class EmbeddedText(BaseModel):
    """An embedding: numbers, or base64 of float32 with the lowest byte first."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddedText]
    model: str
    usage: PooledUsage


class ScoredPair(BaseModel):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoredPair]
    usage: PooledUsage


class RankedTextBody(BaseModel):
    text: str


class RankedText(BaseModel):
    """A document of a ranking. index: its place in the request. document: its text, unless the request leaves it
    out."""

    index: int
    relevance_score: float
    document: RankedTextBody | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if value is not None}


class RerankResponse(BaseModel):
    id: str
    model: str
    results: list[RankedText]
    usage: PooledUsage
