"""What TensorRT calls while it builds: a logger that keeps errors and the list of layers, and a progress monitor.

Classes of the library's are only known when it is loaded, so functions make them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tensorwright.builder.emit.tensorrt.layers import HEADING

MAX_ERRORS = 8
MAX_TEXT = 1500
"""Characters of one message in an error's text."""
NOISE = "cudaError 35"
"""A builder without a GPU reports the absent driver beside every real error."""
STEPS = 1000
REPORT_EVERY_S = 0.1


def make_logger(trt: Any) -> Any:
    """`errors`: texts; `layers`: the list of final layers, None until it is logged; `account()`: the errors in one."""

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
    """The first ones, without the noise unless there is nothing else."""
    real = [error for error in errors if NOISE not in error] or errors
    return "; ".join(without_noise(error) for error in real[:MAX_ERRORS])


def without_noise(text: str) -> str:
    """Without the lines about the absent driver, unless there are no others; on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join([line for line in lines if NOISE not in line] or lines)[:MAX_TEXT]


class Tree:
    """Phases in phases, each of so many steps, as one fraction that never falls."""

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
        """How much of the outermost phase is done, by what is done of this one."""
        parent, done, steps = self._phases[name]
        share = done / steps
        while parent is not None and parent in self._phases:
            parent, done, steps = self._phases[parent]
            share = (done + min(share, 1.0)) / steps
        return min(share, 1.0)


def make_monitor(trt: Any, advance: Callable[[int, int], None]) -> Any:
    """An IProgressMonitor; TensorRT calls it from several threads."""

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
