"""Lists all endpoints of a server in groups, with the roles that have each group, and how a router hands it on.

The applications of `tensorwright serve` and of `tensorwright route` are both made from GROUPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fastapi import APIRouter
from fastapi.routing import APIRoute

from tensorwright.options.transfer import ROLES
from tensorwright.runtime.serving.server import (
    adapters,
    cache_events,
    chat,
    completions,
    health,
    messages,
    models,
    page,
    pins,
    pooled,
    prefill,
    responses_api,
    tokenization,
)
from tensorwright.runtime.serving.server.options import ServerOptions


class Handing(Enum):
    """What `tensorwright route` does with a request for an endpoint."""

    ONE = "An engine that decodes answers it."
    STORED = "An engine that decodes answers it: the one that stored the response which the request names, if any."
    EVERY = "Every engine that has the endpoint does it. A GET, which changes nothing, goes to one that decodes."
    NONE = "The router has an endpoint of its own for it, or none."


ANSWERING = ("both", "decode")


@dataclass(frozen=True)
class Group:
    """The endpoints of one file. handing: what a router does with them. roles: the engines that have them."""

    router: APIRouter
    handing: Handing
    roles: tuple[str, ...] = ANSWERING

    def endpoints(self) -> Iterator[APIRoute]:
        return (route for route in self.router.routes if isinstance(route, APIRoute))


GROUPS = (
    Group(health.router, Handing.NONE, ROLES),
    Group(completions.router, Handing.ONE),
    Group(chat.router, Handing.ONE),
    Group(responses_api.router, Handing.STORED),
    Group(messages.router, Handing.ONE),
    Group(pooled.router, Handing.ONE),
    Group(models.router, Handing.ONE, ROLES),
    Group(tokenization.router, Handing.ONE, ROLES),
    Group(adapters.router, Handing.EVERY),
    Group(pins.router, Handing.EVERY, ROLES),
    Group(cache_events.router, Handing.NONE, ROLES),
    Group(prefill.router, Handing.NONE, ("both", "prefill")),
    Group(page.router, Handing.NONE),
)
"""Every endpoint of a server is in one of these groups."""


def routers_of(role: str, exchanges: bool, options: ServerOptions) -> tuple[APIRouter, ...]:
    """Returns the routers that a server with these options has.

    exchanges: whether the server exchanges prefixes with other engines, which endpoints under /prefill are for.
    """
    needs = ((prefill, exchanges), (adapters, options.adapter_folder is not None), (page, options.page))
    left_out = [module.router for module, there in needs if not there]
    return tuple(group.router for group in GROUPS if role in group.roles and group.router not in left_out)


def prefill_path(path: str) -> str:
    """Returns where an engine prefills what it would answer at `path`."""
    return f"/prefill{path.removeprefix('/v1')}"


def can_prefill(path: str) -> bool:
    """Whether an engine that prefills can compute the prompts of requests for `path`."""
    return prefill_path(path) in {route.path for route in prefill.router.routes if isinstance(route, APIRoute)}
