"""Keeps the launches of plugins' recent calls: a step of known shapes starts them again with its own addresses.

Launches are made once for each tuple of shapes, for all layers that are alike (`MadeLaunch`). Operand number i of the
call then lies at a made-up address, the range of 2**44 bytes that begins at (i + 1) * 2**44, so a pointer of a launch
says which operand it points into, and where. Each layer has arguments of its own in memory (`LayerCall`): one set for
each kernel, into which a call of other shapes or addresses writes its numbers, all at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.driver import Driver
from tensorwright.plugins.gpu.launch import ALIGNMENT, Launch, Tensor

KEPT = 64
"""The calls that a plugin keeps. A server decodes in few shapes: numbers of sequences by powers of two of blocks."""
_RANGE_BITS = 44

Shapes = tuple[tuple[int, ...], ...]


def stand_in(operand: int) -> int:
    """Returns the made-up address of an operand while launches are made."""
    return (operand + 1) << _RANGE_BITS


class MadeLaunch:
    """A launch of a call at made-up addresses, and its code."""

    def __init__(self, kernel: CompiledKernel, image: bytes, launch: Launch) -> None:
        self.kernel, self.image, self.launch = kernel, image, launch
        self.code = (launch.kernel, launch.variant)
        """What names the kernel among those of an engine on one GPU."""
        # Of each pointer: its place among the arguments, its operand, the bytes from there, and which last bits of the
        # address must be 0.
        self._pointers: list[tuple[int, int, int, int]] = []
        # The arguments, with 0 in the place of each pointer.
        self._numbers = list(launch.args)
        for argument, value in enumerate(launch.args):
            if isinstance(value, Tensor):
                operand, offset = divmod(value.address, 1 << _RANGE_BITS)
                low_bits = ALIGNMENT - 1 if argument in launch.aligned else 0
                self._pointers.append((argument, operand - 1, offset, low_bits))
                self._numbers[argument] = 0

    def values(self, addresses: Sequence[int]) -> list[Any]:
        """Returns the arguments for these addresses of the operands. Raises KernelError for an address for which the
        kernel was not compiled."""
        values = self._numbers.copy()
        for argument, operand, offset, low_bits in self._pointers:
            address = values[argument] = addresses[operand] + offset
            if address & low_bits:
                raise KernelError(
                    f"{self.launch.kernel}: operand {operand} must be at a multiple of {ALIGNMENT}, got {address}"
                )
        return values


class LayerCall:
    """What one layer starts. A kernel is prepared for the driver once, and then gets the arguments of each call.

    shared: pairs of operands that must be at the same address, since the launches write the second in place.
    """

    def __init__(self, driver: Driver, shared: Sequence[tuple[int, int]]) -> None:
        self._driver, self._shared = driver, shared
        self._prepared: dict[tuple[int, tuple[str, str]], Any] = {}
        self._filled_for: tuple[Sequence[MadeLaunch] | None, tuple[int, ...]] = (None, ())
        self.started: list[Any] = []

    def fill(self, made: Sequence[MadeLaunch], addresses: tuple[int, ...]) -> None:
        """Lets `started` be these launches, at these addresses of the operands. Raises KernelError for impossible
        ones."""
        last, last_addresses = self._filled_for
        if made is last and addresses == last_addresses:
            return
        for output, given in self._shared:
            if addresses[output] != addresses[given]:
                raise KernelError(f"operands {given} and {output} must share their memory, which is written in place")
        self._filled_for = (None, ())  # a refused address leaves some launches changed
        self.started = [self._ready(place, one, addresses) for place, one in enumerate(made)]
        self._filled_for = (made, addresses)

    def _ready(self, place: int, made: MadeLaunch, addresses: tuple[int, ...]) -> Any:
        """Returns a launch of the call, ready for the driver. A call may start a kernel twice, with arguments of their
        own."""
        prepared = self._prepared.get((place, made.code))
        if prepared is None:
            prepared = self._driver.prepare(made.kernel, made.image)
            self._prepared[place, made.code] = prepared
        self._driver.fill(prepared, made.launch, made.values(addresses))
        return prepared


_V = TypeVar("_V")


class Recent(Generic[_V]):
    """What was made for the keys that were asked for last, at most KEPT."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, _V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Any, make: Callable[[], _V]) -> _V:
        """Returns what `make` made for an equal key. What was not used for longest makes room for what is new."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = found
        else:
            self._kept.move_to_end(key)
        return found
