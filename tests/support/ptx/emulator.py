"""Runs launches on emulated machine code: in place of Triton's interpreter or of a GPU, with the same `run`.

    emulator = Emulator(90, cache=folder)
    emulator.run(kernels(...), launches(...), memory)      # memory: plugins/gpu/interpret.py's

The code is what `compile_kernel` compiles ahead of time, for SM 80 or 90, as an engine ships it: its PTX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

import support.ptx.accesses
import support.ptx.arithmetic
import support.ptx.matrices
import support.ptx.moves
import support.ptx.warpgroups
import support.ptx.warps  # noqa: F401  The modules fill the table of instructions.
from support.ptx.accesses import bytes_of
from support.ptx.fault import PtxFault
from support.ptx.machine import Machine
from support.ptx.memory import GlobalMemory
from support.ptx.table import decode
from support.ptx.text import Program, parse
from support.ptx.threads import WARP
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.compile import compile_kernel
from tensorwright.plugins.gpu.interpret import ADDRESS_ALIGNMENT, Memory
from tensorwright.plugins.gpu.launch import SCRATCH, KernelSpec, Launch, kernel_values

SMS = (80, 90)
"""The SMs whose code is emulated: one with the tensor instructions of a warp, one with those of a group of warps."""
MAX_THREADS = 8192
"""Threads that run at once. More make larger arrays; fewer, more of them."""
MAX_GRANULE = 16


class Emulator:
    """edit: changes the PTX before it runs, for bugs that are planted. executed: the instructions run so far."""

    def __init__(self, sm: int, cache: Path | None = None, edit: Callable[[str], str] | None = None):
        if sm not in SMS:
            raise PtxFault(f"code for SM {' and '.join(map(str, SMS))} is emulated, not for {sm}")
        self.sm, self.cache, self.edit = sm, cache, edit
        self.executed = 0

    def run(self, specs: Iterable[KernelSpec], launches: Sequence[Launch], memory: Memory) -> None:
        """Runs the launches in order. `memory` then holds the results. Raises KernelError, with the line of the PTX."""
        known = {(spec.kernel, spec.variant): spec for spec in specs}
        for launch in launches:
            if (launch.kernel, launch.variant) not in known:
                raise PtxFault(f"{launch.kernel} ({launch.variant}) is started, and no specification has it")
        for launch in launches:
            kernel = compile_kernel(known[launch.kernel, launch.variant], self.sm, cache=self.cache)
            self.start(kernel, launch, memory)

    def start(self, kernel: CompiledKernel, launch: Launch, memory: Memory) -> None:
        """Runs one launch of compiled code."""
        program = parse(self.edit(kernel.ptx) if self.edit else kernel.ptx)
        if program.threads != kernel.num_warps * WARP:
            raise PtxFault(f"{program.name} has {program.threads} threads, and {kernel.num_warps} warps are started")
        blocks = sorted(memory.blocks.values(), key=lambda block: block.tensor.address)
        raw = [(block.tensor.address, np.ascontiguousarray(block.data).view(np.uint8).ravel()) for block in blocks]
        end = raw[-1][0] + raw[-1][1].size
        constants = np.frombuffer(program.constant_bytes, np.uint8)
        raw.append((end + -end % ADDRESS_ALIGNMENT + ADDRESS_ALIGNMENT, constants))
        of_global, of_shared = (_granule(program, space) for space in ("global", "shared"))
        space = GlobalMemory(raw, of_global, kernel.num_warps)
        values = (*kernel_values(kernel.parameters, launch), *(0 for kind in kernel.parameters if kind == SCRATCH))
        steps = decode(program, space)
        numbers = np.arange(int(np.prod(launch.grid)))
        at_once = max(1, MAX_THREADS // program.threads)
        for first in range(0, len(numbers), at_once):
            part = numbers[first : first + at_once]
            machine = Machine(program, steps, launch.grid, part, kernel.shared_bytes, values, space, of_shared)
            machine.run()
            self.executed += machine.executed
        for index, block in enumerate(blocks):
            block.data = space.content(index).copy().view(block.data.dtype).reshape(block.data.shape)


def _granule(program: Program, space: str) -> int:
    """The bytes that the program's smallest write of a memory has: no two writes share a part of so many."""
    sizes = [size for where, size in map(bytes_of, program.instructions) if where == space]
    return min(sizes, default=MAX_GRANULE)
