"""One engine, every instruction set: TENSORWRIGHT_ISA changes the speed, and in float32 not one bit.

Each level runs in a process of its own, since the choice is made once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorwright import build
from tensorwright.runtime import _runtime

SCRIPT = """
import sys
import numpy as np
from tensorwright.runtime import _runtime

cpu, out = sys.argv[1:]
executor = _runtime.CpuExecutor(cpu + "/plan.bin", cpu + "/weights.bin", 1, "map")
assert executor.facts()["block_size"] == 32
executor.allocate([4], 64, 64, 64)
ids = np.random.default_rng(0).integers(0, executor.facts()["vocab_size"], 51).astype(np.int32)
table = np.array([[2, 0]], np.int32)
rows = []
for begin, end in ((0, 41), (41, 50), (50, 51)):  # a prompt, a chunk, a decode step
    size = end - begin
    positions = np.arange(begin, end, dtype=np.int32)
    slots = table[0, positions // 32] * 32 + positions % 32
    starts, lengths = np.array([0, size], np.int32), np.array([end], np.int32)
    wanted = np.arange(size, dtype=np.int32)
    rows.append(executor.step(ids[begin:end], positions, starts, lengths, wanted, [(table, slots)]))
np.save(out, np.concatenate(rows))
print(_runtime.isa(), *(taken for _, taken, _ in _runtime.explain_dispatch()))
"""
LEVELS = ("scalar", "avx2", "avx512")
PRESENT = [level for level in LEVELS if level == "scalar" or _runtime.cpu_features()[level]]


def run(engine: Path, level: str, out: Path) -> tuple[np.ndarray, list[str]]:
    """Logits [51, vocab], and the kernels that computed them."""
    command = [sys.executable, "-P", "-c", SCRIPT, str(engine / "cpu"), str(out)]
    environment = {**os.environ, "TENSORWRIGHT_ISA": level}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    selected, *kernels = done.stdout.split()
    assert selected == level
    logits = np.load(out)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    return logits, kernels


@pytest.fixture(scope="module")
def scalar(
    pico_engine: Path, pico_engine_float32: Path, pico_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    folder = tmp_path_factory.mktemp("scalar")
    # float32 with an int8 cache: matmuls without dot instructions, so that every bit must agree.
    build(pico_model, folder / "engine", dtype="float32", kv_cache_dtype="int8", accuracy="none")
    engines = {"float32": pico_engine_float32, "bfloat16": pico_engine, "int8 cache": folder / "engine"}
    return {dtype: (engine, run(engine, "scalar", folder / f"{dtype}.npy")[0]) for dtype, engine in engines.items()}


SCALAR_ONLY = ["rotary_table_scalar"]
"""libm decides the table's bits. One more here is a kernel forgotten."""


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=[] if level in PRESENT else pytest.mark.skip(f"this processor lacks {level}"))
        for level in LEVELS[1:]
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8 cache"])
def test_every_level_gives_the_bits_of_scalar(scalar: dict, dtype: str, level: str, tmp_path: Path) -> None:
    engine, expected = scalar[dtype]
    logits, kernels = run(engine, level, tmp_path / "logits.npy")
    scalar_only = [name for name in kernels if name.endswith("_scalar")]
    assert scalar_only == SCALAR_ONLY
    assert all(f"_{level}" in name for name in kernels if name not in scalar_only), kernels
    if dtype == "bfloat16" and any(name.endswith("avx512bf16") for name in kernels):
        pytest.skip("bf16 dot instructions round otherwise; tests/end_to_end/test_parity_bfloat16.py bounds them")
    np.testing.assert_array_equal(logits.view(np.uint32), expected.view(np.uint32))
