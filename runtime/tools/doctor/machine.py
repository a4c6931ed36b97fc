"""Finds the facts of this machine: processor, memory, the kernels taken, the NVIDIA driver and its GPUs."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import tensorwright
from tensorwright.errors import TensorwrightError
from tensorwright.runtime.base.host import available_memory, default_threads, processor

PROC = Path("/proc")
SETS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16",
)  # fmt: skip
"""The flags of /proc/cpuinfo that a kernel may need: of x86-64, then of aarch64."""


def examine_machine(proc: Path = PROC) -> dict[str, Any]:
    """Returns the facts by name. kernels: the kernel taken for each family, or the error if there are none."""
    model, flags = processor(proc)
    return {
        "tensorwright": tensorwright.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": model,
        "instruction_sets": [name for name in SETS if name in flags],
        "threads": default_threads(),
        "available_memory_bytes": available_memory(),
        "isa_override": os.environ.get("TENSORWRIGHT_ISA"),
        "cpu_without": os.environ.get("TENSORWRIGHT_CPU_WITHOUT"),
        "kernels": _kernels(),
    }


def _kernels() -> dict[str, Any]:
    from tensorwright.runtime.engine import native

    try:
        return {"taken": {choice["family"]: choice["taken"] for choice in native.dispatch_choices()}}
    except TensorwrightError as error:
        return {"error": str(error)}


def examine_nvidia(proc: Path = PROC) -> dict[str, Any]:
    """Returns the facts of the NVIDIA driver.

    driver: its version, or None if there is none. cuda: the CUDA version of the driver. gpus: name, SM and bytes of
    memory of each GPU. error: the reason why the driver could not be asked, or None.
    """
    path = proc / "driver/nvidia/version"
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text()) if path.is_file() else None
    facts: dict[str, Any] = {"driver": found[1] if found else None, "cuda": None, "gpus": [], "error": None}
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return {**facts, "error": f"the package cuda-bindings is absent ({error}), so GPUs cannot be listed"}
    try:
        return {**facts, **_ask_driver(driver)}
    except RuntimeError as error:  # cuda-bindings raises this if it finds no libcuda.
        return {**facts, "error": f"no NVIDIA driver: libcuda.so.1 is not found ({type(error).__name__})"}


def _ask_driver(driver: Any) -> dict[str, Any]:
    (code,) = driver.cuInit(0)
    if code != driver.CUresult.CUDA_SUCCESS:
        return {"error": f"the NVIDIA driver does not start: cuInit says {code.name}"}
    attribute = driver.CUdevice_attribute
    gpus = []
    for ordinal in range(driver.cuDeviceGetCount()[1]):
        device = driver.cuDeviceGet(ordinal)[1]
        major, minor = (
            driver.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), device)[1]
            for part in ("MAJOR", "MINOR")
        )
        name = bytes(driver.cuDeviceGetName(256, device)[1]).split(b"\0")[0].decode(errors="replace")
        gpus.append({"name": name, "sm": 10 * major + minor, "memory_bytes": driver.cuDeviceTotalMem(device)[1]})
    version = driver.cuDriverGetVersion()[1]
    return {"cuda": f"{version // 1000}.{version % 1000 // 10}", "gpus": gpus}
