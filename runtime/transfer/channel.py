"""Sends and receives frames on a socket, each within a time.

Every wait ends: at the channel's deadline, and when the peer has sent or taken nothing for `idle` seconds. Whatever
goes wrong with the connection is a TransferError.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType

from tensorwright.errors import TransferError, reason
from tensorwright.runtime.transfer.frames import HEADER, MAX_DATA, Head, Kind, from_json, pack, read_head, to_json

SHOWN_REASON = 300  # the most characters of a peer's reason that our error repeats


class Frame:
    """A frame that came: its kind, its meta, and its data, which is valid until the next frame is received."""

    def __init__(self, kind: Kind, meta: bytes, data: memoryview):
        self.kind, self.meta, self.data = kind, meta, data


class Channel:
    """One end of a connection. connection: a connected socket, which the channel closes. deadline: a time of
    time.monotonic. idle: the most seconds of one wait."""

    def __init__(self, connection: socket.socket, deadline: float, idle: float):
        self._socket = connection
        self._deadline = deadline
        self._idle = idle

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: Kind, meta: bytes = b"", data: memoryview | bytes = b"") -> None:
        """Sends a frame, and waits until the system has taken it."""
        try:
            self._limit()
            self._socket.sendall(pack(kind, meta, len(data)))
            if len(data):
                self._limit()
                self._socket.sendall(data)
        except TimeoutError:
            raise TransferError(f"the peer must take a {kind.name} frame in time, and did not") from None
        except OSError as error:
            raise TransferError(f"the connection broke while a {kind.name} frame was sent: {reason(error)}") from None

    def send_error(self, why: str) -> None:
        """Tells the peer why this end gives up. A peer that does not hear it sees that the connection ends."""
        try:
            self.send(Kind.ERROR, to_json({"reason": why[:SHOWN_REASON]}))
        except TransferError:
            return

    def receive(self, *expected: Kind, room: memoryview | None = None, max_data: int = 0) -> Frame:
        """Returns the next frame. room: where data is put; without it at most max_data bytes are taken. Raises
        TransferError for a frame of another kind, and with the peer's reason if it gives up."""
        most = max_data if room is None else min(len(room), MAX_DATA)
        head = read_head(self._read(HEADER.size), most)
        meta = self._read(head.meta_length)
        head.check(meta)
        data = memoryview(bytearray(head.data_length)) if room is None else room[: head.data_length]
        self._read_into(data)
        if head.kind is Kind.ERROR and Kind.ERROR not in expected:
            why = str(from_json(meta, Kind.ERROR).get("reason", "no reason"))[:SHOWN_REASON]
            raise TransferError(f"the peer gave up: {why}")
        self._check_kind(head, expected)
        return Frame(head.kind, meta, data)

    @staticmethod
    def _check_kind(head: Head, expected: tuple[Kind, ...]) -> None:
        if head.kind not in expected:
            names = " or ".join(kind.name for kind in expected)
            raise TransferError(f"the peer must send {names} now, got {head.kind.name}")

    def _read(self, count: int) -> bytes:
        buffer = bytearray(count)
        self._read_into(memoryview(buffer))
        return bytes(buffer)

    def _read_into(self, view: memoryview) -> None:
        try:
            while len(view):
                self._limit()
                count = self._socket.recv_into(view)
                if count == 0:
                    raise TransferError("the peer closed the connection before the transfer was over")
                view = view[count:]
        except TimeoutError:
            raise TransferError("the peer must send what is to come in time, and did not") from None
        except OSError as error:
            raise TransferError(f"the connection broke: {reason(error)}") from None

    def _limit(self) -> None:
        """Bounds the next wait. Raises TimeoutError if the time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left, self._idle))
