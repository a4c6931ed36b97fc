"""Interprets graphs in a slow and obvious way, as the oracle of every pass and kernel.

torch computes primitive ops in the type of their value. The numpy reference of a plugin computes compound ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import GraphError
from tensorwright.ir import dims
from tensorwright.ir.graph import STORED, Graph, Node, Value
from tensorwright.ir.interpret_ops import COMPOUND_RULES, RULES, torch_dtype
from tensorwright.ir.ops import find_spec, matrices_of
from tensorwright.ir.records import Op
from tensorwright.ir.shape_rules import is_weak
from tensorwright.ir.weights import WeightExpr

Weights = Callable[[WeightExpr], torch.Tensor]
Meet = Callable[[Node, list[Any]], Any]
"""Takes a node that several ranks compute together and its operands as numpy, and returns the result of this rank."""


@runtime_checkable
class QuantizedSource(Protocol):
    """A source of weights that can also give them quantized. With another source, the plugins quantize the weights in
    numpy."""

    def __call__(self, expr: WeightExpr, /) -> torch.Tensor: ...
    def quantized(self, expr: WeightExpr, fmt: WeightFormat, /) -> Any: ...


@runtime_checkable
class ProductSource(Protocol):
    """A source of weights that also computes products with them, so that no whole matrix must be in memory.

    matrices: of a mixture's operand [E, ...], what the mixture's definition indexes by the number of an expert.
    """

    def __call__(self, expr: WeightExpr, /) -> torch.Tensor: ...
    def product(self, node: Node, x: torch.Tensor, /) -> torch.Tensor: ...
    def matrices(self, node: Node, operand: Value, /) -> Any: ...


def interpret(graph: Graph, inputs: dict[str, Any], weights: Weights) -> list[Any]:
    """Returns the graph's outputs for `inputs`.

    `inputs` has tensors of the declared type and shape by input name, and caches as they are. `weights` gives the
    tensor of an expression, which is converted to the value's element type. Weights and constants are made at their
    first use, and every value is dropped after its last use, so memory stays near the widest point. Raises GraphError
    if inputs do not fit, or an op gives another type than the graph says.
    """
    results: dict[Value, Any] = {}
    for value, data in run(graph, inputs, weights):
        if value in graph.outputs:
            results[value] = data
    return [results[v] for v in graph.outputs]


def run(
    graph: Graph, inputs: dict[str, Any], weights: Weights, meet: Meet | None = None
) -> Iterator[tuple[Value, Any]]:
    """Yields every computed value in order. If the caller keeps no value, memory holds only values still needed.

    meet: computes what several ranks compute together. Raises GraphError for such a node without it.
    """
    bindings = bind_inputs(graph, inputs)
    last_use = {v: i for i, n in enumerate(graph.nodes) for v in n.inputs if v is not None}
    env: dict[Value, Any] = {}
    for i, node in enumerate(graph.nodes):
        if node.op in STORED:
            if node.output in graph.outputs:
                yield node.output, _source(node.output, weights)
            continue
        if node.op == "input":
            env[node.output] = inputs[node.output.name]
        elif graph.stage != "lowered" and isinstance(weights, ProductSource) and _is_product(node, graph.stage):
            with torch.no_grad():
                env[node.output] = weights.product(node, env[node.inputs[0]])  # type: ignore[index]
            _check(node, node.output, env[node.output], bindings)
        else:
            ready = _ready(node, graph.stage, weights)
            operands = [
                None if v is None else ready[v] if v in ready else env[v] if v in env else _source(v, weights)
                for v in node.inputs
            ]
            for v in node.inputs:
                lasts = v is not None and last_use[v] > i and v not in ready
                if lasts and v is not None and v.is_stored:
                    env.setdefault(v, operands[node.inputs.index(v)])
            with torch.no_grad():
                results = _compute(graph, node, operands, bindings, meet)
            del operands
            env.update(zip(node.outputs, results, strict=True))
            del results
        for value in node.outputs:
            yield value, env[value]
        for dead in {v for v in (*node.inputs, *node.outputs) if v is not None and last_use.get(v, -1) <= i}:
            env.pop(dead, None)


def bind_inputs(graph: Graph, inputs: dict[str, Any]) -> dict[str, int]:
    """Returns the numbers that symbols stand for, from the shapes of the inputs. Raises GraphError if an input does not
    fit."""
    expected = {v.name: v for v in graph.inputs}
    if set(expected) != set(inputs):
        missing, extra = sorted(set(expected) - set(inputs)), sorted(set(inputs) - set(expected))
        raise GraphError(f"inputs must be exactly the graph's: missing {missing}, not known {extra}")
    bindings: dict[str, int] = {}
    pairs = [(v, inputs[name]) for name, v in expected.items() if not v.is_cache]
    for value, data in pairs:
        if data.dtype != torch_dtype(value.dtype) or data.dim() != value.rank:
            got = f"{str(data.dtype).removeprefix('torch.')}{list(data.shape)}"
            raise GraphError(f"input %{value.name} must be {value.dtype}{list(value.shape)}, not {got}")
        for dim, size in zip(value.shape, data.shape, strict=True):
            if isinstance(dim, str) and dim.isidentifier():
                bindings.setdefault(dim, size)
    for value, data in pairs:
        if dims.evaluate_all(value.shape, bindings) != tuple(data.shape):
            raise GraphError(
                f"input %{value.name} must be {list(value.shape)} where {bindings}, not {list(data.shape)}"
            )
    return bindings


def _is_product(node: Node, stage: str) -> bool:
    """Returns whether a node multiplies a computed value with a matrix of the checkpoint, and adds at most a stored
    bias."""
    x, w, bias = (*node.inputs, None, None, None)[:3]
    if not _is_of_kind(node, stage, "product") or x is None or w is None or _is_source(x) or w.rank != 2:
        return False
    return all(v.node is not None and v.node.op == "weight" for v in (w, bias) if v is not None)


def _is_of_kind(node: Node, stage: str, kind: str) -> bool:
    spec = find_spec(node.op, stage)
    return spec is not None and spec.kind == kind


def _is_source(value: Value) -> bool:
    return value.is_stored


def _ready(node: Node, stage: str, weights: Weights) -> dict[Value, Any]:
    """Returns the operands that `weights` gives in a form of its own: the matrix of a quantized product, or those of a
    mixture of experts."""
    if stage != "lowered" and _is_of_kind(node, stage, "mixture") and isinstance(weights, ProductSource):
        stored = (value for value in matrices_of(node) if value.producer.op == "weight")
        return {value: weights.matrices(node, value) for value in stored}
    quantized = _is_of_kind(node, stage, "product") and "format" in node.attrs
    if not quantized or not isinstance(weights, QuantizedSource):
        return {}
    w = node.inputs[1]
    if w is None or w.node is None or w.node.op != "weight":
        return {}
    return {w: weights.quantized(w.node.attrs["expr"], node.attrs["format"])}


def _source(value: Value, weights: Weights) -> Any:
    """Returns a weight or constant as an operand. Scalar constants stay Python numbers."""
    node = value.node
    if node is None or node.op not in STORED:
        raise GraphError(f"%{value.name} is used before it is computed")
    dtype = torch_dtype(value.dtype)
    if node.op == "weight":
        tensor = weights(node.attrs["expr"])
        if tuple(tensor.shape) != value.shape:
            raise GraphError(f"weight %{value.name} must be {list(value.shape)}, not {list(tensor.shape)}")
        return tensor.to(dtype)
    constant = node.attrs["value"]
    if isinstance(constant, bool | int | float):
        return constant
    return torch.from_numpy(np.array(constant)).to(dtype)


def _compute(graph: Graph, node: Node, operands: list[Any], bindings: dict[str, int], meet: Meet | None) -> list[Any]:
    spec = find_spec(node.op, graph.stage)
    if spec is None:
        raise GraphError(f"{node.op} (%{node.outputs[0].name}) is no op of stage {graph.stage!r}")
    if spec.meets_ranks:
        if meet is None:
            raise GraphError(
                f"{node.op} (%{node.output.name}) is what several ranks do together: interpret all of them"
            )
        results = [meet(node, [to_numpy(x) for x in operands])]
    elif spec.reference is not None and (graph.stage == "lowered" or node.op not in COMPOUND_RULES):
        results = _reference(graph, node, spec, [to_numpy(x) for x in operands])
    else:
        if all(v is not None and is_weak(v) for v in node.inputs):
            # With numbers alone, torch computes in its default types, which torch.tensor gives.
            operands = [torch.tensor(x) for x in operands]
        computed = (COMPOUND_RULES | RULES)[node.op](operands, node.attrs, bindings)
        results = list(computed) if isinstance(computed, tuple) else [computed]
    results = [_to_torch(x, v) if isinstance(x, np.ndarray) else x for x, v in zip(results, node.outputs, strict=True)]
    for value, data in zip(node.outputs, results, strict=True):
        _check(node, value, data, bindings)
    return results


def _reference(graph: Graph, node: Node, spec: Op, arrays: list[Any]) -> list[Any]:
    """Returns the results of the record's definition, rounded to the result types of the graph.

    A bfloat16 operand is given as float32 of the same values; "kv" values are PagedCache objects and "state" values
    are StateCache objects. An instruction has only the number of its layer, as kv_layer; the graph's facts describe the
    layer.
    """
    attrs = node.attrs
    if "kv_layer" in attrs:
        layer = graph.facts.kv_layers[attrs["kv_layer"]]
        shape = {"kv_heads": layer.kv_heads, "head_dim": layer.head_dim, "window": layer.window}
        shape |= {"v_dim": layer.v_dim} if layer.v_dim else {}
        shape |= {"chunked": True} if layer.chunked else {}
        shape |= {"sink_tokens": layer.sink_tokens} if layer.sink_tokens else {}
        attrs = {**attrs, "layer": attrs["kv_layer"], **shape}
    if spec.reference is None:
        raise GraphError(f"{node.op} has no definition")
    return spec.reference(arrays, attrs, node.outputs[0].dtype)[: len(node.outputs)]


def to_numpy(x: Any) -> Any:
    """Returns an operand as numpy. numpy has no bfloat16, so such an operand becomes float32 of the same values."""
    if isinstance(x, bool | int | float):
        return np.asarray(x)
    if not isinstance(x, torch.Tensor):
        return x
    return (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()


def _to_torch(array: np.ndarray, value: Value) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch_dtype(value.dtype))


def _check(node: Node, value: Value, data: Any, bindings: dict[str, int]) -> None:
    if value.is_cache:
        return
    shape = dims.evaluate_all(value.shape, bindings)
    if data.dtype != torch_dtype(value.dtype) or tuple(data.shape) != shape:
        got = f"{str(data.dtype).removeprefix('torch.')}{list(data.shape)}"
        raise GraphError(f"{node.op} %{value.name} must give {value.dtype}{list(shape)}, but gives {got}")
