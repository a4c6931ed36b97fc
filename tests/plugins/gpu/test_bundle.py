"""What an engine carries of its GPU kernels: which code a GPU gets, and bytes that are refused when altered."""

from __future__ import annotations

import dataclasses

import pytest

from tensorwright.errors import EngineError, KernelError
from tensorwright.plugins.gpu import bundle
from tensorwright.plugins.gpu.bundle import CompiledKernel


def made(sm: int, kernel: str = "a_kernel", variant: str = "0123") -> CompiledKernel:
    code = f"{kernel} {variant} {sm}"
    return CompiledKernel(
        kernel,
        variant,
        sm,
        "entry",
        4,
        1024,
        40,
        0,
        ("*fp16", "i32", "scratch", "scratch"),
        code.encode(),
        f"ptx {code}",
    )


def found(kernels: list[CompiledKernel], sm: int) -> bytes:
    return bundle.from_bytes(bundle.to_bytes(kernels)).find("a_kernel", "0123", sm)[1]


@pytest.mark.parametrize(
    ("built", "sm", "code"),
    [
        ([80, 86, 90], 86, b"a_kernel 0123 86"),
        ([80, 86, 90], 89, b"a_kernel 0123 86"),  # the highest of its generation below
        ([80, 90], 87, b"a_kernel 0123 80"),
        ([80, 90], 100, b"ptx a_kernel 0123 80\x00"),  # compiled by the driver
        ([75, 80], 90, b"ptx a_kernel 0123 75\x00"),
        ([89, 90], 121, b"ptx a_kernel 0123 89\x00"),
    ],
)
def test_a_gpu_gets_code_that_runs_on_it(built: list[int], sm: int, code: bytes) -> None:
    kernels = [made(at) for at in built]
    assert found(kernels, sm) == code
    assert str(bundle.from_bytes(bundle.to_bytes(kernels)).code_sm(sm)) in code.decode()


@pytest.mark.parametrize(
    ("built", "sm"),
    [
        ([86], 80),  # later code does not run on earlier GPUs, nor does its PTX
        ([90], 100),  # sm_90a and sm_120a run there only
        ([120], 121),
    ],
)
def test_a_gpu_without_code_is_told_what_to_build(built: list[int], sm: int) -> None:
    with pytest.raises(KernelError, match=rf"code for {built[0]}, none that runs on SM {sm}; build it with --sm {sm}"):
        found([made(sm) for sm in built], sm)
    with pytest.raises(KernelError, match="no SM at all"):
        bundle.from_bytes(bundle.to_bytes([])).find("a_kernel", "0123", 80)


def test_an_engine_with_other_forms_of_a_kernel_is_to_be_built_again() -> None:
    with pytest.raises(KernelError, match=r"a_kernel \(0123\): the engine has other forms .* build it again"):
        found([made(80, variant="4567")], 80)


def test_the_same_bytes_in_any_order_and_ptx_once() -> None:
    kernels = [made(sm, kernel, variant) for sm in (80, 90) for kernel in ("a", "b") for variant in ("1", "2")]
    data = bundle.to_bytes(kernels)
    assert data == bundle.to_bytes([*reversed(kernels), *kernels])
    read = bundle.from_bytes(data)
    assert read.sms() == (80, 90)
    for kernel in kernels:
        wanted = dataclasses.replace(kernel, ptx=kernel.ptx if kernel.sm == 80 else "")
        assert read.kernels[kernel.kernel, kernel.variant, kernel.sm] == wanted


def test_altered_bytes_are_refused() -> None:
    data = bundle.to_bytes([made(80)])
    for broken, message in (
        (b"", "do not begin"),
        (b"x" + data[1:], "do not begin"),
        (data[:7] + b"\x02" + data[8:], "of version 2, this is 1"),
        (data[:-1], "truncated or altered"),
        (data[:60] + bytes([data[60] ^ 1]) + data[61:], "truncated or altered"),
    ):
        with pytest.raises(EngineError, match=message):
            bundle.from_bytes(broken)
