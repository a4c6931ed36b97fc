"""Makes a small plan of target cuda by hand, whose kernels a stand-in of the driver runs (fake_libcuda.py)."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.builder.emit.cuda.plan_file import (
    ABSENT,
    FLOAT,
    INTEGER,
    Argument,
    Heads,
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

FEATURE_KERNEL, HEADS_KERNEL = 2, 3
"""The numbers of the kernels of heads: the first gets the hidden states, the slots and the features, the second the
features, the slots and the slots behind the rows."""
DRAFT_VOCAB = 4


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


def with_heads(plan: Plan) -> Plan:
    """Adds an instruction that computes features, and three of heads: a launch, the product of their logits, and a
    launch that draws tokens."""
    rows, one, features = 1, 5, Argument(PAGES, 256 * len(plan.layers))
    pointers = ("*bf16", "*i32", "*bf16", SCRATCH, SCRATCH)
    put = PlannedLaunch(FEATURE_KERNEL, (0, one, one), (Argument(SLOT, 0), Argument(METADATA, 5), features))
    own = PlannedLaunch(HEADS_KERNEL, (rows, one, one), (features, Argument(METADATA, 5), Argument(METADATA, 8)))
    slot = len(plan.slots)
    operands = (Argument(SLOT, 1), Argument(WEIGHT, 0), Argument(ABSENT), Argument(ABSENT), Argument(SLOT, slot))
    product = Product(rows, DRAFT_VOCAB, WIDTH, DRAFT_VOCAB, "bfloat16", "float32", operands)
    drawing = PlannedLaunch(
        DRAW_KERNEL, (rows, one, one), (Argument(SLOT, slot), Argument(METADATA, 7), Argument(SLOT, slot + 1))
    )
    first = len(plan.instructions)
    return replace(
        plan,
        layers=(*plan.layers, KvLayerPages(0, (2 * BLOCK * WIDTH,))),
        slots=(*plan.slots, (1, 4 * DRAFT_VOCAB), (1, 4)),
        kernels=(
            *plan.kernels,
            kernel(FEATURE_KERNEL, pointers),
            kernel(HEADS_KERNEL, ("*bf16", "*i32", "*i32", SCRATCH, SCRATCH)),
        ),
        instructions=(
            *plan.instructions,
            Instruction("features", (Leaf((put,)),)),
            Instruction("heads own", (Leaf((own,)),)),
            Instruction("heads logits", (Leaf((product,)),)),
            Instruction("heads draw", (Leaf((drawing,)),)),
        ),
        heads=Heads(first, first + 1, slot, len(plan.layers), WIDTH, True, first + 3, slot + 1),
    )


def ints(address: int, count: int) -> np.ndarray:
    """Returns integers of the stand-in's memory."""
    return np.frombuffer(ctypes.string_at(address, 4 * count), np.int32)


def step_of(lengths: list[int], *, context: int = 0) -> tuple[Any, ...]:
    """A step in which sequence s has lengths[s] tokens, behind `context` others, in the blocks s, s + 1, ..."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    width = -(-(max(lengths) + context) // BLOCK)
    tables = np.full((len(lengths), width), -1, np.int32)
    for s, length in enumerate(lengths):
        for block in range(-(-(length + context) // BLOCK)):
            tables[s, block] = s + block * len(lengths)
        for position in range(context, context + length):
            ids.append(1 + s % (VOCAB - 1))
            positions.append(position)
            slots.append(int(tables[s, position // BLOCK]) * BLOCK + position % BLOCK)
        starts.append(len(ids))
    rows = [end - 1 for end in starts[1:]]
    return ids, positions, starts, [length + context for length in lengths], rows, [(tables, slots)]


def write_plan(folder: Path, plan: Plan | None = None) -> tuple[Path, Path]:
    """Returns the files of the plan and of its weights."""
    plan = plan or made_plan()
    weights = (np.arange(plan.weights_bytes) % 251).astype(np.uint8)
    (folder / "sm.plan").write_bytes(to_bytes(plan))
    (folder / "weights.bin").write_bytes(weights.tobytes())
    return folder / "sm.plan", folder / "weights.bin"
