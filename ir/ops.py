"""The op vocabulary: which operations exist, at which stages, with which operands, attributes and result types.

One table, read by the tracer, the verifier, the parser and the interpreter. Compound ops get their meaning from
tensorwright.plugins; only their place in the stages and their operand counts are said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwright.errors import GraphError
from tensorwright.ir import shape_rules as rules
from tensorwright.ir.graph import Dim, Graph, Node, Value

STAGES = ("traced", "fused", "cached", "lowered")

Types = list[tuple[str, tuple[Dim, ...]]]
Rule = Callable[[list[Any], dict[str, Any]], Types]


@dataclass(frozen=True)
class OpSpec:
    """What is legal for one op.

    inputs: least and most operand count (None: no limit); optional_inputs: positions that may hold None.
    results: the result counts that are legal.
    attrs: name -> kind, all of which a node must have; optional_attrs may be there too.
    kinds: int float number bool str dtype dim dims ints expr any, with "?" where None is legal.
    infer: result types from operands and attributes; None where a plugin says, or nothing can.
    sums: it adds up many terms, so that a rewrite may change the last bits of its result.
    in_place: a result (-1: the last one) and the operands over one of which it may be written, as plan_check.cc allows.
    """

    name: str
    inputs: tuple[int, int | None]
    attrs: dict[str, str] = field(default_factory=dict)
    optional_inputs: frozenset[int] = frozenset()
    optional_attrs: dict[str, str] = field(default_factory=dict)
    stages: frozenset[str] = frozenset(STAGES[:3])
    results: tuple[int, ...] = (1,)
    infer: Rule | None = None
    compound: bool = False
    sums: bool = False
    in_place: tuple[int, tuple[int, ...]] | None = None


UNARY_FLOAT = ("rsqrt", "sqrt", "exp", "log", "cos", "sin", "tanh", "sigmoid", "silu", "erf")
UNARY_ANY = ("neg", "relu", "abs", "square")
ARITHMETIC = ("add", "sub", "mul", "pow", "maximum", "minimum", "floor_div", "remainder")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ELEMENTWISE = (
    *UNARY_FLOAT, *UNARY_ANY, *ARITHMETIC, *COMPARISONS, "div", "where", "logical_and", "logical_or", "logical_not",
    "gelu", "cast", "clamp",
)  # fmt: skip
SUMMING_REDUCTIONS = ("mean", "sum")
REDUCTIONS = (*SUMMING_REDUCTIONS, "amax", "any", "all")

_TABLE: dict[str, OpSpec] = {}
_LOWERED: dict[str, OpSpec] = {}


def _op(name: str, inputs: int | tuple[int, int | None], rule: Rule | None = None, **more: Any) -> None:
    counts = (inputs, inputs) if isinstance(inputs, int) else inputs
    stages = frozenset(more.pop("stages", STAGES[:3]))
    _TABLE[name] = OpSpec(name, counts, infer=rule, stages=stages, **more)


def _primitives() -> None:
    for name in UNARY_FLOAT:
        _op(name, 1, rules.unary_float)
    for name in UNARY_ANY:
        _op(name, 1, rules.same_as_input)
    for name in ARITHMETIC:
        _op(name, 2, rules.arithmetic)
    for name in COMPARISONS:
        _op(name, 2, rules.comparison)
    _op("div", 2, rules.division)
    _op("where", 3, rules.where)
    for name, count in (("logical_and", 2), ("logical_or", 2), ("logical_not", 1)):
        _op(name, count, rules.comparison)
    _op("gelu", 1, rules.unary_float, attrs={"approximate": "str"})
    _op("cast", 1, rules.cast, attrs={"dtype": "dtype"})
    _op("clamp", 1, rules.same_as_input, attrs={"min": "number?", "max": "number?"})
    for name in REDUCTIONS:
        _op(name, 1, rules.REDUCE[name], attrs={"dims": "ints", "keepdim": "bool"}, sums=name in SUMMING_REDUCTIONS)
    _op("softmax", 1, rules.unary_float, attrs={"dim": "int"}, sums=True)
    _op("cumsum", 1, rules.cumsum, attrs={"dim": "int"}, sums=True)
    _op("matmul", 2, rules.matmul, sums=True)
    _op("linear", (2, 3), rules.linear, optional_inputs=frozenset((2,)), sums=True)
    _op("embedding", 2, rules.embedding, optional_attrs={"scale": "float"})


def _shapes_and_sources() -> None:
    _op("input", 0, stages=STAGES)
    _op("weight", 0, attrs={"expr": "expr"}, optional_attrs={"layout": "str"}, stages=STAGES)
    _op("constant", 0, attrs={"value": "any"}, stages=STAGES)
    _op("view", 1, rules.view, attrs={"shape": "dims"})
    _op("transpose", 1, rules.transpose, attrs={"dim0": "int", "dim1": "int"})
    _op("permute", 1, rules.permute, attrs={"dims": "ints"})
    _op("unsqueeze", 1, rules.unsqueeze, attrs={"dim": "int"})
    _op("squeeze", 1, rules.squeeze, attrs={"dim": "int"})
    _op("expand", 1, rules.expand, attrs={"shape": "dims"})
    _op("concat", (1, None), rules.concat, attrs={"dim": "int"})
    _op("slice", 1, rules.slice_, attrs={"dim": "int", "start": "dim", "end": "dim", "step": "int"})
    _op("select", 1, rules.select, attrs={"dim": "int", "index": "dim"})
    _op("index", (2, None), rules.index, optional_inputs=frozenset(range(1, 16)))
    _op("arange", 0, rules.arange, attrs={"start": "dim", "end": "dim", "step": "int", "dtype": "dtype"})
    _op("full", 0, rules.full, attrs={"shape": "dims", "value": "any", "dtype": "dtype"})


def _compounds() -> None:
    fused, cached = ("fused",), ("cached",)
    sums: dict[str, Any] = {"compound": True, "sums": True}
    _op("rms_norm", 2, **sums, stages=("fused", "cached"))
    _op("add_rms_norm", 3, **sums, results=(2,), stages=("fused", "cached"))
    _op("rms_norm_columns", 2, **sums, stages=("cached",))
    norms: dict[str, Any] = {**sums, "optional_inputs": frozenset((2,))}
    _op("layer_norm", (2, 3), **norms)
    _op("layer_norm_columns", (2, 3), **norms, stages=cached)
    norms["optional_inputs"] = frozenset((3,))
    _op("add_layer_norm", (3, 4), **norms, results=(2,), stages=fused + cached)
    _op("rotary_table", 2, compound=True, stages=("fused", "cached"))
    _op("swiglu", 1, compound=True, stages=("fused", "cached", "lowered"))
    _op("rotary", 2, compound=True, stages=fused)
    _op("attention", (3, 4), **sums, optional_inputs=frozenset((3,)), stages=fused)
    _op("rotary_kv_write", 4, compound=True, results=(2,), stages=cached, optional_inputs=frozenset((1,)))
    _op("paged_attention", (5, 6), **sums, optional_inputs=frozenset((5,)), stages=cached)
    _op("gather_rows", 2, compound=True, stages=("cached", "lowered"))
    optional_bias = frozenset((2,))
    for name in ("quantized_linear", "weight_only_linear"):
        _op(name, (2, 3), **sums, optional_inputs=optional_bias, stages=cached, attrs={"format": "str"})
    _op("quantized_embedding", 2, compound=True, stages=cached, attrs={"format": "str", "scale": "float"})


def _lowered() -> None:
    """One op per instruction of runtime/core/plan/plan_format.h; attributes are the instruction's ints and floats."""

    def op(
        name: str,
        inputs: int,
        optional: tuple[int, ...] = (),
        results: tuple[int, ...] = (1,),
        sums: bool = False,
        in_place: tuple[int, tuple[int, ...]] | None = None,
        **attrs: str,
    ) -> None:
        _LOWERED[name] = OpSpec(
            name,
            (inputs, inputs),
            attrs,
            optional_inputs=frozenset(optional),
            optional_attrs={"buffers": "any"},
            stages=frozenset(("lowered",)),
            results=results,
            sums=sums,
            in_place=in_place,
        )

    op("embedding", 2, ids="int", scale="float")  # table, ids
    norm: dict[str, Any] = {"eps": "float", "weight_offset": "float"}
    op("rms_norm", 3, (2,), (1, 2), True, (1, (2, 0)), **norm)  # x, w, residual? -> y, sum if a residual
    op("rms_norm_columns", 2, sums=True, in_place=(0, (0,)), start="int", heads="int", **norm)  # x, w
    # x, w, b?, residual? -> y, sum if a residual; without one y may be written over x
    op("layer_norm", 4, (2, 3), (1, 2), True, (-1, (3, 0)), start="int", heads="int", width="int", **norm)
    product: dict[str, Any] = {"sums": True, "in_place": (0, (3,)), "epilogue": "int", "n": "int"}
    op("matmul", 4, (2, 3), **product)  # x, w, bias?, residual?
    op("quantized_matmul", 4, (2, 3), format="str", **product)  # as matmul
    op("quantized_embedding", 2, format="str", ids="int", scale="float")  # table, ids
    op("rotary_table", 2, scale="float")  # positions, inv_freq
    # qkv, table?, slots, cache
    op("rotary_kv_write", 4, (1,), (2,), kv_layer="int", heads="int", rotary_dim="int")
    # q, cache, seq_starts, context_lens, block_tables, sinks?
    op("paged_attention", 6, (5,), sums=True, kv_layer="int", heads="int", scale="float", softcap="float")
    op("gather_rows", 2)  # x, rows
    op("swiglu", 1, activation="str")
    op("add", 2, in_place=(0, (0, 1)))
    op("elementwise", 5, (1, 2, 3, 4), in_place=(0, (0, 1, 2, 3)), program="str")  # x0, x1?, x2?, x3?, w?


_primitives()
_shapes_and_sources()
_compounds()
_lowered()

SEQUENCE_AWARE = frozenset(("rotary_kv_write", "paged_attention", "gather_rows"))
"""The only ops that may look past one token at stage "cached"."""


SUMS = frozenset(spec.name for spec in (*_TABLE.values(), *_LOWERED.values()) if spec.sums)
"""The ops whose last bits depend on the order of a sum, at any stage."""


def find_spec(op: str, stage: str) -> OpSpec | None:
    """The entry of `op` at `stage`; None if there is no such op there."""
    if stage == "lowered" and op in _LOWERED:
        return _LOWERED[op]
    spec = _TABLE.get(op)
    return spec if spec is not None and stage in spec.stages else None


def op_names(stage: str | None = None) -> list[str]:
    """Every op that is legal at `stage`, or anywhere."""
    if stage is None:
        return sorted({*_TABLE, *_LOWERED})
    return sorted(name for name in {*_TABLE, *_LOWERED} if find_spec(name, stage) is not None)


def stages_of(op: str) -> list[str]:
    """The stages at which `op` is legal, in order; empty if there is no such op."""
    return [stage for stage in STAGES if find_spec(op, stage) is not None]


def infer(op: str, inputs: Sequence[Value | None], attrs: dict[str, Any]) -> Types:
    """The (dtype, shape) of every result of a primitive or compound op.

    Raises GraphError if the operands do not fit, or the op has no rule ("input", "weight", "constant").
    """
    spec = _TABLE.get(op)
    if spec is None:
        raise GraphError(f"there is no op {op!r}; known: {', '.join(sorted(_TABLE))}")
    if spec.infer is not None:
        return spec.infer(list(inputs), attrs)
    if spec.compound:
        from tensorwright.plugins.registry import PLUGINS  # plugins import this package

        return [(dtype, tuple(shape)) for dtype, shape in PLUGINS[op].infer(list(inputs), attrs)]
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
    """graph.add with the result types inferred from the table."""
    types = infer(op, inputs, attrs)
    names = (name,) if name else ()
    return graph.add(op, inputs, attrs, types, scope=scope, names=names, before=before)
