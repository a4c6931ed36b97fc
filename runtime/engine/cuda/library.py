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


def find_cublaslt() -> str:
    """Returns the file of the library; "" if no package has it, and the system's loader has to find it."""
    named = os.environ.get(CUBLASLT)
    if named:
        return named
    for package in PACKAGES:
        for folder in _folders(package):
            found = sorted((folder / "lib").glob("libcublasLt.so.*"))
            if found:
                return str(found[-1])
    return ""


def require_cublaslt() -> None:
    """Raises MissingDependencyError if no cuBLASLt can be loaded."""
    named = find_cublaslt()
    for name in (named,) if named else SYSTEM_NAMES:
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise MissingDependencyError(
        f"engines of target cuda need NVIDIA's cuBLASLt, and {named or 'none'} can be loaded: {install('cuda')}"
    )


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
