"""Verifies that a graph keeps the rules of its stage, before and after every pass.

Operands are defined before use. Every op is legal at the stage and has its operands and attributes. Every type is the
one that the op's rule gives. Outputs exist. At stage "cached", every op is also row-pure.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.engine_format.weight_layouts import WeightLayout
from tensorwright.errors import GraphError
from tensorwright.ir import dims
from tensorwright.ir.graph import CACHES, DTYPES, Graph, Node, Value
from tensorwright.ir.ops import STAGES, find_spec, infer, op_names, stages_of
from tensorwright.ir.records import Op
from tensorwright.ir.row_purity import row_purity_fault
from tensorwright.ir.shape_rules import show
from tensorwright.ir.text import NAME, print_type, underline
from tensorwright.ir.weights import WeightExpr

CACHED_INPUTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "token_ids": ("int32", ("tokens",)),
    "positions": ("int32", ("tokens",)),
    "seq_starts": ("int32", ("seqs + 1",)),
    "context_lens": ("int32", ("seqs",)),
    "block_tables": ("int32", ("seqs", "max_blocks")),
    "slots": ("int32", ("tokens",)),
    "logit_rows": ("int32", ("rows",)),
}
"""The metadata of one ragged batch: inputs of a graph at stage "cached", which also takes "kv_cache.<layer>" values."""
FEATURES = "features"
"""The further input of a graph of heads that propose tokens: a feature of each token, float32 [tokens, width]."""
GIVEN_FEATURES = "given_features"
"""The name of this input before stage "cached": float32 [1, seq, width]."""
STATE_INPUTS: dict[str, tuple[str, tuple[str, ...]]] = {"state_slots": ("int32", ("seqs",))}
"""The further metadata of a graph with recurrent layers, which also takes "state.<layer>" values."""
PROMPT_INPUTS: dict[str, tuple[str, tuple[str, ...]]] = {"prompt_lens": ("int32", ("seqs",))}
"""The further metadata of a graph whose attention treats prompts in another way than answers: how many tokens of each
sequence are its prompt."""
CACHE_INPUTS = {"kv_cache.": "kv", "state.": "state"}
"""How the names of inputs that are caches begin, and their element types."""


class _Fault(Exception):
    """The fault of one node, before its context is added to the message."""


class Verified:
    """Every node of a graph as it was when `verify` last found the graph right.

    A pipeline verifies its graph around each pass, and a pass changes a few nodes of hundreds. Whoever hands the same
    object to each call has only nodes checked in full that are not exactly what they were: with the same operands and
    results of the same types, and the same attributes. The order of nodes, names and row purity are checked each time.
    """

    def __init__(self) -> None:
        self.stage = ""
        self.nodes: dict[Node, list[Any]] = {}

    def holds(self, node: Node, now: list[Any]) -> bool:
        """Returns whether the node is what it was. now: the node's `_parts`."""
        before = self.nodes.get(node)
        return before is not None and len(before) == len(now) and all(map(is_, before, now))


def _parts(node: Node) -> list[Any]:
    """Returns all that the rules of one node look at. Parts are compared by identity: none of them changes in place,
    except arrays of constants, which are checked each time."""
    parts: list[Any] = [node.op, len(node.inputs), len(node.attrs), *node.attrs, *node.attrs.values()]
    for value in node.inputs:
        parts += (None,) if value is None else (value, value.dtype, value.shape, value.constant)
    for value in node.outputs:
        parts += (value, value.name, value.dtype, value.shape, value.node)
    return parts


def verify(graph: Graph, stage: str | None = None, verified: Verified | None = None) -> None:
    """Checks a graph. Raises GraphError that shows the offending node, underlined, among its neighbours.

    verified: what an earlier call found right; it is brought up to date.
    """
    stage = graph.stage if stage is None else stage
    if stage not in STAGES:
        raise GraphError(f"a stage must be one of {', '.join(STAGES)}, not {stage!r}")
    if graph.stage != stage:
        raise GraphError(f"graph {graph.name} must be at stage {stage!r}, not {graph.stage!r}")
    defined: set[Value] = set()
    names: set[str] = set()
    verified = verified or Verified()
    if verified.stage != stage:
        verified.nodes = {}
    seen: dict[Node, list[Any]] = {}
    for node in graph.nodes:
        try:
            seen[node] = _parts(node)
            if node.op != "constant" and verified.holds(node, seen[node]):
                _check_place(node, defined, names)
            else:
                _check_node(node, stage, defined, names)
            if stage == "cached":
                _require_pure(node)
        except (_Fault, GraphError) as fault:
            raise GraphError(
                f"graph {graph.name} breaks a rule of stage {stage!r}: {fault}\n{_context(graph, node)}"
            ) from fault
        defined.update(node.outputs)
    _check_outputs(graph, stage, defined)
    verified.stage, verified.nodes = stage, seen


def _context(graph: Graph, node: Node) -> str:
    try:
        return underline(graph, node)
    except GraphError as error:  # The fault may be that the node has no text form.
        return f"  ({error})"


def _check_outputs(graph: Graph, stage: str, defined: set[Value]) -> None:
    if not graph.outputs:
        raise GraphError(f"graph {graph.name} must have an output")
    for value in graph.outputs:
        if value not in defined:
            raise GraphError(f"graph {graph.name}: output %{value.name} is computed by no node of the graph")
        if stage == "cached" and value.shape[:1] not in (("tokens",), ("rows",)):
            raise GraphError(
                f"graph {graph.name}: output %{value.name} {show(value.shape)} must have one row per logit row"
            )


def _check_place(node: Node, defined: set[Value], names: set[str]) -> None:
    """Checks what depends on the nodes before this one."""
    for value in node.inputs:
        if value is not None:
            _require_defined(value, defined)
    for value in node.outputs:
        _claim_name(value, names)


def _require_defined(value: Value, defined: set[Value]) -> None:
    if value not in defined:
        raise _Fault(f"operand %{value.name} is not computed before it is used")


def _claim_name(value: Value, names: set[str]) -> None:
    if value.name in names:
        raise _Fault(f"%{value.name} is taken")
    names.add(value.name)


def _check_node(node: Node, stage: str, defined: set[Value], names: set[str]) -> None:
    spec = find_spec(node.op, stage)
    if spec is None:
        if node.op not in op_names():
            raise _Fault(f"there is no op {node.op!r}")
        raise _Fault(f"{node.op} is not legal here, only at {', '.join(stages_of(node.op))}")
    _check_operands(node, spec, defined)
    _check_attrs(node, spec)
    _check_results(node, spec, names)
    if node.op == "input":
        _check_input(node.output, stage)
    elif node.op == "weight":
        _check_weight(node.output)
    elif node.op == "constant":
        _check_constant(node.output, node.attrs["value"])
    elif stage != "lowered" and spec.infer is not None:
        _check_types(node)


def _check_operands(node: Node, spec: Op, defined: set[Value]) -> None:
    least, most = spec.operand_counts
    if len(node.inputs) < least or (most is not None and len(node.inputs) > most):
        wanted = str(least) if least == most else f"{least} to {'any number' if most is None else most}"
        raise _Fault(f"{node.op} takes {wanted} operands, not {len(node.inputs)}")
    for i, value in enumerate(node.inputs):
        if value is None:
            if not spec.may_lack(i):
                raise _Fault(f"operand {i} of {node.op} must not be absent")
        else:
            _require_defined(value, defined)


def _check_results(node: Node, spec: Op, names: set[str]) -> None:
    if len(node.outputs) not in spec.result_counts:
        raise _Fault(f"{node.op} has {' or '.join(map(str, spec.result_counts))} results, not {len(node.outputs)}")
    for value in node.outputs:
        if value.node is not node:
            raise _Fault(f"%{value.name} does not know that {node.op} computes it")
        _claim_name(value, names)
        if not NAME.fullmatch(value.name):
            raise _Fault(f"{value.name!r} is no name")
        if value.dtype not in DTYPES:
            raise _Fault(f"%{value.name} has element type {value.dtype!r}; must be one of {', '.join(DTYPES)}")
        for dim in value.shape:
            if not dims.is_canonical(dim) or (isinstance(dim, int) and dim < 0):
                raise _Fault(f"%{value.name} has dimension {dim!r}; must be a size or a canonical expression")


def _check_types(node: Node) -> None:
    expected = infer(node.op, node.inputs, node.attrs)
    for value, (dtype, shape) in zip(node.outputs, expected, strict=True):
        fits = len(shape) == value.rank and all(dims.same(a, b) for a, b in zip(shape, value.shape, strict=True))
        if value.dtype != dtype or not fits:
            raise _Fault(f"%{value.name} is declared {print_type(value)}, but {node.op} gives {dtype}{show(shape)}")


# -- attributes -------------------------------------------------------------------------------------------------------


def _check_attrs(node: Node, spec: Op) -> None:
    required = spec.attrs
    missing = sorted(set(required) - set(node.attrs))
    unknown = sorted(set(node.attrs) - set(required) - set(spec.optional_attrs))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has no {', '.join(unknown)}"] * bool(unknown)
        raise _Fault(f"{node.op} {' and '.join(parts)}; its attributes are: {', '.join(required) or 'none'}")
    for name, value in node.attrs.items():
        kind = required.get(name) or spec.optional_attrs[name]
        if not _is_kind(value, kind):
            raise _Fault(f"attribute {name} of {node.op} must be {kind}, not {value!r}")


def _is_kind(value: Any, kind: str) -> bool:
    if kind.endswith("?"):
        return value is None or _is_kind(value, kind[:-1])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "int":
            return whole
        case "float" | "number":
            return number
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "dtype":
            return value in DTYPES and value not in CACHES
        case "dim":
            return dims.is_canonical(value)
        case "dims":
            return isinstance(value, tuple) and all(dims.is_canonical(d) for d in value)
        case "ints":
            return isinstance(value, tuple) and all(_is_kind(d, "int") for d in value)
        case "expr":
            return isinstance(value, WeightExpr)
        case "format":
            return isinstance(value, WeightFormat)
        case "layout":
            return isinstance(value, WeightLayout)
        case "any":
            return True
    raise GraphError(f"attribute kind {kind!r} is unknown")


# -- inputs, weights, constants ---------------------------------------------------------------------------------------


def _check_input(value: Value, stage: str) -> None:
    if stage != "cached":
        return
    for prefix, kind in CACHE_INPUTS.items():
        if value.name.startswith(prefix):
            if (value.dtype, value.shape) != (kind, ()):
                raise _Fault(f"a cache must be {kind}[], not {print_type(value)}")
            return
    if value.name == FEATURES:
        if value.dtype != "float32" or value.rank != 2 or value.shape[0] != "tokens":
            raise _Fault(f"%{value.name} must be float32[tokens, width], not {print_type(value)}")
        return
    known = CACHED_INPUTS | STATE_INPUTS | PROMPT_INPUTS
    if value.name not in known:
        raise _Fault(
            f"%{value.name} is no input of a batch; those are {', '.join(known)}, kv_cache.<layer> and state.<layer>"
        )
    dtype, shape = known[value.name]
    if (value.dtype, value.shape) != (dtype, shape):
        raise _Fault(f"%{value.name} must be {dtype}{show(shape)}, not {print_type(value)}")


def _check_weight(value: Value) -> None:
    if value.is_cache or not all(isinstance(d, int) for d in value.shape):
        raise _Fault(f"a weight must have an element type and a fixed shape, not {print_type(value)}")


def _check_constant(value: Value, data: Any) -> None:
    if isinstance(data, bool | int | float):
        if value.shape != ():
            raise _Fault(f"a number is a constant of rank 0, not {print_type(value)}")
        return
    if not isinstance(data, np.ndarray):
        raise _Fault(f"a constant must be a Python number or a numpy array, not {type(data).__name__}")
    held = "float32" if value.dtype == "bfloat16" else value.dtype  # numpy has no bfloat16
    if data.shape != value.shape or data.dtype.name != held:
        raise _Fault(
            f"{print_type(value)} must be held as {held}{show(value.shape)}, not {data.dtype}{list(data.shape)}"
        )


def _require_pure(node: Node) -> None:
    fault = row_purity_fault(node)
    if fault:
        raise _Fault(f"{node.op} is not row-pure: {fault}")
