"""Finds the processes that compute as the other ranks of this process's engines."""

from __future__ import annotations

import os
from pathlib import Path

from tensorwright.runtime.engine.ranks import local


def rank_pids() -> list[int]:
    """The processes of other ranks that this process has started, in the order of their numbers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if local.FOLLOWER.encode() in words and int(parent) == os.getpid():
            found.append(int(entry.name))
    return sorted(found)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rank_files() -> list[Path]:
    """The files of shared memory that ranks of this process have, while they start."""
    return list(Path("/dev/shm").glob(f"tensorwright-ranks-{os.getpid()}-*"))
