"""Describes what the ranks of a parallel engine do together on their GPUs, as a plugin hands it to who does it.

`Collectives` is the interface that plugins use, as `Driver` (driver.py) is that of kernels. The runtime has one over
NCCL, runtime/engine/tensorrt/communicators.py. A call is prepared once for its addresses and sizes, and then started
again as long as they stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tensorwright.plugins.gpu.launch import Tensor

ALL_REDUCE, ALL_GATHER, SEND, RECEIVE = KINDS = ("all_reduce", "all_gather", "send", "receive")


@dataclass(frozen=True)
class CollectiveCall:
    """One call of one of KINDS. source: what this rank gives, absent in RECEIVE. target: what it gets, absent in SEND.

    ALL_REDUCE: both have the same shape; the sum is over the ranks of the stage. ALL_GATHER: the target is [ranks,
    *shape of the source]. SEND gives to the rank of the next stage that has the same number there, RECEIVE gets from
    that of the stage before.
    """

    kind: str
    source: Tensor | None
    target: Tensor | None


class Collectives(Protocol):
    """Starts calls on the device of the calling thread."""

    def prepare(self, call: CollectiveCall) -> Any:
        """Prepares a call for `start`."""

    def start(self, prepared: Any, stream: int) -> None:
        """Puts the call on a CUDA stream and does not wait for it. Raises RankError if the ranks have failed."""
