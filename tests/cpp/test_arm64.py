"""The C++ programs as compiled for aarch64, in an emulator: kernels against the scalar ones, the rest of the core, and
an engine's answers against those of the processor that runs the tests.

`make test-arm64` compiles them first, in a folder of its own; without that folder nothing runs here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.cpp_programs import BUILD, call
from support.places import ROOT, building, find_tool
from tensorwright import build

FOLDER = ROOT / "build" / "arm64"
QEMU = shutil.which("qemu-aarch64")
LIBRARIES = "/usr/aarch64-linux-gnu"
PROCESSORS = {"cortex-a72": "neon", "neoverse-n1": "neondot", "max": "neoni8mm"}
"""Processors of qemu, and the kernel that each must take for weights of 4 bits: without dot products (Graviton 1), with
them (Graviton 2), and with all that qemu knows."""
KERNELS = [
    "isa_test", "matmul_test", "attention_test", "recurrences_test", "sampler_definition_test loops",
    "executor_test chunks",
]  # fmt: skip
"""Programs that compare kernels, and which of their tests."""
MEMORY = 8 << 30
"""The most address space that an emulated program may have: for memory that a program asks for and never uses, the
emulator takes memory of the machine."""
OTHERS = sorted(
    path.stem
    for path in (ROOT / "tests/cpp").glob("*_test.cc")
    if path.stem != "amx_test" and path.stem not in [program.split()[0] for program in KERNELS]
)
SLOW = {"simulation_test", "scheduler_crowd_test", "sampler_definition_test"}
"""Programs that take an emulator minutes and have nothing that differs between processors."""

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not (FOLDER / "CMakeCache.txt").exists(), reason="make test-arm64 compiles for aarch64 first"),
    pytest.mark.skipif(QEMU is None, reason="needs qemu-aarch64 (apt-get install qemu-user)"),
]


def emulate(processor: str, *command: str, **environment: str) -> str:
    """Runs a program in the emulator. Returns what it printed to stdout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENSORWRIGHT_")}
    env |= {"TENSORWRIGHT_EMULATED": "1", **environment}
    limited = ("prlimit", f"--as={MEMORY}", str(QEMU))
    return call(*limited, "-cpu", processor, "-L", LIBRARIES, *command, env=env)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("program", KERNELS)
def test_kernels(processor: str, program: str) -> None:
    """A stray instruction that the processor lacks dies here, as it would on the real one."""
    name, *only = program.split()
    printed = emulate(processor, str(FOLDER / name), *only)
    assert "ok " in printed
    if name == "isa_test":
        assert "selected neon\n" in printed
        assert f"quantized_matmul int4: quantized_matmul_i4_{PROCESSORS[processor]}\n" in printed


def test_a_processor_can_be_taken_for_a_smaller_one() -> None:
    printed = emulate("max", str(FOLDER / "isa_test"), "printed", TENSORWRIGHT_CPU_WITHOUT="neon_i8mm")
    assert "quantized_matmul int4: quantized_matmul_i4_neondot\n" in printed
    printed = emulate("max", str(FOLDER / "isa_test"), "printed", TENSORWRIGHT_ISA="scalar")
    assert "selected scalar\n" in printed
    assert "neon" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("program", [name for name in OTHERS if name not in SLOW])
def test_program(program: str) -> None:
    assert "ok " in emulate("max", str(FOLDER / program))


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """engine_tokens for the processor that runs the tests."""
    with building():
        call(find_tool("cmake"), "-S", str(ROOT), "-B", str(BUILD), "-DTENSORWRIGHT_TESTS=ON")
        call(find_tool("cmake"), "--build", str(BUILD), "--target", "engine_tokens")
    return BUILD / "engine_tokens"


ENGINES = {
    "float32": {"dtype": "float32", "kv_cache_dtype": "int4"},
    "bfloat16": {"dtype": "bfloat16"},
    "integers": {"dtype": "float32", "quantize": "int4", "kv_cache_dtype": "int8"},
}
WIDENED = {"TENSORWRIGHT_CPU_WITHOUT": "avx512_bf16,amx_bf16,neon_bf16"}
"""Products of bfloat16 by instructions for it round as the processor does; without them all processors agree."""


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest, pico_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        pico_model, tmp_path_factory.mktemp("arm64") / "engine", accuracy="none", **ENGINES[request.param]
    ).path


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["cortex-a72", "max"])
def test_an_engine_that_was_built_here_gives_the_same_bits_there(processor: str, engine: Path, native: Path) -> None:
    """Tokens and the bits of logprobs, of requests side by side, with the files as they are."""
    here = call(str(native), str(engine), "2", env={**os.environ, **WIDENED})
    there = emulate(processor, str(FOLDER / "engine_tokens"), str(engine), "2", **WIDENED)
    assert there == here
    assert here.count(" length\n") == len(here.splitlines()) > 1
