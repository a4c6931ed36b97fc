"""Detects forks: an engine's threads exist only in the process that made it, and in no fork of that process."""

from __future__ import annotations

import os
import threading

from tensorwright.errors import ForkedEngineError


class HomeProcess:
    """The process that something was made in."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raises ForkedEngineError in a fork. Callers take locks only after it, because in a fork nobody releases a
        lock that another thread held."""
        if not self.is_here:
            raise ForkedEngineError(
                f"the LLM was made in process {self._id} and its engine runs there alone, this is process "
                f"{os.getpid()}, a fork of it: make the LLM after the fork, or start processes with multiprocessing's "
                "spawn method"
            )


class ProcessLock:
    """A lock of a whole module. It is free in a new fork, even if a thread of the parent process holds it."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.Lock()
