"""Answers as cuda.bindings.driver does, with a device that runs nothing: what was loaded and started is read back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

OK = 0
CONTEXT = 0x7000


class Attribute(Enum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97


class FunctionAttribute(Enum):
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class CachePreference(Enum):
    CU_FUNC_CACHE_PREFER_SHARED = 1


@dataclass
class Started:
    """What one cuLaunchKernel was given; `values` as read through the array of pointers."""

    function: tuple[int, str]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    values: list[Any]


@dataclass
class FakeCuda:
    """`types`: how to read the arguments of the next launches."""

    types: Sequence[Any] = ()
    sm: tuple[int, int] = (8, 9)
    shared_optin: int = 99 << 10
    current: int = CONTEXT
    fail: str = ""
    modules: list[bytes] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    allowed: dict[Any, int] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    preferences: dict[Any, CachePreference] = field(default_factory=dict)

    CUdevice_attribute = Attribute
    CUfunction_attribute = FunctionAttribute
    CUfunc_cache = CachePreference

    def _answer(self, name: str, *values: Any) -> tuple[Any, ...]:
        self.calls.append(name)
        return (700,) if name == self.fail else (OK, *values)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return self._answer("cuInit")

    def cuGetErrorName(self, status: int) -> tuple[int, bytes]:
        return OK, b"CUDA_ERROR_ILLEGAL_ADDRESS"

    def cuGetErrorString(self, status: int) -> tuple[int, bytes]:
        return OK, b"an illegal memory access was encountered"

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return self._answer("cuCtxGetCurrent", self.current)

    def cuCtxGetDevice(self) -> tuple[Any, ...]:
        return self._answer("cuCtxGetDevice", 0)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return self._answer("cuDeviceGet", ordinal)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return self._answer("cuDevicePrimaryCtxRetain", CONTEXT)

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        return self._answer("cuDevicePrimaryCtxRelease")

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        self.current = context
        return self._answer("cuCtxSetCurrent")

    def cuDeviceGetAttribute(self, attribute: Attribute, device: int) -> tuple[Any, ...]:
        major, minor = self.sm
        values = dict(zip(Attribute, (major, minor, self.shared_optin), strict=True))
        return self._answer("cuDeviceGetAttribute", values[attribute])

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        self.modules.append(image)
        return self._answer("cuModuleLoadData", len(self.modules))

    def cuModuleUnload(self, module: int) -> tuple[Any, ...]:
        return self._answer("cuModuleUnload")

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, ...]:
        return self._answer("cuModuleGetFunction", (module, name.decode()))

    def cuFuncSetAttribute(
        self, function: tuple[int, str], attribute: FunctionAttribute, value: int
    ) -> tuple[Any, ...]:
        self.allowed[function] = value
        return self._answer("cuFuncSetAttribute")

    def cuFuncSetCacheConfig(self, function: tuple[int, str], preference: CachePreference) -> tuple[Any, ...]:
        self.preferences[function] = preference
        return self._answer("cuFuncSetCacheConfig")

    def cuLaunchKernel(self, function: Any, *rest: int) -> tuple[Any, ...]:
        gx, gy, gz, bx, by, bz, shared, stream, parameters, extra = rest
        assert extra == 0
        pointers = (ctypes.c_void_p * len(self.types)).from_address(parameters)
        values = [kind.from_address(at).value for kind, at in zip(self.types, pointers, strict=True)]
        self.started.append(Started(function, (gx, gy, gz), (bx, by, bz), shared, stream, values))
        return self._answer("cuLaunchKernel")
