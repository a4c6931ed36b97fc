"""The probe of a whole step on a GPU is right: its logits against torch's, with kernels that Triton interprets."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwright.plugins.gpu.interpret import STORAGE, Block, Interpreter, Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor

FOLDER = str(Path(__file__).parents[3] / "benchmarks" / "gpu")


class InterpretedDevice:
    """Stands in for gpu_device.Device: tensors are in this process, and kernels read and write them there."""

    sm = 90

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    def prepared(
        self, specs: Sequence[KernelSpec], launches: Sequence[Launch], real: dict[int, int]
    ) -> list[Callable[[int], None]]:
        return [lambda _, launch=launch: self._run(specs, launch) for launch in launches]

    def _run(self, specs: Sequence[KernelSpec], launch: Launch) -> None:
        memory = Memory()
        places = {}
        tensors = [arg for arg in launch.args if isinstance(arg, Tensor)]
        # A tensor of no elements may have the address of another.
        for tensor in {tensor.address: tensor for tensor in sorted(tensors, key=lambda t: np.prod(t.shape))}.values():
            size = int(np.prod(tensor.shape)) * tensor.item_bytes
            held = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.address))
            places[str(tensor.address)] = held = held.view(STORAGE[tensor.dtype]).reshape(tensor.shape)
            memory.blocks[str(tensor.address)] = Block(tensor, held)
        self._interpreter.run(specs, [launch], memory)
        for name, held in places.items():
            held[...] = memory.blocks[name].data


@pytest.fixture
def gpu_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    import gpu_step

    return gpu_step


@pytest.fixture
def device(interpreter: Interpreter) -> InterpretedDevice:
    return InterpretedDevice(interpreter)


def test_a_step_of_our_kernels_gives_torchs_logits(gpu_step: Any, device: InterpretedDevice) -> None:
    assert gpu_step.largest_error(device, "cpu") < 0.02


def test_the_floor_is_of_bytes_or_of_operations(gpu_step: Any, device: InterpretedDevice) -> None:
    step = gpu_step.Step(device, gpu_step.SHAPES["tiny"], 2, 1, 40, "bfloat16", "cpu")
    shape = step.shape
    layer = (12 * 64) * 256 + 256 * 512 + 1024 * 256 + 256 * 512
    weights = 2 * layer + 1024 * 256
    assert shape.weights() == weights
    kv = 2 * 2 * 2 * 64 * 2 * 40 * 2  # layers, K and V, heads, columns, sequences, positions, bytes
    assert step.floor(copy=1.0, product=1e30) == pytest.approx(2 * weights + kv)
    products = 2 * 2 * weights + 4 * 8 * 64 * 2 * 40 * 2
    assert step.floor(copy=1e30, product=1.0) == pytest.approx(products)


def test_weights_of_4_bits_run(gpu_step: Any, device: InterpretedDevice) -> None:
    step = gpu_step.Step(device, gpu_step.SHAPES["tiny"], 2, 1, 40, "int4", "cpu")
    step.run()
    assert step.logits.isfinite().all()
    assert (step.tokens_out == step.logits.argmax(1)).all()
