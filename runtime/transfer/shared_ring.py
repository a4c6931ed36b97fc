"""Carries the bytes of chunks between two processes of one machine: a ring of slots in shared memory.

The receiver makes the ring, a file of /dev/shm that only its user can open, under a name that nobody can guess. The
sender opens it by that name, and the receiver then removes the name, so the memory goes with the two processes however
they end. Chunk n lies in slot n modulo the number of slots. The sender has at most as many chunks under way, so it
never writes to a slot that is still read.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import stat
from pathlib import Path

from tensorwright.errors import TransferError, reason

FOLDER = Path("/dev/shm")
_NAME = re.compile(r"tensorwright-[0-9a-f]{32}")


class SharedRing:
    """A ring of `slots` slots of `slot_bytes` bytes."""

    def __init__(self, memory: mmap.mmap, slots: int, slot_bytes: int, name: str | None):
        self._memory = memory
        self._view = memoryview(memory)
        self._slots, self._slot_bytes = slots, slot_bytes
        self.name = name

    @classmethod
    def make(cls, slots: int, slot_bytes: int) -> SharedRing:
        """Makes a ring with a name. Raises TransferError if the machine has no memory for it."""
        name = f"tensorwright-{secrets.token_hex(16)}"
        try:
            file = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TransferError(f"shared memory could not be made in {FOLDER}: {reason(error)}") from error
        try:
            # This takes the memory now: a full /dev/shm would otherwise end the process at its first write.
            os.posix_fallocate(file, 0, slots * slot_bytes)
            return cls(mmap.mmap(file, slots * slot_bytes), slots, slot_bytes, name)
        except OSError as error:
            os.unlink(FOLDER / name)
            raise TransferError(f"shared memory could not be made in {FOLDER}: {reason(error)}") from error
        finally:
            os.close(file)

    @classmethod
    def open(cls, name: str, slots: int, slot_bytes: int) -> SharedRing | None:
        """Opens a peer's ring. Returns None if it is not there, because the peer is on another machine. Raises
        TransferError for a name or a file that no engine of ours makes."""
        if not _NAME.fullmatch(name):
            raise TransferError(f"a ring must have a name like tensorwright-<32 hex digits>, got {name!r:.60}")
        try:
            file = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_size != slots * slot_bytes:
                raise TransferError("a ring must be a file of our user and of the size that the peer names, is none")
            return cls(mmap.mmap(file, slots * slot_bytes), slots, slot_bytes, None)
        finally:
            os.close(file)

    def slot(self, chunk: int, length: int) -> memoryview:
        """Returns the first `length` bytes of a chunk's slot."""
        if length > self._slot_bytes:
            raise TransferError(f"a chunk must have at most {self._slot_bytes} bytes, got {length}")
        start = chunk % self._slots * self._slot_bytes
        return self._view[start : start + length]

    def forget_name(self) -> None:
        """Removes the name of a ring that this process made; a second call does nothing."""
        if self.name is not None:
            (FOLDER / self.name).unlink(missing_ok=True)
            self.name = None

    def close(self) -> None:
        """Gives the memory back. No slot may be used afterwards."""
        self.forget_name()
        self._view.release()
        self._memory.close()
