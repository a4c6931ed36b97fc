"""Handles memory, copies and streams of one GPU through cuda.bindings.driver, and turns error codes into typed errors.

Addresses and sizes are ints, in bytes. The context is the device's primary one, which TensorRT uses too.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from tensorwright.errors import DeviceError, MissingDependencyError, OutOfMemoryError
from tensorwright.installing import install

NO_DRIVER = (
    "TensorRT engines run on an NVIDIA GPU, and there is no NVIDIA driver here ({}): install the driver or run the "
    "engine on a machine that has one; build-engine --target cpu makes an engine that needs none"
)


def load_driver(extra: str) -> Any:
    """Returns the module cuda.bindings.driver. extra: the extra of this package that installs it.

    Raises MissingDependencyError.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise MissingDependencyError(
            f"TensorRT engines need the package cuda-bindings ({error}): {install(extra)}"
        ) from error


def start_driver(driver: Any) -> None:
    """Raises MissingDependencyError if there is no driver, or no GPU."""
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # cuda-bindings does not find libcuda
        raise MissingDependencyError(NO_DRIVER.format("libcuda.so.1 is not found")) from error
    if code != driver.CUresult.CUDA_SUCCESS:
        raise MissingDependencyError(NO_DRIVER.format(f"cuInit says {code.name}"))


def require_devices(driver: Any, ordinals: tuple[int, ...]) -> None:
    """Raises MissingDependencyError unless this machine has the GPUs of these numbers, one for each of its ranks."""
    start_driver(driver)
    code, count = driver.cuDeviceGetCount()
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"cuDeviceGetCount: the CUDA driver says {code.name}; the GPUs must be looked after")
    if max(ordinals) >= count:
        raise MissingDependencyError(
            f"the engine has {len(ordinals)} ranks on this machine, one for each of the GPUs "
            f"{', '.join(map(str, ordinals))}, and the machine has {count} of them, counted from 0: choose others "
            "(devices), see CUDA_VISIBLE_DEVICES, or build the engine for fewer ranks"
        )


class Cuda:
    """One CUDA device. ordinal: the device's number, from 0. Raises MissingDependencyError without a driver or a
    GPU."""

    def __init__(self, driver: Any, ordinal: int = 0):
        self._driver = driver
        self._start(ordinal)
        attribute = driver.CUdevice_attribute
        major, minor = (
            self._call(
                "cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), dev
            )
            for part, dev in (("MAJOR", self._device), ("MINOR", self._device))
        )
        self.sm = 10 * int(major) + int(minor)
        name = self._call("cuDeviceGetName", 256, self._device)
        self.name = bytes(name).split(b"\0")[0].decode(errors="replace")
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        try:
            self.activate()
        except BaseException:
            self.close()
            raise

    def _start(self, ordinal: int) -> None:
        start_driver(self._driver)
        count = self._call("cuDeviceGetCount")
        if ordinal >= count:
            raise MissingDependencyError(
                f"the engine was to run on GPU {ordinal}, but this machine has {count} of them, counted from 0: choose "
                "another, or see CUDA_VISIBLE_DEVICES"
            )
        self._device = self._call("cuDeviceGet", ordinal)

    def _call(self, function: str, *args: Any) -> Any:
        """Calls a function of the driver and returns its results without the error code: (), one value, or several.

        Raises OutOfMemoryError or DeviceError for an error code.
        """
        code, *values = getattr(self._driver, function)(*args)
        result = self._driver.CUresult
        if code == result.CUDA_SUCCESS:
            return values[0] if len(values) == 1 else tuple(values)
        if code == result.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"{function}{_sizes(args)}: the GPU has not enough memory; lower kv_cache_memory, max_num_tokens or "
                "max_batch_size, or end what else uses the GPU"
            )
        raise DeviceError(
            f"{function}: the CUDA driver says {code.name} on {getattr(self, 'name', 'a GPU')}; an error of a kernel "
            "shows at a later call too; the engine must be opened again, or the GPU looked after"
        )

    def activate(self) -> None:
        """Makes the context current in the calling thread. The engine's loop runs in another thread than the one that
        opened the device."""
        self._call("cuCtxSetCurrent", self._context)

    def free_memory(self) -> int:
        """Returns the free bytes of the GPU."""
        free, _ = self._call("cuMemGetInfo")
        return int(free)

    def allocate(self, size: int) -> int:
        return int(self._call("cuMemAlloc", max(size, 1)))  # the driver refuses to allocate 0 bytes

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def allocate_host(self, size: int) -> np.ndarray:
        """Allocates page-locked memory, [size] uint8. Copies to and from it run without the processor."""
        address = int(self._call("cuMemHostAlloc", max(size, 1), 0))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_host(self, memory: np.ndarray) -> None:
        """Frees page-locked memory. No view of the memory may be used afterwards."""
        self._call("cuMemFreeHost", memory.ctypes.data)

    def make_stream(self) -> Any:
        return self._call("cuStreamCreate", int(self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: Any) -> None:
        self._call("cuStreamDestroy", stream)

    def synchronize(self, stream: Any) -> None:
        self._call("cuStreamSynchronize", stream)

    def copy_to_device(self, address: int, memory: np.ndarray, stream: Any) -> None:
        """Begins a copy to the device. memory: page-locked and contiguous; it must not change until the stream was
        synchronized."""
        self._call("cuMemcpyHtoDAsync", address, memory.ctypes.data, memory.nbytes, stream)

    def copy_to_host(self, memory: np.ndarray, address: int, stream: Any) -> None:
        self._call("cuMemcpyDtoHAsync", memory.ctypes.data, address, memory.nbytes, stream)

    def copy_on_device(self, to: int, source: int, size: int, stream: Any) -> None:
        self._call("cuMemcpyDtoDAsync", to, source, size, stream)

    def zero(self, address: int, size: int, stream: Any) -> None:
        self._call("cuMemsetD8Async", address, 0, size, stream)

    def close(self) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._device)


def _sizes(args: tuple[Any, ...]) -> str:
    return f" of {args[0]} bytes" if args and isinstance(args[0], int) else ""
