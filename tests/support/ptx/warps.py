"""The instructions by which the threads of a warp exchange numbers: shfl, redux, bar.warp."""

from __future__ import annotations

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import type_of
from support.ptx.machine import Execute, Machine
from support.ptx.table import Operands, every, opcode
from support.ptx.threads import WARP, Lanes

EVERYBODY = 0xFFFFFFFF


def _whole(i: Operands, text: str) -> None:
    """Refuses exchanges of a part of a warp."""
    if int(text, 0) & EVERYBODY != EVERYBODY:
        raise PtxFault(f"it must name all threads of the warp, it names {text}")


@opcode("bar", "", "warp sync")
def bar_warp(i: Operands) -> Execute:
    i.expect(1)
    _whole(i, i.texts[0])
    return _together


def _together(machine: Machine, lanes: Lanes) -> None:
    machine.warps(lanes)


@opcode("shfl", "b32", "sync bfly idx up")
def shfl(i: Operands) -> Execute:
    """Each lane gets the number of another: its own number xor k, k, or its own minus k."""
    i.expect(5)
    _whole(i, i.texts[4])
    mode, clamp = i.modifiers[1], int(i.texts[3], 0)
    if clamp != (0 if mode == "up" else WARP - 1):
        raise PtxFault(f"shfl among parts of a warp ({clamp}) is not emulated")
    read, by, write = i.raw(i.texts[1], 32), i.raw(i.texts[2], 32), i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        rows = machine.warps(lanes)
        values = every(read(machine, lanes), machine, lanes).reshape(rows.shape)
        count = every(by(machine, lanes), machine, lanes).reshape(rows.shape).astype(np.int64)
        lane = np.arange(WARP)
        source = {"bfly": lane ^ count, "idx": count, "up": lane - count}[mode]
        source = np.where((source >= 0) & (source < WARP), source, lane)
        write(machine, lanes, np.take_along_axis(values, source, 1).ravel())

    return execute


@opcode("redux", "s32 u32", "sync add min max")
def redux(i: Operands) -> Execute:
    """All lanes get the sum or an extreme of the warp's numbers."""
    i.expect(3)
    (kind,) = i.types
    reduce = {"add": np.add, "min": np.minimum, "max": np.maximum}[i.modifiers[1]].reduce
    read, mask = i.read(i.texts[1], type_of(kind.name)), i.raw(i.texts[2], 32)
    write = i.write(i.texts[0], 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        rows = machine.warps(lanes)
        if (mask(machine, lanes) != EVERYBODY).any():
            raise PtxFault("it must name all threads of the warp")
        values = every(read(machine, lanes), machine, lanes).reshape(rows.shape)
        write(machine, lanes, kind.encode(np.repeat(reduce(values, axis=1), WARP)))

    return execute
