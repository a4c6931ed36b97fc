"""Holds what the passes share that fuse several linears into one; not a pass."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.ir import Dim, Value
from tensorwright.ir import dims as dim_math
from tensorwright.passes.rewriting.rewriter import Rewriter


def join_weights(g: Rewriter, parts: Sequence[Value], scope: str) -> Value:
    """Returns one weight node with the rows (elements) of all `parts`, which are weight nodes, in order."""
    exprs = [part.producer.attrs["expr"] for part in parts]
    rows = dim_math.add(*(p.shape[0] for p in parts))
    shape = (rows, *parts[0].shape[1:])
    weight: Value = g.weight(expr=exprs[0].concat(exprs[1:], 0), type=(parts[0].dtype, shape), scope=scope)
    return weight


def slice_columns(g: Rewriter, x: Value, widths: Sequence[Dim]) -> list[Value]:
    """Returns consecutive slices of the last dimension of `x`, of these widths."""
    start: Dim = 0
    slices = []
    for width in widths:
        end = dim_math.add(start, width)
        slices.append(g.slice(x, dim=x.rank - 1, start=start, end=end, step=1))
        start = end
    return slices


def shared_scope(parts: Sequence[Value]) -> str:
    """Returns the innermost module that contains the modules of all `parts`."""
    scopes = [part.producer.scope.split(".") for part in parts]
    depth = next((i for i, names in enumerate(zip(*scopes, strict=False)) if len(set(names)) > 1), None)
    return ".".join(scopes[0][:depth])
