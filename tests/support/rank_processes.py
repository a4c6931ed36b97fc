"""Finds the processes that compute as the other ranks of this process's engines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support.waiting import wait_until
from tensorwright.errors import RankError
from tensorwright.runtime.engine.ranks import local

T = TypeVar("T")


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


def ask_until_no_rank_is_lost(ask: Callable[[], T], at_once: bool = False) -> T:
    """Returns what `ask` gives, which is tried again where it raises RankError: on a busy machine a rank may be late
    for its time. at_once: the time is so long that none is."""

    def asked() -> list[T]:
        try:
            return [ask()]
        except RankError:
            if at_once:
                raise
            return []

    return wait_until(asked, "an answer of ranks that are all there")[0]


def rank_files() -> list[Path]:
    """The files of shared memory that ranks of this process have, while they start."""
    return list(Path("/dev/shm").glob(f"tensorwright-ranks-{os.getpid()}-*"))
