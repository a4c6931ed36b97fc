"""Folders of this repository that tests read, and the lock on the one that several tests compile in."""

import fcntl
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def build_folder() -> Path | None:
    """Where `pip install -e .` compiled the module for this Python, or None if it never did."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    folder = ROOT / "build" / f"{version}-{version}-{platform}"
    return folder if (folder / "CMakeCache.txt").exists() else None


def find_tool(name: str) -> str:
    """Returns the path of cmake, ninja or ctest, which stand beside the interpreter of the dev extra."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    assert found is not None, f"{name} is missing; pip install -e '.[dev]'"
    return found


@contextmanager
def building() -> Iterator[None]:
    """Waits until no other test process compiles in the shared build folder or changes its configuration, and holds it.

    Whoever holds the lock leaves the folder configured as it was, for others read its compile commands and objects.
    """
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
