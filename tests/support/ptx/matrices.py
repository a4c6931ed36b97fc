"""The tensor instructions of a warp: ldmatrix and stmatrix, between shared memory and fragments, and mma.sync.

Source: PTX ISA 8.8, "Matrix Fragments for mma.m16n8k16 with floating point type" and those of m16n8k32 with integers.
Lane l of a warp has row l // 4 and columns 2 (l % 4) and the next of each 8x8 matrix, of operands of bytes 4 columns.
Products are exact in float64 and the sum is rounded once. Tensor cores round more often, which the tolerances of the
tests allow; sums of integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import UNSIGNED, Type, type_of
from support.ptx.machine import Execute, Machine
from support.ptx.table import Operands, opcode
from support.ptx.text import members
from support.ptx.threads import WARP, Lanes

ROW, COLUMN = np.arange(WARP) // 4, np.arange(WARP) % 4 * 2
"""Of each lane, in an 8x8 matrix: its row, and the first of its two columns."""


def numbers(kind: Type, registers: np.ndarray) -> np.ndarray:
    """[..., registers] of 32 bits -> [..., registers, 2 or 4] numbers of a type of 16 or 8 bits, in float64."""
    words = np.ascontiguousarray(registers)
    return kind.decode(words.view(UNSIGNED[kind.bits])).reshape(*words.shape, 32 // kind.bits).astype(np.float64)


def _rows(
    machine: Machine, lanes: Lanes, addresses: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(warps [W, 32], lanes, addresses) of the rows of `count` matrices: lane i of a warp says where row i lies."""
    warps = machine.warps(lanes)
    first = slice(8 * count)
    return warps, warps[:, first].ravel(), addresses.reshape(warps.shape)[:, first].ravel()


def _count(i: Operands, registers: str) -> int:
    count = next((int(name[1:]) for name in i.modifiers if name in ("x1", "x2", "x4")), 0)
    if len(members(registers)) != count:
        raise PtxFault(f"it must say how many registers it has, which are {len(members(registers))}")
    return count


@opcode("ldmatrix", "b16", "sync aligned m8n8 x1 x2 x4 trans shared")
def ldmatrix(i: Operands) -> Execute:
    i.expect(2)
    count, transposed = _count(i, i.texts[0]), i.has("trans")
    write, address = i.write_vector(i.texts[0], 32), i.address(i.texts[1])

    def execute(machine: Machine, lanes: Lanes) -> None:
        warps, readers, places = _rows(machine, lanes, address(machine, lanes), count)
        tiles = machine.shared.load(machine, readers, places, 16, 8).reshape(len(warps), count, 8, 8)
        tiles = tiles.transpose(0, 1, 3, 2) if transposed else tiles
        pairs = np.ascontiguousarray(tiles).view(np.uint32).reshape(len(warps), count, WARP)
        write(machine, lanes, pairs.transpose(0, 2, 1).reshape(-1, count))

    return execute


@opcode("stmatrix", "b16", "sync aligned m8n8 x1 x2 x4 trans shared")
def stmatrix(i: Operands) -> Execute:
    i.expect(2)
    count, transposed = _count(i, i.texts[1]), i.has("trans")
    address, read = i.address(i.texts[0]), i.vector(i.texts[1], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        warps, writers, places = _rows(machine, lanes, address(machine, lanes), count)
        words = read(machine, lanes).reshape(len(warps), WARP, count).transpose(0, 2, 1)
        tiles = np.ascontiguousarray(words).view(np.uint16).reshape(len(warps), count, 8, 8)
        tiles = tiles.transpose(0, 1, 3, 2) if transposed else tiles
        machine.shared.store(machine, writers, places, np.ascontiguousarray(tiles).reshape(-1, 8))

    return execute


LIMITS = (-(2.0**31), 2.0**31 - 1)
"""What sums of integers stay within, with `.satfinite`."""
FORMS = {
    "m16n8k16": (["f32", "f16", "f16", "f32"], ["f32", "bf16", "bf16", "f32"]),
    "m16n8k32": (["s32", "s8", "s8", "s32"],),
}
"""The types of d, a, b and c, by the shapes that are emulated."""


@opcode("mma", "f32 f16 bf16 s32 s8", "sync aligned m16n8k16 m16n8k32 row col satfinite")
def mma(i: Operands) -> Execute:
    """d [16, 8] = a [16, K] b [K, 8] + c, in 32 bytes of K."""
    i.expect(4)
    names = [kind.name for kind in i.types]
    if not any(shape in i.modifiers and names in forms for shape, forms in FORMS.items()):
        raise PtxFault("only m16n8k16 of 16-bit floats into float32, and m16n8k32 of int8, are emulated")
    kind, sums_of = i.types[1], np.float32 if names[0] == "f32" else np.int32
    each = 32 // kind.bits  # numbers of a register
    lane_columns = np.arange(WARP) % 4 * each
    a, b, c = (_fragment(i, text, count) for text, count in zip(i.texts[1:], (4, 2, 4), strict=True))
    write = i.write_vector(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        warps, depth = len(machine.warps(lanes)), 8 * each
        of_a, of_b = (numbers(kind, part(machine, lanes).reshape(warps, WARP, -1)) for part in (a, b))
        left, right, total = np.empty((warps, 16, depth)), np.empty((warps, depth, 8)), np.empty((warps, 16, 8))
        for at in range(each):
            for register in range(4):
                column = lane_columns + at + 4 * each * (register // 2)
                left[:, ROW + 8 * (register % 2), column] = of_a[:, :, register, at]
            for register in range(2):
                right[:, lane_columns + at + 4 * each * register, ROW] = of_b[:, :, register, at]
        sums = c(machine, lanes).view(sums_of).reshape(warps, WARP, 4)
        for register in range(4):
            total[:, ROW + 8 * (register // 2), COLUMN + register % 2] = sums[:, :, register]
        total = total + left @ right
        if i.has("satfinite"):
            total = np.clip(total, *LIMITS)
        total = total.astype(sums_of)
        made = [total[:, ROW + 8 * (register // 2), COLUMN + register % 2] for register in range(4)]
        write(machine, lanes, np.stack(made, -1).reshape(-1, 4).view(np.uint32))

    return execute


def _fragment(i: Operands, text: str, count: int) -> Callable[[Machine, Lanes], np.ndarray]:
    if len(members(text)) != count:
        raise PtxFault(f"{text} must be {count} registers")
    return i.vector(text, type_of("b32").width)
