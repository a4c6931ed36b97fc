"""benchmarks/gpu/gpu_attention.py, its ceilings and engine.py, without a GPU: what is counted and what is started."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from support.places import ROOT
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.runtime.requests.outputs import RequestMetrics

sys.path.append(str(ROOT / "benchmarks" / "gpu"))
import gpu_attention as attention
import gpu_ceilings as ceilings
import gpu_engine as engine


class Shapes(Memory):
    """It gives addresses and holds nothing."""

    def put(self, name: str, values: np.ndarray, dtype: str) -> Tensor:
        return self.empty(name, np.shape(values), dtype)

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        self._next += 1 << 34
        return Tensor.dense(name, self._next, tuple(shape), dtype)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Shapes:
    monkeypatch.setattr(attention, "filled", Shapes.empty)
    return Shapes()


def grids(launches: list[Any]) -> list[tuple[int, ...]]:
    return [launch.grid for launch in launches]


def test_decode(shapes: Shapes) -> None:
    """64 x 4096 positions: a GiB in one layer, at most 64 + 256 splits; no prefill is started."""
    assert attention.kv_bytes(64, 4096, "auto") == 1 << 30
    assert attention.layers_of(64, 4096, "auto") == 1
    started = attention.work(shapes, 64, 1, 4096, 1, "bfloat16", 90)
    assert grids(started) == [(64, 1, 1), (320, 8, 1), (64, 32, 1)]


def test_one_long_sequence(shapes: Shapes) -> None:
    layers = attention.layers_of(1, 32768, "int8")
    assert layers == 15
    started = attention.work(shapes, 1, 1, 32768, layers, "bfloat16", 90, kv_dtype="int8")
    assert grids(started) == [(1, 1, 1), *layers * [(64, 8, 1), (1, 32, 1)]]


def test_prefill(shapes: Shapes) -> None:
    """Tiles of 32 tokens x 4 heads, and one that the bound adds."""
    assert grids(attention.work(shapes, 1, 8192, 8192, 1, "bfloat16", 90)) == [(257, 8, 1)]
    assert attention.operations(1, 4, 0) == 4 * 128 * 32 * 10
    assert attention.operations(1, 4, 2) == 4 * 128 * 32 * 7


def test_the_product_that_is_timed_is_a_product() -> None:
    memory = Memory()
    a, b = (ceilings.filled(memory, name, shape, "bfloat16") for name, shape in (("a", (1280, 64)), ("b", (64, 256))))
    spec, launch = ceilings.product(a, b, memory.empty("c", (1280, 256), "bfloat16"))
    with Interpreter() as interpreter:  # of its own: the kernel is in the benchmarks' folder
        interpreter.run([spec], [launch], memory)
    wanted = memory.array("a") @ memory.array("b")
    assert np.abs(memory.array("c") - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


def test_tokens_of_an_engine_that_came_before_the_last_prompt_was_done_do_not_count() -> None:
    early = RequestMetrics(time_to_first_token=1.0, inter_token_times=[1.0, 1.0, 0.5, 0.5])  # at 2, 3, 3.5 and 4
    late = RequestMetrics(time_to_first_token=3.0, inter_token_times=[0.5, 0.5, 0.5, 0.5])
    assert engine.tokens_after([early, late], 3.0) == 2 + 4
    assert engine.tokens_after([late, late], 3.0) == 8
