"""Finds NVIDIA's cuBLASLt: in the package nvidia-cublas, or where the system's loader looks for it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

CUBLASLT = "TENSORWRIGHT_CUBLASLT"
"""The environment variable that names the file of the library."""
PACKAGES = ("nvidia.cu13", "nvidia.cublas")
"""The packages of CUDA 13 and of CUDA 12 that hold the library, below lib/."""


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


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return []
    return [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
