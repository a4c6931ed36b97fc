"""Checks the options of the server's application: keys, limits, logging. Those of its sockets are in listen.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import is_int
from tensorwright.options.declare import check_values
from tensorwright.options.server import DEFAULT_BODIES, ServerFields
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.serving.server.api_keys import ApiKey, parse_keys
from tensorwright.runtime.serving.server.hosts import is_host


@dataclass(frozen=True)
class ServerOptions(StrictKeywords, ServerFields):
    """The checked fields of ServerFields, immutable. An impossible value raises InvalidOptionError."""

    def __post_init__(self) -> None:
        parse_keys(self.api_keys)
        check_values(self, ServerFields)
        room = self.max_body_memory
        holds = room is None or (is_int(room) and room >= 2 * self.max_body_size)
        _check("max_body_memory", room, holds, "at least twice max_body_size, or None")
        kept = self.max_stored_response_memory
        holds = kept is None or (is_int(kept) and kept >= 2 * self.max_body_size)
        _check("max_stored_response_memory", kept, holds, "at least twice max_body_size, or None")
        if self.max_requests_per_key is not None and not self.api_keys:
            raise InvalidOptionError("max_requests_per_key needs api_keys")
        for host in self.allowed_hosts:
            _check(
                "allowed_hosts", host, host == "*" or is_host(host), 'like "example.org" or "10.0.0.1", without port'
            )
        if self.protect_metrics and not self.api_keys:
            raise InvalidOptionError("protect_metrics needs api_keys: without a key there is nothing to protect with")
        if self.adapter_folder is not None and not self.api_keys:
            raise InvalidOptionError("adapter_folder needs api_keys: without a key everybody could load adapters")
        for origin in self.cors_origins:
            known = origin == "*" or origin.startswith(("http://", "https://"))
            _check("cors_origins", origin, known and not origin.endswith("/"), '"*" or like "https://example.org"')

    @cached_property
    def keys(self) -> tuple[ApiKey, ...]:
        """What api_keys says: each key with its values, in the same order."""
        return parse_keys(self.api_keys)

    @property
    def body_memory(self) -> int:
        """The most bytes that all bodies may take at once: max_body_memory or its default."""
        return DEFAULT_BODIES * self.max_body_size if self.max_body_memory is None else self.max_body_memory

    @property
    def stored_response_memory(self) -> int:
        """The most bytes of all stored responses: max_stored_response_memory or its default."""
        kept = self.max_stored_response_memory
        return DEFAULT_BODIES * self.max_body_size if kept is None else kept


def _check(name: str, value: Any, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidOptionError(f"{name} must be {must}, got {value!r}")
