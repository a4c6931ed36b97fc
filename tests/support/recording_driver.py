"""A Driver that starts nothing: it checks each launch against its kernel's facts, and keeps what it was asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import MAX_BLOCKS, POINTERS, SCRATCH, Launch, Tensor

SHARED_BYTES = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}
"""What a block may have (CUDA C programming guide, compute capabilities: maximum per thread block)."""
INT_BITS = {"i32": 32, "i64": 64}


@dataclass
class RecordingDriver:
    """`launches` and `streams` grow by one entry for each start."""

    device_sm: int = 80
    launches: list[Launch] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    prepared: int = 0

    def sm(self) -> int:
        return self.device_sm

    def prepare(self, kernel: CompiledKernel, image: bytes) -> Any:
        self.prepared += 1
        assert image in (kernel.cubin, kernel.ptx.encode() + b"\x00")
        return [kernel, image, None]

    def fill(self, prepared: Any, launch: Launch, values: Sequence[Any]) -> None:
        args = [
            dataclasses.replace(arg, address=value) if isinstance(arg, Tensor) else value
            for arg, value in zip(launch.args, values, strict=True)
        ]
        prepared[2] = dataclasses.replace(launch, args=tuple(args))
        check_launch(prepared[0], prepared[2], self.device_sm)

    def start(self, prepared: Any, stream: int) -> None:
        _, image, launch = prepared
        self.launches.append(launch)
        self.images.append(image)
        self.streams.append(stream)


def check_launch(kernel: CompiledKernel, launch: Launch, sm: int) -> None:
    """That cuLaunchKernel would take it, and the kernel would find what it expects."""
    assert (launch.kernel, launch.variant) == (kernel.kernel, kernel.variant)
    assert all(1 <= size <= most for size, most in zip(launch.grid, MAX_BLOCKS, strict=True)), launch.grid
    assert kernel.shared_bytes <= SHARED_BYTES[sm], f"{kernel.kernel}: {kernel.shared_bytes} bytes on SM {sm}"
    assert 1 <= kernel.num_warps <= 32
    assert kernel.parameters[-2:] == (SCRATCH, SCRATCH)
    kinds = kernel.parameters[:-2]
    assert len(kinds) == len(launch.args), f"{kernel.kernel}: {len(launch.args)} arguments for {kinds}"
    for kind, value in zip(kinds, launch.args, strict=True):
        if kind.startswith("*"):
            assert isinstance(value, Tensor), f"{kernel.kernel}: {value} for {kind}"
            assert POINTERS[value.dtype] == kind, f"{kernel.kernel}: {value} for {kind}"
            assert value.address > 0, f"{kernel.kernel}: {value} is nowhere"
            assert value.address % value.item_bytes == 0, f"{kernel.kernel}: {value} is not aligned"
        elif kind == "fp32":
            assert isinstance(value, float), f"{kernel.kernel}: {value!r} for {kind}"
        else:
            assert type(value) is int, f"{kernel.kernel}: {value!r} for {kind}"
            assert abs(value) < 2 ** (INT_BITS[kind] - 1), f"{kernel.kernel}: {value!r} for {kind}"
