"""Lists which data types, weight formats and compute capabilities (SMs) go together, with a reason for the others.

The list is what TensorRT for RTX 1.7 builds. docs/tensorrt.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.gpu import needs
from tensorwright.plugins.gpu.needs import OTHER_TYPE, OUR_NEEDS, Need

DEFAULT_KERNEL_SMS = (80, 86, 89, 120)
"""The kernels of an engine that names no compute capability: for the SMs that such an engine runs on. The library
refuses Hopper (SM 90) when it opens one; an H100 was asked."""
TOO_SPECIAL = {
    90: "TensorRT for RTX does not run on data-centre Hopper",
    100: "TensorRT for RTX does not run on data-centre Blackwell",
    103: "TensorRT for RTX does not run on data-centre Blackwell",
}
SMS = tuple(sm for sm in needs.SMS if sm not in TOO_SPECIAL)
"""Compute capabilities that an RTX engine can name and that our kernels are compiled for."""
NEEDS = {
    "float16": Need(75, ""),
    "float32": Need(80, "TensorRT for RTX has no float32 matmul below", OTHER_TYPE),
    "int8": Need(75, ""),
    "int4": Need(80, "TensorRT for RTX unpacks int4 weights from there on"),
    "fp8": Need(89, "the type came with that generation"),
} | OUR_NEEDS
"""The need of each activation type, kind of weight format, and KV cache that has one."""


def check_sms(sms: tuple[int, ...], *, any_sm: bool = True) -> None:
    """Raises InvalidOptionError for an SM that no engine can be built for. any_sm: whether the library builds for the
    SMs that are named; full TensorRT builds for the GPU that it runs on, which may be a Hopper."""
    special = [sm for sm in sms if any_sm and sm in TOO_SPECIAL]
    if special:
        raise InvalidOptionError(
            f"an engine cannot be built for SM {special[0]}: {TOO_SPECIAL[special[0]]}; say another --sm, or leave it "
            "out for an engine of the library's default SMs"
        )
    needs.check_sms(sms, SMS if any_sm else needs.SMS)


def check_pairs(asked: Iterable[str], sms: tuple[int, ...]) -> None:
    """Checks each pair. `asked`: names of NEEDS; without SMs, the library's default.

    Raises InvalidOptionError for the first impossible pair, with the reason and an alternative.
    """
    needs.check_needs(NEEDS, asked, sms, min(DEFAULT_KERNEL_SMS))
