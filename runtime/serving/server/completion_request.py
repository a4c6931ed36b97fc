"""Declares the body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.prompts import Prompt, PromptDict
from tensorwright.runtime.serving.server.request_fields import REFUSED, SamplingFields, refused


def _kind(value: Any) -> str | None:
    """Returns the kind of prompt that a value can be, judged by its first entry, or None if it can be no prompt."""
    first = value[0] if isinstance(value, list) and value else None
    of_list = "ids" if isinstance(first, int) else "texts" if isinstance(first, str) else "lists"
    return "text" if isinstance(value, str) else of_list if first is not None else None


def _one_message(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Replaces the errors of all kinds of prompt by one error."""
    name = info.field_name
    must = "{name} must be a string, a list of strings, a list of token ids or a list of such lists, not empty"
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "too_long":
            sizes = {"name": name, "most": first["ctx"]["max_length"], "came": first["ctx"]["actual_length"]}
            text = "a list in {name} must have at most {most} entries, got {came}"
            raise PydanticCustomError("prompt", text, sizes) from error
        raise PydanticCustomError("prompt", must, {"name": name}) from error


Ids = Annotated[list[int], Field(max_length=bounds.TOKENS, fail_fast=True)]
PromptField = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(max_length=bounds.PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(max_length=bounds.PROMPTS, fail_fast=True), Tag("lists")],
    Discriminator(_kind),
    WrapValidator(_one_message),
]


def prompts_of(value: Any) -> list[Prompt]:
    """Returns the prompts of a PromptField in the form that LLM takes, one for each text or list of ids."""
    one = isinstance(value, str) or isinstance(value[0], int)
    parts: list[Any] = [value] if one else [*value]
    return [part if isinstance(part, str) else PromptDict(prompt_token_ids=part) for part in parts]


class CompletionRequest(SamplingFields):
    """The body of a completion.

    prompt: one text, several texts, the token ids of one text, or the token ids of several texts.
    logprobs: the number of likeliest tokens whose logprobs are returned at each place, beside those of the tokens.
    max_tokens: the most tokens to generate; 0 is allowed only with echo, to score a prompt.
    """

    prompt: PromptField
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=bounds.LOGPROBS)
    suffix: Annotated[
        None,
        refused(
            "nothing is written that must lead to another text. Write the prompt with the model's own tokens for "
            "filling in the middle"
        ),
        REFUSED,
    ] = None

    @property
    def prompts(self) -> list[Prompt]:
        """Returns the prompts in the form that LLM takes, one for each text or list of ids."""
        return prompts_of(self.prompt)

    @property
    def only_scores(self) -> bool:
        """Whether the prompt is echoed and no text is generated."""
        return self.max_tokens == 0
