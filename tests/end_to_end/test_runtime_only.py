"""Running an engine needs neither torch nor transformers, and little disk: a wheel in an environment of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.places import ROOT, build_folder, building, find_tool
from tensorwright.installing import install

LIMIT_BYTES = 250_000_000

pytestmark = pytest.mark.timeout(1200)  # compiles a wheel, downloads the dependencies


def call(*command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs at the repository's root, where no folder may shadow the installed package."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == status, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@contextmanager
def keeping_the_testing_module() -> Iterator[None]:
    """Configures the shared build folder with the module of tests again, if it had it, for a wheel is built without."""
    folder, option = build_folder(), "TENSORWRIGHT_TESTING_MODULE"
    kept = folder is not None and f"{option}:BOOL=TRUE" in (folder / "CMakeCache.txt").read_text()
    try:
        yield
    finally:
        if folder is not None and kept:
            call(find_tool("cmake"), "-S", ROOT, "-B", folder, f"-D{option}=TRUE")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of a virtual environment with the wheel and its run-time dependencies only."""
    home = tmp_path_factory.mktemp("runtime-only")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    with building(), keeping_the_testing_module():
        call(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", home / "wheel", ROOT)
    venv.create(home / "venv")
    (wheel,) = (home / "wheel").glob("tensorwright-*.whl")
    binaries = home / "venv" / "bin"
    # Most modules are never imported here, and to compile them all takes longer than all else.
    install_into = ("--python", binaries / "python", "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt")
    call(*pip, *install_into, wheel)
    return binaries


def test_no_build_packages(environment: Path) -> None:
    for package in ("torch", "transformers", "onnx"):
        assert "ModuleNotFoundError" in call(environment / "python", "-c", f"import {package}", status=1).stderr


def test_the_module_of_tests_is_absent(environment: Path) -> None:
    module = "tensorwright.runtime._testing"
    assert f"No module named '{module}'" in call(environment / "python", "-c", f"import {module}", status=1).stderr


def test_the_command_generates_text(environment: Path, pico_engine: Path) -> None:
    done = call(
        environment / "tensorwright", "run", pico_engine, "--prompt", "def read_file(", "--max-tokens", "24", "--json"
    )
    result = json.loads(done.stdout)
    assert len(result["token_ids"]) == 24 or result["finish_reason"] == "stop"
    assert result["text"].isprintable() or "\n" in result["text"]
    assert "self" in result["text"] or ")" in result["text"]  # it is Python, after all


def test_the_python_door_opens(environment: Path, pico_engine: Path) -> None:
    script = (
        "from tensorwright import LLM, SamplingParams\n"
        f"print(LLM({str(pico_engine)!r}).generate(['import os'], SamplingParams(max_tokens=16))[0].outputs[0].text)"
    )
    assert call(environment / "python", "-c", script).stdout.strip()


def test_python_runs_the_command(environment: Path) -> None:
    called = call(environment / "python", "-m", "tensorwright", "--help").stdout
    assert called == call(environment / "tensorwright", "--help").stdout
    assert call(environment / "python", "-m", "tensorwright", "inspect", "/nowhere", status=2).stderr.startswith(
        "error: "
    )


def test_type_checkers_see_its_types(environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from tensorwright import LLM\nllm = LLM(model='engine')\nreveal_type(llm.generate('a').outputs[0].text)\n"
        "reveal_type(llm.tokenizer.count('a'))\nllm.generate(5)\n"
    )
    checker = (sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "--no-error-summary")
    done = call(*checker, "--config-file", "/dev/null", "--python-executable", environment / "python", script, status=1)
    shown = re.findall(r'Revealed type is "(?:builtins\.)?(\w+)"', done.stdout)
    assert shown == ["str", "int"]
    assert "No overload variant" in done.stdout


def test_inspect(environment: Path, pico_engine: Path) -> None:
    facts = json.loads(call(environment / "tensorwright", "inspect", pico_engine, "--json").stdout)
    assert facts["dtype"] == "bfloat16"
    assert facts["kernels"]


def test_building_says_what_is_missing(environment: Path, pico_model: Path, tmp_path: Path) -> None:
    done = call(environment / "tensorwright", "build", pico_model, tmp_path / "out", status=2)
    assert done.stderr.startswith("error: ")
    assert install("build") in done.stderr
    script = f"from tensorwright import LLM; LLM({str(pico_model)!r})"
    assert "MissingDependencyError" in call(environment / "python", "-c", script, status=1).stderr


def test_it_is_small(environment: Path) -> None:
    """With the bytecode that pip usually makes of all modules, which takes about as much room as they do."""
    files = {path.stat().st_ino: path for path in environment.parent.rglob("*") if path.is_file()}
    sizes = [path.stat().st_size * (2 if path.suffix == ".py" else 1) for path in files.values()]
    assert sum(sizes) < LIMIT_BYTES
