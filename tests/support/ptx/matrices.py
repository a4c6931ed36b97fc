"""The tensor instructions of a warp: ldmatrix and stmatrix, between shared memory and fragments, and mma.sync.

Source: PTX ISA 8.8, "Matrix Fragments for mma.m16n8k16 with floating point type". Lane l of a warp has row l // 4 and
columns 2 (l % 4) and the next of each 8x8 matrix. Products are exact in float64 and the sum is rounded once. Tensor
cores round more often, which the tolerances of the tests allow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import Type, type_of
from support.ptx.machine import Execute, Machine
from support.ptx.table import Operands, opcode
from support.ptx.text import members
from support.ptx.threads import WARP, Lanes

ROW, COLUMN = np.arange(WARP) // 4, np.arange(WARP) % 4 * 2
"""Of each lane, in an 8x8 matrix: its row, and the first of its two columns."""


def halves(kind: Type, registers: np.ndarray) -> np.ndarray:
    """[..., registers] of 32 bits -> [..., registers, 2] numbers of a 16-bit type, in float64."""
    words = np.ascontiguousarray(registers)
    return kind.decode(words.view(np.uint16)).reshape(*words.shape, 2)


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


@opcode("mma", "f32 f16 bf16", "sync aligned m16n8k16 row col")
def mma(i: Operands) -> Execute:
    """d [16, 8] = a [16, 16] b [16, 8] + c."""
    i.expect(4)
    names = [kind.name for kind in i.types]
    if "m16n8k16" not in i.modifiers or names not in (["f32", half, half, "f32"] for half in ("f16", "bf16")):
        raise PtxFault("only m16n8k16 of 16-bit floats into float32 is emulated")
    half = i.types[1]
    a, b, c = (_fragment(i, text, count) for text, count in zip(i.texts[1:], (4, 2, 4), strict=True))
    write = i.write_vector(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        warps = len(machine.warps(lanes))
        of_a, of_b = (halves(half, part(machine, lanes).reshape(warps, WARP, -1)) for part in (a, b))
        left, right, total = np.empty((warps, 16, 16)), np.empty((warps, 16, 8)), np.empty((warps, 16, 8))
        for pair in range(2):
            for register in range(4):
                left[:, ROW + 8 * (register % 2), COLUMN + pair + 8 * (register // 2)] = of_a[:, :, register, pair]
            for register in range(2):
                right[:, COLUMN + pair + 8 * register, ROW] = of_b[:, :, register, pair]
        sums = c(machine, lanes).view(np.float32).reshape(warps, WARP, 4)
        for register in range(4):
            total[:, ROW + 8 * (register // 2), COLUMN + register % 2] = sums[:, :, register]
        total = (total + left @ right).astype(np.float32)
        made = [total[:, ROW + 8 * (register // 2), COLUMN + register % 2] for register in range(4)]
        write(machine, lanes, np.stack(made, -1).reshape(-1, 4).view(np.uint32))

    return execute


def _fragment(i: Operands, text: str, count: int) -> Callable[[Machine, Lanes], np.ndarray]:
    if len(members(text)) != count:
        raise PtxFault(f"{text} must be {count} registers")
    return i.vector(text, type_of("b32").width)
