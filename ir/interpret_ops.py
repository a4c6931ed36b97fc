"""Computes each primitive op in torch, with one rule per op that is called as (operands, attrs, bindings).

Operands are tensors, None, or Python numbers for scalar constants. torch computes with the full precision of such a
number, as in the traced model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tensorwright.ir import dims

Operands = list[Any]
Attrs = dict[str, Any]
Bindings = Mapping[str, int]
Rule = Callable[[Operands, Attrs, Bindings], torch.Tensor | tuple[torch.Tensor, ...]]
"""Computes the result of an op, or the tuple of its results if there are several."""


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch type of an element type's name."""
    return getattr(torch, name)


def _tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Rule:
    return lambda x, attrs, bind: function(_tensor(x[0]))


def _binary(function: Callable[[Any, Any], torch.Tensor], *, tensors: bool = False) -> Rule:
    """Returns the rule of a binary function. At least one operand becomes a tensor; with `tensors` both do, for a torch
    function that takes no numbers."""

    def rule(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
        a, b = x
        if tensors or not (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor)):
            a, b = _tensor(a), _tensor(b)
        return function(a, b)

    return rule


def _reduction(function: Callable[..., torch.Tensor]) -> Rule:
    return lambda x, attrs, bind: function(_tensor(x[0]), dim=tuple(attrs["dims"]), keepdim=attrs["keepdim"])


def _view(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    return _tensor(x[0]).reshape(dims.evaluate_all(attrs["shape"], bind))


def _expand(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    return _tensor(x[0]).expand(dims.evaluate_all(attrs["shape"], bind))


def _slice(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    start, end = dims.evaluate(attrs["start"], bind), dims.evaluate(attrs["end"], bind)
    index = [slice(None)] * attrs["dim"] + [slice(start, end, attrs["step"])]
    return x[0][tuple(index)]


def _index(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    return x[0][tuple(slice(None) if i is None else i.long() for i in x[1:])]


def _arange(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    start, end = dims.evaluate(attrs["start"], bind), dims.evaluate(attrs["end"], bind)
    return torch.arange(start, end, attrs["step"], dtype=torch_dtype(attrs["dtype"]))


def _full(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    value = attrs["value"]
    value = dims.evaluate(value, bind) if isinstance(value, str) else value
    return torch.full(dims.evaluate_all(attrs["shape"], bind), value, dtype=torch_dtype(attrs["dtype"]))


def _pow(a: Any, b: Any) -> torch.Tensor:
    return torch.pow(a, b)


def _embedding(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    """Gathers rows. With `first`, the table begins with that row of a larger one, and rows outside are zeros."""
    ids = x[1].long() - attrs.get("first", 0)
    inside = (ids >= 0) & (ids < len(x[0]))
    rows = (
        F.embedding(torch.where(inside, ids, 0), x[0]) * inside[..., None]
        if "first" in attrs
        else F.embedding(ids, x[0])
    )
    return rows * attrs["scale"] if "scale" in attrs and attrs["scale"] != 1.0 else rows


def _layer_norm(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    """Computes a layer norm as torch does, bit for bit, for traces. A weight of rank 2, one row per head, is no form of
    torch's and is multiplied afterwards."""
    data, w, b = (*x, None)[:3]
    w = w + attrs["weight_offset"] if attrs["weight_offset"] else w
    if w.dim() == 1:
        return F.layer_norm(data, w.shape, w, b, attrs["eps"])
    y = F.layer_norm(data, data.shape[-1:], eps=attrs["eps"]) * w
    return y if b is None else y + b


def _topk(x: Operands, attrs: Attrs, bind: Bindings) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the k largest elements, best first, and their places; of equal elements the lowest place comes first,
    which torch.topk leaves open."""
    values, places = torch.sort(x[0], dim=attrs["dim"], descending=True, stable=True)
    return values.narrow(attrs["dim"], 0, attrs["k"]), places.narrow(attrs["dim"], 0, attrs["k"])


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def _experts(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    """Computes experts as transformers' eager form does, bit for bit, for traces: one expert after the other, each for
    all of its rows, added to the result in this order."""
    data, index, weights, up, down, up_bias, down_bias = (*x, None, None)[:7]
    rows = data.reshape(-1, data.shape[-1])
    index, weights = (v.reshape(len(rows), -1) for v in (index, weights))
    scales_input = attrs.get("scales_input", False)
    out = torch.zeros_like(rows)
    for number in index.unique().tolist():
        expert = number - attrs.get("first", 0)
        if attrs.get("total", 0) and not 0 <= expert < up.shape[0]:
            continue  # Another rank has the expert.
        slot, row = torch.where(number == index.T)
        shares = weights[row, slot, None]
        if 0 <= expert - up.shape[0] < attrs.get("identities", 0):
            out.index_add_(0, row, (rows[row] * shares).to(out.dtype))
            continue
        taken = (rows[row] * shares).to(rows.dtype) if scales_input else rows[row]
        wide = _multiply(taken, up[expert], None if up_bias is None else up_bias[expert])
        given = _multiply(_gate(wide, attrs), down[expert], None if down_bias is None else down_bias[expert])
        out.index_add_(0, row, (given if scales_input else given * shares).to(out.dtype))
    return out.reshape(data.shape)


def _causal_conv(x: Operands, attrs: Attrs, bind: Bindings) -> torch.Tensor:
    """Convolves as transformers' function of that name does, bit for bit, for traces."""
    data, w, bias = (*x, None)[:3]
    tokens, (channels, width) = data.shape[1], w.shape
    y = F.conv1d(data.mT.to(w.dtype), w.unsqueeze(1), bias, padding=width - 1, groups=channels)[:, :, :tokens]
    y = F.silu(y) if attrs["activation"] == "silu" else y
    return y.to(data.dtype).mT


def _multiply(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Computes a product of an expert. Classes with biases store matrices transposed, and add the bias by itself."""
    return F.linear(x, w) if bias is None else x @ w.mT.contiguous() + bias


def _gate(wide: torch.Tensor, attrs: Attrs) -> torch.Tensor:
    """Computes what stands between the products of an expert."""
    activate = _ACTIVATIONS[attrs["activation"]]
    if not attrs.get("gated", True):
        y = activate(wide)
        return torch.square(y) if attrs.get("squared", False) else y
    gate, up = wide.chunk(2, dim=-1)
    if "limit" in attrs:
        gate, up = gate.clamp(max=attrs["limit"]), up.clamp(min=-attrs["limit"], max=attrs["limit"])
    activated = gate * torch.sigmoid(gate * attrs["slope"]) if "slope" in attrs else activate(gate)
    return (up + attrs["up_offset"]) * activated if "up_offset" in attrs else activated * up


RULES: dict[str, Rule] = {
    **{
        op: _unary(getattr(torch, op))
        for op in (
            "neg",
            "rsqrt",
            "sqrt",
            "exp",
            "log",
            "cos",
            "sin",
            "tanh",
            "sigmoid",
            "erf",
            "abs",
            "square",
            "expm1",
        )
    },
    "silu": _unary(F.silu),
    "relu": _unary(F.relu),
    "softplus": _unary(F.softplus),
    "logical_not": _unary(torch.logical_not),
    "add": _binary(lambda a, b: a + b),
    "sub": _binary(lambda a, b: a - b),
    "mul": _binary(lambda a, b: a * b),
    "div": _binary(lambda a, b: a / b),
    "pow": _binary(_pow),
    "floor_div": _binary(lambda a, b: torch.div(_tensor(a), b, rounding_mode="floor")),
    "remainder": _binary(torch.remainder),
    "maximum": _binary(torch.maximum, tensors=True),
    "minimum": _binary(torch.minimum, tensors=True),
    "eq": _binary(lambda a, b: a == b),
    "ne": _binary(lambda a, b: a != b),
    "lt": _binary(lambda a, b: a < b),
    "le": _binary(lambda a, b: a <= b),
    "gt": _binary(lambda a, b: a > b),
    "ge": _binary(lambda a, b: a >= b),
    "logical_and": _binary(torch.logical_and, tensors=True),
    "logical_or": _binary(torch.logical_or, tensors=True),
    "where": lambda x, attrs, bind: torch.where(_tensor(x[0]), x[1], x[2]),
    "gelu": lambda x, attrs, bind: F.gelu(x[0], approximate=attrs["approximate"]),
    "cast": lambda x, attrs, bind: _tensor(x[0]).to(torch_dtype(attrs["dtype"])),
    "clamp": lambda x, attrs, bind: torch.clamp(_tensor(x[0]), attrs["min"], attrs["max"]),
    "mean": _reduction(torch.mean),
    "sum": _reduction(torch.sum),
    "amax": _reduction(torch.amax),
    "any": _reduction(torch.any),
    "all": _reduction(torch.all),
    "softmax": lambda x, attrs, bind: torch.softmax(x[0], attrs["dim"]),
    "cumsum": lambda x, attrs, bind: torch.cumsum(x[0], attrs["dim"]),
    "topk": _topk,
    "gather": lambda x, attrs, bind: x[0].gather(attrs["dim"], x[1]),
    "scatter": lambda x, attrs, bind: x[0].scatter(attrs["dim"], x[1], attrs["value"]),
    "matmul": lambda x, attrs, bind: torch.matmul(x[0], x[1]),
    "linear": lambda x, attrs, bind: F.linear(*x),
    "embedding": _embedding,
    "view": _view,
    "transpose": lambda x, attrs, bind: x[0].transpose(attrs["dim0"], attrs["dim1"]),
    "permute": lambda x, attrs, bind: x[0].permute(tuple(attrs["dims"])),
    "unsqueeze": lambda x, attrs, bind: _tensor(x[0]).unsqueeze(attrs["dim"]),
    "squeeze": lambda x, attrs, bind: x[0].squeeze(attrs["dim"]),
    "expand": _expand,
    "concat": lambda x, attrs, bind: torch.cat([_tensor(t) for t in x], attrs["dim"]),
    "slice": _slice,
    "select": lambda x, attrs, bind: x[0].select(attrs["dim"], dims.evaluate(attrs["index"], bind)),
    "index": _index,
    "arange": _arange,
    "full": _full,
}
COMPOUND_RULES: dict[str, Rule] = {
    "layer_norm": _layer_norm,
    "experts": _experts,
    "causal_conv": _causal_conv,
}
"""The rules of compound ops that a trace may hold, in torch's own arithmetic. They take precedence over the plugins'
definitions."""
