"""The threads that run together: where each belongs, how far its block is, and the words for one that does wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.ptx.fault import PtxFault

Lanes = Any
"""Which threads take part: slice(None) for all, or an array of their numbers in rising order."""
ALL = slice(None)
WARP = 32


class Threads:
    """The threads of some blocks of a grid, numbered from 0, block after block."""

    def __init__(self, blocks: np.ndarray, threads: int):
        """blocks: their numbers in the grid. threads: those of one block."""
        self.blocks, self.threads = blocks, threads
        self.count = len(blocks) * threads
        lane = np.arange(self.count)
        self.block = lane // threads
        self.warp = (blocks[self.block] * (threads // WARP) + lane % threads // WARP).astype(np.int32)
        """[threads] the number of each thread's warp in the grid."""
        self.epoch = np.zeros(len(blocks), np.int32)
        """[blocks] the barriers that each block has passed."""

    def time(self, lanes: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """Returns the warps of lanes, and how many barriers their blocks have passed."""
        return self.warp[lanes], self.epoch[self.block[lanes]]

    def numbers(self, lanes: Lanes) -> np.ndarray:
        return np.arange(self.count) if isinstance(lanes, slice) else lanes

    def warps(self, lanes: Lanes, size: int = WARP) -> np.ndarray:
        """Returns [warps, 32] (or warp groups, [groups, 128]). Raises PtxFault where a part of one is elsewhere."""
        numbers = self.numbers(lanes)
        if numbers.size % size == 0:
            rows = numbers.reshape(-1, size)
            if (rows[:, 0] % size == 0).all() and (rows[:, -1] - rows[:, 0] == size - 1).all():
                return rows
        raise PtxFault(f"all {size} threads must execute it together, and some are elsewhere")

    def fault(self, lanes: Lanes, bad: np.ndarray, what: str, address: np.ndarray) -> PtxFault:
        """what: a text with {} for the address of the first lane that is bad."""
        first = int(np.argmax(bad))
        lane = int(self.numbers(lanes)[first])
        where = f"block {int(self.blocks[self.block[lane]])}, thread {lane % self.threads}"
        return PtxFault(f"{what.format(hex(int(address[first])))} ({where})")
