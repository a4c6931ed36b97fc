"""The table of instructions: one declaration per opcode says which modifiers and types it takes, and how it runs.

    @opcode("selp", "b16 b32 b64 f32")
    def selp(i: Operands) -> Execute: ...

A function of the table gets the operands of one instruction, once, and returns what runs it. An opcode, a modifier or a
type that no declaration has is an error, which names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.ptx.fault import PtxFault
from support.ptx.kinds import UNSIGNED, Type, type_of
from support.ptx.machine import Execute, Machine, Step
from support.ptx.memory import GlobalMemory
from support.ptx.text import Instruction, Program, members
from support.ptx.threads import Lanes

SPECIAL = {f"%{name}": 32 for name in ("tid.x", "laneid", *(f"{n}ctaid.{axis}" for n in ("", "n") for axis in "xyz"))}
"""Registers that the machine fills, with their bits."""
CONTROL = ("bra", "ret", "bar")
Read = Callable[[Machine, Lanes], np.ndarray]
Write = Callable[[Machine, Lanes, np.ndarray], None]


@dataclass(frozen=True)
class Opcode:
    types: frozenset[str]
    modifiers: frozenset[str]
    decode: Callable[[Operands], Execute]


OPCODES: dict[str, Opcode] = {}


def opcode(name: str, types: str = "", modifiers: str = "") -> Callable[[Any], Any]:
    """Declares an opcode by its first word. types, modifiers: all that it may have behind it, by spaces."""

    def declare(decode: Callable[[Operands], Execute]) -> Callable[[Operands], Execute]:
        assert name not in OPCODES, f"{name} is declared twice"
        OPCODES[name] = Opcode(frozenset(types.split()), frozenset(modifiers.split()), decode)
        return decode

    return declare


@dataclass
class Operands:
    """The operands of one instruction, as functions that read and write them."""

    program: Program
    instruction: Instruction
    constants: int
    """The address of the module's variables in global memory."""

    def __post_init__(self) -> None:
        self.modifiers = self.instruction.modifiers
        self.texts = self.instruction.operands
        self.reads: set[str] = {self.instruction.guard} - {""}
        self.writes: set[str] = set()

    def has(self, modifier: str) -> bool:
        return modifier in self.modifiers

    @property
    def types(self) -> list[Type]:
        """The types of the opcode, in their order."""
        known = OPCODES[self.instruction.opcode.split(".")[0]].types
        return [type_of(name) for name in self.modifiers if name in known]

    def expect(self, *counts: int) -> None:
        if len(self.texts) not in counts:
            raise PtxFault(f"it must have {' or '.join(map(str, counts))} operands, it has {len(self.texts)}")

    def raw(self, text: str, width: int) -> Read:
        """Reads the low `width` bits of a register, or of a number in the text."""
        if (bits := SPECIAL.get(text) or self.program.registers.get(text)) is not None:
            self.reads.add(text)
            return _register(text, bits, width)
        value = np.array([_number(text, self) & ((1 << width) - 1)], np.uint64)
        fixed = value.astype(bool if width == 1 else UNSIGNED[width])
        return lambda machine, lanes: fixed

    def read(self, text: str, kind: Type) -> Read:
        """Reads numbers of a type."""
        read = self.raw(text, kind.width)
        return lambda machine, lanes: kind.decode(read(machine, lanes))

    def write(self, text: str, width: int) -> Write:
        """Writes unsigned integers of `width` bits; a wider register gets zeros above them."""
        if text == "_":
            return lambda machine, lanes, values: None
        bits = self.program.registers.get(text)
        if bits is None or bits < width or (bits == 1) != (width == 1):
            raise PtxFault(f"{text} is no register of {width} bits")
        self.writes.add(text)
        return lambda machine, lanes, values: machine.write(text, lanes, values)

    def vector(self, text: str, width: int) -> Callable[[Machine, Lanes], np.ndarray]:
        """Reads `{a, b}` as [lanes, registers]."""
        parts = [self.raw(part, width) for part in members(text)]

        def read(machine: Machine, lanes: Lanes) -> np.ndarray:
            return np.stack(np.broadcast_arrays(*(part(machine, lanes) for part in parts)), 1)

        return read

    def write_vector(self, text: str, width: int) -> Write:
        """Writes [lanes, registers] into `{a, b}`."""
        parts = [self.write(part, width) for part in members(text)]

        def write(machine: Machine, lanes: Lanes, values: np.ndarray) -> None:
            for index, part in enumerate(parts):
                part(machine, lanes, values[:, index])

        return write

    def address(self, text: str) -> Read:
        """Reads `[register + number]` as int64; an address of 32 bits wraps, as shared and local ones do."""
        base, _, offset = text.strip("[] ").partition("+")
        base = base.strip()
        bits = self.program.registers.get(base, 64)
        read, add = self.raw(base, bits), int(offset.strip() or "0", 0)
        if bits == 32:
            return lambda machine, lanes: every(
                (read(machine, lanes).astype(np.int64) + add) & 0xFFFFFFFF, machine, lanes
            )
        return lambda machine, lanes: every(read(machine, lanes).view(np.int64) + add, machine, lanes)

    def symbol(self, name: str) -> int:
        """Returns the address of a variable in its state space."""
        space, offset = self.program.variables[name]
        return self.constants + offset if space == "global" else offset


def every(values: np.ndarray, machine: Machine, lanes: Lanes) -> np.ndarray:
    """Repeats the one value of a number in the text for each lane."""
    count = machine.count if isinstance(lanes, slice) else lanes.size
    return values if values.shape[0] == count else np.broadcast_to(values, (count, *values.shape[1:])).copy()


def _register(name: str, bits: int, width: int) -> Read:
    if bits == width:
        return lambda machine, lanes: machine.registers[name][lanes]
    if bits < width or width == 1 or bits == 1:
        raise PtxFault(f"{name} has {bits} bits, and {width} are read")
    kind = UNSIGNED[width]
    return lambda machine, lanes: machine.registers[name][lanes].astype(kind)


def _number(text: str, operands: Operands) -> int:
    if text in operands.program.variables:
        return operands.symbol(text)
    if text[:2] in ("0f", "0d"):
        return int(text[2:], 16)
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        raise PtxFault(f"{text!r} is neither a register nor a number") from None


def decode(program: Program, memory: GlobalMemory | None = None) -> list[Step]:
    """Prepares all instructions of a program. Raises PtxFault for what no declaration has, with its line."""
    constants = int(memory.starts[-1]) if memory is not None else 0
    steps = []
    for instruction in program.instructions:
        try:
            steps.append(_step(program, instruction, constants))
        except PtxFault as fault:
            raise PtxFault(f"{program.name}, line {instruction.line}, {instruction.text!r}: {fault}") from fault
    return steps


def _step(program: Program, instruction: Instruction, constants: int) -> Step:
    name = instruction.opcode.split(".")[0]
    if name in CONTROL and instruction.opcode != "bar.warp.sync":
        return _control(program, instruction)
    known = OPCODES.get(name)
    if known is None:
        raise PtxFault(f"opcode {name!r} is not emulated")
    for modifier in instruction.modifiers:
        if modifier not in known.types and modifier not in known.modifiers:
            raise PtxFault(f"{name}: modifier {'.' + modifier!r} is not emulated")
    operands = Operands(program, instruction, constants)
    execute = known.decode(operands)
    is_product = instruction.opcode.startswith("wgmma.mma_async")
    # LLVM lays copies of registers behind a fence, since it does not know that the fence orders them; ptxas mends it.
    follows = is_product or name == "mov"
    return Step(instruction, execute, frozenset(operands.reads), frozenset(operands.writes), is_product=is_product,
                may_follow_fence=follows)  # fmt: skip


def _control(program: Program, instruction: Instruction) -> Step:
    reads = frozenset({instruction.guard} - {""})
    name, operands = instruction.opcode, instruction.operands
    if name in ("bra", "bra.uni") and len(operands) == 1 and operands[0] in program.labels:
        return Step(instruction, None, reads, frozenset(), "bra", program.labels[operands[0]])
    if name == "ret" and not operands:
        return Step(instruction, None, reads, frozenset(), "ret")
    if name == "bar.sync" and operands == ("0",):
        return Step(instruction, None, reads, frozenset(), "bar")
    raise PtxFault(f"{name} with operands {', '.join(operands) or 'of none'} is not emulated")
