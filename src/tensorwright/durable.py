"""Replaces files and folders atomically: they are written beside their place and then renamed into it.

A reader sees either the old or the new version, also after a crash or a loss of power. Any room may import this file;
it imports nothing of ours.

Other processes see a rename as atomic, but a disk may store the rename before the bytes of the renamed file. So the
bytes are synced first, then the folder that names them, and after the rename the folder in which it happened.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

REPLACED = ".replaced-"
"""A part of the name that the old version gets on a disk that cannot exchange two names."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # these are constants of Linux
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV)
"""The error codes of kernels and file systems that cannot exchange two names."""


def sync(path: Path) -> None:
    """Writes the contents of a file, or the names in a folder, to the disk before it returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems have nothing to sync in a folder
            raise
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Syncs a file, or a folder with everything in it, the innermost first. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            sync_tree(inner)
        sync(path)
    elif not path.is_symlink():
        sync(path)


def put_in_place(made: Path, target: Path) -> Path | None:
    """Renames `made`, which must be synced and on the same disk, to `target`.

    Returns the path to which the old target was moved, which the caller must remove; None if there was no old target.
    Raises OSError; then nothing has changed.
    """
    if not os.path.lexists(target):
        made.rename(target)
        sync(target.parent)
        return None
    old = made
    if not exchange(made, target):
        old = target.with_name(f".{target.name}{REPLACED}{secrets.token_hex(4)}")
        _move_aside(made, target, old)
    sync(target.parent)
    return old


def _move_aside(made: Path, target: Path, old: Path) -> None:
    """Replaces `target` on a disk that cannot exchange two names. For a moment nothing exists at `target`."""
    target.rename(old)
    try:
        made.rename(target)
    except BaseException:
        old.rename(target)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two existing names in one step. Returns False if the system cannot exchange them. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def hold(folder: Path) -> int | None:
    """Locks the folder as one that this process works on, and returns the descriptor that holds the lock.

    The kernel releases the lock when the process ends in any way. Returns None if another process holds the lock, or if
    the disk has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def abandoned(folder: Path, beginning: str) -> Iterator[Path]:
    """Yields the folders in `folder` whose names start with `beginning` and which no process holds.

    Each folder is held until the caller asks for the next one. On a disk without locks it yields no folder, because
    nobody can tell whether a folder is in use.
    """
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        left = folder / name
        if not name.startswith(beginning) or left.is_symlink() or not left.is_dir():
            continue
        mark = hold(left)
        if mark is None:
            continue
        try:
            yield left
        finally:
            os.close(mark)
