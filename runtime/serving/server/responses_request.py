"""Declares the body of POST /v1/responses, and says what it asks of a chat.

Documented in https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.api.chat_plan import ChatWish
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.chat_formats.tools import ALLOWED, read_tools
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest, Effort, TemplateVariables
from tensorwright.runtime.serving.server.request_fields import (
    OTHER,
    TEXT,
    TEXT_OR_OTHER,
    DrawingFields,
    Ignorable,
    Ignored,
    JsonSchema,
    Name,
    Refused,
    ResponseFormat,
    Schema,
    StreamOptions,
    StrictModel,
)
from tensorwright.runtime.serving.server.responses_items import Items


def _only_functions(value: Any) -> Any:
    if isinstance(value, str) and value != "function":
        words = "tools of type {kind} are not supported, only functions are: the caller must run them"
        raise PydanticCustomError("unsupported_tool", words, {"kind": shown(value)})
    return value


class FunctionTool(StrictModel):
    """A function that the model may call, as ToolFunction of chat completions."""

    type: Annotated[Literal["function"], BeforeValidator(_only_functions)]
    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class NamedTool(StrictModel):
    type: Annotated[Literal["function"], BeforeValidator(_only_functions)]
    name: Name


class ToolsChoice(StrictModel):
    """The choice of one tool by its name, or of the tools that may be called, with a mode."""

    type: Literal["function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=bounds.TOOLS, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> ToolsChoice:
        one, some = self.name is not None, (self.mode is not None, self.tools is not None)
        if (self.type == "function") != one or some != (self.type == ALLOWED,) * 2:
            raise ValueError("a function must have a name alone, and allowed_tools must have mode and tools alone")
        return self

    def for_chat(self) -> dict[str, Any]:
        """Returns the choice in the form of chat completions."""
        if self.name is not None:
            return _chosen(self.name)
        return {
            "type": ALLOWED,
            ALLOWED: {"mode": self.mode, "tools": [_chosen(tool.name) for tool in self.tools or ()]},
        }


def _chosen(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


class TextFormat(StrictModel):
    """The form of the text: any text, a JSON object, or JSON that schema admits, which is enforced whatever strict
    says."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_a_schema_if_it_says_so(self) -> TextFormat:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("schema must come with the type json_schema, and only with it")
        return self

    def for_chat(self) -> ResponseFormat:
        """Returns the form in the words of chat completions."""
        if self.schema_ is None:
            return ResponseFormat.model_construct(type=self.type)
        schema = JsonSchema.model_construct(name=self.name or "schema", schema_=self.schema_)
        return ResponseFormat.model_construct(type=self.type, json_schema=schema)


class TextSettings(StrictModel):
    format: TextFormat | None = None
    verbosity: Ignored = None


class ReasoningSettings(StrictModel):
    """How much the model thinks. summary: left out, for the thinking itself is shown."""

    effort: Effort | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


def _few_entries(value: dict[str, str]) -> dict[str, str]:
    if len(value) > bounds.METADATA_ENTRIES:
        details = {"most": bounds.METADATA_ENTRIES, "came": len(value)}
        raise PydanticCustomError("too_long", "there must be at most {most} entries, got {came}", details)
    return value


Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=bounds.METADATA_KEY)], Annotated[str, Field(max_length=bounds.METADATA_VALUE)]
    ],
    BeforeValidator(lambda value: _few_entries(value) if isinstance(value, dict) else value),
]
Choice = Annotated[Annotated[Literal["none", "auto", "required"], TEXT] | Annotated[ToolsChoice, OTHER], TEXT_OR_OTHER]


def _no_logprobs(value: list[str]) -> list[str]:
    if LOGPROBS in value:
        raise PydanticCustomError(
            "unsupported_include", "{what} is not supported: use chat completions", {"what": LOGPROBS}
        )
    return value


LOGPROBS = "message.output_text.logprobs"
Include = Annotated[list[Name], Field(max_length=bounds.METADATA_ENTRIES, fail_fast=True), AfterValidator(_no_logprobs)]


class ResponsesRequest(DrawingFields):
    """The body of a response.

    input: a text, which is the user's, or items. instructions: a system message before the conversation; those of an
    earlier response do not come with it. previous_response_id: the stored response that the input follows.
    store: whether the response is stored, which it is by default where the server stores any.
    metadata: up to 16 pairs of texts that the response repeats. user: accepted and not used.
    include: accepted and not used, for items carry all they have; logprobs are refused.
    truncation: "disabled" alone, for nothing is left out of a prompt.
    chat_template_kwargs, thinking_token_budget: as in chat completions.
    """

    input: Annotated[Annotated[str, TEXT] | Annotated[Items, OTHER], TEXT_OR_OTHER]
    instructions: str | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    metadata: Metadata | None = None
    store: bool | None = None
    previous_response_id: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    include: Include | None = None
    user: Name | None = None
    service_tier: Annotated[Literal["auto", "default"] | None, Ignorable(None, "auto", "default")] = None
    background: Annotated[Literal[False] | None, Field(description="Only false: no work outlives its client.")] = None
    chat_template_kwargs: TemplateVariables | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=2**31)
    conversation: Refused = None
    moderation: Refused = None
    prompt: Refused = None
    context_management: Refused = None
    top_logprobs: Annotated[Literal[0] | None, Field(description="Only 0; chat completions have logprobs.")] = None
    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None

    def wish(self) -> ChatWish:
        """Returns what the fields ask for, beside the messages. Raises InvalidRequestError."""
        choice = self.tool_choice if isinstance(self.tool_choice, str | None) else self.tool_choice.for_chat()
        tools = [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools or ()]
        return ChatWish(
            read_tools(tools, choice, self.parallel_tool_calls),
            variables=self.chat_template_kwargs or {},
            effort=None if self.reasoning is None else self.reasoning.effort,
            budget=self.thinking_token_budget,
        )

    @property
    def _must_call(self) -> bool:
        choice = self.tool_choice
        if isinstance(choice, ToolsChoice):
            return choice.type == "function" or choice.mode == "required"
        return choice == "required"

    def for_chat(self) -> ChatCompletionRequest:
        """Returns the fields of sampling in the form of chat completions. An answer that must be a call has no text, so
        that the form of its text says nothing; OpenAI takes both together too."""
        form = None if self.text is None or self.text.format is None else self.text.format.for_chat()
        if self._must_call:
            form = None
        return ChatCompletionRequest.model_construct(
            **{name: getattr(self, name) for name in DrawingFields.model_fields},
            max_completion_tokens=self.max_output_tokens,
            response_format=form,
        )
