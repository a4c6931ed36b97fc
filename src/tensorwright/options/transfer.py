"""Declares the options of `tensorwright serve` and `tensorwright route` for prefill and decode apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.number_checks import is_int
from tensorwright.options.declare import SECONDS, At, Door, Rule, declare, one_of, whole_number
from tensorwright.options.server import MAX_PORT

ROLES = ("both", "prefill", "decode")
_TOKEN_FILE = "File whose first line is the secret that engines and router share."


def _serve(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    return {Door.SERVE: At(help, flag, **differing)}


def _route(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    return {Door.ROUTE: At(help, flag, **differing)}


@dataclass(frozen=True)
class TransferFields:
    """The options of an engine that gives prefixes of its KV cache to others, or takes theirs.

    role: "prefill" computes prompts for others and answers no completions itself; "decode" answers completions and
    fetches prefixes; "both" does either.
    transfer_token_file: None means that no prefix is exchanged; then role must be "both".
    transfer_host: the address at which others fetch prefixes; None means that of the server.
    transfer_port: 0 means any that is free. A router learns it from the server.
    transfer_timeout: the seconds that the transfer of one prefix may take; what took longer is computed again.
    max_transfers: the prefixes that may be fetched at once, and that may be sent at once.
    transfer_shared_memory: True uses shared memory with engines of the same machine and user.
    """

    role: str = declare(
        "both",
        rule=one_of(ROLES),
        at=_serve(
            "What this engine does: prefill computes prompts for other engines, decode fetches them and answers.",
            choices=ROLES,
        ),
        section="Prefill and decode apart",
    )
    transfer_token_file: str | None = declare(
        None,
        str,
        at=_serve(f"{_TOKEN_FILE} [default: no prefixes are exchanged]", metavar="FILE"),
    )
    transfer_host: str | None = declare(
        None, str, at=_serve("Address at which engines fetch prefixes from this one. [default: that of --host]")
    )
    transfer_port: int = declare(
        0,
        rule=Rule(f"from 0 to {MAX_PORT}", lambda value: is_int(value) and 0 <= value <= MAX_PORT),
        at=_serve("Port at which engines fetch prefixes from this one; 0 is any that is free."),
    )
    transfer_timeout: float = declare(
        10.0, rule=SECONDS, at=_serve("Seconds that a prefix may take on its way; else it is computed again.")
    )
    max_transfers: int = declare(
        4,
        rule=whole_number("from 1 to 16", high=16),
        at=_serve("The most prefixes that are fetched at once, and that are sent at once."),
    )
    transfer_shared_memory: bool = declare(
        True,
        at=_serve(
            "Use shared memory with engines of this machine.", "--transfer-shared-memory/--no-transfer-shared-memory"
        ),
    )


@dataclass(frozen=True)
class RouterFields:
    """The options of a router before engines that prefill and engines that decode.

    prefill, decode: the addresses of the engines' servers. Without any of prefill, all prompts are computed where the
    answer is.
    transfer_token_file: the same secret that the engines have.
    min_prefill_bytes: a request whose prompt is shorter goes to a decode engine at once.
    prefill_timeout: the seconds that a prefill may take; what took longer is computed by the decode engine.
    retry_after_failure: the seconds for which an engine that could not be reached is passed over.
    """

    prefill: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_route("Server of an engine that prefills. May be repeated.", metavar="URL"),
        section="Prefill and decode apart",
    )
    decode: tuple[str, ...] = declare(
        (), str, repeated=True, at=_route("Server of an engine that decodes. May be repeated.", metavar="URL")
    )
    transfer_token_file: str | None = declare(
        None, str, at=_route(f"{_TOKEN_FILE} [default: none, which works without --prefill]", metavar="FILE")
    )
    min_prefill_bytes: int = declare(
        1024,
        rule=whole_number("0 or a positive integer", low=0, high=math.inf),
        at=_route("Bytes below which a prompt goes to a decode engine at once."),
    )
    prefill_timeout: float = declare(
        60.0, rule=SECONDS, at=_route("Seconds that a prefill may take; else the decode engine computes the prompt.")
    )
    retry_after_failure: float = declare(
        5.0, rule=SECONDS, at=_route("Seconds for which an engine that could not be reached is passed over.")
    )
