"""Answers the endpoints of servers at the router: each request is handed on as its group of endpoints says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from fastapi import Request, Response
from fastapi.routing import APIRoute

from tensorwright.runtime.serving.router.handing import Routes
from tensorwright.runtime.serving.router.prompt_text import PromptText, read_prompt
from tensorwright.runtime.serving.router.relay import Relay
from tensorwright.runtime.serving.router.upstream import RETURNED, Asked, Unreachable, passed
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.endpoints import Group, Handing, can_prefill
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, unless_gone

Handler = Callable[[Request, Asked], Awaitable[Response]]
NO_ENGINE = "no engine that decodes can be reached; try again later"
NO_HOLDER = (
    "the engine that stored this response cannot be reached; try again later, or send the whole conversation as input"
)
NOT_EVERY = "not every engine could be reached, and others may have done what was asked; try again later"


def routes_of(group: Group) -> Iterator[APIRoute]:
    """Yields the endpoints of a group as the router answers them: none if the group is not handed on."""
    if group.handing is Handing.NONE:
        return
    for route in group.endpoints():
        for method in sorted(route.methods or ()):
            endpoint = _endpoint(_handler(group, route.path, method))
            yield APIRoute(route.path, endpoint, methods=[method], response_model=None, name=route.name)


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await _answer(request, handler)

    return answer


def _handler(group: Group, path: str, method: str) -> Handler:
    if group.handing is Handing.EVERY and method != "GET":
        return partial(_ask_every, prefills_too="prefill" in group.roles)
    generates = method == "POST" and can_prefill(path)
    return _generate if generates else _pass_on


async def _answer(request: Request, handler: Handler) -> Response:
    """Answers a request with what `handler` gets of engines, unless the client leaves first."""
    headers = {**passed(request.headers), "x-request-id": request.scope["state"]["request_id"]}
    path = request.scope["raw_path"].decode("ascii")
    asked = Asked(request.method, path, request.scope["query_string"].decode("ascii"), headers, await request.body())
    try:
        return await unless_gone(asyncio.ensure_future(handler(request, asked)), request.receive)
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    finally:
        request.state.held_body.close()


async def _generate(request: Request, asked: Asked) -> Response:
    """Hands a prompt to an engine that prefills, and then all of the request to one that decodes: the one that stored
    what the prompt goes on from, if it does."""
    routes, pool = _routes(request), request.app.state.pools.text
    prompt: PromptText = await pool.run(partial(read_prompt, asked.body), client=client_of(request.scope))
    handover = await routes.prefill(asked, prompt)
    request.scope["state"]["facts"]["prefilled"] = handover is not None
    holder = None if prompt.after is None else routes.holder(prompt.after)
    try:
        return Relay(*await routes.open(asked, handover, holder))
    except Unreachable:
        return _unreachable(request, NO_ENGINE if holder is None else NO_HOLDER)


async def _pass_on(request: Request, asked: Asked) -> Response:
    """Hands any other request on to an engine that decodes: the one that stored the response in its path, if any."""
    routes, stored = _routes(request), request.path_params.get("response_id")
    holder = None if stored is None else routes.holder(stored)
    try:
        return Relay(*await routes.open(asked, holder=holder))
    except Unreachable:
        return _unreachable(request, NO_ENGINE if holder is None else NO_HOLDER)


async def _ask_every(request: Request, asked: Asked, prefills_too: bool) -> Response:
    """Has every engine do what a request asks, and answers as the first one that refused, or as the first."""
    try:
        answer = await _routes(request).ask_all(asked, prefills_too)
    except Unreachable:
        return _unreachable(request, NOT_EVERY)
    headers = {name: answer.headers[name] for name in RETURNED if name in answer.headers}
    return Response(answer.content, answer.status_code, headers)


def _routes(request: Request) -> Routes:
    routes: Routes = request.app.state.routes
    return routes


def _unreachable(request: Request, message: str) -> Response:
    after = {"retry-after": str(request.app.state.options.retry_after)}
    return ApiError(503, message, "service_unavailable_error", None, "no_engine", after).response()
