"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.prompts import Prompt, PromptDict
from tensorwright.runtime.serving.server.request_fields import Refused, SamplingFields


def _kind(value: Any) -> str | None:
    """Which of the kinds of prompt a value can be, by its first entry; None: not any."""
    first = value[0] if isinstance(value, list) and value else None
    of_list = "ids" if isinstance(first, int) else "texts" if isinstance(first, str) else "lists"
    return "text" if isinstance(value, str) else of_list if first is not None else None


def _one_message(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Not one complaint for each kind of prompt that it might have been."""
    must = "prompt must be a string, a list of strings, a list of token ids or a list of such lists, not empty"
    try:
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "too_long":
            sizes = {"most": first["ctx"]["max_length"], "came": first["ctx"]["actual_length"]}
            text = "a list in prompt must have at most {most} entries, got {came}"
            raise PydanticCustomError("prompt", text, sizes) from error
        raise PydanticCustomError("prompt", must) from error


Ids = Annotated[list[int], Field(max_length=bounds.TOKENS, fail_fast=True)]
PromptField = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(max_length=bounds.PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(max_length=bounds.PROMPTS, fail_fast=True), Tag("lists")],
    Discriminator(_kind),
    WrapValidator(_one_message),
]


class CompletionRequest(SamplingFields):
    """prompt: one text, several, the token ids of one, or of several.

    logprobs: those of the tokens, and of so many likeliest in each place.
    max_tokens: 0 only with echo, to score a prompt.
    best_of: null or n, for nothing is ranked.
    """

    prompt: PromptField
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=bounds.LOGPROBS)
    best_of: int | None = Field(None, ge=1)
    suffix: Refused = None

    @property
    def prompts(self) -> list[Prompt]:
        """As LLM takes them, one for each text or list of ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        parts: list[Any] = [self.prompt] if one else [*self.prompt]
        return [part if isinstance(part, str) else PromptDict(prompt_token_ids=part) for part in parts]

    @property
    def only_scores(self) -> bool:
        """The prompt is echoed, and nothing generated."""
        return self.max_tokens == 0
