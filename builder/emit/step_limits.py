"""Chooses the largest step of an engine whose memory is planned for one: sequences, tokens, and rows of logits."""

from __future__ import annotations

from tensorwright.engine_format.targets import StepSizes
from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import find
from tensorwright.options.engine import EngineFields
from tensorwright.options.speculation import Speculation

PROMPT_ROWS: int = find(EngineFields, "max_prompt_logprob_rows").default
"""The prompt positions of a step that may have logits, beside one row per sequence."""
PROPOSED_ROWS = Speculation.rows
"""The proposed tokens of a step, each of which has logits, where nobody asks for more."""


def make_limits(max_batch_size: int | None, max_num_tokens: int | None, usual: StepSizes) -> tuple[int, int]:
    """Returns (sequences, tokens) of a step. usual: what holds where None is given.

    Raises InvalidOptionError if a step has fewer tokens than sequences.
    """
    if max_num_tokens is None:
        max_num_tokens = max(usual.tokens, max_batch_size or 0)
    if max_batch_size is None:
        max_batch_size = min(usual.seqs, max_num_tokens)
    if max_batch_size > max_num_tokens:
        raise InvalidOptionError(
            f"max_num_tokens must be at least max_batch_size, a token of every sequence: {max_num_tokens} is below "
            f"{max_batch_size}; raise it (--max-num-tokens) or lower the other"
        )
    return max_batch_size, max_num_tokens


def max_rows(seqs: int, tokens: int, proposed: int = 0) -> int:
    """Returns the most rows of logits of a step with at most so many sequences, tokens and proposed tokens."""
    return min(tokens, seqs + PROMPT_ROWS + proposed)
