"""Says what a model costs: the bytes of its weights and caches, and the bytes and operations of a step.

`PlannedCosts` asks the plan of target cpu, which counts what its instructions move and compute. `formula.py` counts by
the usual shape of a decoder where there is no plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.runtime.engine import native


@dataclass(frozen=True)
class Work:
    """One instruction of a step. arithmetic: the type whose peak bounds its operations. bytes: what it must move at
    least; weight_bytes: those of them that are weights. operations: a multiply-add counts as two. weights: the format
    of its matrix, such as "int4:g32"; "" without one. size: its rows, or the context of attention: what kernels reach
    grows with it."""

    op: str
    module: str
    arithmetic: str
    bytes: float
    operations: float
    weight_bytes: float = 0.0
    weights: str = ""
    size: float = 1.0


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose KV caches are kept equally long. block_bytes: one block of all of them. window: the positions that
    they look back; 0 means all."""

    block_bytes: int
    window: int = 0


@dataclass(frozen=True)
class StepMemory:
    """The bytes that steps take beside weights and caches. activations: results of operations. scratch: what the
    hungriest instruction uses while it runs."""

    activations: int
    scratch: int


class Costs(Protocol):
    """What a model costs."""

    weights_bytes: int
    block_size: int
    groups: tuple[CacheGroup, ...]
    state_bytes: int
    max_seq_len: int

    def step(self, sequences: Sequence[tuple[int, int]], rows: int) -> list[Work]:
        """Returns the instructions of a step. sequences: (tokens of the step, positions after it) of each. rows: how
        many tokens get logits. Raises InvalidRequestError for a sequence that is longer than the model allows."""

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> StepMemory:
        """Returns what steps up to these limits take."""


class PlannedCosts:
    """The costs of a plan of target cpu, which need not have weights."""

    def __init__(self, plan: bytes):
        self._plan = native.load_module().PlanCosts(plan)
        facts: dict[str, Any] = self._plan.facts()
        self.weights_bytes: int = facts["weights_bytes"]
        self.block_size: int = facts["block_size"]
        pairs = zip(facts["block_bytes"], facts["group_windows"], strict=True)
        self.groups = tuple(CacheGroup(size, window) for size, window in pairs)
        self.state_bytes: int = facts["state_bytes"]
        self.max_seq_len: int = facts["max_seq_len"]

    def step(self, sequences: Sequence[tuple[int, int]], rows: int) -> list[Work]:
        return [
            Work(
                row["op"],
                row["name"],
                row["arithmetic"],
                row["bytes"],
                row["ops"],
                row["weight_bytes"],
                _format(row["weight_dtype"], row["weight_group"]),
                row["size"],
            )
            for row in self._plan.step(list(sequences), rows)
        ]

    def buffers(self) -> tuple[dict[str, Any], ...]:
        """Returns the buffers of the plan: maker, of_rows, offset, bytes, first and last (instructions)."""
        return tuple(self._plan.buffers())

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> StepMemory:
        return StepMemory(**self._plan.memory(tokens, rows, sequences, threads))


MATRICES = ("matmul", "experts", "head_products")
"""Parts of the names of instructions that multiply by stored matrices."""


def is_matrix(work: Work) -> bool:
    """Returns whether an instruction multiplies by a stored matrix."""
    return work.weight_bytes > 0 and any(name in work.op for name in MATRICES)


_NAMES = {number: name for name, number in NUMBERS.items()}


def _format(dtype: int, group: int) -> str:
    """Returns the name of a matrix's type and group."""
    if dtype < 0:
        return ""
    return f"{_NAMES[dtype]}:g{group}" if group else _NAMES[dtype]


def sequence_bytes(costs: Costs, positions: int) -> int:
    """Returns the bytes that a sequence of so many positions holds: blocks of the KV cache, and states. Layers with a
    window keep the blocks that it touches."""
    total = costs.state_bytes
    for group in costs.groups:
        kept = positions if group.window == 0 else min(positions, group.window + costs.block_size - 1)
        total += math.ceil(kept / costs.block_size) * group.block_bytes
    return total


def token_bytes(costs: Costs) -> float:
    """Returns the bytes of the KV cache that one more position takes while no window is full, without the waste of a
    block that is not full."""
    return sum(group.block_bytes for group in costs.groups) / costs.block_size
