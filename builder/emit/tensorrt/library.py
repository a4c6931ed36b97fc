"""Finds the TensorRT library without loading it, and cures the file name that its ONNX parser misses.

The wheel of TensorRT for RTX ships libtensorrt_rtx.so.1; its parser, at the first node of a plugin, looks for
libtensorrt_rtx.so and aborts the process where that is not found. The cure is a private folder with a link of that
name, on the LD_LIBRARY_PATH of the child process that parses. The user's installation stays as it is.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tensorwright.errors import MissingDependencyError
from tensorwright.installing import install


@dataclass(frozen=True)
class Flavour:
    """One of the two TensorRT packages. `least`: the first version that serves; `stem`: what its parser looks up;
    `any_sm`: it builds for SMs that it is told, not for the GPU that it finds."""

    name: str
    module: str
    least: tuple[int, ...]
    distributions: tuple[str, ...]
    stem: str
    any_sm: bool


FLAVOURS = {
    "tensorrt": Flavour(
        "tensorrt",
        "tensorrt",
        (10, 15),
        ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        "libnvinfer.so",
        any_sm=False,
    ),
    "tensorrt-rtx": Flavour(
        "tensorrt-rtx",
        "tensorrt_rtx",
        (1, 7),
        ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12"),
        "libtensorrt_rtx.so",
        any_sm=True,
    ),
}
"""By target."""


@dataclass(frozen=True)
class Library:
    """An installed package. `missing`: the name that its parser will look up in vain, None where all is well."""

    flavour: Flavour
    missing: str | None = None
    stands_in: Path | None = None
    """The file that the missing name is to lead to."""

    @property
    def note(self) -> str | None:
        """The missing name and its cure, as the build report and the command tell it."""
        if self.missing is None or self.stands_in is None:
            return None
        return (
            f"{self.missing}, which the parser of {self.flavour.module} looks up, is missing beside "
            f"{self.stands_in.name}; the parsing process got a link of that name in a folder of its own"
        )


def find_library(flavour: Flavour) -> Library:
    """Raises MissingDependencyError, which names the extra, where the package is absent or too old."""
    spec = find_spec(flavour.module)
    if spec is None:
        raise MissingDependencyError(
            f"target {flavour.name} needs the Python package {flavour.module}, which is not installed: "
            f"{install(flavour.name)}"
        )
    found = installed_version(flavour)
    if found is not None:
        require_version(flavour, found)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    libs = find_spec(f"{flavour.module}_libs")
    if libs is not None:
        folders += [Path(folder) for folder in libs.submodule_search_locations or ()]
    return missing_name(flavour, folders)


def installed_version(flavour: Flavour) -> str | None:
    """Of the first of its distributions that pip knows of; None for an installation without pip."""
    for name in flavour.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def require_version(flavour: Flavour, found: str) -> None:
    """Raises MissingDependencyError for a version before the first that serves."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[: len(flavour.least)])
    if numbers < flavour.least:
        least = ".".join(map(str, flavour.least))
        raise MissingDependencyError(
            f"target {flavour.name} needs {flavour.module} {least} or later, {found} is installed: "
            f"{install(flavour.name, options='--upgrade')}"
        )


def missing_name(flavour: Flavour, folders: list[Path]) -> Library:
    """Looks where the package keeps its libraries for the plain name and for versioned ones."""
    for folder in folders:
        versioned = sorted(folder.glob(f"{flavour.stem}.[0-9]*"), key=lambda path: (len(path.name), path.name))
        if versioned and not (folder / flavour.stem).exists():
            return Library(flavour, flavour.stem, versioned[0])
    return Library(flavour)


@contextmanager
def cured_environment(library: Library, environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """An environment for the child in which every name is found; what it needs on disk is gone afterwards."""
    env = dict(os.environ if environment is None else environment)
    if library.missing is None or library.stands_in is None:
        yield env
        return
    with tempfile.TemporaryDirectory(prefix="tensorwright-library-") as folder:
        (Path(folder) / library.missing).symlink_to(library.stands_in.resolve())
        rest = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{folder}:{rest}" if rest else folder
        yield env
