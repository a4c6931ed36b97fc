"""Programs of C and C++ compile, link and run with the installed library; and the library shows its functions alone."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.places import ROOT, find_tool
from tensorwright import LLM, SamplingParams, get_cmake_dir, get_include, get_library_dir
from tensorwright.errors import MissingDependencyError
from tensorwright.runtime.api import c_library
from tensorwright.runtime.commands.cli import cli

EXAMPLES = ROOT / "docs" / "examples" / "c"
PROMPT = [3, 200, 17, 5, 64, 9]
GREEDY = '{"max_tokens": 24, "temperature": 0, "ignore_eos": true}'
needs_compilers = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("g++") is None, reason="no gcc and g++"
)
needs_binutils = pytest.mark.skipif(shutil.which("nm") is None, reason="no nm: binutils are not installed")


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def flags(*options: str) -> list[str]:
    done = CliRunner().invoke(cli, ["c-interface", *options])
    assert done.exit_code == 0, done.output
    return shlex.split(done.stdout)


def by_flags(folder: Path) -> tuple[Path, Path]:
    """Compiles both examples with the flags that the command prints."""
    strict = ("-Wall", "-Wextra", "-Werror", "-pedantic", *flags("--cflags"))
    run("gcc", "-std=c11", *strict, EXAMPLES / "generate.c", *flags("--libs"), "-o", folder / "generate")
    run("g++", "-std=c++17", *strict, EXAMPLES / "generate.cpp", *flags("--libs"), "-o", folder / "generate_cpp")
    return folder / "generate", folder / "generate_cpp"


def by_cmake(folder: Path) -> tuple[Path, Path]:
    """Builds both examples with the CMake package."""
    (package,) = flags("--cmake-dir")
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}")
    run(find_tool("cmake"), "-S", EXAMPLES, "-B", folder, *ninja, f"-Dtensorwright_DIR={package}")
    run(find_tool("cmake"), "--build", folder)
    return folder / "generate", folder / "generate_cpp"


@needs_compilers
@pytest.mark.parametrize("build", [by_flags, by_cmake])
def test_the_examples_give_the_tokens_of_llm(
    build: Callable[[Path], tuple[Path, Path]], toy_engine: Path, toy_llm: LLM, tmp_path: Path
) -> None:
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
    tokens = toy_llm.generate({"prompt_token_ids": PROMPT}, params).outputs[0].token_ids
    for program in build(tmp_path):
        arguments = [str(program), str(toy_engine), GREEDY, *map(str, PROMPT)]
        assert [int(token) for token in run(*arguments).split()] == tokens
        for wrong, says in ((2, "InvalidRequestError"), (1, "EngineError")):
            wrongly = [*arguments[:wrong], "{", *arguments[wrong + 1 :]]
            done = subprocess.run(wrongly, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert says in done.stderr


@needs_binutils
def test_the_library_shows_the_functions_of_its_header_alone() -> None:
    (library,) = Path(get_library_dir()).glob("libtensorwright.so.*")
    header = (Path(get_include()) / "tensorwright.h").read_text()
    declared = set(re.findall(r"^TW_API [\w *]+?[ *](tw_\w+)\(", header, re.MULTILINE))
    shown = set(re.findall(r" [A-Z] (\w+)(?:@|$)", run("nm", "-D", "--defined-only", library), re.MULTILINE))
    assert shown - {"TENSORWRIGHT_1"} == declared
    abi = re.search(r"#define TW_ABI_VERSION (\d+)", header)
    assert abi is not None
    assert f"soname: [libtensorwright.so.{abi[1]}]" in run("readelf", "-d", library)


def test_the_installed_headers_are_those_of_the_sources() -> None:
    for name in ("tensorwright.h", "tensorwright.hpp"):
        assert (Path(get_include()) / name).read_text() == (ROOT / "runtime/c_interface/include" / name).read_text()


def test_the_file_for_pkg_config_leads_to_headers_and_library() -> None:
    (folder,) = flags("--pkgconfig-dir")
    text = (Path(folder) / "tensorwright.pc").read_text()
    include, libraries = (re.search(rf"^{name}=\${{pcfiledir}}/(.*)$", text, re.M) for name in ("includedir", "libdir"))
    assert include is not None
    assert libraries is not None
    assert (Path(folder) / include[1]).resolve() == Path(get_include()).resolve()
    assert (Path(folder) / libraries[1]).resolve() == Path(get_library_dir()).resolve()


def test_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = CliRunner().invoke(cli, ["c-interface"])
    assert nothing.exit_code == 2
    assert "say what to print: --cflags, --libs, --cmake-dir, --pkgconfig-dir" in nothing.output
    assert Path(get_cmake_dir()).is_dir()
    with pytest.raises(MissingDependencyError, match="built without the C interface"):
        c_library._installed("include", "gone.h")
