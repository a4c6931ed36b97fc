"""Measures what each format of each matrix costs a model: how far it moves the logits of a text.

One matrix after the other is rounded, in one format, and the KL divergence of the logits from the unrounded model's is
taken; the walk to the matrix is shared, so only the rest of the graph is computed anew. The cost of another format is
that divergence times the ratio of the two formats' squared errors in the output of the matrix itself, on the same
inputs: for small errors a divergence grows with their square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tensorwright.builder.calibrate.choose_formats import Matrix
from tensorwright.builder.emit.quantized_weights import PackedPanels
from tensorwright.builder.measure.logit_blocks import logit_blocks
from tensorwright.builder.measure.reference import gather_embeddings, unpacked_row
from tensorwright.builder.measure.streamed_weights import StreamedWeights
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.format_rules import Rule
from tensorwright.engine_format.weight_formats import FormatRule, QuantizeSpec, WeightFormat
from tensorwright.ir.graph import STORED, Graph, Node, Value
from tensorwright.ir.interpret import run
from tensorwright.ir.ops import matrices_of
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.quantize_weights import quantize_weights, weights_of

ERROR_ROWS = 64
"""The most rows of inputs over which the outputs of formats are compared."""


@dataclass
class Costs:
    """What was measured of one matrix.

    errors: by format, the squared error of its outputs over their squares, summed over the places that read it.
    divergences: by format, the KL divergence of the logits in nats, the mean over positions, where it was measured.
    """

    errors: dict[WeightFormat, float] = field(default_factory=dict)
    divergences: dict[WeightFormat, float] = field(default_factory=dict)

    def cost(self, fmt: WeightFormat) -> float:
        """Returns the divergence that a format costs: as measured, or by the nearest measured one."""
        if fmt in self.divergences:
            return self.divergences[fmt]
        error = self.errors[fmt]
        nearest = min(self.divergences, key=lambda probe: abs(np.log((self.errors[probe] or 1e-30) / (error or 1e-30))))
        return self.divergences[nearest] * error / self.errors[nearest] if self.errors[nearest] else 0.0


class Sensitivity:
    """Runs the sequences through a graph at stage "cached" without quantized matrices, and rounds matrices in it."""

    def __init__(self, cached: Graph, checkpoint: Checkpoint, sequences: Sequence[Sequence[int]], rows: int):
        """rows: the positions whose logits are computed at a time."""
        self._checkpoint, self._rows = checkpoint, rows
        self._graph = cached.clone()
        self._panels = PackedPanels(checkpoint)
        self._weights = StreamedWeights(checkpoint, self._panels)
        inputs = RaggedAdapter(self._graph, sequences).inputs([len(ids) for ids in sequences])
        self._ids = inputs["token_ids"]
        tables = [node for node in self._graph.find("embedding") if node.operand(1).name == "token_ids"]
        gathered = gather_embeddings(self._graph, checkpoint, self._ids)
        self._embedded = {
            node.operand(0).producer.attrs["expr"]: (name, node.attrs.get("scale", 1.0))
            for node, name in zip(tables, gathered, strict=True)
        }
        self._inputs = {value.name: (inputs | gathered)[value.name] for value in self._graph.inputs}

    def measure(
        self, matrices: Sequence[Matrix], probes: dict[Matrix, list[WeightFormat]], advance: Advance
    ) -> dict[Matrix, Costs]:
        """Returns the costs of every candidate of every matrix. probes: the formats whose divergence is measured."""
        found = {matrix: Costs() for matrix in matrices}
        readers = self._readers(matrices)
        first = {matrix: min(places, default=-1) for matrix, places in readers.items()}
        with self._weights:
            wanted = [
                _log_softmax(block) for block in logit_blocks(self._graph, self._inputs, self._weights, self._rows)
            ]
            done = 0
            for at, live in self._walk({place for places in readers.values() for place in places}):
                for matrix in matrices:
                    if at in readers[matrix]:
                        self._add_errors(matrix, at, live, found[matrix])
                    if at == (0 if matrix.embedding is not None else first[matrix]):
                        for probe in probes[matrix]:
                            found[matrix].divergences[probe] = self._divergence(matrix, probe, at, live, wanted)
                        done += 1
                        advance(done, len(matrices))
        return found

    def _readers(self, matrices: Sequence[Matrix]) -> dict[Matrix, set[int]]:
        """Returns the places of the nodes that read each matrix; 0 stands for a table whose rows are inputs here."""
        readers: dict[Matrix, set[int]] = {matrix: set() for matrix in matrices}
        owner = {name: matrix for matrix in matrices for name in matrix.names}
        for at, node in enumerate(self._graph.nodes):
            if node.op in ("linear", "experts", "head_products"):
                names = [name for name in weights_of_products(node) if name in owner]
                if names:
                    readers[owner[names[0]]].add(at)
        for matrix in matrices:
            if matrix.embedding is not None:
                readers[matrix].add(0)
        return readers

    def _walk(self, stops: set[int]) -> Iterator[tuple[int, dict[Value, Any]]]:
        """Yields the places `stops` in order, each with all values that nodes from there on read."""
        nodes = self._graph.nodes
        last = {value: at for at, node in enumerate(nodes) for value in node.inputs if value is not None}
        live: dict[Value, Any] = {}
        values = run(self._graph, self._inputs, self._weights)
        for at, node in enumerate(nodes):
            if at in stops:
                yield at, live
            if node.op in STORED:
                continue
            for _ in node.outputs:
                value, data = next(values)
                live[value] = data
            for dead in [value for value in live if last.get(value, -1) <= at]:
                del live[dead]

    def _divergence(
        self, matrix: Matrix, fmt: WeightFormat, at: int, live: dict[Value, Any], wanted: list[np.ndarray]
    ) -> float:
        """Returns the mean KL divergence of the logits if the matrix alone is in a format, from node `at` on."""
        graph, inputs = self._rest(self._rounded(matrix, fmt), at, live)
        if matrix.embedding is not None:
            name, _ = self._embedded[matrix.embedding]
            inputs[name] = self._embedded_rows(matrix, fmt)
        total, count = 0.0, 0
        for log_p, block in zip(wanted, logit_blocks(graph, inputs, self._weights, self._rows), strict=True):
            log_q = _log_softmax(block)
            total += float((np.exp(log_p) * (log_p - log_q)).sum(dtype=np.float64))
            count += len(block)
        return max(0.0, total / count)

    def _rounded(self, matrix: Matrix, fmt: WeightFormat) -> Graph:
        """Returns the graph with the products of one matrix in a format. Its nodes are in the same places."""
        graph = self._graph.clone()
        if matrix.products:
            rules: tuple[FormatRule, ...] = tuple(Rule(name, fmt) for name in matrix.names)
            graph.facts.quantize = QuantizeSpec(None, None, None, rules)
            quantize_weights(graph)
        return graph

    def _rest(
        self, graph: Graph, at: int, live: dict[Value, Any], outputs: Sequence[Value] | None = None
    ) -> tuple[Graph, dict[str, Any]]:
        """Returns the part of a graph from node `at` on, whose inputs are the values before it, and these inputs."""
        before = dict(zip((value for node in self._graph.nodes[:at] for value in node.outputs),
                          (value for node in graph.nodes[:at] for value in node.outputs), strict=True))  # fmt: skip
        known = {before[value]: data for value, data in live.items() if value in before}
        entries: list[Node] = []
        inputs: dict[str, Any] = {}
        for node in graph.nodes[:at]:
            if node.op == "input" or node.op in STORED:
                entries.append(node)
                if node.op == "input":
                    inputs[node.output.name] = self._inputs[node.output.name]
                continue
            for value in node.outputs:
                if value in known:
                    entry = Node("input", [], {}, [value], node.scope)
                    value.node = entry
                    entries.append(entry)
                    inputs[value.name] = known[value]
        graph.nodes = entries + graph.nodes[at:]
        if outputs is not None:
            graph.outputs = list(outputs)
        graph.drop_dead()
        inputs.update({v.name: self._inputs[v.name] for v in graph.inputs if v.name not in inputs})
        return graph, {value.name: inputs[value.name] for value in graph.inputs}

    def _add_errors(self, matrix: Matrix, at: int, live: dict[Value, Any], costs: Costs) -> None:
        """Adds the errors of the output of node `at` in every format; those of a table for place 0."""
        if at == 0 and matrix.embedding is not None:
            name, _ = self._embedded[matrix.embedding]
            exact = self._inputs[name].float()
            for fmt in matrix.candidates:
                _add_error(costs, fmt, self._embedded_rows(matrix, fmt), exact)
            return
        node = self._graph.nodes[at]
        few = {value: _first_rows(value, data) for value, data in live.items() if value in node.inputs}
        exact = self._alone(self._graph.clone(), at, few)
        for fmt in matrix.candidates:
            _add_error(costs, fmt, self._alone(self._rounded(matrix, fmt), at, few), exact)

    def _alone(self, graph: Graph, at: int, few: dict[Value, Any]) -> torch.Tensor:
        """Returns the output of one node for some rows of its inputs."""
        node = graph.nodes[at]
        entries, inputs = [], {}
        for mine, value in zip(self._graph.nodes[at].inputs, node.inputs, strict=True):
            if value is None or mine is None:
                continue
            if value.is_stored:
                entries.append(value.producer)
            elif value.name not in inputs:
                value.node = Node("input", [], {}, [value], "")
                entries.append(value.node)
                inputs[value.name] = few[mine]
        graph.nodes = [*dict.fromkeys(entries), node]
        graph.outputs = [node.output]
        (result,) = [data for value, data in run(graph, inputs, self._weights) if value is node.output]
        return result.float()

    def _embedded_rows(self, matrix: Matrix, fmt: WeightFormat) -> torch.Tensor:
        assert matrix.embedding is not None
        _, scale = self._embedded[matrix.embedding]
        rows = [
            unpacked_row(matrix.embedding, fmt, self._checkpoint, self._panels, int(i)) for i in self._ids.flatten()
        ]
        return torch.from_numpy(np.stack(rows).reshape(*self._ids.shape, -1) * np.float32(scale))


def weights_of_products(node: Node) -> list[str]:
    """Returns the names of the weights of a product; none for a node without stored matrices."""
    if any(value.node is None or value.node.op != "weight" for value in matrices_of(node)):
        return []
    return weights_of(node)


def _first_rows(value: Value, data: Any) -> Any:
    return data[:ERROR_ROWS].contiguous() if value.rank and isinstance(value.shape[0], str) else data


def _add_error(costs: Costs, fmt: WeightFormat, got: torch.Tensor, exact: torch.Tensor) -> None:
    size = float(exact.float().square().sum(dtype=torch.float64))
    error = float((got.float() - exact.float()).square().sum(dtype=torch.float64))
    costs.errors[fmt] = costs.errors.get(fmt, 0.0) + (error / size if size else 0.0)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns float32 of the shape of `logits`, [positions, vocab]."""
    result: np.ndarray = torch.log_softmax(torch.from_numpy(np.ascontiguousarray(logits)), dim=-1).numpy()
    return result
