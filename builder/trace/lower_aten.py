"""Maps ATen overloads to IR. A handler gets the walk and the arguments by schema name, and returns Values.

Names are looked up with overload first ("aten.view.default"), then without ("aten.add").
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from tensorwright.builder.trace import lower_shapes as shapes
from tensorwright.builder.trace.lower_complex import with_complex
from tensorwright.builder.trace.lower_fx import CHECKS, Handler, Lowering
from tensorwright.builder.trace.trace_experts import OPERATION as EXPERTS
from tensorwright.builder.trace.trace_recurrences import (
    CAUSAL_CONV,
    DELTA_RULE,
    LINEAR_ATTENTION,
    RG_LRU,
    SELECTIVE_SCAN,
    STATE_SPACE_SCAN,
)
from tensorwright.ir import dims
from tensorwright.ir.graph import Value
from tensorwright.ir.weights import WeightExpr
from tensorwright.plugins.experts.op import OP as EXPERTS_OP

Args = dict[str, Any]


def _unary(op: str) -> Handler:
    return lambda low, a: low.emit(op, a["self"])


def _binary(op: str) -> Handler:
    def handler(low: Lowering, a: Args) -> Value:
        if a.get("alpha", 1) != 1:
            raise low.error(f"has alpha {a['alpha']}; only 1 has a meaning")
        return low.emit(op, a["self"], a["exponent"] if "exponent" in a else a["other"])

    return handler


def _same(low: Lowering, a: Args) -> Value:
    return a["self"]


def _dropout(low: Lowering, a: Args) -> Value:
    if a["train"] and a["p"] != 0:
        raise low.error("drops at random: the model is in training mode")
    return a["input"]


def _cast(low: Lowering, a: Args) -> Value:
    return cast_to(low, a["self"], low.result_type()[0])


def cast_to(low: Lowering, x: Value, dtype: str | None) -> Value:
    return x if dtype is None or x.dtype == dtype else low.emit("cast", x, dtype=dtype)


def _dtype_name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _reduction(op: str) -> Handler:
    def handler(low: Lowering, a: Args) -> Value:
        x = cast_to(low, a["self"], _dtype_name(a.get("dtype")))
        given = a.get("dim")
        given = [given] if isinstance(given, int) else list(given or range(x.rank))
        axes = tuple(sorted(d % x.rank for d in given))
        return low.emit(op, x, dims=axes, keepdim=bool(a.get("keepdim", False)))

    return handler


def _softmax(low: Lowering, a: Args) -> Value:
    x = cast_to(low, a["self"], "float32" if a.get("half_to_float") else _dtype_name(a.get("dtype")))
    return low.emit("softmax", x, dim=a["dim"] % x.rank)


def _vector_norm(low: Lowering, a: Args) -> Value:
    """Lowers linalg_vector_norm. Only the sum of absolute values has a meaning, which routers divide by."""
    if a["ord"] != 1:
        raise low.error(f"is of order {a['ord']}; only 1 has a meaning")
    return _reduction("sum")(low, {**a, "self": low.emit("abs", a["self"])})  # type: ignore[return-value]


def _logsumexp(low: Lowering, a: Args) -> Value:
    """Lowers logsumexp to log(sum(exp(x - max))) + max. The last bits may differ from torch's."""
    x, dim = a["self"], a["dim"]
    axes = {"dims": tuple(sorted(d % x.rank for d in ([dim] if isinstance(dim, int) else dim)))}
    top = low.emit("amax", x, **axes, keepdim=True)
    total = low.emit("sum", low.emit("exp", low.emit("sub", x, top)), **axes, keepdim=True)
    out = low.emit("add", low.emit("log", total), top)
    shape = low.result_type()[1]
    return out if out.shape == shape else low.emit("view", out, shape=shape)


def _cumsum(low: Lowering, a: Args) -> Value:
    x = cast_to(low, a["self"], _dtype_name(a["dtype"]))
    return low.emit("cumsum", x, dim=a["dim"] % x.rank)


def _max_over(low: Lowering, a: Args) -> list[Value | None]:
    """Lowers max.dim to the maxima, and where their places are used too, to a topk of one."""
    x, dim, keepdim = a["self"], a["dim"] % a["self"].rank, bool(a.get("keepdim", False))
    if not any(user.target is operator.getitem and user.args[1] == 1 and user.users for user in low.current.users):
        return [low.emit("amax", x, dims=(dim,), keepdim=keepdim), None]
    found = low.emit_all("topk", x, dim=dim, k=1)
    return [value if keepdim else low.emit("squeeze", value, dim=dim) for value in found]


def _scatter(low: Lowering, a: Args) -> Value:
    return low.emit("scatter", a["self"], a["index"], dim=a["dim"] % a["self"].rank, value=a["value"])


def _topk(low: Lowering, a: Args) -> list[Value]:
    """Lowers topk. The order of the results is open if it is not sorted, and best first is such an order."""
    if not a["largest"]:
        raise low.error("takes the smallest; only the largest have a meaning")
    return low.emit_all("topk", a["self"], dim=a["dim"] % a["self"].rank, k=a["k"])


def _experts(low: Lowering, a: Args) -> Value:
    matrices = [_stored(low, a[name], a["transposed"], a["alternating"] and name == "up") for name in ("up", "down")]
    biases = [a["up_bias"], a["down_bias"]] if a["up_bias"] is not None else []
    if biases and a["alternating"]:
        biases[0] = _stored(low, biases[0], False, True)
    kinds = {name: {"bool": bool, "int": int}.get(kind, float) for name, kind in EXPERTS_OP.optional_attrs.items()}
    more = {name: kinds[name](number) for name, number in zip(a["names"], a["numbers"], strict=True)}
    operands = (a["x"], a["index"], a["weights"], *matrices, *biases)
    return low.emit("experts", *operands, activation=a["activation"], **more)


def _stored(low: Lowering, value: Value, transposed: bool, alternating: bool) -> Value:
    """Returns the weight of experts with one matrix [rows, columns] each, the rows of the gate first.

    transposed: each matrix is stored as [columns, rows]. alternating: rows of the gate and of up take turns.
    """
    if value.node is not None and value.node.op == "weight" and not transposed and not alternating:
        return value
    expr, shape = _expression(low, value), list(value.shape)
    if transposed:
        expr, shape[1:] = expr.transpose(1, 2), shape[:0:-1]
    if alternating:
        halves = [expr.every(1, start, 2) for start in range(2)]
        expr = halves[0].concat(halves[1:], 1)
    scope = value.producer.scope
    kind = [(value.dtype, tuple(shape))]
    return low.graph.add("weight", (), {"expr": expr}, kind, names=[value.name], scope=scope).output


def _expression(low: Lowering, value: Value) -> WeightExpr:
    """Returns the expression of a weight, or of what slices, transposes, views and concatenation make of weights."""
    node = value.node
    if node is not None and node.op == "weight":
        expr: WeightExpr = node.attrs["expr"]
        return expr
    if node is not None and node.op == "transpose":
        return _expression(low, node.operand(0)).transpose(node.attrs["dim0"], node.attrs["dim1"])
    if node is not None and node.op == "slice" and node.attrs["step"] == 1:
        return _expression(low, node.operand(0)).slice(*(node.attrs[name] for name in ("dim", "start", "end")))
    if node is not None and node.op == "view" and all(isinstance(size, int) for size in value.shape):
        return _expression(low, node.operand(0)).reshape([int(size) for size in value.shape])
    if node is not None and node.op == "concat":
        first, *others = (_expression(low, node.operand(i)) for i in range(len(node.inputs)))
        return first.concat(others, node.attrs["dim"])
    raise low.error("must have matrices of the checkpoint")


def _causal_conv(low: Lowering, a: Args) -> Value:
    bias = [] if a["bias"] is None else [a["bias"]]
    return low.emit("causal_conv", a["x"], a["w"], *bias, activation=a["activation"])


def _state_space_scan(low: Lowering, a: Args) -> Value:
    operands = (a[name] for name in ("x", "dt", "b", "c", "a", "d", "dt_bias"))
    attrs = {name: a[name] for name in ("heads", "groups", "dt_min", "dt_max")}
    return low.emit("state_space_scan", *operands, **attrs)


def _selective_scan(low: Lowering, a: Args) -> Value:
    return low.emit("selective_scan", *(a[name] for name in ("x", "dt", "b", "c", "a", "d", "dt_bias")))


def _delta_rule(low: Lowering, a: Args) -> Value:
    operands = (a[name] for name in ("q", "k", "v", "g", "beta"))
    return low.emit("delta_rule", *operands, key_heads=a["key_heads"], heads=a["heads"])


def _rg_lru(low: Lowering, a: Args) -> Value:
    return low.emit("rg_lru", a["x"], a["a"], a["first"])


def _linear_attention(low: Lowering, a: Args) -> Value:
    return low.emit("linear_attention", *(a[name] for name in ("v", "k", "q", "slopes")), heads=a["heads"])


def _conv(low: Lowering, a: Args) -> Value:
    """Lowers a convolution of each channel on its own to a causal_conv, if it has the type of what it reads
    (narrow_convolutions.py)."""
    x, w = a["input"], a["weight"]
    alone = x.rank == 3 and w.shape[:2] == (x.shape[1], 1) and a["groups"] == int(w.shape[0])
    plain = list(a["stride"]) == [1] and list(a["dilation"]) == [1] and list(a["padding"]) == [int(w.shape[-1]) - 1]
    if not (alone and plain and low.result_type()[1] == x.shape):
        raise low.error("is no causal convolution of each channel on its own")
    bias = [] if a["bias"] is None else [a["bias"]]
    weight = low.emit("view", w, shape=(w.shape[0], w.shape[2]))
    rows = low.emit("causal_conv", low.emit("transpose", x, dim0=1, dim1=2), weight, *bias, activation="none")
    return low.emit("transpose", rows, dim0=1, dim1=2)


def _softplus(low: Lowering, a: Args) -> Value:
    if a["beta"] != 1 or a["threshold"] != 20:
        raise low.error(f"has beta {a['beta']} and threshold {a['threshold']}; only 1 and 20 have a meaning")
    return low.emit("softplus", a["self"])


def _linear(low: Lowering, a: Args) -> Value:
    return low.emit("linear", *([a["input"], a["weight"]] + ([a["bias"]] if a["bias"] is not None else [])))


def _addmm(low: Lowering, a: Args) -> Value:
    if a["beta"] != 1 or a["alpha"] != 1:
        raise low.error(f"has beta {a['beta']} and alpha {a['alpha']}; only 1 has a meaning")
    transposed = low.emit("transpose", a["mat2"], dim0=0, dim1=1)
    if a["self"].rank == 1:
        return low.emit("linear", a["mat1"], transposed, a["self"])
    return low.emit("add", low.emit("linear", a["mat1"], transposed), a["self"])


def _baddbmm(low: Lowering, a: Args) -> Value:
    if a["beta"] != 1:
        raise low.error(f"has beta {a['beta']}; only 1 has a meaning")
    product = low.emit("matmul", a["batch1"], a["batch2"])
    scaled = product if a["alpha"] == 1 else low.emit("mul", product, float(a["alpha"]))
    return low.emit("add", scaled, a["self"])


def _matmul(low: Lowering, a: Args) -> Value:
    return low.emit("matmul", a["self"], a["other"] if "other" in a else a["mat2"])


def _embedding(low: Lowering, a: Args) -> Value:
    return low.emit("embedding", a["weight"], a["indices"])


def _layer_norm(low: Lowering, a: Args) -> Value:
    """Lowers layer_norm. An absent weight becomes ones."""
    x, w, b = a["input"], a["weight"], a["bias"]
    if len(a["normalized_shape"]) != 1:
        raise low.error(f"normalises over {list(a['normalized_shape'])}; only the last dimension has a meaning")
    if w is None:
        ones = np.ones(x.shape[-1:], np.float32)  # bfloat16 constants are held as float32 too
        w = low.graph.add("constant", (), {"value": ones}, [(x.dtype, x.shape[-1:])], scope=low.scope).output
    return low.emit("layer_norm", x, w, *([] if b is None else [b]), eps=float(a["eps"]), weight_offset=0.0)


def _native_layer_norm(low: Lowering, a: Args) -> list[Any]:
    """Lowers native_layer_norm. A use of its second or third result, mean and deviation, is an error."""
    return [_layer_norm(low, a), None, None]


def _gelu(low: Lowering, a: Args) -> Value:
    return low.emit("gelu", a["self"], approximate=a["approximate"])


def _clamp(low: Lowering, a: Args) -> Value:
    least, most = a.get("min"), a.get("max")
    if isinstance(least, Value) or isinstance(most, Value):
        x = a["self"] if least is None else low.emit("maximum", a["self"], least)
        return x if most is None else low.emit("minimum", x, most)
    return low.emit("clamp", a["self"], min=least, max=most)


def _div(low: Lowering, a: Args) -> Value:
    mode = a.get("rounding_mode")
    if mode not in (None, "floor"):
        raise low.error(f"has rounding mode {mode!r}; only none and 'floor' have a meaning")
    return low.emit("div" if mode is None else "floor_div", a["self"], a["other"])


def _rsub(low: Lowering, a: Args) -> Value:
    return _binary("sub")(low, {**a, "self": a["other"], "other": a["self"]})


def _in_place(handler: Handler) -> Handler:
    """Makes a new value for a change in place, if the old one is a fresh result of arithmetic of which nobody has a
    view: every user before the change has a result of its own. Users after the change read the new value, by whichever
    name."""

    def checked(low: Lowering, a: Args) -> Value:
        source = low.current.args[0]
        names = _names(source) if isinstance(source, torch.fx.Node) else []
        if not names or not _is_fresh(names[0]):
            raise low.error("changes in place what others may read")
        others = [user for name in names for user in name.users if user is not low.current and user not in names]
        if any(user < low.current and not _is_fresh(user) for user in others):
            raise low.error("changes in place what others may read")
        result = handler(low, a)
        for name in names:
            if name < low.current:
                low.env[name] = result
        return result

    return checked


def _names(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Returns the nodes whose result is the tensor of `node`: the one that makes it, and all changes of it in place."""
    while _is_change(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    names = [node]
    for name in names:  # The list grows while it is read.
        names += [user for user in name.users if _is_change(user) and user.args[0] is name and user not in names]
    return names


def _is_change(node: torch.fx.Node) -> bool:
    return str(node.target).startswith(tuple(f"aten.{change.partition('.')[0]}." for change in _CHANGES))


def _is_fresh(node: torch.fx.Node) -> bool:
    """Returns whether the result shares memory with no operand, or is an operand that was changed in place."""
    made: Any = node.args[0] if node.target is operator.getitem else node
    while _overload(made) in _SAME_MEMORY and sum(str(user.target) not in CHECKS for user in made.args[0].users) == 1:
        made = made.args[0]
    return _overload(made) in _FRESH


def _overload(node: Any) -> list[str]:
    """Returns the name of an operation without its overload, ["aten", "add"]; [] for what is no node."""
    return str(node.target).split(".")[:2] if isinstance(node, torch.fx.Node) else []


def _put(low: Lowering, a: Args) -> Value:
    """Lowers x[mask] = number."""
    x, indices, value = a["self"], a["indices"], a["values"]
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype != "bool" or mask.shape != x.shape or value.rank > 0 or a["accumulate"]:
        raise low.error("puts other values than one number where a mask of the same shape is set")
    return low.emit("where", mask, value, x)


_CHANGES = {
    "add_": _binary("add"),
    "sub_": _binary("sub"),
    "mul_": _binary("mul"),
    "div_": _div,
    "scatter_.value": _scatter,
    "index_put_": _put,
}
_FRESH = [
    ["aten", name.partition(".")[0]]
    for name in (
        "matmul", "mm", "bmm", "addmm", "linear", "add", "sub", "mul", "div", "sum", "topk", "gather", "zeros_like",
        "full_like", "embedding", "index_select", "clone", *_CHANGES,
    )
]  # fmt: skip
"""Operations whose result shares memory with no operand, or is an operand that was changed in place."""
_SAME_MEMORY = [["aten", name] for name in ("view", "detach", "to")]
"""Operations whose result is the memory of their operand, or a copy."""


def _reciprocal(low: Lowering, a: Args) -> Value:
    return low.emit("div", 1.0, a["self"])


def _floor(low: Lowering, a: Args) -> Value:
    return low.emit("floor_div", a["self"], 1.0)


def _log1p(low: Lowering, a: Args) -> Value:
    """Lowers log1p to log(x + 1). The last bits may differ from torch's."""
    return low.emit("log", low.emit("add", a["self"], 1.0))


def _where(low: Lowering, a: Args) -> Value:
    return low.emit("where", a["condition"], a["self"], a["other"])


def _masked_fill(low: Lowering, a: Args) -> Value:
    return low.emit("where", a["mask"], a["value"], a["self"])


def _logical(op: str) -> Handler:
    """Lowers torch's bitwise operations, which masks use for logic. On integers they would mean something else."""

    def handler(low: Lowering, a: Args) -> Value:
        operands = [a["self"]] + ([a["other"]] if "other" in a else [])
        if any(isinstance(v, Value) and v.dtype != "bool" for v in operands):
            raise low.error("works on integer bits; only bool operands have a meaning")
        return low.emit(op, *operands)

    return handler


def _arange(low: Lowering, a: Args) -> Value:
    start, step = a.get("start", 0), a.get("step", 1)
    if not all(isinstance(x, int | str) for x in (start, a["end"], step)):
        raise low.error("counts with floats; only integers have a meaning")
    return low.emit("arange", start=dims.canonical(start), end=a["end"], step=step, dtype=low.result_type()[0])


def _full(value: Any = None) -> Handler:
    def handler(low: Lowering, a: Args) -> Value:
        dtype, shape = low.result_type()
        number = next((a[k] for k in ("fill_value", "s") if k in a), value)
        if isinstance(number, Value):
            raise low.error("fills with a tensor")
        return low.emit("full", shape=shape, value=bool(number) if dtype == "bool" else number, dtype=dtype)

    return handler


def _triangle(keep_lower: bool) -> Handler:
    """Lowers tril or triu to where(column - row <= or >= diagonal, x, 0)."""

    def handler(low: Lowering, a: Args) -> Value:
        x = a["self"]
        rows = low.emit("arange", start=0, end=x.shape[-2], step=1, dtype="int64")
        columns = low.emit("arange", start=0, end=x.shape[-1], step=1, dtype="int64")
        offset = low.emit("sub", columns, low.emit("unsqueeze", rows, dim=1))
        keep = low.emit("le" if keep_lower else "ge", offset, a["diagonal"])
        return low.emit("where", keep, x, False if x.dtype == "bool" else 0)

    return handler


def _aten(handler: Handler, *names: str) -> dict[str, Handler]:
    return {f"aten.{name}": handler for name in names}


def _table() -> dict[str, Handler]:
    table: dict[str, Handler] = {}
    for op in ("neg", "rsqrt", "sqrt", "exp", "log", "cos", "sin", "tanh", "sigmoid", "silu", "relu", "erf", "abs",
               "square", "expm1", "logical_not"):  # fmt: skip
        table |= _aten(_unary(op), op)
    for op in ("add", "sub", "mul", "pow", "maximum", "minimum", "remainder", "eq", "ne", "lt", "le", "gt", "ge",
               "logical_and", "logical_or"):  # fmt: skip
        table |= _aten(_binary(op), op)
    table |= _aten(_binary("maximum"), "max.other") | _aten(_binary("minimum"), "min.other")
    for op in ("mean", "sum", "amax", "any", "all"):
        table |= _aten(_reduction(op), op)
    table |= _aten(_reduction("amax"), "max.default") | _aten(_max_over, "max.dim")
    table |= _aten(_logical("logical_and"), "bitwise_and", "__and__")
    table |= _aten(_logical("logical_or"), "bitwise_or", "__or__") | _aten(_logical("logical_not"), "bitwise_not")
    table |= _aten(_same, "clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "detach_")
    table |= _aten(_dropout, "dropout") | _aten(_cast, "to", "_to_copy", "type_as")
    table |= _aten(_softmax, "softmax", "_softmax") | _aten(_cumsum, "cumsum")
    table |= _aten(_logsumexp, "logsumexp") | _aten(_vector_norm, "linalg_vector_norm")
    table |= _aten(_linear, "linear") | _aten(_addmm, "addmm") | _aten(_matmul, "matmul", "mm", "bmm")
    table |= _aten(_baddbmm, "baddbmm")
    table |= _aten(_topk, "topk") | _aten(_scatter, "scatter.value") | {EXPERTS: _experts}
    table |= {CAUSAL_CONV: _causal_conv, STATE_SPACE_SCAN: _state_space_scan, DELTA_RULE: _delta_rule}
    table |= {SELECTIVE_SCAN: _selective_scan, RG_LRU: _rg_lru} | _aten(_conv, "conv1d")
    table |= {LINEAR_ATTENTION: _linear_attention}
    table |= _aten(_softplus, "softplus")
    table |= _aten(_embedding, "embedding") | _aten(_gelu, "gelu") | _aten(_clamp, "clamp", "clamp_min", "clamp_max")
    table |= _aten(_layer_norm, "layer_norm") | _aten(_native_layer_norm, "native_layer_norm")
    table |= _aten(_div, "div") | _aten(_rsub, "rsub") | _aten(_reciprocal, "reciprocal")
    table |= _aten(_binary("floor_div"), "floor_divide") | _aten(_floor, "floor") | _aten(_log1p, "log1p")
    for name, handler in _CHANGES.items():
        table |= _aten(_in_place(handler), name)
    table |= _aten(_where, "where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
    table |= _aten(_masked_fill, "masked_fill") | _aten(_arange, "arange")
    table |= _aten(_full(), "full", "full_like", "new_full", "scalar_tensor")
    table |= _aten(_full(0), "zeros", "zeros_like", "new_zeros") | _aten(_full(1), "ones", "ones_like", "new_ones")
    table |= _aten(_triangle(True), "tril") | _aten(_triangle(False), "triu")
    return with_complex(table | shapes.TABLE)


TABLE: dict[str, Handler] = _table()
