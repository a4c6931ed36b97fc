"""Engines' logits at one instruction set level, in a process of its own since the choice is made once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tensorwright.runtime import _runtime

SCRIPT = """
import sys
import numpy as np
from tensorwright.runtime import _runtime

def logits(cpu):
    executor = _runtime.CpuExecutor(cpu + "/plan.bin", cpu + "/weights.bin", 1, "map")
    assert executor.facts()["block_size"] == 32
    groups, states = len(executor.facts()["group_windows"]), [1] if executor.facts()["state_bytes"] else []
    executor.allocate([4] * groups, 64, 64, 64, 2 * len(states))
    ids = np.random.default_rng(0).integers(0, executor.facts()["vocab_size"], 51).astype(np.int32)
    table = np.array([[2, 0]], np.int32)
    rows = []
    for begin, end in ((0, 41), (41, 50), (50, 51)):  # a prompt, a chunk, a decode step
        size = end - begin
        positions = np.arange(begin, end, dtype=np.int32)
        slots = table[0, positions // 32] * 32 + positions % 32
        starts, lengths = np.array([0, size], np.int32), np.array([end], np.int32)
        wanted = np.arange(size, dtype=np.int32)
        step = executor.step(ids[begin:end], positions, starts, lengths, wanted, [(table, slots)] * groups, states)
        rows.append(step)
    return np.concatenate(rows)


out, *engines = sys.argv[1:]
np.savez(out, *map(logits, engines))
print(_runtime.isa(), *(taken for _, taken, _ in _runtime.explain_dispatch()))
"""
LEVELS = ("scalar", "avx2", "avx512") if platform.machine() == "x86_64" else ("scalar", "neon")
OTHER_NAMES = {"avxvnni": "avx2", "amx": "avx512"}
"""Instructions that belong to a level whose name they do not begin with."""
PRESENT = [level for level in LEVELS if level == "scalar" or _runtime.cpu_features()[level]]
VECTOR_LEVELS = [
    pytest.param(level, marks=[] if level in PRESENT else pytest.mark.skip(f"this processor lacks {level}"))
    for level in LEVELS[1:]
]


def rounds_otherwise(kernel: str) -> bool:
    """Whether a kernel multiplies bfloat16 by instructions that round in an order of their own."""
    return kernel.endswith(("avx512bf16", "bf16_amx", "neonbf16"))


def level_of(kernel: str) -> str:
    """The level that a kernel's name says: its own, or that of the instructions which it has besides."""
    last = kernel.rpartition("_")[2]
    found = [name for name in LEVELS if OTHER_NAMES.get(last, last).startswith(name)]
    assert found, f"{kernel} does not name its instruction set"
    return found[-1]


def run_at_level(engines: Sequence[Path], level: str, folder: Path) -> tuple[list[np.ndarray], list[str]]:
    """Returns the logits of each engine, float32 [51, vocab], and the names of the kernels that the level has.

    folder: an existing folder, where the process leaves the logits.
    """
    out = folder / f"{level}.npz"
    command = [sys.executable, "-P", "-c", SCRIPT, str(out), *(str(engine / "cpu") for engine in engines)]
    environment = {**os.environ, "TENSORWRIGHT_ISA": level}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    selected, *kernels = done.stdout.split()
    assert selected == level
    with np.load(out) as file:
        found = [file[f"arr_{place}"] for place in range(len(engines))]
    for logits in found:
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
    return found, kernels
