"""What the server's application is told: keys, limits, what it logs. The sockets' side is in listen.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.parameter_checks import MAX_INT32, is_int, real
from tensorwright.runtime.serving.server.hosts import is_host

BODIES = 16  # of the largest size, that there is room for if nothing else is said


@dataclass(frozen=True)
class ServerOptions(StrictKeywords):
    """Immutable; what is impossible raises InvalidOptionError.

    api_keys: any of them opens the door as "Authorization: Bearer KEY"; none: everybody may enter.
    protect_metrics: /metrics needs a key too. /health and /ready never do.
    max_body_size: most bytes of a request's body. body_timeout: most seconds in which it must have come.
    max_body_memory: most bytes of all bodies that come or are read at once, 64 KiB of each not counted; one address may
    have half. None: 16 times max_body_size.
    request_timeout: seconds after which a request ends with an error; None: never.
    cors_origins: web pages that may call, such as "https://example.org", or "*" for all; none: CORS is off.
    allowed_hosts: names and addresses that a request's Host header may have, "*": any; none: any, but `serve` knows
    better on an address of this machine alone.
    max_requests_per_key: completions and other requests that one key may have under way, prompts times n counted each;
    None: with two keys or more, half of what the engine takes that takes least; else no bound.
    max_requests_per_address: the same of one address; None: no bound.
    retry_after: seconds that a client is told to wait when the queue is full or the server drains.
    max_waiting_jobs: requests that may wait for each of the server's pools of threads; one more is answered 429.
    max_job_seconds: when a thread of a pool has worked on one request for longer, the server says it is not ready.
    max_stall_seconds: when an engine has requests and has ended no step for longer, the server says it is not ready.
    max_priority: most that a request's priority may be; those without one have 0.
    shared_prefixes: requests of all keys share the prefix cache, where else each key has its own.
    log_prompts: requests' bodies go into the log. quiet_probes: /health, /ready and /metrics answered with 200 do not.
    """

    api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    max_body_size: int = 4 << 20
    max_body_memory: int | None = None
    body_timeout: float = 30.0
    request_timeout: float | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_requests_per_key: int | None = None
    max_requests_per_address: int | None = None
    retry_after: int = 1
    max_waiting_jobs: int = 512
    max_job_seconds: float = 30.0
    max_stall_seconds: float = 300.0
    max_priority: int = 0
    shared_prefixes: bool = False
    log_prompts: bool = False
    quiet_probes: bool = False

    def __post_init__(self) -> None:
        for key in self.api_keys:
            check_key(key, "api_keys")
        for name in ("max_body_size", "retry_after", "max_waiting_jobs"):
            value = getattr(self, name)
            _check(name, value, is_int(value) and value > 0, "a positive integer")
        room = self.max_body_memory
        holds = room is None or (is_int(room) and room >= 2 * self.max_body_size)
        _check("max_body_memory", room, holds, "at least twice max_body_size, or None")
        for name in ("body_timeout", "max_job_seconds", "max_stall_seconds"):
            value = getattr(self, name)
            _check(name, value, positive(value), "a positive number of seconds")
        for name in ("max_requests_per_key", "max_requests_per_address"):
            value = getattr(self, name)
            _check(name, value, value is None or (is_int(value) and value > 0), "a positive integer, or None")
        if self.max_requests_per_key is not None and not self.api_keys:
            raise InvalidOptionError("max_requests_per_key needs api_keys")
        for host in self.allowed_hosts:
            _check(
                "allowed_hosts", host, host == "*" or is_host(host), 'like "example.org" or "10.0.0.1", without port'
            )
        in_range = is_int(self.max_priority) and 0 <= self.max_priority <= MAX_INT32
        _check("max_priority", self.max_priority, in_range, "an integer from 0 to 2**31 - 1")
        if self.request_timeout is not None:
            _check("request_timeout", self.request_timeout, positive(self.request_timeout), "positive, or None")
        if self.protect_metrics and not self.api_keys:
            raise InvalidOptionError("protect_metrics needs api_keys: without a key there is nothing to protect with")
        for origin in self.cors_origins:
            known = origin == "*" or origin.startswith(("http://", "https://"))
            _check("cors_origins", origin, known and not origin.endswith("/"), '"*" or like "https://example.org"')

    @property
    def body_memory(self) -> int:
        """Bytes: max_body_memory as it holds."""
        return BODIES * self.max_body_size if self.max_body_memory is None else self.max_body_memory


def positive(value: Any) -> bool:
    return math.isfinite(real(value)) and value > 0


def check_key(key: str, where: str) -> None:
    """What cannot stand in a header can never match. The message does not show the key."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidOptionError(f"{where}: a key must be one or more printable ASCII characters without spaces")


def _check(name: str, value: Any, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidOptionError(f"{name} must be {must}, got {value!r}")
