"""Proves row purity: at stage "cached", a row (one token of one sequence) never sees another row.

A value is *per row* if its dimension 0 is "tokens" or "rows". Each rule below shows that row i of an op's result
depends only on row i of its per-row operands and on values that are the same for every batch. An op without a rule is
refused. Only the sequence-aware ops see more rows, by the metadata that says which rows belong together.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorwright.ir import dims
from tensorwright.ir.graph import SOURCES, Node, Value
from tensorwright.ir.ops import ELEMENTWISE, REDUCTIONS, find_spec
from tensorwright.ir.records import ROWS, Op

ROW_SYMBOLS = ("tokens", "rows")


def is_per_row(value: Value) -> bool:
    return value.rank > 0 and value.shape[0] in ROW_SYMBOLS


def row_purity_fault(node: Node) -> str | None:
    """Returns the reason why `node` could let one row see another, or None if it cannot."""
    spec = find_spec(node.op, "cached")
    if node.op in SOURCES or (spec is not None and spec.sequence_aware):
        return None
    operands = [v for v in node.inputs if v is not None]
    fault = next(filter(None, map(_operand_fault, operands)), None)
    if fault or (not any(map(is_per_row, operands)) and node.op not in _MAKERS):
        return fault or next(filter(None, map(_shared_fault, node.outputs)), None)
    for value in node.outputs:
        if not is_per_row(value):
            if node.op in _MAKERS:
                return _shared_fault(value) or _attr_fault(node)
            return f"%{value.name} {_shape(value)} has no row per token, so it mixes them"
        if _mentions_rows(value.shape[1:]):
            return f"%{value.name} {_shape(value)} spreads the tokens over another dimension"
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node)
    if spec is None or not spec.per_token:
        return "the op has no rule by which it treats every row alone"
    return _by_record(node, spec)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _shape(value: Value) -> str:
    return "[" + ", ".join(map(str, value.shape)) + "]"


def _mentions_rows(shape: tuple) -> bool:
    return any(not dims.symbols(d).isdisjoint(ROW_SYMBOLS) for d in shape)


def _operand_fault(value: Value) -> str | None:
    """Returns the fault of an operand. It must be per row or have one shape in every batch, and must be no cache."""
    if value.is_cache:
        return f"only sequence-aware ops may touch the cache %{value.name}"
    rest = value.shape[1:] if is_per_row(value) else value.shape
    if any(dims.symbols(d) for d in rest):
        return f"operand %{value.name} {_shape(value)} varies with the batch in more than its rows"
    return None


def _shared_fault(value: Value) -> str | None:
    if any(dims.symbols(d) for d in value.shape):
        return f"%{value.name} {_shape(value)} varies with the batch, but with no operand's rows"
    return None


def _attr_fault(node: Node) -> str | None:
    """Returns the fault of a node's attributes. Only dimension 0 of a target shape may depend on the batch's size."""
    for name, attr in node.attrs.items():
        values = attr if isinstance(attr, tuple) else (attr,)
        values = values[1:] if name == "shape" else values
        sized = [v for v in values if isinstance(v, str) and name not in ("dtype", "approximate")]
        if any(dims.symbols(v) for v in sized):
            return f"attribute {name} depends on the size of the batch"
    return None


# -- rules: each returns None if rows stay apart ----------------------------------------------------------------------

Rule = Callable[[Node], str | None]


def _elementwise(node: Node) -> str | None:
    """Requires the result's rank of per-row operands, for broadcasting would otherwise move their rows."""
    for value in node.inputs:
        if value is not None and is_per_row(value) and value.rank != node.outputs[0].rank:
            return f"the rows of %{value.name} {_shape(value)} do not line up with those of the result"
    return _attr_fault(node)


def _not_dim_0(*names: str, inserts: bool = False) -> Rule:
    def rule(node: Node) -> str | None:
        for name in names:
            touched = node.attrs[name]
            if 0 in (touched if isinstance(touched, tuple) else (touched,)):
                return f"it works along dimension 0, the tokens ({name} = {touched})"
        return _attr_fault(node)

    return rule


def _concat(node: Node) -> str | None:
    if not all(is_per_row(v) for v in node.inputs if v is not None):
        return "it joins values with and without rows"
    return _not_dim_0("dim")(node)


def _by_index(node: Node) -> str | None:
    """Requires that operand and index are per row. Then a row's numbers name places in the row itself."""
    return _concat(node)


def _permute(node: Node) -> str | None:
    return None if node.attrs["dims"][0] == 0 else "it moves dimension 0, the tokens"


def _view(node: Node) -> str | None:
    """Requires that dimension 0 stays the same. Exactly then row-major order keeps rows together."""
    same = node.inputs[0] is not None and node.inputs[0].shape[0] == node.attrs["shape"][0]
    return _attr_fault(node) if same else "it moves elements between tokens"


def _matmul(node: Node) -> str | None:
    b = node.operand(1)
    if is_per_row(b) and b.rank < 3:
        return f"the rows of %{b.name} {_shape(b)} would be summed over"
    return _elementwise(node)


def _by_record(node: Node, spec: Op) -> str | None:
    """Requires that only the operands of kind "rows" are per row, and that their last dimension is not the rows."""
    for i, (value, operand) in enumerate(zip(node.inputs, spec.operands, strict=False)):
        if value is None:
            continue
        has_rows = operand.kind == ROWS
        if is_per_row(value) != has_rows:
            return f"operand {i} (%{value.name}) must {'have rows' if has_rows else 'be the same for all rows'}"
        if has_rows and not spec.flat_rows and value.rank < 2:
            return f"it sums over the only dimension of %{value.name}, the tokens"
    return None


def _embedding(node: Node) -> str | None:
    table = node.inputs[0]
    return "the table must be the same for all rows" if table is None or is_per_row(table) else None


def _index(node: Node) -> str | None:
    base, ids = node.operand(0), node.inputs[1:]
    if is_per_row(base):
        return "it picks among tokens" if ids[0] is not None else None
    return None if ids[0] is not None else "the rows of an index would not become those of the result"


def _arange(node: Node) -> str | None:
    return "it counts tokens across sequences"


_MAKERS = ("arange", "full", "expand")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _not_dim_0("dims")),
    **dict.fromkeys(("softmax", "cumsum", "topk", "slice", "select", "unsqueeze", "squeeze"), _not_dim_0("dim")),
    **dict.fromkeys(("gather", "scatter"), _by_index),
    "transpose": _not_dim_0("dim0", "dim1"),
    "permute": _permute,
    "view": _view,
    "expand": _elementwise,
    "concat": _concat,
    "matmul": _matmul,
    "embedding": _embedding,
    "index": _index,
    "arange": _arange,
    "full": _attr_fault,
}
