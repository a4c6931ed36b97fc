"""Defines the frames of a transfer: their kinds, their header, and the bounds of what a peer may send.

A frame is HEADER, then `meta`, then `data`. The header's checksum covers the header and `meta`. The bytes of blocks and
states are `data`, or lie in shared memory (shared_ring.py); their checksums stand in `meta`. All numbers are
little-endian. docs/prefill-decode.md shows in which order frames are sent.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import TransferError
from tensorwright.json_text import read_json

VERSION = 1
MAGIC = b"TWKV"
HEADER = struct.Struct("<4sBxxxIII")
"""The magic, the kind, the lengths of meta and data, and the CRC-32 of the 16 bytes before it and of meta."""
MAX_META = 64 << 10
"""The most bytes of a frame's meta."""
MAX_DATA = 64 << 20
"""The most bytes of a frame's data. A model whose block of one cache group is larger is refused by name."""
MAX_PIECES = 1024
"""The most blocks of one CHUNK frame. Blocks that only count positions have no bytes, so bytes do not bound them."""


class Kind(enum.IntEnum):
    """The kinds of frames. S: the engine that sends a prefix. R: the engine that receives it."""

    HELLO = 1  # S to R: version and nonce
    PROOF = 2  # R to S: a nonce, and the proof that R knows the token
    WELCOME = 3  # S to R: the proof that S knows the token
    FETCH = 4  # R to S: the ticket, R's identity, window and ring
    OFFER = 5  # S to R: how long the prefix is; data: its tokens
    WANT = 6  # R to S: whether states are wanted; data: the blocks that are wanted
    CHUNK = 7  # S to R: blocks
    STATE = 8  # S to R: a part of the states
    CREDIT = 9  # R to S: one chunk was taken
    END = 10  # S to R: all was sent
    ERROR = 11  # either way: the reason why the sender of this frame gives up


PIECE = struct.Struct("<iiI16s")
"""A block in a CHUNK's meta: its group, its number in the prefix, the CRC-32 of its bytes, its key (block_keys.py)."""
CHUNK_HEAD = struct.Struct("<III")
"""A CHUNK's meta begins with the chunk's number, the number of its blocks, and the bytes that lie in shared memory."""
STATE_HEAD = struct.Struct("<IIII")
"""A STATE's meta: the chunk's number, the offset in the states, the length, the CRC-32; the bytes of the ring are as
many as the length, if the frame has no data."""


@dataclass(frozen=True)
class Head:
    """A header that was read and checked for its bounds, but not for its checksum."""

    kind: Kind
    meta_length: int
    data_length: int
    checksum: int
    covered: bytes  # the part of the header that the checksum covers

    def check(self, meta: bytes) -> None:
        """Raises TransferError unless the checksum fits."""
        if zlib.crc32(meta, zlib.crc32(self.covered)) != self.checksum:
            raise TransferError("a frame's checksum must fit its header, and does not: bytes were altered on the way")


def pack(kind: Kind, meta: bytes, data_length: int) -> bytes:
    """Returns the header and meta of a frame."""
    assert len(meta) <= MAX_META, "a frame of ours has too much meta"
    assert data_length <= MAX_DATA, "a frame of ours has too much data"
    covered = HEADER.pack(MAGIC, kind, len(meta), data_length, 0)[:-4]
    return covered + struct.pack("<I", zlib.crc32(meta, zlib.crc32(covered))) + meta


def read_head(header: bytes, max_data: int) -> Head:
    """Returns a frame's header. Raises TransferError for what is no header, and for a frame beyond the bounds."""
    magic, number, meta_length, data_length, checksum = HEADER.unpack(header)
    if magic != MAGIC:
        raise TransferError(f"a frame must begin with {MAGIC!r}, got {magic!r}: the peer is no engine of Tensorwright")
    try:
        kind = Kind(number)
    except ValueError:
        raise TransferError(f"a frame must be of a kind from 1 to {len(Kind)}, got {number}") from None
    if meta_length > MAX_META or data_length > max_data:
        raise TransferError(
            f"a {kind.name} frame must have at most {MAX_META} bytes of meta and {max_data} of data here, got "
            f"{meta_length} and {data_length}"
        )
    return Head(kind, meta_length, data_length, checksum, header[:-4])


def to_json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def from_json(meta: bytes, kind: Kind) -> dict[str, Any]:
    """Returns the fields of a meta in JSON. Raises TransferError for anything else."""
    try:
        fields = read_json(meta)
    except ValueError as error:
        raise TransferError(f"a {kind.name} frame's meta is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise TransferError(f"a {kind.name} frame's meta must be an object, got {type(fields).__name__}")
    return fields


def field(fields: dict[str, Any], name: str, kind: type, where: Kind) -> Any:
    """Returns a field of a meta in JSON. Raises TransferError unless it is of exactly this type."""
    value = fields.get(name)
    if type(value) is not kind:
        raise TransferError(f"a {where.name} frame must have {name} as {kind.__name__}, got {value!r:.60}")
    return value
