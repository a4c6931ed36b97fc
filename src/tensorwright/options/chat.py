"""Declares the options of `tensorwright chat`: those of `run` that fit a conversation."""

from __future__ import annotations

from dataclasses import replace

from tensorwright.options.declare import At, Door, Option, find
from tensorwright.options.engine import EngineFields
from tensorwright.options.request import SAMPLING

NOT_OF_A_CHAT = (
    "n", "beam_width", "length_penalty", "early_stopping", "logprobs", "prompt_logprobs", "truncate_prompt_tokens",
    "timeout", "ignore_eos",
)  # fmt: skip
"""What shows several answers, or other things than the answer's text, or makes one without an end."""

TEMPERATURE = 0.7
"""The temperature for a model that has no default of its own."""
_HELP = {
    "max_tokens": "The most tokens of an answer. [default: as many as the context has room for]",
    "temperature": f"Temperature of sampling; 0 is greedy. [default: the model's, or {TEMPERATURE}]",
}


def _of_a_chat(option: Option) -> Option:
    if option.name not in _HELP:
        return option
    return replace(option, default=None, at={Door.RUN: At(_HELP[option.name])})


CHAT_SAMPLING = tuple(_of_a_chat(option) for option in SAMPLING if option.name not in NOT_OF_A_CHAT)
CHAT_TEMPLATE = (replace(find(EngineFields, "chat_template"), at={Door.RUN: At(metavar="FILE|NAME")}),)
