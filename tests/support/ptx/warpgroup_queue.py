"""wgmma: products of a warp group that run beside it, until it waits for their group.

A product reads its operands in shared memory and writes its accumulators at any time before the wait that requires it.
So it is computed in that wait, and until then its registers may not be touched. Registers that were written before it
must be fenced by wgmma.fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.threads import Lanes


@dataclass
class Product:
    """lanes: of whole warp groups. compute: does it for some of them. accumulators, operands: names of registers."""

    lanes: np.ndarray
    groups: np.ndarray
    compute: Callable[[np.ndarray], None]
    accumulators: frozenset[str]
    operands: frozenset[str]


class Products:
    """The products under way, in their order."""

    def __init__(self, count: int):
        self.groups = np.zeros(count, np.int64)
        self.pending: list[Product] = []
        self.names: frozenset[str] = frozenset()
        self.unfenced: set[str] = set()
        """Registers that other instructions wrote since the last wgmma.fence."""

    def start(self, product: Product) -> None:
        if early := self.unfenced & (product.accumulators | product.operands):
            raise PtxFault(f"wgmma.fence is missing: {sorted(early)[0]} was written since the last one")
        self.pending.append(product)
        self.names |= product.accumulators | product.operands

    def check(self, lanes: Lanes, reads: frozenset[str], writes: frozenset[str]) -> None:
        """Raises PtxFault where an instruction touches a register of a product that was not waited for."""
        if self.names.isdisjoint(reads) and self.names.isdisjoint(writes):
            return
        for product in self.pending:
            touched = (product.accumulators & (reads | writes)) | (product.operands & writes)
            if touched and (isinstance(lanes, slice) or np.intersect1d(lanes, product.lanes).size):
                raise PtxFault(f"{sorted(touched)[0]} belongs to a wgmma that was not waited for")

    def wait(self, lanes: Lanes, left: int) -> None:
        """Computes the products of all groups of these lanes but the newest `left`."""
        waiting = np.zeros(self.groups.size, bool)
        waiting[lanes] = True
        pending = []
        for product in self.pending:
            ends = waiting[product.lanes] & (product.groups < self.groups[product.lanes] - left)
            if ends.any():
                product.compute(product.lanes[ends])
            if not ends.all():
                product.lanes, product.groups = product.lanes[~ends], product.groups[~ends]
                pending.append(product)
        self.pending = pending
        self.names = frozenset().union(*(p.accumulators | p.operands for p in pending))
