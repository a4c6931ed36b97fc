"""Makes a small plan of target cuda by hand, whose kernels a stand-in of the driver runs (fake_libcuda.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorwright.builder.emit.cuda.plan_file import (
    ABSENT,
    FLOAT,
    INTEGER,
    Argument,
    Instruction,
    KvLayerPages,
    Plan,
    PlannedLaunch,
    Product,
    to_bytes,
)
from tensorwright.builder.emit.cuda.sizes import CONSTANT, VARIABLE
from tensorwright.builder.emit.cuda.trace_launches import Branch, Leaf, Refused
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import SCRATCH

VOCAB, BLOCK, MAX_SEQ_LEN, WIDTH = 8, 4, 64, 16
MAX_TOKENS, MAX_SEQS = 64, 32
EQUAL, LESS = 12, 10
"""Numbers of operations of expressions."""
SLOT, WEIGHT, METADATA, PAGES, WORKSPACE, STATES = 0, 1, 2, 3, 4, 7
PARAMETERS = ("*bf16", "*i32", "*i32", "*i8", "*fp32", "i32", "i64", "fp32", SCRATCH, SCRATCH)
DECODE, PREFILL = 3, 5
"""The numbers that the launches of the two paths get as their argument i32."""
DRAW_KERNEL = 1
"""The number of the kernel that draws tokens: it gets the logits, how tokens are drawn, and the tokens."""


def kernel(number: int, parameters: tuple[str, ...]) -> CompiledKernel:
    code = f"kernel {number} {len(parameters)}\0".encode()
    return CompiledKernel(f"k{number}", "v", 90, f"k{number}", 4, 65536, 32, 0, parameters, code, "")


def made_plan(sm: int = 90, states: tuple[int, ...] = ()) -> Plan:
    """Three instructions: a launch that depends on whether all sequences decode, the product of the logits, and a
    launch that draws tokens. states: the bytes of recurrent layers' states, of which the first launch gets the last
    one's and the slots."""
    expressions = (
        (VARIABLE, 0, 0), (VARIABLE, 1, 0), (VARIABLE, 2, 0), (VARIABLE, 3, 0), (VARIABLE, 4, 0), (CONSTANT, 1, 0),
        (EQUAL, 0, 2), (CONSTANT, DECODE, 0), (CONSTANT, PREFILL, 0), (CONSTANT, 60, 0), (LESS, 9, 0),
    )  # fmt: skip
    tokens, rows, seqs, max_blocks, blocks, one, decodes, decode, prefill, _, many = range(11)

    def launch(grid: tuple[int, int, int], number: int) -> PlannedLaunch:
        read = Argument(STATES, len(states) - 1) if states else Argument(SLOT, 0, 64.0)
        args = (
            read, Argument(METADATA, 0), Argument(METADATA, 8 if states else 6), Argument(PAGES, 1),
            Argument(WORKSPACE, 0, 256.0), Argument(INTEGER, number), Argument(INTEGER, blocks),
            Argument(FLOAT, 0, 0.5),
        )  # fmt: skip
        return PlannedLaunch(0, grid, args)

    nodes = (
        Branch(many, 1, 2), Refused("more than 60 tokens"), Branch(decodes, 3, 4),
        Leaf((launch((tokens, one, one), decode),)), Leaf((launch((seqs, max_blocks, one), prefill),)),
    )  # fmt: skip
    operands = (
        Argument(SLOT, 1), Argument(WEIGHT, 0), Argument(WEIGHT, 1), Argument(ABSENT), Argument(SLOT, 2),
    )  # fmt: skip
    product = Product(rows, VOCAB, WIDTH, VOCAB, "bfloat16", "float32", operands)
    drawing = PlannedLaunch(
        DRAW_KERNEL, (rows, one, one), (Argument(SLOT, 2), Argument(METADATA, 7), Argument(SLOT, 3))
    )
    return Plan(
        sm=sm, vocab_size=VOCAB, max_seq_len=MAX_SEQ_LEN, block_size=BLOCK, dtype="bfloat16", weights_bytes=512,
        max_step=(MAX_TOKENS, MAX_SEQS, MAX_SEQS), workspace_bytes=1024, groups=((0, False),),
        layers=(KvLayerPages(0, (64, 128)),), slots=((0, 128), (1, 2 * WIDTH), (1, 4 * VOCAB), (1, 4)),
        weights=((0, 2 * VOCAB * WIDTH), (256, 4 * VOCAB)),
        kernels=(kernel(0, PARAMETERS), kernel(DRAW_KERNEL, ("*fp32", "*i32", "*i32", SCRATCH, SCRATCH))),
        expressions=expressions,
        instructions=(Instruction("layer.0 made", nodes),
                      Instruction("head", (Leaf((product,)),)),
                      Instruction("draw_tokens", (Leaf((drawing,)),))),
        logits_slot=2,
        draws=(2, 3),
        states=states,
    )  # fmt: skip


def write_plan(folder: Path, plan: Plan | None = None) -> tuple[Path, Path]:
    """Returns the files of the plan and of its weights."""
    plan = plan or made_plan()
    weights = (np.arange(plan.weights_bytes) % 251).astype(np.uint8)
    (folder / "sm.plan").write_bytes(to_bytes(plan))
    (folder / "weights.bin").write_bytes(weights.tobytes())
    return folder / "sm.plan", folder / "weights.bin"
