"""Sends one prefix over a connection: the end that computed it."""

from __future__ import annotations

import zlib

import numpy as np

from tensorwright.errors import TransferError
from tensorwright.runtime.transfer.block_keys import block_keys
from tensorwright.runtime.transfer.channel import Channel
from tensorwright.runtime.transfer.chunks import chunk_bytes, cut
from tensorwright.runtime.transfer.frames import (
    CHUNK_HEAD,
    MAX_DATA,
    PIECE,
    STATE_HEAD,
    Kind,
    field,
    from_json,
    to_json,
)
from tensorwright.runtime.transfer.shared_ring import SharedRing
from tensorwright.runtime.transfer.store import Ids
from tensorwright.runtime.transfer.tickets import Promise, Tickets

MAX_WINDOW = 64


def send_prefix(channel: Channel, tickets: Tickets) -> int:
    """Serves one FETCH. Returns the bytes of blocks and states that were sent. Raises TransferError."""
    asked = from_json(channel.receive(Kind.FETCH).meta, Kind.FETCH)
    promise = tickets.redeem(field(asked, "ticket", str, Kind.FETCH))
    promise.store.identity.require_same(asked.get("identity"))
    window = field(asked, "window", int, Kind.FETCH)
    most = chunk_bytes(promise.store.identity.block_bytes)
    if not 1 <= window <= MAX_WINDOW:
        raise TransferError(f"a window must be from 1 to {MAX_WINDOW} chunks, got {window}")
    name = asked.get("ring")
    ring = SharedRing.open(field(asked, "ring", str, Kind.FETCH), window, most) if name is not None else None
    try:
        return _Sending(channel, promise, window, most, ring).run()
    finally:
        if ring is not None:
            ring.close()


class _Sending:
    """One prefix while it is sent. Never are more than `window` chunks under way, and this end keeps one of them."""

    def __init__(self, channel: Channel, promise: Promise, window: int, most: int, ring: SharedRing | None):
        self._channel, self._store, self._salt = channel, promise.store, promise.salt
        self._prompt, self._window, self._most, self._ring = promise.prompt, window, most, ring
        self._buffer = np.empty(most if ring is None else 0, np.uint8)
        self._sent = self._credits = self._bytes = 0

    def run(self) -> int:
        extent = self._store.extent(self._prompt, self._salt)
        size = self._store.identity.block_size
        tokens = self._prompt[: extent.blocks * size]
        offer = {"blocks": extent.blocks, "state": extent.state, "ring": self._ring is not None}
        self._channel.send(Kind.OFFER, to_json(offer), tokens.astype("<i4").tobytes())
        want = self._channel.receive(Kind.WANT, max_data=MAX_DATA)
        wants_states = field(from_json(want.meta, Kind.WANT), "state", bool, Kind.WANT)
        if len(want.data) % 8:
            raise TransferError(f"a WANT frame must have 8 bytes of data for each block, got {len(want.data)} in all")
        pieces = np.frombuffer(want.data, "<i4").astype(np.int32).reshape(-1, 2)
        self._check(pieces, extent.blocks)
        keys = block_keys(tokens, size, self._store.identity.fingerprint)
        sizes = self._store.sizes(pieces)
        for place in cut(sizes, self._most):
            self._send_chunk(tokens, pieces[place], sizes[place], keys)
        if wants_states:
            self._send_states(tokens)
        while self._credits < self._sent:
            self._take_credit()
        self._channel.send(Kind.END)
        return self._bytes

    def _check(self, pieces: Ids, blocks: int) -> None:
        groups = max(1, len(self._store.identity.block_bytes))
        inside = (pieces >= 0).all() and (pieces[:, 0] < groups).all() and (pieces[:, 1] < blocks).all()
        if not inside or len(pieces) > groups * blocks:
            raise TransferError(f"the blocks that are wanted must be of the {blocks} that were offered, and are not")

    def _send_chunk(self, tokens: Ids, pieces: Ids, sizes: list[int], keys: list[bytes]) -> None:
        length = sum(sizes)
        content = self._room(length)
        if length:
            self._store.read(tokens, self._salt, np.ascontiguousarray(pieces), np.frombuffer(content, np.uint8))
        meta = [CHUNK_HEAD.pack(self._sent, len(pieces), length if self._ring is not None else 0)]
        start = 0
        for (group, index), size in zip(pieces.tolist(), sizes, strict=True):
            meta.append(PIECE.pack(group, index, zlib.crc32(content[start : start + size]), keys[index]))
            start += size
        self._send(Kind.CHUNK, b"".join(meta), content)

    def _send_states(self, tokens: Ids) -> None:
        states = self._store.read_states(tokens, self._salt).data
        for start in range(0, len(states), self._most):
            part = states[start : start + self._most]
            content = self._room(len(part))
            content[:] = part
            self._send(Kind.STATE, STATE_HEAD.pack(self._sent, start, len(part), zlib.crc32(part)), content)

    def _room(self, length: int) -> memoryview:
        """Returns the place of the next chunk's bytes, once the window has room for it."""
        while self._sent - self._credits >= self._window:
            self._take_credit()
        return self._buffer.data[:length] if self._ring is None else self._ring.slot(self._sent, length)

    def _send(self, kind: Kind, meta: bytes, content: memoryview) -> None:
        self._channel.send(kind, meta, content if self._ring is None else b"")
        self._sent += 1
        self._bytes += len(content)

    def _take_credit(self) -> None:
        self._channel.receive(Kind.CREDIT)
        self._credits += 1
        if self._credits > self._sent:
            raise TransferError("a peer must give back only chunks that it got, and gave back more")
