"""Defines the record of an operation, the one declaration from which every table of operations is derived.

`Op` describes an operation of a graph at the stages "traced", "fused" and "cached". `Instruction` describes an
operation of stage "lowered", which is one instruction of target cpu's plan; the C++ table of instructions
(runtime/core/plan/op_table.h) is generated from these records. The record of a primitive stands in ir/ops.py. The
record of any other operation stands in the folder of its plugin, beside the functions `infer` and `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tensorwright.engine_format.weight_layouts import RAW, WeightLayout
from tensorwright.ir.graph import Dim

Types = list[tuple[str, tuple[Dim, ...]]]
"""The element type and the shape of every result."""
Infer = Callable[[list[Any], dict[str, Any]], Types]
Reference = Callable[[list[Any], dict[str, Any], str], list[Any]]
Across = Callable[[list[list[Any]], list[dict[str, Any]]], list[Any]]

ROWS, SHARED, METADATA, CACHE = "rows", "shared", "metadata", "cache"
Kind = Literal[
    "", "elementwise", "reduction", "norm", "product", "lookup", "gate", "head product", "mixture", "recurrence"
]

MAX_INS, MAX_OUTS, MAX_WEIGHTS, MAX_INTS, MAX_FLOATS = 4, 2, 2, 8, 4
"""The most parts of one instruction: the array sizes of `Instruction` in runtime/core/plan/plan_format.h."""


@dataclass(frozen=True)
class Operand:
    """One operand or result.

    kind: "rows" is an activation with one row for each token; "shared" is the same for all rows, a weight in an
    instruction; "metadata" is an input of the batch; "cache" is a KV cache or the states of a recurrent layer. Only
    rows and weights stand in a plan.
    layout: how an instruction's weight is stored, where a gated product stores it gated. The weight names the format.
    narrow: an instruction's result that may be of the activation type, where only matrix products read it.
    wide: an operand that stays float32 when activations have fewer bits: a norm's weight, or a matrix before it is
    quantized.
    """

    name: str
    kind: str
    optional: bool = False
    layout: WeightLayout = RAW
    narrow: bool = False
    wide: bool = False


def _operand(name: str, kind: str, **more: Any) -> Operand:
    return Operand(name.removesuffix("?"), kind, name.endswith("?"), **more)


def rows(name: str, *, narrow: bool = False) -> Operand:
    """Declares an activation. A "?" at the end of any operand's name says that the operand may be absent."""
    return _operand(name, ROWS, narrow=narrow)


def shared(name: str, layout: WeightLayout = RAW, *, wide: bool = False) -> Operand:
    """Declares a value that is the same for all rows. In an instruction, it is a weight stored in `layout`."""
    return _operand(name, SHARED, layout=layout, wide=wide)


def metadata(name: str) -> Operand:
    """Declares an input of the batch, such as the slots of its tokens."""
    return _operand(name, METADATA)


def cache(name: str) -> Operand:
    """Declares the KV cache of one layer."""
    return _operand(name, CACHE)


def state(name: str) -> Operand:
    """Declares the states that one recurrent layer keeps for all sequences, a value of type "state". The operation has
    the attribute `state`, the layer's number among `state_layers` of the facts."""
    return _operand(name, CACHE)


Y = (rows("y"),)


@dataclass(frozen=True)
class Op:
    """The rules of one operation, and its definition.

    operands: the operands in order. Optional ones at the end may be left out; in an instruction they are None instead.
    variadic: whether any number of operands may follow.
    attrs: the kind of each attribute that a node must have, by name. optional_attrs: those that a node may have.
    The kinds are int float number bool str dtype dim dims ints expr format layout any, with a "?" behind where None is
    legal.
    results: the results in order; optional ones come last.
    infer: computes the result types from operands and attributes; None if they cannot be computed.
    reference: the definition in numpy; None for an op that torch computes (ir/interpret_ops.py).
    kind: the sort of operation, for passes that treat all operations of one sort alike.
    per_token: whether the result for a token depends on that token alone, and the operation is the same for one
    sequence [1, S, C] and for a batch [tokens, C].
    sequence_aware: whether, at stage "cached", the operation may look past one token, as the batch's metadata allows.
    flat_rows: whether operands of kind "rows" may be vectors, with one number for each token.
    sums: whether the operation adds up many terms, so that a rewrite may change the last bits of its result.
    lowers_to: the instruction that computes the operation, if that has another name.
    across: the definition of an operation that the ranks of a stage compute together: it takes the operands and the
    attributes of every rank, and returns the result of each. ir/interpret_ranks.py runs it.
    moves: whether the operation takes rows from one stage to the next.
    """

    name: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, str] = field(default_factory=dict)
    optional_attrs: Mapping[str, str] = field(default_factory=dict)
    results: tuple[Operand, ...] = Y
    stages: tuple[str, ...] = ("fused", "cached")
    variadic: bool = False
    infer: Infer | None = None
    reference: Reference | None = None
    kind: Kind = ""
    per_token: bool = False
    sequence_aware: bool = False
    flat_rows: bool = False
    sums: bool = False
    lowers_to: str = ""
    across: Across | None = None
    moves: bool = False

    @property
    def meets_ranks(self) -> bool:
        """Whether a rank cannot compute the operation alone."""
        return self.across is not None or self.moves

    @property
    def operand_counts(self) -> tuple[int, int | None]:
        """The least and the largest number of operands; None means that there is no limit."""
        if self.variadic:
            return len(self.operands), None
        least = len(self.operands)
        while least and self.operands[least - 1].optional:
            least -= 1
        return least, len(self.operands)

    @property
    def result_counts(self) -> tuple[int, ...]:
        """The numbers of results that are legal."""
        required = sum(not result.optional for result in self.results)
        return tuple(range(required, len(self.results) + 1))

    def may_lack(self, index: int) -> bool:
        """Returns whether operand `index` may be None."""
        return self.operands[min(index, len(self.operands) - 1)].optional

    @property
    def matrices(self) -> tuple[int, ...]:
        """The positions of the operands that hold matrices: the one that a product multiplies by, that of a head
        product, which holds a matrix for each head, the table that a lookup reads, and all those of a mixture of
        experts, which hold a matrix for each expert."""
        if self.kind not in ("product", "head product", "lookup", "mixture"):
            return ()
        found = [i for i, operand in enumerate(self.operands) if operand.kind == SHARED and not operand.optional]
        return tuple(found if self.kind == "mixture" else found[:1])


@dataclass(frozen=True)
class InPlace:
    """A permission to write the result `result` over one of the operands `over`, in order of preference.

    without: an operand that must be absent for the permission to hold.
    """

    result: str
    over: tuple[str, ...]
    without: str = ""


@dataclass(frozen=True)
class Instruction(Op):
    """One instruction of target cpu's plan: an operation of stage "lowered".

    number: the number in the plan; a number is never used again. Two records may share a number if the layout of a
    weight distinguishes them: `shares_number_of` then names the record that the plan's reader knows.
    attrs: attributes of kind "int" and "float" are stored in this order. Any other one is stored only if `words`
    has it, as its index among the words.
    encode: computes all ints and floats from the attributes instead.
    in_place: the results that may be written over an operand that is not read afterwards.
    numbers: numbers of the definition that the C++ code needs too, by name.
    """

    stages: tuple[str, ...] = ("lowered",)
    optional_attrs: Mapping[str, str] = field(default_factory=lambda: {"buffers": "any"})
    number: int = 0
    shares_number_of: str = ""
    words: Mapping[str, tuple[str | bool, ...]] = field(default_factory=dict)
    encode: Callable[[Mapping[str, Any]], tuple[list[int], list[float]]] | None = None
    in_place: tuple[InPlace, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def operand_counts(self) -> tuple[int, int | None]:
        """The least and the largest number of operands. Both are the same, for absent operands are given as None."""
        return len(self.operands), len(self.operands)

    @property
    def ins(self) -> tuple[Operand, ...]:
        """The operands that are buffers, in the order in which the plan stores them."""
        return tuple(operand for operand in self.operands if operand.kind == ROWS)

    @property
    def weights(self) -> tuple[Operand, ...]:
        """The operands that are weights, in the order in which the plan stores them."""
        return tuple(operand for operand in self.operands if operand.kind == SHARED)

    @property
    def outs(self) -> tuple[Operand, ...]:
        """The results that are buffers."""
        return tuple(result for result in self.results if result.kind == ROWS)

    @property
    def ints(self) -> tuple[str, ...]:
        """The attributes that are stored as ints, in order."""
        return tuple(name for name, kind in self.attrs.items() if kind == "int" or name in self.words)

    @property
    def floats(self) -> tuple[str, ...]:
        """The attributes that are stored as floats, in order."""
        return tuple(name for name, kind in self.attrs.items() if kind == "float")
