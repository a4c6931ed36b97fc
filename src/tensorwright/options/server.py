"""Declares the options of `tensorwright serve` that are not the engine's: of the application and of the network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.number_checks import MAX_INT32, is_int
from tensorwright.options.declare import SECONDS, At, Door, Rule, Size, declare, is_positive, whole_number

MAX_PORT = 65535
DEFAULT_BODIES = 16
"""The number of bodies of the largest size that there is room for, unless max_body_memory is given; and of stored
conversations of that size, unless max_stored_response_memory is."""
KEY_FIELDS = ("weight", "priority", "tokens_per_minute", "pinned_prefixes", "cache_events")
"""What may stand behind a key, as NAME=VALUE."""
HASHES, TOKENS = "hashes", "tokens"
"""The rights to read events of the prefix cache that a key may have: without tokens, and with those of everybody."""
_PRIORITY = "The highest priority that a request may ask for."
_POSITIVE = whole_number("a positive integer", high=math.inf)
_POSITIVE_OR_NONE = whole_number("a positive integer, or None", high=math.inf)


def _serve(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    return {Door.SERVE: At(help, flag, **differing)}


def _served(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    """An option that the router has as well."""
    return {door: At(help, flag, **differing) for door in (Door.SERVE, Door.ROUTE)}


@dataclass(frozen=True)
class ServerFields:
    """The options of the server's application.

    api_keys: a request may enter with any of these keys, as "Authorization: Bearer KEY" or "x-api-key: KEY"; () lets
    every request enter.
    Behind a key may stand, with a space before each, what it has: KEY_FIELDS (runtime/serving/server/api_keys.py).
    protect_metrics: True means that /metrics needs a key too. /health and /ready never need one.
    max_body_size: the most bytes of a request's body.
    body_timeout: the seconds in which the whole body must arrive.
    max_body_memory: the most bytes of all bodies that arrive or are read at once, without the first 64 KiB of each. One
    address may use half. None means DEFAULT_BODIES times max_body_size.
    request_timeout: the seconds after which a request ends with an error; None means never.
    cors_origins: the web pages that may call, such as "https://example.org", or "*" for all; () turns CORS off.
    allowed_hosts: the names and addresses that a request's Host header may have; "*" and () mean any. If the server
    listens on an address of this machine alone, `serve` also allows the machine's own names, and () means only those.
    max_requests_per_key: how many completions and other requests one key may have under way; a request counts as its
    prompts times n. None means no bound with fewer than two keys; with two keys or more it means half of
    max_batch_size + max_queue_size, of the engine for which this sum is least.
    max_requests_per_address: the same bound for one address; None means no bound.
    retry_after: the seconds that a client is told to wait when the queue is full or the server drains.
    max_waiting_jobs: the requests that may wait for each of the server's pools of threads; one more is answered 429.
    max_job_seconds: when a thread of a pool has worked on one request for longer, the server says it is not ready.
    max_stall_seconds: when an engine has requests and has ended no step for longer, the server says it is not ready.
    max_priority: the highest priority that a request may ask for. A request without one has priority 0.
    shared_prefixes: True means that all keys share the prefix cache; False gives each key a prefix cache of its own.
    max_stored_responses: the most responses of the Responses API that are kept for later requests; 0 keeps none.
    max_stored_response_memory: the most bytes of all of them. None means DEFAULT_BODIES times max_body_size.
    max_stored_response_seconds: the seconds after which a response is forgotten.
    strict: True refuses fields that the server does not know or that change nothing. Otherwise they are left out, and
    the answer's header X-Tensorwright-Ignored names them.
    adapter_folder: the folder whose adapters clients with a key may load and unload; None means that they may not.
    log_prompts: True writes the bodies of requests into the log.
    quiet_probes: True leaves requests for /health, /ready and /metrics that were answered with 200 out of the log.
    otel: True makes spans of requests, which an exporter of OpenTelemetry sends where the environment says.
    page: whether the server has a page at /, on which people chat with its engines; the page's files need no key.
    """

    api_keys: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_serve(
            "Key that lets a client in, as its bearer token or x-api-key, and behind it what it has, such as 'KEY "
            "weight=2 priority=1 tokens_per_minute=60000'. May be repeated.",
            "--api-key",
        ),
    )
    protect_metrics: bool = declare(False, at=_serve("Ask for a key at /metrics too."))
    max_body_size: int = declare(
        4 << 20,
        Size,
        rule=_POSITIVE,
        at=_served("The most bytes of a request's body; a larger one is answered 413.", default="4MiB"),
    )
    max_body_memory: int | None = declare(
        None,
        Size,
        at=_served(
            "The most bytes of all bodies at once; one more is answered 503. "
            f"[default: {DEFAULT_BODIES} times --max-body-size]"
        ),
    )
    body_timeout: float = declare(30.0, rule=SECONDS, at=_served("Seconds in which a body must arrive."))
    request_timeout: float | None = declare(
        None,
        float,
        rule=Rule("positive, or None", is_positive),
        at=_serve("Seconds after which a request ends. [default: no limit]"),
    )
    cors_origins: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_serve('Origin of web pages that may call, or "*". May be repeated. [default: none]', "--cors-origin"),
    )
    allowed_hosts: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_served(
            'Name by which clients reach the server, or "*". May be repeated. [default: on 127.0.0.1 the names of the '
            "machine itself, elsewhere any]",
            "--allowed-host",
        ),
    )
    max_requests_per_key: int | None = declare(
        None,
        int,
        rule=_POSITIVE_OR_NONE,
        at=_serve(
            "The most completions of one key at once; one more is answered 429. [default: with two keys or more half "
            "of --max-batch-size and --max-queue-size, else no limit]"
        ),
    )
    max_requests_per_address: int | None = declare(
        None,
        int,
        rule=_POSITIVE_OR_NONE,
        at=_serve("The most completions of one address at once; one more is answered 429. [default: no limit]"),
    )
    retry_after: int = declare(
        1, rule=_POSITIVE, at=_served("Seconds that a client is told to wait, in the header of a 429 or 503.")
    )
    max_waiting_jobs: int = declare(
        512,
        rule=_POSITIVE,
        at=_serve("The most requests that may wait for each pool of threads; one more is answered 429."),
    )
    max_job_seconds: float = declare(
        30.0, rule=SECONDS, at=_serve("Seconds that a thread may work on one request before /ready says 503.")
    )
    max_stall_seconds: float = declare(
        300.0, rule=SECONDS, at=_serve("Seconds that an engine with requests may end no step before /ready says 503.")
    )
    max_priority: int = declare(
        0,
        rule=whole_number("an integer from 0 to 2**31 - 1", low=0, high=MAX_INT32),
        help=_PRIORITY,
        at={
            Door.SERVE: At(),
            Door.TRITON_REPO: At(f"{_PRIORITY} [default: 0]", default=None, minimum=0),
            Door.TRITON: At(minimum=0),
        },
    )
    shared_prefixes: bool = declare(
        False, at=_serve("Share one prefix cache among all keys, in place of one for each key.")
    )
    max_stored_responses: int = declare(
        1024,
        rule=whole_number("an integer >= 0", low=0, high=math.inf),
        at=_serve("The most responses that are kept for previous_response_id; 0 keeps none."),
    )
    max_stored_response_memory: int | None = declare(
        None,
        Size,
        at=_serve(f"The most bytes of all responses that are kept. [default: {DEFAULT_BODIES} times --max-body-size]"),
    )
    max_stored_response_seconds: float = declare(
        3600.0, rule=SECONDS, at=_serve("Seconds after which a response that is kept is forgotten.")
    )
    strict: bool = declare(
        False,
        at=_serve("Refuse fields of a body that this server does not know or use, in place of leaving them out."),
    )
    adapter_folder: str | None = declare(
        None,
        str,
        at=_serve(
            "Let clients with a key load LoRA adapters that lie in this folder, and unload them. "
            "[default: they cannot]",
            metavar="DIR",
        ),
    )
    log_prompts: bool = declare(False, at=_serve("Write the bodies of requests into the log."))
    quiet_probes: bool = declare(
        False, at=_served("Leave /health, /ready and /metrics out of the log where the answer was 200.")
    )
    otel: bool = declare(
        False,
        at=_serve(
            "Send OpenTelemetry traces of requests to where OTEL_EXPORTER_OTLP_ENDPOINT says; needs the extra otel."
        ),
    )
    page: bool = declare(True, at=_serve("Have a page at / for chats and live figures.", "--page/--no-page"))


@dataclass(frozen=True)
class NetworkFields:
    """The options of the server's side of the network.

    port: 0 means that the system chooses a free port.
    tls_cert, tls_key: files in PEM form; both or neither must be given.
    max_connections: the most connections with requests under way; one more is answered 503, unless it is a probe.
    max_connections_per_address: the same bound for one address, answered 429. None means no bound, because all clients
    behind a proxy have one address.
    keep_alive: the seconds that an idle connection stays open, if no other connection needs its place before.
    header_timeout: the seconds in which a request's headers must arrive.
    client_timeout: the seconds after which the server cuts off a client that reads nothing of its answer.
    drain_timeout: the seconds that requests have to finish after the server is told to end.
    """

    host: str = declare("127.0.0.1", at=_served("Address to listen on; 0.0.0.0 is that of all networks."))
    port: int = declare(
        8000,
        rule=Rule(f"from 0 to {MAX_PORT}", lambda value: is_int(value) and 0 <= value <= MAX_PORT),
        at=_served("Port to listen on; 0 is any that is free."),
    )
    tls_cert: str | None = declare(
        None, str, at=_served("Certificate chain in PEM form; with --tls-key the server speaks https.", metavar="FILE")
    )
    tls_key: str | None = declare(None, str, at=_served("Private key of --tls-cert in PEM form.", metavar="FILE"))
    max_connections: int = declare(
        1024, rule=_POSITIVE, at=_served("The most connections with requests under way; one more is answered 503.")
    )
    max_connections_per_address: int | None = declare(
        None,
        int,
        rule=_POSITIVE,
        at=_served(
            "The most connections of one address with requests under way; one more is answered 429. [default: no limit]"
        ),
    )
    keep_alive: float = declare(65.0, rule=SECONDS, at=_served("Seconds that an idle connection stays open."))
    header_timeout: float = declare(15.0, rule=SECONDS, at=_served("Seconds in which a request's headers must arrive."))
    client_timeout: float = declare(
        60.0, rule=SECONDS, at=_served("Seconds that a client may take nothing of its answer.")
    )
    drain_timeout: float = declare(
        30.0,
        rule=Rule("0 or more seconds", lambda value: value == 0 or is_positive(value)),
        at=_served("Seconds that requests have to finish after SIGTERM or Ctrl-C."),
    )


def is_api_key(key: str) -> bool:
    """Whether the key can stand in a header: one or more printable ASCII characters without spaces."""
    return bool(key) and key.isascii() and key.isprintable() and " " not in key
