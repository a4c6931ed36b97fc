"""One engine, every instruction set: TENSORWRIGHT_ISA changes the speed, and in float32 not one bit.

Each level runs in a process of its own, since the choice is made once, and computes all engines there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from support.isa_levels import VECTOR_LEVELS, level_of, rounds_otherwise, run_at_level
from tensorwright import build

KINDS = ("float32", "bfloat16", "int8 cache")


@pytest.fixture(scope="module")
def at_level(
    pico_engine: Path, pico_engine_float32: Path, pico_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[list[np.ndarray], list[str]]]:
    """Returns a function from a level to the logits of the engines of KINDS there, and to the kernels that it has."""
    folder = tmp_path_factory.mktemp("levels")
    # float32 with an int8 cache: matmuls without dot instructions, so that every bit must agree.
    build(pico_model, folder / "engine", dtype="float32", kv_cache_dtype="int8", accuracy="none")
    engines = [pico_engine_float32, pico_engine, folder / "engine"]
    return cache(lambda level: run_at_level(engines, level, folder))


SCALAR_ONLY = ["rotary_table_scalar"]
"""libm decides the table's bits. One more here is a kernel forgotten."""


@pytest.mark.parametrize("level", VECTOR_LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_level_gives_the_bits_of_scalar(
    at_level: Callable[[str], tuple[list[np.ndarray], list[str]]], kind: str, level: str
) -> None:
    computed, kernels = at_level(level)
    logits, expected = (found[KINDS.index(kind)] for found in (computed, at_level("scalar")[0]))
    scalar_only = [name for name in kernels if level_of(name) == "scalar"]
    assert scalar_only == SCALAR_ONLY
    assert all(level_of(name) == level for name in kernels if name not in scalar_only), kernels
    if kind == "bfloat16" and any(rounds_otherwise(name) for name in kernels):
        pytest.skip("bf16 dot instructions round otherwise; tests/end_to_end/test_parity_bfloat16.py bounds them")
    np.testing.assert_array_equal(logits.view(np.uint32), expected.view(np.uint32))
