"""Files compiled under instruction-set flags must not leak code into the rest of the program.

An inline function or template of a C++ header, instantiated under -mavx512f, may be the copy that the linker keeps for
everybody: then a machine without AVX-512 dies in a vector. So what such files define has internal linkage, but for the
kernels. test_layering.py sees to it that they include intrinsics and C headers only.

Every file is compiled once more without optimization, where each function that is used becomes a symbol, and these
are listed. That shows more than the objects of the build do, where functions that were inlined left none: it holds for
whatever another compiler inlines. For that reason no function is inlined by force either. It also makes the compiler
three times as fast, since a vector kernel is a few hundred intrinsics that it would otherwise copy into each loop.

The compiler stops before it makes machine code (-flto), which takes it longer than all before: an object for a later
link names the same symbols. It reads the intrinsics, two thirds of what is left, once for each set of flags.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.places import ROOT, build_folder

FILES = sorted(path for path in (ROOT / "plugins").glob("*/*.cc") if path.name.startswith(("x86_", "arm_")))
NOTHING_INLINED = ("-O0", "-D__always_inline__=__unused__", "-Dalways_inline=unused")
"""Both spellings of the attribute: headers of intrinsics have the first, plugins/common/vector.h has the second."""
NO_CODE = ("-flto", "-fno-fat-lto-objects")
FOLDERS = [folder for folder in (build_folder(), ROOT / "build" / "arm64") if folder is not None]
"""The module's build, and that of make test-arm64, which has the files of the other kind of processor."""


@cache
def commands() -> dict[str, list[str]]:
    """The words of the command that compiles each file, in whichever build has it."""
    found = [folder / "compile_commands.json" for folder in FOLDERS]
    listed = [one for path in found if path.exists() for one in json.loads(path.read_text(encoding="utf-8"))]
    return {one["file"]: one["command"].split() for one in reversed(listed)}


def command(path: Path) -> list[str]:
    """The compiler and the flags that the build compiles the file with, but for optimization."""
    if str(path) not in commands():
        kind = path.name[:4]
        assert not any(Path(file).name.startswith(kind) for file in commands()), "the build leaves it out"
        pytest.skip("it was not compiled here: it is for another processor")
    words = commands()[str(path)]
    words = words[1:] if words[0].endswith("ccache") else words
    words = words[: words.index("-o")]
    return [word for word in words if word != "-O3"] + [*NOTHING_INLINED, *NO_CODE, "-w"]


INTRINSICS = {"x86_": "immintrin.h", "arm_": "arm_neon.h"}
"""The header of the compiler that has them, by the first letters of a file's name."""


@pytest.fixture(scope="module")
def intrinsics(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str], str], list[str]]:
    """Returns flags that include the intrinsics of a kind of processor, compiled before for the compiler's flags."""
    folder = tmp_path_factory.mktemp("intrinsics")

    @cache
    def compiled(compiler: tuple[str, ...], kind: str) -> list[str]:
        header = folder / str(len(list(folder.iterdir()))) / "intrinsics.h"
        header.parent.mkdir()
        header.write_text(f"#include <{INTRINSICS[kind]}>\n", encoding="utf-8")
        subprocess.run([*compiler, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
        header.write_text("#error The header that was compiled is not used.\n", encoding="utf-8")
        return ["-include", str(header)]

    return lambda compiler, kind: compiled(tuple(compiler), kind)


def shared_symbols(compiler: list[str], path: Path, made: Path) -> list[str]:
    """Compiles a file. Returns the lines of nm about what it defines for other files too, but for kernels; there must
    be kernels."""
    subprocess.run([*compiler, "-c", str(path), "-o", str(made)], check=True)
    asked = [compiler[0], "-print-file-name=liblto_plugin.so"]
    plugin = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    listed = ["nm", "--plugin", plugin, "-C", "--defined-only", "-g", str(made)]
    lines = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    assert any(line.split()[1] == "T" for line in lines), f"{path.name} defines no kernel"
    # DW.ref is a pointer for exception tables, no code.
    return [line for line in lines if line.split()[1] != "T" and "DW.ref." not in line]


pytestmark = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("nm")), reason="needs g++ and nm")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_shares_no_symbol(path: Path, tmp_path: Path, intrinsics: Callable[[list[str], str], list[str]]) -> None:
    compiler = command(path)
    shared = shared_symbols([*compiler, *intrinsics(compiler, path.name[:4])], path, tmp_path / "kernel.o")
    assert not shared, f"{path.name} defines what other files may define too: {shared}"


PLANTED = """
{} int added(int x) {{ return x + 1; }}
template <int n> {} int times(int x) {{ return n * x; }}
extern "C" int kernel(int x) {{ return added(x) + times<3>(x); }}
"""


def test_a_planted_symbol_is_seen(tmp_path: Path) -> None:
    """An inline function and a template, which become the linker's common copies unless they are static."""
    file, compiler = tmp_path / "kernel.cc", ["g++", *NOTHING_INLINED, *NO_CODE]
    file.write_text(PLANTED.format("inline", ""))
    seen = shared_symbols(compiler, file, tmp_path / "kernel.o")
    assert [line.split(maxsplit=2)[2] for line in seen] == ["added(int)", "int times<3>(int)"]
    file.write_text(PLANTED.format("static inline", "static"))
    assert shared_symbols(compiler, file, tmp_path / "kernel.o") == []
