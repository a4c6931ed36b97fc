"""What a release publishes: the rules for a wheel, and the file that lets it run with an older glibc."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from support.modules import load_module
from support.places import ROOT

NEWEST = (2, 28)
MODULE = "tensorwright/runtime/_runtime.abi3.so"
LIBRARY = ("tensorwright/lib/libtensorwright.so", "tensorwright/lib/libtensorwright.so.1")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_module(ROOT / "deploy" / "wheel" / "make_wheels.py")


@pytest.mark.parametrize(
    ("names", "size", "says"),
    [
        ((MODULE, *LIBRARY), 1000, ""),
        ((MODULE, *LIBRARY), 16_000_000, "at most 15000000 are allowed"),
        (
            (MODULE, "tensorwright.libs/libgomp.so.1"),
            1000,
            "needs libraries that not every Linux has: tensorwright.libs",
        ),
        (("tensorwright/__init__.py",), 1000, "must hold one compiled module, it holds none"),
        ((MODULE, *LIBRARY, "tensorwright/other.so"), 1000, "must hold one compiled module, it holds "),
        ((MODULE, LIBRARY[0]), 1000, "and the library that it leads to, it holds tensorwright/lib/libtensorwright.so"),
    ],
)
def test_a_wheel_that_may_not_be_published_is_refused(
    maker: ModuleType, tmp_path: Path, names: tuple[str, ...], size: int, says: str
) -> None:
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            archive.writestr(name, b"\0" * size)
    if not says:
        maker.check_wheel(wheel)
        return
    with pytest.raises(maker.ReleaseError, match=re.escape(says)):
        maker.check_wheel(wheel)


def test_a_tag_of_another_version_is_refused(maker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "answer", lambda *command: "v99.0 nightly")
    with pytest.raises(maker.ReleaseError, match=r"the commit has the tag v99\.0, and pyproject\.toml the version"):
        maker.project_version()
    monkeypatch.setattr(maker, "answer", lambda *command: "nightly")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", maker.project_version())


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm: binutils are not installed")
def test_what_stands_in_for_glibc_calls_old_versions_alone(tmp_path: Path) -> None:
    """Each name that it defines is the module's own, and calls that name of a glibc that is old enough."""
    made = tmp_path / "old_glibc.o"
    flags = ("-std=c++20", "-O1", "-fPIC", "-fno-builtin", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["g++", *flags, "-c", ROOT / "deploy" / "wheel" / "old_glibc.cc", "-o", made], check=True)
    symbols = subprocess.run(["nm", made], check=True, capture_output=True, text=True).stdout
    defined = set(re.findall(r" [TB] (\w+)$", symbols, re.M))
    called = {
        name: tuple(map(int, version.split("."))) for name, version in re.findall(r" U (\w+)@GLIBC_([\d.]+)", symbols)
    }
    assert {"exp", "pow", "dlopen", "pthread_create", "fstat", "__libc_single_threaded"} <= defined
    assert len(called) > 10
    assert set(called) <= defined
    assert all(version <= NEWEST for version in called.values())
    table = subprocess.run(["readelf", "-sW", made], check=True, capture_output=True, text=True).stdout
    assert {name for name in defined if not re.search(rf"GLOBAL HIDDEN .* {name}$", table, re.M)} == set()
