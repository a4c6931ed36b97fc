"""Defines which requests come from one client, and what a client may ask for at the expense of others."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request
from starlette.types import Scope

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.engine.tier_secret import read_secret
from tensorwright.runtime.serving.server.api_keys import ApiKey
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.request_fields import TurnFields
from tensorwright.runtime.serving.server.served_model import ServedModel


def salt_secret(engines: Iterable[ServedModel]) -> bytes:
    """Returns the secret that salts of keys are made with, so that nobody can guess a salt from a key.

    It is new in each process, unless an engine keeps its prefix cache on disk: then it is the same after a restart, or
    no key would find its own prefixes.
    """
    for llm in engines:
        tiers = llm.options.tiers
        if tiers is not None and tiers.disk:
            return hmac.new(read_secret(tiers.disk), b"salts of keys", hashlib.sha256).digest()
    return secrets.token_bytes(32)


def client_defaults(request: Request, body: TurnFields, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of one client's request. With a key they include whose turn it takes, with which weight and
    priority, and the salt of the key, unless all keys share the prefix cache. Raises InvalidRequestError for a priority
    above the key's or --max-priority.

    defaults: the engine's defaults, by field of SamplingParams.
    """
    options: ServerOptions = request.app.state.options
    key = key_of(request)
    _check_priority(body, options.max_priority, key)
    if key is None:
        return dict(defaults)
    own: dict[str, Any] = {"tenant": options.keys.index(key) + 1, "tenant_weight": key.weight}
    if key.priority is not None:
        own["priority"] = key.priority
    if not options.shared_prefixes:
        own["cache_salt"] = _salt(request.app.state.salt_secret, key.key)
    return {**defaults, **own}


def key_of(request: Request) -> ApiKey | None:
    """Returns the key of a request; None if the server has none."""
    number = request.scope["state"].get("key")
    return None if number is None else request.app.state.options.keys[number - 1]


def owner_name(request: Request) -> str:
    """Returns a name for the key of a request that says nothing of the key, and that is the same after a restart if the
    prefix cache is on disk; "" if the server has no keys."""
    key = key_of(request)
    return "" if key is None else _salt(request.app.state.salt_secret, f"owner {key.key}")


def _check_priority(body: TurnFields, most: int, key: ApiKey | None) -> None:
    """Raises InvalidRequestError for a priority above that of the client's key, or above the server's `most`."""
    where = "on this server (its --max-priority)"
    if key is not None and key.priority is not None:
        most, where = key.priority, "with this key"
    if body.priority is not None and body.priority > most:
        raise InvalidRequestError(f"priority must be at most {most} {where}, got {body.priority}")


def _salt(secret: bytes, key: str) -> str:
    """Returns the salt of a key. A client that does not know the key cannot name its salt in a request."""
    return hmac.new(secret, key.encode(), hashlib.sha256).hexdigest()


def client_of(scope: Scope) -> str:
    """Returns the client whose turn a request takes in a pool. The client is the key's number if the server has keys
    and knows this one, else the address. A header alone does not make a request another client's."""
    key = scope["state"].get("key")
    return address_of(scope) if key is None else f"key {key}"


def address_of(scope: Scope) -> str:
    """Returns the address of a request's client, in the form of `one_client`, or "" if the ASGI server gives none."""
    client = scope.get("client")
    return one_client(client[0]) if client else ""


def one_client(address: str) -> str:
    """Returns the name under which an address counts as one client. An IPv4 address, also one mapped into IPv6, counts
    alone. An IPv6 address counts as its /64 network, for the owner of one address has the whole network. Text that is
    no address is returned as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
