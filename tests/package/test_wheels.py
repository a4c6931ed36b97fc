"""What a release publishes: the rules for a wheel, and the file that lets it run with an older glibc."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from support.modules import load_module
from support.places import ROOT

NEWEST = (2, 28)
MODULE = "tensorwright/runtime/_runtime.abi3.so"
OTHER = "tensorwright/runtime/_runtime.of_aarch64.so"
"""A name of these tests: what is stored under it is compiled for aarch64."""
WHOLE = "tensorwright/runtime/_runtime.not_stripped.so"
"""Another one: what is stored under it has its symbols still."""
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
        ((OTHER, *LIBRARY), 1000, f"{OTHER} of made-x86_64.whl is not compiled for the processor"),
        ((WHOLE, *LIBRARY), 1000, f"{WHOLE} of made-x86_64.whl is not stripped"),
    ],
)
def test_a_wheel_that_may_not_be_published_is_refused(
    maker: ModuleType, tmp_path: Path, names: tuple[str, ...], size: int, says: str
) -> None:
    wheel = tmp_path / "made-x86_64.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            number = maker.MACHINES["aarch64" if name == OTHER else "x86_64"]
            head = b"\x7fELF".ljust(18, b"\0") + struct.pack("<H", number) + maker.SYMBOLS * (name == WHOLE)
            archive.writestr(name, head.ljust(size, b"\0"))
    if not says:
        maker.check_wheel(wheel)
        return
    with pytest.raises(maker.ReleaseError, match=re.escape(says)):
        maker.check_wheel(wheel)


def test_the_umask_of_a_clone_leaves_no_trace(maker: ModuleType, tmp_path: Path) -> None:
    """Programs stay programs, and members keep their order, times and contents."""
    times = (2026, 1, 2, 3, 4, 6)
    made = []
    for name, modes in {"a": (0o644, 0o755), "b": (0o600, 0o710)}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member, mode in zip(("z.py", "program"), modes, strict=True):
                info = zipfile.ZipInfo(member, times)
                info.external_attr = (0o100000 | mode) << 16
                archive.writestr(info, member * 100)
        made.append(maker.with_plain_modes(tmp_path / name, tmp_path / f"{name}.whl"))
    assert made[0].read_bytes() == made[1].read_bytes()
    found = [
        (info.filename, oct(info.external_attr >> 16), info.date_time) for info in zipfile.ZipFile(made[0]).infolist()
    ]
    assert found == [("z.py", "0o100644", times), ("program", "0o100755", times)]
    assert zipfile.ZipFile(made[0]).read("program") == b"program" * 100


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
    assert {
        "exp",
        "pow",
        "dlopen",
        "pthread_create",
        "pthread_rwlock_rdlock",
        "fstat",
        "__libc_single_threaded",
    } <= defined
    assert {"__isoc23_strtoull", "__isoc23_sscanf"} <= defined  # what the headers of glibc 2.38 call in their place
    assert len(called) > 10
    assert set(called) <= defined
    assert all(version <= NEWEST for version in called.values())
    table = subprocess.run(["readelf", "-sW", made], check=True, capture_output=True, text=True).stdout
    assert {name for name in defined if not re.search(rf"GLOBAL HIDDEN .* {name}$", table, re.M)} == set()


@pytest.fixture(scope="module")
def trial() -> ModuleType:
    return load_module(ROOT / "deploy" / "wheel" / "try_wheels.py")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensorwright-0.1.0.tar.gz", "is no wheel of `make wheel`"),
        ("tensorwright-0.1.0-cp311-cp311-linux_x86_64.whl", "is no wheel of `make wheel`"),
        ("tensorwright-0.1.0-cp311-cp311-manylinux_2_28_riscv64.whl", "is for riscv64: nothing here runs it"),
    ],
)
def test_what_cannot_be_tried_is_refused(trial: ModuleType, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(trial.TrialError, match=re.escape(says)):
        trial.install(tmp_path / name, "serve", [], tmp_path)


def test_a_wheel_whose_doors_disagree_fails_its_trial(
    trial: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One token of the program of C differs, then one letter of the server."""

    class Place(trial.Installed):  # type: ignore[name-defined,misc]
        def answer(self, *command: str | Path) -> str:
            return "[[1], [2, 3]]" if "-c" in command else '{"token_ids": [2, 3], "text": "ab"}'

    place = Place(tmp_path, ("python",), tmp_path, {})
    given = {"tokens": [2, 4], "text": "ab"}
    monkeypatch.setattr(trial, "tokens_of_programs", lambda *arguments: {"C": given["tokens"]})
    monkeypatch.setattr(trial, "text_of_server", lambda *arguments: given["text"])
    with pytest.raises(trial.TrialError, match=re.escape("C gave the tokens [2, 4], and the command run [2, 3]")):
        trial.try_wheel(place, tmp_path)
    given["tokens"] = [2, 3]
    assert trial.try_wheel(place, tmp_path) == {"token_ids": [2, 3], "text": "ab"}
    given["text"] = "ac"
    with pytest.raises(trial.TrialError, match="the server gave 'ac'"):
        trial.try_wheel(place, tmp_path)


def test_each_wheel_of_aarch64_has_a_python_that_runs_it(trial: ModuleType) -> None:
    roots = load_module(ROOT / "deploy" / "arm64" / "make_root.py")
    assert set(trial.ARM64_PYTHONS.values()) == set(roots.SUITES)


def test_a_root_of_an_unknown_python_is_refused(tmp_path: Path) -> None:
    roots = load_module(ROOT / "deploy" / "arm64" / "make_root.py")
    with pytest.raises(roots.RootError, match=re.escape("no root has Python 3.12: make one with 3.11 (Debian")):
        roots.make_root("3.12", tmp_path / "root")
