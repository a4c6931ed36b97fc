"""Answers LLM.embed, LLM.score and LLM.rerank: many requests at once, in the order in which they were given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.pooled_rows import (
    EmbeddingOutput,
    EmbeddingWish,
    RankedDocument,
    ScoreOutput,
    Scoring,
    ranking,
)
from tensorwright.runtime.requests.pooling_params import PoolingParams


class LLM(Protocol):
    """What this file needs of an LLM, which imports it."""

    engine: EngineDir

    def generate(self, prompts: Any, sampling_params: Any = None, *, progress: bool = False) -> Any: ...


def embed(llm: LLM, prompts: Any, wish: EmbeddingWish, params: PoolingParams | None, progress: bool) -> Any:
    """Does what LLM.embed says."""
    single = isinstance(prompts, (str, bytes, dict)) or not hasattr(prompts, "__iter__")
    if params is not None and not isinstance(params, PoolingParams):
        raise InvalidRequestError(f"params must be PoolingParams, got {type(params).__name__}")
    given = wish.prompts(llm.engine, [prompts] if single else list(prompts))
    outputs = llm.generate(given, params or PoolingParams(), progress=progress)
    made: list[EmbeddingOutput] = [wish.embedding(llm.engine, output) for output in outputs]
    return made[0] if single else made


def score(llm: LLM, text_1: Any, text_2: Any, instruction: str | None, progress: bool = False) -> list[ScoreOutput]:
    """Does what LLM.score says."""
    queries, documents = ([text] if isinstance(text, str) else list(text) for text in (text_1, text_2))
    scoring = Scoring(llm.engine, queries, documents, instruction)
    return scoring.scores(llm.generate(list(scoring.prompts()), PoolingParams(), progress=progress))


def rerank(
    llm: LLM, query: str, documents: Sequence[str], top_n: int | None, instruction: str | None
) -> list[RankedDocument]:
    """Does what LLM.rerank says."""
    ranking((), (), top_n)  # refuses a wrong top_n before any work
    given = list(documents)
    return ranking(given, score(llm, query, given, instruction), top_n)
