"""Pages so far back in a KV cache that 32 bits do not count the elements before them.

    python -m support.far_pages      runs the kernels on such pages in Triton's interpreter, in this process

The interpreter's own child process gets copies of all memory; here nobody touches the pages in front, which then take
no memory of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from support import gpu_rotary as rotary
from support.gpu_attention import Step
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor

KV = {"heads": 4, "kv_heads": 2, "head_dim": 256}
BLOCK_SIZE = 32
FIRST = 2**31 // (KV["kv_heads"] * BLOCK_SIZE * KV["head_dim"]) + 1
"""Pages in front."""
CACHED = ("k_pages", "v_pages", "k_scales", "v_scales")


def push_back(memory: Memory, tensors: dict[str, Tensor]) -> None:
    """Puts FIRST pages of zeros before those of the cache, in `memory` and in `tensors`."""
    for name in [name for name in CACHED if name in tensors]:
        old = memory.blocks.pop(name)
        data = np.zeros((FIRST + len(old.data), *old.data.shape[1:]), old.data.dtype)
        data[FIRST:] = old.data
        tensors[name] = memory._add(name, data, old.tensor.dtype)


class FarStep(Step):
    """Attention over pages that lie behind FIRST others."""

    def memory(self) -> tuple[Memory, dict[str, Tensor], Tensor, Tensor | None]:
        memory, inputs, out, workspace = super().memory()
        push_back(memory, inputs)
        tables = memory.blocks["block_tables"].data
        tables[tables >= 0] += FIRST
        return memory, inputs, out, workspace


def attend(device: Any, sm: int = 80) -> None:
    """A prompt, and a decode in two splits."""
    FarStep(((5, 40), (1, 600)), **KV, block_size=BLOCK_SIZE, int8_kv=True, sm=sm).check(device)


def write(device: Any) -> None:
    """K and V of a few tokens."""
    memory, attrs = Memory(), {**KV, "rotary_dim": 64}
    inputs, outputs = rotary.make(memory, 5, attrs, "float16", "int8")
    push_back(memory, inputs)
    slots = memory.blocks["slots"].data
    slots += FIRST * BLOCK_SIZE
    rotary.run(device, memory, (inputs, {**inputs, "q": outputs["q"]}), attrs)
    for name in CACHED:
        memory.blocks[name].data = memory.blocks[name].data[FIRST:]
    memory.blocks["slots"].data = memory.blocks["slots"].data - FIRST * BLOCK_SIZE
    rotary.check(memory, attrs)


class Here:
    """As Interpreter, without another process and without copies."""

    def __init__(self) -> None:
        from tensorwright.plugins.gpu import interpret_child

        self._child = interpret_child
        interpret_child._watch()
        interpret_child._compute_bfloat16()
        interpret_child._aligned_copy = lambda data: data  # type: ignore[assignment]

    def run(self, specs: Iterable[KernelSpec], launches: Sequence[Launch], memory: Memory) -> None:
        known = {(spec.kernel, spec.variant): spec for spec in specs}
        blocks = {block.tensor.address: block.data for block in memory.blocks.values()}
        self._child.run([(known[launch.kernel, launch.variant], launch) for launch in launches], blocks)


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1", "Triton decides at import whether it interprets"
    here = Here()
    write(here)
    attend(here)
    print("all found")


if __name__ == "__main__":
    main()
