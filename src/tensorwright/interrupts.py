"""Handles Ctrl-C in a command: it ends the process at once while modules load, and interrupts a command at work.

While modules load there is nothing to clean up, and an exception does not work: one that is raised in a callback of the
import system is lost, and compiled modules turn it into another one. So the process ends at once. While a command
works, Ctrl-C raises KeyboardInterrupt, which `command.py` turns into the same error. This file imports almost nothing,
for Python's own handler answers a Ctrl-C that comes before `begin`.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # the module typing would be half of what this file imports
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

EXIT_INTERRUPTED = 130  # a shell reports this code of a process that SIGINT ended
INTERRUPTED = "interrupted"
RETRY_S = 0.01
"""The seconds between an interrupt that Python lost and the same one again."""
AS_JSON = f'{{"error": "KeyboardInterrupt", "message": "{INTERRUPTED}", "exit_code": {EXIT_INTERRUPTED}}}\n'
"""The error on stdout with --json. It is written by hand, because the module json may be half imported."""


def begin() -> None:
    """Makes this process a command's process. From here on Ctrl-C ends it at once, and no Ctrl-C is lost."""
    _change(signal.default_int_handler, end_at_once)
    sys.unraisablehook = hear_again


def work() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt. It changes nothing in a process that did not `begin`."""
    _change(end_at_once, signal.default_int_handler)


class NothingBegun:
    """A context in which a command only imports modules, so Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        if sys.unraisablehook is hear_again:
            _change(signal.default_int_handler, end_at_once)

    def __exit__(self, *error: object) -> None:
        work()


nothing_begun = NothingBegun()


def _change(before: Any, after: Any) -> None:
    """Replaces the handler of SIGINT if it is `before`. It is another one where a shell runs the command in the
    background, and that one stays."""
    if signal.getsignal(signal.SIGINT) is before:
        signal.signal(signal.SIGINT, after)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """A handler of SIGINT. It writes the usual form of error and ends the process."""
    try:
        if "--json" in sys.argv:
            os.write(1, AS_JSON.encode())
        os.write(2, f"error: {INTERRUPTED}\n".encode())
    finally:
        os._exit(EXIT_INTERRUPTED)


def leave() -> None:
    """Ends the process of an interrupted command, after the command has cleaned up and reported the error.

    It skips Python's own finalization, which takes seconds where torch was imported and waits for threads that
    compute. It does nothing in a process that did not `begin`.
    """
    if sys.unraisablehook is hear_again:
        os._exit(EXIT_INTERRUPTED)


def hear_again(lost: Any) -> None:
    """A sys.unraisablehook. It sends SIGINT again, a moment later, when Python could not raise a KeyboardInterrupt."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    from threading import Thread

    Thread(target=_send_again, name="tensorwright-interrupt", daemon=True).start()


def _send_again() -> None:
    """Sends SIGINT to the main thread once it is out of `hear_again`: an exception that is raised in there is lost, and
    nothing tells of it."""
    from threading import main_thread
    from time import sleep

    main = main_thread().ident
    assert main is not None
    inside = True
    while inside:
        sleep(RETRY_S)
        frame = sys._current_frames().get(main)
        while frame is not None and frame.f_code is not hear_again.__code__:
            frame = frame.f_back
        inside = frame is not None
    signal.pthread_kill(main, signal.SIGINT)
