"""Declares the options of `tensorwright estimate` that say where a model is to run, and what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import At, Door, Rule, Size, declare, whole_number
from tensorwright.options.long_contexts import MAX_POSITIONS
from tensorwright.sizes import parse_size

HERE = "here"
"""The name of the machine that the estimate runs on."""
PROMPT, TOKENS = 512, 128
"""The tokens of a prompt and of an answer, unless options say others."""
MAX_BATCH = 1 << 16

_POSITIONS = whole_number(f"a whole number from 1 to {MAX_POSITIONS}", high=MAX_POSITIONS)
_BATCH = whole_number(f"a whole number from 1 to {MAX_BATCH}", high=MAX_BATCH)
_DEVICES = whole_number("a whole number from 1 to 1024", high=1024)
_IMAGES = whole_number("a whole number from 0 to 1024", low=0, high=1024)


def _estimate(help: str, **more: str) -> Mapping[Door, At]:
    return {Door.ESTIMATE: At(help, **more)}  # type: ignore[arg-type]


def _where(help: str, simulate: str = "", **more: str) -> Mapping[Door, At]:
    """Returns where an option is that says where a model is to run. simulate: the help of a simulation, if it is
    another."""
    return {**_estimate(help, **more), Door.SIMULATE: At(simulate or help, **more)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class EstimateFields:
    """What an estimate is asked. None means that the option was not given.

    context: the positions that each sequence holds. prompt, tokens: the tokens of a prompt and of an answer.
    """

    device: str = declare(
        HERE,
        rule=Rule("the name of a device, or a file of JSON", lambda value: isinstance(value, str) and bool(value)),
        at=_where(
            "A device of the table (--list-devices), a file NAME.json, or this machine.",
            "A device of `tensorwright estimate --list-devices` or a file NAME.json, whose steps are predicted; or "
            "this machine, where steps of an engine are measured.",
            metavar="NAME",
        ),
        section="Device and load",
    )
    memory: int | None = declare(
        None,
        Size,
        at=_where("Memory, such as 24GiB, in place of the device's."),
    )
    batch: int = declare(1, rule=_BATCH, at=_estimate("Sequences that run at once."))
    context: int | None = declare(
        None,
        int,
        rule=_POSITIONS,
        at=_estimate("Positions that each sequence holds, prompt and answer together. [default: their sum]"),
    )
    prompt: int | None = declare(
        None,
        int,
        rule=_POSITIONS,
        at=_estimate(f"Tokens of a prompt. [default: {PROMPT}, or what --context leaves]"),
    )
    tokens: int | None = declare(
        None, int, rule=_POSITIONS, at=_estimate(f"Tokens of an answer. [default: {TOKENS}, or what --context leaves]")
    )
    images: int = declare(
        0, rule=_IMAGES, at=_estimate("Images, or tiles of them, in a prompt, for models that read images.")
    )
    tensor_parallel: int = declare(
        1, rule=_DEVICES, at=_where("Devices that share every matrix (build-engine --tensor-parallel).")
    )
    threads: int | None = declare(
        None,
        int,
        rule=whole_number("a whole number from 1 to 1024", high=1024),
        at=_where("Threads, on this machine. [default: one per usable processor]"),
    )


@dataclass(frozen=True)
class Lengths:
    """The tokens of a prompt and of an answer, and the positions that a sequence holds."""

    prompt: int
    tokens: int
    context: int

    @property
    def middle(self) -> int:
        """The positions of a sequence in the middle of its answer."""
        return min(self.context, self.prompt + max(1, self.tokens // 2))


def lengths_of(asked: EstimateFields) -> Lengths:
    """Returns the lengths that the options mean. Raises InvalidOptionError for those that do not fit each other."""
    context, prompt, tokens = asked.context, asked.prompt, asked.tokens
    if context is None:
        prompt, tokens = prompt or PROMPT, tokens or TOKENS
        return Lengths(prompt, tokens, prompt + tokens)
    if context < 2:
        raise InvalidOptionError(
            f"context must be at least 2, a token of the prompt and one of the answer, not {context}"
        )
    if tokens is None:
        tokens = context - prompt if prompt is not None else min(TOKENS, max(1, context // 2))
    prompt = context - tokens if prompt is None else prompt
    if tokens < 1 or prompt < 1 or prompt + tokens > context:
        raise InvalidOptionError(
            f"context must hold prompt and answer: {context} positions do not hold {asked.prompt or prompt} and "
            f"{asked.tokens or tokens} tokens"
        )
    return Lengths(prompt, tokens, context)


def memory_of(asked: EstimateFields) -> int | None:
    """Returns the bytes of the option `memory`; None if it was not given. Raises InvalidOptionError."""
    return None if asked.memory is None else parse_size(asked.memory, "memory")
