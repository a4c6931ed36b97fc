"""How many sockets this process may have: its limit of open files, less what else needs one."""

from __future__ import annotations

import os
import resource

from tensorwright.errors import InvalidOptionError

SPARE = 32  # for engines, logs, child processes, and sockets that are being closed


def allow_sockets(wanted: int, least: int) -> int:
    """Raises the limit of open files as far as `wanted` sockets need and the system lets us; returns how many there may
    be, at most `wanted`. Raises InvalidOptionError if that is below `least`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE + _open_files()
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = wanted if soft == resource.RLIM_INFINITY or soft >= needed else soft - SPARE - _open_files()
    if room < least:
        raise InvalidOptionError(
            f"serving needs {least + SPARE + _open_files()} open files, and this process may have {soft}: raise its "
            "limit (ulimit -n)"
        )
    return room


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))
