"""Runs on an NVIDIA GPU, and times, the launches that plugins/gpu/interpret.py interprets, for tests and benchmarks.

It uses cuda-bindings and plugins/gpu/driver.py, as the TensorRT plugins do, but neither torch nor Triton's runtime.
Machine code comes from the file that TENSORWRIGHT_GPU_BUNDLE names, where it has the kernel (kernel_bundle.py makes
such files on a machine without a GPU), else from the compiler of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernel_bundle import machine_code  # isort: skip

from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.driver import CudaDriver
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, kernel_values
from tensorwright.plugins.gpu.needs import SMS

PORTABLE_SM = 80
"""The SM whose PTX runs on an SM that nothing is compiled for."""
STREAM = 0
"""The default stream."""


class Device:
    """Device 0. Raises MissingDependencyError if there is no driver. `api`: cuda.bindings.driver, or a stand-in."""

    def __init__(self, api: Any = None) -> None:
        self._driver = CudaDriver(api)
        self.sm = self._driver.sm()
        if api is None:
            from cuda.bindings import driver as api
        self.api = api

    def run(self, specs: Iterable[KernelSpec], launches: Sequence[Launch], memory: Memory) -> None:
        """Runs the launches in order, as Interpreter.run does. `memory` then holds the results."""
        with_memory(self, memory, lambda real: [start(STREAM) for start in self.prepared(specs, launches, real)])

    def prepared(
        self, specs: Iterable[KernelSpec], launches: Sequence[Launch], real: dict[int, int]
    ) -> list[Callable[[int], None]]:
        """Returns a function per launch that puts it on a stream. `real`: `memory`'s addresses -> device addresses."""
        target = self.sm if self.sm in SMS else PORTABLE_SM
        wanted = {(launch.kernel, launch.variant) for launch in launches}
        needed = [spec for spec in specs if (spec.kernel, spec.variant) in wanted]
        kernels = bundle.from_bytes(bundle.to_bytes(machine_code(spec, target) for spec in needed))
        starts = []
        for launch in launches:
            kernel, image = kernels.find(launch.kernel, launch.variant, self.sm)
            moved = replace(launch, args=tuple(_moved(value, real) for value in launch.args))
            ready = self._driver.prepare(kernel, image)
            self._driver.fill(ready, moved, kernel_values(kernel.parameters, moved))
            starts.append(lambda stream, ready=ready: self._driver.start(ready, stream))
        return starts

    def microseconds(self, starts: Sequence[Callable[[int], None]], repeats: int = 200) -> float:
        """Returns the GPU's time for all of them once: the median over `repeats`, after a tenth as many to warm up.

        A CUDA graph replays them, because Python starts kernels more slowly than these run.
        """
        stream, run = self._recorded(starts)
        begin, end = self.call("cuEventCreate", 0), self.call("cuEventCreate", 0)
        times = []
        for _ in range(repeats + repeats // 10):
            self.call("cuEventRecord", begin, stream)
            self.call("cuGraphLaunch", run, stream)
            self.call("cuEventRecord", end, stream)
            self.call("cuEventSynchronize", end)
            times.append(1e3 * self.call("cuEventElapsedTime", begin, end))
        return float(np.median(times[repeats // 10 :]))

    def _recorded(self, starts: Sequence[Callable[[int], None]]) -> tuple[Any, Any]:
        """Returns (a stream, a graph of the launches that runs on it)."""
        stream = self.call("cuStreamCreate", self.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.call("cuStreamBeginCapture", stream, self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        for start in starts:
            start(int(stream))
        return stream, self.call("cuGraphInstantiate", self.call("cuStreamEndCapture", stream), 0)

    def attribute(self, name: str) -> int:
        device = self.call("cuCtxGetDevice")
        return int(self.call("cuDeviceGetAttribute", getattr(self.api.CUdevice_attribute, name), device))

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the CUDA driver. Returns its result without the status."""
        status, *values = getattr(self.api, name)(*arguments)
        if int(status):
            raise RuntimeError(f"{name} failed: {self.api.cuGetErrorName(status)[1]!r}")
        return values[0] if values else None


def with_memory(device: Device, memory: Memory, work: Callable[[dict[int, int]], Any]) -> Any:
    """Returns work({`memory`'s address: device address}), with all tensors copied there before and back after it."""
    real: dict[int, int] = {}
    try:
        for block in memory.blocks.values():
            pointer = device.call("cuMemAlloc", max(block.nbytes, 1))
            real[block.tensor.address] = int(pointer)
            if block.nbytes:
                data = np.ascontiguousarray(block.data)
                device.call("cuMemcpyHtoD", pointer, data.ctypes.data, block.nbytes)
        # A copy from pageable memory may return before its end, and a non-blocking stream does not wait for the copy.
        device.call("cuCtxSynchronize")
        result = work(real)
        device.call("cuCtxSynchronize")
        for block in memory.blocks.values():
            data = np.empty_like(block.data, order="C")
            if block.nbytes:
                device.call("cuMemcpyDtoH", data.ctypes.data, real[block.tensor.address], block.nbytes)
            block.data = data
        return result
    finally:
        for address in real.values():
            device.call("cuMemFree", address)


def _moved(value: Any, real: dict[int, int]) -> Any:
    """Returns a tensor with its device address, which lies in the last block that begins at or before it."""
    if not isinstance(value, Tensor):
        return value
    base = max(address for address in real if address <= value.address)
    return replace(value, address=real[base] + value.address - base)
