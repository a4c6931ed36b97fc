"""Lowers complex numbers, in which some models write rotary embeddings, to pairs of real values.

A complex tensor is no value of a graph: while the walk lasts, it is its real and its imaginary part. The last bits
may differ from torch's, which computes cosine, sine and complex products in other loops than those of real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.builder.trace.lower_fx import Handler, Lowering
from tensorwright.ir.graph import Value

Args = dict[str, Any]


@dataclass(frozen=True)
class Complex:
    """A complex tensor. Both parts have its shape."""

    real: Value
    imaginary: Value

    def map(self, function: Callable[[Value], Value]) -> Complex:
        return Complex(function(self.real), function(self.imaginary))


def _polar(low: Lowering, a: Args) -> Complex:
    size, angle = a["abs"], a["angle"]
    unit = Complex(low.emit("cos", angle), low.emit("sin", angle))
    is_one = size.producer.op == "full" and size.producer.attrs["value"] == 1
    return unit if is_one else unit.map(lambda part: low.emit("mul", part, size))


def _as_complex(low: Lowering, a: Args) -> Complex:
    pairs = a["self"]
    return Complex(*(low.emit("select", pairs, dim=pairs.rank - 1, index=i) for i in (0, 1)))


def _as_real(low: Lowering, a: Args) -> Value:
    parts = a["self"].map(lambda part: low.emit("unsqueeze", part, dim=part.rank))
    return low.emit("concat", parts.real, parts.imaginary, dim=parts.real.rank - 1)


def _mul(low: Lowering, a: Args) -> Complex:
    x, y = a["self"], a["other"]
    if not isinstance(x, Complex):
        x, y = y, x
    if not isinstance(y, Complex):
        return x.map(lambda part: low.emit("mul", part, y))
    real = low.emit("sub", low.emit("mul", x.real, y.real), low.emit("mul", x.imaginary, y.imaginary))
    return Complex(real, low.emit("add", low.emit("mul", x.imaginary, y.real), low.emit("mul", x.real, y.imaginary)))


def _unsqueeze(low: Lowering, a: Args) -> Complex:
    return a["self"].map(lambda part: low.emit("unsqueeze", part, dim=a["dim"] % (part.rank + 1)))


def _same(low: Lowering, a: Args) -> Complex:
    """Lowers a move to a device. A cast to a real type is an error."""
    if not low.current.meta["val"].is_complex():
        raise low.error("drops the imaginary part")
    return a["self"]


_OF_COMPLEX: dict[str, Handler] = {
    "aten.view_as_real": _as_real,
    "aten.mul": _mul,
    "aten.unsqueeze": _unsqueeze,
    "aten.to": _same,
    "aten._to_copy": _same,
}


def with_complex(table: dict[str, Handler]) -> dict[str, Handler]:
    """Returns a table in which the operations above take complex tensors too."""

    def either(of_complex: Handler, of_real: Handler | None) -> Handler:
        def handler(low: Lowering, a: Args) -> Any:
            if any(isinstance(value, Complex) for value in a.values()):
                return of_complex(low, a)
            if of_real is None:
                raise low.error("has no meaning for real numbers")
            return of_real(low, a)

        return handler

    joined = {name: either(handler, table.get(name)) for name, handler in _OF_COMPLEX.items()}
    return {**table, **joined, "aten.polar": _polar, "aten.view_as_complex": _as_complex}
