"""Tells builds of C and C++ where the headers and the library of the C interface are (docs/c-interface.md)."""

from __future__ import annotations

from pathlib import Path

from tensorwright.errors import MissingDependencyError
from tensorwright.runtime.engine import native

LIBRARY = "tensorwright"
"""The name of the library after -l."""


def get_include() -> str:
    """Returns the folder of tensorwright.h and tensorwright.hpp. Raises MissingDependencyError if they are not
    installed."""
    return _installed("include", "tensorwright.h")


def get_library_dir() -> str:
    """Returns the folder of libtensorwright.so. Raises MissingDependencyError if it is not installed."""
    return _installed("lib", "libtensorwright.so")


def get_cmake_dir() -> str:
    """Returns the folder of the CMake package, the value of `tensorwright_DIR`. Raises MissingDependencyError if it is
    not installed."""
    return _installed("lib/cmake/tensorwright", "tensorwrightConfig.cmake")


def get_pkgconfig_dir() -> str:
    """Returns the folder for PKG_CONFIG_PATH. Raises MissingDependencyError if the library is not installed."""
    return _installed("lib/pkgconfig", "tensorwright.pc")


def compile_flags() -> str:
    """Returns what a compiler needs to find the headers."""
    return f"-I{get_include()}"


def link_flags() -> str:
    """Returns what a linker needs to find the library, and the program to find it when it runs."""
    folder = get_library_dir()
    return f"-L{folder} -l{LIBRARY} -Wl,-rpath,{folder}"


def _installed(folder: str, file: str) -> str:
    """Returns a folder of the installed package, which is beside that of the compiled module: in an editable install
    the sources are elsewhere."""
    found = Path(native.load_module().__file__).parents[1] / folder
    if not (found / file).exists():
        raise MissingDependencyError(
            f"{found / file} is missing: this tensorwright was built without the C interface; install it again "
            "without TENSORWRIGHT_C_INTERFACE=OFF"
        )
    return str(found)
