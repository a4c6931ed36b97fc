"""Says what an engine answers with: tokens, the pooled hidden states of a text, or how well a document fits a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorwright.engine_format.strict_json import OPTIONAL, read_value

GENERATE, EMBED, RERANK = "generate", "embed", "rerank"
TASKS = (GENERATE, EMBED, RERANK)
LAST, MEAN = "last", "mean"
POOLINGS = (LAST, MEAN)
PLACES = ("{instruction}", "{query}", "{document}")
"""The places of a rerank engine's template."""


@dataclass(frozen=True, kw_only=True)
class PoolingRecord:
    """What becomes of the rows that the model computes for a prompt, in an engine that draws no tokens."""

    task: str
    """EMBED: a row is the hidden state after the final norm. RERANK: a row is the logits."""
    pooling: str
    """LAST: the row of the last token of the prompt counts. MEAN: the mean of the rows of all its tokens counts."""
    normalize: bool = field(default=False, metadata=OPTIONAL)
    """Whether an embedding is divided by its length, in the Euclidean sense, unless a request says otherwise."""
    prompts: dict[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Texts that stand before a text to embed, by name."""
    default_prompt: str | None = field(default=None, metadata=OPTIONAL)
    """The name of the prompt of a request that names none."""
    tokens: list[int] | None = field(default=None, metadata=OPTIONAL)
    """Of RERANK: the tokens of "no" and "yes". The score is the softmax of their two logits, at "yes"."""
    template: str | None = field(default=None, metadata=OPTIONAL)
    """Of RERANK: the text that the model reads, with PLACES in it."""
    instruction: str | None = field(default=None, metadata=OPTIONAL)
    """Of RERANK: the instruction of a request that gives none."""


def read_pooling(record: Any, vocab_size: int) -> PoolingRecord:
    """Reads the record of config.json. Raises ValueError for one that no build writes."""
    read: PoolingRecord = read_value(PoolingRecord, record, "pooling")
    if read.task not in (EMBED, RERANK) or read.pooling not in POOLINGS:
        raise ValueError(f"pooling: there is no task {read.task!r} with pooling {read.pooling!r}")
    if read.default_prompt is not None and read.default_prompt not in read.prompts:
        raise ValueError(f"pooling: the default prompt {read.default_prompt!r} is none of the prompts")
    if read.task == RERANK:
        tokens, template = read.tokens or [], read.template or ""
        if len(tokens) != 2 or not all(0 <= token < vocab_size for token in tokens):
            raise ValueError(f"pooling: tokens must be two of the vocabulary, not {read.tokens!r}")
        if any(template.count(place) != 1 for place in PLACES) or read.instruction is None:
            raise ValueError(f"pooling: the template must have {', '.join(PLACES)} once each, and an instruction")
    return read
