"""Who counts as one client, and what one client may ask for at the others' expense."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.types import Scope

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.request_fields import SamplingFields

_SECRET = secrets.token_bytes(32)  # of this process, so that no salt can be guessed from a key


def client_defaults(request: Request, body: SamplingFields, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """defaults: of the engine, by field of SamplingParams. With the salt of the client's key, unless all keys share the
    prefix cache. Raises InvalidRequestError for a priority that clients may not have."""
    options: ServerOptions = request.app.state.options
    if body.priority is not None and body.priority > options.max_priority:
        raise InvalidRequestError(
            f"priority must be at most {options.max_priority} on this server (its --max-priority), got {body.priority}"
        )
    if not options.api_keys or options.shared_prefixes:
        return dict(defaults)
    return {**defaults, "cache_salt": _salt(options.api_keys[request.scope["state"]["key"] - 1])}


def _salt(key: str) -> str:
    """One for each key; whoever does not know the key cannot name it in a request of his own."""
    return hmac.new(_SECRET, key.encode(), hashlib.sha256).hexdigest()


def client_of(scope: Scope) -> str:
    """Whose turn a request takes in a pool: that of its key, if one was asked for and is known, else of its address. A
    header alone makes nobody another client."""
    key = scope["state"].get("key")
    return address_of(scope) if key is None else f"key {key}"


def address_of(scope: Scope) -> str:
    """Of a request's client, as `one_client` has it; "" where the server in front tells of none."""
    client = scope.get("client")
    return one_client(client[0]) if client else ""


def one_client(address: str) -> str:
    """What counts as one client: an address of IPv4, also where IPv6 carries it; of IPv6 the network of 64 bits, for
    who has one of its addresses has all of them. What is no address stays as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
