"""Describes an op to TensorRT by a table: operands, results, types, sizes, aliases. Plain Python, no TensorRT.

A size is a symbol (the same value wherever it appears), an attribute's name, or a function of the attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.errors import GraphError
from tensorwright.plugins.gpu.collective_call import CollectiveCall
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor

Attrs = Mapping[str, Any]
Dim = str | Callable[[Attrs], int]
ACTIVATION = "activation"
"""The type of an operand: float32, float16 or bfloat16, one type for all such operands of a node."""
PAGES = "pages"
"""The type of an operand: int8 if the attribute int8_kv is 1, else the activation type."""
WIDE = "wide"
"""The type of an operand: the activation type or float32, as the graph has it."""
UNKNOWN = -1
"""A size that TensorRT does not know yet."""


@dataclass(frozen=True)
class Operand:
    """An input or output. `when`: the attribute that is 0 if the operand is absent; `optional`: the node may leave it
    out, at the end; `alias`: the input whose memory an output shares."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    when: str = ""
    optional: bool = False
    alias: str = ""


@dataclass(frozen=True)
class PluginOp:
    """One op. Attributes with a default may be missing in a node. `kernel_sizes`: the symbols that kernels are compiled
    for; the three functions get their sizes among the attributes. `collective`: what ranks do together in place of
    launches, from the inputs and the outputs by name; such an op has no kernels."""

    name: str
    attrs: Mapping[str, type]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    kernels: Callable[[Attrs, Mapping[str, str], int], Sequence[KernelSpec]] = lambda attrs, dtypes, sm: ()
    launches: Callable[[Attrs, dict[str, Tensor], dict[str, Tensor], Tensor | None, int], list[Launch]] = (
        lambda attrs, inputs, outputs, workspace, sm: []
    )
    collective: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], CollectiveCall] | None = None
    workspace_bytes: Callable[[Attrs, Mapping[str, tuple[int, ...]]], int] = lambda attrs, shapes: 0
    kernel_sizes: tuple[str, ...] = ()
    defaults: Mapping[str, int | float] = field(default_factory=dict)

    def read_attrs(self, given: Mapping[str, Any]) -> dict[str, int | float]:
        """Returns the attributes in the table's order and types. Raises GraphError for a missing one."""
        missing = [name for name in self.attrs if name not in given and name not in self.defaults]
        if missing:
            raise GraphError(f"{self.name}: the node must have the attributes {', '.join(missing)}, which are missing")
        return {name: kind(given.get(name, self.defaults.get(name))) for name, kind in self.attrs.items()}

    def inputs_of(self, attrs: Attrs, count: int) -> tuple[Operand, ...]:
        """Returns the inputs of a node with these attributes and `count` inputs, in order."""
        present = [operand for operand in self.inputs if not operand.when or attrs[operand.when]]
        needed = [operand for operand in present if not operand.optional]
        if not len(needed) <= count <= len(present):
            names = ", ".join(f"{o.name}?" if o.optional else o.name for o in present)
            raise GraphError(f"{self.name}: with these attributes its inputs must be ({names}), got {count} inputs")
        return tuple(present[:count])

    def outputs_of(self, attrs: Attrs) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.outputs if not operand.when or attrs[operand.when])

    def dtypes(self, attrs: Attrs, types: Sequence[str]) -> dict[str, str]:
        """Returns the types of all operands by name, from the inputs' types. Raises GraphError for wrong inputs."""
        result = self.expected(attrs, len(types), types)
        for (name, wanted), got in zip(result.items(), types, strict=False):
            if got != wanted:
                raise GraphError(f"{self.name}: {name} must be {wanted}, got {got}")
        return result

    def expected(self, attrs: Attrs, count: int, types: Sequence[str]) -> dict[str, str]:
        """Returns the types of all operands of a node with `count` inputs, the first of which have these `types`."""
        inputs = self.inputs_of(attrs, count)
        activation = types[0] if types else "no type"
        if activation not in DTYPES:
            raise GraphError(f"{self.name}: {inputs[0].name} must be {' or '.join(DTYPES)}, got {activation}")
        known = {ACTIVATION: activation, PAGES: "int8" if attrs.get("int8_kv") else activation, WIDE: activation}
        result = {o.name: known.get(o.dtype, o.dtype) for o in (*inputs, *self.outputs_of(attrs))}
        wide = [o.name for o, kind in zip(inputs, types, strict=False) if (o.dtype, kind) == (WIDE, "float32")]
        return {**result, **dict.fromkeys(wide, "float32")}

    def sizes(self, attrs: Attrs, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Returns the known symbols by name, from the inputs' shapes. Raises GraphError for shapes that do not fit."""
        known: dict[str, int] = {}
        for operand, shape in zip(self.inputs_of(attrs, len(shapes)), shapes, strict=True):
            fits, wanted = len(shape) == len(operand.dims), []
            for dim, got in zip(operand.dims, shape, strict=False):
                size = constant(attrs, dim)
                if size is None and got != UNKNOWN:
                    size = known.setdefault(str(dim), got)
                fits = fits and got in (size, UNKNOWN)
                wanted.append(dim if size is None else size)
            if not fits:
                raise GraphError(f"{self.name}: {operand.name} must be {wanted}, got {list(shape)}")
        return known

    def full_attrs(self, attrs: Attrs, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Returns the attributes with the sizes that kernels are compiled for."""
        missing = [name for name in self.kernel_sizes if name not in sizes]
        if missing:
            raise GraphError(f"{self.name}: {', '.join(missing)} must be a number in the graph, got a dynamic size")
        return {**attrs, **{name: sizes[name] for name in self.kernel_sizes}}

    def source(self, symbol: str, attrs: Attrs, count: int) -> tuple[int, int]:
        """Returns (input, axis) that has the size of a symbol in an output's shape."""
        for index, operand in enumerate(self.inputs_of(attrs, count)):
            if symbol in operand.dims:
                return index, operand.dims.index(symbol)
        raise AssertionError(f"{self.name}: no input has a dimension {symbol}")

    def alias_of(self, output: int, attrs: Attrs) -> str:
        return self.outputs_of(attrs)[output].alias


def constant(attrs: Attrs, dim: Dim) -> int | None:
    """Returns the size, or None for a symbol."""
    if callable(dim):
        return dim(attrs)
    return int(attrs[dim]) if dim in attrs else None
