"""Which data types, weight formats and compute capabilities (SMs) go together, and why the others do not.

What TensorRT for RTX 1.7 builds, as benchmarks/tensorrt_matrix.py tries it; docs/tensorrt.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError

SMS = (75, 80, 86, 89, 120)
"""Compute capabilities that an RTX engine can name and that our kernels are compiled for."""
DEFAULT_KERNEL_SMS = (80, 86, 89, 90, 120)
"""An engine that names no compute capability holds kernels for these: those that TensorRT's documentation says it runs
on, and Hopper in case it runs there too."""
TOO_SPECIAL = {
    90: "TensorRT for RTX takes no data-centre Hopper as an explicit target",
    100: "TensorRT for RTX takes no data-centre Blackwell as an explicit target",
    103: "TensorRT for RTX takes no data-centre Blackwell as an explicit target",
}


@dataclass(frozen=True)
class Need:
    """The lowest SM that something runs on, and the reason."""

    sm: int
    why: str


ACTIVATIONS = ("float16", "bfloat16", "float32")
NEEDS = {
    "float16": Need(75, ""),
    "bfloat16": Need(80, "SM 75 has no bfloat16"),
    "float32": Need(80, "TensorRT for RTX has no float32 matmul below"),
    "int8": Need(75, ""),
    "int4": Need(80, "TensorRT for RTX unpacks int4 weights from there on"),
    "fp8": Need(89, "the type came with that generation"),
}
"""Activation types and kinds of weight format. A KV cache of int8 is our kernels' and needs nothing more."""


def check_sms(sms: tuple[int, ...], *, any_sm: bool = True) -> None:
    """Raises InvalidOptionError for an SM that no engine can be built for. any_sm: by a library that takes SMs by name;
    full TensorRT builds for the GPU that it runs on, be it a Hopper."""
    known = SMS if any_sm else (*SMS, *(sm for sm in DEFAULT_KERNEL_SMS if sm not in SMS))
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
    """Why this type or format cannot be had on this SM; None where it can."""
    lowest = NEEDS[need]
    return f"it needs SM {lowest.sm} or later: {lowest.why}" if sm < lowest.sm else None


def check_pairs(needs: Iterable[str], sms: tuple[int, ...]) -> None:
    """`needs`: the activation type and the kinds of weight formats; no SM: an engine for the library's default ones.

    Raises InvalidOptionError for the first pair that cannot be, with the reason and what would do.
    """
    for need in needs:
        other = "another --dtype" if need in ACTIVATIONS else "another format"
        for sm in sms or (min(DEFAULT_KERNEL_SMS),):
            reason = find_refusal(need, sm)
            if reason is not None:
                where = f"for SM {sm}" if sms else f"without an SM, for a default engine is for SM {sm} too"
                raise InvalidOptionError(
                    f"{need} cannot be built {where}: {reason}; say --sm {NEEDS[need].sm} or later, or {other}"
                )
