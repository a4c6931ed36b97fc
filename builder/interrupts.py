"""Ctrl-C and a polite kill, as a build takes them: at any moment but while an engine is put in place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """A polite kill cleans up as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that comes within is answered at the end. For what takes moments and must be whole.

    Masking would not do: Python runs handlers in the main thread, whichever thread the system chose.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler ever runs here
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
