"""Lets two engines prove to each other that they know the same token, without sending it.

Each end sends a nonce and, of both nonces, an HMAC-SHA256 under the token, with a label for its side. So nobody learns
the token by listening, and what was heard once is worth nothing later. Frames behind the handshake are not encrypted
and have no keyed checksums: whoever can alter packets between the engines is not kept out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

from tensorwright.errors import TransferError
from tensorwright.runtime.transfer.channel import Channel
from tensorwright.runtime.transfer.frames import VERSION, Kind

NONCE = 32
_HELLO = struct.Struct(f"<H{NONCE}s")
_PROOF = struct.Struct(f"<{NONCE}s32s")


def greet(channel: Channel, token: str) -> None:
    """Does the handshake as the end that sends prefixes. Raises TransferError for a peer that does not know the
    token."""
    own = secrets.token_bytes(NONCE)
    channel.send(Kind.HELLO, _HELLO.pack(VERSION, own))
    meta = channel.receive(Kind.PROOF).meta
    _check_size(_PROOF, meta, Kind.PROOF)
    theirs, proof = _PROOF.unpack(meta)
    if not hmac.compare_digest(proof, _mac(token, b"receiver", own, theirs)):
        raise TransferError("the peer must know the transfer token of this engine, and does not")
    channel.send(Kind.WELCOME, _mac(token, b"sender", own, theirs))


def enter(channel: Channel, token: str) -> None:
    """Does the handshake as the end that receives prefixes. Raises TransferError for a peer that does not know the
    token, or speaks another version."""
    meta = channel.receive(Kind.HELLO).meta
    _check_size(_HELLO, meta, Kind.HELLO)
    version, theirs = _HELLO.unpack(meta)
    if version != VERSION:
        raise TransferError(f"the peer must speak version {VERSION} of the transfer, it speaks {version}")
    own = secrets.token_bytes(NONCE)
    channel.send(Kind.PROOF, _PROOF.pack(own, _mac(token, b"receiver", theirs, own)))
    proof = channel.receive(Kind.WELCOME).meta
    if not hmac.compare_digest(proof, _mac(token, b"sender", theirs, own)):
        raise TransferError("the peer must know the transfer token of this engine, and does not")


def router_proof(token: str) -> str:
    """Returns what a router shows an engine over HTTP to prove that it knows the token. It tells nothing of the
    token."""
    return hmac.new(token.encode(), b"tensorwright router", hashlib.sha256).hexdigest()


def _mac(token: str, side: bytes, sender: bytes, receiver: bytes) -> bytes:
    return hmac.new(token.encode(), side + sender + receiver, hashlib.sha256).digest()


def _check_size(form: struct.Struct, meta: bytes, kind: Kind) -> None:
    if len(meta) != form.size:
        raise TransferError(f"a {kind.name} frame must have {form.size} bytes of meta, got {len(meta)}")
