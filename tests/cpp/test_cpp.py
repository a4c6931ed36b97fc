"""Builds the C++ tests and runs them, one pytest result per test program; and looks at the compiler's options."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from support.cpp_programs import BUILD, call, commands_of
from support.places import ROOT, build_folder, building, find_tool
from tensorwright.runtime import _runtime

QEMU = shutil.which("qemu-x86_64")
EMULATED: dict[str, tuple[str, set[str]]] = {"Haswell-v4": ("avx2", {"avx2", "fma"}), "Nehalem": ("scalar", set())}
"""Processors without AVX-512, and without AVX2; the instruction set that each must select, and the features it has."""
PROGRAMS = sorted(path.stem for path in (ROOT / "tests/cpp").glob("*_test.cc"))

pytestmark = pytest.mark.timeout(1500)  # the first to run compiles everything


@pytest.fixture(scope="session")
def cpp_build() -> Path:
    """The build folder, up to date. It is kept between runs, and several workers may want it at once."""
    with building():
        new = [] if (BUILD / "CMakeCache.txt").exists() else [
            "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}", "-DCMAKE_BUILD_TYPE=Release",
            "-DTENSORWRIGHT_PYTHON=OFF", f"-DPython_EXECUTABLE={sys.executable}",
        ]  # fmt: skip
        call(find_tool("cmake"), "-S", str(ROOT), "-B", str(BUILD), "-DTENSORWRIGHT_TESTS=ON", *new)
        call(find_tool("cmake"), "--build", str(BUILD), "--target", "cpp_tests")
    return BUILD


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(cpp_build: Path, program: str) -> None:
    only = ("-R", f"^{program}$", "--no-tests=error")
    call(find_tool("ctest"), "--test-dir", str(cpp_build), "--output-on-failure", *only)


def emulator_of(processor: str) -> list[str]:
    """The command that runs a program on the processor. A stray instruction dies without an emulator too, where the
    real processor has no features beyond those of the other one; the emulator takes ten times as long."""
    _, features = EMULATED[processor]
    if {name for name, present in _runtime.cpu_features().items() if present} <= features:
        return []
    if QEMU is None:
        pytest.skip("needs qemu-x86_64 (apt-get install qemu-user)")
    return [QEMU, "-cpu", processor]


@pytest.mark.parametrize("processor", EMULATED)
@pytest.mark.parametrize("program", ["isa_test", "matmul_test", "attention_test", "executor_test chunks", "amx_test"])
def test_program_on_another_processor(cpp_build: Path, processor: str, program: str) -> None:
    """A stray instruction of a better set dies here, as it would on the real processor."""
    environment = {name: value for name, value in os.environ.items() if name != "TENSORWRIGHT_ISA"}
    name, *only = program.split()
    environment["TENSORWRIGHT_EMULATED"] = "1"
    printed = call(*emulator_of(processor), *commands_of(cpp_build)[name], *only, env=environment)
    assert "ok " in printed
    if name == "isa_test":
        assert f"selected {EMULATED[processor][0]}\n" in printed


def test_every_program_is_known_to_ctest(cpp_build: Path) -> None:
    assert sorted(commands_of(cpp_build)) == PROGRAMS


@pytest.mark.skipif(build_folder() is None, reason="the module was not compiled here")
def test_every_file_is_hardened(cpp_build: Path) -> None:
    """Kernels, core, bindings, tests and nanobind's own files: no target takes away what all are to have."""
    listed = json.loads((cpp_build / "compile_commands.json").read_text())
    commands = {one["file"]: one["command"].split() for one in listed}
    assert {"plugins", "bindings", "core", "src"} <= {Path(path).parents[i].name for path in commands for i in (0, 1)}
    for path, words in commands.items():
        assert [word for word in words if "stack-protector" in word][-1] == "-fstack-protector-strong", path
        assert {"-D_GLIBCXX_ASSERTIONS", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"} <= set(words), path
