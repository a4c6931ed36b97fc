"""The instructions that compute each lane's result from the lane's own operands, all of one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import SIGNED, UNSIGNED, Type, flushed, type_of
from support.ptx.machine import Execute, Machine
from support.ptx.table import Operands, opcode
from support.ptx.threads import Lanes

INTEGERS = "s16 u16 s32 u32 s64 u64"
HALVES = "f16 bf16 f16x2 bf16x2"
FLOAT_TYPES = f"f32 f64 {HALVES}"
ROUNDING = "rn ftz"
Function = Callable[..., np.ndarray]


def each(name: str, arity: int, compute: Function | dict[str, Function], types: str, modifiers: str = "") -> None:
    """Declares an opcode of which the result has the type of all operands.

    compute: of numbers of the type; or by modifier, where one of them decides: "" stands for none of the others.
    """
    forms = compute if isinstance(compute, dict) else {"": compute}

    def decode(i: Operands) -> Execute:
        i.expect(arity + 1)
        (kind,) = i.types
        function = next((form for key, form in forms.items() if key and i.has(key)), forms.get(""))
        if function is None:
            raise PtxFault(f"it must say one of {', '.join(forms)}")
        reads = [i.read(text, kind) for text in i.texts[1:]]
        write = i.write(i.texts[0], kind.width)
        if i.has("ftz"):
            return _flushing(function, reads, write, kind)

        def execute(machine: Machine, lanes: Lanes) -> None:
            write(machine, lanes, kind.encode(function(*(read(machine, lanes) for read in reads))))

        return execute

    opcode(name, types, f"{modifiers} {' '.join(forms)}")(decode)


def _flushing(function: Function, reads: list[Any], write: Any, kind: Type) -> Execute:
    if kind.name != "f32":
        raise PtxFault(f".ftz of {kind.name} is not emulated")

    def execute(machine: Machine, lanes: Lanes) -> None:
        given = (flushed(read(machine, lanes)) for read in reads)
        write(machine, lanes, kind.encode(flushed(function(*given))))

    return execute


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A product and a sum with one rounding. float64 holds the product exactly; the sum may round twice, once there."""
    if a.dtype == np.float32:
        return a.astype(np.float64) * b + c
    return a * b + c


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers it is cut towards zero; by zero it is all ones, where PTX promises nothing."""
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), (a - np.fmod(a, safe)) // safe)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b).astype(a.dtype)))


def _high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of a product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide)) >> wide(bits)
    if a.dtype.kind == "i":
        raise PtxFault("the upper half of a signed product of 64 bits is not emulated")
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    middle = (a0 * b0 >> half) + (a1 * b0 & mask) + (a0 * b1 & mask)
    return a1 * b1 + (a1 * b0 >> half) + (a0 * b1 >> half) + (middle >> half)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x.astype(np.float64))


each("add", 2, np.add, f"{INTEGERS} {FLOAT_TYPES}", ROUNDING)
each("sub", 2, np.subtract, f"{INTEGERS} {FLOAT_TYPES}", ROUNDING)
each("fma", 3, _fused, FLOAT_TYPES, ROUNDING)
each("div", 2, _quotient, "s32 u32 s64 u64 f32", "rn full approx ftz")
each("rem", 2, _remainder, "s32 u32 s64 u64")
each("min", 2, {"NaN": np.minimum, "": np.fmin}, f"{INTEGERS} f32 {HALVES}", "ftz")
each("max", 2, {"NaN": np.maximum, "": np.fmax}, f"{INTEGERS} f32 {HALVES}", "ftz")
each("neg", 1, np.negative, f"s16 s32 s64 {FLOAT_TYPES}", "ftz")
each("abs", 1, np.abs, f"s32 s64 {FLOAT_TYPES}", "ftz")
each("ex2", 1, {"approx": np.exp2}, "f32", "ftz")
each("lg2", 1, {"approx": np.log2}, "f32", "ftz")
each("rsqrt", 1, {"approx": _rsqrt}, "f32", "ftz")
each("sqrt", 1, {"rn": np.sqrt, "approx": np.sqrt}, "f32", "ftz")
each("rcp", 1, {"rn": np.reciprocal, "approx": np.reciprocal}, "f32", "ftz")
each("and", 2, np.bitwise_and, "b16 b32 b64 pred")
each("or", 2, np.bitwise_or, "b16 b32 b64 pred")
each("xor", 2, np.bitwise_xor, "b16 b32 b64 pred")
each("not", 1, np.invert, "b16 b32 b64 pred")
each("popc", 1, np.bitwise_count, "b32")


@opcode("mul", f"{INTEGERS} {FLOAT_TYPES}", f"lo hi wide {ROUNDING}")
def mul(i: Operands) -> Execute:
    return _product(i, 2)


@opcode("mad", "s16 u16 s32 u32 s64 u64", "lo wide cc")
def mad(i: Operands) -> Execute:
    return _with_carry(i) if i.has("cc") else _product(i, 3)


def _product(i: Operands, arity: int) -> Execute:
    i.expect(arity + 1)
    (kind,) = i.types
    wide = i.has("wide")
    if not kind.is_float and sum(map(i.has, ("lo", "hi", "wide"))) != 1:
        raise PtxFault("it must say one of .lo, .hi and .wide")
    result = type_of(f"{kind.kind}{kind.bits * 2}") if wide else kind
    reads = [i.read(text, kind) for text in i.texts[1:3]]
    addend = i.read(i.texts[3], result) if arity == 3 else None
    write, flushes = i.write(i.texts[0], result.width), i.has("ftz")
    multiply = _high if i.has("hi") else np.multiply

    def execute(machine: Machine, lanes: Lanes) -> None:
        a, b = (read(machine, lanes) for read in reads)
        if wide:
            a, b = (x.astype({"s": SIGNED, "u": UNSIGNED}[kind.kind][result.bits]) for x in (a, b))
        if flushes:
            a, b = flushed(a), flushed(b)
        product = multiply(a, b)
        product = flushed(product) if flushes else product
        write(machine, lanes, result.encode(product if addend is None else product + addend(machine, lanes)))

    return execute


def _with_carry(i: Operands) -> Execute:
    """mad.lo.cc.u32: the carry of the sum is kept for madc."""
    i.expect(4)
    (kind,) = i.types
    if kind.name != "u32" or not i.has("lo"):
        raise PtxFault("only mad.lo.cc.u32 is emulated with a carry")
    reads, write = [i.read(text, kind) for text in i.texts[1:]], i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        a, b, c = (read(machine, lanes) for read in reads)
        total = (a * b).astype(np.uint64) + c
        machine.carry[lanes] = total >> np.uint64(32) != 0
        write(machine, lanes, total.astype(np.uint32))

    return execute


@opcode("madc", "u32", "hi")
def madc(i: Operands) -> Execute:
    i.expect(4)
    (kind,) = i.types
    reads, write = [i.read(text, kind) for text in i.texts[1:]], i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        a, b, c = (read(machine, lanes) for read in reads)
        write(machine, lanes, (_high(a, b) + c + machine.carry[lanes]).astype(np.uint32))

    return execute


@opcode("shl", "b16 b32 b64")
def shl(i: Operands) -> Execute:
    return _shift(i, np.left_shift)


@opcode("shr", "s16 u16 b16 s32 u32 b32 s64 u64 b64")
def shr(i: Operands) -> Execute:
    return _shift(i, np.right_shift)


def _shift(i: Operands, move: Function) -> Execute:
    """By more than the width gives zeros, or the sign of a signed number."""
    i.expect(3)
    (kind,) = i.types
    read, by = i.read(i.texts[1], kind), i.raw(i.texts[2], 32)
    write = i.write(i.texts[0], kind.width)

    def execute(machine: Machine, lanes: Lanes) -> None:
        value, count = read(machine, lanes), by(machine, lanes)
        moved = move(value, np.minimum(count, kind.bits - 1).astype(value.dtype))
        gone = value >> (kind.bits - 1) if kind.kind == "s" else np.zeros_like(value)
        write(machine, lanes, kind.encode(np.where(count >= kind.bits, gone, moved)))

    return execute


@opcode("shf", "b32", "l wrap")
def shf(i: Operands) -> Execute:
    """shf.l.wrap: the upper word of (b, a) moved to the left."""
    i.expect(4)
    if i.modifiers != ("l", "wrap", "b32"):
        raise PtxFault("only shf.l.wrap.b32 is emulated")
    low, high, by = (i.raw(text, 32) for text in i.texts[1:])
    write = i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        both = (high(machine, lanes).astype(np.uint64) << np.uint64(32)) | low(machine, lanes)
        moved = both << (by(machine, lanes) & np.uint32(31)).astype(np.uint64)
        write(machine, lanes, (moved >> np.uint64(32)).astype(np.uint32))

    return execute


@opcode("bfe", "u32 s32")
def bfe(i: Operands) -> Execute:
    """Bits [position, position + length) of a number, with the sign of the highest where the type is signed."""
    i.expect(4)
    (kind,) = i.types
    read = i.raw(i.texts[1], 32)
    at, length = (i.raw(text, 32) for text in i.texts[2:])
    write = i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        position = (at(machine, lanes) & np.uint32(255)).astype(np.int64)
        size = (length(machine, lanes) & np.uint32(255)).astype(np.int64)
        if (position + size > 32).any() or (size == 0).any():
            raise PtxFault("bits outside the number are not emulated")
        value = (read(machine, lanes).astype(np.int64) >> position) & ((1 << size) - 1)
        if kind.kind == "s":
            value = np.where(value >> (size - 1) & 1, value - (1 << size), value)
        write(machine, lanes, value.astype(np.uint32))

    return execute


@opcode("lop3", "b32")
def lop3(i: Operands) -> Execute:
    """Any function of three bits: bit 4 a + 2 b + c of the last operand says what it is."""
    i.expect(5)
    reads = [i.raw(text, 32) for text in i.texts[1:4]]
    table, write = int(i.texts[4], 0), i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        given = [read(machine, lanes) for read in reads]
        result = np.uint32(0)
        for index in range(8):
            if table >> index & 1:
                a, b, c = (x if index >> (2 - at) & 1 else ~x for at, x in enumerate(given))
                result = result | (a & b & c)
        write(machine, lanes, result)

    return execute


@opcode("prmt", "b32")
def prmt(i: Operands) -> Execute:
    """Chooses four of the eight bytes of two words; bit 3 of a choice repeats the byte's sign."""
    i.expect(4)
    low, high, choice = (i.raw(text, 32) for text in i.texts[1:])
    write = i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        both = (high(machine, lanes).astype(np.uint64) << np.uint64(32)) | low(machine, lanes)
        chosen, result = choice(machine, lanes).astype(np.uint64), np.uint64(0)
        for at in range(4):
            which = chosen >> np.uint64(4 * at)
            byte = (both >> ((which & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result = result | np.where(which & np.uint64(8), sign, byte) << np.uint64(8 * at)
        write(machine, lanes, result.astype(np.uint32))

    return execute


COMPARISONS: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


@opcode("setp", f"b16 b32 b64 {INTEGERS} f32 f16 bf16", "eq ne lt le gt ge equ neu ltu leu gtu geu num nan ftz")
def setp(i: Operands) -> Execute:
    """A comparison of floats is false where one is NaN; those that end in u are true."""
    i.expect(3)
    (kind,) = i.types
    name = i.modifiers[0]
    reads = [i.read(text, kind) for text in i.texts[1:]]
    write = i.write(i.texts[0], 1)
    if (name not in COMPARISONS and not kind.is_float) or (name not in ("eq", "ne") and kind.kind == "b"):
        raise PtxFault(f"setp.{name} of {kind.name} is not emulated")

    def execute(machine: Machine, lanes: Lanes) -> None:
        a, b = (read(machine, lanes) for read in reads)
        if i.has("ftz"):
            a, b = flushed(a), flushed(b)
        write(machine, lanes, _compared(name, a, b, kind.is_float))

    return execute


def _compared(name: str, a: np.ndarray, b: np.ndarray, floats: bool) -> np.ndarray:
    if not floats:
        return COMPARISONS[name](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered if name == "nan" else ~unordered
    if name in COMPARISONS:
        return COMPARISONS[name](a, b) & ~unordered
    return COMPARISONS[name[:2]](a, b) | unordered
