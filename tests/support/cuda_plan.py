"""Reads plans of target cuda strictly, and evaluates them: the leaf that a step takes, its grids and its integers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MAGIC = b"TWCUDAPL"
DTYPES = ("float32", "bfloat16", "float16")
SLOT, WEIGHT, METADATA, PAGES, WORKSPACE, INTEGER, FLOAT, STATES, ABSENT = 0, 1, 2, 3, 4, 5, 6, 7, 255
METADATA_NAMES = ("token_ids", "positions", "seq_starts", "context_lens", "logit_rows")


@dataclass(frozen=True)
class Argument:
    kind: int
    a: int
    b: float


@dataclass(frozen=True)
class Launch:
    kernel: int
    grid: tuple[int, ...]
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Product:
    """m: an expression; its value in what `chosen` returns."""

    m: int
    n: int
    k: int
    stride: int
    dtype: str
    out_dtype: str
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Node:
    """Of kind 0 a branch (condition, if true, if false), 1 launches and products, 2 a refusal."""

    kind: int
    branch: tuple[int, int, int] = (0, 0, 0)
    work: tuple[Launch | Product, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Instruction:
    text: str
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Kernel:
    name: str
    num_warps: int
    shared_bytes: int
    parameters: tuple[int, ...]
    cubin: bytes


@dataclass(frozen=True)
class Heads:
    """By the names of plan_file.py."""

    first_feature: int
    first: int
    logits_slot: int
    feature_layer: int
    feature_width: int
    attend: bool
    first_draw: int
    tokens_slot: int


@dataclass
class CudaPlan:
    """The content of a plan, by the names of plan_file.py."""

    facts: dict[str, Any] = field(default_factory=dict)
    groups: tuple[tuple[int, int], ...] = ()
    layers: tuple[tuple[int, tuple[int, ...]], ...] = ()
    states: tuple[int, ...] = ()
    slots: tuple[tuple[int, int], ...] = ()
    weights: tuple[tuple[int, int], ...] = ()
    kernels: tuple[Kernel, ...] = ()
    expressions: tuple[tuple[int, int, int], ...] = ()
    instructions: tuple[Instruction, ...] = ()
    logits_slot: int = 0
    first_draw: int = 0
    """The first instruction that draws tokens, or how many there are."""
    tokens_slot: int = 0
    heads: Heads | None = None

    @property
    def draws_end(self) -> int:
        """Where the instructions of the model and of drawing end."""
        return len(self.instructions) if self.heads is None else self.heads.first_feature


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found if len(found) > 1 else found[0]

    def bytes(self) -> bytes:
        size = self.take("I")
        found = self.data[self.at : self.at + size]
        assert len(found) == size, "the file ends early"
        self.at += size
        return found

    def text(self) -> str:
        return self.bytes().decode()

    def list(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(item() for _ in range(self.take("I")))


def read_plan(source: bytes | Path) -> CudaPlan:
    """Reads a whole plan; anything left over or missing is an AssertionError or a struct.error."""
    data = source if isinstance(source, bytes) else source.read_bytes()
    r = _Reader(data)
    assert r.take("8s") == MAGIC
    assert r.take("I") == 3
    assert r.take("Q") == len(data)
    assert r.take("I") == zlib.crc32(data[r.at :])
    plan = CudaPlan()
    for name in ("sm", "vocab_size", "max_seq_len", "block_size"):
        plan.facts[name] = r.take("I")
    plan.facts["dtype"] = DTYPES[r.take("I")]
    plan.facts["weights_bytes"] = r.take("Q")
    plan.facts["max_step"] = r.take("3I")
    plan.facts["workspace_bytes"] = r.take("Q")
    plan.groups = r.list(lambda: r.take("2I"))
    plan.layers = r.list(lambda: (r.take("I"), r.list(lambda: r.take("Q"))))
    plan.states = r.list(lambda: r.take("Q"))
    plan.slots = r.list(lambda: r.take("IQ"))
    plan.weights = r.list(lambda: r.take("2Q"))
    plan.kernels = r.list(lambda: Kernel(r.text(), *r.take("2I"), r.list(lambda: r.take("I")), r.bytes()))
    plan.expressions = r.list(lambda: r.take("I2q"))
    first = r.take("I")
    plan.heads = None if first == 2**32 - 1 else Heads(first, *r.take("4I"), bool(r.take("I")), *r.take("2I"))
    plan.instructions = r.list(lambda: _instruction(r))
    plan.logits_slot = r.take("I")
    first, plan.tokens_slot = r.take("2I")
    plan.first_draw = plan.draws_end if first == 2**32 - 1 else first
    assert r.at == len(data), "something follows the plan"
    _check(plan)
    return plan


def _instruction(r: _Reader) -> Instruction:
    return Instruction(r.text(), r.list(lambda: _node(r)))


def _node(r: _Reader) -> Node:
    kind = r.take("I")
    if kind == 0:
        return Node(0, branch=r.take("3I"))
    if kind == 1:
        return Node(1, work=r.list(lambda: _work(r)))
    assert kind == 2, kind
    return Node(2, why=r.text())


def _work(r: _Reader) -> Launch | Product:
    if r.take("I") == 1:
        m, n, k, stride, dtype, out_dtype = r.take("6I")
        args = tuple(Argument(*r.take("Iqd")) for _ in range(5))
        return Product(m, n, k, stride, DTYPES[dtype], DTYPES[out_dtype], args)
    return Launch(r.take("I"), r.take("3I"), r.list(lambda: Argument(*r.take("Iqd"))))


def _check(plan: CudaPlan) -> None:
    """What a runtime relies on: each number names something that exists, and trees and expressions have no circles."""
    for number, (op, a, b) in enumerate(plan.expressions):
        assert op <= 12
        assert op in (0, 1) or max(a, b) < number
    for offset, size in plan.weights:
        assert offset % 256 == 0
        assert offset + size <= plan.facts["weights_bytes"]
    if plan.heads is not None:
        assert plan.first_draw <= plan.heads.first_feature <= plan.heads.first < len(plan.instructions)
        (pages,) = plan.layers[plan.heads.feature_layer][1]
        assert pages % (plan.heads.feature_width * plan.facts["block_size"]) == 0
    for instruction in plan.instructions:
        for number, node in enumerate(instruction.nodes):
            assert node.kind != 0 or number < min(node.branch[1:]) <= max(node.branch[1:]) < len(instruction.nodes)
            for work in node.work:
                if isinstance(work, Product):
                    assert work.stride >= work.n
                    continue
                assert len(work.args) + 2 == len(plan.kernels[work.kernel].parameters)
                assert max(work.grid) < len(plan.expressions)


def evaluate(expressions: Sequence[tuple[int, int, int]], number: int, values: Sequence[int]) -> int:
    """The value of an expression in a step. values: those of the variables."""
    op, a, b = expressions[number]
    if op == 0:
        return a
    if op == 1:
        return values[a]
    x, y = evaluate(expressions, a, values), 0 if op == 9 else evaluate(expressions, b, values)
    results: Mapping[int, Callable[[], int]] = {
        2: lambda: x + y, 3: lambda: x - y, 4: lambda: x * y, 5: lambda: x // y, 6: lambda: x % y,
        7: lambda: min(x, y), 8: lambda: max(x, y), 9: x.bit_length, 10: lambda: int(x < y), 11: lambda: int(x <= y),
        12: lambda: int(x == y),
    }  # fmt: skip
    return results[op]()


def chosen(plan: CudaPlan, instruction: Instruction, values: Sequence[int]) -> tuple[Launch | Product, ...]:
    """The launches and products of a step, with the values of grids and integers in place of expressions."""
    node = instruction.nodes[0]
    while node.kind == 0:
        condition, if_true, if_false = node.branch
        node = instruction.nodes[if_true if evaluate(plan.expressions, condition, values) else if_false]
    assert node.kind == 1, node.why
    return tuple(_valued(plan, work, values) for work in node.work)


def _valued(plan: CudaPlan, work: Launch | Product, values: Sequence[int]) -> Launch | Product:
    if isinstance(work, Product):
        return replace(work, m=evaluate(plan.expressions, work.m, values))

    def known(arg: Argument) -> Argument:
        value = evaluate(plan.expressions, arg.a, values) if arg.kind == INTEGER else arg.a
        return Argument(arg.kind, value, arg.b)

    grid = tuple(evaluate(plan.expressions, size, values) for size in work.grid)
    return Launch(work.kernel, grid, tuple(known(arg) for arg in work.args))
