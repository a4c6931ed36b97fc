"""Manages the folder of engines that were built from model directories: lists, locks, removes and limits them.

<cache>/tensorwright/engines/<key>          an engine; the folder's time of change is the time of its last opening
<cache>/tensorwright/engines/<key>.lock     the engine's lock: a process that builds or removes the engine holds it
                                            alone, processes that run the engine share it; its text names the model
<cache>/tensorwright/engines/<key>.partial  an engine that is being put in place or removed
<cache>/tensorwright/engines/.<key>.partial.*  a build that runs, or that was killed
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tensorwright.errors import InvalidOptionError
from tensorwright.json_text import read_json
from tensorwright.sizes import parse_size

_BESIDE = re.compile(r"\.([^.]+)\.partial\.")
"""Matches the builder's names for an engine that it writes before it moves the engine to <key>.partial."""
SIZE_VARIABLE = "TENSORWRIGHT_CACHE_SIZE"
DEFAULT_SIZE = "50GiB"


@dataclass(frozen=True)
class CacheEntry:
    """One engine of the cache, or what is left of a build."""

    key: str
    path: Path
    model: str | None
    """The model directory from which the engine was built; None if it is not known."""
    dtype: str | None
    size: int
    """The size in bytes."""
    used: float
    """The time at which the engine was last opened or built, in seconds since 1970."""
    in_use: bool
    """Whether a process runs, builds or removes the engine now."""


def cache_root() -> Path:
    """Returns $XDG_CACHE_HOME/tensorwright/engines. A relative XDG_CACHE_HOME is ignored, as its specification says."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tensorwright" / "engines"


def cache_limit() -> int:
    """Returns how many bytes the cache may hold after a build: $TENSORWRIGHT_CACHE_SIZE, such as "20GiB"."""
    return parse_size(os.environ.get(SIZE_VARIABLE, DEFAULT_SIZE), SIZE_VARIABLE)


def take_lock(root: Path, key: str, *, alone: bool) -> IO[str]:
    """Waits for the lock of an engine and returns the locked file.

    alone: True excludes all other holders; False shares the lock with others. Closing the file releases the lock; if
    the process ends, the kernel releases it.
    """
    return _flock(root / f"{key}.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)


def try_lock(root: Path, key: str, *, alone: bool) -> IO[str] | None:
    """Takes the lock of an engine as take_lock() does, but does not wait. Returns None if another process holds it."""
    try:
        return _flock(root / f"{key}.lock", (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _flock(path: Path, kind: int) -> IO[str]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, kind)
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            file.close()
            raise
        file.close()  # another process removed the engine with this lock file, so lock the new file


def note_model(lock: IO[str], model: Path, dtype: str) -> None:
    """Writes into the engine's lock file, which the caller holds alone, from what the engine is built."""
    lock.truncate(0)
    lock.write(json.dumps({"model": str(model.resolve()), "dtype": dtype}))
    lock.flush()


def cache_entries(root: Path) -> list[CacheEntry]:
    """Returns all engines of the cache, the longest unused first."""
    names = os.listdir(root) if root.is_dir() else []
    keys = {name.removesuffix(".partial") for name in names if not name.endswith(".lock") and name[0] != "."}
    keys |= {match[1] for name in names if (match := _BESIDE.match(name))}
    entries = [_entry(root, key) for key in keys]
    return sorted(entries, key=lambda entry: (entry.used, entry.key))


def remove_entry(root: Path, key: str) -> bool:
    """Removes an engine. Returns False, and removes nothing, if a process uses the engine.

    The engine is renamed before its files are deleted, so no other process can open a part of it.
    """
    lock = try_lock(root, key, alone=True)
    if lock is None:
        return False
    with lock:
        partial = root / f"{key}.partial"
        for left in _partial_folders(root, key):
            shutil.rmtree(left, ignore_errors=True)
        if (root / key).is_dir():
            (root / key).rename(partial)
            shutil.rmtree(partial)
        (root / f"{key}.lock").unlink()
    return True


def trim_cache(root: Path, limit: int) -> list[str]:
    """Removes the remains of killed builds and removals, and then the longest unused engines until the cache has at
    most `limit` bytes or all others are in use. Returns the removed keys."""
    entries = cache_entries(root)
    total = sum(entry.size for entry in entries)
    removed = []
    for entry in sorted(entries, key=lambda entry: entry.path.is_dir()):  # the remains of killed processes come first
        if total <= limit and entry.path.is_dir():
            break
        if remove_entry(root, entry.key):
            total -= entry.size
            removed.append(entry.key)
    return removed


def find_entries(root: Path, beginnings: tuple[str, ...]) -> list[CacheEntry]:
    """Returns the one entry whose key starts with each of `beginnings`; all entries if there are no beginnings.

    Raises InvalidOptionError for a beginning of no key or of several keys.
    """
    entries = cache_entries(root)
    found = {}
    for beginning in beginnings:
        fitting = [entry for entry in entries if beginning and entry.key.startswith(beginning)]
        if len(fitting) != 1:
            raise InvalidOptionError(
                f"KEY must be the key of one engine in {root}, or its beginning; {beginning!r} is of {len(fitting)}: "
                "see 'tensorwright cache list'"
            )
        found[fitting[0].key] = fitting[0]
    return list(found.values()) if beginnings else entries


def _entry(root: Path, key: str) -> CacheEntry:
    lock = try_lock(root, key, alone=True) if os.access(root, os.W_OK) else None
    if lock is not None:
        lock.close()
    model, dtype = _noted_model(root / f"{key}.lock")
    folders = [root / key, *_partial_folders(root, key)]
    used = max((_time_of_change(folder) for folder in folders), default=0.0)
    size = sum(_size(folder) for folder in folders)
    return CacheEntry(key, root / key, model, dtype, size, used, in_use=lock is None)


def _partial_folders(root: Path, key: str) -> list[Path]:
    """Returns the folders of builds and removals of this engine that run or were killed. Only a process that holds the
    engine's lock alone may remove them."""
    beside = [root / name for name in os.listdir(root) if (match := _BESIDE.match(name)) and match[1] == key]
    return [root / f"{key}.partial", *beside]


def _noted_model(path: Path) -> tuple[str | None, str | None]:
    try:
        noted = read_json(path.read_bytes())
        return str(noted["model"]), str(noted["dtype"])
    except (OSError, ValueError, TypeError, KeyError):  # an older version wrote the file, or it is being written
        return None, None


def _time_of_change(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # another process has removed the file
                continue
    return total
