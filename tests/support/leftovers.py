"""What a test file may leave to the files that the same worker runs after it: nothing of what the process shares."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE)
"""Not SIGALRM, which pytest-timeout has."""
LIMITS = ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_STACK")
"""Not RLIMIT_NOFILE, which a server raises for its process."""
OURS = "tensorwright"
"""The loggers of this name and below it are looked at."""
LIBRARIES = ("numpy", "torch")
FOR_GOOD = (
    "NCCL_RUNTIME_CONNECT", "PYTEST_CURRENT_TEST", "RAY_ENABLE_AUTO_CONNECT", "RAY_USAGE_STATS_ENABLED", "TIKTOKEN_CACHE_DIR",
    "TOKENIZERS_PARALLELISM",
)  # fmt: skip
"""Variables of the environment that pytest has, and that a command or a library sets once for its process."""


def process_state() -> dict[str, Any]:
    """Returns by name what all tests of a process share, and what a test could change for those after it."""
    environment = {f"${name}": value for name, value in os.environ.items() if name not in FOR_GOOD}
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


def _of_python() -> dict[str, Any]:
    return {
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "the trace function of new threads": threading.gettrace(),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the stack size of threads": threading.stack_size(),
        "the collector of cycles": (gc.isenabled(), gc.get_threshold()),
    }


def _of_logging() -> dict[str, Any]:
    root = logging.getLogger()
    found: dict[str, Any] = {
        "logging.disable": root.manager.disable,
        # pytest's own handlers come and go.
        "the root logger": (root.level, [each for each in root.handlers if "_pytest" not in type(each).__module__]),
    }
    for name, logger in root.manager.loggerDict.items():
        plain = not isinstance(logger, logging.Logger) or (
            (logger.level, logger.propagate, logger.disabled, logger.handlers) == (logging.NOTSET, True, False, [])
        )
        if name.split(".")[0] == OURS and not plain:
            assert isinstance(logger, logging.Logger)
            found[f"logger {name}"] = (logger.level, logger.propagate, logger.disabled, list(logger.handlers))
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
