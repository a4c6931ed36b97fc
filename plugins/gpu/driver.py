"""Starts kernels on an NVIDIA GPU by cuda-bindings: `CudaDriver`; no torch, no Triton, nothing loaded at import.

`Driver` is the interface that TensorRT plugins use. Tests pass one that records (tests/support/recording_driver.py).
A kernel is prepared once by each who starts it. It is then filled with the grid and the arguments of a launch, which is
started as often as they stay the same.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import SCRATCH, Launch

PLAIN_SHARED_BYTES = 48 * 1024
"""Bytes of shared memory that a kernel may have without asking for more first."""
THREADS_OF_A_WARP = 32
NO_DRIVER = "no NVIDIA driver can be used: this target runs on an NVIDIA GPU with its driver, the target cpu without"


class Driver(Protocol):
    """Starts launches on the device of the calling thread."""

    def sm(self) -> int:
        """Returns the compute capability times ten: 80, 89, 120."""

    def prepare(self, kernel: CompiledKernel, image: bytes) -> Any:
        """Prepares a kernel for `fill`. `image`: machine code or PTX of it, as Bundle.find returns it."""

    def fill(self, prepared: Any, launch: Launch, values: Sequence[Any]) -> None:
        """Gives a prepared kernel the grid of a launch, and its arguments: `values`, with addresses as ints."""

    def start(self, prepared: Any, stream: int) -> None:
        """Puts the launch on a CUDA stream and does not wait for it."""


@dataclass
class Prepared:
    """A function and its arguments, in the form that cuLaunchKernel takes."""

    name: str
    function: Any
    block: tuple[int, int, int, int]
    """The threads of a block in three dimensions, and the bytes of shared memory."""
    arguments: Arguments
    shape: tuple[int, ...] = ()
    """The grid, and then `block`."""


CELL = 8
"""The bytes of memory for each argument."""
FORMATS = {"i32": "i4x", "i64": "q", "fp32": "f4x"}
"""What the struct module calls a cell with a number. That of a pointer is "Q"."""


class Arguments:
    """The array of pointers to arguments that a raw cuLaunchKernel reads, at `address`. It must outlive the call.

    A launch that was started has its own copy of them. parameters: those of the CompiledKernel, of which the scratch
    pointers at the end are null, since compile.py refuses kernels that need any.
    """

    def __init__(self, parameters: tuple[str, ...]) -> None:
        size = CELL * len(parameters)
        self._cells = ctypes.create_string_buffer(size)
        begin = ctypes.addressof(self._cells)
        self._pointers = (ctypes.c_void_p * len(parameters))(*range(begin, begin + size, CELL))
        self.address = ctypes.addressof(self._pointers)
        self._pack = _cells(parameters).pack_into

    def put(self, values: Sequence[Any]) -> None:
        """Writes all arguments but the scratch pointers. Raises struct.error for too few, or one beyond its type."""
        self._pack(self._cells, 0, *values)


@cache
def _cells(parameters: tuple[str, ...]) -> struct.Struct:
    own = [kind for kind in parameters if kind != SCRATCH]
    return struct.Struct("<" + "".join("Q" if kind.startswith("*") else FORMATS[kind] for kind in own))


class CudaDriver:
    """Uses the calling thread's CUDA context, which TensorRT sets; without one, device 0's primary context.

    `api` is cuda.bindings.driver, or a stand-in of a test. A module is loaded once per context and then kept.
    """

    def __init__(self, api: Any = None) -> None:
        self._given_api = api
        self._ready_api: Any = None
        self._retained: int | None = None
        self._functions: dict[tuple[int, str, bytes], Any] = {}
        self._modules: list[Any] = []
        self._sms: dict[int, int] = {}

    def sm(self) -> int:
        context = self._context()
        if context not in self._sms:
            attributes = self._api.CUdevice_attribute
            major = self._device_attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            minor = self._device_attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
            self._sms[context] = major * 10 + minor
        return self._sms[context]

    def prepare(self, kernel: CompiledKernel, image: bytes) -> Prepared:
        # A bytes object remembers its hash, so the code itself is the cheapest key that is always right.
        key = (self._context(), kernel.name, image)
        if key not in self._functions:
            self._functions[key] = self._load(kernel, image)
        return Prepared(
            kernel.name,
            self._functions[key],
            (kernel.num_warps * THREADS_OF_A_WARP, 1, 1, kernel.shared_bytes),
            Arguments(kernel.parameters),
        )

    def fill(self, prepared: Prepared, launch: Launch, values: Sequence[Any]) -> None:
        prepared.shape = launch.grid + prepared.block
        prepared.arguments.put(values)

    def start(self, prepared: Prepared, stream: int) -> None:
        answer = self._api.cuLaunchKernel(prepared.function, *prepared.shape, stream, prepared.arguments.address, 0)
        if answer[0]:
            self._check(f"starting {prepared.name} on a grid of {prepared.shape[:3]}", answer)

    def close(self) -> None:
        """Unloads the modules and releases the primary context. No kernel may run any more."""
        for module in self._modules:
            self._check("unloading a module", self._api.cuModuleUnload(module))
        if self._retained is not None:
            self._check("releasing the primary context", self._api.cuDevicePrimaryCtxRelease(self._retained))
        self._modules.clear()
        self._functions.clear()
        self._sms.clear()
        self._retained = None

    @property
    def _api(self) -> Any:
        if self._ready_api is None:
            self._ready_api = _initialised(self._given_api)
        return self._ready_api

    def _context(self) -> int:
        """Returns the calling thread's context. Without one, it makes the primary context of device 0 current."""
        current = self._check("asking for the context", self._api.cuCtxGetCurrent())
        if int(current):
            return int(current)
        device = self._check("asking for device 0", self._api.cuDeviceGet(0))
        primary = self._check("retaining the primary context", self._api.cuDevicePrimaryCtxRetain(device))
        if self._retained is not None:  # another thread of ours retained it before; one reference is enough
            self._check("releasing the primary context", self._api.cuDevicePrimaryCtxRelease(device))
        self._retained = device
        self._check("setting the context", self._api.cuCtxSetCurrent(primary))
        return int(primary)

    def _load(self, kernel: CompiledKernel, image: bytes) -> Any:
        what = f"loading {kernel.kernel} for SM {kernel.sm}"
        module = self._check(what, self._api.cuModuleLoadData(image))
        self._modules.append(module)
        function = self._check(what, self._api.cuModuleGetFunction(module, kernel.name.encode()))
        if kernel.shared_bytes > PLAIN_SHARED_BYTES:
            attributes = self._api.CUdevice_attribute
            most = self._device_attribute(attributes.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            if kernel.shared_bytes > most:
                raise KernelError(
                    f"{kernel.kernel} needs {kernel.shared_bytes} bytes of shared memory, this GPU (SM {self.sm()}) "
                    f"has {most}: build the engine with --sm {self.sm()}"
                )
            allowed = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(what, self._api.cuFuncSetAttribute(function, allowed, kernel.shared_bytes))
            # Triton's own launcher does so too: several such blocks fit a multiprocessor only if the L1 cache shrinks.
            self._check(
                what, self._api.cuFuncSetCacheConfig(function, self._api.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED)
            )
        return function

    def _device_attribute(self, attribute: Any) -> int:
        device = self._check("asking for the device", self._api.cuCtxGetDevice())
        return int(self._check("asking for a device's attribute", self._api.cuDeviceGetAttribute(attribute, device)))

    def _check(self, what: str, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status) == 0:
            return values[0] if values else None
        name = self._api.cuGetErrorName(status)[1]
        text = self._api.cuGetErrorString(status)[1]
        raise KernelError(f"CUDA: {what} failed: {_text(name)}, {_text(text)}")


def _initialised(api: Any) -> Any:
    """Returns cuda.bindings.driver with the driver loaded. Raises MissingDependencyError if there is no driver."""
    if api is None:
        try:
            api = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise MissingDependencyError(
                f"GPU kernels are started through cuda-bindings, which is not installed ({error}): "
                f"{install('tensorrt-rtx')}"
            ) from error
    try:
        (status,) = api.cuInit(0)
    except RuntimeError as error:  # cuda-bindings raise it if libcuda is not found
        raise MissingDependencyError(f"{NO_DRIVER} (libcuda was not found)") from error
    if int(status):
        name = api.cuGetErrorName(status)[1]
        raise MissingDependencyError(f"{NO_DRIVER} (cuInit answers {_text(name)})")
    return api


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
