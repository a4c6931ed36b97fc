"""Fetches one prefix from another engine into this one: the end that goes on with it."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from dataclasses import dataclass

import numpy as np

from tensorwright.errors import TensorwrightError, TransferError, reason
from tensorwright.runtime.transfer.block_keys import block_keys
from tensorwright.runtime.transfer.channel import Channel, Frame
from tensorwright.runtime.transfer.chunks import chunk_bytes
from tensorwright.runtime.transfer.frames import CHUNK_HEAD, PIECE, STATE_HEAD, Kind, field, from_json, to_json
from tensorwright.runtime.transfer.handshake import enter
from tensorwright.runtime.transfer.shared_ring import SharedRing
from tensorwright.runtime.transfer.store import Bytes, Ids, Import, PrefixStore

WINDOW = 4
"""The chunks that may be under way: what a transfer takes of this end's memory, or of its shared memory."""


@dataclass(frozen=True)
class Peer:
    """Another engine that sends prefixes. token: the one that both engines know. timeout: the seconds that a transfer
    may take in all. idle: the most seconds in which the peer may send nothing. shared: whether shared memory is used
    with a peer of this machine."""

    host: str
    port: int
    token: str
    timeout: float = 10.0
    idle: float = 5.0
    shared: bool = True


@dataclass(frozen=True)
class Fetched:
    """What a transfer has brought. tokens: the length of the prefix that is in the cache now. content: the bytes of
    blocks and states that came. shared: whether they came through shared memory."""

    tokens: int
    content: int
    seconds: float
    shared: bool


def fetch_prefix(store: PrefixStore, peer: Peer, ticket: str, salt: str) -> Fetched:
    """Fetches the prefix of a ticket. salt: that under which this engine remembers it. Raises TransferError, and then
    remembers nothing of the prefix."""
    start = time.monotonic()
    deadline = start + peer.timeout
    try:
        connection = socket.create_connection((peer.host, peer.port), min(peer.timeout, peer.idle))
    except OSError as error:
        raise TransferError(f"an engine must send prefixes at {peer.host}:{peer.port}: {reason(error)}") from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with Channel(connection, deadline, peer.idle) as channel:
        local = connection.getpeername()[0] == connection.getsockname()[0]
        enter(channel, peer.token)
        most = chunk_bytes(store.identity.block_bytes)
        ring = SharedRing.make(WINDOW, most) if peer.shared and local else None
        try:
            receiving = _Receiving(channel, store, salt, most, ring)
            tokens, content = receiving.run(ticket)
            return Fetched(tokens, content, time.monotonic() - start, receiving.shared)
        except TensorwrightError as error:
            channel.send_error(str(error) if isinstance(error, TransferError) else "the engine takes no prefix now")
            raise
        finally:
            if ring is not None:
                ring.close()


class _Receiving:
    """One prefix while it comes."""

    def __init__(self, channel: Channel, store: PrefixStore, salt: str, most: int, ring: SharedRing | None):
        self._channel, self._store, self._salt, self._most = channel, store, salt, most
        self._ring = ring
        self.shared = False
        self._taken = self._bytes = 0

    def run(self, ticket: str) -> tuple[int, int]:
        fields = {
            "ticket": ticket,
            "identity": self._store.identity.as_fields(),
            "window": WINDOW,
            "ring": None if self._ring is None else self._ring.name,
        }
        self._channel.send(Kind.FETCH, to_json(fields))
        offer = self._channel.receive(Kind.OFFER, max_data=4 * self._store.engine.max_seq_len)
        tokens = self._read_offer(offer)
        if self._ring is not None:
            self._ring.forget_name()
        if not len(tokens):
            self._channel.send(Kind.WANT, to_json({"state": False}))
            self._channel.receive(Kind.END)
            return 0, 0
        taking = self._store.begin(tokens, self._salt)
        try:
            self._channel.send(Kind.WANT, to_json({"state": taking.state}), taking.pieces.astype("<i4").tobytes())
            self._take_blocks(taking, tokens)
            states = self._take_states() if taking.state else np.empty(0, np.uint8)
            self._channel.receive(Kind.END)
            self._store.finish(taking, states)
        except BaseException:
            self._store.drop(taking)
            raise
        return len(tokens), self._bytes

    def _read_offer(self, offer: Frame) -> Ids:
        fields = from_json(offer.meta, Kind.OFFER)
        blocks = field(fields, "blocks", int, Kind.OFFER)
        self.shared = field(fields, "ring", bool, Kind.OFFER)
        if self.shared and self._ring is None:
            raise TransferError("a peer must use shared memory only if it is offered, and used it")
        identity = self._store.identity
        if blocks < 0 or len(offer.data) != 4 * blocks * identity.block_size:
            raise TransferError(f"{blocks} blocks must come with {identity.block_size} tokens each, and did not")
        if blocks and field(fields, "state", bool, Kind.OFFER) != (identity.state_bytes > 0):
            raise TransferError("a prefix must come with states if, and only if, the model has recurrent layers")
        tokens = np.frombuffer(offer.data, "<i4").astype(np.int32)
        if ((tokens < 0) | (tokens >= self._store.engine.vocab_size)).any():
            raise TransferError("the tokens of a prefix must be of the engine's vocabulary, and are not")
        return tokens

    def _take_blocks(self, taking: Import, tokens: Ids) -> None:
        """Takes chunk after chunk. Blocks must come in the order in which they were asked for."""
        identity = self._store.identity
        keys = block_keys(tokens, identity.block_size, identity.fingerprint)
        room = None if self.shared else memoryview(bytearray(self._most))
        done = 0
        while done < len(taking.pieces):
            frame = self._channel.receive(Kind.CHUNK, room=room)
            number, count, in_ring = _unpack(CHUNK_HEAD, frame.meta[: CHUNK_HEAD.size], Kind.CHUNK)
            pieces = taking.pieces[done : done + count]
            if len(pieces) != count or count == 0 or len(frame.meta) != CHUNK_HEAD.size + count * PIECE.size:
                raise TransferError(f"a CHUNK frame must have blocks that were wanted, got {count} of them")
            content = self._content(number, frame, in_ring)
            self._check(frame.meta, pieces, content, keys)
            self._store.write(taking, np.ascontiguousarray(pieces), np.frombuffer(content, np.uint8))
            self._give_credit(len(content))
            done += count

    def _check(self, meta: bytes, pieces: Ids, content: memoryview, keys: list[bytes]) -> None:
        """Raises TransferError unless the chunk has exactly these blocks, of these tokens, unaltered."""
        sizes = self._store.sizes(pieces)
        if sum(sizes) != len(content):
            raise TransferError(f"{len(sizes)} blocks must have {sum(sizes)} bytes, got {len(content)}")
        start = 0
        told = PIECE.iter_unpack(meta[CHUNK_HEAD.size :])
        for (group, index), size, (its_group, its_index, checksum, key) in zip(
            pieces.tolist(), sizes, told, strict=True
        ):
            if (its_group, its_index) != (group, index):
                raise TransferError(
                    f"block {index} of group {group} must come now, got block {its_index} of group {its_group}"
                )
            if key != keys[index]:
                raise TransferError(f"block {index} must be of the prefix's tokens, and its key says that it is not")
            if zlib.crc32(content[start : start + size]) != checksum:
                raise TransferError(f"block {index} of group {group} was altered on the way: its checksum differs")
            start += size

    def _take_states(self) -> Bytes:
        states = np.empty(self._store.identity.state_bytes, np.uint8)
        room = None if self.shared else memoryview(bytearray(self._most))
        done = 0
        while done < len(states):
            frame = self._channel.receive(Kind.STATE, room=room)
            number, offset, length, checksum = _unpack(STATE_HEAD, frame.meta, Kind.STATE)
            content = self._content(number, frame, length if self.shared else 0)
            if offset != done or not 0 < length <= len(states) - done or len(content) != length:
                raise TransferError(f"the states must go on at byte {done}, got {length} bytes from {offset} on")
            if zlib.crc32(content) != checksum:
                raise TransferError("the states were altered on the way: their checksum differs")
            states[done : done + length] = np.frombuffer(content, np.uint8)
            self._give_credit(length)
            done += length
        return states

    def _content(self, number: int, frame: Frame, in_ring: int) -> memoryview:
        if number != self._taken:
            raise TransferError(f"chunk {self._taken} must come now, got chunk {number}")
        if not self.shared or self._ring is None:
            return frame.data
        return self._ring.slot(number, in_ring)

    def _give_credit(self, content: int) -> None:
        self._taken += 1
        self._bytes += content
        self._channel.send(Kind.CREDIT)


def _unpack(form: struct.Struct, meta: bytes, kind: Kind) -> tuple[int, ...]:
    if len(meta) != form.size:
        raise TransferError(f"a {kind.name} frame's meta must have {form.size} bytes to begin with, got {len(meta)}")
    return form.unpack(meta)
