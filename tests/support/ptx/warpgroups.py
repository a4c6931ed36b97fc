"""wgmma: the products of four warps, of operands in shared memory or registers, which run beside them.

Source: PTX ISA 8.8, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", its register fragments,
matrix descriptors and swizzling modes. Operands are read in pieces of 16 bytes, which the swizzling keeps together.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import Type
from support.ptx.machine import Execute, Machine
from support.ptx.matrices import COLUMN, ROW, numbers
from support.ptx.races import FIRST
from support.ptx.table import Operands, every, opcode
from support.ptx.text import members
from support.ptx.threads import WARP, Lanes
from support.ptx.warpgroup_queue import Product

GROUP = 4 * WARP
M = 64
SHAPES = " ".join(f"m{M}n{n}k{k}" for k in (16, 32) for n in range(8, 257, 8))
SWIZZLES = {1: 128, 2: 64, 3: 32}
"""Bytes of a row of a swizzled matrix, by the mode in a descriptor."""
TRANSPOSED_K = 16
"""The K of operands that may be transposed, which have 16 bits."""
LANE = np.arange(GROUP)
ROWS, COLUMNS = 16 * (LANE // WARP) + ROW[LANE % WARP], COLUMN[LANE % WARP]
PIECE = 16
"""Bytes. A row of an operand has two pieces: 16 numbers of 16 bits, or 32 of 8."""
Matrix = Callable[[Machine, np.ndarray], np.ndarray]
"""Reads an operand for whole groups of lanes: [groups, rows, K] in float64."""


@opcode("wgmma", "f32 f16 bf16 s32 s8", f"mma_async fence commit_group wait_group sync aligned {SHAPES}")
def wgmma(i: Operands) -> Execute:
    tail = ("sync", "aligned")
    if i.modifiers == ("fence", *tail):
        return lambda machine, lanes: machine.products.unfenced.clear()
    if i.modifiers == ("commit_group", *tail):
        return _commit
    if i.modifiers == ("wait_group", *tail):
        i.expect(1)
        left = int(i.texts[0])
        return lambda machine, lanes: machine.products.wait(lanes, left)
    return _product(i)


def _commit(machine: Machine, lanes: Lanes) -> None:
    machine.products.groups[lanes] += 1


def _product(i: Operands) -> Execute:
    """Operands: d, a, b, whether d is added to; of floats also the signs of a and b, and whether a (of memory) and b
    are transposed."""
    shape = re.search(r"\.m64n(\d+)(?:k16\.f32\.(f16|bf16)\.\2|k32\.s32\.s8\.s8)$", i.instruction.opcode)
    in_registers = i.texts[1].startswith("{")
    if shape is None:
        raise PtxFault("only products of 16-bit floats into float32, and of int8, are emulated")
    columns, kind, is_float = int(shape[1]), i.types[1], shape[2] is not None
    i.expect(*((7 if in_registers else 8,) if is_float else (4,)))
    if is_float and i.texts[4:6] != ("1", "1"):
        raise PtxFault("only products without a sign are emulated")
    sums_of = np.float32 if is_float else np.int32
    of_a, of_b = ("0", "0") if not is_float else ("0", i.texts[6]) if in_registers else i.texts[6:8]
    registers = members(i.texts[0])
    if len(registers) != columns // 2:
        raise PtxFault(f"it must have {columns // 2} accumulators, it has {len(registers)}")
    total, write = i.vector(i.texts[0], 32), i.write_vector(i.texts[0], 32)
    adds, right_descriptor = i.raw(i.texts[3], 1), i.raw(i.texts[2], 64)
    left = i.vector(i.texts[1], 32) if in_registers else i.raw(i.texts[1], 64)
    accumulators = frozenset(registers)
    operands = frozenset(members(i.texts[1])) if in_registers else frozenset()

    def execute(machine: Machine, lanes: Lanes) -> None:
        groups = machine.warps(lanes, GROUP)
        kept = every(adds(machine, lanes), machine, lanes)
        a = None if in_registers else _from_memory(machine, groups, left(machine, lanes), M, of_a == "1", kind)
        b = _from_memory(machine, groups, right_descriptor(machine, lanes), columns, of_b == "1", kind)
        for matrix in (a, b):
            if matrix is not None:
                matrix(machine, groups)  # It may be read at once, or as late as in the wait.
        adding = np.zeros(machine.count, bool)
        adding[groups.ravel()] = kept

        def compute(chosen: np.ndarray) -> None:
            some = machine.warps(chosen, GROUP)
            one = a(machine, some) if a is not None else _from_registers(left(machine, chosen), kind)
            product = one @ b(machine, some).transpose(0, 2, 1)
            places = [(ROWS + 8 * (r // 2 % 2), r // 4 * 8 + COLUMNS + r % 2) for r in range(len(registers))]
            new = np.stack([product[:, row, column].ravel() for row, column in places], -1)
            old = total(machine, chosen).view(sums_of) if adding[chosen].any() else np.zeros(1, sums_of)
            new = np.where(adding[chosen][:, None], new + old, new)
            write(machine, chosen, new.astype(sums_of).view(np.uint32))

        number = machine.products.groups[groups.ravel()].copy()
        machine.products.start(Product(groups.ravel(), number, compute, accumulators, operands))

    # The first product of a sum does not read its accumulators, which nobody may have written.
    i.reads -= accumulators
    return execute


def _from_registers(words: np.ndarray, kind: Type) -> np.ndarray:
    """[lanes, 4] -> [groups, 64, K]"""
    each = 32 // kind.bits
    parts = numbers(kind, words).reshape(-1, GROUP, 4, each)
    matrix = np.empty((len(parts), M, 8 * each))
    first = LANE % 4 * each
    for register in range(4):
        for at in range(each):
            matrix[:, ROWS + 8 * (register % 2), first + at + 4 * each * (register // 2)] = parts[:, :, register, at]
    return matrix


def _from_memory(
    machine: Machine, groups: np.ndarray, descriptors: np.ndarray, rows: int, transposed: bool, kind: Type
) -> Matrix:
    """Returns what reads a matrix by its descriptor. `transposed`: numbers of one column lie side by side."""
    given = every(descriptors, machine, groups.ravel()).reshape(groups.shape)
    if (given != given[:, :1]).any():
        raise PtxFault("the threads of a group must give one descriptor")
    at = np.zeros((machine.count // GROUP, *_pieces(rows, transposed)), np.int64)
    at[groups[:, 0] // GROUP] = _addresses(given[:, 0], rows, transposed)

    def read(machine: Machine, groups: np.ndarray) -> np.ndarray:
        places = at[groups[:, 0] // GROUP]
        readers = np.repeat(groups[:, 0], places[0].size)
        loaded = _load(machine, readers, places.ravel(), kind.bits // 8)
        found = kind.decode(loaded).reshape(*places.shape, -1).astype(np.float64)
        if transposed:  # [groups, K, pieces, 8]
            return found.reshape(len(groups), TRANSPOSED_K, rows).transpose(0, 2, 1)
        return found.reshape(len(groups), rows, -1)

    return read


def _pieces(rows: int, transposed: bool) -> tuple[int, int]:
    return (TRANSPOSED_K, rows // 8) if transposed else (rows, 2)


def _addresses(descriptors: np.ndarray, rows: int, transposed: bool) -> np.ndarray:
    """Returns where the pieces of each group's matrix lie: [groups, rows, 2], or [groups, K, rows / 8]."""

    def field(low: int, bits: int) -> np.ndarray:
        return ((descriptors >> np.uint64(low)) & np.uint64((1 << bits) - 1)).astype(np.int64)[:, None, None]

    start, lead, stride = (field(low, 14) << 4 for low in (0, 16, 32))
    modes = np.unique(field(62, 2))
    if len(modes) != 1 or int(modes[0]) not in SWIZZLES:
        raise PtxFault("only swizzled matrices are emulated")
    if field(49, 3).any():
        raise PtxFault("a base offset of a matrix is not emulated")
    width = SWIZZLES[int(modes[0])]
    first, second = (np.arange(count) for count in _pieces(rows, transposed))
    if transposed:
        k, number = first[None, :, None], second[None, None, :] * 8
        at = number // (width // 2) * lead + k // 8 * stride + k % 8 * width + number % (width // 2) * 2
    else:
        row, piece = first[None, :, None], second[None, None, :]
        at = row // 8 * stride + row % 8 * width + piece * PIECE
    at = at + start
    return at ^ ((at >> 7 & (width // PIECE - 1)) << 4)


def _load(machine: Machine, readers: np.ndarray, places: np.ndarray, item: int) -> np.ndarray:
    """Reads pieces of numbers of `item` bytes for whole groups, all warps of which count as readers."""
    shared, shadow = machine.shared, machine.shared.shadow
    loaded = shared.load(machine, readers, places, 8 * item, PIECE // item)
    granules = shared.granules(shared.offsets(machine, readers, places), PIECE)
    assert shadow is not None
    bad = shadow.unfenced[granules].any(1)
    if bad.any():
        raise machine.fault(readers, bad, "fence.proxy.async is missing: shared address {} was written since", places)
    block = machine.warp[readers] // shadow.warps_of_block
    shadow.reader[granules] = (FIRST - block)[:, None]
    return loaded
