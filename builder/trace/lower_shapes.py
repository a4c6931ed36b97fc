"""Lowers the ATen operations that move elements and compute none: views, slices, joins, indices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tensorwright.builder.trace.lower_fx import Handler, Lowering
from tensorwright.ir import dims
from tensorwright.ir.graph import Dim, Value

Args = dict[str, Any]


def _view(low: Lowering, a: Args) -> Value:
    """Lowers every spelling of reshape. The target shape is the one that torch computed, so it has no -1."""
    shape = low.result_type()[1]
    return a["self"] if a["self"].shape == shape else low.emit("view", a["self"], shape=shape)


def _expand(low: Lowering, a: Args) -> Value:
    shape = low.result_type()[1]
    return a["self"] if a["self"].shape == shape else low.emit("expand", a["self"], shape=shape)


def _transpose(low: Lowering, a: Args) -> Value:
    x = a["self"]
    if "dim0" not in a:  # aten.t, which does not change vectors
        return x if x.rank < 2 else low.emit("transpose", x, dim0=0, dim1=1)
    first, second = sorted((a["dim0"] % x.rank, a["dim1"] % x.rank))
    return x if first == second else low.emit("transpose", x, dim0=first, dim1=second)


def _reversed(low: Lowering, a: Args) -> Value:
    """Lowers numpy's T, which transposes a matrix."""
    x = a["self"]
    if x.rank == 2:
        return low.emit("transpose", x, dim0=0, dim1=1)
    return x if x.rank < 2 else low.emit("permute", x, dims=tuple(reversed(range(x.rank))))


def _permute(low: Lowering, a: Args) -> Value:
    return low.emit("permute", a["self"], dims=tuple(d % a["self"].rank for d in a["dims"]))


def _unsqueeze(low: Lowering, a: Args) -> Value:
    return low.emit("unsqueeze", a["self"], dim=a["dim"] % (a["self"].rank + 1))


def _squeeze(low: Lowering, a: Args) -> Value:
    x = a["self"]
    dim = a["dim"] % x.rank
    return low.emit("squeeze", x, dim=dim) if x.shape[dim] == 1 else x


def _cat(low: Lowering, a: Args) -> Value:
    tensors = a["tensors"]
    return tensors[0] if len(tensors) == 1 else low.emit("concat", *tensors, dim=a["dim"] % tensors[0].rank)


def _stack(low: Lowering, a: Args) -> Value:
    dim = a["dim"] % (a["tensors"][0].rank + 1)
    return low.emit("concat", *(low.emit("unsqueeze", t, dim=dim) for t in a["tensors"]), dim=dim)


def take(low: Lowering, x: Value, dim: int, start: Dim, end: Dim, step: int = 1) -> Value:
    """Returns x[start:end:step] along dim, or x itself if that is everything."""
    if start == 0 and step == 1 and dims.same(end, x.shape[dim]):
        return x
    return low.emit("slice", x, dim=dim, start=start, end=end, step=step)


def _slice(low: Lowering, a: Args) -> Value:
    x = a["self"]
    dim, step = a["dim"] % x.rank, a["step"]
    size, length = x.shape[dim], low.result_type()[1][dim]
    start = 0 if a["start"] is None else a["start"]
    from_the_end = start == dims.sub(0, length) if isinstance(start, str) else start < 0
    if from_the_end:
        # torch clamps the start at 0. The difference of the sizes gives the clamped start.
        start = dims.sub(size, length) if step == 1 and a["end"] in (None, 2**63 - 1) else dims.add(size, start)
    if isinstance(start, int) and isinstance(size, int):
        start = min(start, size)
    # The result's length is torch's own. The end follows from it where it is negative, absent or past the size.
    end = dims.add(start, length) if step == 1 else size if a["end"] in (None, 2**63 - 1) else a["end"]
    return take(low, x, dim, dims.canonical(start), dims.canonical(end), step)


def _select(low: Lowering, a: Args) -> Value:
    x = a["self"]
    dim, index = a["dim"] % x.rank, a["index"]
    if isinstance(index, int) and index < 0:
        index = dims.add(x.shape[dim], index)
    repeated = _repeated(x, dim)
    return low.emit("select", x, dim=dim, index=index) if repeated is None else repeated


def _repeated(x: Value, dim: int) -> Value | None:
    """Returns y if x is, along dim, only copies of y: a slice of an expanded unsqueeze(y)."""
    while x.producer.op in ("slice", "expand") and x.producer.attrs.get("dim", dim) == dim:
        inner = x.producer.operand(0)
        if inner.rank != x.rank or any(inner.shape[i] != x.shape[i] for i in range(x.rank) if i != dim):
            return None
        x = inner
    node = x.producer
    return node.operand(0) if node.op == "unsqueeze" and node.attrs["dim"] == dim else None


def _pieces(low: Lowering, a: Args) -> list[Value]:
    """Lowers split, split_with_sizes and chunk to slices of the lengths that torch gave the pieces."""
    x = a["self"]
    dim = a["dim"] % x.rank
    ends: list[Dim] = [0]
    for piece in low.current.meta["val"]:
        ends.append(dims.add(ends[-1], low.type_of(piece)[1][dim]))
    return [take(low, x, dim, start, end) for start, end in pairwise(ends)]


def _unbind(low: Lowering, a: Args) -> list[Value]:
    x, dim = a["self"], a["dim"] % a["self"].rank
    if not isinstance(x.shape[dim], int):
        raise low.error("takes apart a dimension of dynamic size")
    return [low.emit("select", x, dim=dim, index=i) for i in range(x.shape[dim])]


def _index(low: Lowering, a: Args) -> Value:
    indices = a["indices"]
    while indices and indices[-1] is None:
        indices = indices[:-1]
    if any(v is not None and v.dtype == "bool" for v in indices):
        raise low.error("indexes by a mask, whose result has no fixed size")
    run = _constant_run(a["self"], indices)
    return low.emit("index", a["self"], *indices) if run is None else take(low, a["self"], *run)


def _index_select(low: Lowering, a: Args) -> Value:
    if a["dim"] % a["self"].rank != 0:
        raise low.error("picks from another dimension than the first; only rows have a meaning")
    return low.emit("index", a["self"], a["index"])


def _constant_run(x: Value, indices: list[Value | None]) -> tuple[int, int, int] | None:
    """Returns (dim, start, end) if x[..., [i, i + 1, ...]] has constant, consecutive indices: a slice."""
    at = [i for i, v in enumerate(indices) if v is not None]
    index = indices[at[0]] if len(at) == 1 else None
    if index is None or not isinstance(index.constant, np.ndarray) or index.rank != 1:
        return None
    size = x.shape[at[0]]
    numbers = [int(i) + size if i < 0 and isinstance(size, int) else int(i) for i in index.constant]
    consecutive = bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    inside = isinstance(size, int) and consecutive and numbers[0] >= 0 and numbers[-1] < size
    return (at[0], numbers[0], numbers[-1] + 1) if inside else None


def _repeat_interleave(low: Lowering, a: Args) -> Value:
    """Lowers [.., n, ..] -> [.., n, r, ..] -> [.., n*r, ..]."""
    x, repeats = a["self"], a["repeats"]
    if a["dim"] is None or not isinstance(repeats, int):
        raise low.error("repeats without a dimension, or by a dynamic count")
    dim = a["dim"] % x.rank
    wide = low.emit("unsqueeze", x, dim=dim + 1)
    wide = low.emit("expand", wide, shape=(*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :]))
    return low.emit("view", wide, shape=low.result_type()[1])


def _repeat(low: Lowering, a: Args) -> Value:
    """Lowers repeat. More counts than dimensions make leading dimensions of size 1."""
    x, counts = a["self"], a["repeats"]
    if len(counts) > x.rank:
        x = low.emit("view", x, shape=(*[1] * (len(counts) - x.rank), *x.shape))
    for dim, count in enumerate(counts):
        if x.shape[dim] == 1 and count != 1:
            x = low.emit("expand", x, shape=(*x.shape[:dim], count, *x.shape[dim + 1 :]))
        elif count != 1 and isinstance(count, int):
            x = low.emit("concat", *[x] * count, dim=dim)
        elif count != 1:
            raise low.error("repeats by a dynamic count")
    return x


def _gather(low: Lowering, a: Args) -> Value:
    """Lowers gather. Whole rows are indexed: x is [1, P, C], and the index [1, S, C] has one number in all columns of a
    row."""
    x, index = a["self"], a["index"]
    numbers = index.node.inputs[0] if index.node is not None and index.node.op == "expand" else None
    one_row = x.rank == 3 and a["dim"] % x.rank == 1 and x.shape[0] == index.shape[0] == 1
    whole = numbers is not None and numbers.shape == (*index.shape[:-1], 1) and index.shape[-1] == x.shape[-1]
    if numbers is None or not (one_row and whole):
        return low.emit("gather", x, index, dim=a["dim"] % x.rank)
    rows = low.emit("view", x, shape=x.shape[1:])
    return low.emit("index", rows, low.emit("view", numbers, shape=numbers.shape[:-1]))


def _diff(low: Lowering, a: Args) -> Value:
    x = a["self"]
    dim = a["dim"] % x.rank
    if a["n"] != 1 or x.dtype == "bool":
        raise low.error("takes higher differences, or those of bools")
    ends = [v for v in (a["prepend"], x, a["append"]) if v is not None]
    x = low.emit("concat", *ends, dim=dim) if len(ends) > 1 else x
    size = x.shape[dim]
    return low.emit("sub", take(low, x, dim, 1, size), take(low, x, dim, 0, dims.sub(size, 1)))


TABLE: dict[str, Handler] = {
    f"aten.{name}": handler
    for handler, names in (
        (_view, ("view.default", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze.dims", "squeeze.default")),
        (_view, ("view_as",)),
        (_expand, ("expand", "expand_as", "broadcast_to")),
        (_transpose, ("transpose.int", "t")),
        (_permute, ("permute",)),
        (_reversed, ("numpy_T",)),
        (_unsqueeze, ("unsqueeze",)),
        (_squeeze, ("squeeze.dim",)),
        (_cat, ("cat", "concat", "concatenate")),
        (_stack, ("stack",)),
        (_slice, ("slice.Tensor",)),
        (_select, ("select.int",)),
        (_pieces, ("split.Tensor", "split.sizes", "split_with_sizes", "chunk")),
        (_unbind, ("unbind.int",)),
        (_index, ("index.Tensor",)),
        (_index_select, ("index_select",)),
        (_repeat_interleave, ("repeat_interleave.self_int",)),
        (_repeat, ("repeat",)),
        (_gather, ("gather",)),
        (_diff, ("diff",)),
    )
    for name in names
}
