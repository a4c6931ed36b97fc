"""Reads and writes the headers by which a router hands a request over, and fetches what they name.

A router that had a prompt computed elsewhere tells the engine that answers where the prefix is, in the header PREFIX:
"<proof>;<host>:<port>;<ticket>,<ticket>". The proof shows that the router knows the transfer token. Nobody else can
make an engine connect to an address.

A router names the engine that it chose in the header PLACE, and the engine writes that name into the id of a response
that it stores. So the router finds the engine by the id, without a memory of its own. A client that sends the header
changes the id of its own response alone.
"""

from __future__ import annotations

import hashlib
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
PLACE = "x-tensorwright-place"
MAX_TICKETS = 64
"""The most prompts of one request whose prefixes are fetched."""
_FORM = re.compile(r"([0-9a-f]{64});([^;]{1,255}):(\d{1,5});([0-9a-f]{32}(?:,[0-9a-f]{32})*)")
_PLACE = re.compile(r"[0-9a-f]{12}")
_PLACED = re.compile(r"\w{1,16}_([0-9a-f]{12})_[0-9a-f]+")


def place_of(address: str) -> str:
    """Returns the name by which routers call the server of an address: 12 hexadecimal digits of its hash."""
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def place_in(identity: str) -> str | None:
    """Returns the place that is in an id; None if there is none."""
    found = _PLACED.fullmatch(identity)
    return None if found is None else found[1]


def given_place(request: Request) -> str | None:
    """Returns the place that a request's header names; None without it. Raises InvalidRequestError for another text."""
    place = request.headers.get(PLACE)
    if place is not None and _PLACE.fullmatch(place) is None:
        raise InvalidRequestError(f"the header {PLACE} must be 12 hexadecimal digits, as a router writes it")
    return place


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
