"""Declares the options of `tensorwright bench` that describe the load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.number_checks import is_int, real
from tensorwright.options.declare import At, Door, Rule, TwoNumbers, declare, is_positive, whole_number

ARRIVALS = ("poisson", "burst")
FIXED, AGENT = "fixed", "agent"
PROFILES = ("chat", "summarisation", "code", AGENT, FIXED)
"""The lengths of prompts and outputs: as in four uses, or fixed. Only the prompts of `agent` begin alike."""
PROMPTS = ("text", "ids")
FIXED_LENGTHS = (512, 128)
"""The tokens of a prompt and of an output with fixed lengths, unless options say others."""
MAX_LENGTHS = (4096, 1024)
"""The most tokens of a prompt and of an output with drawn lengths, unless options say others."""
AGENT_LENGTHS = (8192, 1024)
"""The same of the profile `agent`, whose prompts hold a system prompt, tools and the turns before."""


def lengths_of(profile: str, prompt: int | None, output: int | None) -> tuple[int, int]:
    """Returns the tokens of prompt and output: the lengths of the profile `fixed`, the bounds of every other profile.
    prompt, output: what options say; None means that they say nothing."""
    defaults = {FIXED: FIXED_LENGTHS, AGENT: AGENT_LENGTHS}.get(profile, MAX_LENGTHS)
    return prompt or defaults[0], output or defaults[1]


_COUNT = whole_number("at least 1", high=math.inf)
_COUNT_FROM_0 = whole_number("0 or more", low=0, high=math.inf)
_POSITIVE = Rule("a positive number", is_positive)


def _bench(help: str) -> Mapping[Door, At]:
    return {Door.BENCH: At(help)}


def _serve(help: str, **differing: Any) -> Mapping[Door, At]:
    return {Door.BENCH_SERVE: At(help, **differing)}


def _load(help: str, simulate: str = "", estimate: str = "", **differing: Any) -> Mapping[Door, At]:
    """Returns where an option is that a simulated load has too. simulate: the help of a simulation, if it is another.
    estimate: that of an estimate of fleets, if that has the option too."""
    doors = {**_serve(help, **differing), Door.SIMULATE: At(simulate or help, **differing)}
    return {**doors, Door.ESTIMATE: At(estimate, **differing)} if estimate else doors


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_int, value)) and 0 <= value[0] < value[1]


@dataclass(frozen=True)
class LoadFields:
    """The load that `bench latency` and `bench throughput` put on an engine. A round is the set of requests that are
    submitted at once.

    warmup: the number of rounds that run first and are not measured.
    """

    input_len: int = declare(
        512,
        at=_bench("Tokens of a prompt, which are random ids."),
        section="Load",
    )
    output_len: int = declare(128, at=_bench("Tokens that each request generates."))
    batch_size: int = declare(1, at=_bench("Requests that run at once."))
    requests: int = declare(10, at=_bench("Requests that are measured."))
    warmup: int = declare(1, at=_bench("Batches that run first and are not measured."))
    seed: int = declare(0, at=_bench("Seed of the random ids."))


@dataclass(frozen=True)
class LoadTestFields:
    """The load that `bench serve` puts on a server. None means that the option was not given."""

    requests: int = declare(
        100,
        rule=_COUNT,
        at=_serve("Requests that are measured."),
        section="Load",
    )
    rate: float | None = declare(
        None,
        float,
        rule=_POSITIVE,
        at=_load(
            "Mean requests per second. [default: 1; of a burst: all at once]",
            "Mean requests per second. [default: 1; of a burst: all at once; of --arrival-file: its own]",
            "Requests per second: adds how many replicas meet --ttft-limit and --itl-limit at that rate.",
        ),
    )
    arrival: str | None = declare(
        None,
        str,
        choices=ARRIVALS,
        at=_serve(f"Arrivals of the requests: one by one at random, or in bursts. [default: {ARRIVALS[0]}]"),
    )
    burst_size: int | None = declare(
        None, int, rule=_COUNT, at=_load("With --arrival burst and --rate: requests that are sent at the same moment.")
    )
    concurrency: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at=_serve("Users who each wait for an answer before they ask again, in place of arrivals."),
    )
    profile: str = declare(
        "chat",
        choices=PROFILES,
        at=_load(
            f"Lengths of prompts and outputs: drawn as in that use, or fixed. With {AGENT}, users send several turns "
            "that begin alike."
        ),
    )
    input_len: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at=_load(
            f"Tokens of the longest prompt, or of a fixed one. [default: {MAX_LENGTHS[0]}; {AGENT}: "
            f"{AGENT_LENGTHS[0]}; fixed: {FIXED_LENGTHS[0]}]"
        ),
    )
    output_len: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at=_load(
            f"Tokens of the longest output, or of a fixed one. [default: {MAX_LENGTHS[1]}; fixed: {FIXED_LENGTHS[1]}]"
        ),
    )
    prompts: str = declare(
        "text",
        choices=PROMPTS,
        at=_serve("Form of the prompts: text or token ids. The server's /tokenize makes them of exact length."),
    )
    token_range: tuple[int, int] | None = declare(
        None,
        TwoNumbers,
        rule=Rule("LOW HIGH with 0 <= LOW < HIGH", _is_range),
        at=_serve(
            "With --prompts ids: the ids, from LOW to below HIGH. The server is not asked then.", metavar="LOW HIGH"
        ),
    )
    ttft_limit: float | None = declare(
        None,
        float,
        rule=_POSITIVE,
        at=_load(
            "Seconds within which a good request has its first token.",
            estimate="With --rate: seconds within which a good request has its first token.",
            metavar="S",
        ),
        section="Goals",
    )
    itl_limit: float | None = declare(
        None,
        float,
        rule=_POSITIVE,
        at=_load(
            "Seconds that the gaps between a good request's tokens last at most.",
            estimate="With --rate: seconds that 99 % of the gaps between a good request's tokens last at most.",
            metavar="S",
        ),
    )
    itl_percentile: float = declare(
        99.0,
        rule=Rule("above 0, up to 100", lambda value: 0 < real(value) <= 100),
        at=_load("Percentage of a good request's gaps that --itl-limit holds for."),
    )
    ignore_eos: bool = declare(
        True,
        at=_serve(
            "Whether outputs go on after the end of the text, to full length.", flag="--ignore-eos/--no-ignore-eos"
        ),
        section="Load",
    )
    temperature: float = declare(
        0.0,
        rule=Rule("0 or more", lambda value: 0 <= real(value) < math.inf),
        at=_serve("Temperature of sampling; 0 is greedy."),
    )
    warmup: int = declare(1, rule=_COUNT_FROM_0, at=_serve("Requests that are sent first and are not measured."))
    timeout: float = declare(300.0, rule=_POSITIVE, at=_serve("Seconds of silence that end a request."))
    seed: int = declare(0, rule=_COUNT_FROM_0, at=_load("Seed of lengths, prompts and arrivals."))
