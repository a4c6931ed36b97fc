"""Walks an exported FX graph: every node becomes IR nodes by a table of handlers, or a TraceError."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind

from tensorwright.builder.trace.join_filled import join_filled
from tensorwright.builder.trace.narrow_convolutions import narrow_convolutions
from tensorwright.errors import GraphError, TraceError
from tensorwright.ir import dims
from tensorwright.ir.graph import DTYPES, Dim, Graph, Shape, Value
from tensorwright.ir.ops import emit
from tensorwright.ir.weights import WeightExpr

SEQ = "seq"
_WRAPPER = "model"  # the attribute of export.py's wrapper that holds the model
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


Handler = Callable[["Lowering", dict[str, Any]], Any]

CHECKS = frozenset(
    f"aten.{name}"
    for name in (
        "_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg", "_assert_async.default",
        "sym_constrain_range.default", "sym_constrain_range_for_size.default", "_functional_assert_async.msg",
    )
)  # fmt: skip
"""Operations without a result, which are dropped."""


def lower(
    program: torch.export.ExportedProgram,
    weights: dict[str, WeightExpr],
    graph: Graph,
    table: Mapping[str, Handler],
    results: int = 1,
) -> None:
    """Fills `graph` from `program`. `weights` maps parameter names of the model to expressions.

    results: how many values the program returns, the logits first. `table` maps ATen names to handlers, with overload
    ("aten.view.default") or without ("aten.add").
    """
    join_filled(program.graph)
    length = _length_symbol(program)
    lowering = Lowering(graph, length, program.range_constraints[length], table)
    narrow_convolutions(program.graph, lowering.type_of)
    for spec, node in zip(program.graph_signature.input_specs, _placeholders(program.graph), strict=True):
        if node.users or spec.kind == InputKind.USER_INPUT:  # The parts beside the text have parameters without users.
            lowering.bind_placeholder(spec, node, program, weights)
    outputs = lowering.run(program.graph_module)
    if len(outputs) != results or not all(isinstance(value, Value) for value in outputs):
        raise TraceError(f"the model must return {results} results, the logits first, not {len(outputs)}")
    graph.outputs = outputs
    graph.drop_dead()


def _placeholders(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _length_symbol(program: torch.export.ExportedProgram) -> sympy.Symbol:
    names = set(program.graph_signature.user_inputs)
    size = next(n for n in _placeholders(program.graph) if n.name in names).meta["val"].shape[1]
    if isinstance(size, int):
        raise TraceError(f"the model fixes the sequence length to {size}; it must work for every length")
    return size.node.expr


class Lowering:
    """One walk. `env` maps FX nodes to a Value, a Dim, a list of them, or a thunk that makes a Value on first use."""

    def __init__(self, graph: Graph, length: sympy.Symbol, lengths: Any, table: Mapping[str, Handler]):
        """lengths: the range of `length`, with a lower and an upper end."""
        self.graph = graph
        self.length = length
        self.lengths = lengths
        self.table = table
        self.env: dict[torch.fx.Node, Any] = {}
        self.node: torch.fx.Node | None = None
        self.prefix = ""

    @property
    def current(self) -> torch.fx.Node:
        """Returns the node that the walk is at. Raises TraceError before the walk began."""
        if self.node is None:
            raise TraceError("the exported model has no operation")
        return self.node

    # -- inputs ---------------------------------------------------------------------------------------------------

    def bind_placeholder(
        self, spec: Any, node: torch.fx.Node, program: torch.export.ExportedProgram, weights: dict[str, WeightExpr]
    ) -> None:
        target = str(spec.target).removeprefix(_WRAPPER + ".")
        if spec.kind == InputKind.USER_INPUT:
            dtype, shape = self.type_of(node.meta["val"])
            self.env[node] = self.graph.add("input", (), {}, [(dtype, shape)], names=[node.name]).output
        elif target in weights and spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            self.env[node] = self._lazily("weight", {"expr": weights[target]}, node, target)
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            tensor = program.constants.get(spec.target)
            tensor = program.state_dict.get(spec.target) if tensor is None else tensor
            self.env[node] = self._constant(tensor, node, target)
        else:
            raise TraceError(f"the exported model takes an input of kind {spec.kind} ({target}), which has no meaning")

    def _lazily(self, op: str, attrs: dict[str, Any], node: torch.fx.Node, name: str) -> Any:
        """Returns a thunk: weights and constants come right before their first use, so that they are loaded late."""
        kind = self.type_of(node.meta["val"])
        return lambda: self.graph.add(op, (), attrs, [kind], names=[name], scope=name.rpartition(".")[0]).output

    def _constant(self, tensor: Any, node: torch.fx.Node, name: str) -> Any:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor):
            raise TraceError(f"constant {name} has no value: it was computed from a tensor without storage")
        tensor = tensor.detach().cpu()
        # numpy has no bfloat16; float32 holds its values exactly.
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
        return self._lazily("constant", {"value": array}, node, name)

    # -- the walk -------------------------------------------------------------------------------------------------

    def run(self, module: torch.fx.GraphModule) -> list[Any]:
        """Lowers every node of `module` in order; returns its outputs."""
        for node in module.graph.nodes:
            if node.op == "placeholder" or node.op == "get_attr":
                continue
            if node.op == "output":
                return [self.read(x) for x in node.args[0]]
            self.node = node
            self.env[node] = self._lower(node, module)
        raise TraceError("the exported graph has no output")

    def _lower(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> Any:
        val = node.meta.get("val")
        if isinstance(val, int | torch.SymInt) and not isinstance(val, bool):
            return self.dim(val)
        if node.target is operator.getitem:
            return self.read(node.args[0])[node.args[1]]
        if getattr(node.target, "__name__", "") in _INLINED:
            return self._inline(node, module)
        name = str(node.target)
        if name in CHECKS or isinstance(val, torch.SymBool | torch.SymFloat | bool | float):
            return None
        handler = self.table.get(name) or self.table.get(name.rpartition(".")[0])
        if handler is None:
            raise self.error("has no meaning here")
        try:
            result = handler(self, self._arguments(node))
        except GraphError as error:
            raise self.error(f"does not fit: {error}") from error
        self._check(result, val)
        self._name(result, node.name)
        return result

    def _name(self, result: Any, name: str) -> None:
        """Gives the FX node's name to its value, unless the value has the name of another FX node."""
        made = self.graph.nodes[-1].outputs if self.graph.nodes else []
        if any(v is result for v in made) and result.name.isdigit():
            result.name = self.graph.fresh_name(name)

    def _inline(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> Any:
        """Lowers the body of torch's grad-mode and autocast wrappers. Autocast that is on is an error."""
        position = next(i for i, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        if node.target.__name__ == "wrap_with_autocast" and node.args[2] is not False:  # type: ignore[union-attr]
            raise self.error("runs under autocast, whose casts are not traced")
        body = getattr(module, str(node.args[position].target))  # type: ignore[union-attr]
        for inner, outer in zip(_placeholders(body.graph), node.args[position + 1 :], strict=True):
            self.env[inner] = self.read(outer)
        results = self.run(body)
        self.node = node
        return results

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        """Returns arguments by the schema's names, with defaults, and FX nodes read; symbolic sizes are Dims."""
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
        return {a.name: self.read(given.get(a.name, a.default_value)) for a in schema}

    def read(self, argument: Any) -> Any:
        """Returns an FX argument as IR. Nodes are looked up, and made if they are thunks; lists are read by item."""
        if isinstance(argument, torch.fx.Node):
            found = self.env[argument]
            if callable(found):
                found = self.env[argument] = found()
            if found is None:
                raise self.error(f"uses {argument.name}, which is no tensor and no size")
            return found
        if isinstance(argument, list | tuple):
            return [self.read(x) for x in argument]
        return argument

    def _check(self, result: Any, val: Any) -> None:
        """Raises TraceError if the table's result differs from torch's type: that is a bug in the table."""
        pairs = zip(result, val, strict=True) if isinstance(result, list) else [(result, val)]
        for value, fake in pairs:
            if isinstance(value, Value) and isinstance(fake, torch.Tensor):
                dtype, shape = self.type_of(fake)
                if value.dtype != dtype or list(map(dims.canonical, value.shape)) != list(shape):
                    raise self.error(f"gives {dtype}{list(shape)} in torch but {value.dtype}{list(value.shape)} here")

    # -- for the handlers -----------------------------------------------------------------------------------------

    @property
    def scope(self) -> str:
        """Returns the path of the module that the current FX node was traced in."""
        stack = (self.node.meta.get("nn_module_stack") or {}) if self.node is not None else {}
        path = [entry[0] for entry in stack.values()][-1] if stack else ""
        return "" if path == _WRAPPER else path.removeprefix(_WRAPPER + ".")

    def error(self, message: str) -> TraceError:
        target = self.node.target if self.node is not None else "the graph"
        return TraceError(f"{target} in module {self.scope or '(top)'} ({self.node}) {message}")

    def emit(self, op: str, *inputs: Any, **attrs: Any) -> Value:
        """Adds one IR node, whose operands may be numbers or Dims."""
        return self.emit_all(op, *inputs, **attrs)[0]

    def emit_all(self, op: str, *inputs: Any, **attrs: Any) -> list[Value]:
        """Adds one IR node and returns all of its results."""
        operands = [None if x is None else self.value(x) for x in inputs]
        return emit(self.graph, op, operands, scope=self.scope, **attrs).outputs

    def value(self, x: Any) -> Value:
        """Returns an operand as a Value: numbers become constants, symbolic sizes integers of rank 0."""
        if isinstance(x, Value):
            return x
        if isinstance(x, str):
            return emit(self.graph, "full", (), scope=self.scope, shape=(), value=x, dtype="int64").output
        if isinstance(x, bool | int | float):
            dtype = "bool" if isinstance(x, bool) else "int64" if isinstance(x, int) else "float64"
            return self.graph.add("constant", (), {"value": x}, [(dtype, ())], scope=self.scope).output
        raise self.error(f"has an operand of type {type(x).__name__}")

    def result_type(self) -> tuple[str, Shape]:
        """Returns the dtype and shape that torch gives for the current node."""
        return self.type_of(self.current.meta["val"])

    def type_of(self, tensor: torch.Tensor) -> tuple[str, Shape]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise self.error(f"has element type {dtype}")
        return dtype, tuple(self.dim(n) for n in tensor.shape)

    def dim(self, size: Any) -> Dim:
        return size if isinstance(size, int) else self._spell(size.node.expr)

    def _spell(self, expr: Any) -> Dim:
        if expr == self.length:
            return SEQ
        if expr.is_Integer:
            return int(expr)
        if type(expr).__name__ == "Max":
            return self._spell(self._largest(expr))
        parts = [self._spell(a) for a in expr.args]
        if expr.is_Add:
            return dims.add(*parts)
        if expr.is_Mul and all(a.is_Rational is not False or not a.is_number for a in expr.args):
            return dims.mul(*parts)
        if expr.is_Pow and isinstance(parts[1], int) and parts[1] > 0:
            return dims.mul(*[parts[0]] * parts[1])
        if type(expr).__name__ in ("FloorDiv", "CleanDiv"):
            return dims.floor_div(*parts)
        raise self.error(f"has a size {expr}, which is no expression of the sequence length")

    def _largest(self, expr: Any) -> Any:
        """Returns the argument of a maximum that is the largest at every length. Arguments are straight lines of the
        length, so that the shortest and the longest decide."""
        ends = (self.lengths.lower, self.lengths.upper)
        for one in expr.args:
            straight = all(sympy.diff(one - other, self.length, 2) == 0 for other in expr.args)
            if straight and all((one - other).subs(self.length, end) >= 0 for other in expr.args for end in ends):
                return one
        raise self.error(f"has a size {expr}, whose larger part depends on the sequence length")
