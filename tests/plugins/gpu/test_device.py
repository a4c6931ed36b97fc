"""benchmarks/gpu/gpu_device.py, what GPU tests run on: memory goes there and back, launches get its addresses."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from typing import Any

import numpy as np
import pytest

from support.fake_cuda import FakeCuda
from support.places import ROOT
from tensorwright.errors import MissingDependencyError
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.rms_norm import launch

sys.path.append(str(ROOT / "benchmarks" / "gpu"))
import gpu_device as gpu
import int4_gemv

ATTRS = {"channels": 64, "eps": 1e-5, "weight_offset": 0.0}


class FakeMemory(FakeCuda):
    """Device memory is the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, Any] = {}

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        buffer = ctypes.create_string_buffer(size + 32)
        address = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 16
        self.live[address] = buffer
        return self._answer("cuMemAlloc", address)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        del self.live[address]
        return self._answer("cuMemFree")

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> tuple[Any, ...]:
        ctypes.memmove(to, source, size)
        return self._answer("cuMemcpyHtoD")

    def cuMemcpyDtoH(self, to: int, source: int, size: int) -> tuple[Any, ...]:
        ctypes.memmove(to, source, size)
        return self._answer("cuMemcpyDtoH")

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        return self._answer("cuCtxSynchronize")

    def cuLaunchKernel(self, function: Any, *rest: int) -> tuple[Any, ...]:
        """It adds one to the first byte of the output, which shows that the address is the device's."""
        answer = super().cuLaunchKernel(function, *rest)
        ctypes.c_uint8.from_address(self.started[-1].values[2]).value += 1
        return answer


def test_tensors_travel_and_addresses_are_the_devices() -> None:
    memory = Memory()
    x = memory.put("x", np.arange(128).reshape(2, 64), "float16")
    w = memory.put("w", np.ones(64), "float32")
    y = memory.put("y", np.zeros((2, 64)), "float16")
    api = FakeMemory()
    api.types = (ctypes.c_void_p,) * 3 + (ctypes.c_float,) * 2 + (ctypes.c_void_p,) * 2
    device = gpu.Device(api)
    launches = launch.launches(ATTRS, {"x": x, "w": w}, {"y": y}, None, device.sm)
    device.run(launch.kernels(ATTRS, {"x": "float16"}, device.sm), launches, memory)
    assert memory.array("y").view(np.uint8)[0].tolist()[:2] == [1, 0]
    np.testing.assert_array_equal(memory.array("x"), np.arange(128).reshape(2, 64))
    assert not api.live, "device memory was not freed"
    (started,) = api.started
    assert started.grid == (2, 1, 1)
    assert started.values[3] == pytest.approx(1e-5)
    assert started.values[-2:] == [None, None]
    moves = ("cuMemcpyHtoD", "cuCtxSynchronize", "cuLaunchKernel", "cuMemcpyDtoH")
    order = [name for name in api.calls if name in moves]
    waits = ["cuCtxSynchronize", "cuLaunchKernel", "cuCtxSynchronize"]
    assert order == ["cuMemcpyHtoD"] * 3 + waits + ["cuMemcpyDtoH"] * 3


def test_without_a_driver_one_sentence_says_so() -> None:
    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(MissingDependencyError, match=r"no NVIDIA driver|not installed"):
        gpu.Device()


def test_the_benchmark_counts_bytes_and_starts_each_matrix() -> None:
    attrs = {"n": 4096, "k": 4096, "group": 128}
    assert int4_gemv.bytes_of(**attrs, dtype="float16", tokens=1) == 8388608 + 262144 + 16384
    small = {"n": 32, "k": 64, "group": 32}
    assert len(int4_gemv.products(Memory(), small, "float16", 1, 3, 90)) == 3
