"""Turns the pooled rows of finished requests into embeddings and scores, for every door, and makes their prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorwright.engine_format.pooling import EMBED, GENERATE, PLACES, RERANK, PoolingRecord
from tensorwright.errors import DeadlineError, InvalidRequestError, NumericalError, RequestAbortedError, TaskError
from tensorwright.number_checks import is_int
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.prompts import Prompt, RenderedPrompt

_PLACE = re.compile(f"({'|'.join(map(re.escape, PLACES))})")
Row = NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddingOutput:
    """The embedding of one prompt.

    embedding: float32 [dimensions]. prompt_token_ids: the tokens that it was computed of, those of a named prompt
    included. cached_tokens: how many of them came from the prefix cache.
    """

    embedding: Row
    prompt_token_ids: list[int]
    cached_tokens: int = 0


@dataclass(frozen=True)
class ScoreOutput:
    """How well two texts fit each other: a cosine, from -1 to 1, or a probability. prompt_tokens: those computed."""

    score: float
    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class RankedDocument:
    """A document of a ranking. index: its place in the list that was given. relevance_score: as in ScoreOutput."""

    index: int
    document: str
    relevance_score: float


@dataclass(frozen=True)
class EmbeddingWish:
    """What a caller wants of an embedding.

    prompt_name: the text that stands before a text; None means the engine's default, "" none. dimensions: the leading
    numbers that are kept; None means all. normalize: None means as the engine was built.
    """

    prompt_name: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None

    def prompts(self, engine: EngineDir, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Returns the prompts with the text that stands before each. Raises TaskError for an engine that does not
        embed, and InvalidRequestError for a name or for dimensions that it does not have."""
        record = pooling_of(engine, EMBED)
        width = engine.config.model.hidden_size
        if self.dimensions is not None and not (is_int(self.dimensions) and 1 <= self.dimensions <= (width or 0)):
            raise InvalidRequestError(
                f"dimensions must be a whole number from 1 to {width}, the model's, got {self.dimensions!r}"
            )
        name = record.default_prompt if self.prompt_name is None else self.prompt_name
        if not name:
            return list(prompts)
        if name not in record.prompts:
            known = ", ".join(record.prompts) or "none"
            raise InvalidRequestError(f"prompt_name must be one of the model's prompts ({known}), got {name!r:.80}")
        before = record.prompts[name]
        return [_after(before, prompt, named=self.prompt_name is not None) for prompt in prompts]

    def embedding(self, engine: EngineDir, output: RequestOutput) -> EmbeddingOutput:
        """Returns the embedding of a finished request. Raises what `finished_row` raises."""
        record = pooling_of(engine, EMBED)
        row = finished_row(output)[: self.dimensions]
        if record.normalize if self.normalize is None else self.normalize:
            row = normalised(row)
        return EmbeddingOutput(row, output.prompt_token_ids, output.metrics.cached_tokens)


def _after(before: str, prompt: Prompt, named: bool) -> Prompt:
    """Returns a prompt with a text before it. named: whether the caller asked for it; token ids refuse it then, and
    have none otherwise."""
    if isinstance(prompt, str):
        return before + prompt
    if isinstance(prompt, dict) and isinstance(prompt.get("prompt"), str):
        return {"prompt": before + prompt["prompt"]}
    if named:
        raise InvalidRequestError("prompt_name must come with texts: token ids have no text that it can stand before")
    return prompt


def pooling_of(engine: EngineDir, *tasks: str) -> PoolingRecord:
    """Returns the engine's record of pooling. Raises TaskError for an engine of another task than `tasks`."""
    record = engine.config.pooling
    task = GENERATE if record is None else record.task
    if record is None or task not in tasks:
        raise TaskError(
            f"this engine was built for task {task}, and this needs one of task {' or '.join(tasks)}: build the "
            f"checkpoint with --task {tasks[0]} (docs/embeddings.md)"
        )
    return record


def finished_row(output: RequestOutput) -> Row:
    """Returns the row of a finished request. Raises DeadlineError and RequestAbortedError for one without, and
    NumericalError for numbers that are not finite."""
    if output.pooled is not None:
        if not np.isfinite(output.pooled).all():
            raise NumericalError("the model's numbers came out as NaN or infinite for this text")
        return output.pooled
    if output.outputs[0].finish_reason == "timeout":
        raise DeadlineError("the request's time was over before its prompt was computed")
    raise RequestAbortedError(f"request {output.request_id} was aborted before it finished")


def normalised(row: Row) -> Row:
    """Returns a row divided by its Euclidean length, which is computed in float64. A row of zeros stays as it is."""
    wide = row.astype(np.float64)
    length = float(np.sqrt(np.sum(wide * wide)))
    return row if length == 0 else (wide / length).astype(np.float32)


class Scoring:
    """The scoring of pairs of texts by one engine: `prompts()` go to the engine, and `scores` reads their outputs."""

    def __init__(self, engine: EngineDir, queries: Sequence[str], documents: Sequence[str], instruction: str | None):
        """queries: one, or as many as `documents`. Raises TaskError and InvalidRequestError."""
        self._record = pooling_of(engine, EMBED, RERANK)
        self._engine = engine
        if not queries or not documents or len(queries) not in (1, len(documents)):
            raise InvalidRequestError(
                f"text_1 must be one text, or as many as text_2, at least one: got {len(queries)} and {len(documents)}"
            )
        if not all(isinstance(text, str) for text in (*queries, *documents)):
            raise InvalidRequestError("texts to compare must be strings")
        if instruction is not None and self._record.task != RERANK:
            raise InvalidRequestError("instruction is for engines of task rerank; put it before the query, or leave it")
        self._queries, self._documents, self._instruction = queries, documents, instruction
        self._one_query = len(queries) == 1
        self._count = len(documents)

    @property
    def count(self) -> int:
        """The number of prompts."""
        return self._count + (0 if self._record.task == RERANK else len(self._queries))

    def prompts(self) -> Iterator[Prompt]:
        """Yields the prompts one by one: a long query stands in each of them, and the first that is too long is refused
        before the next is made."""
        if self._record.task != RERANK:
            yield from (*self._queries, *self._documents)
            return
        for number, document in enumerate(self._documents):
            yield self._filled(self._queries[0 if self._one_query else number], document)

    def _filled(self, query: str, document: str) -> RenderedPrompt:
        """Fills the template in one pass, so that a text with the name of a place in it changes nothing."""
        record = self._record
        own = record.instruction or "" if self._instruction is None else self._instruction
        texts = dict(zip(PLACES, (own, query, document), strict=True))
        parts = _PLACE.split(record.template or "")
        return RenderedPrompt("".join(texts[part] if odd % 2 else part for odd, part in enumerate(parts)))

    def scores(self, outputs: Sequence[RequestOutput]) -> list[ScoreOutput]:
        """Returns the score of each pair. outputs: those of `prompts()`, in order."""
        rows = [finished_row(output) for output in outputs]
        tokens = [len(output.prompt_token_ids) for output in outputs]
        cached = [output.metrics.cached_tokens for output in outputs]
        if self._record.task == RERANK:
            values = [_yes(row) for row in rows]
            return [ScoreOutput(*each) for each in zip(values, tokens, cached, strict=True)]
        first = len(outputs) - self._count
        found = []
        for number in range(self._count):
            query, document = 0 if self._one_query else number, first + number
            counted = number == 0 or not self._one_query  # one query is computed once
            found.append(
                ScoreOutput(
                    _cosine(rows[query], rows[document]),
                    tokens[document] + (tokens[query] if counted else 0),
                    cached[document] + (cached[query] if counted else 0),
                )
            )
        return found


def _yes(row: Row) -> float:
    """Returns the softmax of the logits of "no" and "yes", at "yes"."""
    no, yes = row.astype(np.float64)
    return float(1 / (1 + np.exp(np.clip(no - yes, -700, 700))))


def _cosine(a: Row, b: Row) -> float:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.sqrt(np.sum(wide_a * wide_a)) * np.sqrt(np.sum(wide_b * wide_b)))
    return 0.0 if lengths == 0 else float(np.sum(wide_a * wide_b) / lengths)


def ranking(documents: Sequence[str], scores: Sequence[ScoreOutput], top_n: int | None) -> list[RankedDocument]:
    """Returns the best documents, the best one first. Documents of the same score keep their order."""
    if top_n is not None and not (is_int(top_n) and top_n >= 1):
        raise InvalidRequestError(f"top_n must be a whole number of at least 1, got {top_n!r}")
    order = sorted(range(len(documents)), key=lambda number: -scores[number].score)
    return [RankedDocument(number, documents[number], scores[number].score) for number in order[:top_n]]
