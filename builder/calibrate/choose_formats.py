"""Divides a budget of bits among the matrices of a model: each gets the format that it gains most from.

Every matrix begins with its cheapest format. Then, step by step, the matrix gets a larger one whose divergence falls
most for each byte, as long as the budget has the bytes. Only formats on the lower convex hull of (bytes, cost) count,
so no later step gains more for a byte than an earlier one of the same matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.format_rules import ANY, Rule, matches
from tensorwright.engine_format.weight_formats import LANES, Asked, Choice, FormatRule, QuantizeSpec, WeightFormat
from tensorwright.errors import InvalidOptionError
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.ops import matrices_of
from tensorwright.ir.weights import WeightExpr
from tensorwright.passes.quantize_weights import asked_for, quantizable, too_long, weights_of

Shape3 = tuple[int, int, int]
"""(number of matrices, rows, columns)."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """The weights that must have one format: of one joined matrix or mixture, in all places that read it.

    names: of the checkpoint's weights. exprs, shapes: of the stored matrices. candidates: formats that it can have.
    embedding: the table that tokens are looked up in, if it is one. products: whether products read it. parts: which
    parts of a spec it belongs to.
    """

    names: tuple[str, ...]
    exprs: tuple[WeightExpr, ...]
    shapes: tuple[Shape3, ...]
    candidates: tuple[WeightFormat, ...]
    embedding: WeightExpr | None
    products: bool
    parts: frozenset[str]

    @property
    def weights(self) -> int:
        return sum(map(prod, self.shapes))

    def bytes(self, fmt: WeightFormat | None, dtype: str) -> int:
        """Returns the bytes of the matrix in a format, padding included; None means elements of type dtype."""
        return sum(_bytes(shape, fmt, dtype) for shape in self.shapes)


@dataclass(frozen=True)
class Budget:
    """What is to be chosen, and for how many bytes. dtype: the type of matrices without a format."""

    matrices: tuple[Matrix, ...]
    bytes: int
    dtype: str


def open_budget(cached: Graph, spec: QuantizeSpec, formats: Sequence[WeightFormat]) -> Budget:
    """Returns the matrices of a graph at stage "cached" whose format a spec leaves to a budget, and what they may take.

    The bits of the budget count for every weight that can be quantized; those with a format of their own take their
    bytes first. Raises InvalidOptionError for a budget that the smallest formats exceed.
    """
    (choice,) = (choice for choice in spec.choices if choice.bits is not None)
    dtype = cached.facts.dtype
    nodes = quantizable(cached)
    chosen = open_matrices(cached, spec, choice, formats)
    fixed = {
        (fmt, expr): shape
        for node in nodes
        if (fmt := asked_for(node, spec)) != choice
        for expr, shape in _stored(node)
    }
    taken = sum(
        _bytes(shape, fmt if isinstance(fmt, WeightFormat) else None, dtype) for (fmt, _), shape in fixed.items()
    )
    known = {expr: shape for node in nodes for expr, shape in _stored(node)}
    weights = sum(map(prod, known.values()))
    allowed = int((choice.bits or 0) * weights / 8)
    least = taken + sum(min(matrix.bytes(fmt, dtype) for fmt in matrix.candidates) for matrix in chosen)
    if least > allowed:
        raise InvalidOptionError(
            f"quantize: {choice} is too little for this model: the smallest formats of the target take "
            f"{8 * least / weights:.4g} bits per weight; give more"
        )
    return Budget(tuple(chosen), allowed - taken, dtype)


def open_matrices(cached: Graph, spec: QuantizeSpec, choice: Choice, formats: Sequence[WeightFormat]) -> list[Matrix]:
    """Returns the matrices for which a spec says `choice`, in the order of the graph."""
    return [
        _matrix(group, formats)
        for group in _groups(node for node in quantizable(cached) if asked_for(node, spec) == choice)
    ]


def divide(budget: Budget, cost: Callable[[Matrix, WeightFormat], float]) -> dict[Matrix, WeightFormat | None]:
    """Returns a format for every matrix. cost: what a format costs the model, in any unit that adds up."""
    steps: list[tuple[float, int, int, WeightFormat | None]] = []
    chosen: dict[Matrix, WeightFormat | None] = {}
    spent: dict[Matrix, int] = {}
    for number, matrix in enumerate(budget.matrices):
        points = hull(
            [(matrix.bytes(fmt, budget.dtype), cost(matrix, fmt), fmt) for fmt in matrix.candidates]
            + [(matrix.bytes(None, budget.dtype), 0.0, None)]
        )
        spent[matrix], _, chosen[matrix] = points[0]
        for before, (size, price, fmt) in pairwise(points):
            steps.append(((price - before[1]) / (size - before[0]), number, size, fmt))
    left = budget.bytes - sum(spent.values())
    for _, number, size, fmt in sorted(steps, key=lambda step: step[:3]):
        matrix = budget.matrices[number]
        more = size - spent[matrix]
        if 0 < more <= left:
            left -= more
            spent[matrix], chosen[matrix] = size, fmt
    return chosen


Point = tuple[int, float, WeightFormat | None]
"""(bytes, cost, format)."""


def hull(points: Iterable[Point]) -> list[Point]:
    """Returns the points of the lower convex hull, by ascending bytes and descending cost. Of equal points the first
    one counts."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: each[:2]):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and _slope(found[-2], point) <= _slope(found[-2], found[-1]):
            found.pop()
        found.append(point)
    return found


def chosen_spec(spec: QuantizeSpec, chosen: Mapping[Matrix, WeightFormat | None], names: Iterable[str]) -> QuantizeSpec:
    """Returns the spec with the chosen formats in place of its choices. names: of all weights that can be quantized."""
    layers = [fmt for matrix, fmt in chosen.items() if "layers" in matrix.parts]
    parts = {"layers": spec.linears, "embedding": spec.embedding, "lm_head": spec.lm_head}
    settled: dict[str, Asked] = {name: value for name, value in parts.items() if not isinstance(value, Choice)}
    settled.setdefault("layers", Counter(layers).most_common(1)[0][0] if layers else None)
    for matrix, fmt in chosen.items():
        for part in matrix.parts:
            settled.setdefault(part, fmt)
    named = tuple(rule for rule in spec.rules if not isinstance(rule.value, Choice))
    base = QuantizeSpec(settled["layers"], settled.get("embedding"), settled.get("lm_head"), named)
    known = list(names)
    rules: list[FormatRule] = [
        Rule(pattern, fmt)
        for matrix, fmt in chosen.items()
        if any(base.format_of(name, settled[part]) != fmt for name in matrix.names for part in matrix.parts)
        for pattern in patterns_of(matrix.names, known)
    ]
    return replace(base, rules=(*named, *rules))


def patterns_of(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns one pattern that matches `names` and no other of the known names, if there is one; else the names."""
    if len(names) < 2:
        return list(names)
    first, last = min(names), max(names)
    start = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    backwards = sorted(name[::-1] for name in names)
    pairs = zip(backwards[0], backwards[-1], strict=False)
    end = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), len(backwards[0]))
    end = min(end, min(map(len, names)) - start)
    pattern = first[:start] + ANY + first[len(first) - end :]
    own = set(names)
    return [pattern] if all((name in own) == matches(pattern, name) for name in known) else list(names)


def _groups(nodes: Iterable[Node]) -> list[list[Node]]:
    """Returns the nodes in groups that share weights, in the order of the first of each."""
    groups: list[tuple[set[str], list[Node]]] = []
    for node in nodes:
        names = set(weights_of(node))
        same = [group for group in groups if group[0] & names]
        for group in same[1:]:
            same[0][0].update(group[0])
            same[0][1].extend(group[1])
            groups.remove(group)
        if same:
            same[0][0].update(names)
            same[0][1].append(node)
        else:
            groups.append((names, [node]))
    return [group for _, group in groups]


def _matrix(group: Sequence[Node], formats: Sequence[WeightFormat]) -> Matrix:
    tables = [node for node in group if node.op == "embedding"]
    stored = {expr: shape for node in group for expr, shape in _stored(node)}
    return Matrix(
        tuple(dict.fromkeys(name for node in group for name in weights_of(node))),
        tuple(stored),
        tuple(stored.values()),
        tuple(fmt for fmt in formats if not any(too_long(node, fmt) for node in group)),
        tables[0].operand(0).producer.attrs["expr"] if tables else None,
        len(tables) < len(group),
        frozenset(_part(node) for node in group),
    )


def _part(node: Node) -> str:
    if node.op == "embedding":
        return "embedding"
    return "lm_head" if node.output.shape[0] == "rows" else "layers"


def _stored(node: Node) -> list[tuple[WeightExpr, Shape3]]:
    """Returns the expressions and shapes of a node's matrices."""
    found = []
    for value in matrices_of(node):
        *several, rows, columns = (int(size) for size in value.shape)
        found.append((value.producer.attrs["expr"], (prod(several), rows, columns)))
    return found


def _bytes(shape: Shape3, fmt: WeightFormat | None, dtype: str) -> int:
    """Returns the bytes of matrices in panels of 16 rows."""
    matrices, rows, columns = shape
    panels = matrices * -(-rows // LANES)
    return panels * (LANES * columns * ITEM_BYTES[dtype] if fmt is None else fmt.panel_bytes(columns))


def _slope(a: Point, b: Point) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])
