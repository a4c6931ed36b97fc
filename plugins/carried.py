"""Holds what the operations share that carry a state per sequence: their operands of the batch, and the loop over it.

An operation reads rows of the ragged batch, the batch's metadata, the states of all sequences and its weights. Its
results are rows and the states. The instruction has the name, the operands and the attributes of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.ir.records import Infer, Instruction, Op, Reference, metadata, rows, shared, state

BATCH = (metadata("seq_starts"), metadata("context_lens"), metadata("state_slots"), state("state"))


def make_op(
    name: str,
    inputs: Sequence[str],
    weights: Sequence[str],
    attrs: Mapping[str, str],
    infer: Infer,
    reference: Reference,
) -> Op:
    """Returns the record of an operation on `inputs`, rows [T, ...], and on `weights`.

    The attributes are `attrs` and the number of the state. A "?" at the end of a name says that it may be absent.
    """
    return Op(
        name,
        operands=(*map(rows, inputs), *BATCH, *(shared(w, wide=True) for w in weights)),
        attrs={"state": "int", **attrs},
        results=(rows("y"), state("state")),
        stages=("cached",),
        infer=infer,
        reference=reference,
        sequence_aware=True,
        sums=True,
    )


def make_instruction(op: Op, number: int, words: Mapping[str, tuple[str | bool, ...]] | None = None) -> Instruction:
    """Returns the record of the instruction that computes `op`. Its weights are raw vectors."""
    operands = [shared(o.name + "?" * o.optional, RAW) if o.kind == "shared" else o for o in op.operands]
    return Instruction(
        op.name,
        number=number,
        operands=tuple(operands),
        results=(rows("y", narrow=True), state("state")),
        attrs=op.attrs,
        words=dict(words or {}),
        reference=op.reference,
        sequence_aware=True,
        sums=True,
    )


def advance_batch(
    batch: Sequence[Any], zero: np.ndarray, y: np.ndarray, advance: Callable[[slice, np.ndarray], np.ndarray]
) -> Any:
    """Computes every sequence of the batch into its rows of `y` [T, ...], and returns the states behind them.

    batch: the operands of BATCH; the states are a StateCache of one array with the shape of `zero`, which is the state
    before a sequence's first token. advance: computes the rows of one sequence, and changes its state in place.
    """
    *metadata_of_batch, states = batch
    after = {}
    for slot, begin, end, (before,) in states.read_batch(*metadata_of_batch, (zero,)):
        kept = before.copy()
        y[begin:end] = advance(slice(begin, end), kept)
        after[slot] = (kept,)
    return states.write(after)
