"""How norms are narrowed; not a pass itself.

A norm of runs of columns that no rank cuts, such as heads, is a norm of fewer runs. Where ranks cut a run, as in a norm
of q over all heads together, each rank sums the squares of its columns, and the sum over ranks goes before the scale:

    rms_norm_columns(x, w)  ->  rms_norm_by_sums(x, all_reduce(square_sums(x)), w),  with the rank's columns of x and w

The norms of q and of k in one row have one sum over ranks. A head of K that several ranks have is counted by the first
of them.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir import Node, Value
from tensorwright.passes.rewriting.cut import Range, Ranges, width, within
from tensorwright.passes.rewriting.narrow import Heads, HeadsRule, Narrowing, Rule, Undivided, maker


def _run_size(node: Node) -> int:
    return int(node.attrs.get("width", node.operand(1).shape[-1]))


def _norm_of_columns(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    if node.op == "rms_norm_columns" and _is_cut(n, node, value):
        return _norm_over_ranks(n, node, value, ranges)
    return _norm_of_runs(n, node, value, ranges)


def _is_cut(n: Narrowing, node: Node, value: Value) -> bool:
    """Returns whether any rank has a part of a run. All ranks find the same, for they add up together."""
    size, start = _run_size(node), node.attrs["start"]
    if n.row is not None:
        return size > n.row.head_dim
    end = start + node.attrs["heads"] * size
    return any((cut - start) % size for _, cut in n.cuts(value) if start < cut < end)


def _norm_of_runs(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Keeps whole runs of columns that are normalised. A run that lies in no range is dropped."""
    start, size = node.attrs["start"], _run_size(node)
    places = [(start + i * size, start + (i + 1) * size) for i in range(node.attrs["heads"])]
    touched = [i for i, place in enumerate(places) if within(ranges, *place)]
    if any(within(ranges, *places[i]) != ((0, size),) for i in touched):
        raise Undivided(f"{node.op} normalises {size} columns together")
    x = n.narrow(node.operand(0), ranges)
    if not touched:
        return x
    vectors: list[Value | None] = [
        n.stored(v, 0, ((touched[0], touched[-1] + 1),)) if v is not None and v.rank == 2 else v
        for v in node.inputs[1:]
    ]
    attrs = {**node.attrs, "start": width(within(ranges, 0, start)), "heads": len(touched)}
    return n.emit(node, [x, *vectors], attrs)[0]


def _norm_over_ranks(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows the norm, and the norms of other columns of the row below it, with one sum over ranks."""
    norms = [node]
    while n.row is not None and maker(norms[-1].operand(0)) == node.op:
        norms.append(norms[-1].operand(0).producer)
    source = norms[-1].operand(0)
    if n.row is not None and (n.row.value is not value or not all(_is_cut(n, norm, norm.output) for norm in norms)):
        raise Undivided(f"{node.op} over all heads is not the last thing before the cache")
    x = n.narrow(source, ranges)
    areas = [_Area(n, norm, ranges) for norm in norms[::-1]]
    sums = [n.emit(area.norm, [x], area.counted(), "square_sums")[0] for area in areas]
    joined = sums[0] if len(sums) == 1 else n.emit(node, sums, {"dim": 1}, "concat")[0]
    (total,) = n.emit(node, [joined], {}, "all_reduce")
    first = 0
    for area in areas:
        x = area.normalise(x, total, first)
        first += area.runs
    return x


class _Area:
    """The columns of one norm that the rank has. start: the first of them in the narrowed row. own: which of the norm's
    columns they are. copied: whether another rank counts them."""

    def __init__(self, n: Narrowing, norm: Node, ranges: Ranges):
        self.n, self.norm = n, norm
        whole = norm.op == "rms_norm"
        self.size = _run_size(norm)
        self.runs = 1 if whole else norm.attrs["heads"]
        begin = 0 if whole else norm.attrs["start"]
        found = within(ranges, begin, begin + self.runs * self.size)
        if len(found) != 1:
            raise Undivided(
                f"{norm.op} normalises {self.size} columns together, of which a rank has {len(found)} parts"
            )
        self.own: Range = found[0]
        self.start = width(within(ranges, 0, begin))
        copied = () if n.row is None else within(n.row.copied, begin, begin + self.runs * self.size)
        self.copied = bool(copied)

    def counted(self) -> dict[str, Any]:
        columns = 0 if self.copied else self.own[1] - self.own[0]
        return {
            "start": self.start, "columns": columns, "offset": self.own[0], "size": self.size, "runs": self.runs
        }  # fmt: skip

    def normalise(self, x: Value, total: Value, first: int) -> Value:
        """Returns x with the columns normalised by the sums of `total` from `first` on."""
        parts = [within((self.own,), i * self.size, (i + 1) * self.size) for i in range(self.runs)]
        w = self.n.stored(self.norm.operand(1), 0, tuple(part for each in parts for part in each))
        attrs = {name: self.norm.attrs[name] for name in ("eps", "weight_offset")}
        places = {"start": self.start, "offset": self.own[0], "size": self.size, "first": first}
        return self.n.emit(self.norm, [x, total, w], {**places, **attrs}, "rms_norm_by_sums")[0]


def _norm_of_rows(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows a norm over all heads of attention or of a recurrence. A norm of other columns stays whole: a sum over
    ranks costs more than the product before it, which would be shared."""
    if n.heads_of(value) is None:
        raise Undivided(f"{node.op} needs all columns")
    if n.row is not None:
        raise Undivided(f"{node.op} normalises q, k and v together")
    return _norm_over_ranks(n, node, value, ranges)


def _heads_of_operand(n: Narrowing, node: Node, value: Value) -> Heads | None:
    return n.heads_of(node.operand(0))


RULES: dict[str, Rule] = {
    "rms_norm": _norm_of_rows,
    "rms_norm_columns": _norm_of_columns,
    "layer_norm_columns": _norm_of_runs,
}
HEADS: dict[str, HeadsRule] = dict.fromkeys(RULES, _heads_of_operand)
