"""Finds NVIDIA's cuBLASLt: in the package nvidia-cublas, or where the system's loader looks for it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

from tensorwright.errors import MissingDependencyError
from tensorwright.installing import install

CUBLASLT = "TENSORWRIGHT_CUBLASLT"
"""The environment variable that names the file of the library."""
PACKAGES = ("nvidia.cu13", "nvidia.cublas")
"""The packages of CUDA 13 and of CUDA 12 that hold the library, below lib/."""
SYSTEM_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
"""What the system's loader knows it as."""


def cublaslt_names() -> tuple[str, ...]:
    """Returns the names of the library, of which the first that can be loaded is to be taken: the file that the user or
    a package has, and if there is none what the system's loader knows."""
    named = os.environ.get(CUBLASLT)
    if named:
        return (named,)
    for package in PACKAGES:
        for folder in _folders(package):
            found = sorted((folder / "lib").glob("libcublasLt.so.*"))
            if found:
                return (str(found[-1]),)
    return SYSTEM_NAMES


def require_cublaslt() -> None:
    """Raises MissingDependencyError if no cuBLASLt can be loaded."""
    names = cublaslt_names()
    for name in names:
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise MissingDependencyError(
        "engines of target cuda need NVIDIA's cuBLASLt, and none of the names it may have can be loaded "
        f"({', '.join(names)}): {install('cuda')}"
    )


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
