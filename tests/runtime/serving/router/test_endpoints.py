"""What a router does with each endpoint of a server: every endpoint is decided on here."""

from __future__ import annotations

from itertools import product

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tensorwright.options.transfer import ROLES
from tensorwright.runtime.serving.router.app import create_router_app
from tensorwright.runtime.serving.router.handing import RouterOptions
from tensorwright.runtime.serving.server.endpoints import GROUPS, Handing, can_prefill, routers_of
from tensorwright.runtime.serving.server.options import ServerOptions

DECIDED = {
    Handing.ONE: {
        "POST /v1/completions", "POST /v1/chat/completions", "POST /v1/messages", "POST /v1/messages/count_tokens",
        "GET /v1/models", "GET /v1/models/{model:path}", "POST /tokenize", "POST /detokenize",
        "POST /v1/embeddings", "POST /v1/score", "POST /v1/rerank", "POST /rerank",
    },
    Handing.STORED: {
        "POST /v1/responses", "GET /v1/responses/{response_id}", "DELETE /v1/responses/{response_id}",
    },
    Handing.EVERY: {
        "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "POST /v1/pinned_prefixes",
        "GET /v1/pinned_prefixes", "DELETE /v1/pinned_prefixes/{name:path}",
    },
    Handing.NONE: {
        "GET /health", "GET /ready", "GET /metrics", "GET /", "GET /page/{name}", "GET /v1/cache_events",
        "POST /prefill/completions",
        "POST /prefill/chat/completions", "POST /prefill/responses", "POST /prefill/messages",
    },
}  # fmt: skip
OWN = {"GET /health", "GET /ready", "GET /metrics"}
ALL_OPTIONS = ServerOptions(api_keys=("key",), adapter_folder="adapters")


def endpoints(*routes: object) -> set[str]:
    found = [route for route in routes if isinstance(route, APIRoute)]
    return {f"{method} {route.path}" for route in found for method in route.methods}


def test_every_endpoint_is_decided_on() -> None:
    groups: dict[Handing, set[str]] = {handing: set() for handing in Handing}
    for group in GROUPS:
        groups[group.handing] |= endpoints(*group.endpoints())
    assert groups == DECIDED


def test_every_router_of_a_server_is_in_a_group() -> None:
    servers = [routers_of(role, exchanges, ALL_OPTIONS) for role, exchanges in product(ROLES, (True, False))]
    served = {name for routers in servers for each in routers for name in endpoints(*each.routes)}
    assert served == set().union(*DECIDED.values())


def test_the_router_answers_what_is_handed_on_and_nothing_else() -> None:
    app: FastAPI = create_router_app(RouterOptions(decode=("http://127.0.0.1:9",)), ServerOptions(), True, 1)
    handed = set().union(*(names for handing, names in DECIDED.items() if handing is not Handing.NONE))
    answered = {f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods}
    assert answered == {name.replace(":path", "") for name in handed | OWN}


def test_prompts_of_every_api_are_prefilled() -> None:
    generating = {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}
    assert {
        name for names in DECIDED.values() for name in (each.split()[1] for each in names) if can_prefill(name)
    } == generating
