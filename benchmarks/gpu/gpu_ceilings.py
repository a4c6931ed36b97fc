"""Measures what a GPU can do at most: the rate of a copy on the device, and of a large bf16 product."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gpu_device import Device, with_memory

from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, make_launch
from tensorwright.plugins.rounding import to_bfloat16_bits

COPY_BYTES = 1 << 30
PRODUCT = 8192
"""The rows, the columns and the depth of the timed product."""
TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
REPEATS = 50
RANDOM = 1 << 24


def filled(memory: Memory, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Returns random numbers, the same few repeated: with zeros the clock would be higher."""
    tensor, rng = memory.empty(name, shape, dtype), np.random.default_rng(0)
    data = memory.blocks[name].data
    count = min(RANDOM, data.size)
    if dtype == "int8":
        values = rng.integers(-127, 128, count, np.int8)
    else:
        values = rng.standard_normal(count, np.float32)
        values = to_bfloat16_bits(values) if dtype == "bfloat16" else values.astype(data.dtype)
    data.reshape(-1)[:] = np.resize(values, data.size)
    return tensor


def copy_rate(device: Device) -> float:
    """Returns the bytes read and written per second by the faster of the driver's own copy and torch's, if it is there:
    an H200's driver copies 2.7 TB/s, torch's kernel 4.3."""
    source, target = (int(device.call("cuMemAlloc", COPY_BYTES)) for _ in range(2))
    device.call("cuMemsetD32", source, 0x3F8CCCCD, COPY_BYTES // 4)
    device.call("cuCtxSynchronize")  # the copies' stream does not wait for the memory

    def copy(stream: int) -> None:
        device.call("cuMemcpyDtoDAsync", target, source, COPY_BYTES, stream)

    microseconds = device.microseconds([copy], REPEATS)
    for address in (source, target):
        device.call("cuMemFree", address)
    return max(2 * COPY_BYTES / (microseconds * 1e-6), _torch_copy_rate())


def product_rate(device: Device) -> tuple[float, str]:
    """Returns (operations per second of a bf16 product, the library): Triton, or cuBLAS if torch has it faster."""
    memory = Memory()
    a, b, c = (filled(memory, name, (PRODUCT, PRODUCT), "bfloat16") for name in "abc")
    spec, launch = product(a, b, c)
    microseconds = with_memory(
        device, memory, lambda real: device.microseconds(device.prepared([spec], [launch], real), REPEATS)
    )
    found = [(2 * PRODUCT**3 / (microseconds * 1e-6), "Triton"), (_cublas_rate(), "cuBLAS")]
    return max(found)


def product(a: Tensor, b: Tensor, c: Tensor) -> tuple[KernelSpec, Launch]:
    """Returns a launch of c [M, N] = a [M, K] b [K, N]; sizes are multiples of the tile."""
    (m, k), n = a.shape, b.shape[1]
    (spec,) = specs()
    grid = (m // TILE["BLOCK_M"] * (n // TILE["BLOCK_N"]), 1, 1)
    return spec, make_launch(spec, grid, {"a": a, "b": b, "c": c, "n": n, "k": k})


def specs() -> tuple[KernelSpec, ...]:
    """Returns the kernel of the product, the same for every SM."""
    names = ("a", "b", "c")
    signature = (*((name, "*bf16") for name in names), ("n", "i32"), ("k", "i32"))
    return (KernelSpec("product_kernel", "product_kernel", signature, tuple(TILE.items()), (*names, "n", "k"), 8, 3),)


def _torch_with_cuda() -> Any:
    """Returns torch, or None if it is not there or has no CUDA."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def _best_seconds(torch: Any, work: Callable[[], Any]) -> float:
    """Returns the seconds of one call among many that follow one another, the best of five times."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / REPEATS)
    return min(times)


def _torch_copy_rate() -> float:
    """Returns the bytes read and written per second by torch's copy, 0 without torch or without its CUDA."""
    if (torch := _torch_with_cuda()) is None:
        return 0.0
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _best_seconds(torch, lambda: target.copy_(source))


def _cublas_rate() -> float:
    """Returns cuBLAS's operations per second, 0 without torch or without its CUDA."""
    if (torch := _torch_with_cuda()) is None:
        return 0.0
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda").bfloat16() for _ in range(2))
    return 2 * PRODUCT**3 / _best_seconds(torch, lambda: torch.mm(a, b))
