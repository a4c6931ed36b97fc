"""What our kernels need of a GPU: the compute capabilities (SMs) that they are compiled for, and the types that some
lack."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError

SMS = (75, 80, 86, 89, 90, 120, 121)
"""The SMs that kernels are compiled for."""
FP8_CACHE = "fp8 KV cache"


@dataclass(frozen=True)
class Need:
    """The lowest SM that supports a type, a format or a cache, and the reason. otherwise: what to ask for instead."""

    sm: int
    why: str
    otherwise: str = "another format"

    def refusal(self, sm: int) -> str | None:
        """Returns why an SM is too low; None if it is not."""
        return f"it needs SM {self.sm} or later: {self.why}" if sm < self.sm else None


OTHER_TYPE = "another --dtype"
OUR_NEEDS = {
    "bfloat16": Need(80, "SM 75 has no bfloat16", OTHER_TYPE),
    FP8_CACHE: Need(80, "our kernels widen it to bfloat16, which SM 75 lacks", "--kv-cache-dtype int8"),
}
"""The needs of our kernels. What is not here needs no more than SM 75: an int8 KV cache, for one."""


def check_sms(sms: Iterable[int], known: Collection[int] = SMS) -> None:
    """Raises InvalidOptionError for an SM without kernels. known: those of SMS that an engine may have."""
    for sm in sms:
        if sm not in known:
            raise InvalidOptionError(
                f"an engine cannot be built for SM {sm}: our GPU kernels are compiled for "
                f"{', '.join(map(str, known))}; say one of these"
            )


def check_needs(
    table: Mapping[str, Need], needs: Iterable[str], sms: tuple[int, ...], default_sm: int | None = None
) -> None:
    """Raises InvalidOptionError for the first need that an SM does not meet, with the reason and an alternative.

    table: the needs by name, with every name that is asked for. default_sm: the lowest SM of an engine that names none.
    """
    lowest = () if default_sm is None else (default_sm,)
    for name in needs:
        for sm in sms or lowest:
            reason = table[name].refusal(sm)
            if reason is not None:
                where = f"for SM {sm}" if sms else f"without an SM, for a default engine is for SM {sm} too"
                raise InvalidOptionError(
                    f"{name} cannot be built {where}: {reason}; say --sm {table[name].sm} or later, or "
                    f"{table[name].otherwise}"
                )
