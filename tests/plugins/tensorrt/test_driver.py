"""plugins/gpu/driver.py: what it asks of CUDA for a launch, read back from a stand-in for cuda-bindings."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import pytest

from support.fake_cuda import CONTEXT, FakeCuda
from support.recording_driver import check_launch
from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.driver import CudaDriver
from tensorwright.plugins.gpu.launch import SCRATCH, Launch, Tensor, kernel_values

KINDS = ("*fp16", "i32", "i64", "fp32", "*i8", SCRATCH, SCRATCH)
TYPES = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_float, *[ctypes.c_uint64] * 3)
KERNEL = CompiledKernel(
    "rows", "v", 89, "rows_entry", 8, 1024, 40, 0, KINDS, b"\x7fELF code", "// text"
)  # fmt: skip
X = Tensor.dense("x", 0x7F_1234_5678_9AB0, (4, 8), "float16")
PAGES = Tensor.dense("pages", 0xFFFF_FFFF_FFF0, (2, 1, 32, 8), "int8")
LAUNCH = Launch("rows", "v", (5, 6, 7), (X, -3, 1 << 40, 0.5, PAGES))


def started(driver: CudaDriver, image: bytes = KERNEL.cubin, stream: int = 1) -> None:
    prepared = driver.prepare(KERNEL, image)
    driver.fill(prepared, LAUNCH, kernel_values(KINDS, LAUNCH))
    driver.start(prepared, stream)


def test_the_arguments_lie_in_memory_as_the_kernel_reads_them() -> None:
    cuda = FakeCuda(TYPES)
    driver = CudaDriver(cuda)
    started(driver, stream=0xABCD)
    (one,) = cuda.started
    assert one.values == [X.address, -3, 1 << 40, 0.5, PAGES.address, 0, 0]
    assert one.grid == (5, 6, 7)
    assert one.block == (8 * 32, 1, 1)
    assert one.shared_bytes == 1024
    assert one.stream == 0xABCD
    assert one.function == (1, "rows_entry")
    assert cuda.modules == [KERNEL.cubin]
    assert not cuda.allowed
    assert not cuda.preferences


def test_a_module_is_loaded_once_per_context_and_code() -> None:
    cuda = FakeCuda(TYPES)
    driver = CudaDriver(cuda)
    again = bytes(bytearray(KERNEL.cubin))  # equal, not the same object
    for image in (KERNEL.cubin, again, b"other code"):
        started(driver, image)
    assert cuda.modules == [KERNEL.cubin, b"other code"]
    assert [one.function[0] for one in cuda.started] == [1, 1, 2]
    cuda.current = 0x8000
    driver.prepare(KERNEL, KERNEL.cubin)
    assert len(cuda.modules) == 3


def test_shared_memory_above_48_kib_is_asked_for_and_preferred_to_cache() -> None:
    cuda = FakeCuda(TYPES)
    big = dataclasses.replace(KERNEL, shared_bytes=99 << 10)
    CudaDriver(cuda).prepare(big, big.cubin)
    assert cuda.allowed == {(1, "rows_entry"): 99 << 10}
    assert cuda.preferences == {(1, "rows_entry"): cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED}
    too_big = dataclasses.replace(KERNEL, shared_bytes=100 << 10)
    with pytest.raises(KernelError, match=r"102400 bytes of shared memory, this GPU \(SM 89\) has 101376"):
        CudaDriver(FakeCuda(TYPES)).prepare(too_big, too_big.cubin)


def test_without_a_current_context_the_primary_one_is_retained_once_and_given_back() -> None:
    cuda = FakeCuda(TYPES, current=0)
    driver = CudaDriver(cuda)
    assert driver.sm() == 89
    assert cuda.current == CONTEXT
    cuda.current = 0  # as in another thread
    driver.prepare(KERNEL, KERNEL.cubin)
    driver.close()
    assert cuda.calls.count("cuDevicePrimaryCtxRetain") == cuda.calls.count("cuDevicePrimaryCtxRelease") == 2
    assert cuda.calls.count("cuModuleUnload") == len(cuda.modules) == 1


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"])
def test_a_failure_names_what_was_done_and_cudas_reason(call: str) -> None:
    driver = CudaDriver(FakeCuda(TYPES, fail=call))
    with pytest.raises(
        KernelError, match=r"CUDA: (load|start)ing rows.* failed: CUDA_ERROR_ILLEGAL_ADDRESS, an illegal"
    ):
        started(driver)


def test_no_driver_is_one_sentence() -> None:
    with pytest.raises(MissingDependencyError, match=r"^no NVIDIA driver can be used: .*cuInit answers"):
        CudaDriver(FakeCuda(fail="cuInit")).sm()


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has an NVIDIA driver")
def test_the_real_bindings_without_a_driver() -> None:
    pytest.importorskip("cuda.bindings.driver")
    with pytest.raises(MissingDependencyError, match=r"^no NVIDIA driver can be used: ") as caught:
        CudaDriver().sm()
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"args": LAUNCH.args[:-1]},
        {"args": (PAGES, *LAUNCH.args[1:])},
        {"args": (X, 2**31, *LAUNCH.args[2:])},
        {"args": (*LAUNCH.args[:3], 1, PAGES)},
        {"args": (dataclasses.replace(X, address=0), *LAUNCH.args[1:])},
        {"grid": (1, 65536, 1)},
        {"variant": "w"},
    ],
)
def test_the_stand_in_refuses_what_a_gpu_would_run_wrongly(change: dict[str, object]) -> None:
    check_launch(KERNEL, LAUNCH, 89)
    with pytest.raises(AssertionError):
        check_launch(KERNEL, dataclasses.replace(LAUNCH, **change), 89)
