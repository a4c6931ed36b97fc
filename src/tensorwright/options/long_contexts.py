"""Declares the options of a build that bound what attention sees or the KV cache keeps. docs/long-contexts.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.kv_cache import CPU_BLOCK, SPARSE_KEPT_BLOCKS
from tensorwright.options.declare import FIRST_USE_DOORS, At, Door, Rule, declare, whole_number

SINK_TOKENS = 4
"""The sink tokens beside an attention window, unless a build says another number: those of StreamingLLM's paper."""
MAX_SINK_TOKENS = 512
"""Equal to TW_MAX_SINK_TOKENS of runtime/core/base/first_seen.h."""
RECENT_SHARE = 4
"""One of so many tokens of a kv_budget is recent, unless a build says another number."""
MIN_SPARSE_PREFILL = (SPARSE_KEPT_BLOCKS + 1) * CPU_BLOCK
"""At least one block is chosen."""
MAX_POSITIONS = 1 << 24
"""The longest sequence in tokens. runtime/core/plan/plan.cc has the same number."""

_WINDOW = whole_number(f"a whole number from 0 to {MAX_POSITIONS}", low=0, high=MAX_POSITIONS)
_SINKS = whole_number(f"a whole number from 0 to {MAX_SINK_TOKENS}", low=0, high=MAX_SINK_TOKENS)
_SPARSE = Rule(
    f"0, or a multiple of {CPU_BLOCK} from {MIN_SPARSE_PREFILL} to {MAX_POSITIONS}",
    lambda value: (
        type(value) is int and (value == 0 or MIN_SPARSE_PREFILL <= value <= MAX_POSITIONS) and value % CPU_BLOCK == 0
    ),
)


def _of_long_contexts(named: str, help: str, rule: Rule) -> Any:
    """Returns a field for an option that bounds what attention sees or the KV cache keeps: a number of positions, with
    0 for none. named: the option in words."""
    of_first_use = At(f"{named} of the engine that is built from a model directory, as in build-engine.", minimum=0)
    return declare(
        None,
        int,
        rule=rule,
        targets=("cpu",),
        at={
            Door.BUILD: At(help, minimum=0),
            Door.REBUILD: At("As in build-engine. [default: the engine's]", minimum=0),
            Door.LLM: At(),
            **dict.fromkeys(FIRST_USE_DOORS, of_first_use),
        },
    )


@dataclass(frozen=True)
class LongContextFields:
    """The options of `build` for long contexts, in the order of config.json. Only target cpu has them."""

    attention_window: int | None = _of_long_contexts(
        "Attention window",
        "Bound the memory of a sequence: layers that attend to all positions see the last so many, and "
        "--sink-tokens first ones. Answers change. See docs/long-contexts.md. [default: 0, all positions]",
        _WINDOW,
    )
    sink_tokens: int | None = _of_long_contexts(
        "Sink tokens",
        "With --attention-window or --kv-budget: how many first positions of a text are always seen. "
        f"[default: {SINK_TOKENS}]",
        _SINKS,
    )
    kv_budget: int | None = _of_long_contexts(
        "KV budget",
        "Bound the memory of a sequence: at every 128th token the KV cache keeps so many tokens, those that "
        "attention looked at most, and forgets the others. Answers change. See docs/long-contexts.md. "
        "[default: 0, all]",
        _WINDOW,
    )
    recent_tokens: int | None = _of_long_contexts(
        "Recent tokens",
        "With --kv-budget: how many tokens of it are the last ones, which always stay. [default: a quarter]",
        _WINDOW,
    )
    sparse_prefill: int | None = _of_long_contexts(
        "Sparse prefill",
        f"Compute long prompts faster: each {CPU_BLOCK} positions of a prompt see at most so many, in "
        "blocks that they choose by their scores. The answer sees all. Answers change. "
        f"A multiple of {CPU_BLOCK}, such as 2048. See docs/long-contexts.md. [default: 0, all positions]",
        _SPARSE,
    )
