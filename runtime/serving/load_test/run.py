"""Makes the requests of a load test, sends each when its time comes, and returns a trace of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.runtime.serving.load_test.client import Client
from tensorwright.runtime.serving.load_test.made_prompts import make_prompts
from tensorwright.runtime.serving.load_test.settings import LoadSettings
from tensorwright.runtime.serving.load_test.trace import Trace
from tensorwright.runtime.serving.load_test.workload import burst_times, draw_lengths, poisson_times

DEFAULT_RATE = 1.0


@dataclass(frozen=True)
class MadeRequest:
    """A request to send: the body of POST /v1/completions, the lengths of its prompt and output in tokens, and the
    number of the conversation of which it is a turn."""

    body: dict[str, Any]
    prompt_tokens: int
    max_tokens: int
    conversation: int


async def make_requests(client: Client, model: str, settings: LoadSettings) -> list[MadeRequest]:
    """Makes the requests of the warm-up, then those that are measured. Lengths, prompts and arrivals have random
    generators of their own, so that the same seed gives the same prompts at every rate."""
    count = settings.warmup + settings.requests
    rng = _generator(settings, 0)
    lengths = draw_lengths(settings.profile, count, *settings.lengths, rng, settings.concurrency)
    prompts = await make_prompts(client, model, lengths, settings, _generator(settings, 1))
    common = {"model": model, "temperature": settings.temperature, "seed": settings.seed, "stream": True}
    common["stream_options"] = {"include_usage": True}
    if settings.ignore_eos:
        common["ignore_eos"] = True
    return [
        MadeRequest(common | {"prompt": text, "max_tokens": one.output}, one.prompt, one.output, one.conversation)
        for text, one in zip(prompts, lengths, strict=True)
    ]


def arrival_times(settings: LoadSettings) -> list[float]:
    if settings.arrival == "burst":
        return burst_times(settings.requests, settings.rate, settings.burst_size)
    return poisson_times(settings.requests, settings.rate or DEFAULT_RATE, _generator(settings, 2))


async def run_load(
    client: Client, requests: list[MadeRequest], settings: LoadSettings, done: Callable[[int], None]
) -> list[Trace]:
    """Sends the requests of the warm-up one by one, then those of the test, and returns the traces of the test. It
    calls `done(1)` after each request of the test."""
    clock = _clock()
    for request in requests[: settings.warmup]:
        await client.complete(request.body, _trace(request, clock()), clock)
    measured = requests[settings.warmup :]
    if settings.concurrency is not None:
        return await _closed_loop(client, measured, settings.concurrency, done)
    return await _open_loop(client, measured, arrival_times(settings), done)


async def _open_loop(
    client: Client, requests: list[MadeRequest], times: list[float], done: Callable[[int], None]
) -> list[Trace]:
    """Sends every request at its time, whether or not earlier ones have ended. A later turn of a conversation is sent
    at its time or when the turn before has ended, whichever is later, and counts from then on."""
    clock, latest = _clock(), dict[int, asyncio.Task[Trace]]()

    async def send(request: MadeRequest, when: float, before: asyncio.Task[Trace] | None) -> Trace:
        await asyncio.sleep(when - clock())
        if before is not None:
            when = max(when, (await before).end)
        trace = _trace(request, when)
        await client.complete(request.body, trace, clock)
        done(1)
        return trace

    async with asyncio.TaskGroup() as group:
        tasks = list[asyncio.Task[Trace]]()
        for request, when in zip(requests, times, strict=True):
            task = group.create_task(send(request, when, latest.get(request.conversation)))
            latest[request.conversation] = task
            tasks.append(task)
    return [task.result() for task in tasks]


async def _closed_loop(
    client: Client, requests: list[MadeRequest], users: int, done: Callable[[int], None]
) -> list[Trace]:
    """Simulates `users` users. Each sends the next turn of its conversation when its last one was answered, and takes
    the next conversation when its last one is over."""
    conversations = dict[int, list[MadeRequest]]()
    for request in requests:
        conversations.setdefault(request.conversation, []).append(request)
    clock, left, traces = _clock(), iter(conversations.values()), list[Trace]()

    async def user() -> None:
        for turns in left:
            for request in turns:
                trace = _trace(request, clock())
                traces.append(trace)
                await client.complete(request.body, trace, clock)
                done(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())
    return traces


def _generator(settings: LoadSettings, part: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, part])


def _trace(request: MadeRequest, scheduled: float) -> Trace:
    return Trace(scheduled, request.prompt_tokens, request.max_tokens)


def _clock() -> Callable[[], float]:
    """Returns a clock that counts seconds from now on."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
