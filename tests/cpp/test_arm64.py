"""The C++ programs as compiled for aarch64, in an emulator: kernels against the scalar ones, the rest of the core, and
an engine's answers against those of the processor that runs the tests.

`make test-arm64` makes a folder of its own for what is compiled; without that folder nothing runs here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.cpp_programs import BUILD, call, commands_of
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
OTHERS = [
    "engine_core_test", "engine_test", "plan_test", "prefix_tiers_test", "ranks_test", "sampler_test",
    "thread_team_test", "topology_test",
]  # fmt: skip
"""Programs whose code asks the system or the processor, or has threads that share memory; and an engine as a whole."""

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not (FOLDER / "CMakeCache.txt").exists(), reason="make test-arm64 makes build/arm64 first"),
    pytest.mark.skipif(QEMU is None, reason="needs qemu-aarch64 (apt-get install qemu-user)"),
]


def emulate(processor: str, program: str, *arguments: str, **environment: str) -> str:
    """Compiles a program, if it is not up to date, and runs it in the emulator. Returns what it printed to stdout."""
    with building():
        call(find_tool("cmake"), "--build", str(FOLDER), "--target", program)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENSORWRIGHT_")}
    env |= {"TENSORWRIGHT_EMULATED": "1", **environment}
    limited = ("prlimit", f"--as={MEMORY}", str(QEMU))
    command = commands_of(FOLDER).get(program, [str(FOLDER / program)])
    begin = next(i for i, word in enumerate(command) if word.startswith(f"{FOLDER}/"))
    command = command[begin:]  # ctest's own emulator stands before
    return call(*limited, "-cpu", processor, "-L", LIBRARIES, *command, *arguments, env=env)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("program", KERNELS)
def test_kernels(processor: str, program: str) -> None:
    """A stray instruction that the processor lacks dies here, as it would on the real one."""
    name, *only = program.split()
    printed = emulate(processor, name, *only)
    assert "ok " in printed
    if name == "isa_test":
        assert "selected neon\n" in printed
        assert f"quantized_matmul int4: quantized_matmul_i4_{PROCESSORS[processor]}\n" in printed


def test_a_processor_can_be_taken_for_a_smaller_one() -> None:
    printed = emulate("max", "isa_test", "printed", TENSORWRIGHT_CPU_WITHOUT="neon_i8mm")
    assert "quantized_matmul int4: quantized_matmul_i4_neondot\n" in printed
    printed = emulate("max", "isa_test", "printed", TENSORWRIGHT_ISA="scalar")
    assert "selected scalar\n" in printed
    assert "neon" not in printed


@pytest.mark.parametrize("program", OTHERS)
def test_program(program: str) -> None:
    assert "ok " in emulate("max", program)


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


@pytest.mark.parametrize("processor", ["cortex-a72", "max"])
def test_an_engine_that_was_built_here_gives_the_same_bits_there(processor: str, engine: Path, native: Path) -> None:
    """Tokens and the bits of logprobs, of requests side by side, with the files as they are."""
    here = call(str(native), str(engine), "2", env={**os.environ, **WIDENED})
    there = emulate(processor, "engine_tokens", str(engine), "2", **WIDENED)
    assert there == here
    assert here.count(" length\n") == len(here.splitlines()) > 1
