"""The instructions that move and convert numbers between registers."""

from __future__ import annotations

import numpy as np

from support.ptx.arithmetic import INTEGERS
from support.ptx.fault import PtxFault
from support.ptx.kinds import UNSIGNED, Type, flushed, type_of
from support.ptx.machine import Execute, Machine
from support.ptx.table import Operands, opcode
from support.ptx.text import members
from support.ptx.threads import Lanes


@opcode("mov", "b16 b32 b64 u16 u32 u64 s32 s64 f32 pred")
def mov(i: Operands) -> Execute:
    """Also between one register and the parts `{low, high}` of it."""
    i.expect(2)
    (kind,) = i.types
    to, source = i.texts
    if to.startswith("{") and source.startswith("{"):
        raise PtxFault("a vector is not moved to a vector")
    if to.startswith("{"):
        return _taken_apart(i, kind)
    if source.startswith("{"):
        return _put_together(i, kind)
    read, write = i.raw(source, kind.width), i.write(to, kind.width)
    return lambda machine, lanes: write(machine, lanes, read(machine, lanes))


def _taken_apart(i: Operands, kind: Type) -> Execute:
    parts = members(i.texts[0])
    bits = kind.width // len(parts)
    read, writes = i.raw(i.texts[1], kind.width), [i.write(part, bits) for part in parts]

    def execute(machine: Machine, lanes: Lanes) -> None:
        value = read(machine, lanes).copy()
        for index, write in enumerate(writes):
            write(machine, lanes, (value >> value.dtype.type(index * bits)).astype(UNSIGNED[bits]))

    return execute


def _put_together(i: Operands, kind: Type) -> Execute:
    parts = members(i.texts[1])
    bits = kind.width // len(parts)
    reads, write = [i.raw(part, bits) for part in parts], i.write(i.texts[0], kind.width)
    wide = UNSIGNED[kind.width]

    def execute(machine: Machine, lanes: Lanes) -> None:
        value = wide(0)
        for index, read in enumerate(reads):
            value = value | read(machine, lanes).astype(wide) << wide(index * bits)
        write(machine, lanes, value)

    return execute


@opcode("selp", "b16 b32 b64 f32 s32 u32")
def selp(i: Operands) -> Execute:
    i.expect(4)
    (kind,) = i.types
    yes, no = (i.raw(text, kind.width) for text in i.texts[1:3])
    which, write = i.raw(i.texts[3], 1), i.write(i.texts[0], kind.width)
    return lambda m, lanes: write(m, lanes, np.where(which(m, lanes), yes(m, lanes), no(m, lanes)))


FLOATS = "f16 bf16 f32 f64 f16x2 bf16x2"


@opcode("cvt", f"s8 u8 {INTEGERS} {FLOATS}", "rn rni rzi ftz")
def cvt(i: Operands) -> Execute:
    """To the first type from the second; floats beyond an integer's range become its bounds, NaN zero."""
    to, source = i.types
    if to.count == 2:
        return _packed(i, to, source)
    i.expect(2)
    rounding = next((name for name in ("rn", "rni", "rzi") if i.has(name)), "")
    needed = _rounding(to, source)
    if rounding not in needed:
        raise PtxFault(f"from {source.name} to {to.name} it must say one of {', '.join(needed)!r}")
    read, write, flushes = i.read(i.texts[1], source), i.write(i.texts[0], to.width), i.has("ftz")
    narrow = to.kind == "s" and i.program.registers.get(i.texts[0], to.width) != to.width

    def execute(machine: Machine, lanes: Lanes) -> None:
        value = read(machine, lanes)
        value = flushed(value) if flushes and source.name == "f32" else value
        if source.is_float and not to.is_float:
            value = _integers(np.rint(value) if rounding == "rni" else np.trunc(value), to)
        elif not source.is_float and not to.is_float and source.kind == "s":
            value = value.astype(np.int64)
        raw = to.encode(value)
        # A register that is wider than the type gets the number's sign, as PTX says of cvt.
        write(machine, lanes, to.decode(raw) if narrow else raw)

    return execute


def _rounding(to: Type, source: Type) -> tuple[str, ...]:
    if source.is_float and not to.is_float:
        return ("rni", "rzi")
    if to.is_float and (not source.is_float or to.bits <= source.bits):
        return ("rn",)
    return ("",)


def _integers(values: np.ndarray, to: Type) -> np.ndarray:
    if to.name == "s64":
        inside = np.abs(values) < 2.0**63
        largest = np.where(values < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
        converted = np.where(inside, values, 0).astype(np.int64)
        return np.where(inside, converted, np.where(np.isnan(values), 0, largest))
    if to.bits == 64:
        raise PtxFault("from floats to u64 is not emulated")
    limits = np.iinfo(to.decode(np.zeros(1, UNSIGNED[to.bits])).dtype)
    return np.clip(np.nan_to_num(values.astype(np.float64)), limits.min, limits.max).astype(np.int64)


def _packed(i: Operands, to: Type, source: Type) -> Execute:
    """cvt.rn.f16x2.f32 d, high, low."""
    i.expect(3)
    if source.name != "f32" or i.modifiers[0] != "rn":
        raise PtxFault("pairs are emulated only rounded from float32")
    high, low = (i.read(text, type_of("f32")) for text in i.texts[1:])
    write = i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        pair = np.broadcast_arrays(low(machine, lanes), high(machine, lanes))
        write(machine, lanes, to.encode(np.stack(pair, -1)))

    return execute
