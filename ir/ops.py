"""Keeps the table of all operations: their stages, operands, attributes and result types.

This module holds the records of primitives, which torch computes, and the table of all records. The import of
`tensorwright.plugins.registry` registers the plugins' records. The tracer, the verifier, the parser and the interpreter
read the table. The functions here raise RuntimeError before the plugins are registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tensorwright.errors import GraphError
from tensorwright.ir import shape_rules as rules
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.records import Infer, Instruction, Op, Operand, Types, rows, shared

STAGES = ("traced", "fused", "cached", "lowered")

UNARY_FLOAT = ("rsqrt", "sqrt", "exp", "log", "cos", "sin", "tanh", "sigmoid", "silu", "erf", "softplus", "expm1")
UNARY_ANY = ("neg", "relu", "abs", "square")
ARITHMETIC = ("add", "sub", "mul", "pow", "maximum", "minimum", "floor_div", "remainder")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SUMMING_REDUCTIONS = ("mean", "sum")
REDUCTIONS = (*SUMMING_REDUCTIONS, "amax", "any", "all")


@dataclass
class _Table:
    """All records by name. `graph` and `lowered` are two tables, for one name may stand for an operation in both."""

    graph: dict[str, Op] = field(default_factory=dict)
    lowered: dict[str, Instruction] = field(default_factory=dict)
    make_cache: Callable[..., Any] | None = None


_primitives: dict[str, Op] = {}
_plugins: _Table | None = None


def _op(name: str, operands: int | tuple[Operand, ...], infer: Infer | None = None, **more: Any) -> None:
    if isinstance(operands, int):
        operands = tuple(rows(f"x{i}") for i in range(operands))
    _primitives[name] = Op(name, operands, infer=infer, **{"stages": STAGES[:3], **more})


def _declare_arithmetic() -> None:
    each: dict[str, Any] = {"kind": "elementwise", "per_token": True}
    for name in UNARY_FLOAT:
        _op(name, 1, rules.unary_float, **each)
    for name in UNARY_ANY:
        _op(name, 1, rules.same_as_input, **each)
    for name in ARITHMETIC:
        _op(name, 2, rules.arithmetic, **each)
    for name in COMPARISONS:
        _op(name, 2, rules.comparison, **each)
    _op("div", 2, rules.division, **each)
    _op("where", 3, rules.where, **each)
    for name, count in (("logical_and", 2), ("logical_or", 2), ("logical_not", 1)):
        _op(name, count, rules.comparison, **each)
    _op("gelu", 1, rules.unary_float, attrs={"approximate": "str"}, **each)
    _op("cast", 1, rules.cast, attrs={"dtype": "dtype"}, **each)
    _op("clamp", 1, rules.same_as_input, attrs={"min": "number?", "max": "number?"}, **each)
    for name in REDUCTIONS:
        attrs = {"dims": "ints", "keepdim": "bool"}
        _op(name, 1, rules.REDUCE[name], attrs=attrs, kind="reduction", sums=name in SUMMING_REDUCTIONS)
    _op("softmax", 1, rules.unary_float, attrs={"dim": "int"}, sums=True)
    _op("cumsum", 1, rules.cumsum, attrs={"dim": "int"}, sums=True)
    found = (rows("values"), rows("indices"))
    _op("topk", 1, rules.topk, attrs={"dim": "int", "k": "int"}, results=found)
    _op("gather", 2, rules.gather, attrs={"dim": "int"})
    _op("scatter", 2, rules.scatter, attrs={"dim": "int", "value": "number"})
    _op("matmul", 2, rules.matmul, kind="product", sums=True)
    linear = (rows("x"), shared("w"), shared("bias?"))
    _op("linear", linear, rules.linear, kind="product", per_token=True, sums=True)
    table = (shared("table"), rows("ids"))
    _op("embedding", table, rules.embedding, optional_attrs={"scale": "float", "first": "int"}, kind="lookup",
        flat_rows=True)  # fmt: skip


def _declare_shapes_and_sources() -> None:
    _op("input", 0, stages=STAGES)
    _op("weight", 0, attrs={"expr": "expr"}, optional_attrs={"layout": "layout"}, stages=STAGES)
    _op("constant", 0, attrs={"value": "any"}, stages=STAGES)
    _op("view", 1, rules.view, attrs={"shape": "dims"})
    _op("transpose", 1, rules.transpose, attrs={"dim0": "int", "dim1": "int"})
    _op("permute", 1, rules.permute, attrs={"dims": "ints"})
    _op("unsqueeze", 1, rules.unsqueeze, attrs={"dim": "int"})
    _op("squeeze", 1, rules.squeeze, attrs={"dim": "int"})
    _op("expand", 1, rules.expand, attrs={"shape": "dims"})
    _op("concat", 1, rules.concat, attrs={"dim": "int"}, variadic=True)
    _op("slice", 1, rules.slice_, attrs={"dim": "int", "start": "dim", "end": "dim", "step": "int"})
    _op("select", 1, rules.select, attrs={"dim": "int", "index": "dim"})
    _op("index", (rows("x"), rows("ids?")), rules.index, variadic=True)
    _op("arange", 0, rules.arange, attrs={"start": "dim", "end": "dim", "step": "int", "dtype": "dtype"})
    _op("full", 0, rules.full, attrs={"shape": "dims", "value": "any", "dtype": "dtype"})


_declare_arithmetic()
_declare_shapes_and_sources()

ELEMENTWISE = tuple(op.name for op in _primitives.values() if op.kind == "elementwise")


def register_plugins(records: Iterable[Op], make_cache: Callable[..., Any]) -> None:
    """Puts the plugins' records into the table; `make_cache` gives an empty KV cache of one layer for the interpreter.

    Raises ValueError if two records have one name at one stage, or two instructions have one number.
    """
    global _plugins
    table = _Table(dict(_primitives), {}, make_cache)
    numbers: dict[int, str] = {}
    for record in records:
        half: dict[str, Any] = table.lowered if isinstance(record, Instruction) else table.graph
        if half.setdefault(record.name, record) is not record:
            raise ValueError(f"two records are called {record.name}")
        if not isinstance(record, Instruction) or record.shares_number_of:
            continue
        if numbers.setdefault(record.number, record.name) != record.name:
            raise ValueError(f"{record.name} and {numbers[record.number]} both have the number {record.number}")
    _plugins = table


def _table() -> _Table:
    if _plugins is None:
        raise RuntimeError("the table of operations lacks the plugins' records: import tensorwright.plugins.registry")
    return _plugins


def all_records() -> list[Op]:
    """Returns every record: those of the graph, then those of instructions."""
    return [*_table().graph.values(), *_table().lowered.values()]


def instructions() -> dict[str, Instruction]:
    """Returns every instruction of target cpu by name, in the order of their numbers."""
    return dict(sorted(_table().lowered.items(), key=lambda item: (item[1].number, bool(item[1].shares_number_of))))


def make_cache(blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: str, v_dim: int) -> Any:
    """Returns an empty KV cache of one layer, for the interpreter."""
    make = _table().make_cache
    if make is None:
        raise RuntimeError("no plugin makes KV caches")
    return make(blocks, kv_heads, block_size, head_dim, dtype, v_dim)


def summing_ops() -> frozenset[str]:
    """Returns the operations of all stages whose last bits depend on the order of a sum."""
    return frozenset(record.name for record in all_records() if record.sums)


def kind_of(op: str) -> str:
    """Returns the kind in the record of a graph's operation, or "" if the record has none or does not exist."""
    spec = _table().graph.get(op)
    return "" if spec is None else spec.kind


def matrices_of(node: Node) -> list[Value]:
    """Returns the operands that hold the matrices which a node of any stage multiplies by or gathers from."""
    table = _table()
    found = (record.matrices for record in (table.lowered.get(node.op), table.graph.get(node.op)) if record is not None)
    return [node.operand(index) for index in next((indices for indices in found if indices), ())]


def elements_of(node: Node) -> int:
    """Returns how many numbers the matrices have that a node multiplies by."""
    return sum(prod(map(int, value.shape)) for value in matrices_of(node))


def find_spec(op: str, stage: str) -> Op | None:
    """Returns the record of `op` at `stage`, or None if the stage has no such operation."""
    table = _table()
    if stage == "lowered" and op in table.lowered:
        return table.lowered[op]
    spec = table.graph.get(op)
    return spec if spec is not None and stage in spec.stages else None


def op_names(stage: str | None = None) -> list[str]:
    """Returns the names of all ops that are legal at `stage`, or at any stage if `stage` is None."""
    if stage is None:
        return sorted({*_table().graph, *_table().lowered})
    return [name for name in op_names() if find_spec(name, stage) is not None]


def stages_of(op: str) -> list[str]:
    """Returns the stages at which `op` is legal, in order. The list is empty if there is no such op."""
    return [stage for stage in STAGES if find_spec(op, stage) is not None]


def infer(op: str, inputs: Sequence[Value | None], attrs: dict[str, Any]) -> Types:
    """Returns the (dtype, shape) of every result of a primitive or compound op.

    Raises GraphError if the operands do not fit, or the op has no rule ("input", "weight", "constant").
    """
    table = _table().graph
    if op not in table:
        raise GraphError(f"there is no op {op!r}; known: {', '.join(sorted(table))}")
    infer_types = table[op].infer
    if infer_types is not None:
        return [(dtype, tuple(shape)) for dtype, shape in infer_types(list(inputs), attrs)]
    raise GraphError(f"the type of {op} cannot be inferred: say it")


def emit(
    graph: Graph,
    op: str,
    inputs: Sequence[Value | None] = (),
    *,
    scope: str = "",
    name: str = "",
    before: Node | None = None,
    **attrs: Any,
) -> Node:
    """Adds a node like `graph.add`, with the result types inferred from the table."""
    types = infer(op, inputs, attrs)
    names = (name,) if name else ()
    return graph.add(op, inputs, attrs, types, scope=scope, names=names, before=before)
