"""Finds the interpreter and the environment for another Python process that has the same modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# The environment variables that the other process inherits.
PASSED_ON = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TMPDIR")


def interpreter() -> str:
    """Returns the path of the Python that runs this process. Inside another program, such as Triton's, returns the
    Python of the installation whose library the program uses. Raises FileNotFoundError if there is none."""
    own = Path(sys.executable or "")
    if own.name.startswith("python") and own.exists():
        return str(own)
    folders = [Path(prefix, "bin") for prefix in (sys.prefix, sys.base_prefix)]
    names = (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3")
    for found in (folder / name for folder in folders for name in names):
        if found.exists():
            return str(found)
    raise FileNotFoundError(f"there is no Python in {' or '.join(map(str, folders))} that could run another process")


def environment() -> dict[str, str]:
    """Returns the little of the environment in which the other Python finds the same modules."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "PYTHONPATH": path}
