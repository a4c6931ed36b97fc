"""One engine, every instruction set: TENSORWRIGHT_ISA changes the speed, and in float32 not one bit.

Each level runs in a process of its own, since the choice is made once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.isa_levels import VECTOR_LEVELS, level_of, rounds_otherwise, run_at_level
from tensorwright import build


@pytest.fixture(scope="module")
def scalar(
    pico_engine: Path, pico_engine_float32: Path, pico_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    folder = tmp_path_factory.mktemp("scalar")
    # float32 with an int8 cache: matmuls without dot instructions, so that every bit must agree.
    build(pico_model, folder / "engine", dtype="float32", kv_cache_dtype="int8", accuracy="none")
    engines = {"float32": pico_engine_float32, "bfloat16": pico_engine, "int8 cache": folder / "engine"}
    return {
        dtype: (engine, run_at_level(engine, "scalar", folder / f"{dtype}.npy")[0]) for dtype, engine in engines.items()
    }


SCALAR_ONLY = ["rotary_table_scalar"]
"""libm decides the table's bits. One more here is a kernel forgotten."""


@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8 cache"])
def test_every_level_gives_the_bits_of_scalar(scalar: dict, dtype: str, level: str, tmp_path: Path) -> None:
    engine, expected = scalar[dtype]
    logits, kernels = run_at_level(engine, level, tmp_path / "logits.npy")
    scalar_only = [name for name in kernels if level_of(name) == "scalar"]
    assert scalar_only == SCALAR_ONLY
    assert all(level_of(name) == level for name in kernels if name not in scalar_only), kernels
    if dtype == "bfloat16" and any(rounds_otherwise(name) for name in kernels):
        pytest.skip("bf16 dot instructions round otherwise; tests/end_to_end/test_parity_bfloat16.py bounds them")
    np.testing.assert_array_equal(logits.view(np.uint32), expected.view(np.uint32))
