"""Starts requests with a new grammar in threads of their own.

Triton calls the model from one thread, which must not wait until a grammar is compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensorwright.errors import QueueFullError

MAX_STARTING = 32
"""The most requests that start at once; one more is refused."""


class Starting:
    """Runs one thread for each request that starts, for a few seconds at most. It is thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[threading.Thread, tuple[str, threading.Event]] = {}

    def start(self, request_id: str, begin: Callable[[threading.Event], None]) -> None:
        """Starts a thread that calls `begin`. Raises QueueFullError if MAX_STARTING requests start already.

        begin: must not raise. Its argument is the event that `stop` sets.
        """
        stopped = threading.Event()

        def run() -> None:
            try:
                begin(stopped)
            finally:
                self._ended(threading.current_thread())

        thread = threading.Thread(target=run, name="tensorwright-start", daemon=True)
        with self._changed:
            if len(self._running) >= MAX_STARTING:
                raise QueueFullError(f"{MAX_STARTING} requests wait for their grammars already; try again later")
            self._running[thread] = (request_id, stopped)
        try:
            thread.start()
        except BaseException:  # The system has no more threads.
            self._ended(thread)
            raise

    def _ended(self, thread: threading.Thread) -> None:
        with self._changed:
            del self._running[thread]
            self._changed.notify_all()

    def stop(self, request_id: str) -> None:
        """Asks requests of this id to end as soon as they have started."""
        with self._changed:
            for known, stopped in self._running.values():
                if known == request_id:
                    stopped.set()

    def close(self) -> None:
        """Waits until no request is starting."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
