"""Starts, awaits and aborts the engine's requests that serve one HTTP request.

All are started and awaited together, and aborted as soon as the client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.types import Receive

from tensorwright.errors import TemporarilyUnavailableError
from tensorwright.runtime.guided.compile_queue import on_behalf_of
from tensorwright.runtime.guided.reader import vocabulary_reader
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_news import RequestNews
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.request_time import Deadline
from tensorwright.runtime.serving.server.responses import CachedTokens, Usage
from tensorwright.runtime.serving.server.served_model import ServedModel

T = TypeVar("T")
CLIENT_CLOSED = 499  # Only the server's log shows this status.


class ClientGone(Exception):
    """The client has closed its connection."""


async def in_text_pool(request: Request, work: Callable[[], T]) -> T:
    """Returns the result of `work`, which a thread of the pool for text runs. Raises ClientGone if the client leaves
    first."""
    pool = request.app.state.pools.text
    return await unless_gone(pool.run(work, client=client_of(request.scope)), request.receive)


async def start_all(
    request: Request, llm: ServedModel, make_prompts: Callable[[], Iterable[Prompt]], params: SamplingParams
) -> list[RequestHandle]:
    """Starts a request for every prompt, or none. A thread does so, for tokenizing a long prompt and compiling a
    grammar take long. Raises ClientGone if the client leaves before the start. Afterwards the body is not counted any
    more, for the engine's bounds hold."""
    pools = request.app.state.pools
    pool = pools.text if vocabulary_reader(llm.engine).knows(params.guided_decoding) else pools.grammar
    deadline = getattr(request.state, "deadline", None)
    client = client_of(request.scope)
    starting = pool.run(_start, llm, make_prompts, params, deadline, client, client=client, late=abort_all)
    handles = await unless_gone(starting, request.receive)
    if deadline is not None:
        deadline.leave_to_engine()
    request.state.held_body.close()
    return handles


def _start(
    llm: ServedModel,
    make_prompts: Callable[[], Iterable[Prompt]],
    params: SamplingParams,
    deadline: Deadline | None,
    client: str,
) -> list[RequestHandle]:
    handles: list[RequestHandle] = []
    version = None if params.adapter is None else llm.adapters.get(params.adapter)
    try:
        with on_behalf_of(client):
            for prompt in make_prompts():
                bounded = params if deadline is None else deadline.bound(params)
                handles.append(llm.generate_async(prompt, bounded))
        if len(handles) > 1 and version is not None and llm.adapters.get(version.name) is not version:
            raise TemporarilyUnavailableError(f"{version.name!r} was replaced as the request began; send it again")
    except BaseException:
        abort_all(handles)
        raise
    return handles


async def write_answer(request: Request, make: Callable[[], BaseModel]) -> Response:
    """Returns an answer in one piece. make: makes the answer's model; a thread runs it and writes the JSON."""
    pool = request.app.state.pools.answers
    text = await pool.run(lambda: make().model_dump_json(), client=client_of(request.scope))
    return Response(text, media_type="application/json")


def abort_all(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        handle.abort()


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(working: Awaitable[T], receive: Receive) -> T:
    """Returns the result of `working`. Raises ClientGone, and cancels the work, if the client leaves first."""
    result = asyncio.ensure_future(working)
    leaving = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        either: set[asyncio.Future[Any]] = {result, leaving}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientGone
        return result.result()
    finally:
        result.cancel()
        leaving.cancel()
        await asyncio.gather(result, leaving, return_exceptions=True)


async def finish_all(handles: Sequence[RequestHandle], receive: Receive) -> list[RequestOutput]:
    """Waits for all requests. The first error aborts the others and is raised. Raises ClientGone if the client
    leaves."""
    try:
        return await unless_gone(asyncio.gather(*handles), receive)
    finally:
        abort_all(handles)


async def follow_all(handles: Sequence[RequestHandle]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """Yields pairs (number of the handle, new part of its output) as they come, until all requests have finished. The
    first error of a request is raised. RequestNews documents the parts.

    If the reader is slow, the next part has all that is new, so nothing piles up.
    """
    news: asyncio.Queue[tuple[int, RequestOutput] | BaseException] = asyncio.Queue(maxsize=1)

    async def follow(number: int, handle: RequestHandle) -> None:
        try:
            async for output in RequestNews(handle):
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
    """Counts the tokens of all requests. generated: whether generated tokens are part of the answer."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(choice.token_ids) for output in outputs for choice in output.outputs) if generated else 0
    cached = sum(output.metrics.cached_tokens for output in outputs)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )
