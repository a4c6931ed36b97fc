"""Declares the bodies of the endpoints that answer with embeddings and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.pooling_params import PoolingParams
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.serving.server.completion_request import PromptField, prompts_of
from tensorwright.runtime.serving.server.request_fields import OTHER, TEXT, TEXT_OR_OTHER, Name, StrictModel, TurnFields

Texts = Annotated[list[str], Field(min_length=1, max_length=bounds.PROMPTS, fail_fast=True)]
TextOrTexts = Annotated[Annotated[str, TEXT] | Annotated[Texts, OTHER], TEXT_OR_OTHER]
_OF_KEY = ("tenant", "tenant_weight", "priority", "cache_salt")
"""The defaults of a client's request that count where nothing is drawn."""


class EmbeddingRequest(TurnFields):
    """Texts to embed. The fields are OpenAI's, and further ones.

    input: one text, several texts, the token ids of one text, or the token ids of several texts.
    encoding_format: "float" for lists of numbers, "base64" for the bytes of float32, the lowest byte first.
    dimensions: how many of the leading numbers are kept, for models that were trained so.
    user: accepted and not used.
    prompt_name: the text of the model that stands before each text; left out it is the model's default, "" is none.
    normalize: whether an embedding is divided by its length; left out it is as the engine was built.
    """

    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    user: Name | None = None
    prompt_name: Name | None = None
    normalize: bool | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """Returns the texts in the form that LLM takes, one for each text or list of ids."""
        return prompts_of(self.input)


class ScoreRequest(TurnFields):
    """Texts to compare, in vLLM's form.

    text_1: one text, or as many as text_2; of an engine for reranking, the queries. text_2: one text, or several.
    instruction: what the engine for reranking is told of the search.
    """

    text_1: TextOrTexts
    text_2: TextOrTexts
    instruction: str | None = None


class DocumentText(StrictModel):
    """A document as an object."""

    text: str


Documents = Annotated[
    list[Annotated[Annotated[str, TEXT] | Annotated[DocumentText, OTHER], TEXT_OR_OTHER]],
    Field(min_length=1, max_length=bounds.PROMPTS, fail_fast=True),
]


class RerankRequest(TurnFields):
    """Documents to put in the order in which they fit a query, in the form of Jina and Cohere.

    documents: texts, or objects with text. top_n: how many are returned; left out it is all. return_documents: whether
    the answer repeats their texts. instruction: what the engine is told of the search.
    """

    query: str
    documents: Documents
    top_n: int | None = Field(None, ge=1, lt=2**31)
    return_documents: bool | None = None
    instruction: str | None = None

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


def pooling_params(body: TurnFields, defaults: Mapping[str, Any]) -> PoolingParams:
    """Returns the parameters of a request that draws nothing. defaults: those of the client, by field."""
    fields = {name: defaults[name] for name in _OF_KEY if name in defaults}
    given = {name: getattr(body, name) for name in ("priority", "deadline", "cache_salt")}
    return PoolingParams(**{**fields, **{name: value for name, value in given.items() if value is not None}})
