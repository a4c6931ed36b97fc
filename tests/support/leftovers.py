"""What a test file may leave to the files that the same worker runs after it: nothing of what the process shares."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
TAKEN_BY_LIBRARIES = (signal.SIGTERM, signal.SIGCHLD)
"""Signals whose handlers are put back. pytest-timeout has SIGALRM."""
LIMITS = ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_STACK")
"""Not RLIMIT_NOFILE, which a server raises for its process."""
OURS = "tensorwright"
"""The loggers of this name and below it are looked at, and the variables of the environment that begin with it."""
LIBRARIES = ("numpy", "torch")
OF_PYTEST = "PYTEST_CURRENT_TEST"


def process_state() -> dict[str, Any]:
    """Returns by name what all tests of a process share, and what no test may change for those after it."""
    environment = {f"${name}": value for name, value in os.environ.items() if name.lower().startswith(OURS)}
    return environment | _of_python() | _of_logging() | _of_libraries() | _of_system()


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns a line for each name that has another value, or none any more. What only a library has that was not
    imported before is no change."""
    none = "nothing"
    names = {name for name in before.keys() | after.keys() if name in before or not name.startswith(LIBRARIES)}
    return [
        f"{name} was {before.get(name, none)!r} and is {after.get(name, none)!r}"
        for name in sorted(names)
        if before.get(name, none) != after.get(name, none)
    ]


def noted_state() -> Callable[[], None]:
    """Returns a function that puts back what libraries change for their process when they are imported or used, such as
    Ray and those of clients: variables of the environment, the places of modules, and who hears of an end."""
    environment = {name: value for name, value in os.environ.items() if name != OF_PYTEST}
    places, hook = list(sys.path), sys.excepthook
    handlers = {each: signal.getsignal(each) for each in TAKEN_BY_LIBRARIES}

    def put_back() -> None:
        for name in os.environ.keys() - environment.keys() - {OF_PYTEST}:
            del os.environ[name]
        os.environ.update(environment)
        sys.path[:], sys.excepthook = places, hook
        for each, handler in handlers.items():
            if handler is not None:  # else it was not set from Python
                signal.signal(each, handler)

    return put_back


def _of_python() -> dict[str, Any]:
    return {
        "sys.argv": list(sys.argv),
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "the trace function of new threads": threading.gettrace(),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the stack size of threads": threading.stack_size(),
        "the collector of cycles": gc.isenabled(),
    }


def _of_logging() -> dict[str, Any]:
    root = logging.getLogger()
    found: dict[str, Any] = {"logging.disable": root.manager.disable, "the level of the root logger": root.level}
    for name, logger in root.manager.loggerDict.items():
        if name.split(".")[0] != OURS or not isinstance(logger, logging.Logger):
            continue
        state = (logger.level, logger.propagate, logger.disabled, logger.handlers)
        if state != (logging.NOTSET, True, False, []):
            found[f"logger {name}"] = (*state[:3], list(logger.handlers))
    return found


def _of_libraries() -> dict[str, Any]:
    """Of those that are imported. The names begin with one of LIBRARIES."""
    found: dict[str, Any] = {}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy.geterr"] = numpy.geterr()
    if (torch := sys.modules.get("torch")) is not None:
        found["torch's default type"] = torch.get_default_dtype()
        found["torch's default device"] = torch.get_default_device()
        found["torch's gradients"] = torch.is_grad_enabled()
        found["torch's threads"] = torch.get_num_threads()
        found["torch's deterministic algorithms"] = torch.are_deterministic_algorithms_enabled()
    return found


def _of_system() -> dict[str, Any]:
    return {
        "the current folder": os.getcwd(),
        "the processors": os.sched_getaffinity(0),
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
        **{f"the handler of {each.name}": signal.getsignal(each) for each in SIGNALS},
        **{each: resource.getrlimit(getattr(resource, each)) for each in LIMITS},
    }
