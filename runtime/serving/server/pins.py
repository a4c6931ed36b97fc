"""Answers POST and GET /v1/pinned_prefixes and DELETE /v1/pinned_prefixes/{name}: prefixes that stay in the KV cache.

A server without keys lets every client pin. With keys, a key may have as many pinned prefixes as its `pinned_prefixes`
says, and sees and unpins its own alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, model_validator
from starlette.exceptions import HTTPException

from tensorwright.errors import InvalidRequestError, TemporarilyUnavailableError, UnknownPrefixError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.requests.pinned_prefixes import MAX_PINS, TRIES, PinnedPrefix, computing_prefix
from tensorwright.runtime.requests.prompts import Prompt
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.body_route import BodyRoute
from tensorwright.runtime.serving.server.chat import plan_of
from tensorwright.runtime.serving.server.chat_request import ChatFields, Messages, TemplateVariables, ToolList
from tensorwright.runtime.serving.server.clients import client_defaults, client_of, key_of, owner_name
from tensorwright.runtime.serving.server.rate_limits import reserve_tokens
from tensorwright.runtime.serving.server.request_fields import DrawingFields, Name, StrictModel
from tensorwright.runtime.serving.server.request_log import note_work
from tensorwright.runtime.serving.server.requests import CLIENT_CLOSED, ClientGone, finish_all, start_all
from tensorwright.runtime.serving.server.served_model import ServedModel
from tensorwright.runtime.serving.server.shares import hold_places
from tensorwright.runtime.serving.server.text_engine import TextEngine, find_engine

router = APIRouter(tags=["prefixes"], route_class=BodyRoute)

PinName = Annotated[str, Field(min_length=1, max_length=bounds.NAME_LENGTH)]


class PinRequest(StrictModel):
    """The beginning of prompts: a text or tokens, or the messages of a conversation with its tools.

    name: what the prefix is called from now on; an older one of this name and key is replaced. model: may be left out
    where the server has one model. cache_salt: that of the requests which are to find the prefix.
    """

    name: PinName
    model: Name | None = None
    prompt: str | Annotated[list[int], Field(min_length=1, max_length=bounds.TOKENS, fail_fast=True)] | None = None
    messages: Messages | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: ToolList | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=bounds.SALT_LENGTH)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> PinRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        if self.messages is None and (self.chat_template_kwargs is not None or self.tools is not None):
            raise ValueError("chat_template_kwargs and tools must come with messages")
        return self


class PinCard(BaseModel):
    """A pinned prefix. tokens: those that are pinned, whole blocks. pinned: false while an engine that has just started
    computes it again."""

    name: str
    object: Literal["pinned_prefix"] = "pinned_prefix"
    model: str
    tokens: int
    created: int
    pinned: bool


class PinList(BaseModel):
    object: Literal["list"] = "list"
    data: list[PinCard]


class Unpinned(BaseModel):
    name: str
    object: Literal["pinned_prefix"] = "pinned_prefix"
    deleted: Literal[True] = True


@router.post("/v1/pinned_prefixes", response_model=PinCard)
async def pin_prefix(body: PinRequest, request: Request) -> Response:
    """Computes a prefix, and keeps its blocks in the KV cache until it is unpinned."""
    engine = find_engine(request, body.model)
    if engine.adapter is not None:
        raise InvalidRequestError("model must name a model, for prefixes of adapters cannot be pinned")
    owner, most = owner_name(request), _most(request)
    engine.llm.pins.check(body.name, owner, most)
    _check_elsewhere(request, engine.llm, body.name, owner)
    params = computing_prefix(_params(request, body))
    try:
        for _ in range(TRIES):
            pin = await _pin(request, engine, body, params, owner, most)
            if pin is not None:
                return Response(_card(engine.name, pin).model_dump_json(), media_type="application/json")
    except ClientGone:
        return Response(status_code=CLIENT_CLOSED)
    raise TemporarilyUnavailableError("requests took the blocks of the prefix each time; try again later")


@router.get("/v1/pinned_prefixes")
async def list_prefixes(request: Request) -> PinList:
    """Lists the pinned prefixes of this key."""
    owner = owner_name(request)
    engines = request.app.state.engines.items()
    return PinList(data=[_card(name, pin) for name, llm in engines for pin in llm.pins.of(owner)])


@router.delete("/v1/pinned_prefixes/{name:path}", response_model=Unpinned)
async def unpin_prefix(name: str, request: Request) -> Unpinned:
    """Lets a pinned prefix of this key be evicted again."""
    owner, pool = owner_name(request), request.app.state.pools.other
    for llm in request.app.state.engines.values():
        if any(pin.name == name for pin in llm.pins.of(owner)):
            await pool.run(llm.pins.unpin, name, owner, client=client_of(request.scope))
            return Unpinned(name=name)
    raise UnknownPrefixError(f"no prefix {name!r:.100} is pinned")


async def _pin(
    request: Request, engine: TextEngine, body: PinRequest, params: SamplingParams, owner: str, most: int
) -> PinnedPrefix | None:
    """Computes the prefix and holds its blocks. Returns None if they are evicted already."""
    hold_places(request, 1)
    reserve_tokens(request, params)
    handles = await start_all(request, engine.llm, lambda: [_prompt(engine, body, params)], params)
    note_work(request, engine.name, handles)
    [output] = await finish_all(handles, request.receive)
    pool, salt = request.app.state.pools.other, params.cache_salt or ""
    ids = output.prompt_token_ids
    return await pool.run(engine.llm.pins.hold, body.name, ids, salt, owner, most, client=client_of(request.scope))


def _prompt(engine: TextEngine, body: PinRequest, params: SamplingParams) -> Prompt:
    if isinstance(body.prompt, str):
        return body.prompt
    if body.prompt is not None:
        return {"prompt_token_ids": body.prompt}
    fields = ChatFields.model_construct(
        messages=body.messages,
        add_generation_prompt=False,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    return plan_of(engine, fields, params).prompt


def _params(request: Request, body: PinRequest) -> SamplingParams:
    """Returns the parameters of the requests which are to find the prefix."""
    fields = client_defaults(request, DrawingFields.model_construct(priority=None), {})
    return SamplingParams(**{**fields, **({} if body.cache_salt is None else {"cache_salt": body.cache_salt})})


def _most(request: Request) -> int:
    """Returns how many prefixes the client may pin. Raises HTTPException with 403 for a key without the right."""
    key = key_of(request)
    if key is None:
        return MAX_PINS
    if key.pinned_prefixes == 0:
        raise HTTPException(403, "this key may pin no prefixes: pinned_prefixes=NUMBER behind a key is the right to")
    return key.pinned_prefixes


def _check_elsewhere(request: Request, llm: ServedModel, name: str, owner: str) -> None:
    """Raises InvalidRequestError if another model of the server has a prefix of this name."""
    for other in request.app.state.engines.values():
        if other is not llm and any(pin.name == name for pin in other.pins.of(owner)):
            raise InvalidRequestError(f"another model has a pinned prefix {name!r:.100}; unpin it first")


def _card(model: str, pin: PinnedPrefix) -> PinCard:
    return PinCard(name=pin.name, model=model, tokens=pin.tokens, created=pin.created, pinned=pin.pinned)
