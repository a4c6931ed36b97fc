"""Watches an engine for a step that does not end.

A step that computes in C++ or in a library cannot be ended from outside, so the watchdog does what can be done. It
writes a report (stall_report.py) and says that the engine is in trouble, which probes of the server show. With
"restart" it also ends the requests that have begun, and has another engine put in place of this one as soon as the step
ends; the requests that have not begun go on there. With "exit" it ends the process, so that whoever supervises it
starts another one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tensorwright.runtime.requests.stall_report import write_report

logger = logging.getLogger(__name__)
EXIT_STALLED = 70
"""The exit code of a process that the watchdog ends: EX_SOFTWARE of sysexits.h."""
MAX_REPORTS = 20
"""The most reports that one watchdog writes. A disk must not fill because an engine is slow."""


@dataclass(frozen=True)
class WatchdogOptions:
    """action: "report", "restart" or "exit". limit: the seconds that a step may take. folder: of the reports, None for
    the system's folder for temporary files."""

    action: str
    limit: float
    folder: str | None = None

    @property
    def period(self) -> float:
        """The seconds between two looks."""
        return min(1.0, self.limit / 4)


def watchdog_options(action: str, limit: float, folder: str | None) -> WatchdogOptions | None:
    """Returns the options of a watchdog; None for the action "off"."""
    return None if action == "off" else WatchdogOptions(action, limit, folder)


class Watched(Protocol):
    """What a watchdog needs of a client of an engine (engine_client.py)."""

    @property
    def stalled_seconds(self) -> float: ...

    def describe(self) -> dict[str, Any]: ...

    def replace_stalled(self, why: str) -> None: ...


class Watchdog:
    """Looks at the client's engine from a thread of its own until `close`. exit: ends the process."""

    def __init__(self, client: Watched, options: WatchdogOptions, exit: Callable[[int], object] = os._exit):
        self._client = client
        self._options = options
        self._exit = exit
        self._reports = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.stalled = False
        """True from the moment when a step was over the limit until it ends."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tensorwright-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> None:
        """Acts if a step has come over the limit since the last look."""
        seconds = self._client.stalled_seconds
        if seconds <= self._options.limit:
            if self.stalled:
                logger.warning("the step over the limit of %g s has ended", self._options.limit)
            self.stalled = False
            return
        if self.stalled:
            return
        self.stalled = True
        why = f"no step has ended for {seconds:.1f} s, where step_limit is {self._options.limit:g} s"
        self._report(why)
        if self._options.action == "exit":
            logger.critical("%s; the process ends with code %d", why, EXIT_STALLED)
            logging.shutdown()
            self._exit(EXIT_STALLED)
        elif self._options.action == "restart":
            self._client.replace_stalled(why)

    def _run(self) -> None:
        while not self._stop.wait(self._options.period):
            try:
                self.look()
            except Exception:  # a watchdog that fails must go on watching
                logger.exception("the watchdog failed")

    def _report(self, why: str) -> None:
        self._reports += 1
        if self._reports > MAX_REPORTS:
            logger.error("%s; the watchdog has written its %d reports", why, MAX_REPORTS)
            return
        try:
            path = write_report(self._options.folder, {"reason": why, **self._client.describe()})
        except OSError:
            logger.exception("%s; the report could not be written", why)
        else:
            logger.error("%s; %s has what the process does", why, path)
