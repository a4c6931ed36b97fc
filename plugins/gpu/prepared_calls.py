"""Keeps the launches of plugins' recent calls: a step of known shapes starts them again with its own addresses.

Launches are made once for each tuple of shapes, for all layers that are alike (`MadeLaunch`). Operand number i of the
call then lies at a made-up address, the range of 2**44 bytes that begins at (i + 1) * 2**44, so a pointer of a launch
says which operand it points into, and where. Each layer has arguments of its own (`PreparedCall`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Pointer:
    """The pointer `argument` of a launch, `offset` bytes into an operand."""

    argument: int
    operand: int
    offset: int
    is_aligned: bool

    def address(self, addresses: Sequence[int], kernel: str) -> int:
        """Returns where it points. Raises KernelError for an address for which the kernel was not compiled."""
        address = addresses[self.operand] + self.offset
        if self.is_aligned and address % ALIGNMENT:
            raise KernelError(f"{kernel}: operand {self.operand} must be at a multiple of {ALIGNMENT}, got {address}")
        return address


@dataclass(frozen=True)
class MadeLaunch:
    """A launch of a call at made-up addresses, its code, and what of it follows the operands."""

    kernel: CompiledKernel
    image: bytes
    launch: Launch
    pointers: tuple[Pointer, ...]

    @staticmethod
    def of(kernel: CompiledKernel, image: bytes, launch: Launch) -> MadeLaunch:
        found = []
        for argument, value in enumerate(launch.args):
            if isinstance(value, Tensor):
                operand, offset = divmod(value.address, 1 << _RANGE_BITS)
                found.append(Pointer(argument, operand - 1, offset, argument in launch.aligned))
        return MadeLaunch(kernel, image, launch, tuple(found))


class PreparedCall:
    """One layer's launches for one tuple of shapes, ready for the driver.

    shared: pairs of operands that must be at the same address, since the launches write the second in place.
    """

    def __init__(self, driver: Driver, made: Sequence[MadeLaunch], shared: Sequence[tuple[int, int]]) -> None:
        self._driver, self._made, self._shared = driver, made, shared
        self.started = [driver.prepare(one.kernel, one.image, one.launch) for one in made]
        self._addresses: tuple[int, ...] = ()

    def move(self, addresses: tuple[int, ...]) -> None:
        """Lets the launches point to these addresses of the operands. Raises KernelError for impossible ones."""
        if addresses == self._addresses:
            return
        for output, given in self._shared:
            if addresses[output] != addresses[given]:
                raise KernelError(f"operands {given} and {output} must share their memory, which is written in place")
        self._addresses = ()  # a refused address leaves some pointers moved
        for prepared, one in zip(self.started, self._made, strict=True):
            kernel = one.launch.kernel
            self._driver.move(prepared, [(p.argument, p.address(addresses, kernel)) for p in one.pointers])
        self._addresses = addresses


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
