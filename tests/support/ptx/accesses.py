"""The instructions that read and write memory, and start and await copies: ld, st, cp.async, fence."""

from __future__ import annotations

import numpy as np

from support.ptx.copies import Copy
from support.ptx.fault import PtxFault
from support.ptx.machine import Execute, Machine
from support.ptx.memory import Space
from support.ptx.table import Operands, every, opcode
from support.ptx.text import Instruction, members
from support.ptx.threads import Lanes

WIDTHS = "b8 b16 b32 b64 u8 u16 u32 u64 f32 f64"
SPACES = "global shared shared::cta local"


def bytes_of(instruction: Instruction) -> tuple[str, int]:
    """(state space, bytes) of a store or of a copy's destination; ("", 0) for any other instruction."""
    parts = instruction.opcode.split(".")
    if parts[0] == "st":
        return parts[1].removesuffix("::cta"), int(parts[-1][1:]) // 8
    if parts[:2] == ["cp", "async"] and len(parts) > 3:
        return "shared", int(instruction.operands[2], 0)
    return ("shared", 16) if parts[0] == "stmatrix" else ("", 0)


def _space(i: Operands) -> str:
    return i.modifiers[0].removesuffix("::cta")


def _of(machine: Machine, space: str) -> Space:
    return {"global": machine.memory, "shared": machine.shared, "local": machine.local}[space]


def _vector(i: Operands, text: str) -> int:
    said = next((int(name[1:]) for name in i.modifiers if name in ("v2", "v4")), 1)
    if len(members(text)) != said:
        raise PtxFault(f"it must have {said} registers, it has {len(members(text))}")
    return said


@opcode("ld", f"{WIDTHS} s32 s64", f"{SPACES} param nc v2 v4")
def ld(i: Operands) -> Execute:
    i.expect(2)
    (kind,) = i.types
    if _space(i) == "param":
        return _parameter(i, kind.width)
    space, vec = _space(i), _vector(i, i.texts[0])
    write, address = i.write_vector(i.texts[0], kind.width), i.address(i.texts[1])

    def execute(machine: Machine, lanes: Lanes) -> None:
        found = _of(machine, space).load(machine, lanes, address(machine, lanes), kind.width, vec)
        write(machine, lanes, found)

    return execute


def _parameter(i: Operands, width: int) -> Execute:
    name, write = i.texts[1].strip("[]"), i.write(i.texts[0], width)
    types = {parameter: kind for kind, parameter in i.program.parameters}
    if name not in types or int(types[name][1:]) != width:
        raise PtxFault(f"{name} is no parameter of {width} bits")

    def execute(machine: Machine, lanes: Lanes) -> None:
        value = machine.arguments[name]
        bits = np.float32(value).view(np.uint32) if isinstance(value, float) else np.uint64(value & ((1 << width) - 1))
        write(machine, lanes, bits)

    return execute


@opcode("st", WIDTHS, f"{SPACES} v2 v4")
def st(i: Operands) -> Execute:
    i.expect(2)
    (kind,) = i.types
    space = _space(i)
    _vector(i, i.texts[1])
    address, read = i.address(i.texts[0]), i.vector(i.texts[1], kind.width)

    def execute(machine: Machine, lanes: Lanes) -> None:
        values = every(read(machine, lanes), machine, lanes)
        _of(machine, space).store(machine, lanes, address(machine, lanes), values)

    return execute


@opcode("cp", "", "async ca cg shared global commit_group wait_group")
def cp(i: Operands) -> Execute:
    if i.modifiers == ("async", "commit_group"):
        i.expect(0)
        return lambda machine, lanes: machine.copies.commit(lanes)
    if i.modifiers == ("async", "wait_group"):
        i.expect(1)
        left = int(i.texts[0])
        return lambda machine, lanes: machine.copies.wait(machine, lanes, left)
    if i.modifiers not in (("async", cache, "shared", "global") for cache in ("ca", "cg")):
        raise PtxFault("of cp only cp.async from global to shared memory is emulated")
    i.expect(3, 4)
    size = int(i.texts[2], 0)
    if size not in (4, 8, 16) or (i.modifiers[1] == "cg" and size != 16):
        raise PtxFault(f"a copy of {size} bytes is not legal")
    to, source = i.address(i.texts[0]), i.address(i.texts[1])
    given = i.raw(i.texts[3] if len(i.texts) > 3 else str(size), 32)

    def execute(machine: Machine, lanes: Lanes) -> None:
        numbers = machine.numbers(lanes)
        count = every(given(machine, lanes), machine, lanes).astype(np.int64)
        if (count > size).any():
            raise PtxFault(f"{count.max()} of {size} bytes are to be copied")
        groups = machine.copies.groups[numbers]
        copy = Copy(numbers, groups, to(machine, lanes), source(machine, lanes), size, count)
        machine.copies.start(machine, lanes, copy)

    return execute


@opcode("fence", "", "proxy async shared::cta")
def fence(i: Operands) -> Execute:
    if i.modifiers != ("proxy", "async", "shared::cta"):
        raise PtxFault("only fence.proxy.async.shared::cta is emulated")
    return lambda machine, lanes: machine.shared.fence(machine, lanes)
