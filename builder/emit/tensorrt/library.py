"""Finds the TensorRT library without loading it, and supplies the file name that its ONNX parser looks for.

The wheel of TensorRT for RTX has libtensorrt_rtx.so.1. At the first node of a plugin, its parser looks for
libtensorrt_rtx.so and aborts the process if that is not found. The remedy is a private folder with a link of that
name, on the LD_LIBRARY_PATH of the child process that parses. The user's installation does not change.
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
    """One of the two TensorRT packages. `least`: the first supported version; `stem`: the file name that its parser
    looks up; `any_sm`: whether it builds for the SMs that it is given, not for the GPU that it finds."""

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
"""The package of each target."""


@dataclass(frozen=True)
class Library:
    """An installed package. `missing`: the name that its parser would not find, None if there is none."""

    flavour: Flavour
    missing: str | None = None
    stands_in: Path | None = None
    """The file that a link of the missing name must lead to."""

    @property
    def note(self) -> str | None:
        """Returns a text for the build report and the command: the missing name and its remedy."""
        if self.missing is None or self.stands_in is None:
            return None
        return (
            f"{self.missing}, which the parser of {self.flavour.module} looks up, is missing beside "
            f"{self.stands_in.name}; the parsing process got a link of that name in a folder of its own"
        )


def find_library(flavour: Flavour) -> Library:
    """Finds the package. Raises MissingDependencyError, with the extra to install, if it is absent or too old."""
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
    """Returns the version of the first installed distribution; None if the package was not installed by pip."""
    for name in flavour.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def require_version(flavour: Flavour, found: str) -> None:
    """Raises MissingDependencyError if the version is older than the first supported one."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[: len(flavour.least)])
    if numbers < flavour.least:
        least = ".".join(map(str, flavour.least))
        raise MissingDependencyError(
            f"target {flavour.name} needs {flavour.module} {least} or later, {found} is installed: "
            f"{install(flavour.name, options='--upgrade')}"
        )


def missing_name(flavour: Flavour, folders: list[Path]) -> Library:
    """Looks for the plain name and for versioned names in the folders of the package's libraries."""
    for folder in folders:
        versioned = sorted(folder.glob(f"{flavour.stem}.[0-9]*"), key=lambda path: (len(path.name), path.name))
        if versioned and not (folder / flavour.stem).exists():
            return Library(flavour, flavour.stem, versioned[0])
    return Library(flavour)


@contextmanager
def cured_environment(library: Library, environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Gives an environment in which the child finds every name. The folder that it needs is removed afterwards."""
    env = dict(os.environ if environment is None else environment)
    if library.missing is None or library.stands_in is None:
        yield env
        return
    with tempfile.TemporaryDirectory(prefix="tensorwright-library-") as folder:
        (Path(folder) / library.missing).symlink_to(library.stands_in.resolve())
        rest = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{folder}:{rest}" if rest else folder
        yield env
