"""A stand-in for cuda.bindings.driver: device memory is host memory behind made-up addresses, and every call is noted.

It is as asynchronous as a GPU may be: copies and launches wait in their stream until somebody synchronizes it, and read
and write then. What a GPU would answer with a crash, or with silence and wrong numbers, is a fault here: it is noted in
`faults` and makes the synchronize fail. New memory holds NaN in every type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

BASE = 0x7F00_0000_0000
CONTEXT = 77


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUstream_flags(IntEnum):
    CU_STREAM_DEFAULT = 0
    CU_STREAM_NON_BLOCKING = 1


OK = (CUresult.CUDA_SUCCESS,)


class FakeCuda:
    """In place of the module. fail[function] = (which call of it, the code that it then answers with)."""

    CUresult, CUdevice_attribute, CUstream_flags = CUresult, CUdevice_attribute, CUstream_flags

    def __init__(self, sm: int = 80, memory: int = 1 << 30, devices: int = 1):
        self.sm, self.total, self.devices = sm, memory, devices
        self.calls: list[tuple[Any, ...]] = []
        self.faults: list[str] = []
        self.fail: dict[str, tuple[int, CUresult]] = {}
        self.broken = CUresult.CUDA_SUCCESS  # what every call answers from now on, as after an error of a kernel
        self.device_memory: dict[int, np.ndarray] = {}
        self.host_memory: dict[int, np.ndarray] = {}
        self.streams: dict[int, list[Callable[[], None]]] = {}
        self.retained = 0
        self._next = BASE
        self._current = threading.local()

    # What tests and the stand-in for TensorRT ask.

    def note(self, *call: Any) -> None:
        self.calls.append(call)

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def view(self, address: int, size: int) -> np.ndarray:
        """[size] uint8 of the device; outside of an allocation is a fault."""
        for start, memory in self.device_memory.items():
            if start <= address and address + size <= start + memory.nbytes:
                return memory[address - start : address - start + size]
        raise FaultError(f"{size} bytes at {address:#x} are not in one allocation")

    def host_view(self, address: int, size: int) -> np.ndarray:
        for start, memory in self.host_memory.items():
            if start <= address and address + size <= start + memory.nbytes:
                return memory[address - start : address - start + size]
        raise FaultError(f"{size} bytes at {address:#x} are not in page-locked memory")

    def queue(self, stream: int, work: Callable[[], None]) -> None:
        self.streams[int(stream)].append(work)

    def used(self) -> int:
        return sum(memory.nbytes for memory in self.device_memory.values())

    def is_clean(self) -> bool:
        """Whether everything was given back."""
        return not (self.device_memory or self.host_memory or self.streams or self.retained)

    # The functions of the driver.

    def _called(self, name: str, *args: Any, needs_context: bool = True) -> CUresult:
        self.note(name, *args)
        which, code = self.fail.get(name, (0, CUresult.CUDA_SUCCESS))
        if which and self.names().count(name) == which:
            return code
        if self.broken:
            return self.broken
        if needs_context and getattr(self._current, "context", None) != CONTEXT:
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        return CUresult.CUDA_SUCCESS

    def cuInit(self, flags: int) -> Any:
        code = self._called("cuInit", flags, needs_context=False)
        return (CUresult.CUDA_ERROR_NO_DEVICE if not code and not self.devices else code,)

    def cuDeviceGetCount(self) -> Any:
        return self._called("cuDeviceGetCount", needs_context=False), self.devices

    def cuDeviceGet(self, ordinal: int) -> Any:
        return self._called("cuDeviceGet", ordinal, needs_context=False), ordinal

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Any:
        major = attribute == CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        code = self._called("cuDeviceGetAttribute", attribute, device, needs_context=False)
        return code, self.sm // 10 if major else self.sm % 10

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return self._called("cuDeviceGetName", length, device, needs_context=False), b"Fake GPU\0\0"

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        code = self._called("cuDevicePrimaryCtxRetain", device, needs_context=False)
        self.retained += not code
        return code, CONTEXT

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        code = self._called("cuDevicePrimaryCtxRelease", device, needs_context=False)
        self.retained -= not code
        return (code,)

    def cuCtxSetCurrent(self, context: int) -> Any:
        code = self._called("cuCtxSetCurrent", context, needs_context=False)
        self._current.context = context
        return (code,)

    def cuMemGetInfo(self) -> Any:
        return self._called("cuMemGetInfo"), self.total - self.used(), self.total

    def cuMemAlloc(self, size: int) -> Any:
        code = self._called("cuMemAlloc", size)
        if not code and size <= 0:
            code = CUresult.CUDA_ERROR_INVALID_VALUE
        if not code and self.used() + size > self.total:
            code = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        if code:
            return code, 0
        address, self._next = self._next, self._next + (size + 511) // 256 * 256
        self.device_memory[address] = np.full(size, 0xFF, np.uint8)
        return code, address

    def cuMemFree(self, address: int) -> Any:
        code = self._called("cuMemFree", address)
        return (code or self._give_back(self.device_memory, address),)

    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        code = self._called("cuMemHostAlloc", size, flags)
        if code:
            return code, 0
        memory = np.full(size, 0xFF, np.uint8)
        self.host_memory[memory.ctypes.data] = memory
        return code, memory.ctypes.data

    def cuMemFreeHost(self, address: int) -> Any:
        code = self._called("cuMemFreeHost", address)
        return (code or self._give_back(self.host_memory, address),)

    def _give_back(self, memory: dict[int, np.ndarray], address: int) -> CUresult:
        if any(self.streams.values()):
            self.faults.append(f"memory at {address:#x} was freed while a stream still had work")
        if address not in memory:
            self.faults.append(f"memory at {address:#x} was freed that nobody has")
            return CUresult.CUDA_ERROR_INVALID_VALUE
        memory.pop(address).fill(0xFF)
        return CUresult.CUDA_SUCCESS

    def cuStreamCreate(self, flags: int) -> Any:
        code = self._called("cuStreamCreate", flags)
        if not code:
            self.streams[9001] = []
        return code, 9001

    def cuStreamDestroy(self, stream: int) -> Any:
        code = self._called("cuStreamDestroy", stream)
        self.streams.pop(stream, None)
        return (code,)

    def cuStreamSynchronize(self, stream: int) -> Any:
        code = self._called("cuStreamSynchronize", stream)
        work, self.streams[stream] = self.streams[stream], []
        try:
            for one in work:
                one()
        except FaultError as fault:
            self.faults.append(str(fault))
            return (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
        return (code,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            self.view(to, size)[:] = self.host_view(source, size)

        return self._queued("cuMemcpyHtoDAsync", copy, to, source, size, stream)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            self.host_view(to, size)[:] = self.view(source, size)

        return self._queued("cuMemcpyDtoHAsync", copy, to, source, size, stream)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            self.view(to, size)[:] = self.view(source, size).copy()

        return self._queued("cuMemcpyDtoDAsync", copy, to, source, size, stream)

    def cuMemsetD8Async(self, to: int, value: int, size: int, stream: int) -> Any:
        def fill() -> None:
            self.view(to, size)[:] = value

        return self._queued("cuMemsetD8Async", fill, to, value, size, stream)

    def _queued(self, name: str, work: Callable[[], None], *args: Any) -> Any:
        code = self._called(name, *args)
        if not code:
            self.queue(args[-1], work)
        return (code,)


class FaultError(Exception):
    """What a GPU would not survive."""
