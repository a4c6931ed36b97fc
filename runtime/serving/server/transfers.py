"""Keeps what a server needs to exchange prefixes: the engines' stores, the port for those who fetch, and the counts."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorwright.errors import InvalidOptionError, TensorwrightError
from tensorwright.options.declare import check_values
from tensorwright.options.transfer import TransferFields
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.serving.server.pools import WorkPool
from tensorwright.runtime.transfer.handshake import router_proof
from tensorwright.runtime.transfer.receiver import Fetched, Peer, fetch_prefix
from tensorwright.runtime.transfer.server import TransferServer
from tensorwright.runtime.transfer.store import PrefixStore
from tensorwright.runtime.transfer.tickets import Promise

logger = logging.getLogger("tensorwright.transfer")
MIN_TOKEN = 16
WAITING_FETCHES = 64
"""The fetches that may wait for a thread. The prompts of the others are computed without."""


@dataclass(frozen=True)
class TransferOptions(StrictKeywords, TransferFields):
    """The checked fields of TransferFields. token: the secret that transfer_token_file holds; None without a file."""

    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_values(self, TransferFields)
        if self.token is None and self.role != "both":
            raise InvalidOptionError(f"role {self.role!r} needs transfer_token_file, which lets the engines in")
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii()):
            raise InvalidOptionError(f"the transfer token must have {MIN_TOKEN} or more characters, all ASCII")


@dataclass
class FetchCounts:
    """What an engine has fetched: prefixes, their bytes, how many of them by shared memory, and lost transfers. The
    prompt of a lost transfer was computed again. It is changed in the event loop only."""

    prefixes: int = 0
    content: int = 0
    shared: int = 0
    lost: int = 0


class Transfers:
    """The exchange of prefixes of one server.

    engines: by the names that clients call them. host: the server's own address, for transfer_host None.
    """

    def __init__(self, engines: Mapping[str, LLM], options: TransferOptions, host: str):
        assert options.token is not None, "without a token nothing is exchanged"
        self.options = options
        self.fetched = FetchCounts()
        self._token = options.token
        self._proof = router_proof(options.token)
        self._stores = {name: PrefixStore(llm) for name, llm in engines.items()}
        self.pool = WorkPool("transfers", options.max_transfers, WAITING_FETCHES)
        self.server: TransferServer | None = None
        if options.role != "decode":
            self.server = TransferServer(
                options.token,
                host if options.transfer_host is None else options.transfer_host,
                options.transfer_port,
                options.transfer_timeout,
                idle=options.transfer_timeout / 2,
                most=options.max_transfers,
            )

    def admits(self, proof: str) -> bool:
        """Whether a request comes from a router that knows the token."""
        return hmac.compare_digest(proof.encode("utf-8", "replace"), self._proof.encode())

    def promise(self, name: str, output: RequestOutput, salt: str | None) -> str:
        """Returns a ticket for the prefix of a prompt that an engine has just computed."""
        assert self.server is not None, "an engine that only decodes promises nothing"
        prompt = np.asarray(output.prompt_token_ids, np.int32)
        return self.server.tickets.issue(Promise(self._stores[name], prompt, salt or ""))

    async def fetch(self, name: str, host: str, port: int, ticket: str, salt: str | None, client: str) -> None:
        """Fetches a prefix. A transfer that is lost is logged and counted: the engine then computes the prompt."""
        options = self.options
        timeout = options.transfer_timeout
        peer = Peer(host, port, self._token, timeout, timeout / 2, options.transfer_shared_memory)
        try:
            fetched: Fetched = await self.pool.run(
                fetch_prefix, self._stores[name], peer, ticket, salt or "", client=client
            )
        except TensorwrightError as error:
            self.fetched.lost += 1
            logger.warning("a prefix is computed again: %s", error, extra={"facts": {"from": f"{host}:{port}"}})
            return
        self.fetched.prefixes += 1
        self.fetched.content += fetched.content
        self.fetched.shared += fetched.shared

    def close(self) -> None:
        self.pool.close()
        if self.server is not None:
            self.server.close()
