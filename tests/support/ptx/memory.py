"""The state spaces of PTX: global, shared and local memory. Every access is checked before it is made.

An access must be aligned to its size, and lie in one tensor, or in the block's shared or the thread's local memory.
Global and shared memory know who touched what (races.py). Shared memory that nobody wrote must not be read.
"""

from __future__ import annotations

import numpy as np

from support.ptx.kinds import UNSIGNED
from support.ptx.races import NOBODY, Shadow
from support.ptx.threads import Lanes, Threads

POISON = 0xFF
"""The bytes of memory that nobody has written, and of the destination of a copy that is under way: NaN in any float."""
PADDING = 16
"""Memories are multiples of this many bytes, so that arrays of any element lie over them."""


class Space:
    """Bytes with checks. Subclasses say where an address of a lane lies. `shadow` None: nobody else can reach it."""

    name = ""

    def __init__(self, data: np.ndarray, granule: int, warps_of_block: int):
        self.data = data
        self.granule = granule
        self.shadow = Shadow(data.size // granule + 1, warps_of_block) if granule else None

    def outside(self, threads: Threads, lanes: Lanes, address: np.ndarray, size: int) -> np.ndarray:
        """Returns where [address, address + size) is not memory of the lane."""
        raise NotImplementedError

    def offsets(self, threads: Threads, lanes: Lanes, address: np.ndarray) -> np.ndarray:
        """Returns where addresses that are not outside lie in `data`."""
        raise NotImplementedError

    def place(self, threads: Threads, lanes: Lanes, address: np.ndarray, size: int) -> np.ndarray:
        """Returns offsets in `data`. Raises PtxFault for an access outside or misaligned."""
        bad = self.outside(threads, lanes, address, size)
        if bad.any():
            raise threads.fault(
                lanes, bad, f"an access of {size} bytes at {self.name} {{}} lies outside every tensor", address
            )
        bad = address % size != 0
        if bad.any():
            raise threads.fault(lanes, bad, f"an access of {size} bytes at {self.name} {{}} is misaligned", address)
        return self.offsets(threads, lanes, address)

    def granules(self, at: np.ndarray, size: int) -> np.ndarray:
        """[lanes] offsets -> [lanes, granules of an access]"""
        return (at // self.granule)[:, None] + np.arange(max(1, size // self.granule))

    def load(self, threads: Threads, lanes: Lanes, address: np.ndarray, bits: int, vec: int) -> np.ndarray:
        """Returns [lanes, vec] unsigned integers."""
        size = bits // 8 * vec
        at = self.place(threads, lanes, address, size)
        self.check_read(threads, lanes, address, at, size)
        return self.data.view(UNSIGNED[bits])[(at // (bits // 8))[:, None] + np.arange(vec)]

    def check_read(self, threads: Threads, lanes: Lanes, address: np.ndarray, at: np.ndarray, size: int) -> None:
        """Raises PtxFault for a read that no barrier orders after a write, of a copy under way, or of nothing."""
        if self.shadow is None:
            return
        granules = self.granules(at, size)
        warp, epoch = (np.broadcast_to(x[:, None], granules.shape) for x in threads.time(lanes))
        bad = self.shadow.copying[granules].any(1)
        if bad.any():
            raise threads.fault(lanes, bad, f"{self.name} {{}} is read before its copy was waited for", address)
        if self.must_be_written:
            bad = (self.shadow.writer[granules] == NOBODY).any(1)
            if bad.any():
                raise threads.fault(lanes, bad, f"{self.name} {{}} is read, and nobody has written it", address)
        bad = self.shadow.racing_reads(granules, warp, epoch).any(1)
        if bad.any():
            raise threads.fault(
                lanes, bad, f"a race: {self.name} {{}} is read, and no barrier orders another warp's write", address
            )

    must_be_written = False

    def store(self, threads: Threads, lanes: Lanes, address: np.ndarray, values: np.ndarray) -> None:
        """values: [lanes, vec] unsigned integers. Lanes that share a place must write one value."""
        item = values.dtype.itemsize
        size = item * values.shape[1]
        at = self.place(threads, lanes, address, size)
        view = self.data.view(values.dtype)
        index = (at // item)[:, None] + np.arange(values.shape[1])
        if self.shadow is not None:
            self.check_write(threads, lanes, address, at, size, (view[index] == values).all(1))
        view[index] = values
        bad = (view[index] != values).any(1)
        if bad.any():
            raise threads.fault(lanes, bad, f"a race: lanes write different values to {self.name} {{}}", address)

    def check_write(
        self, threads: Threads, lanes: Lanes, address: np.ndarray, at: np.ndarray, size: int, silent: np.ndarray
    ) -> None:
        """Raises PtxFault for a write that nothing orders; notes the others. silent [lanes]: it changes no byte."""
        shadow = self.shadow
        assert shadow is not None
        granules = self.granules(at, size)
        warp, epoch = (np.broadcast_to(x[:, None], granules.shape) for x in threads.time(lanes))
        bad = shadow.copying[granules].any(1)
        if bad.any():
            raise threads.fault(lanes, bad, f"{self.name} {{}} is written while a copy to it is under way", address)
        bad = shadow.racing_writes(granules, warp, epoch).any(1)
        if (bad & ~silent).any():
            what = f"a race: {self.name} {{}} is written, and no barrier orders another warp's access"
            raise threads.fault(lanes, bad & ~silent, what, address)
        kept = ~bad
        shadow.note_writes(granules[kept], warp[kept], epoch[kept])


class GlobalMemory(Space):
    """The tensors of a launch at their addresses, and the constants of the module behind them."""

    name = "global address"

    def __init__(self, blocks: list[tuple[int, np.ndarray]], granule: int, warps_of_block: int):
        """blocks: (address, bytes) in the order of addresses, of which the first is a multiple of 16."""
        self.starts = np.array([address for address, _ in blocks], np.int64)
        self.ends = self.starts + [data.size for _, data in blocks]
        self.base = int(self.starts[0])
        size = int(self.ends[-1]) - self.base
        memory = np.full(size + -size % PADDING, POISON, np.uint8)
        for start, (_, data) in zip(self.starts - self.base, blocks, strict=True):
            memory[start : start + data.size] = data
        super().__init__(memory, granule, warps_of_block)

    def content(self, index: int) -> np.ndarray:
        """Returns the bytes of block `index` of the constructor's list."""
        return self.data[self.starts[index] - self.base : self.ends[index] - self.base]

    def outside(self, threads: Threads, lanes: Lanes, address: np.ndarray, size: int) -> np.ndarray:
        low, high = address.min(), address.max() + size
        first = np.searchsorted(self.starts, low, "right") - 1
        if first >= 0 and high <= self.ends[first]:
            return np.zeros(address.shape, bool)
        index = np.searchsorted(self.starts, address, "right") - 1
        return (index < 0) | (address + size > self.ends[np.maximum(index, 0)])

    def offsets(self, threads: Threads, lanes: Lanes, address: np.ndarray) -> np.ndarray:
        return address - self.base


class OwnMemory(Space):
    """Memory of which each owner, a block or a thread, has a part of `size` bytes at the addresses from 0."""

    def __init__(self, owners: np.ndarray, size: int, granule: int, warps_of_block: int):
        """owners: the number of each lane's owner, from 0."""
        self.size = size
        self.part = size + -size % PADDING
        self.bases = owners.astype(np.int64) * self.part
        super().__init__(np.full((int(owners.max()) + 1) * self.part, POISON, np.uint8), granule, warps_of_block)

    def outside(self, threads: Threads, lanes: Lanes, address: np.ndarray, size: int) -> np.ndarray:
        return (address < 0) | (address + size > self.size)

    def offsets(self, threads: Threads, lanes: Lanes, address: np.ndarray) -> np.ndarray:
        return address + self.bases[lanes]


class SharedMemory(OwnMemory):
    name = "shared address"
    must_be_written = True

    def fence(self, threads: Threads, lanes: Lanes) -> None:
        """fence.proxy.async: what the lanes' blocks have written so far may be read by the tensor cores."""
        assert self.shadow is not None
        for base in np.unique(self.bases[lanes]):
            self.shadow.unfenced[base // self.granule : (base + self.part) // self.granule] = False


class LocalMemory(OwnMemory):
    name = "local address"
