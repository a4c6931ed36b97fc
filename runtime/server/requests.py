"""The requests of the engine that one HTTP request stands for: started and waited for together, and aborted as soon as
nobody listens any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.types import Receive

from tensorwright.runtime.async_requests import RequestHandle
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.outputs import RequestOutput
from tensorwright.runtime.prompts import Prompt
from tensorwright.runtime.sampling_params import SamplingParams
from tensorwright.runtime.server.responses import CachedTokens, Usage


class ClientGone(Exception):
    """Whoever asked has hung up."""


async def start_all(
    llm: LLM, make_prompts: Callable[[], Sequence[Prompt]], params: SamplingParams
) -> list[RequestHandle]:
    """In another thread, for a long prompt takes long to tokenize. All are started, or none goes on."""
    starting = asyncio.ensure_future(asyncio.to_thread(_start, llm, make_prompts, params))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_abort_started)
        raise


def _start(llm: LLM, make_prompts: Callable[[], Sequence[Prompt]], params: SamplingParams) -> list[RequestHandle]:
    handles: list[RequestHandle] = []
    try:
        for prompt in make_prompts():
            handles.append(llm.generate_async(prompt, params))
    except BaseException:
        abort_all(handles)
        raise
    return handles


def _abort_started(starting: asyncio.Future[list[RequestHandle]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        abort_all(starting.result())


def abort_all(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        handle.abort()


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def finish_all(handles: Sequence[RequestHandle], receive: Receive) -> list[RequestOutput]:
    """Waits for all; the first error aborts the others and is raised. ClientGone if the client does not wait."""
    everything = asyncio.gather(*handles)
    leaving = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        either: set[asyncio.Future[Any]] = {everything, leaving}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            raise ClientGone
        return everything.result()
    finally:
        abort_all(handles)
        everything.cancel()
        leaving.cancel()
        await asyncio.gather(everything, leaving, return_exceptions=True)


async def follow_all(handles: Sequence[RequestHandle]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """(number of the handle, its output so far), as they come, until all have finished; an error of any is raised.

    A slow reader skips what is outdated, so nothing piles up.
    """
    news: asyncio.Queue[tuple[int, RequestOutput] | BaseException] = asyncio.Queue(maxsize=1)

    async def follow(number: int, handle: RequestHandle) -> None:
        try:
            async for output in handle:
                await news.put((number, output))
        except Exception as error:
            await news.put(error)

    tasks = [asyncio.ensure_future(follow(number, handle)) for number, handle in enumerate(handles)]
    try:
        left = len(tasks)
        while left:
            item = await news.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            left -= item[1].finished
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def count_usage(outputs: Sequence[RequestOutput], generated: bool = True) -> Usage:
    """generated: whether what was generated is part of the answer."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs) if generated else 0
    cached = sum(output.metrics.cached_tokens for output in outputs)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )
