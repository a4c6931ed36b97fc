"""Draws the times at which a load test sends its requests, and the lengths of their prompts and outputs.

The lengths are log-normal for four uses, or fixed. The means and sigmas are chosen and are not fitted to any traffic:
chat has prompts of a conversation and answers of a paragraph or two, and both vary much; summarisation has long
prompts and short outputs; code has short prompts and short outputs. An agent sends several turns of one conversation,
each of which adds a tool's result to the last one. All agents have the same system prompt and tools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensorwright.options.bench import AGENT, FIXED


def poisson_times(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Returns the times of `count` independent arrivals, `rate` per second, in seconds. All gaps are exponential, also
    the one before the first arrival."""
    return np.cumsum(rng.exponential(1.0 / rate, count)).tolist()


def burst_times(count: int, rate: float | None, size: int | None) -> list[float]:
    """Returns the times of `count` arrivals in seconds: `size` arrive at the same moment, `rate` per second in the
    mean. Without a size or a rate, all arrive at once."""
    if size is None or rate is None:
        return [0.0] * count
    return [(i // size) * (size / rate) for i in range(count)]


@dataclass(frozen=True)
class LogNormal:
    """Lengths in tokens whose logarithm is normal. mean: the mean of the lengths. sigma: the logarithm's standard
    deviation."""

    mean: float
    sigma: float

    def scaled(self, share: float) -> LogNormal:
        return LogNormal(max(1.0, self.mean * share), self.sigma)

    def sample(self, count: int, most: int, rng: np.random.Generator) -> list[int]:
        """Draws `count` whole numbers from 1 to `most`. Numbers outside take the bound, so a low `most` lowers the
        mean."""
        values = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.clip(np.rint(values), 1, most).astype(int).tolist()


@dataclass(frozen=True)
class Profile:
    prompt: LogNormal
    output: LogNormal


LENGTHS = {
    "chat": Profile(LogNormal(750, 1.2), LogNormal(200, 0.9)),
    "summarisation": Profile(LogNormal(1750, 0.5), LogNormal(90, 0.6)),
    "code": Profile(LogNormal(170, 0.5), LogNormal(100, 0.7)),
}


@dataclass(frozen=True)
class AgentProfile:
    """The conversations of agents. Lengths are tokens.

    prefix: the system prompt and the tools, which are the same for all agents. question: what a user asks in the first
    turn. result: what a tool returns to each later turn. output: the answer or the call of a tool that ends a turn.
    turns: the mean turns of a conversation; how many one has is geometric, from 1 on. users: the conversations that go
    on at once where arrivals are drawn; they take turns.
    """

    prefix: int
    question: LogNormal
    result: LogNormal
    output: LogNormal
    turns: float
    users: int


AGENTS = AgentProfile(
    prefix=4000,
    question=LogNormal(100, 0.8),
    result=LogNormal(400, 0.9),
    output=LogNormal(120, 0.8),
    turns=6.0,
    users=8,
)
"""The outputs are short beside the prompts, as in the traces of tool use and agents of Mooncake (Qin et al., FAST 2025,
"Mooncake: Trading more storage for less computation", table of traces), where prompts of several thousand tokens have
answers of less than 200 and most tokens of prompts are those of earlier ones."""
MAX_PREFIX_SHARE = 2 / 3
"""The most of the longest prompt that the common beginning of agents may take. A low --input-len shortens it, and
questions and results as much, so that a conversation still has its turns."""


@dataclass(frozen=True)
class RequestLengths:
    """The lengths of one request, in tokens.

    conversation: requests with the same number are the turns of one conversation, in this order. The prompt of a turn
    begins with the whole prompt of the turn before. common: the tokens at the beginning of the prompt that are the same
    in all requests; 0 where prompts have nothing in common.
    """

    prompt: int
    output: int
    conversation: int
    common: int = 0


def draw_lengths(
    profile: str, count: int, prompt: int, output: int, rng: np.random.Generator, users: int | None = None
) -> list[RequestLengths]:
    """Returns the lengths of `count` requests, in the order in which they are sent. `prompt` and `output` are the
    lengths of the profile `fixed`, and the bounds of every other profile. users: of the profile `agent`, the
    conversations that go on at once."""
    if profile == AGENT:
        return _draw_turns(count, prompt, output, rng, users or AGENTS.users)
    if profile == FIXED:
        return [RequestLengths(prompt, output, index) for index in range(count)]
    chosen = LENGTHS[profile]
    prompts = chosen.prompt.sample(count, prompt, rng)
    outputs = chosen.output.sample(count, output, rng)
    return [RequestLengths(*pair, index) for index, pair in enumerate(zip(prompts, outputs, strict=True))]


def _draw_turns(count: int, most: int, output: int, rng: np.random.Generator, users: int) -> list[RequestLengths]:
    """Returns the turns of agents. Each user has a conversation, and the users send in turn. A conversation ends after
    its drawn number of turns, or before the turn whose prompt would be longer than `most`; its user then begins a new
    one."""
    common = min(AGENTS.prefix, int(most * MAX_PREFIX_SHARE))
    share = common / AGENTS.prefix
    results = AGENTS.result.scaled(share).sample(count, most, rng)
    questions = AGENTS.question.scaled(share).sample(count, max(1, most - common), rng)
    outputs = AGENTS.output.sample(count, output, rng)
    goes_on = rng.random(count) >= 1 / AGENTS.turns
    made, latest, conversations = list[RequestLengths](), dict[int, int](), 0
    for index in range(count):
        before = latest.get(index % users)
        latest[index % users] = index
        if before is not None and goes_on[before]:
            last = made[before]
            prompt = last.prompt + last.output + results[index]
            if prompt <= most:
                made.append(RequestLengths(prompt, outputs[index], last.conversation, common))
                continue
        made.append(RequestLengths(common + questions[index], outputs[index], conversations, common))
        conversations += 1
    return made
