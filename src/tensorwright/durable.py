"""Files and folders that are written beside their place and then renamed into it: whoever looks sees the old one or the
new one, also after a crash or a loss of power. A leaf: any room may import it, it imports nothing of ours.

A rename is atomic for those who look, but on a disk it may come before the bytes of what was renamed: those are synced
first, then the folder that names them, and after the rename the folder that it happened in.
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
"""Part of the name of what was renamed aside, where a disk cannot exchange two names."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV)
"""What kernels and file systems say that cannot exchange two names."""


def sync(path: Path) -> None:
    """What a file holds, or which names a folder has, is on the disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems have nothing to sync in a folder
            raise
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """A file; or a folder with all in it, the innermost first."""
    if path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            sync_tree(inner)
        sync(path)
    elif not path.is_symlink():
        sync(path)


def put_in_place(made: Path, target: Path) -> Path | None:
    """Gives what is `made` and synced the name `target`, on the same disk. What was there is then at the path that is
    returned, for the caller to remove; None if there was nothing. Raises OSError, and then all is as before."""
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
    """For a disk that cannot exchange: for a moment there is nothing at `target`."""
    target.rename(old)
    try:
        made.rename(target)
    except BaseException:
        old.rename(target)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Two existing names change what they stand for, in one step. False where that cannot be had. Raises OSError."""
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
    """A descriptor that marks the folder as somebody's who is at work; the kernel takes it back when the process ends,
    in whatever way. None: another process has it, or the disk knows no such marks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def abandoned(folder: Path, beginning: str) -> Iterator[Path]:
    """The folders in it whose names begin so and which nobody holds; each is held while the caller has it. None where
    the disk knows no such marks, for then nobody can tell."""
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
