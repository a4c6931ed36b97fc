"""Files compiled under instruction-set flags must not leak code into the rest of the program.

An inline function or template of a C++ header, instantiated under -mavx512f, may be the copy that the linker keeps for
everybody: then a machine without AVX-512 dies in a vector. So such files include intrinsics and C headers only, and
what they define has internal linkage, but for the kernels.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tensorwright.plugins

ROOT = Path(tensorwright.plugins.__file__).resolve().parent
FILES = sorted(ROOT.glob("*/x86_*.cc"))
ALLOWED = {"immintrin.h", "math.h", "string.h", "stdint.h", "stddef.h"}
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"]
FLAGS = {
    "x86_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "x86_avx512": AVX512,
    "x86_avx512bf16": [*AVX512, "-mavx512bf16"],
    "x86_avx512vnni": [*AVX512, "-mavx512vnni"],
    "x86_avxvnni": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
}
"""As in CMakeLists.txt: a file that needs more than its own set does not compile."""
HARDENED = ["-fstack-protector-strong", "-D_GLIBCXX_ASSERTIONS", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
"""Likewise: they bring inline functions of their own. FORTIFY wants some optimization."""


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include [<"](.+?)[>"]', path.read_text(), re.MULTILINE)


def closure(path: Path) -> set[str]:
    """Every header that `path` includes, through this project's own."""
    seen: set[str] = set()
    waiting = includes(path)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name.startswith("plugins/"):
            waiting += includes(ROOT.parent / name)
    return seen


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_includes_only_intrinsics_and_c_headers(path: Path) -> None:
    foreign = {h for h in closure(path) if not h.startswith("plugins/")} - ALLOWED
    assert not foreign, f"{path.name} includes {sorted(foreign)}"


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("nm")), reason="needs g++ and nm")
@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_shares_no_symbol(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "kernel.o"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-fno-inline",
        "-w",
        "-ffp-contract=off",
        *HARDENED,
        *FLAGS[path.stem],
        f"-I{ROOT.parent}",
        "-c",
        str(path),
        "-o",
        str(made),
    ]
    subprocess.run(command, check=True)
    listing = subprocess.run(
        ["nm", "-C", "--defined-only", "-g", str(made)], check=True, capture_output=True, text=True
    )
    # DW.ref is a pointer for exception tables, no code.
    shared = [s for s in listing.stdout.splitlines() if s.split()[1] != "T" and "DW.ref." not in s]
    assert not shared, f"{path.name} defines what other files may define too: {shared}"
    assert " T " in listing.stdout
