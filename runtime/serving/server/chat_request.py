"""Declares the body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.api.chat_history import THOUGHTS
from tensorwright.runtime.api.chat_plan import ChatWish
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown, weigh
from tensorwright.runtime.chat_formats.tools import read_tools
from tensorwright.runtime.serving.server.request_fields import (
    OTHER,
    TEXT,
    TEXT_OR_OTHER,
    CallArguments,
    Ignorable,
    Ignored,
    Name,
    Refused,
    SamplingFields,
    Schema,
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


class CalledFunction(StrictModel):
    """The function of an earlier call. arguments: JSON text, as the model wrote it."""

    name: Name
    arguments: CallArguments = ""


class MessageCall(StrictModel):
    """A call of an earlier answer."""

    id: Name | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


Calls = Annotated[list[MessageCall], Field(max_length=bounds.TOOLS, fail_fast=True)]


class Message(StrictModel):
    """One turn of a conversation. Line ends join the text parts.

    tool_calls: the calls of an assistant's message, whose content may then be null or left out. tool_call_id: of a
    tool's message, the call whose result it is. reasoning_content, reasoning: what the assistant thought, by either
    name.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Calls | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: Refused = None
    audio: Refused = None
    refusal: Ignored = None
    annotations: Ignored = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        assistant = self.role == "assistant"
        if self.content is None and not (assistant and (self.tool_calls or self.reasoning_content or self.reasoning)):
            raise ValueError(
                "content must be a text or a list of text parts; only an answer with tool_calls needs none"
            )
        if not assistant and (self.tool_calls or self.reasoning_content or self.reasoning):
            raise ValueError("tool_calls and reasoning_content must come with the role assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id must come with the role tool, and only with it")
        return self

    def for_template(self) -> dict[str, Any]:
        """Returns the message in the form that LLM.chat takes."""
        content = self.content
        text = content if content is None or isinstance(content, str) else "\n".join(part.text for part in content)
        more = {name: value for name in ("name", "tool_call_id", *THOUGHTS) if (value := getattr(self, name))}
        calls = [call.model_dump(exclude_none=True, exclude={"index"}) for call in self.tool_calls or ()]
        return {"role": self.role, "content": text, **more, **({"tool_calls": calls} if calls else {})}


class ToolFunction(StrictModel):
    """A function that the model may call. parameters: the JSON schema of its arguments. strict: whether a grammar makes
    sure that they fit it."""

    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ToolField(StrictModel):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(StrictModel):
    name: Name


class AllowedTool(StrictModel):
    """One of the tools that may be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(StrictModel):
    """The tools that may be called. mode: "required" if one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=bounds.TOOLS, fail_fast=True)]


class ToolsChoice(StrictModel):
    """The choice of one tool, or of some."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> ToolsChoice:
        for name in ("function", "allowed_tools"):
            if (getattr(self, name) is not None) != (self.type == name):
                raise ValueError(f"{name} must come with the type {name}, and only with it")
        return self


ToolList = Annotated[list[ToolField], Field(max_length=bounds.TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], TEXT] | Annotated[ToolsChoice, OTHER], TEXT_OR_OTHER
]


def _few_values(value: Any) -> Any:
    if not weigh(value, bounds.TEMPLATE_VALUES, characters=False):
        raise PydanticCustomError("too_long", "there must be at most {most} values", {"most": bounds.TEMPLATE_VALUES})
    return value


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Messages = Annotated[list[Message], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
TemplateVariables = Annotated[dict[str, Any], BeforeValidator(_few_values)]


class ChatFields(StrictModel):
    """The fields that make a prompt of messages.

    chat_template_kwargs: further variables for the model's chat template. tools: the functions that the model may call.
    tool_choice: "none", "auto", "required", or the tool that must be called, or those that may be. parallel_tool_calls:
    false allows one call at most. reasoning_effort: how much the model thinks, "none" for not at all.
    thinking_token_budget: the most tokens of thinking, after which its end is forced.
    """

    messages: Messages
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateVariables | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=2**31)

    def wish(self) -> ChatWish:
        """Returns what the fields ask for, beside the messages. Raises InvalidRequestError."""
        choice = self.tool_choice if isinstance(self.tool_choice, str | None) else self.tool_choice.model_dump()
        tools = [tool.model_dump() for tool in self.tools or ()]
        return ChatWish(
            read_tools(tools, choice, self.parallel_tool_calls),
            self.add_generation_prompt,
            self.chat_template_kwargs or {},
            self.reasoning_effort,
            self.thinking_token_budget,
        )


class ChatCompletionRequest(SamplingFields, ChatFields):
    """The body of a chat completion. max_tokens is the old name of max_completion_tokens; without either, the answer
    is as long as the context has room."""

    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=bounds.LOGPROBS)
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] | None = None
    service_tier: Annotated[Literal["auto", "default"] | None, Ignorable(None, "auto", "default")] = None
    store: Annotated[Literal[False] | None, Ignorable(None, False)] = None
    functions: Refused = None
    function_call: Refused = None
    audio: Refused = None
    prediction: Refused = None
    web_search_options: Refused = None
    metadata: Ignored = None
    verbosity: Ignored = None
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None
