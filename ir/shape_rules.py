"""Infers the result types of the primitive ops: torch's broadcasting and type promotion, on symbolic shapes.

Every rule takes (operands, attrs) and returns [(dtype, shape)], or raises GraphError with the part that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorwright.errors import GraphError
from tensorwright.ir import dims
from tensorwright.ir.graph import CACHES, DTYPES, Dim, Shape, Value

Types = list[tuple[str, Shape]]
Attrs = dict[str, Any]

_INTS = ("int8", "int32", "int64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def require(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def show(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


# -- promotion --------------------------------------------------------------------------------------------------------


def category(dtype: str) -> int:
    """Returns the category by which torch promotes: 0 for bool, 1 for integers, 2 for floating point."""
    require(dtype in DTYPES and dtype not in CACHES, f"{dtype} is no element type to compute with")
    return 0 if dtype == "bool" else 1 if dtype in _INTS else 2


def is_weak(value: Value) -> bool:
    """Returns whether a value is a Python number. Such an operand never decides the type within its category, as in
    torch."""
    constant = value.constant
    return value.rank == 0 and constant is not None and isinstance(constant, bool | int | float)


def promote(values: Sequence[Value]) -> str:
    """Returns the common type of operands as torch.result_type does. Tensors decide first, then rank-0 tensors, then
    Python numbers; a later tier decides only if its category is higher."""
    tiers: list[list[str]] = [[], [], []]
    for value in values:
        tiers[2 if is_weak(value) else 1 if value.rank == 0 else 0].append(value.dtype)
    result = ""
    for level, tier in enumerate(tiers):
        if not tier:
            continue
        joined = tier[0]
        for dtype in tier[1:]:
            joined = _join(joined, dtype)
        if level == 2:
            joined = ("bool", "int64", "float32")[category(joined)]
        if not result or category(joined) > category(result):
            result = joined
    return result


def _join(a: str, b: str) -> str:
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    order = _INTS if category(a) == 1 else _FLOATS
    return a if a == b or order.index(a) > order.index(b) else b


def _float_of(dtype: str) -> str:
    return dtype if category(dtype) == 2 else "float32"


# -- elementwise ------------------------------------------------------------------------------------------------------


def broadcast(*shapes: Shape) -> Shape:
    """Returns the common shape, aligned from the right. Sizes must agree or be 1. Raises GraphError if they do not."""
    rank = max(map(len, shapes))
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size == 1 or dims.same(size, result[i]):
                continue
            require(result[i] == 1, f"shapes {', '.join(map(show, shapes))} do not broadcast")
            result[i] = size
    return tuple(result)


def same_as_input(x: list[Value], attrs: Attrs) -> Types:
    return [(x[0].dtype, x[0].shape)]


def unary_float(x: list[Value], attrs: Attrs) -> Types:
    return [(_float_of(x[0].dtype), x[0].shape)]


def arithmetic(x: list[Value], attrs: Attrs) -> Types:
    return [(promote(x), broadcast(*(v.shape for v in x)))]


def division(x: list[Value], attrs: Attrs) -> Types:
    return [(_float_of(promote(x)), broadcast(*(v.shape for v in x)))]


def comparison(x: list[Value], attrs: Attrs) -> Types:
    return [("bool", broadcast(*(v.shape for v in x)))]


def where(x: list[Value], attrs: Attrs) -> Types:
    require(x[0].dtype == "bool", f"the condition must be bool, not {x[0].dtype}")
    return [(promote(x[1:]), broadcast(*(v.shape for v in x)))]


def cast(x: list[Value], attrs: Attrs) -> Types:
    return [(attrs["dtype"], x[0].shape)]


# -- reductions -------------------------------------------------------------------------------------------------------


def check_dim(dim: int, rank: int, what: str = "dim") -> None:
    require(isinstance(dim, int) and 0 <= dim < rank, f"{what} must be within rank {rank}, not {dim}")


def _reduce(dtype_of: Any) -> Any:
    def rule(x: list[Value], attrs: Attrs) -> Types:
        gone = set(attrs["dims"])
        for dim in gone:
            check_dim(dim, x[0].rank, "dims")
        kept = [1 if i in gone else n for i, n in enumerate(x[0].shape) if attrs["keepdim"] or i not in gone]
        return [(dtype_of(x[0].dtype), tuple(kept))]

    return rule


def _sum_dtype(dtype: str) -> str:
    return dtype if category(dtype) == 2 else "int64"


REDUCE = {
    "mean": _reduce(_float_of),
    "sum": _reduce(_sum_dtype),
    "amax": _reduce(lambda dtype: dtype),
    "any": _reduce(lambda dtype: "bool"),
    "all": _reduce(lambda dtype: "bool"),
}


def cumsum(x: list[Value], attrs: Attrs) -> Types:
    check_dim(attrs["dim"], x[0].rank)
    return [(_sum_dtype(x[0].dtype), x[0].shape)]


def topk(x: list[Value], attrs: Attrs) -> Types:
    """Infers the k largest elements along a dimension, and the places of these."""
    dim, k, shape = attrs["dim"], attrs["k"], x[0].shape
    check_dim(dim, x[0].rank)
    size = shape[dim]
    require(k >= 1 and (not isinstance(size, int) or k <= size), f"k must be 1 to {size}, not {k}")
    found = (*shape[:dim], k, *shape[dim + 1 :])
    return [(x[0].dtype, found), ("int64", found)]


def gather(x: list[Value], attrs: Attrs) -> Types:
    """Infers the elements of x at the places that the index names along a dimension: one for each number of it."""
    return [(x[0].dtype, _places(x, attrs))]


def scatter(x: list[Value], attrs: Attrs) -> Types:
    """Infers x with one number at the places that the index names along a dimension."""
    _places(x, attrs)
    return [(x[0].dtype, x[0].shape)]


def _places(x: list[Value], attrs: Attrs) -> Shape:
    dim, index = attrs["dim"], x[1]
    check_dim(dim, x[0].rank)
    require(index.dtype in ("int32", "int64"), f"the index must be integers, not {index.dtype}")
    others = [(a, b) for i, (a, b) in enumerate(zip(x[0].shape, index.shape, strict=False)) if i != dim]
    fits = x[0].rank == index.rank and all(dims.same(a, b) for a, b in others)
    require(fits, f"an index {show(index.shape)} must be as large as {show(x[0].shape)} but for dimension {dim}")
    return index.shape


# -- linear algebra ---------------------------------------------------------------------------------------------------


def _same_dtype(x: Sequence[Value]) -> str:
    require(len({v.dtype for v in x}) == 1, f"operands must have one dtype, not {', '.join(v.dtype for v in x)}")
    return x[0].dtype


def matmul(x: list[Value], attrs: Attrs) -> Types:
    a, b = x
    require(a.rank >= 2 and b.rank >= 2, f"operands must be matrices, not {show(a.shape)} and {show(b.shape)}")
    require(dims.same(a.shape[-1], b.shape[-2]), f"{show(a.shape)} times {show(b.shape)}: inner dimensions differ")
    batch = broadcast(a.shape[:-2], b.shape[:-2]) if a.rank > 2 or b.rank > 2 else ()
    return [(_same_dtype(x), (*batch, a.shape[-2], b.shape[-1]))]


def linear(x: list[Any], attrs: Attrs) -> Types:
    """Maps x [..., k], w [n, k] and bias [n] or None to [..., n]."""
    a, w, bias = x[0], x[1], x[2] if len(x) > 2 else None
    require(w.rank == 2, f"the weight must be [n, k], not {show(w.shape)}")
    require(
        a.rank >= 1 and dims.same(a.shape[-1], w.shape[1]), f"x {show(a.shape)} does not fit weight {show(w.shape)}"
    )
    if bias is not None:
        require(bias.shape == (w.shape[0],), f"bias {show(bias.shape)} does not fit weight {show(w.shape)}")
    return [(_same_dtype([v for v in x if v is not None]), (*a.shape[:-1], w.shape[0]))]


def embedding(x: list[Value], attrs: Attrs) -> Types:
    """Maps table [n, c] and integer ids [...] to [..., c]."""
    table, ids = x
    require(table.rank == 2, f"the table must be [n, c], not {show(table.shape)}")
    require(ids.dtype in ("int32", "int64"), f"ids must be integers, not {ids.dtype}")
    return [(table.dtype, (*ids.shape, table.shape[1]))]


# -- shapes -----------------------------------------------------------------------------------------------------------


def view(x: list[Value], attrs: Attrs) -> Types:
    old, new = x[0].shape, tuple(attrs["shape"])
    require(dims.same(dims.mul(*old), dims.mul(*new)), f"{show(old)} and {show(new)} differ in element count")
    return [(x[0].dtype, new)]


def transpose(x: list[Value], attrs: Attrs) -> Types:
    a, b, shape = attrs["dim0"], attrs["dim1"], list(x[0].shape)
    check_dim(a, x[0].rank, "dim0")
    check_dim(b, x[0].rank, "dim1")
    shape[a], shape[b] = shape[b], shape[a]
    return [(x[0].dtype, tuple(shape))]


def permute(x: list[Value], attrs: Attrs) -> Types:
    order = list(attrs["dims"])
    require(sorted(order) == list(range(x[0].rank)), f"dims {order} do not permute rank {x[0].rank}")
    return [(x[0].dtype, tuple(x[0].shape[i] for i in order))]


def unsqueeze(x: list[Value], attrs: Attrs) -> Types:
    dim, shape = attrs["dim"], x[0].shape
    check_dim(dim, x[0].rank + 1)
    return [(x[0].dtype, (*shape[:dim], 1, *shape[dim:]))]


def squeeze(x: list[Value], attrs: Attrs) -> Types:
    dim, shape = attrs["dim"], x[0].shape
    check_dim(dim, x[0].rank)
    require(shape[dim] == 1, f"dimension {dim} of {show(shape)} must be 1")
    return [(x[0].dtype, (*shape[:dim], *shape[dim + 1 :]))]


def expand(x: list[Value], attrs: Attrs) -> Types:
    old, new = x[0].shape, tuple(attrs["shape"])
    fits = len(new) >= len(old) and all(
        a == 1 or dims.same(a, b) for a, b in zip(old, new[len(new) - len(old) :], strict=True)
    )
    require(fits, f"{show(old)} does not expand to {show(new)}")
    return [(x[0].dtype, new)]


def concat(x: list[Value], attrs: Attrs) -> Types:
    dim, first = attrs["dim"], x[0].shape
    check_dim(dim, len(first))
    for v in x[1:]:
        fits = v.rank == len(first) and all(
            i == dim or dims.same(a, b) for i, (a, b) in enumerate(zip(first, v.shape, strict=True))
        )
        require(fits, f"{show(first)} and {show(v.shape)} do not join along {dim}")
    size = dims.add(*(v.shape[dim] for v in x))
    return [(_same_dtype(x), (*first[:dim], size, *first[dim + 1 :]))]


def slice_(x: list[Value], attrs: Attrs) -> Types:
    dim, step, shape = attrs["dim"], attrs["step"], x[0].shape
    check_dim(dim, x[0].rank)
    length = dims.sub(attrs["end"], attrs["start"])
    require(step >= 1, f"step must be positive, not {step}")
    require(not isinstance(length, int) or length >= 0, f"start {attrs['start']} is past end {attrs['end']}")
    known = [d for d in (attrs["start"], attrs["end"], shape[dim]) if isinstance(d, int)]
    require(len(known) < 3 or 0 <= known[0] <= known[1] <= known[2], f"{known[:2]} is outside {show(shape)} at {dim}")
    size = length if step == 1 else dims.floor_div(dims.add(length, step - 1), step)
    return [(x[0].dtype, (*shape[:dim], size, *shape[dim + 1 :]))]


def select(x: list[Value], attrs: Attrs) -> Types:
    dim, shape = attrs["dim"], x[0].shape
    check_dim(dim, x[0].rank)
    return [(x[0].dtype, (*shape[:dim], *shape[dim + 1 :]))]


def index(x: list[Any], attrs: Attrs) -> Types:
    """Infers x[i0, i1, ...] for integer tensors. The indexed dimensions must be adjacent. None keeps a dimension."""
    base, ids = x[0], x[1:]
    require(len(ids) <= base.rank, f"{len(ids)} indices into rank {base.rank}")
    at = [i for i, v in enumerate(ids) if v is not None]
    require(bool(at) and at == list(range(at[0], at[-1] + 1)), "the indexed dimensions must be adjacent")
    require(all(ids[i].dtype in ("int32", "int64") for i in at), "indices must be integers")
    picked = broadcast(*(ids[i].shape for i in at))
    return [(base.dtype, (*base.shape[: at[0]], *picked, *base.shape[at[-1] + 1 :]))]


def arange(x: list[Value], attrs: Attrs) -> Types:
    length, step = dims.sub(attrs["end"], attrs["start"]), attrs["step"]
    require(step != 0, "step must not be 0")
    size = length if step == 1 else dims.floor_div(dims.add(length, step - 1 if step > 0 else step + 1), step)
    return [(attrs["dtype"], (size,))]


def full(x: list[Value], attrs: Attrs) -> Types:
    return [(attrs["dtype"], tuple(attrs["shape"]))]
