"""Options of `tensorwright serve` beside the engine's: of the application, and of its side of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.options.declare import (
    MAX_INT32,
    SECONDS,
    At,
    Door,
    Rule,
    Size,
    declare,
    is_positive,
    is_whole,
    whole_number,
)

MAX_PORT = 65535
_POSITIVE = whole_number("a positive integer", high=math.inf)
_POSITIVE_OR_NONE = whole_number("a positive integer, or None", high=math.inf)


def _serve(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    return {Door.SERVE: At(help, flag, **differing)}


@dataclass(frozen=True)
class ServerFields:
    """api_keys: any of them opens the door as "Authorization: Bearer KEY"; none: everybody may enter.
    protect_metrics: /metrics needs a key too. /health and /ready never do.
    max_body_size: the most bytes of a request's body. body_timeout: the seconds in which it must have come.
    max_body_memory: the most bytes of all bodies that come or are read at once, 64 KiB of each not counted; one address
    may have half. None: 16 times max_body_size.
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
    max_priority: the highest priority of a request; those without one have 0.
    shared_prefixes: requests of all keys share the prefix cache, where else each key has its own.
    log_prompts: requests' bodies go into the log. quiet_probes: /health, /ready and /metrics answered with 200 do not.
    """

    api_keys: tuple[str, ...] = declare(
        (), str, repeated=True, at=_serve("Clients need one of these as bearer. May be repeated.", "--api-key")
    )
    protect_metrics: bool = declare(False, at=_serve("/metrics needs a key, too."))
    max_body_size: int = declare(
        4 << 20, Size, rule=_POSITIVE, at=_serve("A larger body is answered 413.", default="4MiB")
    )
    max_body_memory: int | None = declare(
        None, Size, at=_serve("Of all bodies at once; one more is answered 503. Default: 16 times --max-body-size.")
    )
    body_timeout: float = declare(30.0, rule=SECONDS, at=_serve("Seconds for a body to come."))
    request_timeout: float | None = declare(
        None, float, rule=Rule("positive, or None", is_positive), at=_serve("Seconds for a request. Default: no limit.")
    )
    cors_origins: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_serve('A web page\'s origin that may call, or "*". May be repeated. Default: none.', "--cors-origin"),
    )
    allowed_hosts: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_serve(
            'A name by which clients reach the server, or "*". May be repeated. Default on 127.0.0.1: those of '
            "the machine itself; elsewhere any.",
            "--allowed-host",
        ),
    )
    max_requests_per_key: int | None = declare(
        None,
        int,
        rule=_POSITIVE_OR_NONE,
        at=_serve(
            "Completions of one key at once; one more is answered 429. Default, with two keys or more: half of "
            "--max-batch-size and --max-queue-size."
        ),
    )
    max_requests_per_address: int | None = declare(
        None, int, rule=_POSITIVE_OR_NONE, at=_serve("The same of one address. Default: no limit.")
    )
    retry_after: int = declare(1, rule=_POSITIVE, at=_serve("Seconds, in the header of a 429 or 503."))
    max_waiting_jobs: int = declare(
        512, rule=_POSITIVE, at=_serve("Requests that may wait for each pool of threads, beyond it 429.")
    )
    max_job_seconds: float = declare(
        30.0, rule=SECONDS, at=_serve("A thread that works on one request for longer: /ready says 503.")
    )
    max_stall_seconds: float = declare(
        300.0, rule=SECONDS, at=_serve("An engine that ends no step for longer: /ready says 503.")
    )
    max_priority: int = declare(
        0,
        rule=whole_number("an integer from 0 to 2**31 - 1", low=0, high=MAX_INT32),
        at={
            Door.SERVE: At("Most that a request's priority may be."),
            Door.TRITON_REPO: At("Most that a request's priority may be. Default: 0.", default=None, minimum=0),
            Door.TRITON: At(minimum=0),
        },
    )
    shared_prefixes: bool = declare(False, at=_serve("One prefix cache for all keys; without, each key has its own."))
    log_prompts: bool = declare(False, at=_serve("Bodies of requests go into the log."))
    quiet_probes: bool = declare(
        False, at=_serve("No lines in the log of /health, /ready and /metrics that were answered with 200.")
    )


@dataclass(frozen=True)
class NetworkFields:
    """port 0: the system chooses one. tls_cert and tls_key: files in PEM form, both or neither.

    max_connections: those with requests under way; one more is answered 503, but for probes.
    max_connections_per_address: the same of one address, answered 429; None: no bound, for a proxy is one address.
    keep_alive: seconds that an idle connection stays open, if its place is not wanted before.
    header_timeout: seconds in which a request's headers must have come.
    client_timeout: seconds after which a client that takes nothing of its answer is cut off.
    drain_timeout: seconds that requests have to finish in once the server is told to end.
    """

    host: str = declare("127.0.0.1", at=_serve("0.0.0.0: all networks."))
    port: int = declare(
        8000,
        rule=Rule(f"from 0 to {MAX_PORT}", lambda value: is_whole(value) and 0 <= value <= MAX_PORT),
        at=_serve("0: any that is free."),
    )
    tls_cert: str | None = declare(
        None, str, at=_serve("Certificate chain, PEM. With --tls-key: https.", metavar="FILE")
    )
    tls_key: str | None = declare(None, str, at=_serve("Its key, PEM.", metavar="FILE"))
    max_connections: int = declare(
        1024, rule=_POSITIVE, at=_serve("With requests under way; one more is answered 503.")
    )
    max_connections_per_address: int | None = declare(
        None, int, rule=_POSITIVE, at=_serve("The same of one address, answered 429. Default: no limit.")
    )
    keep_alive: float = declare(65.0, rule=SECONDS, at=_serve("Seconds for an idle connection."))
    header_timeout: float = declare(15.0, rule=SECONDS, at=_serve("Seconds for headers to come."))
    client_timeout: float = declare(
        60.0, rule=SECONDS, at=_serve("Seconds that a client may take nothing of its answer.")
    )
    drain_timeout: float = declare(
        30.0,
        rule=Rule("0 or more seconds", lambda value: value == 0 or is_positive(value)),
        at=_serve("Seconds for requests to finish after SIGTERM or Ctrl-C."),
    )
