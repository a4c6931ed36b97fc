"""Runs inline PTX of kernels in Triton's interpreter: the same text that the GPU's assembler gets, on numpy arrays.

Only what plugins/gpu/unpack.py and plugins/paged_attention/gpu_e4m3.py need is known; anything else raises
KernelError. A block of text gets `pack` elements of each operand in registers of 32 bits, small elements several to a
register, or one 16-bit element in one of 16 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorwright.errors import KernelError
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

Registers = dict[str, np.ndarray]
BITS = {"r": 32, "h": 16}
"""The bits of a register, by the letter of its constraint."""


def run(text: str, constraints: str, operands: Sequence[np.ndarray], sizes: Sequence[int], pack: int) -> list[Any]:
    """Returns the results, one array of unsigned integers of each number of bytes in `sizes`.

    operands: arrays of one shape, of any element types of 1, 2 or 4 bytes.
    """
    shape = operands[0].shape
    if operands[0].size % pack:
        raise KernelError(f"inline assembly takes {pack} elements at a time, got {operands[0].size}")
    kinds = [part.strip() for part in constraints.split(",")]
    outs = [BITS[kind[1:]] for kind in kinds if kind.startswith("=")]
    ins = [BITS[kind] for kind in kinds if not kind.startswith("=")]
    given = [register for operand in operands for register in _registers(operand, pack)]
    if [register.itemsize * 8 for register in given] != ins:
        raise KernelError(f"inline assembly's constraints {constraints} do not fit its operands")
    registers: Registers = {f"${len(outs) + at}": register for at, register in enumerate(given)}
    for statement in re.sub(r"//[^\n]*", "", text).replace("{\n", "").replace("}\n", "").split(";"):
        _step(statement.strip().removesuffix("}").strip(), registers)
    results, at = [], 0
    for size in sizes:
        count = max(pack * size // 4, 1)
        parts = [registers[f"${at + i}"].astype(f"<u{outs[at + i] // 8}") for i in range(count)]
        results.append(np.ascontiguousarray(np.stack(parts, 1)).view(f"<u{size}").reshape(shape))
        at += count
    return results


def _registers(operand: np.ndarray, pack: int) -> list[np.ndarray]:
    size = operand.dtype.itemsize
    words = np.ascontiguousarray(operand).view(f"<u{size}").reshape(-1, pack)
    wide = words.view("<u4") if size * pack >= 4 else words.view(f"<u{size * pack}")
    return [np.ascontiguousarray(wide[:, at]) for at in range(wide.shape[1])]


def _step(statement: str, registers: Registers) -> None:
    if not statement or statement.startswith(".reg"):
        return
    name, _, rest = statement.partition(" ")
    if name not in OPERATIONS:
        raise KernelError(f"inline assembly: the interpreter does not know {name}")
    halves = re.fullmatch(r"\{(\S+), (\S+)\}, (\S+)", rest.strip())
    if name == "mov.b32" and halves:
        low, high, source = halves.groups()
        value = _value(source, registers)
        registers[low], registers[high] = value & np.uint32(0xFFFF), value >> np.uint32(16)
        return
    target, *sources = (part.strip() for part in rest.split(","))
    registers[target] = OPERATIONS[name](*(_value(source, registers) for source in sources))


def _value(name: str, registers: Registers) -> np.ndarray:
    if name in registers:
        return registers[name].astype(np.uint32)
    if not re.fullmatch(r"0x[0-9A-F]+|\d+", name):
        raise KernelError(f"inline assembly reads {name}, which nothing has written")
    return np.array([int(name, 0)], np.uint32)


def _permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt.b32: each digit of the selector picks one of eight bytes, or with its upper bit 8 copies of that one's
    sign."""
    (word,) = selector
    digits = [int(word) >> 4 * at & 15 for at in range(4)]
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    picked = [both >> np.uint64(8 * (digit & 7)) & np.uint64(255) for digit in digits]
    signs = [(byte >> np.uint64(7)) * np.uint64(255) for byte in picked]
    picked = [sign if digit & 8 else byte for byte, sign, digit in zip(picked, signs, digits, strict=True)]
    return sum(byte << np.uint64(8 * at) for at, byte in enumerate(picked)).astype(np.uint32)  # type: ignore[union-attr]


def _logic(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    """lop3.b32: bit 4 a + 2 b + c of the table, for each bit of a, b and c."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for case in range(8):
        if int(table[0]) >> case & 1:
            bits = [source if case >> 2 - at & 1 else ~source for at, source in enumerate((a, b, c))]
            result |= bits[0] & bits[1] & bits[2]
    return result


def _halves(function: Callable[..., np.ndarray], read: Any, write: Any) -> Callable[..., np.ndarray]:
    """Returns `function` of float64 on both halves of registers, rounded once."""

    def on_halves(*registers: np.ndarray) -> np.ndarray:
        wide = np.broadcast_arrays(*registers)
        values = [read(np.ascontiguousarray(register).view("<u2")).astype(np.float64) for register in wide]
        return np.ascontiguousarray(write(function(*values))).view("<u4")

    return on_halves


FLOAT16 = (lambda bits: bits.view(np.float16), lambda values: values.astype(np.float16).view("<u2"))
BFLOAT16 = (from_bfloat16_bits, lambda values: to_bfloat16_bits(values.astype(np.float32)))
OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "xor.b32": np.bitwise_xor,
    "lop3.b32": _logic,
    "prmt.b32": _permute,
    "shl.b32": np.left_shift,
    "mul.rn.f16x2": _halves(np.multiply, *FLOAT16),
    "sub.rn.f16x2": _halves(np.subtract, *FLOAT16),
    "fma.rn.bf16x2": _halves(lambda a, b, c: a * b + c, *BFLOAT16),
}
"""Each instruction as a function of its sources."""
