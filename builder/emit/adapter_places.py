"""Finds where the matrices of the model's modules lie in the products of a lowered graph, for adapters.

The weight of a product is an expression over tensors of the checkpoint. Expressions that only join, cut and reorder
rows and columns say for each column of the product which output of which module it is, and for each input which input.
An adapter's matrices are cut and reordered in the same way, so that nothing is left for the engine to do but two
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tensorwright.engine_format.adapter_places import AdapterPlaces, ModulePart, ProductPlaces, runs_of
from tensorwright.engine_format.weight_formats import LANES
from tensorwright.ir.graph import SOURCES, Graph, Node
from tensorwright.ir.weights import (
    Concat,
    Divided,
    Every,
    Ordered,
    Ref,
    Repeat,
    Reshape,
    Scaled,
    Shapes,
    Slice,
    Stack,
    Transpose,
    WeightExpr,
)
from tensorwright.plugins.matmul.op import EPILOGUE_NONE

PRODUCTS = ("matmul", "quantized_matmul", "weight_only_matmul")
MAX_PARTS = 64
"""The most pieces of modules in one product. Adapters of matrices that are cut finer are refused."""
SUFFIX = ".weight"


class _Refused(Exception):
    """An expression that adapters cannot follow; its text gives the reason."""


@dataclass(frozen=True)
class _Rows:
    """A weight as rows of tensors.

    tensors: names. which, rows: of the weight's shape without its last dimension: the tensor of each row, and the row
    in the tensor. columns: the column in the tensor of each element of a row. transposed: rows and columns of the
    tensors are exchanged.
    """

    tensors: tuple[str, ...]
    which: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    transposed: bool = False

    def lead(self, change: object) -> _Rows:
        """Returns the weight with a change to all but the last dimension. change: takes and returns an array."""
        assert callable(change)
        return replace(self, which=change(self.which), rows=change(self.rows))

    def of(self, names: tuple[str, ...]) -> np.ndarray:
        """Returns `which`, numbered by another list of names."""
        return np.array([names.index(name) for name in self.tensors], np.int64)[self.which]


def adapter_places(graph: Graph, source: Shapes) -> AdapterPlaces:
    """Returns the places of all modules of a lowered graph, and the modules that no adapter may change."""
    refused: dict[str, str] = {}
    products: list[ProductPlaces] = []
    nodes = [node for node in graph.nodes if node.op not in SOURCES]
    heads = next((i for i, node in enumerate(nodes) if node.op == "draft_features"), len(nodes))
    for number, node in enumerate(nodes):
        for module in _matrices(node, source):
            reason = _reason(node, number >= heads)
            if reason is not None:
                refused.setdefault(module, reason)
        if node.op not in PRODUCTS or _reason(node, number >= heads) is not None:
            continue
        try:
            parts = _parts(node, source)
        except _Refused as why:
            refused.update(dict.fromkeys(_matrices(node, source), str(why)))
            continue
        if parts:
            products.append(ProductPlaces(number, tuple(parts)))
    kept = (replace(product, parts=tuple(p for p in product.parts if p.module not in refused)) for product in products)
    return AdapterPlaces(tuple(product for product in kept if product.parts), refused)


def _matrices(node: Node, source: Shapes) -> Iterator[str]:
    """Yields the modules whose weights a node reads as a matrix."""
    for value in node.inputs:
        if value is None or value.node is None or value.node.op != "weight":
            continue
        for name in dict.fromkeys(value.node.attrs["expr"].refs()):
            if len(source.shape(name)) >= 2:
                yield name.removesuffix(SUFFIX)


def _reason(node: Node, of_heads: bool) -> str | None:
    """Returns why no adapter may change what a node reads; None if one may."""
    if of_heads:
        return "belongs to the heads that propose tokens"
    if node.op.endswith("embedding"):
        return "is a table of embeddings"
    if "experts" in node.op:
        return "is the matrix of experts"
    if node.op not in PRODUCTS:
        return f"is read by {node.op}"
    if node.output.shape[0] != "tokens":
        return "computes the logits"
    return None


def _parts(node: Node, source: Shapes) -> list[ModulePart]:
    weight = node.operand(1).producer
    if weight.op != "weight":
        return []
    found = _follow(weight.attrs["expr"], source)
    if found.rows.ndim != 1:
        raise _Refused("is no matrix in the engine")
    halves = 1 if node.attrs["epilogue"] == EPILOGUE_NONE else 2
    n = len(found.rows) // halves
    parts: list[ModulePart] = []
    for half in range(halves):
        first, column = half * n, half * -(-n // LANES) * LANES  # the second half begins with a panel
        which = found.which[first : first + n]
        edges = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), n]
        for start, end in pairwise(edges):
            name = found.tensors[which[start]]
            stored = source.shape(name)
            if not name.endswith(SUFFIX):
                raise _Refused("is not the weight of a module")
            parts.append(
                ModulePart(
                    name.removesuffix(SUFFIX),
                    (stored[1], stored[0]) if found.transposed else stored,
                    found.transposed,
                    column + start,
                    runs_of(found.rows[first + start : first + end]),
                    runs_of(found.columns),
                )
            )
    if len(parts) > MAX_PARTS:
        raise _Refused(f"is cut into more than {MAX_PARTS} pieces")
    return parts


def _follow(expr: WeightExpr, source: Shapes) -> _Rows:
    """Returns the rows and columns that an expression takes of tensors. Raises _Refused for one that computes."""
    match expr:
        case Ref(name):
            shape = source.shape(name)
            if len(shape) != 2:
                raise _Refused("is no matrix in the checkpoint")
            return _Rows((name,), np.zeros(shape[0], np.int64), np.arange(shape[0]), np.arange(shape[1]))
        case Slice(part, dim, start, end):
            return _cut(_follow(part, source), dim, slice(start, end))
        case Every(part, dim, start, step):
            return _cut(_follow(part, source), dim, slice(start, None, step))
        case Transpose(part, dim0, dim1):
            return _transpose(_follow(part, source), dim0, dim1)
        case Reshape(part, to):
            rows = _follow(part, source)
            if not to or to[-1] != len(rows.columns):
                raise _Refused("has rows that the engine cuts or joins")
            return rows.lead(lambda lead: lead.reshape(to[:-1]))
        case Repeat(part, dim, count):
            rows = _follow(part, source)
            if dim >= rows.rows.ndim:
                raise _Refused("has columns that the engine repeats")
            return rows.lead(lambda lead: np.repeat(lead, count, dim))
        case Concat(parts, dim):
            return _join([_follow(part, source) for part in parts], dim)
        case Stack(parts):
            return _join([_follow(part, source).lead(lambda lead: lead[None]) for part in parts], 0)
        case Scaled() | Divided():
            raise _Refused("was scaled by a calibration of the build; build the engine without --calibrate")
        case Ordered():
            raise _Refused("has columns in the order of its quantization groups")
    raise _Refused(f"is made by {type(expr).__name__.lower()}")


def _cut(rows: _Rows, dim: int, part: slice) -> _Rows:
    if dim == rows.rows.ndim:
        return replace(rows, columns=rows.columns[part])
    return rows.lead(lambda lead: lead[(slice(None),) * dim + (part,)])


def _transpose(rows: _Rows, dim0: int, dim1: int) -> _Rows:
    if dim1 < rows.rows.ndim:
        return rows.lead(lambda lead: np.swapaxes(lead, dim0, dim1))
    if rows.rows.ndim != 1 or np.any(rows.which):
        raise _Refused("is transposed after it was joined with others")
    return _Rows(rows.tensors, np.zeros(len(rows.columns), np.int64), rows.columns, rows.rows, not rows.transposed)


def _join(parts: list[_Rows], dim: int) -> _Rows:
    first = parts[0]
    names = tuple(dict.fromkeys(name for part in parts for name in part.tensors))
    if any(part.transposed != first.transposed for part in parts):
        raise _Refused("is joined with a matrix that is stored the other way round")
    if dim == first.rows.ndim:
        alike = all(
            np.array_equal(part.rows, first.rows) and np.array_equal(part.of(names), first.of(names)) for part in parts
        )
        if not alike:
            raise _Refused("is joined with another side by side")
        return replace(first, columns=np.concatenate([part.columns for part in parts]))
    if any(not np.array_equal(part.columns, first.columns) for part in parts):
        raise _Refused("is joined with a matrix of other inputs")
    return _Rows(
        names,
        np.concatenate([part.of(names) for part in parts], dim),
        np.concatenate([part.rows for part in parts], dim),
        first.columns,
        first.transposed,
    )
