"""Counts the instructions of a kernel's inner loop in its machine code, and limits them.

An inner loop is a backward branch with no other one between it and its target. A kernel may have several, such as those
of the first and last tiles, which need masks. The one that counts is the shortest that multiplies on tensor cores, or
that multiplies at all where none does. The disassembler is Triton's nvdisasm.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu import budget
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.compile import import_triton
from tensorwright.plugins.gpu.launch import KernelSpec
from tensorwright.plugins.paged_attention import launch as attention

SMS = (80, 90)
"""The SMs whose loops are counted."""
_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
_TENSOR = re.compile(r"\b(HMMA|IMMA|HGMMA)\b")
_MULTIPLY = re.compile(r"\b(FFMA|HFMA2|FMUL)\b")


@dataclass(frozen=True)
class Loop:
    """The limit of one inner loop. step_bytes: what the block loads from global memory in one round of the loop.
    limit: the most instructions of one warp in it, on each of SMS. spills: the most bytes that a thread spills."""

    name: str
    spec: KernelSpec
    step_bytes: int
    limit: int
    spills: int = 0


def loops(sm: int) -> list[Loop]:
    """Returns the loops that bound a decode step: over pages, and over the weights of quantized products."""
    shown = dict(budget.shown(sm))
    found = []
    forms = (("heads of 128", 2, 0, 450, 0), ("int8 cache", 1, 0, 1400, 32), ("fp8 cache", 1, 1, 1400, 0))
    for form, kv_bytes, e4m3, limit, spills in forms:
        attrs = {"heads": 32, "kv_heads": 8, "head_dim": 128, "scale": 0.0884, "window": 0, "softcap": 0.0,
                 "has_sinks": 0, "int8_kv": int(kv_bytes == 1), "e4m3_kv": e4m3}  # fmt: skip
        spec = attention.kernels(attrs, {"q": "bfloat16", "work": "int32"}, sm)[1]
        positions = spec.size("BLOCK_N")
        scales = 4 * 2 * positions if kv_bytes == 1 else 0
        found.append(Loop(f"attention, decode, {form}", spec, 2 * positions * 128 * kv_bytes + scales, limit, spills))
    for rows, limit in ((8, 350), (16, 380), (64, 300)):
        name = f"int4 GEMM, groups of 128, {rows} rows"
        spec = shown[name]
        words = spec.size("DEPTH") * spec.size("COLUMNS") // 2
        found.append(Loop(name, spec, words + 2 * spec.size("COLUMNS"), limit))
    return found


def count(kernel: CompiledKernel) -> int:
    """Returns the instructions of the inner loop. Raises KernelError if there is none that multiplies."""
    inner = list(_inner_loops(_disassembled(kernel.cubin)))
    for wanted in (_TENSOR, _MULTIPLY):
        lengths = [len(loop) for loop in inner if any(wanted.search(text) for text in loop)]
        if lengths:
            return min(lengths)
    raise KernelError(f"{kernel.kernel} ({kernel.variant}) on SM {kernel.sm} has no loop that multiplies")


def check(loop: Loop, kernel: CompiledKernel) -> int:
    """Returns the instructions. Raises KernelError for more of them, or of spilt bytes, than the loop may have."""
    found = count(kernel)
    if found > loop.limit or kernel.spill_bytes > loop.spills:
        raise KernelError(
            f"{loop.name} on SM {kernel.sm}: the inner loop must have at most {loop.limit} instructions and spill "
            f"{loop.spills} bytes, got {found} and {kernel.spill_bytes}"
        )
    return found


def _disassembled(cubin: bytes) -> str:
    import_triton()
    from triton import knobs

    with tempfile.TemporaryDirectory(prefix="tensorwright-cubin-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


def _inner_loops(code: str) -> Iterator[list[str]]:
    """Yields the instructions of each loop that has no loop inside it."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    ends: list[tuple[int, int]] = []
    for line in code.splitlines():
        label, instruction = _LABEL.match(line), _INSTRUCTION.match(line)
        if label:
            labels[label.group(1)] = len(instructions)
        elif instruction:
            branch = _BRANCH.search(instruction.group(1))
            if branch and branch.group(1) in labels:
                ends.append((labels[branch.group(1)], len(instructions)))
            instructions.append(instruction.group(1))
    for begin, end in ends:
        if not any(begin <= other and last <= end and (other, last) != (begin, end) for other, last in ends):
            yield instructions[begin : end + 1]
