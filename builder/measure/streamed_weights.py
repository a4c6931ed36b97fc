"""Multiplies with weights that stay in the checkpoint: products are computed some rows at a time, on all threads.

A part of a matrix is converted, multiplied and dropped while it is in a core's cache, so memory and its traffic stay
near the size of the file. One thread computes each part, so the numbers do not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from tensorwright.builder.emit.quantized_weights import Multiplier, PackedPanels
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.ir.graph import Node, Shape, Value
from tensorwright.ir.interpret_ops import torch_dtype
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import to_float32
from tensorwright.models.read_weights import TensorSource, evaluate, evaluate_matrix_rows, evaluate_rows
from tensorwright.plugins.quantized_matmul.quantize import quantize_weights, unpack
from tensorwright.plugins.quantized_matmul.weight_only import restored

CHUNK_ELEMENTS = 1 << 20
"""Elements of a matrix that each thread converts to float32 at a time: they fit a second level cache."""

OnProduct = Callable[[Node, WeightExpr, float, float], None]
"""Takes a node, the weight that it multiplies by, the sum of the squared errors of its quantized product, and the sum
of the squares of the product with the weights as they are stored."""


class PanelSource(Protocol):
    """A source of packed panels of quantized matrices."""

    def halves(self, expr: WeightExpr, fmt: WeightFormat) -> int:
        """Returns in how many equal runs the rows are packed. No panel holds rows of two runs."""

    def panels(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, matrix: int = 0) -> np.ndarray:
        """Returns rows [start, end) of one run as uint8, of the matrix of that number where there are several.

        The rows start with a panel.
        """


class StreamedWeights:
    """A `ProductSource` for the interpreter: a checkpoint's weights in float32, and products with them.

    panels: the packed quantized matrices; by default they are packed anew. on_product: called for every quantized
    product; each call costs the product with the stored weights. Inside this context torch itself runs on one thread:
    the work beside products is too small for more, and waiting threads would take the processor from those that
    multiply. The threads that multiply, and those that torch has afterwards, are as many as torch has when the object
    is made, so that the contexts of two objects may overlap.
    """

    def __init__(
        self, source: TensorSource, panels: PanelSource | None = None, on_product: OnProduct | None = None
    ) -> None:
        self._source = source
        self._panels = panels or PackedPanels(source)
        self._on_product = on_product
        self._held = threading.local()
        self._threads = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> StreamedWeights:
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(self._threads)
        return self

    def __exit__(self, *error: object) -> None:
        self._workers().shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads)

    def __call__(self, expr: WeightExpr) -> torch.Tensor:
        """Returns the whole weight; the interpreter reads it and drops it."""
        return torch.from_dlpack(np.ascontiguousarray(to_float32(evaluate(expr, self._source))))

    def product(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of a node that multiplies x [..., K] with a stored matrix, in the node's type."""
        w, bias = node.operand(1), node.optional(2)
        kind = torch_dtype(node.output.dtype)
        expr = stored(w)
        rows = x.to(kind).float().reshape(-1, x.shape[-1]).contiguous()
        wide = expr.transpose() if node.op == "matmul" else expr
        y = torch.empty(len(rows), wide.shape(self._source)[0])
        if node.op in ("linear", "matmul"):
            self._multiply(wide, rows, y, torch_dtype(w.dtype))
        else:
            self._multiply_quantized(node, wide, rows, y)
        if bias is not None:
            b = self(stored(bias)).to(torch_dtype(bias.dtype)).float()
            # A product whose weights alone are quantized is rounded before the bias is added, as the plugin does it.
            y = y.to(kind).float() + b.to(kind).float() if node.op == "weight_only_linear" else y + b
        return y.to(kind).reshape(*x.shape[:-1], y.shape[1])

    def matrices(self, node: Node, operand: Value) -> StreamedMatrices:
        """Returns an operand of a mixture of experts, whose matrices are read one at a time."""
        return StreamedMatrices(node, operand, self._source, self._panels, self._on_product)

    def rows(self, expr: WeightExpr, start: int, end: int) -> torch.Tensor:
        """Returns rows [start, end) in float32. The same thread's next call overwrites this memory."""
        tensor = evaluate_rows(expr, self._source, start, end)
        if tensor.dtype == "bfloat16":
            data = torch.from_dlpack(tensor.data).view(torch.bfloat16)
        else:
            data = torch.from_dlpack(to_float32(tensor))
        return self._buffer(data.shape).copy_(data)

    def _buffer(self, shape: torch.Size) -> torch.Tensor:
        """Returns memory that the thread keeps. New memory is cleared first, which costs more than the conversion."""
        held: torch.Tensor | None = getattr(self._held, "buffer", None)
        if held is None or held.numel() < shape.numel():
            held = self._held.buffer = torch.empty(shape.numel())
        return held[: shape.numel()].view(shape)

    def _multiply(self, expr: WeightExpr, x: torch.Tensor, y: torch.Tensor, kind: torch.dtype) -> None:
        columns = x.T.contiguous()

        def part(start: int, end: int) -> None:
            w = self.rows(expr, start, end)
            y[:, start:end] = (w.to(kind).float() @ columns).T

        self._each([y.shape[1]], x.shape[1], part)

    def _each(self, runs: list[int], k: int, work: Callable[[int, int], Any]) -> list[Any]:
        """Returns work(start, end) of all parts, in order."""
        return list(self._workers().map(lambda ends: work(*ends), parts_of(runs, k)))

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise RuntimeError("StreamedWeights must be entered before it is used")
        return self._pool

    def _multiply_quantized(self, node: Node, expr: WeightExpr, x: torch.Tensor, y: torch.Tensor) -> None:
        fmt: WeightFormat = node.attrs["format"]
        quantized = Multiplier(x.numpy(), fmt) if node.op == "quantized_linear" else None
        # Targets that keep activations anyway have no panels of fp8.
        halves = 1 if fmt.kind == "fp" and quantized is None else self._panels.halves(expr, fmt)
        columns = x.T.contiguous()

        def part(start: int, end: int) -> tuple[float, float]:
            if quantized is not None:
                got = torch.from_numpy(quantized.product(self._panels.panels(expr, fmt, start, end), end - start))
            else:
                got = x @ self._restored(expr, fmt, start, end, node.output.dtype).T
            y[:, start:end] = got
            if self._on_product is None:
                return 0.0, 0.0
            exact = (self.rows(expr, start, end) @ columns).T
            return _squares(got - exact), _squares(exact)

        sums = self._each([y.shape[1] // halves] * halves, x.shape[1], part)
        if self._on_product is not None:
            error, size = (sum(column) for column in zip(*sums, strict=True))
            self._on_product(node, stored(node.operand(1)), error, size)

    def _restored(self, expr: WeightExpr, fmt: WeightFormat, start: int, end: int, kind: str) -> torch.Tensor:
        """Returns quantized rows [start, end) converted back, in numbers of the activation type."""
        k = expr.shape(self._source)[1]
        if fmt.kind == "fp":
            made = quantize_weights(self.rows(expr, start, end).numpy(), fmt)
        else:
            made = unpack(self._panels.panels(expr, fmt, start, end), fmt, end - start, k)
        return torch.from_numpy(restored(made, fmt, k, kind))


@dataclass(frozen=True)
class StreamedMatrices:
    """The matrices [E, N, K] of the experts of a node. An index reads the matrix of one expert, which is dropped after
    its use: the matrices of a layer together would be the largest thing in memory."""

    node: Node
    operand: Value
    source: TensorSource
    quantized: PanelSource
    on_product: OnProduct | None

    @property
    def shape(self) -> Shape:
        return self.operand.shape

    def __getitem__(self, expert: int) -> torch.Tensor | StreamedMatrix:
        if "format" in self.node.attrs:
            return StreamedMatrix(self, int(expert))
        return self.floats(int(expert)).to(torch_dtype(self.operand.dtype))

    def floats(self, expert: int) -> torch.Tensor:
        """Returns [N, K] float32."""
        tensor = evaluate_matrix_rows(stored(self.operand), self.source, expert, 0, int(self.operand.shape[1]))
        return torch.from_dlpack(np.ascontiguousarray(to_float32(tensor)))


@dataclass(frozen=True)
class StreamedMatrix:
    """The quantized matrix [N, K] of one expert, which multiplies as the engine does."""

    of: StreamedMatrices
    expert: int

    def product(self, x: np.ndarray) -> np.ndarray:
        """Returns float32 [T, N] for x [T, K]."""
        node, expr = self.of.node, stored(self.of.operand)
        x = np.ascontiguousarray(x, np.float32)
        got = self._kept(x) if node.op.startswith("weight_only") else self._rounded(x)
        if self.of.on_product is not None:
            exact = torch.from_numpy(x) @ self.of.floats(self.expert).T
            self.of.on_product(node, expr, _squares(torch.from_numpy(got) - exact), _squares(exact))
        return got

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        """Returns the product of a target that rounds x too."""
        expr, fmt = stored(self.of.operand), self.of.node.attrs["format"]
        runs = self.of.quantized.halves(expr, fmt)
        rows = int(self.of.operand.shape[1]) // runs
        multiplier = Multiplier(x, fmt)
        starts = range(0, runs * rows, rows)
        panels = (self.of.quantized.panels(expr, fmt, start, start + rows, self.expert) for start in starts)
        return np.concatenate([multiplier.product(run, rows) for run in panels], axis=1)

    def _kept(self, x: np.ndarray) -> np.ndarray:
        """Returns the product of a target that leaves x as it is."""
        w, fmt = self.of.floats(self.expert).numpy(), self.of.node.attrs["format"]
        product: np.ndarray = x @ restored(w, fmt, x.shape[-1], self.of.node.output.dtype).T
        return product


def stored(value: Value) -> WeightExpr:
    """Returns the expression of a weight of the graph."""
    expr: WeightExpr = value.producer.attrs["expr"]
    return expr


def parts_of(runs: list[int], k: int) -> list[tuple[int, int]]:
    """Returns ranges of about CHUNK_ELEMENTS. Each starts with a panel of its run and ends in that run."""
    step = max(1, CHUNK_ELEMENTS // (k * LANES)) * LANES
    parts = []
    for i, rows in enumerate(runs):
        first = i * rows
        parts += [(first + start, first + min(rows, start + step)) for start in range(0, rows, step)]
    return parts


def _squares(x: torch.Tensor) -> float:
    return float(x.square().sum(dtype=torch.float64))
