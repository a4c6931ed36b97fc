"""Reads and writes the headers by which a router hands a request over, and fetches what they name.

A router that had a prompt computed elsewhere tells the engine that answers where the prefix is, in the header PREFIX:
"<proof>;<host>:<port>;<ticket>,<ticket>". The proof shows that the router knows the transfer token. Nobody else can
make an engine connect to an address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request
from starlette.exceptions import HTTPException

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.server.clients import client_of
from tensorwright.runtime.serving.server.requests import unless_gone
from tensorwright.runtime.serving.server.transfers import Transfers

PREFIX = "x-tensorwright-prefix"
PROOF = "x-tensorwright-proof"
MAX_TICKETS = 64
"""The most prompts of one request whose prefixes are fetched."""
_FORM = re.compile(r"([0-9a-f]{64});([^;]{1,255}):(\d{1,5});([0-9a-f]{32}(?:,[0-9a-f]{32})*)")


@dataclass(frozen=True)
class Handover:
    """Where the prefixes of a request's prompts are, a ticket for each prompt."""

    host: str
    port: int
    tickets: tuple[str, ...]

    def header(self, proof: str) -> str:
        return f"{proof};{self.host}:{self.port};{','.join(self.tickets)}"


def read_header(text: str) -> tuple[str, Handover]:
    """Returns the proof, and what is handed over. Raises InvalidRequestError for another text."""
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) > 65535:
        raise InvalidRequestError(f"the header {PREFIX} must be PROOF;HOST:PORT;TICKETS, as a router writes it")
    tickets = tuple(found[4].split(","))
    if len(tickets) > MAX_TICKETS:
        raise InvalidRequestError(f"the header {PREFIX} must have at most {MAX_TICKETS} tickets, got {len(tickets)}")
    return found[1], Handover(found[2], int(found[3]), tickets)


def admit_router(request: Request, proof: str) -> Transfers:
    """Returns the server's transfers. Raises HTTPException with 403 unless the request is from a router that knows the
    token of this server."""
    transfers: Transfers | None = request.app.state.transfers
    if transfers is None or not transfers.admits(proof):
        raise HTTPException(403, "only a router that knows this server's transfer token may hand requests over")
    return transfers


async def bring_prefixes(request: Request, model: str, params: SamplingParams) -> None:
    """Fetches the prefixes that the request's header names, one after the other. Raises ClientGone if the client leaves
    meanwhile. Without the header it does nothing."""
    text = request.headers.get(PREFIX)
    if text is None:
        return
    proof, handover = read_header(text)
    transfers = admit_router(request, proof)
    if params.prompt_logprobs is not None:  # such a request computes its whole prompt
        return
    client = client_of(request.scope)
    for ticket in handover.tickets:
        fetching = transfers.fetch(model, handover.host, handover.port, ticket, params.cache_salt, client)
        await unless_gone(fetching, request.receive)
