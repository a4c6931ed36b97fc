"""Turns weights of a graph into tensors of a file: read, converted and rounded a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from tensorwright.builder.emit.pack_rows import RowPacker, stored_codes
from tensorwright.builder.emit.quantization_record import (
    RankMatrices,
    StoredMatrix,
    Use,
    make_record,
    place_of,
    role_of,
    stored_matrices,
)
from tensorwright.builder.emit.quantized_weights import RelativeError, quantized_chunks
from tensorwright.builder.emit.streamed_file import Chunks, stored_bytes
from tensorwright.builder.measure.metrics import rounded
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.errors import BuildError, CheckpointError, LoweringError
from tensorwright.ir.graph import Graph, Value
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import Tensor, convert
from tensorwright.models.read_weights import evaluate_rows
from tensorwright.plugins.quantized_matmul.quantize import Quantized, unpack

_CHUNK_BYTES = 8 << 20


class TensorFile(Protocol):
    """Where weights go: an ONNX model, or the weights of target cuda."""

    def stream(self, tensors: Sequence[tuple[str, str, tuple[int, ...]]], chunks: Chunks) -> list[str]:
        """Adds tensors (name, dtype, shape) that are made together when the file is written. Returns their names."""

    def constant(self, array: np.ndarray, name: str) -> str:
        """Adds a small tensor, once. Returns its name."""


class Weights:
    """Puts each weight into the model once for every form that is asked for."""

    def __init__(self, model: TensorFile, checkpoint: Checkpoint, dtype: str):
        self.model, self.checkpoint, self.dtype = model, checkpoint, dtype
        self.errors: dict[tuple[WeightExpr, str], RelativeError] = {}
        """The error of each quantized weight that was written, by its expression and format."""
        self.stored: dict[tuple[WeightExpr, str], tuple[int, int]] = {}
        """(weights, bytes) of every tensor of the checkpoint that is in the file, by expression and format or type."""
        self._made: dict[Any, list[str]] = {}

    def plain(self, value: Value, dtype: str | None = None, *, plus: float = 0.0) -> str:
        """Returns the initializer of a weight or constant in the activation type; `plus` is added to each element."""
        return self._once(value, dtype or self.dtype, plus)

    def _once(self, value: Value, dtype: str, plus: float) -> str:
        key = (source_of(value), dtype, plus)
        if key not in self._made:
            self._made[key] = self._add(value, dtype, plus)
        return self._made[key][0]

    def _add(self, value: Value, dtype: str, plus: float) -> list[str]:
        shape = tuple(int(d) for d in value.shape)
        source = source_of(value)
        if isinstance(source, WeightExpr):
            rows = partial(_rows, source, self.checkpoint, dtype, plus)
            self.stored[source, dtype] = prod(shape), stored_bytes(dtype, shape)
        else:
            array = np.asarray(value.constant, np.float32) + np.float32(plus)
            return [self.model.constant(as_array(array, dtype), initializer_name(value))]
        return self.model.stream([(initializer_name(value), dtype, shape)], partial(_row_chunks, rows, shape))

    def quantized(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns MatMulNBits' operands of a weight [N, K]: uint8 [N, groups, bytes of a group], scales [N, groups]."""
        expr = expression_of(value, "a quantized matrix")
        key = (expr, str(fmt))
        if key not in self._made:
            n, k = (int(d) for d in value.shape)
            name, groups = initializer_name(value), fmt.groups(k)
            blob, scales = (n, groups, fmt.group * fmt.bits // 8), (n, groups)
            total = self.errors.setdefault((expr, str(fmt)), RelativeError())
            chunks = partial(self._quantized_chunks, name, expr, fmt, n, k, total)
            tensors = [(f"{name}.{fmt.dtype}", "uint8", blob), (f"{name}.scales", self.dtype, scales)]
            self.stored[key] = n * k, prod(blob) + stored_bytes(self.dtype, scales)
            self._made[key] = self.model.stream(tensors, chunks)
        matrix, scale = self._made[key]
        return matrix, scale

    def record(self, graph: Graph) -> dict[str, Any] | None:
        """Returns the quantization record. Call it after the weights were written."""
        return make_record(graph, lambda: self._uses(graph), self._all_bits)

    def part(self, graph: Graph) -> RankMatrices:
        """Returns what the record of several ranks is made of. Call it after the weights were written."""
        weights = sum({expr: count for (expr, _), (count, _) in self.stored.items()}.values())
        uses = tuple(self._uses(graph)) if graph.facts.quantize is not None else ()
        return RankMatrices(uses, weights, sum(size for _, size in self.stored.values()))

    def _uses(self, graph: Graph) -> Iterator[Use]:
        for node in graph.nodes:
            for _, expr in stored_matrices(node):
                form = str(node.attrs.get("format", self.dtype))
                error = self.errors[expr, form].value if (expr, form) in self.errors else None
                yield role_of(node), place_of(node, expr), StoredMatrix(expr, form, *self.stored[expr, form], error)

    def _all_bits(self) -> float | None:
        counts = {expr: weights for (expr, _), (weights, _) in self.stored.items()}
        return rounded(8 * sum(size for _, size in self.stored.values()) / sum(counts.values()), 4)

    def _quantized_chunks(
        self, name: str, expr: WeightExpr, fmt: WeightFormat, n: int, k: int, total: RelativeError
    ) -> Iterator[tuple[int, np.ndarray]]:
        done, scales = 0, []
        read = partial(_float_rows, expr, self.checkpoint)
        packer = RowPacker(fmt, k, read, stored_codes(expr, self.checkpoint, fmt))
        for panels in quantized_chunks(name, packer, n, gated=False, total=total):
            rows = min(n - done, panels.size // fmt.panel_bytes(k) * LANES)
            made = unpack(panels, fmt, rows, k)
            yield 0, nbits(made, fmt)
            scales.append(made.scales)
            done += rows
        yield 1, scales_of(name, np.concatenate(scales), self.dtype)


def source_of(value: Value) -> WeightExpr | bytes:
    """Returns the identity of a weight: its expression, or a constant's bytes."""
    source = value.producer
    if source.op == "weight":
        expr: WeightExpr = source.attrs["expr"]
        return expr
    return np.asarray(value.constant, np.float32).tobytes()


def expression_of(value: Value, role: str) -> WeightExpr:
    """Returns the expression of a checkpoint weight. Raises LoweringError, with the role, for a constant."""
    source = source_of(value)
    if not isinstance(source, WeightExpr):
        raise LoweringError(f"%{value.name} is {role}, and must be a weight of the checkpoint")
    return source


def initializer_name(value: Value) -> str:
    """Returns the weight's name in the checkpoint; for joined ones "model.layers.0.mlp.gate_proj+up_proj.weight"."""
    source = source_of(value)
    if not isinstance(source, WeightExpr):
        scope = value.node.scope if value.node is not None else ""
        return f"{scope}.constant" if scope else "constant"
    names = list(dict.fromkeys(source.refs()))
    heads, kind = [name.rpartition(".")[0] for name in names], names[0].rpartition(".")[2]
    parent = heads[0].rpartition(".")[0]
    rest = [head.removeprefix(f"{parent}.") if parent else head for head in heads[1:]]
    return ".".join(["+".join([heads[0], *rest]), kind])


def nbits(quantized: Quantized, fmt: WeightFormat) -> np.ndarray:
    """Returns uint8 [N, groups, bytes]: unsigned; where a byte holds two elements, the lower nibble is the first."""
    shifted = (quantized.values.astype(np.int16) + (1 << (fmt.bits - 1))).astype(np.uint8)
    return shifted if fmt.bits == 8 else shifted[..., 0::2] | shifted[..., 1::2] << 4


def scales_of(name: str, scales: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the scales in the activation type. Raises BuildError where that type cannot hold one of them."""
    stored = as_array(scales, dtype)
    if not np.isfinite(stored.astype(np.float32)).all():
        raise BuildError(f"{name}: a scale of its groups is too large for {dtype}; build with dtype float32")
    return stored


def as_array(values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns float32 numbers in another floating type, in the form that onnx takes."""
    with np.errstate(over="ignore"):
        return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def _rows(expr: WeightExpr, checkpoint: Checkpoint, dtype: str, plus: float, start: int, end: int) -> np.ndarray:
    tensor = evaluate_rows(expr, checkpoint, start, end)
    if plus:
        tensor = Tensor("float32", convert(tensor, "float32").data + np.float32(plus))
    return in_type(tensor, dtype, str(expr))


def in_type(tensor: Tensor, dtype: str, name: str) -> np.ndarray:
    """Returns the elements in the storage of `dtype`. Raises CheckpointError where float16 cannot hold a finite one."""
    data = convert(tensor, dtype).data
    if dtype == "float16" and not np.isfinite(data).all() and np.isfinite(convert(tensor, "float32").data).all():
        raise CheckpointError(f"{name} has elements beyond 65504, which float16 cannot hold; build with dtype float32")
    return data


def _float_rows(expr: WeightExpr, checkpoint: Checkpoint, start: int, end: int) -> np.ndarray:
    tensor = evaluate_rows(expr, checkpoint, start, end)
    return np.ascontiguousarray(convert(tensor, tensor.dtype if tensor.dtype == "bfloat16" else "float32").data)


def _row_chunks(rows: Any, shape: tuple[int, ...]) -> Iterator[tuple[int, np.ndarray]]:
    step = max(1, _CHUNK_BYTES // max(1, 4 * prod(shape[1:])))
    for start in range(0, shape[0], step):
        yield 0, rows(start, min(shape[0], start + step))
