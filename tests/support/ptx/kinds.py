"""The types of PTX: what the bits of a register mean, as arrays of numpy.

16-bit floats and pairs of them are computed in float64 and rounded once, to the nearest even number. numpy computes
float32 and integers as a GPU does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from support.ptx.fault import PtxFault
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {32: np.float32, 64: np.float64}


@dataclass(frozen=True)
class Type:
    """kind: s, u, b, f, bf or pred. bits: those of one element. count: the elements of a register, 1 or 2."""

    name: str
    kind: str
    bits: int
    count: int

    @property
    def width(self) -> int:
        """The bits of a register that holds a value; 1 is a predicate."""
        return self.bits * self.count

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "bf")

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Returns the numbers of registers of this width, [lanes] or, for pairs, [lanes, 2]: low half first."""
        if self.kind == "pred" or self.kind in "ub":
            return raw
        if self.kind == "s":
            return raw.view(SIGNED[self.bits])
        if self.bits > 16:
            return raw.view(FLOATS[self.bits])
        halves = raw.view(np.uint16)
        if self.count == 2:
            halves = halves.reshape(*raw.shape, 2)
        if self.kind == "f":
            return halves.view(np.float16).astype(np.float64)
        return from_bfloat16_bits(halves).reshape(halves.shape).astype(np.float64)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Returns the bits of numbers, one unsigned integer for each register. Integers wrap."""
        if self.kind == "pred":
            return values.astype(bool)
        if not self.is_float:
            return values.astype(UNSIGNED[self.bits])
        if self.bits > 16:
            return values.astype(FLOATS[self.bits]).view(UNSIGNED[self.bits])
        if self.kind == "f":
            halves = values.astype(np.float16).view(np.uint16)
        else:
            halves = to_bfloat16_bits(values.astype(np.float32)).reshape(values.shape)
        return np.ascontiguousarray(halves).view(np.uint32)[..., 0] if self.count == 2 else halves


@cache
def type_of(name: str) -> Type:
    """Returns the type that PTX calls so. Raises PtxFault for an unknown one."""
    if name == "pred":
        return Type(name, "pred", 1, 1)
    found = re.fullmatch(r"([usbf]|bf)(8|16|32|64)(x2)?", name)
    if found is None:
        raise PtxFault(f"no type {name!r} is emulated")
    kind, bits, count = found[1], int(found[2]), 2 if found[3] else 1
    if (
        (kind == "bf" and bits != 16)
        or (kind == "f" and bits == 8)
        or (count == 2 and (bits != 16 or kind not in ("f", "bf")))
    ):
        raise PtxFault(f"no type {name!r} is emulated")
    return Type(name, kind, bits, count)


def flushed(x: np.ndarray) -> np.ndarray:
    """Returns float32 numbers with subnormal ones replaced by zeros of their sign, as `.ftz` says."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)
