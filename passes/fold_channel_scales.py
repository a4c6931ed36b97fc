"""fold_channel_scales:  f(x) W^T  ->  (f(x) / s) (W s)^T,  where what makes f(x) divides by s

T tokens, K channels, N outer.  f(x): [T, K], W: [N, K], s: [K] > 0.  A calibration chooses the numbers of s later; any
of them leave what the graph computes as it is (AWQ, https://arxiv.org/abs/2306.00978, section 3.2; SmoothQuant,
https://arxiv.org/abs/2211.10438, section 4). The fact "channel_scales" names the method; without it nothing happens.

Nothing is multiplied when the engine runs: 1 / s goes into the weights behind f, found by what the operations compute.

    norm                  its weight and its bias
    product               the rows of its matrix and its bias
    swiglu                the rows of up
    product of two values one of the two
    attention             the rows of v; query heads that share a head of v share its numbers
    slice, gather_rows, relu, cast; norms and rotation of other columns: what is before them

A value that something else reads too stays, and so does a matrix that another node uses in the same format, such as a
tied lm_head: it would be stored twice. All products that read one value share its vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorwright.engine_format.calibrations import scales_format
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import find_spec, kind_of, matrices_of
from tensorwright.ir.weights import ChannelScales, Divided, Scaled, WeightExpr, scales_of
from tensorwright.passes.rewriting.rewriter import make_node, splice

_PRODUCTS = ("linear", "quantized_linear")
_POSITIVE = ("relu", "cast", "gather_rows")
"""Operations with f(x / s) = f(x) / s for s > 0, on each column alone."""
_COLUMN_NORMS: dict[str, Callable[[Node], int]] = {
    "rms_norm_columns": lambda node: int(node.operand(1).shape[0]),
    "layer_norm_columns": lambda node: int(node.attrs["width"]),
}
"""The width of one run of columns that an operation normalises."""


@dataclass(frozen=True)
class Division:
    """A weight that is divided by s along its first dimension, from `start` on."""

    node: Node
    operand: int
    start: int
    offset: int = 0


@dataclass
class Source:
    """The weights that make a value. heads: (heads of v, query heads for each, width of a head) if attention is between
    them, whose heads share numbers."""

    divisions: list[Division] = field(default_factory=list)
    heads: tuple[int, int, int] | None = None

    def vector(self, number: int, width: int) -> tuple[WeightExpr, WeightExpr]:
        """Returns s for the weights behind a value, and for its `width` columns."""
        if self.heads is None:
            scales = ChannelScales(number, width)
            return scales, scales
        kv_heads, shared, head_dim = self.heads
        scales = ChannelScales(number, kv_heads * head_dim)
        return scales, scales.reshape([kv_heads, 1, head_dim]).repeat(1, shared).reshape([width])


def fold_channel_scales(graph: Graph) -> int:
    """Returns how many values got a vector of scales."""
    method = graph.facts.channel_scales
    if not method or any(scales_of(node.attrs["expr"]) for node in graph.find("weight")):
        return 0
    finder = _Finder(graph)
    exprs: dict[tuple[Node, int], WeightExpr] = {}
    scaled: dict[Node, WeightExpr] = {}
    count = 0
    for value in [value for value in graph.values() if value.rank == 2]:
        readers = finder.readers(value, method)
        found = finder.source(value, 0, finder.width(value)) if readers else None
        if found is None:
            continue
        behind, before = found.vector(count, finder.width(value))
        count += 1
        for division in found.divisions:
            key = (division.node, division.operand)
            exprs[key] = Divided(exprs.get(key, _expr(*key)), behind, 0, division.start, division.offset)
        scaled.update(dict.fromkeys(readers, before))
    for node, by in scaled.items():  # The outermost expression says by what the input of a product is divided.
        exprs[node, 1] = Scaled(exprs.get((node, 1), _expr(node, 1)), by, 1)
    _replace_weights(graph, exprs)
    return count


class _Finder:
    """Finds the values that may be divided by a vector, in a graph that does not change meanwhile."""

    def __init__(self, graph: Graph):
        self._users = graph.users()
        self._outputs = set(graph.outputs)
        self._uses = Counter(_stored(node, matrix) for node in graph.nodes for matrix in matrices_of(node))

    def width(self, value: Value) -> int:
        return int(value.shape[-1]) if isinstance(value.shape[-1], int) else 0

    def readers(self, value: Value, method: str) -> list[Node]:
        """Returns the products that read a value, if nothing else does and their columns may be scaled, else []."""
        nodes = self._users[value]
        fit = value not in self._outputs and all(
            node.op in _PRODUCTS and node.inputs.index(value) == 0 and self._may_scale(node) for node in nodes
        )
        asked = any("format" in node.attrs and scales_format(method, node.attrs["format"]) for node in nodes)
        return nodes if fit and asked else []

    def _may_scale(self, node: Node) -> bool:
        matrix = node.operand(1)
        return matrix.producer.op == "weight" and matrix.rank == 2 and self._uses[_stored(node, matrix)] == 1

    def source(self, value: Value, start: int, end: int) -> Source | None:
        """Returns what divides columns [start, end) of a value and nothing else; None if nothing does."""
        node = value.producer
        if kind_of(node.op) == "norm":
            whole = value is node.outputs[0] and (start, end) == (0, self.width(value))
            return _norm(node, value) if whole else None
        if node.op in _PRODUCTS:
            return self._product(node, start) if self._may_scale(node) else None
        if node.op == "swiglu":
            return self._before(node, 0, start + self.width(value), end + self.width(value))
        if node.op == "mul":
            return self._factor(node, value, start, end)
        if node.op == "paged_attention":
            return self._attention(node) if (start, end) == (0, self.width(value)) else None
        if node.op in _POSITIVE:
            return self._before(node, 0, start, end)
        if node.op == "slice" and node.attrs["dim"] in (-1, value.rank - 1) and node.attrs["step"] == 1:
            first = node.attrs["start"]
            return self._before(node, 0, first + start, first + end) if isinstance(first, int) else None
        if node.op in _COLUMN_NORMS:
            first = node.attrs["start"]
            apart = end <= first or start >= first + node.attrs["heads"] * _COLUMN_NORMS[node.op](node)
            return self._before(node, 0, start, end) if apart else None
        return None

    def _before(self, node: Node, operand: int, start: int, end: int) -> Source | None:
        """Returns the source of columns of an operand, if no other node reads those columns."""
        value = node.operand(operand)
        others = [user for user in self._users[value] if user is not node]
        alone = value not in self._outputs and node.inputs.count(value) == 1
        fits = alone and all(_reads_apart(user, value, start, end) for user in others) and not value.is_stored
        return self.source(value, start, end) if fits else None

    def _product(self, node: Node, start: int) -> Source | None:
        divisions = [Division(node, 1, start)]
        if (bias := node.optional(2)) is not None:
            if bias.producer.op != "weight" or bias.rank != 1:
                return None
            divisions.append(Division(node, 2, start))
        return Source(divisions)

    def _factor(self, node: Node, value: Value, start: int, end: int) -> Source | None:
        for operand, factor in enumerate(node.inputs):
            if factor is not None and factor.shape == value.shape:
                found = self._before(node, operand, start, end)
                if found is not None:
                    return found
        return None

    def _attention(self, node: Node) -> Source | None:
        """Attention is a mean of rows of v, for each query head of one head of v."""
        cache = node.operand(1)
        write = cache.producer
        if write.op != "rotary_kv_write" or self._users[cache] != [node] or "v_dim" in node.attrs:
            return None
        heads, kv_heads, head_dim = (write.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
        if not kv_heads or node.attrs["kv_heads"] != kv_heads:
            return None
        first = (heads + kv_heads) * head_dim
        found = self._before(write, 0, first, first + kv_heads * head_dim)
        if found is None or found.heads is not None:
            return None
        return Source(found.divisions, (kv_heads, node.attrs["heads"] // kv_heads, head_dim))


def _norm(node: Node, value: Value) -> Source | None:
    record = find_spec(node.op, "cached")
    offset = node.attrs["weight_offset"]
    if record is None or offset != int(offset):
        return None
    divisions = []
    for index, operand in enumerate(record.operands):
        weight = node.optional(index) if operand.kind == "shared" else None
        if weight is None:
            continue
        if weight.producer.op != "weight" or weight.shape != value.shape[-1:]:
            return None
        divisions.append(Division(node, index, 0, int(offset) if operand.name == "w" else 0))
    return Source(divisions)


def _reads_apart(node: Node, value: Value, start: int, end: int) -> bool:
    """Returns whether a node is a slice of columns outside [start, end)."""
    if node.op != "slice" or node.attrs["dim"] not in (-1, value.rank - 1):
        return False
    first, last = node.attrs["start"], node.attrs["end"]
    return isinstance(first, int) and isinstance(last, int) and first >= 0 and (last <= start or first >= end)


def _expr(node: Node, operand: int) -> WeightExpr:
    expr: WeightExpr = node.operand(operand).producer.attrs["expr"]
    return expr


def _stored(node: Node, matrix: Value) -> tuple[Any, ...]:
    """Returns the identity of a matrix as an engine stores it."""
    source = matrix.producer
    return (source.attrs["expr"] if source.op == "weight" else id(source), node.attrs.get("format"))


def _replace_weights(graph: Graph, exprs: dict[tuple[Node, int], WeightExpr]) -> None:
    """Gives operands of nodes new expressions. Other nodes that read the old weights keep them."""
    inserted: dict[int, list[Node]] = {}
    for (node, operand), expr in exprs.items():
        old = node.operand(operand)
        kind = [(old.dtype, old.shape)]
        new = make_node(graph, "weight", [], {"expr": expr}, kind, old.producer.scope, old.name)
        inserted.setdefault(id(node), []).append(new)
        node.inputs = [new.output if i == operand else value for i, value in enumerate(node.inputs)]
    splice(graph, inserted, {})
