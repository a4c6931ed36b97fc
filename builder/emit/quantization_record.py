"""Records what quantization costs, for config.json: the formats, bits per stored weight, the error of every weight.

Errors are kept by place: {name of the weight within a layer: [error in layer 0, 1, ...]}, None where a layer lacks it.
The embedding and lm_head have one entry each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorwright.builder.emit.cpu_weights import WeightTable
from tensorwright.builder.measure.metrics import rounded
from tensorwright.engine_format.weight_formats import format_name
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.ops import kind_of, matrices_of
from tensorwright.ir.weights import WeightExpr
from tensorwright.plugins.quantized_matmul.sparsity import density

EMBEDDING, LM_HEAD, LAYERS = "embedding", "lm_head", "layers"
_LAYER = re.compile(r"\.(\d+)\.")
_EXPERT = re.compile(r"\.\d+(?=\.)")

T = TypeVar("T")
Place = tuple[str, int]
"""(name of the weight within its layer, number of the layer)."""


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix of the checkpoint as a target stores it: its form, how many weights it has, and in how many bytes."""

    source: object
    form: str
    weights: int
    bytes: int
    error: float | None = None
    """Root of the mean squared error over that of the weight; None if the matrix was not rounded to fewer bits."""


Use = tuple[str, Place, StoredMatrix]
"""(role, place, the matrix that is read there)."""


def quantization_record(lowered: Graph, weights: WeightTable) -> dict[str, Any] | None:
    """Returns the record of weights.bin after it was streamed; None if nothing is quantized."""
    return make_record(lowered, lambda: matrix_uses(lowered, weights), lambda: all_bits(lowered, weights))


@dataclass(frozen=True)
class RankMatrices:
    """What the record says of the weights of one rank: the uses of its matrices, its weights and their bytes."""

    uses: tuple[Use, ...]
    weights: int
    bytes: int


def matrices_of_plan(lowered: Graph, weights: WeightTable) -> RankMatrices:
    """Returns those of one rank of target cpu, whose weights.bin was streamed."""
    count = sum({plan.key.source: plan.values for plan in weights.plans}.values())
    return RankMatrices(tuple(matrix_uses(lowered, weights)), count, weights.total_bytes)


def record_of_ranks(graph: Graph, ranks: Sequence[RankMatrices]) -> dict[str, Any] | None:
    """Returns the record of all ranks of an engine; None if nothing is quantized. The error of a matrix is that of the
    part, of those that ranks have, which has the largest. graph: the lowered graph of the whole model."""
    worst = sorted((use for rank in ranks for use in rank.uses), key=lambda use: use[2].error or 0.0)
    count, size = sum(rank.weights for rank in ranks), sum(rank.bytes for rank in ranks)
    return make_record(graph, lambda: worst, lambda: rounded(8 * size / count, 4))


def make_record(
    graph: Graph, uses: Callable[[], Iterable[Use]], bits: Callable[[], float | None]
) -> dict[str, Any] | None:
    """Returns the record of a graph's matrices; None if none is quantized.

    bits_per_weight: bytes stored, scales and padding included, over weights of the checkpoint; "all" counts norms and
    biases, and a matrix that is stored in two formats once, and so the columns that a product keeps beside it.
    weight_errors: root of the mean squared error over that of
    the weight, by place. densities: the part of the weights that is kept, of sparse matrices. formats: the format by
    place, where the spec has rules.
    """
    spec = graph.facts.quantize
    if spec is None:
        return None
    found = list(uses())
    errors = {place: matrix.error for _, place, matrix in found if matrix.error is not None}
    tied = {m.source for role, _, m in found if role == EMBEDDING} & {
        m.source for role, _, m in found if role == LM_HEAD
    }
    record = {
        "spec": str(spec),
        "tied": bool(tied),
        "bits_per_weight": {"all": bits()}
        | {role: role_bits(m for r, _, m in found if r == role) for role in (LAYERS, EMBEDDING, LM_HEAD)},
        "weight_errors": errors_by_name(errors),
    }
    if densities := densities_by_name(graph):
        record["densities"] = densities
    return {**record, "formats": formats_by_name(graph)} if spec.rules else record


def densities_by_name(graph: Graph) -> dict[str, list[float | None]]:
    """Returns the part of the weights that is kept, for every matrix of a 2:4 sparse format."""
    found = ((node, expr) for node in graph.nodes for _, expr in stored_matrices(node))
    sparse = [(node, expr) for node, expr in found if "format" in node.attrs and node.attrs["format"].sparse]
    return by_name({place_of(node, expr): density(int(node.operand(1).shape[-1])) for node, expr in sparse})


def formats_by_name(graph: Graph) -> dict[str, list[str | None]]:
    """Returns the format of every matrix that a node reads, "none" for those that stay, in the order of the layers."""
    found = ((node, expr) for node in graph.nodes if not reads_kept_columns(node) for _, expr in stored_matrices(node))
    return by_name({place_of(node, expr): format_name(node.attrs.get("format")) for node, expr in found})


def matrix_uses(lowered: Graph, weights: WeightTable) -> Iterable[Use]:
    """Yields every matrix of the checkpoint that an instruction of target cpu reads."""
    plans = {(plan.key.source, plan.key.layout): plan for plan in weights.plans}
    for node in lowered.nodes:
        for value, expr in stored_matrices(node):
            layout = value.producer.attrs["layout"]
            plan = plans[expr, layout]
            error = weights.errors[plan.key].value if plan.key in weights.errors else None
            count = 0 if reads_kept_columns(node) else plan.values  # They are weights of the whole matrix too.
            stored = StoredMatrix(expr, f"{layout} {plan.key.dtype}", count, plan.bytes, error)
            yield role_of(node), place_of(node, expr), stored


def stored_matrices(node: Node) -> list[tuple[Value, WeightExpr]]:
    """Returns the matrices of the checkpoint that a node multiplies with or gathers from, with their expressions."""
    matrices = [value for value in matrices_of(node) if value.producer.op == "weight"]
    return [(value, value.producer.attrs["expr"]) for value in matrices]


def reads_kept_columns(node: Node) -> bool:
    """Returns whether a node multiplies only the columns that are kept beside a quantized matrix."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.node is not None and x.node.op == "split_columns" and x is x.node.outputs[1]


def role_of(node: Node) -> str:
    """Returns the role of a node's matrix. A table of positions has the role of a layer's matrix."""
    if node.op.endswith("embedding"):
        return EMBEDDING if node.operand(1).name == "token_ids" else LAYERS
    return LM_HEAD if node.output.shape[0] == "rows" else LAYERS


def place_of(node: Node, expr: WeightExpr) -> Place:
    """Returns the place of one of a node's matrices.

    Joined matrices have names such as "self_attn.q_proj+k_proj", those of all experts "mlp.experts.gate_proj+up_proj".
    """
    role = role_of(node)
    if role != LAYERS:
        return role, 0
    names = [name.removesuffix(".weight") for name in dict.fromkeys(expr.refs())]
    found = [_LAYER.search(name) for name in names]
    tails = [name[match.end() :] if match else name for name, match in zip(names, found, strict=True)]
    if kind_of(node.op) == "mixture":
        tails = list(dict.fromkeys(_EXPERT.sub("", tail) for tail in tails))
    parent = tails[0].rpartition(".")[0]
    rest = [tail.removeprefix(f"{parent}.") if parent else tail for tail in tails[1:]]
    return "+".join([tails[0], *rest]), int(found[0][1]) if found[0] else 0


def errors_by_name(errors: dict[Place, float]) -> dict[str, list[float | None]]:
    """Returns errors, rounded to three digits, for each name a list over the layers."""
    return by_name({place: rounded(error, 3) for place, error in errors.items()})


def by_name(values: dict[Place, T]) -> dict[str, list[T | None]]:
    table: dict[str, list[T | None]] = {}
    for (name, layer), value in values.items():
        row = table.setdefault(name, [])
        row += [None] * (layer + 1 - len(row))
        row[layer] = value
    return table


def role_bits(matrices: Iterable[StoredMatrix]) -> float | None:
    """Returns the bits per weight of the distinct matrices; None if there are none."""
    distinct = {(matrix.source, matrix.form): matrix for matrix in matrices}.values()
    count = sum(matrix.weights for matrix in distinct)
    return rounded(8 * sum(matrix.bytes for matrix in distinct) / count, 4) if count else None


def all_bits(lowered: Graph, weights: WeightTable) -> float | None:
    """Returns the bits of weights.bin per weight of the checkpoint."""
    kept = {expr for node in lowered.nodes if reads_kept_columns(node) for _, expr in stored_matrices(node)}
    counts = {plan.key.source: plan.values for plan in weights.plans if plan.key.source not in kept}
    return rounded(8 * weights.total_bytes / sum(counts.values()), 4)
