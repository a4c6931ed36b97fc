"""Names places in a GPU's memory that are known only when an engine runs: what a plan has in place of a pointer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorwright.errors import KernelError

SLOT, WEIGHT, METADATA, PAGES, WORKSPACE, STATES = 0, 1, 2, 3, 4, 7
"""The kinds of memory, by the numbers that a plan has, in which 5 and 6 are no memory (plan_file.py). While a graph is
read, SLOT counts buffers (slots.py)."""
ALIGNMENT = 256
"""Each such memory begins at a multiple of this many bytes."""
PAGES_OF_A_LAYER = 256
"""The number of a page tensor is that of its layer times this, plus its place in the layer."""


@dataclass(frozen=True)
class Address:
    """A place: so many bytes behind the beginning of one memory. It stands where a launch.py has an int."""

    kind: int
    number: int = 0
    offset: int = 0

    def __add__(self, count: int) -> Address:
        if not isinstance(count, int):
            raise KernelError(f"an address of a plan moves by a number of bytes that is known, not by {count}")
        return replace(self, offset=self.offset + count)

    def __mod__(self, alignment: int) -> int:
        if ALIGNMENT % alignment:
            raise KernelError(
                f"memory of a plan begins at multiples of {ALIGNMENT} bytes, which {alignment} does not divide"
            )
        return self.offset % alignment
