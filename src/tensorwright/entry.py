"""Where the commands begin: Ctrl-C is answered here before anything else is imported, and where nothing has begun.

While modules load there is nothing to clean up, and an exception would not do: one that is raised in a callback of the
import system is lost, and compiled modules make another of it. So the process ends at once. While a command works,
Ctrl-C is a KeyboardInterrupt, which `command.py` turns into the same error. Python itself and the folder's
import hook run before this file, for some hundredths of a second; a Ctrl-C then is Python's to answer.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # the module typing would be half of what this file imports
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

EXIT_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended
INTERRUPTED = "interrupted"
AS_JSON = f'{{"error": "KeyboardInterrupt", "message": "{INTERRUPTED}", "exit_code": {EXIT_INTERRUPTED}}}\n'
"""With --json, on stdout; written by hand, for the module json may be half imported."""


def tensorwright() -> None:
    """The command `tensorwright`."""
    begin()
    from tensorwright.runtime.commands.cli import main

    main()


def build_engine() -> None:
    """The command `build-engine`."""
    begin()
    from tensorwright.builder.cli import main

    main()


def begin() -> None:
    """This process is a command's: Ctrl-C ends it at once from here on, and none is lost."""
    _change(signal.default_int_handler, end_at_once)
    sys.unraisablehook = hear_again


def work() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt. Without effect in a process that did not `begin`."""
    _change(end_at_once, signal.default_int_handler)


class NothingBegun:
    """A context in which a command only imports, so that Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        if sys.unraisablehook is hear_again:
            _change(signal.default_int_handler, end_at_once)

    def __exit__(self, *error: object) -> None:
        work()


nothing_begun = NothingBegun()


def _change(before: Any, after: Any) -> None:
    """Replaces the handler of SIGINT if it is `before`: a shell has it ignored for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is before:
        signal.signal(signal.SIGINT, after)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """A handler of SIGINT: the usual form of error, and the end."""
    try:
        if "--json" in sys.argv:
            os.write(1, AS_JSON.encode())
        os.write(2, f"error: {INTERRUPTED}\n".encode())
    finally:
        os._exit(EXIT_INTERRUPTED)


def leave() -> None:
    """Ends an interrupted command's process, cleaned up and told of, without Python's own end.

    That takes seconds where torch was imported, and waits for threads that compute. Without effect elsewhere.
    """
    if sys.unraisablehook is hear_again:
        os._exit(EXIT_INTERRUPTED)


def hear_again(lost: Any) -> None:
    """A sys.unraisablehook: a KeyboardInterrupt that was raised where none can be comes again, in a moment."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    from threading import Timer, main_thread

    again = Timer(0.01, signal.pthread_kill, (main_thread().ident, signal.SIGINT))
    again.daemon = True
    again.start()
