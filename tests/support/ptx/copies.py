"""cp.async: copies from global to shared memory that a thread starts, and that land when it waits for their group.

Nothing says when a copy happens before that. So a copy reads its source and lands as late as is legal, in the wait that
requires it; until then its destination is poisoned and nobody may touch it. After the wait the thread's own warp may
read it, and others after a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.ptx.memory import POISON, GlobalMemory, SharedMemory
from support.ptx.threads import Lanes, Threads


@dataclass
class Copy:
    """One instruction's copies: lane, group of the lane, destination, source and the bytes that are not zeros."""

    lanes: np.ndarray
    groups: np.ndarray
    to: np.ndarray
    source: np.ndarray
    size: int
    given: np.ndarray

    def part(self, chosen: np.ndarray) -> Copy:
        return Copy(self.lanes[chosen], self.groups[chosen], self.to[chosen], self.source[chosen], self.size,
                    self.given[chosen])  # fmt: skip


class Copies:
    """The copies under way. groups[lane]: how many groups the lane has closed."""

    def __init__(self, count: int, memory: GlobalMemory, shared: SharedMemory):
        self.memory, self.shared = memory, shared
        self.groups = np.zeros(count, np.int64)
        self.pending: list[Copy] = []

    def start(self, threads: Threads, lanes: Lanes, copy: Copy) -> None:
        """Checks both ends and poisons the destination. The source of a lane without given bytes is not looked at."""
        real = copy.given > 0
        if real.any():
            numbers, source = copy.lanes[real], copy.source[real]
            at = self.memory.place(threads, numbers, source, copy.size)
            self.memory.check_read(threads, numbers, source, at, copy.size)
        shared, shadow = self.shared, self.shared.shadow
        at = shared.place(threads, lanes, copy.to, copy.size)
        shared.check_write(threads, lanes, copy.to, at, copy.size, np.zeros(at.shape, bool))
        shared.data[at[:, None] + np.arange(copy.size)] = POISON
        assert shadow is not None
        shadow.copying[shared.granules(at, copy.size)] = True
        self.pending.append(copy)

    def commit(self, lanes: Lanes) -> None:
        self.groups[lanes] += 1

    def wait(self, threads: Threads, lanes: Lanes, left: int) -> None:
        """Lands the copies of all groups of these lanes but the newest `left`."""
        waiting = np.zeros(threads.count, bool)
        waiting[lanes] = True
        pending = []
        for copy in self.pending:
            lands = waiting[copy.lanes] & (copy.groups < self.groups[copy.lanes] - left)
            if lands.any():
                self._land(threads, copy.part(lands))
            if not lands.all():
                pending.append(copy.part(~lands))
        self.pending = pending

    def _land(self, threads: Threads, copy: Copy) -> None:
        data = np.zeros((copy.lanes.size, copy.size), np.uint8)
        real = copy.given > 0
        if real.any():
            source = self.memory.offsets(threads, copy.lanes[real], copy.source[real])
            data[real] = self.memory.data[source[:, None] + np.arange(copy.size)]
            data[np.arange(copy.size) >= copy.given[:, None]] = 0
        shared, shadow = self.shared, self.shared.shadow
        at = shared.offsets(threads, copy.lanes, copy.to)
        shared.data[at[:, None] + np.arange(copy.size)] = data
        assert shadow is not None
        granules = shared.granules(at, copy.size)
        warp, epoch = (np.broadcast_to(x[:, None], granules.shape) for x in threads.time(copy.lanes))
        shadow.copying[granules] = False
        shadow.note_writes(granules, warp, epoch)
