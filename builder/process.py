"""Controls the process of a build: its signals, its memory, and Python's collector of cycles."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERVAL_S = 0.02
"""Time between two samples of MemoryWatch."""
_FIELDS = {"RssAnon:": "anonymous", "VmRSS:": "resident"}
"""The lines of /proc/<process>/status, and their names in a build report."""


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM clean up as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays signals until the end of the context, for short work that must be whole.

    Masking would not do: Python runs handlers in the main thread, whichever thread the system chose.
    """
    if threading.current_thread() is not threading.main_thread():  # Python runs handlers in the main thread only.
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A default or ignored signal, or a handler that is not Python's, stays as it is.
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for first, frame in came[:1]:
            ours[signal.Signals(first)](first, frame)  # type: ignore[operator]


class MemoryWatch:
    """A context that watches a process, by default this one. `peaks` is in bytes, empty if there is no /proc.

    anonymous: the memory of the build itself; resident: with the pages of mapped files, which the system may drop.
    """

    def __init__(self, process: int | None = None) -> None:
        self.peaks: dict[str, int] = {}
        self._process = process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            for name, value in sample(self._process).items():
                self.peaks[name] = max(value, self.peaks.get(name, 0))


def sample(process: int | None = None) -> dict[str, int]:
    """Returns {"anonymous", "resident"} of a process now, in bytes; {} without /proc, or if the process has ended."""
    table = {}
    with suppress(OSError):
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
        table = {words[0]: int(words[1]) * 1024 for words in map(str.split, lines) if words[0] in _FIELDS}
    return {_FIELDS[name]: value for name, value in table.items()}


@contextmanager
def paused_collector() -> Iterator[None]:
    """Turns the collector off, so that only reference counts free memory; afterwards the collector is as before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
