"""What one client may ask for at the others' expense: its place in the queue, and what the prefix cache tells it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import Request

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
