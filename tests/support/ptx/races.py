"""Who touched what: finds accesses of one memory that no barrier orders, whatever order the warps happened to run in.

Every granule of a memory remembers the last warp that wrote it, the last that read it, and how many barriers of its
block had passed. Two accesses, one of them a write, race where different warps made them with no barrier between.
Warps of different blocks are never ordered. A warp's own accesses are: its threads are taken to run together. Writing
the value that is there already harms nobody and is allowed, as layouts that repeat a number write it several times.
"""

from __future__ import annotations

import numpy as np

NOBODY, BLOCKS, FIRST = -1, -2, -3
"""In place of a warp's number: no access yet; readers of several blocks; FIRST - b: several warps of block b since the
same barrier."""


class Shadow:
    """The accesses of a memory of `granules` granules. `warps_of_block`: warps of one block have numbers in a row.

    In every method `at`, `warp` and `epoch` have one shape: granules, the warps that touch them, and the barriers that
    the warps' blocks have passed.
    """

    def __init__(self, granules: int, warps_of_block: int):
        self.warps_of_block = warps_of_block
        self.writer = np.full(granules, NOBODY, np.int32)
        self.written = np.zeros(granules, np.int32)
        self.reader = np.full(granules, NOBODY, np.int32)
        self.read = np.zeros(granules, np.int32)
        self.copying = np.zeros(granules, bool)
        """Granules that an asynchronous copy is to fill, and that nobody may touch until it is waited for."""
        self.unfenced = np.zeros(granules, bool)
        """Granules written since the last fence.proxy.async of their block: the tensor cores may not see them."""

    def _kinds(
        self, other: np.ndarray, when: np.ndarray, warp: np.ndarray, epoch: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where `other` is of another block, and where it is another warp of this block with no barrier between."""
        block = np.where(other <= FIRST, FIRST - other, other // self.warps_of_block)
        foreign = (other != NOBODY) & ((other == BLOCKS) | (block != warp // self.warps_of_block))
        return foreign, (other != NOBODY) & ~foreign & (other != warp) & (when == epoch)

    def racing_reads(self, at: np.ndarray, warp: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """Returns where a read races with an earlier write, and notes the reads."""
        foreign, beside = self._kinds(self.writer[at], self.written[at], warp, epoch)
        others, near = self._kinds(self.reader[at], self.read[at], warp, epoch)
        block = warp // self.warps_of_block
        noted = np.where(others, BLOCKS, np.where(near, FIRST - block, warp))
        self.reader[at], self.read[at] = noted, epoch
        lost = self.reader[at] != noted  # Several lanes of this instruction read one granule; the last one was noted.
        if lost.any():
            kept = self.reader[at[lost]]
            other_block = np.where(kept <= FIRST, FIRST - kept, kept // self.warps_of_block)
            same = (kept != BLOCKS) & (other_block == block[lost])
            self.reader[at[lost]] = np.where(same, FIRST - block[lost], BLOCKS)
        return foreign | beside

    def racing_writes(self, at: np.ndarray, warp: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """Returns where a write races with an earlier read or write. Notes nothing."""
        of_writer = self._kinds(self.writer[at], self.written[at], warp, epoch)
        of_reader = self._kinds(self.reader[at], self.read[at], warp, epoch)
        return of_writer[0] | of_writer[1] | of_reader[0] | of_reader[1]

    def note_writes(self, at: np.ndarray, warp: np.ndarray, epoch: np.ndarray) -> None:
        self.writer[at], self.written[at], self.unfenced[at] = warp, epoch, True
