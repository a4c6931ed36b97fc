"""Runs the threads of a program: every register is an array with one element per thread, of many blocks at once.

Threads that are at the same instruction form a fragment, and the fragment that is furthest behind runs, so that threads
which took different branches meet again. A barrier holds a thread until all threads of its block that have not ended
are there. Which of two unordered accesses comes first does not matter: races.py finds them in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from support.ptx.copies import Copies
from support.ptx.fault import PtxFault
from support.ptx.kinds import UNSIGNED
from support.ptx.memory import GlobalMemory, LocalMemory, SharedMemory
from support.ptx.text import Instruction, Program
from support.ptx.threads import ALL, WARP, Lanes, Threads
from support.ptx.warpgroup_queue import Products

MAX_STEPS = 20_000_000
"""A program that has not ended after as many steps never will."""
Execute = Callable[["Machine", Lanes], None]


@dataclass(frozen=True)
class Step:
    """An instruction, ready to run. names: the registers that it reads or writes. control: bra, ret or bar."""

    instruction: Instruction
    execute: Execute | None
    reads: frozenset[str]
    writes: frozenset[str]
    control: str = ""
    target: int = 0
    is_product: bool = False
    may_follow_fence: bool = False
    """It writes registers of a product, and needs no wgmma.fence after it."""


class Registers(dict[str, np.ndarray]):
    """The registers that were written so far."""

    def __missing__(self, name: str) -> np.ndarray:
        raise PtxFault(f"register {name} is read, and nobody has written it")


class Machine(Threads):
    """Some blocks of one launch."""

    def __init__(
        self,
        program: Program,
        steps: Sequence[Step],
        grid: tuple[int, int, int],
        blocks: np.ndarray,
        shared_bytes: int,
        arguments: Sequence[int | float],
        memory: GlobalMemory,
        shared_granule: int,
    ):
        """blocks: the numbers of the blocks in the grid, x fastest. arguments: in the order of the parameters."""
        self.program, self.steps, self.memory = program, steps, memory
        self.arguments = dict(zip((name for _, name in program.parameters), arguments, strict=True))
        super().__init__(blocks, program.threads)
        lane = np.arange(self.count)
        thread = (lane % self.threads).astype(np.uint32)
        warps = self.threads // WARP
        number = blocks[self.block]
        places = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
        self.registers = Registers({"%tid.x": thread, "%laneid": thread % np.uint32(WARP)})
        for axis, place, size in zip("xyz", places, grid, strict=True):
            self.registers[f"%ctaid.{axis}"] = place.astype(np.uint32)
            self.registers[f"%nctaid.{axis}"] = np.full(self.count, size, np.uint32)
        self.shared = SharedMemory(self.block, shared_bytes, shared_granule, warps)
        self.local = LocalMemory(lane, program.local_bytes, 0, warps)
        self.carry = np.zeros(self.count, bool)
        self.copies = Copies(self.count, memory, self.shared)
        self.products = Products(self.count)
        self._has_products = any(step.is_product for step in steps)
        self.executed = 0
        self._waiting = np.zeros(self.count, bool)
        self._resume = np.zeros(self.count, np.int64)
        self._alive = np.full(len(blocks), self.threads)
        self._fragments: dict[int, Lanes] = {0: ALL}

    # -- what instructions use ----------------------------------------------------------------------------------------

    def write(self, name: str, lanes: Lanes, values: np.ndarray) -> None:
        """Writes unsigned integers, or booleans, of at most the register's width."""
        register = self.registers.get(name)
        if register is None:
            bits = self.program.registers[name]
            kind = bool if bits == 1 else UNSIGNED[bits]
            poison = np.full(self.count, 0xA5A5A5A5A5A5A5A5, np.uint64)
            register = self.registers[name] = poison.astype(kind)
        register[lanes] = values

    # -- control ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs all threads to their end. Raises PtxFault with the line of the instruction."""
        with np.errstate(all="ignore"):
            while self._fragments:
                self._run_fragment()

    def _run_fragment(self) -> None:
        at = min(self._fragments)
        lanes = self._fragments.pop(at)
        other = min(self._fragments, default=len(self.steps))
        while at < len(self.steps):
            if at == other:
                self._add(at, lanes)
                return
            step = self.steps[at]
            self.executed += 1
            if self.executed > MAX_STEPS:
                raise PtxFault(f"{self.program.name} does not end: {MAX_STEPS} steps were made")
            try:
                active = self._guarded(step, lanes)
                if step.control:
                    self._control(step, at, lanes, active)
                    return
                if active is not None:
                    self._check_flight(step, active)
                    assert step.execute is not None
                    step.execute(self, active)
            except PtxFault as fault:
                line = f"{self.program.name}, line {step.instruction.line}, {step.instruction.text!r}"
                raise PtxFault(f"{line}: {fault}") from fault
            at += 1
        raise PtxFault(f"{self.program.name}: threads run past the last instruction")

    def _guarded(self, step: Step, lanes: Lanes) -> Lanes | None:
        guard = step.instruction.guard
        if not guard:
            return lanes
        chosen = self.registers[guard][lanes]
        chosen = ~chosen if step.instruction.negated else chosen
        if chosen.all():
            return lanes
        return self.numbers(lanes)[chosen] if chosen.any() else None

    def _check_flight(self, step: Step, lanes: Lanes) -> None:
        if self.products.names and not step.is_product:
            self.products.check(lanes, step.reads, step.writes)
        if self._has_products and not step.may_follow_fence:
            self.products.unfenced |= step.writes

    def _add(self, at: int, lanes: Lanes) -> None:
        if at in self._fragments:
            lanes = np.union1d(self.numbers(self._fragments[at]), self.numbers(lanes))
        self._fragments[at] = ALL if isinstance(lanes, slice) or lanes.size == self.count else lanes

    def _control(self, step: Step, at: int, lanes: Lanes, active: Lanes | None) -> None:
        if active is None:
            self._add(at + 1, lanes)
            return
        rest = np.setdiff1d(self.numbers(lanes), self.numbers(active), assume_unique=True)
        if rest.size:
            self._add(at + 1, rest)
        if step.control == "bra":
            self._add(step.target, active)
            return
        if step.control == "bar":
            self._waiting[active] = True
            self._resume[active] = at + 1
        else:
            self._alive -= np.bincount(self.block[active], minlength=len(self.blocks))
        self._release()

    def _release(self) -> None:
        """Lets go the blocks of which all threads are at a barrier. They must be at one, and none may have ended."""
        waiting = np.bincount(self.block[self._waiting], minlength=len(self.blocks))
        complete = (waiting == self._alive) & (waiting > 0)
        if not complete.any():
            return
        released = np.nonzero(self._waiting & complete[self.block])[0]
        if (waiting[complete] < self.threads).any():
            line = self.steps[int(self._resume[released[0]]) - 1].instruction.line
            raise PtxFault(f"threads of a block have ended while others wait at the barrier of line {line}")
        self.epoch[complete] += 1
        self._waiting[released] = False
        at = self._resume[released].reshape(-1, self.threads)
        if (at != at[:, :1]).any():
            lines = sorted({self.steps[int(resume) - 1].instruction.line for resume in at.ravel()})
            raise PtxFault(f"threads of a block wait at the barriers of lines {' and '.join(map(str, lines))}")
        for resume in np.unique(at):
            self._add(int(resume), released[(at == resume).ravel()])
