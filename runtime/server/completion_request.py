"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.prompts import Prompt, PromptDict
from tensorwright.runtime.server.request_fields import MOST_LOGPROBS, Refused, SamplingFields


def _one_message(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Not one complaint for each kind of prompt that it might have been."""
    must = "prompt must be a string, a list of strings, a list of token ids or a list of such lists, not empty"
    try:
        if value != []:
            return validate(value)
    except ValidationError as error:
        raise PydanticCustomError("prompt", must) from error
    raise PydanticCustomError("prompt", must)


PromptField = Annotated[str | list[str] | list[int] | list[list[int]], WrapValidator(_one_message)]


class CompletionRequest(SamplingFields):
    """prompt: one text, several, the token ids of one, or of several.

    logprobs: those of the tokens, and of so many likeliest in each place.
    max_tokens: 0 only with echo, to score a prompt.
    best_of: null or n, for nothing is ranked.
    """

    prompt: PromptField
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
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
