"""Lists which data types, weight formats and compute capabilities (SMs) go together, with a reason for the others.

The list is what TensorRT for RTX 1.7 builds. docs/tensorrt.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.gpu.compile import SMS as KERNEL_SMS

SMS = (75, 80, 86, 89, 120, 121)
"""Compute capabilities that an RTX engine can name and that our kernels are compiled for."""
DEFAULT_KERNEL_SMS = (80, 86, 89, 120)
"""The kernels of an engine that names no compute capability: for the SMs that such an engine runs on. The library
refuses Hopper (SM 90) when it opens one; an H100 was asked."""
TOO_SPECIAL = {
    90: "TensorRT for RTX does not run on data-centre Hopper",
    100: "TensorRT for RTX does not run on data-centre Blackwell",
    103: "TensorRT for RTX does not run on data-centre Blackwell",
}


@dataclass(frozen=True)
class Need:
    """The lowest SM that supports a type or format, and the reason."""

    sm: int
    why: str


FP8_CACHE = "fp8 KV cache"
ACTIVATIONS = ("float16", "bfloat16", "float32")
NEEDS = {
    "float16": Need(75, ""),
    "bfloat16": Need(80, "SM 75 has no bfloat16"),
    "float32": Need(80, "TensorRT for RTX has no float32 matmul below"),
    "int8": Need(75, ""),
    "int4": Need(80, "TensorRT for RTX unpacks int4 weights from there on"),
    "fp8": Need(89, "the type came with that generation"),
    FP8_CACHE: Need(80, "our kernels widen it to bfloat16, which SM 75 lacks"),
}
"""The need of each activation type, kind of weight format, and KV cache that has one. An int8 KV cache needs no more:
our kernels read it."""


def check_sms(sms: tuple[int, ...], *, any_sm: bool = True) -> None:
    """Raises InvalidOptionError for an SM that no engine can be built for. any_sm: whether the library builds for the
    SMs that are named; full TensorRT builds for the GPU that it runs on, which may be a Hopper."""
    known = SMS if any_sm else KERNEL_SMS
    for sm in sms:
        if sm in known:
            continue
        if any_sm and sm in TOO_SPECIAL:
            raise InvalidOptionError(
                f"an engine cannot be built for SM {sm}: {TOO_SPECIAL[sm]}; say another --sm, or leave it out for an "
                "engine of the library's default SMs"
            )
        raise InvalidOptionError(
            f"an engine cannot be built for SM {sm}: our GPU kernels are compiled for {', '.join(map(str, known))}; "
            "say one of these"
        )


def find_refusal(need: str, sm: int) -> str | None:
    """Returns why an SM does not support this type or format; None if it does."""
    lowest = NEEDS[need]
    return f"it needs SM {lowest.sm} or later: {lowest.why}" if sm < lowest.sm else None


def check_pairs(needs: Iterable[str], sms: tuple[int, ...]) -> None:
    """Checks each pair. `needs`: the activation type and the kinds of formats; without SMs, the library's default.

    Raises InvalidOptionError for the first impossible pair, with the reason and an alternative.
    """
    for need in needs:
        other = {FP8_CACHE: "--kv-cache-dtype int8"}.get(need, "another format")
        other = "another --dtype" if need in ACTIVATIONS else other
        for sm in sms or (min(DEFAULT_KERNEL_SMS),):
            reason = find_refusal(need, sm)
            if reason is not None:
                where = f"for SM {sm}" if sms else f"without an SM, for a default engine is for SM {sm} too"
                raise InvalidOptionError(
                    f"{need} cannot be built {where}: {reason}; say --sm {NEEDS[need].sm} or later, or {other}"
                )
