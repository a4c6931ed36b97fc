"""Makes the objects that TensorRT calls while it builds: a logger for errors and layers, and a progress monitor.

The library's classes are known only after it is loaded, so functions define the subclasses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tensorwright.builder.emit.tensorrt.layers import HEADING

MAX_ERRORS = 8
MAX_TEXT = 1500
"""The most characters of one message that an error's text quotes."""
NOISE = "cudaError 35"
"""A builder without a GPU reports the absent driver beside every real error."""
STEPS = 1000
REPORT_EVERY_S = 0.1


def make_logger(trt: Any) -> Any:
    """Returns a logger. `errors`: texts; `layers`: the list of final layers, or None; `account()`: joins the errors."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.layers: str | None = None

        def log(self, severity: Any, text: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(text)
            elif text.startswith(HEADING):
                self.layers = text

        def account(self) -> str:
            return join_errors(self.errors)

    return Log()


def join_errors(errors: list[str]) -> str:
    """Joins the first errors. NOISE counts only if there is no other error."""
    real = [error for error in errors if NOISE not in error] or errors
    return "; ".join(without_noise(error) for error in real[:MAX_ERRORS])


def without_noise(text: str) -> str:
    """Returns an error on one line, without its lines about the absent driver unless it has no others."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join([line for line in lines if NOISE not in line] or lines)[:MAX_TEXT]


class Tree:
    """Nested phases, each with a number of steps, as one fraction that never falls."""

    def __init__(self) -> None:
        self._phases: dict[str, tuple[str | None, int, int]] = {}
        self.fraction = 0.0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        self._phases[name] = parent, 0, max(1, steps)

    def step(self, name: str, index: int) -> None:
        if name in self._phases:
            parent, _, steps = self._phases[name]
            self._phases[name] = parent, min(index + 1, steps), steps
            self.fraction = max(self.fraction, self._inside(name))

    def finish(self, name: str) -> None:
        self._phases.pop(name, None)

    def _inside(self, name: str) -> float:
        """Returns the done fraction of the outermost phase around this one."""
        parent, done, steps = self._phases[name]
        share = done / steps
        while parent is not None and parent in self._phases:
            parent, done, steps = self._phases[parent]
            share = (done + min(share, 1.0)) / steps
        return min(share, 1.0)


def make_monitor(trt: Any, advance: Callable[[int, int], None]) -> Any:
    """Returns an IProgressMonitor. TensorRT calls it from several threads."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._lock = threading.Lock()
            self._tree = Tree()
            self._told = 0.0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._tree.start(phase_name, parent_phase, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._tree.finish(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                self._tree.step(phase_name, step)
                if time.monotonic() - self._told >= REPORT_EVERY_S:
                    self._told = time.monotonic()
                    advance(int(self._tree.fraction * STEPS), STEPS)
            return True

    return Monitor()
