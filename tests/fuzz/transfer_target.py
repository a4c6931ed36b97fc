"""Bytes as a peer of a transfer sends them after the handshake: to the end that receives a prefix, and to the one that
sends. The first byte says to which."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzz.answers import Answered

from tensorwright.errors import InvalidRequestError, TransferError
from tensorwright.runtime.serving.server.handover import read_header
from tensorwright.runtime.transfer.channel import Channel
from tensorwright.runtime.transfer.identity import Identity
from tensorwright.runtime.transfer.receiver import _Receiving
from tensorwright.runtime.transfer.sender import send_prefix
from tensorwright.runtime.transfer.store import Extent, Import, PrefixStore
from tensorwright.runtime.transfer.tickets import Promise

MOST = 100_000
"""Bytes that a socket takes while nobody reads."""
PROMPT = np.arange(70, dtype=np.int32)


class Store(PrefixStore):
    """A store without an engine: three blocks of two groups, of which the second needs the last alone, and states."""

    def __init__(self) -> None:
        self.identity = Identity("f", "k", 16, (64, 32), (0, 16), 100)
        self.engine: Any = SimpleNamespace(vocab_size=257, max_seq_len=256)
        self.open = 0

    def extent(self, prompt: Any, salt: str) -> Extent:
        return Extent(3, True)

    def read(self, tokens: Any, salt: str, pieces: Any, out: Any) -> None:
        assert len(out) == sum(self.sizes(pieces))
        out[:] = 7

    def read_states(self, tokens: Any, salt: str) -> Any:
        return np.arange(100, dtype=np.uint8)

    def begin(self, tokens: Any, salt: str) -> Import:
        if len(tokens) >= self.engine.max_seq_len:
            raise TransferError("too long")
        blocks = len(tokens) // 16
        self.open += 1
        pieces = [(0, index) for index in range(blocks)] + [(1, blocks - 1)]
        return Import(1, np.asarray(pieces, np.int32), True)

    def write(self, taking: Import, pieces: Any, content: Any) -> None:
        assert len(content) == sum(self.sizes(pieces))

    def finish(self, taking: Import, states: Any) -> None:
        assert len(states) == 100
        self.open -= 1

    def drop(self, taking: Import) -> None:
        self.open -= 1


class OneTicket:
    """The tickets of a server that has promised one prefix, whatever it is asked for."""

    def __init__(self, store: Store):
        self._promise = Promise(store, PROMPT, "")

    def redeem(self, ticket: str) -> Promise:
        return self._promise


def transfer(data: bytes) -> None:
    with Answered(InvalidRequestError):
        read_header(data[1:].decode("latin-1"))
    store = Store()
    ours, theirs = socket.socketpair()
    with theirs, Channel(ours, time.monotonic() + 30, 30) as channel:
        theirs.sendall(data[1:MOST])
        theirs.shutdown(socket.SHUT_WR)
        with Answered(TransferError):
            if data[:1] == b"s":
                send_prefix(channel, OneTicket(store))  # type: ignore[arg-type]
            else:
                _Receiving(channel, store, "", 64, None).run("0" * 32)
    assert store.open == 0, "an import was left open"
