"""Declares the body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown, weigh
from tensorwright.runtime.serving.server.request_fields import (
    OTHER,
    TEXT,
    TEXT_OR_OTHER,
    Name,
    Refused,
    SamplingFields,
    StrictModel,
)


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


def _refuse_media(value: Any) -> Any:
    for part in value[: bounds.CONTENT_PARTS] if isinstance(value, list) else []:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            words = "content parts of type {kind} are not supported, only text is"
            raise PydanticCustomError("unsupported_part", words, {"kind": shown(kind)})
    return value


Content = Annotated[
    Annotated[str, TEXT] | Annotated[list[TextPart], Field(max_length=bounds.CONTENT_PARTS, fail_fast=True), OTHER],
    TEXT_OR_OTHER,
    BeforeValidator(_refuse_media),
]


class Message(StrictModel):
    """One turn of a conversation. Line ends join the text parts."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Name | None = None
    tool_calls: Refused = None
    tool_call_id: Refused = None
    function_call: Refused = None
    audio: Refused = None
    refusal: Refused = None
    annotations: Refused = None

    def for_template(self) -> dict[str, Any]:
        """Returns the message in the form that chat templates take."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(part.text for part in content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


def _few_values(value: Any) -> Any:
    if not weigh(value, bounds.TEMPLATE_VALUES, characters=False):
        raise PydanticCustomError("too_long", "there must be at most {most} values", {"most": bounds.TEMPLATE_VALUES})
    return value


Messages = Annotated[list[Message], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
TemplateVariables = Annotated[dict[str, Any], BeforeValidator(_few_values)]


class ChatFields(StrictModel):
    """The fields that make a prompt of messages. chat_template_kwargs: further variables for the model's chat
    template."""

    messages: Messages
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateVariables | None = None


class ChatCompletionRequest(SamplingFields, ChatFields):
    """The body of a chat completion. max_tokens is the old name of max_completion_tokens; without either, the answer
    is as long as the context has room."""

    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=bounds.LOGPROBS)
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    tool_choice: Literal["none"] | None = None
    tools: Refused = None
    functions: Refused = None
    function_call: Refused = None
    parallel_tool_calls: Refused = None
    audio: Refused = None
    prediction: Refused = None
    metadata: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
    prompt_cache_key: Refused = None
    safety_identifier: Refused = None
