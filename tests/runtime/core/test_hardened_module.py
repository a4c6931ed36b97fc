"""The compiled module is hardened as CMakeLists.txt says: who writes or reads beyond its memory ends the process."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tensorwright.runtime import _runtime

READELF = shutil.which("readelf")

pytestmark = pytest.mark.skipif(READELF is None, reason="needs readelf (apt-get install binutils)")


def read(what: str) -> str:
    """What readelf prints of the module for the option `what`."""
    return subprocess.run(
        [str(READELF), "--wide", what, str(_runtime.__file__)], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The functions, mangled, that the module takes from libraries."""
    names = set(re.findall(r" UND ([^\s@]+)", read("--dyn-syms")))
    if any(name.startswith(("__asan_", "__tsan_", "__ubsan_")) for name in names):
        pytest.skip("this module has sanitizers, which look closer")
    return names


@pytest.mark.usefixtures("imported")
def test_what_the_loader_wrote_is_read_only_afterwards() -> None:
    assert "GNU_RELRO" in read("--program-headers")
    assert re.search(r"\(FLAGS\).*\bBIND_NOW\b|\(FLAGS_1\).*\bNOW\b|\(BIND_NOW\)", read("--dynamic"))


@pytest.mark.usefixtures("imported")
def test_no_stack_is_executable() -> None:
    (stack,) = (line for line in read("--program-headers").splitlines() if line.split()[:1] == ["GNU_STACK"])
    assert re.search(r" (RW?E?) +0x[0-9a-f]+$", stack)[1] == "RW", stack


def test_a_stack_that_was_written_over_is_found(imported: set[str]) -> None:
    assert "__stack_chk_fail" in imported


def test_copies_beyond_an_object_are_found(imported: set[str]) -> None:
    if ".debug_info" in read("--section-headers"):
        pytest.skip("FORTIFY is of release builds, and this module was built for debugging")
    assert [name for name in imported if re.fullmatch(r"__\w+_chk", name)], "no function of FORTIFY"


def test_indices_beyond_a_container_are_found(imported: set[str]) -> None:
    assert [name for name in imported if "__glibcxx_assert_fail" in name], "no assertion of libstdc++"
