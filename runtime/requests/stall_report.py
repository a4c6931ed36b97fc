"""Writes what a process does whose engine hangs in a step: requests, counters, recent steps, threads and stacks."""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

MAX_REQUESTS = 1000
"""The most requests that a report lists; it has the number of all."""
MAX_SPANS = 2000
"""The most spans of the timeline that a report has, the last ones."""
_TICKS = os.sysconf("SC_CLK_TCK")


def write_report(folder: str | None, facts: dict[str, Any]) -> Path:
    """Writes a file of JSON that only this user may read. Returns its path. Raises OSError.

    folder: None means the system's folder for temporary files. facts: what the caller knows: the reason, and more.
    The report adds the time, the process, its threads and the stacks of Python.
    """
    now = time.time()
    whole = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "pid": os.getpid(),
        **facts,
        "threads": threads(),
        "stacks": stacks(),
    }
    number, path = tempfile.mkstemp(prefix=f"tensorwright-stall-{os.getpid()}-", suffix=".json", dir=folder)
    with open(number, "w", encoding="utf-8") as file:
        json.dump(whole, file, indent=1, default=str)
        file.write("\n")
    return Path(path)


def stacks() -> list[str]:
    """Returns the lines in which faulthandler shows the Python stacks of all threads."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().splitlines()


def threads() -> list[dict[str, Any]]:
    """Returns every thread of the process, those of C++ too: its name, its state ("R": it computes, "S": it waits), the
    seconds of processor time that it took, and the system's name of what it waits for. [] where there is no /proc."""
    found: list[dict[str, Any]] = []
    names = {thread.native_id: thread.name for thread in threading.enumerate()}  # the system may not know them
    try:
        tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    except OSError:
        return found
    for task in tasks:
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            waits_for = (task / "wchan").read_text().strip()
        except (OSError, ValueError):  # the thread has ended meanwhile
            continue
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        name = names.get(int(task.name), name)
        found.append({"id": int(task.name), "name": name, "state": fields[0], "cpu_s": seconds, "waits_for": waits_for})
    return found
