"""Work in a child process that is killed (SIGKILL) before the k-th step that it makes on the disk, for every k."""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tensorwright import durable

STEPS = [
    *((os, name) for name in ("rename", "replace", "fsync", "mkdir", "rmdir", "unlink", "open")),
    (io, "open"),
    (builtins, "open"),
    (durable, "exchange"),
]
"""What changes the disk, or comes between two changes: (module, function)."""
ENDED, FAILED = 17, 18  # exit codes of a child


def kill_at_each_step(prepare: Callable[[], Any], work: Callable[[], Any], every: int = 1) -> Iterator[int]:
    """prepare: in this process, before each try. Yields k after a child was killed there; ends when one gets through.
    every: 2 for every other step.

    What a step does to the disk cache only survives a kill, so that what was not synced is there too: lost power is
    another matter, see the tests of the order of syncs.
    """
    k = 0
    while True:
        prepare()
        status = _run(work, k)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == ENDED, f"the work failed before step {k}"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield k
        k += every


def _run(work: Callable[[], Any], k: int) -> int:
    """Its wait status."""
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            _count_down(k)
            work()
            code = ENDED
        except BaseException as error:
            print(repr(error), file=sys.__stderr__, flush=True)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def _count_down(k: int) -> None:
    left = [k]
    for module, name in STEPS:
        setattr(module, name, _counted(getattr(module, name), left))


def _counted(step: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def counted(*given: Any, **named: Any) -> Any:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return step(*given, **named)

    return counted
